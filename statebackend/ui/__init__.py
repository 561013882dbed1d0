"""The read-only page of jobs, savepoints and their state, served by `statebackend ui`."""
