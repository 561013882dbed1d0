"""What runs a windowed operation over the records of a subtask.

All windows of a key are in state, each a namespace under the key; what is remembered between two calls is there, or
goes there before a snapshot. There is no loop over windows: timers say which one is due.
"""
