"""A clock that tests set."""

from __future__ import annotations


class ManualClock:
    """Stands still until ``now_ms`` is set."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms
