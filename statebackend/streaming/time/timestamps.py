"""Durations ("10 minutes", a `timedelta`, milliseconds), and timestamps in milliseconds since 1970.

A text has the form of Spark's intervals: an optional `interval`, then numbers with units, separated by spaces:
"1 hour 30 seconds", "interval 5 days", "-90 seconds". Case does not matter. Months and years are rejected: they have no
fixed length. Seconds and milliseconds may have a fraction, if the result is a whole number of milliseconds.

Timestamps are signed 64-bit numbers. As watermarks, the smallest means "none yet" and the largest "the end of time".
Computed timestamps are clamped to the range, where Java would overflow.
"""

from __future__ import annotations

import datetime
import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

from snapshots.errors import shown
from statebackend.streaming.errors import JobDefinitionError

__all__ = ["MAX_TIMESTAMP", "MIN_TIMESTAMP", "Duration", "clamped", "duration_ms", "timestamp_of"]


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
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)
        milliseconds = (moment - _EPOCH) // _MILLISECOND
        if milliseconds == milliseconds:  # The difference to a NaT of pandas is NaN.
            return milliseconds
    if type(value) is not int or not MIN_TIMESTAMP <= value <= MAX_TIMESTAMP:
        raise ValueError(
            f"{shown(value)} is no timestamp; it is a number of milliseconds since 1970 as a whole number of 64 bits, "
            f"a datetime, or None"
        )
    return value


Duration: TypeAlias = str | timedelta | int
"""A duration: a text such as "10 minutes", a `timedelta`, or milliseconds."""

_MAX_CHARACTERS: Final = 200

_MICROSECONDS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_WITHOUT_LENGTH: Final = ("month", "year")
_WITH_FRACTION: Final = ("second", "millisecond")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,9})?", re.ASCII)
_FORMS: Final = 'a text such as "10 minutes" or "1 hour 30 seconds", a timedelta, or a whole number of milliseconds'


def duration_ms(duration: Duration, what: str = "a duration", *, at_least_ms: int = MIN_TIMESTAMP) -> int:
    """Return the milliseconds of a duration; ``what`` names it in errors.

    Raises `JobDefinitionError` for anything that is not a duration in whole milliseconds of at least ``at_least_ms``.
    """
    milliseconds = _milliseconds(duration, what)
    if not MIN_TIMESTAMP <= milliseconds <= MAX_TIMESTAMP:
        raise JobDefinitionError(f"{what} is {shown(duration)}; in milliseconds it must fit into 64 bits")
    if milliseconds < at_least_ms:
        raise JobDefinitionError(f"{what} is {shown(duration)}; it must be at least {at_least_ms} ms")
    return milliseconds


def _milliseconds(duration: Any, what: str) -> int:
    if type(duration) is int:
        return duration
    if isinstance(duration, timedelta):
        # A `pandas.Timedelta` has nanoseconds beside its microseconds.
        nanoseconds = Fraction(getattr(duration, "nanoseconds", 0), 1000)
        return _whole(duration // timedelta(microseconds=1) + nanoseconds, duration, what)
    if isinstance(duration, str):
        return _whole(_parsed(duration, what), duration, what)
    raise JobDefinitionError(f"{what} is {shown(duration)}, which is no duration: give {_FORMS}")


def _whole(microseconds: Fraction, duration: Duration, what: str) -> int:
    milliseconds = microseconds / 1000
    if milliseconds.denominator != 1:
        raise JobDefinitionError(f"{what} is {shown(duration)}, which is no whole number of milliseconds")
    return milliseconds.numerator


def _parsed(text: str, what: str) -> Fraction:
    if len(text) > _MAX_CHARACTERS:
        raise JobDefinitionError(f"{what} is {shown(text)}, which is too long for a duration")
    words = text.lower().split()
    if words[:1] == ["interval"]:
        del words[0]
    if not words:
        raise JobDefinitionError(f"{what} is {shown(text)}, which is no duration: give {_FORMS}")
    if len(words) % 2:
        raise JobDefinitionError(
            f"{what} is {shown(text)}, which is no duration: every number needs its unit behind it, with a space in "
            f'between, as in "1 hour 30 seconds"'
        )
    return sum((_part(*pair, text, what) for pair in zip(words[::2], words[1::2], strict=True)), Fraction(0))


def _part(number: str, unit: str, text: str, what: str) -> Fraction:
    if not _NUMBER.fullmatch(number):
        raise JobDefinitionError(f"{what} is {shown(text)}: {shown(number)} is no number")
    name = unit.removesuffix("s")
    if name in _WITHOUT_LENGTH:
        raise JobDefinitionError(
            f"{what} is {shown(text)}: months and years differ in length, so they are no durations; give days"
        )
    if name not in _MICROSECONDS:
        raise JobDefinitionError(
            f"{what} is {shown(text)}: {shown(unit)} is no unit of time; there are {', '.join(_MICROSECONDS)}"
        )
    if "." in number and name not in _WITH_FRACTION:
        raise JobDefinitionError(f"{what} is {shown(text)}: only seconds and milliseconds may have a fraction")
    return Fraction(Decimal(number)) * _MICROSECONDS[name]
