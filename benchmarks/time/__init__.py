"""Time and operators beside Spark's own ways: `suite` is the command, and each group of results has a module.

`windows` counts by the hour and `processor` runs one program, each on Spark's state and on ours. `timers` compares a
timer with an update of a value, and `epochs` those with event time with an almost empty one without.
"""
