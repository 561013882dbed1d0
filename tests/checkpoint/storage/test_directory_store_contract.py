"""The store of a job directory passes the contract."""

from __future__ import annotations

import pathlib

from statebackend.checkpoint import DirectoryCheckpointStore, JobDirectory
from statebackend.testing.stores import CompletedCheckpointStoreContract, LeaderStore


class TestDirectoryStore(CompletedCheckpointStoreContract):
    def lead(self, directory: pathlib.Path, max_retained: int) -> LeaderStore:
        opened = JobDirectory.open(str(directory), "flights", 4)
        store = DirectoryCheckpointStore(opened.file_system, max_retained, leadership=opened.leadership)
        return LeaderStore(store, opened.file_system, lose=opened.close, close=opened.close)
