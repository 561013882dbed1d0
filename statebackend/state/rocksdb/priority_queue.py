"""Priority queues on RocksDB: a row per element, read a page per key group at a time.

    raw key := u16(key group) element        with an empty value

So the elements of a key group are in the queue's order. A row can be split without a serializer, so an unregistered
queue is copied as bytes.

For one epoch the queue keeps its changes, and a heap of all possible heads: the elements of the first page of each key
group, and added elements. Opening costs nothing. The first use reads a page per key group, whatever the size of the
queue. Memory is bounded by the pages and the changes; too many changes are written back.

* The *frontier* of a key group is the last element read from it, while the store may have more. It stays in the heap,
  removed or not, until it is at the top; then the next page is read. So no unread element is smaller than the top
  of the heap. Pages grow with the number of pages of the group that were used.
* *Members* are the live entries of the heap. A removed entry stays until it is at the top, or more than half are dead.
* An element beyond the frontier is changed without a read: the change is the same whether the store has it or not. An
  unchanged member is in the store. Before the frontier the store has nothing but members and changed elements.
* The *upper bound* is not smaller than any stored element. Elements above it are not in the store, so the digest of a
  snapshot needs no look-up for them. It is known for a queue that began empty in the local database.
* The *lower bound* of a key group is the last polled head. Polled elements are deletions in the database until a
  compaction, and scans must step over them. So the first scan of an epoch starts there. The version of the local
  database holds the bound, and the first entry, which shows without a read that no timer is due.

Invariant between two calls: the top of the heap is alive, or the heap is empty. While there is no heap, nothing has
changed since the changes were last drained. Flink's queue in RocksDB caches a sorted set per key group instead.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

from attrs import frozen

from statebackend.state.composite_key import KEY_GROUP, VOID_NAMESPACE_BYTES
from statebackend.state.encoded_priority_queue import KEY_GROUP_SUFFIX, EncodedPriorityQueue
from statebackend.state.errors import StateBackendClosedError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.rocksdb.cached_state import UNKNOWN, CacheBounds, Drained, StoredRows
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

FIRST_PAGE: Final = 16
"""The elements of each key group that the first use reads."""

LARGEST_PAGE: Final = 1024
"""The largest page, after a key group was polled many times."""

_GROWTH: Final = 4

_MIN_HEAPIFIED: Final = 1024
"""Fewer elements are added one by one. For more, the heap is rebuilt."""

_POLLED_SINGLY: Final = 64
"""The elements that are polled one by one, and of a large heap an eighth. After that, the heap is rebuilt."""

_MIN_DEAD: Final = 1024
"""The heap is rebuilt only if at least this many entries are dead."""


class PagedPriorityQueue(EncodedPriorityQueue[T]):
    """A queue over ordered pages of stored elements. A subclass reads pages, and writes back `take_changes`.

    The backend writes the changes back before every snapshot and export, and calls `close` at its end.
    """

    __slots__ = (
        "_changes",
        "_frontiers",
        "_heap",
        "_is_closed",
        "_max_changes",
        "_members",
        "_page_sizes",
        "in_store",
        "lower_bound",
        "stored_head",
        "upper_bound",
    )

    def __init__(self, name: str, serializer: TypeSerializer[T], key_groups: KeyGroupRange, max_changes: int) -> None:
        super().__init__(name, serializer, key_groups)
        self.lower_bound = b""
        self.stored_head: bytes | None = None
        """The first entry in the store; empty bytes if there is none, None if it is not known."""
        self.upper_bound: bytes | None = None
        """No element in the store is larger; None if it is not known."""
        self._max_changes = max_changes
        self._changes: dict[bytes, bool] = {}
        self.in_store: dict[bytes, bool] = {}
        """Whether changed entries are in the store, where this is known."""
        self._heap: list[bytes] | None = None
        self._members: set[bytes] = set()
        self._frontiers: dict[bytes, bytes] = {}
        self._page_sizes: dict[bytes, int] = {}
        self._is_closed = False

    @abstractmethod
    def stored_page(self, key_group: int, after: bytes | None, limit: int) -> list[bytes]:
        """The first elements of a key group in the store, in order, after ``after``; at most ``limit``.

        Fewer than ``limit`` means that no more follow. Changes that are not written back are not included.
        """

    @abstractmethod
    def write_back(self) -> None:
        """Write `take_changes` to the store."""

    def stored_heads(self, limit: int) -> Iterator[tuple[int, list[bytes]]]:
        """The first page of every key group; empty groups may be left out."""
        for key_group in self.key_groups:
            yield key_group, self.stored_page(key_group, None, limit)

    def take_changes(self) -> dict[bytes, bool]:
        """Return the changes since the last call: entries, with whether they are in the queue now.

        The caller writes them to the store, where the queue then reads them. After that no stored element is smaller
        than ``lower_bound``. A caller that needs ``in_store`` reads it before this call.
        """
        changes = self._changes
        if self._heap is not None:
            self.stored_head = self._heap[0] if self._heap else b""
        if changes:
            # If nothing is left, all changed entries were removed.
            first, last = self._heap[0] if self._heap else max(changes), max(changes)
            self.lower_bound = first[:-2]
            if self.upper_bound is not None:
                self.upper_bound = max(self.upper_bound, last[:-2])
            self._forget()
        return changes

    def close(self) -> None:
        """Make every later access raise an error."""
        self._forget()
        self.stored_head = None
        self._is_closed = True

    def add_entry(self, entry: bytes) -> bool:
        heap = self._heap
        if heap is None or len(self._changes) >= self._max_changes:
            heap = self._readied_heap()
        if entry in self._members:
            return False
        self._members.add(entry)
        changes = self._changes
        if entry not in changes and self._is_absent(entry):
            self.in_store[entry] = False
        changes[entry] = True
        heappush(heap, entry)
        return heap[0] is entry

    def add_entries(self, entries: Sequence[bytes]) -> None:
        if len(entries) < _MIN_HEAPIFIED or len(self._changes) + len(entries) > self._max_changes:
            super().add_entries(entries)
            return
        heap = self._heap or self._readied_heap()
        members, changes = self._members, self._changes
        new = [entry for entry in dict.fromkeys(entries) if entry not in members]
        if self.upper_bound is not None and new and min(new)[:-2] > self.upper_bound:
            absent = [entry for entry in new if entry not in changes]
        else:
            absent = [entry for entry in new if entry not in changes and self._is_absent(entry)]
        self.in_store.update(dict.fromkeys(absent, False))
        changes.update(dict.fromkeys(new, True))
        members.update(new)
        heap += new
        heapify(heap)

    def _is_absent(self, entry: bytes) -> bool:
        """Whether an entry that is neither a member nor changed is known not to be in the store."""
        frontier = self._frontiers.get(entry[-2:])
        if frontier is None or entry < frontier:
            return True
        return self.upper_bound is not None and entry[:-2] > self.upper_bound

    def poll_entries(self, is_due: Callable[[T], bool], most: int) -> list[bytes]:
        polled = super().poll_entries(is_due, min(most, _POLLED_SINGLY))
        if len(polled) == _POLLED_SINGLY:
            polled += super().poll_entries(is_due, min(most, len(self._readied_heap()) // 8) - len(polled))
        while _POLLED_SINGLY <= len(polled) < most and (head := self.head()) is not None:
            if not is_due(self.element_of(head)):
                break
            polled += self._polled_together(self._readied_heap(), is_due, most - len(polled))
        return polled

    def _polled_together(self, heap: list[bytes], is_due: Callable[[T], bool], most: int) -> list[bytes]:
        """Poll one or more due entries, at most so many. The smallest one is due."""
        members, frontiers, changes = self._members, self._frontiers, self._changes
        behind = [frontier for frontier in frontiers.values() if is_due(self.element_of(frontier))]
        for frontier in behind:
            # All pages together hold about the wanted elements.
            self._read_page(frontier, max(FIRST_PAGE, most // len(behind)))
        # Unread elements are larger than every frontier of their key group.
        bound = min(frontiers.values(), default=b"")
        read = sorted(entry for entry in members if entry <= bound) if bound else sorted(members)
        end = bisect_left(read, True, 0, key=lambda entry: not is_due(self.element_of(entry)))
        due = read[: max(1, min(end, most, self._max_changes - len(changes)))]
        self.in_store.update(dict.fromkeys([entry for entry in due if entry not in changes], True))
        changes.update(dict.fromkeys(due, False))
        members.difference_update(due)
        heap[:] = members.union(frontiers.values())
        heapify(heap)
        self._settle(heap)
        return due

    def remove_entry(self, entry: bytes) -> bool:
        heap = self._heap
        if heap is None or len(self._changes) >= self._max_changes:
            heap = self._readied_heap()
        members = self._members
        if entry not in members:
            frontier = self._frontiers.get(entry[-2:])
            if frontier is not None and entry > frontier:
                self._changes[entry] = False
            return False
        members.remove(entry)
        if entry not in self._changes:
            self.in_store[entry] = True
        self._changes[entry] = False
        if heap[0] == entry:
            self._settle(heap)
            return True
        if len(heap) > 2 * len(members) + _MIN_DEAD:
            heap[:] = members.union(self._frontiers.values())
            heapify(heap)
        return False

    def head(self) -> bytes | None:
        heap = self._heap
        if heap is None:
            if self.stored_head is not None:
                return self.stored_head or None
            heap = self._readied_heap()
        return heap[0] if heap else None

    def remove_head(self) -> None:
        heap = self._heap
        if heap is None or len(self._changes) >= self._max_changes:
            heap = self._readied_heap()
        entry = heappop(heap)
        self._members.remove(entry)
        changes = self._changes
        if entry not in changes:
            self.in_store[entry] = True
        changes[entry] = False
        if self._frontiers.get(entry[-2:]) == entry:
            self._read_on(heap, entry)
        if heap and heap[0] not in self._members:
            self._settle(heap)

    def size(self) -> int:
        return sum(1 for key_group in self.key_groups for _ in self.entries_of_group(key_group))

    def entries_of_group(self, key_group: int) -> Iterator[bytes]:
        self._check_open()
        self.write_back()
        return self._stored_entries(key_group)

    def _stored_entries(self, key_group: int) -> Iterator[bytes]:
        suffix = KEY_GROUP_SUFFIX.pack(key_group)
        last: bytes | None = None
        while True:
            page = self.stored_page(key_group, last, LARGEST_PAGE)
            for element in page:
                yield element + suffix
            if len(page) < LARGEST_PAGE:
                return
            last = page[-1]

    def _readied_heap(self) -> list[bytes]:
        """Return the heap; first write back too many changes, and read the first pages."""
        self._check_open()
        if len(self._changes) >= self._max_changes:
            self.write_back()
        heap = self._heap
        if heap is None:
            heap = []
            for key_group, page in self.stored_heads(FIRST_PAGE):
                heap += self._take_page(KEY_GROUP_SUFFIX.pack(key_group), page, FIRST_PAGE)
            heapify(heap)
            self._heap = heap
        return heap

    def _settle(self, heap: list[bytes]) -> None:
        """Remove dead entries from the top; after a frontier, read the next page."""
        members, frontiers = self._members, self._frontiers
        while heap and heap[0] not in members:
            entry = heappop(heap)
            if frontiers.get(entry[-2:]) == entry:
                self._read_on(heap, entry)

    def _read_on(self, heap: list[bytes], frontier: bytes) -> None:
        """Add the page after a frontier to the heap. It is larger than the page before."""
        for entry in self._read_page(frontier, self._page_sizes.get(frontier[-2:], FIRST_PAGE) * _GROWTH):
            heappush(heap, entry)

    def _read_page(self, frontier: bytes, limit: int) -> list[bytes]:
        suffix = frontier[-2:]
        del self._frontiers[suffix]
        self._page_sizes[suffix] = limit = min(limit, LARGEST_PAGE)
        return self._take_page(suffix, self.stored_page(suffix[0] << 8 | suffix[1], frontier[:-2], limit), limit)

    def _take_page(self, suffix: bytes, page: list[bytes], limit: int) -> list[bytes]:
        """Add a page to the members, and return the entries to add to the heap."""
        changes, members = self._changes, self._members
        # Changes are newer than the store.
        entries = [entry for element in page if (entry := element + suffix) not in changes]
        members.update(entries)
        if len(page) == limit:
            frontier = self._frontiers[suffix] = page[-1] + suffix
            if frontier not in members:
                entries.append(frontier)
        return entries

    def _forget(self) -> None:
        self._changes, self.in_store = {}, {}
        self._heap = None
        self._members, self._frontiers, self._page_sizes = set(), {}, {}

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateBackendClosedError(
                f"state {self.name!r} is closed: state handles live for one epoch and are made again in open()"
            )


@frozen
class QueueEnds:
    """The ends of a queue in the store: bytes below and above which it has no element, and its first entry.

    The entry is empty if there are no elements. None for what is not known.
    """

    lower_bound: bytes = b""
    head: bytes | None = None
    upper_bound: bytes | None = None


def split_element_key(raw: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Key group, element, void namespace and empty bytes, like `RawKeys.split` for other kinds of state."""
    return raw[0] << 8 | raw[1], raw[2:], VOID_NAMESPACE_BYTES, b""


_VALUE_OF: Final[Mapping[bool | None, Any]] = {True: b"", False: None, None: UNKNOWN}
"""The value of a row, by whether it exists; None if that is not known."""


class RocksDBPriorityQueue(PagedPriorityQueue[T]):
    """A priority queue whose pages are rows of a RocksDB table."""

    __slots__ = ("_bounds", "_keep_ends", "stored_rows")

    def __init__(
        self,
        name: str,
        serializer: TypeSerializer[T],
        key_groups: KeyGroupRange,
        stored_rows: StoredRows,
        bounds: CacheBounds,
        ends: QueueEnds,
        keep_ends: Callable[[QueueEnds], None],
    ) -> None:
        super().__init__(name, serializer, key_groups, bounds.entries)
        self.stored_rows = stored_rows
        self.lower_bound = ends.lower_bound
        self.stored_head = ends.head
        self.upper_bound = ends.upper_bound
        self._bounds = bounds
        self._keep_ends = keep_ends

    @property
    def cache_misses(self) -> None:
        """None: misses are not counted, because elements are read in pages."""
        return None

    @property
    def holds_counted_bytes(self) -> bool:
        """False: the number of elements is bounded instead."""
        return False

    def drain(self) -> Drained:
        """Return the changes since the last call, unordered."""
        in_store = self.in_store
        changes = self.take_changes()
        self._keep_ends(QueueEnds(self.lower_bound, self.stored_head, self.upper_bound))
        raw_keys, value_of = [entry[-2:] + entry[:-2] for entry in changes], _VALUE_OF.__getitem__
        stored = map(value_of, map(in_store.get, changes))
        return Drained(raw_keys, list(map(value_of, changes.values())), list(stored))

    def write_back(self) -> None:
        self._bounds.write_out(self)

    def stored_page(self, key_group: int, after: bytes | None, limit: int) -> list[bytes]:
        prefix = KEY_GROUP.pack(key_group)
        # The next possible key is the element followed by a zero byte.
        first = self.lower_bound if after is None else after + b"\x00"
        return [raw_key[2:] for raw_key in self.stored_rows.keys(prefix + first, KEY_GROUP.pack(key_group + 1), limit)]

    def stored_heads(self, limit: int) -> Iterator[tuple[int, list[bytes]]]:
        # One scan serves all groups. It restarts only after a full page, or to skip deletions.
        key_group, end, lower_bound = self.key_groups.start, self.key_groups.end, self.lower_bound
        while key_group <= end:
            page: list[bytes] = []
            for raw_key, _ in self.stored_rows.scan(KEY_GROUP.pack(key_group) + lower_bound):
                found = raw_key[0] << 8 | raw_key[1]
                if found != key_group:
                    if page and lower_bound:
                        break
                    if page:
                        yield key_group, page
                        page = []
                    if found > end:
                        return
                    key_group = found
                page.append(raw_key[2:])
                if len(page) == limit:
                    break
            else:
                if page:
                    yield key_group, page
                return
            yield key_group, page
            key_group += 1
