"""The end of the network: one subtask that all sinks read through, so that what comes out has one order.

Each sink is an input of its own, with a watermark of its own, as an operator in its place would have it. Nothing
overtakes here: what comes out before a barrier is what its checkpoint gives the sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from checkpointing.barriers.barrier_elements import AbortReason, CheckpointBarrier
from checkpointing.barriers.checkpointing_mode import CheckpointingMode
from streamjobs.inprocess.network.channel import Channel, SubtaskOutput
from streamjobs.inprocess.network.channel_barriers import ChannelBarriers
from streamjobs.inprocess.network.elements import CancelledCheckpoint, EndOfInput, InFlight, RecordBatch, SubtaskId
from streamjobs.inprocess.network.operator_subtask import channels_of_inputs
from streamjobs.inprocess.network.subtask_capture import SubtaskCapture, SubtaskTime
from streamjobs.time.operator_watermarks import OperatorWatermarks, OperatorWatermarkState
from streamjobs.time.timestamps import MIN_TIMESTAMP
from streamjobs.time.watermark_elements import Watermark, WatermarkElement, WatermarkStatus

__all__ = ["OutputListener", "OutputSubtask"]


def _tell_nobody(*told: Any) -> None:
    """For a network whose checkpoints nobody follows."""


class OutputListener(Protocol):
    """Who is told what comes out, in the one order in which it does; sinks go by their index."""

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        """Records of a sink."""

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        """A watermark or a status at which a sink is from now on."""


class OutputSubtask:
    """See the module.

    ``on_barrier`` is called with the id of a checkpoint whose records have all come out, ``on_abort`` with that of one
    that is given up, and why.
    """

    def __init__(
        self,
        subtask_id: SubtaskId,
        channels: Sequence[Channel],
        sink_count: int,
        listener: OutputListener,
        mode: CheckpointingMode = CheckpointingMode.ALIGNED,
        on_barrier: Callable[[int], None] = _tell_nobody,
        on_abort: Callable[[int, AbortReason], None] = _tell_nobody,
    ) -> None:
        for channel in channels:
            channel.may_be_overtaken = False
        self.subtask_id = subtask_id
        self.channels = tuple(channels)
        self._listener = listener
        self._on_barrier = on_barrier
        self._tell_abort = on_abort
        self._barriers = ChannelBarriers(self.channels, mode, self)
        self._watermarks = [OperatorWatermarks([one]) for one in channels_of_inputs(channels, sink_count)]

    def readable(self) -> Sequence[Channel]:
        """The channels of which it may take an element now."""
        return [one for one in self.channels if one.can_be_read]

    def step(self, channel: Channel) -> None:
        """Takes the first element of a channel."""
        element = channel.take()
        self._HANDLERS[type(element)](self, channel, element)

    def restore(self, senders: Mapping[SubtaskId, SubtaskOutput]) -> None:
        """Goes on from what the senders have sent before."""
        for channel in self.channels:
            sent = senders[channel.sender]
            for index in channel.inputs:
                watermarks = self._watermarks[index]
                watermarks.take(0, channel.sender, Watermark(sent.watermark_ms))
                watermarks.take(0, channel.sender, sent.status)

    def on_trigger(self, barrier: CheckpointBarrier) -> tuple[SubtaskTime, Mapping[SubtaskId, Sequence[InFlight]]]:
        """Tells that the records of the checkpoint have come out; it is a `BarrierListener`."""
        self._on_barrier(barrier.checkpoint_id)
        return SubtaskTime(OperatorWatermarkState(MIN_TIMESTAMP, ()), MIN_TIMESTAMP, WatermarkStatus.ACTIVE), {}

    def on_captured(self, capture: SubtaskCapture) -> None:
        """What came out before is all there is of the checkpoint."""

    def on_abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """What came out belongs to the next checkpoint."""
        self._tell_abort(checkpoint_id, reason)

    def _take_records(self, channel: Channel, batch: RecordBatch) -> None:
        self._listener.on_records(batch.input_index, batch)

    def _take_time(self, channel: Channel, element: WatermarkElement) -> None:
        for index in channel.inputs:
            for done in self._watermarks[index].take(0, channel.sender, element):
                self._listener.on_time(index, done)

    def _take_barrier(self, channel: Channel, barrier: CheckpointBarrier) -> None:
        self._barriers.arrived(channel, barrier)

    def _take_cancellation(self, channel: Channel, cancelled: CancelledCheckpoint) -> None:
        self._barriers.cancelled(channel, cancelled)

    def _take_end(self, channel: Channel, end: EndOfInput) -> None:
        if end is EndOfInput.CLOSED:
            channel.is_closed = True
            self._barriers.closed(channel)
        else:
            channel.has_ended = True

    _HANDLERS: Final[Mapping[type, Callable[[OutputSubtask, Channel, Any], None]]] = {
        RecordBatch: _take_records,
        Watermark: _take_time,
        WatermarkStatus: _take_time,
        CheckpointBarrier: _take_barrier,
        CancelledCheckpoint: _take_cancellation,
        EndOfInput: _take_end,
    }
