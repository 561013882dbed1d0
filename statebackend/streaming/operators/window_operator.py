"""The operator of windows.

A record is added to each of its open windows, in state under key and window. Then the trigger is called, as it is for
each of its timers. When it fires, the function receives the contents.

An event-time window is disposed at its *clean-up time*, its last millisecond plus the allowed lateness: a timer of the
operator clears its contents, the trigger's state, its entry among merging windows, and calls ``clear`` of the function.
A processing-time window is disposed at its last millisecond, the global window never. If all windows of a record are
disposed, it is *late*. A restored window may have been registered with another lateness. After its clean-up time it is
disposed at the next access. If it fires earlier, it registers the new timer. After an error of a user function the
epoch is processed again from the last snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from types import GeneratorType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from snapshots.errors import format_value
from statebackend.savepoint.column_codecs import key_rows, window_timers
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.value_forms import ColumnForm, ColumnForms
from statebackend.state.key_batch import KeyBatch
from statebackend.state.state_kind import StateDescriptor
from statebackend.streaming.aggregates import in_utc, is_grouped_alike
from statebackend.streaming.errors import AggregateOverflowError, StreamJobError
from statebackend.streaming.functions import open_function
from statebackend.streaming.operators.aligned_batches import AlignedBatches, ChangedValue, ChangedWindows
from statebackend.streaming.operators.element_form import element_form
from statebackend.streaming.operators.function_calls import (
    call_failure,
    call_user,
    check_results,
    missing_timestamp,
    of_key,
    of_record,
)
from statebackend.streaming.operators.merging_windows import MergingWindows
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator, OrderedOutput
from statebackend.streaming.operators.window_contexts import (
    FUNCTION_PREFIX,
    FunctionContext,
    OpeningContext,
    PartitionedStates,
    WindowTriggerContext,
)
from statebackend.streaming.operators.window_state import (
    ColumnAggregatedWindows,
    FoldedWindows,
    FoldError,
    window_state,
)
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.row_reader import UnreadableColumnError, column_values, keys_of_columns
from statebackend.streaming.time.internal_timer_service import DueTimers, EncodedTimers, InternalTimerService
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, clamped
from statebackend.streaming.windows.triggers import EventTimeTrigger, TriggerResult
from statebackend.streaming.windows.window_definition import ColumnAggregates, WindowDefinition
from statebackend.streaming.windows.window_functions import (
    ProcessWindowFunction,
)
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.timers import TimeWindow

__all__ = ["TIMERS_NAME", "WindowOperator"]

_TIMESTAMP: Final = pa.timestamp("us", "UTC")


def _key_form(serializer: TypeSerializer[Any]) -> ColumnForm | None:
    """Return the form of keys as output columns, or None if they are emitted as objects."""
    form = ColumnForms().of(serializer)
    data_type = form.data_type
    types = [part.type for part in data_type] if isinstance(serializer, TupleSerializer) else [data_type]
    return form if is_grouped_alike(types) else None


def _key_columns(form: ColumnForm, keys: Sequence[Any]) -> list[pa.Array] | None:
    try:
        column = form.array(keys)
    except ColumnValueError:
        return None
    columns: list[pa.Array] = column.flatten() if pa.types.is_struct(column.type) else [column]
    return columns


_STORED: Final[ChangedValue] = (None, 0, True)

TIMERS_NAME: Final = "window-timers"
"""The name of the timer service, as in Flink."""


class WindowOperator(Operator):
    """Assigns records to windows and fires them."""

    def __init__(self, definition: WindowDefinition, uid: str) -> None:
        self._definition = definition
        self._uid = uid
        self._assigner = definition.assigner
        self._trigger = definition.trigger
        self._function = definition.window_function
        self._lateness_ms = definition.allowed_lateness_ms
        self._is_event_time = definition.assigner.is_event_time
        self._key: Any = None
        self.late_records: Counter[OutputTag[Any] | None] = Counter()

    def open(self, context: Any, emitter: Emitter) -> None:
        where = f"operator {self._uid!r}"
        definition = self._definition.bound(context.input_schemas[0], where)
        self._function = definition.window_function
        serializer = self._assigner.window_serializer

        def register(descriptor: StateDescriptor) -> Any:
            return context.register(descriptor, serializer)

        self._emitter = emitter
        self._output = OrderedOutput(emitter)
        tag = definition.late_data_tag
        self._late_tag = tag if tag is not None and tag in emitter.side_outputs else None
        self._timers: InternalTimerService[Any] = context.internal_timer_service(TIMERS_NAME, serializer)
        given = definition.element_serializers
        schemas = context.input_schemas if given else ()
        forms = [
            element_form(serializer, schema, where, "its windows keep", "element_type")
            for serializer, schema in zip(given, schemas, strict=True)
        ]
        is_bulk = self._is_bulk(context)
        if is_bulk:
            context.access_in_bulk()
        self._state = window_state(definition, forms, register)
        self._merging = MergingWindows(context.register) if self._assigner.merges_windows else None
        self._bulk = self._state if is_bulk and isinstance(self._state, ColumnAggregatedWindows) else None
        self._context = context
        has_columns = self._bulk is not None and bool(definition.key_names)
        self._key_form = _key_form(context.keyed.key_serializer) if has_columns else None
        self._trigger_context = WindowTriggerContext(self._trigger, self._timers, register)
        self._open_function(context, register)
        self._changed = self._changed_windows(context)
        self._batches = self._aligned_batches()
        # In this case a window has one timer, which fires and disposes it. So timers never change other timers.
        self.fires_together = self._batches is not None and not self._lateness_ms
        self._set_key = context.key_setter()

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        self._state.begin(input_index)
        self._process_batch(batch)
        self._output.flush()

    def _process_batch(self, batch: InputBatch) -> None:
        if self._merging is not None:
            self._merging.store_if_large(self._set_key)
        timestamps = batch.timestamps
        if self._batches is not None and timestamps is not None and None not in timestamps:
            try:
                self._batches.process(batch, timestamps, self._set_key)
            except AggregateOverflowError as error:
                raise AggregateOverflowError(f"operator {self._uid!r}, {error}") from None
            except Exception as error:
                key, records = self._batches.at
                where = f"operator {self._uid!r}" if key is None else of_key(self._uid, key)
                raise self._failure(error, where, *records) from error
            if self._changed is not None:
                self._changed.store_if_large(self._set_key)
        else:
            self._store_changed()
            self._process_each(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        if self._changed is not None:
            for window, places in self._changed.due(timestamp_ms):
                self._fire_once(window, places)
        self._output.flush()
        if self._merging is not None:
            self._merging.store_if_large(self._set_key)

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._on_timer(self._trigger.on_event_time, True, timestamp_ms, key, key_group, namespace)

    def on_event_time_timers(self, due: DueTimers) -> None:
        if self._bulk is not None and isinstance(due, EncodedTimers) and self._fire_columns(self._bulk, due.entries):
            return
        for (time, window), timers in groupby(due, lambda one: (one[0].timestamp, one[0].namespace)):
            places = [(timer.key, key_group) for timer, key_group in timers]
            if time == window.max_timestamp:
                if self._bulk is None:
                    self._fire_once(window, places)
                else:
                    keys = KeyBatch([key for key, _ in places], [key_group for _, key_group in places], self._set_key)
                    key_columns = None if self._key_form is None else _key_columns(self._key_form, keys.keys)
                    self._fire_aggregates(self._bulk, window, keys, key_columns)
                continue
            self._store_changed()
            for key, key_group in places:
                self._set_key(key, key_group)
                self.on_event_time_timer(time, key, key_group, window)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._on_timer(self._trigger.on_processing_time, False, timestamp_ms, key, key_group, namespace)
        # No watermark follows, so flush now.
        self._output.flush()

    def prepare_snapshot(self) -> None:
        if self._merging is not None:
            self._merging.store(self._set_key)
        self._store_changed()
        self._output.flush()

    def close(self) -> None:
        if self._function is not None:
            call_user(self._uid, "close", self._function.close)

    def _open_function(self, context: Any, register: Callable[[StateDescriptor], Any]) -> None:
        who = f"operator {self._uid!r}: the function"
        states = None if self._assigner.merges_windows else PartitionedStates(register, FUNCTION_PREFIX, who)
        opening = OpeningContext(context, states)
        function = self._function
        if function is not None:
            call_user(self._uid, "open", lambda: open_function(function, opening))
        self._function_context = FunctionContext(self._timers, self._output, opening, states)
        has_clear = function is not None and type(function).clear is not ProcessWindowFunction.clear
        self._clear_of_function = function.clear if function is not None and has_clear else None

    def _changed_windows(self, context: Any) -> ChangedWindows | None:
        windows, state = self._assigner.aligned, self._state
        if windows is None or windows.slide_ms == windows.size_ms or self._lateness_ms:
            return None
        if not isinstance(state, FoldedWindows) or state.exact is None:
            return None
        if not context.equal_keys_have_equal_bytes:
            return None
        changed = ChangedWindows(state, state.exact, self._timers, context.keyed.key_serializer)
        self._timers.before_firing = changed.register_due
        return changed

    def _is_bulk(self, context: Any) -> bool:
        """Whether the accumulators of many keys are accessed together. No user function then has state here."""
        windows, definition = self._assigner.aligned, self._definition
        return (
            isinstance(definition.contents, ColumnAggregates)
            and definition.window_function is None
            and self._has_default_trigger
            and windows is not None
            and windows.slide_ms == windows.size_ms
            and context.equal_keys_have_equal_bytes
        )

    @property
    def _has_default_trigger(self) -> bool:
        return self._is_event_time and type(self._trigger) is EventTimeTrigger and self._definition.evictor is None

    def _store_changed(self) -> None:
        if self._changed is not None:
            self._changed.store(self._set_key)

    def _aligned_batches(self) -> AlignedBatches | None:
        windows = self._assigner.aligned
        if windows is None or not self._has_default_trigger:
            return None
        return AlignedBatches(
            windows,
            self._state,
            self._timers,
            lambda columns, key_groups: key_rows(self._context.keyed.key_serializer, columns, key_groups),
            self._lateness_ms,
            self._add_closed,
            self._changed,
            self._bulk,
        )

    def _process_each(self, batch: InputBatch) -> None:
        timestamps = batch.timestamps if batch.timestamps is not None else [None] * len(batch.keys)
        element: Any = None
        try:
            for element, key, key_group, time in zip(
                batch.records, batch.keys, batch.key_groups, timestamps, strict=True
            ):
                self._key = key
                self._set_key(key, key_group)
                self._process_element(element, key_group, time)
        except Exception as error:
            raise self._failure(error, of_key(self._uid, self._key), element) from error

    def _process_element(self, element: Any, key_group: int, time: int | None) -> None:
        if time is None and self._is_event_time:
            where = f"{of_key(self._uid, self._key)}, {of_record(element)}"
            raise missing_timestamp(where, "event-time windows need one", "use processing-time windows")
        assigned = time if self._is_event_time else self._timers.current_processing_time()
        # Without event time the timestamp of a record is not used.
        windows = self._assigner.assign_windows(element, 0 if assigned is None else assigned)
        if self._merging is not None:
            is_on_time = self._add_merging(element, key_group, time, windows)
        else:
            is_on_time = self._add(element, time, windows)
        if not is_on_time:
            self._take_late(element, time)

    def _add_closed(self, element: Any, key: Any, key_group: int, time: int, starts: list[int], has_open: bool) -> None:
        windows = self._assigner.aligned
        assert windows is not None
        self._key = key
        self._set_key(key, key_group)
        if not self._add(element, time, [windows.window(start) for start in starts]) and not has_open:
            self._take_late(element, time)

    def _add(self, element: Any, time: int | None, windows: Iterable[Any]) -> bool:
        """Add a record to windows that do not merge. Returns whether one of them was open."""
        is_on_time = False
        for window in windows:
            if self._is_late(window):
                continue
            is_on_time = True
            self._state.enter(window)
            self._add_to_current(element, time, window)
        return is_on_time

    def _add_merging(self, element: Any, key_group: int, time: int | None, windows: Iterable[Any]) -> bool:
        assert self._merging is not None
        merging = self._merging.of_key(self._key, key_group)
        is_on_time = False
        for window in windows:
            merge = merging.add(window)
            if merge.merged:
                self._merge(merge.window, merge.merged, merge.state_window, merge.absorbed)
            self._state.enter(merge.state_window)
            if self._is_late(merge.window):
                if merge.is_new:
                    merging.retire(merge.window)
                else:
                    # The window was registered with another lateness. Dispose it now, because after the removal from
                    # the set no timer would find it.
                    self._trigger_context.window = merge.window
                    self._dispose(key_group, merge.window)
                continue
            is_on_time = True
            self._add_to_current(element, time, merge.window)
        return is_on_time

    def _merge(self, window: Any, merged: Any, state_window: Any, absorbed: Any) -> None:
        context = self._trigger_context
        context.window, context.merged = window, merged
        self._trigger.on_merge(window, context)
        for part in merged:
            context.window = part
            self._trigger.clear(part, context)
            self._delete_cleanup_timer(part)
        if absorbed:
            self._state.merge(state_window, absorbed)

    def _add_to_current(self, element: Any, time: int | None, window: Any) -> None:
        """Add a record to the current window and apply the trigger's result."""
        self._state.add(element, time)
        self._trigger_context.window = window
        self._follow(self._trigger.on_element(element, time, window, self._trigger_context), window)
        self._register_cleanup_timer(window)

    def _follow(self, result: TriggerResult, window: Any) -> None:
        if result is TriggerResult.CONTINUE:
            return
        if result.__class__ is not TriggerResult:
            raise TypeError(
                f"{type(self._trigger).__name__} returned {format_value(result, 80)}, which is not a TriggerResult"
            )
        if result.fires:
            self._function_context.enter(window)
            self._state.fire(window, self._fire)
        if result.purges:
            self._state.clear()

    def _fire(self, elements: list[Any]) -> None:
        """Pass the contents of the window to the function and emit the results."""
        context, add = self._function_context, self._output.add
        time = context.window.max_timestamp
        if self._function is None:
            for element in elements:
                add(None, element, time)
            return
        result = self._function.process(self._key, context, elements)
        if result is None:
            return
        if result.__class__ is not GeneratorType and result.__class__ is not list:
            check_results(result, "the windows' function")
        for row in result:
            add(None, row, time)

    def _on_timer(
        self,
        on_time: Callable[[int, Any, Any], TriggerResult],
        is_event_time: bool,
        timestamp_ms: int,
        key: Any,
        key_group: int,
        window: Any,
    ) -> None:
        self._key = key
        try:
            state_window = window
            if self._merging is not None:
                state_window = self._merging.of_key(key, key_group).state_window(window)
                if state_window is None:
                    # The window has merged or was disposed. This is an old timer of its trigger.
                    return
            self._state.enter(state_window)
            self._trigger_context.window = window
            self._follow(on_time(timestamp_ms, window, self._trigger_context), window)
            if is_event_time == self._is_event_time:
                self._clean_up_if_due(timestamp_ms, key_group, window)
        except Exception as error:
            raise self._timer_failure(error, window, timestamp_ms) from error

    def _fire_once(self, window: Any, places: list[tuple[Any, int]]) -> None:
        """Fire and dispose a window of these keys."""
        state, context, clear_of_function = self._state, self._function_context, self._clear_of_function
        set_key, state_fire, fire, clear = self._set_key, state.fire, self._fire, state.clear
        changed = self._changed
        values = {} if changed is None else changed.values_of(window)
        try:
            state.enter(window)
            context.enter(window)
            unchanged = [place for place in places if place[0] not in values] if values else places
            if unchanged:
                state.read_ahead([key for key, _ in unchanged], [key_group for _, key_group in unchanged])
            for key, key_group in places:
                self._key = key
                set_key(key, key_group)
                value, _, is_stored = values.pop(key, _STORED)
                if value is None or changed is None:
                    state_fire(window, fire)
                else:
                    changed.fire_value(value, fire)
                if is_stored:
                    clear()
                if clear_of_function is not None:
                    clear_of_function(context)
            if changed is not None:
                changed.forget(window)
        except Exception as error:
            raise self._timer_failure(error, window, window.max_timestamp) from error

    def _fire_columns(self, state: ColumnAggregatedWindows, entries: Sequence[bytes]) -> bool:
        """Fire and dispose the windows of timers without creating them. Returns False, without changes, if impossible.

        That is the case if a timer is not at the end of its window, as with allowed lateness.
        """
        serializer = self._context.keyed.key_serializer
        timers = None if self._key_form is None else window_timers(serializer, entries)
        if timers is None or any(time != end - 1 for time, _, end, _ in timers.runs):
            return False
        is_composite = isinstance(serializer, TupleSerializer)
        position = 0
        for _, start, end, count in timers.runs:
            # The order of stored rows: sorting is cheap, and memory is accessed in order.
            order = pc.add(pc.sort_indices(timers.key_groups.slice(position, count)), position)
            column, key_groups = timers.keys.take(order), timers.key_groups.take(order)
            columns = column.flatten() if is_composite else [column]
            encode = partial(timers.rows, order.to_pylist())
            keys = KeyBatch(keys_of_columns(columns), column_values(key_groups), self._set_key, encode)
            self._fire_aggregates(state, TimeWindow(start, end), keys, columns, order)
            position += count
        return True

    def _fire_aggregates(
        self,
        state: ColumnAggregatedWindows,
        window: Any,
        keys: KeyBatch,
        key_columns: list[pa.Array] | None,
        order: pa.Array | None = None,
    ) -> None:
        """As `_fire_once`, for built-in aggregates: all keys at once, in columns if possible.

        Rows are emitted in the order of the keys or, if given, of the numbers in ``order``.
        """
        self._output.flush()
        try:
            state.enter(window)
            bounds = in_utc(window.start), in_utc(window.end)
            taken = None if key_columns is None else state.take_columns(keys)
            if taken is None or key_columns is None:
                in_order = keys if order is None else keys.at(pc.sort_indices(order).to_pylist())
                rows = state.take_rows(in_order, keys.keys[0].__class__ is tuple, bounds)
                encoder = self._emitter.encoder(None)
                rows = rows if tuple in encoder.unchanged else list(map(encoder.encode, rows))
            else:
                is_present, results = taken
                columns = [column.filter(is_present) for column in key_columns]
                count = is_present.true_count
                times = [pa.repeat(pa.scalar(bound, _TIMESTAMP), count) for bound in bounds]
                rows = pa.RecordBatch.from_arrays(
                    [*columns, pa.StructArray.from_arrays(times, names=["start", "end"]), *results.values()],
                    names=[*self._definition.key_names, "window", *results],
                )
                if order is not None:
                    rows = rows.take(pc.sort_indices(order.filter(is_present)))
        except Exception as error:
            where = f"operator {self._uid!r}, window {window}, timers at {window.max_timestamp}"
            raise self._failure(error, where) from error
        self._emitter.emit(None, rows, [window.max_timestamp] * len(rows))

    def _timer_failure(self, error: Exception, window: Any, timestamp_ms: int) -> Exception:
        return self._failure(error, f"{of_key(self._uid, self._key)}, window {window}, timer at {timestamp_ms}")

    def _clean_up_if_due(self, timestamp_ms: int, key_group: int, window: Any) -> None:
        cleanup_ms = self._cleanup_time(window)
        if timestamp_ms < cleanup_ms:
            if self._lateness_ms:
                self._register_cleanup_timer(window)
            return
        if timestamp_ms > cleanup_ms and self._merging is None and self._state.is_empty:
            # The window was disposed or purged before. After a purge the trigger may still have state.
            self._trigger.clear(window, self._trigger_context)
            return
        self._dispose(key_group, window)

    def _dispose(self, key_group: int, window: Any) -> None:
        """Clear everything that belongs to the current window."""
        self._state.clear()
        self._trigger.clear(window, self._trigger_context)
        if self._function is not None:
            self._function_context.enter(window)
            self._function.clear(self._function_context)
        if self._merging is not None:
            self._merging.of_key(self._key, key_group).retire(window)

    def _cleanup_time(self, window: Any) -> int:
        return clamped(window.max_timestamp + self._lateness_ms)

    def _is_late(self, window: Any) -> bool:
        return self._is_event_time and self._cleanup_time(window) <= self._timers.current_watermark()

    def _register_cleanup_timer(self, window: Any) -> None:
        cleanup_ms = self._cleanup_time(window)
        if cleanup_ms == MAX_TIMESTAMP:
            return
        if self._is_event_time:
            self._timers.register_event_time_timer(window, cleanup_ms)
        else:
            self._timers.register_processing_time_timer(window, cleanup_ms)

    def _delete_cleanup_timer(self, window: Any) -> None:
        if self._is_event_time:
            self._timers.delete_event_time_timer(window, self._cleanup_time(window))
        else:
            self._timers.delete_processing_time_timer(window, self._cleanup_time(window))

    def _take_late(self, element: Any, time: int | None) -> None:
        """Handle a record without an open window. It is late only if its own time has passed, not if it is in a gap."""
        if time is None or not self._is_event_time or time + self._lateness_ms > self._timers.current_watermark():
            return
        self.late_records[self._late_tag] += 1
        if self._late_tag is not None:
            self._output.add(self._late_tag, element, time)

    def _failure(self, error: Exception, where: str, *record: Any) -> Exception:
        # Rows emitted before the failure stay emitted.
        self._output.flush()
        if isinstance(error, UnreadableColumnError):
            return UnreadableColumnError(f"operator {self._uid!r}: {error}")
        if isinstance(error, StreamJobError):
            return error
        if isinstance(error, FoldError):
            record = (error.element,)
            assert isinstance(error.__cause__, Exception)
            error = error.__cause__
        return call_failure(
            error, "".join([where, *(f", {of_record(one)}" for one in record)]), "the windows' functions"
        )
