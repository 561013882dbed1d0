"""How a stream goes through a function that asks other systems: `AsyncDataStream`, as in Flink.

The chain a program is written in: ``env.from_...(...).key_by(...).process(...).sink_to(...)``.

It is the same for every environment; only what a source, a key and a sink are differs. A stream may be read any number
of times, so that a chain may fork; `DataStream.union` joins streams into one, and `connect` brings several into one
operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, overload

from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.streaming.async_functions import (
    DEFAULT_CAPACITY,
    AsyncFunction,
    AsyncRetryStrategy,
    AsyncWaitDefinition,
    EmissionOrder,
)
from statebackend.streaming.connected_streams import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
    IntervalJoin,
    IntervalJoinDefinition,
    JoinedStreams,
    MultipleConnectedStreams,
    OperatorAdder,
    as_columns,
    checked_function,
)
from statebackend.streaming.errors import JobDefinitionError, format_value, shown_instance
from statebackend.streaming.functions import KeyedProcessFunction
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.stateful_processor import (
    StatefulProcessorFunction,
    TimeMode,
    checked_output_mode,
    checked_processor,
)
from statebackend.streaming.stream_graph import (
    ONLY_SINK,
    KeyedInput,
    OperatorInput,
    OperatorNode,
    SinkNode,
    SpreadInput,
    StreamEdge,
    StreamGraph,
    TimestampsNode,
    TransformNode,
    UnionNode,
    has_timestamps,
    source_of_timestamps,
)
from statebackend.streaming.time.timestamps import Duration, duration_ms
from statebackend.streaming.watermark_strategy import WatermarkStrategy
from statebackend.streaming.windows.assigners import GlobalWindows, WindowAssigner
from statebackend.streaming.windows.triggers import CountTrigger, PurgingTrigger
from statebackend.streaming.windows.window_definition import WindowDefinition
from statebackend.streaming.windows.windowed_stream import (
    CoGroupWindowFunction,
    JoinWindowFunction,
    PairFunction,
    WindowedStream,
)

__all__ = ["AsyncDataStream"]


class DataStream:
    """A stream of records."""

    def __init__(self, graph: StreamGraph, edge: StreamEdge) -> None:
        self.graph = graph
        """The graph that the stream is part of."""
        self.edge = edge
        """The end of the chain so far."""

    def key_by(self, *keys: Any) -> KeyedStream:
        """Partitions the stream by one or more columns, given by name or, on Spark, as expressions.

        With several columns the key is a tuple. A record whose key is null is an error.
        """
        if not keys:
            raise JobDefinitionError("key_by needs at least one column")
        if any(isinstance(key, (list, tuple)) for key in keys):
            raise JobDefinitionError("key_by takes its columns one by one: key_by('a', 'b'), not key_by(['a', 'b'])")
        return KeyedStream(self.graph, self.edge, keys)

    def group_by(self, *columns: Any) -> GroupedStream:
        """Groups the stream by one or more columns for a processor written for Spark; see `GroupedStream`.

        Columns are given as to `key_by`, or as one list of them, and a record whose key is null is an error too.
        """
        is_list = len(columns) == 1 and isinstance(columns[0], (list, tuple))
        return GroupedStream(self.graph, self.edge, self.key_by(*(columns[0] if is_list else columns)).keys)

    def transform(self, function: Callable[[Any], Any]) -> DataStream:
        """A stateless step: on Spark from DataFrame to DataFrame, in-process from record to an iterable of records."""
        return DataStream(self.graph, self.graph.add(TransformNode((self.edge,), function)))

    def union(self, *others: DataStream) -> DataStream:
        """The records of this stream and the others as one stream, in no order.

        All must have columns of the same names, in any order; what comes out has the order of this stream. Of numbers
        of two types it has the wider: `int` and `bigint` are a `bigint`. What else Spark makes one type of is that
        on Spark, and rejected in-process. In-process, records without a schema are checked against that of the others,
        and become rows of it.
        """
        for other in others:
            if not isinstance(other, DataStream):
                raise JobDefinitionError(f"union() takes streams, not {format_value(other, 80)}")
        if not others:
            raise JobDefinitionError("union() needs at least one other stream")
        edges = (self.edge, *(other.edge for other in others))
        return DataStream(self.graph, self.graph.add(UnionNode(edges)))

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy[Any]) -> ProcessedStream:
        """Gives the records of a source their event time, and the operators behind it watermarks.

        It stands behind a source, or behind stateless steps of one, once for each source and before operators. What is
        too far in the future for ``strategy.with_future_limit`` is in the side output of that tag.

        Raises `JobDefinitionError` for what is no strategy, for one without `with_timestamps`, and for another place.
        """
        if not isinstance(strategy, WatermarkStrategy):
            given: object = strategy
            raise JobDefinitionError(
                f"assign_timestamps_and_watermarks() takes a WatermarkStrategy, "
                f"not {format_value(given, 80)}; make one with "
                f"WatermarkStrategy.for_bounded_out_of_orderness('10 minutes').with_timestamps('column')"
            )
        if strategy.timestamps is None:
            raise JobDefinitionError(
                "assign_timestamps_and_watermarks(): the strategy does not say where the timestamps are; add "
                ".with_timestamps('column')"
            )
        source_of_timestamps(self.edge)
        return ProcessedStream(self.graph, self.graph.add(TimestampsNode((self.edge,), strategy)))

    def broadcast(self, *descriptors: BroadcastStateDescriptor[Any, Any], order_by: Any = ()) -> BroadcastStream:
        """This stream as one that every subtask of an operator is given whole, for ``keyed_stream.connect(...)``.

        ``descriptors`` are the states that the function keeps its records in. All subtasks are given the records in the
        same order: that of ``order_by`` within each epoch and, where that leaves it open, one that is the same for all.
        """
        return BroadcastStream(self.edge, descriptors, as_columns(order_by))

    @overload
    def connect(self, other: DataStream) -> ConnectedStreams[ProcessedStream]: ...
    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[ProcessedStream]: ...

    def connect(self, other: Any) -> Any:
        """This stream and another for one operator; ``connect(...).key_by(...)`` gives both their keys.

        With one that is broadcast, this one needs no keys.
        """
        if isinstance(other, BroadcastStream):
            return BroadcastConnectedStream(self._add_operator, SpreadInput(self.edge), other)
        if not isinstance(other, DataStream):
            raise JobDefinitionError(
                f"connect() of a stream without keys takes another one, not "
                f"{format_value(other, 80)}; call key_by() on this "
                f"one too, or give both their keys by connect(...).key_by(...)"
            )
        return ConnectedStreams(self._add_operator, self.edge, other.edge)

    def join(self, other: DataStream) -> JoinedStreams[ProcessedStream]:
        """Brings both streams together by key and window; the function is given every pair of their records.

        ``a.join(b).where('key of a').equal_to('key of b').window(assigner).apply(function, uid=..., schema=...)``
        """
        return self._joined(other, "join()", JoinWindowFunction)

    def co_group(self, other: DataStream) -> JoinedStreams[ProcessedStream]:
        """As `join`, with a function that is given both lists of records, of which one may be empty."""
        return self._joined(other, "co_group()", CoGroupWindowFunction)

    def sink_to(self, sink: Any, *, uid: str = ONLY_SINK) -> None:
        """Ends the chain: where the records go. A stream may have several sinks, and go on beside them.

        ``uid`` names for ever, in checkpoints, what the sink has staged; a job's only sink needs none.
        """
        self.graph.add_sink(SinkNode((self.edge,), uid, sink))

    @property
    def _add_operator(self) -> OperatorAdder[ProcessedStream]:
        return partial(ProcessedStream.of, self.graph)

    def _joined(self, other: object, method: str, kind: PairFunction) -> JoinedStreams[ProcessedStream]:
        if not isinstance(other, DataStream):
            raise JobDefinitionError(
                f"{method} takes another stream, not {format_value(other, 80)}; "
                f"its keys are given by where() and equal_to()"
            )
        return JoinedStreams(self._add_operator, self.edge, other.edge, kind)


class ProcessedStream(DataStream):
    """What an operator emits."""

    @classmethod
    def of(
        cls,
        graph: StreamGraph,
        inputs: tuple[OperatorInput, ...],
        function: Any,
        *,
        uid: str,
        name: str,
        schema: Any,
    ) -> ProcessedStream:
        """That of an operator that is added to the graph; raises as `StreamGraph.add_operator`."""
        return cls(graph, graph.add_operator(OperatorNode(inputs, uid, name, function, schema)))

    def get_side_output(self, tag: OutputTag[Any]) -> DataStream:
        """The stream of what the operator emits with ``context.output(tag, value)``.

        What is emitted under a tag that nobody asks for here is dropped.
        """
        if not isinstance(tag, OutputTag):
            given: object = tag
            raise JobDefinitionError(f"get_side_output() takes an OutputTag, not {format_value(given, 80)}")
        return DataStream(self.graph, StreamEdge(self.edge.node, tag))


class KeyedStream:
    """A stream partitioned by key."""

    def __init__(self, graph: StreamGraph, edge: StreamEdge, keys: tuple[Any, ...]) -> None:
        self.graph = graph
        """The graph that the stream is part of."""
        self.edge = edge
        """The end of the chain so far."""
        self.keys = keys
        """The columns of the key."""

    @property
    def read(self) -> KeyedInput:
        """The stream as an input of an operator."""
        return KeyedInput(self.edge, self.keys)

    def process(
        self,
        function: KeyedProcessFunction[Any, Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        order_by: Any = (),
    ) -> ProcessedStream:
        """Applies a function with state per key.

        ``uid`` names the operator's state for ever. ``schema`` is that of the emitted records, as DDL
        (``"tailnum string, flights bigint"``) or, on Spark, a ``StructType``. ``order_by`` names columns by which the
        records of a key are sorted within each epoch; without it their order is that in which they arrive, which on
        Spark a shuffle does not define.
        """
        checked_function(function, KeyedProcessFunction)
        read = KeyedInput(self.edge, self.keys, as_columns(order_by))
        name = name or type(function).__name__
        return self._add((read,), function, uid=uid, name=name, schema=schema)

    def window(self, assigner: WindowAssigner[Any], *, order_by: Any = ()) -> WindowedStream[ProcessedStream]:
        """Puts the records of each key into windows; what is returned says when they fire, and what is made of them.

        ``order_by`` is as that of `process`: windows take the records of a key in this order, and fire in it.
        """
        read = KeyedInput(self.edge, self.keys, as_columns(order_by))

        def add(definition: WindowDefinition, *, uid: str, name: str, schema: Any) -> ProcessedStream:
            return self._add((read,), definition, uid=uid, name=name, schema=schema)

        return WindowedStream.of(add, assigner)

    def count_window(self, size: int, *, order_by: Any = ()) -> WindowedStream[ProcessedStream]:
        """Windows of that many records of a key, one behind the other; ``order_by`` is as that of `window`."""
        return self.window(GlobalWindows.create(), order_by=order_by).trigger(PurgingTrigger.of(CountTrigger.of(size)))

    @overload
    def connect(self, other: KeyedStream) -> ConnectedStreams[ProcessedStream]: ...
    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[ProcessedStream]: ...

    def connect(self, other: Any) -> Any:
        """This stream and another for one operator: one that is keyed alike, or one that is broadcast."""
        if isinstance(other, BroadcastStream):
            return BroadcastConnectedStream(self._add, self.read, other)
        keys = self.keys, self._checked(other, "connect()").keys
        return ConnectedStreams(self._add, self.edge, other.edge, keys)

    def connect_all(self, *others: KeyedStream) -> MultipleConnectedStreams[ProcessedStream]:
        """This stream and others that are keyed alike for one operator; this one is input 0."""
        reads = (self.read, *(self._checked(other, "connect_all()").read for other in others))
        return MultipleConnectedStreams(self._add, reads)

    def interval_join(
        self, other: KeyedStream, *, first_order_by: Any = (), second_order_by: Any = ()
    ) -> IntervalJoin[ProcessedStream]:
        """Pairs each record with those of another stream, keyed alike, that are near to it in event time.

        ``left.interval_join(right).between('-5 minutes', '5 minutes').process(function, uid=..., schema=...)``

        The columns by which the records of a stream are sorted within each epoch are as for `process`.
        """
        right = self._checked(other, "interval_join()")
        inputs = (
            KeyedInput(self.edge, self.keys, as_columns(first_order_by)),
            KeyedInput(right.edge, right.keys, as_columns(second_order_by)),
        )

        def add(definition: IntervalJoinDefinition, *, uid: str, name: str, schema: Any) -> ProcessedStream:
            return self._add(inputs, definition, uid=uid, name=name, schema=schema)

        return IntervalJoin(add)

    @staticmethod
    def _checked(other: object, method: str) -> KeyedStream:
        if not isinstance(other, KeyedStream):
            raise JobDefinitionError(
                f"{method} of a keyed stream takes another keyed stream"
                f"{' or a broadcast one' if method == 'connect()' else ''}, not "
                f"{format_value(other, 80)}; call key_by() on it"
                f"{', or broadcast()' if method == 'connect()' else ''}"
            )
        return other

    @property
    def _add(self) -> OperatorAdder[ProcessedStream]:
        return partial(ProcessedStream.of, self.graph)


class GroupedStream:
    """A stream grouped by key, as Spark's ``DataFrame.groupBy`` makes it."""

    def __init__(self, graph: StreamGraph, edge: StreamEdge, keys: tuple[Any, ...]) -> None:
        self.graph = graph
        """The graph that the stream is part of."""
        self.edge = edge
        """The end of the chain so far."""
        self.keys = keys
        """The columns of the key."""

    def transform_with_state(
        self,
        processor: Any,
        output_schema: Any,
        output_mode: str,
        time_mode: str,
        initial_state: Any = None,
        *,
        uid: str = "",
        name: str = "",
    ) -> ProcessedStream:
        """Runs a ``StatefulProcessor`` of PySpark's, in its form with rows, as it is.

        ``output_schema`` is DDL or a ``StructType``; ``output_mode`` is "append" or "update", which write the same
        rows, those that the processor emits; ``time_mode`` is "none", "processingTime" or, where the records have
        timestamps, "eventTime". ``uid`` names the state for ever; without one it is the name of the
        processor's class, which then must not change. ``initial_state`` is a batch frame grouped by the same key, whose
        rows are given to ``handleInitialState`` once, before the first records; an operator that is restored gets
        none. What differs from Spark is in docs/from-transform-with-state.md. Raises `JobDefinitionError`.
        """
        given = type(processor).__name__
        where = f"transform_with_state({given})"
        checked_processor(processor, where, has_initial_state=initial_state is not None)
        checked_output_mode(output_mode, where)
        mode, keys = TimeMode.named(time_mode, where), self.keys
        if mode is TimeMode.EVENT_TIME and not has_timestamps(self.edge):
            # Its timers would wait for ever for a watermark.
            raise JobDefinitionError(
                f"{where}: time_mode='eventTime' needs watermarks, and a source of the stream has none: call "
                f"withWatermark('column', '10 minutes') on its frame, or assign_timestamps_and_watermarks(...)"
            )
        function = StatefulProcessorFunction(processor, mode, output_schema, len(keys), initial_state)
        # Sorted by key, the records of a key come one after another.
        read = KeyedInput(self.edge, keys, order_by=keys)
        return ProcessedStream.of(
            self.graph, (read,), function, uid=uid or given, name=name or given, schema=output_schema
        )


class AsyncDataStream:
    """The two ways through an `AsyncFunction`.

    ``timeout`` is how long a record may take, all attempts together, as a `Duration`. ``capacity`` is the most records
    and watermarks of a subtask that are under way at a time; when they are as many, the operator takes no more.
    ``retry`` says when a request is made again. ``uid`` names what is in flight in checkpoints for ever, and ``schema``
    is that of what is emitted, as in `KeyedStream.process`.

    At a checkpoint the operator waits for what is in flight, which on Spark is the end of every epoch. With
    ``carry_in_flight`` it puts the records into the checkpoint instead, and asks for them again, first of all, in the
    next epoch or after a restore: a request may then be made twice.

    Of a keyed stream all records of a key go to the same subtask, in order. Those of a stream without keys are dealt
    out evenly, and the order is that within a subtask. Both methods raise `JobDefinitionError` for what makes no
    operator.
    """

    @staticmethod
    def ordered_wait(
        stream: DataStream | KeyedStream,
        function: AsyncFunction[Any, Any],
        timeout: Duration,
        capacity: int = DEFAULT_CAPACITY,
        *,
        retry: AsyncRetryStrategy | None = None,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        carry_in_flight: bool = False,
    ) -> ProcessedStream:
        """The results in the order of the records: a slow one holds up those behind it."""
        definition = _definition(function, EmissionOrder.ORDERED, timeout, capacity, retry, carry_in_flight, stream)
        return _through(stream, definition, uid, name, schema)

    @staticmethod
    def unordered_wait(
        stream: DataStream | KeyedStream,
        function: AsyncFunction[Any, Any],
        timeout: Duration,
        capacity: int = DEFAULT_CAPACITY,
        *,
        retry: AsyncRetryStrategy | None = None,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        carry_in_flight: bool = False,
    ) -> ProcessedStream:
        """The results as they come, except that none passes a watermark."""
        definition = _definition(function, EmissionOrder.UNORDERED, timeout, capacity, retry, carry_in_flight, stream)
        return _through(stream, definition, uid, name, schema)


def _definition(
    function: AsyncFunction[Any, Any],
    order: EmissionOrder,
    timeout: Duration,
    capacity: int,
    retry: AsyncRetryStrategy | None,
    carries_in_flight: bool,
    stream: DataStream | KeyedStream,
) -> AsyncWaitDefinition:
    method = f"{order.value}_wait()"
    if not isinstance(stream, (DataStream, KeyedStream)):
        raise JobDefinitionError(f"{method} takes a stream first, not {format_value(stream, 80)}")
    if not isinstance(function, AsyncFunction):
        raise JobDefinitionError(f"{method} takes an instance of an AsyncFunction, not {shown_instance(function)}")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise JobDefinitionError(
            f"capacity of {method} is {format_value(capacity, 40)}; it is a whole number of 1 or more"
        )
    if retry is not None and not isinstance(retry, AsyncRetryStrategy):
        raise JobDefinitionError(
            f"retry of {method} is {format_value(retry, 80)}; it is None, AsyncRetryStrategy.fixed_delay(...) or "
            f"AsyncRetryStrategy.exponential_backoff(...)"
        )
    return AsyncWaitDefinition(
        function=function,
        order=order,
        timeout_ms=duration_ms(timeout, f"timeout of {method}", at_least_ms=1),
        capacity=capacity,
        retry=retry,
        carries_in_flight=carries_in_flight,
        is_keyed=isinstance(stream, KeyedStream),
    )


def _through(
    stream: DataStream | KeyedStream, definition: AsyncWaitDefinition, uid: str, name: str, schema: Any
) -> ProcessedStream:
    name = name or type(definition.function).__name__
    read = KeyedInput(stream.edge, stream.keys) if isinstance(stream, KeyedStream) else SpreadInput(stream.edge)
    return ProcessedStream.of(stream.graph, (read,), definition, uid=uid, name=name, schema=schema)
