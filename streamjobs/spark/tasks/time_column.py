"""The event time of rows, in a column beside those of the user's, wherever rows of a job with event time come to tasks.

    __statebackend_time   timestamp   milliseconds, or null
                          source      the source that the row is of; null for rows of operators
                          channel     its channel of the source, "" without channels; null for rows of operators
                          early       whether the row was sent before the watermark at which the epoch stands

Rows of a source are never early: an epoch is a watermark, and then the records of its batch. What an operator emits
while its own time moves on to that watermark comes before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp
from streamjobs.rows.row_reader import column_values

__all__ = [
    "EARLY_FIELD",
    "TIME_COLUMN",
    "TIME_TYPE",
    "BatchTime",
    "split_by_time",
    "time_of_emitted",
    "timestamps_of",
]

TIME_COLUMN: Final = "__statebackend_time"
EARLY_FIELD: Final = "early"
TIME_TYPE: Final = StructType(
    [
        StructField("timestamp", LongType()),
        StructField("source", StringType()),
        StructField("channel", StringType()),
        StructField(EARLY_FIELD, BooleanType()),
    ]
)
_ARROW_FIELDS: Final = [
    pa.field("timestamp", pa.int64()),
    pa.field("source", pa.string()),
    pa.field("channel", pa.string()),
    pa.field(EARLY_FIELD, pa.bool_()),
]


@frozen
class BatchTime:
    """What the column says of the rows of a batch, which are all early or all not."""

    timestamps: Sequence[int | None] | None = None
    channel_timestamps: tuple[ChannelTimestamp, ...] = ()
    is_early: bool = False


def split_by_time(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, BatchTime]]:
    """The rows that are early and those that are not; the early ones of a batch are in front."""
    early = batch.column(TIME_COLUMN).flatten()[3].fill_null(False)
    count = early.true_count
    for is_early, part in ((True, batch.slice(0, count)), (False, batch.slice(count))):
        if part.num_rows:
            yield part, _time_of(part, is_early)


def _time_of(batch: pa.RecordBatch, is_early: bool) -> BatchTime:
    timestamps, sources, channels, _ = batch.column(TIME_COLUMN).flatten()
    if timestamps.null_count == len(timestamps):
        return BatchTime(is_early=is_early)
    return BatchTime(column_values(timestamps), _largest(timestamps, sources, channels), is_early)


def timestamps_of(batch: pa.RecordBatch) -> pa.Array:
    """The timestamps of the rows."""
    return batch.column(TIME_COLUMN).flatten()[0]


def _largest(timestamps: pa.Array, sources: pa.Array, channels: pa.Array) -> tuple[ChannelTimestamp, ...]:
    if sources.null_count == len(sources):
        return ()
    table = pa.table({"source": sources, "channel": channels, "timestamp": timestamps})
    of_sources = table.filter(pc.and_(table["source"].is_valid(), table["timestamp"].is_valid()))
    largest = of_sources.group_by(["source", "channel"]).aggregate([("timestamp", "max")])
    return tuple(ChannelTimestamp(row["source"], row["channel"], row["timestamp_max"]) for row in largest.to_pylist())


def time_of_emitted(timestamps: Sequence[int | None] | None, count: int, is_early: bool) -> pa.StructArray:
    """The column for so many rows that an operator emits, with these timestamps or with none."""
    times = pa.nulls(count, pa.int64()) if timestamps is None else pa.array(timestamps, pa.int64())
    nulls, early = pa.nulls(count, pa.string()), pa.array([is_early] * count, pa.bool_())
    return pa.StructArray.from_arrays([times, nulls, nulls, early], fields=_ARROW_FIELDS)
