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
    """The clock of a job: its time changes only when ``now_ms`` is set. Picklable, without its followers."""

    __slots__ = ("_followers", "_now_ms")

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._followers: list[Callable[[int], object]] = []

    def __call__(self) -> int:
        return self._now_ms

    def __reduce__(self) -> tuple[type[StoppedClock], tuple[int]]:
        return StoppedClock, (self._now_ms,)

    @property
    def now_ms(self) -> int:
        """The time, in milliseconds since 1970-01-01 UTC."""
        return self._now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._now_ms = now_ms
        for follower in self._followers:
            follower(now_ms)

    def follow(self, follower: Callable[[int], object]) -> None:
        """Call ``follower`` with the time now and whenever it is set, so that a hot path need not read the clock."""
        self._followers.append(follower)
        follower(self._now_ms)
