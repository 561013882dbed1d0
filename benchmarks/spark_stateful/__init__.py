"""The same keyed count on Spark with our state and with Spark's own state.

`suite` is the command. `workload` defines the task and how its speed is measured. `peers` has Spark's implementations,
`ours` has ours, and `contenders` lists all of them. `epoch_cost` measures epochs with almost no work.
"""
