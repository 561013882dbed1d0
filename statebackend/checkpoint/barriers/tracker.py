"""Barriers for at least once: channels are never blocked, and the snapshot is taken at the last barrier.

Records that other channels deliver between the first and the last barrier are in the snapshot, and come again after a
restore. Several checkpoints may be pending at once, each in its own row of the table. When the last barrier of one
arrives, older pending checkpoints are dropped, because the newer one replaces them. A cancelled checkpoint is
remembered until every channel has reported, so that no late barrier starts it again.

At most `MAX_TRACKED_CHECKPOINTS` are remembered; beyond that the oldest is dropped. A channel that ended counts as
reported for every checkpoint. Invariants: remembered ids are not newer than the newest id seen; an older id that is not
remembered is finished. This is Flink's `CheckpointBarrierTracker`. `docs/barrier-tables.md` is generated from it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from attrs import define, field

from statebackend.checkpoint.barriers.elements import (
    Abort,
    AbortReason,
    AlignmentTimedOut,
    BarrierAction,
    BarrierAnnounced,
    BarrierArrived,
    BarrierEvent,
    CancellationArrived,
    ChannelEnded,
    CheckpointBarrier,
    DataPassed,
    Resume,
    Trigger,
)
from statebackend.checkpoint.errors import IllegalTransitionError, InvariantViolationError
from statebackend.checkpoint.transition_tables import table_as_text

__all__ = [
    "AT_LEAST_ONCE_TRANSITIONS",
    "MAX_TRACKED_CHECKPOINTS",
    "BarrierTracker",
    "TrackedPhase",
    "TrackingEvent",
    "TrackingStep",
    "at_least_once_as_text",
]


class TrackedPhase(enum.Enum):
    """The phase of one checkpoint."""

    UNKNOWN = "newer than every checkpoint seen"
    COUNTING = "some of its barriers were received"
    CANCELLED = "it was aborted, and not all channels have reported"
    OVER = "it has ended"


class TrackingEvent(enum.Enum):
    """The meaning of an event for one checkpoint."""

    BARRIER = "one of its barriers was received, and others are missing"
    LAST_BARRIER = "the last of its barriers was received"
    CANCELLATION = "a channel cancels it, and others have not reported"
    LAST_CANCELLATION = "a channel cancels it, and all others have reported"
    CHANNEL_ENDED = "a channel ended, and others have not reported"
    LAST_CHANNEL_ENDED = "a channel ended, and all others have reported"


class TrackingStep(enum.Enum):
    """The steps; "it" is the checkpoint."""

    TRACK = "remember it"
    COUNT = "record the channel"
    ABORT_OLDER = "abort the older ones, each once, and forget them"
    ABORT = "give it up, and send that on"
    FORGET = "forget it and the older ones"
    TRIGGER = "take the snapshot, and send the barrier on"


_P, _E, _S = TrackedPhase, TrackingEvent, TrackingStep

AT_LEAST_ONCE_TRANSITIONS: Final[
    Mapping[tuple[TrackedPhase, TrackingEvent], tuple[TrackedPhase, tuple[TrackingStep, ...]]]
] = MappingProxyType(
    {
        (_P.UNKNOWN, _E.BARRIER): (_P.COUNTING, (_S.TRACK, _S.COUNT)),
        (_P.UNKNOWN, _E.LAST_BARRIER): (_P.OVER, (_S.TRACK, _S.TRIGGER, _S.FORGET)),
        (_P.UNKNOWN, _E.CANCELLATION): (_P.CANCELLED, (_S.TRACK, _S.ABORT_OLDER, _S.ABORT, _S.COUNT)),
        (_P.UNKNOWN, _E.LAST_CANCELLATION): (_P.OVER, (_S.TRACK, _S.ABORT_OLDER, _S.ABORT, _S.FORGET)),
        (_P.COUNTING, _E.BARRIER): (_P.COUNTING, (_S.COUNT,)),
        (_P.COUNTING, _E.LAST_BARRIER): (_P.OVER, (_S.TRIGGER, _S.FORGET)),
        (_P.COUNTING, _E.CANCELLATION): (_P.CANCELLED, (_S.ABORT_OLDER, _S.ABORT, _S.COUNT)),
        (_P.COUNTING, _E.LAST_CANCELLATION): (_P.OVER, (_S.ABORT_OLDER, _S.ABORT, _S.FORGET)),
        (_P.COUNTING, _E.CHANNEL_ENDED): (_P.COUNTING, (_S.COUNT,)),
        (_P.COUNTING, _E.LAST_CHANNEL_ENDED): (_P.OVER, (_S.TRIGGER, _S.FORGET)),
        (_P.CANCELLED, _E.BARRIER): (_P.CANCELLED, (_S.COUNT,)),
        (_P.CANCELLED, _E.LAST_BARRIER): (_P.OVER, (_S.FORGET,)),
        (_P.CANCELLED, _E.CANCELLATION): (_P.CANCELLED, (_S.COUNT,)),
        (_P.CANCELLED, _E.LAST_CANCELLATION): (_P.OVER, (_S.FORGET,)),
        (_P.CANCELLED, _E.CHANNEL_ENDED): (_P.CANCELLED, (_S.COUNT,)),
        (_P.CANCELLED, _E.LAST_CHANNEL_ENDED): (_P.OVER, (_S.FORGET,)),
        **{(_P.OVER, heard): (_P.OVER, ()) for heard in TrackingEvent},
    }
)
"""(phase, event) -> (next phase, steps); everything else is illegal."""


def at_least_once_as_text() -> str:
    """The table as Markdown, for the documentation."""
    return table_as_text(AT_LEAST_ONCE_TRANSITIONS, (TrackedPhase, TrackingEvent, TrackingStep))


MAX_TRACKED_CHECKPOINTS: Final = 50
"""The limit of pending checkpoints."""


@define
class _Tracked:
    """One checkpoint; ``barrier`` is None until a channel has delivered one."""

    phase: TrackedPhase
    heard: set[int]
    barrier: CheckpointBarrier | None = None
    first_ms: int = 0
    start_delay_ms: int = 0
    had_barrier: set[int] = field(factory=set)
    bytes_passed: int = 0


@define
class _Seen:
    """An event of a channel for one checkpoint; ``barrier`` is None for other events."""

    checkpoint_id: int
    channel: int
    barrier: CheckpointBarrier | None
    now_ms: int


class BarrierTracker:
    """The `BarrierHandler` for at least once."""

    blocked_channels: frozenset[int] = frozenset()
    captured_channels: frozenset[int] = frozenset()

    def __init__(self, channel_count: int) -> None:
        """Raise `InvariantViolationError` if there are no channels: a source does not wait for barriers."""
        if channel_count < 1:
            raise InvariantViolationError(
                f"a barrier handler needs at least one channel, and channel_count is {channel_count}"
            )
        self._open = set(range(channel_count))
        self._newest_id = -1
        self._tracked: dict[int, _Tracked] = {}

    @property
    def open_channels(self) -> frozenset[int]:
        return frozenset(self._open)

    @property
    def pending_checkpoint_ids(self) -> tuple[int, ...]:
        return tuple(sorted(one for one, known in self._tracked.items() if known.phase is TrackedPhase.COUNTING))

    def handle(self, event: BarrierEvent) -> Sequence[BarrierAction]:
        """Handle an event; raise `IllegalTransitionError`, changing nothing, if the table does not allow it."""
        return _EVENTS[type(event)](self, event)

    def _data(self, event: DataPassed) -> Sequence[BarrierAction]:
        self._check_open(event.channel, "data")
        for known in self._tracked.values():
            known.bytes_passed += event.byte_count
        return ()

    def _barrier(self, event: BarrierArrived) -> Sequence[BarrierAction]:
        checkpoint_id = event.barrier.checkpoint_id
        self._check_open(event.channel, f"barrier {checkpoint_id}")
        known = self._tracked.get(checkpoint_id)
        if known is not None and event.channel in known.had_barrier:
            raise self._illegal(f"barrier {checkpoint_id}", f"channel {event.channel} has delivered it already")
        seen = _Seen(checkpoint_id, event.channel, event.barrier, event.now_ms)
        return [*self._take(seen, TrackingEvent.BARRIER, TrackingEvent.LAST_BARRIER), Resume((event.channel,))]

    def _cancellation(self, event: CancellationArrived) -> Sequence[BarrierAction]:
        self._check_open(event.channel, f"the cancellation of {event.checkpoint_id}")
        seen = _Seen(event.checkpoint_id, event.channel, None, event.now_ms)
        return self._take(seen, TrackingEvent.CANCELLATION, TrackingEvent.LAST_CANCELLATION)

    def _end(self, event: ChannelEnded) -> Sequence[BarrierAction]:
        self._check_open(event.channel, "its end")
        actions: list[BarrierAction] = []
        # The newest checkpoint that this completes replaces all older ones, which are then skipped.
        for checkpoint_id in sorted(self._tracked, reverse=True):
            seen = _Seen(checkpoint_id, event.channel, None, event.now_ms)
            actions += self._take(seen, TrackingEvent.CHANNEL_ENDED, TrackingEvent.LAST_CHANNEL_ENDED)
        self._open.discard(event.channel)
        return actions

    def _nothing(self, event: BarrierAnnounced | AlignmentTimedOut) -> Sequence[BarrierAction]:
        # Nothing is blocked here, so nothing needs to overtake.
        return ()

    def _take(self, seen: _Seen, heard: TrackingEvent, last: TrackingEvent) -> Sequence[BarrierAction]:
        known = self._tracked.get(seen.checkpoint_id)
        phase = TrackedPhase.OVER if seen.checkpoint_id <= self._newest_id else TrackedPhase.UNKNOWN
        had: set[int] = set()
        if known is not None:
            phase, had = known.phase, known.heard
        is_last = self._open <= had | {seen.channel}
        following, steps = AT_LEAST_ONCE_TRANSITIONS[phase, last if is_last else heard]
        actions = [action for step in steps for action in _STEPS[step](self, seen)]
        if seen.checkpoint_id in self._tracked:
            self._tracked[seen.checkpoint_id].phase = following
        return actions

    def _track(self, seen: _Seen) -> Sequence[BarrierAction]:
        delay_ms = 0 if seen.barrier is None else max(0, seen.now_ms - seen.barrier.created_ms)
        self._newest_id = seen.checkpoint_id
        tracked = _Tracked(TrackedPhase.UNKNOWN, set(), seen.barrier, seen.now_ms, delay_ms)
        self._tracked[seen.checkpoint_id] = tracked
        if len(self._tracked) <= MAX_TRACKED_CHECKPOINTS:
            return ()
        oldest = min(self._tracked)
        is_new = self._tracked.pop(oldest).phase is TrackedPhase.COUNTING
        return (Abort(oldest, AbortReason.TOO_MANY_PENDING),) if is_new else ()

    def _count(self, seen: _Seen) -> Sequence[BarrierAction]:
        known = self._tracked[seen.checkpoint_id]
        known.heard.add(seen.channel)
        if seen.barrier is not None:
            known.had_barrier.add(seen.channel)
        return ()

    def _abort_older(self, seen: _Seen) -> Sequence[BarrierAction]:
        older = [one for one in sorted(self._tracked) if one < seen.checkpoint_id]
        counting = [one for one in older if self._tracked[one].phase is TrackedPhase.COUNTING]
        for one in older:
            del self._tracked[one]
        return [Abort(one, AbortReason.SUBSUMED) for one in counting]

    def _abort(self, seen: _Seen) -> Sequence[BarrierAction]:
        return (Abort(seen.checkpoint_id, AbortReason.CANCELLED),)

    def _forget(self, seen: _Seen) -> Sequence[BarrierAction]:
        for one in [one for one in self._tracked if one <= seen.checkpoint_id]:
            del self._tracked[one]
        return ()

    def _trigger(self, seen: _Seen) -> Sequence[BarrierAction]:
        known = self._tracked[seen.checkpoint_id]
        assert known.barrier is not None
        alignment_ms = max(0, seen.now_ms - known.first_ms)
        return (Trigger(known.barrier, known.start_delay_ms, alignment_ms, known.bytes_passed),)

    def _check_open(self, channel: int, what: str) -> None:
        if channel not in self._open:
            raise self._illegal(what, f"channel {channel} has ended, or there is none")

    def _illegal(self, event: str, detail: str) -> IllegalTransitionError:
        return IllegalTransitionError(event, f"checkpoints {sorted(self._tracked)} under way", detail)


_EVENTS: Final[Mapping[type, Callable[[BarrierTracker, Any], Sequence[BarrierAction]]]] = {
    DataPassed: BarrierTracker._data,
    BarrierArrived: BarrierTracker._barrier,
    BarrierAnnounced: BarrierTracker._nothing,
    CancellationArrived: BarrierTracker._cancellation,
    ChannelEnded: BarrierTracker._end,
    AlignmentTimedOut: BarrierTracker._nothing,
}

_STEPS: Final[Mapping[TrackingStep, Callable[[BarrierTracker, _Seen], Sequence[BarrierAction]]]] = {
    TrackingStep.TRACK: BarrierTracker._track,
    TrackingStep.COUNT: BarrierTracker._count,
    TrackingStep.ABORT_OLDER: BarrierTracker._abort_older,
    TrackingStep.ABORT: BarrierTracker._abort,
    TrackingStep.FORGET: BarrierTracker._forget,
    TrackingStep.TRIGGER: BarrierTracker._trigger,
}


if __name__ == "__main__":
    print(at_least_once_as_text(), end="")  # noqa: T201
