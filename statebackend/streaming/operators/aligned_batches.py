"""Processes whole batches for aligned windows, with few calls per record.

No event-time window closes between two watermarks. So the records of a batch for open windows can be grouped by window
and key before state is accessed. The contents of a window are then read and written once per batch, and its timer is
registered if it was empty. The result is the same: such a window emits nothing before its timer, and receives its
records in order. This requires `EventTimeTrigger` and contents without timestamps. Records of closed windows are
processed one by one.

Batches in columns are counted, or folded into built-in aggregates, by key and tumbling window without creating records.
Arrow groups by the bytes of keys and window starts, which equals Python's grouping for integers, strings, dates and
similar types. Python groups other types (a double has two zeros and many NaNs) and times near the limits of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from sys import getsizeof
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from statebackend.state.key_batch import KeyBatch
from statebackend.state.key_context import KeySetter
from statebackend.state.value_forms import compile_exact
from statebackend.streaming.aggregates import groups_alike
from statebackend.streaming.operators.operator import BatchPlaces, InputBatch, ObjectBatch
from statebackend.streaming.operators.window_state import ColumnAggregatedWindows, FoldedWindows, WindowState
from statebackend.streaming.rows.row_reader import column_values, keys_of_columns
from statebackend.streaming.time.internal_timer_service import InternalTimerService
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, clamped
from statebackend.streaming.windows.assigners import AlignedWindows
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.timers import TimeWindow

__all__ = ["AlignedBatches", "ChangedWindows", "WindowCounts", "can_be_counted", "counts_by_start", "starts_of"]


WindowCounts = tuple[int, Sequence[Any], Sequence[int], Sequence[int]]
"""The start of a window, the keys, their key groups, and the number of records of each key."""

_FAR: Final = 1 << 62
"""Beyond this time, 64-bit arithmetic in milliseconds may overflow."""


def can_be_counted(places: BatchPlaces) -> bool:
    """Whether Arrow groups by the same keys and windows as Python, and all records have a timestamp."""
    if not groups_alike(places.keys) or places.timestamps.null_count:
        return False
    bounds: Mapping[str, int] = pc.min_max(places.timestamps).as_py()
    return bounds["min"] > -_FAR and bounds["max"] < _FAR


def starts_of(windows: AlignedWindows, timestamps: pa.Array) -> pa.Array:
    """Return the start of the tumbling window of each timestamp. Timestamps must be far from overflow."""
    from_offset = pc.subtract(timestamps, windows.offset_ms)
    # Integer division rounds towards zero, so windows before the offset start one slide earlier.
    starts = pc.multiply(pc.divide(from_offset, windows.size_ms), windows.size_ms)
    starts = pc.if_else(pc.greater(starts, from_offset), pc.subtract(starts, windows.size_ms), starts)
    return pc.add(starts, windows.offset_ms)


def counts_by_start(places: BatchPlaces, starts: pa.Array) -> Iterator[WindowCounts]:
    """Yield the counts of a batch, window by window."""
    names = [f"key{index}" for index in range(len(places.keys))]
    columns = [starts, *places.keys, places.key_groups]
    table = pa.Table.from_arrays(columns, names=["start", *names, "key_group"])
    for start in pc.unique(starts).to_pylist():
        of_window = table.filter(pc.equal(table["start"], start)).drop_columns(["start"])
        counts = of_window.group_by([*names, "key_group"], use_threads=False).aggregate([([], "count_all")])
        counts = counts.combine_chunks()
        keys = keys_of_columns([counts.column(name).chunk(0) for name in names])
        yield (
            start,
            keys,
            column_values(counts.column("key_group").chunk(0)),
            column_values(counts["count_all"].chunk(0)),
        )


WindowPart = tuple[int, Sequence[Any], Sequence[int], Sequence[Any]]
"""The start of a window, the keys, their key groups, and for each key its records or their number."""


_MOST_CHANGED: Final = 1 << 16
"""The maximum number of values in memory before they are stored."""

_MOST_BYTES: Final = 64 << 20
"""The values are stored when so many bytes of values were folded. A value counts again when it changes."""

ChangedValue = tuple[Any, int, bool]
"""The value of a key in a window, the key group, and whether state has an earlier value."""


class ChangedWindows:
    """The values of sliding windows since the last snapshot, in memory.

    They enter state before a snapshot, or when there are many; their timers are registered then. So a window that fires
    before the next snapshot costs no access to state, and the stored bytes are the same. Values must be of an immutable
    type, and equal keys must have equal bytes. Code that accesses the state of a window must call `store` first.

    Windows fire in the order of their timers. If registered timers are due too, those of the windows in memory are
    registered first (`register_due`); otherwise the windows are due after them (`due`).
    """

    def __init__(
        self,
        state: FoldedWindows,
        exact: Callable[[Any], Any],
        timers: InternalTimerService[Any],
        key_serializer: TypeSerializer[Any],
    ) -> None:
        self.fold = state.fold
        """Folds records into a value, as `FoldedWindows.fold`."""
        self.fire_value = state.fire_value
        """Passes a value to the function of the windows, as `FoldedWindows.fire_value`."""
        self.exact = exact
        """Converts a folded value to the value that state would return."""
        self.exact_key: Callable[[Any], Any] = compile_exact(key_serializer, lambda: "the key of a window", True)
        self.folded_bytes = 0
        """The bytes of the values since they were last stored; a value counts again when it changes."""
        self._state = state
        self._timers = timers
        self._key_bytes = key_serializer.codec.write
        self._windows: dict[TimeWindow, dict[Any, ChangedValue]] = {}

    def values_of(self, window: TimeWindow) -> dict[Any, ChangedValue]:
        """Return the values of a window by key, which the caller may change."""
        values = self._windows.get(window)
        if values is None:
            values = self._windows[window] = {}
        return values

    def load(self, window: TimeWindow, keys: Sequence[Any], key_groups: Sequence[int], set_key: KeySetter) -> list[Any]:
        """Return the stored values of keys that have no value in memory; None for a key without one."""
        state = self._state
        state.enter(window)
        state.read_ahead(keys, key_groups)
        stored = []
        for key, key_group in zip(keys, key_groups, strict=True):
            set_key(key, key_group)
            stored.append(state.get())
        return stored

    def store_if_large(self, set_key: KeySetter) -> None:
        """Store the values if there are many, or if they are large."""
        if self.folded_bytes > _MOST_BYTES or sum(map(len, self._windows.values())) > _MOST_CHANGED:
            self.store(set_key)

    def store(self, set_key: KeySetter) -> None:
        """Store the values and drop them from memory. Changes the current key and window."""
        update = self._state.update
        for window, values in self._windows.items():
            self._state.enter(window)
            for key, (value, key_group, _) in values.items():
                set_key(key, key_group)
                update(value)
            self._register(window)
        self._windows.clear()
        self.folded_bytes = 0

    def register_due(self, watermark_ms: int, first_timer_ms: int | None) -> None:
        """Register the timers of the windows that are due, unless the windows can be fired without."""
        due = [window for window in self._windows if window.max_timestamp <= watermark_ms]
        has_due_timers = first_timer_ms is not None and first_timer_ms <= watermark_ms
        # At the limits of the range, windows have the same time.
        if has_due_timers or len({window.max_timestamp for window in due}) < len(due):
            for window in due:
                self._register(window)

    def due(self, watermark_ms: int) -> Iterator[tuple[TimeWindow, list[tuple[Any, int]]]]:
        """Yield the windows that are due with their keys and key groups, in the order of timers."""
        key_bytes = self._key_bytes
        for window in sorted(window for window in self._windows if window.max_timestamp <= watermark_ms):
            values = self._windows[window]
            yield window, [(key, values[key][1]) for key in sorted(values, key=key_bytes)]

    def forget(self, window: TimeWindow) -> None:
        """Forget a window if it has no values."""
        if not self._windows.get(window, True):
            del self._windows[window]

    def _register(self, window: TimeWindow) -> None:
        """Register the timers of a window for keys without a stored value."""
        opened = [(key, key_group) for key, (_, key_group, is_stored) in self._windows[window].items() if not is_stored]
        keys, key_groups = [key for key, _ in opened], [key_group for _, key_group in opened]
        self._timers.register_event_time_timers(window, window.max_timestamp, keys, key_groups)


def _order_of_rows(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """The order of the rows by the last column, the key group, and then by key.

    It is about that of stored rows, so that later steps, above all sorting, access memory in order.
    """
    by_place = {str(index): column for index, column in enumerate((columns[-1], *columns[:-1]))}
    return pc.sort_indices(pa.table(by_place), sort_keys=[(name, "ascending") for name in by_place])


def _distinct(keys: Sequence[Any], key_groups: Sequence[int], set_key: KeySetter) -> KeyBatch:
    group_of = dict(zip(keys, key_groups, strict=True))
    return KeyBatch(list(group_of), list(group_of.values()), set_key)


class AlignedBatches:
    """Adds batches to aligned windows.

    ``add_closed(element, key, key_group, timestamp_ms, starts, has_open)`` receives a record with the starts of its
    closed windows; ``has_open`` is True if another of its windows was open. With ``changed``, values are kept there.
    With ``aggregates``, which is ``state``, the windows of a batch are read and written together. ``rows_of_keys``
    encodes keys from their columns and key groups (`key_rows`).
    """

    def __init__(
        self,
        windows: AlignedWindows,
        state: WindowState,
        timers: InternalTimerService[Any],
        rows_of_keys: Callable[[Sequence[pa.Array], pa.Array], Sequence[bytes] | None],
        lateness_ms: int,
        add_closed: Callable[[Any, Any, int, Any, list[int], bool], None],
        changed: ChangedWindows | None = None,
        aggregates: ColumnAggregatedWindows | None = None,
    ) -> None:
        self._windows = windows
        self._state = state
        self._timers = timers
        self._rows_of_keys = rows_of_keys
        self._lateness_ms = lateness_ms
        self._add_closed = add_closed
        self._changed = changed
        self._aggregates = aggregates
        self.at: tuple[Any, Sequence[Any]] = (None, ())
        """The key that is being processed and, if known, the record; for error messages."""

    def process(self, batch: InputBatch, timestamps: Sequence[Any], set_key: KeySetter) -> None:
        """Process a batch. All records must have timestamps."""
        self.at = None, ()
        is_tumbling = self._windows.slide_ms == self._windows.size_ms
        aggregates = self._aggregates
        places = batch.places if is_tumbling and (self._state.counts or aggregates is not None) else None
        if places is not None and can_be_counted(places):
            if aggregates is None:
                self._add_to_windows(self._counted(places), self._state.add_counted, set_key)
            else:
                assert batch.columns is not None
                self._add_columns(aggregates, batch.columns, places, set_key)
            return
        by_start = self._tumbled(batch, timestamps) if is_tumbling else self._slid(batch, timestamps)
        key_group_of = dict(zip(batch.keys, batch.key_groups, strict=True))
        if self._changed is not None:
            self._fold_into(self._changed, by_start, key_group_of, set_key)
            return
        parts = (
            (start, list(of_key), list(map(key_group_of.__getitem__, of_key)), list(of_key.values()))
            for start, of_key in by_start.items()
        )
        if aggregates is not None:
            self._add_records(aggregates, parts, set_key)
        else:
            self._add_to_windows(parts, self._state.add_all, set_key)

    def _fold_into(
        self,
        changed: ChangedWindows,
        by_start: dict[int, dict[Any, list[Any]]],
        key_group_of: Mapping[Any, int],
        set_key: KeySetter,
    ) -> None:
        fold, exact, folded_bytes = changed.fold, changed.exact, 0
        for start, of_key in by_start.items():
            window = self._windows.window(start)
            values = changed.values_of(window)
            new = [key for key in of_key if key not in values]
            if new:
                key_groups = [key_group_of[key] for key in new]
                found = changed.load(window, new, key_groups, set_key)
                for key, key_group, stored in zip(new, key_groups, found, strict=True):
                    elements = of_key.pop(key)
                    self.at = key, elements[-1:]
                    exact_key = changed.exact_key(key)
                    value = exact(fold(stored, elements))
                    folded_bytes += getsizeof(value)
                    values[exact_key] = value, key_group, stored is not None
            for key, elements in of_key.items():
                self.at = key, elements[-1:]
                known, key_group, is_stored = values[key]
                value = exact(fold(known, elements))
                folded_bytes += getsizeof(value)
                values[key] = value, key_group, is_stored
        changed.folded_bytes += folded_bytes

    def _add_to_windows(self, parts: Iterable[WindowPart], add: Callable[[Any], bool], set_key: KeySetter) -> None:
        for start, keys, key_groups, contents in parts:
            window = self._windows.window(start)
            self._state.enter(window)
            self._state.read_ahead(keys, key_groups)
            opened: list[Any] = []
            groups_of_opened: list[int] = []
            for key, key_group, content in zip(keys, key_groups, contents, strict=True):
                self.at = key, content[-1:] if content.__class__ is list else ()
                set_key(key, key_group)
                if add(content):
                    opened.append(key)
                    groups_of_opened.append(key_group)
            self._register(window, opened, groups_of_opened)

    def _register(
        self, window: TimeWindow, keys: Sequence[Any], key_groups: Sequence[int], rows: Sequence[bytes] | None = None
    ) -> None:
        """Register the timers of a window for keys that had no records in it."""
        fire_ms = window.max_timestamp
        self._timers.register_event_time_timers(window, fire_ms, keys, key_groups, rows)
        cleanup_ms = clamped(fire_ms + self._lateness_ms)
        if cleanup_ms not in (fire_ms, MAX_TIMESTAMP):
            self._timers.register_event_time_timers(window, cleanup_ms, keys, key_groups, rows)

    def _add_columns(
        self, state: ColumnAggregatedWindows, columns: pa.RecordBatch, places: BatchPlaces, set_key: KeySetter
    ) -> None:
        """Add records to windows of aggregates. Arrow aggregates them first, if it can."""
        aggregates = state.aggregates
        starts = starts_of(self._windows, places.timestamps)
        parts = [starts, *places.keys, places.key_groups]
        table = aggregates.partial_results(columns, parts) if aggregates.is_exact else None
        is_combined = table is not None
        if table is None:
            parts += map(columns.column, aggregates.columns)
            table = pa.Table.from_arrays(parts, names=list(map(str, range(len(parts)))))
        until = clamped(self._closed_until())
        self._without_closed(places, starts, until)
        table = table.filter(pc.greater(table.column(0), until))
        for start in pc.unique(table.column(0)).to_pylist():
            of_window = table.filter(pc.equal(table.column(0), start))
            if is_combined:
                of_window = of_window.take(_order_of_rows(of_window.columns[1 : len(places.keys) + 2]))
            _, *found = [column.combine_chunks() for column in of_window.columns]
            keys = keys_of_columns(found[: len(places.keys)])
            key_groups, values = column_values(found[len(places.keys)]), found[len(places.keys) + 1 :]
            window = self._windows.window(start)
            state.enter(window)
            if is_combined:
                encode = partial(self._rows_of_keys, found[: len(places.keys)], found[len(places.keys)])
                of_keys = KeyBatch(keys, key_groups, set_key, encode)
                are_new = state.add_partials(of_keys, values)
            else:
                of_keys = _distinct(keys, key_groups, set_key)
                are_new = state.add_rows(aggregates.fold, of_keys, keys, list(map(column_values, values)))
            new = of_keys.only(are_new)
            self._register(window, new.keys, new.key_groups, new.rows)

    def _add_records(self, state: ColumnAggregatedWindows, parts: Iterable[WindowPart], set_key: KeySetter) -> None:
        aggregates = state.aggregates
        for start, keys, key_groups, contents in parts:
            window = self._windows.window(start)
            state.enter(window)
            of_keys = KeyBatch(keys, key_groups, set_key)
            row_keys = [key for key, records in zip(keys, contents, strict=True) for _ in records]
            columns = aggregates.columns_of(list(chain.from_iterable(contents)))
            are_new = state.add_rows(aggregates.fold, of_keys, row_keys, columns)
            new = of_keys.only(are_new)
            self._register(window, new.keys, new.key_groups, new.rows)

    def _counted(self, places: BatchPlaces) -> Iterator[WindowPart]:
        starts = starts_of(self._windows, places.timestamps)
        return counts_by_start(*self._without_closed(places, starts, clamped(self._closed_until())))

    def _without_closed(self, places: BatchPlaces, starts: pa.Array, until: int) -> tuple[BatchPlaces, pa.Array]:
        """Pass the records of closed windows to ``add_closed``, and return the others."""
        is_closed = pc.less_equal(starts, until)
        if not is_closed.true_count:
            return places, starts
        self._take_closed(places.objects_of(is_closed), starts.filter(is_closed))
        is_open = pc.invert(is_closed)
        return places.only(is_open), starts.filter(is_open)

    def _take_closed(self, closed: ObjectBatch, starts: pa.Array) -> None:
        columns = closed.records, closed.keys, closed.key_groups, closed.timestamps or ()
        for element, key, key_group, time, start in zip(*columns, starts.to_pylist(), strict=True):
            self.at = key, (element,)
            self._add_closed(element, key, key_group, time, [start], False)

    def _closed_until(self) -> int:
        """Return the start of the last closed window."""
        watermark = self._timers.current_watermark()
        return MAX_TIMESTAMP if watermark >= MAX_TIMESTAMP - 1 else watermark + 1 - self._windows.size_ms

    def _tumbled(self, batch: InputBatch, timestamps: Sequence[int]) -> dict[int, dict[Any, list[Any]]]:
        closed_until = self._closed_until()
        size, offset = self._windows.size_ms, self._windows.offset_ms
        by_start: dict[int, dict[Any, list[Any]]] = {}
        last_start, of_key = None, {}
        for index, (element, key, time) in enumerate(zip(batch.records, batch.keys, timestamps, strict=True)):
            start = time - (time - offset) % size
            if start <= closed_until:
                self.at = key, (element,)
                self._add_closed(element, key, batch.key_groups[index], time, [start], False)
                continue
            if start != last_start:
                last_start, of_key = start, by_start.setdefault(start, {})
            elements = of_key.get(key)
            if elements is None:
                of_key[key] = [element]
            else:
                elements.append(element)
        return by_start

    def _slid(self, batch: InputBatch, timestamps: Sequence[int]) -> dict[int, dict[Any, list[Any]]]:
        closed_until = self._closed_until()
        size, slide, offset = self._windows.size_ms, self._windows.slide_ms, self._windows.offset_ms
        by_start: dict[int, dict[Any, list[Any]]] = {}
        for index, (element, key, time) in enumerate(zip(batch.records, batch.keys, timestamps, strict=True)):
            # As `AlignedWindows.starts`.
            start = time - (time - offset) % slide
            least = time - size
            if start <= least or closed_until > least:
                starts = self._windows.starts(time)
                closed = [start for start in starts if start <= closed_until]
                if closed or not starts:
                    self.at = key, (element,)
                    self._add_closed(element, key, batch.key_groups[index], time, closed, len(closed) < len(starts))
                least = max(least, closed_until)
            while start > least:
                of_key = by_start.get(start)
                if of_key is None:
                    of_key = by_start[start] = {}
                elements = of_key.get(key)
                if elements is None:
                    of_key[key] = [element]
                else:
                    elements.append(element)
                start -= slide
        return by_start
