"""Chance and time as the schedule says: as long as it runs, the product draws its names and asks its clocks here."""

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
    """Milliseconds since 1970, which only move when they are told to, ahead or back.

    ``monotonic_ms`` are those of a clock that only goes on, as much as time passes.
    """

    now_ms: int = 1_700_000_000_000
    monotonic_ms: int = 0

    def __call__(self) -> int:
        return self.now_ms

    def pass_ms(self, time_ms: int) -> None:
        """Lets so much time pass."""
        self.now_ms += time_ms
        self.monotonic_ms += time_ms

    def jump_ms(self, time_ms: int) -> None:
        """Is set to another time, while none passes."""
        self.now_ms += time_ms


@contextlib.contextmanager
def seeded_names(seed: int, clock: SimulatedClock) -> Iterator[None]:
    """Lets `uuid.uuid4` and `time.time_ns` answer as the schedule says."""
    chance = random.Random(seed)

    def drawn() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    def told_ns() -> int:
        return clock.now_ms * 1_000_000

    with mock.patch.object(uuid, "uuid4", drawn), mock.patch.object(time, "time_ns", told_ns):
        yield
