"""The output of a task: rows of the output and the side outputs of an operator, in one schema.

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
from attrs import frozen
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, StructField, StructType

from statebackend.spark.columns import column_named, to_arrow_schema
from statebackend.spark.tasks.arrow_input import TIME_COLUMN, TIME_TYPE, time_of_emitted
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import place_of_output
from statebackend.streaming.rows.row_writer import RowWriter

__all__ = ["OutputLayout", "OutputSchema", "OutputWriter"]

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
            tag: StructType([*schema.fields, *time_fields]) for tag, schema in ((None, output), *side_outputs.items())
        }
        """The types of the frames of the outputs, hidden columns too."""
        fields = list(output.fields)
        for index, schema in enumerate(side_outputs.values()):
            fields.append(StructField(f"{_SIDE_COLUMN_PREFIX}{index}", schema, True))
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
            self._writers[tag] = RowWriter(side, place_of_output(operator_uid, tag.name))
            self._side_types.append(pa.struct(list(side)))
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
        # A row of a side output has the struct of that one behind the columns of the output.
        behind = len(columns) - len(self._fields)
        sides = [pa.nulls(count, side_type) for side_type in self._side_types]
        if behind:
            sides[number - 1] = columns.pop()
        return pa.RecordBatch.from_arrays([*columns, *sides, pa.array([number] * count, pa.int32())], names=self._names)

    def _nulls(self, count: int) -> list[pa.Array]:
        return [pa.nulls(count, field.type) for field in self._fields]
