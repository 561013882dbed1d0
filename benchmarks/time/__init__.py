"""Compares event time and operators with Spark's own: `suite` is the command, and each group of results has a module.

`windows` counts by the hour, `processor` runs one `transformWithState` program, and `aggregates` uses built-in
aggregates, each on Spark's state and on ours. `timers` compares a timer with a value update, and `epochs` compares
epochs with event time with an almost empty one without.
"""
