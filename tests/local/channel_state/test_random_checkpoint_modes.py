"""Random networks in every mode, restored midway at the same and other parallelisms: no record is lost or doubled.

The operators check the invariants during the run: see `random_networks`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import JobRestoreError
from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.local.channel_restore import InFlightShares
from statebackend.local.graph import LocalStream
from statebackend.local.network.channel import RecordBatch
from statebackend.local.network.channel_barriers import BarrierMetrics, SubtaskCapture, SubtaskTime
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkStatus
from tests.local.channel_state.random_networks import KEYS, ROW, Checkpoint, Piece, Run, Shape

pytestmark = pytest.mark.slow

MODES: Final = {
    "at least once": CheckpointingMode.AT_LEAST_ONCE,
    "aligned": CheckpointingMode.ALIGNED,
    "unaligned": CheckpointingMode.UNALIGNED,
    "unaligned after 2": CheckpointingMode.unaligned_after(2),
    "unaligned at once": CheckpointingMode.unaligned_after(0),
}

KINDS: Final = (("record", "record", "time"), ("record", "record", "record", "time", "idle", "active"))
EVENTS: Final = {"feed": 5, "step": 6, "tick": 5, "trigger": 3, "partial": 0.4, "cancel": 0.4, "savepoint": 0.6}
"""The events of a run, with weights."""


def play(shape: Shape, parallelisms: Sequence[int], seed: int) -> tuple[Run, int]:
    """Run once per parallelism. Each run starts from a checkpoint of the run before. One seed determines them all."""
    chance = random.Random(seed)
    feeds: list[list[Piece]] = [
        [(kind, chance.randrange(KEYS)) for kind in chance.choices(KINDS[shape.has_idle], k=chance.randrange(5, 40))]
        for _ in range(1 if shape.second is None else 2)
    ]
    begin, next_id, in_flight = Checkpoint(), 1, 0
    for parallelism in parallelisms[:-1]:
        run = Run(shape, feeds, parallelism, chance.randrange(1 << 30), begin)
        for _ in range(chance.randrange(6, 40)):
            next_id = _event(run, chance, next_id)
        run.step(chance.randrange(60))
        # Checkpoints that are incomplete now never complete, because the run ends here.
        complete = run.checkpoints
        in_flight += run.in_flight_count
        if complete:
            begin = complete[chance.choice(list(complete))]
        next_id += 1
    run = Run(shape, feeds, parallelisms[-1], chance.randrange(1 << 30), begin)
    for _ in range(chance.randrange(10)):
        next_id = _event(run, chance, next_id)
    run.finish(next_id)
    return run, in_flight + run.in_flight_count


def _event(run: Run, chance: random.Random, next_id: int) -> int:
    [event] = chance.choices(list(EVENTS), weights=list(EVENTS.values()))
    source = chance.randrange(len(run.sources))
    if event == "feed":
        run.feed(source, chance.randrange(1, 12))
    elif event == "step":
        run.step(chance.randrange(1, 30))
    elif event == "tick":
        run.now_ms += chance.randrange(4)
    elif event == "trigger":
        run.trigger(next_id)
    elif event == "savepoint":
        run.trigger(next_id, is_savepoint=True)
    elif event == "partial":
        run.trigger(next_id, [source])
    else:
        run.trigger(next_id, [one for one in range(len(run.sources)) if one != source])
        run.cancel(next_id, source)
    return next_id + 1


def check(run: Run) -> None:
    """Check that each record is once in the state of each operator and once in the output, in order."""
    shape = run.shape
    is_broadcast = shape.second == "broadcast"
    fed = [
        (source, place, value)
        for source, feed in enumerate(run.feeds)
        for place, (kind, value) in enumerate(feed)
        if kind == "record"
    ]
    keyed = [one for one in fed if not (is_broadcast and one[0] == 1)]
    for uid in ("a", "b"):
        memory: dict[int, list[Any]] = {}
        for work in run.works:
            if work.uid == uid:
                memory.update(work.memory)
        _check_rows([row for rows in memory.values() for row in rows], keyed, shape)
        if shape.mode.is_exactly_once:
            for rows in memory.values():
                for source, key in {(row.source, row.key) for row in rows}:
                    places = [row.place for row in rows if (row.source, row.key) == (source, key)]
                    assert places == sorted(places), "records of one sender and key are in another order"
    _check_rows(run.came_out, keyed, shape)
    for work in run.works:
        assert work.watermark_ms == (1 << 63) - 1
        if is_broadcast and work.uid == "a":
            _check_rows(work.broadcast, [one for one in fed if one[0] == 1], shape)


def _check_rows(rows: Sequence[Any], expected: Sequence[tuple[int, int, int]], shape: Shape) -> None:
    found = Counter(map(tuple, rows))
    assert found.keys() == set(expected), "records are lost, or come from nowhere"
    if shape.mode.is_exactly_once:
        assert set(found.values()) <= {1}, "records are doubled"


shapes = st.builds(
    Shape,
    second=st.sampled_from([None, "input", "union", "broadcast"]),
    has_idle=st.booleans(),
    capacity=st.integers(1, 4),
    mode=st.sampled_from(list(MODES.values())),
)


@settings(max_examples=examples(120), deadline=None)
@given(shapes, st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 1 << 30))
def test_every_record_counts_as_the_mode_promises(shape: Shape, parallelisms: Sequence[int], seed: int) -> None:
    check(play(shape, parallelisms, seed)[0])


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("mode", ["unaligned", "unaligned after 2", "unaligned at once"])
def test_records_are_in_flight_where_barriers_overtake(mode: str) -> None:
    counts = [play(Shape(mode=MODES[mode], capacity=3, second="input"), [2, 3], seed)[1] for seed in range(60)]
    assert sum(counts) > 20


def test_records_count_twice_only_at_least_once() -> None:
    doubled = 0
    for seed in range(60):
        run, _ = play(Shape(mode=MODES["at least once"], second="union"), [2, 2], seed)
        doubled += max(Counter(map(tuple, run.came_out)).values(), default=0) > 1
    assert doubled > 0


def at(sender: TaskId, own_ms: int, sent_ms: int) -> SubtaskTime:
    valve = ValveState(own_ms, (ValveChannel(sender, own_ms, False),))
    return SubtaskTime(OperatorWatermarkState(own_ms, (valve,)), sent_ms, WatermarkStatus.ACTIVE)


def row_of(key: int) -> Any:
    return tuple.__new__(ROW, (0, key, key))


def test_records_in_flight_keep_their_watermarks_at_another_parallelism() -> None:
    """For a record between two watermarks, each new subtask restores the first one and ends at the second one."""
    s0, a0, b0 = TaskId("s0", 0), TaskId("a", 0), TaskId("b", 0)

    rows = [row_of(key) for key in range(KEYS)]
    elements = [Watermark(5), *(RecordBatch(0, [row], [None], sender_watermark_ms=5) for row in rows), Watermark(9)]
    begin = Checkpoint(
        parallelism=1,
        positions={0: 0},
        sent={0: (9, WatermarkStatus.ACTIVE)},
        memories={"a": {}, "b": {}},
        captures={
            own: SubtaskCapture(checkpoint_id=1, is_unaligned=True, time=time, metrics=BarrierMetrics(), inputs=inputs)
            for own, time, inputs in ((a0, at(s0, 9, 9), {}), (b0, at(a0, 3, 3), {a0: elements}))
        },
    )
    run = Run(Shape(mode=MODES["unaligned"]), [[]], 3, 0, begin)
    subtasks = [one for one in run.network.operators if one.task.operator_uid == "b"]
    assert [one.watermarks.watermark_ms for one in subtasks] == [9, 9, 9]
    assert sorted(row.key for work in run.works for of in work.memory.values() for row in of) == list(range(KEYS))


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(
    ("sender", "element", "to"),
    [
        ("s0", RecordBatch(0, [row_of(0)], [None]), "input 0 of 'b'"),
        ("gone", Watermark(5), "'b'"),
    ],
)
def test_records_of_a_removed_channel_are_not_dropped(
    parallelism: int, sender: str, element: RecordBatch | Watermark, to: str
) -> None:
    s0, a0, b0 = TaskId("s0", 0), TaskId("a", 0), TaskId("b", 0)
    on_their_way = {TaskId(sender, 0): [element]}
    begin = Checkpoint(
        parallelism=1,
        positions={0: 0},
        sent={0: (9, WatermarkStatus.ACTIVE)},
        memories={"a": {}, "b": {}},
        captures={
            own: SubtaskCapture(checkpoint_id=1, is_unaligned=True, time=time, metrics=BarrierMetrics(), inputs=inputs)
            for own, time, inputs in ((a0, at(s0, 9, 9), {}), (b0, at(a0, 3, 3), on_their_way))
        },
    )
    with pytest.raises(JobRestoreError, match=f"in flight from '{sender}' to {to}, but this job does not connect them"):
        Run(Shape(mode=MODES["unaligned"]), [[]], parallelism, 0, begin)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ({TaskId("a", 7): [RecordBatch(0, [row_of(0)], [None])]}, {}, "from subtask 7 of 'a' to 'b', but has no"),
        ({}, {TaskId("b", 4): [RecordBatch(0, [row_of(0)], [None])]}, "but has no event time of subtask 4"),
    ],
    ids=["sender", "reader"],
)
def test_records_of_a_subtask_that_did_not_exist_are_rejected(
    parallelism: int, inputs: Any, outputs: Any, reason: str
) -> None:
    a0, b0 = TaskId("a", 0), TaskId("b", 0)
    times = {a0: (at(TaskId("s0", 0), 9, 9), {}, outputs), b0: (at(a0, 3, 3), inputs, {})}
    begin = Checkpoint(
        parallelism=1,
        positions={0: 0},
        sent={0: (9, WatermarkStatus.ACTIVE)},
        memories={"a": {}, "b": {}},
        captures={
            own: SubtaskCapture(
                checkpoint_id=1, is_unaligned=True, time=time, metrics=BarrierMetrics(), inputs=received, outputs=sent
            )
            for own, (time, received, sent) in times.items()
        },
    )
    with pytest.raises(JobRestoreError, match=reason):
        Run(Shape(mode=MODES["unaligned"]), [[]], parallelism, 0, begin)


class Dealt:
    """An operator keyed by the record; each subtask has every second key."""

    def is_keyed(self, input_index: int) -> bool:
        return input_index == 0

    def partitioned(self, input_index: int, stream: LocalStream, parallelism: int) -> list[ObjectBatch]:
        parts = [[one for one in stream.records if one % parallelism == index] for index in range(parallelism)]
        return [ObjectBatch(part, part, [0] * len(part)) for part in parts]


def test_records_whose_key_changed_are_not_given_to_a_subtask_without_its_state() -> None:
    operators: Any = {"count": Dealt()}
    shares = InFlightShares(operators, 2, lambda operator, index, records: None)
    for records, subtask in (([0, 2], 0), ([1], 1)):
        assert shares.share_of(TaskId("count", subtask), RecordBatch(0, records)).records == records
    for records, subtask in (([0, 1], 0), ([0], 1), ([1, 3, 4], 1)):
        with pytest.raises(JobRestoreError, match="for input 0 of operator 'count' have other keys than when"):
            shares.share_of(TaskId("count", subtask), RecordBatch(0, records))
    assert shares.share_of(TaskId("count", 0), RecordBatch(1, [0, 1])).records == [0, 1]
