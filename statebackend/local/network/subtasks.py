"""A subtask of an operator in the network: what it does with each element.

| element          | what the subtask does                                                                           |
|------------------|-------------------------------------------------------------------------------------------------|
| records          | the operator processes them                                                                     |
| watermark        | the valve of each input that the channel feeds decides whether the operator's watermark advances; |
|                  | if so, timers up to it fire and the operator is told, and then the watermark goes on             |
| status           | likewise; the operator is not told                                                              |
| barrier          | as `channel_barriers` has it, the operator is snapshotted, and then the barrier goes on          |
| cancellation     | likewise, the checkpoint is given up, and that goes on                                           |
| end of input     | when it has come on all channels it goes on, after the end of time if the subtask is idle         |
| close            | likewise                                                                                        |

What the operator emits goes on at once, so what timers emit is before the watermark at which they fire. An
operator that holds watermarks back says itself when one goes on.

What was in flight in a checkpoint that the subtask goes on from is taken before anything else that its channels have,
barriers that overtake apart.

What is to be done in a run beside what travels on channels, one move each: messages, and work that waits.

    trigger, acknowledge, decline, notify complete, notify aborted    a message of the coordinator's, to or from a task
    write                                                             a snapshot is written, and then acknowledged
    store                                                             the coordinator stores a checkpoint

Mails have no order among each other: whoever sends two must bear that the second is there first.

A source in the network: what it is given to read waits here, and is read one piece per move.

A source of an alignment group that is too far ahead of the slowest reads no further until that has come closer; it
still sends barriers, which do not wait for what is not read. Whether a source has more to read is said from outside:
one that has not, and has read all, is waited for by nobody. Behind the barrier that its job stops with, nothing is read
any more; if the job is drained the end of time is before it.

The end of the network: one subtask that all sinks read through, so that what comes out has one order.

Each sink is an input of its own, with a watermark of its own, as an operator in its place would have it. Nothing
overtakes here: what comes out before a barrier is what its checkpoint gives the sinks.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import frozen

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.barriers.elements import AbortReason, CheckpointBarrier
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.checkpoint.metadata import ChannelWatermark
from statebackend.local.network.channel import (
    CancelledCheckpoint,
    Channel,
    EndOfInput,
    InFlight,
    OvertakingBarrier,
    RecordBatch,
    SubtaskId,
    SubtaskOutput,
)
from statebackend.local.network.channel_barriers import ChannelBarriers, SubtaskCapture, SubtaskTime, no_clock
from statebackend.streaming.time.operator_watermarks import OperatorWatermarks, OperatorWatermarkState
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_alignment import AlignmentGroup
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus

__all__ = [
    "LastBarrier",
    "Mail",
    "OperatorSubtask",
    "OperatorWork",
    "OutputListener",
    "OutputSubtask",
    "SourceSubtask",
    "SourceWork",
    "channels_of_inputs",
]


@frozen(eq=False)
class Mail:
    """What is to be done, for which checkpoint, and to, from or of which task, if one; ``make`` does it."""

    name: str
    checkpoint_id: int
    task: TaskId | None
    make: Callable[[], None]

    def __str__(self) -> str:
        where = "" if self.task is None else f" of {self.task}"
        return f"{self.name} {self.checkpoint_id}{where}"


class LastBarrier(enum.Enum):
    """How a job stops behind a barrier."""

    SUSPENDED = "where it is: it is to go on from there"
    DRAINED = "at the end of time: it is not to go on"


class SourceWork(Protocol):
    """What a source does with what it reads; it sends into the output of its subtask."""

    @property
    def watermark_ms(self) -> int:
        """How far the source is, for its alignment group; the smallest time if it does not know yet."""

    @property
    def is_idle(self) -> bool:
        """Whether its group does not wait for it."""

    def end_of_input(self) -> None:
        """Sends what an input sends that ends."""

    def channels(self) -> Sequence[ChannelWatermark]:
        """What is known of its channels, for a checkpoint."""

    def restore(self, watermark_ms: int, status: WatermarkStatus, channels: Sequence[ChannelWatermark]) -> None:
        """Goes on from what was sent and what was known of its channels."""


W = TypeVar("W", bound=SourceWork)


class SourceSubtask(Generic[W]):
    """See the module. ``group`` is that of the source, which has joined it under its id.

    ``on_barrier`` is called with the id of a checkpoint before the barrier of it is sent.
    """

    def __init__(
        self,
        subtask_id: SubtaskId,
        work: W,
        output: SubtaskOutput,
        group: AlignmentGroup[SubtaskId] | None = None,
        on_barrier: Callable[[int], None] | None = None,
    ) -> None:
        self.subtask_id = subtask_id
        self.work = work
        self.output = output
        self.has_ended = False
        """Whether it has been given its end; nothing can be fed behind that."""
        self._group = group
        self._unread: deque[Callable[[W], None]] = deque()
        self._barriers: deque[tuple[CheckpointBarrier, LastBarrier | None]] = deque()
        self._reads_on = True
        self._has_stopped = False
        self._has_sent_end = False
        self._on_barrier = on_barrier
        self._last_barrier_id = -1

    @property
    def unread(self) -> int:
        """How many pieces it has been given and not read."""
        return len(self._unread)

    @property
    def is_aligned(self) -> bool:
        """Whether it belongs to an alignment group."""
        return self._group is not None

    @property
    def lead_ms(self) -> int:
        """How far it is, if others wait for it; the slowest reads first."""
        return MIN_TIMESTAMP if self._group is None else self.work.watermark_ms

    @property
    def is_paused(self) -> bool:
        """Whether it waits for others of its group."""
        return self._group is not None and self.subtask_id in self._group.paused()

    @property
    def can_move(self) -> bool:
        """Whether it may send a barrier, for which it needs no room, or read."""
        if self._barriers:
            return True
        return self.output.has_room and bool(self._unread) and not (self._has_stopped or self.is_paused)

    def feed(self, reading: Callable[[W], None]) -> None:
        """Something to read, which its work is told when it is; raises `IllegalTransitionError` behind the end."""
        if self.has_ended:
            raise IllegalTransitionError("FEED", "ENDED", f"the source {self.subtask_id.node!r} has ended")
        self._unread.append(reading)

    def feed_end(self) -> None:
        """The end of its input; raises `IllegalTransitionError` behind the end."""
        self.feed(lambda work: work.end_of_input())
        self.has_ended = True

    def read_on(self, reads_on: bool) -> None:
        """Says whether more will come to read."""
        self._reads_on = reads_on
        self._report()

    def trigger(self, barrier: CheckpointBarrier, last: LastBarrier | None = None) -> None:
        """Sends a barrier before anything else is read; one that is no newer than those before came twice or late.

        With ``last`` the job stops with it.
        """
        if barrier.checkpoint_id > self._last_barrier_id:
            self._last_barrier_id = barrier.checkpoint_id
            self._barriers.append((barrier, last))

    def step(self) -> None:
        """Sends a barrier, or reads a piece; raises what reading raises."""
        if self._barriers:
            barrier, last = self._barriers.popleft()
            self._has_stopped = self._has_stopped or last is not None
            if last is LastBarrier.DRAINED and not self._has_sent_end:
                self.work.end_of_input()
                self._send_end()
            if self._on_barrier is not None:
                self._on_barrier(barrier.checkpoint_id)
            self.output.send_barrier(barrier)
            return
        self._unread.popleft()(self.work)
        if self.has_ended and not self._unread:
            self._send_end()
        self._report()

    def _send_end(self) -> None:
        self._has_sent_end = True
        self.output.send_end()

    def _report(self) -> None:
        if self._group is None:
            return
        has_read_all = self.has_ended or not (self._reads_on or self._unread)
        if has_read_all or self.work.is_idle:
            self._group.idle(self.subtask_id)
        else:
            self._group.watermark(self.subtask_id, self.work.watermark_ms)


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
            if self.output.status.is_idle:
                # Its readers count it as ended; neither it nor they reach the end of time by that.
                self.output.send_time(END_OF_TIME)
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
