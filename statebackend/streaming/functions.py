"""Functions over keyed streams, and the contexts that their methods receive.

A function registers its state in `open()` once per epoch and subtask. Then it is called for every record, with the
key of the record as the current key. A function that overrides `on_timer` may register timers and is called for each
due timer. Timers are state: checkpoints and savepoints contain them. The names are Flink's.

The life cycle of a function:

    setup      once per worker process and run, before the first open()
      open     before the first record of an epoch in a subtask
        ...
      close    after the last record of the epoch
    teardown   when the process has finished the run

Functions travel to the workers by pickling. Every subtask and epoch has its own object, with the attributes that
`setup()` left in ``self``. Connections, models and clients therefore belong into `setup()`; objects made in `open()`
belong to one epoch. A function without `setup()` is a new object in every epoch.

Functions of several inputs share one state per key. All inputs use the same key types. The order between inputs is
undefined: each input keeps its own order within a key. The operator's watermark is the minimum over its inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
    runtime_checkable,
)

from snapshots.errors import format_value
from statebackend.state.descriptors import Descriptor, StateHolder, descriptors_on_class
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
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.time.timestamps import Time

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


class WorkerLifecycle(StateHolder):
    """The base of all functions: resources that live as long as the worker process."""

    def setup(self) -> Awaitable[None] | None:
        """Create connections, clients or models. Called once per worker process and run, before the first `open`.

        It is never called on the driver of a Spark job. It may be an ``async def``; then it runs in the event loop of
        the process, as async functions do.

        An exception fails the task with the operator's uid in the message, and the next task calls `setup` again.
        Release what was created before the exception.
        """
        return None

    def teardown(self) -> Awaitable[None] | None:
        """Release what `setup` created. Called once, on the same object, when the process has finished the run.

        Best effort: Spark may kill idle workers without calling it, so do essential work in `close`. It may be an
        ``async def``. Exceptions are logged.
        """
        return None


@runtime_checkable
class HasUserFunctions(Protocol):
    """Settings of an operator that contain user functions, as a node of the graph holds them."""

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The functions, always in the same order."""


def user_functions_of(function: object) -> tuple[Any, ...]:
    """Return the user functions inside what a graph node holds."""
    return function.user_functions if isinstance(function, HasUserFunctions) else (function,)


class TimeDomain(Enum):
    """The time domain of a timer."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"


Delay: TypeAlias = str | timedelta
"""A delay from now: a text such as "10 minutes", or a `timedelta`."""


class TimerService(ABC):
    """Time, and the timers of the current key.

    A time is a number of milliseconds since 1970 or a datetime with a time zone. A delay is a text such as
    "30 minutes" or a `timedelta`.

    There is one timer per key, time domain and timestamp; registering it again changes nothing. Methods that register
    raise `JobDefinitionError` in a function that does not override ``on_timer``. Methods that register or delete raise
    `SerializationError` if the time is not valid or does not fit 64 bits, and change nothing then.
    """

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark in milliseconds, or -(1 << 63) before the first one."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The processing time in milliseconds since 1970. It is constant within an epoch."""

    @abstractmethod
    def register_event_time_timer(self, time: Time | Delay) -> None:
        """Call ``on_timer`` for the current key when the watermark reaches this time.

        A delay starts at the timestamp of the record or event-time timer. A time that the watermark has already reached
        is due with the next watermark.
        """

    @abstractmethod
    def delete_event_time_timer(self, time: Time) -> None:
        """Delete the event-time timer of the current key, if it exists."""

    @abstractmethod
    def register_processing_time_timer(self, time: Time | Delay) -> None:
        """Call ``on_timer`` for the current key when the clock reaches this time.

        A delay starts at the current processing time. An epoch has one processing time, so the timer fires in the first
        later epoch that reaches it.
        """

    @abstractmethod
    def delete_processing_time_timer(self, time: Time) -> None:
        """Delete the processing-time timer of the current key, if it exists."""


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class OperatorStateStore:
    """Registers the operator state of a subtask: state without a key.

    A descriptor defines how its state is redistributed when the parallelism changes. Each method accepts the
    descriptors of one mode. The names are those of Flink's ``OperatorStateStore``.
    """

    def __init__(self, operator_uid: str, register: Callable[[OperatorStateDescriptor], State]) -> None:
        self._operator_uid = operator_uid
        self._register = register

    def get_list_state(self, descriptor: SplitListStateDescriptor[T]) -> ListState[T]:
        """Register a list of this subtask. At another parallelism the elements of all subtasks are split evenly.

        Raises:
            StateMigrationException: Restored state is incompatible.
        """
        state: ListState[T] = self._registered(descriptor, OperatorStateMode.SPLIT)
        return state

    def get_union_list_state(self, descriptor: UnionListStateDescriptor[T]) -> ListState[T]:
        """Register a list of this subtask. In the first epoch after a start it holds the elements of all subtasks.

        Replace it with this subtask's own part then, with `update`: the checkpoint stores what it holds at the end of
        the epoch. Raises as `get_list_state`.
        """
        state: ListState[T] = self._registered(descriptor, OperatorStateMode.UNION)
        return state

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Register a map with a copy in every subtask. All subtasks must write the same. Raises as `get_list_state`."""
        state: BroadcastState[K, V] = self._registered(descriptor, OperatorStateMode.BROADCAST)
        return state

    def _registered(self, descriptor: OperatorStateDescriptor, mode: OperatorStateMode) -> Any:
        given = descriptor.mode if isinstance(descriptor, OperatorStateDescriptor) else None
        if given is not mode:
            method, wanted = _REGISTRATION[mode]
            if isinstance(descriptor, State):
                raise StateRegistrationError(
                    f"operator {self._operator_uid!r}: operator_state.{method} was given {_IS_STATE}"
                )
            how = f"it takes a {wanted}"
            if given is not None:
                how += f"; a {given.value} state is registered with {_REGISTRATION[given][0]}"
            raise StateRegistrationError(
                f"operator {self._operator_uid!r}: operator_state.{method} "
                f"was given {format_value(descriptor, 120)}; {how}"
            )
        return self._register(descriptor)


_IS_STATE: Final = (
    "a state: a descriptor in the class body is registered before open(), so use the attribute as the state"
)

_REGISTRATION: Final = {
    OperatorStateMode.SPLIT: ("get_list_state", SplitListStateDescriptor.__name__),
    OperatorStateMode.UNION: ("get_union_list_state", UnionListStateDescriptor.__name__),
    OperatorStateMode.BROADCAST: ("get_broadcast_state", BroadcastStateDescriptor.__name__),
}


I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
C = TypeVar("C")


class RuntimeContext(ABC):
    """The argument of `open()`: where the function runs, and access to its state."""

    @property
    @abstractmethod
    def operator_uid(self) -> str:
        """The uid of the operator."""

    @property
    @abstractmethod
    def subtask_index(self) -> int:
        """The index of this parallel instance, from 0."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """The number of parallel instances."""

    @property
    @abstractmethod
    def epoch_id(self) -> int:
        """The current epoch. On Spark it is the id of the micro-batch."""

    @property
    @abstractmethod
    def is_restored(self) -> bool:
        """Whether this is the first epoch after a start from a checkpoint or savepoint that contains this operator.

        It is False in the first epoch of a new job or operator, in every later epoch of a run, and on the driver.
        """

    @property
    def current_key(self) -> Any:
        """Raises `NoCurrentKeyError`: `open()` has no current key."""
        raise NoCurrentKeyError(
            f"operator {self.operator_uid!r}: open() has no current key; the context of process_element has it"
        )

    @property
    def operator_state(self) -> OperatorStateStore:
        """Registers state that belongs to this subtask and not to a key."""
        return OperatorStateStore(self.operator_uid, self.register_operator_state)

    @abstractmethod
    def register(self, descriptor: StateDescriptor) -> State:
        """Register a keyed state of any kind and return its handle."""

    @abstractmethod
    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        """Register an operator state of any mode and return its handle. Functions use `operator_state`."""

    @overload
    def get_state(self, descriptor: DefaultedValueStateDescriptor[T]) -> DefaultedValueState[T]: ...
    @overload
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]: ...

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Register a value state.

        Raises:
            StateMigrationException: Restored state is incompatible.
        """
        state: ValueState[T] = self._register(descriptor, ValueStateDescriptor.kind)
        return state

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Register a list state. Raises as `get_state`."""
        state: ListState[T] = self._register(descriptor, ListStateDescriptor.kind)
        return state

    def get_map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Register a map state. Raises as `get_state`."""
        state: MapState[K, V] = self._register(descriptor, MapStateDescriptor.kind)
        return state

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Register a reducing state. Raises as `get_state`."""
        state: ReducingState[T] = self._register(descriptor, ReducingStateDescriptor.kind)
        return state

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[I, Any, O]) -> AggregatingState[I, O]:
        """Register an aggregating state. Raises as `get_state`."""
        state: AggregatingState[I, O] = self._register(descriptor, AggregatingStateDescriptor.kind)
        return state

    def _register(self, descriptor: StateDescriptor, kind: StateKind) -> Any:
        given = descriptor.kind if isinstance(descriptor, Descriptor) else None
        if given is not kind:
            if isinstance(descriptor, State):
                raise StateRegistrationError(f"operator {self.operator_uid!r}: {kind.getter} was given {_IS_STATE}")
            how = "pass a descriptor" if given is None else f"{given.name} state is registered with {given.getter}"
            if given is not None and not isinstance(given, StateKind):
                how += " of a backend, which functions cannot reach"
            if isinstance(descriptor, OperatorStateDescriptor):
                how = "operator state is registered with the methods of context.operator_state, such as get_list_state"
            raise StateRegistrationError(
                f"operator {self.operator_uid!r}: {kind.getter} was given {format_value(descriptor, 120)}; {how}"
            )
        return self.register(descriptor)


class DelegatingContext(RuntimeContext):
    """A runtime context that delegates properties of the subtask. Subclasses define which state is available."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context

    @property
    def operator_uid(self) -> str:
        return self._context.operator_uid

    @property
    def subtask_index(self) -> int:
        return self._context.subtask_index

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    @property
    def epoch_id(self) -> int:
        return self._context.epoch_id

    @property
    def is_restored(self) -> bool:
        return self._context.is_restored


def open_function(function: Any, context: RuntimeContext) -> Any:
    """Set the states of the function's class body as attributes of the function, then call its `open`."""
    for name, descriptor in descriptors_on_class(type(function)).items():
        if isinstance(descriptor, OperatorStateDescriptor):
            state = context.register_operator_state(descriptor)
        elif not descriptor.is_per_window:
            state = context.register(descriptor)
        elif hasattr(context, "window_state"):
            state = context.window_state.get_state(descriptor)
        else:
            raise StateRegistrationError(
                f"operator {context.operator_uid!r}: state {descriptor.name!r} is per window, and "
                f"{type(function).__name__} is not a ProcessWindowFunction; remove .per_window()"
            )
        # The class may be frozen.
        object.__setattr__(function, name, state)
    return function.open(context)


SideOutputs = Mapping[OutputTag[Any], Callable[[Any], object]]
"""The consumers of those side outputs that are read, by tag."""


class CallContext:
    """The base of the contexts that calls of functions receive."""

    __slots__ = ("_side_outputs", "epoch_id")

    _method: ClassVar[str]

    def __init__(self, epoch_id: int, side_outputs: SideOutputs) -> None:
        self.epoch_id = epoch_id
        self._side_outputs = side_outputs

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit a record to a side output. It is dropped if nothing reads that output.

        The record is written after the call, so do not change it afterwards.
        """
        take = self._side_outputs.get(tag)
        if take is not None:
            take(value)
        elif not isinstance(tag, OutputTag):
            given: object = tag
            raise TypeError(f"output() takes an OutputTag and a record, not {format_value(given, 80)}")

    def __getattr__(self, name: str) -> Any:
        advice = "; register state in open() and store the handle in self" if "state" in name else ""
        raise AttributeError(f"the context of {self._method} has no {name!r}{advice}")


class _KeyedContext(CallContext, Generic[K]):
    """The base of the contexts of calls that have a current key."""

    __slots__ = ("current_key", "timer_service")

    def __init__(self, epoch_id: int, side_outputs: SideOutputs, timer_service: TimerService) -> None:
        super().__init__(epoch_id, side_outputs)
        self.current_key: Any = None
        self.timer_service = timer_service
        """Time, and the timers of the current key."""


class ProcessContext(_KeyedContext[K]):
    """The argument of `process_element`. One object serves all records of a batch."""

    __slots__ = ("timestamp",)

    _method = "process_element"

    def __init__(self, epoch_id: int, side_outputs: SideOutputs, timer_service: TimerService) -> None:
        super().__init__(epoch_id, side_outputs, timer_service)
        self.timestamp: int | None = None
        """The timestamp of the record in milliseconds, or None if it has none."""


class OnTimerContext(_KeyedContext[K]):
    """The argument of `on_timer`. One object serves all timers of a time domain."""

    __slots__ = ("time_domain", "timestamp")

    _method = "on_timer"

    def __init__(
        self, epoch_id: int, side_outputs: SideOutputs, timer_service: TimerService, time_domain: TimeDomain
    ) -> None:
        super().__init__(epoch_id, side_outputs, timer_service)
        self.time_domain = time_domain
        """The time domain of the timer."""
        self.timestamp = 0
        """The time of the timer, in milliseconds."""


class KeyedFunction(WorkerLifecycle, ABC, Generic[C, O]):
    """The base of functions with state per key, for any number of inputs. ``C`` is the context of timers.

    Instances travel to the subtasks by pickling and hold configuration only. Create state handles in `open()`, and
    connections, clients and similar objects in `setup()`.
    """

    def open(self, context: RuntimeContext) -> None:
        """Register all state. Called before the first record of an epoch.

        It also runs on the driver before the job starts, so that incompatible state is found before anything changes.
        There, handles of keyed state reject every access, and operator state is empty and discarded.
        """

    def on_timer(self, timestamp: int, context: C) -> Iterable[O] | None:
        """Handle a due timer. Its key is the current key, and ``timestamp`` is its time in milliseconds.

        Returns records as `process_element` does. Only a function that overrides this method may register timers.
        """
        return None

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""


class KeyedProcessFunction(KeyedFunction[OnTimerContext[K], O], Generic[K, I, O]):
    """Processes the records of a keyed stream one by one, with state per key."""

    @abstractmethod
    def process_element(self, value: I, context: ProcessContext[K]) -> Iterable[O] | None:
        """Process a record. Records of one key arrive in order.

        Returns:
            The records to emit: yield them, or return a list of them or None. A single record that is returned instead
            of a list (a str, a dict, a Row) is an error. Records are written after the call; do not change them then.
        """


I1 = TypeVar("I1")
I2 = TypeVar("I2")


class KeyedCoProcessFunction(KeyedFunction[OnTimerContext[K], O], Generic[K, I1, I2, O]):
    """Processes the records of two streams with the same key types, with one state per key and its timers."""

    @abstractmethod
    def process_element1(self, value: I1, context: ProcessContext[K]) -> Iterable[O] | None:
        """Process a record of the first stream, as `KeyedProcessFunction.process_element`."""

    @abstractmethod
    def process_element2(self, value: I2, context: ProcessContext[K]) -> Iterable[O] | None:
        """Process a record of the second stream, as `KeyedProcessFunction.process_element`."""


class KeyedMultipleInputFunction(KeyedFunction[OnTimerContext[K], O], Generic[K, O]):
    """Processes the records of any number of streams with the same key types, with one state per key and its timers."""

    @abstractmethod
    def process_element(self, input_index: int, value: Any, context: ProcessContext[K]) -> Iterable[O] | None:
        """Process a record of the input with this index, from 0, as `KeyedProcessFunction.process_element`."""


class JoinContext(CallContext, Generic[K]):
    """The argument of `ProcessJoinFunction.process_element`. One object serves all pairs."""

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
        """The timestamp of the pair and of the records emitted for it: the larger of both, in milliseconds."""
        return max(self.left_timestamp, self.right_timestamp)


class ProcessJoinFunction(WorkerLifecycle, ABC, Generic[K, I1, I2, O]):
    """Processes the pairs of an interval join. Instances travel by pickling and hold configuration only."""

    def open(self, context: RuntimeContext) -> None:
        """Register all state. Called before the first record of an epoch, and once on the driver."""

    @abstractmethod
    def process_element(self, left: I1, right: I2, context: JoinContext[K]) -> Iterable[O] | None:
        """Process a pair of records. Yield the records to emit, or return a list of them or None.

        The pairs of one record arrive by the timestamp of the other record, then by its order of arrival.
        """

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""
