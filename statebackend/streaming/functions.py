"""Functions over pairs of records that an interval join has brought together.

What a function keeps for as long as its worker process lives: connections, models, clients.

    setup      once in each worker process and run, before the first open() there
      open     before the first record of an epoch in a subtask
        ...
      close    behind the last record of the epoch
    teardown   when the run is over for the process, or the process ends

A function travels to the workers by pickling, and every subtask and epoch has an object of its own. What setup() has
put into ``self`` is in all of them: the attributes of the function are then those that setup() has left. So an object
made in ``__init__`` or setup() is shared by what runs in the process, and one made in open() belongs to an epoch. A
function without a setup() of its own is a new object in every epoch.

Timers, as a function over a keyed stream sees them: moments at which it is called again for a key.

A timer is a moment under a key, in event time or in processing time, and there is one of each: registering it again
changes nothing. Timers are state: a checkpoint has them, a savepoint takes them along.

What a function reaches its operator state through: state of the subtask it runs in, and of no key.

The names are those of Flink's ``OperatorStateStore``. A descriptor says itself how its state is dealt out to the
subtasks of another run, so each method takes the descriptors of one mode and rejects the others.

What a user writes: functions over keyed streams, and the contexts they are given.

A function registers its state in `open()`, once per epoch and subtask, and is then called for every record with the
record's key current. One that overrides `on_timer` may register timers, and is called for each that is due with the
timer's key current. The names are Flink's. Functions of several inputs are in `co_functions`, `broadcast_functions` and
`join_functions`.

Functions over two and more keyed streams: one function, one state per key, and the records of every input.

All inputs are keyed alike, so that a record of any of them finds the state of its key, and the timers, that those of
the others have left. Which input comes first is not defined: each keeps its own order within a key, and the watermark
of the operator is the smallest of theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar, overload, runtime_checkable

from statebackend.state.descriptors import Descriptor
from statebackend.state.errors import NoCurrentKeyError, StateRegistrationError
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.operator_state_descriptors import (
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    OperatorStateMode,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.state.state_kind import StateDescriptor, StateKind
from statebackend.state.states import (
    AggregatingState,
    BroadcastState,
    DefaultedValueState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.errors import format_value
from statebackend.streaming.output_tag import OutputTag

if TYPE_CHECKING:
    from statebackend.state.value_state import DefaultedValueStateDescriptor

__all__ = [
    "HasUserFunctions",
    "JoinContext",
    "KeyedCoProcessFunction",
    "KeyedMultipleInputFunction",
    "ProcessJoinFunction",
    "TimeDomain",
    "TimerService",
    "WorkerLifecycle",
    "user_functions_of",
]


class WorkerLifecycle:
    """The base of functions: see the module."""

    def setup(self) -> Awaitable[None] | None:
        """Called once in a worker process and run, before the first `open`; never on the driver of a Spark job.

        It may be an ``async def``, and runs in the process's event loop then, which is that of async functions.

        What it raises fails the task, with the operator's uid in the message, and it is called again by the next one:
        it lets go itself of what it had made by then.
        """
        return None

    def teardown(self) -> Awaitable[None] | None:
        """Called on the function that `setup` was called on, once, when the process is done with the run.

        A process that is killed calls nothing, and Spark ends workers that it does not need so: what must not be left
        undone belongs into `close`. It may be an ``async def``. What is raised here is logged.
        """
        return None


@runtime_checkable
class HasUserFunctions(Protocol):
    """What stands in a node of the graph around functions of the user's: the settings of an operator."""

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The functions, always in the same order."""


def user_functions_of(function: object) -> tuple[Any, ...]:
    """The functions of the user's in what a node of the graph holds: itself, or those that it stands around."""
    return function.user_functions if isinstance(function, HasUserFunctions) else (function,)


class TimeDomain(Enum):
    """Which time a timer is in."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"


class TimerService(ABC):
    """The time, and the timers of the current key.

    Methods that register raise `JobDefinitionError` in a function that does not override ``on_timer``. Those that
    register or delete raise `SerializationError` for a time that is no whole number of 64 bits; nothing has changed
    then.
    """

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark, in milliseconds; -(1 << 63) before the first."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The processing time in milliseconds since 1970, which stands still in an epoch."""

    @abstractmethod
    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Has ``on_timer`` called for the current key when the watermark has reached the time, in milliseconds.

        A time that it has reached already is due with the next watermark.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Takes that timer of the current key away, if it is there."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Has ``on_timer`` called for the current key when the clock has reached the time, in milliseconds since 1970.

        An epoch has one time, so it is called in the first later epoch whose time has reached it.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Takes that timer of the current key away, if it is there."""


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class OperatorStateStore:
    """The operator state of one subtask in one epoch."""

    def __init__(self, operator_uid: str, register: Callable[[OperatorStateDescriptor], State]) -> None:
        self._operator_uid = operator_uid
        self._register = register

    def get_list_state(self, descriptor: SplitListStateDescriptor[T]) -> ListState[T]:
        """A list of this subtask's own; at another parallelism the elements of all subtasks are dealt out evenly.

        Raises `StateMigrationException` if restored state cannot be taken over.
        """
        state: ListState[T] = self._registered(descriptor, OperatorStateMode.SPLIT)
        return state

    def get_union_list_state(self, descriptor: UnionListStateDescriptor[T]) -> ListState[T]:
        """A list of this subtask's own; in the first epoch after a start it holds the elements of all subtasks.

        Keep your own part of it then, with `update`: what is in it at the end of the epoch is what the subtask has.
        Raises as `get_list_state`.
        """
        state: ListState[T] = self._registered(descriptor, OperatorStateMode.UNION)
        return state

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """A map of which every subtask has a copy; all of them must write the same. Raises as `get_list_state`."""
        state: BroadcastState[K, V] = self._registered(descriptor, OperatorStateMode.BROADCAST)
        return state

    def _registered(self, descriptor: OperatorStateDescriptor, mode: OperatorStateMode) -> Any:
        given = descriptor.mode if isinstance(descriptor, OperatorStateDescriptor) else None
        if given is not mode:
            method, wanted = _REGISTRATION[mode]
            how = f"it takes a {wanted}"
            if given is not None:
                how += f"; a {given.value} state is registered with {_REGISTRATION[given][0]}"
            raise StateRegistrationError(
                f"operator {self._operator_uid!r}: operator_state.{method} "
                f"was given {format_value(descriptor, 120)}; {how}"
            )
        return self._register(descriptor)


_REGISTRATION: Final = {
    OperatorStateMode.SPLIT: ("get_list_state", SplitListStateDescriptor.__name__),
    OperatorStateMode.UNION: ("get_union_list_state", UnionListStateDescriptor.__name__),
    OperatorStateMode.BROADCAST: ("get_broadcast_state", BroadcastStateDescriptor.__name__),
}


I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
C = TypeVar("C")


class RuntimeContext(ABC):
    """What `open()` is given: where the function runs, and the way to its state."""

    @property
    @abstractmethod
    def operator_uid(self) -> str:
        """The uid of the operator."""

    @property
    @abstractmethod
    def subtask_index(self) -> int:
        """Which of the parallel instances this is, from 0."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """How many parallel instances there are."""

    @property
    @abstractmethod
    def epoch_id(self) -> int:
        """The epoch that is being processed; on Spark, the id of the micro-batch."""

    @property
    @abstractmethod
    def is_restored(self) -> bool:
        """Whether this is the first epoch since the job was started from a checkpoint or savepoint with this operator.

        It is False in the first epoch of a new job or operator, in every later epoch of a run, and on the driver.
        """

    @property
    def current_key(self) -> Any:
        """There is none; raises `NoCurrentKeyError`."""
        raise NoCurrentKeyError(
            f"operator {self.operator_uid!r}: open() has no current key; the context of process_element has it"
        )

    @property
    def operator_state(self) -> OperatorStateStore:
        """The way to state that belongs to this subtask and not to a key."""
        return OperatorStateStore(self.operator_uid, self.register_operator_state)

    @abstractmethod
    def register(self, descriptor: StateDescriptor) -> State:
        """The handle of a keyed state of any kind."""

    @abstractmethod
    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        """The handle of an operator state of any mode; functions use `operator_state`."""

    @overload
    def get_state(self, descriptor: DefaultedValueStateDescriptor[T]) -> DefaultedValueState[T]: ...
    @overload
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]: ...

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Registers a value state. Raises `StateMigrationException` if restored state cannot be taken over."""
        state: ValueState[T] = self._register(descriptor, ValueStateDescriptor.kind)
        return state

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Registers a list state; see `get_state`."""
        state: ListState[T] = self._register(descriptor, ListStateDescriptor.kind)
        return state

    def get_map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Registers a map state; see `get_state`."""
        state: MapState[K, V] = self._register(descriptor, MapStateDescriptor.kind)
        return state

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Registers a reducing state; see `get_state`."""
        state: ReducingState[T] = self._register(descriptor, ReducingStateDescriptor.kind)
        return state

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[I, Any, O]) -> AggregatingState[I, O]:
        """Registers an aggregating state; see `get_state`."""
        state: AggregatingState[I, O] = self._register(descriptor, AggregatingStateDescriptor.kind)
        return state

    def _register(self, descriptor: StateDescriptor, kind: StateKind) -> Any:
        given = descriptor.kind if isinstance(descriptor, Descriptor) else None
        if given is not kind:
            how = "pass a descriptor" if given is None else f"{given.name} state is registered with {given.getter}"
            if given is not None and not isinstance(given, StateKind):
                how += " of a backend, which functions cannot reach"
            if isinstance(descriptor, OperatorStateDescriptor):
                how = "operator state is registered with the methods of context.operator_state, such as get_list_state"
            raise StateRegistrationError(
                f"operator {self.operator_uid!r}: {kind.getter} was given {format_value(descriptor, 120)}; {how}"
            )
        return self.register(descriptor)


SideOutputs = Mapping[OutputTag[Any], Callable[[Any], object]]
"""What takes the records of those side outputs that are read."""


class CallContext:
    """What the calls of all functions have in common."""

    __slots__ = ("_side_outputs", "epoch_id")

    _method: ClassVar[str]

    def __init__(self, epoch_id: int, side_outputs: SideOutputs) -> None:
        self.epoch_id = epoch_id
        self._side_outputs = side_outputs

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emits a record to a side output; it is dropped if nobody reads that.

        As what is yielded, it is written out after the call: do not go on changing it.
        """
        take = self._side_outputs.get(tag)
        if take is not None:
            take(value)
        elif not isinstance(tag, OutputTag):
            given: object = tag
            raise TypeError(f"output() takes an OutputTag and a record, and was given {format_value(given, 80)}")

    def __getattr__(self, name: str) -> Any:
        advice = "; state is registered in open(), which keeps the handle in self" if "state" in name else ""
        raise AttributeError(f"the context of {self._method} has no {name!r}{advice}")


class _KeyedContext(CallContext, Generic[K]):
    """What the calls for a key have in common."""

    __slots__ = ("current_key", "timer_service")

    def __init__(self, epoch_id: int, side_outputs: SideOutputs, timer_service: TimerService) -> None:
        super().__init__(epoch_id, side_outputs)
        self.current_key: Any = None
        self.timer_service = timer_service
        """The time, and the timers of the current key."""


class ProcessContext(_KeyedContext[K]):
    """What every call of `process_element` is given; one object for all records of a batch."""

    __slots__ = ("timestamp",)

    _method = "process_element"

    def __init__(self, epoch_id: int, side_outputs: SideOutputs, timer_service: TimerService) -> None:
        super().__init__(epoch_id, side_outputs, timer_service)
        self.timestamp: int | None = None
        """The timestamp of the record in milliseconds, or None if it has none."""


class OnTimerContext(_KeyedContext[K]):
    """What every call of `on_timer` is given; one object for all timers of a time domain."""

    __slots__ = ("time_domain", "timestamp")

    _method = "on_timer"

    def __init__(
        self, epoch_id: int, side_outputs: SideOutputs, timer_service: TimerService, time_domain: TimeDomain
    ) -> None:
        super().__init__(epoch_id, side_outputs, timer_service)
        self.time_domain = time_domain
        """Which time the timer is in."""
        self.timestamp = 0
        """The time of the timer, in milliseconds."""


class KeyedFunction(WorkerLifecycle, ABC, Generic[C, O]):
    """What functions with state per key have in common, whatever their inputs are; ``C`` is the context of timers.

    Instances travel to the subtasks by pickling, so they hold configuration only: state handles are made in `open()`,
    connections, clients and the like in `setup()`.
    """

    def open(self, context: RuntimeContext) -> None:
        """Called before the first record of an epoch. Register all state here.

        It also runs on the driver, before the job starts: that is how the state of a savepoint is checked before
        anything is touched. Handles of keyed state reject to be used there, operator state is empty and kept by nobody.
        """

    def on_timer(self, timestamp: int, context: C) -> Iterable[O] | None:
        """Called for every timer that is due, at ``timestamp`` in milliseconds, with its key current.

        What it gives is as that of `process_element`. Only a function that overrides it may register timers.
        """
        return None

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""


class KeyedProcessFunction(KeyedFunction[OnTimerContext[K], O], Generic[K, I, O]):
    """Processes the records of a keyed stream one by one, with state per key."""

    @abstractmethod
    def process_element(self, value: I, context: ProcessContext[K]) -> Iterable[O] | None:
        """Called for every record, in order within a key; yields what to emit, or returns a list of records or None.

        What was emitted is written out after the call: do not go on changing it. A single record is yielded; returning
        one (a str, a dict, a Row) instead of a list of one is an error.
        """


I1 = TypeVar("I1")
I2 = TypeVar("I2")


class KeyedCoProcessFunction(KeyedFunction[OnTimerContext[K], O], Generic[K, I1, I2, O]):
    """Processes the records of two streams that are keyed alike, with one state per key and its timers."""

    @abstractmethod
    def process_element1(self, value: I1, context: ProcessContext[K]) -> Iterable[O] | None:
        """Called for every record of the first stream, as `KeyedProcessFunction.process_element`."""

    @abstractmethod
    def process_element2(self, value: I2, context: ProcessContext[K]) -> Iterable[O] | None:
        """Called for every record of the second stream, as `KeyedProcessFunction.process_element`."""


class KeyedMultipleInputFunction(KeyedFunction[OnTimerContext[K], O], Generic[K, O]):
    """Processes the records of any number of streams that are keyed alike, with one state per key and its timers."""

    @abstractmethod
    def process_element(self, input_index: int, value: Any, context: ProcessContext[K]) -> Iterable[O] | None:
        """Called for every record of the stream at that place, from 0; as `KeyedProcessFunction.process_element`."""


class JoinContext(CallContext, Generic[K]):
    """What every call of `ProcessJoinFunction.process_element` is given; one object for all pairs."""

    __slots__ = ("current_key", "left_timestamp", "right_timestamp")

    _method = "process_element"

    def __init__(self, epoch_id: int, side_outputs: SideOutputs) -> None:
        super().__init__(epoch_id, side_outputs)
        self.current_key: Any = None
        self.left_timestamp = 0
        """The timestamp of the left record, in milliseconds."""
        self.right_timestamp = 0
        """The timestamp of the right record, in milliseconds."""

    @property
    def timestamp(self) -> int:
        """The timestamp of the pair, and of what is emitted for it: the larger of both, in milliseconds."""
        return max(self.left_timestamp, self.right_timestamp)


class ProcessJoinFunction(WorkerLifecycle, ABC, Generic[K, I1, I2, O]):
    """Makes of a pair of records what is emitted. Instances travel by pickling, and hold configuration only."""

    def open(self, context: RuntimeContext) -> None:
        """Called before the first record of an epoch, and once on the driver. Register all state here."""

    @abstractmethod
    def process_element(self, left: I1, right: I2, context: JoinContext[K]) -> Iterable[O] | None:
        """Called for every pair; yields what to emit, or returns a list of records or None.

        The pairs of one record come in the order of the other's timestamps, and of its arrival where those are equal.
        """

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""
