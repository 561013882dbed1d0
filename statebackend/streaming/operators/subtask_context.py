"""The runtime contexts of subtasks: they register a function's state with the backends.

Every worker must register the states that `open()` registered on the driver. The compatibility check of a start covers
the serializers on the driver. A worker runs `open()` again. With another version of a module, or a descriptor that
depends on the host, it would write with an unchecked schema. So the driver sends the snapshots of its serializers to
the workers, which compare their own serializers in `open()`, before the first record. A serializer that learns from the
values it writes may differ if it reads and writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from attrs import frozen

from snapshots.compatibility import CompatibilityKind
from snapshots.envelope import snapshot_from_bytes, snapshot_to_bytes
from snapshots.type_serializer_snapshot import resolve_compatibility
from statebackend.state.errors import StateRegistrationError
from statebackend.state.internal_states import InternalState
from statebackend.state.key_context import KeySetter
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER, KeyedStateBackend
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.state_compatibility import check_state
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.state_meta import StateMeta
from statebackend.state.states import State
from statebackend.streaming.functions import RuntimeContext
from statebackend.streaming.operators.subtask_backends import SubtaskBackends
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.record_serializer import with_rows_of
from statebackend.streaming.time.internal_timer_service import InternalTimerService, TimerKey, timer_queue_descriptors
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["PlannedState", "SubtaskContext", "check_is_as_planned", "planned_state"]


N = TypeVar("N")


class SubtaskContext(RuntimeContext):
    """The runtime context of a subtask that has state.

    ``planned`` and ``planned_operator_state`` are the states that `open()` registered on the driver. All subtasks must
    restore the same states in the same epoch. Otherwise one state would have two schemas, and could not be restored
    with another parallelism. Therefore:

    - A restored state changes its schema only if it is planned.
    - Every subtask must register all planned states in `open()`.
    - A restored state with an unchanged schema may be registered at any time.
    - A new state must be planned. Otherwise the next start would reject it as state that no function registers.
    """

    def __init__(
        self,
        backends: SubtaskBackends,
        operator_uid: str,
        subtask_index: int,
        parallelism: int,
        epoch_id: int,
        *,
        is_restored: bool,
        planned: Mapping[str, PlannedState],
        planned_operator_state: Mapping[str, PlannedState],
        input_schemas: Sequence[DeclaredSchema | None] = (None,),
        watermark_ms: int = MIN_TIMESTAMP,
    ) -> None:
        self.input_schemas = tuple(input_schemas)
        """The schema of the rows of each input, if known."""
        self.keyed: KeyedStateBackend = backends.keyed
        """The backend of the subtask's keyed state."""
        self.equal_keys_have_equal_bytes = self.keyed.key_serializer.equal_values_have_equal_bytes
        """Whether keys that are equal in Python are the same key in state."""
        self._backends = backends
        self._planned = planned
        self._planned_operator_state = planned_operator_state
        self._registered: set[str] = set()
        self._is_restored = is_restored
        self._operator_uid = operator_uid
        self._subtask_index = subtask_index
        self._parallelism = parallelism
        self._epoch_id = epoch_id
        self._watermark_ms = watermark_ms
        self._current = TimerKey()
        self._timer_services: dict[str, InternalTimerService[Any]] = {}

    @property
    def operator_uid(self) -> str:
        return self._operator_uid

    @property
    def subtask_index(self) -> int:
        return self._subtask_index

    @property
    def parallelism(self) -> int:
        return self._parallelism

    @property
    def epoch_id(self) -> int:
        return self._epoch_id

    def begin_epoch(self, epoch_id: int) -> None:
        """Start the next epoch; the subtask stays open."""
        self._epoch_id = epoch_id
        self._is_restored = False

    @property
    def is_restored(self) -> bool:
        return self._is_restored

    @property
    def watermark_ms(self) -> int:
        """The initial watermark of timers in milliseconds, or `MIN_TIMESTAMP`."""
        return self._watermark_ms

    @property
    def clock(self) -> Callable[[], int]:
        """A function that returns the processing time, in milliseconds since 1970."""
        return self.keyed.parameters.clock

    def register(
        self, descriptor: StateDescriptor, namespace_serializer: TypeSerializer[Any] = VOID_NAMESPACE_SERIALIZER
    ) -> InternalState:
        """Return the handle of a keyed state. With a namespace serializer, the handle has a current namespace."""
        descriptor = with_rows_of(descriptor, self.input_schemas, self._operator_uid)
        name = descriptor.name
        if name in self._registered:
            pass
        elif name in self._planned:
            check_is_as_planned(self._planned[name], descriptor, self._operator_uid, self._subtask_index)
        else:
            self._check_is_stored_alike(descriptor, namespace_serializer)
        state: InternalState = self.keyed.get_or_create_keyed_state(namespace_serializer, descriptor)
        self._registered.add(name)
        return state

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        name = descriptor.name
        if name in self._planned_operator_state:
            planned = self._planned_operator_state[name]
            check_is_as_planned(planned, descriptor, self._operator_uid, self._subtask_index)
        elif name not in self._backends.operator_state_names:
            raise self._not_registered_on_the_driver("operator state", name)
        return self._backends.register_operator_state(descriptor)

    def internal_timer_service(self, name: str, namespace_serializer: TypeSerializer[N]) -> InternalTimerService[N]:
        """Return the timer service with this name. Its timers are part of the keyed state."""
        service = self._timer_services.get(name)
        if service is None:
            descriptors = timer_queue_descriptors(name, self.keyed.key_serializer, namespace_serializer)
            event_time, processing_time = (self.keyed.get_priority_queue(one) for one in descriptors)
            clock = self.keyed.parameters.clock
            service = InternalTimerService(event_time, processing_time, self._current, clock, self._watermark_ms)
            self._timer_services[name] = service
        return service

    def access_in_bulk(self) -> None:
        """Prepare the states that are registered from now on for access by `KeyBatch`."""
        self.keyed.access_in_bulk()

    @property
    def timer_services(self) -> Collection[InternalTimerService[Any]]:
        """The timer services of the operator, for the caller that advances time."""
        return self._timer_services.values()

    def key_setter(self) -> KeySetter:
        """Return a function that sets the current key and key group. Call it after all registrations."""
        return self.keyed.key_setter(self._current if self._timer_services else None)

    def leave_key(self) -> None:
        """Unset the current key. Keyed state and timers then reject every access."""
        self.keyed.leave_key()
        self._current.leave()

    def check_planned_are_registered(self) -> None:
        """Raise `StateRegistrationError` if `open()` did not register a restored state as it did on the driver."""
        missing = self._planned.keys() - self._registered if self._is_restored else ()
        left_out = [state.name for state in self.keyed.current_meta().states if state.name in missing]
        if left_out:
            raise StateRegistrationError(
                f"operator {self._operator_uid!r}: open() registered {', '.join(map(repr, left_out))} on the driver, "
                f"but not in subtask {self._subtask_index}; register the same states in every subtask"
            )

    def _not_registered_on_the_driver(self, what: str, name: str) -> StateRegistrationError:
        return StateRegistrationError(
            f"operator {self._operator_uid!r}: {what} {name!r} is new, but open() did not register it on the driver, "
            f"so the next start would reject its content; register it in open() in every subtask, whether or not "
            f"is_restored is True"
        )

    def _check_is_stored_alike(self, descriptor: StateDescriptor, namespace_serializer: TypeSerializer[Any]) -> None:
        stored = self.keyed.current_meta().state(descriptor.name)
        if stored is None:
            raise self._not_registered_on_the_driver("state", descriptor.name)
        compatibility = check_state(stored, descriptor, namespace_serializer)
        if compatibility.kind is CompatibilityKind.INCOMPATIBLE:
            # The backend rejects it with a reason.
            return
        snapshots = {
            role: serializer.snapshot_configuration() for role, serializer in compatibility.serializers.items()
        }
        namespace_snapshot = snapshots.pop("namespace", stored.namespace_snapshot)
        if not StateMeta.of_one_schema(stored.name, stored.kind, namespace_snapshot, snapshots).has_schema_of(stored):
            raise StateRegistrationError(
                f"operator {self._operator_uid!r}: the schema of state {descriptor.name!r} has changed, but open() "
                f"did not register it on the driver; register it in open(), so that all subtasks migrate it together"
            )


@frozen
class PlannedState:
    """The kind of a state, and the snapshots of its serializers by role, each in its envelope."""

    kind: str
    snapshots: Mapping[str, bytes]


def planned_state(descriptor: StateDescriptor | OperatorStateDescriptor) -> PlannedState:
    """Return the current state of a descriptor. Serializers may later learn from values."""
    return PlannedState(
        _kind_of(descriptor),
        {
            role: snapshot_to_bytes(serializer.snapshot_configuration())
            for role, serializer in descriptor.serializers.items()
        },
    )


def check_is_as_planned(
    planned: PlannedState, descriptor: StateDescriptor | OperatorStateDescriptor, operator_uid: str, subtask_index: int
) -> None:
    """Raise `StateRegistrationError` if a worker's descriptor differs from the driver's."""
    where = f"operator {operator_uid!r}: subtask {subtask_index} registers state {descriptor.name!r}"
    if _kind_of(descriptor) != planned.kind:
        raise StateRegistrationError(
            f"{where} as {_kind_of(descriptor)} state, but open() on the driver as {planned.kind} state: {_ADVICE}"
        )
    for role, serializer in descriptor.serializers.items():
        if snapshot_to_bytes(serializer.snapshot_configuration()) == planned.snapshots[role]:
            continue
        compatibility = resolve_compatibility(snapshot_from_bytes(planned.snapshots[role]), serializer)
        if compatibility.kind not in _SAME_BYTES:
            reason = "; ".join(map(str, compatibility.issues)) or compatibility.kind.label
            raise StateRegistrationError(
                f"{where} with the {role} serializer {type(serializer).__name__}, but open() on the driver with "
                f"another one ({reason}): {_ADVICE}"
            )


_SAME_BYTES = (CompatibilityKind.AS_IS, CompatibilityKind.WITH_RECONFIGURED_SERIALIZER)

_ADVICE = (
    "give all workers the modules of the driver, in one version (spark.sparkContext.addPyFile(...) or spark-submit "
    "--py-files), and let open() make the same descriptors in every process"
)


def _kind_of(descriptor: StateDescriptor | OperatorStateDescriptor) -> str:
    return descriptor.kind.name if isinstance(descriptor, StateDescriptor) else descriptor.mode.value
