"""A channel with overtaking barriers: the order of its output, and which side stores overtaken records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.barriers.elements import AbortReason, CheckpointBarrier
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.local.network.channel import (
    Channel,
    EndOfInput,
    InFlight,
    OvertakingBarrier,
    RecordBatch,
    SubtaskOutput,
)
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.local.network.subtasks import OperatorSubtask
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkStatus


def channel(capacity: int = 2) -> Channel:
    return Channel(TaskId("s", 0), TaskId("r", 0), (0,), capacity)


def record(number: int) -> RecordBatch:
    return RecordBatch(0, [number])


def unaligned(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id=checkpoint_id, is_unaligned=True)


def timed(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id=checkpoint_id, alignment_timeout_ms=5)


def test_overtaken_records_beyond_the_capacity_are_stored_by_the_sender_and_others_by_the_reader() -> None:
    made = channel(capacity=2)
    for number in range(4):
        made.put(record(number))
    assert made.put_barrier(unaligned(1), splits=True) == [record(2), record(3)]
    made.put(record(4))
    assert made.take() == OvertakingBarrier(unaligned(1), [record(0), record(1)])
    assert [made.take() for _ in range(5)] == [record(number) for number in range(5)]


def test_a_sender_without_a_buffer_leaves_all_overtaken_records_to_the_reader() -> None:
    made = channel(capacity=1)
    made.put(record(0))
    made.put(record(1))
    assert made.put_barrier(unaligned(1), splits=False) == []
    assert made.take() == OvertakingBarrier(unaligned(1), [record(0), record(1)])


def test_neither_the_end_nor_another_barrier_is_in_flight() -> None:
    made = channel(capacity=9)
    for element in (Watermark(3), END_OF_TIME, EndOfInput.END, CheckpointBarrier(checkpoint_id=1)):
        made.put(element)
    made.put_barrier(unaligned(2), splits=True)
    assert made.take() == OvertakingBarrier(unaligned(2), [Watermark(3)])


def test_a_barrier_does_not_overtake_where_that_is_forbidden() -> None:
    made = Channel(TaskId("s", 0), TaskId("r", 0), (0,), 2, may_be_overtaken=False)
    made.put(record(0))
    assert made.put_barrier(unaligned(1), splits=True) == ()
    made.put_barrier(timed(2), splits=True)
    assert not made.is_urgent
    assert [made.take(), made.take(), made.take()] == [record(0), unaligned(1), timed(2)]


def test_a_barrier_with_alignment_timeout_is_announced_and_can_overtake_later() -> None:
    made = channel(capacity=1)
    made.put(record(0))
    made.put_barrier(timed(1), splits=True)
    made.put(record(1))
    assert made.is_urgent
    assert made.take_announced() == timed(1)
    assert not made.is_urgent
    made.let_overtake(1)
    assert made.take() == OvertakingBarrier(timed(1), [record(0)])
    assert [made.take(), made.take()] == [record(0), record(1)]
    made.let_overtake(1)


def test_a_removed_barrier_is_not_counted_by_a_newer_one() -> None:
    made = channel(capacity=9)
    made.put(record(0))
    made.put_barrier(timed(1), splits=True)
    made.put(record(1))
    made.put_barrier(unaligned(2), splits=True)
    made.let_overtake(1)
    made.put(record(2))
    assert made.take() == OvertakingBarrier(timed(1), [record(0)])
    assert made.take() == OvertakingBarrier(unaligned(2), [record(0), record(1)])


def test_a_received_barrier_is_not_announced() -> None:
    made = channel()
    made.put_barrier(timed(1), splits=True)
    assert made.take() == timed(1)
    assert made.take_announced() is None


def test_a_blocked_channel_announces_but_delivers_nothing() -> None:
    made = channel()
    made.is_blocked = True
    made.put_barrier(timed(1), splits=True)
    made.put_barrier(unaligned(2), splits=True)
    assert made.is_urgent
    assert made.take_announced() == timed(1)
    assert not made.is_urgent
    assert not made.can_be_read


def test_restored_records_come_first_and_are_counted_until_they_are_read() -> None:
    made = channel()
    made.put_restored([record(0)])
    made.put_restored([record(1)])
    made.put(record(2))
    with pytest.raises(IllegalTransitionError, match="has sent to"):
        made.put_restored([record(3)])
    assert (made.restored, made.take(), made.restored, made.take(), made.restored) == (2, record(0), 1, record(1), 0)


class Changing:
    """An operator that modifies its input records."""

    watermark_ms = MIN_TIMESTAMP
    holds_watermarks = False

    def __init__(self) -> None:
        self.captures: list[SubtaskCapture] = []

    def process(self, batch: RecordBatch) -> None:
        for record_ in batch.records:
            record_.append("changed")

    def snapshot(self, checkpoint_id: int) -> None:
        pass

    def complete_snapshot(self, capture: SubtaskCapture) -> None:
        self.captures.append(capture)


def test_modified_records_do_not_change_captured_ones() -> None:
    own, work, output = TaskId("o", 0), Changing(), SubtaskOutput()
    channels = [Channel(TaskId("s", index), own, (0,), 9) for index in range(2)]
    out = Channel(own, TaskId("r", 0), (0,), 1)
    output.channels.append(out)
    subtask = OperatorSubtask(own, channels, 1, cast(Any, work), output, CheckpointingMode.UNALIGNED)
    sent = [["beyond 0"], ["beyond 1"]]
    for one in sent:
        out.put(RecordBatch(0, [one]))
    channels[0].put(RecordBatch(0, [["overtaken"]]))
    channels[1].put(RecordBatch(0, [["before"]]))
    channels[0].put_barrier(unaligned(1), splits=False)
    for channel_ in (channels[0], channels[0], channels[1]):
        subtask.step(channel_)
    sent[1].append("changed")
    channels[1].put_barrier(unaligned(1), splits=False)
    subtask.step(channels[1])
    [capture] = work.captures
    assert {sender.subtask_index: elements[0].records for sender, elements in capture.inputs.items()} == {  # type: ignore[union-attr]
        0: [["overtaken"]],
        1: [["before"]],
    }
    assert [one.records for one in capture.outputs[TaskId("r", 0)]] == [[["beyond 1"]]]  # type: ignore[union-attr]


moves = st.lists(st.sampled_from(["put", "time", "unaligned", "timed", "overtake", "take"]), max_size=40)


@given(moves, st.integers(1, 4), st.booleans())
def test_parts_are_the_unread_records_before_a_barrier_and_all_are_delivered_in_order(
    script: Sequence[str], capacity: int, splits: bool
) -> None:
    made = channel(capacity)
    sent: list[InFlight] = []
    before: dict[int, int] = {}
    senders: dict[int, Sequence[InFlight]] = {}
    taken: list[InFlight] = []
    barriers: list[int] = []
    for checkpoint_id, move in enumerate([*script, *["take"] * (2 * len(script))]):
        if move in ("put", "time"):
            sent.append(record(checkpoint_id) if move == "put" else Watermark(checkpoint_id))
            made.put(sent[-1])
        elif move in ("unaligned", "timed"):
            barrier = unaligned(checkpoint_id) if move == "unaligned" else timed(checkpoint_id)
            before[checkpoint_id] = len(sent)
            senders[checkpoint_id] = made.put_barrier(barrier, splits=splits)
        elif move == "overtake":
            # Only the oldest pending barrier may overtake: a newer barrier replaces older ones.
            made.let_overtake(min((one for one in before if one not in barriers), default=-1))
        elif made.can_be_read:
            _take(made, taken, barriers, sent, before, senders)
    assert taken == sent
    assert sorted(barriers) == sorted(before)


def _take(
    made: Channel,
    taken: list[InFlight],
    barriers: list[int],
    sent: Sequence[InFlight],
    before: dict[int, int],
    senders: dict[int, Sequence[InFlight]],
) -> None:
    element = made.take()
    if isinstance(element, OvertakingBarrier):
        checkpoint_id = element.barrier.checkpoint_id
        parts = [*element.overtaken, *senders[checkpoint_id]]
        assert parts == list(sent[len(taken) : before[checkpoint_id]])
        barriers.append(checkpoint_id)
    elif isinstance(element, CheckpointBarrier):
        assert len(taken) == before[element.checkpoint_id]
        barriers.append(element.checkpoint_id)
    else:
        assert isinstance(element, RecordBatch | Watermark)
        taken.append(element)


def test_an_overtaking_barrier_needs_no_capacity_and_a_record_does() -> None:
    own, output = TaskId("o", 0), SubtaskOutput()
    into, out = channel(), Channel(own, TaskId("r", 0), (0,), 1)
    output.channels.append(out)
    subtask = OperatorSubtask(own, [into], 1, cast(Any, Changing()), output, CheckpointingMode.UNALIGNED)
    out.put(record(0))
    into.put(record(1))
    assert subtask.readable() == []
    into.put_barrier(unaligned(1), splits=False)
    assert subtask.readable() == [into]


@define
class Flushing:
    """An operator that buffers records until its snapshot, as batched windows and async requests do."""

    output: SubtaskOutput
    holds_watermarks: bool = False
    watermark_ms: int = MIN_TIMESTAMP

    def process(self, batch: RecordBatch) -> None: ...

    def advance_watermark(self, timestamp_ms: int) -> None: ...

    def change_status(self, status: WatermarkStatus) -> None:
        self.output.send_time(status)

    def end_input(self) -> None: ...

    def advance_processing_time(self) -> None: ...

    def snapshot(self, checkpoint_id: int) -> None:
        self.output.channels[0].put(record(checkpoint_id))

    def complete_snapshot(self, capture: SubtaskCapture) -> None: ...

    def abort_checkpoint(self, checkpoint_id: int, reason: AbortReason) -> None: ...


@pytest.mark.parametrize("may_be_overtaken", [False, True])
def test_records_emitted_during_the_snapshot_belong_to_that_checkpoint(may_be_overtaken: bool) -> None:
    behind = Channel(TaskId("r", 0), TaskId("t", 0), (0,), 2, may_be_overtaken=may_be_overtaken)
    output = SubtaskOutput()
    output.channels.append(behind)
    made = channel()
    subtask = OperatorSubtask(TaskId("r", 0), [made], 1, Flushing(output), output, CheckpointingMode.UNALIGNED)
    made.put_barrier(unaligned(7), splits=True)
    subtask.step(made)
    # After the barrier, the record would be processed again after a restore, although the state no longer has it.
    expected = (
        [OvertakingBarrier(unaligned(7), [record(7)]), record(7)] if may_be_overtaken else [record(7), unaligned(7)]
    )
    assert [behind.take(), behind.take()] == expected


def test_a_barrier_overtakes_after_a_subtask_that_had_to_align() -> None:
    behind = Channel(TaskId("r", 0), TaskId("t", 0), (0,), 9)
    output = SubtaskOutput()
    output.channels.append(behind)
    made = Channel(TaskId("s", 0), TaskId("r", 0), (0,), 2, may_be_overtaken=False)
    subtask = OperatorSubtask(TaskId("r", 0), [made], 1, cast(Any, Changing()), output, CheckpointingMode.UNALIGNED)
    behind.put(record(0))
    made.put_barrier(unaligned(7), splits=True)
    subtask.step(made)
    assert behind.take() == OvertakingBarrier(unaligned(7), [record(0)])
