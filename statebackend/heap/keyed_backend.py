"""The heap backend of one subtask: state as Python dicts, snapshots as increments in canonical Parquet.

A snapshot writes, per state, the rows of what changed since the last one, and refers to the files that were there
before. What is restored stays in its files until a descriptor is registered; then the rows are read and decoded once,
by the function that turns old bytes into what is kept now, so that a migration costs nothing extra. A state that nobody
registers stays in its files: it is not even read, as long as this subtask may go on referring to them.

Invariant: what completed snapshots hold is what the files of a state say, unless `StateFiles.needs_base`. From it
follows when a backend that was kept in a worker may *catch up* with a newer handle: if nothing was changed since and no
snapshot is under way, and for each state our files are the first of the handle's files, the rest are the changes to
apply. Neither an epoch that another attempt won, nor one that changed nothing, nor files merged into one, can be
mistaken for anything else.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from attrs import define, evolve, field

from snapshots.compatibility import CompatibilityKind
from snapshots.envelope import snapshot_to_bytes
from snapshots.value_text import shown
from statebackend.api.descriptors import PriorityQueueDescriptor, StateDescriptor
from statebackend.api.errors import StateRestoreError
from statebackend.canonical.canonical_entries import CanonicalBatch, batches_of
from statebackend.heap.cleanup_pass import places_of_table
from statebackend.heap.handle import HeapStateHandle
from statebackend.heap.priority_queue import HeapPriorityQueue
from statebackend.heap.size_estimate import estimated_bytes
from statebackend.heap.snapshot_task import FrozenState, HeapSnapshotTask, SnapshotTarget
from statebackend.heap.state_content import Source, StateContent
from statebackend.heap.state_migration import migrate_into
from statebackend.heap.table import HeapTable
from statebackend.heap.tables import create_handle, create_raw_table, create_table, reading_table
from statebackend.heap.worker_cache import KeptLimits, WorkerCacheKey, memory_of_host_bytes, worker_cache
from statebackend.keyed.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    KeyedStateSnapshotTask,
    RestoredHandle,
)
from statebackend.keyed.key_context import has_namespaces
from statebackend.keyed.key_enumeration import Address
from statebackend.keyed.keyed_state_backend import VOID_NAMESPACE_SERIALIZER, KeyedStateBackend
from statebackend.keyed.restored_states import read_restored_states
from statebackend.keyed.schema_resolution import StateVerdict
from statebackend.keyed.state_backend import StateBackend, SubtaskIdentity
from statebackend.keyed.state_files import StateFiles, StoredFile, stored_files
from statebackend.keyed.state_meta import CANONICAL_BACKEND, KeyedStateMeta, StateMeta, decode_meta, meta_of_descriptor
from statebackend.kinds.folding_states import handle_of_kind
from statebackend.kinds.internal_states import InternalState
from statebackend.metrics.state_metrics import StateStatistics
from statebackend.ttl.expiry_sweep import Pass
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE

T = TypeVar("T")

DEFAULT_KEPT_EPOCHS: Final = 16
"""Epochs after which a worker drops a copy of a subtask that other workers have had since."""

HEAP_BACKEND: Final = "heap"

_READABLE_BACKENDS: Final = frozenset({HEAP_BACKEND, CANONICAL_BACKEND})


@define
class _HeldState:
    """One state: its content and its handle, what its serializers were when it was restored or registered, and those of
    its table.
    """

    meta: StateMeta
    content: StateContent = field(factory=StateContent)
    serializers: dict[str, TypeSerializer[Any]] = field(factory=dict)
    handle: HeapStateHandle | HeapPriorityQueue[Any] | None = None

    @property
    def table(self) -> HeapTable | None:
        """The table of a state that is or was registered."""
        return self.content.table

    def meta_now(self) -> StateMeta:
        """What its serializers are now, after all that they have written."""
        return self.meta.as_written_by(self.serializers) if self.serializers else self.meta


class HeapKeyedStateBackend(KeyedStateBackend):
    """See the module."""

    def __init__(self, parameters: KeyedStateBackendParameters) -> None:
        super().__init__(parameters)
        self._states: dict[str, _HeldState] = {}
        self._sequence = 0
        self._snapshot_numbers = itertools.count()
        # Guards the contents of the states: tasks change them on their threads when they are complete.
        self._lock = threading.Lock()
        self._restored_meta: KeyedStateMeta | None = None
        self._is_local = False
        self.last_checkpoint_id = -1
        """The checkpoint of its last snapshot; -1 before the first."""
        self._restore(parameters.restore)

    @property
    def is_local(self) -> bool:
        return self._is_local

    def restored_meta(self) -> KeyedStateMeta | None:
        return self._restored_meta

    def estimated_bytes(self) -> int:
        """About how much of Python's memory the entries of all states take; what stays in files takes none."""
        return sum(estimated_bytes(held.table.history.live) for held in self._states.values() if held.table is not None)

    def create_state(
        self,
        descriptor: StateDescriptor,
        namespace_serializer: TypeSerializer[Any],
        restored: StateMeta | None,
        verdict: StateVerdict | None,
    ) -> tuple[InternalState, int]:
        serializers = {**descriptor.serializers, "namespace": namespace_serializer}
        meta = meta_of_descriptor(descriptor, namespace_serializer)
        held = self._states.get(descriptor.name) or _HeldState(meta)
        content, table, is_migration = held.content, held.table, False
        if table is None or held.serializers != serializers:
            is_migration = verdict is not None and verdict.kind is CompatibilityKind.AFTER_MIGRATION
            content, table = self._filled_table(held, descriptor, serializers, is_migration)
        context = self.key_context_for(descriptor.name, namespace_serializer)
        handle = create_handle(table, context, descriptor)
        state = handle_of_kind(handle, descriptor)
        # From here on nothing can fail: what is refused above has changed nothing.
        with self._lock:
            content.table, content.sources = table, ()
        table.handle = handle
        held.meta, held.serializers, held.content, held.handle = meta, serializers, content, handle
        self._states[descriptor.name] = held
        return state, table.entry_count() if is_migration else 0

    def create_priority_queue(
        self, descriptor: PriorityQueueDescriptor[T], restored: StateMeta | None
    ) -> HeapPriorityQueue[T]:
        queue: Any = self.create_state(descriptor, VOID_NAMESPACE_SERIALIZER, restored, None)[0]
        typed: HeapPriorityQueue[T] = queue
        return typed

    def create_snapshot_task(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        target = SnapshotTarget(
            next(self._snapshot_numbers),
            state_id,
            HEAP_BACKEND,
            f"{self.parameters.file_prefix}-{checkpoint_id:012d}-{state_id}",
            self.parameters.file_system,
            self.parameters.local_directory,
            self.key_group_range,
            self.key_serializer.snapshot_configuration(),
            self._sequence,
        )
        readers = [self._reader(held) for held in self._states.values()]
        row_filters = [self.row_filter(name) for name in self._states]
        # From here on nothing can fail: no states are frozen in vain.
        with self._lock:
            states = [
                FrozenState(
                    held.meta,
                    held.content,
                    held.content.files,
                    held.content.sources,
                    *reader,
                    None if held.table is None else held.table.freeze(),
                    row_filter,
                )
                for held, reader, row_filter in zip(self._states.values(), readers, row_filters, strict=True)
            ]
        return HeapSnapshotTask(states, target, self._lock)

    def snapshot(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshot:
        snapshot = super().snapshot(checkpoint_id, state_id)
        self.last_checkpoint_id = checkpoint_id
        for held in self._states.values():
            if held.table is not None:
                held.table.settle()
        return snapshot

    def export_state(self, name: str) -> Iterator[CanonicalBatch]:
        self.check_open()
        return batches_of(self._table_of(self._states[name]).rows())

    def current_meta(self) -> KeyedStateMeta:
        return KeyedStateMeta(
            self.key_serializer.snapshot_configuration(),
            self._sequence,
            tuple(held.meta_now() for held in self._states.values()),
        )

    def state_meta(self, name: str) -> StateMeta | None:
        held = self._states.get(name)
        return None if held is None else held.meta_now()

    def state_statistics(self, name: str) -> StateStatistics:
        table = self._states[name].table
        if table is None:
            return StateStatistics()
        return StateStatistics(entries=table.entry_count())

    def stored_addresses(self, name: str) -> Iterator[Address]:
        self.check_open()
        held = self._states.get(name)
        return iter(()) if held is None else self._table_of(held).addresses()

    def cleanup_pass(self, name: str) -> Pass:
        self.check_open()
        held = self._states[name]
        table = self._table_of(held)
        is_namespaced = has_namespaces(held.meta.namespace_snapshot.restore_serializer())
        places = places_of_table(
            table, held.meta.kind, self.context.key_group, self.parameters.clock, self.ttl_ms(name)
        )
        if is_namespaced:
            return (place and (place[0], *place[1]) for place in places)
        return (place and (*place, VOID_NAMESPACE) for place in places)

    def release_states(self) -> None:
        """Ends an epoch of a backend that is kept: its handles are dead, and descriptors are registered anew.

        A descriptor with the same serializers then gets the same table; one with others is judged against what the
        last one left, as after a restore.
        """
        self.check_open()
        self._close_handles()
        self._registered.clear()
        self._record_sweeps.clear()
        self.restore_reports.clear()
        self.leave_key()
        self._restored_meta = self.current_meta()

    def catch_up(self, restored: RestoredHandle, parameters: KeyedStateBackendParameters | None = None) -> bool:
        """Makes this backend what a restore from a newer handle would give, if only later increments are missing.

        Returns False, leaving the backend unchanged, if that cannot be: the handle is of another subtask, store or
        backend, a state has another schema, files were merged, or another attempt won an epoch. The caller then
        restores from scratch. ``parameters`` are those of the new epoch, taken over if given. Costs the size of the
        increments. A damaged file raises an error that names it; the backend is then closed if it had begun to change.
        """
        self.check_open()
        meta = self._caught_up_meta(restored, parameters or self.parameters)
        if meta is None:
            return False
        additions: list[tuple[StateMeta, list[StoredFile], list[CanonicalBatch]]] = []
        for state in meta.states:
            held = self._states.get(state.name)
            stored = stored_files(restored.handle, state)
            batches: list[CanonicalBatch] = []
            if held is not None and held.table is not None:
                for file in stored[len(held.content.files.stored) :]:
                    batches += Source(restored.file_system, file.handle).batches(self.key_group_range)
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
        self._restored_meta = meta
        self._sequence = meta.sequence
        self._is_local = True
        return True

    def free(self) -> None:
        self._close_handles()
        self._states.clear()

    def _restore(self, handles: tuple[RestoredHandle, ...]) -> None:
        merged, metas = read_restored_states(self, _READABLE_BACKENDS)
        if merged is None:
            return
        self._restored_meta = merged
        self._sequence = merged.sequence
        self._states = {state.name: _HeldState(state) for state in merged.states}
        for restored, meta in zip(handles, metas, strict=True):
            is_own = self.may_refer_to(restored, HEAP_BACKEND)
            restored.file_system.verify_present(restored.handle.files)
            for state in meta.states:
                files = stored_files(restored.handle, state)
                held = self._states[state.name]
                held.content.sources += tuple(Source(restored.file_system, stored.handle) for stored in files)
                held.content.files = StateFiles(files) if is_own else StateFiles(needs_base=True)

    def _reader(self, held: _HeldState) -> tuple[HeapTable, dict[str, TypeSerializer[Any]]]:
        """A table that another thread may use to read frozen entries, or files if there are none; and its serializers,
        by role, if it has any.
        """
        if held.table is None:
            return create_raw_table(held.meta, self.key_group_range), {}
        own = {role: serializer.duplicate() for role, serializer in held.serializers.items()}
        return reading_table(held.table, held.meta.kind, self.key_serializer, held.serializers, own), own

    def _table_of(self, held: _HeldState) -> HeapTable:
        """The table of a state; for one that nobody registered, a table of bytes that is not kept."""
        if held.table is not None:
            return held.table
        table = create_raw_table(held.meta, self.key_group_range)
        for batch in self._batches(held):
            table.load_batch(batch, table.form.load)
        return table

    def _filled_table(
        self,
        held: _HeldState,
        descriptor: StateDescriptor,
        serializers: dict[str, TypeSerializer[Any]],
        is_migration: bool,
    ) -> tuple[StateContent, HeapTable]:
        """A table for these serializers with everything that is held, and the content that it is to be the table of.

        Raises, naming the entry that does not fit.
        """
        content = held.content
        table = create_table(held.meta.name, descriptor.kind, self.key_serializer, serializers, self.key_group_range)
        if held.table is not None and not is_migration and table.can_take_entries_of(held.table):
            table.take_entries_of(held.table)
            return content, table
        if is_migration:
            old, batches = held.meta_now(), self._batches(held)
            migrate_into(table, batches, old, descriptor, self.parameters, self.key_serializer)
            return StateContent(StateFiles(needs_base=True)), table
        try:
            for batch in self._batches(held):
                table.load_batch(batch, table.form.load)
        except StateRestoreError as error:
            raise StateRestoreError(
                f"operator {self.parameters.operator_uid!r}, {error}. What it was restored from is unchanged"
            ) from error
        if held.table is not None and held.table.history.has_unwritten_changes:
            return StateContent(StateFiles(needs_base=True)), table
        # A snapshot under way says nothing about entries that were made anew.
        return (content if held.table is None else StateContent(content.files)), table

    def _batches(self, held: _HeldState) -> Iterable[CanonicalBatch]:
        if held.table is not None:
            return batches_of(held.table.rows())
        return (batch for source in held.content.sources for batch in source.batches(self.key_group_range))

    def _caught_up_meta(
        self, restored: RestoredHandle, parameters: KeyedStateBackendParameters
    ) -> KeyedStateMeta | None:
        """The meta data of a handle that this backend can catch up with, or None."""
        ours = self.parameters
        if (
            not self.may_refer_to(restored, HEAP_BACKEND)
            or parameters.operator_uid != ours.operator_uid
            or parameters.key_serializer != ours.key_serializer
            or parameters.key_group_range != self.key_group_range
            or parameters.file_system.uri != ours.file_system.uri
        ):
            return None
        meta = decode_meta(restored.handle.meta, len(restored.handle.files))
        if snapshot_to_bytes(meta.key_snapshot) != snapshot_to_bytes(self.key_serializer.snapshot_configuration()):
            return None
        for name, held in self._states.items():
            state = meta.state(name)
            if state is None or not state.has_schema_of(held.meta_now()):
                return None
            known = held.content.files.stored
            if stored_files(restored.handle, state)[: len(known)] != known:
                return None
            if held.content.files.needs_base or (held.table is not None and not held.table.is_clean):
                return None
        return meta

    def _extend(self, state: StateMeta, stored: list[StoredFile], batches: list[CanonicalBatch]) -> None:
        held = self._states.get(state.name)
        if held is None:
            held = self._states[state.name] = _HeldState(evolve(state, files=()))
        # A snapshot of a state without a table may be under way, and says nothing about what is taken up here.
        held.content = StateContent(StateFiles(stored), table=held.table)
        if held.table is None:
            held.content.sources = tuple(Source(self.parameters.file_system, file.handle) for file in stored)
            return
        for batch in batches:
            held.table.load_batch(batch, held.table.form.load)

    def _close_handles(self) -> None:
        for held in self._states.values():
            if held.handle is not None:
                held.handle.close()
                held.handle = None


class HeapStateBackend(StateBackend):
    """State in Python dicts: fastest, for state that fits into memory; checkpoints are incremental all the same.

    Spark's workers keep the state of a subtask for the next epoch that comes their way, and then read only what has
    changed since. ``kept_bytes_per_host`` bounds, as an estimate, what all workers of a host keep like that, beside
    what they work on; by default it is a quarter of the host's memory. What was not current for ``kept_epochs`` epochs
    goes. With 0 bytes nothing is kept, and every epoch restores. Raises `ValueError` for what is no whole number, or
    negative.
    """

    def __init__(self, kept_bytes_per_host: int | None = None, kept_epochs: int = DEFAULT_KEPT_EPOCHS) -> None:
        for name, number in (("kept_bytes_per_host", kept_bytes_per_host), ("kept_epochs", kept_epochs)):
            if not (type(number) is int and number >= 0) and (name, number) != ("kept_bytes_per_host", None):
                raise ValueError(f"{name} is {shown(number)}; it is a whole number, at least 0")
        self.kept_bytes_per_host = kept_bytes_per_host
        self.kept_epochs = kept_epochs

    @property
    def name(self) -> str:
        return HEAP_BACKEND

    def create_keyed_state_backend(self, parameters: KeyedStateBackendParameters) -> HeapKeyedStateBackend:
        return HeapKeyedStateBackend(parameters)

    def lease_keyed_state_backend(
        self, parameters: KeyedStateBackendParameters, subtask: SubtaskIdentity
    ) -> HeapKeyedStateBackend:
        kept = worker_cache.take(_cache_key(parameters, subtask))
        if kept is not None:
            if len(parameters.restore) == 1 and kept.catch_up(parameters.restore[0], parameters):
                return kept
            kept.close()
        return self.create_keyed_state_backend(parameters)

    def return_keyed_state_backend(
        self, backend: KeyedStateBackend, subtask: SubtaskIdentity, *, succeeded: bool
    ) -> None:
        if succeeded and isinstance(backend, HeapKeyedStateBackend):
            given = self.kept_bytes_per_host
            limits = KeptLimits(memory_of_host_bytes() // 4 if given is None else given, self.kept_epochs)
            worker_cache.put(_cache_key(backend.parameters, subtask), backend, limits)
        else:
            backend.close()

    def kept_bytes_of_host(self) -> int:
        return worker_cache.bytes_of_host


def _cache_key(parameters: KeyedStateBackendParameters, subtask: SubtaskIdentity) -> WorkerCacheKey:
    return WorkerCacheKey(subtask.job_id, parameters.operator_uid, subtask.subtask_index, subtask.parallelism)
