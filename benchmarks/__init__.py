"""Benchmarks: how fast the project is beside the obvious alternatives, measured in one run.

`python -m benchmarks` lists the suites, `python -m benchmarks SUITE --json` prints one JSON object a line.
A number is only worth something next to its peer's from the same run, so each result is a ratio.
"""
