"""The places of a table, for the incremental clean-up of state with time-to-live.

No keys are sorted, and at most those of one key group are listed at a time, so that beginning a pass costs the size of
a key group, and a step next to nothing: the time of a value is looked at where it lies. The first key group is that of
the current key. Where in it the pass begins follows from the time: its keys are listed in the order in which they came,
and the first may well be those that live on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from statebackend.api.clock import Clock
from statebackend.heap.entry_table import HeapTable
from statebackend.kinds.state_kind import TableForm

_SCATTER: Final = 0x9E3779B97F4A7C15

_LONG_AGO: Final = -(1 << 64)


def places_of_table(
    table: HeapTable, form: TableForm, first_group: int, clock: Clock, ttl_ms: int
) -> Iterator[tuple[int, Any] | None]:
    """Key groups and entry keys of what is stored, None for a value that has not expired.

    Keys that came or went meanwhile may be missing or stale.
    """
    offset = ((clock() * _SCATTER) & 0xFFFFFFFFFFFFFFFF) >> 32
    time_of = _time_of_bytes if table.form.is_encoded else _time_of_object
    if form is not TableForm.VALUE:
        time_of = _long_ago
    live = table.history.live
    for key_group, keys in table.live_keys(first_group):
        begin = offset % len(keys) if keys else 0
        last_expired_ms = clock() - ttl_ms
        for part in (keys[begin:], keys[:begin]):
            for key in part:
                stored = live.get(key)
                is_alive = stored is None or time_of(stored) > last_expired_ms
                yield None if is_alive else (key_group, key)
        # Only the first group is begun in the middle: a pass that comes this far will see the others whole.
        offset = 0


def _time_of_object(stored: Any) -> int:
    timestamp: int = stored.last_access_timestamp
    return timestamp


def _time_of_bytes(stored: bytes) -> int:
    return int.from_bytes(stored[:8], "big", signed=True)


def _long_ago(stored: Any) -> int:
    """For lists and maps, which are looked into by the handle."""
    return _LONG_AGO
