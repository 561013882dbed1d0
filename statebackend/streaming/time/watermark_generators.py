"""What makes watermarks of the records of a source: the interface, and the generators that come with us.

A generator sees every event with its timestamp, and is asked in regular intervals. It may emit a watermark at either:
*periodic* ones remember in `on_event` and emit in `on_periodic_emit`, *punctuated* ones emit in `on_event`. What it
emits need not grow: who takes it lets only what is larger through. A generator belongs to one source, or to one channel
of it, and lives as long as the run: it begins again after a restore.

What runs through a job beside records: watermarks, and the status of whoever sends them.

A watermark of T says that no record is expected any more whose timestamp is not after T. A sender that is idle is not
waited for; what it sends as watermarks counts again when it is active.
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
    "check_timestamp",
    "watermark_behind",
]


def check_timestamp(what: str, timestamp_ms: object) -> None:
    """Raises `ValueError` unless it is a whole number within the range of timestamps."""
    if type(timestamp_ms) is not int or not MIN_TIMESTAMP <= timestamp_ms <= MAX_TIMESTAMP:
        raise ValueError(
            f"{what} is {timestamp_ms!r}; it is a number of milliseconds since 1970 as a whole number of 64 bits"
        )


def _check_time(_: object, attribute: Attribute[int], timestamp_ms: object) -> None:
    check_timestamp("a watermark", timestamp_ms)


@frozen
class Watermark:
    """Event time has reached ``timestamp_ms`` (since 1970). Raises `ValueError` for what is no time."""

    timestamp_ms: int = field(validator=_check_time)


class WatermarkStatus(enum.Enum):
    """Whether a sender of watermarks is waited for."""

    ACTIVE = "active"
    IDLE = "idle"

    @property
    def is_idle(self) -> bool:
        """Whether it is not waited for."""
        return self is WatermarkStatus.IDLE


WatermarkElement: TypeAlias = Watermark | WatermarkStatus

END_OF_TIME: Final = Watermark(MAX_TIMESTAMP)
"""What an input that ended sends last: all that waits for event time is due."""


T = TypeVar("T")


def watermark_behind(largest_timestamp_ms: int, out_of_orderness_ms: int) -> int:
    """The watermark of records that are late by at most ``out_of_orderness_ms``, when this is their largest timestamp.

    It is one millisecond less than what may still come: a further record of the same time is not late.
    """
    return clamped(largest_timestamp_ms - out_of_orderness_ms - 1)


class WatermarkOutput(ABC):
    """Where a generator says how far event time is."""

    @abstractmethod
    def emit_watermark(self, timestamp_ms: int) -> None:
        """No record is expected whose timestamp is not after this time, in ms since 1970; the source is active."""

    @abstractmethod
    def mark_idle(self) -> None:
        """The source is not to be waited for, until a watermark is emitted or it is marked active."""

    @abstractmethod
    def mark_active(self) -> None:
        """The source is to be waited for again."""


class WatermarkGenerator(ABC, Generic[T]):
    """Makes watermarks of events; users subclass it (Flink's ``WatermarkGenerator``)."""

    @abstractmethod
    def on_event(self, event: T, timestamp_ms: int, output: WatermarkOutput) -> None:
        """Called for every event, after it was passed on; one without a timestamp has the smallest there is."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called in regular intervals; a punctuated generator has nothing to do here."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator[Any]):
    """Periodic: the largest timestamp, less the bound, less one millisecond."""

    def __init__(self, out_of_orderness_ms: int) -> None:
        self._out_of_orderness_ms = out_of_orderness_ms
        self._largest_ms = MIN_TIMESTAMP

    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        self._largest_ms = max(self._largest_ms, timestamp_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(watermark_behind(self._largest_ms, self._out_of_orderness_ms))


class NoWatermarks(WatermarkGenerator[Any]):
    """Never emits anything."""

    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        pass


class WatermarksWithIdleness(WatermarkGenerator[T]):
    """Another generator, which is idle when it had no event for longer than ``idleness_ms`` of processing time.

    Inactivity is counted from the first periodic call before which no event came since the last one.
    ``processing_time_ms`` is the clock.
    """

    def __init__(
        self, generator: WatermarkGenerator[T], idleness_ms: int, processing_time_ms: Callable[[], int]
    ) -> None:
        self._generator = generator
        self._idleness_ms = idleness_ms
        self._processing_time_ms = processing_time_ms
        self._had_event = False
        self._inactive_since_ms: int | None = None
        self._is_idle = False

    def on_event(self, event: T, timestamp_ms: int, output: WatermarkOutput) -> None:
        self._generator.on_event(event, timestamp_ms, output)
        self._had_event = True
        self._is_idle = False

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if not self._is_inactive():
            self._generator.on_periodic_emit(output)
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
