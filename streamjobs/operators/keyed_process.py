"""The operator of a `KeyedProcessFunction`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any

from checkpointing.errors import CheckpointError
from snapshots.errors import StateFormatError
from statebackend.api.errors import StateBackendError
from streamjobs.api.functions import KeyedProcessFunction, OnTimerContext, ProcessContext
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.timer_service import TimeDomain, TimerService
from streamjobs.errors import StreamJobError, UserFunctionError
from streamjobs.operators.function_results import check_results
from streamjobs.operators.keyed_timers import KeyedTimers, NoTimers, register_timers
from streamjobs.operators.operator import Emitter, InputBatch, Operator
from streamjobs.operators.ordered_output import OrderedOutput
from streamjobs.operators.record_function import RecordFunctionAdapter, call_failure
from streamjobs.operators.subtask_context import SubtaskContext
from streamjobs.user_errors import told

__all__ = ["KeyedProcessOperator"]


class KeyedProcessOperator(Operator):
    """Calls a function for every record of its one input, and for every timer.

    Rows have the timestamp of the record or of the timer of event time that they were emitted for. What timers emit is
    handed on with the watermark, with the next records or in front of the snapshot.
    """

    def __init__(self, function: KeyedProcessFunction[Any, Any, Any], uid: str) -> None:
        self._function = function
        self._uid = uid

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        self._emitter = emitter
        self._side: dict[Any, list[Any]] = {tag: [] for tag in emitter.side_outputs}
        self._output = OrderedOutput(emitter)
        self._call("open", lambda: self._function.open(context))
        clock = context.keyed.parameters.clock
        self._no_timers = NoTimers(self._uid, type(self._function).__name__, clock, context.watermark_ms)
        internal = register_timers(self._function, context)
        timers: TimerService = self._no_timers if internal is None else KeyedTimers(internal)
        process_context: ProcessContext[Any] = ProcessContext(
            context.epoch_id, {tag: rows.append for tag, rows in self._side.items()}, timers
        )
        self._adapter = RecordFunctionAdapter(
            self._function.process_element, "process_element", self._uid, process_context, context.key_setter
        )
        self._with_timestamps: ProcessContext[Any] = ProcessContext(
            context.epoch_id, self._side_outputs(lambda: self._with_timestamps.timestamp), timers
        )
        self._at_event_time: OnTimerContext[Any] = OnTimerContext(
            context.epoch_id,
            self._side_outputs(lambda: self._at_event_time.timestamp),
            timers,
            TimeDomain.EVENT_TIME,
        )
        self._at_processing_time: OnTimerContext[Any] = OnTimerContext(
            context.epoch_id, self._side_outputs(lambda: None), timers, TimeDomain.PROCESSING_TIME
        )

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        self._output.flush()
        timestamps = batch.timestamps
        if timestamps is not None:
            self._adapter.run_with_timestamps(batch, timestamps, self._with_timestamps, self._output)
            self._output.flush()
            return
        self._emitter.emit(None, self._adapter.run(batch))
        for tag, rows in self._side.items():
            if rows:
                self._emitter.emit(tag, tuple(rows))
                rows.clear()

    def on_watermark(self, timestamp_ms: int) -> None:
        self._no_timers.watermark_ms = timestamp_ms
        self._output.flush()
        # As behind a batch: see `record_function`.
        gc.collect(0)

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._on_timer(self._at_event_time, timestamp_ms, key, timestamp_ms)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._on_timer(self._at_processing_time, timestamp_ms, key, None)

    def prepare_snapshot(self) -> None:
        self._output.flush()

    def close(self) -> None:
        self._call("close", self._function.close)

    def _on_timer(self, context: OnTimerContext[Any], timestamp_ms: int, key: Any, row_timestamp: int | None) -> None:
        context.current_key = key
        context.timestamp = timestamp_ms
        add = self._output.add
        try:
            result = self._function.on_timer(timestamp_ms, context)
            if result is not None:
                if result.__class__ is not GeneratorType:
                    check_results(result, "on_timer")
                for row in result:
                    add(None, row, row_timestamp)
        except Exception as error:
            # What the timers before it have emitted stays emitted.
            self._output.flush()
            timer = f"timer of {context.time_domain.value} at {timestamp_ms}"
            raise call_failure(error, self._uid, key, timer, "on_timer") from error

    def _side_outputs(self, timestamp: Callable[[], int | None]) -> Mapping[OutputTag[Any], Callable[[Any], object]]:
        """Side outputs into the ordered output, each row with the timestamp that there is at that time."""

        def into(tag: OutputTag[Any]) -> Callable[[Any], object]:
            return lambda value: self._output.add(tag, value, timestamp())

        return {tag: into(tag) for tag in self._emitter.side_outputs}

    def _call(self, method: str, call: Callable[[], None]) -> None:
        try:
            call()
        except (StreamJobError, StateBackendError, StateFormatError, CheckpointError):
            raise
        except Exception as error:
            raise UserFunctionError(f"operator {self._uid!r}: {method} raised {told(error)}") from error
