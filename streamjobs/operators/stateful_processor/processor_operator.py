"""The operator of a stateful processor: all records of a key in an epoch are one call, as on Spark.

Records come sorted by key, so those of a key are together, be it in several batches: the last key of a batch stays
open until another key follows, event time moves on, or the epoch ends. What is held is the records of one key. Behind
the records the timers fire that are due (`processor_timers`).

Records are rows as a processor gets them on Spark: what Arrow makes of a struct is a dict there, and of a map a list of
pairs. What is emitted is read by name: a column that a row lacks is null, and what is no column is left out.

In event time a record is late if it is not after the watermark of the epoch *before*, which is where Spark draws the
line; late records are dropped, as there. That watermark is operator state, the same in every subtask.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any, Final

import pyarrow as pa

from statebackend import BroadcastStateDescriptor, MapStateDescriptor
from statebackend.api.broadcast_state import BroadcastState
from streamjobs.api.operator_state_store import OperatorStateStore
from streamjobs.api.stateful_processor import (
    ExpiredTimerInfo,
    InitialState,
    StatefulProcessorFunction,
    TimeMode,
    TimerValues,
)
from streamjobs.errors import JobDefinitionError
from streamjobs.operators.function_calls import call_failure, call_user, of_key
from streamjobs.operators.operator import Emitter, InputBatch, Operator
from streamjobs.operators.stateful_processor.processor_handle import RESERVED_PREFIX, ProcessorHandle
from streamjobs.operators.stateful_processor.processor_timers import ProcessorTimers
from streamjobs.rows.declared_schema import output_schema, place_of_output
from streamjobs.user_errors import cited
from typeserializers.scalars.fixed_width import BooleanSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer

__all__ = ["StatefulProcessorOperator"]

_SHOWN_ROW_CHARACTERS: Final = 200

OF_TRANSFORM_WITH_STATE: Final = "output_schema='name type, ...', the schema of what the processor emits"

TIMERS_STATE: Final = f"{RESERVED_PREFIX}timers_of_key"
LATE_STATE: Final = f"{RESERVED_PREFIX}watermark_before"
INITIAL_STATE: Final = f"{RESERVED_PREFIX}initial_state"
_BEGUN: Final = "begun"
_WATERMARK: Final = "watermark"

TIMER_SERVICE: Final = f"{RESERVED_PREFIX}timers"


class StatefulProcessorOperator(Operator):
    """See the module."""

    def __init__(self, function: StatefulProcessorFunction, uid: str) -> None:
        self._function = function
        self._processor = function.processor
        self._uid = uid
        self._timers: ProcessorTimers | None = None
        self._times: TimerValues | None = TimerValues() if function.time_mode is TimeMode.NONE else None
        self._set_key: Callable[[Any, int], None] | None = None
        self._open_key: Any = None
        self._open_key_group = 0
        self._open_rows: list[Any] = []
        self._emitted: list[tuple[Any, ...]] = []
        declared = output_schema(function.output_schema, place_of_output(uid), OF_TRANSFORM_WITH_STATE)
        self._names = list(declared.names)
        self._rows = ProcessorRows()
        self._lateness: LateRecords | None = None
        self._begun: BroadcastState[str, bool] | None = None

    def open(self, context: Any, emitter: Emitter) -> None:
        self._emitter = emitter
        self._encoder = emitter.encoder(None)
        self._context = context
        if self._function.time_mode is not TimeMode.NONE:
            of_key = context.register(MapStateDescriptor(TIMERS_STATE, LongSerializer(), BooleanSerializer()))
            service = context.internal_timer_service(TIMER_SERVICE, VoidNamespaceSerializer())
            self._timers = ProcessorTimers(self._function.time_mode, service, of_key)
        if self._function.time_mode is TimeMode.EVENT_TIME:
            self._lateness = LateRecords(context.operator_state)
        initial = self._function.initial_state
        if initial is not None:
            if not hasattr(initial, "batches"):
                raise JobDefinitionError(f"operator {self._uid!r}: initial_state is a DataFrame, and so needs Spark")
            descriptor = BroadcastStateDescriptor(INITIAL_STATE, StringSerializer(), BooleanSerializer())
            self._begun = context.operator_state.get_broadcast_state(descriptor)
        handle = ProcessorHandle(self._function, context, self._timers)
        call_user(self._uid, "init", lambda: self._processor.init(handle))
        handle.end_of_init()

    def process_batch(self, input_index: int, batch: Any) -> None:
        self._begin()
        # The time of its records, though it moves on before the last key is over.
        self._now()
        keys, key_groups, records = batch.keys, batch.key_groups, self._rows.of(batch)
        if self._lateness is not None:
            keys, key_groups, records = self._lateness.without_late(batch.timestamps, keys, key_groups, records)
        start, count = 0, len(keys)
        while start < count:
            key, end = keys[start], start + 1
            while end < count and keys[end] == key:
                end += 1
            if self._open_rows and self._open_key == key:
                self._open_rows += records[start:end]
            else:
                self._end_key()
                self._open_key, self._open_key_group = key, key_groups[start]
                self._open_rows = list(records[start:end])
            start = end
        self._give_out()
        gc.collect(0)

    def on_watermark(self, timestamp_ms: int) -> None:
        if self._function.time_mode is TimeMode.EVENT_TIME:
            self._end_key()
            self._times = None

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._known_timers().take(timestamp_ms, key, key_group)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._known_timers().take(timestamp_ms, key, key_group)

    def prepare_snapshot(self) -> None:
        self._begin()
        self._end_key()
        if self._timers is not None:
            for timestamp_ms, key in self._timers.due(self._make_current):
                self._expire(key, ExpiredTimerInfo(timestamp_ms))
            # Time may go on behind the barrier.
            self._times = None
            if self._lateness is not None:
                self._lateness.watermark_was(self._timers.current_watermark())
        self._give_out()

    def close(self) -> None:
        call_user(self._uid, "close", self._processor.close)

    def _begin(self) -> None:
        """Gives the processor what it begins with, in the first epoch of an operator that is not restored."""
        if self._begun is None or self._begun.get(_BEGUN):
            return
        self._begun.put(_BEGUN, True)
        if self._context.is_restored:
            return
        initial: InitialState = self._function.initial_state
        for batch in initial.batches(self._context.subtask_index, self._context.parallelism):
            for row, key, key_group in zip(ProcessorRows().of(batch), batch.keys, batch.key_groups, strict=True):
                self._make_current(key, key_group)
                try:
                    self._processor.handleInitialState(self._key_tuple(key), row, self._now())
                except Exception as error:
                    raise self._failure("handleInitialState", key, error) from error

    def _end_key(self) -> None:
        """Calls the processor for the key that is open."""
        rows, self._open_rows = self._open_rows, []
        if rows:
            key = self._open_key
            self._make_current(key, self._open_key_group)
            key_tuple, now = self._key_tuple(key), self._now()
            self._run("handleInputRows", key, lambda: self._processor.handleInputRows(key_tuple, iter(rows), now))

    def _expire(self, key: Any, info: ExpiredTimerInfo) -> None:
        key_tuple, now = self._key_tuple(key), self._now()
        self._run(
            "handleExpiredTimer",
            key,
            lambda: self._processor.handleExpiredTimer(key=key_tuple, timerValues=now, expiredTimerInfo=info),
        )

    def _run(self, method: str, key: Any, call: Callable[[], Iterable[Any] | None]) -> None:
        names, emit, encoder = self._names, self._emitted.append, self._encoder
        try:
            for row in call() or ():
                # A Row that is made by keywords has its names in the instance.
                values = tuple(row) if getattr(row, "__fields__", None) == names else self._by_name(row)
                emit(values if tuple in encoder.unchanged else encoder.encode(values))
        except Exception as error:
            raise self._failure(method, key, error) from error

    def _by_name(self, row: Any) -> tuple[Any, ...]:
        """The columns of a row that has others, or another order of them."""
        fields = getattr(row, "__fields__", None)
        if fields is None:
            if isinstance(row, tuple) and not hasattr(row, "asDict") and len(row) == len(self._names):
                return tuple(row)
            raise TypeError(
                f"{cited(row, _SHOWN_ROW_CHARACTERS)} was emitted, which is no Row of the columns "
                f"{', '.join(self._names)}; yield Row(name=value, ...)"
            )
        by_name = dict(zip(fields, row, strict=True))
        return tuple([by_name.get(name) for name in self._names])

    def _give_out(self) -> None:
        emitted, self._emitted = self._emitted, []
        self._emitter.emit(None, emitted)

    def _make_current(self, key: Any, key_group: int) -> None:
        if self._set_key is None:
            # Made for the states that are registered by now.
            self._set_key = self._context.key_setter()
        self._set_key(key, key_group)
        if self._timers is not None:
            self._timers.set_key(key, key_group)

    def _now(self) -> TimerValues:
        if self._times is None:
            self._times = self._known_timers().values()
        return self._times

    def _key_tuple(self, key: Any) -> Any:
        return key if self._function.key_width > 1 else (key,)

    def _known_timers(self) -> ProcessorTimers:
        assert self._timers is not None, "the time mode is none, and a timer is due"
        return self._timers

    def _failure(self, method: str, key: Any, error: Exception) -> Exception:
        return call_failure(error, of_key(self._uid, key), method)


class LateRecords:
    """Which records are late: those that are not after the watermark of the epoch before."""

    def __init__(self, store: OperatorStateStore) -> None:
        self._state = store.get_broadcast_state(
            BroadcastStateDescriptor(LATE_STATE, StringSerializer(), LongSerializer())
        )

    def watermark_was(self, watermark: int) -> None:
        """Notes the watermark of an epoch that ends."""
        if self._state.get(_WATERMARK) != watermark:
            self._state.put(_WATERMARK, watermark)

    def without_late(
        self, timestamps: Sequence[int | None] | None, *columns: Sequence[Any]
    ) -> tuple[Sequence[Any], ...]:
        """The columns without the records that are late."""
        line = self._state.get(_WATERMARK)
        if line is None or timestamps is None:
            return columns
        in_time = [time is None or time > line for time in timestamps]
        return columns if all(in_time) else tuple(list(compress(column, in_time)) for column in columns)


class ProcessorRows:
    """The records of batches as a processor gets them; batches of one input have one schema."""

    def __init__(self) -> None:
        self._nested: list[tuple[int, str]] | None = None

    def of(self, batch: InputBatch) -> Sequence[Any]:
        """The rows of a batch."""
        records, columns = batch.records, batch.columns
        if columns is None or not records:
            return records
        if self._nested is None:
            names = type(records[0]).__fields__
            self._nested = [
                (index, name) for index, name in enumerate(names) if _is_other(columns.schema.field(name).type)
            ]
        if not self._nested:
            return records
        row_class = type(records[0])
        values = list(zip(*records, strict=True))
        for index, name in self._nested:
            values[index] = columns.column(name).to_pylist()
        return [tuple.__new__(row_class, row) for row in zip(*values, strict=True)]


def _is_other(data_type: pa.DataType) -> bool:
    """Whether Python's values of the type are other ones by Arrow than in Spark's rows."""
    if pa.types.is_struct(data_type) or pa.types.is_map(data_type):
        return True
    return any(_is_other(data_type.field(index).type) for index in range(data_type.num_fields))
