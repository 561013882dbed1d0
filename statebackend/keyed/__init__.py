"""The keyed state backend of a subtask: registrations, keys, snapshots and migration, the same for every store."""
