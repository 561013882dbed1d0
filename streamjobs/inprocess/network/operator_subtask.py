"""A subtask of an operator in the network: what it does with each element.

| element          | what the subtask does                                                                           |
|------------------|-------------------------------------------------------------------------------------------------|
| records          | the operator processes them                                                                     |
| watermark        | the valve of each input that the channel feeds decides whether the operator's watermark advances; |
|                  | if so, timers up to it fire and the operator is told, and then the watermark goes on             |
| status           | likewise; the operator is not told                                                              |
| barrier          | when it has come on all channels: the operator is snapshotted, and the barrier goes on           |
| end of input     | when it has come on all channels it goes on                                                     |

What the operator emits goes on at once, so what timers emit is in front of the watermark at which they fire. An
operator that holds watermarks back says itself when one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from checkpointing.barriers.barrier_elements import CheckpointBarrier
from streamjobs.inprocess.network.channel import Channel, SubtaskOutput
from streamjobs.inprocess.network.channel_barriers import ChannelBarriers
from streamjobs.inprocess.network.elements import EndOfInput, RecordBatch, SubtaskId
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


class OperatorSubtask:
    """See the module."""

    def __init__(
        self,
        subtask_id: SubtaskId,
        channels: Sequence[Channel],
        input_count: int,
        work: OperatorWork,
        output: SubtaskOutput,
    ) -> None:
        self.subtask_id = subtask_id
        self.channels = tuple(channels)
        self.work = work
        self.output = output
        self.watermarks = OperatorWatermarks(channels_of_inputs(channels, input_count))
        """The valves of its inputs."""
        self._barriers = ChannelBarriers(self.channels)

    def readable(self) -> Sequence[Channel]:
        """The channels of which it may take an element now."""
        return [one for one in self.channels if one.can_be_read] if self.output.has_room else ()

    def step(self, channel: Channel) -> None:
        """Takes the first element of a channel; raises what the operator raises."""
        element = channel.take()
        self._HANDLERS[type(element)](self, channel, element)

    def resume(self) -> None:
        """Brings an operator that was restored to the watermark that it was at, behind the early records it has got."""
        if self.watermarks.watermark_ms > self.work.watermark_ms:
            self.work.advance_watermark(self.watermarks.watermark_ms)

    def _take_records(self, channel: Channel, batch: RecordBatch) -> None:
        self.work.process(batch)

    def _take_time(self, channel: Channel, element: WatermarkElement) -> None:
        for index in channel.inputs:
            for done in self.watermarks.take(index, channel.sender, element):
                if isinstance(done, Watermark):
                    self.work.advance_watermark(done.timestamp_ms)
                    if self.work.holds_watermarks:
                        continue
                self.output.send_time(done)

    def _take_barrier(self, channel: Channel, barrier: CheckpointBarrier) -> None:
        self._barriers.take(channel, barrier, self._snapshot)

    def _snapshot(self, barrier: CheckpointBarrier) -> None:
        self.work.snapshot(barrier.checkpoint_id)
        self.output.send_barrier(barrier)

    def _take_end(self, channel: Channel, end: EndOfInput) -> None:
        channel.has_ended = True
        if all(one.has_ended for one in self.channels):
            self.output.send_end()

    _HANDLERS: Final[Mapping[type, Callable[[OperatorSubtask, Channel, Any], None]]] = {
        RecordBatch: _take_records,
        Watermark: _take_time,
        WatermarkStatus: _take_time,
        CheckpointBarrier: _take_barrier,
        EndOfInput: _take_end,
    }


def channels_of_inputs(channels: Sequence[Channel], input_count: int) -> list[list[SubtaskId]]:
    """Who sends to each of the inputs."""
    return [[one.sender for one in channels if index in one.inputs] for index in range(input_count)]
