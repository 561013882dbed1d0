"""A file of canonical rows in some store, read a batch at a time: what savepoints and heap snapshots are made of."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from attrs import frozen

from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.key_groups import KeyGroupRange
from statebackend.canonical.canonical_entries import CanonicalBatch, read_canonical_columns
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
        with self._verified(local_directory) as source:
            for batch in read_canonical_columns(self._location, source, (key_groups,)):
                yield CanonicalBatch.of(batch)

    def columns(
        self,
        key_groups: Sequence[KeyGroupRange],
        local_directory: str,
        columns: Sequence[str],
        *,
        is_verified: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """These columns, the key group among them, of the rows in the ranges, as batches of Arrow; raises as `batches`.

        Without ``is_verified`` a large file is not compared with its checksum, only the pages that are needed are
        fetched, and each of them is compared with its own: for the many who read a part of one file each.
        """
        if is_verified or self.handle.size_bytes <= READ_AT_ONCE_BYTES:
            with self._verified(local_directory) as source:
                yield from read_canonical_columns(self._location, source, key_groups, columns)
            return
        self.file_system.verify_present([self.handle])
        with self.file_system.open_input(self.handle.path) as file:
            yield from read_canonical_columns(self._location, file, key_groups, columns, checks_pages=True)

    @property
    def _location(self) -> str:
        return self.file_system.location(self.handle.path)

    @contextmanager
    def _verified(self, local_directory: str) -> Iterator[str | pa.NativeFile]:
        """What pyarrow reads the file from, once it was found to be what its checksum says."""
        if self.handle.size_bytes <= READ_AT_ONCE_BYTES:
            yield pa.BufferReader(self.file_system.read_file(self.handle))
            return
        with scratch_directory(local_directory) as directory:
            copy = os.path.join(directory, "rows.parquet")
            self.file_system.download(self.handle, copy)
            yield copy
