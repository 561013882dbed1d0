"""Streams: the chain that defines a job, ``env.from_...(...).key_by(...).process(...).sink_to(...)``.

The chain is the same in every environment; sources, key columns and sinks differ. A stream may have several
consumers, so a chain may fork. `DataStream.union` merges streams into one, and `connect` passes several streams to
one operator. `AsyncDataStream` applies functions that call other systems, as in Flink.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, overload

from snapshots.errors import format_value
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.streaming.aggregates import Aggregate, AggregateDefinition, checked_aggregates
from statebackend.streaming.async_functions import (
    DEFAULT_CAPACITY,
    AsyncFunction,
    AsyncRetryStrategy,
    AsyncWaitDefinition,
    EmissionOrder,
)
from statebackend.streaming.batch_functions import KeyedBatchFunction
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
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.functions import KeyedProcessFunction, user_functions_of
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.rows.record_schema import annotated_output, is_record_class, record_type, returned_type
from statebackend.streaming.stateful_processor import (
    StatefulProcessorFunction,
    TimeMode,
    checked_output_mode,
    checked_processor,
)
from statebackend.streaming.stream_graph import (
    FILTER,
    FLAT_MAP,
    KEY_TYPES,
    MAP,
    ONLY_SINK,
    DataFrameNode,
    KeyedInput,
    KeyFunction,
    OperatorInput,
    OperatorNode,
    RecordsNode,
    RecordStepNode,
    SinkNode,
    SpreadInput,
    StreamEdge,
    StreamGraph,
    TimestampsNode,
    UnionNode,
    has_timestamps,
    record_class_of,
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

if TYPE_CHECKING:
    # With a default, a stream of unknown records needs no type argument (PEP 696).
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
R = TypeVar("R")


class DataStream(Generic[T]):
    """A stream of records."""

    def __init__(self, graph: StreamGraph, edge: StreamEdge) -> None:
        self.graph = graph
        """The graph of the stream."""
        self.edge = edge
        """The edge of the graph that carries its records."""

    def key_by(self, *keys: Any, key_type: Any = None) -> KeyedStream[T]:
        """Partition the stream by one or more columns.

        Args:
            keys: Names of columns, functions of a record or, on Spark, expressions. With several columns the key is a
                tuple. A null key is an error.
            key_type: What the only key, a function, returns: a Python type (`str`, `int`, `bool`, `bytes`, `date`,
                `datetime`) or a column type such as ``"int"``. By default the type that the function is annotated to
                return. Spark needs it. Without it the first record decides in the local runtime.

        Example:
            ```python
            payments.key_by(lambda payment: payment.card[:4], key_type=str)
            ```
        """
        if not keys:
            raise JobDefinitionError("key_by needs at least one column")
        if any(isinstance(key, (list, tuple)) for key in keys):
            raise JobDefinitionError("key_by takes columns as arguments: key_by('a', 'b'), not key_by(['a', 'b'])")
        if key_type is not None:
            if len(keys) != 1 or not callable(keys[0]):
                raise JobDefinitionError("key_type of key_by() is the type of one function; columns have types already")
            type_name = KEY_TYPES.get(key_type) if isinstance(key_type, type) else key_type
            if not isinstance(type_name, str):
                raise JobDefinitionError(
                    f"key_type of key_by() is {format_value(key_type, 80)}; pass one of "
                    f"{', '.join(kind.__name__ for kind in KEY_TYPES)}, or a column type such as 'int'"
                )
            [column] = parsed_schema(type_name, "key_type of key_by()").columns
            keys = (KeyFunction(keys[0], column.type_name),)
        return KeyedStream(self.graph, self.edge, keys)

    def group_by(self, *columns: Any) -> GroupedStream:
        """Group the stream by one or more columns for a stateful processor of Spark; see `GroupedStream`.

        Pass columns as for `key_by`, or as one list. A null key is an error.
        """
        is_list = len(columns) == 1 and isinstance(columns[0], (list, tuple))
        return GroupedStream(self.graph, self.edge, self.key_by(*(columns[0] if is_list else columns)).keys)

    def map(self, function: Callable[[T], Any], *, schema: Any = None) -> DataStream:
        """Replace each record by what a function returns for it.

        Args:
            function: The function. It is sent to the workers, and is called again if Spark repeats a task.
            schema: The schema of the results, as for `KeyedStream.process`. A function that is annotated to return a
                record class needs none. Spark needs a schema. Without one the local runtime emits the results as they
                are.

        Example:
            ```python
            payments.map(lambda one: (one.card, one.amount * 2), schema="card string, amount bigint")
            ```
        """
        return self._step(MAP, function, schema)

    def filter(self, function: Callable[[T], Any]) -> DataStream[T]:
        """Keep the records for which a function returns a true value."""
        return self._step(FILTER, function, None)

    def flat_map(self, function: Callable[[T], Iterable[Any] | None], *, schema: Any = None) -> DataStream:
        """Replace each record by any number of records: what a function yields or returns in a list.

        The arguments are as for `map`.
        """
        return self._step(FLAT_MAP, function, schema)

    def _step(self, method: str, function: Callable[[Any], Any], schema: Any) -> DataStream:
        if not callable(function):
            raise JobDefinitionError(f"{method}() takes a function of a record, not {format_value(function, 80)}")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise JobDefinitionError(f"{method}() takes a plain function; apply an async one with AsyncDataStream")
        hint = returned_type(function) if schema is None and method != FILTER else None
        node = RecordStepNode((self.edge,), method, function, hint if is_record_class(hint) else schema)
        return DataStream(self.graph, self.graph.add(node))

    def as_records(self, record_class: type[R]) -> DataStream[R]:
        """Make objects of a record class of the rows of this stream.

        The class is an attrs class, a dataclass, a NamedTuple, a pydantic model or a msgspec struct. Its fields are
        columns of the stream; other columns are left out. Functions after this step receive the objects.

        Args:
            record_class: The class. `docs/records-and-schemas.md` lists the column type of each Python type.

        Raises:
            JobDefinitionError: It is not a record class, or a field has no column type. When the job starts: the stream
                does not have the column of a field, or has it in another type.

        Example:
            ```python
            env.from_dataframe(frame).as_records(Payment).key_by("card").process(DetectFraud(), uid="fraud")
            ```
        """
        record_type(record_class, "as_records()")
        return DataStream(self.graph, self.graph.add(RecordsNode((self.edge,), record_class)))

    def transform_dataframe(self, function: Callable[[Any], Any]) -> DataStream:
        """Apply a function from DataFrame to DataFrame. Only the Spark runtime can run it.

        Use it for what Spark computes in columns, such as ``frame.where("flights > 1")``. `map`, `filter` and
        `flat_map` run on both runtimes.
        """
        return DataStream(self.graph, self.graph.add(DataFrameNode((self.edge,), function)))

    def union(self, *others: DataStream) -> DataStream:
        """Merge this stream with others, in no defined order.

        All streams need columns of the same names, in any order; the result has the order of this stream. Of two number
        types the wider one is used: `int` and `bigint` become `bigint`. Spark also unifies other types, which the local
        runtime rejects. The local runtime checks records without a schema against the schema of the other streams and
        converts them to its rows.
        """
        for other in others:
            if not isinstance(other, DataStream):
                raise JobDefinitionError(f"union() takes streams, not {format_value(other, 80)}")
        if not others:
            raise JobDefinitionError("union() needs at least one other stream")
        edges = (self.edge, *(other.edge for other in others))
        classes = {record_class_of(edge) for edge in edges}
        if len(classes) > 1:
            names = ", ".join(sorted("rows" if one is None else one.__name__ for one in classes))
            raise JobDefinitionError(f"union() of streams with different records: {names}; call as_records() after it")
        return DataStream(self.graph, self.graph.add(UnionNode(edges)))

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy[Any]) -> ProcessedStream:
        """Give the records of a source event time, and the operators after it watermarks.

        Call it on a source, or after stateless steps of one source, before any operator and once per source. Records
        beyond ``strategy.with_future_limit`` go to the side output of its tag.

        Raises:
            JobDefinitionError: The argument is not a strategy, its watermarks need `with_timestamps`, or the place is
                wrong.
        """
        if not isinstance(strategy, WatermarkStrategy):
            given: object = strategy
            raise JobDefinitionError(
                f"assign_timestamps_and_watermarks() takes a WatermarkStrategy, "
                f"not {format_value(given, 80)}; make one with "
                f"WatermarkStrategy.for_bounded_out_of_orderness('10 minutes').with_timestamps('column')"
            )
        if strategy.timestamps is None and strategy.has_watermarks:
            raise JobDefinitionError(
                "assign_timestamps_and_watermarks(): the strategy does not define timestamps; add "
                ".with_timestamps('column')"
            )
        source_of_timestamps(self.edge)
        return ProcessedStream(self.graph, self.graph.add(TimestampsNode((self.edge,), strategy)))

    def broadcast(self, *descriptors: BroadcastStateDescriptor[Any, Any], order_by: Any = ()) -> BroadcastStream:
        """Send this stream to every subtask of an operator, with ``keyed_stream.connect(...)``.

        Args:
            descriptors: The states in which the function stores the records.
            order_by: Columns that sort the records within each epoch. All subtasks receive the records in the same
                order, ties included.
        """
        return BroadcastStream(self.edge, descriptors, as_columns(order_by))

    @overload
    def connect(self, other: DataStream) -> ConnectedStreams[ProcessedStream]: ...
    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[ProcessedStream]: ...

    def connect(self, other: Any) -> Any:
        """Pass this stream and another one to one operator; ``connect(...).key_by(...)`` sets both keys.

        With a broadcast stream, this one needs no keys.
        """
        if isinstance(other, BroadcastStream):
            return BroadcastConnectedStream(self._add_operator, SpreadInput(self.edge), other)
        if not isinstance(other, DataStream):
            raise JobDefinitionError(
                f"connect() of a stream without keys takes another stream without keys, not "
                f"{format_value(other, 80)}; call key_by() on this stream too, or set both keys with "
                f"connect(...).key_by(...)"
            )
        return ConnectedStreams(self._add_operator, self.edge, other.edge)

    def join(self, other: DataStream) -> JoinedStreams[ProcessedStream]:
        """Join two streams by key and window. The function receives every pair of records.

        ``a.join(b).where('key of a').equal_to('key of b').window(assigner).apply(function, uid=..., schema=...)``
        """
        return self._joined(other, "join()", JoinWindowFunction)

    def co_group(self, other: DataStream) -> JoinedStreams[ProcessedStream]:
        """As `join`, with a function that receives both lists of records. One of them may be empty."""
        return self._joined(other, "co_group()", CoGroupWindowFunction)

    def sink_to(self, sink: Any, *, uid: str = ONLY_SINK) -> None:
        """Write the stream to a sink. A stream may have several sinks, and further operators.

        Args:
            sink: The sink.
            uid: Identifies the sink's staged data in checkpoints and must never change. A job's only sink needs none.
        """
        self.graph.add_sink(SinkNode((self.edge,), uid, sink))

    @property
    def _add_operator(self) -> OperatorAdder[ProcessedStream]:
        return partial(ProcessedStream.of, self.graph)

    def _joined(self, other: object, method: str, kind: PairFunction) -> JoinedStreams[ProcessedStream]:
        if not isinstance(other, DataStream):
            raise JobDefinitionError(
                f"{method} takes another stream, not {format_value(other, 80)}; set keys by where() and equal_to()"
            )
        return JoinedStreams(self._add_operator, self.edge, other.edge, kind)


class ProcessedStream(DataStream):
    """The output of an operator."""

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
        """Add an operator to the graph and return its output. Raises as `StreamGraph.add_operator`.

        Without a schema the functions define it by their annotations.
        """
        if schema is None:
            schema = next(filter(None, map(annotated_output, user_functions_of(function))), None)
        return cls(graph, graph.add_operator(OperatorNode(inputs, uid, name, function, schema)))

    def get_side_output(self, tag: OutputTag[Any]) -> DataStream:
        """Return the stream of what the operator emits with ``context.output(tag, value)``.

        Records under a tag that is never requested are dropped.
        """
        if not isinstance(tag, OutputTag):
            given: object = tag
            raise JobDefinitionError(f"get_side_output() takes an OutputTag, not {format_value(given, 80)}")
        return DataStream(self.graph, StreamEdge(self.edge.node, tag))


class KeyedStream(Generic[T]):
    """A stream partitioned by key."""

    def __init__(self, graph: StreamGraph, edge: StreamEdge, keys: tuple[Any, ...]) -> None:
        self.graph = graph
        """The graph of the stream."""
        self.edge = edge
        """The edge of the graph that carries its records."""
        self.keys = keys
        """The columns of the key."""

    @property
    def read(self) -> KeyedInput:
        """The stream as an input of an operator."""
        return KeyedInput(self.edge, self.keys)

    def process(
        self,
        function: KeyedProcessFunction[Any, T, Any] | KeyedBatchFunction[Any, T, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        order_by: Any = (),
    ) -> ProcessedStream:
        """Apply a function with state per key, which receives records one by one or in batches.

        Args:
            function: The function.
            uid: Identifies the operator's state in checkpoints and must never change.
            schema: The schema of the emitted records: a record class, DDL (``"tailnum string, flights bigint"``) or
                a ``StructType``. A function that is annotated with a record class needs none:
                ``KeyedProcessFunction[str, Payment, Alert]``.
            name: The display name; the class of the function by default.
            order_by: Columns that sort the records of a key within each epoch. Without them the order is that of
                arrival, which a shuffle on Spark does not define.
        """
        checked_function(function, KeyedBatchFunction, KeyedProcessFunction)
        read = KeyedInput(self.edge, self.keys, as_columns(order_by))
        name = name or type(function).__name__
        return self._add((read,), function, uid=uid, name=name, schema=schema)

    def aggregate(
        self,
        /,
        *,
        uid: str = "",
        name: str = "",
        order_by: Any = (),
        ttl: StateTtlConfig | None = None,
        **aggregates: Aggregate,
    ) -> ProcessedStream:
        """Aggregate the records of each key by built-in aggregates, with the semantics of Spark SQL.

        Each epoch emits one row per key that it has records of: the key columns, and the aggregates over all records so
        far, as ``groupBy(...).agg(...)`` in Spark's update mode. ``docs/aggregates.md`` lists types and nulls.

        Args:
            uid: Identifies the operator's state in checkpoints and must never change.
            name: The display name.
            order_by: Columns that sort the records of a key within each epoch, for aggregates that depend on the order.
                Without them such records are sorted by event time, and then by the columns that these aggregates read.
            ttl: How long the accumulators of a key live without records. Forever by default.
            aggregates: The aggregates, by the names of their result columns.

        Raises:
            JobDefinitionError: There are no aggregates, or one of them is something else. When the job starts: the
                schema of the input is not known, or does not fit.

        Example:
            ```python
            payments.key_by("card").aggregate(n=count(), spent=sum_("amount"), uid="totals")
            ```
        """
        definition = AggregateDefinition(checked_aggregates(aggregates), ttl)
        read = KeyedInput(self.edge, self.keys, as_columns(order_by))
        return self._add((read,), definition, uid=uid, name=name or "aggregate", schema=None)

    def window(self, assigner: WindowAssigner[Any], *, order_by: Any = ()) -> WindowedStream[ProcessedStream]:
        """Assign the records of each key to windows. The returned stream sets when they fire and what they emit.

        ``order_by`` is as for `process`: windows receive the records of a key in this order, and fire in it.
        """
        read = KeyedInput(self.edge, self.keys, as_columns(order_by))

        def add(definition: WindowDefinition, *, uid: str, name: str, schema: Any) -> ProcessedStream:
            return self._add((read,), definition, uid=uid, name=name, schema=schema)

        return WindowedStream.of(add, assigner)

    def count_window(self, size: int, *, order_by: Any = ()) -> WindowedStream[ProcessedStream]:
        """Consecutive windows of ``size`` records of a key. ``order_by`` is as for `window`."""
        return self.window(GlobalWindows.create(), order_by=order_by).trigger(PurgingTrigger.of(CountTrigger.of(size)))

    @overload
    def connect(self, other: KeyedStream) -> ConnectedStreams[ProcessedStream]: ...
    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[ProcessedStream]: ...

    def connect(self, other: Any) -> Any:
        """Pass this stream and another one to one operator: a stream with the same key types, or a broadcast stream."""
        if isinstance(other, BroadcastStream):
            return BroadcastConnectedStream(self._add, self.read, other)
        keys = self.keys, self._checked(other, "connect()").keys
        return ConnectedStreams(self._add, self.edge, other.edge, keys)

    def connect_all(self, *others: KeyedStream) -> MultipleConnectedStreams[ProcessedStream]:
        """Pass this stream and others with the same key types to one operator. This stream is input 0."""
        reads = (self.read, *(self._checked(other, "connect_all()").read for other in others))
        return MultipleConnectedStreams(self._add, reads)

    def interval_join(
        self, other: KeyedStream, *, first_order_by: Any = (), second_order_by: Any = ()
    ) -> IntervalJoin[ProcessedStream]:
        """Join each record with records of another keyed stream that are near to it in event time.

        ``left.interval_join(right).between('-5 minutes', '5 minutes').process(function, uid=..., schema=...)``

        ``first_order_by`` and ``second_order_by`` sort the records of each stream, as ``order_by`` of `process` does.
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
    """A stream grouped by key, as from Spark's ``DataFrame.groupBy``."""

    def __init__(self, graph: StreamGraph, edge: StreamEdge, keys: tuple[Any, ...]) -> None:
        self.graph = graph
        """The graph of the stream."""
        self.edge = edge
        """The edge of the graph that carries its records."""
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
        """Run a PySpark ``StatefulProcessor`` in its row form, unchanged.

        docs/transform-with-state.md lists the differences to Spark.

        Args:
            processor: The processor.
            output_schema: DDL or a ``StructType``.
            output_mode: "append" or "update". Both write the rows that the processor emits.
            time_mode: "none", "processingTime" or, if the records have timestamps, "eventTime".
            initial_state: A batch frame grouped by the same key. ``handleInitialState`` receives its rows once, before
                the first records. A restored operator ignores it.
            uid: Identifies the state and must never change. By default the name of the processor's class.
            name: The display name.

        Raises:
            JobDefinitionError: An argument is invalid.
        """
        given = type(processor).__name__
        where = f"transform_with_state({given})"
        checked_processor(processor, where, has_initial_state=initial_state is not None)
        checked_output_mode(output_mode, where)
        mode, keys = TimeMode.named(time_mode, where), self.keys
        if mode is TimeMode.EVENT_TIME and not has_timestamps(self.edge):
            # Without watermarks its timers never fire.
            raise JobDefinitionError(
                f"{where}: time_mode='eventTime' needs watermarks, and a source of the stream has none: call "
                f"withWatermark('column', '10 minutes') on its frame, or assign_timestamps_and_watermarks(...)"
            )
        function = StatefulProcessorFunction(processor, mode, output_schema, len(keys), initial_state)
        # Sorting by key makes the records of a key consecutive.
        read = KeyedInput(self.edge, keys, order_by=keys)
        return ProcessedStream.of(
            self.graph, (read,), function, uid=uid or given, name=name or given, schema=output_schema
        )


class AsyncDataStream:
    """Applies an `AsyncFunction` to a stream.

    Args of both methods:
        timeout: The longest time for a record, all attempts together, as a `Duration`.
        capacity: The maximum number of records and watermarks of a subtask in flight; the operator then blocks.
        retry: When to retry a request.
        uid: Identifies the in-flight records in checkpoints and must never change.
        schema: The schema of the emitted records, as for `KeyedStream.process`.
        carry_in_flight: At a checkpoint the operator waits for in-flight requests (on Spark at the end of every
            epoch). With this option the checkpoint stores the records instead, and the operator repeats their requests
            first in the next epoch or after a restore. A request may then be made twice; the checkpoint after that
            waits for it.

    On a keyed stream all records of a key go to the same subtask in order. Records of other streams are distributed
    evenly, and the order is that within a subtask. Both methods raise `JobDefinitionError` for invalid arguments.
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
        """Emit results in the order of the records. A slow record delays those after it."""
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
        """Emit results as they arrive, but never across a watermark."""
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
        raise JobDefinitionError(f"{method} takes an instance of an AsyncFunction, not {format_instance(function)}")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise JobDefinitionError(f"capacity of {method} is {format_value(capacity, 40)}; pass an integer of 1 or more")
    if retry is not None and not isinstance(retry, AsyncRetryStrategy):
        raise JobDefinitionError(
            f"retry of {method} is {format_value(retry, 80)}; pass None, AsyncRetryStrategy.fixed_delay(...) or "
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
