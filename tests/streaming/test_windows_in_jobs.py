"""Windows in local jobs, and in subtasks with a given epoch time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq
import pytest

from statebackend import (
    ContinuousEventTimeTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    JobDefinitionError,
    JobRestoreError,
    MissingTimestampError,
    ProcessingTimeSessionWindows,
    ProcessJoinFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    WindowContext,
    count,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.state.states import AggregateFunction
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from statebackend.testing.jobs import Emitted, HarnessJob, JobTestHarness
from typeserializers import AttrsSerializer

SCHEMA = "k string, v bigint"
ROWS = [("a", 1), ("b", 10), ("a", 2), ("a", 4), ("b", 20), ("a", 8)]


def reduced(left: Any, right: Any) -> Any:
    return left.k, left.v + right.v


def test_an_endless_window_with_interval_triggers_fires_again_at_the_end_of_time() -> None:
    rows: list[Any] = []

    class Sizes(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterator[Any]:
            assert len(rows) < 9, "it fires for ever"
            rows.append((context.current_watermark(), len(elements)))
            return iter(())

    env = LocalStreamEnvironment(epoch_size=1)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("v")
    keyed = env.from_elements([("a", 1), ("a", 12)], "k string, v bigint").assign_timestamps_and_watermarks(times)
    windows = keyed.key_by("k").window(GlobalWindows.create()).trigger(ContinuousEventTimeTrigger.of(10))
    windows.process(Sizes(), uid="sizes", schema="k string").sink_to([])
    env.execute(drain=True)
    assert rows == [(11, 2), (MAX_TIMESTAMP, 2), (MAX_TIMESTAMP, 2)]


class Times:
    """A clock that advances by a step at each call."""

    def __init__(self, *times: int) -> None:
        self._times: Iterator[int] = iter(times)

    def __call__(self) -> int:
        return next(self._times)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("epoch_size", [1, 100])
def test_count_windows_have_the_configured_number_of_records_per_key(backend: str, epoch_size: int) -> None:
    rows: list[Any] = []
    env = LocalStreamEnvironment(backend=backend, parallelism=2, epoch_size=epoch_size)
    keyed = env.from_elements(ROWS, "k string, v bigint").key_by("k")
    keyed.count_window(2).reduce(reduced, uid="pairs", schema="k string, v bigint").sink_to(rows)
    env.execute()
    assert sorted(map(tuple, rows)) == [("a", 3), ("a", 12), ("b", 30)]


@pytest.mark.parametrize("keys", [("k",), ("k", "w")])
def test_counts_are_rows_of_key_window_and_number(keys: tuple[str, ...]) -> None:
    rows: list[Any] = []
    env = LocalStreamEnvironment(parallelism=2, epoch_size=3)
    given = [("a", True, 1), ("b", True, 2), ("a", True, 9), ("a", True, 11), ("b", True, 25)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("t")
    timed = env.from_elements(given, "k string, w boolean, t bigint").assign_timestamps_and_watermarks(strategy)
    schema = ", ".join(("k string", "w boolean")[: len(keys)])
    counted = (
        timed.key_by(*keys)
        .window(TumblingEventTimeWindows.of(10))
        .count(uid="counts", schema=f"{schema}, start bigint, end bigint, n bigint")
    )
    counted.sink_to(rows)
    env.execute(drain=True)
    expected = [("a", 0, 10, 2), ("b", 0, 10, 1), ("a", 10, 20, 1), ("b", 20, 30, 1)]
    behind_key = (True,) * (len(keys) - 1)
    assert sorted(map(tuple, rows)) == sorted((key, *behind_key, *rest) for key, *rest in expected)


@pytest.mark.parametrize(("order_by", "expected"), [("v", [("a", 3), ("a", 12)]), ((), [("a", 12), ("a", 3)])])
def test_records_enter_windows_in_the_configured_order(order_by: Any, expected: Any) -> None:
    rows: list[Any] = []
    env = LocalStreamEnvironment()
    keyed = env.from_elements([("a", v) for v in (8, 4, 2, 1)], "k string, v bigint").key_by("k")
    keyed.count_window(2, order_by=order_by).reduce(reduced, uid="pairs", schema="k string, v bigint").sink_to(rows)
    env.execute()
    assert [tuple(row) for row in rows] == expected


class Show(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Any:
        yield key, context.window.start, [row.v for row in elements]


@pytest.mark.parametrize(
    ("assigner", "expected"),
    [
        (TumblingProcessingTimeWindows.of(10), [("a", 0, [1, 2]), ("b", 0, [10]), ("a", 10, [4]), ("b", 10, [20])]),
        (ProcessingTimeSessionWindows.with_gap(10), [("a", 0, [1, 2, 4]), ("b", 3, [10]), ("b", 16, [20])]),
    ],
    ids=["tumbling", "sessions"],
)
def test_processing_time_windows_fire_in_the_epoch_in_which_they_are_due(assigner: Any, expected: Any) -> None:
    rows: list[Any] = []
    env = LocalStreamEnvironment(epoch_size=1, clock=Times(0, 3, 7, 13, 16, 40))
    keyed = env.from_elements(ROWS, "k string, v bigint").key_by("k")
    keyed.window(assigner).process(Show(), uid="w", schema="k string, at bigint, v array<bigint>").sink_to(rows)
    env.execute()
    assert sorted(map(tuple, rows), key=lambda row: (row[1], row[0])) == expected


def test_missing_requirements_of_windows_are_reported() -> None:
    env = LocalStreamEnvironment()
    keyed = env.from_elements([{"k": "a", "v": 1}]).key_by("k")
    keyed.count_window(1).process(Show(), uid="w", schema="k string").sink_to([])
    with pytest.raises(JobDefinitionError, match=r"'w'.*element_type="):
        env.execute()
    env = LocalStreamEnvironment()
    keyed = env.from_elements(ROWS, "k string, v bigint").key_by("k")
    keyed.window(TumblingEventTimeWindows.of(1)).reduce(reduced, uid="w", schema="k string, v bigint").sink_to([])
    with pytest.raises(JobDefinitionError, match=r"operator 'w': reduced works in event time.*assign_timestamps_and"):
        env.execute()
    env = LocalStreamEnvironment()
    timed = env.from_elements([("a", None)], "k string, v bigint").assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("v")
    )
    windows = timed.key_by("k").window(TumblingEventTimeWindows.of(1))
    windows.reduce(reduced, uid="w", schema="k string, v bigint").sink_to([])
    with pytest.raises(MissingTimestampError, match=r"operator 'w', key 'a', record .*: the record has no timestamp"):
        env.execute()


def test_an_interval_join_without_timestamps_on_one_side_is_rejected() -> None:
    class Pair(ProcessJoinFunction[Any, Any, Any, Any]):
        def process_element(self, left: Any, right: Any, context: Any) -> None:
            return None

    env = LocalStreamEnvironment()
    timed = env.from_elements(ROWS, "k string, v bigint", uid="timed").assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("v")
    )
    untimed = env.from_elements(ROWS, "k string, v bigint", uid="untimed")
    joined = timed.key_by("k").interval_join(untimed.key_by("k")).between(0, 1)
    joined.process(Pair(), uid="join", schema="k string").sink_to([])
    with pytest.raises(JobDefinitionError, match="operator 'join': Pair works in event time"):
        env.execute()


@attrs.frozen
class Sum1:
    total: int = 0


@attrs.frozen
class Sum2:
    total: int = 0
    records: int = 0


def summing(accumulators: type) -> Any:
    class Summing(AggregateFunction[Any, Any, Any]):
        def create_accumulator(self) -> Any:
            return accumulators()

        def add(self, value: Any, accumulator: Any) -> Any:
            more = {"records": accumulator.records + 1} if accumulators is Sum2 else {}
            return attrs.evolve(accumulator, total=accumulator.total + value.v, **more)

        def get_result(self, accumulator: Any) -> Any:
            return attrs.astuple(accumulator)

        def merge(self, left: Any, right: Any) -> Any:
            return accumulators(*(a + b for a, b in zip(attrs.astuple(left), attrs.astuple(right), strict=True)))

    return Summing()


@pytest.mark.parametrize(("before", "after"), [("heap", "rocksdb"), ("rocksdb", "heap")])
@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows.of(10), EventTimeSessionWindows.with_gap(10)], ids=repr)
def test_open_windows_continue_with_another_accumulator(tmp_path: Path, before: str, after: str, assigner: Any) -> None:
    def built_with(accumulators: type, schema: str) -> Any:
        def build(job: HarnessJob) -> None:
            windows = job.source("in", "k string, v bigint").key_by("k").window(assigner)
            accumulator_type = AttrsSerializer(accumulators, name="Sum")
            summed = windows.aggregate(
                summing(accumulators), uid="sums", schema=schema, accumulator_type=accumulator_type
            )
            job.output("out", summed)

        return build

    def emitted(harness: JobTestHarness) -> list[Any]:
        return [(*one.record, one.timestamp_ms) for one in harness.taken() if isinstance(one, Emitted)]

    with JobTestHarness(built_with(Sum1, "total bigint"), backend=before) as harness:
        source = harness.source("in")
        source.send_all([("a", 1), ("b", 2)], [1, 0])
        source.watermark(5)
        source.send_all([("a", 4), ("a", 8)], [1, 21])
        assert emitted(harness) == []
        snapshot = harness.snapshot(tmp_path / "snapshot")
    built = built_with(Sum2, "total bigint, records bigint")
    with JobTestHarness(built, backend=after, parallelism=2, from_snapshot=snapshot) as harness:
        source = harness.source("in")
        source.watermark(9)
        is_tumbling = isinstance(assigner, TumblingEventTimeWindows)
        assert sorted(emitted(harness)) == ([(2, 0, 9), (5, 0, 9)] if is_tumbling else [(2, 0, 9)])
        source.send(("b", 16), 20)
        source.end()
        assert len(emitted(harness)) == (2 if is_tumbling else 3)


def built_with(assigner: Any) -> Any:
    def build(job: HarnessJob) -> None:
        windows = job.source("in", "k string, v bigint").key_by("k").window(assigner)
        job.output("out", windows.reduce(lambda left, _: left, uid="sums", schema="k string, v bigint"))

    return build


@pytest.mark.parametrize("is_session_first", [False, True])
def test_a_change_between_sessions_and_other_windows_is_rejected(tmp_path: Path, is_session_first: bool) -> None:
    assigners = [TumblingEventTimeWindows.of(10), EventTimeSessionWindows.with_gap(10)]
    before, after = reversed(assigners) if is_session_first else assigners
    with JobTestHarness(built_with(before)) as harness:
        harness.source("in").send(("a", 1), 1)
        snapshot = harness.snapshot(tmp_path / "snapshot")
    for allows in (False, True):
        with pytest.raises(JobRestoreError, match=r"'sums' has stored .*, which would not fire as .* another uid"):
            JobTestHarness(built_with(after), from_snapshot=snapshot, allow_non_restored_state=allows)


@pytest.mark.parametrize("is_event_time_first", [False, True])
def test_a_change_between_windows_of_event_time_and_of_processing_time_is_rejected(
    tmp_path: Path, is_event_time_first: bool
) -> None:
    assigners = [TumblingProcessingTimeWindows.of(10), TumblingEventTimeWindows.of(10)]
    before, after = reversed(assigners) if is_event_time_first else assigners
    with JobTestHarness(built_with(before)) as harness:
        harness.source("in").send(("a", 1), 1)
        snapshot = harness.snapshot(tmp_path / "open")
        harness.advance_processing_time(100)
        harness.source("in").end()
        fired = harness.snapshot(tmp_path / "fired")
    for allows in (False, True):
        with pytest.raises(
            JobRestoreError, match=r"'sums' has stored windows that end in .* time, and would never fire"
        ):
            JobTestHarness(built_with(after), from_snapshot=snapshot, allow_non_restored_state=allows)
    with JobTestHarness(built_with(after), from_snapshot=fired):
        pass


class Largest(AggregateFunction[Any, int, str]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return max(value.v, accumulator)

    def get_result(self, accumulator: int) -> str:
        return f"largest {accumulator}"


def test_a_result_is_passed_to_a_function_of_key_window_and_result() -> None:
    def show(key: str, window: Any, result: Any) -> list[Any]:
        return [(key, window.start, window.end, str(getattr(result, "v", result)))]

    def silent(key: str, window: Any, result: Any) -> None:
        return None

    def build(job: HarnessJob) -> None:
        for number, function in enumerate((show, silent)):
            windows = job.source(f"in {number}", SCHEMA).key_by("k").window(TumblingEventTimeWindows.of("10 ms"))
            names: dict[str, Any] = {"schema": "k string, start bigint, end bigint, v string"}
            largest = windows.aggregate(Largest(), function, uid=f"aggregate {number}", **names)
            summed = windows.reduce(lambda a, b: a if a.v > b.v else b, function, uid=f"reduce {number}", **names)
            counted = windows.count(function, uid=f"count {number}", **names)
            for name, stream in (("aggregate", largest), ("reduce", summed), ("count", counted)):
                job.output(f"{name} {number}", stream)

    with JobTestHarness(build) as harness:
        for number in range(2):
            source = harness.source(f"in {number}")
            source.send(("a", 3), timestamp_ms=1)
            source.send(("a", 2), timestamp_ms=2)
            source.end()
        for name, result in (("aggregate", "largest 3"), ("reduce", "3"), ("count", "2")):
            assert [tuple(row) for row in harness.taken_records(f"{name} 0")] == [("a", 0, 10, result)]
            assert harness.taken_records(f"{name} 1") == []


def test_other_functions_of_a_result_are_rejected() -> None:
    windows = LocalStreamEnvironment().from_elements([], SCHEMA).key_by("k").window(TumblingEventTimeWindows.of(10))
    for wrong in (Show, 1, "text"):
        with pytest.raises(JobDefinitionError, match="a function over windows must be an instance of a ProcessWindow"):
            windows.aggregate(Largest(), wrong, uid="w", schema="k string")  # type: ignore[arg-type]


def test_every_file_of_the_heap_is_sorted_by_key_and_window(tmp_path: Path) -> None:
    env = LocalStreamEnvironment(job_dir=tmp_path, backend="heap", epoch_size=1, max_parallelism=2)
    late = WatermarkStrategy.for_bounded_out_of_orderness("1 day").with_timestamps("v")
    elements = [(f"k{number % 2}", 10 * (60 - number)) for number in range(60)]
    keyed = env.from_elements(elements, SCHEMA).assign_timestamps_and_watermarks(late).key_by("k")
    keyed.window(TumblingEventTimeWindows.of(10)).aggregate(n=count(), uid="counts").sink_to([])
    env.execute()
    files = list(tmp_path.rglob("*.parquet"))
    sizes = []
    for file in files:
        rows = [tuple(row.values())[:4] for row in pq.read_table(file).to_pylist()]
        assert rows == sorted(rows)
        sizes.append(len(rows))
    assert max(sizes) > 4, "increments were merged"
