"""Where the keyed state of one subtask lives between two barriers; the same for every store.

A backend is made for one subtask: one operator, one range of key groups, one key serializer. It is filled from the
handles of an earlier snapshot, hands out state handles by descriptor, and gives a snapshot at every barrier. It belongs
to one thread; only the tasks that `prepare_snapshot` makes may run on others. State is addressed by key and namespace;
what a user's function registers has the one void namespace.

It is composed, and nobody derives from it: what keeps the entries is a `StateStore`, of which there are several; the
rest is the key context, the registrations (which take the verdict on restored state, and have it migrated), the
enumeration of keys, the clean-up of what has expired, the snapshots under way, metrics.

The life of a restored state is the same in every store: its bytes stay as they were written until a descriptor of its
name is registered; then the verdict is taken, and a migration, if one is needed, runs over the whole state before the
first access. A state that nobody registers keeps its bytes and its old snapshots and travels on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, final, overload

from snapshots.value_text import shown
from statebackend.api.descriptors import Descriptor
from statebackend.api.errors import StateRegistrationError
from statebackend.api.priority_queue import KeyGroupedPriorityQueue
from statebackend.api.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from statebackend.api.time_to_live import StateTtlConfig
from statebackend.canonical.canonical_entries import CanonicalBatch, batches_of
from statebackend.keyed.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    KeyedStateSnapshotTask,
    StateRestoreReport,
)
from statebackend.keyed.key_context import (
    AnyKeyContext,
    KeyContext,
    KeySetter,
    NamespacedKeyContext,
    compile_key_setter,
    has_namespaces,
)
from statebackend.keyed.key_enumeration import EVERY_NAMESPACE, KeyEnumeration, null_namespace
from statebackend.keyed.pass_starts import pass_start
from statebackend.keyed.registrations import Registration, Registrations
from statebackend.keyed.snapshot_sizes import file_sizes
from statebackend.keyed.snapshot_task import SnapshotTasks, SnapshotTimes
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta
from statebackend.keyed.state_schema import NAMESPACE_ROLE
from statebackend.keyed.state_store import StateStore, StateTable, closed_error
from statebackend.kinds.aggregating_kind import AggregatingStateDescriptor, InternalAggregatingState
from statebackend.kinds.internal_states import InternalState
from statebackend.kinds.list_kind import InternalListState, ListStateDescriptor
from statebackend.kinds.map_kind import InternalMapState, MapStateDescriptor
from statebackend.kinds.reducing_kind import InternalReducingState, ReducingStateDescriptor
from statebackend.kinds.state_kind import RowFilter, StateDescriptor
from statebackend.kinds.value_kind import InternalValueState, ValueStateDescriptor
from statebackend.metrics.collection import states_measured
from statebackend.metrics.measured_states import measured_queue, measured_state
from statebackend.metrics.state_metrics import KeyedStateMetrics, SnapshotMetrics
from statebackend.queues.queue_kind import PriorityQueueDescriptor
from statebackend.ttl.expiry_sweep import ExpirySweep, Pass
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

VOID_NAMESPACE_SERIALIZER: Final = VoidNamespaceSerializer()


@final
class KeyedStateBackend:
    """The state of one subtask; see the module. ``store`` has been restored from the handles of ``parameters``."""

    def __init__(self, parameters: KeyedStateBackendParameters, store: StateStore) -> None:
        self.parameters = parameters
        self.key_serializer = store.key_serializer
        self.key_group_range = parameters.key_group_range
        self._store = store
        self._context = KeyContext()
        self._registrations = Registrations(store)
        self._enumeration = KeyEnumeration(store)
        self._record_sweeps: list[Callable[[], None]] = []
        self._tasks: SnapshotTasks[KeyedStateSnapshot] = SnapshotTasks()
        self._last_times = SnapshotTimes()
        self._is_closed = False

    @property
    def is_local(self) -> bool:
        """Whether what it continues from was here already, on the local disk or in the process: no full restore."""
        return self._store.is_local

    @property
    def restore_reports(self) -> list[StateRestoreReport]:
        """What happened to the restored states that were registered."""
        return self._registrations.reports

    def set_current_key(self, key: Any, key_group: int) -> None:
        """Makes ``key`` current; its group must be in the range, which is checked where an entry is stored.

        For many keys, ask for `key_setter` once.
        """
        self.key_setter()(key, key_group)

    def key_setter(self) -> KeySetter:
        """A function ``set_key(key, key_group)`` that does what `set_current_key` does, without looking anything up.

        It is made for the states that are registered now: ask for it after `open()`, and anew after a registration.
        """
        return compile_key_setter(self._context, self.key_serializer, self._record_sweeps)

    def leave_key(self) -> None:
        """Makes no key current: every access to state is an error until the next `set_current_key`."""
        self._context.leave()

    @overload
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]: ...
    @overload
    def get_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]: ...
    @overload
    def get_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]: ...
    @overload
    def get_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]: ...
    @overload
    def get_state(self, descriptor: AggregatingStateDescriptor[I, Any, O]) -> AggregatingState[I, O]: ...
    @overload
    def get_state(self, descriptor: StateDescriptor) -> State: ...

    def get_state(self, descriptor: StateDescriptor) -> State:
        """The handle of a state without namespaces, registered on first use.

        Raises `StateRegistrationError` if the name was registered with another descriptor, and
        `StateMigrationException`, with nothing changed, if restored state cannot be taken over.
        """
        return self.get_or_create_keyed_state(VOID_NAMESPACE_SERIALIZER, descriptor)

    @overload
    def get_or_create_keyed_state(
        self, namespace_serializer: TypeSerializer[Any], descriptor: ValueStateDescriptor[T]
    ) -> InternalValueState[T]: ...
    @overload
    def get_or_create_keyed_state(
        self, namespace_serializer: TypeSerializer[Any], descriptor: ListStateDescriptor[T]
    ) -> InternalListState[T]: ...
    @overload
    def get_or_create_keyed_state(
        self, namespace_serializer: TypeSerializer[Any], descriptor: MapStateDescriptor[K, V]
    ) -> InternalMapState[K, V]: ...
    @overload
    def get_or_create_keyed_state(
        self, namespace_serializer: TypeSerializer[Any], descriptor: ReducingStateDescriptor[T]
    ) -> InternalReducingState[T]: ...
    @overload
    def get_or_create_keyed_state(
        self, namespace_serializer: TypeSerializer[Any], descriptor: AggregatingStateDescriptor[I, Any, O]
    ) -> InternalAggregatingState[I, O]: ...
    @overload
    def get_or_create_keyed_state(
        self, namespace_serializer: TypeSerializer[Any], descriptor: StateDescriptor
    ) -> InternalState: ...

    def get_or_create_keyed_state(
        self, namespace_serializer: TypeSerializer[Any], descriptor: StateDescriptor
    ) -> InternalState:
        """The handle of a state with namespaces, registered on first use; its namespace is as it was left.

        Raises as `get_state`. Namespaces written by another serializer are taken over if the new one can read them as
        they are, reconfigured if need be; they are never migrated.
        """
        if not isinstance(descriptor, StateDescriptor):
            raise self._no_keyed_state(descriptor)
        registered = self._registered(descriptor, namespace_serializer)
        if registered is None:
            registered = self._registrations.register(descriptor, namespace_serializer)
            table = self._registrations.bring_to_schema(registered)
            self._registrations.open(registered, self._handle(table, registered))
        state: InternalState = registered.handle
        return state

    def get_priority_queue(self, descriptor: PriorityQueueDescriptor[T]) -> KeyGroupedPriorityQueue[T]:
        """The queue of that name, registered on first use; raises as `get_state`.

        The elements of a restored queue may be read by a reconfigured serializer, but are never migrated, because their
        order is that of their bytes.
        """
        if not isinstance(descriptor, PriorityQueueDescriptor):
            raise StateRegistrationError(
                f"operator {self.parameters.operator_uid!r}: get_priority_queue was given {shown(descriptor)}; "
                f"pass a PriorityQueueDescriptor"
            )
        registered = self._registered(descriptor, VOID_NAMESPACE_SERIALIZER)
        if registered is None:
            registered = self._registrations.register(descriptor, VOID_NAMESPACE_SERIALIZER)
            table = self._registrations.bring_to_schema(registered)
            handle = table.queue(registered.stored.element_serializer)
            metrics = self.parameters.metrics
            self._registrations.open(registered, handle if metrics is None else measured_queue(handle, metrics))
        queue: KeyGroupedPriorityQueue[T] = registered.handle
        return queue

    @overload
    def get_partitioned_state(
        self, namespace: Any, namespace_serializer: TypeSerializer[Any], descriptor: ValueStateDescriptor[T]
    ) -> ValueState[T]: ...
    @overload
    def get_partitioned_state(
        self, namespace: Any, namespace_serializer: TypeSerializer[Any], descriptor: ListStateDescriptor[T]
    ) -> ListState[T]: ...
    @overload
    def get_partitioned_state(
        self, namespace: Any, namespace_serializer: TypeSerializer[Any], descriptor: MapStateDescriptor[K, V]
    ) -> MapState[K, V]: ...
    @overload
    def get_partitioned_state(
        self, namespace: Any, namespace_serializer: TypeSerializer[Any], descriptor: ReducingStateDescriptor[T]
    ) -> ReducingState[T]: ...
    @overload
    def get_partitioned_state(
        self,
        namespace: Any,
        namespace_serializer: TypeSerializer[Any],
        descriptor: AggregatingStateDescriptor[I, Any, O],
    ) -> AggregatingState[I, O]: ...
    @overload
    def get_partitioned_state(
        self, namespace: Any, namespace_serializer: TypeSerializer[Any], descriptor: StateDescriptor
    ) -> State: ...

    def get_partitioned_state(
        self, namespace: Any, namespace_serializer: TypeSerializer[Any], descriptor: StateDescriptor
    ) -> State:
        """The handle of a state, set to a namespace.

        It is the same handle for all namespaces, so it stays in this one until the next call with another. Raises as
        `get_state`, and `SerializationError`, leaving it where it was, for a namespace that is None or does not fit.
        """
        if namespace is None:
            raise null_namespace(descriptor.name)
        state = self.get_or_create_keyed_state(namespace_serializer, descriptor)
        state.set_current_namespace(namespace)
        return state

    def get_keys(self, name: str, namespace: Any = EVERY_NAMESPACE) -> Iterator[Any]:
        """The keys that have the state of that name, in one namespace or in any, each once, in no promised order.

        Works for unregistered states too. Costs a pass over the whole state. Whether what changes meanwhile is seen is
        open; `apply_to_all_keys` lists the keys first.
        """
        self.check_open()
        return self._enumeration.keys(name, namespace)

    def get_keys_and_namespaces(self, name: str) -> Iterator[tuple[Any, Any]]:
        """The pairs of key and namespace that have the state of that name, each once; otherwise as `get_keys`."""
        self.check_open()
        return self._enumeration.keys_and_namespaces(name)

    def apply_to_all_keys(
        self,
        namespace: Any,
        namespace_serializer: TypeSerializer[Any],
        descriptor: StateDescriptor,
        function: Callable[[Any, Any], object],
    ) -> None:
        """Calls ``function(key, state)`` for every key that has the state in the namespace, with that key current.

        The keys are listed first, so the function may change the state, of any key. Afterwards key and namespace are
        what they were; what the function raises ends the pass and is passed on.
        """
        state = self.get_or_create_keyed_state(namespace_serializer, descriptor)
        self._enumeration.visit(descriptor.name, state, namespace, self._context, self.key_setter(), function)

    def current_meta(self) -> KeyedStateMeta:
        """The states as they are now, registered or not, without files."""
        return self._store.meta_now()

    def state_meta(self, name: str) -> StateMeta | None:
        """The state of that name as it is now, registered or not, without files; None for an unknown name."""
        return self._store.state_meta_now(name)

    def export_state(self, name: str) -> Iterator[CanonicalBatch]:
        """All entries of a state in canonical form, sorted by key group and key; works for unregistered states too."""
        self.check_open()
        return batches_of(self._store.tables[name].rows())

    def declare_ttl(self, name: str, ttl: StateTtlConfig) -> None:
        """Says how long the entries of a state live that nobody registers: what is written whole leaves them out."""
        table = self._store.tables.get(name)
        if table is not None:
            table.schema = table.schema.expiring(ttl, self.parameters.clock)

    def row_filter(self, name: str) -> RowFilter | None:
        """What is left out, as of now, where the state is written whole; None for nothing."""
        table = self._store.tables.get(name)
        row_filter: RowFilter | None = None if table is None else table.schema.snapshot_filter()
        return row_filter

    def prepare_snapshot(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        """The synchronous part of a snapshot: freezes the state as it is now, and returns the task that writes it.

        ``state_id`` is unique to this attempt. What is written, removed or registered afterwards is not in the
        snapshot. Several tasks may be under way at once, and end in any order; what a failed or cancelled one did not
        write, the next one writes.
        """
        self.check_open()
        started = time.monotonic()
        task = self._store.freeze(checkpoint_id, state_id)
        self._last_times = task.times
        self._last_times.synchronous_s = time.monotonic() - started
        self._tasks.add(task)
        return task

    def snapshot(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshot:
        """Both parts of a snapshot at once."""
        snapshot = self.prepare_snapshot(checkpoint_id, state_id).run()
        self._store.snapshot_written(checkpoint_id)
        return snapshot

    def collect_metrics(self, snapshot: KeyedStateSnapshot | None = None) -> KeyedStateMetrics:
        """What was counted since the states were registered; with the last snapshot, what that wrote, and sizes.

        No state is in it if metrics are off. To be called on the backend's thread, before it is closed.
        """
        handles, tables = self._registrations.handles(), self._store.tables
        if snapshot is None:
            return KeyedStateMetrics(states_measured(handles, lambda name: tables[name].statistics(), {}))
        costs = SnapshotMetrics(
            snapshots=1,
            entries_written=snapshot.entries_written,
            bytes_written=snapshot.bytes_written,
            synchronous_s=self._last_times.synchronous_s,
            asynchronous_s=self._last_times.asynchronous_s,
        )
        sizes = file_sizes(snapshot.handle)
        return KeyedStateMetrics(states_measured(handles, lambda name: tables[name].statistics(), sizes), costs)

    def release(self) -> StateStore:
        """Ends the backend and leaves its store, with all that is in it, to the caller; raises if it is closed.

        Snapshots under way go on. State handles are dead once the store says so.
        """
        self.check_open()
        self._is_closed = True
        return self._store

    def close(self) -> None:
        """Cancels the snapshots under way and frees everything; may be called twice. State handles are dead then."""
        if not self._is_closed:
            self._is_closed = True
            self._tasks.cancel()
            self._store.close()

    def check_open(self) -> None:
        """Raises `StateBackendClosedError` after `close`."""
        if self._is_closed:
            raise closed_error(self.parameters.operator_uid)

    def __enter__(self) -> KeyedStateBackend:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _registered(self, descriptor: Descriptor, namespace_serializer: TypeSerializer[Any]) -> Registration | None:
        self.check_open()
        return self._registrations.find(descriptor, namespace_serializer)

    def _handle(self, table: StateTable, registered: Registration) -> InternalState:
        """The handle that a user is given: that of the store, within time-to-live, within metrics."""
        stored: StateDescriptor = registered.stored
        context = self._context_for(stored.name, registered.schema.serializers[NAMESPACE_ROLE])
        handle = stored.kind.create_handle(table, context, stored)
        if registered.lifetime is not None:
            timed = stored.kind.timed_handle(handle, registered.lifetime, registered.in_use)
            cleanup = registered.lifetime.cleanup
            if cleanup is not None:
                begin_pass = functools.partial(self._begin_pass, table)
                timed.cleanup = ExpirySweep(self._context, timed, begin_pass, cleanup.entries_per_access)
                if cleanup.for_every_record:
                    self._record_sweeps.append(timed.cleanup)
            handle = timed
        metrics = self.parameters.metrics
        return handle if metrics is None else measured_state(handle, stored.kind, metrics)

    def _context_for(self, state_name: str, namespace_serializer: TypeSerializer[Any]) -> AnyKeyContext:
        """What the handle of a state sees of the current key: its own context if it has namespaces."""
        if not has_namespaces(namespace_serializer):
            return self._context
        return NamespacedKeyContext(self._context, namespace_serializer, state_name)

    def _no_keyed_state(self, descriptor: Any) -> StateRegistrationError:
        uid = self.parameters.operator_uid
        if isinstance(descriptor, PriorityQueueDescriptor):
            return StateRegistrationError(
                f"state {descriptor.name!r} of operator {uid!r} is a priority queue, which has no current key; "
                f"register it with get_priority_queue"
            )
        return StateRegistrationError(f"operator {uid!r}: {shown(descriptor)} is no descriptor of keyed state")

    def _begin_pass(self, table: StateTable) -> Pass:
        self.check_open()
        return table.cleanup_pass(pass_start(table.schema, self._context, self.key_serializer))
