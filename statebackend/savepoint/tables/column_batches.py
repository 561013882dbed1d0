"""Makes the table of a keyed state from rows as columns: whole columns at a time where possible, else entry by entry.

The result equals that of `TabularState`: same columns, values and order. Only requested columns are read, and `needed`
maps them to columns of rows. `read_column` decodes a column of many types at once. `TabularState` decodes all other
columns, lists and queues, and reports what is wrong with unreadable bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
from attrs import frozen

from snapshots.errors import StateFormatError
from statebackend.savepoint.column_codecs import read_column
from statebackend.savepoint.tables.state_tables import BATCH_BYTES, BATCH_ROWS, TabularState, bounded_columns
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.state.canonical import SCHEMA, CanonicalBatch
from statebackend.state.descriptors import USER_KEY_ROLE
from statebackend.state.state_kind import StateKind, TableForm
from statebackend.state.state_meta import KeyedStateMeta, StateMeta
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["ColumnBatches"]

_Arrays: TypeAlias = "Mapping[str, pa.Array] | None"
_ReadWhole: TypeAlias = Callable[[pa.BinaryArray], _Arrays]

_SOURCES: Final[Mapping[str, str]] = {"last_access_ms": "value"}
"""The column of rows that a table column is made from, if its name differs."""

_IN_ROWS: Final = frozenset({TableForm.VALUE, TableForm.MAP})
"""Forms with one entry per row, whose columns can be decoded separately."""


@frozen
class ColumnBatches:
    """Makes selected columns of a state's table. Cheap to create."""

    table: TabularState
    _form: TableForm | None
    _whole: Mapping[str, _ReadWhole]

    @classmethod
    def of(
        cls,
        meta: KeyedStateMeta,
        state: StateMeta,
        forms: ColumnForms | None = None,
        known: Sequence[TypeSerializer[Any]] = (),
    ) -> ColumnBatches:
        """Return the table of a state of a subtask. ``known`` are serializers of the program, as in `TabularState`."""
        table = TabularState.of(meta, state, known, forms)
        # A custom form may hold other values in the same type.
        is_whole = state.form in _IN_ROWS and not (forms is not None and forms.added)
        return cls(table, state.form, _whole_readers(meta, state) if is_whole else {})

    def needed(self, columns: Sequence[str]) -> Sequence[str]:
        """Return the columns of rows that are needed for these table columns."""
        if self._form is None:
            return ("key_group",) if set(columns) <= {"key_group"} else ("key_group", "key")
        sources = {"key_group", *(_SOURCES.get(name, name) for name in columns)}
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
        """Yield these columns from rows with the `needed` columns. Bounded and raising as `TabularState.batches`."""
        if self._form is TableForm.LIST or (self._form is None and set(columns) > {"key_group"}):
            selected = self.table.selected(columns)
            for batch in selected.batches(map(_filled, rows), max_rows=max_rows, max_bytes=max_bytes):
                yield batch.select(list(columns))
            return
        schema = pa.schema([self.table.schema.field(name) for name in columns], self.table.schema.metadata)
        for batch in bounded_columns(rows, max_rows, max_bytes):
            yield pa.record_batch(self._arrays(batch, columns), schema=schema)

    def _arrays(self, rows: pa.RecordBatch, columns: Sequence[str]) -> list[pa.Array]:
        arrays: dict[str, pa.Array] = {"key_group": rows.column("key_group")}
        for name in columns:
            if name in arrays:
                continue
            source = _SOURCES.get(name, name)
            read = self._whole.get(source)
            found = None if read is None else read(rows.column(source))
            if found is None or any(one.type != self.table.schema.field(key).type for key, one in found.items()):
                made = pa.Table.from_batches(self.table.selected([name]).batches([_filled(rows)])).combine_chunks()
                found = {key: made.column(key).chunk(0) for key in made.column_names}
            arrays.update(found)
        return [arrays[name] for name in columns]


def _filled(rows: pa.RecordBatch) -> CanonicalBatch:
    """Return rows with all columns; unneeded ones hold empty bytes."""
    present = set(rows.schema.names)
    columns: list[Any] = [
        rows.column(name).to_pylist() if name in present else [b""] * rows.num_rows for name in SCHEMA.names
    ]
    return CanonicalBatch(*columns)


def _whole_readers(meta: KeyedStateMeta, state: StateMeta) -> Mapping[str, _ReadWhole]:
    """Return the whole-column decoders by column of rows. A serializer that cannot be restored here has none."""
    readers: dict[str, _ReadWhole] = {}
    snapshots = {"key": meta.key_snapshot, "namespace": state.namespace_snapshot}
    if USER_KEY_ROLE in state.role_snapshots:
        snapshots["user_key"] = state.role_snapshots[USER_KEY_ROLE]
    for name, snapshot in snapshots.items():
        serializer = _restored(snapshot)
        if serializer is not None:
            readers[name] = _plain(name, serializer)
    roles = {role: _restored(snapshot) for role, snapshot in state.role_snapshots.items()}
    if isinstance(state.kind, StateKind) and None not in roles.values():
        readers["value"] = _stored(state.kind.storage_serializer(roles))
    return readers


def _restored(snapshot: Any) -> Any:
    try:
        return snapshot.restore_serializer()
    except StateFormatError:
        return None


def _plain(name: str, serializer: TypeSerializer[Any]) -> _ReadWhole:
    def read(data: pa.BinaryArray) -> _Arrays:
        column = read_column(serializer, data)
        return None if column is None else {name: column}

    return read


def _stored(serializer: TypeSerializer[Any]) -> _ReadWhole:
    """Return the decoder of stored values, with their time of last access."""
    # In a map it is inside a nullable serializer.
    inner = serializer.inner if isinstance(serializer, NullableSerializer) else serializer
    if not isinstance(inner, TtlSerializer):
        return _plain("value", serializer)

    def read(data: pa.BinaryArray) -> _Arrays:
        column = read_column(serializer, data)
        if column is None or column.null_count:
            return None
        values, times = column.flatten()
        return {"value": values, "last_access_ms": times}

    return read
