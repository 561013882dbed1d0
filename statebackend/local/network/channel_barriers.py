"""The barriers of one subtask: which channels are blocked, what is captured, when the subtask snapshots its state.

The handlers of `statebackend.checkpoint.barriers` decide; `ChannelBarriers` carries their actions out on the channels.

| barrier of a checkpoint      | stays in its place | trigger          | channel state                           |
|------------------------------|--------------------|------------------|-----------------------------------------|
| aligned                      | yes                | at the last one  | none                                    |
| unaligned                    | no                 | at the first one | elements sent before it and taken later |
| aligned, timeout has elapsed | until the timeout  | at the timeout   | as unaligned, from the timeout on       |
| at least once                | yes                | at the last one  | none                                    |

If one channel of a subtask must not be overtaken, all of them align in every exactly-once mode: all subtasks must
snapshot at the same record of a broadcast input. The barriers that the subtask sends on overtake again. An ended
channel still carries barriers and is waited for; a closed one is not.

A checkpoint of a subtask has two ends. At the *trigger* the operator is snapshotted and the barrier goes on. It is
*captured* when no in-flight element is missing: at once if the barriers were aligned, otherwise when the last barrier
has arrived. Then the subtask may acknowledge. Between the two the checkpoint may be aborted.

Invariants, per checkpoint and subtask: at most one trigger; after a trigger either captured or aborted, unless the run
ends; never captured without a trigger. A blocked channel has delivered the barrier of the pending checkpoint. The
capture of a channel has, in order, the elements that were sent before the barrier and taken after the trigger, as they
were at that moment. Elements within the room of a channel belong to its reader (input), those beyond it to its sender
(output), and the former come first. A barrier of a checkpoint that is over has no effect and no channel state.
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
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.local.network.channel import Channel, InFlight, copied_element, is_in_flight
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.watermark_generators import WatermarkStatus


@frozen
class SubtaskTime:
    """The event time of a subtask when its barrier goes on: its own, and what it has sent."""

    own: OperatorWatermarkState[TaskId]
    sent_watermark_ms: int
    sent_status: WatermarkStatus


@frozen(kw_only=True)
class BarrierMetrics:
    """Durations of the barriers of a checkpoint, in milliseconds of the clock of the network.

    ``start_delay_ms`` lasts from creation to the first arrival, ``alignment_ms`` from there to the trigger,
    ``capture_ms`` from there to the last arrival (0 if aligned).
    """

    start_delay_ms: int = 0
    alignment_ms: int = 0
    capture_ms: int = 0


@frozen(kw_only=True)
class SubtaskCapture:
    """What the channels of a subtask add to its checkpoint: ``inputs`` by sender, ``outputs`` by reader."""

    checkpoint_id: int
    is_unaligned: bool
    """Whether its own barriers overtook; if not, there are no ``inputs``."""
    time: SubtaskTime
    metrics: BarrierMetrics
    inputs: Mapping[TaskId, Sequence[InFlight]] = field(factory=dict)
    outputs: Mapping[TaskId, Sequence[InFlight]] = field(factory=dict)


class BarrierListener(Protocol):
    """The subtask of the barriers."""

    def on_trigger(self, barrier: CheckpointBarrier) -> tuple[SubtaskTime, Mapping[TaskId, Sequence[InFlight]]]:
        """Snapshot and send the barrier on. Returns the event time, and what was overtaken in the output."""

    def on_captured(self, capture: SubtaskCapture) -> None:
        """No in-flight element of a triggered checkpoint is missing."""

    def on_abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """A checkpoint is aborted, triggered or not."""


@define
class _Capture:
    """The capture of the checkpoint that was triggered last."""

    checkpoint_id: int
    time: SubtaskTime
    metrics: BarrierMetrics
    outputs: Mapping[TaskId, Sequence[InFlight]]
    inputs: dict[TaskId, list[InFlight]] = field(factory=dict)


def no_clock() -> int:
    """The clock of a network without time."""
    return 0


class ChannelBarriers:
    """Carries out the actions of a barrier handler; ``now_ms`` is the clock of barriers and alignment timeouts."""

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
        """Whether `time_out` is due."""
        return self._timer is not None and self._now_ms() >= self._timer[1]

    def time_out(self) -> None:
        """The alignment timeout has elapsed."""
        if self._timer is not None:
            (checkpoint_id, _), self._timer = self._timer, None
            self._handle(AlignmentTimedOut(checkpoint_id, self._now_ms()))

    def passes(self, channel: Channel, element: InFlight) -> None:
        """A channel delivers a record batch, a watermark or a status."""
        if channel in self._captured and is_in_flight(element):
            assert self._capture is not None
            self._capture.inputs.setdefault(channel.sender, []).append(copied_element(element))

    def announced(self, channel: Channel, barrier: CheckpointBarrier) -> None:
        """A barrier is in a channel, after elements that the channel has not delivered yet."""
        self._handle(BarrierAnnounced(self._places[channel], barrier, self._now_ms()))

    def cancelled(self, channel: Channel, checkpoint_id: int) -> None:
        """A channel delivers the cancellation of a checkpoint."""
        self._handle(CancellationArrived(self._places[channel], checkpoint_id, self._now_ms()))

    def closed(self, channel: Channel) -> None:
        """A channel delivers nothing more."""
        self._handle(ChannelEnded(self._places[channel], self._now_ms()))

    def arrived(self, channel: Channel, barrier: CheckpointBarrier, overtaken: Sequence[InFlight] = ()) -> None:
        """A channel delivers a barrier, which overtook these elements."""
        overtaken = list(map(copied_element, overtaken))
        known = self._sent_on
        # If one subtask aligns, its readers follow the form of the barrier that arrived.
        if known is None or (barrier.checkpoint_id, barrier.is_unaligned) > (known.checkpoint_id, False):
            self._sent_on = barrier
        if channel in self._captured:
            assert self._capture is not None
            if self._capture.checkpoint_id == barrier.checkpoint_id:
                self._capture.inputs.setdefault(channel.sender, []).extend(overtaken)
                overtaken = []
        # The capture of a checkpoint that this barrier triggers starts with what it has overtaken.
        self._arriving = (channel, overtaken)
        self._handle(BarrierArrived(self._places[channel], barrier, self._now_ms()))
        self._arriving = None

    def _handle(self, event: BarrierEvent) -> None:
        for action in self._handler.handle(event):
            _ACTIONS[type(action)](self, action)

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
        own = {reader: list(map(copied_element, elements)) for reader, elements in outputs.items()}
        self._capture = _Capture(barrier.checkpoint_id, time, metrics, own)
        if not is_unaligned:
            self._finish(is_unaligned=False, capture_ms=0)
        elif self._arriving is not None and self._arriving[1]:
            channel, overtaken = self._arriving
            self._capture.inputs[channel.sender] = list(overtaken)

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


_ACTIONS: Final[Mapping[type[BarrierAction], Callable[[ChannelBarriers, Any], None]]] = {
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
