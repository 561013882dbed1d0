"""The clock of a backend: a function, so that a test or an epoch can set the time."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns the time in milliseconds since 1970-01-01 UTC. It may stop or go backwards."""


def wall_clock() -> int:
    """Return the time of this machine."""
    return time.time_ns() // 1_000_000


class StoppedClock:
    """A clock that always returns the same time; picklable."""

    __slots__ = ("now_ms",)

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms
