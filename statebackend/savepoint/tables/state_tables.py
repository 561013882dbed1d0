"""Decodes canonical rows of one state to record batches of typed columns.

| Column | Type | Present for |
|---|---|---|
| `key_group` | int32 | all |
| `key` | that of the key | all except queues of elements that are not timers |
| `namespace` | that of the namespace | state with namespaces |
| `user_key` | that of the map's keys | map state |
| `value` | that of the value, list or map value; int64 time of a timer | all |
| `last_access_ms` | int64, list of int64 for lists | state with time-to-live |

Rows of the table are the entries of `stored_entries`, in the same order. Only requested columns are read. `read_column`
decodes a column of many types at once; all others, lists and queues are decoded entry by entry.

A batch ends at a number of rows or of stored bytes, whichever comes first; a larger single entry is its own batch. The
schema metadata ``statebackend.notes`` is a JSON object from the paths of substitutes to their descriptions. A key or
value whose serializer cannot be restored here is a binary column of its stored bytes; of a list, those of its chunks.

`OperatorStateColumns` does the same for operator state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from attrs import field, frozen

from statebackend.savepoint.column_codecs import read_column
from statebackend.savepoint.entry_schema import EntrySchema, UnknownSerializer
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.statistics import sizes_of_rows
from statebackend.savepoint.value_forms import ColumnForm, ColumnForms, ListForm, ScalarForm
from statebackend.state.canonical import SCHEMA, CanonicalBatch
from statebackend.state.descriptors import ELEMENT_ROLE, USER_KEY_ROLE
from statebackend.state.errors import StateRestoreError
from statebackend.state.operator_state_descriptors import KEY_ROLE, VALUE_ROLE
from statebackend.state.operator_state_handles import OperatorStateRow, StatePart
from statebackend.state.state_kind import TableForm
from statebackend.state.state_meta import KeyedStateMeta, StateMeta
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.ttl import TtlSerializer, TtlValue
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer
from typeserializers.times.timers import TimerSerializer

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "NOTES_KEY",
    "ListRows",
    "OperatorStateColumns",
    "TabularState",
    "bounded",
    "bounded_columns",
    "decoded_cell",
    "whole_lists",
]


class ListRows(NamedTuple):
    """Rows of list state, one per list. A value is the chunks of the list."""

    key_groups: list[int]
    keys: list[bytes]
    namespaces: list[bytes]
    user_keys: list[bytes | None]
    values: list[list[bytes | None]]


Rows: TypeAlias = "CanonicalBatch | ListRows"


def whole_lists(batches: Iterable[CanonicalBatch]) -> Iterator[ListRows]:
    """Yield complete lists from sorted rows of chunks. Memory holds one batch and the list at its end."""
    pending = ListRows([], [], [], [], [])
    for batch in batches:
        for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
            if pending.keys and (pending.key_groups[-1], pending.keys[-1], pending.namespaces[-1]) == (
                key_group,
                key,
                namespace,
            ):
                pending.values[-1].append(value)
                continue
            pending.key_groups.append(key_group)
            pending.keys.append(key)
            pending.namespaces.append(namespace)
            pending.user_keys.append(user_key)
            pending.values.append([value])
        # The last list may go on in the next batch.
        if len(pending.keys) > 1:
            yield ListRows(*(column[:-1] for column in pending))  # type: ignore[arg-type]
            pending = ListRows(*(column[-1:] for column in pending))  # type: ignore[arg-type]
    if pending.keys:
        yield pending


def bounded(batches: Iterable[Rows], max_rows: int, max_bytes: int) -> Iterator[Rows]:
    """Split rows into batches of at most so many rows and bytes. A larger single row is its own batch."""
    for batch in batches:
        start = size_bytes = 0
        sizes = _sizes(batch)
        for index, size in enumerate(sizes):
            if index > start and (index - start >= max_rows or size_bytes + size > max_bytes):
                yield _slice(batch, start, index)
                start, size_bytes = index, 0
            size_bytes += size
        if sizes:
            yield batch if start == 0 else _slice(batch, start, len(sizes))


def bounded_columns(batches: Iterable[pa.RecordBatch], max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """As `bounded`, for Arrow batches with any subset of the columns."""
    for batch in batches:
        if batch.num_rows and batch.num_rows <= max_rows and batch.nbytes <= max_bytes:
            yield batch
            continue
        start = size_bytes = 0
        for index, size in enumerate(sizes_of_rows(batch).to_pylist()):
            if index > start and (index - start >= max_rows or size_bytes + size > max_bytes):
                yield batch.slice(start, index - start)
                start, size_bytes = index, 0
            size_bytes += size
        if start < batch.num_rows:
            yield batch.slice(start)


def _sizes(batch: Rows) -> list[int]:
    if isinstance(batch, ListRows):
        values = [sum(len(chunk or b"") for chunk in chunks) for chunks in batch.values]
    else:
        values = [len(value or b"") for value in batch.values]
    user_keys = (len(user_key or b"") for user_key in batch.user_keys)
    columns = (map(len, batch.keys), map(len, batch.namespaces), user_keys, values)
    return list(map(sum, zip(*columns, strict=True)))


def _slice(batch: Rows, start: int, end: int) -> Rows:
    return type(batch)(*(column[start:end] for column in batch))  # type: ignore[arg-type]


SUBTASK: Final = pa.field("subtask", pa.int32(), nullable=False)
"""The column of the subtask that has a row."""

_COLUMNS: Final = {ELEMENT_ROLE: "value", KEY_ROLE: "key", VALUE_ROLE: "value"}
"""The column of a role."""


@frozen
class OperatorStateColumns:
    """The columns of operator state that was stored under one schema."""

    state_name: str
    _columns: Mapping[str, tuple[TypeSerializer[Any], ColumnForm]]

    @classmethod
    def of(
        cls, state_name: str, part: StatePart, forms: ColumnForms, known: Sequence[TypeSerializer[Any]] = ()
    ) -> OperatorStateColumns:
        """Return the columns of a part. ``known`` are serializers of the program.

        Raises:
            UnresolvableSerializerError: A type is unknown in this process.
        """
        columns = {}
        for role in part.envelopes:
            serializer = restored_with(part.snapshot(state_name, role), *known)
            columns[_COLUMNS[role]] = serializer, forms.of(serializer)
        return cls(state_name, columns)

    def schema(self, *, has_subtask: bool = True) -> pa.Schema:
        """Return the schema, with the subtask first if requested."""
        fields = [pa.field(name, form.data_type) for name, (_, form) in self._columns.items()]
        return pa.schema([SUBTASK, *fields] if has_subtask else fields)

    @property
    def notes(self) -> dict[str, str]:
        """Paths of substitutes, with their descriptions."""
        return {path: note for name, (_, form) in self._columns.items() for path, note in form.notes(name)}

    def batch(self, subtask: int, rows: Iterable[OperatorStateRow], schema: pa.Schema) -> pa.RecordBatch:
        """Return one or more stored rows of a subtask as columns of this schema.

        Raises:
            StateRestoreError: A row cannot be decoded.
            ColumnValueError: A value does not fit.
        """
        keys, values = zip(*rows, strict=True)
        cells = {"key": keys, "value": values}
        arrays = [
            pa.repeat(pa.scalar(subtask, pa.int32()), len(values)) if name == SUBTASK.name else self._array(name, cells)
            for name in schema.names
        ]
        return pa.record_batch(arrays, schema=schema)

    def _array(self, name: str, cells: Mapping[str, Sequence[bytes | None]]) -> pa.Array:
        serializer, form = self._columns[name]
        whole = read_column(serializer, pa.array(cells[name], pa.binary()))
        if whole is not None and whole.type == form.data_type:
            return whole
        return form.array(
            [None if cell is None else decoded_cell(self.state_name, serializer, cell) for cell in cells[name]]
        )


def decoded_cell(state_name: str, serializer: TypeSerializer[Any], cell: bytes) -> Any:
    """Decode an element, key or value of operator state.

    Raises:
        StateRestoreError: The bytes cannot be decoded.
    """
    try:
        return serializer.from_bytes(cell)
    except Exception as error:
        # A custom serializer may raise anything for invalid bytes.
        text = str(error) or type(error).__name__
        raise StateRestoreError(f"operator state {state_name!r}: a row cannot be read: {text}") from error


BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20
NOTES_KEY: Final = b"statebackend.notes"

_Rows: TypeAlias = "CanonicalBatch | ListRows"
_Cells: TypeAlias = Callable[[Any], Sequence[Any]]


@frozen
class _Columns:
    """Columns that are decoded from the same cells: names, forms, and the functions that make their arrays.

    ``source`` is the column of rows, which ``whole`` decodes at once, or not at all (None).
    """

    forms: Mapping[str, ColumnForm]
    arrays: Callable[[Any], Sequence[pa.Array]]
    source: str
    whole: Callable[[pa.Array], Sequence[pa.Array] | None] = lambda column: None

    def of_rows(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        """Decode whole columns if possible, else entry by entry."""
        found = self.whole(rows.column(self.source))
        types = [form.data_type for form in self.forms.values()]
        return found if found is not None and [one.type for one in found] == types else self.arrays(_filled(rows))


@frozen
class TabularState:
    """The table of one keyed state. Cheap to create."""

    _parts: tuple[_Columns, ...]
    _form: TableForm | None
    schema: pa.Schema = field(init=False)

    @schema.default
    def _schema(self) -> pa.Schema:
        metadata = {NOTES_KEY: json.dumps(dict(self.notes), ensure_ascii=False)} if self.notes else None
        return pa.schema([pa.field(name, form.data_type) for name, form in self._forms], metadata)

    @classmethod
    def of(
        cls,
        meta: KeyedStateMeta,
        state: StateMeta,
        forms: ColumnForms | None = None,
        known: Sequence[TypeSerializer[Any]] = (),
    ) -> TabularState:
        """Return the table of a state. ``known`` are serializers of the program."""
        schema = EntrySchema.of_rows(meta, state, known)
        return cls(tuple(_PARTS_OF[schema.form](_TableMaker(schema, forms or ColumnForms()))), schema.form)

    @property
    def notes(self) -> Mapping[str, str]:
        """Paths of substitutes, with their descriptions."""
        return {path: note for name, form in self._forms for path, note in form.notes(name)}

    @property
    def _forms(self) -> Iterator[tuple[str, ColumnForm]]:
        return chain.from_iterable(part.forms.items() for part in self._parts)

    def needed(self, columns: Container[str]) -> Sequence[str]:
        """Return the columns of rows that are needed for these table columns."""
        sources = {"key_group", *(part.source for part in self._with(columns))}
        if self._form is TableForm.LIST:
            # These identify the rows of one list.
            sources |= {"key", "namespace"}
        return tuple(name for name in SCHEMA.names if name in sources)

    def batches(
        self,
        rows: Iterable[pa.RecordBatch],
        columns: Sequence[str],
        *,
        max_rows: int = BATCH_ROWS,
        max_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the entries of sorted rows, which have the `needed` columns, in non-empty batches.

        ``max_bytes`` counts stored bytes.

        Raises:
            StateRestoreError: A row cannot be decoded. The message names state and key group.
            ColumnValueError: A value does not fit its column.
        """
        parts = self._with(columns)
        names = [name for part in parts for name in part.forms]
        schema = pa.schema([self.schema.field(name) for name in columns], self.schema.metadata)
        read: Iterator[Iterator[Sequence[pa.Array]]]
        if self._form is TableForm.LIST:
            lists = bounded(whole_lists(map(_filled, rows)), max_rows, max_bytes)
            read = ((part.arrays(batch) for part in parts) for batch in lists)
        else:
            read = ((part.of_rows(batch) for part in parts) for batch in bounded_columns(rows, max_rows, max_bytes))
        for arrays in read:
            found = dict(zip(names, chain.from_iterable(arrays), strict=True))
            yield pa.record_batch([found[name] for name in columns], schema=schema)

    def _with(self, columns: Container[str]) -> list[_Columns]:
        return [part for part in self._parts if any(name in columns for name in part.forms)]


def _filled(rows: pa.RecordBatch) -> CanonicalBatch:
    """Return rows with all columns; unneeded ones hold empty bytes."""
    present = set(rows.schema.names)
    columns: list[Any] = [
        rows.column(name).to_pylist() if name in present else [b""] * rows.num_rows for name in SCHEMA.names
    ]
    return CanonicalBatch(*columns)


class _TableMaker:
    """Makes the columns of a state from its serializers."""

    def __init__(self, schema: EntrySchema, forms: ColumnForms) -> None:
        self._schema = schema
        self._forms = forms
        # A custom form may hold other values in the same type.
        self._reads_whole = not forms.added

    def values(self) -> Iterator[_Columns]:
        yield from self._address()
        yield self._values(self._schema.storage_serializer)

    def maps(self) -> Iterator[_Columns]:
        yield from self._address()
        yield self._cells("user_key", self._schema.serializers[USER_KEY_ROLE], lambda rows: rows.user_keys)
        yield self._values(self._schema.storage_serializer)

    def lists(self) -> Iterator[_Columns]:
        yield from self._address()
        yield self._lists(self._schema.serializers[ELEMENT_ROLE], self._schema.storage_serializer)

    def elements(self) -> Iterator[_Columns]:
        yield _KEY_GROUP
        element = self._schema.serializers[ELEMENT_ROLE]
        if isinstance(element, TimerSerializer):
            yield self._timers(element)
        else:
            yield self._cells("value", element, lambda rows: rows.keys, source="key")

    def _address(self) -> Iterator[_Columns]:
        yield _KEY_GROUP
        yield self._cells("key", self._schema.key_serializer, lambda rows: rows.keys)
        if self._schema.has_namespaces:
            yield self._cells("namespace", self._schema.namespace_serializer, lambda rows: rows.namespaces)

    def _cells(self, name: str, serializer: TypeSerializer[Any], cells: _Cells, source: str | None = None) -> _Columns:
        """Decode keys. Consecutive rows with the same key decode it once."""
        if isinstance(serializer, UnknownSerializer):
            return _stored(name, serializer, cells, source or name)
        form = self._forms.of(serializer)

        def arrays(rows: _Rows) -> Sequence[pa.Array]:
            found = cells(rows)
            places: dict[Any, int] = {}
            indexes = [places.setdefault(cell, len(places)) for cell in found]
            if 2 * len(places) > len(found):
                return (self._decoded(form, serializer, found, rows),)
            distinct = self._decoded(form, serializer, list(places), rows)
            return (distinct.take(pa.array(indexes, pa.int32())),)

        return _Columns({name: form}, arrays, source or name, self._whole(serializer))

    def _whole(self, serializer: TypeSerializer[Any]) -> Callable[[pa.Array], Sequence[pa.Array] | None]:
        def read(rows: pa.Array) -> Sequence[pa.Array] | None:
            column = read_column(serializer, rows) if self._reads_whole else None
            return None if column is None else (column,)

        return read

    def _values(self, serializer: TypeSerializer[Any]) -> _Columns:
        if isinstance(serializer, UnknownSerializer):
            return _stored("value", serializer, lambda rows: rows.values, "value")
        timed = _timed_part(serializer)
        form = self._forms.of(serializer if timed is None else timed.value_serializer)
        if timed is None:
            return _Columns(
                {"value": form},
                lambda rows: (self._decoded(form, serializer, rows.values, rows),),
                "value",
                self._whole(serializer),
            )

        def whole(rows: pa.Array) -> Sequence[pa.Array] | None:
            column = read_column(serializer, rows) if self._reads_whole else None
            found: Sequence[pa.Array] | None = None if column is None or column.null_count else column.flatten()
            return found

        def arrays(rows: CanonicalBatch) -> Sequence[pa.Array]:
            found: Sequence[TtlValue[Any]] = self._read(serializer, rows.values, rows)
            values = self._array(form, [one.value for one in found], rows)
            return values, _TIMES.array([one.last_access_timestamp for one in found])

        return _Columns({"value": form, "last_access_ms": _TIMES}, arrays, "value", whole)

    def _lists(self, element: TypeSerializer[Any], storage: TypeSerializer[Any]) -> _Columns:
        if isinstance(element, UnknownSerializer):
            chunks = ListForm(_bytes_form(element))
            return _Columns({"value": chunks}, lambda rows: (chunks.array(rows.values),), "value")
        timed = _timed_part(element)
        form = ListForm(self._forms.of(element if timed is None else timed.value_serializer))

        def lists(rows: ListRows) -> list[list[Any]]:
            read = iter(self._read(storage, list(chain.from_iterable(rows.values)), rows))
            return [[one for _ in chunks for one in next(read)] for chunks in rows.values]

        if timed is None:
            return _Columns({"value": form}, lambda rows: (self._array(form, lists(rows), rows),), "value")
        times = ListForm(_TIMES)

        def arrays(rows: ListRows) -> Sequence[pa.Array]:
            found: Sequence[Sequence[TtlValue[Any]]] = lists(rows)
            values = self._array(form, [[one.value for one in own] for own in found], rows)
            return values, times.array([[one.last_access_timestamp for one in own] for own in found])

        return _Columns({"value": form, "last_access_ms": times}, arrays, "value")

    def _timers(self, element: TimerSerializer[Any, Any]) -> _Columns:
        key, namespace = self._forms.of(element.key_serializer), self._forms.of(element.namespace_serializer)
        forms: dict[str, ColumnForm] = {"key": key, "namespace": namespace, "value": _TIMES}
        if isinstance(element.namespace_serializer, VoidNamespaceSerializer):
            del forms["namespace"]

        def arrays(rows: CanonicalBatch) -> Sequence[pa.Array]:
            found = self._read(element, rows.keys, rows)
            columns = {
                "key": [one.key for one in found],
                "namespace": [one.namespace for one in found],
                "value": [one.timestamp for one in found],
            }
            return [self._array(form, columns[name], rows) for name, form in forms.items()]

        return _Columns(forms, arrays, "key")

    def _decoded(
        self, form: ColumnForm, serializer: TypeSerializer[Any], cells: Sequence[bytes | None], rows: _Rows
    ) -> pa.Array:
        return self._array(form, self._read(serializer, cells, rows), rows)

    def _read(self, serializer: TypeSerializer[Any], cells: Sequence[bytes | None], rows: _Rows) -> list[Any]:
        read = serializer.codec.read
        values: list[Any] = []
        try:
            for cell in cells:
                value, end = read(cell, 0)  # type: ignore[arg-type]
                if end != len(cell):  # type: ignore[arg-type]
                    break
                values.append(value)
        except Exception as error:
            # A custom serializer may raise anything for invalid bytes.
            raise self._unreadable(serializer, cells, rows) from error
        if len(values) != len(cells):
            raise self._unreadable(serializer, cells, rows)
        return values

    def _unreadable(
        self, serializer: TypeSerializer[Any], cells: Sequence[bytes | None], rows: _Rows
    ) -> StateRestoreError:
        reason = "an entry cannot be read"
        for cell in cells:
            try:
                if cell is None:
                    reason = "a row lacks what an entry of this kind has"
                    break
                serializer.from_bytes(cell)
            except Exception as error:
                reason = f"an entry cannot be read: {str(error) or type(error).__name__}"
                break
        return StateRestoreError(f"{self._where(rows)}: {reason}")

    def _array(self, form: ColumnForm, values: Sequence[Any], rows: _Rows) -> pa.Array:
        try:
            return form.array(values)
        except ColumnValueError as error:
            raise ColumnValueError(f"{self._where(rows)}: {error}") from error

    def _where(self, rows: _Rows) -> str:
        first, last = rows.key_groups[0], rows.key_groups[-1]
        groups = f"key group {first}" if first == last else f"key groups {first} to {last}"
        return f"state {self._schema.name!r}, {groups}"


def _timed_part(serializer: TypeSerializer[Any]) -> TtlSerializer[Any] | None:
    # In a map it is inside a nullable serializer.
    inner = serializer.inner if isinstance(serializer, NullableSerializer) else serializer
    return inner if isinstance(inner, TtlSerializer) else None


def _bytes_form(unknown: UnknownSerializer) -> ScalarForm:
    return ScalarForm(pa.binary(), None, f"bytes as they are stored: {unknown.reason}")


def _stored(name: str, unknown: UnknownSerializer, cells: _Cells, source: str) -> _Columns:
    form = _bytes_form(unknown)
    return _Columns({name: form}, lambda rows: (form.array(cells(rows)),), source, lambda column: (column,))


_TIMES: Final = ScalarForm(pa.int64())
_GROUPS: Final = ScalarForm(pa.int32())
_KEY_GROUP: Final = _Columns(
    {"key_group": _GROUPS}, lambda rows: (_GROUPS.array(rows.key_groups),), "key_group", lambda column: (column,)
)

_PARTS_OF: Final[Mapping[TableForm | None, Callable[[_TableMaker], Iterator[_Columns]]]] = {
    TableForm.VALUE: _TableMaker.values,
    TableForm.LIST: _TableMaker.lists,
    TableForm.MAP: _TableMaker.maps,
    None: _TableMaker.elements,
}
"""The columns by the form of the state; None is a priority queue."""
