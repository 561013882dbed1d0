"""Operator state on the heap: a list of elements, and a map of broadcast entries.

Values of immutable types are kept as objects, values of mutable types as bytes, as in the heap backend (`MemoryForm`).
So a caller that changes its own object never changes the state. All functions here are made from the serializers of the
compatibility result, so every use has the reconfigured serializer.

A snapshot writes a *frozen* table while the state changes. Freezing is independent of the size of the state: a list is
only appended to or replaced, so its object and length are enough; a map is copied at the first change after it was
frozen. ``version`` changes with the content, so that a snapshot can skip unchanged state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from migration.schema_migration import MigrationError, SchemaMigration
from snapshots.errors import MalformedDataError, SerializationError, StateFormatError, format_value
from statebackend.state.entry_keys import ClosedEntries, KeyForm
from statebackend.state.errors import StateMigrationException, StateRestoreError, null_element
from statebackend.state.operator_state_descriptors import ELEMENT_ROLE, KEY_ROLE, VALUE_ROLE, OperatorStateMode
from statebackend.state.operator_state_handles import OperatorStateRow
from statebackend.state.states import BroadcastState, ListState, ReadOnlyBroadcastState
from statebackend.state.value_forms import MemoryForm, compile_exact
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Serializers = Mapping[str, TypeSerializer[Any]]
"""Serializers by role."""

Migrations = Mapping[str, SchemaMigration[Any]]
"""The migrations to the serializers of a table, for the roles that are migrated."""

FrozenRows = Callable[[Serializers], Iterator[OperatorStateRow]]
"""Writes the rows of a frozen table with these duplicates of its serializers, on any thread."""


class _ClosedRows(ClosedEntries):
    """Also rejects the methods of lists and dicts."""

    def __getattr__(self, name: str) -> Any:
        return self._reject()


class OperatorStateTable(ABC):
    """The common part of both kinds: the name for messages, the serializers, and the version of the content."""

    __slots__ = ("name", "serializers", "version")

    def __init__(self, name: str, serializers: Serializers) -> None:
        self.name = name
        self.serializers = serializers
        self.version = 0

    def describe(self) -> str:
        """The state's name for messages."""
        return f"operator state {self.name!r}"

    def load_rows(self, rows: Iterable[OperatorStateRow], migrations: Migrations) -> int:
        """Add restored rows, and migrate the roles in ``migrations``; return the number of rows.

        Raises `StateMigrationException` or `StateRestoreError` for a row that cannot be migrated or read. Discard the
        table then.
        """
        load = self._row_loader(migrations)
        count = 0
        try:
            for count, row in enumerate(rows, 1):  # noqa: B007  (the error names the row)
                load(row)
        except StateFormatError as error:
            raise (StateMigrationException if migrations else StateRestoreError)(
                f"{self.describe()}, row {count}: {error}"
            ) from error
        return count

    @abstractmethod
    def _row_loader(self, migrations: Migrations) -> Callable[[OperatorStateRow], None]:
        """Return a function that adds one restored row."""

    @abstractmethod
    def freeze(self) -> tuple[int, FrozenRows]:
        """Return the current number of rows, and the frozen rows."""

    @abstractmethod
    def close(self) -> None:
        """Make every later access raise an error with the reason."""


class _ValueForm:
    """The memory form of the values of one role, with its checks and conversions."""

    __slots__ = ("is_encoded", "read", "serializer", "store")

    def __init__(self, serializer: TypeSerializer[Any], describe: Callable[[], str]) -> None:
        self.serializer = serializer
        self.is_encoded = not serializer.is_immutable_type
        self.read: Callable[[Any], Any] = serializer.from_bytes if self.is_encoded else _itself
        self.store: Callable[[Any], Any]
        if self.is_encoded:
            self.store = _encoder(serializer, describe)
        else:
            self.store = compile_exact(serializer, describe)

    def loader(self, migration: SchemaMigration[Any] | None) -> Callable[[bytes], Any]:
        """Return a function from restored bytes to the memory form. It reads them once, to find damage now."""
        form = MemoryForm(self.serializer, self.is_encoded)
        if migration is None:
            if not self.is_encoded:
                return self.serializer.from_bytes
            from_bytes = self.serializer.from_bytes

            def checked(data: bytes) -> bytes:
                from_bytes(data)
                return data

            return checked
        return partial(migration.whole, form.load_migrated(migration))

    def writer(self, duplicate: TypeSerializer[Any]) -> Callable[[Any], bytes]:
        """Return a function from the memory form to bytes."""
        return _itself if self.is_encoded else duplicate.to_bytes


class OperatorListTable(OperatorStateTable, ListState[T]):
    """A split or union list."""

    __slots__ = ("_elements", "_form")

    def __init__(self, name: str, serializers: Serializers) -> None:
        super().__init__(name, serializers)
        self._form = _ValueForm(serializers[ELEMENT_ROLE], self.describe)
        self._elements: Any = []

    def get(self) -> list[T]:
        return [self._form.read(element) for element in self._elements]

    def add(self, element: T) -> None:
        self._elements.append(self._stored(0, element))
        self.version += 1

    def add_all(self, elements: Iterable[T]) -> None:
        self._elements.extend(self._all_stored(elements))
        self.version += 1

    def update(self, elements: Iterable[T]) -> None:
        len(self._elements)  # rejects once closed
        self._elements = self._all_stored(elements)
        self.version += 1

    def clear(self) -> None:
        self.update(())

    def freeze(self) -> tuple[int, FrozenRows]:
        elements, count, form = self._elements, len(self._elements), self._form

        def rows(duplicates: Serializers) -> Iterator[OperatorStateRow]:
            write = form.writer(duplicates[ELEMENT_ROLE])
            return ((None, write(elements[index])) for index in range(count))

        return count, rows

    def close(self) -> None:
        self._elements = _ClosedRows(self.name)

    def _row_loader(self, migrations: Migrations) -> Callable[[OperatorStateRow], None]:
        load, append = self._form.loader(migrations.get(ELEMENT_ROLE)), self._elements.append

        def load_row(row: OperatorStateRow) -> None:
            if row[0] is not None or row[1] is None:
                raise StateRestoreError(f"{self.describe()}: a row does not belong to a list state")
            append(load(row[1]))

        return load_row

    def _all_stored(self, elements: Iterable[T]) -> list[Any]:
        return [self._stored(position, element) for position, element in enumerate(elements)]

    def _stored(self, position: int, element: T) -> Any:
        if element is None:
            raise null_element(self.describe(), position)
        return self._form.store(element)


class BroadcastTable(OperatorStateTable, BroadcastState[K, V]):
    """A broadcast map."""

    __slots__ = ("_entries", "_entry_key", "_form", "_is_frozen", "_key_serializer", "_keys")

    def __init__(self, name: str, serializers: Serializers) -> None:
        super().__init__(name, serializers)
        self._key_serializer = serializers[KEY_ROLE]
        self._keys = KeyForm(self._key_serializer)
        self._entry_key = self._keys.compile_entry_key(self.describe)
        self._form = _ValueForm(serializers[VALUE_ROLE], self.describe)
        self._entries: Any = {}
        self._is_frozen = False

    def get(self, key: K) -> V | None:
        stored = self._entries.get(self._entry_key(key))
        return None if stored is None else self._form.read(stored)

    def contains(self, key: K) -> bool:
        return self._entry_key(key) in self._entries

    def put(self, key: K, value: V | None) -> None:
        entry_key, stored = self._entry_key(key), self._stored(value)
        self._changing()[entry_key] = stored

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        stored = {self._entry_key(key): self._stored(value) for key, value in entries.items()}
        self._changing().update(stored)

    def remove(self, key: K) -> None:
        entry_key = self._entry_key(key)
        if entry_key in self._entries:
            del self._changing()[entry_key]

    def clear(self) -> None:
        len(self._entries)  # rejects once closed
        self._entries, self._is_frozen = {}, False
        self.version += 1

    def items(self) -> Iterator[tuple[K, V | None]]:
        to_key, read = self._keys.to_key, self._form.read
        # A list of pairs, because entries may be changed while iterating.
        pairs = list(self._entries.items()) if len(self._entries) else []
        return ((to_key(key), None if stored is None else read(stored)) for key, stored in pairs)

    def is_empty(self) -> bool:
        return len(self._entries) == 0

    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        return BroadcastView(self)

    def freeze(self) -> tuple[int, FrozenRows]:
        entries, is_object, form = self._entries, self._keys.is_object, self._form
        self._is_frozen = True

        def rows(duplicates: Serializers) -> Iterator[OperatorStateRow]:
            write_key = duplicates[KEY_ROLE].to_bytes if is_object else _itself
            write = form.writer(duplicates[VALUE_ROLE])
            for key, stored in entries.items():
                yield write_key(key), None if stored is None else write(stored)

        return len(entries), rows

    def close(self) -> None:
        self._entries = _ClosedRows(self.name)

    def _changing(self) -> dict[Any, Any]:
        if self._is_frozen:
            self._entries, self._is_frozen = self._entries.copy(), False
        self.version += 1
        entries: dict[Any, Any] = self._entries
        return entries

    def _stored(self, value: V | None) -> Any:
        return None if value is None else self._form.store(value)

    def _row_loader(self, migrations: Migrations) -> Callable[[OperatorStateRow], None]:
        of_keys = migrations.get(KEY_ROLE)
        # Checked like a put: a custom pair of serializers may return an invalid key unchanged.
        key_of = self._key_serializer.from_bytes if of_keys is None else of_keys.to_value
        load, entries, entry_key = self._form.loader(migrations.get(VALUE_ROLE)), self._entries, self._entry_key
        old_serializer = self._key_serializer if of_keys is None else of_keys.old
        # The old serializer shows the key as it was written: in the program's class the two keys may be equal.
        written = old_serializer.snapshot_configuration().restore_serializer()
        stored_bytes: dict[Any, bytes] = {}

        def load_row(row: OperatorStateRow) -> None:
            if row[0] is None:
                raise StateRestoreError(f"{self.describe()}: a row does not belong to a broadcast state")
            key = key_of(row[0])
            try:
                stored_key = entry_key(key)
                if stored_key in entries:
                    one, other = (format_value(written.from_bytes(data)) for data in (stored_bytes[stored_key], row[0]))
                    raise MigrationError(
                        f"it occurs twice, stored as {one} and as {other}, so one of the entries would be lost; keep "
                        f"keys distinct"
                    )
                stored_bytes[stored_key] = row[0]
                entries[stored_key] = None if row[1] is None else load(row[1])
            except StateFormatError as error:
                raise MalformedDataError(f"key {format_value(key)}: {error}") from error

        return load_row


class BroadcastView(ReadOnlyBroadcastState[K, V], Generic[K, V]):
    """A read-only view of a table."""

    __slots__ = ("_table",)

    def __init__(self, table: BroadcastTable[K, V]) -> None:
        self._table = table

    def get(self, key: K) -> V | None:
        return self._table.get(key)

    def contains(self, key: K) -> bool:
        return self._table.contains(key)

    def items(self) -> Iterator[tuple[K, V | None]]:
        return self._table.items()

    def is_empty(self) -> bool:
        return self._table.is_empty()


TABLES: Final[Mapping[OperatorStateMode, Callable[[str, Serializers], OperatorStateTable]]] = {
    OperatorStateMode.SPLIT: OperatorListTable,
    OperatorStateMode.UNION: OperatorListTable,
    OperatorStateMode.BROADCAST: BroadcastTable,
}
"""Creates the table of a state from its name and serializers, by mode."""


def _encoder(serializer: TypeSerializer[Any], describe: Callable[[], str]) -> Callable[[Any], bytes]:
    to_bytes = serializer.to_bytes

    def encode(value: Any) -> bytes:
        try:
            return to_bytes(value)
        except SerializationError as error:
            raise error.within(describe()) from error

    return encode


def _itself(stored: Any) -> Any:
    return stored
