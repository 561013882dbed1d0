"""The heap store of one subtask: state as Python dicts, snapshots as increments in canonical Parquet.

A snapshot writes, per state, the rows that changed since the last one, and refers to the earlier files. Restored state
stays in its files until a descriptor is registered. Then the rows are read and decoded once, through the migration plan
if there is one, so a migration costs no second pass. A state that is not registered is not read, as long as this
subtask may refer to its files.

Invariant: completed snapshots contain what the files of a state contain, unless `StateFiles.needs_base`. So a kept
store may *catch up* with a newer handle under three conditions: nothing changed since, no snapshot is running, and for
each state the store's files are a prefix of the handle's files. The remaining files are the changes to apply. An epoch
that another attempt won, an epoch without changes, and merged files all have other lists of files.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import evolve

from snapshots.envelope import snapshot_to_bytes
from statebackend.state.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshotTask,
    RestoredHandle,
    RestoredStates,
)
from statebackend.state.canonical import CanonicalBatch, batches_of
from statebackend.state.canonical_files import CanonicalFile
from statebackend.state.entry_migration import EntryMigration, EntryRow
from statebackend.state.errors import StateRestoreError
from statebackend.state.heap.entry_table import HeapTable, StateContent, UnreadableEntryError
from statebackend.state.heap.heap_state_table import HeapStateTable, create_raw_table, create_table, reading_table
from statebackend.state.heap.increment_task import FrozenHeapState, HeapSnapshotTask, SnapshotTarget
from statebackend.state.progress import Operation, StateProgress
from statebackend.state.state_files import StateFiles, StoredFile, stored_files
from statebackend.state.state_meta import KeyedStateMeta, StateMeta, StateSchema, decode_meta
from statebackend.state.state_store import StateStore
from typeserializers.kernel.type_serializer import TypeSerializer

HEAP_BACKEND: Final = "heap"


class HeapStateStore(StateStore):
    """A `StateStore` in Python dicts."""

    format = HEAP_BACKEND

    tables: dict[str, HeapStateTable]

    def __init__(self, parameters: KeyedStateBackendParameters, key_serializer: TypeSerializer[Any]) -> None:
        super().__init__(parameters, key_serializer)
        self._snapshot_numbers = itertools.count()
        # Guards the contents of the states: tasks change them on their own threads when they complete.
        self._lock = threading.Lock()
        self.last_checkpoint_id = -1
        """The checkpoint of the last snapshot; -1 before the first."""

    def estimated_bytes(self) -> int:
        """The estimated memory of the entries of all states; states that are still in files count as zero."""
        return sum(table.estimated_bytes() for table in self.tables.values())

    def restore(self, restored: RestoredStates) -> None:
        if restored.meta is None:
            return
        self.sequence = restored.meta.sequence
        for state in restored.meta.states:
            self._add_table(StateSchema(state))
        for handle, meta in restored.handles:
            is_own = self.may_refer_to(handle)
            handle.file_system.verify_present(handle.handle.files)
            for state in meta.states:
                files = stored_files(handle.handle, state)
                content = self.tables[state.name].content
                content.sources += tuple(CanonicalFile(handle.file_system, stored.handle) for stored in files)
                content.files = StateFiles(files) if is_own else StateFiles(needs_base=True)

    def create_table(self, schema: StateSchema) -> HeapStateTable:
        entries = self._empty_entries(schema)
        table = self._add_table(schema)
        table.content.table = entries
        return table

    def restore_as_is(self, table: HeapStateTable, schema: StateSchema) -> None:
        content, entries = table.content, table.content.table
        if entries is None or not table.schema.has_entries_of(schema):
            content, entries = self._decoded(table, schema)
        with self._lock:
            content.table, content.sources = entries, ()
        table.content, table.schema = content, schema

    def rewrite(self, table: HeapStateTable, schema: StateSchema, migration: EntryMigration) -> int:
        entries, rows, size_bytes = self._empty_entries(schema), 0, 0
        load = entries.form.load_migrated(migration.conversion)
        batches = table.batches()
        if migration.rewrites_keys:
            batches, load = batches_of(_with_new_keys(table, migration)), entries.form.load
        try:
            for batch in batches:
                entries.load_batch(batch, load)
                rows += batch.row_count
                size_bytes += batch.value_bytes
                migration.progress(rows, size_bytes)
        except UnreadableEntryError as error:
            key_group, key, namespace, user_key, value = error.row
            cause = error.cause if value is None else migration.conversion.failure(value, error.cause)
            raise migration.failure((key_group, key, namespace), user_key, cause) from error.cause
        table.content, table.schema = StateContent(StateFiles(needs_base=True), table=entries), schema
        return entries.entry_count()

    def freeze(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        self.check_open()
        target = SnapshotTarget(
            next(self._snapshot_numbers),
            state_id,
            HEAP_BACKEND,
            f"{self.parameters.file_prefix}-{checkpoint_id:012d}-{state_id}",
            self.parameters.file_system,
            self.parameters.local_directory,
            self.key_groups,
            self.key_serializer.snapshot_configuration(),
            self.sequence,
        )
        readers = [self._reader(table) for table in self.tables.values()]
        schemas = [table.schema for table in self.tables.values()]
        row_filters = [(schema.snapshot_filter(), schema.expired_filter()) for schema in schemas]
        # Nothing can fail from here on, so every frozen state is released.
        with self._lock:
            states = [
                FrozenHeapState(
                    table.schema.meta,
                    table.content,
                    table.content.files,
                    table.content.sources,
                    *reader,
                    None if table.content.table is None else table.content.table.freeze(),
                    *filters,
                )
                for table, reader, filters in zip(self.tables.values(), readers, row_filters, strict=True)
            ]
        return HeapSnapshotTask(states, target, self._lock)

    def snapshot_written(self, checkpoint_id: int) -> None:
        self.last_checkpoint_id = checkpoint_id
        for table in self.tables.values():
            if table.content.table is not None:
                table.content.table.settle()

    def close(self) -> None:
        self.is_closed = True
        self._close_handles()
        self.tables.clear()

    def release_states(self) -> None:
        """End the epoch of a kept store: invalidate its handles. The next epoch registers its descriptors again.

        A descriptor with the same serializers reuses the entries. One with other serializers is checked for
        compatibility, as after a restore.
        """
        self.check_open()
        self._close_handles()
        for table in self.tables.values():
            table.schema = table.schema.unregistered()

    def catch_up(self, restored: RestoredHandle, parameters: KeyedStateBackendParameters | None = None) -> bool:
        """Apply the increments of a newer handle that this store does not have. This is a cheaper restore.

        Returns False and changes nothing if this is impossible: the handle is of another subtask, file system or
        backend, a state has another schema, files were merged, or another attempt won an epoch. The caller then
        restores from scratch. ``parameters`` are those of the new epoch, if given. The cost is the size of the
        increments. A damaged file raises an error that names it; a store that already changed is then closed.
        """
        self.check_open()
        meta = self._caught_up_meta(restored, parameters or self.parameters)
        if meta is None:
            return False
        additions: list[tuple[StateMeta, list[StoredFile], list[CanonicalBatch]]] = []
        for state in meta.states:
            table = self.tables.get(state.name)
            stored = stored_files(restored.handle, state)
            batches: list[CanonicalBatch] = []
            if table is not None and table.content.table is not None:
                for file in stored[len(table.content.files.stored) :]:
                    batches += CanonicalFile(restored.file_system, file.handle).batches(
                        self.key_groups, self.parameters.local_directory
                    )
            additions.append((state, stored, batches))
        self.release_states()
        if parameters is not None:
            self.parameters = parameters
        try:
            for state, stored, batches in additions:
                self._extend(state, stored, batches)
        except BaseException:
            self.close()
            raise
        self.sequence = meta.sequence
        self.is_local = True
        return True

    def _add_table(self, schema: StateSchema) -> HeapStateTable:
        table = self.tables[schema.meta.name] = HeapStateTable(schema, self)
        return table

    def _empty_entries(self, schema: StateSchema) -> HeapTable:
        return create_table(
            schema.meta.name,
            schema.meta.kind,
            self.key_serializer,
            schema.serializers,
            self.key_groups,
            is_bulk=schema.is_bulk,
        )

    def _decoded(self, table: HeapStateTable, schema: StateSchema) -> tuple[StateContent, HeapTable]:
        """Decode all entries for the serializers of a schema; return the new content and its table."""
        content, known = table.content, table.content.table
        entries = self._empty_entries(schema)
        if known is not None and entries.can_take_entries_of(known):
            entries.take_entries_of(known)
            return content, entries
        parameters, total_bytes = self.parameters, sum(one.handle.size_bytes for one in content.sources)
        progress = StateProgress(
            parameters.progress, Operation.RESTORE, parameters.operator_uid, table.name, total_bytes or None
        )
        try:
            for batch in table.batches():
                entries.load_batch(batch, entries.form.load)
                progress.add(batch.row_count)
        except StateRestoreError as error:
            raise StateRestoreError(
                f"operator {self.parameters.operator_uid!r}, {error}. The restored checkpoint or savepoint is unchanged"
            ) from error
        progress.add(size_bytes=total_bytes)
        progress.done()
        if known is None:
            return content, entries
        if known.history.has_unwritten_changes:
            return StateContent(StateFiles(needs_base=True)), entries
        # A running snapshot does not hold these entries, which were just rebuilt.
        return StateContent(content.files), entries

    def _reader(self, table: HeapStateTable) -> tuple[HeapTable, Mapping[str, TypeSerializer[Any]]]:
        """A table with which another thread reads frozen entries, or files if there are none; and the serializers of
        the table by role, if it has any.
        """
        meta, serializers, entries = table.schema.meta, table.schema.serializers, table.content.table
        if entries is None:
            return create_raw_table(meta, self.key_groups), {}
        own = {role: serializer.duplicate() for role, serializer in serializers.items()}
        return reading_table(entries, meta.kind, self.key_serializer, serializers, own), own

    def _caught_up_meta(
        self, restored: RestoredHandle, parameters: KeyedStateBackendParameters
    ) -> KeyedStateMeta | None:
        """The metadata of a handle that this store can catch up with, or None."""
        ours = self.parameters
        if (
            not self.may_refer_to(restored)
            or parameters.operator_uid != ours.operator_uid
            or parameters.key_serializer != ours.key_serializer
            or parameters.key_group_range != self.key_groups
            or parameters.file_system.uri != ours.file_system.uri
        ):
            return None
        meta = decode_meta(restored.handle.meta, len(restored.handle.files))
        if snapshot_to_bytes(meta.key_snapshot) != snapshot_to_bytes(self.key_serializer.snapshot_configuration()):
            return None
        for name, table in self.tables.items():
            state, content = meta.state(name), table.content
            if state is None or not state.has_schema_of(table.schema.meta_now()):
                return None
            known = content.files.stored
            if stored_files(restored.handle, state)[: len(known)] != known:
                return None
            if content.files.needs_base or (content.table is not None and not content.table.is_clean):
                return None
        return meta

    def _extend(self, state: StateMeta, stored: list[StoredFile], batches: list[CanonicalBatch]) -> None:
        # Use the snapshots just read: classes of the known snapshots may have been redefined since.
        meta = state.with_files(())
        table = self.tables.get(state.name) or self._add_table(StateSchema(meta))
        table.schema = evolve(table.schema, meta=meta)
        entries = table.content.table
        # A running snapshot of a state without entries does not hold the entries added here.
        table.content = StateContent(StateFiles(stored), table=entries)
        if entries is None:
            table.content.sources = tuple(CanonicalFile(self.parameters.file_system, file.handle) for file in stored)
            return
        for batch in batches:
            entries.load_batch(batch, entries.form.load)

    def _close_handles(self) -> None:
        for table in self.tables.values():
            table.close_handle()


def _with_new_keys(table: HeapStateTable, migration: EntryMigration) -> Iterator[EntryRow]:
    migrated = (
        (key_group, key, namespace, user_key, migration.migrated((key_group, key, namespace), user_key, value))
        for key_group, key, namespace, user_key, value in table.rows()
        if value is not None
    )
    return migration.with_new_keys(migrated)
