"""Durations: "10 minutes", a `timedelta`, or milliseconds.

A text has the form of Spark's intervals: an optional `interval`, then numbers with units, separated by spaces:
"1 hour 30 seconds", "interval 5 days", "-90 seconds". Case does not matter. Months and years are rejected: they have no
fixed length. Seconds and milliseconds may have a fraction, if the result is a whole number of milliseconds.
"""

from __future__ import annotations

import operator
import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

from snapshots.errors import format_value

Duration: TypeAlias = str | timedelta | int
"""A duration: a text such as "10 minutes", a `timedelta`, or milliseconds."""


class DurationError(ValueError):
    """A value is not a duration in whole milliseconds, or is too short."""


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


def duration_ms(duration: Duration, what: str = "a duration", *, at_least_ms: int = -(1 << 63)) -> int:
    """Return the milliseconds of a duration; ``what`` names it in errors.

    Raises `DurationError` for anything that is not a duration in whole milliseconds of at least ``at_least_ms``.
    """
    milliseconds = _milliseconds(duration, what)
    if not -(1 << 63) <= milliseconds < 1 << 63:
        raise DurationError(f"{what} is {format_value(duration)}; in milliseconds it must fit into 64 bits")
    if milliseconds < at_least_ms:
        raise DurationError(f"{what} is {format_value(duration)}; it must be at least {at_least_ms} ms")
    return milliseconds


def _milliseconds(duration: Any, what: str) -> int:
    if hasattr(duration, "__index__") and not isinstance(duration, (bool, type)):
        # Also an integer of numpy.
        return operator.index(duration)
    if isinstance(duration, timedelta):
        # A `pandas.Timedelta` has nanoseconds in addition to microseconds.
        nanoseconds = Fraction(getattr(duration, "nanoseconds", 0), 1000)
        return _whole(duration // timedelta(microseconds=1) + nanoseconds, duration, what)
    if isinstance(duration, str):
        return _whole(_parsed(duration, what), duration, what)
    raise DurationError(f"{what} is {format_value(duration)}, which is not a duration: give {_FORMS}")


def _whole(microseconds: Fraction, duration: Duration, what: str) -> int:
    milliseconds = microseconds / 1000
    if milliseconds.denominator != 1:
        raise DurationError(f"{what} is {format_value(duration)}, which is not a whole number of milliseconds")
    return milliseconds.numerator


def _parsed(text: str, what: str) -> Fraction:
    if len(text) > _MAX_CHARACTERS:
        raise DurationError(f"{what} is {format_value(text)}, which is too long for a duration")
    words = text.lower().split()
    if words[:1] == ["interval"]:
        del words[0]
    if not words:
        raise DurationError(f"{what} is {format_value(text)}, which is not a duration: give {_FORMS}")
    if len(words) % 2:
        raise DurationError(
            f"{what} is {format_value(text)}, which is not a duration: write every number with its unit after a "
            f'space, as in "1 hour 30 seconds"'
        )
    return sum((_part(*pair, text, what) for pair in zip(words[::2], words[1::2], strict=True)), Fraction(0))


def _part(number: str, unit: str, text: str, what: str) -> Fraction:
    if not _NUMBER.fullmatch(number):
        raise DurationError(f"{what} is {format_value(text)}: {format_value(number)} is not a number")
    name = "millisecond" if unit == "ms" else unit.removesuffix("s")
    if name in _WITHOUT_LENGTH:
        raise DurationError(
            f"{what} is {format_value(text)}: months and years differ in length, so they are not durations; give days"
        )
    if name not in _MICROSECONDS:
        raise DurationError(
            f"{what} is {format_value(text)}: {format_value(unit)} is not a unit of time; there are "
            f"{', '.join(_MICROSECONDS)}"
        )
    if "." in number and name not in _WITH_FRACTION:
        raise DurationError(f"{what} is {format_value(text)}: only seconds and milliseconds may have a fraction")
    return Fraction(Decimal(number)) * _MICROSECONDS[name]
