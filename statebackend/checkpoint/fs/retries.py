"""Retries of operations that fail because a store is busy or the network is unreliable, and the monotonic clock.

The pause doubles from one attempt to the next, and a part of it is random, so that many tasks that were rejected
together do not retry together (exponential back-off with jitter).

The functions of the clock are the defaults of all parameters for a monotonic clock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from attrs import field, frozen, validators


def monotonic_s() -> float:
    """Seconds that never go back."""
    return time.monotonic()


def monotonic_ms() -> int:
    """Milliseconds that never go back."""
    return time.monotonic_ns() // 1_000_000


T = TypeVar("T")


@frozen(kw_only=True)
class BoundedRetries:
    """``attempts`` in all, with pauses of ``first_pause_s`` seconds at first, and at most ``longest_pause_s`` later.

    Each wait takes between half of a pause and all of it.
    """

    attempts: int = field(default=5, validator=validators.ge(1))
    first_pause_s: float = field(default=0.4, validator=validators.ge(0))
    longest_pause_s: float = field(default=5.0, validator=validators.ge(0))
    sleep: Callable[[float], object] = time.sleep

    def run(self, action: Callable[[], T], is_temporary: Callable[[Exception], bool]) -> T:
        """Run the action until it succeeds. Raises its last error, or the first one that is not temporary."""
        pause_s = self.first_pause_s
        for _ in range(self.attempts - 1):
            try:
                return action()
            except Exception as error:
                if not is_temporary(error):
                    raise
            self.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, self.longest_pause_s)
        return action()


def is_temporary_status(status: int) -> bool:
    """Whether an HTTP status means a temporary failure: the store failed, or has too many requests."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
