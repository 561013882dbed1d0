"""The same keyed count on Spark through our state and through Spark's own.

`workload` is the task and how its speed is taken, `peers` are Spark's ways to do it and `ours` is ours,
`contenders` lists them all, `epoch_cost` measures epochs that have almost nothing to do, `suite` is the command.
"""
