"""What is tried again, how often, and after which pauses: the store is busy, or the network has lost something.

The pause doubles from one attempt to the next, and a part of it is drawn by lot, so that many tasks that were rejected
together do not come back together (exponential back-off with jitter).

The monotonic clock of this machine, for waiting and leases.

Whatever counts by it takes a clock as an argument; these are what it is otherwise.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from attrs import field, frozen, validators

__all__ = ["BoundedRetries", "is_passing_status", "monotonic_ms", "monotonic_s"]


def monotonic_s() -> float:
    """Seconds that never go back."""
    return time.monotonic()


def monotonic_ms() -> int:
    """Milliseconds that never go back."""
    return time.monotonic_ns() // 1_000_000


T = TypeVar("T")


@frozen(kw_only=True)
class BoundedRetries:
    """``attempts`` in all, with ``first_pause_s`` seconds after the first, at most ``longest_pause_s`` after others.

    Between half of a pause and all of it is waited.
    """

    attempts: int = field(default=5, validator=validators.ge(1))
    first_pause_s: float = field(default=0.4, validator=validators.ge(0))
    longest_pause_s: float = field(default=5.0, validator=validators.ge(0))
    sleep: Callable[[float], object] = time.sleep

    def run(self, action: Callable[[], T], is_passing: Callable[[Exception], bool]) -> T:
        """The result of the action, which may be done again. Raises what it raises last, or what does not pass."""
        pause_s = self.first_pause_s
        for _ in range(self.attempts - 1):
            try:
                return action()
            except Exception as error:
                if not is_passing(error):
                    raise
            self.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, self.longest_pause_s)
        return action()


def is_passing_status(status: int) -> bool:
    """Whether a store that answers so by HTTP may answer otherwise the next time: it failed, or is asked too much."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
