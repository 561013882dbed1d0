"""The clock of this machine that never goes back: by it whoever waits, or holds something for a while, counts time.

Whatever counts by it takes a clock as an argument; these are what it is otherwise.
"""

from __future__ import annotations

import time

__all__ = ["steady_ms", "steady_s"]


def steady_s() -> float:
    """Seconds that never go back."""
    return time.monotonic()


def steady_ms() -> int:
    """Milliseconds that never go back."""
    return time.monotonic_ns() // 1_000_000
