"""Map state on the heap.

A dict is stored under a key. It maps entry keys of user keys to stored values; a null value is stored like any other.
It is changed in place, entry by entry, until it is cleared; then another dict replaces it. A change records the earlier
dict, and the earlier entries of the keys that were put or removed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from snapshots.errors import SerializationError, format_value
from statebackend.state.canonical import CanonicalRow
from statebackend.state.entry_keys import EntryKeys, KeyForm
from statebackend.state.errors import StateRestoreError
from statebackend.state.heap.entry_table import (
    MISSING,
    ChangedRows,
    ChangesOfKeys,
    HeapStateHandle,
    HeapTable,
    address_of_row,
)
from statebackend.state.heap.history import EpochChanges, FrozenEntries, copy_now
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.map_state import InternalMapState
from statebackend.state.state_kind import RowFilter
from statebackend.state.value_forms import Load, MemoryForm, compile_exact
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer

K = TypeVar("K")
V = TypeVar("V")

_Entry = tuple[bytes, "bytes | None"]
"""A user key and its value, or None if it was removed."""

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class _MapChange:
    """``older`` is the earlier dict, or None; ``undo`` maps each changed key to its earlier entry.

    ``entries`` is the dict to put into: ``older`` itself, unless ``is_replaced``. It is live unless it is empty.
    """

    __slots__ = ("entries", "is_replaced", "key_group", "older", "undo")

    def __init__(self, key_group: int, older: dict[Any, Any] | None) -> None:
        self.key_group = key_group
        self.older = older
        self.is_replaced = older is None
        self.entries: dict[Any, Any] = {} if older is None else older
        self.undo: dict[Any, Any] = {}

    def note(self, user_key: Any) -> None:
        """Record the earlier entry. Call it before an entry is put or removed."""
        if not self.is_replaced and user_key not in self.undo:
            self.undo[user_key] = self.entries.get(user_key, MISSING)


class MapTable(HeapTable):
    """The entries of a map state. A stored map is never empty."""

    __slots__ = ("user_keys",)

    def __init__(
        self, name: str, keys: EntryKeys, form: MemoryForm, key_groups: KeyGroupRange, user_keys: KeyForm
    ) -> None:
        super().__init__(name, keys, form, key_groups)
        self.user_keys = user_keys

    def can_take_entries_of(self, other: HeapTable) -> bool:
        assert isinstance(other, MapTable)
        return super().can_take_entries_of(other) and self.user_keys.is_like(other.user_keys)

    def begin_change(self, key: Any, key_group: int) -> _MapChange:
        """Record the first change of a map in this epoch; raise if it cannot be stored."""
        history = self.history
        older = history.live.get(key)
        self.check_key_group(key_group)
        if older is None:
            self.check_new_key(key)
        change = history.epoch.changes[key] = _MapChange(key_group, older)
        return change

    def new_keys(self, changes: dict[Any, Any]) -> dict[Any, int]:
        return {key: change.key_group for key, change in changes.items() if change.older is None}

    def folded(self, epochs: tuple[EpochChanges, ...]) -> EpochChanges:
        first = super().folded(epochs)
        for key in first.changes:
            found = [epoch.changes[key] for epoch in epochs if key in epoch.changes]
            if len(found) > 1:
                change = first.changes[key] = _MapChange(found[0].key_group, found[0].older)
                for later in reversed(found):
                    if later.older is change.older:
                        change.undo.update(later.undo)
        return first

    def stored_at(self, entries: FrozenEntries, keys: list[Any]) -> list[Any]:
        return [self._map_at(entries, key)[1] or None for key in keys]

    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        to_bytes, write = self.user_keys.to_bytes, self.form.write
        for user_key, value in sorted([(to_bytes(user_key), value) for user_key, value in stored.items()], key=_first):
            yield user_key, write(value)

    def changed_rows(self, entries: FrozenEntries, expired: RowFilter | None) -> Iterator[ChangedRows]:
        to_bytes, changes = self.keys.to_bytes, entries.first_changes()
        addressed = [(change.key_group, *to_bytes(key), key) for key, change in changes.items()]
        addressed.sort(key=address_of_row)
        collected = ChangesOfKeys()
        for key_group, key_bytes, namespace, key in addressed:
            rows: list[CanonicalRow] = []
            address, first = (key_group, key_bytes, namespace), changes[key]
            # The earlier entries; the first change of a key wins.
            before: dict[Any, Any] = {}
            for epoch in reversed(entries.epochs):
                change = epoch.changes.get(key)
                if change is not None and change.older is first.older:
                    before.update(change.undo)
            found, stored = self._map_at(entries, key, first.older, before)
            if found is None:
                entries.removed_count += 1
            is_replaced = found is not first.older
            if is_replaced and first.older is not None:
                rows.append((*address, None, None))
                # This dict is not changed any more.
                before = {**first.older, **before}
            written, counted = self._changed_entries(stored, before, is_replaced, expired)
            rows += [(*address, user_key, value) for user_key, value in written]
            if collected.add(rows, [(*address, user_key, value) for user_key, value in counted]):
                yield collected.piece()
        yield collected.piece()

    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        if user_key is None:
            if value is not None:
                raise StateRestoreError("a row of a map state has a value but no user key")
            self.history.remove_restored(key)
            return
        entries = self.history.live.get(key)
        if value is not None:
            if entries is None:
                entries = {}
                self.history.put_restored(key, key_group, entries)
            entries[self.user_keys.from_bytes(user_key)] = self.load_value(value, load)
        elif entries is not None:
            entries.pop(self.user_keys.from_bytes(user_key), None)
            if not entries:
                self.history.remove_restored(key)

    def entry_count(self) -> int:
        return sum(map(len, self.history.live.values()))

    def _map_at(
        self, frozen: FrozenEntries, key: Any, partly: dict[Any, Any] | None = None, user_keys: Iterable[Any] = ()
    ) -> tuple[dict[Any, Any] | None, dict[Any, Any]]:
        """The frozen dict, as an identity, and its frozen entries.

        If it is the dict ``partly``, return only the entries of the given user keys.
        """
        later = frozen.later_changes(key)
        while True:
            found: dict[Any, Any] | None = later[0].older if later else frozen.live.get(key)
            if found is None:
                stored = {}
            elif found is not partly:
                stored = copy_now(found)
            else:
                read = [(user_key, found.get(user_key, MISSING)) for user_key in user_keys]
                stored = {user_key: value for user_key, value in read if value is not MISSING}
            later = frozen.later_changes(key)
            # The first change may have started meanwhile, and may have altered what was read.
            if not later or later[0].older is found:
                break
        undone: dict[Any, Any] = {}
        for change in reversed(later):
            if found is not None and change.older is found:
                undone.update(copy_now(change.undo))
        for user_key in user_keys if found is partly else undone:
            if user_key in undone:
                stored[user_key] = undone[user_key]
                if stored[user_key] is MISSING:
                    del stored[user_key]
        return found, stored

    def _changed_entries(
        self, stored: dict[Any, Any], before: dict[Any, Any], is_replaced: bool, expired: RowFilter | None
    ) -> tuple[list[_Entry], list[_Entry]]:
        """Return the sorted entries of an increment, and those that differ from ``before``.

        If the whole map was replaced, one row deletes all its entries.
        """
        to_bytes, write, is_unchanged = self.user_keys.to_bytes, self.form.write, self.is_unchanged
        written: list[_Entry] = []
        effective: list[_Entry] = []
        for user_key, value in stored.items():
            entry = to_bytes(user_key), write(value)
            written.append(entry)
            older = before.get(user_key, MISSING)
            if older is not MISSING and is_unchanged(older, value, entry[1]):
                continue
            is_now = entry[1] if expired is None else expired(entry[1])
            if is_now is not None:
                effective.append((entry[0], is_now))
            elif older is not MISSING and expired is not None and expired(write(older)) is not None:
                effective.append((entry[0], None))
        for user_key, older in before.items():
            if older is MISSING or user_key in stored:
                continue
            key_bytes = to_bytes(user_key)
            if not is_replaced:
                written.append((key_bytes, None))
            if expired is None or expired(write(older)) is not None:
                effective.append((key_bytes, None))
        written.sort(key=_first)
        effective.sort(key=_first)
        return written, effective


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]


class HeapMapState(HeapStateHandle, InternalMapState[K, V]):
    """The handle of map state in the heap backend."""

    __slots__ = ("_begin", "_entry_key", "_read", "_store", "_to_key")

    def __init__(self, table: MapTable, context: HandleContext, value_serializer: TypeSerializer[V]) -> None:
        super().__init__(table, context)
        self._begin = table.begin_change
        self._entry_key = table.user_keys.compile_entry_key(lambda: f"{self.describe()}, key of the map")
        self._to_key = table.user_keys.to_key
        storage = NullableSerializer(value_serializer)
        self._read = storage.from_bytes if table.form.is_encoded else None
        self._store = storage.to_bytes if table.form.is_encoded else compile_exact(storage, self.describe)

    def get(self, key: K) -> V | None:
        stored = self._live.get(self._context.key, _NOTHING).get(self._entry_key(key), MISSING)
        if stored is MISSING:
            return None
        return stored if self._read is None else self._value(stored)  # type: ignore[no-any-return]

    def contains(self, key: K) -> bool:
        return self._find(self._entry_key(key)) is not MISSING

    def put(self, key: K, value: V | None) -> None:
        entry_key, stored = self._entry_key(key), self._stored(key, value)
        self.put_stored(entry_key, stored)

    def put_stored(self, entry_key: Any, stored: Any) -> None:
        """Set an entry, in its stored form."""
        change = self._changes.get(self._context.key) or self._begin_change()
        entries = change.entries
        # The same as `change.note`.
        if not change.is_replaced and entry_key not in change.undo:
            change.undo[entry_key] = entries.get(entry_key, MISSING)
        if not entries:
            self._live[self._context.key] = entries
        entries[entry_key] = stored

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        owned = {self._entry_key(key): self._stored(key, value) for key, value in entries.items()}
        if owned:
            change = self._changes.get(self._context.key) or self._begin_change()
            for entry_key in owned:
                change.note(entry_key)
            if not change.entries:
                self._live[self._context.key] = change.entries
            change.entries.update(owned)

    def remove(self, key: K) -> None:
        entry_key = self._entry_key(key)
        current_key = self._context.key
        entries = self._live.get(current_key)
        if entries is not None and entry_key in entries:
            change = self._changes.get(current_key) or self._begin_change()
            change.note(entry_key)
            del entries[entry_key]
            if not entries:
                del self._live[current_key]

    def items(self) -> Iterator[tuple[K, V | None]]:
        current_key = self._context.key
        return self._live_items(current_key, list(self._live.get(current_key, _NOTHING)))

    def is_empty(self) -> bool:
        return self._context.key not in self._live

    def clear(self) -> None:
        key = self._context.key
        if key in self._live:
            change = self._changes.get(key) or self._begin_change()
            # In this order: the older dict is not changed or recorded from here on.
            change.entries = {}
            change.is_replaced = True
            del self._live[key]

    def _live_items(self, current_key: Any, user_keys: list[Any]) -> Iterator[tuple[K, V | None]]:
        """The listed entries in their current form, without those that were removed since."""
        live, to_key, value_of = self._live, self._to_key, self._value
        for entry_key in user_keys:
            current = live.get(current_key, _NOTHING).get(entry_key, MISSING)
            if current is not MISSING:
                yield to_key(entry_key), value_of(current)

    def _find(self, entry_key: Any) -> Any:
        return self._live.get(self._context.key, _NOTHING).get(entry_key, MISSING)

    def _begin_change(self) -> _MapChange:
        return self._begin(self._context.key, self._context.key_group)

    def _value(self, stored: Any) -> Any:
        if self._read is None:
            return stored
        try:
            return self._read(stored)
        except Exception as error:
            raise self.unreadable(error) from error

    def _stored(self, key: K, value: V | None) -> Any:
        try:
            return self._store(value)
        except SerializationError as error:
            rejected = error.at(f"{{{format_value(key)}}}")
            raise (rejected if self._read is None else rejected.within(self.describe())) from error


class HeapObjectMapState(HeapMapState[K, V]):
    """Maps with values of an immutable type, which are kept as objects."""

    __slots__ = ()

    exact_value = "self._stored(key, (value, now_ms))[0]"

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        nothing = function.bind("nothing", _NOTHING)
        return [f"stored = self._live.get(self._context.key, {nothing}).get(self._entry_key(key))"]

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["self.put_stored(self._entry_key(key), stored)"]
