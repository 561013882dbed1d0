"""The end of the network: one subtask that all sinks read through, so that what comes out has one order.

Each sink is an input of its own, with a watermark of its own, as an operator in its place would have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from checkpointing.barriers.barrier_elements import CheckpointBarrier
from streamjobs.inprocess.network.channel import Channel, SubtaskOutput
from streamjobs.inprocess.network.channel_barriers import ChannelBarriers
from streamjobs.inprocess.network.elements import EndOfInput, RecordBatch, SubtaskId
from streamjobs.inprocess.network.operator_subtask import channels_of_inputs
from streamjobs.time.operator_watermarks import OperatorWatermarks
from streamjobs.time.watermark_elements import Watermark, WatermarkElement, WatermarkStatus

__all__ = ["OutputListener", "OutputSubtask"]


class OutputListener(Protocol):
    """Who is told what comes out, in the one order in which it does; sinks go by their index."""

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        """Records of a sink."""

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        """A watermark or a status at which a sink is from now on."""


class OutputSubtask:
    """See the module."""

    def __init__(
        self, subtask_id: SubtaskId, channels: Sequence[Channel], sink_count: int, listener: OutputListener
    ) -> None:
        self.subtask_id = subtask_id
        self.channels = tuple(channels)
        self._listener = listener
        self._barriers = ChannelBarriers(self.channels)
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

    def _take_records(self, channel: Channel, batch: RecordBatch) -> None:
        self._listener.on_records(batch.input_index, batch)

    def _take_time(self, channel: Channel, element: WatermarkElement) -> None:
        for index in channel.inputs:
            for done in self._watermarks[index].take(0, channel.sender, element):
                self._listener.on_time(index, done)

    def _take_barrier(self, channel: Channel, barrier: CheckpointBarrier) -> None:
        self._barriers.take(channel, barrier, self._nothing_to_snapshot)

    def _nothing_to_snapshot(self, barrier: CheckpointBarrier) -> None:
        """Sinks are told of the checkpoint when it is stored."""

    def _take_end(self, channel: Channel, end: EndOfInput) -> None:
        channel.has_ended = True

    _HANDLERS: Final[Mapping[type, Callable[[OutputSubtask, Channel, Any], None]]] = {
        RecordBatch: _take_records,
        Watermark: _take_time,
        WatermarkStatus: _take_time,
        CheckpointBarrier: _take_barrier,
        EndOfInput: _take_end,
    }
