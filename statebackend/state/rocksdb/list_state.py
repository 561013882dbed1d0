"""List state on RocksDB: a list is a run of *chunks*, each with the elements that one epoch appended.

A chunk's row ends in a number that only grows within the store, so an append needs no read, whatever the length of the
list. Replacing a list deletes its chunks and writes one.

The chunks of a list depend on when the cache was written out, so the digest is not that of the rows. It covers the
elements after those of the last completed snapshot (chunks from ``first_new_chunk()`` on) as one run, and whether the
older chunks still exist.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any, Final, TypeVar

import xxhash
from attrs import define

from statebackend.state.composite_key import CHUNK_NUMBER
from statebackend.state.entry_keys import checked_elements
from statebackend.state.errors import null_element
from statebackend.state.key_batch import KeyBatch
from statebackend.state.list_state import InternalListState
from statebackend.state.rocksdb.cached_state import ENTRY_BYTES, CachedState, Changes, Drained
from statebackend.state.rocksdb.file_chain import state_seed
from statebackend.state.state_kind import RowFilter
from statebackend.state.value_forms import compile_exact, compile_size
from typeserializers.containers.lists import ListSerializer
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

_COUNT = struct.Struct(">i")

_ELEMENT_BYTES: Final = 96
"""The estimated bytes of an element in the cache without its data."""

_GONE: Final = b"\x00"
"""Ends the hashed data of a list whose earlier elements are gone; other lists have a count of eight bytes."""


@define(eq=False)
class ChunkSource:
    """What the lists of a backend share: the numbers of chunks, and the first number that is not yet in a snapshot.

    ``expired`` makes a filter of expired elements; None in a state without time-to-live.
    """

    next_number: Callable[[], int]
    first_new: Callable[[], int]
    expired: Callable[[], RowFilter | None]


class _CachedList:
    """``elements`` are all elements if they were read, else None; ``appended`` are the bytes of the appended ones.

    Immutable elements of a replaced list are encoded when the cache is written out. Until then ``appended`` holds
    their approximate sizes.

    ``rows`` are the stored chunks if they were read, else None. ``stored`` are the bytes of their elements, once
    read.
    """

    __slots__ = ("appended", "elements", "is_replaced", "prefix", "rows", "size_bytes", "stored")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.elements: list[Any] | None = None
        self.appended: list[Any] = []
        self.rows: list[tuple[bytes, bytes]] | None = None
        self.stored: list[bytes] = []
        self.is_replaced = False
        self.size_bytes = ENTRY_BYTES


class RocksDBListState(CachedState, InternalListState[T]):
    """Buffers appends as bytes; decodes the elements only when the list is read.

    ``_held`` counts the elements in memory, as bytes or as objects.
    """

    __slots__ = (
        "_chunk_serializer",
        "_chunks",
        "_element_serializer",
        "_exact",
        "_held",
        "_is_immutable",
        "_last_chunk_number",
        "_seed",
        "_size_of",
    )

    def __init__(self, element_serializer: TypeSerializer[T], chunks: ChunkSource, *cache: Any) -> None:
        super().__init__(*cache)
        self._element_serializer = element_serializer
        self._chunk_serializer = ListSerializer(element_serializer)
        self._is_immutable = element_serializer.is_immutable_type
        self._exact = compile_exact(element_serializer, self.describe)
        length = element_serializer.length
        self._size_of = compile_size(element_serializer) or (lambda element: length)
        self._chunks = chunks
        self._last_chunk_number = -1
        self._seed = state_seed(self.name)
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
        self._grow(cached, _ELEMENT_BYTES + 2 * len(encoded))

    @property
    def row_serializer(self) -> TypeSerializer[T]:
        return self._element_serializer

    def get_rows(self, keys: KeyBatch) -> list[bytes]:
        return [self._row(self._list()) for _ in keys.each()]

    def add_rows(self, keys: KeyBatch, elements: Sequence[bytes]) -> None:
        read = self._element_serializer.codec.read
        for _, encoded in zip(keys.each(), elements, strict=True):
            cached = self._list()
            cached.appended.append(encoded)
            self._held += 1
            if cached.elements is not None:
                cached.elements.append(read(encoded, 0)[0])
            self._grow(cached, _ELEMENT_BYTES + 2 * len(encoded))

    def _row(self, cached: _CachedList) -> bytes:
        if cached.is_replaced:
            count, joined = self._replaced(cached)
        else:
            if cached.elements is None and cached.rows is None:
                self.cache_misses += 1
                self._grow(cached, sum(len(chunk) for _, chunk in self._rows(cached)))
            count, joined = _joined([chunk for _, chunk in self._rows(cached)])
            count, joined = count + len(cached.appended), joined + b"".join(cached.appended)
        return _COUNT.pack(count) + joined

    def _replaced(self, cached: _CachedList) -> tuple[int, bytes]:
        """Count and join the elements of a replaced list."""
        write = self._element_serializer.codec.write
        pairs = zip(cached.elements or (), cached.appended, strict=True)
        return len(cached.appended), b"".join(
            [write(element) if one.__class__ is int else one for element, one in pairs]
        )

    def add_all(self, elements: Iterable[T]) -> None:
        given, encoded = self._encode_all(elements)
        if given:
            cached = self._list()
            cached.appended += encoded
            self._held += len(encoded)
            if cached.elements is not None:
                cached.elements += map(self._owned, given, encoded)
            self._grow(cached, _size_of(encoded))

    def update(self, elements: Iterable[T]) -> None:
        given: list[Any] = list(elements)
        cached: _CachedList | None = self._entries.get(self._context.key)
        if cached is not None and self._has_appended(cached, given):
            return
        given = checked_elements(self.name, given)
        known = {} if cached is None else self._known(cached, 2 * len(given))
        pairs = [known.get(id(element)) or self._new(element) for element in given]
        encoded = [pair[1] for pair in pairs]
        self._replace(
            [pair[0] for pair in pairs], encoded, sum(one if isinstance(one, int) else len(one) for one in encoded)
        )

    def _replace(self, elements: list[Any], encoded: list[Any], size_bytes: int) -> None:
        """Replace the list by checked elements, which have this size together."""
        cached = self._list()
        self._held += len(elements) - len(cached.appended)
        cached.elements, cached.appended = elements, encoded
        cached.is_replaced = True
        kept = 0 if cached.rows is None else sum([len(chunk) for _, chunk in cached.rows])
        size_bytes = _ELEMENT_BYTES * len(encoded) + 2 * size_bytes
        self._grow(cached, ENTRY_BYTES + kept + size_bytes - cached.size_bytes)

    def _has_appended(self, cached: _CachedList, given: list[Any]) -> bool:
        """Update a replaced list if all but the last of the given elements are its last ones; else return False."""
        elements, sizes = cached.elements, cached.appended
        known = len(given) - 1
        if elements is None or not cached.is_replaced or not self._is_immutable or self._held >= self._max_entries:
            return False
        start = len(elements) - known
        if not known > 0 <= start or given[0] is not elements[start] or given[-1] is None:
            return False
        if not all(map(is_, elements[start:], given)):
            return False
        given[-1], size = self._new(given[-1])
        dropped = sum(one if isinstance(one, int) else len(one) for one in sizes[:start])
        cached.elements, cached.appended = given, [*sizes[start:], size]
        self._held += 1 - start
        self._grow(cached, _ELEMENT_BYTES * (1 - start) + 2 * (int(size) - dropped))
        return True

    def clear(self) -> None:
        self.update(())

    def drain(self) -> Drained:
        changes: Changes = {}
        digest = 0
        first_new = self._chunks.first_new()
        was_written = self._last_chunk_number >= first_new
        row_filter = self._chunks.expired()
        for cached in self._entries.values():
            if cached.is_replaced:
                digest += self._drain_replaced(cached, changes, first_new, row_filter)
            elif cached.appended:
                new = len(cached.appended), b"".join(cached.appended)
                before = 0, b""
                if was_written:
                    chunks = self.stored_rows.scan_prefix_from(cached.prefix, CHUNK_NUMBER.pack(first_new))
                    before = _joined([chunk for _, chunk in chunks])
                after = before[0] + new[0], before[1] + new[1]
                digest += self._hash(cached.prefix, after) - self._hash(cached.prefix, before)
                self._add_chunk(cached.prefix, new, changes)
        self.forget()
        self._held = 0
        return Drained.from_changes(changes, digest=digest)

    def _drain_replaced(
        self, cached: _CachedList, changes: Changes, first_new: int, row_filter: RowFilter | None
    ) -> int:
        """Add the changes of a replaced list; return the change of the digest."""
        prefix, digest = cached.prefix, 0
        rows = self._rows(cached)
        new_from = prefix + CHUNK_NUMBER.pack(first_new)
        older = [row for row in rows if row[0] < new_from]
        newer = rows[len(older) :]
        base, was_added = _unexpired(older, row_filter), _joined([chunk for _, chunk in newer])
        rest = self._replaced(cached)
        if base[0] and rest[0] >= base[0] and rest[1].startswith(base[1]):
            # The earlier elements are still the first ones, and stay unchanged. Perhaps a clean-up ran here at another
            # time than in another attempt, or the list was rewritten with the same elements.
            rest = rest[0] - base[0], rest[1][len(base[1]) :]
            if base != _joined([chunk for _, chunk in older]):
                changes.update(dict.fromkeys(raw_key for raw_key, _ in older))
                changes[older[0][0]] = _COUNT.pack(base[0]) + base[1]
        else:
            changes.update(dict.fromkeys(raw_key for raw_key, _ in older))
            if base[0]:
                digest += xxhash.xxh3_64_intdigest(prefix + _GONE, self._seed)
        if rest != was_added:
            changes.update(dict.fromkeys(raw_key for raw_key, _ in newer))
            digest += self._hash(prefix, rest) - self._hash(prefix, was_added)
            self._add_chunk(prefix, rest, changes)
        return digest

    def _add_chunk(self, prefix: bytes, elements: tuple[int, bytes], changes: Changes) -> None:
        if elements[0]:
            number = self._last_chunk_number = self._chunks.next_number()
            changes[prefix + CHUNK_NUMBER.pack(number)] = _COUNT.pack(elements[0]) + elements[1]

    def _hash(self, prefix: bytes, elements: tuple[int, bytes]) -> int:
        """Hash a run of elements; 0 for an empty run."""
        count, joined = elements
        row = b"".join((prefix, joined, count.to_bytes(8, "big")))
        return xxhash.xxh3_64_intdigest(row, self._seed) if count else 0

    def _list(self) -> _CachedList:
        if self._held >= self._max_entries:
            self._bounds.write_out(self)
        cached: _CachedList | None = self._entries.get(self._context.key)
        if cached is None:
            cached = self._entries[self._context.key] = _CachedList(self.current_prefix())
            # A list without elements uses memory too.
            self._held += 1
            self.held_bytes += ENTRY_BYTES
            self._memory.held_bytes += ENTRY_BYTES
        return cached

    def _grow(self, cached: _CachedList, size_bytes: int) -> None:
        cached.size_bytes += size_bytes
        self.hold(size_bytes)

    def _loaded(self, cached: _CachedList) -> list[Any]:
        elements = cached.elements
        if elements is None:
            self.cache_misses += 1
            elements = []
            rows = self._rows(cached)
            for _, chunk in rows:
                self._read_chunk(chunk, elements, cached.stored)
            read = self._element_serializer.codec.read
            elements += [read(encoded, 0)[0] for encoded in cached.appended]
            cached.elements = elements
            self._held += len(elements)
            self._grow(cached, sum(2 * len(chunk) for _, chunk in rows) + _ELEMENT_BYTES * len(elements))
        return elements

    def _read_chunk(self, chunk: bytes, elements: list[Any], encoded: list[bytes]) -> None:
        """Append the elements of a chunk to ``elements``, and their bytes to ``encoded`` if they are immutable."""
        if not self._is_immutable or not self._element_serializer.minimum_length:
            elements += self.decode(self._chunk_serializer, chunk)
            return
        read, end = self._element_serializer.codec.read, _COUNT.size
        try:
            for _ in range(_COUNT.unpack_from(chunk)[0]):
                start = end
                element, end = read(chunk, start)
                elements.append(element)
                encoded.append(chunk[start:end])
        except Exception:
            end = -1
        if end != len(chunk):
            # This raises an error with the reason.
            self.decode(self._chunk_serializer, chunk)

    def _rows(self, cached: _CachedList) -> list[tuple[bytes, bytes]]:
        if cached.rows is None:
            cached.rows = list(self.stored_rows.scan_prefix(cached.prefix))
        return cached.rows

    def _encode_all(self, elements: Iterable[T]) -> tuple[list[Any], list[bytes]]:
        given = checked_elements(self.name, elements)
        return given, [self.encode(self._element_serializer, element) for element in given]

    def _known(self, cached: _CachedList, limit: int) -> dict[int, tuple[Any, bytes | int]]:
        """The immutable elements of a list with their bytes, by identity, so that a change can reuse the bytes."""
        elements = cached.elements
        encoded = cached.appended if cached.is_replaced else [*cached.stored, *cached.appended]
        if elements is None or not self._is_immutable or not len(elements) == len(encoded) <= limit:
            return {}
        return {id(pair[0]): pair for pair in zip(elements, encoded, strict=True)}

    def _new(self, element: Any) -> tuple[Any, bytes | int]:
        """An element of a replaced list with its bytes, or its approximate size until it is encoded."""
        if self._is_immutable:
            exact = self._exact(element)
            return exact, self._size_of(exact)
        encoded = self.encode(self._element_serializer, element)
        return self._owned(element, encoded), encoded

    def _owned(self, element: Any, encoded: bytes) -> Any:
        """The cached form of an element, which shares no mutable object with the caller."""
        if self._is_immutable:
            return self._exact(element)
        return self._element_serializer.codec.read(encoded, 0)[0]


class RocksDBObjectListState(RocksDBListState[T]):
    """Lists of elements of an immutable type, which are cached as objects."""

    __slots__ = ()

    exact_value = "self._exact((value, now_ms))[0]"

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        # Not a copy: the accessors do not change it.
        return ["stored = self._loaded(self._list())"]

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["self.replace(stored)"]

    def replace(self, elements: list[T]) -> None:
        """Replace the list by checked elements. The state then owns this list."""
        sizes = list(map(self._size_of, elements))
        self._replace(elements, sizes, sum(sizes))


def _joined(chunks: list[bytes]) -> tuple[int, bytes]:
    """Count and join the elements of chunks."""
    return sum(_COUNT.unpack_from(chunk)[0] for chunk in chunks), b"".join([chunk[_COUNT.size :] for chunk in chunks])


def _unexpired(rows: list[tuple[bytes, bytes]], row_filter: RowFilter | None) -> tuple[int, bytes]:
    chunks: list[bytes | None] = [chunk if row_filter is None else row_filter(chunk) for _, chunk in rows]
    return _joined([chunk for chunk in chunks if chunk is not None])


def _size_of(encoded: list[bytes]) -> int:
    """The bytes counted for elements: they are in memory as bytes and as objects, or twice when written out."""
    return _ELEMENT_BYTES * len(encoded) + 2 * sum(map(len, encoded))
