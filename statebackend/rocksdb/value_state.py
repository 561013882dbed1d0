"""Value state on RocksDB: one row per key and namespace.

Values of immutable types are cached as they are and encoded once, at the barrier; that they fit, and come back as
they went in, is made sure of at the update (`statebackend.exact_values`). Values of mutable types are cached as their
bytes, so what the caller goes on doing to a value it gave or got stays outside.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from statebackend.exact_values import compile_exact
from statebackend.internal_states import InternalValueState
from statebackend.rocksdb.cached_state import CachedState, Changes
from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")

_KEPT, _RAW_KEY, _IS_DIRTY = range(3)


class RocksDBValueState(CachedState, InternalValueState[T]):
    """An entry of the cache is ``[what is kept of the value, or None if there is none, raw key, is dirty]``."""

    __slots__ = ("_read", "_serializer")

    def __init__(self, serializer: TypeSerializer[T], *cache: Any) -> None:
        super().__init__(*cache)
        self._serializer = serializer
        self._read = serializer.codec.read

    @abstractmethod
    def kept_form(self, value: T, encoded: bytes) -> Any:
        """What is kept of a stored value."""

    def clear(self) -> None:
        self.keep(None)

    def keep(self, kept: Any) -> None:
        """Makes ``kept`` the value of the current key."""
        entry = self._entries.get(self._context.key)
        if entry is None:
            self.admit([kept, self.raw_keys.prefix(self._context.key, self._context.key_group), True])
        else:
            entry[_KEPT] = kept
            entry[_IS_DIRTY] = True

    def load(self) -> list[Any]:
        """Reads the entry of the current key into the cache."""
        context = self._context
        key = context.key
        raw_key = self.raw_keys.prefix(key, context.key_group)
        try:
            encoded = self.column_family.get(raw_key)
        except Exception as error:
            raise self.column_family.read_error(error) from error
        self.cache_misses += 1
        kept = None
        if encoded is not None:
            # Decoding here finds damaged bytes at the first access, whatever the type.
            try:
                value, end = self._read(encoded, 0)
            except Exception:
                end = -1
            if end != len(encoded):
                value = self.decode(self._serializer, encoded)
            kept = self.kept_form(value, encoded)
        if len(self._entries) >= self._spill_size:
            self._spill(self)
        entry: list[Any] = [kept, raw_key, False]
        self._entries[key] = entry
        return entry


class RocksDBObjectValueState(RocksDBValueState[T]):
    """Values of an immutable type, kept as objects."""

    __slots__ = ("_default", "_exact")

    def __init__(self, serializer: TypeSerializer[T], default: T | None, *cache: Any) -> None:
        super().__init__(serializer, *cache)
        self._exact = compile_exact(serializer, self.describe)
        self._default = default

    def value(self) -> T | None:
        entry = self._entries.get(self._context.key)
        if entry is None:
            entry = self.load()
        value: T | None = entry[_KEPT]
        return self._default if value is None else value

    def update(self, value: T | None) -> None:
        kept = None if value is None else self._exact(value)
        entry = self._entries.get(self._context.key)
        if entry is None:
            self.keep(kept)
        else:
            entry[_KEPT] = kept
            entry[_IS_DIRTY] = True

    def kept_form(self, value: T, encoded: bytes) -> Any:
        return value

    def drain(self) -> Changes:
        write = self._serializer.codec.write
        changes = {
            raw_key: None if kept is None else write(kept)
            for kept, raw_key, is_dirty in self._entries.values()
            if is_dirty
        }
        self._entries = {}
        return changes


class RocksDBEncodedValueState(RocksDBValueState[T]):
    """Values of a mutable type, kept as bytes."""

    __slots__ = ("_encoded_default",)

    def __init__(self, serializer: TypeSerializer[T], default: T | None, *cache: Any) -> None:
        super().__init__(serializer, *cache)
        self._encoded_default = None if default is None else self.encode(serializer, default)

    def value(self) -> T | None:
        entry = self._entries.get(self._context.key)
        if entry is None:
            entry = self.load()
        encoded = self._encoded_default if entry[_KEPT] is None else entry[_KEPT]
        return None if encoded is None else self._read(encoded, 0)[0]

    def update(self, value: T | None) -> None:
        self.keep(None if value is None else self.encode(self._serializer, value))

    def kept_form(self, value: T, encoded: bytes) -> Any:
        return encoded

    def drain(self) -> Changes:
        changes = {raw_key: encoded for encoded, raw_key, is_dirty in self._entries.values() if is_dirty}
        self._entries = {}
        return changes


def create_value_state(serializer: TypeSerializer[T], default: T | None, *cache: Any) -> RocksDBValueState[T]:
    """The value state that fits the type."""
    form = RocksDBObjectValueState if serializer.is_immutable_type else RocksDBEncodedValueState
    return form(serializer, default, *cache)
