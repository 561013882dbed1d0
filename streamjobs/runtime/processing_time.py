"""The processing time of epochs, which state with a time-to-live goes by: it never goes back from one to the next.

The time of an epoch is a property of its checkpoint, and of savepoints made of it. If the clock is set back, or the job
moves to a host whose clock is behind, time stands still until the clock has caught up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["PROCESSING_TIME_PROPERTY", "not_before"]

PROCESSING_TIME_PROPERTY: Final = "processing_time_ms"
"""The property of a checkpoint that holds the processing time of its epoch: ms since the Unix epoch, in decimal."""


def not_before(time_ms: int, previous: Mapping[str, str]) -> int:
    """The time, or that of the epoch before if it is later; ``previous`` are the properties of its checkpoint."""
    earlier = previous.get(PROCESSING_TIME_PROPERTY, "")
    return max(time_ms, int(earlier)) if earlier.isascii() and earlier.isdecimal() else time_ms
