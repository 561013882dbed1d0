"""The contract of a keyed state backend: where the state of one subtask lives between two barriers.

A backend is made for one subtask: one operator, one range of key groups, one key serializer. It is filled from the
handles of an earlier snapshot, hands out state handles by descriptor, and gives a snapshot at every barrier. It belongs
to one thread; only the tasks that `prepare_snapshot` makes may run on others. State is addressed by key and namespace;
what a user's function registers has the one void namespace.

The life of a restored state is the same in every backend: its bytes stay as they were written until a descriptor of its
name is registered; then the verdict is taken, and a migration, if one is needed, runs over the whole state before the
first access. A state that nobody registers keeps its bytes and its old snapshots and travels on.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar, overload

from attrs import frozen

from snapshots.compatibility import CompatibilityKind
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from snapshots.value_text import shown
from statebackend.api.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from statebackend.api.errors import StateBackendClosedError, StateMigrationException, StateRegistrationError
from statebackend.api.key_groups import KeyGroupRange
from statebackend.api.priority_queue import KeyGroupedPriorityQueue
from statebackend.api.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from statebackend.canonical.canonical_entries import CanonicalBatch
from statebackend.keyed.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    KeyedStateSnapshotTask,
    RestoredHandle,
    StateRestoreReport,
)
from statebackend.keyed.key_context import (
    NO_KEY,
    AnyKeyContext,
    KeySetter,
    NamespacedKeyContext,
    compile_key_setter,
    has_namespaces,
)
from statebackend.keyed.key_enumeration import null_namespace
from statebackend.keyed.schema_resolution import (
    StateVerdict,
    incompatibility_message,
    judge_key_serializer,
    judge_state,
)
from statebackend.keyed.snapshot_task import SnapshotTasks, SnapshotTimes
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta
from statebackend.kinds.internal_states import (
    InternalAggregatingState,
    InternalListState,
    InternalMapState,
    InternalReducingState,
    InternalState,
    InternalValueState,
)
from statebackend.metrics.collection import states_measured
from statebackend.metrics.measured_states import measured
from statebackend.metrics.state_metrics import (
    KeyedStateMetrics,
    SnapshotMetrics,
    StateStatistics,
)
from statebackend.ttl.expiring_states import ExpiringStates
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

VOID_NAMESPACE_SERIALIZER = VoidNamespaceSerializer()


@frozen
class _Registration:
    """A registered state, with what it was registered under."""

    namespace_serializer: TypeSerializer[Any]
    descriptor: StateDescriptor
    state: Any


class KeyedStateBackend(ExpiringStates):
    """The state of one subtask; see the module."""

    def __init__(self, parameters: KeyedStateBackendParameters) -> None:
        super().__init__(parameters)
        self.key_group_range = parameters.key_group_range
        self.restore_reports: list[StateRestoreReport] = []
        self._registered: dict[str, _Registration] = {}
        self._tasks: SnapshotTasks[KeyedStateSnapshot] = SnapshotTasks()
        self._closed = False
        self._last_times = SnapshotTimes()

    @property
    def is_local(self) -> bool:
        """Whether what it continues from was here already, on the local disk or in the process: no full restore."""
        return False

    @abstractmethod
    def restored_meta(self) -> KeyedStateMeta | None:
        """What was restored, or None for a fresh start."""

    def create_priority_queue(
        self, descriptor: PriorityQueueDescriptor[T], restored: StateMeta | None
    ) -> KeyGroupedPriorityQueue[T]:
        """Makes a queue over what was restored, which is taken over as it is: elements are never migrated.

        A queue is a state like any other in snapshots, exports and `current_meta`: of the kind "priority_queue", with
        the void namespace, and a row per element that has the element's bytes in the place of the key and an empty
        value. What orders a queue and merges it with its changes is in `statebackend.queues.paged_priority_queue`: a
        backend gives it pages of stored elements, and writes out what it drains.
        """
        raise StateRegistrationError(
            f"state {descriptor.name!r}: the backend of operator {self.parameters.operator_uid!r} keeps no priority "
            f"queues; use another backend"
        )

    @abstractmethod
    def create_snapshot_task(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        """Freezes the state as it is now, and returns the task that writes what changed since the last snapshot.

        What cannot be left to another thread is done here. A backend that leaves nothing returns a
        `SynchronousSnapshotTask` of what it has written.
        """

    @abstractmethod
    def export_state(self, name: str) -> Iterator[CanonicalBatch]:
        """All entries of a state in canonical form, sorted by key group and key; works for unregistered states too."""

    @abstractmethod
    def free(self) -> None:
        """Frees everything; called once, by `close`, possibly in the middle of `__init__`. Kills the state handles."""

    def prepare_snapshot(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        """The synchronous part of a snapshot: freezes the state as it is now, and returns the task that writes it.

        ``state_id`` is unique to this attempt. What is written, removed or registered afterwards is not in the
        snapshot. Several tasks may be under way at once, and end in any order; what a failed or cancelled one did not
        write, the next one writes.
        """
        self.check_open()
        started = time.monotonic()
        task = self.create_snapshot_task(checkpoint_id, state_id)
        self._last_times = task.times
        self._last_times.synchronous_s = time.monotonic() - started
        self._tasks.add(task)
        return task

    def snapshot(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshot:
        """Both parts of a snapshot at once."""
        return self.prepare_snapshot(checkpoint_id, state_id).run()

    def state_statistics(self, name: str) -> StateStatistics:
        """What the backend itself knows of a registered state, for its metrics; nothing unless a backend says more.

        Called at most once per snapshot, where metrics are on; should cost little, whatever the size of the state.
        """
        return StateStatistics()

    def collect_metrics(self, snapshot: KeyedStateSnapshot | None = None) -> KeyedStateMetrics:
        """What was counted since the states were registered; with the last snapshot, what that wrote, and sizes.

        No state is in it if metrics are off. To be called on the backend's thread, before it is closed.
        """
        handles = {name: known.state for name, known in self._registered.items()}
        if snapshot is None:
            return KeyedStateMetrics(states_measured(handles, self.state_statistics, None))
        costs = SnapshotMetrics(
            snapshots=1,
            entries_written=snapshot.entries_written,
            bytes_written=snapshot.bytes_written,
            synchronous_s=self._last_times.synchronous_s,
            asynchronous_s=self._last_times.asynchronous_s,
        )
        return KeyedStateMetrics(states_measured(handles, self.state_statistics, snapshot.handle), costs)

    def close(self) -> None:
        """Cancels the snapshots under way and frees everything; may be called twice. State handles are dead then."""
        if not self._closed:
            self._closed = True
            self._tasks.cancel()
            self.free()

    def set_current_key(self, key: Any, key_group: int) -> None:
        """Makes ``key`` current; its group must be in the range, which is checked where an entry is stored.

        For many keys, ask for `key_setter` once.
        """
        self.key_setter()(key, key_group)

    def key_setter(self) -> KeySetter:
        """A function ``set_key(key, key_group)`` that does what `set_current_key` does, without looking anything up.

        It is made for the states that are registered now: ask for it after `open()`, and anew after a registration.
        """
        return compile_key_setter(self.context, self.key_serializer, self._record_sweeps.values())

    def leave_key(self) -> None:
        """Makes no key current: every access to state is an error until the next `set_current_key`."""
        self.context.key = NO_KEY
        self.context.key_group = -1

    def may_refer_to(self, restored: RestoredHandle, own_format: str) -> bool:
        """Whether snapshots may go on referring to the files of a restored handle.

        They may if the files are in the backend's own format, which has the backend's name, hold the keys of this
        subtask alone, and are in its store. Otherwise the first snapshot must write a base of its own.
        """
        handle = restored.handle
        return (
            handle.backend == own_format
            and KeyGroupRange(handle.key_group_start, handle.key_group_end) == self.key_group_range
            and restored.file_system.uri == self.parameters.file_system.uri
        )

    def take_over_keys(self, restored_snapshot: TypeSerializerSnapshot[Any]) -> None:
        """Judges the key serializer over restored state, and switches to its reconfigured form where there is one.

        To be called before anything is restored. Raises `StateMigrationException` if the keys were written by
        another serializer, or would have to be migrated: key groups and stored addresses depend on their bytes.
        """
        verdict = judge_key_serializer(restored_snapshot, self.key_serializer)
        if verdict.kind is CompatibilityKind.INCOMPATIBLE:
            raise StateMigrationException(incompatibility_message(self.parameters.operator_uid, [verdict]))
        self.key_serializer = verdict.serializers["key"]
        self._key_is_its_own_entry_key = self.key_serializer.equal_values_have_equal_bytes

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
        if descriptor.kind is StateKind.PRIORITY_QUEUE:
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {self.parameters.operator_uid!r} is a priority queue, which "
                f"has no current key; register it with get_priority_queue"
            )
        state: InternalState = self._registered_state(namespace_serializer, descriptor)
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
        queue: KeyGroupedPriorityQueue[T] = self._registered_state(VOID_NAMESPACE_SERIALIZER, descriptor)
        return queue

    def _registered_state(self, namespace_serializer: TypeSerializer[Any], descriptor: StateDescriptor) -> Any:
        self.check_open()
        known = self._registered.get(descriptor.name)
        if known is None:
            self._check_namespace_serializer(namespace_serializer, descriptor)
            state = self._register(descriptor, namespace_serializer)
            if self.parameters.metrics is not None:
                state = measured(state, descriptor, self.parameters.metrics)
            known = _Registration(namespace_serializer, descriptor, state)
            self._registered[descriptor.name] = known
        elif known.descriptor != descriptor or known.namespace_serializer != namespace_serializer:
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {self.parameters.operator_uid!r} is registered twice, "
                f"with different descriptors or namespaces; give one of them another name"
            )
        return known.state

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

    def key_context_for(self, state_name: str, namespace_serializer: TypeSerializer[Any]) -> AnyKeyContext:
        """What the handle of a state sees of the current key: its own context if it has namespaces."""
        if not has_namespaces(namespace_serializer):
            return self.context
        return NamespacedKeyContext(self.context, namespace_serializer, state_name)

    def _check_namespace_serializer(self, serializer: Any, descriptor: StateDescriptor) -> None:
        if not isinstance(serializer, TypeSerializer):
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {self.parameters.operator_uid!r} needs a serializer of its "
                f"namespaces, not {shown(serializer)}"
            )

    def _register(self, descriptor: StateDescriptor, namespace_serializer: TypeSerializer[Any]) -> Any:
        meta = self.restored_meta()
        restored = meta.state(descriptor.name) if meta is not None else None
        if restored is None:
            return self._create(descriptor, namespace_serializer, None, None)[0]
        verdict = judge_state(restored, descriptor, namespace_serializer)
        if verdict.kind is CompatibilityKind.INCOMPATIBLE:
            raise StateMigrationException(incompatibility_message(self.parameters.operator_uid, [verdict]))
        started = time.monotonic()
        if descriptor.ttl is None:
            descriptor = descriptor.with_serializers(verdict.serializers)
        state, entries = self._create(descriptor, verdict.serializers["namespace"], restored, verdict)
        self.restore_reports.append(StateRestoreReport(descriptor.name, verdict, entries, time.monotonic() - started))
        return state

    def _create(
        self,
        descriptor: StateDescriptor,
        namespace_serializer: TypeSerializer[Any],
        restored: StateMeta | None,
        verdict: StateVerdict | None,
    ) -> tuple[Any, int]:
        if isinstance(descriptor, PriorityQueueDescriptor):
            return self.create_priority_queue(descriptor, restored), 0
        if descriptor.ttl is not None:
            return self.create_with_ttl(descriptor, namespace_serializer, restored, verdict)
        self.declare_ttl(descriptor.name, None)
        return self.create_state(descriptor, namespace_serializer, restored, verdict)

    def check_open(self) -> None:
        """Raises `StateBackendClosedError` after `close`."""
        if self._closed:
            raise StateBackendClosedError(
                f"the state of operator {self.parameters.operator_uid!r} is closed; "
                f"state handles live for one epoch and are made anew in open()"
            )

    def __enter__(self) -> KeyedStateBackend:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
