"""Priority queues on RocksDB: a row per element, read a page at a time (see `statebackend.paged_priority_queue`).

    raw key := u16(key group) element        with an empty value

So the elements of a key group lie in the queue's order, whatever their type. A row has no namespace and needs no
serializer to be taken apart: a queue that nobody registers travels on by its bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from statebackend.key_groups import KeyGroupRange
from statebackend.paged_priority_queue import PagedPriorityQueue
from statebackend.rocksdb.cached_state import Change, WriteBackCache
from statebackend.rocksdb.composite_key import KEY_GROUP, VOID_NAMESPACE_BYTES
from statebackend.rocksdb.store import ColumnFamily
from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")


def split_element_key(raw: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Key group, element, the void namespace and nothing: what `RawKeys.split` gives for other kinds of state."""
    return raw[0] << 8 | raw[1], raw[2:], VOID_NAMESPACE_BYTES, b""


class RocksDBPriorityQueue(PagedPriorityQueue[T]):
    """See the module."""

    __slots__ = ("_spill", "column_family")

    def __init__(
        self,
        serializer: TypeSerializer[T],
        key_groups: KeyGroupRange,
        name: str,
        column_family: ColumnFamily,
        spill: Callable[[WriteBackCache], Any],
        max_changes: int,
    ) -> None:
        super().__init__(name, serializer, key_groups, max_changes)
        self.column_family = column_family
        self._spill = spill

    def drain(self) -> list[Change]:
        """What changed since the last call, in no order."""
        return [
            (entry[-2:] + entry[:-2], b"" if is_present else None) for entry, is_present in self.take_changes().items()
        ]

    def write_back(self) -> None:
        self._spill(self)

    def stored_page(self, key_group: int, after: bytes | None, limit: int) -> list[bytes]:
        prefix = KEY_GROUP.pack(key_group)
        page: list[bytes] = []
        # What follows an element's raw key is that key with a zero byte behind it, or anything greater.
        for raw_key, _ in self.column_family.scan(prefix if after is None else prefix + after + b"\x00"):
            if not raw_key.startswith(prefix):
                break
            page.append(raw_key[2:])
            if len(page) == limit:
                break
        return page

    def stored_heads(self, limit: int) -> Iterator[tuple[int, list[bytes]]]:
        # One scan goes on from group to group while they fit into a page; groups without elements cost nothing.
        key_group, end = self.key_groups.start, self.key_groups.end
        while key_group <= end:
            page: list[bytes] = []
            for raw_key, _ in self.column_family.scan(KEY_GROUP.pack(key_group)):
                found = raw_key[0] << 8 | raw_key[1]
                if found != key_group:
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
