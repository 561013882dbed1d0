"""A subtask of an operator in the network: what it does with each element.

| element          | what the subtask does                                                                           |
|------------------|-------------------------------------------------------------------------------------------------|
| records          | the operator processes them                                                                     |
| watermark        | the valve of each input that the channel feeds decides whether the operator's watermark advances; |
|                  | if so, timers up to it fire and the operator is told, and then the watermark goes on             |
| status           | likewise; the operator is not told                                                              |
| barrier          | as `channel_barriers` has it, the operator is snapshotted, and then the barrier goes on          |
| cancellation     | likewise, the checkpoint is given up, and that goes on                                           |
| end of input     | when it has come on all channels it goes on                                                     |
| close            | likewise                                                                                        |

What the operator emits goes on at once, so what timers emit is in front of the watermark at which they fire. An
operator that holds watermarks back says itself when one goes on.

What was in flight in a checkpoint that the subtask goes on from is taken before anything else that its channels have,
barriers that overtake apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from checkpointing.barriers.barrier_elements import AbortReason, CheckpointBarrier
from checkpointing.barriers.checkpointing_mode import CheckpointingMode
from streamjobs.inprocess.network.channel import Channel, SubtaskOutput
from streamjobs.inprocess.network.channel_barriers import ChannelBarriers, no_clock
from streamjobs.inprocess.network.elements import (
    CancelledCheckpoint,
    EndOfInput,
    InFlight,
    OvertakingBarrier,
    RecordBatch,
    SubtaskId,
)
from streamjobs.inprocess.network.subtask_capture import SubtaskCapture, SubtaskTime
from streamjobs.time.operator_watermarks import OperatorWatermarks
from streamjobs.time.watermark_elements import Watermark, WatermarkElement, WatermarkStatus

__all__ = ["OperatorSubtask", "OperatorWork", "channels_of_inputs"]


class OperatorWork(Protocol):
    """What an operator does, with its state; it emits into the output of its subtask. Everything may raise."""

    @property
    def watermark_ms(self) -> int:
        """The watermark that the operator was told last; the smallest time if none."""

    @property
    def holds_watermarks(self) -> bool:
        """Whether it sends watermarks itself."""

    def begin_at(self, watermark_ms: int) -> None:
        """Begins with a watermark that the operator was told before, in another run."""

    def process(self, batch: RecordBatch) -> None:
        """Takes records."""

    def advance_watermark(self, timestamp_ms: int) -> None:
        """Fires what is due by then, and tells the operator."""

    def advance_processing_time(self) -> None:
        """Fires what is due by the clock."""

    def snapshot(self, checkpoint_id: int) -> None:
        """Emits or stores what is held, and snapshots the state."""

    def complete_snapshot(self, capture: SubtaskCapture) -> None:
        """Nothing is missing any more in a checkpoint that was snapshotted: with this it can be acknowledged."""

    def abort_checkpoint(self, checkpoint_id: int, reason: AbortReason) -> None:
        """A checkpoint is given up, whether it was snapshotted or not."""


class OperatorSubtask:
    """See the module. ``mode`` says how its barriers are taken, ``now_ms`` is the clock of the barriers."""

    def __init__(
        self,
        subtask_id: SubtaskId,
        channels: Sequence[Channel],
        input_count: int,
        work: OperatorWork,
        output: SubtaskOutput,
        mode: CheckpointingMode = CheckpointingMode.ALIGNED,
        now_ms: Callable[[], int] = no_clock,
    ) -> None:
        self.subtask_id = subtask_id
        self.channels = tuple(channels)
        self.work = work
        self.output = output
        # Who reads the barriers of a subtask acknowledges what they overtake in its output.
        output.splits = True
        self.watermarks = OperatorWatermarks(channels_of_inputs(channels, input_count))
        """The valves of its inputs."""
        self.barriers = ChannelBarriers(self.channels, mode, self, now_ms)
        """What its barriers do."""

    def readable(self) -> Sequence[Channel]:
        """The channels of which it may take an element now."""
        if not self.output.has_room:
            return [one for one in self.channels if one.is_urgent]
        if not any(one.restored for one in self.channels):
            return [one for one in self.channels if one.can_be_read or one.is_urgent]
        return [one for one in self.channels if one.is_urgent or (one.restored and one.can_be_read)]

    def step(self, channel: Channel) -> None:
        """Takes the first element of a channel; raises what the operator raises."""
        announced = channel.take_announced()
        if announced is not None:
            self.barriers.announced(channel, announced)
            return
        element = channel.take()
        self._HANDLERS[type(element)](self, channel, element)

    @property
    def is_behind(self) -> bool:
        """Whether its channels are further than what its operator, which was restored, was told."""
        return self.watermarks.watermark_ms > self.work.watermark_ms

    def resume(self) -> None:
        """Brings an operator that was restored to the watermark that it was at, behind the early records it has got."""
        if self.is_behind:
            self.work.advance_watermark(self.watermarks.watermark_ms)

    def time(self) -> SubtaskTime:
        """What it knows of event time now."""
        return SubtaskTime(self.watermarks.snapshot(), self.output.watermark_ms, self.output.status)

    def on_trigger(self, barrier: CheckpointBarrier) -> tuple[SubtaskTime, Mapping[SubtaskId, Sequence[InFlight]]]:
        """Snapshots the operator and sends the barrier on; it is a `BarrierListener`."""
        self.work.snapshot(barrier.checkpoint_id)
        # What the operator holds back it may send when it is snapshotted, and time with it.
        time = self.time()
        return time, self.output.send_barrier(barrier)

    def on_captured(self, capture: SubtaskCapture) -> None:
        """Lets the operator acknowledge."""
        self.work.complete_snapshot(capture)

    def on_abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """Gives a checkpoint up, and sends that on."""
        self.work.abort_checkpoint(checkpoint_id, reason)
        self.output.send_cancellation(checkpoint_id)

    def _take_records(self, channel: Channel, batch: RecordBatch) -> None:
        self.barriers.passes(channel, batch)
        self.work.process(batch)

    def _take_time(self, channel: Channel, element: WatermarkElement) -> None:
        self.barriers.passes(channel, element)
        for index in channel.inputs:
            for done in self.watermarks.take(index, channel.sender, element):
                if isinstance(done, Watermark):
                    self.work.advance_watermark(done.timestamp_ms)
                    if self.work.holds_watermarks:
                        continue
                self.output.send_time(done)

    def _take_barrier(self, channel: Channel, barrier: CheckpointBarrier) -> None:
        self.barriers.arrived(channel, barrier)

    def _take_overtaking(self, channel: Channel, barrier: OvertakingBarrier) -> None:
        self.barriers.overtook(channel, barrier)

    def _take_cancellation(self, channel: Channel, cancelled: CancelledCheckpoint) -> None:
        self.barriers.cancelled(channel, cancelled)

    def _take_end(self, channel: Channel, end: EndOfInput) -> None:
        if end is EndOfInput.CLOSED:
            channel.is_closed = True
            self.barriers.closed(channel)
            if all(one.is_closed for one in self.channels):
                self.output.send_end(end)
            return
        channel.has_ended = True
        if all(one.has_ended for one in self.channels):
            self.output.send_end(end)

    _HANDLERS: Final[Mapping[type, Callable[[OperatorSubtask, Channel, Any], None]]] = {
        RecordBatch: _take_records,
        Watermark: _take_time,
        WatermarkStatus: _take_time,
        CheckpointBarrier: _take_barrier,
        OvertakingBarrier: _take_overtaking,
        CancelledCheckpoint: _take_cancellation,
        EndOfInput: _take_end,
    }


def channels_of_inputs(channels: Sequence[Channel], input_count: int) -> list[list[SubtaskId]]:
    """Who sends to each of the inputs."""
    return [[one.sender for one in channels if index in one.inputs] for index in range(input_count)]
