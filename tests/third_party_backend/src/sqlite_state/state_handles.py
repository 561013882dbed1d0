"""The state handles: every access is a statement, and every value is encoded by the handle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from sqlite_state.database import Row, StoredTable
from statebackend.state.entry_keys import (
    CurrentAddress,
    checked_elements,
    decoded,
    encoded,
    encoded_user_key,
    encoded_user_value,
)
from statebackend.state.internal_states import HandleContext, InternalState
from statebackend.state.list_state import InternalListState
from statebackend.state.map_state import InternalMapState
from statebackend.state.value_state import InternalValueState
from typeserializers import ListSerializer, NullableSerializer, TypeSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

NextChunkNumber = Callable[[], int]


class SqliteState(InternalState):
    """A table with the current key; ``address()`` is the address of its state."""

    __slots__ = ("address", "context", "name", "table")

    def __init__(self, name: str, table: StoredTable, context: HandleContext, address: CurrentAddress) -> None:
        self.name = name
        self.table = table
        self.context = context
        self.address = address

    @property
    def key_context(self) -> HandleContext:
        return self.context

    def clear(self) -> None:
        self.table.delete(self.address())


class SqliteValueState(SqliteState, InternalValueState[T]):
    """One row with an empty part."""

    __slots__ = ("_default", "_serializer")

    def __init__(self, *shared: Any, serializer: TypeSerializer[T], default: T | None) -> None:
        super().__init__(*shared)
        self._serializer = serializer
        self._default = None if default is None else encoded(self.name, serializer, default)

    def value(self) -> T | None:
        stored = self.table.get(self.address())
        if stored is None:
            stored = self._default
        return None if stored is None else decoded(self.name, self._serializer, stored)

    def update(self, value: T | None) -> None:
        if value is None:
            self.clear()
            return
        address = self.address()
        self.table.put([(*address, b"", encoded(self.name, self._serializer, value))])


class SqliteListState(SqliteState, InternalListState[T]):
    """A row per call that added elements; its part is an increasing number."""

    __slots__ = ("_next_chunk_number", "_serializer")

    def __init__(self, *shared: Any, element_serializer: TypeSerializer[T], next_chunk_number: NextChunkNumber) -> None:
        super().__init__(*shared)
        self._serializer = ListSerializer(element_serializer)
        self._next_chunk_number = next_chunk_number

    def get(self) -> list[T]:
        elements: list[T] = []
        for _, chunk in self.table.under(self.address()):
            elements += decoded(self.name, self._serializer, chunk)
        return elements

    def add(self, element: T) -> None:
        self.add_all((element,))

    def add_all(self, elements: Iterable[T]) -> None:
        self._append(self._chunk(elements))

    def update(self, elements: Iterable[T]) -> None:
        chunk = self._chunk(elements)
        self.clear()
        self._append(chunk)

    def _chunk(self, elements: Iterable[T]) -> bytes | None:
        checked = checked_elements(self.name, elements)
        return encoded(self.name, self._serializer, checked) if checked else None

    def _append(self, chunk: bytes | None) -> None:
        address = self.address()
        if chunk is not None:
            self.table.put([(*address, chunk_part(self._next_chunk_number()), chunk)])


class SqliteMapState(SqliteState, InternalMapState[K, V]):
    """A row per entry; its part is the user key."""

    __slots__ = ("_key_serializer", "_serializer")

    def __init__(self, *shared: Any, key_serializer: TypeSerializer[K], value_serializer: TypeSerializer[V]) -> None:
        super().__init__(*shared)
        self._key_serializer = key_serializer
        self._serializer = NullableSerializer(value_serializer)

    def get(self, key: K) -> V | None:
        stored = self.table.get(self.address(), self._part(key))
        return None if stored is None else decoded(self.name, self._serializer, stored)

    def contains(self, key: K) -> bool:
        return self.table.get(self.address(), self._part(key)) is not None

    def put(self, key: K, value: V | None) -> None:
        self.table.put([self._row(key, value)])

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        self.table.put([self._row(key, value) for key, value in entries.items()])

    def remove(self, key: K) -> None:
        self.table.delete(self.address(), self._part(key))

    def items(self) -> Iterator[tuple[K, V | None]]:
        address = self.address()
        parts = [part for part, _ in self.table.under(address)]
        return self._live_items(address, parts)

    def is_empty(self) -> bool:
        return not self.table.has(self.address())

    def _live_items(self, address: Any, parts: list[bytes]) -> Iterator[tuple[K, V | None]]:
        """The entries that existed at the call of `items`, with current values, without removed ones."""
        for part in parts:
            stored = self.table.get(address, part)
            if stored is not None:
                yield decoded(self.name, self._key_serializer, part), decoded(self.name, self._serializer, stored)

    def _part(self, key: K) -> bytes:
        return encoded_user_key(self.name, self._key_serializer, key)

    def _row(self, key: K, value: V | None) -> Row:
        return (*self.address(), self._part(key), encoded_user_value(self.name, self._serializer, key, value))


def chunk_part(number: int) -> bytes:
    """The part of a list chunk."""
    return number.to_bytes(8, "big")
