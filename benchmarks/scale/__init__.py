"""What the driver does for an epoch, measured without Spark: many subtasks, many files, many epochs."""
