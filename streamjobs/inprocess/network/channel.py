"""A channel between two subtasks, and what a subtask sends on its channels.

A channel has room for a number of elements, and a subtask moves only when there is room on all that it sends to: that
is the back-pressure. One move is never cut in two, so what it sends may exceed the room; nothing further moves then
until the reader has caught up. Since a graph has no circles, and an aligned barrier is sent to all readers at once,
somebody can always move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from checkpointing.barriers.barrier_elements import CheckpointBarrier
from streamjobs.inprocess.network.elements import ChannelElement, EndOfInput, SubtaskId
from streamjobs.time.operator_watermarks import WatermarkOutlet
from streamjobs.time.timestamps import MIN_TIMESTAMP
from streamjobs.time.watermark_elements import Watermark, WatermarkElement, WatermarkStatus

__all__ = ["DEFAULT_CAPACITY", "Channel", "SubtaskOutput"]

DEFAULT_CAPACITY: Final = 16
"""Elements that a channel has room for; a batch is one."""


class Channel:
    """A queue from one subtask to another, which may feed several inputs of that.

    A blocked one is not read from: its barrier waits for those of other channels.
    """

    __slots__ = ("_capacity", "_elements", "has_ended", "inputs", "is_blocked", "reader", "sender")

    def __init__(self, sender: SubtaskId, reader: SubtaskId, inputs: tuple[int, ...], capacity: int) -> None:
        """Raises `ValueError` for a capacity that has room for nothing."""
        if capacity < 1:
            raise ValueError(f"the capacity of a channel is {capacity}; it has room for one element at least")
        self.sender = sender
        self.reader = reader
        self.inputs = inputs
        """The inputs of the reader that it feeds."""
        self.is_blocked = False
        self.has_ended = False
        """Whether the reader has taken the end of input from it."""
        self._capacity = capacity
        self._elements: deque[ChannelElement] = deque()

    @property
    def has_room(self) -> bool:
        """Whether the sender may move."""
        return len(self._elements) < self._capacity

    @property
    def can_be_read(self) -> bool:
        """Whether the reader may take an element."""
        return bool(self._elements) and not self.is_blocked

    def put(self, element: ChannelElement) -> None:
        """Puts an element behind the others."""
        self._elements.append(element)

    def take(self) -> ChannelElement:
        """The first element."""
        return self._elements.popleft()

    def waiting(self) -> Sequence[ChannelElement]:
        """What is on its way, the first to be read first."""
        return tuple(self._elements)


class SubtaskOutput:
    """What a subtask sends: records to single channels, everything else to all; no watermark while it is idle."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.watermark_ms = MIN_TIMESTAMP
        """The last watermark that was sent; the smallest time if none was."""
        self._outlet = WatermarkOutlet()

    @property
    def status(self) -> WatermarkStatus:
        """The last status that was sent."""
        return self._outlet.status

    @property
    def has_room(self) -> bool:
        """Whether the subtask may move."""
        return all(channel.has_room for channel in self.channels)

    def send_time(self, element: WatermarkElement) -> None:
        """Sends a watermark or a status, unless the one is held back by idleness or the other says nothing new."""
        if not self._outlet.passes(element):
            return
        if isinstance(element, Watermark):
            self.watermark_ms = element.timestamp_ms
        self._send_to_all(element)

    def send_barrier(self, barrier: CheckpointBarrier) -> None:
        """Sends a barrier."""
        self._send_to_all(barrier)

    def send_end(self) -> None:
        """Says that neither a record nor time follows."""
        self._send_to_all(EndOfInput.END)

    def restore(self, watermark_ms: int, status: WatermarkStatus) -> None:
        """Goes on from what had been sent, which readers that were restored know."""
        self.watermark_ms, self._outlet = watermark_ms, WatermarkOutlet(status)

    def _send_to_all(self, element: ChannelElement) -> None:
        for channel in self.channels:
            channel.put(element)
