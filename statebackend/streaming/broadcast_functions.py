"""Functions over a stream and one that is broadcast: rules, prices, models that every subtask knows.

Each record of the broadcast stream goes to every subtask, in one order. What is made of it is kept in *broadcast
state*, of which every subtask has a copy; the copies stay equal because only `process_broadcast_element` may change
them, and it sees the same records everywhere. The other side reads them only: its records differ between subtasks. For
the same reason what `process_broadcast_element` does must follow from the record and the broadcast state alone.

    process_element             record, key and its state, timers;   broadcast state read-only
    process_broadcast_element   record, no key, no timers;           broadcast state; state of all keys, one by one
    on_timer                    key and its state, timers;           broadcast state read-only

Rows that `process_broadcast_element` emits come from every subtask: once for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from attrs import field, frozen

from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.states import BroadcastState, ReadOnlyBroadcastState
from statebackend.streaming.errors import JobDefinitionError, format_value, shown_instance
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

    Both raise `StateRegistrationError` for one that is neither named at `DataStream.broadcast` nor registered in
    `open()`.
    """

    def writable(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> BroadcastState[UK, UV]:
        """A state that may be changed while a record of the broadcast stream is processed."""

    def read_only(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
        """A live view of a state."""


class Time(Protocol):
    """What the time is read from."""

    def current_watermark(self) -> int:
        """The watermark, in milliseconds."""

    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""


class KeyedReadOnlyContext(ProcessContext[K]):
    """What every call of `KeyedBroadcastProcessFunction.process_element` is given."""

    __slots__ = ("_states",)

    def __init__(
        self, epoch_id: int, side_outputs: SideOutputs, timer_service: TimerService, states: BroadcastStates
    ) -> None:
        super().__init__(epoch_id, side_outputs, timer_service)
        self._states = states

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
        """A live view of that broadcast state; to change it is an error."""
        return self._states.read_only(descriptor)


class BroadcastOnTimerContext(OnTimerContext[K]):
    """What every call of `KeyedBroadcastProcessFunction.on_timer` is given."""

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
        """A live view of that broadcast state; to change it is an error."""
        return self._states.read_only(descriptor)


class _KeylessContext(CallContext):
    """What the calls for records without a key have in common."""

    __slots__ = ("_states", "_time", "timestamp")

    def __init__(self, epoch_id: int, side_outputs: SideOutputs, time: Time, states: BroadcastStates) -> None:
        super().__init__(epoch_id, side_outputs)
        self.timestamp: int | None = None
        """The timestamp of the record in milliseconds, or None if it has none."""
        self._time = time
        self._states = states

    def current_watermark(self) -> int:
        """The watermark of the operator, in milliseconds; -(1 << 63) before the first."""
        return self._time.current_watermark()

    def current_processing_time(self) -> int:
        """The processing time in milliseconds since 1970, which stands still in an epoch."""
        return self._time.current_processing_time()

    def __getattr__(self, name: str) -> Any:
        if name in ("current_key", "timer_service"):
            raise AttributeError(f"the context of {self._method} has no {name!r}: the record has no key")
        return super().__getattr__(name)


class ReadOnlyContext(_KeylessContext):
    """What every call of `BroadcastProcessFunction.process_element` is given."""

    __slots__ = ()

    _method = "process_element"

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> ReadOnlyBroadcastState[UK, UV]:
        """A live view of that broadcast state; to change it is an error."""
        return self._states.read_only(descriptor)


class BroadcastContext(_KeylessContext):
    """What every call of `process_broadcast_element` is given."""

    __slots__ = ()

    _method = "process_broadcast_element"

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[UK, UV]) -> BroadcastState[UK, UV]:
        """That broadcast state, to read and to change; every subtask must change it alike."""
        return self._states.writable(descriptor)


class KeyedBroadcastContext(BroadcastContext):
    """What every call of `KeyedBroadcastProcessFunction.process_broadcast_element` is given."""

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
        """Calls ``function(key, state)`` for each key of this subtask that has that state, with the key current.

        It may read and change the state of that key, also other state that was registered in `open()`. The order of
        the keys is not defined. Costs a pass over the whole state. What it returns is ignored: to emit something,
        collect it, and yield it when the call is back.
        """
        self._apply(descriptor, function)


class KeyedBroadcastProcessFunction(KeyedFunction[BroadcastOnTimerContext[K], O], Generic[K, I, B, O]):
    """Processes a keyed stream by what a broadcast one says: see the module."""

    @abstractmethod
    def process_element(self, value: I, context: KeyedReadOnlyContext[K]) -> Iterable[O] | None:
        """Called for every record of the keyed stream, as `KeyedProcessFunction.process_element`."""

    @abstractmethod
    def process_broadcast_element(self, value: B, context: KeyedBroadcastContext) -> Iterable[O] | None:
        """Called in every subtask for every record of the broadcast stream; no key is current, and keyed state rejects.

        What it gives is as that of `process_element`.
        """


class BroadcastProcessFunction(WorkerLifecycle, ABC, Generic[I, B, O]):
    """Processes a stream that is not keyed by what a broadcast one says. It has no keyed state and no timers."""

    def open(self, context: RuntimeContext) -> None:
        """Called before the first record of an epoch, and once on the driver; keyed state cannot be registered."""

    @abstractmethod
    def process_element(self, value: I, context: ReadOnlyContext) -> Iterable[O] | None:
        """Called for every record of the stream that is not broadcast; gives what `KeyedProcessFunction` does."""

    @abstractmethod
    def process_broadcast_element(self, value: B, context: BroadcastContext) -> Iterable[O] | None:
        """Called in every subtask for every record of the broadcast stream."""

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""


def _check_function(definition: Any, attribute: Any, function: Any) -> None:
    if not isinstance(function, (KeyedBroadcastProcessFunction, BroadcastProcessFunction)):
        raise JobDefinitionError(
            f"process() of a stream and a broadcast one takes an instance of a KeyedBroadcastProcessFunction or, where "
            f"the stream is not keyed, of a BroadcastProcessFunction, not "
            f"{shown_instance(function)}"
        )


def _check_descriptors(definition: Any, attribute: Any, descriptors: tuple[object, ...]) -> None:
    for one in descriptors:
        if not isinstance(one, BroadcastStateDescriptor):
            raise JobDefinitionError(
                f"broadcast() takes a BroadcastStateDescriptor for each state, not {format_value(one, 80)}"
            )


@frozen
class BroadcastProcessDefinition:
    """What a node of the graph holds for such a function; picklable.

    Input 0 is the stream, keyed if `is_keyed`; input 1 the broadcast one, whose batches are asked for no key.
    Raises `JobDefinitionError` for what is no such function or descriptor.
    """

    function: KeyedBroadcastProcessFunction[Any, Any, Any, Any] | BroadcastProcessFunction[Any, Any, Any] = field(
        validator=_check_function
    )
    descriptors: tuple[BroadcastStateDescriptor[Any, Any], ...] = field(
        default=(), converter=tuple, validator=_check_descriptors
    )
    """The states that were named where the stream was broadcast; the function may register more in `open()`."""

    @property
    def is_keyed(self) -> bool:
        """Whether the stream that is not broadcast has to be keyed."""
        return isinstance(self.function, KeyedBroadcastProcessFunction)

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The function."""
        return (self.function,)
