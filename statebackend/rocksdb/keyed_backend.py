"""The RocksDB backend of one subtask.

Every state is a column family. Nothing is ever written through the memtable: the write-back cache of an epoch, sorted
once, becomes one file per changed state, which is *both* ingested into the local database *and* uploaded as the
increment of the checkpoint. Its cost depends on the keys touched, not on the size of the state.

How the database is filled is in `statebackend.rocksdb.restoring`, how a schema changes in
`statebackend.rocksdb.state_migration`, what a snapshot stores in `statebackend.rocksdb.snapshot_task`.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from attrs import frozen

from snapshots.compatibility import CompatibilityKind
from snapshots.value_text import shown
from statebackend.api.descriptors import PriorityQueueDescriptor, StateDescriptor, StateKind
from statebackend.api.errors import StateBackendError, StateMigrationException
from statebackend.canonical.canonical_entries import CanonicalBatch, batches_of
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters
from statebackend.keyed.key_context import has_namespaces
from statebackend.keyed.key_enumeration import Address
from statebackend.keyed.keyed_state_backend import VOID_NAMESPACE_SERIALIZER, KeyedStateBackend
from statebackend.keyed.restored_states import read_restored_states
from statebackend.keyed.schema_resolution import StateVerdict
from statebackend.keyed.state_backend import StateBackend
from statebackend.keyed.state_files import handle_of_files, patience_of
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta, meta_of_descriptor
from statebackend.keyed.state_migration import migration_failure
from statebackend.kinds.folding_states import handle_of_kind
from statebackend.kinds.internal_states import InternalState
from statebackend.metrics.state_metrics import StateStatistics
from statebackend.rocksdb.cache_memory import (
    DEFAULT_CACHE_BYTES,
    MIN_CACHE_BYTES,
    close_cache_memory,
    open_cache_memory,
)
from statebackend.rocksdb.cached_state import CacheBounds, CachedState, WriteBackCache
from statebackend.rocksdb.cleanup_pass import places_of_rows
from statebackend.rocksdb.composite_key import KEY_GROUP, RawKeys
from statebackend.rocksdb.content_digest import ContentDigest, state_seed
from statebackend.rocksdb.effective_changes import effective_changes
from statebackend.rocksdb.list_state import ChunkSource, RocksDBListState
from statebackend.rocksdb.local_database import LocalDatabase, StateTable
from statebackend.rocksdb.local_directory import LocalStateDirectory
from statebackend.rocksdb.map_state import RocksDBMapState
from statebackend.rocksdb.priority_queue import RocksDBPriorityQueue, split_element_key
from statebackend.rocksdb.restoring import READABLE_BACKENDS, ROCKSDB_BACKEND, open_or_restore
from statebackend.rocksdb.snapshot_task import FrozenState, FrozenTable, RocksDBSnapshotTask
from statebackend.rocksdb.state_migration import migrate_state
from statebackend.rocksdb.store import DEFAULT_MEMORY_BUDGET_BYTES, MIN_MEMORY_BUDGET_BYTES
from statebackend.rocksdb.value_state import create_value_state
from statebackend.ttl.expiry_sweep import Pass
from statebackend.ttl.row_filter import RowFilter
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

DEFAULT_CACHE_ENTRIES: Final = 500_000
"""Keys per state that the write-back cache holds before it is written out early."""


@frozen
class _PreparedChanges:
    """What was written out between two preparations of snapshots, and what the content was at the second.

    ``sequence`` is the number of the next list chunk.
    """

    order: int
    entries: int
    digest_total: int
    sequence: int


class RocksDBKeyedStateBackend(KeyedStateBackend):
    """See the module."""

    def __init__(
        self,
        parameters: KeyedStateBackendParameters,
        cache_entries: int = DEFAULT_CACHE_ENTRIES,
        memory_budget_bytes: int = DEFAULT_MEMORY_BUDGET_BYTES,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        super().__init__(parameters)
        self._bounds = CacheBounds(cache_entries, open_cache_memory(cache_bytes), self._spill, self._relieve)
        self._restored_meta: KeyedStateMeta | None = None
        self._order = 0
        self._under_way: list[RocksDBSnapshotTask] = []
        # Tasks end on other threads; a deque takes them in without a lock.
        self._ended: deque[RocksDBSnapshotTask] = deque()
        self._last_done: FrozenState | None = None
        self._broken_by: BaseException | None = None
        self._digest = ContentDigest()
        self._entries_written = 0
        self._completed_total = 0
        self._first_new_chunk = 0
        self._unwritten: list[_PreparedChanges] = []
        self._is_local = False
        directory = LocalStateDirectory(parameters.local_directory)
        self._database = LocalDatabase(directory, self.key_group_range, self.check_open, memory_budget_bytes)
        try:
            self._restore()
        except BaseException:
            self.close()
            raise

    def _restore(self) -> None:
        self._restored_meta, metas = read_restored_states(self, READABLE_BACKENDS)
        if self._restored_meta is not None:
            self._database.sequence = self._restored_meta.sequence
        self._is_local = open_or_restore(
            self._database, self.parameters.restore, metas, self._restored_meta, self.may_refer_to
        )
        self._first_new_chunk = self._database.sequence

    @property
    def is_local(self) -> bool:
        return self._is_local

    def restored_meta(self) -> KeyedStateMeta | None:
        return self._restored_meta

    def create_state(
        self,
        descriptor: StateDescriptor,
        namespace_serializer: TypeSerializer[Any],
        restored: StateMeta | None,
        verdict: StateVerdict | None,
    ) -> tuple[InternalState, int]:
        table, entries = self._take_over(descriptor, namespace_serializer, verdict)
        raw_keys = self._raw_keys(namespace_serializer)
        context = self.key_context_for(descriptor.name, namespace_serializer)
        cache = (descriptor.name, context, raw_keys, table.column_family, self._bounds)
        chunks = ChunkSource(
            self._database.next_chunk_number,
            lambda: self._first_new_chunk,
            functools.partial(self._expired_filter, descriptor.name),
        )
        table.state = _STATE_FACTORIES[descriptor.kind](descriptor, chunks, cache)
        return handle_of_kind(table.state, descriptor), entries

    def create_priority_queue(
        self, descriptor: PriorityQueueDescriptor[T], restored: StateMeta | None
    ) -> RocksDBPriorityQueue[T]:
        table, _ = self._take_over(descriptor, VOID_NAMESPACE_SERIALIZER, None)
        queue = table.state = RocksDBPriorityQueue(
            descriptor.element_serializer,
            self.key_group_range,
            table,
            self._spill,
            self._bounds.entries,
        )
        return queue

    def _take_over(
        self, descriptor: StateDescriptor, namespace_serializer: TypeSerializer[Any], verdict: StateVerdict | None
    ) -> tuple[StateTable, int]:
        """The table of a state, migrated if the verdict says so, and the number of entries migrated."""
        table = self._database.tables.get(descriptor.name)
        meta = meta_of_descriptor(descriptor, namespace_serializer)
        entries = 0
        if table is None:
            table = self._database.add_table(meta)
        elif verdict is not None and verdict.kind is CompatibilityKind.AFTER_MIGRATION:
            failure = functools.partial(self._migration_failure, table)
            entries = migrate_state(self._database, self.parameters, table, descriptor, failure)
        table.meta, table.serializers = meta, {**descriptor.serializers, "namespace": namespace_serializer}
        return table, entries

    def create_snapshot_task(self, checkpoint_id: int, state_id: str) -> RocksDBSnapshotTask:
        self._settle()
        self._write_out()
        self._order += 1
        stem = f"{checkpoint_id:012d}-{state_id}"
        tables = [self._freeze(table) for table in self._database.tables.values()]
        sequence = self._database.sequence
        self._unwritten.append(_PreparedChanges(self._order, self._entries_written, self._digest.total, sequence))
        self._entries_written = 0
        digest, entries = self._digest.since(self._completed_total), sum(one.entries for one in self._unwritten)
        state = FrozenState(self._order, state_id, stem, digest, entries, self._database.version, tables)
        handle_of = functools.partial(
            handle_of_files,
            state_id,
            ROCKSDB_BACKEND,
            self.key_group_range,
            self.key_serializer.snapshot_configuration(),
            sequence,
        )
        task = RocksDBSnapshotTask(state, self.parameters, self._database.directory, handle_of, self._ended.append)
        self._under_way.append(task)
        return task

    def _freeze(self, table: StateTable) -> FrozenTable:
        frozen = table.files.freeze(self._order)
        files = frozen.as_files()
        has_outgrown = files.is_mostly_gone or files.has_outgrown(patience_of(self.key_group_range))
        whole = self._database.scan(table) if files.needs_base or has_outgrown else None
        return FrozenTable(table.meta_now(), frozen, whole, self.row_filter(table.meta.name), table.files.is_exact)

    def _settle(self) -> None:
        """Takes note of the snapshots that have ended, on the backend's own thread."""
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
        """A completed snapshot holds what was written out until it was prepared."""
        for changes in self._unwritten:
            if changes.order == order:
                self._completed_total, self._first_new_chunk = changes.digest_total, changes.sequence
        self._unwritten = [changes for changes in self._unwritten if changes.order > order]

    def export_state(self, name: str) -> Iterator[CanonicalBatch]:
        self.check_open()
        self._write_out()
        table = self._database.tables[name]
        split = self._split_of(table)
        is_map = table.meta.kind is StateKind.MAP
        rows = (
            (key_group, key, namespace, rest if is_map else None, value)
            for (key_group, key, namespace, rest), value in (
                (split(raw_key), value) for raw_key, value in self._database.scan(table)
            )
        )
        return batches_of(rows)

    def current_meta(self) -> KeyedStateMeta:
        return KeyedStateMeta(
            self.key_serializer.snapshot_configuration(),
            self._database.sequence,
            tuple(table.meta_now() for table in self._database.tables.values()),
        )

    def state_meta(self, name: str) -> StateMeta | None:
        table = self._database.tables.get(name)
        return None if table is None else table.meta_now()

    def state_statistics(self, name: str) -> StateStatistics:
        table = self._database.tables[name]
        return StateStatistics(
            entries=table.column_family.estimated_entries(),
            entries_are_exact=False,
            cache_misses=table.state.cache_misses if isinstance(table.state, CachedState) else None,
        )

    def stored_addresses(self, name: str) -> Iterator[Address]:
        self.check_open()
        self._write_out()
        table = self._database.tables.get(name)
        return iter(()) if table is None else self._addresses(table)

    def cleanup_pass(self, name: str) -> Pass:
        self.check_open()
        table, place_of = self._database.tables[name], self.place_decoder(name)
        filters = self.expired_filters(name)
        assert filters is not None
        begin = KEY_GROUP.pack(max(self.context.key_group, 0)) + self.current_key_bytes()
        places = places_of_rows(self._database, table, self._split_of(table), begin, filters)
        return (None if address is None else place_of(address) for address in places)

    def _addresses(self, table: StateTable) -> Iterator[Address]:
        split = self._split_of(table)
        previous = None
        for raw_key, _ in self._database.scan(table):
            address = split(raw_key)[:3]
            if address != previous:
                previous = address
                yield address

    def free(self) -> None:
        close_cache_memory(self._bounds.memory)
        for table in self._database.tables.values():
            if table.state is not None:
                table.state.close()
        # A forked child must leave the directory alone: it is its parent's, and so are the threads of its tasks.
        if self._database.is_inherited:
            return
        for task in self._under_way:
            task.is_out.wait()
        self._settle()
        self._database.close(self._local_state_id())

    def _local_state_id(self) -> str | None:
        """The state id of the completed snapshot that the database holds exactly, if there is one."""
        last = self._last_done
        if last is None or last.version != self._database.version:
            return None
        if self._broken_by is not None:
            # A queue may have moved its lower bound behind elements whose removal could not be written out.
            return None
        return last.state_id if all(table.is_exact for table in last.tables) else None

    def _write_out(self) -> None:
        for table in self._database.tables.values():
            if table.state is not None:
                self._spill(table.state)

    def _relieve(self) -> None:
        """Writes out all caches of entries, which together hold too much."""
        for table in self._database.tables.values():
            if isinstance(table.state, CachedState) and not table.state.is_empty_cache:
                self._spill(table.state)

    def _expired_filter(self, name: str) -> RowFilter | None:
        filters = self.expired_filters(name)
        return None if filters is None else filters()

    def _spill(self, state: WriteBackCache) -> None:
        if self._broken_by is not None:
            raise StateBackendError(
                f"the state of operator {self.parameters.operator_uid!r} is incomplete, since changes could not be "
                f"written out before ({self._broken_by}); restore it from the last completed checkpoint"
            ) from self._broken_by
        try:
            table, seed = self._database.tables[state.name], state_seed(state.name)
            expired = self._expired_filter(state.name)
            while (drained := state.drain()).keys:
                keys, values = effective_changes(drained, table.column_family, self._digest, seed, expired)
                if keys:
                    self._entries_written += len(keys)
                    self._database.ingest_changes(table, keys, values)
        except BaseException as error:
            self._broken_by = error
            raise

    def _migration_failure(self, table: StateTable, raw_key: bytes, error: Exception) -> StateMigrationException:
        key_group, key, namespace, rest = self._split_of(table)(raw_key)
        user_key = rest if table.meta.kind is StateKind.MAP else None
        address = key_group, key, namespace
        return migration_failure(
            self.parameters.operator_uid, table.meta, self.key_serializer, address, user_key, error
        )

    def _split_of(self, table: StateTable) -> Callable[[bytes], tuple[int, bytes, bytes, bytes]]:
        if table.meta.kind is StateKind.PRIORITY_QUEUE:
            return split_element_key
        return self._raw_keys(table.meta_now().namespace_snapshot.restore_serializer()).split

    def _raw_keys(self, namespace_serializer: TypeSerializer[Any]) -> RawKeys:
        is_namespaced = has_namespaces(namespace_serializer)
        return RawKeys(self.key_serializer, namespace_serializer, self.key_group_range, is_namespaced)


_STATE_FACTORIES: Final[dict[StateKind, Callable[[Any, ChunkSource, tuple[Any, ...]], CachedState]]] = {
    StateKind.VALUE: lambda descriptor, _, cache: create_value_state(descriptor.serializer, descriptor.default, *cache),
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

    ``cache_entries`` bounds, for each state, the entries that are held in memory between two barriers; ``cache_bytes``
    bounds what all of them take up, in all backends of a process together: what is more is written to disk early.
    ``memory_budget_bytes`` bounds the blocks, indexes, filters and write buffers that RocksDB holds in memory, of all
    states of all backends in a process together: it has one cache, as large as the largest budget that any of its
    backends has asked for. Raises `ValueError` for a cache of less than one entry or byte, and a budget of less than
    1 MiB.
    """

    def __init__(
        self,
        cache_entries: int = DEFAULT_CACHE_ENTRIES,
        memory_budget_bytes: int = DEFAULT_MEMORY_BUDGET_BYTES,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        if type(cache_entries) is not int or cache_entries < 1:
            raise ValueError(f"cache_entries is {shown(cache_entries)}; it is a whole number, at least one must fit")
        if type(memory_budget_bytes) is not int or memory_budget_bytes < MIN_MEMORY_BUDGET_BYTES:
            raise ValueError(
                f"memory_budget_bytes is {shown(memory_budget_bytes)}; it is a whole number, and RocksDB needs at "
                f"least {MIN_MEMORY_BUDGET_BYTES}"
            )
        if type(cache_bytes) is not int or cache_bytes < MIN_CACHE_BYTES:
            raise ValueError(f"cache_bytes is {shown(cache_bytes)}; it is a whole number, and at least one must fit")
        self.cache_entries = cache_entries
        self.cache_bytes = cache_bytes
        self.memory_budget_bytes = memory_budget_bytes

    @property
    def name(self) -> str:
        return ROCKSDB_BACKEND

    def create_keyed_state_backend(self, parameters: KeyedStateBackendParameters) -> RocksDBKeyedStateBackend:
        return RocksDBKeyedStateBackend(parameters, self.cache_entries, self.memory_budget_bytes, self.cache_bytes)
