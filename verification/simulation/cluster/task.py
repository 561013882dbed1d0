"""A task of the cluster: it receives, sends, and takes snapshots as its barrier handler decides.

Each record goes to every following node: to the subtask of its key, or to all. The state of a task is numbers: its
position in the source, the records sent and received on each channel, and the origin of each record.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import define, evolve, field

from statebackend.checkpoint.barriers.elements import (
    Abort,
    AlignmentTimedOut,
    BarrierAction,
    BarrierAnnounced,
    BarrierArrived,
    BarrierHandler,
    Block,
    CancellationArrived,
    CaptureComplete,
    CheckpointBarrier,
    DataPassed,
    Overtake,
    Resume,
    StartCapture,
    StartTimer,
    StopCapture,
    StopTimer,
    Trigger,
)
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.state_handles import FileHandle
from verification.simulation.cluster.channel import Cancellation, Channel, Origin, Record
from verification.simulation.violation import require_that

__all__ = ["Snapshot", "Task", "TaskState", "shown_task"]


@define
class TaskState:
    """The state of a task. ``received`` and ``sent`` are by channel, ``seen`` has the origins in order."""

    position: int = 0
    received: dict[int, int] = field(factory=dict)
    sent: dict[int, int] = field(factory=dict)
    seen: list[Origin] = field(factory=list)
    on_the_way: dict[int, list[Record]] = field(factory=dict)

    def encode(self, seen_from: int) -> bytes:
        """Encode the state, without the origins before this position."""
        content: dict[str, Any] = {
            "position": self.position,
            "received": sorted(self.received.items()),
            "sent": sorted(self.sent.items()),
            "seen": self.seen[seen_from:],
            "on_the_way": [
                [channel, [[one.number, one.origin] for one in records]]
                for channel, records in sorted(self.on_the_way.items())
            ],
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, pieces: Sequence[bytes]) -> TaskState:
        """Decode the state from its pieces, the oldest first."""
        contents = [json.loads(one) for one in pieces]
        last = contents[-1]
        return cls(
            last["position"],
            dict(last["received"]),
            dict(last["sent"]),
            [tuple(one) for content in contents for one in content["seen"]],
            {
                channel: [Record(number, tuple(origin)) for number, origin in records]
                for channel, records in last["on_the_way"]
            },
        )


@define
class Snapshot:
    """A snapshot that is being uploaded; ``is_whole`` when no more records are captured."""

    checkpoint_id: int
    state: TaskState
    is_savepoint: bool
    is_whole: bool = False
    abandoned: bool = False


@define(eq=False)
class Task:
    """A task. A source has no ``handler``. ``send`` sends an event to the coordinator."""

    id: TaskId
    handler: BarrierHandler | None
    inputs: list[Channel]
    outputs: list[list[Channel]]
    are_broadcast: list[bool]
    records: int
    is_exactly_once: bool
    now_ms: Callable[[], int]
    decline: Callable[[int], None]
    state: TaskState = field(factory=TaskState)
    files: tuple[tuple[FileHandle, int], ...] = ()
    """The files of the last completed checkpoint, each with the number of origins up to its end."""
    snapshots: dict[int, Snapshot] = field(factory=dict)
    newest_id: int = -1
    captured: set[int] = field(factory=set)
    timer: tuple[int, int] | None = None
    _overtaken: dict[int, dict[int, list[Record]]] = field(factory=dict)

    @property
    def has_room(self) -> bool:
        """Whether it may send."""
        return all(channel.has_room for several in self.outputs for channel in several)

    def read(self, source: int) -> None:
        """Read the next record of a source."""
        origin = (source, self.id.subtask_index, self.state.position)
        self.state.position += 1
        self._take_in(origin)

    def begin(self, barrier: CheckpointBarrier) -> None:
        """Start a checkpoint in a source. An outdated one is ignored."""
        if barrier.checkpoint_id <= self.newest_id:
            return
        self.newest_id = barrier.checkpoint_id
        self._snapshot(barrier)
        self.snapshots[barrier.checkpoint_id].is_whole = True

    def take(self, channel: Channel) -> None:
        """Take the next element of a channel."""
        element = channel.take()
        if isinstance(element, Record):
            self._handle(DataPassed(channel.place, 1))
            self._receive(channel, element)
        elif isinstance(element, Cancellation):
            self._handle(CancellationArrived(channel.place, element.checkpoint_id, self.now_ms()))
        else:
            channel.stands_still = True
            self._handle(BarrierArrived(channel.place, element, self.now_ms()))

    def announced(self, channel: Channel) -> None:
        """Handle the announcement of a barrier in a channel."""
        self._handle(BarrierAnnounced(channel.place, channel.unannounced.pop(0), self.now_ms()))

    def time_to_align_is_over(self) -> None:
        """Handle the alignment timeout."""
        assert self.timer is not None
        checkpoint_id, self.timer = self.timer[0], None
        self._handle(AlignmentTimedOut(checkpoint_id, self.now_ms()))

    def abandon(self, checkpoint_id: int) -> None:
        """Abandon a snapshot that is not stored."""
        snapshot = self.snapshots.pop(checkpoint_id, None)
        if snapshot is not None:
            snapshot.abandoned = True

    def cancel(self, checkpoint_id: int) -> None:
        """Abort a checkpoint; a source sends the cancellation if it has not sent the barrier."""
        self.abandon(checkpoint_id)
        if self.handler is None and checkpoint_id > self.newest_id:
            self.newest_id = checkpoint_id
            self._send_on(Cancellation(checkpoint_id))

    def _receive(self, channel: Channel, record: Record) -> None:
        expected = self.state.received.get(channel.number, 0)
        known = record.number == expected or (not self.is_exactly_once and record.number < expected)
        require_that(
            known,
            f"in-flight data in order: {channel} delivers record {record.number}, and {expected} is the next one",
        )
        for one in self.captured:
            if (snapshot := self.snapshots.get(one)) is not None and channel.place in self._capturing(one):
                snapshot.state.on_the_way.setdefault(channel.number, []).append(record)
        self.state.received[channel.number] = max(expected, record.number + 1)
        self._take_in(record.origin)

    def _take_in(self, origin: Origin) -> None:
        self.state.seen.append(origin)
        for channels, is_broadcast in zip(self.outputs, self.are_broadcast, strict=True):
            key = zlib.crc32(repr(origin).encode()) % len(channels)
            for channel in channels if is_broadcast else (channels[key],):
                number = self.state.sent.get(channel.number, 0)
                self.state.sent[channel.number] = number + 1
                channel.put(Record(number, origin))

    def _capturing(self, checkpoint_id: int) -> set[int]:
        assert self.handler is not None
        return set(self.handler.captured_channels)

    def _snapshot(self, barrier: CheckpointBarrier) -> None:
        state = evolve(
            self.state,
            received=dict(self.state.received),
            sent=dict(self.state.sent),
            seen=list(self.state.seen),
            on_the_way={},
        )
        for number, records in self._overtaken.pop(barrier.checkpoint_id, {}).items():
            state.on_the_way.setdefault(number, []).extend(records)
        self.snapshots[barrier.checkpoint_id] = Snapshot(barrier.checkpoint_id, state, barrier.is_savepoint)
        self._send_on(barrier)

    def _send_on(self, element: CheckpointBarrier | Cancellation) -> None:
        for channels in self.outputs:
            for channel in channels:
                channel.put(element)

    def _handle(self, event: Any) -> None:
        assert self.handler is not None
        for action in self.handler.handle(event):
            _CARRY_OUT[type(action)](self, action)

    def _trigger(self, action: Trigger) -> None:
        assert self.handler is not None
        self._snapshot(action.barrier)
        # Without further actions the handler captures nothing, so the snapshot is whole.
        self.snapshots[action.barrier.checkpoint_id].is_whole = True

    def _start_capture(self, action: StartCapture) -> None:
        self.captured.add(action.checkpoint_id)
        self.snapshots[action.checkpoint_id].is_whole = False

    def _stop_capture(self, action: StopCapture) -> None:
        assert self.handler is not None
        if not self.handler.captured_channels:
            self.captured.discard(action.checkpoint_id)

    def _capture_complete(self, action: CaptureComplete) -> None:
        self.captured.discard(action.checkpoint_id)
        if action.checkpoint_id in self.snapshots:
            self.snapshots[action.checkpoint_id].is_whole = True

    def _abort(self, action: Abort) -> None:
        self._overtaken.pop(action.checkpoint_id, None)
        self.captured.discard(action.checkpoint_id)
        self.abandon(action.checkpoint_id)
        self._send_on(Cancellation(action.checkpoint_id))
        self.decline(action.checkpoint_id)

    def _block(self, action: Block) -> None:
        self.inputs[action.channel].stands_still = True

    def _resume(self, action: Resume) -> None:
        for place in action.channels:
            self.inputs[place].stands_still = False

    def _overtake(self, action: Overtake) -> None:
        assert self.handler is not None
        channel = self.inputs[action.channel]
        [checkpoint_id] = self.handler.pending_checkpoint_ids
        records = channel.overtake(checkpoint_id)
        snapshot = self.snapshots.get(checkpoint_id)
        if snapshot is not None:
            snapshot.state.on_the_way.setdefault(channel.number, []).extend(records)
        else:
            self._overtaken.setdefault(checkpoint_id, {})[channel.number] = list(records)

    def _start_timer(self, action: StartTimer) -> None:
        self.timer = (action.checkpoint_id, action.at_ms)

    def _stop_timer(self, action: StopTimer) -> None:
        self.timer = None


_CARRY_OUT: Final[Mapping[type, Callable[[Task, Any], None]]] = {
    Trigger: Task._trigger,
    Abort: Task._abort,
    Block: Task._block,
    Resume: Task._resume,
    Overtake: Task._overtake,
    StartCapture: Task._start_capture,
    StopCapture: Task._stop_capture,
    CaptureComplete: Task._capture_complete,
    StartTimer: Task._start_timer,
    StopTimer: Task._stop_timer,
}

BarrierActions = Sequence[BarrierAction]


def shown_task(task: TaskId) -> str:
    """Return the task's name in a trace."""
    return f"{task.operator_uid}[{task.subtask_index}]"
