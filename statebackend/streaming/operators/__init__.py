"""Operators: they call a user's function with the records of a subtask and its state."""
