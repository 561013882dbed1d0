"""The main example: the state of every aircraft, through a crash, an upgrade of the state, and a change of backend.

`version_1`, `version_2` and `version_3` are versions of the program. `job` runs a version on Spark, `driver` runs one
in a process of its own, and `expected` computes the same results with plain Spark. `demo` runs all steps:
`python -m examples.flights`.
"""
