"""Random names and time of a schedule, which replace those of the product while it runs."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Iterator
from unittest import mock

from attrs import define

__all__ = ["SimulatedClock", "seeded_names"]


@define
class SimulatedClock:
    """Milliseconds since 1970, which advance or jump only by a call.

    ``monotonic_ms`` never goes back, and advances with the time that passes.
    """

    now_ms: int = 1_700_000_000_000
    monotonic_ms: int = 0

    def __call__(self) -> int:
        return self.now_ms

    def pass_ms(self, time_ms: int) -> None:
        """Let this much time pass."""
        self.now_ms += time_ms
        self.monotonic_ms += time_ms

    def jump_ms(self, time_ms: int) -> None:
        """Set the clock to another time."""
        self.now_ms += time_ms


@contextlib.contextmanager
def seeded_names(seed: int, clock: SimulatedClock) -> Iterator[None]:
    """Make `uuid.uuid4` and `time.time_ns` return the schedule's values."""
    chance = random.Random(seed)

    def drawn() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    def simulated_time_ns() -> int:
        return clock.now_ms * 1_000_000

    with mock.patch.object(uuid, "uuid4", drawn), mock.patch.object(time, "time_ns", simulated_time_ns):
        yield
