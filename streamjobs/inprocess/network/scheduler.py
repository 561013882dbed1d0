"""Who moves next, of those who may: the one source of order in a network.

By default whoever is furthest behind in the graph moves, so that what was sent is at the end of the graph before
anything further is read. With a seed any of them may be the next one, the same each time for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Protocol, TypeVar

__all__ = ["DownstreamFirst", "Scheduler", "Shuffled"]

M = TypeVar("M")


class Scheduler(Protocol):
    """Chooses a move."""

    def choose(self, moves: Iterator[M]) -> M | None:
        """One of the moves, which come downstream first; None if there is none."""


class DownstreamFirst:
    """The first move."""

    def choose(self, moves: Iterator[M]) -> M | None:
        return next(moves, None)


class Shuffled:
    """Any move, as the seed says."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, moves: Iterator[M]) -> M | None:
        known = list(moves)
        return self._random.choice(known) if known else None
