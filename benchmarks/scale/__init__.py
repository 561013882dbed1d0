"""Measures the work of the driver per epoch without Spark: many subtasks, many files, many epochs."""
