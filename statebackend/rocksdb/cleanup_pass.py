"""The places of a state in RocksDB, for the incremental clean-up of state with time-to-live.

The rows are read a chunk at a time, in the order of the database, from the current key on to the end and then from the
beginning to where it began. No iterator stays open between two chunks. Whether a row may have expired is seen from its
bytes, so that the write-back cache is asked about such rows only. What an epoch has in the cache is not visited before
it is written out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

from statebackend.keyed.key_enumeration import Address
from statebackend.rocksdb.composite_key import KEY_GROUP
from statebackend.rocksdb.local_database import LocalDatabase, StateTable
from statebackend.ttl.row_filter import RowFilter

CHUNK_ROWS: Final = 256


def places_of_rows(
    database: LocalDatabase,
    table: StateTable,
    split: Callable[[bytes], tuple[int, bytes, bytes, bytes]],
    begin: bytes,
    expired_filter: Callable[[], RowFilter],
) -> Iterator[Address | None]:
    """The addresses of rows that may have expired, None for other rows; ``begin`` is a raw key or the start of one."""
    first = KEY_GROUP.pack(database.key_groups.start)
    last = KEY_GROUP.pack(database.key_groups.end + 1)
    for start, end in ((begin, last), (first, min(begin, last))):
        position = start
        while position < end:
            rows = list(itertools.islice(table.column_family.scan(position), CHUNK_ROWS))
            row_filter = expired_filter()
            for raw_key, value in rows:
                if raw_key >= end:
                    break
                yield None if row_filter(value) is value else split(raw_key)[:3]
            position = rows[-1][0] + b"\0" if len(rows) == CHUNK_ROWS else end
