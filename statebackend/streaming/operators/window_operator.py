"""The operator of windows.

A record is added to each of its open windows, in state under key and window. Then the trigger is called, as it is for
each of its timers. When it fires, the function receives the contents.

An event-time window is disposed at its *clean-up time*, its last millisecond plus the allowed lateness: a timer of the
operator clears its contents, the trigger's state, its entry among merging windows, and calls ``clear`` of the function.
A processing-time window is disposed at its last millisecond, the global window never. If all windows of a record are
disposed, it is *late*. A restored window may have been registered with another lateness. After its clean-up time it is
disposed at the next access. If it fires earlier, it registers the new timer. After an error of a user function the
epoch is processed again from the last snapshot.

Windows that merge: a window grows with every record that extends it, but its contents stay under its first namespace,
the *state window*. When windows merge, one state window receives the contents of the others. `MergingWindowSet` maps
the windows of a key to state windows; it is stored as a list of pairs (Flink's ``merging-window-set``). Its windows
are sorted and neither overlap nor touch, so a record finds its windows by two binary searches. Decoding a set is
slower than changing it, so sets in use stay decoded (`MergingWindows`). They are stored before a snapshot, or when
there are many.

The names of state per window have one prefix for triggers and one for functions, so they do not conflict with each
other or with other state. A handle serves all windows; the code that returns it sets the current window.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import GeneratorType
from typing import Any, Final

import pyarrow as pa
from attrs import evolve, frozen

from snapshots.errors import format_value
from statebackend.savepoint.column_codecs import key_rows, window_timers
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.value_forms import ColumnForm, ColumnForms
from statebackend.state.errors import StateBackendError, StateRegistrationError
from statebackend.state.internal_states import InternalState, MergingState
from statebackend.state.key_batch import KeyBatch
from statebackend.state.key_context import KeySetter
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.states import ListState, State
from statebackend.streaming.aggregates import in_utc, is_grouped_alike
from statebackend.streaming.errors import AggregateOverflowError, StreamJobError
from statebackend.streaming.functions import DelegatingContext, RuntimeContext, open_function
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
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator, OrderedOutput
from statebackend.streaming.operators.window_state import (
    ColumnAggregatedWindows,
    FoldedWindows,
    FoldError,
    window_state,
)
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.row_reader import UnreadableColumnError, column_values, keys_of_columns
from statebackend.streaming.time.internal_timer_service import DueTimers, EncodedTimers, InternalTimerService
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, Time, clamped, time_ms
from statebackend.streaming.windows.triggers import EventTimeTrigger, OnMergeContext, Trigger, TriggerResult
from statebackend.streaming.windows.window_definition import ColumnAggregates, WindowDefinition
from statebackend.streaming.windows.window_functions import (
    ProcessWindowFunction,
    WindowContext,
    WindowRuntimeContext,
    WindowStateStore,
)
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.timers import TimeWindow, TimeWindowSerializer

__all__ = [
    "FUNCTION_PREFIX",
    "SETS_NAME",
    "TIMERS_NAME",
    "FunctionContext",
    "Merge",
    "MergingWindowSet",
    "MergingWindows",
    "OpeningContext",
    "PartitionedStates",
    "WindowOperator",
    "WindowTriggerContext",
    "WindowsMergeError",
]


_start, _end = attrgetter("start"), attrgetter("end")


@frozen
class Merge:
    """The result of adding a window.

    ``window`` contains the added window. It replaces the windows ``merged``; the contents of the state windows
    ``absorbed`` move to ``state_window``. Both are empty if no windows merged. ``is_new`` is True for a new window.
    """

    window: TimeWindow
    state_window: TimeWindow
    merged: Sequence[TimeWindow] = ()
    absorbed: Sequence[TimeWindow] = ()
    is_new: bool = False


class MergingWindowSet:
    """The windows of a key with their state windows; ``pairs`` may be in any order."""

    def __init__(self, pairs: Iterable[tuple[TimeWindow, TimeWindow]] = ()) -> None:
        self._state_windows = dict(pairs)
        self._windows = sorted(self._state_windows)
        self.has_changed = False
        """Whether the pairs have changed since creation, or since this was last reset."""

    @property
    def pairs(self) -> list[tuple[TimeWindow, TimeWindow]]:
        """Return the windows with their state windows, by time."""
        return [(window, self._state_windows[window]) for window in self._windows]

    def state_window(self, window: TimeWindow) -> TimeWindow | None:
        """Return the state window of a window, or None if it is not in the set."""
        return self._state_windows.get(window)

    def add(self, window: TimeWindow) -> Merge:
        """Add a window and merge it with the windows that it overlaps or touches."""
        first = bisect_left(self._windows, window.start, key=_end)
        after = bisect_right(self._windows, window.end, key=_start)
        merged = self._windows[first:after]
        if not merged:
            self._windows.insert(first, window)
            self._state_windows[window] = window
            self.has_changed = True
            return Merge(window, window, is_new=True)
        whole = TimeWindow(min(merged[0].start, window.start), max(merged[-1].end, window.end))
        if len(merged) == 1 and merged[0] == whole:
            return Merge(whole, self._state_windows[whole])
        state_window, *absorbed = [self._state_windows.pop(part) for part in merged]
        self._windows[first:after] = [whole]
        self._state_windows[whole] = state_window
        self.has_changed = True
        return Merge(whole, state_window, merged, absorbed)

    def retire(self, window: TimeWindow) -> None:
        """Remove a window, if present."""
        if self._state_windows.pop(window, None) is not None:
            del self._windows[bisect_left(self._windows, window)]
            self.has_changed = True


SETS_NAME: Final = "merging-window-set"

_MOST_SETS: Final = 4096
"""The maximum number of decoded sets before they are stored."""


class MergingWindows:
    """The sets of all keys of a subtask: stored in a list state, and decoded while in use."""

    def __init__(self, register: Callable[[ListStateDescriptor[Any]], Any]) -> None:
        pair: TupleSerializer = TupleSerializer((TimeWindowSerializer(), TimeWindowSerializer()))
        self._state: ListState[Any] = register(ListStateDescriptor(SETS_NAME, pair))
        self._in_use: dict[Any, tuple[int, MergingWindowSet]] = {}

    def of_key(self, key: Any, key_group: int) -> MergingWindowSet:
        """Return the set of the current key."""
        known = self._in_use.get(key)
        if known is None:
            known = self._in_use[key] = key_group, MergingWindowSet(self._state.get())
        return known[1]

    def store_if_large(self, set_key: KeySetter) -> None:
        """Store the decoded sets if there are many. Changes the current key, as `store` does."""
        if len(self._in_use) > _MOST_SETS:
            self.store(set_key)

    def store(self, set_key: KeySetter) -> None:
        """Store the decoded sets and drop them from memory."""
        for key, (key_group, windows) in self._in_use.items():
            if windows.has_changed:
                set_key(key, key_group)
                # An empty list clears the state.
                self._state.update(windows.pairs)
        self._in_use.clear()


TRIGGER_PREFIX: Final = "trigger."
FUNCTION_PREFIX: Final = "window."

Register = Callable[[StateDescriptor], Any]


class WindowsMergeError(StateBackendError):
    """State per window is not supported for windows that merge."""


class PartitionedStates:
    """States with windows as namespaces, by the names in their descriptors."""

    def __init__(self, register: Register, prefix: str, who: str) -> None:
        self._register = register
        self._prefix = prefix
        self._who = who
        self._states: dict[str, tuple[StateDescriptor, Any]] = {}

    def register(self, descriptor: StateDescriptor) -> Any:
        """Register a state. Raises `StateRegistrationError` for a duplicate name."""
        known = self._states.get(descriptor.name)
        if known is not None and known[0] != descriptor:
            raise StateRegistrationError(f"{self._who} registers two states {descriptor.name!r} per window; rename one")
        if known is None:
            handle = self._register(evolve(descriptor, name=f"{self._prefix}{descriptor.name}"))
            self._states[descriptor.name] = known = (descriptor, handle)
        return known[1]

    def handle(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a state, in its current window. Raises `StateRegistrationError` if unknown."""
        known = self._states.get(descriptor.name)
        if known is None:
            names = ", ".join(map(repr, self._states)) or "none"
            raise StateRegistrationError(
                f"{self._who} asks for the state {descriptor.name!r} per window, and has registered {names}: name it "
                f"in state_descriptors of a trigger, or register it in open() of a function with context.window_state"
            )
        return known[1]

    @property
    def handles(self) -> Sequence[InternalState]:
        """All handles."""
        return [handle for _, handle in self._states.values()]


class WindowTriggerContext(OnMergeContext):
    """The trigger context for all keys and windows of a subtask. The caller of the trigger sets the current window."""

    def __init__(self, trigger: Trigger[Any, Any], timers: InternalTimerService[Any], register: Register) -> None:
        self.window: Any = None
        """The current window."""
        self.merged: Sequence[Any] = ()
        """The windows that merged into it, during `Trigger.on_merge`."""
        self._timers = timers
        self._states = PartitionedStates(register, TRIGGER_PREFIX, type(trigger).__name__)
        for descriptor in trigger.state_descriptors:
            self._states.register(descriptor)

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def register_event_time_timer(self, time: Time) -> None:
        self._timers.register_event_time_timer(self.window, time if time.__class__ is int else time_ms(time))

    def register_processing_time_timer(self, time: Time) -> None:
        self._timers.register_processing_time_timer(self.window, time if time.__class__ is int else time_ms(time))

    def delete_event_time_timer(self, time: Time) -> None:
        self._timers.delete_event_time_timer(self.window, time if time.__class__ is int else time_ms(time))

    def delete_processing_time_timer(self, time: Time) -> None:
        self._timers.delete_processing_time_timer(self.window, time if time.__class__ is int else time_ms(time))

    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        handle = self._states.handle(descriptor)
        handle.set_current_namespace(self.window)
        return handle

    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        handle = self._states.handle(descriptor)
        if not isinstance(handle, MergingState):
            raise StateRegistrationError(
                f"the state {descriptor.name!r} of a trigger is a {descriptor.kind.name} state, which cannot be "
                f"merged; list, reducing and aggregating state can"
            )
        handle.merge_namespaces(self.window, self.merged)


class _RejectingStates:
    """State per window for windows that merge: every access raises."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        raise WindowsMergeError(
            f"state per window ({descriptor.name!r}) is not supported for windows that merge, such as sessions, "
            f"because its values cannot be merged; use context.global_state(), or another assigner"
        )


class _RejectedState(State):
    """The handle of state per window for windows that merge. Every access raises.

    Registration succeeds, because a function may also be used with other assigners.
    """

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        return _RejectingStates().get_state(self._descriptor)

    def clear(self) -> None:
        """Raise `WindowsMergeError`, as every access."""


class _RegisteredStates:
    """Registers state per window, or rejects its use."""

    def __init__(self, states: PartitionedStates | None) -> None:
        self._states = states

    def get_state(self, descriptor: StateDescriptor) -> Any:
        return _RejectedState(descriptor) if self._states is None else self._states.register(descriptor)


class OpeningContext(DelegatingContext, WindowRuntimeContext):
    """The context of `open()` of a function over windows: the operator's context, and state per window."""

    def __init__(self, context: RuntimeContext, states: PartitionedStates | None) -> None:
        super().__init__(context)
        self._window_state = _RegisteredStates(states)
        self.registered: dict[str, State] = {}
        """The handles of state per key."""

    @property
    def window_state(self) -> WindowStateStore:
        return self._window_state

    def register(self, descriptor: StateDescriptor) -> State:
        state = self.registered[descriptor.name] = self._context.register(descriptor)
        return state

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        return self._context.register_operator_state(descriptor)


class _WindowStates:
    """State of the current key and window."""

    def __init__(self, states: PartitionedStates, context: FunctionContext) -> None:
        self._states = states
        self._context = context

    def get_state(self, descriptor: StateDescriptor) -> Any:
        handle = self._states.handle(descriptor)
        handle.set_current_namespace(self._context.window)
        return handle


class _GlobalStates:
    """State of the current key."""

    def __init__(self, registered: Mapping[str, State], uid: str) -> None:
        self._registered = registered
        self._uid = uid

    def get_state(self, descriptor: StateDescriptor) -> Any:
        state = self._registered.get(descriptor.name)
        if state is None:
            raise StateRegistrationError(
                f"operator {self._uid!r}: the state {descriptor.name!r} is not registered; register it in open()"
            )
        return state


class FunctionContext(WindowContext[Any]):
    """The context for all keys and windows of a subtask. The caller enters the window first."""

    def __init__(
        self,
        timers: InternalTimerService[Any],
        output: OrderedOutput,
        opening: OpeningContext,
        states: PartitionedStates | None,
    ) -> None:
        self.window: Any = None
        self._timers = timers
        self._output = output
        self._handles = () if states is None else tuple(states.handles)
        self._window_states: WindowStateStore = _RejectingStates() if states is None else _WindowStates(states, self)
        self._global_states = _GlobalStates(opening.registered, opening.operator_uid)

    def enter(self, window: Any) -> None:
        """Set the current window, also in all state per window."""
        self.window = window
        for handle in self._handles:
            handle.set_current_namespace(window)

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def window_state(self) -> WindowStateStore:
        return self._window_states

    def global_state(self) -> WindowStateStore:
        return self._global_states

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if not isinstance(tag, OutputTag):
            given: object = tag
            raise TypeError(f"output() takes an OutputTag and a record, not {format_value(given, 80)}")
        if tag in self._output.side_outputs:
            self._output.add(tag, value, self.window.max_timestamp)


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
        self._key_form = _key_form(context.keyed.key_serializer) if definition.key_names else None
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
            check_results(result, "process")
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
            column, key_groups = timers.keys.slice(position, count), timers.key_groups.slice(position, count)
            rows = timers.rows[position : position + count]
            columns = column.flatten() if is_composite else [column]
            keys = KeyBatch(keys_of_columns(columns), column_values(key_groups), self._set_key, partial(list, rows))
            self._fire_aggregates(state, TimeWindow(start, end), keys, columns)
            position += count
        return True

    def _fire_aggregates(
        self, state: ColumnAggregatedWindows, window: Any, keys: KeyBatch, key_columns: list[pa.Array] | None
    ) -> None:
        """As `_fire_once`, for built-in aggregates: all keys at once, in columns if possible."""
        self._output.flush()
        try:
            state.enter(window)
            bounds = in_utc(window.start), in_utc(window.end)
            taken = None if key_columns is None else state.take_columns(keys)
            if taken is None or key_columns is None:
                rows = state.take_rows(keys, keys.keys[0].__class__ is tuple, bounds)
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
