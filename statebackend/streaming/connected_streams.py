"""Several streams as the inputs of one operator.

    first.connect(second)                   two keyed streams: a function with a method for each
    first.connect_all(second, third)        any number of keyed streams: a function that receives the input index
    stream.connect(other.broadcast(...))    each record of the other stream goes to every subtask
    first.join(second), .co_group(second)   by key and window, see `statebackend.streaming.windows.windowed_stream`
    left.interval_join(right)               by key and distance in event time

Keyed inputs need the same key types, column by column. An epoch processes its inputs in order: the records of the
first, then those of the second. Records that were sent before the watermark of the epoch come before all others.

An interval join pairs a left and a right record of one key if

    left + lower  <=  right  <=  left + upper        either side may be exclusive

It emits a pair as soon as its second record arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from attrs import evolve, field, frozen

from snapshots.errors import format_value
from statebackend.state.descriptors import as_serializer
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.streaming.broadcast_functions import (
    BroadcastProcessDefinition,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from statebackend.streaming.errors import JobDefinitionError, format_instance
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
            f"process() of an interval join takes an instance of a ProcessJoinFunction, not {format_instance(function)}"
        )


def _check_tag(definition: Any, attribute: Any, tag: object) -> None:
    if tag is not None and not isinstance(tag, OutputTag):
        raise JobDefinitionError(f"late records of an interval join go to an OutputTag, not to {format_value(tag, 80)}")


@frozen(kw_only=True)
class IntervalJoinDefinition:
    """The settings of an interval join, as a graph node holds them; picklable. Input 0 is left, input 1 is right.

    Bounds are in milliseconds. A serializer that is None follows from the schema of the input. Raises
    `JobDefinitionError` if the lower bound is greater than the upper one.
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
                f"pass the lower one first to between()"
            )

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The function."""
        return (self.function,)


class AddIntervalJoin(Protocol[S]):
    """Adds the join to the graph and returns its output."""

    def __call__(self, definition: IntervalJoinDefinition, *, uid: str, name: str, schema: Any) -> S: ...


@frozen(eq=False)
class IntervalJoin(Generic[S]):
    """An interval join under construction. Each method returns a new one; `process` ends the chain."""

    _add: AddIntervalJoin[S] = field(repr=False)
    _bounds_ms: tuple[int, int] | None = None
    _is_lower_inclusive: bool = True
    _is_upper_inclusive: bool = True
    _late_left_tag: OutputTag[Any] | None = None
    _late_right_tag: OutputTag[Any] | None = None

    def between(self, lower_bound: Duration, upper_bound: Duration) -> IntervalJoin[S]:
        """Set the interval for right records, relative to the left record. Both bounds may be negative."""
        bounds = duration_ms(lower_bound, "the lower bound"), duration_ms(upper_bound, "the upper bound")
        return evolve(self, bounds_ms=bounds)

    def lower_bound_exclusive(self) -> IntervalJoin[S]:
        """Exclude right records that are exactly at the lower bound."""
        return evolve(self, is_lower_inclusive=False)

    def upper_bound_exclusive(self) -> IntervalJoin[S]:
        """Exclude right records that are exactly at the upper bound."""
        return evolve(self, is_upper_inclusive=False)

    def side_output_left_late_data(self, tag: OutputTag[Any]) -> IntervalJoin[S]:
        """Send late left records to a side output. Without it they are dropped."""
        return evolve(self, late_left_tag=tag)

    def side_output_right_late_data(self, tag: OutputTag[Any]) -> IntervalJoin[S]:
        """Send late right records to a side output. Without it they are dropped."""
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
        """Apply a function to each pair.

        ``left_type`` and ``right_type`` are serializers or type hints of the records, for inputs without a schema.

        Raises:
            JobDefinitionError: `between` is missing, or an argument is invalid.
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
    """Adds an operator to the graph and returns its output."""

    def __call__(self, inputs: tuple[OperatorInput, ...], function: Any, *, uid: str, name: str, schema: Any) -> S: ...


def as_columns(given: Any) -> tuple[Any, ...]:
    """Return columns that were passed as one, a list or a tuple."""
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def checked_function(function: Any, *kinds: type) -> Any:
    """Return an instance of one of these classes of functions. Raises `JobDefinitionError` for anything else."""
    if not isinstance(function, kinds):
        names = " or a ".join(kind.__name__ for kind in kinds)
        raise JobDefinitionError(f"process() takes an instance of a {names}, not {format_instance(function)}")
    return function


@frozen(eq=False)
class ConnectedStreams(Generic[S]):
    """Two streams that share one operator and its state. Set their keys before `process`."""

    _add: OperatorAdder[S] = field(repr=False)
    _first: StreamEdge
    _second: StreamEdge
    _keys: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None

    def key_by(self, first: Any, second: Any = None) -> ConnectedStreams[S]:
        """Set the keys of both streams: each a column or a list of columns.

        Without ``second``, both streams use columns of the same names.
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
        """Apply a function with a method for each stream and shared state per key.

        ``uid``, ``schema`` and ``name`` are as for `KeyedStream.process`. ``first_order_by`` and ``second_order_by``
        sort the records of each stream within an epoch. Raises `JobDefinitionError` if the streams have no keys.
        """
        checked_function(function, KeyedCoProcessFunction)
        if self._keys is None:
            raise JobDefinitionError(
                "process() of connected streams needs keys: connect(...).key_by('column', 'column').process(...)"
            )
        inputs = (
            KeyedInput(self._first, self._keys[0], as_columns(first_order_by)),
            KeyedInput(self._second, self._keys[1], as_columns(second_order_by)),
        )
        return self._add(inputs, function, uid=uid, name=name or type(function).__name__, schema=schema)


@frozen(eq=False)
class MultipleConnectedStreams(Generic[S]):
    """Any number of keyed streams that share one operator and its state."""

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
        """Apply a function that receives the input index of each record. The rest is as for `KeyedStream.process`.

        ``order_by`` holds for each stream the columns that sort its records within an epoch, or ``()``. Raises
        `JobDefinitionError` if it has another number of entries.
        """
        checked_function(function, KeyedMultipleInputFunction)
        orders = [()] * len(self._inputs) if order_by is None else order_by
        if isinstance(orders, str) or len(orders) != len(self._inputs):
            raise JobDefinitionError(
                f"order_by of {len(self._inputs)} streams is {format_value(order_by, 80)}; pass one entry for each "
                f"stream, such as ['time', ()]"
            )
        inputs = tuple(
            evolve(one, order_by=as_columns(columns)) for one, columns in zip(self._inputs, orders, strict=True)
        )
        return self._add(inputs, function, uid=uid, name=name or type(function).__name__, schema=schema)


@frozen(eq=False)
class BroadcastStream:
    """A stream whose records go to every subtask of the connected operator."""

    edge: StreamEdge
    descriptors: tuple[BroadcastStateDescriptor[Any, Any], ...]
    """The states in which the function stores the records."""
    order_by: tuple[Any, ...]
    """The columns that sort the records within each epoch."""


@frozen(eq=False)
class BroadcastConnectedStream(Generic[S]):
    """A stream, keyed or not, and a broadcast stream."""

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
        """Apply a function with a method for each stream. The rest is as for `KeyedStream.process`.

        A stream without keys takes a `BroadcastProcessFunction`, and its records are distributed evenly. ``order_by``
        applies to the stream that is not broadcast.

        On Spark the records of the broadcast stream come first in an epoch, so they apply to all other records of the
        epoch. The local runtime does the same if either stream is sorted. Otherwise records are processed as they
        arrive, and the source that was created first comes first.
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
                f"{type(function).__name__} is a BroadcastProcessFunction, which has no key: write a "
                f"KeyedBroadcastProcessFunction, or connect the stream before key_by()"
            )
        first = evolve(self._first, order_by=as_columns(order_by))
        inputs = (first, BroadcastInput(self._broadcast.edge, self._broadcast.order_by))
        return self._add(inputs, definition, uid=uid, name=name or type(function).__name__, schema=schema)


@frozen(eq=False)
class JoinedStreams(Generic[S]):
    """A join of two streams by key and window under construction: `where`, `equal_to`, then `window`."""

    _add: OperatorAdder[S] = field(repr=False)
    _first: StreamEdge
    _second: StreamEdge
    _kind: PairFunction
    _keys: tuple[Any, ...] = ()
    _other_keys: tuple[Any, ...] = ()

    def where(self, *keys: Any) -> JoinedStreams[S]:
        """Set the key columns of the first stream."""
        return JoinedStreams(self._add, self._first, self._second, self._kind, keys, self._other_keys)

    def equal_to(self, *keys: Any) -> JoinedStreams[S]:
        """Set the key columns of the second stream, as many as of the first."""
        return JoinedStreams(self._add, self._first, self._second, self._kind, self._keys, keys)

    def window(
        self, assigner: WindowAssigner[Any], *, first_order_by: Any = (), second_order_by: Any = ()
    ) -> WindowedStreamPair[S]:
        """Assign the records of both streams to windows.

        ``first_order_by`` and ``second_order_by`` are as ``order_by`` of `KeyedStream.window`. The returned object
        sets when windows fire; its ``apply`` ends the chain. Raises `JobDefinitionError` if keys are missing or the
        assigner is invalid.
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
