"""The entries of one keyed state: one by one as objects, or as tables of Arrow.

    entries = Savepoint.open(path).read("aircraft", "legs")
    for entry in entries: ...            objects, see `reading.stored_entries`; every iteration reads anew
    entries.to_arrow()                   pyarrow.Table of all of them, columns as `tabular.state_tables` says
    entries.to_arrow_batches()           the same in batches of bounded size, for state larger than memory
    entries.to_pandas()                  a DataFrame, where pandas is installed

Nothing is read before it is asked for, and nothing is kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from attrs import frozen

from checkpointing.errors import SavepointError
from savepoints.reading.plain_entries import plain_entry
from savepoints.reading.plain_values import printed_value
from savepoints.reading.stored_entries import EntryReader, StateEntry
from savepoints.reading.stored_types import StateCondition
from savepoints.shown_sizes import counted
from savepoints.tabular.column_batches import ColumnBatches
from savepoints.tabular.known_forms import ColumnForms
from savepoints.tabular.state_tables import BATCH_BYTES, BATCH_ROWS
from statebackend.canonical.canonical_entries import CanonicalBatch
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["EntriesPart", "StateEntries"]


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
