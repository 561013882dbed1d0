"""The subtasks of a network: sources, subtasks of operators, and the output that feeds all sinks.

| element      | what a subtask of an operator does                                                              |
|--------------|-------------------------------------------------------------------------------------------------|
| records      | the operator processes them                                                                     |
| watermark    | the valve of each input that the channel feeds decides whether the watermark of the operator    |
|              | advances; if so, timers fire, the operator processes the watermark, and it goes on              |
| status       | likewise, without the operator; an idle status waits for what the operator holds back           |
| barrier      | as in `channel_barriers`: the operator is snapshotted, then the barrier goes on                 |
| cancellation | likewise: the checkpoint is aborted, and the cancellation goes on                               |
| end of input | goes on when all channels have delivered it; an idle subtask sends the end of time first        |
| close        | goes on when all channels have delivered it                                                     |

What the operator emits goes on at once, so what timers emit precedes the watermark that fires them. An operator may
hold watermarks back and send them itself. In-flight elements of a restored checkpoint are taken before all others,
except barriers that overtake.

A *source* keeps what it was given, and reads one piece per move. A source of an alignment group that is too far ahead
pauses until the slowest has come closer. Barriers do not wait for unread pieces. After the last barrier of a job, a
source reads nothing; if the job drains, the end of time precedes that barrier.

The *output* is one subtask for all sinks, so that there is one order of results. Each sink is an input with its own
watermark. No barrier overtakes here: what arrived before a barrier belongs to its checkpoint.

A *mail* is a move outside of the channels. Mails have no order among each other:

    trigger, acknowledge, decline, notify complete, notify aborted    a message between the coordinator and a task
    write                                                             write a snapshot, then acknowledge it
    store                                                             the coordinator stores a checkpoint
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

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
    SubtaskOutput,
)
from statebackend.local.network.channel_barriers import ChannelBarriers, SubtaskCapture, SubtaskTime, no_clock
from statebackend.streaming.time.operator_watermarks import OperatorWatermarks, OperatorWatermarkState
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_alignment import AlignmentGroup
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus


@frozen(eq=False)
class Mail:
    """A move outside of the channels, for a checkpoint and possibly a task; ``make`` carries it out."""

    name: str
    checkpoint_id: int
    task: TaskId | None
    make: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.name} {self.checkpoint_id}" + ("" if self.task is None else f" of {self.task}")


class LastBarrier(enum.Enum):
    """How a job stops after its last barrier."""

    SUSPENDED = "the job will continue from its last watermark"
    DRAINED = "event time is at its end; the job will not continue"


class SourceWork(Protocol):
    """What a source does with the pieces that it reads. It sends into the output of its subtask."""

    @property
    def watermark_ms(self) -> int:
        """The watermark for its alignment group; `MIN_TIMESTAMP` before the first."""

    @property
    def is_idle(self) -> bool: ...

    def end_of_input(self) -> None:
        """Send the end of time."""

    def channels(self) -> Sequence[ChannelWatermark]:
        """The state of its channels, for a checkpoint."""

    def restore(self, watermark_ms: int, status: WatermarkStatus, channels: Sequence[ChannelWatermark]) -> None:
        """Continue from what was sent and from the state of its channels."""


W = TypeVar("W", bound=SourceWork)


class SourceSubtask(Generic[W]):
    """A source that has joined the alignment ``group``, if any. ``on_barrier`` runs before each barrier is sent."""

    def __init__(
        self,
        task: TaskId,
        work: W,
        output: SubtaskOutput,
        group: AlignmentGroup[TaskId] | None = None,
        on_barrier: Callable[[int], None] | None = None,
    ) -> None:
        self.task = task
        self.work = work
        self.output = output
        self.has_ended = False
        """Whether the end of input was fed."""
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
        """The number of pieces that were fed and not read."""
        return len(self._unread)

    @property
    def is_aligned(self) -> bool:
        """Whether it belongs to an alignment group."""
        return self._group is not None

    @property
    def alignment_watermark_ms(self) -> int:
        """The watermark of a source in an alignment group, else the smallest time. The smallest one reads first."""
        return MIN_TIMESTAMP if self._group is None else self.work.watermark_ms

    @property
    def is_paused(self) -> bool:
        """Whether it waits for others of its alignment group."""
        return self._group is not None and self.task in self._group.paused()

    @property
    def can_move(self) -> bool:
        """Whether it may send a barrier, which needs no room, or read."""
        if self.has_barrier:
            return True
        return self.output.has_room and bool(self._unread) and not (self._has_stopped or self.is_paused)

    @property
    def has_barrier(self) -> bool:
        """Whether its next move sends a barrier, and reads nothing."""
        return bool(self._barriers)

    def feed(self, reading: Callable[[W], None]) -> None:
        """Add a piece to read; raises `IllegalTransitionError` after the end."""
        if self.has_ended:
            raise IllegalTransitionError("FEED", "ENDED", f"the source {self.task.operator_uid!r} has ended")
        self._unread.append(reading)

    def feed_end(self) -> None:
        """Add the end of input; raises `IllegalTransitionError` after the end."""
        self.feed(lambda work: work.end_of_input())
        self.has_ended = True

    def read_on(self, reads_on: bool) -> None:
        """Set whether more pieces will be fed. If not, its group does not wait for it."""
        self._reads_on = reads_on
        self._report()

    def trigger(self, barrier: CheckpointBarrier, last: LastBarrier | None = None) -> None:
        """Send a barrier before anything else is read, unless it is no newer than the last one."""
        if barrier.checkpoint_id > self._last_barrier_id:
            self._last_barrier_id = barrier.checkpoint_id
            self._barriers.append((barrier, last))

    def step(self) -> None:
        """Send a barrier or read a piece; raises what reading raises."""
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
        self.output.send_to_all(EndOfInput.END)

    def _report(self) -> None:
        if self._group is None:
            return
        has_read_all = self.has_ended or not (self._reads_on or self._unread)
        if has_read_all or self.work.is_idle:
            self._group.idle(self.task)
        else:
            self._group.watermark(self.task, self.work.watermark_ms)


class OperatorWork(Protocol):
    """An operator with its state. It emits into the output of its subtask; any method may raise."""

    watermark_ms: int
    """The last watermark that the operator processed, also in a former run; `MIN_TIMESTAMP` before the first."""

    @property
    def holds_watermarks(self) -> bool:
        """Whether it sends watermarks itself."""

    def process(self, batch: RecordBatch) -> None: ...

    def advance_watermark(self, timestamp_ms: int) -> None:
        """Fire timers up to this time, then process the watermark."""

    def change_status(self, status: WatermarkStatus) -> None:
        """Send a status. An idle one follows what the operator holds back, which would be late after it."""

    def end_input(self) -> None:
        """Emit everything that the operator holds back: all channels have ended."""

    def advance_processing_time(self) -> None:
        """Fire the processing-time timers that are due."""

    def snapshot(self, checkpoint_id: int) -> None:
        """Emit or store buffered records, then freeze the state."""

    def complete_snapshot(self, capture: SubtaskCapture) -> None:
        """All in-flight elements are captured: the checkpoint can be acknowledged."""

    def abort_checkpoint(self, checkpoint_id: int, reason: AbortReason) -> None:
        """A checkpoint is aborted, whether it was snapshotted or not."""


class ReadingSubtask:
    """What operators and the output share: they take elements from channels, barriers among them."""

    def __init__(
        self, task: TaskId, channels: Sequence[Channel], mode: CheckpointingMode, now_ms: Callable[[], int]
    ) -> None:
        self.task = task
        self.channels = tuple(channels)
        self.barriers = ChannelBarriers(self.channels, mode, self, now_ms)

    def step(self, channel: Channel) -> None:
        """Take the first element of a channel; raises what the operator raises."""
        announced = channel.take_announced()
        if announced is not None:
            self.barriers.announced(channel, announced)
            return
        element = channel.take()
        self._TAKE[type(element)](self, channel, element)

    def readable(self) -> Sequence[Channel]:
        """The channels that an element may be taken from now."""
        raise NotImplementedError

    def on_trigger(self, barrier: CheckpointBarrier) -> tuple[SubtaskTime, Mapping[TaskId, Sequence[InFlight]]]:
        """See `BarrierListener`."""
        raise NotImplementedError

    def on_captured(self, capture: SubtaskCapture) -> None:
        """See `BarrierListener`."""

    def on_abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """See `BarrierListener`."""

    def on_end(self, end: EndOfInput) -> None:
        """A channel has delivered an end of input."""

    def _take_barrier(self, channel: Channel, barrier: CheckpointBarrier) -> None:
        self.barriers.arrived(channel, barrier)

    def _take_overtaking(self, channel: Channel, element: OvertakingBarrier) -> None:
        self.barriers.arrived(channel, element.barrier, element.overtaken)

    def _take_cancellation(self, channel: Channel, cancelled: CancelledCheckpoint) -> None:
        self.barriers.cancelled(channel, cancelled.checkpoint_id)

    def _take_end(self, channel: Channel, end: EndOfInput) -> None:
        if end is EndOfInput.CLOSED:
            channel.is_closed = True
            self.barriers.closed(channel)
        else:
            channel.has_ended = True
        self.on_end(end)

    _TAKE: ClassVar[Mapping[type, Callable[[Any, Channel, Any], None]]] = {
        CheckpointBarrier: _take_barrier,
        OvertakingBarrier: _take_overtaking,
        CancelledCheckpoint: _take_cancellation,
        EndOfInput: _take_end,
    }


class OperatorSubtask(ReadingSubtask):
    """A subtask of an operator. ``mode`` is how it handles barriers, ``now_ms`` the clock of the barriers."""

    def __init__(
        self,
        task: TaskId,
        channels: Sequence[Channel],
        input_count: int,
        work: OperatorWork,
        output: SubtaskOutput,
        mode: CheckpointingMode = CheckpointingMode.ALIGNED,
        now_ms: Callable[[], int] = no_clock,
    ) -> None:
        super().__init__(task, channels, mode, now_ms)
        self.work = work
        self.output = output
        # The subtask acknowledges what its barriers overtake beyond the room of its output.
        output.splits = True
        self.watermarks = OperatorWatermarks(_senders_of_inputs(channels, input_count))
        """The valves of its inputs."""

    def readable(self) -> Sequence[Channel]:
        if not self.output.has_room:
            return [one for one in self.channels if one.is_urgent]
        if not any(one.restored for one in self.channels):
            return [one for one in self.channels if one.can_be_read or one.is_urgent]
        return [one for one in self.channels if one.is_urgent or (one.restored and one.can_be_read)]

    @property
    def is_behind(self) -> bool:
        """Whether its channels are ahead of the watermark that its restored operator has processed."""
        return self.watermarks.watermark_ms > self.work.watermark_ms

    def catch_up(self) -> None:
        """Advance a restored operator to the watermark of its channels, after the early records that it received."""
        if self.is_behind:
            self.work.advance_watermark(self.watermarks.watermark_ms)

    def time(self) -> SubtaskTime:
        """The event time now."""
        return SubtaskTime(self.watermarks.snapshot(), self.output.watermark_ms, self.output.status)

    def on_trigger(self, barrier: CheckpointBarrier) -> tuple[SubtaskTime, Mapping[TaskId, Sequence[InFlight]]]:
        self.work.snapshot(barrier.checkpoint_id)
        # A snapshot may send buffered records and watermarks.
        time = self.time()
        return time, self.output.send_barrier(barrier)

    def on_captured(self, capture: SubtaskCapture) -> None:
        self.work.complete_snapshot(capture)

    def on_abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        self.work.abort_checkpoint(checkpoint_id, reason)
        self.output.send_to_all(CancelledCheckpoint(checkpoint_id))

    def on_end(self, end: EndOfInput) -> None:
        if end is EndOfInput.CLOSED:
            if all(one.is_closed for one in self.channels):
                self.output.send_to_all(end)
        elif all(one.has_ended for one in self.channels):
            self.work.end_input()
            if self.output.status.is_idle:
                # Readers count this channel as ended; their event time does not reach the end of time by it.
                self.output.send_time(END_OF_TIME)
            self.output.send_to_all(end)

    def _take_records(self, channel: Channel, batch: RecordBatch) -> None:
        self.barriers.passes(channel, batch)
        self.work.process(batch)

    def _take_time(self, channel: Channel, element: WatermarkElement) -> None:
        self.barriers.passes(channel, element)
        for index in channel.inputs:
            for done in self.watermarks.take(index, channel.sender, element):
                if not isinstance(done, Watermark):
                    self.work.change_status(done)
                    continue
                self.work.advance_watermark(done.timestamp_ms)
                if not self.work.holds_watermarks:
                    self.output.send_time(done)

    _TAKE: ClassVar[Mapping[type, Callable[[Any, Channel, Any], None]]] = {
        **ReadingSubtask._TAKE,
        RecordBatch: _take_records,
        Watermark: _take_time,
        WatermarkStatus: _take_time,
    }


class OutputListener(Protocol):
    """Receives all results in one order; sinks go by their index."""

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        """Records of a sink."""

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        """A watermark or a status of a sink."""


class OutputSubtask(ReadingSubtask):
    """The output of the network.

    ``on_barrier`` runs when all records of a checkpoint have arrived, ``on_aborted`` when a checkpoint is aborted.
    """

    def __init__(
        self,
        task: TaskId,
        channels: Sequence[Channel],
        sink_count: int,
        listener: OutputListener,
        mode: CheckpointingMode = CheckpointingMode.ALIGNED,
        on_barrier: Callable[[int], None] | None = None,
        on_aborted: Callable[[int, AbortReason], None] | None = None,
    ) -> None:
        for channel in channels:
            channel.may_be_overtaken = False
        super().__init__(task, channels, mode, no_clock)
        self._listener = listener
        self._on_barrier = on_barrier
        self._on_aborted = on_aborted
        self._watermarks = [OperatorWatermarks([one]) for one in _senders_of_inputs(channels, sink_count)]

    def readable(self) -> Sequence[Channel]:
        return [one for one in self.channels if one.can_be_read]

    def restore(self, senders: Mapping[TaskId, SubtaskOutput]) -> None:
        """Continue from what the senders have sent."""
        for channel in self.channels:
            sent = senders[channel.sender]
            for index in channel.inputs:
                watermarks = self._watermarks[index]
                watermarks.take(0, channel.sender, Watermark(sent.watermark_ms))
                watermarks.take(0, channel.sender, sent.status)

    def on_trigger(self, barrier: CheckpointBarrier) -> tuple[SubtaskTime, Mapping[TaskId, Sequence[InFlight]]]:
        if self._on_barrier is not None:
            self._on_barrier(barrier.checkpoint_id)
        return SubtaskTime(OperatorWatermarkState(MIN_TIMESTAMP, ()), MIN_TIMESTAMP, WatermarkStatus.ACTIVE), {}

    def on_abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        if self._on_aborted is not None:
            self._on_aborted(checkpoint_id, reason)

    def _take_records(self, channel: Channel, batch: RecordBatch) -> None:
        self._listener.on_records(batch.input_index, batch)

    def _take_time(self, channel: Channel, element: WatermarkElement) -> None:
        for index in channel.inputs:
            for done in self._watermarks[index].take(0, channel.sender, element):
                self._listener.on_time(index, done)

    _TAKE: ClassVar[Mapping[type, Callable[[Any, Channel, Any], None]]] = {
        **ReadingSubtask._TAKE,
        RecordBatch: _take_records,
        Watermark: _take_time,
        WatermarkStatus: _take_time,
    }


def _senders_of_inputs(channels: Sequence[Channel], input_count: int) -> list[list[TaskId]]:
    return [[one.sender for one in channels if index in one.inputs] for index in range(input_count)]
