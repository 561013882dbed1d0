"""Figures about the entries of a state, from their bytes: nothing is decoded, so any state can be counted.

Entries are what `EntryReader` gives one by one: values, map entries, elements of queues, whole lists. Bytes are those
of key, namespace, user key and value as they are stored, before a file compresses them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from attrs import define, field, frozen

from statebackend.canonical.canonical_entries import CanonicalBatch

__all__ = ["LargeEntry", "StateStatistics"]

LARGEST = 10
"""How many of the largest entries are kept."""


@frozen(order=True)
class LargeEntry:
    """An entry by its size, and where it is; the key as it is stored."""

    size_bytes: int
    key_group: int
    key: bytes
    namespace: bytes
    user_key: bytes | None = field(order=False)


@define
class StateStatistics:
    """The figures of what `add` was given; in bounded memory but for one counter per key group."""

    entries: int = 0
    size_bytes: int = 0
    entries_by_key_group: Counter[int] = field(factory=Counter)
    _largest: list[LargeEntry] = field(factory=list, repr=False)

    def add(self, batches: Iterable[CanonicalBatch], *, is_list: bool) -> None:
        """Counts rows, which come sorted; of a list, the chunks of one key and namespace are one entry."""
        place: tuple[int, bytes, bytes] | None = None
        size_bytes = 0
        for batch in batches:
            for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
                row_bytes = len(key) + len(namespace) + len(user_key or b"") + len(value or b"")
                if not is_list:
                    self._count(row_bytes, key_group, key, namespace, user_key)
                elif place == (key_group, key, namespace):
                    size_bytes += row_bytes
                else:
                    if place is not None:
                        self._count(size_bytes, *place, None)
                    place, size_bytes = (key_group, key, namespace), row_bytes
        if place is not None:
            self._count(size_bytes, *place, None)

    @property
    def largest(self) -> tuple[LargeEntry, ...]:
        """The largest entries, the largest first."""
        return tuple(sorted(self._largest, reverse=True))

    @property
    def skew(self) -> float:
        """The most entries of a key group, over the mean of those that have any; 1.0 where all are equal."""
        if not self.entries:
            return 1.0
        return max(self.entries_by_key_group.values()) * len(self.entries_by_key_group) / self.entries

    def _count(self, size_bytes: int, key_group: int, key: bytes, namespace: bytes, user_key: bytes | None) -> None:
        self.entries += 1
        self.size_bytes += size_bytes
        self.entries_by_key_group[key_group] += 1
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, LargeEntry(size_bytes, key_group, key, namespace, user_key))
        elif size_bytes > self._largest[0].size_bytes:
            heapq.heapreplace(self._largest, LargeEntry(size_bytes, key_group, key, namespace, user_key))
