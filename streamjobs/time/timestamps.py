"""The range of times: milliseconds since the Unix epoch, as signed numbers of 64 bits.

The two ends have a meaning as watermarks: the smallest says that there is none yet, the largest that nothing follows.
What is computed from a timestamp stays in the range: it stops at an end where Java's numbers would come out at the
other one.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_TIMESTAMP", "MIN_TIMESTAMP", "clamped"]

MIN_TIMESTAMP: Final = -(1 << 63)
"""As a watermark: none yet."""

MAX_TIMESTAMP: Final = (1 << 63) - 1
"""As a watermark: the end of time, behind which nothing comes."""


def clamped(timestamp_ms: int) -> int:
    """The time itself, or the end of the range that it lies beyond."""
    return min(max(timestamp_ms, MIN_TIMESTAMP), MAX_TIMESTAMP)
