"""The state that a function registers, found by running its `open()` without state.

The driver does this before a job starts. With the descriptors it resolves the compatibility of a savepoint's snapshots,
and rejects an incompatible upgrade before anything is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from attrs import field, frozen

from statebackend.state.descriptors import Descriptor
from statebackend.state.errors import NoCurrentKeyError, StateRegistrationError
from statebackend.state.key_context import KeySetter
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.operator_state_tables import TABLES
from statebackend.state.priority_queue import TIMER_STATES
from statebackend.state.state_kind import StateDescriptor, StateKind
from statebackend.state.states import State
from statebackend.streaming.errors import JobDefinitionError, UserFunctionError, describe_exception, one_line
from statebackend.streaming.functions import KeyedFunction, RuntimeContext, open_function
from statebackend.streaming.operators.keyed_timers import register_timers
from statebackend.streaming.operators.operator import CollectingEmitter
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.operators.planned_states import PlannedState, planned_state
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.time.internal_timer_service import InternalTimerService, TimerKey, timer_queue_descriptors
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from typeserializers.kernel.type_serializer import TypeSerializer

D = TypeVar("D")
N = TypeVar("N")

_NO_QUEUE: Any = None
"""What a service has that never gets as far as its queue, because no key is ever current."""


def _reject(*_: Any, **__: Any) -> Any:
    raise NoCurrentKeyError("state cannot be read or written in open(): there is no current key yet")


@cache
def _unusable(kind: StateKind) -> type[State]:
    """The handle of a kind that rejects every access."""
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
    """What workers are told of the keyed states, by name: that they register the same is checked there."""
    planned_operator_state: Mapping[str, PlannedState] = field(factory=dict, repr=False)
    input_schemas: tuple[DeclaredSchema | None, ...] = (None,)
    """What is known of the records of each input."""
    namespaces: Mapping[str, TypeSerializer[Any]] = field(factory=dict, repr=False)
    """The serializers of the namespaces of keyed states, by name; without one there are none."""
    timers: Mapping[str, TypeSerializer[Any]] = field(factory=dict, repr=False)
    """The timer services by name, each with the serializer of its namespaces."""

    def namespace(self, name: str) -> TypeSerializer[Any]:
        """The serializer of the namespaces of a keyed state."""
        return self.namespaces.get(name, VOID_NAMESPACE_SERIALIZER)


class RegistrationContext(RuntimeContext):
    """Remembers what is registered.

    Handles of keyed state reject to be used, since there is no key. Operator state may be used in `open()`, so its
    handles work: they are those of a subtask that has none yet, and what is written to them is kept by nobody.
    """

    def __init__(
        self,
        operator_uid: str,
        parallelism: int,
        epoch_id: int = -1,
        input_schemas: Sequence[DeclaredSchema | None] = (None,),
    ) -> None:
        self.input_schemas = tuple(input_schemas)
        """What is known of the records of each input."""
        self.watermark_ms = MIN_TIMESTAMP
        """The watermark: there is none."""
        self._operator_uid = operator_uid
        self._parallelism = parallelism
        self._epoch_id = epoch_id
        self._keyed: dict[str, StateDescriptor] = {}
        self._operator: dict[str, OperatorStateDescriptor] = {}
        self._operator_states: dict[str, State] = {}
        self._namespaces: dict[str, TypeSerializer[Any]] = {}
        self._timers: dict[str, TypeSerializer[Any]] = {}

    @property
    def registered(self) -> RegisteredStates:
        """What has been registered so far."""
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
    def subtask_index(self) -> int:
        return 0

    @property
    def parallelism(self) -> int:
        return self._parallelism

    @property
    def epoch_id(self) -> int:
        return self._epoch_id

    @property
    def is_restored(self) -> bool:
        return False

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
                f"state {descriptor.name!r} of operator {self._operator_uid!r} has a name that only timers have; "
                f"give it another one, in a savepoint that has it too: "
                f"Plan().rename_state (statebackend.savepoint.rewrite)"
            )
        self._remember(self._keyed, descriptor.name, descriptor)
        self._namespaces[descriptor.name] = namespace_serializer
        return _unusable(descriptor.kind)()

    def internal_timer_service(self, name: str, namespace_serializer: TypeSerializer[N]) -> InternalTimerService[N]:
        """Timers without a key for which one could be registered."""
        self._timers[name] = namespace_serializer
        return InternalTimerService(_NO_QUEUE, _NO_QUEUE, TimerKey(), self.clock)

    def clock(self) -> int:
        """The processing time, which is not known yet."""
        return 0

    def key_setter(self) -> KeySetter:
        """A function that is never called."""
        return _reject

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
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
    """The descriptors that the function of a node registers when it is opened; it must be a copy of the user's.

    ``input_schemas`` are those of the rows of its inputs, None where they are not known.
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
    return context.registered


def keyed_descriptors(registered: RegisteredStates, key_serializer: TypeSerializer[Any]) -> Sequence[Descriptor]:
    """All keyed state that is registered: what the function registers, and the queues of its timers."""
    timers = registered.timers.items()
    queues = (timer_queue_descriptors(name, key_serializer, namespace) for name, namespace in timers)
    return [*registered.keyed, *(queue for both in queues for queue in both)]
