"""Reads the entries that a caller passes to a plan, in batches of bounded size.

| Form | For |
|---|---|
| (key, value) | value, list (the whole list), reducing and aggregating state (the accumulator) |
| (key, user key, value) | map state, one map entry each |
| (key, milliseconds) | a timer |
| (key, namespace, ...) | the forms above in state with namespaces, such as windows |
| `StateEntry` | as `Savepoint.read` yields it, with its time of last access |
| pyarrow table, RecordBatchReader, batches | columns key, namespace, user_key, value |

A key of several columns is a tuple, or a struct in Arrow. The batch size adapts to the size of earlier rows: a few MiB,
but at most twice as many entries as in the last batch, and at most `_MOST_ENTRIES`, because large entries may follow
small ones. A larger single entry is its own batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import define, frozen

from snapshots.errors import format_value
from statebackend.savepoint.column_codecs import column_to_write
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import EntryError
from statebackend.savepoint.rewrite.entry_codec import EntryBatch, canonical_key
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.state.key_columns import moment_in_utc
from typeserializers.scalars.fixed_width import LongSerializer

_MOST_ENTRIES: Final = 1 << 10
_MOST_ROWS_OF_ARROW: Final = 1 << 15
_BYTES_AT_ONCE: Final = 4 << 20

_UNREADABLE: Final = (ValueError, OverflowError, pa.ArrowException)
"""The errors of pyarrow for a value that Python cannot represent."""


@frozen
class PlannedEntries:
    """Entries of one state. ``last_access_ms`` is the time of entries without one, in state with time-to-live."""

    entries: Iterable[Any]
    last_access_ms: int

    @property
    def left_out(self) -> Counter[int]:
        """Return no removed rows."""
        return Counter()

    def rows(self, schema: EntrySchema, placement: KeyPlacement | None) -> Iterator[pa.RecordBatch]:
        """Yield the entries as rows in the key groups of the placement. Raises as `EntryBatch.written`.

        Raises:
            EntryError: An item is not an entry of the state.
        """
        assert placement is not None
        # A table is already in memory, and its rows have about the same size, unless it is dictionary-encoded.
        pace = _Pace(_MOST_ENTRIES if isinstance(self.entries, pa.Table) else 1)
        for batch in self._batches(schema, pace):
            rows = batch.written(schema, placement)
            pace.add(rows)
            yield rows

    def _batches(self, schema: EntrySchema, pace: _Pace) -> Iterator[EntryBatch]:
        entries: Any = self.entries
        if isinstance(entries, pa.Table):
            entries = entries.to_batches()
        elif isinstance(entries, pa.RecordBatch):
            entries = [entries]
        if isinstance(entries, (Mapping, str, bytes)) or not isinstance(entries, Iterable):
            raise EntryError(
                f"state {schema.name!r}: {format_value(entries)} is not an iterable of entries; an entry is a tuple "
                f"({', '.join(schema.entry_columns)})"
            )
        source = iter(entries)
        first = list(itertools.islice(source, 1))
        are_batches = any(isinstance(one, pa.RecordBatch) for one in first)
        make = self._of_arrow if are_batches else self._of_entries
        return make(schema, itertools.chain(first, source), pace)

    def _of_entries(self, schema: EntrySchema, entries: Iterator[Any], pace: _Pace) -> Iterator[EntryBatch]:
        names = schema.entry_columns
        while chunk := list(itertools.islice(entries, pace.rows(_MOST_ENTRIES))):
            is_read = isinstance(chunk[0], StateEntry)
            columns = self._of_state_entries(schema, chunk) if is_read else _of_tuples(schema, names, chunk)
            yield self._with_times(schema, columns, len(chunk))

    def _of_state_entries(self, schema: EntrySchema, chunk: Sequence[Any]) -> dict[str, Sequence[Any]]:
        wrong = next((one for one in chunk if not isinstance(one, StateEntry)), None)
        if wrong is not None:
            raise EntryError(
                f"state {schema.name!r}: {format_value(wrong)} is among entries that were read; use one form"
            )
        columns: dict[str, Sequence[Any]] = {
            name: [getattr(entry, name) for entry in chunk] for name in schema.entry_columns
        }
        if schema.is_timed:
            columns["last_access_ms"] = self._without_none([entry.last_access_ms for entry in chunk])
        return columns

    def _of_arrow(self, schema: EntrySchema, batches: Iterator[Any], pace: _Pace) -> Iterator[EntryBatch]:
        for batch in batches:
            if not isinstance(batch, pa.RecordBatch):
                raise EntryError(
                    f"state {schema.name!r}: {format_value(batch)} is among batches of pyarrow; use one form"
                )
            yield from self._of_batch(schema, batch, pace)

    def _of_batch(self, schema: EntrySchema, batch: pa.RecordBatch, pace: _Pace) -> Iterator[EntryBatch]:
        names = batch.schema.names
        optional = ("last_access_ms",) if schema.is_timed and "last_access_ms" in names else ()
        wanted = (*schema.entry_columns, *optional)
        wrong = [
            f"{name} is {'missing' if name not in names else 'there twice'}"
            for name in wanted
            if names.count(name) != 1
        ]
        if wrong:
            raise EntryError(
                f"state {schema.name!r}: a table of its entries has the columns {', '.join(schema.entry_columns)}; "
                f"{', '.join(wrong)}, there are {', '.join(names) or 'none'}"
            )
        most = min(_MOST_ROWS_OF_ARROW, _fitting(batch))
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, pace.rows(most))
            start += piece.num_rows
            columns = {name: _values_of(piece, name, schema) for name in wanted}
            if optional:
                columns["last_access_ms"] = self._without_none(columns["last_access_ms"])
            yield self._with_times(schema, columns, piece.num_rows)

    def _without_none(self, times: Sequence[Any]) -> Sequence[Any]:
        if isinstance(times, pa.Array):
            filled: Sequence[Any] = times.fill_null(self.last_access_ms)
            return filled
        return [self.last_access_ms if one is None else one for one in times]

    def _with_times(self, schema: EntrySchema, columns: dict[str, Sequence[Any]], count: int) -> EntryBatch:
        if schema.is_timed and "last_access_ms" not in columns:
            columns["last_access_ms"] = [self.last_access_ms] * count
        return EntryBatch(schema, None, columns)


@define
class _Pace:
    """Chooses the next batch size from the bytes of the last rows."""

    _next: int = 1

    def add(self, rows: pa.RecordBatch) -> None:
        self._next = min(2 * self._next, _fitting(rows), _MOST_ROWS_OF_ARROW)

    def rows(self, most: int) -> int:
        return min(self._next, most)


def _fitting(rows: pa.RecordBatch) -> int:
    """Return the number of rows of this size for one batch."""
    size_bytes: int = rows.nbytes
    count: int = rows.num_rows
    return max(1, _BYTES_AT_ONCE * count // max(1, size_bytes))


def _of_tuples(schema: EntrySchema, names: Sequence[str], chunk: Sequence[Any]) -> dict[str, Sequence[Any]]:
    # Without this check a string of two characters, or a dict with two entries, would be read as a pair.
    is_row = all(issubclass(kind, (tuple, list)) for kind in set(map(type, chunk)))
    try:
        columns = list(zip(*chunk, strict=True)) if is_row else []
    except ValueError:
        columns = []
    if len(columns) != len(names):
        wrong = next((one for one in chunk if not (isinstance(one, (tuple, list)) and len(one) == len(names))), None)
        raise EntryError(
            f"state {schema.name!r}: {format_value(wrong)} is not an entry; an entry is a tuple ({', '.join(names)})"
        )
    return dict(zip(names, columns, strict=True))


def _values_of(batch: pa.RecordBatch, name: str, schema: EntrySchema) -> Sequence[Any]:
    column = batch.column(name)
    whole: Sequence[Any] | None = _column_to_write(column, name, schema)
    try:
        if whole is not None:
            # Text may be no UTF-8.
            column.validate(full=True)
            return whole
        return _python_values(column, is_key=name == "key")
    except _UNREADABLE:
        for row in range(len(column)):
            _reject_unreadable(batch.slice(row, 1), name, schema)
        raise


def _column_to_write(column: pa.Array, name: str, schema: EntrySchema) -> pa.Array | None:
    """Return a column that is written without a conversion to Python's values, or None."""
    if schema.is_queue and not schema.is_timers:
        return None
    if name in ("value", "last_access_ms") and schema.is_list and schema.is_timed:
        # Each element has a time.
        return None
    if name == "last_access_ms":
        return column_to_write(LongSerializer(), column)
    kind = column.type
    if not schema.is_queue and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind)):
        # A column of another width is converted later.
        return column
    if name == "key" and canonical_key(schema.key_serializer) is not None:
        return None
    return column_to_write(schema.values_of(name), column)


def _reject_unreadable(row: pa.RecordBatch, name: str, schema: EntrySchema) -> None:
    """Raise `EntryError` if Python cannot represent the row's value."""
    column = row.column(name)
    try:
        _python_values(column, is_key=name == "key")
    except _UNREADABLE as error:
        place = "" if name == "key" else f", key {_text_of(row.column('key'), is_key=True)}"
        raise EntryError(
            f"state {schema.name!r}{place}: the {name.replace('_', ' ')} does not fit: a column of {column.type} has "
            f"{_text_of(column)}, for which Python has no value. Cast the column, a time to microseconds"
        ) from error


def _text_of(row: pa.Array, *, is_key: bool = False) -> str:
    try:
        return format_value(_python_values(row, is_key=is_key)[0])
    except _UNREADABLE as error:
        try:
            return f"{row.cast(pa.string())[0]}"
        except _UNREADABLE:
            return f"a value ({error})"


def _python_values(column: pa.Array, *, is_key: bool) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if is_key and pa.types.is_struct(column.type):
        return [None if value is None else tuple(value.values()) for value in values]
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # A column holds instants; its zone is only for display.
        return [None if value is None else moment_in_utc(value) for value in values]
    return values
