"""The barrier cases of Flink's tests on real channels: the subtask follows the tables.

The tests of the tables define these scripts and their results. Here channels end as in a network: a channel that ends
aborts no checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from attrs import define, field

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.barriers.elements import AbortReason, CheckpointBarrier
from statebackend.checkpoint.barriers.exactly_once import (
    ExactlyOnceHandler,
    alternating,
    always_aligned,
    always_unaligned,
)
from statebackend.checkpoint.barriers.tracker import BarrierTracker
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.local.network.channel import (
    CancelledCheckpoint,
    Channel,
    EndOfInput,
    RecordBatch,
    SubtaskOutput,
)
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.local.network.network import DownstreamFirst, Network
from statebackend.local.network.subtasks import OperatorSubtask, OutputSubtask
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import WatermarkStatus
from tests.checkpoint.barriers import (
    test_aligner,
    test_alternating_barriers,
    test_barrier_tracker,
    test_unaligner,
)
from tests.checkpoint.barriers.barrier_notation import TIMEOUT_MS, Played

MODES = {
    "aligned": (CheckpointingMode.ALIGNED, lambda count: ExactlyOnceHandler(count, always_aligned)),
    "unaligned": (CheckpointingMode.UNALIGNED, lambda count: ExactlyOnceHandler(count, always_unaligned)),
    "alternating": (
        CheckpointingMode.unaligned_after(TIMEOUT_MS),
        lambda count: ExactlyOnceHandler(count, alternating),
    ),
    "at least once": (CheckpointingMode.AT_LEAST_ONCE, BarrierTracker),
}

CASES: list[tuple[str, int, str]] = [
    *(("aligned", *case[:2]) for case in test_aligner.CASES.values()),
    *(("unaligned", *case[:2]) for case in test_unaligner.CASES.values()),
    *(("unaligned", count, script) for script, count, _, _ in test_unaligner.CANCELLATIONS),
    *(("alternating", *case[:2]) for case in test_alternating_barriers.CASES.values()),
    *(("at least once", *case[:2]) for case in test_barrier_tracker.CASES.values()),
]


@define
class Task:
    """A subtask of one operator with several channels, and its actions. A record is a number."""

    mode: CheckpointingMode
    count: int
    now_ms: int = 0
    watermark_ms: int = MIN_TIMESTAMP
    holds_watermarks: bool = False
    processed: list[int] = field(factory=list)
    snapshots: dict[int, list[int]] = field(factory=dict)
    captures: dict[int, SubtaskCapture] = field(factory=dict)
    checkpoints: list[str] = field(factory=list)
    reasons: list[AbortReason] = field(factory=list)
    channels: list[Channel] = field(init=False)
    out: Channel = field(init=False)
    subtask: OperatorSubtask = field(init=False)
    put: list[list[int]] = field(init=False)
    put_before: dict[int, dict[int, list[int]]] = field(factory=dict)
    number: int = 0

    def __attrs_post_init__(self) -> None:
        own = TaskId("operator", 0)
        self.channels = [Channel(TaskId("source", index), own, (0,), 1 << 20) for index in range(self.count)]
        # Barriers do not overtake here, so the output is checked in the order in which it was sent.
        self.out = Channel(own, TaskId("reader", 0), (0,), 1 << 20, may_be_overtaken=False)
        output = SubtaskOutput()
        output.channels.append(self.out)
        self.subtask = OperatorSubtask(own, self.channels, 1, self, output, self.mode, lambda: self.now_ms)
        self.put = [[] for _ in self.channels]

    def process(self, batch: RecordBatch) -> None:
        self.processed += batch.records

    def advance_watermark(self, timestamp_ms: int) -> None:
        raise NotImplementedError

    def change_status(self, status: WatermarkStatus) -> None:
        raise NotImplementedError

    def end_input(self) -> None:
        raise NotImplementedError

    def advance_processing_time(self) -> None:
        raise NotImplementedError

    def snapshot(self, checkpoint_id: int) -> None:
        self.snapshots[checkpoint_id] = list(self.processed)

    def complete_snapshot(self, capture: SubtaskCapture) -> None:
        assert capture.checkpoint_id in self.snapshots
        assert capture.checkpoint_id not in self.captures
        self.captures[capture.checkpoint_id] = capture

    def abort_checkpoint(self, checkpoint_id: int, reason: AbortReason) -> None:
        assert checkpoint_id not in self.captures
        self.reasons.append(reason)

    def play(self, script: str) -> Task:
        tokens = [token for token in script.split() if token != "|"]
        for place, token in enumerate(tokens):
            self._play(token, tokens[place + 1 :])
        for channel in self.channels:
            # Read the records after a barrier that overtook, unless the channel is blocked.
            while channel in self.subtask.readable():
                self._step(channel)
        return self

    def _play(self, token: str, following: Sequence[str]) -> None:
        if token[0] == "+":
            self.now_ms += int(token[1:])
            return
        if token[0] == "!":
            if self.subtask.barriers.is_timer_due:
                self.subtask.barriers.time_out()
            self._note_sent()
            return
        head, _, times = token.rstrip("*").partition("x")
        kind, (number, _, by) = head[0], head[1:].partition("@")
        index = int((number if kind in "bE" else by) or 0)
        channel = self.channels[index]
        if kind == "b":
            for _ in range(int(times or 1)):
                if not self._was_put(index, following):
                    self._put_record(index)
                if channel.can_be_read:
                    self._step(channel)
        elif kind == "E":
            channel.put(EndOfInput.CLOSED)
            self._step(channel)
        elif kind == "C":
            channel.put(CancelledCheckpoint(int(number)))
            self._step(channel)
        elif kind == "N":
            self._announce(channel, index, int(number), following)
        elif kind == "O" and self._lies_in(channel, int(number)):
            while channel.can_be_read and self._lies_in(channel, int(number)):
                self._step(channel)
        else:
            self._put_barrier(index, self._barrier(kind, int(number)))
            # A handler without announcements sees the barrier only when it is delivered.
            channel.take_announced()
            self._step(channel)

    def _announce(self, channel: Channel, index: int, checkpoint_id: int, following: Sequence[str]) -> None:
        for token in following:
            if token == f"O{checkpoint_id}@{index}":
                break
            if token.rstrip("*") == f"b{index}":
                self._put_record(index)
        self._put_barrier(index, self._barrier("N", checkpoint_id))
        self._step(channel)

    def _put_barrier(self, index: int, barrier: CheckpointBarrier) -> None:
        self.put_before.setdefault(barrier.checkpoint_id, {})[index] = list(self.put[index])
        self.channels[index].put_barrier(barrier, splits=False)

    def _was_put(self, index: int, following: Sequence[str]) -> bool:
        return any(token[0] == "O" and token.endswith(f"@{index}") for token in following) and any(
            isinstance(one, CheckpointBarrier) for one in self.channels[index].waiting()
        )

    def _put_record(self, index: int) -> None:
        self.put[index].append(self.number)
        self.channels[index].put(RecordBatch(0, [self.number]))
        self.number += 1

    def _lies_in(self, channel: Channel, checkpoint_id: int) -> bool:
        barriers = [one for one in channel.waiting() if isinstance(one, CheckpointBarrier)]
        return any(one.checkpoint_id == checkpoint_id for one in barriers)

    def _barrier(self, kind: str, checkpoint_id: int) -> CheckpointBarrier:
        is_timed = kind in "NO"
        return CheckpointBarrier(
            checkpoint_id=checkpoint_id,
            is_savepoint=kind == "S",
            is_unaligned=kind == "U" or (kind == "B" and self.mode.is_unaligned),
            alignment_timeout_ms=TIMEOUT_MS if is_timed else None,
        )

    def _step(self, channel: Channel) -> None:
        assert channel in self.subtask.readable()
        self.subtask.step(channel)
        self._note_sent()

    def _note_sent(self) -> None:
        while self.out.can_be_read:
            sent = self.out.take()
            if isinstance(sent, CheckpointBarrier):
                self.checkpoints.append(f"{'U' if sent.is_unaligned else 'T'}{sent.checkpoint_id}")
            elif isinstance(sent, CancelledCheckpoint):
                reason = {AbortReason.CANCELLED: "A", AbortReason.SUBSUMED: "As", AbortReason.TOO_MANY_PENDING: "Am"}
                self.checkpoints.append(f"{reason[self.reasons.pop(0)]}{sent.checkpoint_id}")


@pytest.mark.parametrize(("kind", "count", "script"), CASES)
def test_a_subtask_follows_the_tables_on_its_channels(kind: str, count: int, script: str) -> None:
    mode, handler = MODES[kind]
    expected = Played(handler(count)).play(script)
    task = Task(mode, count).play(script)
    assert task.checkpoints == expected.checkpoints.split()
    assert {channel.is_blocked for channel in task.channels} <= {bool(expected.handler.blocked_channels), False}
    captured = _records_of([one for done in task.captures.values() for part in done.inputs.values() for one in part])
    done = {int(one[1:]) for one in expected.results if one[0] == "D"}
    if done >= {int(one[1:]) for one in task.checkpoints if one[0] == "U"}:
        # Otherwise the table captured records for an aborted checkpoint.
        assert sorted(captured) == sorted(expected.captured)
    for of_channel in task.put:
        assert [one for one in task.processed if one in of_channel] == [
            one for one in of_channel if one in task.processed
        ]


@pytest.mark.parametrize(("kind", "count", "script"), [case for case in CASES if case[0] != "at least once"])
def test_a_checkpoint_contains_what_was_sent_before_its_barriers(kind: str, count: int, script: str) -> None:
    task = Task(MODES[kind][0], count).play(script)
    for checkpoint_id, capture in task.captures.items():
        captured = _records_of([one for part in capture.inputs.values() for one in part])
        before = task.put_before[checkpoint_id]
        ended = (of_channel for index, of_channel in enumerate(task.put) if index not in before)
        expected = [record for of_channel in (*before.values(), *ended) for record in of_channel]
        assert sorted(task.snapshots[checkpoint_id] + captured) == sorted(expected)


def _records_of(batches: Sequence[Any]) -> list[int]:
    return [record for batch in batches for record in batch.records]


def test_records_in_flight_precede_new_ones_except_for_overtaking_barriers() -> None:
    task = Task(CheckpointingMode.UNALIGNED, 2)
    new, restored = task.channels
    restored.put_restored([RecordBatch(0, [1]), RecordBatch(0, [2])])
    new.put(RecordBatch(0, [3]))
    restored.put(RecordBatch(0, [4]))
    assert task.subtask.readable() == [restored]
    new.put_barrier(CheckpointBarrier(checkpoint_id=1, is_unaligned=True), splits=False)
    assert task.subtask.readable() == [new, restored]
    task.subtask.step(new)
    assert task.subtask.readable() == [restored]
    for _ in range(2):
        task.subtask.step(restored)
    assert (task.processed, task.subtask.readable()) == ([1, 2], [new, restored])


def test_a_restored_network_reads_records_in_flight_first() -> None:
    task = Task(CheckpointingMode.UNALIGNED, 2)
    new, restored = task.channels
    restored.put_restored([RecordBatch(0, [1])])
    new.put(RecordBatch(0, [2]))
    end = OutputSubtask(TaskId("reader", 0), [task.out], 1, cast(Any, None))
    network = Network([], [task.subtask], end, DownstreamFirst())
    network.resume()
    assert task.processed == []
    for _ in range(2):
        network.step()
    assert task.processed == [1, 2]
