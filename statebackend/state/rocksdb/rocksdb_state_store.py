"""The RocksDB store of one subtask, and the asynchronous part of its snapshots.

Nothing is written through the memtable. At the barrier the write-back cache is sorted into one file per changed state.
That file is ingested into the local database *and* uploaded as the increment of the checkpoint. Its cost depends on the
number of changed keys, not on the size of the state. A state that is written whole needs no increment
(`statebackend.state.rocksdb.file_chain`).

A migration rewrites all entries of a state, in key order, into one new file and a new column family, and drops the old
one last. If it is interrupted, the local database has no version, and the next attempt starts from the untouched
handles.

The asynchronous part uploads files, merges increments, and writes bases. It works on what the barrier froze: immutable
files, and, for a state that is written whole, a scan that shows the database as of the barrier. So it may run on any
thread, in parallel to the backend and other snapshots. It does not change the local database.

`statebackend.state.rocksdb.restore` fills the database.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final

from attrs import define, field, frozen

from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.state.backend_parameters import KeyedStateBackendParameters, KeyedStateSnapshot, RestoredStates
from statebackend.state.composite_key import KEY_GROUP
from statebackend.state.entry_migration import EntryMigration
from statebackend.state.errors import StateBackendError
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.progress import Operation, StateProgress
from statebackend.state.rocksdb.cached_state import (
    DEFAULT_CACHE_BYTES,
    CacheBounds,
    Change,
    WriteBackCache,
    close_cache_memory,
    open_cache_memory,
)
from statebackend.state.rocksdb.engine import DEFAULT_MEMORY_BUDGET_BYTES, SstWriter
from statebackend.state.rocksdb.file_chain import ContentDigest, FrozenChain
from statebackend.state.rocksdb.local_database import LocalDatabase, merge_increments
from statebackend.state.rocksdb.local_directory import LocalStateDirectory
from statebackend.state.rocksdb.priority_queue import QueueEnds
from statebackend.state.rocksdb.restore import ROCKSDB_BACKEND, RestoreTarget, open_or_restore
from statebackend.state.rocksdb.table import RocksDBTable, TableSharing
from statebackend.state.snapshot_task import SnapshotTask
from statebackend.state.state_files import StateFiles, StoredFile, handle_of_files, max_increment_ratio
from statebackend.state.state_kind import RowFilter
from statebackend.state.state_meta import StateMeta, StateSchema
from statebackend.state.state_store import StateStore
from statebackend.state.ttl import kept_rows
from typeserializers.kernel.type_serializer import TypeSerializer

MAX_FILES_OF_ONE_SNAPSHOT: Final = 4
"""A snapshot merges the local files of one state before the upload if there are more than this."""

_CANCEL_CHECK_ROWS: Final = 4096


@define(eq=False)
class FrozenRocksDBTable:
    """One state at the barrier; ``whole`` scans it if it is to be written whole."""

    meta: StateMeta
    frozen: FrozenChain
    whole: Generator[tuple[bytes, bytes], None, None] | None
    row_filter: RowFilter | None
    was_exact: bool
    stored: list[StoredFile] = field(factory=list)
    is_exact: bool = True


@define(eq=False)
class FrozenRocksDBState:
    """The content of a snapshot, as of the barrier."""

    order: int
    state_id: str
    stem: str
    digest: str
    entries_written: int
    version: int
    tables: list[FrozenRocksDBTable]


class RocksDBSnapshotTask(SnapshotTask[KeyedStateSnapshot]):
    """Writes a frozen snapshot. ``handle_of`` makes the handle; ``report`` is called at its end, on any thread."""

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
        """Set when the task no longer reads what was frozen."""
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
            # The first error is the one to report; a file that remains is a harmless orphan.
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
            # The backend's close waits for this, also after an error.
            self.is_out.set()

    def _files_of(self, table: FrozenRocksDBTable, stem: str) -> StateFiles:
        """Write the new files of a state to the store."""
        files = table.frozen.as_files()
        table.is_exact = table.was_exact
        has_many = len(files.pending) > MAX_FILES_OF_ONE_SNAPSHOT or files.increments_to_merge() is not None
        if table.whole is None and not has_many:
            # Creating and removing a directory waits for the disk.
            return self._with_pending_stored(files, stem)
        with self._directory.scratch() as directory:
            return self._with_pending_stored(self._put_together(table, files, stem, directory), stem)

    def _put_together(self, table: FrozenRocksDBTable, files: StateFiles, stem: str, directory: str) -> StateFiles:
        """Write a state whole if required, and merge files if there are too many; put new files in the directory."""
        if table.whole is not None:
            files = self._base(table, files, directory)
        elif len(files.pending) > MAX_FILES_OF_ONE_SNAPSHOT:
            files.pending = self._merged_pending(files.pending, directory)
        places = files.increments_to_merge()
        if places is not None:
            # Once is enough: it removes more files than a snapshot adds. The merged file must not be merged again,
            # or the store would hold a file that no snapshot uses.
            self._merge_stored(files, places, f"{stem}-merged.sst", directory)
        return files

    def _with_pending_stored(self, files: StateFiles, stem: str) -> StateFiles:
        for number, path in enumerate(files.pending):
            self.raise_if_cancelled()
            files.stored.append(self._upload(path, f"{stem}-{number}.sst"))
        files.pending = []
        return files

    def _base(self, table: FrozenRocksDBTable, files: StateFiles, directory: str) -> StateFiles:
        """Write only the whole state, without expired rows."""
        assert table.whole is not None
        writer = SstWriter(os.path.join(directory, "base.sst"))
        if table.row_filter is None:
            while writer.put_rows(itertools.islice(table.whole, _CANCEL_CHECK_ROWS)):
                self.raise_if_cancelled()
        else:
            kept = _ExactCopy(table.row_filter)
            writer.write(kept_rows(kept, self._watched(table.whole)))
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
        """Link files for a callee that takes ownership of them."""
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


class _ExactCopy:
    """A row filter that records whether it removed anything."""

    def __init__(self, row_filter: RowFilter | None) -> None:
        self._row_filter = row_filter
        self.is_exact = True

    def __call__(self, value: bytes) -> bytes | None:
        assert self._row_filter is not None
        kept = self._row_filter(value)
        if kept is not value:
            self.is_exact = False
        return kept


DEFAULT_CACHE_ENTRIES: Final = 500_000
"""The limit of keys per state in the write-back cache before it is written out early."""

PROGRESS_STEP: Final = 100_000
"""The number of entries between two progress reports of a migration."""


@frozen
class _PreparedChanges:
    """The changes written out between two preparations of snapshots, and the digest at the second.

    ``sequence`` is the number of the next list chunk.
    """

    order: int
    entries: int
    digest_total: int
    sequence: int


class RocksDBStateStore(StateStore):
    """A `StateStore` in RocksDB."""

    format = ROCKSDB_BACKEND

    tables: dict[str, RocksDBTable]

    def __init__(
        self,
        parameters: KeyedStateBackendParameters,
        key_serializer: TypeSerializer[Any],
        cache_entries: int = DEFAULT_CACHE_ENTRIES,
        memory_budget_bytes: int = DEFAULT_MEMORY_BUDGET_BYTES,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        super().__init__(parameters, key_serializer)
        self.bounds = CacheBounds(cache_entries, open_cache_memory(cache_bytes), self._write_out, self._relieve)
        self._order = 0
        self._under_way: list[RocksDBSnapshotTask] = []
        # Tasks end on other threads; a deque needs no lock.
        self._ended: deque[RocksDBSnapshotTask] = deque()
        self._last_done: FrozenRocksDBState | None = None
        self._broken_by: BaseException | None = None
        self._digest = ContentDigest()
        self._entries_written = 0
        self._completed_total = 0
        self._first_new_chunk = 0
        self._unwritten: list[_PreparedChanges] = []
        sharing = TableSharing(
            key_serializer,
            self.key_groups,
            self.bounds,
            self.check_open,
            self.next_chunk_number,
            lambda: self._first_new_chunk,
        )
        directory = LocalStateDirectory(parameters.local_directory)
        self.database = LocalDatabase(directory, self.key_groups, sharing, memory_budget_bytes)
        self.tables = self.database.tables

    def restore(self, restored: RestoredStates) -> None:
        if restored.meta is not None:
            self.sequence = restored.meta.sequence
        parameters = self.parameters
        target = RestoreTarget(
            self.database,
            self.may_refer_to,
            self.next_chunk_number,
            self._note_restore,
            functools.partial(StateProgress, parameters.progress, Operation.RESTORE, parameters.operator_uid),
        )
        self.is_local = open_or_restore(target, restored)
        self._first_new_chunk = self.sequence

    def create_table(self, schema: StateSchema) -> RocksDBTable:
        table = self.database.add_table(schema)
        if schema.meta.kind is PRIORITY_QUEUE:
            table.queue_ends = QueueEnds(upper_bound=b"")
        else:
            table.last_namespace = b""
        return table

    def restore_as_is(self, table: RocksDBTable, schema: StateSchema) -> None:
        table.schema = schema

    def rewrite(self, table: RocksDBTable, schema: StateSchema, migration: EntryMigration) -> int:
        written = self.database.write_sorted(_migrated_entries(table, migration))
        self.database.replace(table, written)
        table.schema = schema
        return 0 if written is None else written.entry_count

    def freeze(self, checkpoint_id: int, state_id: str) -> RocksDBSnapshotTask:
        self.check_open()
        self._settle()
        max_ratio = max_increment_ratio(self.key_groups)
        for table in self.tables.values():
            if table.files.needs_base or StateFiles(table.files.stored).increments_exceed(max_ratio):
                table.files.begin_base()
            table.write_out()
        self._order += 1
        stem = f"{checkpoint_id:012d}-{state_id}"
        tables = [self._frozen(table) for table in self.tables.values()]
        self._unwritten.append(_PreparedChanges(self._order, self._entries_written, self._digest.total, self.sequence))
        self._entries_written = 0
        digest, entries = self._digest.since(self._completed_total), sum(one.entries for one in self._unwritten)
        state = FrozenRocksDBState(self._order, state_id, stem, digest, entries, self.database.version, tables)
        handle_of = functools.partial(
            handle_of_files,
            state_id,
            ROCKSDB_BACKEND,
            self.key_groups,
            self.key_serializer.snapshot_configuration(),
            self.sequence,
        )
        task = RocksDBSnapshotTask(state, self.parameters, self.database.directory, handle_of, self._ended.append)
        self._under_way.append(task)
        return task

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        close_cache_memory(self.bounds.memory)
        for table in self.tables.values():
            table.close()
        # A forked child must not touch the directory or the tasks' threads, which belong to the parent.
        if self.database.is_inherited:
            return
        for task in self._under_way:
            task.is_out.wait()
        self._settle()
        self.database.close(self._local_state_id())

    def _note_restore(self) -> None:
        self.is_local = False

    def _frozen(self, table: RocksDBTable) -> FrozenRocksDBTable:
        frozen = table.files.freeze(self._order)
        files = frozen.as_files()
        whole = table.scan() if files.needs_base or files.is_mostly_deleted else None
        return FrozenRocksDBTable(
            table.schema.meta_now(), frozen, whole, table.schema.snapshot_filter(), table.files.is_exact
        )

    def _settle(self) -> None:
        """Process the snapshots that have ended, on the store's own thread."""
        while self._ended:
            task = self._ended.popleft()
            self._under_way.remove(task)
            for table in task.frozen_state.tables:
                if task.is_done:
                    table.frozen.chain.complete(table.frozen, table.stored, table.is_exact)
                else:
                    table.frozen.chain.thaw(table.frozen)
            if task.is_done:
                self._note_written(task.frozen_state.order)
            if task.is_done and (self._last_done is None or task.frozen_state.version >= self._last_done.version):
                self._last_done = task.frozen_state

    def _note_written(self, order: int) -> None:
        """Record that a completed snapshot holds everything written out before it was prepared."""
        for changes in self._unwritten:
            if changes.order == order:
                self._completed_total, self._first_new_chunk = changes.digest_total, changes.sequence
        self._unwritten = [changes for changes in self._unwritten if changes.order > order]

    def _local_state_id(self) -> str | None:
        """The state id of the completed snapshot that the database holds exactly, or None."""
        last = self._last_done
        if last is None or last.version != self.database.version:
            return None
        if self._broken_by is not None:
            # A queue may have raised its lower bound above elements whose removal could not be written out.
            return None
        return last.state_id if all(table.is_exact for table in last.tables) else None

    def _relieve(self) -> None:
        """Write out all caches of entries, which together are too large."""
        for table in self.tables.values():
            if table.handle is not None and table.handle.holds_counted_bytes:
                self._write_out(table.handle)

    def _write_out(self, handle: WriteBackCache) -> None:
        """Write the changes of a handle to the database."""
        if self._broken_by is not None:
            raise StateBackendError(
                f"the state of operator {self.parameters.operator_uid!r} is incomplete, since changes could not be "
                f"written out before ({self._broken_by}); restore it from the last completed checkpoint"
            ) from self._broken_by
        try:
            table = self.tables[handle.name]
            for keys, values in table.changes_of(handle, self._digest):
                if keys:
                    self._entries_written += len(keys)
                    self.database.ingest_changes(table, keys, values)
        except BaseException as error:
            self._broken_by = error
            raise


def _migrated_entries(table: RocksDBTable, migration: EntryMigration) -> Iterator[Change]:
    if not migration.rewrites_keys:
        yield from _migrated_values(table, migration)
        return
    split = table.split_key()
    rows = ((*split(raw_key), value) for raw_key, value in _migrated_values(table, migration))
    for key_group, key, namespace, rest, value in migration.with_new_keys(rows):
        yield KEY_GROUP.pack(key_group) + key + namespace + rest, value


def _migrated_values(table: RocksDBTable, migration: EntryMigration) -> Iterator[tuple[bytes, bytes]]:
    conversion = migration.conversion
    transcode, count, size_bytes = conversion.transcode, 0, 0
    for raw_key, value in table.scan():
        cause: Exception | None = None
        try:
            migrated, position = transcode(value, 0)
        except Exception as error:
            migrated, position, cause = b"", -1, error
        if position != len(value):
            key_group, key, namespace, rest = table.split_key()(raw_key)
            user_key = rest if table.is_map else None
            failure = conversion.failure(value, cause)
            raise migration.failure((key_group, key, namespace), user_key, failure) from cause
        yield raw_key, migrated
        count += 1
        size_bytes += len(value)
        if count % PROGRESS_STEP == 0:
            migration.progress(count, size_bytes)
    migration.progress(count, size_bytes)
