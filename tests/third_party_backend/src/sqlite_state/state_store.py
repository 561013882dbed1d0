"""The SQLite store of one subtask, and its configuration.

Every access writes through to the local database; only priority queues buffer their changes. A barrier writes one file
with the rows that changed since the last barrier. `statebackend.state.state_files` describes how files form a state. A
restore reads them all into an empty database.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from sqlite_state.database import Row, SqliteDatabase
from sqlite_state.row_files import read_row_file, write_row_file
from sqlite_state.state_handles import chunk_part
from sqlite_state.state_table import SqliteTable
from statebackend import KeyedStateBackendParameters, KeyedStateSnapshot, StateBackend
from statebackend.checkpoint import CheckpointError, CheckpointFileSystem
from statebackend.state.backend_parameters import KeyedStateSnapshotTask, RestoredStates
from statebackend.state.canonical import CanonicalRow, read_canonical
from statebackend.state.entry_migration import EntryMigration
from statebackend.state.snapshot_task import SnapshotTask
from statebackend.state.state_files import (
    MAX_FILES,
    StateFiles,
    StoredFile,
    handle_of_files,
    max_increment_ratio,
    stored_files,
)
from statebackend.state.state_kind import TableForm
from statebackend.state.state_meta import CANONICAL_BACKEND, StateSchema
from statebackend.state.state_store import StateStore
from statebackend.state.ttl import kept_rows
from typeserializers import TypeSerializer

SQLITE_BACKEND: Final = "sqlite"

PROGRESS_STEP: Final = 10_000
"""Entries after which a migration reports again."""


class WrittenSnapshot(SnapshotTask[KeyedStateSnapshot]):
    """The task of a snapshot that was written in the synchronous part.

    Its files belong to the store, because the next snapshot references them. So they stay if the task is cancelled.
    """

    def __init__(self, snapshot: KeyedStateSnapshot) -> None:
        super().__init__()
        self._snapshot = snapshot

    def write(self) -> KeyedStateSnapshot:
        return self._snapshot


class SqliteStateStore(StateStore):
    """The store of one subtask."""

    format = SQLITE_BACKEND

    tables: dict[str, SqliteTable]

    def __init__(self, parameters: KeyedStateBackendParameters, key_serializer: TypeSerializer[Any]) -> None:
        super().__init__(parameters, key_serializer)
        os.makedirs(parameters.local_directory, exist_ok=True)
        self._directory = tempfile.TemporaryDirectory(dir=parameters.local_directory)
        self._database = SqliteDatabase(os.path.join(self._directory.name, "state.db"), self.check_open)

    def restore(self, restored: RestoredStates) -> None:
        if restored.meta is None:
            return
        self.sequence = restored.meta.sequence
        for state in restored.meta.states:
            self._add_table(StateSchema(state))
        for handle, meta in restored.handles:
            read = self._readers()[handle.handle.backend]
            is_own = self.may_refer_to(handle)
            for state in meta.states:
                table, files = self.tables[state.name], stored_files(handle.handle, state)
                for file in files:
                    self._apply(table, read(table, handle.file_system, file))
                table.files = StateFiles(files) if is_own else StateFiles(needs_base=True)
        for table in self.tables.values():
            table.stored.track_changes()

    def create_table(self, schema: StateSchema) -> SqliteTable:
        table = self._add_table(schema)
        table.stored.track_changes()
        return table

    def restore_as_is(self, table: SqliteTable, schema: StateSchema) -> None:
        table.schema = schema

    def rewrite(self, table: SqliteTable, schema: StateSchema, migration: EntryMigration) -> int:
        def migrated() -> Iterator[Row]:
            for number, (key_group, key, namespace, part, value) in enumerate(table.stored.rows(), 1):
                user_key = part if table.is_map else None
                new = migration.migrated((key_group, key, namespace), user_key, value or b"")
                yield key_group, key, namespace, part, new
                if number % PROGRESS_STEP == 0:
                    migration.progress(number)

        stored = self._database.new_table()
        try:
            stored.put(migration.with_new_keys(migrated()))
        except BaseException:
            stored.drop()
            raise
        count = stored.row_count()
        migration.progress(count)
        stored.track_changes()
        table.stored.drop()
        table.stored, table.files, table.schema = stored, StateFiles(needs_base=True), schema
        return count

    def freeze(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        self.check_open()
        for table in self.tables.values():
            table.write_back()
        digest = self._content_digest()
        entries = written = 0
        files: list[StateFiles] = []
        # Write everything before recording anything: a snapshot that fails leaves the store as it was.
        for number, table in enumerate(self.tables.values()):
            changed = table.stored.changed_rows()
            entries += len(changed)
            path = f"{self.parameters.file_prefix}-{checkpoint_id:012d}-{state_id}-{number}.sqlite"
            try:
                new = self._written(table, changed, path, state_id)
            except BaseException:
                self._remove_written(files, state_id)
                raise
            files.append(new)
            written += sum(stored.handle.size_bytes for stored in new.stored if stored.written_by == state_id)
        metas = [table.schema.meta_now() for table in self.tables.values()]
        handle = handle_of_files(
            state_id,
            SQLITE_BACKEND,
            self.key_groups,
            self.key_serializer.snapshot_configuration(),
            self.sequence,
            zip(metas, files, strict=True),
        )
        for table, new in zip(self.tables.values(), files, strict=True):
            table.files = new
            table.stored.forget_changes()
        return WrittenSnapshot(KeyedStateSnapshot(handle, digest, entries, written))

    def close(self) -> None:
        self.is_closed = True
        for table in self.tables.values():
            table.close()
        self._database.close()
        self._directory.cleanup()

    def _add_table(self, schema: StateSchema) -> SqliteTable:
        table = self.tables[schema.meta.name] = SqliteTable(schema, self, self._database.new_table())
        return table

    def _content_digest(self) -> str:
        """The digest of all rows; it is independent of list chunks and expired rows, and reads the complete state."""
        digest = hashlib.blake2b(digest_size=16)
        for name, table in sorted(self.tables.items()):
            rows: Iterable[Row] = kept_rows(table.schema.expired_filter(), table.stored.rows())
            if table.schema.meta.form is TableForm.LIST:
                rows = whole_lists((*row[:3], None, row[4]) for row in rows)
            digest.update(repr(name).encode())
            for row in rows:
                digest.update(repr(row).encode())
        return digest.hexdigest()

    def _readers(self) -> dict[str, Callable[[SqliteTable, CheckpointFileSystem, StoredFile], Iterator[Row]]]:
        return {SQLITE_BACKEND: self._rows_of_own_file, CANONICAL_BACKEND: self._rows_of_canonical_file}

    def _apply(self, table: SqliteTable, rows: Iterable[Row]) -> None:
        def alive() -> Iterator[Row]:
            for row in rows:
                if row[4] is None:
                    table.stored.delete(row[:3], row[3])
                else:
                    yield row

        table.stored.put(alive())

    def _rows_of_own_file(
        self, table: SqliteTable, file_system: CheckpointFileSystem, file: StoredFile
    ) -> Iterator[Row]:
        with tempfile.TemporaryDirectory(dir=self._directory.name) as directory:
            local = os.path.join(directory, "rows.sqlite")
            file_system.download(file.handle, local)
            yield from read_row_file(local, self.key_groups, file_system.location(file.handle.path))

    def _rows_of_canonical_file(
        self, table: SqliteTable, file_system: CheckpointFileSystem, file: StoredFile
    ) -> Iterator[Row]:
        is_list = table.schema.meta.form is TableForm.LIST
        content = file_system.read_file(file.handle)
        for batch in read_canonical(file_system.location(file.handle.path), self.key_groups, content):
            for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
                part = chunk_part(self.next_chunk_number()) if is_list else user_key or b""
                yield key_group, key, namespace, part, value

    def _written(self, table: SqliteTable, changed: list[Row], path: str, state_id: str) -> StateFiles:
        """The files of a state after a snapshot."""
        kept: list[StoredFile] = []
        rows: Iterable[Row] = changed
        needs_new_base = table.files.increments_exceed(max_increment_ratio(self.key_groups))
        if table.files.needs_base or needs_new_base or len(table.files.stored) >= MAX_FILES:
            rows = kept_rows(table.schema.snapshot_filter(), table.stored.rows())
            is_empty = not table.stored.row_count()
        else:
            kept, is_empty = table.files.stored, not changed
        if is_empty:
            return StateFiles(list(kept))
        with tempfile.TemporaryDirectory(dir=self._directory.name) as directory:
            local = os.path.join(directory, "rows.sqlite")
            write_row_file(local, rows)
            handle = self.parameters.file_system.upload(local, path)
        return StateFiles([*kept, StoredFile(handle, state_id)])

    def _remove_written(self, states: Iterable[StateFiles], state_id: str) -> None:
        """Remove the files of other states of a failed snapshot."""
        for files in states:
            for stored in files.stored:
                if stored.written_by == state_id:
                    with contextlib.suppress(CheckpointError):
                        self.parameters.file_system.delete(stored.handle.path)


def whole_lists(rows: Iterable[CanonicalRow]) -> Iterator[CanonicalRow]:
    """The rows of a list state, in canonical order, with the chunks of each list as one value.

    The chunks of a list depend on when it was written, and must not affect a digest. The value contains the number of
    elements in eight bytes, so that it differs from a chunk.
    """
    for (address, is_gone), run in itertools.groupby(rows, lambda row: (row[:3], row[4] is None)):
        if is_gone:
            yield (*address, None, None)
            continue
        chunks = [row[4] or b"" for row in run]
        count = sum(int.from_bytes(chunk[:4], "big") for chunk in chunks)
        yield (*address, None, count.to_bytes(8, "big") + b"".join([chunk[4:] for chunk in chunks]))


class SqliteStateBackend(StateBackend):
    """State in SQLite, in a file below each subtask's local directory."""

    @property
    def name(self) -> str:
        return SQLITE_BACKEND

    def create_store(
        self, parameters: KeyedStateBackendParameters, key_serializer: TypeSerializer[Any]
    ) -> SqliteStateStore:
        return SqliteStateStore(parameters, key_serializer)
