"""Sessions of two keys that become one key: which of them a plan can lay side by side.

A key has one list of its sessions, pairs of a window and of the window that its records are kept under. No two of them
overlap or touch: a job makes one session of such, with what both hold and one timer. A plan changes state by state, and
cannot. Laid side by side all the same, each would fire at its own end with the records of both, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from snapshots.value_text import shown
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.windows import TimeWindow, TimeWindowSerializer

__all__ = ["are_sessions", "overlap_of_sessions"]

Pair = tuple[TimeWindow, TimeWindow]

_PAIR_OF_WINDOWS = TupleSerializer((TimeWindowSerializer(), TimeWindowSerializer()))


def are_sessions(serializers: Mapping[str, TypeSerializer[Any]]) -> bool:
    """Whether the elements of a list with these serializers are sessions."""
    return list(serializers.values()) == [_PAIR_OF_WINDOWS]


def overlap_of_sessions(sessions: Sequence[Pair]) -> str | None:
    """Which two of a key's sessions would have to be one, with what to do; None if there are no such."""
    for (one, _), (other, _) in pairwise(sorted(sessions)):
        if other.start <= one.end:
            return (
                f"the sessions {shown(one)} and {shown(other)} would be one, and a plan cannot unite what they hold. "
                f"Let them end first (stop the job with drain=True), or leave one out in all states (keep_entries)"
            )
    return None
