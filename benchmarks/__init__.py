"""Benchmarks that compare this project with its alternatives.

`python -m benchmarks` lists the suites. `python -m benchmarks SUITE --json` prints one JSON object per line. Each
result is a ratio of two values from the same run, because a value alone depends on the machine.
"""
