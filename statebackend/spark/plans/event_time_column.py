"""The event-time column of frames in a job with event time.

It is added where records get their timestamps, and by every operator that another one reads. It passes through steps
and unions to that operator. Where no operator follows, it is dropped, so sinks and the steps before them see only the
columns of the user. A step between two operators must not change it. A job without event time has no such column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, LongType, TimestampType

from snapshots.errors import format_value
from statebackend.spark.columns import column_meant_by
from statebackend.spark.tasks.arrow_rows import TIME_COLUMN, TIME_TYPE
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import RESERVED_PREFIX
from statebackend.streaming.runtime.event_time import EventTime, check_follows_from_epochs
from statebackend.streaming.runtime.settings import unfit_column, unfit_type
from statebackend.streaming.stream_graph import (
    DataFrameNode,
    JobGraph,
    Node,
    NodeKind,
    OperatorNode,
    RecordsNode,
    RecordStepNode,
    StreamEdge,
    TimestampsNode,
    UnionNode,
)

__all__ = ["EventTimeColumn", "TimeOfOperator"]

_METHOD: Final = "assign_timestamps_and_watermarks()"


@frozen
class TimeOfOperator:
    """Whether the rows that an operator reads have the column, and may be early."""

    is_in_input: bool = False
    may_be_early: bool = False


class EventTimeColumn:
    """The column in the frames of one job. Call `prepare` once for each node that assigns timestamps."""

    def __init__(self, graph: JobGraph) -> None:
        """Raise `JobDefinitionError` for a watermark strategy that this runtime does not support."""
        self.event_time = EventTime.of(graph)
        check_follows_from_epochs(self.event_time)
        """None if no stream of the job has timestamps."""
        self._columns: dict[TimestampsNode, Column] = {}
        self._to_operators = _leading_to_operators(graph)
        self._has_time: dict[Node, bool] = {}
        self._may_be_early: dict[Node, bool] = {}
        for node in graph.nodes:
            is_operator = node.kind is NodeKind.OPERATOR
            inputs = [edge.node for edge in node.inputs]
            self._may_be_early[node] = is_operator or any(map(self._may_be_early.__getitem__, inputs))
            self._has_time[node] = self.event_time is not None and (
                isinstance(node, TimestampsNode)
                or (node in self._to_operators and (is_operator or any(map(self._has_time.__getitem__, inputs))))
            )

    def prepare(self, node: TimestampsNode, frame: DataFrame) -> None:
        """Create the column of the records' timestamps; raise `JobDefinitionError` if the strategy does not fit."""
        assert self.event_time is not None
        reserved = [name for name in frame.columns if name.startswith(RESERVED_PREFIX)]
        if reserved:
            raise JobDefinitionError(f"{_METHOD}: the column names {', '.join(reserved)} are reserved")
        self._columns[node] = _time_column(frame, node, self.event_time.name_of(node))

    def assigned(
        self, node: TimestampsNode, frame: DataFrame, processing_time_ms: int
    ) -> Iterator[tuple[OutputTag[Any] | None, DataFrame]]:
        """Return the records with their timestamps and, with its tag, the side output of future records.

        Future records have no source, so they do not advance event time.
        """
        timed = frame.withColumn(TIME_COLUMN, self._columns[node])
        strategy = node.strategy
        if strategy.future_limit_ms is None:
            yield None, timed
            return
        timestamp = F.col(TIME_COLUMN)["timestamp"]
        latest_ms = processing_time_ms + strategy.future_limit_ms
        # A record without a timestamp is not in the future.
        is_future = F.coalesce(timestamp > F.lit(latest_ms), F.lit(False))
        yield None, timed.where(~is_future)
        of_no_source = _time_struct(timestamp, F.lit(None), F.lit(None))
        yield strategy.future_tag, timed.where(is_future).withColumn(TIME_COLUMN, of_no_source)

    def before_step(self, node: DataFrameNode | RecordStepNode | RecordsNode, frame: DataFrame) -> DataFrame:
        """What a step reads."""
        return self._fitting(frame, self._has_time[node.inputs[0].node], self._has_time[node])

    def check_step(self, node: DataFrameNode, result: DataFrame) -> None:
        """Raise `JobDefinitionError` for a step before an operator that drops the column."""
        if not self._has_time[node]:
            return
        types = {field.name: field.dataType.simpleString() for field in result.schema.fields}
        if types.get(TIME_COLUMN) != TIME_TYPE.simpleString():
            raise JobDefinitionError(
                f"a transform_dataframe() after {_METHOD} or an operator, and before an operator, returns no column "
                f"{TIME_COLUMN!r}, which has the event time of its rows: keep it unchanged, with withColumn(...) or "
                f"select(..., {TIME_COLUMN!r}); or transform the records before {_METHOD}"
            )

    def before_union(self, node: UnionNode, frames: Sequence[DataFrame]) -> list[DataFrame]:
        """The frames that a union reads, all with the column or all without it."""
        return [
            self._fitting(frame, self._has_time[edge.node], self._has_time[node])
            for edge, frame in zip(node.inputs, frames, strict=True)
        ]

    def before_sink(self, edge: StreamEdge, frame: DataFrame) -> DataFrame:
        """What a sink is given."""
        return self._fitting(frame, self._has_time[edge.node], False)

    def of_operator(self, edge: StreamEdge) -> TimeOfOperator:
        """What an operator that reads this has to do with event time."""
        is_in_input = self._has_time[edge.node]
        return TimeOfOperator(is_in_input, is_in_input and self._may_be_early[edge.node])

    def is_in_output(self, node: OperatorNode) -> bool:
        """Whether what an operator emits has the column."""
        return self._has_time[node]

    @staticmethod
    def _fitting(frame: DataFrame, has_time: bool, is_wanted: bool) -> DataFrame:
        if has_time == is_wanted:
            return frame
        return frame.withColumn(TIME_COLUMN, F.lit(None).cast(TIME_TYPE)) if is_wanted else frame.drop(TIME_COLUMN)


def _leading_to_operators(graph: JobGraph) -> frozenset[Node]:
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.kind is NodeKind.OPERATOR or node in found:
            found.update(edge.node for edge in node.inputs)
    return frozenset(found)


_MILLISECONDS: Final[Mapping[type, Any]] = {
    TimestampType: F.unix_millis,
    LongType: lambda column: column,
    IntegerType: lambda column: column.cast(LongType()),
}


def _time_column(frame: DataFrame, node: TimestampsNode, source_name: str) -> Column:
    strategy = node.strategy
    given = F.lit(None).cast(LongType()) if strategy.timestamps is None else strategy.timestamps
    timestamps = _given_column(frame, given, source_name, "with_timestamps")
    data_type = frame.select(timestamps).schema.fields[0].dataType
    milliseconds = _MILLISECONDS.get(type(data_type))
    if milliseconds is None:
        raise unfit_type(source_name, data_type.simpleString())
    channel = F.lit("")
    if strategy.channel is not None:
        channel = channel_column(_given_column(frame, strategy.channel, source_name, "with_channel"))
    return _time_struct(milliseconds(timestamps), F.lit(source_name), channel)


def channel_column(value: Column) -> Column:
    """The name of a channel, as `statebackend.streaming.watermark_strategy.channel_name` gives it."""
    text = value.cast("string")
    quoted = F.when(F.translate(text, '"', "") == "", F.concat(F.lit('"'), text, F.lit('"'))).otherwise(text)
    return F.coalesce(quoted, F.lit(""))


def _time_struct(timestamp: Column, source: Column, channel: Column) -> Column:
    parts = zip((timestamp, source, channel, F.lit(False)), TIME_TYPE.fields, strict=True)
    return F.struct(*(part.cast(field.dataType).alias(field.name) for part, field in parts))


def _given_column(frame: DataFrame, given: Any, source_name: str, method: str) -> Column:
    column = column_meant_by(given, frame.columns) if isinstance(given, str) else given
    if not isinstance(column, Column):
        raise JobDefinitionError(
            f"{_METHOD}: {method} is {format_value(given, 80)}; on Spark it "
            f"takes the name of a column or a Column, and no "
            f"function of a record"
        )
    try:
        # Asking for the schema has Spark analyse the expression.
        frame.select(column).schema  # noqa: B018
    except AnalysisException as error:
        why = "" if isinstance(given, str) else str(error).splitlines()[0]
        raise unfit_column(source_name, method, given, frame.columns, why) from error
    return column
