"""The operator of functions over one or more keyed inputs.

It calls the function with the key of the record as the current key. All inputs share state and timers.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any, Final

from attrs import field, frozen

from statebackend.streaming.functions import (
    KeyedCoProcessFunction,
    KeyedFunction,
    KeyedMultipleInputFunction,
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    RuntimeContext,
    TimeDomain,
    TimerService,
    open_function,
)
from statebackend.streaming.operators.function_calls import call_failure, call_user, check_results, of_key
from statebackend.streaming.operators.keyed_timers import KeyedTimers, NoTimers, register_timers
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator, OrderedOutput
from statebackend.streaming.operators.record_function import RecordFunctionAdapter
from statebackend.streaming.operators.subtask_context import SubtaskContext
from statebackend.streaming.rows.row_writer import RowEncoder

__all__ = [
    "ElementMethod",
    "KeyedCallForms",
    "KeyedProcessOperator",
    "keyed_co_process_operator",
    "keyed_multiple_input_operator",
]


@frozen
class ElementMethod:
    """The method that receives the records of an input, and its name in errors."""

    name: str
    call: Callable[[Any, Any], Iterable[Any] | None]


@frozen
class KeyedCallForms:
    """How to call a kind of function: its methods by input, and its context classes."""

    element_method: Callable[[Any, int], ElementMethod]
    process_context: Callable[..., ProcessContext[Any]] = ProcessContext
    timer_context: Callable[..., OnTimerContext[Any]] = OnTimerContext
    opening_context: Callable[[RuntimeContext], RuntimeContext] = field(default=lambda context: context)


def _only_input(function: KeyedProcessFunction[Any, Any, Any], input_index: int) -> ElementMethod:
    return ElementMethod("process_element", function.process_element)


ONE_INPUT: Final = KeyedCallForms(_only_input)


def keyed_co_process_operator(function: KeyedCoProcessFunction[Any, Any, Any, Any], uid: str) -> KeyedProcessOperator:
    """Create the operator of a function with two inputs."""

    def method(function: KeyedCoProcessFunction[Any, Any, Any, Any], input_index: int) -> ElementMethod:
        name = f"process_element{input_index + 1}"
        return ElementMethod(name, getattr(function, name))

    return KeyedProcessOperator(function, uid, KeyedCallForms(method))


def keyed_multiple_input_operator(function: KeyedMultipleInputFunction[Any, Any], uid: str) -> KeyedProcessOperator:
    """Create the operator of a function with any number of inputs."""

    def method(function: KeyedMultipleInputFunction[Any, Any], input_index: int) -> ElementMethod:
        return ElementMethod(
            f"process_element of input {input_index}", functools.partial(function.process_element, input_index)
        )

    return KeyedProcessOperator(function, uid, KeyedCallForms(method))


def _no_timestamp() -> None:
    return None


def _encoded_into(rows: list[Any], encoder: RowEncoder) -> Callable[[Any], object]:
    """Return the consumer of rows of a side output."""
    append, encode, unchanged = rows.append, encoder.encode, encoder.unchanged
    return lambda row: append(row if row.__class__ in unchanged else encode(row))


class KeyedProcessOperator(Operator):
    """Calls a function for every record of its inputs and for every timer.

    A row has the timestamp of its record or event-time timer. Rows of timers are sent with the watermark or, for
    processing time, at once.
    """

    def __init__(self, function: KeyedFunction[Any, Any], uid: str, forms: KeyedCallForms = ONE_INPUT) -> None:
        self._function = function
        self._uid = uid
        self._forms = forms
        self._adapters: dict[int, RecordFunctionAdapter] = {}

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        forms = self._forms
        self._emitter = emitter
        self._side: dict[Any, list[Any]] = {tag: [] for tag in emitter.side_outputs}
        self.output = OrderedOutput(emitter)
        """The output for rows with timestamps and for rows of timers."""
        self._key_setter = context.key_setter
        opening = forms.opening_context(context)
        call_user(self._uid, "open", lambda: open_function(self._function, opening))
        self._no_timers = NoTimers(self._uid, type(self._function).__name__, context.clock, context.watermark_ms)
        internal = register_timers(self._function, context)

        def timers_at(timestamp: Callable[[], int | None]) -> TimerService:
            return self._no_timers if internal is None else KeyedTimers(internal, timestamp)

        self.timers = timers_at(_no_timestamp)
        """The time of the operator."""
        self._context = forms.process_context(
            context.epoch_id,
            {tag: _encoded_into(rows, emitter.encoder(tag)) for tag, rows in self._side.items()},
            self.timers,
        )

        def of_record() -> int | None:
            return self._with_timestamps.timestamp

        self._with_timestamps = forms.process_context(
            context.epoch_id, self.output.side_outputs_at(of_record), timers_at(of_record)
        )

        def of_timer() -> int | None:
            return self._at_event_time.timestamp

        self._at_event_time = forms.timer_context(
            context.epoch_id, self.output.side_outputs_at(of_timer), timers_at(of_timer), TimeDomain.EVENT_TIME
        )
        self._at_processing_time = forms.timer_context(
            context.epoch_id, self.output.side_outputs_at(_no_timestamp), self.timers, TimeDomain.PROCESSING_TIME
        )

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        self.output.flush()
        adapter = self._adapters.get(input_index) or self._adapter(input_index)
        timestamps = batch.timestamps
        if timestamps is not None:
            try:
                adapter.run_with_timestamps(batch, timestamps, self._with_timestamps, self.output)
            except Exception:
                # Rows emitted before the failure stay emitted.
                self.output.flush()
                raise
            self.output.flush()
            return
        self._emitter.emit(None, adapter.run(batch, self._context))
        for tag, rows in self._side.items():
            if rows:
                self._emitter.emit(tag, tuple(rows))
                rows.clear()

    def on_watermark(self, timestamp_ms: int) -> None:
        self._no_timers.watermark_ms = timestamp_ms
        self.output.flush()
        # As after a batch, see `record_function`.
        gc.collect(0)

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._on_timer(self._at_event_time, timestamp_ms, key, timestamp_ms)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._on_timer(self._at_processing_time, timestamp_ms, key, None)
        # No watermark follows, so flush now.
        self.output.flush()

    def prepare_snapshot(self) -> None:
        self.output.flush()

    def begin_epoch(self, epoch_id: int) -> None:
        for context in (self._context, self._with_timestamps, self._at_event_time, self._at_processing_time):
            context.epoch_id = epoch_id

    def close(self) -> None:
        call_user(self._uid, "close", self._function.close)

    def _adapter(self, input_index: int) -> RecordFunctionAdapter:
        method = self._forms.element_method(self._function, input_index)
        adapter = RecordFunctionAdapter(
            method.call, method.name, self._uid, self._key_setter, self._emitter.encoder(None)
        )
        self._adapters[input_index] = adapter
        return adapter

    def _on_timer(self, context: OnTimerContext[Any], timestamp_ms: int, key: Any, row_timestamp: int | None) -> None:
        context.current_key = key
        context.timestamp = timestamp_ms
        add = self.output.add
        try:
            result = self._function.on_timer(timestamp_ms, context)
            if result is not None:
                if result.__class__ is not GeneratorType:
                    check_results(result, "on_timer")
                for row in result:
                    add(None, row, row_timestamp)
        except Exception as error:
            # Rows that earlier timers emitted stay emitted.
            self.output.flush()
            timer = f"timer of {context.time_domain.value} at {timestamp_ms}"
            raise call_failure(error, f"{of_key(self._uid, key)}, {timer}", "on_timer") from error
