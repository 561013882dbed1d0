"""The processing time of epochs, which state with a time-to-live goes by: it never goes back from one to the next.

The time of an epoch is in its checkpoint, and in savepoints made of it. If the clock is set back, or the job moves to a
host whose clock is behind, time stands still until the clock has caught up.
"""

from __future__ import annotations

from snapshots.value_text import shown
from statebackend.api.clock import Clock
from streamjobs.errors import JobDefinitionError
from streamjobs.time.timestamps import MAX_TIMESTAMP

__all__ = ["not_before", "whole_milliseconds"]


def whole_milliseconds(clock: Clock) -> Clock:
    """A clock of the user's, which raises `JobDefinitionError` when it gives what is no time; so does what is none."""
    if not callable(clock):
        given: object = clock
        raise JobDefinitionError(f"clock is {shown(given)}; it takes a function that returns milliseconds since 1970")

    def asked() -> int:
        time_ms = clock()
        if type(time_ms) is not int or not 0 <= time_ms <= MAX_TIMESTAMP:
            raise JobDefinitionError(
                f"the clock gave {shown(time_ms)}; it gives milliseconds since 1970 as a whole number, such as "
                f"lambda: time.time_ns() // 1_000_000"
            )
        return time_ms

    return asked


def not_before(time_ms: int, previous_ms: int | None) -> int:
    """The time, or that of the epoch before if it is later; None if there was none or it is not known."""
    return time_ms if previous_ms is None else max(time_ms, previous_ms)
