"""The SQLite backend of one subtask.

State is written through to the local database at every access; only priority queues hold their changes back. What the
barrier costs is a file of the rows that changed since the last one. Files add up as `statebackend.keyed.state_files`
describes. A restore reads them all into an empty database.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from attrs import define, field

from checkpointing import CheckpointError, CheckpointFileSystem
from snapshots import CompatibilityKind
from sqlite_state.database import Row, SqliteDatabase, StateTable
from sqlite_state.priority_queue import SqlitePriorityQueue
from sqlite_state.row_files import read_row_file, write_row_file
from sqlite_state.state_handles import SqliteListState, SqliteMapState, SqliteState, SqliteValueState, chunk_part
from statebackend import (
    KeyedStateBackend,
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    PriorityQueueDescriptor,
    RestoredHandle,
    StateBackend,
    StateDescriptor,
    StateKind,
    StateVerdict,
)
from statebackend.api.descriptors import storage_serializer
from statebackend.canonical.canonical_entries import CanonicalBatch, batches_of, read_canonical
from statebackend.keyed.backend_parameters import KeyedStateSnapshotTask
from statebackend.keyed.change_digest import whole_lists
from statebackend.keyed.entry_encoder import EntryEncoder
from statebackend.keyed.key_enumeration import Address
from statebackend.keyed.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.keyed.restored_states import read_restored_states
from statebackend.keyed.snapshot_task import SynchronousSnapshotTask
from statebackend.keyed.state_files import MAX_FILES, StateFiles, StoredFile, handle_of_files, stored_files
from statebackend.keyed.state_meta import CANONICAL_BACKEND, KeyedStateMeta, StateMeta, meta_of_descriptor
from statebackend.keyed.state_migration import migration_failure, state_migration
from statebackend.kinds.folding_states import handle_of_kind, stored_descriptor
from statebackend.kinds.internal_states import InternalState
from statebackend.metrics import StateStatistics
from statebackend.ttl.row_filter import kept_rows
from typeserializers import TypeSerializer

T = TypeVar("T")

SQLITE_BACKEND: Final = "sqlite"


@define
class _HeldState:
    """One state: what its serializers are or were, its rows, and its files in the store.

    ``describe`` is asked anew for every snapshot, since serializers may learn while they write.
    """

    describe: Callable[[], StateMeta]
    table: StateTable
    files: StateFiles = field(factory=StateFiles)

    @property
    def meta(self) -> StateMeta:
        """The state as it is now."""
        return self.describe()


class SqliteKeyedStateBackend(KeyedStateBackend):
    """See the module."""

    def __init__(self, parameters: KeyedStateBackendParameters) -> None:
        super().__init__(parameters)
        os.makedirs(parameters.local_directory, exist_ok=True)
        self._directory = tempfile.TemporaryDirectory(dir=parameters.local_directory)
        self._database = SqliteDatabase(os.path.join(self._directory.name, "state.db"), self.check_open)
        self._states: dict[str, _HeldState] = {}
        self._queues: dict[str, SqlitePriorityQueue[Any]] = {}
        self._sequence = 0
        self._restored_meta: KeyedStateMeta | None = None
        try:
            self._restore(parameters.restore)
        except BaseException:
            self.close()
            raise

    def restored_meta(self) -> KeyedStateMeta | None:
        return self._restored_meta

    def current_meta(self) -> KeyedStateMeta:
        states = tuple(held.meta for held in self._states.values())
        return KeyedStateMeta(self.key_serializer.snapshot_configuration(), self._sequence, states)

    def create_state(
        self,
        descriptor: StateDescriptor,
        namespace_serializer: TypeSerializer[Any],
        restored: StateMeta | None,
        verdict: StateVerdict | None,
    ) -> tuple[InternalState, int]:
        encoder = EntryEncoder(self, descriptor.name, namespace_serializer)
        held = self._states.get(descriptor.name)
        migrated = 0
        if held is not None and verdict is not None and verdict.kind is CompatibilityKind.AFTER_MIGRATION:
            migrated = self._migrate(held, descriptor)
        held = self._held_for(descriptor, namespace_serializer)
        stored = stored_descriptor(descriptor)
        shared = (held.table, encoder, storage_serializer(descriptor.kind, descriptor.serializers))
        handle = _HANDLES[stored.kind](stored, self._next_chunk_number, shared)
        return handle_of_kind(handle, descriptor), migrated

    def create_priority_queue(
        self, descriptor: PriorityQueueDescriptor[T], restored: StateMeta | None
    ) -> SqlitePriorityQueue[T]:
        held = self._held_for(descriptor, VOID_NAMESPACE_SERIALIZER)
        queue = SqlitePriorityQueue(descriptor.name, descriptor.element_serializer, self.key_group_range, held.table)
        self._queues[descriptor.name] = queue
        return queue

    def _held_for(self, descriptor: StateDescriptor, namespace_serializer: TypeSerializer[Any]) -> _HeldState:
        describe = functools.partial(meta_of_descriptor, descriptor, namespace_serializer)
        held = self._states.get(descriptor.name)
        if held is None:
            held = self._states[descriptor.name] = _HeldState(describe, self._database.new_table())
            held.table.track_changes()
        held.describe = describe
        return held

    def create_snapshot_task(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        self._write_back_queues()
        digest = self._content_digest()
        entries = written = 0
        files: list[StateFiles] = []
        # Everything is written before anything is noted: a snapshot that fails leaves the backend as it was.
        for number, held in enumerate(self._states.values()):
            changed = held.table.changed_rows()
            entries += len(changed)
            path = f"{self.parameters.file_prefix}-{checkpoint_id:012d}-{state_id}-{number}.sqlite"
            try:
                new = self._written(held, changed, path, state_id)
            except BaseException:
                self._remove_written(files, state_id)
                raise
            files.append(new)
            written += sum(stored.handle.size_bytes for stored in new.stored if stored.written_by == state_id)
        metas = [held.meta for held in self._states.values()]
        handle = handle_of_files(
            state_id,
            SQLITE_BACKEND,
            self.key_group_range,
            self.key_serializer.snapshot_configuration(),
            self._sequence,
            zip(metas, files, strict=True),
        )
        for held, new in zip(self._states.values(), files, strict=True):
            held.files = new
            held.table.forget_changes()
        return SynchronousSnapshotTask(KeyedStateSnapshot(handle, digest, entries, written))

    def _content_digest(self) -> str:
        """That of all rows, which costs what the state holds, as opening it does; in how many chunks a list is stored
        must not show."""
        digest = hashlib.blake2b(digest_size=16)
        for name, held in sorted(self._states.items()):
            rows: Iterable[Row] = held.table.rows()
            if held.meta.kind is StateKind.LIST:
                rows = whole_lists((*row[:3], None, row[4]) for row in rows)
            digest.update(repr(name).encode())
            for row in rows:
                digest.update(repr(row).encode())
        return digest.hexdigest()

    def export_state(self, name: str) -> Iterator[CanonicalBatch]:
        self.check_open()
        self._write_back_queues()
        held = self._states[name]
        is_map = held.meta.kind is StateKind.MAP
        return batches_of((*row[:3], row[3] if is_map else None, row[4]) for row in held.table.rows())

    def state_statistics(self, name: str) -> StateStatistics:
        return StateStatistics(entries=self._states[name].table.row_count())

    def stored_addresses(self, name: str) -> Iterator[Address]:
        self.check_open()
        self._write_back_queues()
        held = self._states.get(name)
        return iter(()) if held is None else held.table.addresses()

    def _write_back_queues(self) -> None:
        for queue in self._queues.values():
            queue.write_back()

    def free(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._database.close()
        self._directory.cleanup()

    def _restore(self, handles: tuple[RestoredHandle, ...]) -> None:
        self._restored_meta, metas = read_restored_states(self, _READERS.keys())
        if self._restored_meta is None:
            return
        self._sequence = self._restored_meta.sequence
        for state in self._restored_meta.states:
            self._states[state.name] = _HeldState(_as_restored(state), self._database.new_table())
        for restored, meta in zip(handles, metas, strict=True):
            read = _READERS[restored.handle.backend]
            is_own = self.may_refer_to(restored, SQLITE_BACKEND)
            for state in meta.states:
                held = self._states[state.name]
                files = stored_files(restored.handle, state)
                for file in files:
                    self._apply(held, read(self, held.meta.kind, restored.file_system, file))
                held.files = StateFiles(files) if is_own else StateFiles(needs_base=True)
        for held in self._states.values():
            held.table.track_changes()

    def _apply(self, held: _HeldState, rows: Iterable[Row]) -> None:
        def alive() -> Iterator[Row]:
            for row in rows:
                if row[4] is None:
                    held.table.delete(row[:3], row[3])
                else:
                    yield row

        held.table.put(alive())

    def _rows_of_own_file(self, kind: StateKind, store: CheckpointFileSystem, file: StoredFile) -> Iterator[Row]:
        with tempfile.TemporaryDirectory(dir=self._directory.name) as directory:
            local = os.path.join(directory, "rows.sqlite")
            store.download(file.handle, local)
            yield from read_row_file(local, self.key_group_range, store.location(file.handle.path))

    def _rows_of_canonical_file(self, kind: StateKind, store: CheckpointFileSystem, file: StoredFile) -> Iterator[Row]:
        content = store.read_file(file.handle)
        for batch in read_canonical(store.location(file.handle.path), self.key_group_range, content):
            for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
                part = chunk_part(self._next_chunk_number()) if kind is StateKind.LIST else user_key or b""
                yield key_group, key, namespace, part, value

    def _written(self, held: _HeldState, changed: list[Row], path: str, state_id: str) -> StateFiles:
        """The files of a state after a snapshot."""
        kept: list[StoredFile] = []
        rows: Iterable[Row] = changed
        if held.files.needs_base or held.files.should_merge or len(held.files.stored) >= MAX_FILES:
            rows = kept_rows(self.row_filter(held.meta.name), held.table.rows())
            is_empty = not held.table.row_count()
        else:
            kept, is_empty = held.files.stored, not changed
        if is_empty:
            return StateFiles(list(kept))
        with tempfile.TemporaryDirectory(dir=self._directory.name) as directory:
            local = os.path.join(directory, "rows.sqlite")
            write_row_file(local, rows)
            handle = self.parameters.file_system.upload(local, path)
        return StateFiles([*kept, StoredFile(handle, state_id)])

    def _remove_written(self, states: Iterable[StateFiles], state_id: str) -> None:
        """Removes what a snapshot that failed has written of other states."""
        for files in states:
            for stored in files.stored:
                if stored.written_by == state_id:
                    with contextlib.suppress(CheckpointError):
                        self.parameters.file_system.delete(stored.handle.path)

    def _migrate(self, held: _HeldState, descriptor: StateDescriptor) -> int:
        """Moves the rows, as the new serializers write them, to a new table; if one fails, nothing has changed."""
        migration = state_migration(held.meta, descriptor, self.parameters.clock())
        name, progress = descriptor.name, self.parameters.progress

        def migrated() -> Iterator[Row]:
            for number, (key_group, key, namespace, part, value) in enumerate(held.table.rows(), 1):
                try:
                    yield key_group, key, namespace, part, migration.to_bytes(value or b"")
                except Exception as error:
                    user_key = part if held.meta.kind is StateKind.MAP else None
                    raise migration_failure(
                        self.parameters.operator_uid,
                        held.meta,
                        self.key_serializer,
                        (key_group, key, namespace),
                        user_key,
                        error,
                    ) from error
                if number % 10_000 == 0:
                    progress(name, number)

        table = self._database.new_table()
        try:
            table.put(migrated())
        except BaseException:
            table.drop()
            raise
        count = table.row_count()
        progress(name, count)
        table.track_changes()
        held.table.drop()
        held.table, held.files = table, StateFiles(needs_base=True)
        return count

    def _next_chunk_number(self) -> int:
        number = self._sequence
        self._sequence += 1
        return number


def _as_restored(state: StateMeta) -> Callable[[], StateMeta]:
    return lambda: state


_Reader = Callable[[SqliteKeyedStateBackend, StateKind, CheckpointFileSystem, StoredFile], Iterator[Row]]

_READERS: Final[dict[str, _Reader]] = {
    SQLITE_BACKEND: SqliteKeyedStateBackend._rows_of_own_file,
    CANONICAL_BACKEND: SqliteKeyedStateBackend._rows_of_canonical_file,
}

_HANDLES: Final[dict[StateKind, Callable[[Any, Callable[[], int], tuple[Any, ...]], SqliteState]]] = {
    StateKind.VALUE: lambda descriptor, _, shared: SqliteValueState(*shared, default=descriptor.default),
    StateKind.LIST: lambda _, next_number, shared: SqliteListState(*shared, next_chunk_number=next_number),
    StateKind.MAP: lambda descriptor, _, shared: SqliteMapState(*shared, key_serializer=descriptor.key_serializer),
}


class SqliteStateBackend(StateBackend):
    """State in SQLite, in a file below each subtask's local directory."""

    @property
    def name(self) -> str:
        return SQLITE_BACKEND

    def create_keyed_state_backend(self, parameters: KeyedStateBackendParameters) -> SqliteKeyedStateBackend:
        return SqliteKeyedStateBackend(parameters)
