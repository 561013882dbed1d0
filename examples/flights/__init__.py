"""The main job: what every aircraft does, through a crash, an upgrade of its state, and a change of backend.

`version_1`, `version_2` and `version_3` are the job's program as it changes over time; `job` puts a version on Spark;
`driver` runs one as a process of its own; `expected` says in plain Spark what must come out; `demo` tells the story:
`python -m examples.flights`.
"""
