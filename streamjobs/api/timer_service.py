"""Timers, as a function over a keyed stream sees them: moments at which it is called again for a key.

A timer is a moment under a key, in event time or in processing time, and there is one of each: registering it again
changes nothing. Timers are state: a checkpoint has them, a savepoint takes them along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

__all__ = ["TimeDomain", "TimerService"]


class TimeDomain(Enum):
    """Which time a timer is in."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"


class TimerService(ABC):
    """The time, and the timers of the current key.

    Methods that register raise `JobDefinitionError` in a function that does not override ``on_timer``. Those that
    register or delete raise `SerializationError` for a time that is no whole number of 64 bits; nothing has changed
    then.
    """

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark, in milliseconds; -(1 << 63) before the first."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The processing time in milliseconds since 1970, which stands still in an epoch."""

    @abstractmethod
    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Has ``on_timer`` called for the current key when the watermark has reached the time, in milliseconds.

        A time that it has reached already is due with the next watermark.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Takes that timer of the current key away, if it is there."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Has ``on_timer`` called for the current key when the clock has reached the time, in milliseconds since 1970.

        An epoch has one time, so it is called in the first later epoch whose time has reached it.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Takes that timer of the current key away, if it is there."""
