"""The processing time of epochs, which state with a time-to-live goes by: it never goes back from one to the next.

The time of an epoch is in its checkpoint, and in savepoints made of it. If the clock is set back, or the job moves to a
host whose clock is behind, time stands still until the clock has caught up.
"""

from __future__ import annotations

__all__ = ["not_before"]


def not_before(time_ms: int, previous_ms: int | None) -> int:
    """The time, or that of the epoch before if it is later; None if there was none or it is not known."""
    return time_ms if previous_ms is None else max(time_ms, previous_ms)
