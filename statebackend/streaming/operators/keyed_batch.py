"""The operator of batch functions. It groups the rows of a batch by key and passes rows on as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from types import GeneratorType
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from statebackend.savepoint.value_forms import ColumnForms
from statebackend.state.key_batch import KeyBatch
from statebackend.streaming.batch_functions import BatchContext, BatchRuntimeContext, Groups, KeyedBatchFunction, Rows
from statebackend.streaming.errors import JobDefinitionError, format_value
from statebackend.streaming.functions import open_function
from statebackend.streaming.operators.function_calls import call_failure, call_user
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator
from statebackend.streaming.operators.subtask_context import SubtaskContext
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.row_reader import column_values
from statebackend.streaming.rows.row_writer import RowWriter

__all__ = ["MAX_BATCH_BYTES", "MAX_BATCH_ROWS", "KeyedBatchOperator"]

MAX_BATCH_ROWS: Final = 1 << 17
MAX_BATCH_BYTES: Final = 64 << 20
"""The largest batch that a function receives. A single larger row is a batch of its own."""


@frozen(eq=False)
class _Part:
    """Consecutive rows of an input batch: what one call receives."""

    columns: pa.RecordBatch
    batch: InputBatch
    start: int

    @cached_property
    def keys(self) -> Sequence[Any]:
        return self.batch.keys[self.start : self.start + self.columns.num_rows]

    @cached_property
    def key_groups(self) -> Sequence[int]:
        return self.batch.key_groups[self.start : self.start + self.columns.num_rows]


class KeyedBatchOperator(Operator):
    """Calls a function for every batch of its input."""

    def __init__(self, function: KeyedBatchFunction[Any, Any, Any], uid: str) -> None:
        self._function = function
        self._uid = uid
        self._part: _Part | None = None

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        self._subtask = context
        self._emitter = emitter
        self._watermark_ms = context.watermark_ms
        schema = context.input_schemas[0]
        self._writer = None if schema is None else RowWriter(schema.arrow, f"operator {self._uid!r}, its input")
        self._context: BatchContext[Any] = BatchContext(
            context.epoch_id, self._groups, self._emit, lambda: self._watermark_ms, context.clock
        )
        opening: Any = BatchRuntimeContext(context)
        call_user(self._uid, "open", lambda: open_function(self._function, opening))

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        columns = batch.record_columns
        if columns is None:
            columns = self._columns_of(batch)
        times = batch.timestamps
        timestamps = None if times is None else pa.array(times, pa.int64())
        rows = max(1, min(MAX_BATCH_ROWS, columns.num_rows * MAX_BATCH_BYTES // max(1, columns.nbytes)))
        for start in range(0, columns.num_rows, rows):
            self._part = part = _Part(columns.slice(start, rows), batch, start)
            self._context.timestamps = None if timestamps is None else timestamps.slice(start, rows)
            try:
                for emitted in _results(self._function.process_batch(part.columns, self._context)):
                    self._emit(None, emitted, None)
            except Exception as error:
                where = f"operator {self._uid!r}, a batch of {part.columns.num_rows} rows of epoch "
                raise call_failure(error, f"{where}{self._context.epoch_id}", "process_batch") from error
            finally:
                self._part = None
                self._subtask.leave_key()

    def on_watermark(self, timestamp_ms: int) -> None:
        self._watermark_ms = timestamp_ms

    def begin_epoch(self, epoch_id: int) -> None:
        self._context.epoch_id = epoch_id

    def close(self) -> None:
        call_user(self._uid, "close", self._function.close)

    def _columns_of(self, batch: InputBatch) -> pa.RecordBatch:
        if self._writer is None:
            raise JobDefinitionError(
                f"operator {self._uid!r}: {type(self._function).__name__} takes Arrow batches, and the schema of its "
                f"input is not known. Give the source a schema, or call as_records(...) before key_by"
            )
        return self._writer.batch(batch.records)

    def _groups(self, columns: pa.RecordBatch, where: pa.Array | None) -> Groups:
        part = self._part
        if part is None or columns is not part.columns:
            raise ValueError(
                "groups() takes the batch that process_batch received, during that call; to leave rows out, pass "
                "their mask: groups(batch, where=mask)"
            )
        keys, key_groups = part.keys, part.key_groups
        if where is not None:
            columns = columns.filter(where)
            selected = [position for position, one in enumerate(where.to_pylist()) if one]
            keys = [keys[position] for position in selected]
            key_groups = [key_groups[position] for position in selected]
        serializer = self._subtask.keyed.key_serializer
        numbers: dict[Any, int] = {}
        distinct: Sequence[Any]
        if serializer.equal_values_have_equal_bytes:
            index = [numbers.setdefault(key, len(numbers)) for key in keys]
            distinct = list(numbers)
        else:
            index = [numbers.setdefault(serializer.to_bytes(key), len(numbers)) for key in keys]
            distinct = list(map(serializer.from_bytes, numbers))
        group_of = dict(zip(index, key_groups, strict=True))
        batch = KeyBatch(distinct, [group_of[number] for number in range(len(distinct))], self._subtask.key_setter())
        return Groups(batch, ColumnForms().of(serializer), pa.array(index, pa.int32()), columns)

    def _emit(self, tag: OutputTag[Any] | None, rows: Rows, timestamps: Any) -> None:
        if tag is not None and tag not in self._emitter.side_outputs:
            return
        if not isinstance(rows, (pa.RecordBatch, pa.Table)):
            raise TypeError(
                f"process_batch emitted {format_value(rows, 80)}, which is no pyarrow.RecordBatch or pyarrow.Table"
            )
        times = column_values(timestamps) if isinstance(timestamps, pa.Array) else timestamps
        if times is not None and len(times) != rows.num_rows:
            raise ValueError(f"{len(times)} timestamps were given for {rows.num_rows} rows")
        start = 0
        for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
            end = start + batch.num_rows
            if end > start:
                self._emitter.emit(tag, batch, None if times is None else times[start:end])
            start = end


def _results(result: Any) -> Iterator[Any]:
    if result is None:
        return iter(())
    if result.__class__ is GeneratorType or isinstance(result, (list, tuple)):
        return iter(result)
    return iter((result,))
