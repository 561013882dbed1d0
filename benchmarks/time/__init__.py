"""Time and operators beside Spark's own ways: `suite` is the command, and each group of results has a module.

`processor` runs one program for `transformWithState` on Spark's state and on ours.
"""
