"""The RocksDB store: sorted rows on the local disk, for state larger than memory, with a write-back cache per epoch.

`RocksDBStateBackend` is all of it that is public. Nothing here knows of registrations, verdicts or current keys, and no
other room looks into it.
"""

from statebackend.rocksdb.rocksdb_state_backend import RocksDBStateBackend

__all__ = ["RocksDBStateBackend"]
