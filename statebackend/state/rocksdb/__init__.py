"""The RocksDB state backend, for state larger than memory."""
