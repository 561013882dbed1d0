"""What changes do: the rows to be written, and by how much the digest of the content changes.

What is stored under a changed key is known where the epoch has read it, and looked up where it has not. So the deletion
of a row that is not there costs a look-up at most: it leaves nothing behind, neither in the database nor in the
increment. A row that is written as it was leaves nothing behind in the digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add
from typing import Any

from statebackend.kinds.state_kind import RowFilter
from statebackend.rocksdb.cached_state import UNKNOWN, Drained, StoredRows
from statebackend.rocksdb.content_digest import ContentDigest


def effective_changes(
    drained: Drained, stored_rows: StoredRows, digest: ContentDigest, seed: int, expired: RowFilter | None
) -> tuple[list[bytes], list[bytes | None]]:
    """The raw keys to be written, in order, and their new values; takes what comes and goes into the digest.

    A row that ``expired`` says has expired is one that is not there, whether the clean-up has met it or not.
    """
    keys, values, stored = drained.keys, drained.values, drained.stored
    if drained.digest is not None:
        digest.total += drained.digest
        return _in_order(keys, values)
    is_in_order = UNKNOWN in stored
    if is_in_order:
        # Rows that lie beside each other are looked up after each other.
        known = dict(zip(keys, stored, strict=True))
        keys, values = _in_order(keys, values)
        stored = _looked_up(keys, list(map(known.__getitem__, keys)), stored_rows)
    if None in values and None in stored and (None, None) in zip(values, stored, strict=True):
        rows = zip(keys, values, stored, strict=True)
        keys, values, stored = _columns([row for row in rows if row[1] is not None or row[2] is not None])
    digest.add(seed, _rows(keys, values, expired))
    digest.take_away(seed, _rows(keys, stored, expired))
    # A sum has no order. Rows are sorted last, since those in the order of their making lie in memory in that order.
    return (keys, values) if is_in_order else _in_order(keys, values)


def _in_order(keys: list[bytes], values: list[bytes | None]) -> tuple[list[bytes], list[bytes | None]]:
    ordered = sorted(keys)
    value_of = dict(zip(keys, values, strict=True)).__getitem__
    return ordered, list(map(value_of, ordered))


def _looked_up(keys: list[bytes], stored: list[Any], stored_rows: StoredRows) -> list[bytes | None]:
    asked = [key for key, known in zip(keys, stored, strict=True) if known is UNKNOWN]
    found = iter(stored_rows.get_all(asked))
    return [next(found) if known is UNKNOWN else known for known in stored]


def _columns(rows: list[tuple[Any, Any, Any]]) -> tuple[list[Any], list[Any], list[Any]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def _rows(keys: list[bytes], values: list[bytes | None], expired: RowFilter | None) -> Iterable[bytes]:
    """The rows that are there; no address begins another, so a key and its value need nothing in between."""
    if expired is not None:
        values = [None if value is None else expired(value) for value in values]
    if None not in values:
        present: Any = values
        return map(add, keys, present)
    return [key + value for key, value in zip(keys, values, strict=True) if value is not None]
