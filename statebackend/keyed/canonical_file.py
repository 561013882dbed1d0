"""A file of canonical rows in some store, read a batch at a time: what savepoints and heap snapshots are made of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.key_groups import KeyGroupRange
from statebackend.canonical.canonical_entries import CanonicalBatch, read_canonical
from statebackend.keyed.private_directory import scratch_directory

READ_AT_ONCE_BYTES: Final = 4 << 20
"""Files up to this size are read in memory; of larger ones a batch at a time is."""


@frozen
class CanonicalFile:
    """A file that rows are read from, and the store it is in."""

    file_system: CheckpointFileSystem
    handle: FileHandle

    def batches(self, key_groups: KeyGroupRange, local_directory: str) -> Iterator[CanonicalBatch]:
        """The rows in the range; raises `CheckpointError`s for a missing or damaged file, which name it.

        A large file goes by way of ``local_directory``, so that memory holds a batch of it and not the whole.
        """
        location = self.file_system.location(self.handle.path)
        if self.handle.size_bytes <= READ_AT_ONCE_BYTES:
            yield from read_canonical(location, key_groups, self.file_system.read_file(self.handle))
            return
        with scratch_directory(local_directory) as directory:
            copy = os.path.join(directory, "rows.parquet")
            self.file_system.download(self.handle, copy)
            yield from read_canonical(location, key_groups, local_copy=copy)
