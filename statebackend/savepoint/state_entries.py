"""The entries of one state, as objects or as Arrow tables.

    entries = Savepoint.open(path).read("aircraft", "legs")
    for entry in entries: ...            # objects (`StateEntry`); every iteration reads again
    entries.to_arrow()                   # one pyarrow.Table, columns as in `tables.state_tables`
    entries.to_arrow_batches()           # batches of bounded size, for state larger than memory
    entries.to_pandas()                  # a DataFrame, if pandas is installed

`OperatorStateElements` is the same for operator state: the elements of all subtasks, one subtask after the other, and
of broadcast state the entries of every copy. Nothing is read before it is requested, and nothing is cached.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa
from attrs import field, frozen

from snapshots.errors import UnresolvableSerializerError
from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.savepoint.conditions import LONG, StateCondition
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.plain_values import plain_value, printed_value, value_repr
from statebackend.savepoint.sizes import counted
from statebackend.savepoint.stored_entries import EntryReader, StateEntry
from statebackend.savepoint.tables.state_tables import (
    BATCH_BYTES,
    BATCH_ROWS,
    OperatorStateColumns,
    TabularState,
    decoded_cell,
)
from statebackend.savepoint.value_forms import ColumnForms, stored_type
from statebackend.state.canonical import CanonicalBatch
from statebackend.state.errors import StateRestoreError
from statebackend.state.operator_state_handles import StatePart, batches, read_slice, read_slices
from statebackend.state.state_meta import KeyedStateMeta, StateMeta
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

_FIELDS: Final = ("key_group", "key", "namespace", "user_key", "value", "last_access_ms")


def plain_entry(entry: StateEntry, plain: Callable[[Any], Any] = plain_value) -> dict[str, Any]:
    """Return the fields of an entry as plain data, without absent fields. ``plain`` converts the values."""
    found = {name: plain(getattr(entry, name)) for name in _FIELDS}
    return {name: value for name, value in found.items() if value is not None or name == "value"}


_COLUMN_OF_ROLE: Final = {"element": "value"}


@frozen
class OperatorStateElement:
    """One element of list operator state, or one entry of broadcast state, with the subtask that has it."""

    subtask_index: int
    key: Any = field(repr=value_repr)
    value: Any = field(repr=value_repr)


def _plain(one: OperatorStateElement, plain: Callable[[Any], Any]) -> dict[str, Any]:
    key = {} if one.key is None else {"key": plain(one.key)}
    return {"subtask": one.subtask_index, **key, "value": plain(one.value)}


class OperatorStateElements:
    """The elements of one operator state. ``parts`` holds what each subtask has, with its index."""

    def __init__(
        self,
        state_name: str,
        parts: Sequence[tuple[int, StatePart]],
        file_system: CheckpointFileSystem,
        known: Sequence[TypeSerializer[Any]] = (),
        forms: ColumnForms | None = None,
    ) -> None:
        self._state_name = state_name
        self._parts = tuple(parts)
        self._file_system = file_system
        self._known = tuple(known)
        self._forms = forms or ColumnForms()

    def with_forms(self, forms: ColumnForms) -> OperatorStateElements:
        """Return the same elements with other column forms."""
        return OperatorStateElements(self._state_name, self._parts, self._file_system, self._known, forms)

    def __iter__(self) -> Iterator[OperatorStateElement]:
        """Yield the elements. Raises as iterating over `StateEntries`."""
        for index, part in self._parts:
            yield from self._read(index, part, self._serializers(part))

    def _serializers(self, part: StatePart) -> Mapping[str, TypeSerializer[Any]]:
        snapshots = {role: part.snapshot(self._state_name, role) for role in part.envelopes}
        try:
            return {role: restored_with(snapshot, *self._known) for role, snapshot in snapshots.items()}
        except UnresolvableSerializerError as error:
            raise UnresolvableSerializerError(f"operator state {self._state_name!r}: {error}") from error

    def _read(
        self, index: int, part: StatePart, serializers: Mapping[str, TypeSerializer[Any]]
    ) -> Iterator[OperatorStateElement]:
        read = {role: partial(decoded_cell, self._state_name, one) for role, one in serializers.items()}
        for one in part.slices:
            for key, value in read_slice(self._file_system, one):
                try:
                    if key is None:
                        element = OperatorStateElement(index, None, read["element"](value or b""))
                    else:
                        read_value = None if value is None else read["value"](value)
                        element = OperatorStateElement(index, read["key"](key), read_value)
                except StateRestoreError as error:
                    raise StateRestoreError(f"{self._file_system.location(one.file.path)}: {error}") from error
                yield element

    def plain(self) -> Iterator[dict[str, Any]]:
        """Yield the elements as plain data, by column name."""
        return (_plain(one, plain_value) for one in self)

    def printed(self, conditions: Sequence[StateCondition] = ()) -> Iterator[dict[str, Any]]:
        """Yield the elements that satisfy all conditions, see `StateEntries.printed`."""
        found = []
        for index, part in self._parts:
            serializers = self._serializers(part)
            types = {_COLUMN_OF_ROLE.get(role, role): stored_type(one) for role, one in serializers.items()}
            tests = [one({"subtask": LONG, **types}) for one in conditions]
            found.append((index, part, serializers, tests))
        return (
            _plain(element, printed_value)
            for index, part, serializers, tests in found
            for element in self._read(index, part, serializers)
            if all(test(element) for test in tests)
        )

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the tables. Reads no rows. Raises as `to_arrow_batches`."""
        return self._columns[-1].schema()

    @property
    def notes(self) -> dict[str, str]:
        """Paths of columns that hold a substitute, with a description of it."""
        return self._columns[-1].notes

    def to_arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches that are bounded in rows and stored bytes.

        Raises:
            ColumnValueError: A value does not fit its column.
            SavepointError: Subtasks stored the state under schemas that make different tables.
        """
        schema = self.arrow_schema
        for (index, part), columns in zip(self._parts, self._columns, strict=True):
            for rows in batches(read_slices(self._file_system, part.slices)):
                yield columns.batch(index, rows, schema)

    @cached_property
    def _columns(self) -> Sequence[OperatorStateColumns]:
        every = [OperatorStateColumns.of(self._state_name, part, self._forms, self._known) for _, part in self._parts]
        last = every[-1].schema()
        if not all(one.schema().equals(last) for one in every):
            raise SavepointError(
                f"operator state {self._state_name!r} is not one table: subtasks have stored it in different types; "
                f"read its elements one by one"
            )
        return every


@frozen
class EntriesPart:
    """The state of one subtask, with a function that reads its rows as columns."""

    meta: KeyedStateMeta
    state: StateMeta
    columns: Callable[[], Iterator[pa.RecordBatch]]
    location_of: Callable[[int], str] | None = None
    """Returns the location of a key group, for errors."""

    def reader(self, known: Sequence[TypeSerializer[Any]]) -> EntryReader:
        """Return the decoder of the rows. Raises `UnresolvableSerializerError` if a serializer is unknown."""
        schema = EntrySchema.of_rows(self.meta, self.state, known)
        schema.check_known()
        return EntryReader(schema, self.location_of)

    def rows(self) -> Iterator[CanonicalBatch]:
        """Yield the rows as lists."""
        return map(CanonicalBatch.of, self.columns())


class StateEntries:
    """The entries of one keyed state. ``forms`` decides how values are represented in Arrow."""

    def __init__(
        self, parts: Sequence[EntriesPart], known: Sequence[TypeSerializer[Any]] = (), forms: ColumnForms | None = None
    ) -> None:
        self._parts = tuple(parts)
        self._known = tuple(known)
        self._forms = forms or ColumnForms()

    def with_forms(self, forms: ColumnForms) -> StateEntries:
        """Return the same entries with other column forms, such as ``ColumnForms(as_text=True)``."""
        return StateEntries(self._parts, self._known, forms)

    def __iter__(self) -> Iterator[StateEntry]:
        """Yield the entries, sorted by key group and stored key. Memory holds one batch and the largest list.

        Raises:
            UnresolvableSerializerError: A serializer is unknown in this process.
            CheckpointError: A file is missing or damaged.
            StateRestoreError: A row cannot be decoded.
        """
        for reader, part in self._readers():
            yield from reader.entries(part.rows())

    def _readers(self) -> Iterator[tuple[EntryReader, EntriesPart]]:
        return ((part.reader(self._known), part) for part in self._parts)

    def __reduce__(self) -> str:
        raise TypeError(
            "entries are read while they are iterated and cannot be pickled: pass the Savepoint, list(entries) or "
            "entries.to_arrow() to the other process"
        )

    def __repr__(self) -> str:
        state = self._parts[0].state
        return f"<entries of {state.kind.name} state {state.name!r}, in {counted(len(self._parts), 'subtask')}>"

    def plain(self) -> Iterator[dict[str, Any]]:
        """Yield the entries as plain data, by column name. Raises as iterating."""
        return map(plain_entry, self)

    def printed(self, conditions: Sequence[StateCondition] = ()) -> Iterator[dict[str, Any]]:
        """Yield the entries that satisfy all conditions, as plain data for a terminal: large integers by their size.

        Raises:
            ValueError: A condition does not fit the columns. Raised at once.
        """
        found = [(reader, part, [one(reader.columns()) for one in conditions]) for reader, part in self._readers()]
        return (
            plain_entry(entry, printed_value)
            for reader, part, tests in found
            for entry in reader.entries(part.rows())
            if all(test(entry) for test in tests)
        )

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the tables. Reads no rows. Raises as `to_arrow_batches`."""
        return self._tables[0].schema

    @property
    def notes(self) -> dict[str, str]:
        """Paths of columns that hold a substitute, with a description of it."""
        return dict(self._tables[0].notes)

    def to_arrow_batches(self, *, max_rows: int = BATCH_ROWS, max_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most ``max_rows`` rows and ``max_bytes`` stored bytes. A larger entry is its own batch.

        Types that are unknown in this process become their stored bytes.

        Raises:
            ColumnValueError: A value does not fit its column.
            SavepointError: Subtasks stored the state under schemas that make different tables.
        """
        names = self.arrow_schema.names
        for columns, part in zip(self._tables, self._parts, strict=True):
            for batch in columns.batches(part.columns(), names, max_rows=max_rows, max_bytes=max_bytes):
                yield pa.record_batch(batch.columns, schema=self.arrow_schema)

    def to_arrow(self) -> pa.Table:
        """Return all entries as one table. Raises as `to_arrow_batches`."""
        return pa.Table.from_batches(self.to_arrow_batches(), self.arrow_schema)

    def to_pandas(self) -> Any:
        """Return all entries as a pandas DataFrame.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            if error.name != "pandas":
                raise
            raise ModuleNotFoundError(
                "to_pandas() needs pandas, which is not installed: pip install pandas, or use to_arrow()", name="pandas"
            ) from None
        return self.to_arrow().to_pandas()

    @cached_property
    def _tables(self) -> Sequence[TabularState]:
        tables = [TabularState.of(part.meta, part.state, self._forms, self._known) for part in self._parts]
        first = tables[0].schema
        other = next((one.schema for one in tables if not one.schema.equals(first)), None)
        if other is not None:
            raise SavepointError(
                f"state {self._parts[0].state.name!r} is not one table: subtasks stored it as {_columns_of(first)} and "
                f"as {_columns_of(other)}; read its entries one by one"
            )
        return tables


def _columns_of(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
