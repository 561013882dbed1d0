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

from statebackend.api.key_groups import KeyGroupRange
from statebackend.canonical.canonical_entries import Address
from statebackend.rocksdb.composite_key import KEY_GROUP
from statebackend.ttl.expiry import Expiry

CHUNK_ROWS: Final = 256


def places_of_rows(
    scan: Callable[[bytes], Iterator[tuple[bytes, bytes]]],
    key_groups: KeyGroupRange,
    split: Callable[[bytes], tuple[int, bytes, bytes, bytes]],
    begin: bytes,
    expiry: Expiry,
) -> Iterator[Address | None]:
    """The addresses of rows that may have expired, None for other rows; ``begin`` is a raw key or the start of one.

    ``scan`` gives the rows from a raw key on.
    """
    expired_filter = expiry.filters()
    first, last = KEY_GROUP.pack(key_groups.start), KEY_GROUP.pack(key_groups.end + 1)
    for start, end in ((begin, last), (first, min(begin, last))):
        position = start
        while position < end:
            rows = list(itertools.islice(scan(position), CHUNK_ROWS))
            row_filter = expired_filter()
            for raw_key, value in rows:
                if raw_key >= end:
                    break
                yield None if row_filter(value) is value else split(raw_key)[:3]
            position = rows[-1][0] + b"\0" if len(rows) == CHUNK_ROWS else end
