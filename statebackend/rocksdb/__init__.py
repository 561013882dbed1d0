"""State in RocksDB, for state larger than memory. `RocksDBStateBackend` is all of it that is public."""

from statebackend.rocksdb.keyed_backend import RocksDBStateBackend

__all__ = ["RocksDBStateBackend"]
