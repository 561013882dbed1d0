"""The base of the heap's tables: the entries of one state, their memory form, their rows, and the files that hold them.

A table of each kind of state defines what is stored under a key, what an epoch records of a change (see
`statebackend.state.heap.history`), and how to get from the present content to that of a prepared snapshot. Maps and
lists record changes by entry and element, so that a put or an append copies nothing.

Rows are in canonical form and order (`statebackend.state.canonical`). In an increment, a row without a value deletes
everything under a key, or one map entry. It is written only if completed snapshots contain what it deletes.

Invariant: completed snapshots contain what ``files`` contain, unless `StateFiles.needs_base`. Snapshots may complete in
any order; the files are those of the latest one prepared. A migration starts a new content: the files of a snapshot
that was prepared before it do not count for the new one.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from attrs import define, field, frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state.canonical import CanonicalBatch, CanonicalRow
from statebackend.state.canonical_files import CanonicalFile
from statebackend.state.entry_keys import ClosedEntries
from statebackend.state.errors import StateRestoreError, unreadable_entry
from statebackend.state.heap.history import EntryHistory, EpochChanges, FrozenEntries
from statebackend.state.internal_states import HandleContext, InternalState
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.state_files import StateFiles
from statebackend.state.state_kind import RowFilter
from statebackend.state.value_forms import Load, MemoryForm
from typeserializers.kernel.type_serializer import TypeSerializer


class UnreadableEntryError(StateRestoreError):
    """A row that the serializers of a table do not read, and why."""

    def __init__(self, state_name: str, row: CanonicalRow, serializer: object, cause: Exception) -> None:
        super().__init__(
            f"state {state_name!r}: the entry of key {row[1].hex()} in key group {row[0]} cannot be read as "
            f"{serializer!r}: {cause}"
        )
        self.row = row
        self.cause = cause


_ROW_BYTES: Final = 256
"""What a row takes beside its value."""

PIECE_BYTES: Final = 4 << 20
"""The bytes of values with which a piece of an increment ends; one key may have more."""


@frozen(eq=False)
class ChangedRows:
    """A piece of an increment, in canonical order: ``written`` are its rows.

    ``effective`` is what of them the digest is of. What is stored as it was before, and what has expired, leaves
    nothing there. Rows of a list have all elements of a change in one value, behind their number in eight bytes.
    """

    written: list[CanonicalRow]
    effective: list[CanonicalRow]


class ChangesOfKeys:
    """Puts the changed rows of keys together to pieces, which a table gives out one by one.

    Rows are bytes, which a table of objects makes when they are asked for: no more of them is there than a piece.
    """

    __slots__ = ("_bytes", "_effective", "_written")

    def __init__(self) -> None:
        self._written: list[CanonicalRow] = []
        self._effective: list[CanonicalRow] = []
        self._bytes = 0

    def add(self, written: Iterable[CanonicalRow], effective: Iterable[CanonicalRow]) -> bool:
        """Adds the rows of one key; returns whether the piece is large enough."""
        for row in written:
            self._written.append(row)
            self._bytes += _ROW_BYTES if row[4] is None else _ROW_BYTES + len(row[4])
        self._effective += effective
        return self._bytes >= PIECE_BYTES

    def piece(self) -> ChangedRows:
        """What was added since the last piece."""
        piece = ChangedRows(self._written, self._effective)
        self._written, self._effective, self._bytes = [], [], 0
        return piece


class _Mark:
    """A sentinel with a name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


MISSING: Final = _Mark("MISSING")
"""There is no such map entry."""


class TableKeys(Protocol):
    """From the entry keys of a table to the bytes of key and namespace, and back: `EntryKeys`, or those of a queue."""

    to_bytes: Callable[[Any], tuple[bytes, bytes]]
    from_bytes: Callable[[bytes, bytes], Any]

    @property
    def plain_key_serializer(self) -> TypeSerializer[Any] | None:
        """The serializer of the keys where each key is its own entry key, else None."""

    def is_like(self, other: Any) -> bool:
        """Whether entry keys look the same in both."""

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        """A function that raises `SerializationError` for an entry key that cannot be written."""


class _Bound(Protocol):
    """A handle that holds the dicts of a table's current epoch."""

    def bind(self) -> None: ...


class HeapTable(ABC):
    """The entries of one state; subclasses are the kinds of state. ``handle`` is notified when its epoch ends."""

    __slots__ = ("_check_key", "form", "handle", "history", "key_groups", "keys", "name")

    def __init__(self, name: str, keys: TableKeys, form: MemoryForm, key_groups: KeyGroupRange) -> None:
        self.name = name
        self.keys = keys
        self.form = form
        self.key_groups = key_groups
        self.history = EntryHistory()
        self.handle: _Bound | None = None
        self._check_key = keys.compile_check(lambda: f"state {name!r}, current key")

    @abstractmethod
    def new_keys(self, changes: dict[Any, Any]) -> dict[Any, int]:
        """The key groups of the keys that were not there before these changes."""

    def folded(self, epochs: tuple[EpochChanges, ...]) -> EpochChanges:
        """What some epochs are together, for `changed_rows`: here the first change of each key."""
        first = EpochChanges()
        for epoch in reversed(epochs):
            first.changes.update(epoch.changes)
        return first

    @abstractmethod
    def stored_at(self, entries: FrozenEntries, keys: list[Any]) -> list[Any]:
        """What was stored under the keys, as nobody will change it; None where there was nothing."""

    @abstractmethod
    def changed_rows(self, entries: FrozenEntries, expired: RowFilter | None) -> Iterator[ChangedRows]:
        """The increment and what counts of it, in pieces of bounded size; fills in ``entries.gone``.

        Costs the number of changes. A row that ``expired`` says has expired counts as one that is not there.
        """

    @abstractmethod
    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        """The user keys and values of the rows of what is stored, in canonical order."""

    @abstractmethod
    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        """Takes in one row; without a value, takes away what it speaks of."""

    def entry_count(self) -> int:
        """How many entries there are: values, lists, map entries. May cost the number of keys."""
        return len(self.history.live)

    @property
    def is_clean(self) -> bool:
        """Whether completed snapshots hold everything, and none is under way."""
        return not self.history.readers and not self.history.has_unwritten_changes

    def check_key_group(self, key_group: int) -> None:
        """Raises `StateBackendError` if the key group is foreign."""
        self.key_groups.require(key_group)

    def check_new_key(self, key: Any) -> None:
        """Raises `SerializationError` if a key that is not there cannot be written."""
        self._check_key(key)

    def live_keys(self, first_group: int = 0) -> Iterator[tuple[int, list[Any]]]:
        """The keys of each key group, unsorted, in the order of key groups, from one on. On the owner's thread."""
        return self.history.live_keys(self.new_keys, first_group)

    def freeze(self) -> FrozenEntries:
        """The entries as they are, for a snapshot; takes the same time whatever there is."""
        frozen = self.history.freeze()
        if self.handle is not None:
            self.handle.bind()
        return frozen

    def settle(self) -> None:
        """Stops noting what was there before for readers if no snapshot is being written."""
        if self.history.epoch.before is not None and not self.history.readers:
            self.history.epoch.before = None
            if self.handle is not None:
                self.handle.bind()

    def rows(self) -> Iterator[CanonicalRow]:
        """All there is, in canonical order. On the owner's thread; must be used up before the next write."""
        live = self.history.live
        for key_group, addressed in self._sorted_keys():
            for _, key_bytes, namespace, key in addressed:
                for user_key, value in self.rows_of(live[key]):
                    yield key_group, key_bytes, namespace, user_key, value

    def rows_at(self, entries: FrozenEntries) -> Iterator[CanonicalRow]:
        """All there was when the entries were frozen, in canonical order."""
        for key_group, keys in entries.keys(self.new_keys):
            stored = dict(zip(keys, self.stored_at(entries, keys), strict=True))
            present = [key for key in keys if stored[key] is not None]
            for _, key_bytes, namespace, key in self._addressed(key_group, present):
                for user_key, value in self.rows_of(stored[key]):
                    yield key_group, key_bytes, namespace, user_key, value

    def addresses(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Key group, key and namespace of everything that is stored, in canonical order; encodes no values."""
        return (address[:3] for _, addressed in self._sorted_keys() for address in addressed)

    def can_take_entries_of(self, other: HeapTable) -> bool:
        """Whether entries of the other table would look the same here, given that their bytes mean the same."""
        return self.form.is_encoded and other.form.is_encoded and self.keys.is_like(other.keys)

    def take_entries_of(self, other: HeapTable) -> None:
        """Goes on with the entries of a table whose handles are no longer used, and with their history."""
        self.history = other.history

    def load_batch(self, batch: CanonicalBatch, load: Load) -> None:
        """Takes in rows, later ones over earlier ones; raises `UnreadableEntryError` for a row it cannot read.

        What was loaded before the failing row stays: the caller throws the table away.
        """
        from_bytes, load_entry = self.keys.from_bytes, self.load_entry
        row: CanonicalRow = (-1, b"", b"", None, None)
        try:
            for row in zip(*batch, strict=True):
                key_group, key, namespace, user_key, value = row
                load_entry(key_group, from_bytes(key, namespace), user_key, value, load)
        except Exception as error:
            raise UnreadableEntryError(self.name, row, self.form.serializer, error) from error

    def is_unchanged(self, older: Any, stored: Any, encoded: bytes | None) -> bool:
        """Whether two stored forms have the same bytes; ``encoded`` are those of the second."""
        if older is stored:
            return True
        form = self.form
        if form.is_encoded or form.serializer is None or form.serializer.equal_values_have_equal_bytes:
            return bool(older == stored)
        return form.write(older) == encoded

    def load_value(self, value: bytes, load: Load) -> Any:
        """The stored form of the bytes of a row."""
        stored, end = load(value, 0)
        if end != len(value):
            raise StateRestoreError(f"the value ends at byte {end} of {len(value)}; another serializer wrote it")
        return stored

    def _sorted_keys(self) -> Iterator[tuple[int, list[tuple[int, bytes, bytes, Any]]]]:
        for key_group, keys in self.live_keys():
            yield key_group, self._addressed(key_group, keys)

    def _addressed(self, key_group: int, keys: Iterable[Any]) -> list[tuple[int, bytes, bytes, Any]]:
        to_bytes = self.keys.to_bytes
        addressed = [(key_group, *to_bytes(key), key) for key in keys]
        addressed.sort(key=address_of_row)
        return addressed


address_of_row = operator.itemgetter(0, 1, 2)
"""Key group, key and namespace: the order of rows."""


@define(eq=False)
class StateContent:
    """``sources`` are where a state without a table is read from; ``files`` is replaced, never changed."""

    files: StateFiles = field(factory=StateFiles)
    sources: tuple[CanonicalFile, ...] = ()
    table: HeapTable | None = None
    completed: int = -1
    """The number of the snapshot that wrote ``files``."""

    def complete(self, number: int, files: StateFiles, file_system: CheckpointFileSystem) -> None:
        """Takes over the files of a completed snapshot, unless a later one was completed before."""
        if number > self.completed:
            self.completed, self.files = number, files
            if self.table is None:
                self.sources = tuple(CanonicalFile(file_system, stored.handle) for stored in files.stored)


class HeapStateHandle(InternalState):
    """A view of a table for the current key; the table's dicts are held directly, since every access goes to them."""

    __slots__ = ("_before", "_changes", "_context", "_live", "_olders", "_table")

    def __init__(self, table: HeapTable, context: HandleContext) -> None:
        self._table = table
        self._context = context
        self._live: Any
        self._changes: Any
        self._before: Any
        self._olders: list[Any]
        self.bind()

    @property
    def key_context(self) -> HandleContext:
        return self._context

    def bind(self) -> None:
        """Takes up the dicts of the table's current epoch."""
        history = self._table.history
        epoch = history.epoch
        self._live, self._changes, self._before = history.live, epoch.changes, epoch.before
        self._olders = epoch.olders

    def describe(self) -> str:
        """The state, for messages."""
        return f"state {self._table.name!r}"

    def close(self) -> None:
        """Makes every later access an error."""
        if self._table.handle is self:
            self._table.handle = None
        self._live = self._changes = ClosedEntries(self._table.name)

    def unreadable(self, error: object) -> StateRestoreError:
        """What to raise for a stored value that cannot be read."""
        return unreadable_entry(self.describe(), self._table.form.serializer, error)
