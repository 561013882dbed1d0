"""What the task of an operator is given, as batches of records: the Arrow batches of a partition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp
from streamjobs.operators.input_batch import BatchPlaces, ObjectBatch, check_keys
from streamjobs.rows.row_reader import RowReader, column_values, keys_of_columns
from streamjobs.spark.arrow_rows import spark_row_reader
from streamjobs.spark.tasks.time_column import split_by_time, timestamps_of

__all__ = ["KEY_COLUMN_PREFIX", "KEY_GROUP_COLUMN", "ArrowBatch", "InputColumns", "InputReader", "put_together"]

KEY_GROUP_COLUMN: Final = "__statebackend_key_group"
KEY_COLUMN_PREFIX: Final = "__statebackend_key_"

_ROWS_AT_ONCE: Final = 1 << 17
_BYTES_AT_ONCE: Final = 16 << 20
"""How much is put together; a batch that Spark sends may have more."""


@frozen
class InputColumns:
    """Which columns of an input are the record, and which its key; goes to the workers.

    An input that is broadcast has no key, and its rows no key groups. ``has_time`` says whether the column of event
    time is beside them.
    """

    record: tuple[str, ...]
    key: tuple[str, ...]
    has_time: bool = False


class InputReader:
    """The batches of one input of one task; ``place`` is how errors call it."""

    def __init__(self, columns: InputColumns, place: str) -> None:
        self._columns = columns
        self._record_names = list(columns.record)
        self._place = place
        self._rows: RowReader | None = None

    @property
    def has_keys(self) -> bool:
        """Whether its records have keys."""
        return bool(self._columns.key)

    def batches(self, batch: pa.RecordBatch) -> Iterator[ArrowBatch]:
        """The rows that are early, if there are, and the others; reads their times and nothing else yet."""
        if not self._columns.has_time:
            yield ArrowBatch(self, batch)
            return
        for part, time in split_by_time(batch):
            yield ArrowBatch(self, part, time.timestamps, time.channel_timestamps, time.is_early)

    def records(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """The records of a batch as rows; raises as `RowReader.rows`."""
        columns = batch.select(self._record_names)
        if self._rows is None:
            self._rows = spark_row_reader(columns.schema, self._place)
        return self._rows.rows(columns)

    def keys(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """The keys of a batch; raises `NullKeyError`."""
        if not self.has_keys:
            return ()
        keys = keys_of_columns(self.key_columns(batch))
        check_keys(self._place, keys, len(self._columns.key) > 1)
        return keys

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The columns of the key of a batch."""
        return [batch.column(name) for name in self._columns.key]


def put_together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: what an operator does once for a batch is done less often.

    Spark sends ten thousand rows at a time if not told otherwise. A key that comes four times in an epoch then comes
    hardly twice in a batch of them.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + batch.num_rows > _ROWS_AT_ONCE or size + batch.nbytes > _BYTES_AT_ONCE):
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if held:
        yield pa.concat_batches(held)


@frozen
class ArrowBatch:
    """An `InputBatch` over an Arrow batch, which is in ``columns``."""

    reader: InputReader
    columns: pa.RecordBatch
    timestamps: Sequence[int | None] | None = None
    channel_timestamps: Collection[ChannelTimestamp] = ()
    is_early: bool = False

    @property
    def places(self) -> BatchPlaces | None:
        keys = self.reader.key_columns(self.columns)
        if self.timestamps is None or not keys or any(column.null_count for column in keys):
            return None
        key_groups, timestamps = self.columns.column(KEY_GROUP_COLUMN), timestamps_of(self.columns)
        return BatchPlaces(keys, key_groups, timestamps, self._objects_of)

    def _objects_of(self, mask: pa.Array) -> ObjectBatch:
        columns, reader = self.columns.filter(mask), self.reader
        key_groups = column_values(columns.column(KEY_GROUP_COLUMN))
        timestamps = column_values(timestamps_of(columns))
        return ObjectBatch(reader.records(columns), reader.keys(columns), key_groups, timestamps)

    @property
    def records(self) -> Sequence[Any]:
        return self.reader.records(self.columns)

    @property
    def keys(self) -> Sequence[Any]:
        return self.reader.keys(self.columns)

    @property
    def key_groups(self) -> Sequence[int]:
        return column_values(self.columns.column(KEY_GROUP_COLUMN)) if self.reader.has_keys else ()
