"""The durable form of a checkpoint or savepoint, `_metadata`, version by version."""
