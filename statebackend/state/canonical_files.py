"""State handles with files in canonical Parquet, as in savepoints and heap snapshots.

Rows are read in batches. Each file is verified against its checksum when it is opened.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from attrs import evolve, frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.state.canonical import CanonicalBatch, read_canonical_columns, write_canonical
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.private_directory import scratch_directory
from statebackend.state.progress import Operation, ProgressListener, StateProgress, no_progress
from statebackend.state.state_meta import CANONICAL_BACKEND, StateFile, encode_meta
from statebackend.state.ttl import kept_batches

READ_AT_ONCE_BYTES: Final = 4 << 20
"""Files up to this size are read in memory, larger ones in batches."""


@frozen
class CanonicalFile:
    """A file of rows and its store."""

    file_system: CheckpointFileSystem
    handle: FileHandle

    def batches(self, key_groups: KeyGroupRange, local_directory: str) -> Iterator[CanonicalBatch]:
        """Read the rows in the range. Raises a `CheckpointError` that names a missing or damaged file.

        A large file is downloaded to ``local_directory``, so that memory holds only one batch.
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
        """Read columns, including the key group, of the rows in the ranges, as batches of Arrow; raises as `batches`.

        Without ``is_verified`` only the needed pages of a large file are fetched, and the checksum of each page is
        verified instead of that of the file. Use it if many readers read a part of one file each.
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
        """Verify the checksum of the file, and yield a source for pyarrow."""
        if self.handle.size_bytes <= READ_AT_ONCE_BYTES:
            yield pa.BufferReader(self.file_system.read_file(self.handle))
            return
        with scratch_directory(local_directory) as directory:
            copy = os.path.join(directory, "rows.parquet")
            self.file_system.download(self.handle, copy)
            yield copy


CANONICAL_SUFFIX: Final = ".parquet"


def export_canonical_handle(
    backend: KeyedStateBackend,
    file_system: CheckpointFileSystem,
    directory: str,
    part: str,
    state_id: str,
    *,
    scratch_directory: str | None = None,
    progress: ProgressListener = no_progress,
) -> tuple[KeyedStateHandle, dict[str, int]]:
    """Write all states of a backend, registered or not, as Parquet files.

    The files are ``<directory>/<state>/<part>.parquet``. The state's name is escaped as in a URL (`path_segment`). The
    second result is the number of rows of each state. A state without entries has no file. Expired entries are left out
    (`KeyedStateBackend.row_filter`). Files are made one at a time in ``scratch_directory``, by default that of the
    system. ``progress`` is called with the progress of each state.
    """
    files: list[FileHandle] = []
    files_by_state: dict[str, tuple[StateFile, ...]] = {}
    rows_by_state: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="statebackend-export-", dir=scratch_directory) as local_directory:
        for state in backend.current_meta().states:
            local = os.path.join(local_directory, "part" + CANONICAL_SUFFIX)
            row_filter = backend.row_filter(state.name)
            saving = StateProgress(progress, Operation.SAVEPOINT, backend.parameters.operator_uid, state.name)
            batches = kept_batches(row_filter, backend.export_state(state.name))
            rows = write_canonical(local, _counted(batches, saving))
            rows_by_state[state.name] = rows
            references: tuple[StateFile, ...] = ()
            if rows:
                target = f"{directory}/{path_segment(state.name)}/{part}{CANONICAL_SUFFIX}"
                references = (StateFile(len(files), state_id),)
                files.append(file_system.upload(local, target))
                saving.add(size_bytes=files[-1].size_bytes)
            saving.done()
            os.unlink(local)
            files_by_state[state.name] = references
    # Read it after the rows were written, since some serializers learn from what they write.
    meta = backend.current_meta()
    states = tuple(state.with_files(files_by_state[state.name]) for state in meta.states)
    key_groups = backend.key_group_range
    handle = KeyedStateHandle(
        state_id,
        CANONICAL_BACKEND,
        key_groups.start,
        key_groups.end,
        encode_meta(evolve(meta, states=states)),
        tuple(files),
    )
    return handle, rows_by_state


def _counted(batches: Iterable[CanonicalBatch], saving: StateProgress) -> Iterator[CanonicalBatch]:
    for batch in batches:
        yield batch
        saving.add(batch.row_count)
