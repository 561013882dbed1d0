"""Value state on RocksDB: one row per key and namespace."""

from __future__ import annotations

from typing import Any, TypeVar

from statebackend.exact_values import compile_exact
from statebackend.rocksdb.cached_state import CachedState, Change
from statebackend.states import ValueState
from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")

_VALUE, _ENCODED, _RAW_KEY, _IS_DIRTY = range(4)


class RocksDBValueState(CachedState, ValueState[T]):
    """An entry of the cache is ``[value, its bytes or None, raw key, is dirty]``."""

    __slots__ = ("_default", "_exact", "_is_immutable", "_read", "_serializer", "_write")

    def __init__(self, serializer: TypeSerializer[T], default: T | None, *cache: Any) -> None:
        super().__init__(*cache)
        self._serializer = serializer
        self._write = serializer.codec.write
        self._read = serializer.codec.read
        self._is_immutable = serializer.is_immutable_type
        self._exact = compile_exact(serializer, self.describe) if self._is_immutable else None
        self._default = default

    def value(self) -> T | None:
        entry = self._entries.get(self._context.key)
        if entry is None:
            entry = self._load()
        encoded = entry[_ENCODED]
        if encoded is None:
            return self._default_value()
        if self._is_immutable:
            value: T = entry[_VALUE]
            return value
        return self._read(encoded, 0)[0]

    def update(self, value: T | None) -> None:
        if value is None:
            self.clear()
            return
        if self._exact is not None:
            value = self._exact(value)
        try:
            encoded = self._write(value)
        except Exception:
            encoded = self.encode(self._serializer, value)
        entry = self._entries.get(self._context.key)
        if entry is None:
            self.admit([value, encoded, self.current_prefix(), True])
            return
        entry[_VALUE] = value
        entry[_ENCODED] = encoded
        entry[_IS_DIRTY] = True

    def clear(self) -> None:
        entry = self._entries.get(self._context.key)
        if entry is None:
            entry = self.admit([None, None, self.current_prefix(), True])
        entry[_VALUE] = entry[_ENCODED] = None
        entry[_IS_DIRTY] = True

    def drain(self) -> list[Change]:
        changes = [(entry[_RAW_KEY], entry[_ENCODED]) for entry in self._entries.values() if entry[_IS_DIRTY]]
        self._entries = {}
        return changes

    def _load(self) -> list[Any]:
        raw_key = self.raw_keys.prefix(self._context.key, self._context.key_group)
        encoded = self.column_family.get(raw_key)
        value = None
        if encoded is not None:
            # Decoding here finds damaged bytes at the first access, whatever the type.
            try:
                value, end = self._read(encoded, 0)
            except Exception:
                end = -1
            if end != len(encoded):
                value = self.decode(self._serializer, encoded)
        entry: list[Any] = self.admit([value, encoded, raw_key, False])
        return entry

    def _default_value(self) -> T | None:
        default = self._default
        return default if default is None or self._is_immutable else self._serializer.copy(default)
