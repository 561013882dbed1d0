"""The barriers that the channels of a subtask deliver: which channels stand still, what is captured, when to snapshot.

What is decided comes from `statebackend.checkpoint.barriers`, and is carried out on the channels here, with the
network's clock.

| barrier of a checkpoint    | waits in its place | trigger          | channel state                          |
|----------------------------|--------------------|------------------|----------------------------------------|
| aligned                    | yes                | at the last one  | none                                   |
| unaligned                  | no                 | at the first one | what is sent before it and taken later |
| aligned, its time is over  | until then         | then, or at once | as unaligned, from then on             |
| at least once              | yes                | at the last one  | none                                   |

A subtask of which one channel may not be overtaken aligns on all of them, in every mode of exactly once: a broadcast
input must be at the same record in all subtasks at their snapshots, so each snapshot is behind the last barrier. What
it sends on overtakes again.

A channel that has ended is waited for like any other, since it still carries barriers; one that is closed is not.

Invariants: those of `subtask_capture`; a blocked channel has delivered the barrier of the checkpoint that is pending;
an element is captured if its channel has not delivered the barrier of a checkpoint that has been triggered unaligned,
and is what it was then, whatever is done to its records later; a checkpoint that is over when its barrier comes out has
neither effect nor channel state.

What a subtask's channels add to its checkpoint: the elements that the barrier overtook, time, and how long it took.

A checkpoint of a subtask has two ends. At the *trigger* the operator is snapshotted and the barrier goes on. It is
*captured* when nothing on its way is missing: at once if the barriers were aligned, otherwise when the last barrier has
come out. Only then may the subtask acknowledge. Between the two it may be given up.

Invariants, for each checkpoint and subtask: at most one trigger; behind a trigger exactly one of captured and aborted,
unless the run ends; never captured without a trigger. What is captured of a channel is what was sent before the
barrier and taken behind the trigger, in order. What lay within the room of a channel is its reader's (input), what lay
beyond it is its sender's (output); the former comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from attrs import define, evolve, field, frozen

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
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
    Overtake,
    Resume,
    StartCapture,
    StartTimer,
    StopCapture,
    StopTimer,
    Trigger,
)
from statebackend.local.network.channel import (
    CancelledCheckpoint,
    Channel,
    InFlight,
    OvertakingBarrier,
    SubtaskId,
    is_in_flight,
    kept,
)
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.watermark_generators import WatermarkStatus

__all__ = ["BarrierListener", "BarrierMetrics", "ChannelBarriers", "SubtaskCapture", "SubtaskTime", "no_clock"]


@frozen
class SubtaskTime:
    """What a subtask knows of event time when its barrier goes on: its own, and what it has sent."""

    own: OperatorWatermarkState[SubtaskId]
    sent_watermark_ms: int
    sent_status: WatermarkStatus


@frozen(kw_only=True)
class BarrierMetrics:
    """How long the barriers of a checkpoint took, in milliseconds of the network's clock.

    ``start_delay_ms`` from its making to the first one that came out, ``alignment_ms`` from there to the trigger,
    ``capture_ms`` from there to the last one, 0 if it was aligned.
    """

    start_delay_ms: int = 0
    alignment_ms: int = 0
    capture_ms: int = 0


@frozen(kw_only=True)
class SubtaskCapture:
    """See the module. ``inputs`` go by who has sent, ``outputs`` by who was to read; who has nothing is left out."""

    checkpoint_id: int
    is_unaligned: bool
    """Whether its own barriers overtook; if not, there are no ``inputs``."""
    time: SubtaskTime
    metrics: BarrierMetrics
    inputs: Mapping[SubtaskId, Sequence[InFlight]] = field(factory=dict)
    outputs: Mapping[SubtaskId, Sequence[InFlight]] = field(factory=dict)


class BarrierListener(Protocol):
    """The subtask whose barriers they are."""

    def on_trigger(self, barrier: CheckpointBarrier) -> tuple[SubtaskTime, Mapping[SubtaskId, Sequence[InFlight]]]:
        """Takes the snapshot and sends the barrier on; tells of time then, and what was overtaken in the output."""

    def on_captured(self, capture: SubtaskCapture) -> None:
        """Nothing on its way is missing in a checkpoint that was triggered."""

    def on_abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """A checkpoint is given up, triggered or not."""


@define
class _Capture:
    """What is known of the checkpoint that was triggered last, unaligned."""

    checkpoint_id: int
    time: SubtaskTime
    metrics: BarrierMetrics
    outputs: Mapping[SubtaskId, Sequence[InFlight]]
    inputs: dict[SubtaskId, list[InFlight]] = field(factory=dict)


def no_clock() -> int:
    """For a network without time: nothing takes long."""
    return 0


class ChannelBarriers:
    """See the module. ``now_ms`` is the clock by which barriers are made, and by which their time to align passes."""

    def __init__(
        self,
        channels: Sequence[Channel],
        mode: CheckpointingMode,
        listener: BarrierListener,
        now_ms: Callable[[], int] = no_clock,
    ) -> None:
        may_overtake = all(one.may_be_overtaken for one in channels)
        for channel in channels:
            channel.may_be_overtaken = may_overtake
        self._channels = tuple(channels)
        self._places = {channel: place for place, channel in enumerate(channels)}
        self._handler = mode.handler(len(channels), may_overtake=may_overtake)
        self._now_ms = now_ms
        self._listener = listener
        self._capture: _Capture | None = None
        self._captured: set[Channel] = set()
        self._arriving: tuple[Channel, Sequence[InFlight]] | None = None
        self._sent_on: CheckpointBarrier | None = None
        self._timer: tuple[int, int] | None = None

    @property
    def is_timer_due(self) -> bool:
        """Whether the time to align of a checkpoint is over, and `time_out` is to be called."""
        return self._timer is not None and self._now_ms() >= self._timer[1]

    def time_out(self) -> None:
        """The time to align is over."""
        if self._timer is not None:
            (checkpoint_id, _), self._timer = self._timer, None
            self._handle(AlignmentTimedOut(checkpoint_id, self._now_ms()))

    def passes(self, channel: Channel, element: InFlight) -> None:
        """To be told of each record, watermark and status that a channel delivers."""
        if channel in self._captured and is_in_flight(element):
            assert self._capture is not None
            self._capture.inputs.setdefault(channel.sender, []).append(kept(element))

    def announced(self, channel: Channel, barrier: CheckpointBarrier) -> None:
        """A barrier has come into a channel, behind what the channel has still to deliver."""
        self._handle(BarrierAnnounced(self._places[channel], barrier, self._now_ms()))

    def arrived(self, channel: Channel, barrier: CheckpointBarrier) -> None:
        """A channel has delivered a barrier, in its place."""
        self._arrive(channel, barrier, ())

    def overtook(self, channel: Channel, element: OvertakingBarrier) -> None:
        """A channel has delivered a barrier, before what it had to deliver before."""
        self._arrive(channel, element.barrier, element.overtaken)

    def cancelled(self, channel: Channel, element: CancelledCheckpoint) -> None:
        """A channel has delivered that a checkpoint is given up."""
        self._handle(CancellationArrived(self._places[channel], element.checkpoint_id, self._now_ms()))

    def closed(self, channel: Channel) -> None:
        """A channel delivers nothing any more."""
        self._handle(ChannelEnded(self._places[channel], self._now_ms()))

    def _arrive(self, channel: Channel, barrier: CheckpointBarrier, overtaken: Sequence[InFlight]) -> None:
        overtaken = list(map(kept, overtaken))
        known = self._sent_on
        if known is None or barrier.checkpoint_id > known.checkpoint_id:
            self._sent_on = barrier
        elif barrier.checkpoint_id == known.checkpoint_id and barrier.is_unaligned:
            # Whoever reads behind a subtask that aligns goes by the form in which the barrier came.
            self._sent_on = barrier
        if channel in self._captured:
            assert self._capture is not None
            if self._capture.checkpoint_id == barrier.checkpoint_id:
                self._capture.inputs.setdefault(channel.sender, []).extend(overtaken)
                overtaken = []
        # Of a checkpoint that is triggered only now, the capture begins with what this barrier has overtaken.
        self._arriving = (channel, overtaken)
        self._handle(BarrierArrived(self._places[channel], barrier, self._now_ms()))
        self._arriving = None

    def _handle(self, event: BarrierEvent) -> None:
        for action in self._handler.handle(event):
            _CARRY_OUT[type(action)](self, action)

    def _block(self, action: Block) -> None:
        self._channels[action.channel].is_blocked = True

    def _resume(self, action: Resume) -> None:
        for place in action.channels:
            self._channels[place].is_blocked = False

    def _trigger(self, action: Trigger) -> None:
        barrier = action.barrier
        is_unaligned = barrier.is_unaligned
        known = self._sent_on
        if known is not None and known.checkpoint_id == barrier.checkpoint_id:
            barrier = evolve(known, is_unaligned=known.is_unaligned or is_unaligned)
        time, outputs = self._listener.on_trigger(barrier)
        metrics = BarrierMetrics(start_delay_ms=action.start_delay_ms, alignment_ms=action.alignment_ms)
        own = {reader: list(map(kept, elements)) for reader, elements in outputs.items()}
        self._capture = _Capture(barrier.checkpoint_id, time, metrics, own)
        if is_unaligned:
            if self._arriving is not None and self._arriving[1]:
                channel, overtaken = self._arriving
                self._capture.inputs[channel.sender] = list(overtaken)
        else:
            self._finish(is_unaligned=False, capture_ms=0)

    def _start_capture(self, action: StartCapture) -> None:
        self._captured = {self._channels[place] for place in action.channels}

    def _stop_capture(self, action: StopCapture) -> None:
        self._captured.difference_update(self._channels[place] for place in action.channels)

    def _complete(self, action: CaptureComplete) -> None:
        self._finish(is_unaligned=True, capture_ms=action.capture_ms)

    def _finish(self, *, is_unaligned: bool, capture_ms: int) -> None:
        done, self._capture = self._capture, None
        assert done is not None
        self._listener.on_captured(
            SubtaskCapture(
                checkpoint_id=done.checkpoint_id,
                is_unaligned=is_unaligned,
                time=done.time,
                metrics=evolve(done.metrics, capture_ms=capture_ms),
                inputs={sender: tuple(elements) for sender, elements in done.inputs.items() if elements},
                outputs=done.outputs,
            )
        )

    def _overtake(self, action: Overtake) -> None:
        [checkpoint_id] = self._handler.pending_checkpoint_ids
        self._channels[action.channel].let_overtake(checkpoint_id)

    def _abort(self, action: Abort) -> None:
        if self._capture is not None and self._capture.checkpoint_id == action.checkpoint_id:
            self._capture = None
        self._listener.on_abort(action.checkpoint_id, action.reason)

    def _start_timer(self, action: StartTimer) -> None:
        self._timer = (action.checkpoint_id, action.at_ms)

    def _stop_timer(self, action: StopTimer) -> None:
        self._timer = None


_CARRY_OUT: Final[Mapping[type[BarrierAction], Callable[[ChannelBarriers, Any], None]]] = {
    Block: ChannelBarriers._block,
    Resume: ChannelBarriers._resume,
    Trigger: ChannelBarriers._trigger,
    Abort: ChannelBarriers._abort,
    Overtake: ChannelBarriers._overtake,
    StartCapture: ChannelBarriers._start_capture,
    StopCapture: ChannelBarriers._stop_capture,
    CaptureComplete: ChannelBarriers._complete,
    StartTimer: ChannelBarriers._start_timer,
    StopTimer: ChannelBarriers._stop_timer,
}
