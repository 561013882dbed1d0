"""The asynchronous part of a RocksDB snapshot: uploads, merging of increments, and bases.

What it works on was frozen at the barrier: files that nobody changes, and, for a state that is written whole, a scan
that was begun then and shows the database as it was. So it may run on any thread, beside the backend and beside other
snapshots; the local database is not changed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

from attrs import define, field

from checkpointing.errors import CheckpointError
from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters, KeyedStateSnapshot
from statebackend.keyed.snapshot_task import SnapshotTask
from statebackend.keyed.state_files import StateFiles, StoredFile
from statebackend.keyed.state_meta import StateMeta
from statebackend.kinds.state_kind import RowFilter
from statebackend.rocksdb.engine import SstWriter
from statebackend.rocksdb.file_chain import FrozenChain
from statebackend.rocksdb.increments import merge_increments
from statebackend.rocksdb.local_directory import LocalStateDirectory
from statebackend.ttl.row_filter import kept_rows

MAX_FILES_OF_ONE_SNAPSHOT: Final = 4
"""Local files of one state beyond which a snapshot merges them before it uploads them."""

_CANCEL_CHECK_ROWS: Final = 4096


@define(eq=False)
class FrozenRocksDBTable:
    """One state as it was at the barrier; ``whole`` scans it if it is to be written whole."""

    meta: StateMeta
    frozen: FrozenChain
    whole: Generator[tuple[bytes, bytes], None, None] | None
    row_filter: RowFilter | None
    was_exact: bool
    stored: list[StoredFile] = field(factory=list)
    is_exact: bool = True


@define(eq=False)
class FrozenRocksDBState:
    """Everything that a snapshot says about the backend, as of the barrier."""

    order: int
    state_id: str
    stem: str
    digest: str
    entries_written: int
    version: int
    tables: list[FrozenRocksDBTable]


class RocksDBSnapshotTask(SnapshotTask[KeyedStateSnapshot]):
    """See the module. ``handle_of`` makes the handle of the stored files; ``report`` hears its end, on any thread."""

    def __init__(
        self,
        state: FrozenRocksDBState,
        parameters: KeyedStateBackendParameters,
        directory: LocalStateDirectory,
        handle_of: Callable[[list[tuple[StateMeta, StateFiles]]], KeyedStateHandle],
        report: Callable[[RocksDBSnapshotTask], None],
    ) -> None:
        super().__init__()
        self.frozen_state = state
        self.is_done = False
        self.is_out = threading.Event()
        """Set when nothing is read any more of what was frozen."""
        self._file_system = parameters.file_system
        self._prefix = f"{parameters.file_prefix}-{state.stem}"
        self._directory = directory
        self._handle_of = handle_of
        self._report = report
        self._uploaded: list[FileHandle] = []

    def write(self) -> KeyedStateSnapshot:
        states = []
        for number, table in enumerate(self.frozen_state.tables):
            self.raise_if_cancelled()
            files = self._files_of(table, f"{self._prefix}-{number}")
            table.stored = files.stored
            states.append((table.meta, files))
        handle = self._handle_of(states)
        written = sum(file.size_bytes for file in self._uploaded)
        return KeyedStateSnapshot(handle, self.frozen_state.digest, self.frozen_state.entries_written, written)

    def remove_written(self) -> None:
        for file in self._uploaded:
            # The first error is the one to report; a file that stays behind is an orphan and harms nothing.
            with contextlib.suppress(CheckpointError):
                self._file_system.delete(file.path)

    def ended(self, snapshot: KeyedStateSnapshot | None) -> None:
        self.is_done = snapshot is not None
        try:
            for table in self.frozen_state.tables:
                if table.whole is not None:
                    table.whole.close()
                    table.whole = None
            self._report(self)
        finally:
            # The backend's close waits for this, whatever happened.
            self.is_out.set()

    def _files_of(self, table: FrozenRocksDBTable, stem: str) -> StateFiles:
        """Brings what is new of a state into the store."""
        files = table.frozen.as_files()
        table.is_exact = table.was_exact
        has_many = len(files.pending) > MAX_FILES_OF_ONE_SNAPSHOT or files.increments_to_merge() is not None
        if table.whole is None and not has_many:
            # A directory that is made and removed waits for the disk.
            return self._with_pending_stored(files, stem)
        with self._directory.scratch() as directory:
            return self._with_pending_stored(self._put_together(table, files, stem, directory), stem)

    def _put_together(self, table: FrozenRocksDBTable, files: StateFiles, stem: str, directory: str) -> StateFiles:
        """Writes a state whole if so asked, and merges files where there are too many; those it makes are in the
        directory.
        """
        if table.whole is not None:
            files = self._base(table, files, directory)
        elif len(files.pending) > MAX_FILES_OF_ONE_SNAPSHOT:
            files.pending = self._merged_pending(files.pending, directory)
        places = files.increments_to_merge()
        if places is not None:
            # Once is enough, since a snapshot adds fewer files than that takes away; and what was merged here must not
            # be merged again, or its file would be in the store for nobody.
            self._merge_stored(files, places, f"{stem}-merged.sst", directory)
        return files

    def _with_pending_stored(self, files: StateFiles, stem: str) -> StateFiles:
        for number, path in enumerate(files.pending):
            self.raise_if_cancelled()
            files.stored.append(self._upload(path, f"{stem}-{number}.sst"))
        files.pending = []
        return files

    def _base(self, table: FrozenRocksDBTable, files: StateFiles, directory: str) -> StateFiles:
        """Writes the state whole, and nothing else; what has expired stays out."""
        assert table.whole is not None
        writer = SstWriter(os.path.join(directory, "base.sst"))
        kept = _KeptExactly(table.row_filter)
        writer.write(kept_rows(kept if table.row_filter else None, self._watched(table.whole)))
        table.is_exact = kept.is_exact
        if not writer.entry_count:
            return StateFiles()
        writer.finish()
        return StateFiles(pending=[writer.path])

    def _merged_pending(self, paths: list[str], directory: str) -> list[str]:
        merged = merge_increments(self._linked(paths, directory), directory, os.path.join(directory, "pending.sst"))
        return [] if merged is None else [merged.path]

    def _merge_stored(self, files: StateFiles, places: range, target: str, directory: str) -> None:
        with tempfile.TemporaryDirectory(dir=directory) as parts:
            paths = []
            for number, stored in enumerate(files.stored[places.start : places.stop]):
                self.raise_if_cancelled()
                paths.append(os.path.join(parts, f"{number}.sst"))
                self._file_system.download(stored.handle, paths[-1])
            merged = merge_increments(paths, parts, os.path.join(parts, "merged.sst"))
            files.replace(places, None if merged is None else self._upload(merged.path, target))

    def _linked(self, paths: list[str], directory: str) -> list[str]:
        """Links of files, for one who takes files as its own."""
        links = [os.path.join(directory, f"{number}.sst") for number in range(len(paths))]
        for path, link in zip(paths, links, strict=True):
            os.link(path, link)
        return links

    def _upload(self, path: str, target: str) -> StoredFile:
        handle = self._file_system.upload(path, target)
        self._uploaded.append(handle)
        return StoredFile(handle, self.frozen_state.state_id)

    def _watched(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for number, row in enumerate(rows):
            if not number % _CANCEL_CHECK_ROWS:
                self.raise_if_cancelled()
            yield row


class _KeptExactly:
    """A row filter that remembers whether it has left out anything."""

    def __init__(self, row_filter: RowFilter | None) -> None:
        self._row_filter = row_filter
        self.is_exact = True

    def __call__(self, value: bytes) -> bytes | None:
        assert self._row_filter is not None
        kept = self._row_filter(value)
        if kept is not value:
            self.is_exact = False
        return kept
