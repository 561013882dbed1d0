"""Epochs of a subtask with state in a local directory, and the content of that directory."""

import os

from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import fill

ROCKSDB = RocksDBStateBackend()
KEYS = range(20)


def epoch(harness, handle, offset, local="local"):
    """Run one epoch in the local directory as a task would; returns the handle and whether it was reused."""
    backend = harness.open(ROCKSDB, *([handle] if handle else []), local=local)
    fill(harness, backend, KEYS, offset)
    snapshot = harness.snapshot(backend)
    is_local = backend.is_local
    backend.close()
    return snapshot.handle, is_local


def version_path(harness, local="local"):
    return os.path.join(harness.directory, "local", local, "VERSION")


def damage(harness):
    database = os.path.join(harness.directory, "local", "local", "db")
    files = [name for name in os.listdir(database) if name.endswith(".sst")]
    os.unlink(os.path.join(database, files[0]))
