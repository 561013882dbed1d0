"""Functions over a stream and a broadcast stream, such as rules, prices or models that every subtask needs.

Every subtask receives all records of the broadcast stream in the same order and keeps them in *broadcast state*. The
copies stay equal because only `process_broadcast_element` may change them. It must derive its changes from the record
and the broadcast state alone. The other input differs between subtasks, so it can only read broadcast state.

    process_element             record, key and its state, timers;   broadcast state read-only
    process_broadcast_element   record, no key, no timers;           broadcast state; state of all keys, one by one
    on_timer                    key and its state, timers;           broadcast state read-only

Every subtask emits the rows of `process_broadcast_element`, so they appear once per subtask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.states import BroadcastState, ReadOnlyBroadcastState
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.functions import (
    CallContext,
    KeyedFunction,
    OnTimerContext,
    ProcessContext,
    RuntimeContext,
    SideOutputs,
    TimeDomain,
    TimerService,
    WorkerLifecycle,
)

__all__ = [
    "BroadcastContext",
    "BroadcastOnTimerContext",
    "BroadcastProcessDefinition",
    "BroadcastProcessFunction",
    "BroadcastStates",
    "KeyedBroadcastContext",
    "KeyedBroadcastProcessFunction",
    "KeyedReadOnlyContext",
    "ReadOnlyContext",
]

K = TypeVar("K")
I = TypeVar("I")  # noqa: E741
B = TypeVar("B")
O = TypeVar("O")  # noqa: E741
UK = TypeVar("UK")
UV = TypeVar("UV")

ApplyToKeyedState = Callable[[StateDescriptor, Callable[[Any, Any], object]], None]


class BroadcastStates(Protocol):
    """The broadcast states of an operator, by descriptor.

    Both methods raise `StateRegistrationError` for a descriptor that neither `DataStream.broadcast` nor `open()`
    registered.
    """

    def writable(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> BroadcastState[UK, UV]:
        """Return a state that may be changed while a record of the broadcast stream is processed."""

    def read_only(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
        """Return a live, read-only view of a state."""


class Time(Protocol):
    """Access to the current time."""

    def current_watermark(self) -> int:
        """The watermark, in milliseconds."""

    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""


class KeyedReadOnlyContext(ProcessContext[K]):
    """The argument of `KeyedBroadcastProcessFunction.process_element`."""

    __slots__ = ("_states",)

    def __init__(
        self, epoch_id: int, side_outputs: SideOutputs, timer_service: TimerService, states: BroadcastStates
    ) -> None:
        super().__init__(epoch_id, side_outputs, timer_service)
        self._states = states

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
        """Return a live, read-only view of a broadcast state."""
        return self._states.read_only(descriptor)


class BroadcastOnTimerContext(OnTimerContext[K]):
    """The argument of `KeyedBroadcastProcessFunction.on_timer`."""

    __slots__ = ("_states",)

    def __init__(
        self,
        epoch_id: int,
        side_outputs: SideOutputs,
        timer_service: TimerService,
        time_domain: TimeDomain,
        states: BroadcastStates,
    ) -> None:
        super().__init__(epoch_id, side_outputs, timer_service, time_domain)
        self._states = states

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
        """Return a live, read-only view of a broadcast state."""
        return self._states.read_only(descriptor)


class _KeylessContext(CallContext):
    """The base of the contexts of calls for records without a key."""

    __slots__ = ("_states", "_time", "timestamp")

    def __init__(self, epoch_id: int, side_outputs: SideOutputs, time: Time, states: BroadcastStates) -> None:
        super().__init__(epoch_id, side_outputs)
        self.timestamp: int | None = None
        """The timestamp of the record in milliseconds, or None if it has none."""
        self._time = time
        self._states = states

    def current_watermark(self) -> int:
        """The watermark of the operator in milliseconds, or -(1 << 63) before the first one."""
        return self._time.current_watermark()

    def current_processing_time(self) -> int:
        """The processing time in milliseconds since 1970. It is constant within an epoch."""
        return self._time.current_processing_time()

    def __getattr__(self, name: str) -> Any:
        if name in ("current_key", "timer_service"):
            raise AttributeError(f"the context of {self._method} has no {name!r}: the record has no key")
        return super().__getattr__(name)


class ReadOnlyContext(_KeylessContext):
    """The argument of `BroadcastProcessFunction.process_element`."""

    __slots__ = ()

    _method = "process_element"

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
        """Return a live, read-only view of a broadcast state."""
        return self._states.read_only(descriptor)


class BroadcastContext(_KeylessContext):
    """The argument of `process_broadcast_element`."""

    __slots__ = ()

    _method = "process_broadcast_element"

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> BroadcastState[UK, UV]:
        """Return a broadcast state to read and change. Every subtask must make the same changes."""
        return self._states.writable(descriptor)


class KeyedBroadcastContext(BroadcastContext):
    """The argument of `KeyedBroadcastProcessFunction.process_broadcast_element`."""

    __slots__ = ("_apply",)

    def __init__(
        self,
        epoch_id: int,
        side_outputs: SideOutputs,
        time: Time,
        states: BroadcastStates,
        apply: ApplyToKeyedState,
    ) -> None:
        super().__init__(epoch_id, side_outputs, time, states)
        self._apply = apply

    def apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], object]) -> None:
        """Call ``function(key, state)`` for each key of this subtask that has the state, with that key current.

        The function may read and change this and other registered state of the key. The order of keys is undefined;
        the call scans the whole state. Results of ``function`` are ignored: to emit records, collect them and yield
        them after the call.
        """
        self._apply(descriptor, function)


class KeyedBroadcastProcessFunction(KeyedFunction[BroadcastOnTimerContext[K], O], Generic[K, I, B, O]):
    """Processes a keyed stream together with a broadcast stream."""

    @abstractmethod
    def process_element(self, value: I, context: KeyedReadOnlyContext[K]) -> Iterable[O] | None:
        """Process a record of the keyed stream, as `KeyedProcessFunction.process_element`."""

    @abstractmethod
    def process_broadcast_element(self, value: B, context: KeyedBroadcastContext) -> Iterable[O] | None:
        """Process a record of the broadcast stream, in every subtask. Keyed state is not accessible: no key is current.

        Returns records as `process_element` does.
        """


class BroadcastProcessFunction(WorkerLifecycle, ABC, Generic[I, B, O]):
    """Processes a stream without keys together with a broadcast stream. It has no keyed state and no timers."""

    def open(self, context: RuntimeContext) -> None:
        """Called before the first record of an epoch, and once on the driver. Keyed state cannot be registered."""

    @abstractmethod
    def process_element(self, value: I, context: ReadOnlyContext) -> Iterable[O] | None:
        """Process a record of the stream that is not broadcast. Returns records as `KeyedProcessFunction` does."""

    @abstractmethod
    def process_broadcast_element(self, value: B, context: BroadcastContext) -> Iterable[O] | None:
        """Process a record of the broadcast stream, in every subtask."""

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""


def _check_function(definition: Any, attribute: Any, function: Any) -> None:
    if not isinstance(function, (KeyedBroadcastProcessFunction, BroadcastProcessFunction)):
        raise JobDefinitionError(
            f"process() of a stream and a broadcast one takes an instance of a KeyedBroadcastProcessFunction or, where "
            f"the stream is not keyed, of a BroadcastProcessFunction, not "
            f"{format_instance(function)}"
        )


def _check_descriptors(definition: Any, attribute: Any, descriptors: tuple[object, ...]) -> None:
    for one in descriptors:
        if not isinstance(one, BroadcastStateDescriptor):
            raise JobDefinitionError(
                f"broadcast() takes a BroadcastStateDescriptor for each state, not {format_value(one, 80)}"
            )


@frozen
class BroadcastProcessDefinition:
    """The settings of a broadcast operator, as a graph node holds them; picklable.

    Input 0 is the stream, keyed if `is_keyed`. Input 1 is the broadcast stream, whose batches have no keys. Raises
    `JobDefinitionError` if the function or a descriptor has the wrong type.
    """

    function: KeyedBroadcastProcessFunction[Any, Any, Any, Any] | BroadcastProcessFunction[Any, Any, Any] = field(
        validator=_check_function
    )
    descriptors: tuple[BroadcastStateDescriptor[Any, Any], ...] = field(
        default=(), converter=tuple, validator=_check_descriptors
    )
    """The states passed to `DataStream.broadcast`. The function may register more in `open()`."""

    @property
    def is_keyed(self) -> bool:
        """Whether the stream that is not broadcast must be keyed."""
        return isinstance(self.function, KeyedBroadcastProcessFunction)

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The function."""
        return (self.function,)
