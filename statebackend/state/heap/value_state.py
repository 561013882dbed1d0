"""Value state on the heap.

An epoch records the key group of each changed key, or its complement if the key is new. The earlier values are recorded
in a list, in the order of the changes: a list needs less time and memory than a second dict. They are recorded by key
too only while a snapshot may ask for them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from statebackend.state.canonical import CanonicalRow
from statebackend.state.entry_keys import encoded
from statebackend.state.heap.entry_table import (
    ChangedRows,
    ChangesOfKeys,
    HeapStateHandle,
    HeapTable,
    TableKeys,
    address_of_row,
)
from statebackend.state.heap.history import EpochChanges, FrozenEntries
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.state_kind import RowFilter
from statebackend.state.value_forms import Load, MemoryForm, compile_exact, exact_or_none_lines
from statebackend.state.value_state import InternalValueState
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import exact_condition

T = TypeVar("T")


@functools.lru_cache(maxsize=64)
def _notes_of(key_groups: KeyGroupRange) -> tuple[dict[int, int], dict[int, int]]:
    """The records for a changed key of each key group, and for a new key.

    They are shared numbers, so that no number is created per key. Foreign key groups have none.
    """
    return {key_group: key_group for key_group in key_groups}, {key_group: ~key_group for key_group in key_groups}


class ValueTable(HeapTable):
    """The entries of a value state. Each key holds the stored form of its value."""

    __slots__ = ("notes", "notes_of_new")

    def __init__(self, name: str, keys: TableKeys, form: MemoryForm, key_groups: KeyGroupRange) -> None:
        super().__init__(name, keys, form, key_groups)
        self.notes, self.notes_of_new = _notes_of(key_groups)

    def admit(self, key: Any, key_group: int) -> None:
        """Record the first change of a key in this epoch; raise if it cannot be stored."""
        history = self.history
        epoch, older = history.epoch, history.live.get(key)
        if epoch.before is not None:
            if history.readers:
                epoch.before[key] = older
            else:
                self.settle()
        if key_group not in self.notes:
            self.check_key_group(key_group)
        if older is None:
            self.check_new_key(key)
            epoch.changes[key] = self.notes_of_new[key_group]
        else:
            epoch.changes[key] = self.notes[key_group]
            epoch.olders.append(older)

    def olders(self, epoch: EpochChanges) -> list[Any]:
        """The values before each change of an epoch, in the order of the changes; None for new keys."""
        noted = iter(epoch.olders)
        return [None if change < 0 else next(noted) for change in epoch.changes.values()]

    def folded(self, epochs: tuple[EpochChanges, ...]) -> EpochChanges:
        first, older = super().folded(epochs), dict[Any, Any]()
        for epoch in reversed(epochs):
            older.update(zip(epoch.changes, self.olders(epoch), strict=True))
        first.olders = [older[key] for key, change in first.changes.items() if change >= 0]
        return first

    def new_keys(self, changes: dict[Any, Any]) -> dict[Any, int]:
        return {key: ~change for key, change in changes.items() if change < 0}

    def stored_at(self, entries: FrozenEntries, keys: list[Any]) -> list[Any]:
        stored = list(map(entries.live.get, keys))
        befores = [epoch.before for epoch in entries.last.later() if epoch.before]
        if befores:
            for place, key in enumerate(keys):
                for before in befores:
                    if key in before:
                        stored[place] = before[key]
                        break
        return stored

    def changed_rows(self, entries: FrozenEntries, expired: RowFilter | None) -> Iterator[ChangedRows]:
        first = entries.last if len(entries.epochs) == 1 else self.folded(entries.epochs)
        changes, to_bytes, write, is_unchanged = first.changes, self.keys.to_bytes, self.form.write, self.is_unchanged
        changed: list[tuple[int, bytes, bytes, Any, Any]] = []
        columns = changes.items(), self.olders(first), self.stored_at(entries, list(changes))
        # A key that was added and removed in one epoch was never a member.
        was_member = len(entries.epochs) > 1
        for (key, change), older, stored in zip(*columns, strict=True):
            if stored is None:
                if older is None:
                    entries.removed_count += was_member
                    continue
                entries.removed_count += 1
            changed.append((change if change >= 0 else ~change, *to_bytes(key), older, stored))
        changed.sort(key=address_of_row)
        collected = ChangesOfKeys()
        for key_group, key_bytes, namespace, older, stored in changed:
            value = None if stored is None else write(stored)
            row: CanonicalRow = (key_group, key_bytes, namespace, None, value)
            effective: tuple[CanonicalRow, ...] = ()
            if expired is not None:
                was = None if older is None else expired(write(older))
                is_now = None if value is None else expired(value)
                if was != is_now:
                    effective = ((*row[:4], is_now),)
            elif older is None or stored is None or not is_unchanged(older, stored, value):
                effective = (row,)
            if collected.add((row,), effective):
                yield collected.piece()
        yield collected.piece()

    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        yield None, self.form.write(stored)

    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        if value is None:
            self.history.remove_restored(key)
        else:
            self.history.put_restored(key, key_group, self.load_value(value, load))


class _HeapValueState(HeapStateHandle, InternalValueState[T]):
    """The common part of both handles."""

    __slots__ = ("_admit",)

    def __init__(self, table: ValueTable, context: HandleContext) -> None:
        super().__init__(table, context)
        self._admit = table.admit

    def clear(self) -> None:
        key = self._context.key
        if key in self._live:
            if key not in self._changes:
                self._admit(key, self._context.key_group)
            del self._live[key]


class HeapObjectValueState(_HeapValueState[T]):
    """Values of an immutable type; `create_value_state` makes a subclass whose `update` is generated."""

    __slots__ = ("_default", "_exact", "_notes", "_notes_of_new")

    exact_value = "self._exact((value, now_ms))[0]"
    _key_serializer: ClassVar[TypeSerializer[Any] | None]

    def __init__(
        self, table: ValueTable, context: HandleContext, serializer: TypeSerializer[T], default: T | None
    ) -> None:
        super().__init__(table, context)
        self._default = default
        self._exact = compile_exact(serializer, self.describe)
        self._notes, self._notes_of_new = table.notes, table.notes_of_new

    def value(self) -> T | None:
        # None is never stored.
        value: T | None = self._live.get(self._context.key, self._default)
        return value

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["stored = self._live.get(self._context.key)"]

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        return _write_lines(cls._key_serializer, function, "stored")


class HeapEncodedValueState(_HeapValueState[T]):
    """Values of a mutable type, kept as bytes."""

    __slots__ = ("_encoded_default", "_read", "_serializer", "_write")

    def __init__(
        self, table: ValueTable, context: HandleContext, serializer: TypeSerializer[T], default: T | None
    ) -> None:
        super().__init__(table, context)
        self._serializer = serializer
        self._write = serializer.codec.write
        self._read = serializer.codec.read
        self._encoded_default = None if default is None else self._encode(default)

    def value(self) -> T | None:
        stored: Any = self._live.get(self._context.key)
        if stored is None:
            stored = self._encoded_default
            if stored is None:
                return None
        try:
            value, end = self._read(stored, 0)
        except Exception as error:
            raise self.unreadable(error) from error
        if end != len(stored):
            raise self.unreadable(f"it ends at byte {end} of {len(stored)}")
        return value

    def update(self, value: T | None) -> None:
        if value is None:
            self.clear()
            return
        try:
            stored = self._write(value)
        except Exception:
            stored = self._encode(value)
        key = self._context.key
        if key not in self._changes:
            self._admit(key, self._context.key_group)
        self._live[key] = stored

    def _encode(self, value: T) -> bytes:
        return encoded(self._table.name, self._serializer, value)


def create_value_state(
    table: ValueTable, context: HandleContext, serializer: TypeSerializer[Any], default: Any
) -> _HeapValueState[Any]:
    """Create the handle for the form of the table's values."""
    if table.form.is_encoded:
        return HeapEncodedValueState(table, context, serializer, default)
    handle = _object_value_state(serializer, table.keys.plain_key_serializer)
    return handle(table, context, serializer, default)


@functools.lru_cache(maxsize=256)
def _object_value_state(
    serializer: TypeSerializer[Any], key_serializer: TypeSerializer[Any] | None
) -> type[HeapObjectValueState[Any]]:
    """Make a class with an `update` that inlines the checks of these serializers; a call would double its cost."""
    function = GeneratedFunction("update", "self, value")
    lines = exact_or_none_lines(serializer, function, none="return self.clear()")
    update = function.compile(lines + _write_lines(key_serializer, function, "value"))
    body = {"__slots__": (), "update": update, "_key_serializer": key_serializer}
    return type("HeapObjectValueState", (HeapObjectValueState,), body)


def _write_lines(key_serializer: TypeSerializer[Any] | None, function: GeneratedFunction, value: str) -> list[str]:
    """Lines that set the value of the current key."""
    lines = ["key = self._context.key", "if key not in self._changes:"]
    key_condition = None
    if key_serializer is not None:
        key_condition = exact_condition(key_serializer, "key", "key", function)
    if key_condition is None or ":=" in key_condition:
        lines.append("    self._admit(key, self._context.key_group)")
    else:
        # The same as `ValueTable.admit` while no snapshot needs earlier values. A foreign key group has no record, and
        # is left to `admit`.
        lines += [
            "    if self._before is not None: self._admit(key, self._context.key_group)",
            "    else:",
            "        try:",
            "            if key in self._live:",
            "                self._changes[key] = self._notes[self._context.key_group]",
            "                self._olders.append(self._live[key])",
            f"            elif {key_condition}: self._changes[key] = self._notes_of_new[self._context.key_group]",
            "            else: self._admit(key, self._context.key_group)",
            "        except KeyError: self._admit(key, self._context.key_group)",
        ]
    lines.append(f"self._live[key] = {value}")
    return lines
