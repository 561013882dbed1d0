"""The keyed state of one subtask between two barriers, over any `StateStore`.

A backend belongs to one operator, one range of key groups, one key serializer and one thread. Only the tasks that
`prepare_snapshot` makes run on other threads. It restores the handles of an earlier snapshot, returns state handles by
descriptor, and takes a snapshot at every barrier. State is addressed by key and namespace; the states of a user's
function have the void namespace.

A backend consists of a store and of the parts that all stores share: the key context, the registrations, the
enumeration of keys, the clean-up of expired entries, the running snapshots, and metrics.

A state is registered in three steps. If a step fails, the state is as before it:

    registered   the compatibility result is known; an incompatible state is rejected and nothing has changed
    migrated     the entries are in the schema of the descriptor (`Registrations.bring_to_schema`)
    opened       the handle exists

A restored state keeps its bytes until a descriptor with its name is registered. A migration then runs over the whole
state before the first access. A state that is never registered keeps its bytes and snapshots, and is part of every new
snapshot. A lazy migration would open the handle before the second step; the record of the state names its schema.
"""

from __future__ import annotations

import functools
import itertools
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar, final, overload

from attrs import define

from snapshots.compatibility import CompatibilityKind
from snapshots.errors import SerializationError, format_value
from statebackend.state.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    KeyedStateSnapshotTask,
    StateRestoreReport,
    file_sizes,
)
from statebackend.state.canonical import Address, CanonicalBatch, batches_of
from statebackend.state.descriptors import Descriptor
from statebackend.state.entry_keys import KeyForm
from statebackend.state.entry_migration import EntryMigration
from statebackend.state.errors import StateBackendError, StateMigrationException, StateRegistrationError
from statebackend.state.folding_states import (
    AggregatingStateDescriptor,
    InternalAggregatingState,
    InternalReducingState,
    ReducingStateDescriptor,
)
from statebackend.state.internal_states import InternalState, Lifetime
from statebackend.state.key_context import (
    AnyKeyContext,
    KeyContext,
    KeySetter,
    NamespacedKeyContext,
    compile_key_setter,
    has_namespaces,
)
from statebackend.state.list_state import InternalListState, ListStateDescriptor
from statebackend.state.map_state import InternalMapState, MapStateDescriptor
from statebackend.state.measured_states import MeasuredHandle, measured_queue, measured_state
from statebackend.state.metrics import KeyedStateMetrics, SnapshotMetrics, StateMetrics, StateStatistics
from statebackend.state.priority_queue import PRIORITY_QUEUE, KeyGroupedPriorityQueue, PriorityQueueDescriptor
from statebackend.state.snapshot_task import SnapshotTasks, SnapshotTimes
from statebackend.state.state_compatibility import (
    RESTORED_STATE_UNCHANGED,
    StateCompatibility,
    check_state,
    incompatibility_message,
)
from statebackend.state.state_kind import RowFilter, StateDescriptor
from statebackend.state.state_meta import NAMESPACE_ROLE, KeyedStateMeta, StateSchema, meta_of_descriptor
from statebackend.state.state_store import StateStore, StateTable, closed_error
from statebackend.state.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from statebackend.state.ttl import Expiry, ExpirySweep, Pass, PassStart
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.state.value_state import InternalValueState, ValueStateDescriptor
from typeserializers.containers.ttl import TtlPairSerializer
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer


def pass_start(schema: StateSchema, current: KeyContext, key_serializer: TypeSerializer[Any]) -> PassStart:
    """The start of a clean-up pass over a registered state with a time-to-live."""
    assert schema.expiry is not None
    read_key = KeyForm(key_serializer).from_bytes
    read_namespace = KeyForm(schema.serializers[NAMESPACE_ROLE]).from_bytes
    return PassStart(
        current.key_group,
        _current_key_bytes(current, key_serializer),
        schema.expiry,
        lambda address: (address[0], read_key(address[1]), read_namespace(address[2])),
    )


def _current_key_bytes(current: KeyContext, key_serializer: TypeSerializer[Any]) -> bytes:
    """The bytes of the current key; empty without a valid key."""
    if not current.has_key:
        return b""
    if not key_serializer.equal_values_have_equal_bytes:
        # The entry key is already the bytes.
        key_bytes: bytes = current.key
        return key_bytes
    try:
        return key_serializer.to_bytes(current.key)
    except SerializationError:
        return b""


EVERY_NAMESPACE: Final[Any] = object()
"""Selects all namespaces."""


class KeyEnumeration:
    """Lists the keys that have state in a store, registered or not.

    The cost is a pass over the whole state. Changes during the iteration may or may not be visible.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def keys(self, name: str, namespace: Any) -> Iterator[Any]:
        """The keys that have the state of that name, in one namespace or in any, each once, unordered."""
        from_bytes = self._store.key_serializer.from_bytes
        if namespace is EVERY_NAMESPACE:
            return (from_bytes(key) for (_, key), _ in itertools.groupby(self._addresses(name), _key_of_address))
        return (from_bytes(key) for _, key in self._keys_in(name, namespace))

    def keys_and_namespaces(self, name: str) -> Iterator[tuple[Any, Any]]:
        """The pairs of key and namespace that have the state of that name, each once."""
        addresses, serializer = self._addresses(name), self._namespace_serializer(name)
        if serializer is None:
            return iter(())
        key_from_bytes, namespace_from_bytes = self._store.key_serializer.from_bytes, serializer.from_bytes
        return ((key_from_bytes(key), namespace_from_bytes(namespace)) for _, key, namespace in addresses)

    def visit(
        self,
        name: str,
        state: InternalState,
        namespace: Any,
        current: KeyContext,
        set_key: KeySetter,
        function: Callable[[Any, Any], object],
    ) -> None:
        """Call ``function(key, state)`` for every key that has the state in the namespace, with that key current.

        The keys are listed first, so the function may change the state, of any key. Afterwards key and namespace are
        restored. An exception of the function ends the pass and is passed on.
        """
        if namespace is None:
            raise null_namespace(name)
        key_context = state.key_context
        entry_namespace = key_context.entry_namespace(namespace)
        previous = current.key, current.key_group, key_context.namespace
        from_bytes = self._store.key_serializer.from_bytes
        try:
            for key_group, key_bytes in list(self._keys_in(name, namespace)):
                key = from_bytes(key_bytes)
                set_key(key, key_group)
                key_context.enter(entry_namespace)
                function(key, state)
        finally:
            current.key, current.key_group, namespace_before = previous
            key_context.enter(namespace_before)

    def _keys_in(self, name: str, namespace: Any) -> Iterator[tuple[int, bytes]]:
        if namespace is None:
            raise null_namespace(name)
        addresses, serializer = self._addresses(name), self._namespace_serializer(name)
        if serializer is None:
            return iter(())
        wanted = serializer.to_bytes(namespace)
        return ((key_group, key) for key_group, key, found in addresses if found == wanted)

    def _addresses(self, name: str) -> Iterator[Address]:
        table = self._store.tables.get(name)
        if table is None:
            return iter(())
        if table.schema.meta.kind is PRIORITY_QUEUE:
            raise StateBackendError(f"state {name!r} is a priority queue, whose elements are not kept by key")
        addresses: Iterator[Address] = table.addresses()
        return addresses

    def _namespace_serializer(self, name: str) -> TypeSerializer[Any] | None:
        meta, table = self._store.state_meta_now(name), self._store.tables.get(name)
        if meta is None:
            return None
        return restored_with(meta.namespace_snapshot, *(() if table is None else table.schema.serializers.values()))


_key_of_address = operator.itemgetter(0, 1)


def _read_as_pairs(stored: StateDescriptor) -> Any:
    """The descriptor of a stored form, for a handle that reads values and their times as plain tuples."""
    role, serializers = stored.kind.timed_role, stored.serializers
    timed: Any = serializers[role]
    return stored.with_serializers({**serializers, role: TtlPairSerializer(timed.value_serializer)})


def null_namespace(state_name: str) -> SerializationError:
    """The error for None as a namespace."""
    return SerializationError(f"state {state_name!r}, the namespace", ("None is not a namespace",))


@define(eq=False)
class Registration:
    """One registered state: ``descriptor`` and ``namespace_serializer`` as given, and the results of the registration.

    ``compatibility`` is the result for the restored state, None for a new state. ``stored`` is the descriptor of the
    stored form, with the serializers in use. ``schema`` is the schema of the entries after the migration. ``in_use`` is
    the user's descriptor for the handle. ``handle`` is set when the state is opened.
    """

    descriptor: Any
    namespace_serializer: TypeSerializer[Any]
    compatibility: StateCompatibility | None
    stored: Any
    in_use: Any
    schema: StateSchema
    lifetime: Lifetime | None = None
    handle: Any = None


class Registrations:
    """The registered states of one backend; ``reports`` has an entry for each registered state that was restored."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._registered: dict[str, Registration] = {}
        self.reports: list[StateRestoreReport] = []
        self.is_bulk = False
        """Whether states registered from now on are accessed with `KeyBatch`."""

    def handles(self) -> dict[str, Any]:
        """The handles by name."""
        return {name: registration.handle for name, registration in self._registered.items()}

    def find(self, descriptor: Descriptor, namespace_serializer: TypeSerializer[Any]) -> Registration | None:
        """The registration of that name; raises `StateRegistrationError` if its descriptor differs."""
        known = self._registered.get(descriptor.name)
        if known is None:
            return None
        if known.descriptor != descriptor or known.namespace_serializer != namespace_serializer:
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {self._store.parameters.operator_uid!r} is registered twice, "
                f"with different descriptors or namespaces; give one of them another name"
            )
        return known

    def register(self, descriptor: Descriptor, namespace_serializer: Any) -> Registration:
        """Create the record of a state that is not registered yet; change nothing.

        Raises `StateMigrationException` if the restored state of that name is incompatible.
        """
        uid = self._store.parameters.operator_uid
        if not isinstance(namespace_serializer, TypeSerializer):
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {uid!r} needs a serializer of its namespaces, not "
                f"{format_value(namespace_serializer)}"
            )
        restored, compatibility = self._store.state_meta_now(descriptor.name), None
        if restored is not None:
            compatibility = check_state(restored, descriptor, namespace_serializer, self._store.parameters.rules)
            if compatibility.kind is CompatibilityKind.INCOMPATIBLE:
                raise StateMigrationException(incompatibility_message(uid, [compatibility], RESTORED_STATE_UNCHANGED))
        if isinstance(descriptor, StateDescriptor) and descriptor.ttl is not None:
            return self._with_time_to_live(descriptor, namespace_serializer, compatibility)
        stored: Any = descriptor if compatibility is None else descriptor.with_serializers(compatibility.serializers)
        schema = self._schema(stored, namespace_serializer, compatibility)
        return Registration(descriptor, namespace_serializer, compatibility, stored, stored, schema)

    def bring_to_schema(self, registration: Registration) -> StateTable:
        """Convert existing entries of a registered state to its schema; return the table.

        Raises `StateMigrationException` with the entry, changing nothing, if an entry cannot be migrated.
        """
        store, schema, compatibility = self._store, registration.schema, registration.compatibility
        table = store.tables.get(schema.meta.name)
        if table is None or compatibility is None:
            return store.create_table(schema)
        known: StateTable = table
        started, entries = time.monotonic(), 0
        if compatibility.kind is CompatibilityKind.AFTER_MIGRATION:
            assert compatibility.row_plan is not None, (
                "only a queue has none, and the elements of a queue never migrate"
            )
            migration = self._migration(known, registration, compatibility)
            # Before the first entry, so that every migration is reported.
            migration.progress(0)
            entries = store.rewrite(known, schema, migration)
            migration.done()
        else:
            store.restore_as_is(known, schema)
        self.reports.append(StateRestoreReport(known.name, compatibility, entries, time.monotonic() - started))
        return known

    def open(self, registration: Registration, handle: Any) -> None:
        """Set the handle; the state is registered from here on."""
        registration.handle = handle
        self._registered[registration.descriptor.name] = registration

    def _with_time_to_live(
        self,
        descriptor: StateDescriptor,
        namespace_serializer: TypeSerializer[Any],
        compatibility: StateCompatibility | None,
    ) -> Registration:
        kind, config, clock = descriptor.kind, descriptor.ttl, self._store.parameters.clock
        assert config is not None
        serializers = (
            kind.timed_serializers(descriptor.serializers) if compatibility is None else compatibility.serializers
        )
        in_use, lifetime = kind.descriptor_in_use(descriptor, serializers), Lifetime(config, clock)
        stored = kind.timed_descriptor(in_use, serializers, lifetime)
        timed: Any = serializers[kind.timed_role]
        schema = self._schema(stored, namespace_serializer, compatibility, Expiry(kind, timed, config, clock))
        return Registration(descriptor, namespace_serializer, compatibility, stored, in_use, schema, lifetime)

    def _schema(
        self,
        stored: Descriptor,
        namespace_serializer: TypeSerializer[Any],
        compatibility: StateCompatibility | None,
        expiry: Expiry | None = None,
    ) -> StateSchema:
        namespaces = namespace_serializer if compatibility is None else compatibility.serializers[NAMESPACE_ROLE]
        serializers = {**stored.serializers, NAMESPACE_ROLE: namespaces}
        return StateSchema(meta_of_descriptor(stored, namespaces), serializers, expiry, self.is_bulk)

    def _migration(
        self, table: StateTable, registration: Registration, compatibility: StateCompatibility
    ) -> EntryMigration:
        parameters = self._store.parameters
        assert compatibility.row_plan is not None
        keys = {role: (plan, compatibility.serializers[role]) for role, plan in compatibility.key_plans.items()}
        return EntryMigration(
            parameters.operator_uid,
            table.schema.meta_now(),
            registration.stored,
            compatibility.row_plan,
            self._store.key_serializer,
            parameters.clock(),
            parameters.progress,
            parameters.conversions,
            keys,
        )


def states_measured(
    handles: Mapping[str, Any],
    statistics_of: Callable[[str], StateStatistics],
    sizes: Mapping[str, tuple[int, int]],
) -> dict[str, StateMetrics]:
    """The metrics of all states with measured handles.

    ``sizes`` are, by state, the bytes of all its files in the last snapshot, and of the files it wrote; 0 if missing.
    """
    states = {}
    for name, handle in handles.items():
        if not isinstance(handle, MeasuredHandle):
            continue
        size_bytes, bytes_written = sizes.get(name, (0, 0))
        statistics = statistics_of(name)
        states[name] = StateMetrics(
            reads=handle.reads,
            writes=handle.writes,
            read_latency=handle.read_latency.copy(),
            write_latency=handle.write_latency.copy(),
            cache_misses=statistics.cache_misses,
            entries=statistics.entries,
            entries_are_exact=statistics.entries_are_exact,
            size_bytes=size_bytes,
            bytes_written=bytes_written,
        )
    return states


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

VOID_NAMESPACE_SERIALIZER: Final = VoidNamespaceSerializer()


@final
class KeyedStateBackend:
    """The keyed state of one subtask. ``store`` was restored from the handles of ``parameters``."""

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
        """Whether the restored state was found on the local disk or in the process, without a full restore."""
        return self._store.is_local

    @property
    def restore_reports(self) -> list[StateRestoreReport]:
        """The results for the restored states that were registered."""
        return self._registrations.reports

    def set_current_key(self, key: Any, key_group: int) -> None:
        """Make ``key`` current. Its key group must be in the range; this is checked when an entry is stored.

        For many keys, call `key_setter` once.
        """
        self.key_setter()(key, key_group)

    def key_setter(self, also: Any = None) -> KeySetter:
        """Return a function ``set_key(key, key_group)`` that does the same as `set_current_key`, without look-ups.

        It also sets the attributes ``key`` and ``key_group`` of ``also``. It is valid for the states registered now:
        call this after `open()`, and again after each registration.
        """
        return compile_key_setter(self._context, self.key_serializer, self._record_sweeps, also)

    def access_in_bulk(self) -> None:
        """Prepare the states that are registered from now on for access by `KeyBatch`."""
        self._registrations.is_bulk = True

    def leave_key(self) -> None:
        """Clear the current key: every access to state raises an error until the next `set_current_key`."""
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
        """Return the handle of a state without namespaces, registered on first use.

        Raises `StateRegistrationError` if the name was registered with another descriptor. Raises
        `StateMigrationException`, changing nothing, if the restored state is incompatible.
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
        """Return the handle of a state with namespaces, registered on first use; its current namespace is unchanged.

        Raises as `get_state`. Restored namespaces can be read by a reconfigured serializer, but are never migrated.
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
        """Return the queue of that name, registered on first use; raises as `get_state`.

        The elements of a restored queue can be read by a reconfigured serializer. They are never migrated, because they
        are ordered by their bytes.
        """
        if not isinstance(descriptor, PriorityQueueDescriptor):
            raise StateRegistrationError(
                f"operator {self.parameters.operator_uid!r}: get_priority_queue was given {format_value(descriptor)}; "
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
        """Return the handle of a state, set to a namespace.

        All namespaces share one handle, so it keeps this namespace until the next call with another. Raises as
        `get_state`. Raises `SerializationError`, keeping the namespace, if the new one is None or invalid.
        """
        if namespace is None:
            raise null_namespace(descriptor.name)
        state = self.get_or_create_keyed_state(namespace_serializer, descriptor)
        state.set_current_namespace(namespace)
        return state

    def get_keys(self, name: str, namespace: Any = EVERY_NAMESPACE) -> Iterator[Any]:
        """The keys that have the state of that name, in one namespace or in any, each once, unordered.

        Works for unregistered states too. The cost is a pass over the whole state. Changes during the iteration may or
        may not be visible; `apply_to_all_keys` lists the keys first.
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
        """Call ``function(key, state)`` for every key that has the state in the namespace, with that key current.

        The keys are listed first, so the function may change the state, of any key. Afterwards key and namespace are
        restored. An exception of the function ends the pass and is passed on.
        """
        state = self.get_or_create_keyed_state(namespace_serializer, descriptor)
        self._enumeration.visit(descriptor.name, state, namespace, self._context, self.key_setter(), function)

    def current_meta(self) -> KeyedStateMeta:
        """The current metadata of all states, registered or not, without files."""
        return self._store.meta_now()

    def export_state(self, name: str) -> Iterator[CanonicalBatch]:
        """All entries of a state in canonical form, sorted by key group and key; works for unregistered states too."""
        self.check_open()
        return batches_of(self._store.tables[name].rows())

    def declare_ttl(self, name: str, ttl: StateTtlConfig) -> None:
        """Set the time-to-live of an unregistered state. Files with the whole state then omit expired entries."""
        table = self._store.tables.get(name)
        if table is not None:
            table.schema = table.schema.expiring(ttl, self.parameters.clock)

    def row_filter(self, name: str) -> RowFilter | None:
        """The filter of expired rows for a snapshot that writes the state whole now; None to keep all rows."""
        table = self._store.tables.get(name)
        row_filter: RowFilter | None = None if table is None else table.schema.snapshot_filter()
        return row_filter

    def prepare_snapshot(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        """Freeze the current state, and return the task that writes it: the synchronous part of a snapshot.

        ``state_id`` is unique to this attempt. Later writes, removals and registrations are not in the snapshot.
        Several tasks may run at once, and end in any order. The next snapshot writes the changes that a failed or
        cancelled one did not write.
        """
        self.check_open()
        started = time.monotonic()
        task = self._store.freeze(checkpoint_id, state_id)
        self._last_times = task.times
        self._last_times.synchronous_s = time.monotonic() - started
        self._tasks.add(task)
        return task

    def snapshot(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshot:
        """Run both parts of a snapshot at once."""
        snapshot = self.prepare_snapshot(checkpoint_id, state_id).run()
        self._store.snapshot_written(checkpoint_id)
        return snapshot

    def collect_metrics(self, snapshot: KeyedStateSnapshot | None = None) -> KeyedStateMetrics:
        """Return the metrics since the states were registered; with the last snapshot, also its cost and sizes.

        States are included only if metrics are on. Call it on the backend's thread, before it is closed.
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
        """End the backend, and return its store with the state; the caller then owns it. Raises if it is closed.

        Running snapshots continue. State handles are valid until the store invalidates them.
        """
        self.check_open()
        self._is_closed = True
        return self._store

    def close(self) -> None:
        """Cancel running snapshots and free all resources; may be called twice. State handles become invalid."""
        if not self._is_closed:
            self._is_closed = True
            self._tasks.cancel()
            self._store.close()

    def check_open(self) -> None:
        """Raise `StateBackendClosedError` after `close`."""
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
        """The handle for the user: the handle of the store, wrapped for time-to-live and for metrics."""
        stored: StateDescriptor = registered.stored
        context = self._context_for(stored.name, registered.schema.serializers[NAMESPACE_ROLE])
        if registered.lifetime is None:
            handle = stored.kind.create_handle(table, context, stored)
        else:
            handle = stored.kind.create_handle(table, context, _read_as_pairs(stored))
            timed = stored.kind.timed_handle(handle, registered.lifetime, registered.in_use)
            cleanup = registered.lifetime.cleanup
            if cleanup is not None:
                begin_pass = functools.partial(self._begin_pass, table)
                sweep = ExpirySweep(self._context, timed, begin_pass, cleanup.entries_per_access)
                timed.clean_up_with(sweep)
                if cleanup.for_every_record:
                    self._record_sweeps.append(sweep)
            handle = timed
        metrics = self.parameters.metrics
        return handle if metrics is None else measured_state(handle, stored.kind, metrics)

    def _context_for(self, state_name: str, namespace_serializer: TypeSerializer[Any]) -> AnyKeyContext:
        """The key context for the handle of a state: its own context if it has namespaces."""
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
        return StateRegistrationError(
            f"operator {uid!r}: {format_value(descriptor)} is not a descriptor of keyed state"
        )

    def _begin_pass(self, table: StateTable) -> Pass:
        self.check_open()
        return table.cleanup_pass(pass_start(table.schema, self._context, self.key_serializer))
