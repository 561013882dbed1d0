"""Priority queues on RocksDB: a row per element, read a page at a time.

What orders a queue is in `statebackend.queues.paged_priority_queue`.

    raw key := u16(key group) element        with an empty value

So the elements of a key group lie in the queue's order, whatever their type. A row has no namespace and needs no
serializer to be taken apart: a queue that nobody registers travels on by its bytes alone.

What was polled is a deletion in the database until files are compacted, and a scan has to step over each. So scans of a
key group begin at the lower bound of the queue, which is kept with the local database. It is only lost by a restore,
whose first scan finds the heads behind the deletions in the files, once. Beside it lies the first entry, so that
nothing is read to see that nothing is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from attrs import frozen

from statebackend.api.key_groups import KeyGroupRange
from statebackend.queues.paged_priority_queue import PagedPriorityQueue
from statebackend.rocksdb.cached_state import CacheBounds, Changes, Drained, StoredRows
from statebackend.rocksdb.composite_key import KEY_GROUP, VOID_NAMESPACE_BYTES
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")


@frozen
class QueueEnds:
    """Where a queue begins: bytes below which it has no element, and its first entry.

    The latter is empty if there are no elements, None if it is not known.
    """

    lower_bound: bytes = b""
    head: bytes | None = None


def split_element_key(raw: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Key group, element, the void namespace and nothing: what `RawKeys.split` gives for other kinds of state."""
    return raw[0] << 8 | raw[1], raw[2:], VOID_NAMESPACE_BYTES, b""


def _rows_of(entries: dict[bytes, bool]) -> Changes:
    """The raw keys of entries, with what is under them."""
    return {entry[-2:] + entry[:-2]: b"" if is_present else None for entry, is_present in entries.items()}


class RocksDBPriorityQueue(PagedPriorityQueue[T]):
    """See the module."""

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
        self._bounds = bounds
        self._keep_ends = keep_ends

    @property
    def cache_misses(self) -> None:
        """They are not counted: elements come a page at a time."""
        return None

    @property
    def holds_counted_bytes(self) -> bool:
        """It does not: its elements are bounded by their number."""
        return False

    def drain(self) -> Drained:
        """What changed since the last call, in no order."""
        in_store = self.in_store
        changes = self.take_changes()
        self._keep_ends(QueueEnds(self.lower_bound, self.stored_head))
        return Drained.from_changes(_rows_of(changes), _rows_of(in_store))

    def write_back(self) -> None:
        self._bounds.write_out(self)

    def stored_page(self, key_group: int, after: bytes | None, limit: int) -> list[bytes]:
        prefix = KEY_GROUP.pack(key_group)
        page: list[bytes] = []
        # The smallest key behind an element's is that with a zero byte at its end.
        first = self.lower_bound if after is None else after + b"\x00"
        for raw_key, _ in self.stored_rows.scan(prefix + first):
            if not raw_key.startswith(prefix):
                break
            page.append(raw_key[2:])
            if len(page) == limit:
                break
        return page

    def stored_heads(self, limit: int) -> Iterator[tuple[int, list[bytes]]]:
        # One scan goes on from group to group; it is only begun anew at full pages, and where that skips deletions.
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
