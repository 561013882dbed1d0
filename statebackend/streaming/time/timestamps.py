"""Durations in the settings of jobs, and timestamps in milliseconds since 1970.

Timestamps are signed 64-bit numbers. As watermarks, the smallest means "none yet" and the largest "the end of time".
Computed timestamps are clamped to the range, where Java would overflow.
"""

from __future__ import annotations

import contextlib
import datetime
import operator
from collections.abc import Sequence
from typing import Final, TypeAlias

from snapshots.errors import SerializationError, format_value
from statebackend.state import durations
from statebackend.state.durations import Duration, DurationError
from statebackend.streaming.errors import JobDefinitionError

__all__ = [
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "Duration",
    "Time",
    "clamped",
    "duration_ms",
    "time_ms",
    "timestamp_of",
    "timestamps_of",
]


MIN_TIMESTAMP: Final = -(1 << 63)
"""As a watermark: no watermark yet."""

MAX_TIMESTAMP: Final = (1 << 63) - 1
"""As a watermark: the end of time. Nothing follows."""

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


def clamped(timestamp_ms: int) -> int:
    """Limit a time to the range of timestamps."""
    return min(max(timestamp_ms, MIN_TIMESTAMP), MAX_TIMESTAMP)


def timestamp_of(value: object) -> int | None:
    """Convert a value of a record to a timestamp: milliseconds, a datetime, or None.

    Fractions of a millisecond are rounded down, as in Spark's ``unix_millis``. A datetime without a zone, as in
    columns of type timestamp_ntz, is in UTC. Raises `ValueError` for anything else and for times outside 64 bits.
    """
    if value is None:
        return None
    if type(value) is int and MIN_TIMESTAMP <= value <= MAX_TIMESTAMP:
        return value
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)
        milliseconds = (moment - _EPOCH) // _MILLISECOND
        if milliseconds == milliseconds:  # The difference to a NaT of pandas is NaN.
            return milliseconds
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        # An integer of numpy.
        milliseconds = operator.index(value)
        if MIN_TIMESTAMP <= milliseconds <= MAX_TIMESTAMP:
            return milliseconds
    raise ValueError(
        f"{format_value(value)} is not a timestamp: pass milliseconds since 1970 as an integer of 64 bits, a "
        "datetime, or None"
    )


def timestamps_of(values: Sequence[object]) -> list[int | None]:
    """As `timestamp_of`, for the values of a batch."""
    if set(map(type, values)) == {datetime.datetime}:
        # A time without a zone raises an error here.
        with contextlib.suppress(TypeError):
            return [(value - _EPOCH) // _MILLISECOND for value in values]  # type: ignore[operator]
    return list(map(timestamp_of, values))


Time: TypeAlias = int | datetime.datetime
"""A point in time: milliseconds since 1970, or a datetime with a time zone."""


def time_ms(time: object) -> int:
    """Return the milliseconds since 1970 of a time that a user passed; parts of a millisecond are rounded up.

    Raises `SerializationError` for anything else, such as a datetime without a time zone.
    """
    if isinstance(time, datetime.datetime):
        if time.tzinfo is not None:
            return -((_EPOCH - time) // _MILLISECOND)
        raise SerializationError(
            "a timer",
            (f"{format_value(time)} has no time zone; pass a datetime with one, such as tzinfo=timezone.utc",),
        )
    if not isinstance(time, bool) and hasattr(time, "__index__"):
        return operator.index(time)
    raise SerializationError(
        "a timer", (f"{format_value(time)} is not a time; pass milliseconds since 1970 or a datetime with a time zone",)
    )


def duration_ms(duration: Duration, what: str = "a duration", *, at_least_ms: int = MIN_TIMESTAMP) -> int:
    """As `statebackend.state.durations.duration_ms`. Raises `JobDefinitionError`."""
    try:
        return durations.duration_ms(duration, what, at_least_ms=at_least_ms)
    except DurationError as error:
        raise JobDefinitionError(str(error)) from None
