"""The times of last access of values and of lists whose elements have one each, where plans change or merge them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statebackend.api.clock import wall_clock

__all__ = ["latest_time", "time_or_now", "times_behind", "times_of_elements"]


def times_behind(before: Sequence[Any], after: Any, times: Sequence[int]) -> tuple[int, ...]:
    """The times of last access of a list that a function has made of another one: ``before`` is a copy of that.

    The same list keeps its times. Nobody knows which elements of another one were which: all have the latest time, so
    that none is gone earlier than it would have been.
    """
    if not isinstance(after, (list, tuple)):
        return tuple(times)
    try:
        is_same = list(after) == list(before)
    except Exception:
        # Elements may be anybody's, and not comparable.
        is_same = False
    return tuple(times) if is_same else (max(times, default=0),) * len(after)


def latest_time(times: int | Sequence[int]) -> int:
    """The latest time there is; of a list that becomes one value, that of its elements."""
    return times if isinstance(times, int) else max(times, default=0)


def times_of_elements(elements: Sequence[Any], times: int | Sequence[int]) -> Sequence[int]:
    """The time of each element: one for all, or, where the list has grown or shrunk, the last of those it had."""
    if isinstance(times, int):
        return [times] * len(elements)
    return times if len(times) == len(elements) else [max(times, default=0)] * len(elements)


def time_or_now(time_ms: int | None) -> int:
    """The time, and that of this moment if there is none: what is given begins to live, and is not gone already."""
    return wall_clock() if time_ms is None else time_ms
