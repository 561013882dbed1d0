"""The network of subtasks with operators that only store records: order, back-pressure, barriers, random moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import define, field
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.checkpoint.barriers.elements import AbortReason, CheckpointBarrier
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.local.network.channel import Channel, RecordBatch, SubtaskOutput
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.local.network.network import DownstreamFirst, Network, Scheduler, Shuffled
from statebackend.local.network.subtasks import LastBarrier, OperatorSubtask, OutputSubtask, SourceSubtask
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_alignment import AlignmentGroup
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus

PARALLELISM = 2


@define
class Source:
    """Sends to every subtask of the operator, or to the subtask of a number."""

    output: SubtaskOutput

    @property
    def watermark_ms(self) -> int:
        return self.output.watermark_ms

    @property
    def is_idle(self) -> bool:
        return self.output.status.is_idle

    def end_of_input(self) -> None:
        self.output.send_time(END_OF_TIME)

    def restore(self, watermark_ms: int, status: WatermarkStatus, channels: Sequence[Any]) -> None:
        raise NotImplementedError

    def record(self, number: int) -> None:
        [channel] = [one for one in self.output.channels if one.reader.subtask_index == number % PARALLELISM]
        channel.put(RecordBatch(channel.inputs[0], [number]))

    def time(self, element: WatermarkElement) -> None:
        self.output.send_time(element)


@define
class Work:
    """Forwards records, and emits one more for each watermark, as a timer would. Its snapshot is its input so far."""

    output: SubtaskOutput
    holds_watermarks: bool = False
    watermark_ms: int = MIN_TIMESTAMP
    seen: list[Any] = field(factory=list)
    snapshots: dict[int, list[Any]] = field(factory=dict)
    captures: list[SubtaskCapture] = field(factory=list)
    aborted: dict[int, AbortReason] = field(factory=dict)
    before_clock: Callable[[], object] = bool

    def process(self, batch: RecordBatch) -> None:
        self.seen += batch.records
        self._emit(*batch.records)

    def advance_watermark(self, timestamp_ms: int) -> None:
        self.watermark_ms = timestamp_ms
        self._emit(("timer", timestamp_ms))

    def change_status(self, status: WatermarkStatus) -> None:
        self.output.send_time(status)

    def end_input(self) -> None: ...

    def advance_processing_time(self) -> None:
        self.before_clock()
        self._emit("clock")

    def snapshot(self, checkpoint_id: int) -> None:
        self.snapshots[checkpoint_id] = list(self.seen)

    def complete_snapshot(self, capture: SubtaskCapture) -> None:
        self.captures.append(capture)

    def abort_checkpoint(self, checkpoint_id: int, reason: AbortReason) -> None:
        self.aborted[checkpoint_id] = reason

    def _emit(self, *records: Any) -> None:
        [channel] = self.output.channels
        channel.put(RecordBatch(channel.inputs[0], records, sender_watermark_ms=self.watermark_ms))


@define
class TrackingEvent:
    elements: list[Any] = field(factory=list)

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        self.elements += batch.records

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        self.elements.append(element)


@define
class Job:
    """Sources, each an input of one operator, and operators whose subtasks send to the end."""

    network: Network
    sources: list[SourceSubtask[Source]]
    works: list[Work]
    received: TrackingEvent


def job(
    sources: int = 2,
    scheduler: Scheduler | None = None,
    capacity: int = 2,
    is_union: bool = False,
    drifts_ms: Sequence[int] = (),
) -> Job:
    outputs = [SubtaskOutput() for _ in range(sources)]
    ids = [TaskId(f"source-{index}", 0) for index in range(sources)]
    group: AlignmentGroup[TaskId] = AlignmentGroup()
    for source_id, drift_ms in zip(ids, drifts_ms, strict=False):
        group.join(source_id, drift_ms)
    made = [
        SourceSubtask(*one, group if drifts_ms else None)
        for one in zip(ids, map(Source, outputs), outputs, strict=True)
    ]
    end, received = TaskId("end", 0), TrackingEvent()
    operators, works, to_end = [], [], []
    for index in range(PARALLELISM):
        own, output = TaskId("operator", index), SubtaskOutput()
        channels = [
            Channel(source_id, own, (0 if is_union else number,), capacity) for number, source_id in enumerate(ids)
        ]
        for sent, channel in zip(outputs, channels, strict=True):
            sent.channels.append(channel)
        work = Work(output)
        operators.append(OperatorSubtask(own, channels, 1 if is_union else sources, work, output))
        output.channels.append(Channel(own, end, (0,), capacity))
        to_end += output.channels
        works.append(work)
    network = Network(made, operators, OutputSubtask(end, to_end, 1, received), scheduler or DownstreamFirst())
    return Job(network, made, works, received)


def trigger(network: Network, checkpoint_id: int) -> None:
    """Let all sources send a barrier."""
    for source in network.sources:
        source.trigger(CheckpointBarrier(checkpoint_id=checkpoint_id))


def test_timer_output_precedes_the_watermark_and_records_keep_their_order() -> None:
    made = job(sources=1)
    made.sources[0].feed(lambda source: source.record(2))
    made.sources[0].feed(lambda source: source.time(Watermark(5)))
    made.sources[0].feed(lambda source: source.record(3))
    made.network.run()
    assert made.received.elements == [2, ("timer", 5), ("timer", 5), Watermark(5), 3]


def test_processing_time_timers_exceed_a_channel_capacity_by_one_subtask_at_most() -> None:
    made = job(capacity=1)
    waiting: list[int] = []

    def count() -> None:
        waiting.append(sum(len(channel.waiting()) for work in made.works for channel in work.output.channels))

    for work in made.works:
        work.before_clock = count
    made.network.advance_processing_time()
    assert waiting == [0, 0]
    made.network.run()
    assert made.received.elements == ["clock", "clock"]


def test_an_operator_that_holds_watermarks_forwards_them_itself() -> None:
    made = job(sources=1)
    for work in made.works:
        work.holds_watermarks = True
    made.sources[0].feed(lambda source: source.time(Watermark(5)))
    made.network.run()
    assert made.received.elements == [("timer", 5), ("timer", 5)]
    for work in made.works:
        work.output.send_time(Watermark(4))
    made.network.run()
    assert made.received.elements[2:] == [Watermark(4)]


def test_an_idle_source_drops_its_watermarks_and_its_status_is_sent_once() -> None:
    made = job(sources=1)
    for element in (WatermarkStatus.IDLE, Watermark(3), WatermarkStatus.IDLE, WatermarkStatus.ACTIVE, Watermark(4)):
        made.sources[0].feed(lambda source, element=element: source.time(element))
    made.network.run()
    reported = [one for one in made.received.elements if not isinstance(one, tuple)]
    assert reported == [WatermarkStatus.IDLE, WatermarkStatus.ACTIVE, Watermark(4)]


@pytest.mark.parametrize(("is_union", "then"), [(True, [Watermark(20)]), (False, [])])
def test_a_source_that_returns_late_holds_another_input_but_not_its_own(is_union: bool, then: list[Any]) -> None:
    made = job(is_union=is_union)
    first, second = made.sources
    for source, element in (
        (first, Watermark(10)),
        (second, WatermarkStatus.IDLE),
        (second, WatermarkStatus.ACTIVE),
        (second, Watermark(5)),
        (first, Watermark(20)),
    ):
        source.feed(lambda one, element=element: one.time(element))
        made.network.run()
    reported = [one for one in made.received.elements if not isinstance(one, tuple)]
    assert reported == [Watermark(10), *then]


def test_no_subtask_moves_without_capacity_in_its_outputs() -> None:
    made = job(sources=1, capacity=1)
    made.sources[0].feed(lambda source: source.record(0))
    made.sources[0].feed(lambda source: source.record(2))
    [move] = made.network.moves()
    move.make()
    # The second record would be sent to the same subtask.
    [move] = made.network.moves()
    assert move.subtask is made.network.operators[0]
    move.make()
    assert {one.subtask for one in made.network.moves()} == {made.network.output, made.sources[0]}
    made.network.run()
    assert made.received.elements == [0, 2]


def restored_at(made: Job, watermark_ms: int) -> None:
    """The channels have received that watermark, and the operator has not processed it yet."""
    for subtask in made.network.operators:
        for channel in subtask.channels:
            for index in channel.inputs:
                subtask.watermarks.take(index, channel.sender, Watermark(watermark_ms))
    made.network.resume()


def test_operators_advance_to_their_watermarks_step_by_step_before_anything_is_read() -> None:
    made = job(sources=1, capacity=1)
    for _ in range(100):
        made.sources[0].feed(lambda source: source.record(0))
    restored_at(made, 10)
    moves = [str(made.network.step()) for _ in range(6)]
    assert sorted(moves[:4]) == [
        "end[0] takes from operator[0]",
        "end[0] takes from operator[1]",
        "operator[0] catches up with its watermark",
        "operator[1] catches up with its watermark",
    ]
    assert moves[4:] == ["source-0[0] reads", "operator[0] takes from source-0[0]"]
    assert [work.watermark_ms for work in made.works] == [10, 10]
    assert made.sources[0].unread == 99


def test_records_in_flight_are_read_before_an_operator_advances_to_its_watermark() -> None:
    made = job(sources=1, scheduler=Shuffled(3), capacity=1)
    for subtask in made.network.operators:
        subtask.channels[0].put_restored([RecordBatch(0, [number]) for number in range(5)])
    restored_at(made, 10)
    made.sources[0].trigger(CheckpointBarrier(checkpoint_id=1))
    most = 0
    while made.network.step() is not None:
        most = max(most, *(len(one.channels[0].waiting()) for one in (made.network.output, *made.network.operators)))
    assert most == 5, "no more waits anywhere than what was restored"
    assert [work.snapshots[1] for work in made.works] == [list(range(5))] * PARALLELISM
    of_one = [one for one in made.received.elements if not isinstance(one, int)]
    assert of_one == [("timer", 10)] * PARALLELISM


def test_without_downstream_operators_a_barrier_precedes_records_in_flight() -> None:
    made = job(sources=1, capacity=1)
    for subtask in made.network.operators:
        subtask.channels[0].put_restored([RecordBatch(0, [number]) for number in range(5)])
    made.network.resume()
    trigger(made.network, 1)
    assert "source-0[0] sends a barrier" in {str(one) for one in made.network.moves()}


def test_the_end_of_an_input_is_the_end_of_time_and_rejects_further_input() -> None:
    made = job(sources=1)
    made.sources[0].feed_end()
    made.network.run()
    assert made.received.elements[-1] == END_OF_TIME
    with pytest.raises(IllegalTransitionError, match="'source-0' has ended"):
        made.sources[0].feed(lambda source: source.record(1))
    trigger(made.network, 7)
    made.network.run()
    assert [list(work.snapshots) for work in made.works] == [[7], [7]]


@pytest.mark.parametrize("last", LastBarrier)
def test_a_source_reads_nothing_after_its_last_barrier(last: LastBarrier) -> None:
    made = job(sources=1)
    [source] = made.sources
    for number in range(4):
        source.feed(lambda work, number=number: work.record(number))
        if number == 1:
            made.network.run()
            source.trigger(CheckpointBarrier(checkpoint_id=7), last)
    made.network.run()
    is_drained = last is LastBarrier.DRAINED
    assert sorted(one for one in made.received.elements if isinstance(one, int) and one < 2) == [0, 1]
    assert not [one for one in made.received.elements if isinstance(one, int) and 2 <= one < 4]
    assert (END_OF_TIME in made.received.elements) == is_drained
    assert [list(work.snapshots) for work in made.works] == [[7], [7]]
    assert not source.can_move


def test_a_second_barrier_before_the_first_has_passed_takes_its_place() -> None:
    made = job(sources=2)
    made.sources[0].trigger(CheckpointBarrier(checkpoint_id=1))
    made.sources[1].trigger(CheckpointBarrier(checkpoint_id=2))
    made.network.run()
    assert [work.aborted for work in made.works] == [{1: AbortReason.SUBSUMED}] * PARALLELISM
    made.sources[0].trigger(CheckpointBarrier(checkpoint_id=2))
    made.network.run()
    assert [list(work.snapshots) for work in made.works] == [[2], [2]]
    assert [[one.checkpoint_id for one in work.captures] for work in made.works] == [[2], [2]]


def test_a_source_too_far_ahead_reads_no_further_but_sends_barriers() -> None:
    made = job(drifts_ms=(10, 10))
    fast, slow = made.sources
    for time_ms in (1, 20, 30):
        fast.feed(lambda source, time_ms=time_ms: source.time(Watermark(time_ms)))
    slow.feed(lambda source: source.time(Watermark(2)))
    made.network.run()
    assert (fast.is_paused, fast.unread) == (True, 1)
    trigger(made.network, 1)
    made.network.run()
    assert [list(work.snapshots) for work in made.works] == [[1], [1]]
    slow.feed(lambda source: source.time(Watermark(15)))
    made.network.run()
    assert (fast.is_paused, fast.unread) == (True, 0)
    # A source that has nothing left to read pauses no other source.
    slow.read_on(False)
    assert not fast.is_paused


events = st.lists(
    st.tuples(st.integers(0, 1), st.one_of(st.integers(0, 50), st.sampled_from(["barrier", "idle", "active"]))),
    max_size=30,
)


@settings(max_examples=examples(60), deadline=None)
@given(events, st.integers(0, 1 << 30), st.integers(1, 3))
def test_in_any_order_of_moves_a_checkpoint_contains_its_input_and_channels_keep_order(
    script: list[tuple[int, Any]], seed: int, capacity: int
) -> None:
    made = job(scheduler=Shuffled(seed), capacity=capacity)
    fed: list[list[int]] = [[], []]
    number = checkpoint_id = 0
    for index, event in script:
        source = made.sources[index]
        if event == "barrier":
            # Barriers overtake unread records, so read all records first.
            made.network.run()
            checkpoint_id += 1
            trigger(made.network, checkpoint_id)
            made.network.run()
            taken = sorted(one for work in made.works for one in work.snapshots[checkpoint_id])
            assert taken == sorted(fed[0] + fed[1])
        elif isinstance(event, str):
            source.feed(lambda one, event=event: one.time(WatermarkStatus(event)))
        elif event % 5 == 0:
            source.feed(lambda one, event=event: one.time(Watermark(event)))
        else:
            number += 1
            fed[index].append(number)
            source.feed(lambda one, number=number: one.record(number))
    made.network.run()
    for work in made.works:
        for of_source in fed:
            assert [one for one in work.seen if one in of_source] == [one for one in of_source if one in work.seen]
    elements = made.received.elements
    times = [one.timestamp_ms for one in elements if isinstance(one, Watermark)]
    assert times == sorted(set(times))
    for place, one in enumerate(elements):
        if isinstance(one, Watermark):
            assert elements[:place].count(("timer", one.timestamp_ms)) >= 1
            assert all(later[1] >= one.timestamp_ms for later in elements[place:] if isinstance(later, tuple))


def test_the_same_seed_moves_in_the_same_order_and_another_differently() -> None:
    def elements(seed: int) -> list[Any]:
        made = job(scheduler=Shuffled(seed))
        for number in range(12):
            made.sources[number % 2].feed(lambda source, number=number: source.record(number))
        made.network.run()
        return made.received.elements

    assert elements(3) == elements(3)
    assert len({tuple(elements(seed)) for seed in range(5)}) > 1


def source_of(group: AlignmentGroup[TaskId] | None = None) -> SourceSubtask[Source]:
    output = SubtaskOutput()
    return SourceSubtask(TaskId("source", 0), Source(output), output, group)


def test_a_source_triggered_twice_for_a_checkpoint_sends_one_barrier() -> None:
    source = source_of()
    channel = Channel(source.task, TaskId("reader", 0), (0,), 9)
    source.output.channels.append(channel)
    for checkpoint_id in (1, 2, 1, 2, 3):
        source.trigger(CheckpointBarrier(checkpoint_id=checkpoint_id))
    while source.can_move:
        source.step()
    taken = [channel.take() for _ in channel.waiting()]
    assert taken == [CheckpointBarrier(checkpoint_id=one) for one in (1, 2, 3)]


def test_the_end_of_a_source_waits_until_its_last_record_is_read() -> None:
    group: AlignmentGroup[TaskId] = AlignmentGroup()
    source, other = source_of(group), TaskId("other", 0)
    group.join(source.task, 10)
    group.join(other, 10)
    group.watermark(other, 100)
    for time_ms in (5, 6):
        source.feed(lambda work, time_ms=time_ms: work.time(Watermark(time_ms)))  # type: ignore[misc]
    source.read_on(False)
    source.step()
    assert group.paused() == {other}
    source.step()
    assert group.paused() == frozenset()
