"""Figures about the entries of a state, from their bytes: nothing is decoded, so any state can be counted.

Entries are what `EntryReader` gives one by one: values, map entries, elements of queues, whole lists. Bytes are those
of key, namespace, user key and value as they are stored, before a file compresses them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, field, frozen

from savepoints.reading.row_sizes import sizes_of_rows

__all__ = ["EntryStatistics", "LargeEntry"]

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
class EntryStatistics:
    """The figures of what `add` was given; in bounded memory but for one counter per key group."""

    entries: int = 0
    size_bytes: int = 0
    entries_by_key_group: Counter[int] = field(factory=Counter)
    _largest: list[LargeEntry] = field(factory=list, repr=False)

    def add(self, batches: Iterable[pa.RecordBatch], *, is_list: bool) -> None:
        """Counts rows, which come sorted; of a list, the chunks of one key and namespace are one entry."""
        if is_list:
            self._add_lists(batches)
            return
        for batch in batches:
            sizes = sizes_of_rows(batch)
            self.entries += batch.num_rows
            self.size_bytes += pc.sum(sizes).as_py() or 0
            for one in pc.value_counts(batch.column("key_group")).to_pylist():
                self.entries_by_key_group[one["values"]] += one["counts"]
            for index in pc.select_k_unstable(sizes, LARGEST, [("", "descending")]).to_pylist():
                key_group, key, namespace, user_key, _ = (column[index].as_py() for column in batch.columns)
                self._keep(sizes[index].as_py(), key_group, key, namespace, user_key)

    def _add_lists(self, batches: Iterable[pa.RecordBatch]) -> None:
        place: tuple[int, bytes, bytes] | None = None
        size_bytes = 0
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("key_group", "key", "namespace")]
            for *address, row_bytes in zip(*columns, sizes_of_rows(batch).to_pylist(), strict=True):
                if place == tuple(address):
                    size_bytes += row_bytes
                    continue
                if place is not None:
                    self._count(size_bytes, *place, None)
                place, size_bytes = (address[0], address[1], address[2]), row_bytes
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
        self._keep(size_bytes, key_group, key, namespace, user_key)

    def _keep(self, size_bytes: int, key_group: int, key: bytes, namespace: bytes, user_key: bytes | None) -> None:
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, LargeEntry(size_bytes, key_group, key, namespace, user_key))
        elif size_bytes > self._largest[0].size_bytes:
            heapq.heapreplace(self._largest, LargeEntry(size_bytes, key_group, key, namespace, user_key))
