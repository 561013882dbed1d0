"""A digest of what an epoch changed, by which two attempts at the same epoch are told apart.

Changes go in by columns, each as all its lengths and then all its bytes, so that no other changes have the same form.
The digest is compared between attempts that run the same program, and is written nowhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import xxhash

_NO_ITEM: Final = -1
"""The length of what is not there, which nothing that is there has."""


class ChangeDigest:
    """Collects the changes of one epoch, state by state."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def begin_state(self, name: str, changes: int) -> None:
        """Says whose changes follow, and how many."""
        self._hash.update(f"{name}\0{changes}\0".encode())

    def add_numbers(self, numbers: Sequence[int]) -> None:
        """Adds a column of numbers of 32 bits."""
        self._hash.update(array("i", numbers).tobytes())

    def add_column(self, items: Sequence[bytes | None]) -> None:
        """Adds a column of bytes, some of which may be missing."""
        present = [item for item in items if item is not None]
        is_whole = len(present) == len(items)
        lengths = map(len, present) if is_whole else (_NO_ITEM if item is None else len(item) for item in items)
        self._hash.update(array("q", lengths).tobytes())
        self._hash.update(b"".join(present))

    def hexdigest(self) -> str:
        """The digest of all that was added."""
        return self._hash.hexdigest()
