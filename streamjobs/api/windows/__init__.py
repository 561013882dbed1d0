"""What a user says of windows: which a record is in, when they fire, what is thrown out, what is made of them.

These are descriptions: they travel to the subtasks by pickling and keep nothing between calls. State and timers are in
the contexts that they are given. What runs them is in `streamjobs.operators.windows`. The names are Flink's.
"""
