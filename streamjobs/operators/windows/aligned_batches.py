"""Whole batches of records into windows with fixed places in time, with few calls for each record.

Between two watermarks no window of event time is over that was not at the first of them. So the records of a batch that
belong into open windows can be put together by window and key before state is looked at: what a window of a key holds
is read once and written once, whatever the batch has for it, and its timer is registered if it held nothing. Nothing
of that can be seen: such a window emits nothing before its timer, and each has its records in their order.

That holds if the windows fire by `EventTimeTrigger` and hold no timestamps. Records of windows behind the watermark go
the long way, one by one, in their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from statebackend.keyed.key_context import KeySetter
from streamjobs.api.windows.window_assigners import AlignedWindows
from streamjobs.operators.operator import InputBatch
from streamjobs.operators.windows.window_state import WindowState
from streamjobs.time.internal_timer_service import InternalTimerService
from streamjobs.time.timestamps import MAX_TIMESTAMP, clamped

__all__ = ["AlignedBatches"]


class AlignedBatches:
    """See the module.

    ``add_closed(element, key, key_group, timestamp_ms, starts, has_open)`` takes a record for those of its windows that
    are behind the watermark, by their starts; ``has_open`` says whether it was on time for another.
    """

    def __init__(
        self,
        windows: AlignedWindows,
        state: WindowState,
        timers: InternalTimerService[Any],
        lateness_ms: int,
        add_closed: Callable[[Any, Any, int, Any, list[int], bool], None],
    ) -> None:
        self._windows = windows
        self._state = state
        self._timers = timers
        self._lateness_ms = lateness_ms
        self._add_closed = add_closed
        self.at: tuple[Any, Any] = (None, None)
        """Record and key that are being processed, for messages."""

    def process(self, batch: InputBatch, timestamps: Sequence[Any], set_key: KeySetter) -> None:
        """Takes a batch of which every record has a timestamp."""
        windows = self._windows
        is_tumbling = windows.slide_ms == windows.size_ms
        by_start = self._tumbled(batch, timestamps) if is_tumbling else self._slid(batch, timestamps)
        key_groups = dict(zip(batch.keys, batch.key_groups, strict=True))
        enter, add_all, register = self._state.enter, self._state.add_all, self._timers.register_event_time_timer
        for start, of_key in by_start.items():
            window = windows.window(start)
            fire_ms = window.max_timestamp
            cleanup_ms = clamped(fire_ms + self._lateness_ms)
            has_cleanup = cleanup_ms not in (fire_ms, MAX_TIMESTAMP)
            enter(window)
            for key, elements in of_key.items():
                self.at = elements[-1], key
                set_key(key, key_groups[key])
                if add_all(elements):
                    register(window, fire_ms)
                    if has_cleanup:
                        register(window, cleanup_ms)

    def _closed_until(self) -> int:
        """The start of the last window that is behind the watermark."""
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
                self.at = element, key
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
        by_start: dict[int, dict[Any, list[Any]]] = {}
        for index, (element, key, time) in enumerate(zip(batch.records, batch.keys, timestamps, strict=True)):
            starts = self._windows.starts(time)
            closed = [start for start in starts if start <= closed_until]
            if closed or not starts:
                self.at = element, key
                self._add_closed(element, key, batch.key_groups[index], time, closed, len(closed) < len(starts))
            for start in starts[: len(starts) - len(closed)]:
                by_start.setdefault(start, {}).setdefault(key, []).append(element)
        return by_start
