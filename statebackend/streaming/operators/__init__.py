"""Operators: they run a user's function over the records of a subtask, with its state."""
