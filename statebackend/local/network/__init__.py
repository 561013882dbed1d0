"""Subtasks and channels of the local runtime as a state machine without clock, thread or state backend."""
