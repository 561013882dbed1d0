"""The places of a table, for the incremental clean-up of state with time-to-live.

No keys are sorted, and at most those of one key group are listed at a time, so that beginning a pass costs the size of
a key group, and a step nothing. The first key group is that of the current key. Where in it the pass begins follows
from the time: its keys are listed in the order in which they came, and the first may well be those that live on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from statebackend.heap.table import HeapTable

_SCATTER: Final = 0x9E3779B97F4A7C15


def places_of_table(table: HeapTable, first_group: int, now_ms: int) -> Iterator[tuple[int, Any]]:
    """Key groups and entry keys of what is stored; keys that came or went meanwhile may be missing or stale."""
    offset = ((now_ms * _SCATTER) & 0xFFFFFFFFFFFFFFFF) >> 32
    for key_group, keys in table.live_keys(first_group):
        begin = offset % len(keys) if keys else 0
        yield from [(key_group, key) for key in keys[begin:]]
        yield from [(key_group, key) for key in keys[:begin]]
        # Only the first group is begun in the middle: a pass that comes this far will see the others whole.
        offset = 0
