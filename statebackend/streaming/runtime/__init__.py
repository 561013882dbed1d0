"""Code that both runtimes share: the start of a job, subtasks, restores, registrations and metrics."""
