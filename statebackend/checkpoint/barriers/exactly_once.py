"""Barriers for exactly once: aligned, unaligned, and alternating between the two. One table decides.

The three differ in how a barrier is handled (`AlignmentPolicy`):

    aligner      every barrier is aligned: channels that delivered it are blocked until the last one arrives
    unaligner    every barrier overtakes records, except that of a savepoint; the snapshot is taken at the first one
    alternating  savepoints are aligned, and so is a checkpoint until its alignment times out

Alignment times out when its timer fires, when a barrier arrives too late, or when an upstream task has switched
already, which its barrier shows. At the last barrier nothing is left to overtake, so it is handled as aligned.

At most one checkpoint is pending. While it is aligned, channels that delivered its barrier are blocked. Once it is
unaligned, the snapshot is taken at once, and what other channels deliver before their barriers is captured. A newer
checkpoint ends the pending one.

Invariants: a channel delivers a barrier of a checkpoint at most once; a blocked channel has delivered the barrier of
the pending checkpoint; records are captured only in CAPTURING; ids of triggered and aborted checkpoints only increase.
This is Flink's `SingleCheckpointBarrierHandler`. `docs/barrier-tables.md` is generated from the table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from attrs import define, evolve, field

from statebackend.checkpoint.barriers.elements import (
    Abort,
    AbortReason,
    AlignmentTimedOut,
    BarrierAction,
    BarrierAnnounced,
    BarrierArrived,
    BarrierEvent,
    Block,
    CancellationArrived,
    CaptureComplete,
    ChannelEnded,
    CheckpointBarrier,
    DataPassed,
    EndOfChannel,
    Overtake,
    Resume,
    StartCapture,
    StartTimer,
    StopCapture,
    StopTimer,
    Trigger,
)
from statebackend.checkpoint.errors import IllegalTransitionError, InvariantViolationError
from statebackend.checkpoint.transition_tables import table_as_text

__all__ = [
    "EXACTLY_ONCE_TRANSITIONS",
    "AlignmentEvent",
    "AlignmentPhase",
    "AlignmentPolicy",
    "AlignmentStep",
    "ExactlyOnceHandler",
    "alternating",
    "always_aligned",
    "always_unaligned",
    "exactly_once_as_text",
]


class AlignmentPhase(enum.Enum):
    """The phase of the pending checkpoint."""

    IDLE = "no checkpoint is pending"
    ANNOUNCED = "barriers are in channels, and none has been received"
    OVERTAKING = "as announced, and the barriers overtake records"
    ALIGNING = "barriers were received, and their channels are blocked"
    CAPTURING = "the snapshot is taken; records before the missing barriers are captured"


class AlignmentEvent(enum.Enum):
    """The meaning of an event for the pending checkpoint."""

    ANNOUNCEMENT = "a barrier of it is in a channel"
    ALIGNED_BARRIER = "one of its barriers was received, and others are missing"
    LAST_ALIGNED_BARRIER = "the last of its barriers was received"
    UNALIGNED_BARRIER = "an unaligned or timed-out barrier was received, and others are missing"
    LAST_UNALIGNED_BARRIER = "the last of its barriers was received, and it is unaligned"
    CANCELLATION = "a task upstream aborts it"
    CHANNEL_ENDED = "a channel ended, and barriers of others are missing"
    LAST_CHANNEL_ENDED = "the last channel without a barrier ended"
    BARRIER_LOST = "a channel ended before its barrier, which aborts the checkpoint"
    TIMED_OUT = "its alignment timed out"
    SUPERSEDED = "a newer checkpoint has started"
    STALE_BARRIER = "a barrier of an ended checkpoint was received"
    STALE = "another event of an ended checkpoint"


class AlignmentStep(enum.Enum):
    """The steps; "it" is the channel of the event."""

    BEGIN = "make the checkpoint pending"
    NOTE = "record that a barrier is in it"
    START_TIMER = "start the alignment timer, if it has one"
    STOP_TIMER = "stop the alignment timer"
    COUNT = "record its barrier"
    BLOCK = "block it"
    RESUME = "unblock it"
    RESUME_ALL = "unblock all blocked channels"
    TRIGGER = "take the snapshot, and send the barrier on"
    TRIGGER_UNALIGNED = "take the snapshot, and send an unaligned barrier"
    CAPTURE = "capture what channels without a barrier deliver"
    STOP_CAPTURE = "stop capturing it"
    STOP_CAPTURES = "stop capturing"
    COMPLETE = "report that the records in flight are complete"
    OVERTAKE = "let its barrier overtake records"
    OVERTAKE_ALL = "let all barriers in channels overtake records"
    ABORT = "abort the checkpoint, and send the cancellation"


_P, _E, _S = AlignmentPhase, AlignmentEvent, AlignmentStep

_GIVE_UP: Final[Mapping[AlignmentPhase, tuple[AlignmentStep, ...]]] = {
    _P.ANNOUNCED: (_S.STOP_TIMER, _S.ABORT),
    _P.OVERTAKING: (_S.ABORT,),
    _P.ALIGNING: (_S.STOP_TIMER, _S.ABORT, _S.RESUME_ALL),
    _P.CAPTURING: (_S.ABORT, _S.STOP_CAPTURES),
}

EXACTLY_ONCE_TRANSITIONS: Final[
    Mapping[tuple[AlignmentPhase, AlignmentEvent], tuple[AlignmentPhase, tuple[AlignmentStep, ...]]]
] = MappingProxyType(
    {
        (_P.IDLE, _E.ANNOUNCEMENT): (_P.ANNOUNCED, (_S.BEGIN, _S.NOTE, _S.START_TIMER)),
        (_P.IDLE, _E.ALIGNED_BARRIER): (_P.ALIGNING, (_S.BEGIN, _S.COUNT, _S.BLOCK, _S.START_TIMER)),
        (_P.IDLE, _E.LAST_ALIGNED_BARRIER): (_P.IDLE, (_S.BEGIN, _S.BLOCK, _S.TRIGGER, _S.RESUME_ALL)),
        (_P.IDLE, _E.UNALIGNED_BARRIER): (
            _P.CAPTURING,
            (_S.BEGIN, _S.COUNT, _S.TRIGGER_UNALIGNED, _S.CAPTURE, _S.RESUME),
        ),
        (_P.IDLE, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.BEGIN, _S.TRIGGER_UNALIGNED, _S.COMPLETE, _S.RESUME),
        ),
        # It becomes the newest one, so that a late barrier does not start it again.
        (_P.IDLE, _E.CANCELLATION): (_P.IDLE, (_S.BEGIN, _S.ABORT)),
        (_P.IDLE, _E.CHANNEL_ENDED): (_P.IDLE, ()),
        (_P.ANNOUNCED, _E.ANNOUNCEMENT): (_P.ANNOUNCED, (_S.NOTE,)),
        (_P.ANNOUNCED, _E.ALIGNED_BARRIER): (_P.ALIGNING, (_S.COUNT, _S.BLOCK)),
        (_P.ANNOUNCED, _E.LAST_ALIGNED_BARRIER): (
            _P.IDLE,
            (_S.STOP_TIMER, _S.COUNT, _S.BLOCK, _S.TRIGGER, _S.RESUME_ALL),
        ),
        (_P.ANNOUNCED, _E.UNALIGNED_BARRIER): (
            _P.CAPTURING,
            (_S.STOP_TIMER, _S.COUNT, _S.TRIGGER_UNALIGNED, _S.CAPTURE, _S.RESUME, _S.OVERTAKE_ALL),
        ),
        (_P.ANNOUNCED, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.STOP_TIMER, _S.COUNT, _S.TRIGGER_UNALIGNED, _S.COMPLETE, _S.RESUME),
        ),
        (_P.ANNOUNCED, _E.TIMED_OUT): (_P.OVERTAKING, (_S.STOP_TIMER, _S.OVERTAKE_ALL)),
        (_P.ANNOUNCED, _E.CHANNEL_ENDED): (_P.ANNOUNCED, ()),
        (_P.OVERTAKING, _E.ANNOUNCEMENT): (_P.OVERTAKING, (_S.NOTE, _S.OVERTAKE)),
        (_P.OVERTAKING, _E.UNALIGNED_BARRIER): (
            _P.CAPTURING,
            (_S.COUNT, _S.TRIGGER_UNALIGNED, _S.CAPTURE, _S.RESUME),
        ),
        (_P.OVERTAKING, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.COUNT, _S.TRIGGER_UNALIGNED, _S.COMPLETE, _S.RESUME),
        ),
        (_P.OVERTAKING, _E.CHANNEL_ENDED): (_P.OVERTAKING, ()),
        (_P.ALIGNING, _E.ANNOUNCEMENT): (_P.ALIGNING, (_S.NOTE,)),
        (_P.ALIGNING, _E.ALIGNED_BARRIER): (_P.ALIGNING, (_S.COUNT, _S.BLOCK)),
        (_P.ALIGNING, _E.LAST_ALIGNED_BARRIER): (
            _P.IDLE,
            (_S.STOP_TIMER, _S.COUNT, _S.BLOCK, _S.TRIGGER, _S.RESUME_ALL),
        ),
        (_P.ALIGNING, _E.UNALIGNED_BARRIER): (
            _P.CAPTURING,
            (
                _S.STOP_TIMER,
                _S.COUNT,
                _S.TRIGGER_UNALIGNED,
                _S.CAPTURE,
                _S.RESUME,
                _S.RESUME_ALL,
                _S.OVERTAKE_ALL,
            ),
        ),
        (_P.ALIGNING, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.STOP_TIMER, _S.COUNT, _S.TRIGGER_UNALIGNED, _S.COMPLETE, _S.RESUME, _S.RESUME_ALL),
        ),
        (_P.ALIGNING, _E.TIMED_OUT): (
            _P.CAPTURING,
            (_S.STOP_TIMER, _S.TRIGGER_UNALIGNED, _S.CAPTURE, _S.RESUME_ALL, _S.OVERTAKE_ALL),
        ),
        (_P.ALIGNING, _E.CHANNEL_ENDED): (_P.ALIGNING, ()),
        (_P.ALIGNING, _E.LAST_CHANNEL_ENDED): (_P.IDLE, (_S.STOP_TIMER, _S.TRIGGER, _S.RESUME_ALL)),
        (_P.CAPTURING, _E.ANNOUNCEMENT): (_P.CAPTURING, (_S.NOTE, _S.OVERTAKE)),
        (_P.CAPTURING, _E.UNALIGNED_BARRIER): (_P.CAPTURING, (_S.COUNT, _S.STOP_CAPTURE, _S.RESUME)),
        (_P.CAPTURING, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.COUNT, _S.STOP_CAPTURE, _S.COMPLETE, _S.RESUME),
        ),
        (_P.CAPTURING, _E.CHANNEL_ENDED): (_P.CAPTURING, (_S.STOP_CAPTURE,)),
        (_P.CAPTURING, _E.LAST_CHANNEL_ENDED): (_P.IDLE, (_S.STOP_CAPTURE, _S.COMPLETE)),
        **{(phase, _E.CANCELLATION): (_P.IDLE, steps) for phase, steps in _GIVE_UP.items()},
        **{(phase, _E.BARRIER_LOST): (_P.IDLE, steps) for phase, steps in _GIVE_UP.items()},
        **{(phase, _E.SUPERSEDED): (_P.IDLE, steps) for phase, steps in _GIVE_UP.items()},
        **{(phase, _E.STALE_BARRIER): (phase, (_S.RESUME,)) for phase in _P},
        **{(phase, _E.STALE): (phase, ()) for phase in _P},
    }
)
"""(phase, event) -> (next phase, steps); everything else is illegal."""


def exactly_once_as_text() -> str:
    """The table as Markdown, for the documentation."""
    return table_as_text(EXACTLY_ONCE_TRANSITIONS, (AlignmentPhase, AlignmentEvent, AlignmentStep))


AlignmentPolicy = Callable[[CheckpointBarrier], CheckpointBarrier]
"""Returns the barrier as the handler interprets it."""

_NO_CHECKPOINT: Final = -1


def always_aligned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """For an aligner: no barrier overtakes."""
    return evolve(barrier, is_unaligned=False, alignment_timeout_ms=None)


def always_unaligned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """For an unaligner: every barrier overtakes, except those of savepoints, which have no in-flight records."""
    return barrier if barrier.is_savepoint else evolve(barrier, is_unaligned=True)


def alternating(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """The barrier decides."""
    return barrier


@define
class _Pending:
    """The pending checkpoint: the channels that delivered its barrier, and its counters."""

    barrier: CheckpointBarrier
    first_ms: int
    start_delay_ms: int
    arrived: set[int] = field(factory=set)
    announced: set[int] = field(factory=set)
    is_timed: bool = False
    bytes_passed: int = 0


@define
class _Seen:
    """A classified event: ``channel`` is None if it concerns no channel."""

    kind: AlignmentEvent
    channel: int | None
    barrier: CheckpointBarrier | None
    now_ms: int
    reason: AbortReason = AbortReason.CANCELLED


class ExactlyOnceHandler:
    """The `BarrierHandler` for exactly once. The last barrier costs time proportional to the channels, others O(1)."""

    def __init__(
        self,
        channel_count: int,
        policy: AlignmentPolicy = alternating,
        end_of_channel: EndOfChannel = EndOfChannel.IS_ALIGNED,
    ) -> None:
        """Raise `InvariantViolationError` if there are no channels: a source does not wait for barriers."""
        if channel_count < 1:
            raise InvariantViolationError(
                f"a barrier handler needs at least one channel, and channel_count is {channel_count}"
            )
        self._policy = policy
        self._end_of_channel = end_of_channel
        self._phase = AlignmentPhase.IDLE
        self._newest_id = _NO_CHECKPOINT
        self._pending: _Pending | None = None
        self._open = set(range(channel_count))
        self._blocked: set[int] = set()
        self._captured: set[int] = set()

    @property
    def phase(self) -> AlignmentPhase:
        """The phase of the pending checkpoint."""
        return self._phase

    @property
    def open_channels(self) -> frozenset[int]:
        return frozenset(self._open)

    @property
    def blocked_channels(self) -> frozenset[int]:
        return frozenset(self._blocked)

    @property
    def captured_channels(self) -> frozenset[int]:
        return frozenset(self._captured)

    @property
    def pending_checkpoint_ids(self) -> tuple[int, ...]:
        return (self._newest_id,) if self._pending is not None else ()

    def handle(self, event: BarrierEvent) -> Sequence[BarrierAction]:
        """Handle an event; raise `IllegalTransitionError`, changing nothing, if the table does not allow it."""
        return _EVENTS[type(event)](self, event)

    def _data(self, event: DataPassed) -> Sequence[BarrierAction]:
        self._check_delivers(event.channel, "data")
        pending = self._pending
        if pending is not None and (self._phase is AlignmentPhase.ALIGNING or event.channel in self._captured):
            pending.bytes_passed += event.byte_count
        return ()

    def _barrier(self, event: BarrierArrived) -> Sequence[BarrierAction]:
        self._check_delivers(event.channel, f"barrier {event.barrier.checkpoint_id}")
        barrier = self._policy(event.barrier)
        checkpoint_id = barrier.checkpoint_id
        if self._is_over(checkpoint_id):
            return self._take([_Seen(AlignmentEvent.STALE_BARRIER, event.channel, barrier, event.now_ms)])
        pending = self._pending if checkpoint_id == self._newest_id else None
        arrived = pending.arrived if pending is not None else set()
        if event.channel in arrived:
            raise self._illegal(f"barrier {checkpoint_id}", f"channel {event.channel} has delivered it already")
        is_last = self._open <= arrived | {event.channel}
        overtakes = barrier.is_unaligned or (
            pending is not None and self._phase in (AlignmentPhase.OVERTAKING, AlignmentPhase.CAPTURING)
        )
        # After the last barrier there is nothing to overtake, so it stays aligned even if it is late.
        overtakes = overtakes or (not is_last and _is_late(barrier, event.now_ms))
        kind = _BARRIERS[overtakes, is_last]
        return self._take([*self._superseded_by(checkpoint_id), _Seen(kind, event.channel, barrier, event.now_ms)])

    def _announcement(self, event: BarrierAnnounced) -> Sequence[BarrierAction]:
        # A blocked channel still receives elements, so it may announce the next barrier.
        self._check_open(event.channel, f"the announcement of {event.barrier.checkpoint_id}")
        barrier = self._policy(event.barrier)
        checkpoint_id = barrier.checkpoint_id
        if self._is_over(checkpoint_id):
            return self._take([_Seen(AlignmentEvent.STALE, event.channel, barrier, event.now_ms)])
        pending = self._pending if checkpoint_id == self._newest_id else None
        if pending is not None and event.channel in pending.arrived | pending.announced:
            raise self._illegal(
                f"the announcement of {checkpoint_id}", f"channel {event.channel} has announced or delivered it already"
            )
        seen = [
            *self._superseded_by(checkpoint_id),
            _Seen(AlignmentEvent.ANNOUNCEMENT, event.channel, barrier, event.now_ms),
        ]
        is_awaited = pending is None or self._phase in _AWAITING
        if is_awaited and _is_late(barrier, event.now_ms):
            seen.append(_Seen(AlignmentEvent.TIMED_OUT, None, None, event.now_ms))
        return self._take(seen)

    def _cancellation(self, event: CancellationArrived) -> Sequence[BarrierAction]:
        self._check_delivers(event.channel, f"the cancellation of {event.checkpoint_id}")
        if self._is_over(event.checkpoint_id):
            return self._take([_Seen(AlignmentEvent.STALE, event.channel, None, event.now_ms)])
        cancelled = CheckpointBarrier(checkpoint_id=event.checkpoint_id, created_ms=event.now_ms)
        seen = _Seen(AlignmentEvent.CANCELLATION, event.channel, cancelled, event.now_ms)
        return self._take([*self._superseded_by(event.checkpoint_id), seen])

    def _end(self, event: ChannelEnded) -> Sequence[BarrierAction]:
        self._check_delivers(event.channel, "its end")
        pending = self._pending
        kind = AlignmentEvent.CHANNEL_ENDED
        if pending is not None and event.channel not in pending.arrived:
            if event.channel in pending.announced:
                raise self._illegal("the end of a channel", f"channel {event.channel} has announced a barrier")
            if self._end_of_channel is EndOfChannel.ABORTS:
                kind = AlignmentEvent.BARRIER_LOST
            elif self._open - {event.channel} <= pending.arrived:
                kind = AlignmentEvent.LAST_CHANNEL_ENDED
        actions = self._take([_Seen(kind, event.channel, None, event.now_ms, AbortReason.END_OF_CHANNEL)])
        self._open.discard(event.channel)
        return actions

    def _timeout(self, event: AlignmentTimedOut) -> Sequence[BarrierAction]:
        is_awaited = event.checkpoint_id == self._newest_id and self._phase in _AWAITING
        kind = AlignmentEvent.TIMED_OUT if is_awaited else AlignmentEvent.STALE
        if is_awaited:
            # The timer has fired, so there is none to stop.
            self._of_pending().is_timed = False
        return self._take([_Seen(kind, None, None, event.now_ms)])

    def _is_over(self, checkpoint_id: int) -> bool:
        is_pending = self._pending is not None and checkpoint_id == self._newest_id
        return checkpoint_id <= self._newest_id and not is_pending

    def _superseded_by(self, checkpoint_id: int) -> Sequence[_Seen]:
        if self._pending is None or checkpoint_id == self._newest_id:
            return ()
        return [_Seen(AlignmentEvent.SUPERSEDED, None, None, 0, AbortReason.SUBSUMED)]

    def _take(self, seen: Sequence[_Seen]) -> Sequence[BarrierAction]:
        # All or nothing: every transition is looked up before the first step is taken.
        transitions = []
        phase = self._phase
        for one in seen:
            transition = EXACTLY_ONCE_TRANSITIONS.get((phase, one.kind))
            if transition is None:
                raise self._illegal(one.kind.name, f"channel {one.channel}")
            transitions.append(transition)
            phase = transition[0]
        actions: list[BarrierAction] = []
        for one, (following, steps) in zip(seen, transitions, strict=True):
            for step in steps:
                actions.extend(_STEPS[step](self, one))
            self._phase = following
            if following is AlignmentPhase.IDLE:
                self._pending = None
        return actions

    def _begin(self, seen: _Seen) -> Sequence[BarrierAction]:
        assert seen.barrier is not None
        self._newest_id = seen.barrier.checkpoint_id
        delay_ms = max(0, seen.now_ms - seen.barrier.created_ms)
        self._pending = _Pending(seen.barrier, seen.now_ms, delay_ms)
        return ()

    def _note(self, seen: _Seen) -> Sequence[BarrierAction]:
        assert seen.channel is not None
        self._of_pending().announced.add(seen.channel)
        return ()

    def _start_timer(self, seen: _Seen) -> Sequence[BarrierAction]:
        pending = self._of_pending()
        at_ms = pending.barrier.overtakes_from_ms
        if at_ms is None:
            return ()
        pending.is_timed = True
        return (StartTimer(self._newest_id, max(at_ms, seen.now_ms)),)

    def _stop_timer(self, seen: _Seen) -> Sequence[BarrierAction]:
        return (StopTimer(self._newest_id),) if self._of_pending().is_timed else ()

    def _count(self, seen: _Seen) -> Sequence[BarrierAction]:
        assert seen.channel is not None
        assert seen.barrier is not None
        pending = self._of_pending()
        if not pending.arrived:
            # A checkpoint that was announced first starts to align with the first delivered barrier.
            pending.first_ms = seen.now_ms
            pending.start_delay_ms = max(0, seen.now_ms - seen.barrier.created_ms)
        pending.arrived.add(seen.channel)
        pending.announced.discard(seen.channel)
        return ()

    def _block(self, seen: _Seen) -> Sequence[BarrierAction]:
        assert seen.channel is not None
        self._blocked.add(seen.channel)
        return (Block(seen.channel),)

    def _resume(self, seen: _Seen) -> Sequence[BarrierAction]:
        assert seen.channel is not None
        return (Resume((seen.channel,)),)

    def _resume_all(self, seen: _Seen) -> Sequence[BarrierAction]:
        resumed = tuple(sorted(self._blocked))
        self._blocked.clear()
        return (Resume(resumed),) if resumed else ()

    def _trigger(self, seen: _Seen) -> Sequence[BarrierAction]:
        pending = self._of_pending()
        alignment_ms = max(0, seen.now_ms - pending.first_ms)
        return (Trigger(pending.barrier, pending.start_delay_ms, alignment_ms, pending.bytes_passed),)

    def _trigger_unaligned(self, seen: _Seen) -> Sequence[BarrierAction]:
        pending = self._of_pending()
        pending.barrier = evolve(pending.barrier, is_unaligned=True)
        triggered = self._trigger(seen)
        # From here on, the bytes that pass are the captured ones.
        pending.bytes_passed = 0
        return triggered

    def _capture(self, seen: _Seen) -> Sequence[BarrierAction]:
        self._captured = self._open - self._of_pending().arrived
        return (StartCapture(self._newest_id, tuple(sorted(self._captured))),)

    def _stop_capture(self, seen: _Seen) -> Sequence[BarrierAction]:
        if seen.channel not in self._captured:
            return ()
        self._captured.discard(seen.channel)
        return (StopCapture(self._newest_id, (seen.channel,)),)

    def _stop_captures(self, seen: _Seen) -> Sequence[BarrierAction]:
        stopped = tuple(sorted(self._captured))
        self._captured.clear()
        return (StopCapture(self._newest_id, stopped),) if stopped else ()

    def _complete(self, seen: _Seen) -> Sequence[BarrierAction]:
        pending = self._of_pending()
        return (CaptureComplete(self._newest_id, max(0, seen.now_ms - pending.first_ms), pending.bytes_passed),)

    def _overtake(self, seen: _Seen) -> Sequence[BarrierAction]:
        assert seen.channel is not None
        return (Overtake(seen.channel),)

    def _overtake_all(self, seen: _Seen) -> Sequence[BarrierAction]:
        return tuple(map(Overtake, sorted(self._of_pending().announced)))

    def _abort(self, seen: _Seen) -> Sequence[BarrierAction]:
        return (Abort(self._newest_id, seen.reason),)

    def _of_pending(self) -> _Pending:
        assert self._pending is not None
        return self._pending

    def _check_open(self, channel: int, what: str) -> None:
        if channel not in self._open:
            raise self._illegal(what, f"channel {channel} has ended, or there is none")

    def _check_delivers(self, channel: int, what: str) -> None:
        self._check_open(channel, what)
        if channel in self._blocked:
            raise self._illegal(what, f"channel {channel} is blocked after barrier {self._newest_id}")

    def _illegal(self, event: str, detail: str) -> IllegalTransitionError:
        return IllegalTransitionError(event, self._phase.name, detail)


_AWAITING: Final = (AlignmentPhase.ANNOUNCED, AlignmentPhase.ALIGNING)
"""The phases in which the alignment can time out."""

_BARRIERS: Final[Mapping[tuple[bool, bool], AlignmentEvent]] = {
    (False, False): AlignmentEvent.ALIGNED_BARRIER,
    (False, True): AlignmentEvent.LAST_ALIGNED_BARRIER,
    (True, False): AlignmentEvent.UNALIGNED_BARRIER,
    (True, True): AlignmentEvent.LAST_UNALIGNED_BARRIER,
}
"""The event of a barrier, by whether it overtakes and whether it is the last one."""

_EVENTS: Final[Mapping[type, Callable[[ExactlyOnceHandler, Any], Sequence[BarrierAction]]]] = {
    DataPassed: ExactlyOnceHandler._data,
    BarrierArrived: ExactlyOnceHandler._barrier,
    BarrierAnnounced: ExactlyOnceHandler._announcement,
    CancellationArrived: ExactlyOnceHandler._cancellation,
    ChannelEnded: ExactlyOnceHandler._end,
    AlignmentTimedOut: ExactlyOnceHandler._timeout,
}

_STEPS: Final[Mapping[AlignmentStep, Callable[[ExactlyOnceHandler, _Seen], Sequence[BarrierAction]]]] = {
    AlignmentStep.BEGIN: ExactlyOnceHandler._begin,
    AlignmentStep.NOTE: ExactlyOnceHandler._note,
    AlignmentStep.START_TIMER: ExactlyOnceHandler._start_timer,
    AlignmentStep.STOP_TIMER: ExactlyOnceHandler._stop_timer,
    AlignmentStep.COUNT: ExactlyOnceHandler._count,
    AlignmentStep.BLOCK: ExactlyOnceHandler._block,
    AlignmentStep.RESUME: ExactlyOnceHandler._resume,
    AlignmentStep.RESUME_ALL: ExactlyOnceHandler._resume_all,
    AlignmentStep.TRIGGER: ExactlyOnceHandler._trigger,
    AlignmentStep.TRIGGER_UNALIGNED: ExactlyOnceHandler._trigger_unaligned,
    AlignmentStep.CAPTURE: ExactlyOnceHandler._capture,
    AlignmentStep.STOP_CAPTURE: ExactlyOnceHandler._stop_capture,
    AlignmentStep.STOP_CAPTURES: ExactlyOnceHandler._stop_captures,
    AlignmentStep.COMPLETE: ExactlyOnceHandler._complete,
    AlignmentStep.OVERTAKE: ExactlyOnceHandler._overtake,
    AlignmentStep.OVERTAKE_ALL: ExactlyOnceHandler._overtake_all,
    AlignmentStep.ABORT: ExactlyOnceHandler._abort,
}


def _is_late(barrier: CheckpointBarrier, now_ms: int) -> bool:
    from_ms = barrier.overtakes_from_ms
    return from_ms is not None and now_ms >= from_ms


if __name__ == "__main__":
    print(exactly_once_as_text(), end="")  # noqa: T201
