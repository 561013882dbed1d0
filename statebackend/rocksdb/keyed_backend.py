"""The RocksDB backend of one subtask.

Every state is a column family. Nothing is ever written through the memtable: the write-back cache of an epoch, sorted
once, becomes one file per changed state, which is *both* ingested into the local database *and* uploaded as the
increment of the checkpoint. Its cost depends on the keys touched, not on the size of the state.

Restoring, from the cheapest: the local database holds exactly the wanted snapshot (open it); the handles were written
by this backend (link or copy their files, ingest them in order); a canonical savepoint (write its rows as one file per
state). When the key groups changed, the first snapshot afterwards writes a new base of this subtask's own groups, so
that a file in a handle never holds a key outside the handle's range.

Migration: all entries of the state are rewritten, in key order, into one new file and a new column family; the old one
is dropped. If it is interrupted, the local database has no version, and the next attempt starts from the handles.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import xxhash
from attrs import define, field

from migration.schema_migration import MigrationError, SchemaMigration
from snapshots.compatibility import CompatibilityKind
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.canonical_entries import BATCH_ROWS, CanonicalBatch, read_canonical
from statebackend.descriptors import StateDescriptor, StateKind, storage_serializer
from statebackend.errors import StateMigrationException, StateRestoreError
from statebackend.folding_states import handle_of_kind
from statebackend.internal_states import InternalState
from statebackend.key_context import has_namespaces
from statebackend.key_groups import KeyGroupRange
from statebackend.keyed_state_backend import (
    Address,
    KeyedStateBackend,
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    KeyedStateSnapshotTask,
    RestoredHandle,
    StateBackend,
)
from statebackend.rocksdb.cached_state import CachedState, Change
from statebackend.rocksdb.composite_key import CHUNK_NUMBER, KEY_GROUP, RawKeys
from statebackend.rocksdb.increments import merge_increments, with_marks
from statebackend.rocksdb.list_state import RocksDBListState
from statebackend.rocksdb.local_directory import LocalStateDirectory, LocalVersion
from statebackend.rocksdb.map_state import RocksDBMapState
from statebackend.rocksdb.store import ColumnFamily, RocksDBStore, SstWriter
from statebackend.rocksdb.value_state import create_value_state
from statebackend.schema_resolution import StateVerdict
from statebackend.snapshot_task import SynchronousSnapshotTask
from statebackend.state_files import StateFiles, StoredFile, handle_of_files, stored_files
from statebackend.state_meta import (
    CANONICAL_BACKEND,
    KeyedStateMeta,
    StateMeta,
    decode_meta,
    merge_metas,
)
from typeserializers.type_serializer import TypeSerializer

ROCKSDB_BACKEND: Final = "rocksdb"

DEFAULT_CACHE_ENTRIES: Final = 500_000
"""Keys per state that the write-back cache holds before it is written out early."""

PROGRESS_STEP: Final = 100_000


@define
class _Table:
    """One state: where its entries are, what its serializers were, its handle if registered, and its files."""

    meta: StateMeta
    column_family: ColumnFamily
    files: StateFiles = field(factory=StateFiles)
    state: CachedState | None = None


class RocksDBKeyedStateBackend(KeyedStateBackend):
    """See the module."""

    def __init__(self, parameters: KeyedStateBackendParameters, cache_entries: int = DEFAULT_CACHE_ENTRIES) -> None:
        super().__init__(parameters)
        self._cache_entries = cache_entries
        self._tables: dict[str, _Table] = {}
        self._sequence = 0
        self._family_numbers = itertools.count()
        self._restored_meta: KeyedStateMeta | None = None
        self._key_snapshot: TypeSerializerSnapshot[Any] = self.key_serializer.snapshot_configuration()
        self._snapshot_taken: str | None = None
        self._digest = xxhash.xxh3_128()
        self._entries_written = 0
        self._store: RocksDBStore | None = None
        self._directory = LocalStateDirectory(parameters.local_directory)
        try:
            self._open_or_restore(parameters.restore)
        except BaseException:
            self.close()
            raise

    def restored_meta(self) -> KeyedStateMeta | None:
        return self._restored_meta

    def create_state(
        self,
        descriptor: StateDescriptor,
        namespace_serializer: TypeSerializer[Any],
        restored: StateMeta | None,
        verdict: StateVerdict | None,
    ) -> tuple[InternalState, int]:
        table = self._tables.get(descriptor.name)
        meta = StateMeta(
            descriptor.name,
            descriptor.kind,
            namespace_serializer.snapshot_configuration(),
            {role: serializer.snapshot_configuration() for role, serializer in descriptor.serializers.items()},
        )
        entries = 0
        if table is None:
            table = self._tables[descriptor.name] = _Table(meta, self._new_column_family(descriptor.name))
        else:
            if verdict is not None and verdict.kind is CompatibilityKind.AFTER_MIGRATION:
                entries = self._migrate(table, descriptor)
            table.meta = meta
        raw_keys = self._raw_keys(namespace_serializer)
        context = self.key_context_for(descriptor.name, namespace_serializer)
        cache = (descriptor.name, context, raw_keys, table.column_family, self._spill, self._cache_entries)
        table.state = _STATE_FACTORIES[descriptor.kind](descriptor, self._next_chunk_number, cache)
        return handle_of_kind(table.state, descriptor), entries

    def create_snapshot_task(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        self._write_out()
        written = 0
        for number, table in enumerate(self._tables.values()):
            if table.files.needs_base:
                self._write_base(table)
            elif table.files.should_merge:
                self._merge(table)
            stem = f"{checkpoint_id:012d}-{state_id}-{number}"
            written += self._merge_increments(table, stem, state_id)
            written += self._upload(table, stem, state_id)
        handle = handle_of_files(
            state_id,
            ROCKSDB_BACKEND,
            self.key_group_range,
            self._key_snapshot,
            self._sequence,
            [(table.meta, table.files) for table in self._tables.values()],
        )
        digest, entries = self._digest.hexdigest(), self._entries_written
        self._digest, self._entries_written = xxhash.xxh3_128(), 0
        self._snapshot_taken = state_id
        return SynchronousSnapshotTask(KeyedStateSnapshot(handle, digest, entries, written))

    def export_state(self, name: str) -> Iterator[CanonicalBatch]:
        self.check_open()
        self._write_out()
        table = self._tables[name]
        raw_keys = self._raw_keys_of(table)
        is_map = table.meta.kind is StateKind.MAP
        batch = CanonicalBatch.empty()
        for raw_key, value in self._scan(table.column_family):
            key_group, key, namespace, rest = raw_keys.split(raw_key)
            batch.append(key_group, key, namespace, rest if is_map else None, value)
            if batch.row_count >= BATCH_ROWS:
                yield batch
                batch = CanonicalBatch.empty()
        if batch.row_count:
            yield batch

    def current_meta(self) -> KeyedStateMeta:
        return KeyedStateMeta(
            self._key_snapshot, self._sequence, tuple(table.meta for table in self._tables.values())
        )

    def stored_addresses(self, name: str) -> Iterator[Address]:
        self.check_open()
        self._write_out()
        table = self._tables.get(name)
        return iter(()) if table is None else self._addresses(table)

    def _addresses(self, table: _Table) -> Iterator[Address]:
        split = self._raw_keys_of(table).split
        previous = None
        for raw_key, _ in self._scan(table.column_family):
            address = split(raw_key)[:3]
            if address != previous:
                previous = address
                yield address

    def free(self) -> None:
        for table in self._tables.values():
            if table.state is not None:
                table.state.close()
        if self._store is not None and self._store.is_inherited:
            # A forked child must leave the directory alone: it is its parent's.
            return
        families = {name: table.column_family.name for name, table in self._tables.items()}
        try:
            if self._store is not None:
                self._store.close()
            if self._snapshot_taken is not None:
                self._directory.write_version(LocalVersion(self._snapshot_taken, families))
        finally:
            self._directory.close()

    @property
    def is_local(self) -> bool:
        """Whether the local database was opened as it was, instead of being restored."""
        return self._is_local

    def _open_or_restore(self, handles: tuple[RestoredHandle, ...]) -> None:
        self._is_local = False
        metas = [decode_meta(restored.handle.meta, len(restored.handle.files)) for restored in handles]
        self._restored_meta = merge_metas(metas)
        if self._restored_meta is not None:
            self.take_over_keys(self._restored_meta.key_snapshot)
            self._key_snapshot = self.key_serializer.snapshot_configuration()
            self._sequence = self._restored_meta.sequence
        if self._open_local(handles, metas):
            return
        self._directory.wipe()
        self._store = RocksDBStore(self._directory.database_path)
        for state in self._restored_meta.states if self._restored_meta is not None else ():
            self._tables[state.name] = _Table(state, self._new_column_family(state.name))
        for restored, meta in zip(handles, metas, strict=True):
            importer = _IMPORTERS.get(restored.handle.backend)
            if importer is None:
                raise StateRestoreError(
                    f"the state of operator {self.parameters.operator_uid!r} was written by the backend "
                    f"{restored.handle.backend!r}, whose own format RocksDB does not read; "
                    f"take a savepoint, which every backend reads"
                )
            for state in meta.states:
                importer(self, self._tables[state.name], restored, state)

    def _open_local(self, handles: tuple[RestoredHandle, ...], metas: list[KeyedStateMeta]) -> bool:
        version = self._directory.read_version()
        if version is None or len(handles) != 1 or handles[0].handle.backend != ROCKSDB_BACKEND:
            return False
        handle = handles[0].handle
        names = [state.name for state in metas[0].states]
        if (
            version.state_id != handle.state_id
            or KeyGroupRange(handle.key_group_start, handle.key_group_end) != self.key_group_range
            or sorted(version.column_families) != sorted(names)
        ):
            return False
        self._directory.begin_change()
        self._store = RocksDBStore(self._directory.database_path)
        present = set(self._store.column_family_names)
        if not set(version.column_families.values()) <= present:
            self._store.close()
            self._store = None
            return False
        self._family_numbers = itertools.count(1 + max((_family_number(name) for name in present), default=-1))
        for state in metas[0].states:
            family = self._store.column_family(version.column_families[state.name])
            self._tables[state.name] = _Table(state, family, StateFiles(stored_files(handle, state)))
        self._is_local = True
        return True

    def _import_native(self, table: _Table, restored: RestoredHandle, state: StateMeta) -> None:
        handle = restored.handle
        files = stored_files(handle, state)
        for stored in files:
            path = self._directory.new_file(".sst")
            restored.file_system.download(stored.handle, path)
            table.column_family.ingest(path)
        is_own = (
            KeyGroupRange(handle.key_group_start, handle.key_group_end) == self.key_group_range
            and restored.file_system.uri == self.parameters.file_system.uri
        )
        # Files with keys outside the range, or in another store, must not be referred to by our checkpoints.
        table.files = StateFiles(files) if is_own else StateFiles(needs_base=True)

    def _import_canonical(self, table: _Table, restored: RestoredHandle, state: StateMeta) -> None:
        for stored in stored_files(restored.handle, state):
            local = self._directory.new_file(".parquet")
            restored.file_system.download(stored.handle, local)
            self._ingest(table, self._raw_entries(state, read_canonical(local, self.key_group_range)))
            os.unlink(local)

    def _raw_entries(self, state: StateMeta, batches: Iterable[CanonicalBatch]) -> Iterator[Change]:
        for batch in batches:
            for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
                prefix = KEY_GROUP.pack(key_group) + key + namespace
                if user_key is not None:
                    yield prefix + user_key, value
                elif state.kind is StateKind.LIST:
                    yield prefix + CHUNK_NUMBER.pack(self._next_chunk_number()), value
                else:
                    yield prefix, value

    def _migrate(self, table: _Table, descriptor: StateDescriptor) -> int:
        old_serializers = {
            role: snapshot.restore_serializer() for role, snapshot in table.meta.role_snapshots.items()
        }
        kind = descriptor.kind
        migration = SchemaMigration(
            storage_serializer(kind, old_serializers), storage_serializer(kind, descriptor.serializers)
        )
        written = self._write_sorted(self._migrated_entries(table.column_family, descriptor.name, migration))
        self._replace(table, written)
        return 0 if written is None else written.entry_count

    def _migrated_entries(
        self, family: ColumnFamily, name: str, migration: SchemaMigration[Any]
    ) -> Iterator[tuple[bytes, bytes]]:
        progress = self.parameters.progress
        transcode = migration.transcode
        count = 0
        for raw_key, value in self._scan(family):
            failure: Exception | None = None
            try:
                migrated, position = transcode(value, 0)
            except Exception as error:
                migrated, position, failure = b"", -1, error
            if position != len(value):
                raise self._migration_failure(name, raw_key, migration, value, failure)
            yield raw_key, migrated
            count += 1
            if count % PROGRESS_STEP == 0:
                progress(name, count)
        progress(name, count)

    def _migration_failure(
        self, name: str, raw_key: bytes, migration: SchemaMigration[Any], value: bytes, failure: Exception | None
    ) -> StateMigrationException:
        try:
            migration.to_bytes(value)
        except MigrationError as error:
            failure = error
        return StateMigrationException(
            f"operator {self.parameters.operator_uid!r}, state {name!r}: the entry at raw key {raw_key.hex()} "
            f"cannot be migrated: {failure}. The checkpoint it came from is unchanged"
        )

    def _write_out(self) -> None:
        for table in self._tables.values():
            if table.state is not None:
                self._spill(table.state)

    def _spill(self, state: CachedState) -> None:
        changes = state.drain()
        if not changes:
            return
        changes.sort()
        self._snapshot_taken = None
        self._directory.begin_change()
        _digest_changes(self._digest, state.name, changes)
        self._entries_written += len(changes)
        self._ingest(self._tables[state.name], with_marks(changes))

    def _ingest(self, table: _Table, entries: Iterable[Change]) -> int:
        """Makes entries, given in key order, part of the state and of the next snapshot; returns their number."""
        written = self._write_sorted(entries)
        if written is None:
            return 0
        self._take_in(table, written)
        return written.entry_count

    def _write_sorted(self, entries: Iterable[Change]) -> SstWriter | None:
        """Writes entries to a file of their own, changing nothing else; None if there are none."""
        writer = SstWriter(self._directory.new_file(".sst"))
        writer.write(entries)
        if not writer.entry_count:
            return None
        writer.finish()
        return writer

    def _take_in(self, table: _Table, written: SstWriter) -> None:
        # The database takes the file as its own, so a second link is kept for the upload.
        kept = self._directory.new_file(".sst")
        os.link(written.path, kept)
        table.column_family.ingest(written.path)
        table.files.pending.append(kept)

    def _merge(self, table: _Table) -> None:
        """Moves the state into a fresh column family that consists of one file, which becomes the new base."""
        self._replace(table, self._write_sorted(self._scan(table.column_family)))

    def _merge_increments(self, table: _Table, stem: str, state_id: str) -> int:
        """Makes one file of many small increments, if there are too many files; returns the bytes it uploaded.

        The database has their content already: only the checkpoints' files change.
        """
        places = table.files.increments_to_merge()
        if places is None:
            return 0
        with tempfile.TemporaryDirectory(dir=self._directory.path) as directory:
            paths = []
            for number, stored in enumerate(table.files.stored[places.start : places.stop]):
                paths.append(os.path.join(directory, f"{number}.sst"))
                self.parameters.file_system.download(stored.handle, paths[-1])
            writer = merge_increments(paths, directory, self._directory.new_file(".sst"))
        if writer is None:
            table.files.replace(places, None)
            return 0
        handle = self.parameters.file_system.upload(writer.path, f"{self.parameters.file_prefix}-{stem}-merged.sst")
        os.unlink(writer.path)
        table.files.replace(places, StoredFile(handle, state_id))
        return handle.size_bytes

    def _replace(self, table: _Table, written: SstWriter | None) -> None:
        """Makes a file the whole content of a state, whose old column family goes; nothing that can fail is left."""
        old_family = table.column_family
        self._discard_pending(table)
        table.column_family = self._new_column_family(table.meta.name)
        table.files = StateFiles()
        if written is not None:
            self._take_in(table, written)
        if table.state is not None:
            table.state.column_family = table.column_family
        assert self._store is not None
        self._store.drop(old_family.name)

    def _write_base(self, table: _Table) -> None:
        """Writes the state whole, for the snapshot only: the database has it already."""
        self._discard_pending(table)
        path = self._directory.new_file(".sst")
        writer = SstWriter(path)
        writer.write(self._scan(table.column_family))
        table.files = StateFiles()
        if writer.entry_count:
            writer.finish()
            table.files.pending.append(path)

    def _discard_pending(self, table: _Table) -> None:
        for path in table.files.pending:
            os.unlink(path)

    def _upload(self, table: _Table, stem: str, state_id: str) -> int:
        written = 0
        for number, path in enumerate(table.files.pending):
            target = f"{self.parameters.file_prefix}-{stem}-{number}.sst"
            handle = self.parameters.file_system.upload(path, target)
            os.unlink(path)
            written += handle.size_bytes
            table.files.stored.append(StoredFile(handle, state_id))
        table.files.pending = []
        return written

    def _scan(self, family: ColumnFamily) -> Iterator[tuple[bytes, bytes]]:
        end = self.key_group_range.end
        for raw_key, value in family.scan(KEY_GROUP.pack(self.key_group_range.start)):
            if raw_key[0] << 8 | raw_key[1] > end:
                return
            yield raw_key, value
        # A scan also ends when the store is closed; what was read of it must not pass for the whole.
        self.check_open()

    def _raw_keys_of(self, table: _Table) -> RawKeys:
        return self._raw_keys(table.meta.namespace_snapshot.restore_serializer())

    def _raw_keys(self, namespace_serializer: TypeSerializer[Any]) -> RawKeys:
        is_namespaced = has_namespaces(namespace_serializer)
        return RawKeys(self.key_serializer, namespace_serializer, self.key_group_range, is_namespaced)

    def _new_column_family(self, name: str) -> ColumnFamily:
        assert self._store is not None
        return self._store.column_family(f"{next(self._family_numbers)}:{name}")

    def _next_chunk_number(self) -> int:
        number = self._sequence
        self._sequence += 1
        return number


def _digest_changes(digest: Any, name: str, changes: list[Change]) -> None:
    """Adds changes to a digest in a form that no other changes have: all lengths, then all bytes."""
    digest.update(f"{name}\0{len(changes)}\0".encode())
    for column in zip(*changes, strict=True):
        digest.update(array("q", [-1 if item is None else len(item) for item in column]).tobytes())
        digest.update(b"".join([item for item in column if item is not None]))


def _family_number(name: str) -> int:
    return int(name.partition(":")[0])


_IMPORTERS: Final[dict[str, Callable[[RocksDBKeyedStateBackend, _Table, RestoredHandle, StateMeta], None]]] = {
    ROCKSDB_BACKEND: RocksDBKeyedStateBackend._import_native,
    CANONICAL_BACKEND: RocksDBKeyedStateBackend._import_canonical,
}

_STATE_FACTORIES: Final[dict[StateKind, Callable[[Any, Callable[[], int], tuple[Any, ...]], CachedState]]] = {
    StateKind.VALUE: lambda descriptor, _, cache: create_value_state(
        descriptor.serializer, descriptor.default, *cache
    ),
    StateKind.LIST: lambda descriptor, next_number, cache: RocksDBListState(
        descriptor.element_serializer, next_number, *cache
    ),
    StateKind.MAP: lambda descriptor, _, cache: RocksDBMapState(
        descriptor.key_serializer, descriptor.value_serializer, *cache
    ),
    StateKind.REDUCING: lambda descriptor, _, cache: create_value_state(descriptor.serializer, None, *cache),
    StateKind.AGGREGATING: lambda descriptor, _, cache: create_value_state(
        descriptor.accumulator_serializer, None, *cache
    ),
}


class RocksDBStateBackend(StateBackend):
    """State in RocksDB, through `rocksdict`: for state larger than memory, with incremental checkpoints.

    ``cache_entries`` bounds the keys per state that are held in memory between two barriers.
    """

    def __init__(self, cache_entries: int = DEFAULT_CACHE_ENTRIES) -> None:
        if cache_entries < 1:
            raise ValueError(f"cache_entries is {cache_entries}; at least one key must fit")
        self.cache_entries = cache_entries

    @property
    def name(self) -> str:
        return ROCKSDB_BACKEND

    def create_keyed_state_backend(self, parameters: KeyedStateBackendParameters) -> RocksDBKeyedStateBackend:
        return RocksDBKeyedStateBackend(parameters, self.cache_entries)
