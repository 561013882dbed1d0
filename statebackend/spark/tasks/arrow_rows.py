"""The rows of a task: Arrow batches of a partition to records of its inputs, and its output to Arrow batches.

**Input.** With several inputs, a row is a struct in the column of its input and null in the others
(`statebackend.spark.plans.operator_plan`). Rows are sorted by input, so a batch consists of a few runs, and each run
becomes a batch of its input without copying values.

In a job with event time, one more column has the event time of each row:

    __statebackend_time   timestamp   milliseconds, or null
                          source      the source of the row; null for rows of operators
                          channel     its channel of the source, "" without channels; null for rows of operators
                          early       whether the row was sent before the watermark of the epoch

An epoch is a watermark, and then the records of its batch, so rows of a source are never early. What an operator emits
while its own time advances to that watermark is early.

**Output.** Rows of the output and the side outputs have one schema:

    the columns of the output ...
    __statebackend_side_0, ...        a struct for each side output that is read
    __statebackend_output             the output of the row; only if a side output is read
    __statebackend_time               the event time of the row; only if an operator reads it

``__statebackend_output`` is 0 for a row of the output and i + 1 for a row of side output i, which is in its struct. All
other columns are null. `OutputLayout.split` turns them back into one frame per output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from statebackend.checkpoint.metadata import ChannelTimestamp
from statebackend.spark.columns import column_named, nullable_type, spark_row_reader, to_arrow_schema
from statebackend.spark.tasks.program_pickles import unpickled
from statebackend.streaming.operators.operator import BatchPlaces, ObjectBatch, check_keys
from statebackend.streaming.operators.record_steps import results_of_step
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import place_of_output
from statebackend.streaming.rows.record_schema import RecordType
from statebackend.streaming.rows.row_reader import RowReader, column_values, keys_of_columns
from statebackend.streaming.rows.row_writer import RowWriter

__all__ = [
    "EARLY_FIELD",
    "INPUT_COLUMN",
    "KEY_COLUMN_PREFIX",
    "KEY_GROUP_COLUMN",
    "SUBTASK_COLUMN",
    "TIME_COLUMN",
    "TIME_TYPE",
    "ArrowBatch",
    "BatchTime",
    "InputColumns",
    "InputReader",
    "KeyTask",
    "OutputLayout",
    "OutputSchema",
    "OutputWriter",
    "RecordStepTask",
    "put_together",
    "row_column_of_input",
    "runs_of_inputs",
    "split_by_time",
    "time_of_emitted",
    "timestamps_of",
]


INPUT_COLUMN: Final = "__statebackend_input"
SUBTASK_COLUMN: Final = "__statebackend_subtask"


def row_column_of_input(index: int) -> str:
    """The column that has the rows of an input."""
    return f"{INPUT_COLUMN}_{index}"


def runs_of_inputs(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a batch that follow each other and are of one input, with its index, as columns of that input."""
    runs = pc.run_end_encode(batch.column(INPUT_COLUMN))
    start = 0
    for end, index in zip(column_values(runs.run_ends), column_values(runs.values), strict=True):
        rows = batch.column(row_column_of_input(index)).slice(start, end - start)
        names = [rows.type.field(position).name for position in range(rows.type.num_fields)]
        yield index, pa.RecordBatch.from_arrays(rows.flatten(), names=names)
        start = end


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
    """The event time of the rows of a batch, which are all early or all not."""

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


KEY_GROUP_COLUMN: Final = "__statebackend_key_group"
KEY_COLUMN_PREFIX: Final = "__statebackend_key_"

_ROWS_AT_ONCE: Final = 1 << 17
_BYTES_AT_ONCE: Final = 16 << 20
"""How much is put together; a batch that Spark sends may have more."""


@frozen
class InputColumns:
    """Which columns of an input are the record, and which its key; goes to the workers.

    An input that is broadcast has no key, and its rows no key groups. ``has_time`` says whether the column of event
    time is in a column of its own. With a ``kind`` the records are objects of its class, and otherwise rows.
    """

    record: tuple[str, ...]
    key: tuple[str, ...]
    has_time: bool = False
    kind: RecordType | None = None


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
        columns = self.record_columns(batch)
        if self._rows is None:
            self._rows = spark_row_reader(columns.schema, self._place, self._columns.kind)
        return self._rows.rows(columns)

    def record_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(self._record_names)

    def keys(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """The keys of a batch; raises `NullKeyError`."""
        if not self.has_keys:
            return ()
        keys = keys_of_columns(self.key_columns(batch))
        check_keys(self._place, keys, len(self._columns.key) > 1)
        return keys

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self._columns.key]


def put_together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Concatenate small batches, so an operator does its work per batch less often.

    Spark sends 10,000 rows at a time by default. A key with four rows in an epoch rarely has two in one such batch.
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
    def record_columns(self) -> pa.RecordBatch:
        return self.reader.record_columns(self.columns)

    @property
    def key_columns(self) -> tuple[Sequence[pa.Array], pa.Array] | None:
        keys = self.reader.key_columns(self.columns)
        if not keys or any(column.null_count for column in keys):
            return None
        return keys, self.columns.column(KEY_GROUP_COLUMN)

    @property
    def places(self) -> BatchPlaces | None:
        keys = self.reader.key_columns(self.columns)
        if not keys or any(column.null_count for column in keys):
            return None
        key_groups, timestamps = self.columns.column(KEY_GROUP_COLUMN), self._times()
        return BatchPlaces(keys, key_groups, timestamps, self._objects_of)

    def _times(self) -> pa.Array:
        rows = self.columns
        return pa.nulls(rows.num_rows, pa.int64()) if self.timestamps is None else timestamps_of(rows)

    def _objects_of(self, mask: pa.Array) -> ObjectBatch:
        columns, reader = self.columns.filter(mask), self.reader
        key_groups = column_values(columns.column(KEY_GROUP_COLUMN))
        timestamps = column_values(self._times().filter(mask))
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


_OUTPUT_COLUMN: Final = "__statebackend_output"
_SIDE_COLUMN_PREFIX: Final = "__statebackend_side_"


@frozen
class OutputSchema:
    """The Arrow schemas of an operator's output and of those of its side outputs that are read; goes to the workers."""

    output: pa.Schema
    side_outputs: Mapping[OutputTag[Any], pa.Schema]
    has_time: bool = False

    @property
    def tags(self) -> Collection[OutputTag[Any]]:
        """The side outputs that are read."""
        return self.side_outputs.keys()


class OutputLayout:
    """The driver's side: the types of the outputs, and the expressions that take them apart.

    The expressions are unresolved, so they are made once and serve every epoch.
    """

    def __init__(
        self, output: StructType, side_outputs: Mapping[OutputTag[Any], StructType], *, has_time: bool = False
    ) -> None:
        self.output = output
        self.side_outputs = side_outputs
        time_fields = [StructField(TIME_COLUMN, TIME_TYPE, True)] if has_time else []
        self.streams: Mapping[OutputTag[Any] | None, StructType] = {
            tag: StructType([*nullable_type(schema).fields, *time_fields])
            for tag, schema in ((None, output), *side_outputs.items())
        }
        """The types of the frames of the outputs, hidden columns too."""
        fields = list(nullable_type(output).fields)
        for index, schema in enumerate(side_outputs.values()):
            fields.append(StructField(f"{_SIDE_COLUMN_PREFIX}{index}", nullable_type(schema), True))
        if side_outputs:
            fields.append(StructField(_OUTPUT_COLUMN, IntegerType(), True))
        self.schema = StructType([*fields, *time_fields])
        """Of all that the tasks give out."""
        self._columns = list(map(column_named, output.names))
        self._time_columns = [F.col(TIME_COLUMN)] if has_time else []

    def to_arrow(self) -> OutputSchema:
        """The schemas that the tasks write by."""
        return OutputSchema(
            to_arrow_schema(self.output),
            {tag: to_arrow_schema(schema) for tag, schema in self.side_outputs.items()},
            bool(self._time_columns),
        )

    def split(self, frame: DataFrame) -> Iterator[tuple[OutputTag[Any] | None, DataFrame]]:
        """The output, and each side output with its tag, of what the tasks gave out."""
        if not self.side_outputs:
            yield None, frame
            return
        yield None, frame.where(F.col(_OUTPUT_COLUMN) == 0).select(*self._columns, *self._time_columns)
        for index, tag in enumerate(self.side_outputs):
            rows = frame.where(F.col(_OUTPUT_COLUMN) == index + 1)
            yield tag, rows.select(F.col(f"{_SIDE_COLUMN_PREFIX}{index}.*"), *self._time_columns)


class OutputWriter:
    """The task's side: what an operator emits, as batches of the layout's schema."""

    def __init__(self, schema: OutputSchema, operator_uid: str) -> None:
        self._fields = list(schema.output)
        self._names = list(schema.output.names)
        self._writers: dict[OutputTag[Any] | None, RowWriter] = {
            None: RowWriter(schema.output, place_of_output(operator_uid))
        }
        self._side_types: list[pa.DataType] = []
        for index, (tag, side) in enumerate(schema.side_outputs.items()):
            self._writers[tag] = writer = RowWriter(side, place_of_output(operator_uid, tag.name))
            self._side_types.append(pa.struct(list(writer.schema)))
            self._names.append(f"{_SIDE_COLUMN_PREFIX}{index}")
        if self._side_types:
            self._names.append(_OUTPUT_COLUMN)
        self._numbers = {tag: number for number, tag in enumerate(self._writers)}
        self._has_time = schema.has_time
        self.encoders = {tag: writer.encoder for tag, writer in self._writers.items()}
        """What is done to the rows of each output when they are emitted."""

    def batches(
        self,
        tag: OutputTag[Any] | None,
        rows: Sequence[Any],
        timestamps: Sequence[int | None] | None = None,
        *,
        is_early: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the output or of a side output, and their times; raises `RowMismatchError`."""
        if not self._has_time:
            yield from self._without_time(tag, rows)
            return
        start = 0
        for batch in self._without_time(tag, rows):
            part = None if timestamps is None else timestamps[start : start + batch.num_rows]
            start += batch.num_rows
            time = time_of_emitted(part, batch.num_rows, is_early)
            yield pa.RecordBatch.from_arrays([*batch.columns, time], names=[*batch.schema.names, TIME_COLUMN])

    def _without_time(self, tag: OutputTag[Any] | None, rows: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        if not self._side_types:
            yield from self._writers[tag].batches(rows)
            return
        number = self._numbers[tag]
        for batch in self._writers[tag].batches(rows):
            count = batch.num_rows
            columns = list(batch.columns)
            if number:
                columns = [*self._nulls(count), pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))]
            yield self._batch(columns, number, count)

    def _batch(self, columns: list[pa.Array], number: int, count: int) -> pa.RecordBatch:
        # A row of a side output has its struct after the columns of the output.
        following = len(columns) - len(self._fields)
        sides = [pa.nulls(count, side_type) for side_type in self._side_types]
        if following:
            sides[number - 1] = columns.pop()
        return pa.RecordBatch.from_arrays([*columns, *sides, pa.array([number] * count, pa.int32())], names=self._names)

    def _nulls(self, count: int) -> list[pa.Array]:
        return [pa.nulls(count, field.type) for field in self._fields]


@frozen
class RecordStepTask:
    """A step over the batches of a partition; ``schema`` is that of its results, None for a filter."""

    method: str
    function_pickle: bytes
    columns: InputColumns
    schema: pa.Schema | None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results, with the event time of their records. Raises `UserFunctionError` and `RowMismatchError`."""
        place = f"{self.method}()"
        function, reader = unpickled(self.function_pickle), InputReader(self.columns, place)
        writer = None if self.schema is None else RowWriter(self.schema, place)
        for batch in batches:
            records = reader.records(batch)
            if writer is None:
                _, positions = results_of_step(self.method, function, records)
                yield batch.take(pa.array(positions, pa.int64()))
                continue
            results, positions = results_of_step(self.method, function, records, writer.encoder)
            start = 0
            for part in writer.batches(results):
                end = start + part.num_rows
                yield self._with_time(part, batch, positions[start:end])
                start = end

    def _with_time(self, part: pa.RecordBatch, batch: pa.RecordBatch, positions: Any) -> pa.RecordBatch:
        if not self.columns.has_time:
            return part
        time = batch.column(TIME_COLUMN).take(pa.array(positions, pa.int64()))
        return pa.RecordBatch.from_arrays([*part.columns, time], names=[*part.schema.names, TIME_COLUMN])


@frozen
class KeyTask:
    """Adds key columns that functions compute; ``place`` starts error messages."""

    functions_pickle: bytes
    columns: InputColumns
    schema: pa.Schema
    place: str

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows with their keys. Raises `UserFunctionError` and `RowMismatchError`."""
        functions, reader = unpickled(self.functions_pickle), InputReader(self.columns, self.place)
        # Errors name a key by its position.
        shown = [one.with_name(f"key {one.name.removeprefix(KEY_COLUMN_PREFIX)}") for one in self.schema]
        writer = RowWriter(pa.schema(shown), self.place)
        for batch in batches:
            records = reader.records(batch)
            keys = writer.batch([tuple([function(record) for function in functions]) for record in records])
            names = [*batch.schema.names, *self.schema.names]
            yield pa.RecordBatch.from_arrays([*batch.columns, *keys.columns], names=names)
