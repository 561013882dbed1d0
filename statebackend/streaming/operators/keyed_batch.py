"""The operator of batch functions. It groups the rows of a batch by key and passes them as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from snapshots.errors import format_value
from statebackend.savepoint.column_codecs import key_rows
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.state.key_batch import KeyBatch
from statebackend.streaming.batch_functions import (
    BatchContext,
    BatchRuntimeContext,
    BatchTimerService,
    Groups,
    KeyedBatchFunction,
    Rows,
)
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.functions import TimeDomain, TimerService, open_function
from statebackend.streaming.operators.function_calls import call_failure, call_user
from statebackend.streaming.operators.keyed_timers import TIMERS_NAME, KeyedTimers, NoTimers
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator
from statebackend.streaming.operators.subtask_context import SubtaskContext
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.row_reader import column_values, key_values
from statebackend.streaming.rows.row_writer import RowWriter
from statebackend.streaming.time.internal_timer_service import DueTimers
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer
from typeserializers.times.timers import Timer

__all__ = ["MAX_BATCH_BYTES", "MAX_BATCH_ROWS", "KeyedBatchOperator"]

_ON_TIMERS: Final = "on_timers(self, timers, context)"

MAX_BATCH_ROWS: Final = 1 << 17
MAX_BATCH_BYTES: Final = 64 << 20
"""The maximum size of a batch that a function receives. A single larger row is its own batch."""


@frozen
class _Call:
    """The rows that a call of the function receives, and their keys."""

    columns: pa.RecordBatch
    keys: Sequence[Any] | pa.Array
    key_groups: Sequence[int] | pa.Array


class KeyedBatchOperator(Operator):
    """Calls a function for every batch of its input, and for due timers."""

    fires_together = True

    def __init__(self, function: KeyedBatchFunction[Any, Any, Any], uid: str) -> None:
        self._function = function
        self._uid = uid
        self._running: _Call | None = None
        self._due: list[tuple[Timer[Any, Any], int]] = []

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        self._subtask = context
        self._emitter = emitter
        schema = context.input_schemas[0]
        self._writer = None if schema is None else RowWriter(schema.arrow, f"operator {self._uid!r}, its input")
        self._no_timers = NoTimers(
            self._uid, type(self._function).__name__, context.clock, context.watermark_ms, _ON_TIMERS
        )
        timers: TimerService = self._no_timers
        if type(self._function).on_timers is not KeyedBatchFunction.on_timers:
            internal = context.internal_timer_service(TIMERS_NAME, VoidNamespaceSerializer())
            timers = KeyedTimers(internal, lambda: None)
        self._context: BatchContext[Any] = BatchContext(
            context.epoch_id, self._groups, self._emit, BatchTimerService(timers)
        )
        context.access_in_bulk()
        opening: Any = BatchRuntimeContext(context, context.input_schemas)
        call_user(self._uid, "open", lambda: open_function(self._function, opening))

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        columns = batch.record_columns
        if columns is None:
            columns = self._columns_of(batch)
        times = batch.timestamps
        timestamps = None if times is None else pa.array(times, pa.int64())
        keys, key_groups = self._keys_of(batch)
        rows = max(1, min(MAX_BATCH_ROWS, columns.num_rows * MAX_BATCH_BYTES // max(1, columns.nbytes)))
        for start in range(0, columns.num_rows, rows):
            end = start + rows
            self._context.timestamps = None if timestamps is None else timestamps.slice(start, rows)
            call = _Call(columns.slice(start, rows), keys[start:end], key_groups[start:end])
            self._call(call, self._function.process_batch, "process_batch", f"a batch of {call.columns.num_rows} rows")

    def on_watermark(self, timestamp_ms: int) -> None:
        self._no_timers.watermark_ms = timestamp_ms

    def on_event_time_timers(self, due: DueTimers) -> None:
        self._fire(due, TimeDomain.EVENT_TIME)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._due.append((Timer(timestamp_ms, key, namespace), key_group))

    def on_processing_time(self) -> None:
        if self._due:
            due, self._due = self._due, []
            self._fire(due, TimeDomain.PROCESSING_TIME)

    def begin_epoch(self, epoch_id: int) -> None:
        self._context.epoch_id = epoch_id

    def close(self) -> None:
        call_user(self._uid, "close", self._function.close)

    def _fire(self, due: DueTimers, domain: TimeDomain) -> None:
        keys = [timer.key for timer, _ in due]
        columns = pa.record_batch(
            {
                "timestamp": pa.array([timer.timestamp for timer, _ in due], pa.int64()),
                "key": ColumnForms().of(self._subtask.keyed.key_serializer).array(keys),
            }
        )
        self._context.timestamps, self._context.time_domain = None, domain
        call = _Call(columns, keys, [key_group for _, key_group in due])
        try:
            self._call(call, self._function.on_timers, "on_timers", f"{len(due)} timers of {domain.value}")
        finally:
            self._context.time_domain = None

    def _call(self, call: _Call, method: Callable[[pa.RecordBatch, Any], Any], name: str, what: str) -> None:
        self._running = call
        try:
            for emitted in _results(method(call.columns, self._context)):
                self._emit(None, emitted, None)
        except Exception as error:
            where = f"operator {self._uid!r}, {what} of epoch {self._context.epoch_id}"
            raise call_failure(error, where, name) from error
        finally:
            self._running = None
            self._subtask.leave_key()

    def _keys_of(self, batch: InputBatch) -> tuple[Any, Any]:
        """Return the keys and key groups, as arrays if Arrow can find the distinct keys."""
        columns = batch.key_columns
        if columns is not None and self._subtask.keyed.key_serializer.equal_values_have_equal_bytes:
            keys, key_groups = columns
            if len(keys) == 1:
                return keys[0], key_groups
        return batch.keys, batch.key_groups

    def _columns_of(self, batch: InputBatch) -> pa.RecordBatch:
        if self._writer is None:
            raise JobDefinitionError(
                f"operator {self._uid!r}: {type(self._function).__name__} takes Arrow batches, and the schema of its "
                f"input is not known. Give the source a schema, or call as_records(...) before key_by"
            )
        return self._writer.batch(batch.records)

    def _groups(self, columns: pa.RecordBatch, where: pa.Array | None) -> Groups:
        call = self._running
        if call is None or columns is not call.columns:
            raise ValueError(
                "groups() takes the batch that the function received, during that call; to leave rows out, pass "
                "their mask: groups(batch, where=mask)"
            )
        serializer = self._subtask.keyed.key_serializer
        set_key, form, rows = self._subtask.key_setter(), ColumnForms().of(serializer), columns
        if where is not None:
            rows = columns.filter(where)
        if isinstance(call.keys, pa.Array):
            keys, groups, index = _grouped_columns(call.keys, call.key_groups, where)
            encode = partial(key_rows, serializer, [keys], groups)
            return Groups(KeyBatch(key_values(keys), column_values(groups), set_key, encode), form, index, rows, keys)
        distinct, key_groups, index = _grouped(serializer, call.keys, call.key_groups, where)
        return Groups(KeyBatch(distinct, key_groups, set_key), form, index, rows)

    def _emit(self, tag: OutputTag[Any] | None, rows: Rows, timestamps: Any) -> None:
        if tag is not None and tag not in self._emitter.side_outputs:
            return
        if not isinstance(rows, (pa.RecordBatch, pa.Table)):
            raise TypeError(
                f"process_batch emitted {format_value(rows, 80)}, which is not a pyarrow.RecordBatch or pyarrow.Table"
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


def _grouped_columns(
    keys: pa.Array, key_groups: pa.Array, where: pa.Array | None
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the distinct keys in the order of their first rows, their key groups, and the index of each row's key."""
    if where is not None:
        keys, key_groups = keys.filter(where), key_groups.filter(where)
    encoded = keys.dictionary_encode()
    table = pa.table({"index": encoded.indices, "group": key_groups})
    # One thread keeps the groups in the order of their first rows.
    of_keys = table.group_by("index", use_threads=False).aggregate([("group", "min")])
    return encoded.dictionary, of_keys["group_min"].combine_chunks(), encoded.indices


def _grouped(
    serializer: TypeSerializer[Any], keys: Sequence[Any], key_groups: Sequence[int], where: pa.Array | None
) -> tuple[Sequence[Any], Sequence[int], pa.Array]:
    """As `_grouped_columns`, for keys that Arrow cannot compare."""
    if where is not None:
        selected = [position for position, one in enumerate(where.to_pylist()) if one]
        keys, key_groups = [keys[position] for position in selected], [key_groups[position] for position in selected]
    numbers: dict[Any, int] = {}
    distinct: Sequence[Any]
    if serializer.equal_values_have_equal_bytes:
        index = [numbers.setdefault(key, len(numbers)) for key in keys]
        distinct = list(numbers)
    else:
        index = [numbers.setdefault(serializer.to_bytes(key), len(numbers)) for key in keys]
        distinct = list(map(serializer.from_bytes, numbers))
    group_of = dict(zip(index, key_groups, strict=True))
    return distinct, [group_of[number] for number in range(len(distinct))], pa.array(index, pa.int32())


def _results(result: Any) -> Iterator[Any]:
    if result is None:
        return iter(())
    if result.__class__ is GeneratorType or isinstance(result, (list, tuple)):
        return iter(result)
    return iter((result,))
