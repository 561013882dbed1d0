"""Two and more streams that go into one operator: connected by key, or one of them broadcast to every subtask.

    first.connect(second)                   two keyed streams: a function with a method for each
    first.connect_all(second, third)        any number of keyed streams: a function that is told the input
    stream.connect(other.broadcast(...))    each record of the other stream goes to every subtask
    first.join(second), .co_group(second)   by key and window, see `statebackend.streaming.windows.windowed_stream`

Records of keyed inputs meet by their keys, which must be of the same types, column by column. An epoch takes its inputs
in their order: the records of the first, then those of the second; only what time puts before the others, because it
was sent before the watermark of the epoch, comes in front, in the order of the inputs again.

Two keyed streams that are joined by a distance in time, as a program says it.

A left and a right record of one key are a pair if the right one is at a time within the interval around the left one:

    left + lower  <=  right  <=  left + upper        either side may be exclusive

Neither record has to wait for a window to end: the pair is there when its second record is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from attrs import evolve, field, frozen

from statebackend.state.descriptors import as_serializer
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.streaming.broadcast_functions import (
    BroadcastProcessDefinition,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from statebackend.streaming.errors import JobDefinitionError, format_value, shown_instance
from statebackend.streaming.functions import KeyedCoProcessFunction, KeyedMultipleInputFunction, ProcessJoinFunction
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.stream_graph import BroadcastInput, KeyedInput, OperatorInput, SpreadInput, StreamEdge
from statebackend.streaming.time.timestamps import Duration, duration_ms
from statebackend.streaming.windows.assigners import WindowAssigner
from statebackend.streaming.windows.window_definition import WindowDefinition
from statebackend.streaming.windows.windowed_stream import PairFunction, WindowedStreamPair
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "AddIntervalJoin",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "ConnectedStreams",
    "IntervalJoin",
    "IntervalJoinDefinition",
    "JoinedStreams",
    "MultipleConnectedStreams",
    "OperatorAdder",
    "as_columns",
    "checked_function",
]


S = TypeVar("S", covariant=True)


def _check_function(definition: Any, attribute: Any, function: Any) -> None:
    if not isinstance(function, ProcessJoinFunction):
        raise JobDefinitionError(
            f"process() of an interval join takes an instance of a ProcessJoinFunction, not {shown_instance(function)}"
        )


def _check_tag(definition: Any, attribute: Any, tag: object) -> None:
    if tag is not None and not isinstance(tag, OutputTag):
        raise JobDefinitionError(f"late records of an interval join go to an OutputTag, not to {format_value(tag, 80)}")


@frozen(kw_only=True)
class IntervalJoinDefinition:
    """What a node of the graph holds for an interval join; picklable. Input 0 is the left one, input 1 the right one.

    Bounds are in milliseconds. The serializers are those of the records; where they are None, the schema of the input
    says it. Raises `JobDefinitionError` for a lower bound above the upper one.
    """

    needs_timestamps: ClassVar[bool] = True

    function: ProcessJoinFunction[Any, Any, Any, Any] = field(validator=_check_function)
    lower_ms: int
    upper_ms: int
    is_lower_inclusive: bool = True
    is_upper_inclusive: bool = True
    late_left_tag: OutputTag[Any] | None = field(default=None, validator=_check_tag)
    late_right_tag: OutputTag[Any] | None = field(default=None, validator=_check_tag)
    serializers: tuple[TypeSerializer[Any] | None, TypeSerializer[Any] | None] = (None, None)

    def __attrs_post_init__(self) -> None:
        if self.lower_ms > self.upper_ms:
            raise JobDefinitionError(
                f"the lower bound of an interval join is {self.lower_ms} ms and its upper bound {self.upper_ms} ms; "
                f"between() takes the lower one first"
            )

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The function."""
        return (self.function,)


class AddIntervalJoin(Protocol[S]):
    """Adds the join to the graph, and gives the stream that comes out."""

    def __call__(self, definition: IntervalJoinDefinition, *, uid: str, name: str, schema: Any) -> S: ...


@frozen(eq=False)
class IntervalJoin(Generic[S]):
    """Two keyed streams; each method gives another, and `process` ends the chain."""

    _add: AddIntervalJoin[S] = field(repr=False)
    _bounds_ms: tuple[int, int] | None = None
    _is_lower_inclusive: bool = True
    _is_upper_inclusive: bool = True
    _late_left_tag: OutputTag[Any] | None = None
    _late_right_tag: OutputTag[Any] | None = None

    def between(self, lower_bound: Duration, upper_bound: Duration) -> IntervalJoin[S]:
        """Says from when to when, seen from a left record, a right record may be; both may be negative."""
        bounds = duration_ms(lower_bound, "the lower bound"), duration_ms(upper_bound, "the upper bound")
        return evolve(self, bounds_ms=bounds)

    def lower_bound_exclusive(self) -> IntervalJoin[S]:
        """Leaves out a right record that is exactly at the lower bound."""
        return evolve(self, is_lower_inclusive=False)

    def upper_bound_exclusive(self) -> IntervalJoin[S]:
        """Leaves out a right record that is exactly at the upper bound."""
        return evolve(self, is_upper_inclusive=False)

    def side_output_left_late_data(self, tag: OutputTag[Any]) -> IntervalJoin[S]:
        """Sends left records that are behind the watermark to a side output; they are dropped without."""
        return evolve(self, late_left_tag=tag)

    def side_output_right_late_data(self, tag: OutputTag[Any]) -> IntervalJoin[S]:
        """Sends right records that are behind the watermark to a side output; they are dropped without."""
        return evolve(self, late_right_tag=tag)

    def process(
        self,
        function: ProcessJoinFunction[Any, Any, Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        left_type: Any = None,
        right_type: Any = None,
    ) -> S:
        """Gives each pair to a function.

        ``left_type`` and ``right_type`` are serializers or type hints of the records, where an input has no schema.
        Raises `JobDefinitionError` without `between`, and for what does not go together.
        """
        if self._bounds_ms is None:
            raise JobDefinitionError(
                "an interval join needs its interval: chain between('-5 minutes', '5 minutes') before process()"
            )
        left, right = (None if one is None else as_serializer(one) for one in (left_type, right_type))
        definition = IntervalJoinDefinition(
            function=function,
            lower_ms=self._bounds_ms[0],
            upper_ms=self._bounds_ms[1],
            is_lower_inclusive=self._is_lower_inclusive,
            is_upper_inclusive=self._is_upper_inclusive,
            late_left_tag=self._late_left_tag,
            late_right_tag=self._late_right_tag,
            serializers=(left, right),
        )
        return self._add(definition, uid=uid, name=name or type(function).__name__, schema=schema)


class OperatorAdder(Protocol[S]):
    """Adds an operator to the graph, and gives the stream that comes out."""

    def __call__(self, inputs: tuple[OperatorInput, ...], function: Any, *, uid: str, name: str, schema: Any) -> S: ...


def as_columns(given: Any) -> tuple[Any, ...]:
    """Columns that were given as one, or as a list or tuple of them."""
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def checked_function(function: Any, kind: type, method: str = "process()") -> Any:
    """An instance of a class of functions; `JobDefinitionError` for anything else."""
    if not isinstance(function, kind):
        raise JobDefinitionError(f"{method} takes an instance of a {kind.__name__}, not {shown_instance(function)}")
    return function


@frozen(eq=False)
class ConnectedStreams(Generic[S]):
    """Two streams that share one operator, and so its state; they need keys before `process`."""

    _add: OperatorAdder[S] = field(repr=False)
    _first: StreamEdge
    _second: StreamEdge
    _keys: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None

    def key_by(self, first: Any, second: Any = None) -> ConnectedStreams[S]:
        """The keys of both: each a column, or a list of columns, in the environment's own terms.

        Without a second, both streams have their keys in columns of the same names.
        """
        keys = as_columns(first), as_columns(first if second is None else second)
        return ConnectedStreams(self._add, self._first, self._second, keys)

    def process(
        self,
        function: KeyedCoProcessFunction[Any, Any, Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        first_order_by: Any = (),
        second_order_by: Any = (),
    ) -> S:
        """Applies a function with a method for each stream, and state per key that both find.

        ``uid``, ``schema`` and ``name`` are as for `KeyedStream.process`, and so are the columns by which the records
        of a stream are sorted within each epoch. Raises `JobDefinitionError` for streams without keys.
        """
        checked_function(function, KeyedCoProcessFunction)
        if self._keys is None:
            raise JobDefinitionError(
                "process() of connected streams needs their keys: connect(...).key_by('column', 'column').process(...)"
            )
        inputs = (
            KeyedInput(self._first, self._keys[0], as_columns(first_order_by)),
            KeyedInput(self._second, self._keys[1], as_columns(second_order_by)),
        )
        return self._add(inputs, function, uid=uid, name=name or type(function).__name__, schema=schema)


@frozen(eq=False)
class MultipleConnectedStreams(Generic[S]):
    """Any number of keyed streams that share one operator, and so its state."""

    _add: OperatorAdder[S] = field(repr=False)
    _inputs: tuple[KeyedInput, ...]

    def process(
        self,
        function: KeyedMultipleInputFunction[Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        order_by: Sequence[Any] | None = None,
    ) -> S:
        """Applies a function that is told which stream a record is of; the rest is as for `KeyedStream.process`.

        ``order_by`` has for each stream the columns by which its records are sorted within each epoch, or ``()``.
        Raises `JobDefinitionError` for another number of them.
        """
        checked_function(function, KeyedMultipleInputFunction)
        orders = [()] * len(self._inputs) if order_by is None else order_by
        if isinstance(orders, str) or len(orders) != len(self._inputs):
            raise JobDefinitionError(
                f"order_by of {len(self._inputs)} streams has an entry for each of them, such as ['time', ()], and is "
                f"{format_value(order_by, 80)}"
            )
        inputs = tuple(
            evolve(one, order_by=as_columns(columns)) for one, columns in zip(self._inputs, orders, strict=True)
        )
        return self._add(inputs, function, uid=uid, name=name or type(function).__name__, schema=schema)


@frozen(eq=False)
class BroadcastStream:
    """A stream whose records go to every subtask of the operator that it is connected to."""

    edge: StreamEdge
    descriptors: tuple[BroadcastStateDescriptor[Any, Any], ...]
    """The states that the function keeps its records in."""
    order_by: tuple[Any, ...]
    """The columns by which its records are sorted within each epoch."""


@frozen(eq=False)
class BroadcastConnectedStream(Generic[S]):
    """A stream, keyed or not, and one that is broadcast to it."""

    _add: OperatorAdder[S] = field(repr=False)
    _first: KeyedInput | SpreadInput
    _broadcast: BroadcastStream

    def process(
        self,
        function: KeyedBroadcastProcessFunction[Any, Any, Any, Any] | BroadcastProcessFunction[Any, Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        order_by: Any = (),
    ) -> S:
        """Applies a function with a method for each stream; the rest is as for `KeyedStream.process`.

        A stream without keys takes a `BroadcastProcessFunction`, and its records are dealt out evenly. ``order_by`` is
        for the stream that is not broadcast; the other has its own. On Spark the records of that stream
        come first in an epoch, so that a record of the broadcast one counts for what comes behind it; in this process
        too if either is sorted, and otherwise as they arrive, those of the source that was made first in front.
        """
        descriptors: Any = self._broadcast.descriptors
        definition = BroadcastProcessDefinition(function, descriptors)
        is_keyed = isinstance(self._first, KeyedInput)
        if definition.is_keyed and not is_keyed:
            raise JobDefinitionError(
                f"{type(function).__name__} is a KeyedBroadcastProcessFunction, and the stream has no keys: call "
                f"key_by() on it before connect(), or write a BroadcastProcessFunction"
            )
        if is_keyed and not definition.is_keyed:
            raise JobDefinitionError(
                f"{type(function).__name__} is a BroadcastProcessFunction, which knows no key: write a "
                f"KeyedBroadcastProcessFunction, or connect the stream before key_by()"
            )
        first = evolve(self._first, order_by=as_columns(order_by))
        inputs = (first, BroadcastInput(self._broadcast.edge, self._broadcast.order_by))
        return self._add(inputs, definition, uid=uid, name=name or type(function).__name__, schema=schema)


@frozen(eq=False)
class JoinedStreams(Generic[S]):
    """Two streams on their way to a join by key and window: `where`, `equal_to`, then `window`."""

    _add: OperatorAdder[S] = field(repr=False)
    _first: StreamEdge
    _second: StreamEdge
    _kind: PairFunction
    _keys: tuple[Any, ...] = ()
    _other_keys: tuple[Any, ...] = ()

    def where(self, *keys: Any) -> JoinedStreams[S]:
        """The columns of the key of the first stream."""
        return JoinedStreams(self._add, self._first, self._second, self._kind, keys, self._other_keys)

    def equal_to(self, *keys: Any) -> JoinedStreams[S]:
        """The columns of the key of the second stream, as many as those of the first."""
        return JoinedStreams(self._add, self._first, self._second, self._kind, self._keys, keys)

    def window(
        self, assigner: WindowAssigner[Any], *, first_order_by: Any = (), second_order_by: Any = ()
    ) -> WindowedStreamPair[S]:
        """Puts the records of both into windows; raises `JobDefinitionError` without keys, and for what is no assigner.

        The columns by which the records of a stream are sorted within each epoch are as for `KeyedStream.window`. What
        is returned says when windows fire; its ``apply`` ends the chain.
        """
        if not self._keys or not self._other_keys:
            raise JobDefinitionError(
                "two streams are joined by key: chain where('column').equal_to('column') before window(...)"
            )
        inputs = (
            KeyedInput(self._first, self._keys, as_columns(first_order_by)),
            KeyedInput(self._second, self._other_keys, as_columns(second_order_by)),
        )

        def add(definition: WindowDefinition, *, uid: str, name: str, schema: Any) -> S:
            return self._add(inputs, definition, uid=uid, name=name, schema=schema)

        return WindowedStreamPair.of(add, assigner, self._kind)
