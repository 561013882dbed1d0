"""Priority queues: a row per element, as key; the base class reads pages."""

from __future__ import annotations

from typing import TypeVar

from sqlite_state.database import StoredTable
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.rocksdb.priority_queue import PagedPriorityQueue
from typeserializers import VOID_NAMESPACE, TypeSerializer, VoidNamespaceSerializer

T = TypeVar("T")

MAX_CHANGES = 10_000
"""Changes that are held in memory before they are written to the database."""

_VOID = VoidNamespaceSerializer().to_bytes(VOID_NAMESPACE)


class SqlitePriorityQueue(PagedPriorityQueue[T]):
    """A queue over a table."""

    __slots__ = ("_table",)

    def __init__(self, name: str, serializer: TypeSerializer[T], key_groups: KeyGroupRange, table: StoredTable) -> None:
        super().__init__(name, serializer, key_groups, MAX_CHANGES)
        self._table = table

    def stored_page(self, key_group: int, after: bytes | None, limit: int) -> list[bytes]:
        return self._table.keys_after(key_group, after, limit)

    def write_back(self) -> None:
        changes = self.take_changes()
        self._table.put((*address_of(entry), b"", b"") for entry, is_present in changes.items() if is_present)
        for entry, is_present in changes.items():
            if not is_present:
                self._table.delete(address_of(entry))


def address_of(entry: bytes) -> tuple[int, bytes, bytes]:
    """The address of the row of an entry, which is an element and its key group."""
    return int.from_bytes(entry[-2:], "big"), entry[:-2], _VOID
