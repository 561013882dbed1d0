"""Finds the state that a function registers, by running its `open()` without state.

The driver does this before a job starts. It checks the descriptors against the snapshots of a savepoint, and rejects an
incompatible upgrade before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from attrs import evolve, field, frozen

from snapshots.errors import one_line
from statebackend.state.descriptors import Descriptor
from statebackend.state.errors import NoCurrentKeyError, StateRegistrationError
from statebackend.state.key_context import KeySetter
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.operator_state_tables import TABLES
from statebackend.state.priority_queue import TIMER_STATES
from statebackend.state.state_kind import StateDescriptor, StateKind
from statebackend.state.states import State
from statebackend.streaming.errors import JobDefinitionError, UserFunctionError, describe_exception
from statebackend.streaming.functions import KeyedFunction, RuntimeContext, open_function
from statebackend.streaming.operators.keyed_timers import register_timers
from statebackend.streaming.operators.operator import CollectingEmitter
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.operators.subtask_context import PlannedState, planned_state
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.record_serializer import reject_rows, with_rows_of
from statebackend.streaming.time.internal_timer_service import InternalTimerService, TimerKey, timer_queue_descriptors
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from typeserializers.kernel.type_serializer import TypeSerializer

D = TypeVar("D")
N = TypeVar("N")

_NO_QUEUE: Any = None
"""The queue of a timer service. It is never used, because there is no current key."""


def _reject(*_: Any, **__: Any) -> Any:
    raise NoCurrentKeyError("state cannot be read or written in open(): there is no current key yet")


@cache
def _unusable(kind: StateKind) -> type[State]:
    """Return a handle class for this kind of state that rejects every access."""
    handle_class = kind.handle_class
    rejections = {
        name: property(_reject) if isinstance(getattr(handle_class, name), property) else _reject
        for name in handle_class.__abstractmethods__
    }
    return type(f"Unusable{handle_class.__name__}", (handle_class,), rejections)


@frozen
class RegisteredStates:
    """The descriptors that an operator registers, in order."""

    keyed: tuple[StateDescriptor, ...] = ()
    operator: tuple[OperatorStateDescriptor, ...] = ()
    planned: Mapping[str, PlannedState] = field(factory=dict, repr=False)
    """The keyed states that workers must register too, by name."""
    planned_operator_state: Mapping[str, PlannedState] = field(factory=dict, repr=False)
    input_schemas: tuple[DeclaredSchema | None, ...] = (None,)
    """The known schemas of the inputs."""
    namespaces: Mapping[str, TypeSerializer[Any]] = field(factory=dict, repr=False)
    """The serializers of the namespaces of keyed states, by name. A state without one has no namespaces."""
    timers: Mapping[str, TypeSerializer[Any]] = field(factory=dict, repr=False)
    """The timer services by name, each with the serializer of its namespaces."""
    windows_end_in_event_time: bool | None = None
    """Whether its windows end in event time or in processing time. None without windows that end."""

    def namespace(self, name: str) -> TypeSerializer[Any]:
        """Return the serializer of the namespaces of a keyed state."""
        return self.namespaces.get(name, VOID_NAMESPACE_SERIALIZER)


class RegistrationContext(RuntimeContext):
    """Collects registrations.

    Handles of keyed state reject every access, because there is no key. Operator state may be used in `open()`, so its
    handles work as in a subtask without state. Values that are written to them are discarded.
    """

    subtask_index = 0
    epoch_id = -1
    is_restored = False

    def __init__(
        self,
        operator_uid: str,
        parallelism: int,
        input_schemas: Sequence[DeclaredSchema | None] = (None,),
    ) -> None:
        self.input_schemas = tuple(input_schemas)
        """The known schemas of the inputs."""
        self.watermark_ms = MIN_TIMESTAMP
        """No watermark."""
        self.equal_keys_have_equal_bytes = False
        """The types of keys are not known here."""
        self._operator_uid = operator_uid
        self._parallelism = parallelism
        self._keyed: dict[str, StateDescriptor] = {}
        self._operator: dict[str, OperatorStateDescriptor] = {}
        self._operator_states: dict[str, State] = {}
        self._namespaces: dict[str, TypeSerializer[Any]] = {}
        self._timers: dict[str, TypeSerializer[Any]] = {}

    @property
    def registered(self) -> RegisteredStates:
        """The registrations so far."""
        return RegisteredStates(
            tuple(self._keyed.values()),
            tuple(self._operator.values()),
            {name: planned_state(descriptor) for name, descriptor in self._keyed.items()},
            {name: planned_state(descriptor) for name, descriptor in self._operator.items()},
            self.input_schemas,
            dict(self._namespaces),
            dict(self._timers),
        )

    @property
    def operator_uid(self) -> str:
        return self._operator_uid

    @property
    def parallelism(self) -> int:
        return self._parallelism

    def register(
        self, descriptor: StateDescriptor, namespace_serializer: TypeSerializer[Any] = VOID_NAMESPACE_SERIALIZER
    ) -> State:
        if not isinstance(descriptor.kind, StateKind):
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {self._operator_uid!r} is a {descriptor.kind.name}, which a "
                f"function cannot register"
            )
        if descriptor.name.startswith(TIMER_STATES):
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {self._operator_uid!r} has a name that is reserved for timers; "
                f"give it another name, and rename it in savepoints: "
                f"Plan().rename_state (statebackend.savepoint.rewrite)"
            )
        descriptor = with_rows_of(descriptor, self.input_schemas, self._operator_uid)
        self._remember(self._keyed, descriptor.name, descriptor)
        self._namespaces[descriptor.name] = namespace_serializer
        return _unusable(descriptor.kind)()

    def internal_timer_service(self, name: str, namespace_serializer: TypeSerializer[N]) -> InternalTimerService[N]:
        """Return a service without a key, so that no timer can be registered."""
        self._timers[name] = namespace_serializer
        return InternalTimerService(_NO_QUEUE, _NO_QUEUE, TimerKey(), self.clock)

    def access_in_bulk(self) -> None:
        """Do nothing: there is no state."""

    def clock(self) -> int:
        """Return 0: the processing time is not known yet."""
        return 0

    def key_setter(self) -> KeySetter:
        """Return a function that is never called."""
        return _reject

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        reject_rows(descriptor, self._operator_uid)
        self._remember(self._operator, descriptor.name, descriptor)
        if descriptor.name not in self._operator_states:
            table = TABLES[descriptor.mode](descriptor.name, descriptor.serializers)
            self._operator_states[descriptor.name] = cast(State, table)
        return self._operator_states[descriptor.name]

    def _remember(self, registered: dict[str, D], name: str, descriptor: D) -> None:
        if registered.setdefault(name, descriptor) != descriptor:
            raise StateRegistrationError(
                f"state {name!r} of operator {self._operator_uid!r} is registered twice, "
                f"with different descriptors; give one of them another name"
            )


def registered_states(
    function: Any,
    operator_uid: str,
    parallelism: int,
    input_schemas: Sequence[DeclaredSchema | None] = (None,),
) -> RegisteredStates:
    """Return the descriptors that a function registers in `open()`. Pass a copy of the user's function.

    ``input_schemas`` are the schemas of its inputs, None if unknown.
    """
    context = RegistrationContext(operator_uid, parallelism, input_schemas=input_schemas)
    try:
        if isinstance(function, KeyedFunction):
            open_function(function, context)
            register_timers(function, context)
            function.close()
        else:
            operator = operator_factory(function)(function, operator_uid)
            operator.open(cast(Any, context), CollectingEmitter())
            operator.close()
    except (NoCurrentKeyError, JobDefinitionError):
        raise
    except StateRegistrationError as error:
        if repr(operator_uid) in str(error):
            raise
        kind = type(function).__name__
        raise StateRegistrationError(f"operator {operator_uid!r} ({kind}): {one_line(str(error))}") from error
    except Exception as error:
        raise UserFunctionError(
            f"open() of operator {operator_uid!r} failed on the driver, where it runs once to learn which state "
            f"it registers: {describe_exception(error)}"
        ) from error
    return evolve(context.registered, windows_end_in_event_time=getattr(function, "ends_in_event_time", None))


def keyed_descriptors(registered: RegisteredStates, key_serializer: TypeSerializer[Any]) -> Sequence[Descriptor]:
    """Return all registered keyed state: the state of the function and the queues of its timers."""
    timers = registered.timers.items()
    queues = (timer_queue_descriptors(name, key_serializer, namespace) for name, namespace in timers)
    return [*registered.keyed, *(queue for both in queues for queue in both)]
