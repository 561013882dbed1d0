"""List state on RocksDB: a list is a run of *chunks*, each the elements that one epoch appended.

A chunk's row ends in a number that only ever grows within the store, so an append needs no read: the millionth costs
what the first did. Replacing a list deletes its chunks and writes one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from snapshots.errors import SerializationError
from statebackend.exact_values import compile_exact
from statebackend.internal_states import InternalListState
from statebackend.rocksdb.cached_state import CachedState, Change
from statebackend.rocksdb.composite_key import CHUNK_NUMBER
from typeserializers.lists import ListSerializer
from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")

_COUNT = struct.Struct(">i")


class _CachedList:
    """``elements`` are all elements if ``is_loaded``, else the appended ones; ``appended`` are their bytes."""

    __slots__ = ("appended", "chunk_keys", "elements", "is_loaded", "is_replaced", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.elements: list[Any] = []
        self.appended: list[bytes] = []
        self.chunk_keys: list[bytes] | None = None
        self.is_loaded = False
        self.is_replaced = False


class RocksDBListState(CachedState, InternalListState[T]):
    """Appends are buffered as bytes; the elements are decoded only when the list is read."""

    __slots__ = ("_chunk_serializer", "_element_serializer", "_exact", "_is_immutable", "_next_chunk_number")

    def __init__(
        self, element_serializer: TypeSerializer[T], next_chunk_number: Callable[[], int], *cache: Any
    ) -> None:
        super().__init__(*cache)
        self._element_serializer = element_serializer
        self._chunk_serializer = ListSerializer(element_serializer)
        self._is_immutable = element_serializer.is_immutable_type
        self._exact = compile_exact(element_serializer, self.describe)
        self._next_chunk_number = next_chunk_number

    def get(self) -> list[T]:
        cached = self._list()
        self._load(cached)
        if self._is_immutable:
            return list(cached.elements)
        return [self._element_serializer.copy(element) for element in cached.elements]

    def add(self, element: T) -> None:
        self.add_all((element,))

    def add_all(self, elements: Iterable[T]) -> None:
        owned, encoded = self._encode_all(elements)
        if owned:
            cached = self._list()
            cached.elements += owned
            cached.appended += encoded

    def update(self, elements: Iterable[T]) -> None:
        owned, encoded = self._encode_all(elements)
        cached = self._list()
        cached.elements, cached.appended = owned, encoded
        cached.is_loaded = cached.is_replaced = True

    def clear(self) -> None:
        self.update(())

    def drain(self) -> list[Change]:
        changes: list[Change] = []
        for cached in self._entries.values():
            if cached.is_replaced:
                changes += [(key, None) for key in self._chunk_keys(cached)]
            if cached.appended:
                raw_key = cached.prefix + CHUNK_NUMBER.pack(self._next_chunk_number())
                changes.append((raw_key, _COUNT.pack(len(cached.appended)) + b"".join(cached.appended)))
        self._entries = {}
        return changes

    def _list(self) -> _CachedList:
        cached: _CachedList | None = self._entries.get(self._context.key)
        if cached is None:
            cached = self.admit(_CachedList(self.current_prefix()))
        return cached

    def _load(self, cached: _CachedList) -> None:
        if cached.is_loaded:
            return
        self.cache_misses += 1
        stored: list[Any] = []
        cached.chunk_keys = []
        for raw_key, chunk in self.column_family.scan_prefix(cached.prefix):
            cached.chunk_keys.append(raw_key)
            stored += self.decode(self._chunk_serializer, chunk)
        cached.elements = stored + cached.elements
        cached.is_loaded = True

    def _chunk_keys(self, cached: _CachedList) -> list[bytes]:
        if cached.chunk_keys is None:
            cached.chunk_keys = [raw_key for raw_key, _ in self.column_family.scan_prefix(cached.prefix)]
        return cached.chunk_keys

    def _encode_all(self, elements: Iterable[T]) -> tuple[list[Any], list[bytes]]:
        owned = list(elements)
        for position, element in enumerate(owned):
            if element is None:
                raise SerializationError(
                    f"state {self.name!r}", (f"[{position}]: None cannot be an element of a list state",)
                )
        if self._is_immutable:
            owned = [self._exact(element) for element in owned]
        encoded = [self.encode(self._element_serializer, element) for element in owned]
        if not self._is_immutable:
            owned = [self.decode(self._element_serializer, element) for element in encoded]
        return owned, encoded
