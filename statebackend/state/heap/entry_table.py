"""The base of the heap's tables: the entries of one state, their form in memory, their rows, and their files.

The table of each kind of state defines three things: what it stores under a key, what an epoch records of a change (see
`statebackend.state.heap.history`), and how to compute the content of a prepared snapshot from the present content. Maps
and lists record changes by entry and element, so that a put or an append copies nothing.

Rows are in canonical form and order (`statebackend.state.canonical`). In an increment, a row without a value deletes
everything under a key, or one map entry. It is written only if completed snapshots contain what it deletes.

Invariant: completed snapshots contain what ``files`` contain, unless `StateFiles.needs_base`. Snapshots may complete in
any order; ``files`` are those of the latest one prepared. A migration starts new content. The files of a snapshot that
was prepared before the migration are ignored.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from attrs import define, field, frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state.canonical import CanonicalBatch, CanonicalRow, batches_of
from statebackend.state.canonical_files import CanonicalFile
from statebackend.state.entry_keys import ClosedEntries
from statebackend.state.errors import StateRestoreError, unreadable_entry
from statebackend.state.heap.history import EntryHistory, EpochChanges, FrozenEntries
from statebackend.state.internal_states import HandleContext, InternalState
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.state_files import StateFiles
from statebackend.state.state_kind import RowFilter
from statebackend.state.ttl import kept_rows
from statebackend.state.value_forms import Load, MemoryForm
from typeserializers.kernel.type_serializer import TypeSerializer


class UnreadableEntryError(StateRestoreError):
    """A row that the serializers of a table cannot read, with the cause."""

    def __init__(self, state_name: str, row: CanonicalRow, serializer: object, cause: Exception) -> None:
        super().__init__(
            f"state {state_name!r}: the entry of key {row[1].hex()} in key group {row[0]} cannot be read as "
            f"{serializer!r}: {cause}"
        )
        self.row = row
        self.cause = cause

    def __reduce__(self) -> tuple[type[StateRestoreError], tuple[object, ...]]:
        # In another process only the message matters, and the cause may not be picklable.
        return StateRestoreError, self.args


_ROW_BYTES: Final = 256
"""The estimated bytes of a row without its value."""

PIECE_BYTES: Final = 4 << 20
"""A piece of an increment ends when its values have this many bytes. A single key may exceed it."""


@frozen(eq=False)
class ChangedRows:
    """A piece of an increment, in canonical order: ``written`` are its rows.

    ``effective`` are the rows that the digest covers. Unchanged and expired entries are left out. A row of a list holds
    all elements of a change in one value, after their number in eight bytes.
    """

    written: CanonicalBatch
    effective: CanonicalBatch


class ChangesOfKeys:
    """Collects the changed rows of keys into pieces.

    A table encodes rows only when they are read, so at most one piece of rows is in memory.
    """

    __slots__ = ("_bytes", "_effective", "_written")

    def __init__(self) -> None:
        self._written: list[CanonicalRow] = []
        self._effective: list[CanonicalRow] = []
        self._bytes = 0

    def add(self, written: Iterable[CanonicalRow], effective: Iterable[CanonicalRow]) -> bool:
        """Add the rows of one key; return whether the piece is large enough."""
        for row in written:
            self._written.append(row)
            self._bytes += _ROW_BYTES if row[4] is None else _ROW_BYTES + len(row[4])
        self._effective += effective
        return self._bytes >= PIECE_BYTES

    def piece(self) -> ChangedRows:
        """Return what was added since the last piece."""
        piece = ChangedRows(CanonicalBatch.of_rows(self._written), CanonicalBatch.of_rows(self._effective))
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
"""The map entry does not exist."""


class TableKeys(Protocol):
    """Converts entry keys of a table to the bytes of key and namespace, and back: `EntryKeys` or `QueueEntryKeys`."""

    to_bytes: Callable[[Any], tuple[bytes, bytes]]
    from_bytes: Callable[[bytes, bytes], Any]

    @property
    def plain_key_serializer(self) -> TypeSerializer[Any] | None:
        """The key serializer if keys are used as entry keys unchanged, else None."""

    def is_like(self, other: Any) -> bool:
        """Whether both have the same form of entry keys."""

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        """Return a function that raises `SerializationError` for an entry key that cannot be written."""


class _Bound(Protocol):
    """A handle that holds the dicts of a table's current epoch."""

    def bind(self) -> None: ...


class HeapTable(ABC):
    """The entries of one state, with a subclass per kind of state. ``handle`` is notified when its epoch ends."""

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
        """The key groups of the keys that these changes added."""

    def folded(self, epochs: tuple[EpochChanges, ...]) -> EpochChanges:
        """Merge epochs into one for `changed_rows`. By default, keep the first change of each key."""
        first = EpochChanges()
        for epoch in reversed(epochs):
            first.changes.update(epoch.changes)
        return first

    @abstractmethod
    def stored_at(self, entries: FrozenEntries, keys: list[Any]) -> list[Any]:
        """The entries of the keys, which later writes do not change; None for a key without an entry."""

    @abstractmethod
    def changed_rows(self, entries: FrozenEntries, expired: RowFilter | None) -> Iterator[ChangedRows]:
        """Yield the increment and the rows for the digest, in pieces of bounded size; set ``entries.removed_count``.

        The cost is proportional to the number of changes. A row that ``expired`` filters out counts as absent.
        """

    @abstractmethod
    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        """The user keys and values of the rows of a stored entry, in canonical order."""

    @abstractmethod
    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        """Apply one row. A row without a value deletes its entry."""

    def entry_count(self) -> int:
        """The number of entries: values, lists or map entries. The cost may be proportional to the number of keys."""
        return len(self.history.live)

    @property
    def is_clean(self) -> bool:
        """Whether completed snapshots hold everything, and no snapshot is running."""
        return not self.history.readers and not self.history.has_unwritten_changes

    def check_key_group(self, key_group: int) -> None:
        """Raise `StateBackendError` if the key group belongs to another subtask."""
        self.key_groups.require(key_group)

    def check_new_key(self, key: Any) -> None:
        """Raise `SerializationError` if a new key cannot be written."""
        self._check_key(key)

    def live_keys(self, first_group: int = 0) -> Iterator[tuple[int, list[Any]]]:
        """The keys by key group, from ``first_group`` on; unsorted within a group. Call it on the owner's thread."""
        return self.history.live_keys(self.new_keys, first_group)

    def freeze(self) -> FrozenEntries:
        """Freeze the entries for a snapshot, in constant time."""
        frozen = self.history.freeze()
        if self.handle is not None:
            self.handle.bind()
        return frozen

    def settle(self) -> None:
        """Stop recording earlier values if no snapshot is being written."""
        if self.history.epoch.before is not None and not self.history.readers:
            self.history.epoch.before = None
            if self.handle is not None:
                self.handle.bind()

    def rows(self) -> Iterator[CanonicalRow]:
        """All rows in canonical order. Call it on the owner's thread, and consume it before the next write."""
        live = self.history.live
        for key_group, addressed in self._sorted_keys():
            for _, key_bytes, namespace, key in addressed:
                for user_key, value in self.rows_of(live[key]):
                    yield key_group, key_bytes, namespace, user_key, value

    def rows_at(self, entries: FrozenEntries) -> Iterator[CanonicalRow]:
        """All rows of frozen entries, in canonical order."""
        for key_group, keys in entries.keys(self.new_keys):
            stored = dict(zip(keys, self.stored_at(entries, keys), strict=True))
            present = [key for key in keys if stored[key] is not None]
            for _, key_bytes, namespace, key in self._addressed(key_group, present):
                for user_key, value in self.rows_of(stored[key]):
                    yield key_group, key_bytes, namespace, user_key, value

    def batches_at(self, entries: FrozenEntries, row_filter: RowFilter | None) -> Iterable[CanonicalBatch]:
        """All rows of frozen entries that the filter keeps, in canonical order."""
        return batches_of(kept_rows(row_filter, self.rows_at(entries)))

    def addresses(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Key group, key and namespace of all entries, in canonical order; encodes no values."""
        return (address[:3] for _, addressed in self._sorted_keys() for address in addressed)

    def can_take_entries_of(self, other: HeapTable) -> bool:
        """Whether entries of the other table have the same form here, if their bytes mean the same."""
        return self.form.is_encoded and other.form.is_encoded and self.keys.is_like(other.keys)

    def take_entries_of(self, other: HeapTable) -> None:
        """Use the entries and the history of another table, whose handles must no longer be used."""
        self.history = other.history

    def load_batch(self, batch: CanonicalBatch, load: Load) -> None:
        """Apply rows; later rows replace earlier ones. Raise `UnreadableEntryError` for a row that cannot be read.

        The rows before the failing one stay, so the caller discards the table.
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
        """Whether two stored forms have the same bytes; ``encoded`` are the bytes of the second."""
        if older is stored:
            return True
        form = self.form
        if form.is_encoded or form.serializer is None or form.serializer.equal_values_have_equal_bytes:
            return bool(older == stored)
        return form.write(older) == encoded

    def load_value(self, value: bytes, load: Load) -> Any:
        """Decode the value of a row to the stored form."""
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
    """``sources`` hold the entries of a state without a table; ``files`` is replaced, never changed."""

    files: StateFiles = field(factory=StateFiles)
    sources: tuple[CanonicalFile, ...] = ()
    table: HeapTable | None = None
    completed: int = -1
    """The number of the snapshot that wrote ``files``."""

    def complete(self, number: int, files: StateFiles, file_system: CheckpointFileSystem) -> None:
        """Set the files of a completed snapshot, unless a later snapshot completed first."""
        if number > self.completed:
            self.completed, self.files = number, files
            if self.table is None:
                self.sources = tuple(CanonicalFile(file_system, stored.handle) for stored in files.stored)


class HeapStateHandle(InternalState):
    """A view of a table for the current key. It holds the table's dicts, because every access uses them."""

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
        """Use the dicts of the table's current epoch."""
        history = self._table.history
        epoch = history.epoch
        self._live, self._changes, self._before = history.live, epoch.changes, epoch.before
        self._olders = epoch.olders

    def describe(self) -> str:
        """The state's name for messages."""
        return f"state {self._table.name!r}"

    def close(self) -> None:
        """Make every later access raise an error."""
        if self._table.handle is self:
            self._table.handle = None
        self._live = self._changes = ClosedEntries(self._table.name)

    def unreadable(self, error: object) -> StateRestoreError:
        """The error for a stored value that cannot be read."""
        return unreadable_entry(self.describe(), self._table.form.serializer, error)
