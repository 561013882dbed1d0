"""A digest of what a subtask's content has become, by which two attempts at the same epoch are told apart.

The content of a state is a set of rows. Each has a hash of 64 bits; the digest is the sum of the hashes of the rows
that have come, less those of the rows that have gone, since the content both attempts began with. A sum does not depend
on the order in which keys came, nor on when a cache was written out, nor on how files were cut or merged: a row that
came and went again, or was written with the value it had, leaves nothing behind.

The digest is compared between attempts that run the same program, and is written nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Final

import xxhash

_MASK: Final = (1 << 64) - 1

Rows = Iterable[bytes]
"""Rows as bytes, of which no two different ones are equal."""


class ContentDigest:
    """The sum; ``total`` may be kept, to tell later what came after."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def add(self, seed: int, rows: Rows) -> None:
        """Takes in rows that have come, of the state with this seed."""
        self.total += sum(map(xxhash.xxh3_64_intdigest, rows, repeat(seed)))

    def take_away(self, seed: int, rows: Rows) -> None:
        """Takes out rows that have gone."""
        self.total -= sum(map(xxhash.xxh3_64_intdigest, rows, repeat(seed)))

    def since(self, total: int) -> str:
        """The digest of what came after the sum was ``total``."""
        return f"{self.total - total & _MASK:016x}"


def state_seed(name: str) -> int:
    """What tells the rows of one state from those of another."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
