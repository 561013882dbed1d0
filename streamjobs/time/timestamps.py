"""The range of times: milliseconds since the Unix epoch, as signed numbers of 64 bits.

The two ends have a meaning as watermarks: the smallest says that there is none yet, the largest that nothing follows.
What is computed from a timestamp stays in the range: it stops at an end where Java's numbers would come out at the
other one.
"""

from __future__ import annotations

import datetime
from typing import Final

from snapshots.value_text import shown

__all__ = ["MAX_TIMESTAMP", "MIN_TIMESTAMP", "clamped", "timestamp_of"]

MIN_TIMESTAMP: Final = -(1 << 63)
"""As a watermark: none yet."""

MAX_TIMESTAMP: Final = (1 << 63) - 1
"""As a watermark: the end of time, behind which nothing comes."""

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


def clamped(timestamp_ms: int) -> int:
    """The time itself, or the end of the range that it lies beyond."""
    return min(max(timestamp_ms, MIN_TIMESTAMP), MAX_TIMESTAMP)


def timestamp_of(value: object) -> int | None:
    """The timestamp that a value of a record means: milliseconds, or a datetime, or None for none.

    What is below a millisecond is cut off, towards the past, as Spark's ``unix_millis`` does. A datetime without a
    zone, as columns of the type timestamp_ntz have, is taken to be in UTC. Raises `ValueError` for anything else and
    for what does not fit into 64 bits.
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
