"""Map state on RocksDB: one row per map entry, whose value begins with a flag that says whether it is null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from statebackend.exact_values import compile_exact
from statebackend.internal_states import InternalMapState
from statebackend.rocksdb.cached_state import CachedState, Change
from typeserializers.nullable import NullableSerializer
from typeserializers.type_serializer import TypeSerializer

K = TypeVar("K")
V = TypeVar("V")

_KEY, _VALUE, _ENCODED, _IS_DIRTY = range(4)


class _CachedMap:
    """The known entries of one map; ``is_complete`` says that no entry of it is unknown."""

    __slots__ = ("entries", "is_complete", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.entries: dict[Any, list[Any]] = {}
        self.is_complete = False


class RocksDBMapState(CachedState, InternalMapState[K, V]):
    """An entry of a cached map is ``[user key, value, bytes or None if there is none, is dirty]``."""

    __slots__ = (
        "_exact_key",
        "_exact_value",
        "_is_immutable",
        "_key_is_object",
        "_key_serializer",
        "_value_serializer",
    )

    def __init__(self, key_serializer: TypeSerializer[K], value_serializer: TypeSerializer[V], *cache: Any) -> None:
        super().__init__(*cache)
        self._key_serializer = key_serializer
        self._value_serializer = NullableSerializer(value_serializer)
        self._key_is_object = key_serializer.equal_values_have_equal_bytes
        self._is_immutable = value_serializer.is_immutable_type
        self._exact_key = compile_exact(key_serializer, lambda: f"{self.describe()}, key of the map", refuse_none=True)
        self._exact_value = compile_exact(self._value_serializer, self.describe)

    def get(self, key: K) -> V | None:
        entry = self._entry(self._map(), self._exact_key(key))
        return None if entry[_ENCODED] is None else self._value(entry)

    def contains(self, key: K) -> bool:
        return self._entry(self._map(), self._exact_key(key))[_ENCODED] is not None

    def put(self, key: K, value: V | None) -> None:
        key, value, encoded = self._owned(key, value)
        self._set(self._map(), key, value, encoded)

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        owned = [self._owned(key, value) for key, value in entries.items()]
        cached = self._map()
        for key, value, encoded in owned:
            self._set(cached, key, value, encoded)

    def remove(self, key: K) -> None:
        self._set(self._map(), self._exact_key(key), None, None)

    def items(self) -> Iterator[tuple[K, V | None]]:
        cached = self._map()
        self._complete(cached)
        return self._live_items(list(cached.entries.values()))

    def is_empty(self) -> bool:
        cached = self._map()
        if any(entry[_ENCODED] is not None for entry in cached.entries.values()):
            return False
        self._complete(cached)
        return all(entry[_ENCODED] is None for entry in cached.entries.values())

    def clear(self) -> None:
        cached = self._map()
        self._complete(cached)
        for entry in cached.entries.values():
            entry[_VALUE] = entry[_ENCODED] = None
            entry[_IS_DIRTY] = True

    def drain(self) -> list[Change]:
        write_key = self._key_serializer.to_bytes
        changes = [
            (cached.prefix + write_key(entry[_KEY]), entry[_ENCODED])
            for cached in self._entries.values()
            for entry in cached.entries.values()
            if entry[_IS_DIRTY]
        ]
        self._entries = {}
        return changes

    def _live_items(self, entries: list[list[Any]]) -> Iterator[tuple[K, V | None]]:
        """The entries that were there, as they are now: changed meanwhile, or gone."""
        for entry in entries:
            if entry[_ENCODED] is not None:
                yield entry[_KEY], self._value(entry)

    def _owned(self, key: K, value: V | None) -> tuple[K, V | None, bytes]:
        key = self._exact_key(key)
        if self._is_immutable:
            value = self._exact_value(value)
        return key, value, self.encode(self._value_serializer, value)

    def _map(self) -> _CachedMap:
        cached: _CachedMap | None = self._entries.get(self._context.key)
        if cached is None:
            cached = self.admit(_CachedMap(self.current_prefix()))
        return cached

    def _entry(self, cached: _CachedMap, key: K) -> list[Any]:
        cache_key = key if self._key_is_object else self.encode(self._key_serializer, key)
        entry = cached.entries.get(cache_key)
        if entry is None:
            encoded = None
            if not cached.is_complete:
                self.cache_misses += 1
                encoded = self.column_family.get(cached.prefix + self.encode(self._key_serializer, key))
            value = None if encoded is None else self.decode(self._value_serializer, encoded)
            entry = cached.entries[cache_key] = [key, value, encoded, False]
        return entry

    def _set(self, cached: _CachedMap, key: K, value: V | None, encoded: bytes | None) -> None:
        key_bytes = self.encode(self._key_serializer, key)
        cache_key = key if self._key_is_object else key_bytes
        entry = cached.entries.get(cache_key)
        if entry is None:
            cached.entries[cache_key] = [key, value, encoded, True]
        else:
            entry[_VALUE], entry[_ENCODED], entry[_IS_DIRTY] = value, encoded, True

    def _complete(self, cached: _CachedMap) -> None:
        if cached.is_complete:
            return
        self.cache_misses += 1
        known = cached.entries
        complete: dict[Any, list[Any]] = {}
        for raw_key, encoded in self.column_family.scan_prefix(cached.prefix):
            key_bytes = raw_key[len(cached.prefix) :]
            key = self.decode(self._key_serializer, key_bytes)
            cache_key = key if self._key_is_object else key_bytes
            entry = known.pop(cache_key, None)
            if entry is None:
                entry = [key, self.decode(self._value_serializer, encoded), encoded, False]
            complete[cache_key] = entry
        complete.update(known)
        cached.entries = complete
        cached.is_complete = True

    def _value(self, entry: list[Any]) -> V | None:
        value: V | None = entry[_VALUE]
        if self._is_immutable or value is None:
            return value
        return self._value_serializer.codec.read(entry[_ENCODED], 0)[0]
