"""What one state on the heap consists of: its table, or the files it is read from, and the files that say the same.

Invariant: what completed snapshots hold of a table is what ``files`` say, unless `StateFiles.needs_base`. Snapshots may
be completed in any order; the files are those of the latest one that was prepared. A migration begins a new content:
what a snapshot that was prepared before it has written says nothing about the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from attrs import define, field, frozen

from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.key_groups import KeyGroupRange
from statebackend.canonical.canonical_entries import CanonicalBatch, read_canonical
from statebackend.heap.entry_table import HeapTable
from statebackend.keyed.private_directory import scratch_directory
from statebackend.keyed.state_files import StateFiles

READ_AT_ONCE_BYTES: Final = 4 << 20
"""Files up to this size are read in memory; of larger ones a batch at a time is."""


@frozen
class Source:
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


@define(eq=False)
class StateContent:
    """``sources`` are where a state without a table is read from; ``files`` is replaced, never changed."""

    files: StateFiles = field(factory=StateFiles)
    sources: tuple[Source, ...] = ()
    table: HeapTable | None = None
    completed: int = -1
    """The number of the snapshot that wrote ``files``."""

    def complete(self, number: int, files: StateFiles, file_system: CheckpointFileSystem) -> None:
        """Takes over the files of a completed snapshot, unless a later one was completed before."""
        if number > self.completed:
            self.completed, self.files = number, files
            if self.table is None:
                self.sources = tuple(Source(file_system, stored.handle) for stored in files.stored)
