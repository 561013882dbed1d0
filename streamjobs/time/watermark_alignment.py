"""Who has to wait for whom: sources of one group that may not get further ahead of the slowest than a drift.

The members of a group report their watermarks: a source, or each split of one. What is allowed is the smallest of them
plus the drift; a member that is beyond it pauses until the others have come closer.

| event                      | what it means                                                          |
|----------------------------|------------------------------------------------------------------------|
| watermark T of a member    | it is active, and at T if that is later than before                    |
| idle                       | nobody waits for it, and it does not pause                             |
| leave                      | it is forgotten                                                        |

A member that has reported nothing yet holds nobody and does not pause. If nobody is active there is no limit. Time does
not run for whoever pauses: the caller must not count the pause as idleness.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from checkpointing.errors import IllegalTransitionError
from snapshots.value_text import shown
from streamjobs.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, clamped
from streamjobs.time.watermark_elements import check_timestamp

__all__ = ["AlignmentGroup"]

C = TypeVar("C", bound=Hashable)


class AlignmentGroup(Generic[C]):
    """The members of one group, by any hashable names; ``max_drift_ms`` is not negative (`ValueError`)."""

    def __init__(self, max_drift_ms: int) -> None:
        check_timestamp("the drift of an alignment group", max_drift_ms)
        if max_drift_ms < 0:
            raise ValueError(f"the drift of an alignment group is {max_drift_ms} ms; it must not be negative")
        self._max_drift_ms = max_drift_ms
        self._active: dict[C, int] = {}
        self._idle: dict[C, int] = {}

    def watermark(self, member: C, timestamp_ms: int) -> None:
        """A member is active and at this watermark; the smallest time is none. Raises `ValueError` for no time."""
        check_timestamp("a watermark", timestamp_ms)
        former_ms = self._idle.pop(member, self._active.get(member, MIN_TIMESTAMP))
        if max(former_ms, timestamp_ms) > MIN_TIMESTAMP:
            self._active[member] = max(former_ms, timestamp_ms)

    def idle(self, member: C) -> None:
        """A member is not to be waited for, until it reports a watermark again."""
        self._idle[member] = self._active.pop(member, self._idle.get(member, MIN_TIMESTAMP))

    def leave(self, member: C) -> None:
        """Forgets a member. Raises `IllegalTransitionError` for one that never reported."""
        if self._active.pop(member, None) is None and self._idle.pop(member, None) is None:
            raise IllegalTransitionError("LEAVE", "RUNNING", f"{shown(member)} is no member of the group")

    @property
    def allowed_ms(self) -> int:
        """The largest watermark that does not pause: the end of time where there is no limit."""
        if not self._active:
            return MAX_TIMESTAMP
        return clamped(min(self._active.values()) + self._max_drift_ms)

    def paused(self) -> frozenset[C]:
        """The members that are to pause now; all others are to go on."""
        allowed_ms = self.allowed_ms
        return frozenset(member for member, watermark_ms in self._active.items() if watermark_ms > allowed_ms)
