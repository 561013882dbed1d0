"""What the task of an operator is given, as batches of records: the Arrow batches of a partition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp
from streamjobs.operators.input_batch import check_keys
from streamjobs.rows.declared_schema import place_of_output
from streamjobs.rows.row_reader import RowReader, column_values, key_values
from streamjobs.spark.arrow_rows import spark_row_reader
from streamjobs.spark.tasks.time_column import split_by_time

__all__ = ["KEY_COLUMN_PREFIX", "KEY_GROUP_COLUMN", "ArrowBatch", "InputColumns", "InputReader"]

KEY_GROUP_COLUMN: Final = "__statebackend_key_group"
KEY_COLUMN_PREFIX: Final = "__statebackend_key_"


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
    """The batches of one input of one task."""

    def __init__(self, columns: InputColumns, operator_uid: str) -> None:
        self._columns = columns
        self._record_names = list(columns.record)
        self._operator_uid = operator_uid
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
            self._rows = spark_row_reader(columns.schema, place_of_output(self._operator_uid))
        return self._rows.rows(columns)

    def keys(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """The keys of a batch; raises `NullKeyError`."""
        if not self.has_keys:
            return ()
        parts = [key_values(batch.column(name)) for name in self._columns.key]
        is_composite = len(parts) > 1
        keys = list(zip(*parts, strict=True)) if is_composite else parts[0]
        check_keys(self._operator_uid, keys, is_composite)
        return keys


@frozen
class ArrowBatch:
    """An `InputBatch` over an Arrow batch, which is in ``columns``."""

    reader: InputReader
    columns: pa.RecordBatch
    timestamps: Sequence[int | None] | None = None
    channel_timestamps: Collection[ChannelTimestamp] = ()
    is_early: bool = False

    @property
    def records(self) -> Sequence[Any]:
        return self.reader.records(self.columns)

    @property
    def keys(self) -> Sequence[Any]:
        return self.reader.keys(self.columns)

    @property
    def key_groups(self) -> Sequence[int]:
        return column_values(self.columns.column(KEY_GROUP_COLUMN)) if self.reader.has_keys else ()
