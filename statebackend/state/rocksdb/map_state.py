"""Map state on RocksDB: one row per map entry, whose value begins with a flag for null.

The cache of a map knows some of its entries and need not know all. An iteration merges the cached entries over a scan.
A clear only records that the stored entries are gone; they are deleted in parts. A map with few entries is read whole,
so that a small map is read once in an epoch even if every record iterates over it.

An iteration returns the entries that existed when it began, in the order of their key bytes, cached or not. Each entry
is as of its turn: changed if it was changed, and left out if it was removed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final, TypeVar

from snapshots.errors import SerializationError, format_value
from statebackend.state.entry_keys import encoded_user_key
from statebackend.state.map_state import InternalMapState
from statebackend.state.rocksdb.cached_state import ENTRY_BYTES, UNKNOWN, CachedState, Changes, Drained
from statebackend.state.value_forms import compile_exact, compile_size
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.type_serializer import TypeSerializer

K = TypeVar("K")
V = TypeVar("V")

SMALL_MAP: Final = 256
"""The largest number of stored entries with which an iteration reads a map into the cache."""

SMALL_MAP_BYTES: Final = 1 << 20
"""The largest size of such a map."""

DELETIONS_AT_ONCE: Final = 100_000
"""The limit of deletions in one part, for entries of cleared maps."""

DELETED_BYTES_AT_ONCE: Final = 16 << 20
"""The limit of bytes in such a part."""

_KEY, _VALUE, _ENCODED, _IS_DIRTY, _KEY_BYTES, _STORED = range(6)

_key_bytes_of = itemgetter(_KEY_BYTES)


class _CachedMap:
    """The known entries of one map; ``is_complete`` means that all entries are known.

    ``is_cleared`` means that all stored rows from ``deleted_up_to`` on are deleted, except those in ``entries``.
    """

    __slots__ = ("deleted_up_to", "entries", "is_cleared", "is_complete", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.entries: dict[Any, list[Any]] = {}
        self.is_complete = False
        self.is_cleared = False
        self.deleted_up_to = prefix


class RocksDBMapState(CachedState, InternalMapState[K, V]):
    """An entry of a cached map is ``[user key, value, encoded value or None, is dirty, encoded key, stored value]``.

    Immutable values are encoded when the cache is written out. Until then the entry holds their approximate size
    instead of the encoded value.

    ``_changes`` counts everything that may affect a running iteration, ``_drains`` how often the cache was written
    out, ``_resets`` how often entries that an iteration holds were removed from the cache.
    """

    __slots__ = (
        "_changes",
        "_drains",
        "_exact_key",
        "_exact_value",
        "_held",
        "_is_immutable",
        "_key_is_object",
        "_key_serializer",
        "_resets",
        "_size_of",
        "_value_serializer",
    )

    def __init__(self, key_serializer: TypeSerializer[K], value_serializer: TypeSerializer[V], *cache: Any) -> None:
        super().__init__(*cache)
        self._key_serializer = key_serializer
        self._value_serializer = NullableSerializer(value_serializer)
        self._key_is_object = key_serializer.equal_values_have_equal_bytes
        self._is_immutable = value_serializer.is_immutable_type
        self._exact_key = compile_exact(key_serializer, lambda: f"{self.describe()}, key of the map", reject_none=True)
        self._exact_value = compile_exact(self._value_serializer, self.describe)
        length = self._value_serializer.length
        self._size_of = compile_size(self._value_serializer) or (lambda value: length)
        self._held = self._changes = self._drains = self._resets = 0

    def get(self, key: K) -> V | None:
        entry = self._entry(self._exact_key(key))
        return None if entry[_ENCODED] is None else self._value(entry)

    def contains(self, key: K) -> bool:
        return self._entry(self._exact_key(key))[_ENCODED] is not None

    def put(self, key: K, value: V | None) -> None:
        self._set(*self._owned(key, value))

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        for owned in [self._owned(key, value) for key, value in entries.items()]:
            self._set(*owned)

    def remove(self, key: K) -> None:
        self._set(self._exact_key(key), None, None)

    def items(self) -> Iterator[tuple[K, V | None]]:
        # Record the start of the iteration now: the first entry may be read much later.
        cached = self._map()
        context_key, prefix = self._context.key, cached.prefix
        if not cached.is_complete:
            self.cache_misses += 1
            rows = self.stored_rows.scan_prefix(prefix)
            head, is_small = self._head(rows)
            if not is_small:
                changes, stored_as_of = self._changes, self._drains
                every: Iterable[tuple[bytes, Any]] = itertools.chain(head, rows)
                if cached.entries:
                    # Merge the known entries from the beginning.
                    changes, every = -1, _merged(prefix, _alive(cached), every)
                return self._scanned_items(context_key, prefix, every, changes, stored_as_of)
            self._complete(cached, head)
        return self._cached_items(context_key, prefix, _alive(cached), self._resets)

    def _head(self, rows: Iterator[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The first rows of a map, and whether they are the whole map and few enough for the cache."""
        room, size_bytes = min(SMALL_MAP, self._max_entries - self._held), 0
        head: list[tuple[bytes, bytes]] = []
        for row in rows:
            head.append(row)
            size_bytes += len(row[1])
            if len(head) > room or size_bytes > SMALL_MAP_BYTES:
                return head, False
        return head, True

    def is_empty(self) -> bool:
        cached = self._map()
        if any(entry[_ENCODED] is not None for entry in cached.entries.values()):
            return False
        if not cached.is_complete:
            self.cache_misses += 1
            has_rows = False
            for raw_key, _ in self.stored_rows.scan_prefix(cached.prefix):
                has_rows = True
                # All known entries are removed, so their rows are to be deleted.
                if self._cache_key(raw_key[len(cached.prefix) :]) not in cached.entries:
                    return False
            cached.is_complete = not has_rows
        return True

    def clear(self) -> None:
        cached = self._map()
        self._changes += 1
        self._resets += 1
        self._held -= len(cached.entries)
        size_bytes = sum(_size_of(entry[_KEY_BYTES], entry[_ENCODED]) for entry in cached.entries.values())
        cached.entries = {}
        cached.is_cleared = cached.is_complete = True
        # The cache may be too large even without these entries. A write-out must then know that they are gone.
        self.hold(-size_bytes)

    def drain(self) -> Drained:
        changes: Changes = {}
        stored: Changes = {}
        for cached in self._entries.values():
            prefix = cached.prefix
            dirty = [entry for entry in cached.entries.values() if entry[_IS_DIRTY]]
            rewritten = {prefix + entry[_KEY_BYTES]: self._bytes_of(entry) for entry in dirty}
            if cached.is_cleared:
                self._add_deletions(changes, stored, cached, rewritten)
                if cached.is_cleared:
                    # The remaining deletions come in the next parts, before the rest.
                    return Drained.from_changes(changes, stored)
            changes.update(rewritten)
            for entry in dirty:
                entry[_IS_DIRTY] = False
                if entry[_STORED] is not UNKNOWN:
                    stored[prefix + entry[_KEY_BYTES]] = entry[_STORED]
        self.forget()
        self._held = 0
        self._drains += 1
        self._resets += 1
        self._changes += 1
        return Drained.from_changes(changes, stored)

    def _add_deletions(self, changes: Changes, stored: Changes, cached: _CachedMap, rewritten: Changes) -> None:
        """Add deletions of stored rows until a part is full; at the end the map is no longer cleared."""
        size_bytes = 0
        scan = self.stored_rows.scan(cached.deleted_up_to)
        for raw_key, encoded in scan:
            if not raw_key.startswith(cached.prefix):
                break
            if len(changes) >= DELETIONS_AT_ONCE or size_bytes >= DELETED_BYTES_AT_ONCE:
                cached.deleted_up_to = raw_key
                scan.close()
                return
            if raw_key not in rewritten:
                changes[raw_key] = None
                stored[raw_key] = encoded
                size_bytes += len(encoded)
        cached.is_cleared = False

    def _cached_items(
        self, context_key: Any, prefix: bytes, entries: list[list[Any]], resets: int
    ) -> Iterator[tuple[K, V | None]]:
        for entry in entries:
            if self._resets != resets:
                current = self._current(context_key, prefix, entry[_KEY_BYTES])
                if current is None:
                    continue
                entry = current
            if entry[_ENCODED] is not None:
                yield entry[_KEY], self._value(entry)

    def _scanned_items(
        self, context_key: Any, prefix: bytes, rows: Iterable[tuple[bytes, Any]], changes: int, drains: int
    ) -> Iterator[tuple[K, V | None]]:
        start = len(prefix)
        read_key, read_value = self._key_serializer.codec.read, self._value_serializer.codec.read
        for raw_key, encoded in rows:
            if self._changes == changes:
                try:
                    key, key_end = read_key(raw_key, start)
                    value, value_end = read_value(encoded, 0)
                except Exception:
                    key_end = -1
                if key_end != len(raw_key) or value_end != len(encoded):
                    key = self.decode(self._key_serializer, raw_key[start:])
                    value = self.decode(self._value_serializer, encoded)
                yield key, value
                continue
            entry = self._current(context_key, prefix, raw_key[start:], encoded if self._drains == drains else None)
            if entry is not None and entry[_ENCODED] is not None:
                yield entry[_KEY], self._value(entry)
        # Closing the backend ends the scan. This raises, so that it is not taken for the end of the map.
        self._entries.get(context_key)

    def _current(self, context_key: Any, prefix: bytes, key_bytes: bytes, row: bytes | None = None) -> list[Any] | None:
        """The current form of an entry, or None if it does not exist.

        ``row`` is its stored value, if known to be current. Adds nothing to the cache.
        """
        cached = self._entries.get(context_key)
        if cached is not None:
            known: list[Any] | None = cached.entries.get(self._cache_key(key_bytes))
            if known is not None or cached.is_complete:
                return known
        encoded = self.stored(prefix + key_bytes) if row is None else row
        return None if encoded is None else self._stored_entry(key_bytes, encoded)

    def _stored_entry(self, key_bytes: bytes, encoded: bytes) -> list[Any]:
        value = self.decode(self._value_serializer, encoded)
        return [self.decode(self._key_serializer, key_bytes), value, encoded, False, key_bytes, encoded]

    def _bytes_of(self, entry: list[Any]) -> bytes | None:
        encoded: Any = entry[_ENCODED]
        if encoded.__class__ is int:
            encoded = entry[_ENCODED] = self._value_serializer.codec.write(entry[_VALUE])
        found: bytes | None = encoded
        return found

    def _owned(self, key: K, value: V | None) -> tuple[K, V | None, bytes | int]:
        key = self._exact_key(key)
        try:
            if self._is_immutable:
                value = self._exact_value(value)
                return key, value, self._size_of(value)
            return key, value, self.encode(self._value_serializer, value)
        except SerializationError as error:
            raise error.at(f"{{{format_value(key)}}}") from error

    def _cache_key(self, key_bytes: bytes) -> Any:
        return self.decode(self._key_serializer, key_bytes) if self._key_is_object else key_bytes

    def _map(self) -> _CachedMap:
        if self._held >= self._max_entries:
            self._bounds.write_out(self)
        cached: _CachedMap | None = self._entries.get(self._context.key)
        if cached is None:
            cached = self._entries[self._context.key] = _CachedMap(self.current_prefix())
            # A map without entries uses memory too.
            self._held += 1
            self.held_bytes += ENTRY_BYTES
            self._memory.held_bytes += ENTRY_BYTES
        return cached

    def _entry(self, key: K) -> list[Any]:
        cached = self._map()
        key_bytes = None if self._key_is_object else encoded_user_key(self.name, self._key_serializer, key)
        cache_key = key if key_bytes is None else key_bytes
        entry = cached.entries.get(cache_key)
        if entry is None:
            if key_bytes is None:
                key_bytes = encoded_user_key(self.name, self._key_serializer, key)
            encoded = None
            if not cached.is_complete:
                self.cache_misses += 1
                encoded = self.stored(cached.prefix + key_bytes)
            value = None if encoded is None else self.decode(self._value_serializer, encoded)
            known = UNKNOWN if cached.is_cleared else encoded
            entry = cached.entries[cache_key] = [key, value, encoded, False, key_bytes, known]
            self._held += 1
            self.hold(_size_of(key_bytes, encoded))
        return entry

    def _set(self, key: K, value: V | None, encoded: bytes | int | None) -> None:
        cached = self._map()
        key_bytes = None if self._key_is_object else encoded_user_key(self.name, self._key_serializer, key)
        cache_key = key if key_bytes is None else key_bytes
        self._changes += 1
        entry = cached.entries.get(cache_key)
        if entry is None:
            if key_bytes is None:
                key_bytes = encoded_user_key(self.name, self._key_serializer, key)
            known = None if cached.is_complete and not cached.is_cleared else UNKNOWN
            cached.entries[cache_key] = [key, value, encoded, True, key_bytes, known]
            self._held += 1
            self.hold(_size_of(key_bytes, encoded))
            return
        grown = _length(encoded) - _length(entry[_ENCODED])
        entry[_VALUE], entry[_ENCODED], entry[_IS_DIRTY] = value, encoded, True
        if grown:
            self.hold(2 * grown)

    def _complete(self, cached: _CachedMap, rows: list[tuple[bytes, bytes]]) -> None:
        """Add all stored rows of a map to the cache; known entries take precedence."""
        size_bytes = 0
        for raw_key, encoded in rows:
            entry = self._stored_entry(raw_key[len(cached.prefix) :], encoded)
            cache_key = entry[_KEY] if self._key_is_object else entry[_KEY_BYTES]
            known = cached.entries.setdefault(cache_key, entry)
            if known is entry:
                self._held += 1
                size_bytes += _size_of(entry[_KEY_BYTES], encoded)
            elif known[_STORED] is UNKNOWN:
                known[_STORED] = encoded
        cached.is_complete = True
        self.held_bytes += size_bytes
        self._memory.held_bytes += size_bytes

    def _value(self, entry: list[Any]) -> V | None:
        value: V | None = entry[_VALUE]
        if self._is_immutable or value is None:
            return value
        return self._value_serializer.codec.read(entry[_ENCODED], 0)[0]


def _length(encoded: bytes | int | None) -> int:
    if encoded is None:
        return 0
    return encoded if isinstance(encoded, int) else len(encoded)


def _size_of(key_bytes: bytes, encoded: bytes | int | None) -> int:
    """The bytes counted for an entry, which is in memory as bytes and as objects."""
    return ENTRY_BYTES + 2 * (len(key_bytes) + _length(encoded))


def _alive(cached: _CachedMap) -> list[list[Any]]:
    """The known entries that are not removed, in the order of their key bytes."""
    return sorted((entry for entry in cached.entries.values() if entry[_ENCODED] is not None), key=_key_bytes_of)


def _merged(prefix: bytes, entries: list[list[Any]], rows: Iterable[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
    """Merge rows with the raw keys of known entries, in order, each once."""
    known = iter([prefix + entry[_KEY_BYTES] for entry in entries])
    next_known = next(known, None)
    for row in rows:
        while next_known is not None and next_known < row[0]:
            yield next_known, None
            next_known = next(known, None)
        if next_known == row[0]:
            next_known = next(known, None)
        yield row
    while next_known is not None:
        yield next_known, None
        next_known = next(known, None)
