"""Leaving expired entries out of what is written whole: a savepoint, or the new base of a state.

A row filter works on the canonical bytes of a row's value (see `statebackend.canonical.canonical_entries`), so it is
the same for every store. It is made for one snapshot, with the time of its beginning, and has nothing that changes:
snapshots that are under way at once share nothing. Where the time is in a row says the kind of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from statebackend.api.errors import StateRestoreError
from statebackend.canonical.canonical_entries import CanonicalBatch
from statebackend.kinds.state_kind import RowFilter, StateKind
from typeserializers.containers.ttl import TtlSerializer

AnyRow = TypeVar("AnyRow", bound=tuple[Any, ...])


def expired_row_filter(kind: StateKind, serializer: TtlSerializer[Any], ttl_ms: int, now_ms: int) -> RowFilter:
    """The filter of what has expired at ``now_ms``; ``serializer`` is that of the values, elements or accumulators.

    It raises `StateRestoreError` for bytes that cannot be such a value.
    """
    expires = kind.expired_rows(serializer, now_ms - ttl_ms)

    def row_filter(value: bytes) -> bytes | None:
        try:
            return expires(value)
        except Exception as error:
            raise StateRestoreError(f"a stored value cannot be read by {serializer!r}: {error}") from error

    return row_filter


def kept_rows(row_filter: RowFilter | None, rows: Iterable[AnyRow]) -> Iterable[AnyRow]:
    """The rows to write: tuples of any length whose last item is the value."""
    return rows if row_filter is None else _kept_rows(row_filter, rows)


def _kept_rows(row_filter: RowFilter, rows: Iterable[AnyRow]) -> Iterator[AnyRow]:
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
