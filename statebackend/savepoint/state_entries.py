"""The entries of one keyed state: one by one as objects, or as tables of Arrow.

    entries = Savepoint.open(path).read("aircraft", "legs")
    for entry in entries: ...            objects, see `reading.stored_entries`; every iteration reads again
    entries.to_arrow()                   pyarrow.Table of all of them, columns as `tabular.state_tables` says
    entries.to_arrow_batches()           the same in batches of bounded size, for state larger than memory
    entries.to_pandas()                  a DataFrame, where pandas is installed

Nothing is read before it is asked for, and nothing is kept.

An entry as plain data: what commands print, and files of lines have.

The elements of one state without keys: one by one as objects, or as tables of Arrow, as `StateEntries` are.

Those of all subtasks, one subtask after the other; of broadcast state, the entries of every copy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.savepoint.plain_values import plain_value, printed_value
from statebackend.savepoint.sizes import counted
from statebackend.savepoint.stored_entries import EntryReader, StateEntry
from statebackend.savepoint.stored_types import LONG, StateCondition, stored_type
from statebackend.savepoint.tables.column_batches import ColumnBatches
from statebackend.savepoint.tables.column_forms import ColumnForms
from statebackend.savepoint.tables.state_tables import BATCH_BYTES, BATCH_ROWS, OperatorStateColumns, decoded_cell
from statebackend.state.canonical import CanonicalBatch
from statebackend.state.operator_state_handles import StatePart, batches, read_slices
from statebackend.state.state_meta import KeyedStateMeta, StateMeta
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["EntriesPart", "OperatorStateElement", "OperatorStateElements", "StateEntries", "plain_entry"]


_FIELDS: Final = ("key_group", "key", "namespace", "user_key", "value", "last_access_ms")


def plain_entry(entry: StateEntry, plain: Callable[[Any], Any] = plain_value) -> dict[str, Any]:
    """The fields of an entry by name, as ``plain`` makes values; without those that it does not have."""
    found = {name: plain(getattr(entry, name)) for name in _FIELDS}
    return {name: value for name, value in found.items() if value is not None or name == "value"}


_COLUMN_OF_ROLE: Final = {"element": "value"}


@frozen
class OperatorStateElement:
    """One element of a list of operator state, or one entry of a broadcast state, and the subtask that has it."""

    subtask_index: int
    key: Any
    value: Any


def _plain(one: OperatorStateElement, plain: Callable[[Any], Any]) -> dict[str, Any]:
    key = {} if one.key is None else {"key": plain(one.key)}
    return {"subtask": one.subtask_index, **key, "value": plain(one.value)}


class OperatorStateElements:
    """See the module; ``parts`` are what each subtask has, by its index. Nothing is read before it is asked for."""

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
        """The same elements, whose tables have other forms."""
        return OperatorStateElements(self._state_name, self._parts, self._file_system, self._known, forms)

    def __iter__(self) -> Iterator[OperatorStateElement]:
        """The elements; raises as iterating over `StateEntries` does."""
        for index, part in self._parts:
            yield from self._read(index, part, self._serializers(part))

    def _serializers(self, part: StatePart) -> Mapping[str, TypeSerializer[Any]]:
        snapshots = {role: part.snapshot(self._state_name, role) for role in part.envelopes}
        return {role: restored_with(snapshot, *self._known) for role, snapshot in snapshots.items()}

    def _read(
        self, index: int, part: StatePart, serializers: Mapping[str, TypeSerializer[Any]]
    ) -> Iterator[OperatorStateElement]:
        read = {role: partial(decoded_cell, self._state_name, one) for role, one in serializers.items()}
        for key, value in read_slices(self._file_system, part.slices):
            if key is None:
                yield OperatorStateElement(index, None, read["element"](value or b""))
            else:
                read_value = None if value is None else read["value"](value)
                yield OperatorStateElement(index, read["key"](key), read_value)

    def plain(self) -> Iterator[dict[str, Any]]:
        """The elements as plain data, by the names of their columns."""
        return (_plain(one, plain_value) for one in self)

    def printed(self, conditions: Sequence[StateCondition] = ()) -> Iterator[dict[str, Any]]:
        """The elements that satisfy all conditions; see `StateEntries.printed`."""
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
        """The schema of the tables; reads nothing. Raises as `to_arrow_batches`."""
        return self._columns[-1].schema()

    @property
    def notes(self) -> dict[str, str]:
        """What stands in tables in the place of something else, by its path."""
        return self._columns[-1].notes

    def to_arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """The elements in batches that are bounded in rows and stored bytes.

        Raises `ColumnValueError` for a value that does not fit its column, `SavepointError` if subtasks have stored the
        state in schemas that are different tables, and what iterating raises.
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
    """What one subtask has of a state: what it is, and what reads its rows, as columns."""

    meta: KeyedStateMeta
    state: StateMeta
    columns: Callable[[], Iterator[pa.RecordBatch]]

    def rows(self) -> Iterator[CanonicalBatch]:
        """The rows as lists."""
        return map(CanonicalBatch.of, self.columns())


class StateEntries:
    """See the module. ``forms`` say how values look in Arrow; `with_forms` gives the same entries in others."""

    def __init__(
        self, parts: Sequence[EntriesPart], known: Sequence[TypeSerializer[Any]] = (), forms: ColumnForms | None = None
    ) -> None:
        self._parts = tuple(parts)
        self._known = tuple(known)
        self._forms = forms or ColumnForms()

    def with_forms(self, forms: ColumnForms) -> StateEntries:
        """The same entries, whose tables have other forms: ``ColumnForms(as_text=True)``."""
        return StateEntries(self._parts, self._known, forms)

    def __iter__(self) -> Iterator[StateEntry]:
        """The entries, sorted by key group and stored key; memory holds a batch of rows, and the largest list.

        Raises `UnresolvableSerializerError` for types not known here, `CheckpointError` and `StateRestoreError` for
        what is damaged.
        """
        for reader, part in self._readers():
            yield from reader.entries(part.rows())

    def _readers(self) -> Iterator[tuple[EntryReader, EntriesPart]]:
        return ((EntryReader(part.meta, part.state, self._known), part) for part in self._parts)

    def __repr__(self) -> str:
        state = self._parts[0].state
        return f"<entries of {state.kind.name} state {state.name!r}, in {counted(len(self._parts), 'subtask')}>"

    def plain(self) -> Iterator[dict[str, Any]]:
        """The entries as plain data, by the names of their columns; raises as iterating does."""
        return map(plain_entry, self)

    def printed(self, conditions: Sequence[StateCondition] = ()) -> Iterator[dict[str, Any]]:
        """The entries that satisfy all conditions, as plain data for a terminal: large integers by their size.

        Raises `ValueError` at once for a condition that the columns do not allow, and later as iterating does.
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
        """The schema of the tables; reads nothing. Raises as `to_arrow_batches`."""
        return self._tables[0].table.schema

    @property
    def notes(self) -> dict[str, str]:
        """What stands in tables in the place of something else, by its path."""
        return dict(self._tables[0].table.notes)

    def to_arrow_batches(self, *, max_rows: int = BATCH_ROWS, max_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """The entries in batches of at most so many rows, and stored bytes unless one entry alone has more.

        Raises `ColumnValueError` for a value that does not fit its column, `SavepointError` if subtasks have stored the
        state in schemas that are different tables, and what iterating raises; types that are not known here come as
        the bytes that are stored.
        """
        names = self.arrow_schema.names
        for columns, part in zip(self._tables, self._parts, strict=True):
            for batch in columns.batches(part.columns(), names, max_rows=max_rows, max_bytes=max_bytes):
                yield pa.record_batch(batch.columns, schema=self.arrow_schema)

    def to_arrow(self) -> pa.Table:
        """All entries as one table; raises as `to_arrow_batches`."""
        return pa.Table.from_batches(self.to_arrow_batches(), self.arrow_schema)

    def to_pandas(self) -> Any:
        """All entries as a DataFrame of pandas, which has to be installed; raises `ImportError`, and as `to_arrow`."""
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
    def _tables(self) -> Sequence[ColumnBatches]:
        tables = [ColumnBatches.of(part.meta, part.state, self._forms, self._known) for part in self._parts]
        first = tables[0].table.schema
        other = next((one.table.schema for one in tables if not one.table.schema.equals(first)), None)
        if other is not None:
            raise SavepointError(
                f"state {self._parts[0].state.name!r} is not one table: subtasks have stored it as {_told(first)} and "
                f"as {_told(other)}; read its entries one by one"
            )
        return tables


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
