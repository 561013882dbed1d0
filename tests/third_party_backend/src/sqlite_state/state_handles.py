"""The state handles: every access is a statement, and every value is encoded where it comes in.

Reducing and aggregating state need no handle of their own: they fold into a value state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from sqlite_state.database import Row, StateTable
from statebackend.keyed.entry_encoder import EntryEncoder
from statebackend.keyed.key_context import AnyKeyContext
from statebackend.kinds.internal_states import InternalListState, InternalMapState, InternalState, InternalValueState
from typeserializers import TypeSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

NextChunkNumber = Callable[[], int]


class SqliteState(InternalState):
    """A table, seen from the current key; ``serializer`` is the storage serializer of the state."""

    __slots__ = ("encoder", "serializer", "table")

    def __init__(self, table: StateTable, encoder: EntryEncoder, serializer: TypeSerializer[Any]) -> None:
        self.table = table
        self.encoder = encoder
        self.serializer = serializer

    @property
    def key_context(self) -> AnyKeyContext:
        return self.encoder.context

    def clear(self) -> None:
        self.table.delete(self.encoder.address())


class SqliteValueState(SqliteState, InternalValueState[T]):
    """One row, whose part is empty."""

    __slots__ = ("_default",)

    def __init__(self, *shared: Any, default: T | None) -> None:
        super().__init__(*shared)
        self._default = None if default is None else self.encoder.encode(self.serializer, default)

    def value(self) -> T | None:
        stored = self.table.get(self.encoder.address())
        if stored is None:
            stored = self._default
        return None if stored is None else self.encoder.decode(self.serializer, stored)

    def update(self, value: T | None) -> None:
        if value is None:
            self.clear()
            return
        address = self.encoder.address()
        self.table.put([(*address, b"", self.encoder.encode(self.serializer, value))])


class SqliteListState(SqliteState, InternalListState[T]):
    """A row per call that added something, whose part is a number that only grows."""

    __slots__ = ("_next_chunk_number",)

    def __init__(self, *shared: Any, next_chunk_number: NextChunkNumber) -> None:
        super().__init__(*shared)
        self._next_chunk_number = next_chunk_number

    def get(self) -> list[T]:
        elements: list[T] = []
        for _, chunk in self.table.under(self.encoder.address()):
            elements += self.encoder.decode(self.serializer, chunk)
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
        checked = self.encoder.checked_elements(elements)
        return self.encoder.encode(self.serializer, checked) if checked else None

    def _append(self, chunk: bytes | None) -> None:
        address = self.encoder.address()
        if chunk is not None:
            self.table.put([(*address, chunk_part(self._next_chunk_number()), chunk)])


class SqliteMapState(SqliteState, InternalMapState[K, V]):
    """A row per entry, whose part is the user key."""

    __slots__ = ("_key_serializer",)

    def __init__(self, *shared: Any, key_serializer: TypeSerializer[K]) -> None:
        super().__init__(*shared)
        self._key_serializer = key_serializer

    def get(self, key: K) -> V | None:
        stored = self.table.get(self.encoder.address(), self._part(key))
        return None if stored is None else self.encoder.decode(self.serializer, stored)

    def contains(self, key: K) -> bool:
        return self.table.get(self.encoder.address(), self._part(key)) is not None

    def put(self, key: K, value: V | None) -> None:
        self.table.put([self._row(key, value)])

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        self.table.put([self._row(key, value) for key, value in entries.items()])

    def remove(self, key: K) -> None:
        self.table.delete(self.encoder.address(), self._part(key))

    def items(self) -> Iterator[tuple[K, V | None]]:
        address = self.encoder.address()
        parts = [part for part, _ in self.table.under(address)]
        return self._live_items(address, parts)

    def is_empty(self) -> bool:
        return not self.table.has(self.encoder.address())

    def _live_items(self, address: Any, parts: list[bytes]) -> Iterator[tuple[K, V | None]]:
        """The entries that were there, as they are when they are reached: changed meanwhile, or gone."""
        for part in parts:
            stored = self.table.get(address, part)
            if stored is not None:
                yield self.encoder.decode(self._key_serializer, part), self.encoder.decode(self.serializer, stored)

    def _part(self, key: K) -> bytes:
        return self.encoder.encode_user_key(self._key_serializer, key)

    def _row(self, key: K, value: V | None) -> Row:
        return (*self.encoder.address(), self._part(key), self.encoder.encode_user_value(self.serializer, key, value))


def chunk_part(number: int) -> bytes:
    """The part of a list chunk."""
    return number.to_bytes(8, "big")
