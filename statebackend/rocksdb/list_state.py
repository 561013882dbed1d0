"""List state on RocksDB: a list is a run of *chunks*, each the elements that one epoch appended.

A chunk's row ends in a number that only ever grows within the store, so an append needs no read: the millionth costs
what the first did. Replacing a list deletes its chunks and writes one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from statebackend.errors import null_element
from statebackend.exact_values import compile_exact
from statebackend.internal_states import InternalListState
from statebackend.rocksdb.cached_state import CachedState, Changes
from statebackend.rocksdb.composite_key import CHUNK_NUMBER
from typeserializers.lists import ListSerializer
from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")

_COUNT = struct.Struct(">i")


class _CachedList:
    """``elements`` are all elements if they were read, else None; ``appended`` are the bytes of the appended ones."""

    __slots__ = ("appended", "chunk_keys", "elements", "is_replaced", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.elements: list[Any] | None = None
        self.appended: list[bytes] = []
        self.chunk_keys: list[bytes] | None = None
        self.is_replaced = False


class RocksDBListState(CachedState, InternalListState[T]):
    """Appends are buffered as bytes; the elements are decoded only when the list is read.

    ``_held`` counts the elements in memory, as bytes or as objects.
    """

    __slots__ = ("_chunk_serializer", "_element_serializer", "_exact", "_held", "_is_immutable", "_next_chunk_number")

    def __init__(
        self, element_serializer: TypeSerializer[T], next_chunk_number: Callable[[], int], *cache: Any
    ) -> None:
        super().__init__(*cache)
        self._element_serializer = element_serializer
        self._chunk_serializer = ListSerializer(element_serializer)
        self._is_immutable = element_serializer.is_immutable_type
        self._exact = compile_exact(element_serializer, self.describe)
        self._next_chunk_number = next_chunk_number
        self._held = 0

    def get(self) -> list[T]:
        elements = self._loaded(self._list())
        if self._is_immutable:
            return list(elements)
        return [self._element_serializer.copy(element) for element in elements]

    def add(self, element: T) -> None:
        if element is None:
            raise null_element(self.describe(), 0)
        encoded = self.encode(self._element_serializer, element)
        cached = self._list()
        cached.appended.append(encoded)
        self._held += 1
        if cached.elements is not None:
            cached.elements.append(self._owned(element, encoded))

    def add_all(self, elements: Iterable[T]) -> None:
        given, encoded = self._encode_all(elements)
        if given:
            cached = self._list()
            cached.appended += encoded
            self._held += len(encoded)
            if cached.elements is not None:
                cached.elements += map(self._owned, given, encoded)

    def update(self, elements: Iterable[T]) -> None:
        given, encoded = self._encode_all(elements)
        cached = self._list()
        self._held += len(given) - len(cached.appended)
        cached.elements, cached.appended = list(map(self._owned, given, encoded)), encoded
        cached.is_replaced = True

    def clear(self) -> None:
        self.update(())

    def drain(self) -> Changes:
        changes: Changes = {}
        for cached in self._entries.values():
            if cached.is_replaced:
                changes.update(dict.fromkeys(self._chunk_keys(cached)))
            if cached.appended:
                raw_key = cached.prefix + CHUNK_NUMBER.pack(self._next_chunk_number())
                changes[raw_key] = _COUNT.pack(len(cached.appended)) + b"".join(cached.appended)
        self._entries = {}
        self._held = 0
        return changes

    def _list(self) -> _CachedList:
        if self._held >= self._spill_size:
            self._spill(self)
        cached: _CachedList | None = self._entries.get(self._context.key)
        if cached is None:
            cached = self._entries[self._context.key] = _CachedList(self.current_prefix())
            # A list without elements takes up room too.
            self._held += 1
        return cached

    def _loaded(self, cached: _CachedList) -> list[Any]:
        """All elements of a list."""
        elements = cached.elements
        if elements is None:
            self.cache_misses += 1
            elements = []
            cached.chunk_keys = []
            for raw_key, chunk in self.column_family.scan_prefix(cached.prefix):
                cached.chunk_keys.append(raw_key)
                elements += self.decode(self._chunk_serializer, chunk)
            read = self._element_serializer.codec.read
            elements += [read(encoded, 0)[0] for encoded in cached.appended]
            cached.elements = elements
            self._held += len(elements)
        return elements

    def _chunk_keys(self, cached: _CachedList) -> list[bytes]:
        if cached.chunk_keys is None:
            cached.chunk_keys = [raw_key for raw_key, _ in self.column_family.scan_prefix(cached.prefix)]
        return cached.chunk_keys

    def _encode_all(self, elements: Iterable[T]) -> tuple[list[Any], list[bytes]]:
        given = list(elements)
        for position, element in enumerate(given):
            if element is None:
                raise null_element(self.describe(), position)
        return given, [self.encode(self._element_serializer, element) for element in given]

    def _owned(self, element: Any, encoded: bytes) -> Any:
        """What is kept of an element: what its bytes say, and nothing of the caller's."""
        if self._is_immutable:
            return self._exact(element)
        return self._element_serializer.codec.read(encoded, 0)[0]
