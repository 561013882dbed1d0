"""A channel between two subtasks, and what a subtask sends on its channels.

A channel has room for a number of elements, and a subtask moves only when there is room on all that it sends to: that
is the back-pressure. One move is never cut in two, so what it sends may exceed the room; nothing further moves then
until the reader has caught up. Since a graph has no circles, and an aligned barrier is sent to all readers at once,
somebody can always move.

An unaligned barrier comes out before what lies in the channel, and needs no room:

    put e1 e2 e3, room for two        [e1 e2] e3
    put the barrier U                 U [e1 e2] e3      e3, beyond the room, belongs to the sender's part
    put e4                            U [e1 e2] e3 e4
    take                              [e1 e2 e3 e4]     U comes out, with e1 e2 for the reader's part
    take                              [e2 e3 e4]        e1 is processed, as if nothing had overtaken it

An aligned barrier with a time to align stays in its place and is announced to the reader, who may let it overtake.

Invariants: elements come out in the order in which they were put, barriers that overtake apart, which come out in the
order of their checkpoints; what a barrier has overtaken when it comes out is all that was put before it and not taken,
since nothing else is taken before it; the two parts of that, the reader's and the sender's, have every element once.

What travels on a channel beside watermarks and statuses: batches of records, barriers, the end of input.

What is *in flight* belongs to a checkpoint whose barrier overtakes it: records, watermarks and statuses, in their
order, since each is what it is by what was before it (a record is late behind a watermark). The rest tells of the run
and not of the stream: barriers, and the end of input with the end of time before it, which a source says again after a
restore.
"""

from __future__ import annotations

import copy
import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, cast

from attrs import define, evolve, frozen

from statebackend.checkpoint.barriers.elements import CheckpointBarrier
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.operator_watermarks import WatermarkOutlet
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus

__all__ = [
    "DEFAULT_CAPACITY",
    "CancelledCheckpoint",
    "Channel",
    "ChannelElement",
    "EndOfInput",
    "InFlight",
    "OvertakingBarrier",
    "RecordBatch",
    "SubtaskId",
    "SubtaskOutput",
    "is_in_flight",
    "kept",
]


@frozen(order=True)
class SubtaskId:
    """A subtask of a node: operators go by their uid, sources by the name that checkpoints know them by."""

    node: str
    index: int


@frozen
class RecordBatch:
    """Records for one input of a subtask, in order; keys and key groups beside them if the input is keyed.

    ``timestamps`` are None in a job without event time. ``sender_watermark_ms`` is the watermark that the sender was at
    when it sent them, for whoever watches.
    """

    input_index: int
    records: Sequence[Any]
    timestamps: Sequence[int | None] | None = None
    keys: Sequence[Any] = ()
    key_groups: Sequence[int] = ()
    sender_watermark_ms: int = MIN_TIMESTAMP


class EndOfInput(enum.Enum):
    """What follows no more on a channel."""

    END = "neither a record nor time, but barriers may: who has ended has state still"
    CLOSED = "nothing: who has closed takes part in no further checkpoint"


@frozen
class CancelledCheckpoint:
    """A checkpoint is given up by who sends this; no barrier of it need follow."""

    checkpoint_id: int


@frozen
class OvertakingBarrier:
    """A barrier as it comes out before what was sent before it, and of that what is in flight."""

    barrier: CheckpointBarrier
    overtaken: Sequence[InFlight]


InFlight: TypeAlias = RecordBatch | WatermarkElement

ChannelElement: TypeAlias = InFlight | CheckpointBarrier | CancelledCheckpoint | EndOfInput


def kept(element: InFlight) -> InFlight:
    """The element for a checkpoint that is written later: what a function makes of its records does not reach it."""
    return evolve(element, records=copy.deepcopy(element.records)) if isinstance(element, RecordBatch) else element


def is_in_flight(element: ChannelElement) -> bool:
    """Whether it belongs to a checkpoint whose barrier overtakes it; an `InFlight` then."""
    return isinstance(element, RecordBatch | Watermark | WatermarkStatus) and element != END_OF_TIME


DEFAULT_CAPACITY: Final = 16
"""Elements that a channel has room for; a batch is one."""


@define
class _Overtaking:
    """A barrier before a channel, and how many of the elements that it has overtaken are the reader's part."""

    barrier: CheckpointBarrier
    of_reader: int


class Channel:
    """A queue from one subtask to another, which may feed several inputs of that.

    A blocked one is not read from: its barrier waits for those of other channels. In one that may not be overtaken
    every barrier stays in its place.
    """

    __slots__ = (
        "_announced",
        "_capacity",
        "_elements",
        "_overtaking",
        "has_ended",
        "inputs",
        "is_blocked",
        "is_closed",
        "may_be_overtaken",
        "reader",
        "restored",
        "sender",
    )

    def __init__(
        self,
        sender: SubtaskId,
        reader: SubtaskId,
        inputs: tuple[int, ...],
        capacity: int,
        *,
        may_be_overtaken: bool = True,
    ) -> None:
        """Raises `ValueError` for a capacity that has room for nothing."""
        if capacity < 1:
            raise ValueError(f"the capacity of a channel is {capacity}; it has room for one element at least")
        self.sender = sender
        self.reader = reader
        self.inputs = inputs
        """The inputs of the reader that it feeds."""
        self.may_be_overtaken = may_be_overtaken
        self.is_blocked = False
        self.has_ended = False
        """Whether the reader has taken the end of input from it."""
        self.is_closed = False
        """Whether the reader has taken from it that nothing follows at all."""
        self.restored = 0
        """How many elements of a restored checkpoint are still in it; they are in front."""
        self._capacity = capacity
        self._elements: deque[ChannelElement] = deque()
        self._overtaking: deque[_Overtaking] = deque()
        self._announced: deque[CheckpointBarrier] = deque()

    @property
    def has_room(self) -> bool:
        """Whether the sender may move."""
        return len(self._elements) < self._capacity

    @property
    def can_be_read(self) -> bool:
        """Whether the reader may take an element."""
        return bool(self._elements or self._overtaking) and not self.is_blocked

    @property
    def is_urgent(self) -> bool:
        """Whether the reader may take something for which it needs no room behind it."""
        return bool(self._announced) or (bool(self._overtaking) and not self.is_blocked)

    def put(self, element: ChannelElement) -> None:
        """Puts an element behind the others."""
        self._elements.append(element)

    def put_barrier(self, barrier: CheckpointBarrier, *, splits: bool) -> Sequence[InFlight]:
        """Puts a barrier into its place, which is in front if it is unaligned; returns what is the sender's part then.

        With ``splits`` that is what lies beyond the room; without, the reader's part is all that the barrier overtakes.
        """
        if not self.may_be_overtaken:
            self._elements.append(barrier)
            return ()
        if not barrier.is_unaligned:
            self._elements.append(barrier)
            if barrier.overtakes_from_ms is not None:
                self._announced.append(barrier)
            return ()
        of_reader = min(len(self._elements), self._capacity) if splits else len(self._elements)
        self._overtaking.append(_Overtaking(barrier, of_reader))
        return _in_flight(islice(self._elements, of_reader, None))

    def put_restored(self, elements: Sequence[InFlight]) -> None:
        """Puts what was in flight in another run; raises `IllegalTransitionError` behind what is of this one."""
        if self.restored != len(self._elements):
            raise IllegalTransitionError("RESTORE", "RUNNING", f"{self.sender} has sent to {self.reader} already")
        self._elements.extend(elements)
        self.restored += len(elements)

    def let_overtake(self, checkpoint_id: int) -> None:
        """Lets the barrier of a checkpoint that was announced come out next, unless it has come out."""
        places = (
            (place, element)
            for place, element in enumerate(self._elements)
            if isinstance(element, CheckpointBarrier) and element.checkpoint_id == checkpoint_id
        )
        found = next(places, None)
        if found is None:
            return
        place, barrier = found
        del self._elements[place]
        for one in self._overtaking:
            # What was put later has overtaken this barrier too.
            one.of_reader -= one.of_reader > place
        earlier = sum(one.barrier.checkpoint_id < checkpoint_id for one in self._overtaking)
        self._overtaking.insert(earlier, _Overtaking(barrier, place))

    def take_announced(self) -> CheckpointBarrier | None:
        """A barrier that has come into the channel and was not told of yet, if there is one."""
        return self._announced.popleft() if self._announced else None

    def take(self) -> ChannelElement | OvertakingBarrier:
        """The first element."""
        if self._overtaking:
            first = self._overtaking.popleft()
            self._forget_announced(first.barrier)
            return OvertakingBarrier(first.barrier, _in_flight(islice(self._elements, first.of_reader)))
        element = self._elements.popleft()
        if self.restored:
            self.restored -= 1
        if self._announced and isinstance(element, CheckpointBarrier):
            self._forget_announced(element)
        return element

    def waiting(self) -> Sequence[ChannelElement]:
        """What is on its way, the first to be read first."""
        return (*(one.barrier for one in self._overtaking), *self._elements)

    def _forget_announced(self, barrier: CheckpointBarrier) -> None:
        # Who has a barrier needs not be told that it is coming.
        if barrier in self._announced:
            self._announced.remove(barrier)


class SubtaskOutput:
    """What a subtask sends: records to single channels, all else to all. While idle, no watermark but the end.

    One that ``splits`` is told what its barriers overtake beyond the room of its channels, and must keep it.
    """

    def __init__(self, *, splits: bool = False) -> None:
        self.channels: list[Channel] = []
        self.splits = splits
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
        if isinstance(element, Watermark) and not self.status.is_idle:
            self.watermark_ms = element.timestamp_ms
        self._send_to_all(element)

    def send_barrier(self, barrier: CheckpointBarrier) -> Mapping[SubtaskId, Sequence[InFlight]]:
        """Sends a barrier; returns what it has overtaken of this subtask's part, by who was to read it."""
        parts = {one.reader: one.put_barrier(barrier, splits=self.splits) for one in self.channels}
        return {reader: elements for reader, elements in parts.items() if elements}

    def send_cancellation(self, checkpoint_id: int) -> None:
        """Says that a checkpoint is given up."""
        self._send_to_all(CancelledCheckpoint(checkpoint_id))

    def send_end(self, end: EndOfInput = EndOfInput.END) -> None:
        """Says that neither a record nor time follows, or nothing at all."""
        self._send_to_all(end)

    def restore(self, watermark_ms: int, status: WatermarkStatus) -> None:
        """Goes on from what had been sent, which readers that were restored know."""
        self.watermark_ms, self._outlet = watermark_ms, WatermarkOutlet(status)

    def _send_to_all(self, element: ChannelElement) -> None:
        for channel in self.channels:
            channel.put(element)


def _in_flight(elements: Iterable[ChannelElement]) -> Sequence[InFlight]:
    return [cast(InFlight, one) for one in elements if is_in_flight(one)]
