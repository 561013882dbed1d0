"""What a user writes: functions over keyed streams, and the contexts they are given.

A function registers its state in `open()`, once per epoch and subtask, and is then called for every record with the
record's key current. One that overrides `on_timer` may register timers, and is called for each that is due with the
timer's key current. The names are Flink's. Functions of several inputs are in `co_functions`, `broadcast_functions` and
`join_functions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from statebackend import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from statebackend.api.descriptors import Descriptor
from statebackend.api.errors import NoCurrentKeyError, StateRegistrationError
from statebackend.api.operator_state_descriptors import OperatorStateDescriptor
from statebackend.api.states import (
    AggregatingState,
    DefaultedValueState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from streamjobs.api.lifecycle import WorkerLifecycle
from streamjobs.api.operator_state_store import OperatorStateStore
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.timer_service import TimeDomain, TimerService
from streamjobs.user_errors import cited

if TYPE_CHECKING:
    from statebackend.kinds.value_kind import DefaultedValueStateDescriptor

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
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
                f"operator {self.operator_uid!r}: {kind.getter} was given {cited(descriptor, 120)}; {how}"
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
            raise TypeError(f"output() takes an OutputTag and a record, and was given {cited(given, 80)}")

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
        anything is touched. Handles of keyed state refuse to be used there, operator state is empty and kept by nobody.
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
