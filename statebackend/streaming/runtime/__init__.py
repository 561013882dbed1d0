"""What every runtime shares: the start of a job, subtasks, restores, registrations and metrics."""
