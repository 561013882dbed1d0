"""Functions of records in the tasks of Spark: Arrow batches in, Arrow batches out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from attrs import frozen

from statebackend.spark.tasks.arrow_rows import TIME_COLUMN, InputColumns, InputReader
from statebackend.spark.tasks.program_pickles import unpickled
from statebackend.streaming.operators.record_steps import results_of_step
from statebackend.streaming.rows.row_writer import RowWriter

__all__ = ["KeyTask", "RecordStepTask"]


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
        writer = RowWriter(self.schema, self.place)
        for batch in batches:
            records = reader.records(batch)
            keys = writer.batch([tuple([function(record) for function in functions]) for record in records])
            names = [*batch.schema.names, *keys.schema.names]
            yield pa.RecordBatch.from_arrays([*batch.columns, *keys.columns], names=names)
