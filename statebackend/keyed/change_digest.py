"""A digest of what an epoch changed, by which two attempts at the same epoch are told apart.

Changes are rows of a state, in canonical order. Each column goes in apart, its lengths and its bytes into a hash each,
so that no other changes have the same form. So it does not matter in how many pieces the rows of a state come, and none
of them need be kept. The digest is compared between attempts that run the same program, and is written nowhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import xxhash

_NO_ITEM: Final = -1
"""The length of what is not there, which nothing that is there has."""

_JOINED_BYTES: Final = 1 << 20
"""As much as this is joined before it is hashed, which is faster; of more no copy is made."""


class ChangeDigest:
    """Collects the changes of one epoch, state by state."""

    __slots__ = ("_columns", "_hash", "_name", "_numbers", "_rows")

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._columns: list[_Column] = []
        self._begin("")

    def begin_state(self, name: str) -> None:
        """Says whose changes follow. A state without any leaves nothing in the digest."""
        self._end_state()
        self._begin(name)

    def add_rows(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Adds rows of the state: a number of 32 bits each, and bytes, some of which may be missing."""
        if not rows:
            return
        numbers, *columns = zip(*rows, strict=True)
        if not self._rows:
            self._columns = [_Column() for _ in columns]
        self._rows += len(rows)
        self._numbers.update(array("i", numbers).tobytes())
        for column, items in zip(self._columns, columns, strict=True):
            column.add(items)

    def hexdigest(self) -> str:
        """The digest of all that was added."""
        self._end_state()
        self._begin("")
        return self._hash.hexdigest()

    def _begin(self, name: str) -> None:
        self._name = name
        self._rows = 0
        self._numbers = xxhash.xxh3_128()
        self._columns = []

    def _end_state(self) -> None:
        if self._rows:
            self._hash.update(f"{self._name}\0{self._rows}\0".encode())
            self._hash.update(self._numbers.digest())
            for column in self._columns:
                self._hash.update(column.digest())


class _Column:
    """The lengths of a column's items, and their bytes one after the other."""

    __slots__ = ("_bytes", "_lengths")

    def __init__(self) -> None:
        self._lengths = xxhash.xxh3_128()
        self._bytes = xxhash.xxh3_128()

    def add(self, items: Sequence[bytes | None]) -> None:
        present = [item for item in items if item is not None]
        is_whole = len(present) == len(items)
        lengths = array(
            "q", map(len, present) if is_whole else (_NO_ITEM if item is None else len(item) for item in items)
        )
        self._lengths.update(lengths.tobytes())
        if sum(map(len, present)) <= _JOINED_BYTES:
            self._bytes.update(b"".join(present))
        else:
            for item in present:
                self._bytes.update(item)

    def digest(self) -> bytes:
        return self._lengths.digest() + self._bytes.digest()
