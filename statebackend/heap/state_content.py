"""What one state on the heap consists of: its table, or the files it is read from, and the files that say the same.

Invariant: what completed snapshots hold of a table is what ``files`` say, unless `StateFiles.needs_base`. Snapshots may
be completed in any order; the files are those of the latest one that was prepared. A migration begins a new content:
what a snapshot that was prepared before it has written says nothing about the new one.
"""

from __future__ import annotations

from attrs import define, field

from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.heap.entry_table import HeapTable
from statebackend.keyed.canonical_file import CanonicalFile
from statebackend.keyed.state_files import StateFiles


@define(eq=False)
class StateContent:
    """``sources`` are where a state without a table is read from; ``files`` is replaced, never changed."""

    files: StateFiles = field(factory=StateFiles)
    sources: tuple[CanonicalFile, ...] = ()
    table: HeapTable | None = None
    completed: int = -1
    """The number of the snapshot that wrote ``files``."""

    def complete(self, number: int, files: StateFiles, file_system: CheckpointFileSystem) -> None:
        """Takes over the files of a completed snapshot, unless a later one was completed before."""
        if number > self.completed:
            self.completed, self.files = number, files
            if self.table is None:
                self.sources = tuple(CanonicalFile(file_system, stored.handle) for stored in files.stored)
