"""Timers as a processor sees them, with Spark's order of an epoch: first the records, then the timers that are due.

A runtime calls timers when time has come to them, which is before the records of an epoch. Spark calls a processor for
its records first, and what it deletes then does not fire. So a timer that is due only waits here (`take`), and fires
behind the records (`due`):

    registered                        pending -> waiting -> fired
    registered, already due           -> waiting, if it is registered for a record; pending again, if by a timer,
                                      which then fires in the next epoch
    deleted before it fires           forgotten

Which timers a key has is in a map state of the key's, since a processor may list them. That state decides: a timer
that waits fires only if its key still has it, and once. A timer is listed until the call for it has returned.

Spark's watermark T is the largest timestamp, less the delay: records up to T are late, and timers at T are due. Ours,
W, is a millisecond less, since a record at T may still come; windows are over at the same records by both. A processor
sees T = W + 1, and its timer for T is one for T - 1 in the timer service. Those that older versions have stored are in
the service for T, and fire when it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from statebackend.api.states import MapState
from streamjobs.api.stateful_processor import TimeMode, TimerValues
from streamjobs.time.internal_timer_service import InternalTimerService
from streamjobs.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, clamped
from typeserializers.scalars.void import VOID_NAMESPACE

__all__ = ["ProcessorTimers"]

_INTEGERS: Final = range(-(1 << 63), 1 << 63)


class ProcessorTimers:
    """The timers of one subtask in one epoch.

    ``service`` is the operator's timer service, ``of_key`` the times of the timers of the current key.
    """

    def __init__(self, mode: TimeMode, service: InternalTimerService[Any], of_key: MapState[int, bool]) -> None:
        self._service = service
        self._of_key = of_key
        self._waiting: list[tuple[int, Any, int]] = []
        self._fires = False
        self._now_ms: Callable[[], int] = service.current_processing_time
        self._register: Callable[[Any, int], None] = service.register_processing_time_timer
        self._delete: Callable[[Any, int], None] = service.delete_processing_time_timer
        self._is_event_time = mode is TimeMode.EVENT_TIME
        if self._is_event_time:
            self._now_ms = self._watermark_from_zero
            self._register = service.register_event_time_timer
            self._delete = service.delete_event_time_timer
        self._key: tuple[Any, int] = (None, 0)
        self._registered_by_timers: set[tuple[Any, int]] = set()

    def set_key(self, key: Any, key_group: int) -> None:
        """Says which key is current; the state's key is set elsewhere."""
        self._key = key, key_group

    def current_watermark(self) -> int:
        """The watermark of the epoch as Spark counts it, in milliseconds; the smallest time before there is one."""
        watermark_ms = self._service.current_watermark()
        return watermark_ms if watermark_ms in (MIN_TIMESTAMP, MAX_TIMESTAMP) else watermark_ms + 1

    def values(self) -> TimerValues:
        """The time of the epoch."""
        return TimerValues(self._service.current_processing_time(), self._watermark_from_zero())

    def _watermark_from_zero(self) -> int:
        """The watermark as Spark shows it, which begins at 0."""
        return max(self.current_watermark(), 0)

    def register(self, timestamp_ms: Any) -> None:
        """Registers a timer of the current key; one that is there already stays. Raises `TypeError`, `ValueError`."""
        timestamp_ms = _checked(timestamp_ms)
        if self._of_key.contains(timestamp_ms):
            return
        self._of_key.put(timestamp_ms, True)
        if timestamp_ms <= self._now_ms() and not self._fires:
            self._waiting.append((timestamp_ms, *self._key))
        else:
            self._register(VOID_NAMESPACE, self._in_service(timestamp_ms))
            if self._fires:
                self._registered_by_timers.add((self._key[0], timestamp_ms))

    def delete(self, timestamp_ms: Any) -> None:
        """Deletes a timer of the current key; one that is not there is no error."""
        timestamp_ms = _checked(timestamp_ms)
        if self._of_key.contains(timestamp_ms):
            self._of_key.remove(timestamp_ms)
            self._delete(VOID_NAMESPACE, self._in_service(timestamp_ms))

    def listed(self) -> list[int]:
        """The times of the timers of the current key, in order."""
        return sorted(self._of_key.keys())

    def take(self, timestamp_ms: int, key: Any, key_group: int) -> None:
        """Takes a timer that the runtime says is due."""
        is_before = self._is_event_time and timestamp_ms != MAX_TIMESTAMP
        self._waiting.append((timestamp_ms + is_before, key, key_group))

    def due(self, set_key: Callable[[Any, int], None]) -> Iterator[tuple[int, Any]]:
        """The timers that wait, each with its key, in order of time; the key of each is made current by ``set_key``.

        What is registered meanwhile is pending.
        """
        waiting, self._waiting = self._waiting, []
        waiting.sort(key=_time_of)
        self._fires = True
        try:
            for timestamp_ms, key, key_group in waiting:
                set_key(key, key_group)
                for time_ms in self._places_of(timestamp_ms, key):
                    if self._of_key.contains(time_ms):
                        yield time_ms, key
                        self._of_key.remove(time_ms)
        finally:
            self._fires = False
            self._registered_by_timers.clear()

    def _in_service(self, timestamp_ms: int) -> int:
        """Where a timer of this time is in the timer service."""
        return clamped(timestamp_ms - 1) if self._is_event_time else timestamp_ms

    def _places_of(self, timestamp_ms: int, key: Any) -> tuple[int, ...]:
        """The times that a waiting timer may have been registered for: an older version's is a millisecond before."""
        before_ms = timestamp_ms - 1
        if not self._is_event_time or (key, before_ms) in self._registered_by_timers:
            return (timestamp_ms,)
        return before_ms, timestamp_ms


def _time_of(timer: tuple[int, Any, int]) -> int:
    return timer[0]


def _checked(timestamp_ms: Any) -> int:
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"the time of a timer is a whole number of milliseconds, not a {type(timestamp_ms).__name__}")
    if timestamp_ms not in _INTEGERS:
        raise ValueError(f"the time of a timer is milliseconds of 64 bits, and {timestamp_ms} is more")
    return timestamp_ms
