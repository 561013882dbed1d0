"""One state on the heap: a *base*, and a *delta* of what changed since the last snapshot.

The base holds, per key group, a dict from entry keys to what is stored. The delta is one dict from entry keys to
changes, with the key group of each changed key beside it. A read looks into the delta first and then into the base; a
write goes to the delta alone. So what a snapshot has to write is the delta as it stands, whatever the size of the
state, and the base is touched by nobody but `fold`, which moves a delta that is safely written into it.

A snapshot that is written in the background takes the delta away and puts an empty one in its place; until it is
folded, the frozen delta belongs between the two in every read. Maps and lists have changes of their own granularity, so
that neither a put nor an append copies what is there.

Rows are in canonical form and order (see `statebackend.canonical_entries`). In an increment a row without a value says
that everything under a key, or one map entry, is gone; it is written only if the base holds such a thing.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final

from statebackend.canonical_entries import CanonicalBatch, CanonicalRow
from statebackend.errors import StateBackendError, StateRestoreError
from statebackend.heap.stored_form import EntryKeys, Load, StoredForm
from statebackend.key_groups import KeyGroupRange

Row = CanonicalRow
"""Key group, key, namespace, user key, value."""


class _Mark:
    """A sentinel with a name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


MISSING: Final = _Mark("MISSING")
"""There is no such entry here; an older layer may have it."""

DELETED: Final = _Mark("DELETED")
"""The entry is gone, whatever an older layer says."""


class KeyGroupMaps(dict[int, dict[Any, Any]]):
    """The base: a dict per key group, made when it is first asked for; other subtasks' groups are refused."""

    __slots__ = ("_key_groups",)

    def __init__(self, key_groups: KeyGroupRange) -> None:
        self._key_groups = key_groups

    def __missing__(self, key_group: int) -> dict[Any, Any]:
        if key_group not in self._key_groups:
            raise StateBackendError(
                f"key group {key_group} does not belong to this subtask ({self._key_groups}): "
                f"the record was routed to the wrong subtask"
            )
        entries = self[key_group] = {}
        return entries


class HeapTable(ABC):
    """See the module; subclasses are the kinds of state."""

    __slots__ = ("_check_key", "base", "delta", "form", "groups", "keys", "name")

    def __init__(self, name: str, keys: EntryKeys, form: StoredForm, key_groups: KeyGroupRange) -> None:
        self.name = name
        self.keys = keys
        self.form = form
        self.base = KeyGroupMaps(key_groups)
        self.delta: dict[Any, Any] = {}
        self.groups: dict[Any, int] = {}
        self._check_key = keys.compile_check(lambda: f"state {name!r}, current key")

    @abstractmethod
    def merged(self, stored: Any, change: Any) -> Any:
        """What is stored after a change (both may be absent, as `MISSING`); leaves what was given as it is."""

    @abstractmethod
    def absorbed(self, stored: Any, change: Any) -> Any:
        """The same as `merged`, in place where that saves copying."""

    @abstractmethod
    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        """The user keys and values of the rows of what is stored, in canonical order."""

    @abstractmethod
    def changed_rows_of(self, in_base: bool, change: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
        """The user keys and values of the rows of a change, in canonical order."""

    @abstractmethod
    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        """Puts one row into the base; without a value, takes away what it speaks of."""

    @abstractmethod
    def entry_count(self) -> int:
        """How many entries the base holds: values, lists, map entries. Costs the number of keys."""

    def admit(self, key: Any, key_group: int) -> None:
        """Lets a key into the delta; raises, changing nothing, if its group is foreign or the key does not fit."""
        if key not in self.base[key_group]:
            self._check_key(key)
        self.groups[key] = key_group

    def changed_rows(self) -> list[Row]:
        """The increment: the rows of the delta. Costs the size of the delta."""
        base, groups, to_bytes = self.base, self.groups, self.keys.to_bytes
        changed = [(groups[key], *to_bytes(key), key) for key in self.delta]
        changed.sort(key=address_of_row)
        return [
            (key_group, key_bytes, namespace, user_key, value)
            for key_group, key_bytes, namespace, key in changed
            for user_key, value in self.changed_rows_of(key in base[key_group], self.delta[key])
        ]

    def fold(self) -> None:
        """Moves the delta, once it is written, into the base. Costs the size of the delta."""
        base, groups, absorbed = self.base, self.groups, self.absorbed
        for key, change in self.delta.items():
            entries = base[groups[key]]
            stored = absorbed(entries.get(key, MISSING), change)
            if stored is MISSING:
                entries.pop(key, None)
            else:
                entries[key] = stored
        self.delta.clear()
        self.groups.clear()

    def rows(self) -> Iterator[Row]:
        """The whole state, base and delta, in canonical order. Must be used up before the next write."""
        for key_group, key_bytes, namespace, _, stored in self._sorted_entries():
            for user_key, value in self.rows_of(stored):
                yield key_group, key_bytes, namespace, user_key, value

    def addresses(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Key group, key and namespace of everything that is stored, in canonical order; encodes no values."""
        return ((key_group, key, namespace) for key_group, key, namespace, _, _ in self._sorted_entries())

    def entry_keys(self) -> Iterator[Any]:
        """The entry keys of everything that is stored, base and delta."""
        return (key for _, _, _, key, _ in self._sorted_entries())

    def can_take_entries_of(self, other: HeapTable) -> bool:
        """Whether entries of the other table would look the same here, given that their bytes mean the same."""
        return self.form.is_encoded and other.form.is_encoded and self.keys.is_like(other.keys)

    def take_entries_of(self, other: HeapTable) -> None:
        """Takes base and delta over from a table whose handles are no longer used."""
        self.base, self.delta, self.groups = other.base, other.delta, other.groups

    def load_batch(self, batch: CanonicalBatch, load: Load) -> None:
        """Puts rows into the base, later ones over earlier ones; raises `StateRestoreError` for a row it cannot read.

        What was loaded before the failing row stays: the caller throws the table away.
        """
        from_bytes, load_entry = self.keys.from_bytes, self.load_entry
        key_group, key = -1, b""
        try:
            for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
                load_entry(key_group, from_bytes(key, namespace), user_key, value, load)
        except Exception as error:
            raise StateRestoreError(
                f"state {self.name!r}: the entry of key {key.hex()} in key group {key_group} cannot be read as "
                f"{self.form.serializer!r}: {error}"
            ) from error

    def load_value(self, value: bytes, load: Load) -> Any:
        """The stored form of the bytes of a row."""
        stored, end = load(value, 0)
        if end != len(value):
            raise StateRestoreError(f"the value ends at byte {end} of {len(value)}; another serializer wrote it")
        return stored

    def _sorted_entries(self) -> Iterator[tuple[int, bytes, bytes, Any, Any]]:
        changed: dict[int, list[Any]] = {}
        for key, key_group in self.groups.items():
            changed.setdefault(key_group, []).append(key)
        for key_group in sorted(self.base.keys() | changed.keys()):
            entries = self.base[key_group]
            if key_group in changed:
                entries = self._with_changes(entries, changed[key_group])
            to_bytes = self.keys.to_bytes
            addressed = [(key_group, *to_bytes(key), key) for key in entries]
            addressed.sort(key=address_of_row)
            for _, key_bytes, namespace, key in addressed:
                yield key_group, key_bytes, namespace, key, entries[key]

    def _with_changes(self, entries: dict[Any, Any], keys: Iterable[Any]) -> dict[Any, Any]:
        current = dict(entries)
        for key in keys:
            stored = self.merged(current.get(key, MISSING), self.delta[key])
            if stored is MISSING:
                current.pop(key, None)
            else:
                current[key] = stored
        return current


address_of_row = operator.itemgetter(0, 1, 2)
"""Key group, key and namespace: the order of rows."""
