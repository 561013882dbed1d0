"""Leaving expired entries out of what is written whole: a savepoint, or the new base of a state.

A row filter works on the canonical bytes of a row's value (see `statebackend.canonical.canonical_entries`), so it is
the same for every backend. It is made for one snapshot, with the time of its beginning, and has nothing that changes:
snapshots that are under way at once share nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from statebackend.api.descriptors import StateKind
from statebackend.api.errors import StateRestoreError
from statebackend.canonical.canonical_entries import CanonicalBatch
from typeserializers.containers.ttl import TtlSerializer

RowFilter = Callable[[bytes], "bytes | None"]
"""From the value of a row to the value to write: itself, a list chunk with fewer elements, or None for no row."""

Row = TypeVar("Row", bound=tuple[Any, ...])

_TIMESTAMP: Final = struct.Struct(">q")
_FLAG_AND_TIMESTAMP: Final = struct.Struct(">bq")
_COUNT: Final = struct.Struct(">i")


def expired_row_filter(kind: StateKind, serializer: TtlSerializer[Any], ttl_ms: int, now_ms: int) -> RowFilter:
    """The filter of what has expired at ``now_ms``; ``serializer`` is that of the values, elements or accumulators.

    It raises `StateRestoreError` for bytes that cannot be such a value.
    """
    expires = _FILTERS.get(kind, _value_filter)(serializer, now_ms - ttl_ms)

    def row_filter(value: bytes) -> bytes | None:
        try:
            return expires(value)
        except Exception as error:
            raise StateRestoreError(f"a stored value cannot be read by {serializer!r}: {error}") from error

    return row_filter


def kept_rows(row_filter: RowFilter | None, rows: Iterable[Row]) -> Iterable[Row]:
    """The rows to write: tuples of any length whose last item is the value."""
    return rows if row_filter is None else _kept_rows(row_filter, rows)


def _kept_rows(row_filter: RowFilter, rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        value = row_filter(row[-1])
        if value is row[-1]:
            yield row
        elif value is not None:
            changed: Any = (*row[:-1], value)
            yield changed


def kept_batches(row_filter: RowFilter | None, batches: Iterable[CanonicalBatch]) -> Iterable[CanonicalBatch]:
    """The same for batches of canonical rows; batches of which nothing is left are dropped."""
    return batches if row_filter is None else _kept_batches(row_filter, batches)


def _kept_batches(row_filter: RowFilter, batches: Iterable[CanonicalBatch]) -> Iterator[CanonicalBatch]:
    for batch in batches:
        rows = list(_kept_rows(row_filter, zip(*batch, strict=True)))
        if rows:
            yield CanonicalBatch(*(list(column) for column in zip(*rows, strict=True)))


def _value_filter(serializer: TtlSerializer[Any], last_expired_ms: int) -> RowFilter:
    read_timestamp = _TIMESTAMP.unpack_from
    return lambda value: value if read_timestamp(value)[0] > last_expired_ms else None


def _map_filter(serializer: TtlSerializer[Any], last_expired_ms: int) -> RowFilter:
    read = _FLAG_AND_TIMESTAMP.unpack_from
    return lambda value: value if read(value)[1] > last_expired_ms else None


def _list_filter(serializer: TtlSerializer[Any], last_expired_ms: int) -> RowFilter:
    read_timestamp, read_value = _TIMESTAMP.unpack_from, serializer.value_serializer.codec.read

    def filter_chunk(chunk: bytes) -> bytes | None:
        count, position, kept = _COUNT.unpack_from(chunk)[0], _COUNT.size, []
        for _ in range(count):
            start = position
            position = read_value(chunk, start + _TIMESTAMP.size)[1]
            if read_timestamp(chunk, start)[0] > last_expired_ms:
                kept.append(chunk[start:position])
        if position != len(chunk):
            raise StateRestoreError(f"the elements end at byte {position} of {len(chunk)}")
        if len(kept) == count:
            return chunk
        return _COUNT.pack(len(kept)) + b"".join(kept) if kept else None

    return filter_chunk


_FILTERS: Final[dict[StateKind, Callable[[TtlSerializer[Any], int], RowFilter]]] = {
    StateKind.MAP: _map_filter,
    StateKind.LIST: _list_filter,
}
