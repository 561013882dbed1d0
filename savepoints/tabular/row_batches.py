"""Canonical rows in batches that are bounded, and the chunks of a list put together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from savepoints.reading.row_sizes import sizes_of_rows
from statebackend.canonical.canonical_entries import CanonicalBatch

__all__ = ["ListRows", "bounded", "bounded_columns", "whole_lists"]


class ListRows(NamedTuple):
    """Rows of list state, one for each list, as columns of equal length; a value is the chunks of a list."""

    key_groups: list[int]
    keys: list[bytes]
    namespaces: list[bytes]
    user_keys: list[bytes | None]
    values: list[list[bytes | None]]


Rows: TypeAlias = "CanonicalBatch | ListRows"


def whole_lists(batches: Iterable[CanonicalBatch]) -> Iterator[ListRows]:
    """The lists whose chunks are in these rows, which come sorted; memory holds a batch, and the list at its end."""
    held = ListRows([], [], [], [], [])
    for batch in batches:
        for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
            if held.keys and (held.key_groups[-1], held.keys[-1], held.namespaces[-1]) == (key_group, key, namespace):
                held.values[-1].append(value)
                continue
            held.key_groups.append(key_group)
            held.keys.append(key)
            held.namespaces.append(namespace)
            held.user_keys.append(user_key)
            held.values.append([value])
        # The last list may go on in the next batch.
        if len(held.keys) > 1:
            yield ListRows(*(column[:-1] for column in held))  # type: ignore[arg-type]
            held = ListRows(*(column[-1:] for column in held))  # type: ignore[arg-type]
    if held.keys:
        yield held


def bounded(batches: Iterable[Rows], max_rows: int, max_bytes: int) -> Iterator[Rows]:
    """The same rows, in batches of at most so many rows, and of so many bytes unless one row alone has more."""
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
    """As `bounded`, of rows as columns, which need not be all there."""
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
