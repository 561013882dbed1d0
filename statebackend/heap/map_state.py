"""Map state on the heap.

What is stored under a key is a dict from entry keys of user keys to stored values; a null value has a stored form like
any other. A change holds the entries that were put or removed, over the dict that they apply to, which is left alone
until the fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from snapshots.errors import SerializationError
from statebackend.descriptors import MapStateDescriptor
from statebackend.errors import StateRestoreError
from statebackend.exact_values import compile_exact
from statebackend.heap.handle import HeapStateHandle
from statebackend.heap.stored_form import EntryKeys, KeyForm, Load, StoredForm
from statebackend.heap.table import DELETED, MISSING, HeapTable
from statebackend.internal_states import InternalMapState
from statebackend.key_context import AnyKeyContext
from statebackend.key_groups import KeyGroupRange
from typeserializers.nullable import NullableSerializer

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

class _MapChange:
    """``entries`` over ``older``; `DELETED` only for what ``older`` has. ``size`` is the entries of both together."""

    __slots__ = ("entries", "is_cleared", "older", "size")

    def __init__(self, older: Mapping[Any, Any]) -> None:
        self.entries: dict[Any, Any] = {}
        self.older = older
        self.is_cleared = False
        self.size = len(older)

    def clear(self) -> None:
        self.entries = {}
        self.older = _NOTHING
        self.is_cleared = True
        self.size = 0

    def get(self, user_key: Any) -> Any:
        stored = self.entries.get(user_key, MISSING)
        if stored is MISSING:
            return self.older.get(user_key, MISSING)
        return MISSING if stored is DELETED else stored

    def put(self, user_key: Any, stored: Any) -> None:
        if self.get(user_key) is MISSING:
            self.size += 1
        self.entries[user_key] = stored

    def remove(self, user_key: Any) -> None:
        if self.get(user_key) is MISSING:
            return
        self.size -= 1
        if user_key in self.older:
            self.entries[user_key] = DELETED
        else:
            del self.entries[user_key]


class MapTable(HeapTable):
    """See the module. A stored map is never empty."""

    __slots__ = ("user_keys",)

    def __init__(
        self, name: str, keys: EntryKeys, form: StoredForm, key_groups: KeyGroupRange, user_keys: KeyForm
    ) -> None:
        super().__init__(name, keys, form, key_groups)
        self.user_keys = user_keys

    def can_take_entries_of(self, other: HeapTable) -> bool:
        assert isinstance(other, MapTable)
        return super().can_take_entries_of(other) and self.user_keys.is_like(other.user_keys)

    def merged(self, stored: Any, change: Any) -> Any:
        return self.absorbed(MISSING if stored is MISSING else dict(stored), change)

    def absorbed(self, stored: Any, change: Any) -> Any:
        entries: dict[Any, Any] = {} if stored is MISSING or change.is_cleared else stored
        for user_key, value in change.entries.items():
            if value is DELETED:
                entries.pop(user_key, None)
            else:
                entries[user_key] = value
        return entries or MISSING

    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        to_bytes, write = self.user_keys.to_bytes, self.form.write
        for user_key, value in sorted([(to_bytes(user_key), value) for user_key, value in stored.items()], key=_first):
            yield user_key, write(value)

    def changed_rows_of(self, in_base: bool, change: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
        if change.is_cleared and in_base:
            yield None, None
        to_bytes, write = self.user_keys.to_bytes, self.form.write
        changed = [(to_bytes(user_key), value) for user_key, value in change.entries.items()]
        changed.sort(key=_first)
        for user_key, value in changed:
            yield user_key, None if value is DELETED else write(value)

    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        maps = self.base[key_group]
        if user_key is None:
            if value is not None:
                raise StateRestoreError("a row of a map state has a value but no user key")
            maps.pop(key, None)
            return
        entries = maps.get(key)
        if value is not None:
            if entries is None:
                entries = maps[key] = {}
            entries[self.user_keys.from_bytes(user_key)] = self.load_value(value, load)
        elif entries is not None:
            entries.pop(self.user_keys.from_bytes(user_key), None)
            if not entries:
                del maps[key]

    def entry_count(self) -> int:
        return sum(len(entries) for maps in self.base.values() for entries in maps.values())


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]


class HeapMapState(HeapStateHandle, InternalMapState[K, V]):
    """See the module."""

    __slots__ = ("_entry_key", "_read", "_store", "_to_key")

    def __init__(
        self, table: MapTable, context: AnyKeyContext, descriptor: MapStateDescriptor[K, V]
    ) -> None:
        super().__init__(table, context)
        self._entry_key = table.user_keys.compile_entry_key(lambda: f"{self.describe()}, key of the map")
        self._to_key = table.user_keys.to_key
        storage = NullableSerializer(descriptor.value_serializer)
        self._read = storage.from_bytes if table.form.is_encoded else None
        self._store = storage.to_bytes if table.form.is_encoded else compile_exact(storage, self.describe)

    def get(self, key: K) -> V | None:
        stored = self._find(self._entry_key(key))
        return None if stored is MISSING else self._value(stored)

    def contains(self, key: K) -> bool:
        return self._find(self._entry_key(key)) is not MISSING

    def put(self, key: K, value: V | None) -> None:
        entry_key, stored = self._entry_key(key), self._stored(value)
        change = self._delta.get(self._context.key) or self._begin_change()
        change.put(entry_key, stored)

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        owned = [(self._entry_key(key), self._stored(value)) for key, value in entries.items()]
        if owned:
            change = self._delta.get(self._context.key) or self._begin_change()
            for entry_key, stored in owned:
                change.put(entry_key, stored)

    def remove(self, key: K) -> None:
        entry_key = self._entry_key(key)
        if self._find(entry_key) is not MISSING:
            (self._delta.get(self._context.key) or self._begin_change()).remove(entry_key)

    def items(self) -> Iterator[tuple[K, V | None]]:
        context = self._context
        current_key, change = context.key, self._delta.get(context.key)
        older = self._base[context.key_group].get(current_key, _NOTHING) if change is None else change.older
        entries = list(older.items())
        if change is not None:
            entries += [entry for entry in change.entries.items() if entry[0] not in older]
        return self._live_items(current_key, entries)

    def is_empty(self) -> bool:
        context = self._context
        change = self._delta.get(context.key)
        if change is None:
            return context.key not in self._base[context.key_group]
        return bool(change.size == 0)

    def clear(self) -> None:
        (self._delta.get(self._context.key) or self._begin_change()).clear()

    def _live_items(self, current_key: Any, entries: list[tuple[Any, Any]]) -> Iterator[tuple[K, V | None]]:
        """The entries that were there, as they are now: changed meanwhile, or gone."""
        delta, to_key, value_of = self._delta, self._to_key, self._value
        for entry_key, stored in entries:
            change = delta.get(current_key)
            current = stored if change is None else change.get(entry_key)
            if current is not MISSING:
                yield to_key(entry_key), value_of(current)

    def _find(self, entry_key: Any) -> Any:
        context = self._context
        change = self._delta.get(context.key)
        if change is not None:
            return change.get(entry_key)
        return self._base[context.key_group].get(context.key, _NOTHING).get(entry_key, MISSING)

    def _begin_change(self) -> _MapChange:
        context = self._context
        key = context.key
        self._admit(key, context.key_group)
        change = _MapChange(self._base[context.key_group].get(key, _NOTHING))
        self._delta[key] = change
        return change

    def _value(self, stored: Any) -> Any:
        if self._read is None:
            return stored
        try:
            return self._read(stored)
        except Exception as error:
            raise self._unreadable(error) from error

    def _stored(self, value: V | None) -> Any:
        try:
            return self._store(value)
        except SerializationError as error:
            if self._read is None:
                raise
            raise SerializationError(f"{self.describe()}: {error.serializer_name}", error.problems) from error
