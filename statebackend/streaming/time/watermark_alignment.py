"""Who has to wait for whom: sources of one group, none of which gets further ahead of the slowest than its drift.

The members of a group, sources or splits of them, report their watermarks. A member may be as far as the smallest of
them plus its own drift; beyond that it pauses until the others have come closer.

| event                      | what it means                                                |
|----------------------------|--------------------------------------------------------------|
| join                       | a member, with its drift; it holds nobody until it reports   |
| watermark T of a member    | it is active, and at T if that is later than before          |
| idle                       | nobody waits for it, and it does not pause                   |
| leave                      | it is forgotten                                              |

If nobody is active and has a watermark there is no limit. Time does not run for whoever pauses: the caller must not
count the pause as idleness.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from snapshots.errors import shown
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, clamped
from statebackend.streaming.time.watermark_generators import check_timestamp

__all__ = ["AlignmentGroup"]

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

    What does not belong here raises `IllegalTransitionError`, what is no time `ValueError`, and changes nothing.
    """

    def __init__(self) -> None:
        self._members: dict[C, _Member] = {}

    def join(self, member: C, max_drift_ms: int) -> None:
        """A further member, which may be ahead of the slowest by its drift; that is not negative (`ValueError`)."""
        check_timestamp("the drift of a member", max_drift_ms)
        if max_drift_ms < 0:
            raise ValueError(f"the drift of {shown(member)} is {max_drift_ms} ms; it must not be negative")
        if member in self._members:
            raise IllegalTransitionError("JOIN", "RUNNING", f"{shown(member)} is a member of the group already")
        self._members[member] = _Member(max_drift_ms)

    def watermark(self, member: C, timestamp_ms: int) -> None:
        """A member is active and at this watermark; the smallest time is none."""
        one = self._member(member, "WATERMARK")
        check_timestamp("a watermark", timestamp_ms)
        one.is_idle = False
        one.watermark_ms = max(one.watermark_ms, timestamp_ms)

    def idle(self, member: C) -> None:
        """A member is not to be waited for, until it reports a watermark again."""
        self._member(member, "IDLE").is_idle = True

    def leave(self, member: C) -> None:
        """Forgets a member."""
        self._member(member, "LEAVE")
        del self._members[member]

    def allowed_ms(self, member: C) -> int:
        """The largest watermark with which a member does not pause: the end of time where there is no limit."""
        drift_ms = self._member(member, "ALLOWED").max_drift_ms
        return clamped(self._slowest_ms() + drift_ms)

    def paused(self) -> frozenset[C]:
        """The members that are to pause now; all others are to go on."""
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
            raise IllegalTransitionError(event, "RUNNING", f"{shown(member)} is no member of the group")
        return one
