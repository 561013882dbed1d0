"""Watermarks, and the generators that produce them from the records of a source.

A watermark T declares that no more records with timestamps up to T are expected. Receivers do not wait for an idle
sender. Its watermarks count again when it is active.

A generator sees every event with its timestamp and is called at regular intervals. *Periodic* generators record events
in `on_event` and emit in `on_periodic_emit`; *punctuated* ones emit in `on_event`. Watermarks need not increase: the
receiver ignores smaller ones. A generator belongs to one source, or one channel of it, and starts new after a restore.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from attrs import Attribute, field, frozen

from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, clamped

__all__ = [
    "END_OF_TIME",
    "BoundedOutOfOrdernessWatermarks",
    "NoWatermarks",
    "Watermark",
    "WatermarkElement",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStatus",
    "WatermarksWithIdleness",
    "bounded_watermark",
    "check_timestamp",
    "needs_only_largest",
]


def check_timestamp(what: str, timestamp_ms: object) -> None:
    """Raise `ValueError` unless it is an integer within the range of timestamps."""
    if type(timestamp_ms) is not int or not MIN_TIMESTAMP <= timestamp_ms <= MAX_TIMESTAMP:
        raise ValueError(
            f"{what} is {timestamp_ms!r}; it is a number of milliseconds since 1970 as a whole number of 64 bits"
        )


def _check_time(_: object, attribute: Attribute[int], timestamp_ms: object) -> None:
    check_timestamp("a watermark", timestamp_ms)


@frozen
class Watermark:
    """Event time has reached ``timestamp_ms`` (since 1970). Raises `ValueError` for an invalid time."""

    timestamp_ms: int = field(validator=_check_time)


class WatermarkStatus(enum.Enum):
    """The status of a sender of watermarks. Receivers do not wait for an idle sender."""

    ACTIVE = "active"
    IDLE = "idle"

    @property
    def is_idle(self) -> bool:
        return self is WatermarkStatus.IDLE


WatermarkElement: TypeAlias = Watermark | WatermarkStatus

END_OF_TIME: Final = Watermark(MAX_TIMESTAMP)
"""The last watermark of an ended input: all event-time timers become due."""


T = TypeVar("T")


def bounded_watermark(largest_timestamp_ms: int, out_of_orderness_ms: int) -> int:
    """The watermark for a largest timestamp and a bound of out-of-orderness.

    It is one millisecond below the smallest time that may still arrive, so a record of that time is not late.
    """
    return clamped(largest_timestamp_ms - out_of_orderness_ms - 1)


class WatermarkOutput(ABC):
    """Receives the watermarks of a generator."""

    @abstractmethod
    def emit_watermark(self, timestamp_ms: int) -> None:
        """Declare that no more records up to this time, in ms since 1970, are expected. The source becomes active."""

    @abstractmethod
    def mark_idle(self) -> None:
        """Do not wait for the source until it emits a watermark or is marked active."""

    @abstractmethod
    def mark_active(self) -> None:
        """Wait for the source again."""


class WatermarkGenerator(ABC, Generic[T]):
    """Produces watermarks from events; users subclass it (Flink's ``WatermarkGenerator``)."""

    @abstractmethod
    def on_event(self, event: T, timestamp_ms: int, output: WatermarkOutput) -> None:
        """Called for every event. One without a timestamp has the smallest time."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called at regular intervals. Punctuated generators do nothing here."""


def needs_only_largest(generator: WatermarkGenerator[Any]) -> bool:
    """Whether one call with the largest timestamp of several events has the effect of one call for each.

    Such a generator emits nothing in `on_event`.
    """
    if type(generator) is WatermarksWithIdleness:
        return needs_only_largest(generator.generator)
    return type(generator) is BoundedOutOfOrdernessWatermarks


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator[Any]):
    """Periodic: the largest timestamp, minus the bound, minus one millisecond."""

    def __init__(self, out_of_orderness_ms: int) -> None:
        self._out_of_orderness_ms = out_of_orderness_ms
        self._largest_ms = MIN_TIMESTAMP

    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        self._largest_ms = max(self._largest_ms, timestamp_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(bounded_watermark(self._largest_ms, self._out_of_orderness_ms))


class NoWatermarks(WatermarkGenerator[Any]):
    """Never emits anything."""

    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        pass


class WatermarksWithIdleness(WatermarkGenerator[T]):
    """Wraps a generator and becomes idle after ``idleness_ms`` of processing time without events.

    Inactivity counts from the first periodic call without an event since the previous one. ``processing_time_ms`` is
    the clock.
    """

    def __init__(
        self, generator: WatermarkGenerator[T], idleness_ms: int, processing_time_ms: Callable[[], int]
    ) -> None:
        self.generator = generator
        self._idleness_ms = idleness_ms
        self._processing_time_ms = processing_time_ms
        self._had_event = False
        self._inactive_since_ms: int | None = None
        self._is_idle = False

    def on_event(self, event: T, timestamp_ms: int, output: WatermarkOutput) -> None:
        self.generator.on_event(event, timestamp_ms, output)
        self._had_event = True
        self._is_idle = False

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if not self._is_inactive():
            self.generator.on_periodic_emit(output)
        elif not self._is_idle:
            self._is_idle = True
            output.mark_idle()

    def _is_inactive(self) -> bool:
        if self._had_event:
            self._had_event = False
            self._inactive_since_ms = None
            return False
        now_ms = self._processing_time_ms()
        if self._inactive_since_ms is None:
            self._inactive_since_ms = now_ms
            return False
        return now_ms - self._inactive_since_ms > self._idleness_ms
