"""Channels between subtasks, and the elements that travel on them.

A channel has room for a number of elements. A subtask moves only if all channels that it sends to have room: this is
backpressure. One move may send more than fits; the subtask then waits until its readers have caught up. The graph has
no cycles, and an aligned barrier goes to all readers at once, so some subtask can always move.

An unaligned barrier leaves the channel before the elements in it, and needs no room:

    put e1 e2 e3, room for two        [e1 e2] e3
    put the barrier U                 U [e1 e2] e3      e3 is beyond the room and belongs to the part of the sender
    put e4                            U [e1 e2] e3 e4
    take                              [e1 e2 e3 e4]     U comes out, with e1 e2 for the part of the reader
    take                              [e2 e3 e4]        e1 is processed as usual

An aligned barrier with an alignment timeout stays in its place. It is announced to the reader, which may let it
overtake.

*In-flight* elements belong to a checkpoint whose barrier overtakes them: records, watermarks and statuses, in their
order, because a record is late or not by the watermarks before it. Barriers and the end of input concern the run and
are not in flight. Neither is the end of time, which a source sends again after a restore.

Invariants: elements leave in the order in which they were put; barriers that overtake leave in the order of their
checkpoints. A barrier overtakes exactly the elements that were put before it and not taken. Of these, the parts of the
reader and of the sender contain each element once.
"""

from __future__ import annotations

import copy
import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, cast

from attrs import define, evolve, field, frozen

from statebackend.checkpoint.barriers.elements import CheckpointBarrier
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.operator_watermarks import WatermarkOutlet
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus

DEFAULT_CAPACITY: Final = 16
"""The room of a channel, in elements; a batch of records is one element."""


@frozen
class RecordBatch:
    """Records for one input of a subtask, in order, with keys and key groups if the input is keyed.

    ``timestamps`` is None in a job without event time. ``sender_watermark_ms`` is the watermark of the sender when it
    sent the records. Records, keys and key groups may be in columns, whose objects are created on demand.
    """

    input_index: int
    records: Sequence[Any]
    timestamps: Sequence[int | None] | None = None
    keys: Sequence[Any] = ()
    key_groups: Sequence[int] = ()
    sender_watermark_ms: int = MIN_TIMESTAMP


class EndOfInput(enum.Enum):
    """The last elements of a channel."""

    END = "no more records and watermarks; barriers may follow, because an ended subtask still has state"
    CLOSED = "nothing follows: a closed subtask takes part in no further checkpoint"


@frozen
class CancelledCheckpoint:
    """The sender aborted a checkpoint; its barrier need not follow."""

    checkpoint_id: int


@frozen
class OvertakingBarrier:
    """A barrier that left a channel early, and the in-flight elements of the reader that it overtook."""

    barrier: CheckpointBarrier
    overtaken: Sequence[InFlight]


InFlight: TypeAlias = RecordBatch | WatermarkElement

ChannelElement: TypeAlias = InFlight | CheckpointBarrier | CancelledCheckpoint | EndOfInput


def copied_element(element: InFlight) -> InFlight:
    """Copy an element that is written later. Functions may change its records meanwhile."""
    return evolve(element, records=copy.deepcopy(element.records)) if isinstance(element, RecordBatch) else element


def is_in_flight(element: ChannelElement) -> bool:
    """Whether an overtaken element belongs to the checkpoint (an `InFlight`)."""
    return isinstance(element, RecordBatch | Watermark | WatermarkStatus) and element != END_OF_TIME


@define
class _Overtaking:
    """A barrier that overtakes, and how many of the overtaken elements are the part of the reader."""

    barrier: CheckpointBarrier
    of_reader: int


@define(eq=False)
class Channel:
    """A queue between two subtasks. It feeds one or several ``inputs`` of the reader.

    The reader takes nothing from a blocked channel. Without ``may_be_overtaken`` each barrier stays in its place.
    """

    sender: TaskId
    reader: TaskId
    inputs: tuple[int, ...]
    _capacity: int
    may_be_overtaken: bool = field(default=True, kw_only=True)
    is_blocked: bool = field(default=False, init=False)
    has_ended: bool = field(default=False, init=False)
    """Whether the reader has taken `EndOfInput.END`."""
    is_closed: bool = field(default=False, init=False)
    """Whether the reader has taken `EndOfInput.CLOSED`."""
    restored: int = field(default=0, init=False)
    """How many elements from a restored checkpoint are still in the channel, before all others."""
    _elements: deque[ChannelElement] = field(factory=deque, init=False)
    _overtaking: deque[_Overtaking] = field(factory=deque, init=False)
    _announced: deque[CheckpointBarrier] = field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        if self._capacity < 1:
            raise ValueError(f"the capacity of a channel is {self._capacity}; it must be at least 1")

    @property
    def has_room(self) -> bool:
        return len(self._elements) < self._capacity

    @property
    def can_be_read(self) -> bool:
        return bool(self._elements or self._overtaking) and not self.is_blocked

    @property
    def is_urgent(self) -> bool:
        """Whether the next element needs no room in the output of the reader."""
        return bool(self._announced) or (bool(self._overtaking) and not self.is_blocked)

    def put(self, element: ChannelElement) -> None:
        self._elements.append(element)

    def put_barrier(self, barrier: CheckpointBarrier, *, splits: bool) -> Sequence[InFlight]:
        """Put a barrier into its place, and return the part of the sender if it overtakes.

        With ``splits`` the part of the sender is beyond the room; otherwise the reader has all overtaken elements.
        """
        if not self.may_be_overtaken or not barrier.is_unaligned:
            self._elements.append(barrier)
            if self.may_be_overtaken and barrier.overtakes_from_ms is not None:
                self._announced.append(barrier)
            return ()
        of_reader = min(len(self._elements), self._capacity) if splits else len(self._elements)
        self._overtaking.append(_Overtaking(barrier, of_reader))
        return _in_flight(islice(self._elements, of_reader, None))

    def put_restored(self, elements: Sequence[InFlight]) -> None:
        """Put in-flight elements of a former run; raises `IllegalTransitionError` after an element of this run."""
        if self.restored != len(self._elements):
            raise IllegalTransitionError("RESTORE", "RUNNING", f"{self.sender} has sent to {self.reader} already")
        self._elements.extend(elements)
        self.restored += len(elements)

    def let_overtake(self, checkpoint_id: int) -> None:
        """Let an announced barrier leave next, unless it has left."""
        barriers = ((place, one) for place, one in enumerate(self._elements) if isinstance(one, CheckpointBarrier))
        place, barrier = next((found for found in barriers if found[1].checkpoint_id == checkpoint_id), (-1, None))
        if barrier is None:
            return
        del self._elements[place]
        for one in self._overtaking:
            # Barriers that were put later have overtaken this barrier too.
            one.of_reader -= one.of_reader > place
        earlier = sum(one.barrier.checkpoint_id < checkpoint_id for one in self._overtaking)
        self._overtaking.insert(earlier, _Overtaking(barrier, place))

    def take_announced(self) -> CheckpointBarrier | None:
        """Take the announcement of a barrier that is in the channel; None if there is none."""
        return self._announced.popleft() if self._announced else None

    def take(self) -> ChannelElement | OvertakingBarrier:
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
        """All elements in the channel, in the order in which they will be taken."""
        return (*(one.barrier for one in self._overtaking), *self._elements)

    def _forget_announced(self, barrier: CheckpointBarrier) -> None:
        if barrier in self._announced:
            self._announced.remove(barrier)


class SubtaskOutput:
    """The output of a subtask: records go to one channel, all else to all. An idle subtask sends no watermark.

    With ``splits`` the subtask gets the elements beyond the room that its barriers overtake, and must store them.
    """

    def __init__(self, *, splits: bool = False) -> None:
        self.channels: list[Channel] = []
        self.splits = splits
        self.watermark_ms = MIN_TIMESTAMP
        """The last watermark that was sent; `MIN_TIMESTAMP` before the first."""
        self._outlet = WatermarkOutlet()

    @property
    def status(self) -> WatermarkStatus:
        """The last status that was sent."""
        return self._outlet.status

    @property
    def has_room(self) -> bool:
        return all(channel.has_room for channel in self.channels)

    def send_time(self, element: WatermarkElement) -> None:
        """Send a watermark unless idle, or a status if it is new."""
        if not self._outlet.passes(element):
            return
        if isinstance(element, Watermark) and not self.status.is_idle:
            self.watermark_ms = element.timestamp_ms
        self.send_to_all(element)

    def send_barrier(self, barrier: CheckpointBarrier) -> Mapping[TaskId, Sequence[InFlight]]:
        """Send a barrier, and return by reader what it overtook of this subtask's part."""
        parts = {one.reader: one.put_barrier(barrier, splits=self.splits) for one in self.channels}
        return {reader: elements for reader, elements in parts.items() if elements}

    def send_to_all(self, element: ChannelElement) -> None:
        for channel in self.channels:
            channel.put(element)

    def restore(self, watermark_ms: int, status: WatermarkStatus) -> None:
        """Continue after this watermark and status, which the restored readers know."""
        self.watermark_ms, self._outlet = watermark_ms, WatermarkOutlet(status)


def _in_flight(elements: Iterable[ChannelElement]) -> Sequence[InFlight]:
    return [cast(InFlight, one) for one in elements if is_in_flight(one)]
