"""Watermark alignment: which sources of a group must pause for slower ones.

The members of a group, sources or splits, report their watermarks. A member may be ahead of the smallest watermark by
its own drift; beyond that it pauses until the others have caught up.

| event                      | effect                                                       |
|----------------------------|--------------------------------------------------------------|
| join                       | a member with its drift; blocks no other until it reports    |
| watermark T of a member    | it is active, and at T if that is later than before          |
| idle                       | no member waits for it, and it does not pause                |
| leave                      | it is removed                                                |

Without an active member that has a watermark there is no limit. The caller must not count a pause as idleness.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from snapshots.errors import format_value
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import check_timestamp

C = TypeVar("C", bound=Hashable)


class _Member:
    __slots__ = ("is_idle", "max_drift_ms", "watermark_ms")

    def __init__(self, max_drift_ms: int) -> None:
        self.max_drift_ms = max_drift_ms
        self.watermark_ms = MIN_TIMESTAMP
        self.is_idle = False

    @property
    def is_awaited(self) -> bool:
        return not self.is_idle and self.watermark_ms > MIN_TIMESTAMP


class AlignmentGroup(Generic[C]):
    """The members of one group, by any hashable names.

    Impossible events raise `IllegalTransitionError`, invalid times `ValueError`; neither changes anything.
    """

    def __init__(self) -> None:
        self._members: dict[C, _Member] = {}

    def join(self, member: C, max_drift_ms: int) -> None:
        """Add a member, which may be ahead by its drift. Raises `ValueError` for a negative drift."""
        check_timestamp("the drift of a member", max_drift_ms)
        if max_drift_ms < 0:
            raise ValueError(f"the drift of {format_value(member)} is {max_drift_ms} ms; it must not be negative")
        if member in self._members:
            raise IllegalTransitionError("JOIN", "RUNNING", f"{format_value(member)} is a member of the group already")
        self._members[member] = _Member(max_drift_ms)

    def watermark(self, member: C, timestamp_ms: int) -> None:
        """Report the watermark of a member, which is now active. The smallest time means none."""
        one = self._member(member, "WATERMARK")
        check_timestamp("a watermark", timestamp_ms)
        one.is_idle = False
        one.watermark_ms = max(one.watermark_ms, timestamp_ms)

    def idle(self, member: C) -> None:
        """Do not wait for a member until it reports a watermark again."""
        self._member(member, "IDLE").is_idle = True

    def leave(self, member: C) -> None:
        """Remove a member."""
        self._member(member, "LEAVE")
        del self._members[member]

    def paused(self) -> frozenset[C]:
        """The members that must pause now."""
        slowest_ms = self._slowest_ms()
        return frozenset(
            name
            for name, one in self._members.items()
            if one.is_awaited and one.watermark_ms > slowest_ms + one.max_drift_ms
        )

    def _slowest_ms(self) -> int:
        return min((one.watermark_ms for one in self._members.values() if one.is_awaited), default=MAX_TIMESTAMP)

    def _member(self, member: C, event: str) -> _Member:
        one = self._members.get(member)
        if one is None:
            raise IllegalTransitionError(event, "RUNNING", f"{format_value(member)} is not a member of the group")
        return one
