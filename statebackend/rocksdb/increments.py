"""Merging increments: the sorted files of some epochs become one that says the same.

For each key the last file that has it decides. A temporary database finds that out: the files are ingested in order,
and what is alive in it are the keys whose last word is a value. A key that is marked as deleted in one of the files and
is not alive was deleted last; the merged file deletes it too, since an older file may still have it, and marks it.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Iterator, Sequence
from operator import itemgetter

from statebackend.rocksdb.cached_state import Change
from statebackend.rocksdb.composite_key import DELETION_MARK
from statebackend.rocksdb.engine import ColumnFamily, RocksDBEngine, SstWriter

_FIRST_KEY = b"\x00"


def marks_of(keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[bytes]:
    """The keys of a mark for every deletion among changes, which come behind all of them."""
    return [DELETION_MARK + key for key, value in zip(keys, values, strict=True) if value is None]


def merge_increments(paths: Sequence[str], directory: str, target: str) -> SstWriter | None:
    """Writes what the increments, given in order, say together; None if that is nothing.

    Takes the files as its own. ``directory`` is for the temporary database, on the same device. Memory does not grow
    with the files.
    """
    store = RocksDBEngine(os.path.join(directory, "merging"))
    try:
        family = store.column_family("increments")
        for path in paths:
            family.ingest(path)
        writer = SstWriter(target)
        deletions: Iterator[Change] = ((mark[len(DELETION_MARK) :], None) for mark in _last_marks(family))
        writer.write(heapq.merge(_alive(family), deletions, key=itemgetter(0)))
        writer.write((mark, b"") for mark in _last_marks(family))
    finally:
        store.close()
    if not writer.entry_count:
        return None
    writer.finish()
    return writer


def _alive(family: ColumnFamily) -> Iterator[Change]:
    return itertools.takewhile(lambda entry: not entry[0].startswith(DELETION_MARK), family.scan(_FIRST_KEY))


def _last_marks(family: ColumnFamily) -> Iterator[bytes]:
    """The marks of the keys that were deleted last, in order."""
    return (mark for mark, _ in family.scan_prefix(DELETION_MARK) if _is_deleted(family, mark[len(DELETION_MARK) :]))


def _is_deleted(family: ColumnFamily, raw_key: bytes) -> bool:
    try:
        return family.get(raw_key) is None
    except Exception as error:
        family.reading_failed(error)
