"""The places of a table, for the incremental clean-up of state with time-to-live.

The keys are listed when a pass begins, unsorted, which takes a few nanoseconds for each; a step costs nothing. Where
the pass begins follows from the time: dicts keep their keys in the order in which they came, and the first may well be
those that live on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from statebackend.heap.table import HeapTable

_SCATTER: Final = 0x9E3779B97F4A7C15


def places_of_table(table: HeapTable, now_ms: int) -> Iterator[tuple[int, Any]]:
    """Key groups and entry keys of what is stored; keys that came or went meanwhile may be missing or stale."""
    table.take_in_groups()
    keys, groups = list(table.history.live), table.history.groups
    begin = (((now_ms * _SCATTER) & 0xFFFFFFFFFFFFFFFF) >> 32) % len(keys) if keys else 0
    for part in (range(begin, len(keys)), range(begin)):
        for place in part:
            key_group = groups.get(keys[place])
            if key_group is not None:
                yield key_group, keys[place]
