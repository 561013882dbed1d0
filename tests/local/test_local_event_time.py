"""Event time in local jobs: timestamps, watermarks across epochs, chained windows, restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from event_time_model import SCHEMA, SIZE, Record, Summed, bounded, model
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import (
    FUTURE_RECORDS,
    EventTimeSessionWindows,
    JobDefinitionError,
    OutputTag,
    ProcessWindowFunction,
    StreamJobError,
    TumblingEventTimeWindows,
    UserFunctionError,
    WatermarkStrategy,
    WindowContext,
)
from statebackend.local import LocalJob, LocalStreamEnvironment
from statebackend.streaming.metrics import TimeMetrics
from statebackend.streaming.time.watermark_generators import WatermarkGenerator, WatermarkOutput

pytestmark = pytest.mark.slow

LATE: OutputTag[Any] = OutputTag("late", SCHEMA)


def windowed(env: LocalStreamEnvironment, elements: list[Record], results: Any, late: Any, **execute: Any) -> LocalJob:
    stream = env.from_elements(elements, SCHEMA).assign_timestamps_and_watermarks(bounded())
    windows = stream.key_by("k").window(TumblingEventTimeWindows.of(SIZE)).side_output_late_data(LATE)
    summed = windows.process(Summed(), uid="sums", schema="k string, start bigint, total bigint")
    summed.sink_to(results, uid="results")
    summed.get_side_output(LATE).sink_to(late, uid="late")
    return env.execute(**execute)


def run(
    epochs: Sequence[Sequence[Record]], *, backend: str = "heap", drain: bool = True, job_dir: Any = None
) -> tuple[list[Any], list[Any], LocalJob]:
    """Run windows over these epochs, each in its own execution, like a job that is restarted."""
    results: list[Any] = []
    late: list[Any] = []
    job: LocalJob | None = None
    for index, records in enumerate(epochs):
        env = LocalStreamEnvironment(backend=backend, parallelism=2, job_dir=job_dir)
        job = windowed(env, list(records), results, late, drain=drain and index == len(epochs) - 1)
    assert job is not None
    return sorted(map(tuple, results)), sorted(map(tuple, late)), job


records = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-40, 120), st.integers(1, 9)), max_size=8)


@settings(max_examples=examples(25))
@given(st.lists(records, min_size=1, max_size=5))
def test_results_and_late_records_follow_the_watermarks_for_any_cut_of_the_stream(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[list[Record]]
) -> None:
    results, late, _ = run(epochs, job_dir=tmp_path_factory.mktemp("job") / "job")
    assert (results, late) == model(epochs)


EPOCHS: list[list[Record]] = [
    [("a", 1, 1), ("b", 12, 2)],
    [("a", 3, 4), ("a", 30, 8)],
    [("a", 5, 16), ("b", 14, 32)],
    [("a", 41, 64)],
]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_watermarks_and_open_windows_survive_a_restart(tmp_path: Path, backend: str) -> None:
    results, late, _ = run(EPOCHS, backend=backend, job_dir=tmp_path / "job")
    assert (results, late) == model(EPOCHS)
    assert late == [("a", 5, 16), ("b", 14, 32)]


def test_only_what_is_due_after_the_last_elements_fires(tmp_path: Path) -> None:
    results, _, job = run(EPOCHS[:2], drain=False, job_dir=tmp_path / "job")
    assert results == [("a", 0, 5), ("b", 10, 2)]
    assert job.watermarks() == {"source": 24, "sums": 24}
    # Timers fire in the epoch whose records advance the watermark past them.
    assert job.epochs == 1


def test_chained_windows_accept_what_was_sent_before_the_watermark() -> None:
    results: list[Any] = []
    env = LocalStreamEnvironment(parallelism=2, epoch_size=1)
    elements = [("a", 1, 1), ("b", 2, 2), ("a", 12, 4), ("a", 55, 8), ("b", 1, 16)]
    stream = env.from_elements(elements, SCHEMA).assign_timestamps_and_watermarks(bounded())
    first = stream.key_by("k").window(TumblingEventTimeWindows.of(5))
    sums = first.process(Summed(), uid="small", schema="k string, start bigint, v bigint")
    second = sums.key_by("k").window(TumblingEventTimeWindows.of(20))
    second.process(Summed(), uid="large", schema="k string, start bigint, v bigint").sink_to(results)
    env.execute(drain=True)
    # The small windows of 1, 2 and 12 and the large window around them fire at the same watermark.
    assert sorted(map(tuple, results)) == [("a", 0, 5), ("a", 40, 8), ("b", 0, 2)]


def test_a_source_without_records_holds_the_operator_that_reads_it() -> None:
    results: list[Any] = []
    env = LocalStreamEnvironment(epoch_size=1)
    full = env.from_elements([("a", 1, 1), ("a", 50, 2)], SCHEMA, uid="full").assign_timestamps_and_watermarks(
        bounded()
    )
    empty = env.from_elements([], SCHEMA, uid="empty").assign_timestamps_and_watermarks(bounded())
    windows = full.union(empty).key_by("k").window(TumblingEventTimeWindows.of(SIZE))
    windows.process(Summed(), uid="sums", schema="k string, start bigint, v bigint").sink_to(results)
    assert env.execute().watermarks() == {"full": 44}
    assert results == []


def test_watermark_lag_and_late_records_are_reported_by_source_and_operator() -> None:
    env = LocalStreamEnvironment(clock=lambda: 1000, epoch_size=2)
    elements = [record for epoch in EPOCHS for record in epoch]
    stream = env.from_elements(elements, SCHEMA).assign_timestamps_and_watermarks(bounded())
    windows = stream.key_by("k").window(TumblingEventTimeWindows.of(SIZE))
    windows.process(Summed(), uid="sums", schema="k string, start bigint, v bigint").sink_to([])
    assert len(model(EPOCHS)[1]) == 2
    metrics = env.execute().metrics()
    assert metrics.time == dict.fromkeys(("source", "sums"), TimeMetrics(watermark_ms=35, lag_ms=965))
    assert metrics.totals.operators["sums"].late_records_dropped == metrics.totals.late_records_dropped == 2


def test_the_chapter_on_event_time_shows_real_output() -> None:
    chapter = (Path(__file__).resolve().parents[2] / "docs" / "event-time.md").read_text(encoding="utf-8")
    [program] = re.findall(r"<!-- tests/\S+ runs this -->\n```python\n(.*?)```", chapter, re.S)
    exec(program, {})


class Counted(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterator[Any]:
        yield key, context.window.start, len(elements)


def test_the_output_of_a_step_keeps_the_timestamp_of_its_record() -> None:
    results: list[Any] = []
    env = LocalStreamEnvironment()
    elements = [{"k": "a", "t": 3}, {"k": "a", "t": 8}]
    stream = env.from_elements(elements).assign_timestamps_and_watermarks(bounded(lambda record: record["t"]))
    doubled = stream.flat_map(lambda record: [(record["k"], 1), (record["k"], 2)])
    windows = doubled.key_by(lambda pair: pair[0]).window(EventTimeSessionWindows.with_gap(4))
    schema = "k string, t bigint, n bigint"
    windows.process(Counted(), uid="sums", schema=schema, element_type=tuple[str, int]).sink_to(results)
    env.execute(drain=True)
    assert sorted(map(tuple, results)) == [("a", 3, 2), ("a", 8, 2)]


@pytest.mark.parametrize("given", [OutputTag("ahead", SCHEMA), None], ids=["a tag", "no tag"])
def test_records_too_far_in_the_future_are_diverted_and_move_no_watermark(given: OutputTag[Any] | None) -> None:
    results: list[Any] = []
    ahead: list[Any] = []
    tag = FUTURE_RECORDS if given is None else given
    env = LocalStreamEnvironment(clock=lambda: 100, epoch_size=1)
    elements = [("a", 1, 1), ("a", 10_000, 2), ("a", 3, 4)]
    strategy = bounded().with_future_limit(1000, given)
    stream = env.from_elements(elements, SCHEMA).assign_timestamps_and_watermarks(strategy)
    stream.get_side_output(tag).sink_to(ahead, uid="ahead")
    windows = stream.key_by("k").window(TumblingEventTimeWindows.of(SIZE))
    windows.process(Summed(), uid="sums", schema="k string, start bigint, v bigint").sink_to(results)
    env.execute(drain=True)
    assert [tuple(row) for row in ahead] == [("a", 10_000, 2)]
    assert [tuple(row) for row in results] == [("a", 0, 5)]


def test_an_invalid_timestamp_is_reported_with_its_record() -> None:
    env = LocalStreamEnvironment()
    stream = env.from_elements([("a", 1, 1)], SCHEMA).assign_timestamps_and_watermarks(bounded(lambda row: row.k))
    windows = stream.key_by("k").window(TumblingEventTimeWindows.of(SIZE))
    windows.process(Summed(), uid="sums", schema="k string, start bigint, v bigint").sink_to([])
    with pytest.raises(StreamJobError, match=r"source 'source', record .*'a' is not a timestamp"):
        env.execute()


def test_an_invalid_position_or_strategy_is_rejected_with_advice() -> None:
    env = LocalStreamEnvironment()
    source = env.from_elements([("a", 1, 1)], SCHEMA)
    with pytest.raises(JobDefinitionError, match="takes a WatermarkStrategy"):
        source.assign_timestamps_and_watermarks("10 minutes")  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="with_timestamps"):
        source.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps())
    timed = source.assign_timestamps_and_watermarks(bounded())
    with pytest.raises(JobDefinitionError, match="have timestamps already"):
        timed.assign_timestamps_and_watermarks(bounded())
    with pytest.raises(JobDefinitionError, match="its input is a union"):
        source.union(source).assign_timestamps_and_watermarks(bounded())
    counted = timed.key_by("k").count_window(2).reduce(lambda left, _: left, uid="first", schema=SCHEMA)
    with pytest.raises(JobDefinitionError, match="its input is the operator 'first'"):
        counted.assign_timestamps_and_watermarks(bounded())
    other = source.assign_timestamps_and_watermarks(bounded())
    counted.union(other).sink_to([])
    with pytest.raises(JobDefinitionError, match="twice for one source"):
        env.execute()
    for strategy, there_is in ((bounded(), "its tag"), (bounded().with_future_limit(5), "'future-records'")):
        env = LocalStreamEnvironment()
        timed = env.from_elements([("a", 1, 1)], SCHEMA).assign_timestamps_and_watermarks(strategy)
        timed.get_side_output(LATE).key_by("k").count_window(1).reduce(max, uid="late", schema=SCHEMA).sink_to([])
        with pytest.raises(JobDefinitionError, match=f"side output 'late' .* nothing goes there.* to {there_is}"):
            env.execute()


class AtMarks(WatermarkGenerator[Any]):
    """Punctuated: a record with value 0 is a watermark."""

    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        if event.v == 0:
            output.emit_watermark(timestamp_ms)


class EverySecondTime(WatermarkGenerator[Any]):
    """Periodic: emits the largest timestamp at every second call."""

    def __init__(self) -> None:
        self.largest = self.calls = 0

    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        self.largest = max(self.largest, timestamp_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.calls += 1
        if self.calls % 2 == 0:
            output.emit_watermark(self.largest)


def late_with(strategy: WatermarkStrategy[Any], elements: list[Record], **environment: Any) -> list[Any]:
    """The late records, in any environment."""
    late: list[Any] = []
    env = LocalStreamEnvironment(**environment)
    stream = env.from_elements(elements, SCHEMA).assign_timestamps_and_watermarks(strategy.with_timestamps("t"))
    windows = stream.key_by("k").window(TumblingEventTimeWindows.of(SIZE)).side_output_late_data(LATE)
    summed = windows.process(Summed(), uid="sums", schema="k string, start bigint, total bigint")
    summed.sink_to([], uid="results")
    summed.get_side_output(LATE).sink_to(late, uid="late")
    env.execute()
    return [tuple(row) for row in late]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_punctuated_generator_advances_time_between_two_records_of_an_epoch(backend: str, parallelism: int) -> None:
    elements = [("a", 1, 1), ("b", 2, 2), ("x", 15, 0), ("a", 3, 4), ("b", 12, 8), ("x", 40, 0), ("b", 13, 16)]
    late = late_with(WatermarkStrategy.for_generator(AtMarks), elements, backend=backend, parallelism=parallelism)
    assert late == [("a", 3, 4), ("b", 13, 16)]


def test_a_periodic_generator_is_called_at_the_end_of_every_epoch() -> None:
    elements = [("a", 20, 1), ("a", 1, 2), ("a", 3, 4), ("a", 50, 8), ("a", 4, 16)]
    late = late_with(WatermarkStrategy.for_generator(EverySecondTime), elements, epoch_size=1)
    assert late == [("a", 3, 4), ("a", 4, 16)]


def test_an_exception_of_a_generator_is_reported_with_its_source_and_record() -> None:
    class Broken(AtMarks):
        def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
            raise ArithmeticError("boom")

    reported = r"source 'source', record .*watermark generator raised ArithmeticError: boom"
    with pytest.raises(UserFunctionError, match=reported):
        late_with(WatermarkStrategy.for_generator(Broken), [("a", 1, 1)])

    class Timeless(AtMarks):
        def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
            output.emit_watermark("noon")  # type: ignore[arg-type]

    with pytest.raises(UserFunctionError, match="a watermark is 'noon'"):
        late_with(WatermarkStrategy.for_generator(Timeless), [("a", 1, 1)])


def failing(_: object = None) -> Any:
    raise ArithmeticError("boom")


@pytest.mark.parametrize(
    ("strategy", "reported"),
    [
        (
            WatermarkStrategy.for_monotonous_timestamps().with_timestamps(failing),
            r"source 'source', record Row\(k='a', .*\): the function of with_timestamps raised ArithmeticError: boom",
        ),
        (
            bounded().with_channel(failing),
            r"source 'source', record Row\(k='a', .*\): the function of with_channel raised ArithmeticError: boom",
        ),
        (
            WatermarkStrategy.for_generator(failing).with_timestamps("t"),
            r"source 'source': its watermark generator cannot be created: ArithmeticError: boom",
        ),
    ],
    ids=["timestamps", "channel", "generator"],
)
def test_an_exception_of_a_strategy_function_is_reported_with_its_source_and_record(
    strategy: WatermarkStrategy[Any], reported: str
) -> None:
    env = LocalStreamEnvironment()
    timed = env.from_elements([("a", 1, 1)], SCHEMA).assign_timestamps_and_watermarks(strategy)
    windows = timed.key_by("k").window(TumblingEventTimeWindows.of(SIZE))
    windows.process(Summed(), uid="sums", schema="k string, start bigint, total bigint").sink_to([])
    with pytest.raises(UserFunctionError, match=reported):
        env.execute()


@pytest.mark.parametrize("epoch_size", [None, 2])
def test_sources_of_an_alignment_group_wait_for_each_other(epoch_size: int | None) -> None:
    read: list[int] = []

    def noted(row: Any) -> list[Any]:
        read.append(row.t)
        return [tuple(row)]

    env = LocalStreamEnvironment(epoch_size=epoch_size)
    streams = [
        env.from_elements([("a", time_ms, 1) for time_ms in times], SCHEMA, uid=uid)
        .flat_map(noted)
        .assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps()
            .with_timestamps(lambda record: record[1])
            .with_watermark_alignment("all", 10)
        )
        for uid, times in (("far", [0, 30, 60, 90, 120]), ("near", [0, 5, 10, 20, 30, 40]))
    ]
    results: list[Any] = []
    keyed = streams[0].union(streams[1]).key_by(lambda record: record[0])
    windows, schema = keyed.window(TumblingEventTimeWindows.of(1000)), "k string, start bigint, n bigint"
    counted = windows.process(Counted(), uid="counts", schema=schema, element_type=tuple[str, int, int])
    counted.sink_to(results)
    env.execute(drain=True)
    assert [tuple(row) for row in results] == [("a", 0, 11)]
    # The source ahead reads one record beyond the drift. When the slower one has ended, the other no longer waits.
    assert read.index(60) > read.index(20)
    assert read.index(90) > read.index(40)


@pytest.mark.parametrize(("before", "after"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_a_savepoint_restores_watermarks_and_open_windows_on_another_backend_and_parallelism(
    tmp_path: Path, before: str, after: str
) -> None:
    first: list[Any] = []
    second: list[Any] = []
    late: list[Any] = []
    job = windowed(LocalStreamEnvironment(backend=before, parallelism=2), [*EPOCHS[0], *EPOCHS[1]], first, late)
    job.savepoint(tmp_path / "savepoint")
    env = LocalStreamEnvironment(backend=after, parallelism=3)
    windowed(env, [*EPOCHS[2], *EPOCHS[3]], second, late, from_savepoint=tmp_path / "savepoint", drain=True)
    results, too_late = model([[*EPOCHS[0], *EPOCHS[1]], [*EPOCHS[2], *EPOCHS[3]]])
    assert sorted(map(tuple, first + second)) == results
    assert sorted(map(tuple, late)) == too_late
    assert too_late
    assert second


@pytest.mark.parametrize("method", ["with_timestamps", "with_channel"])
def test_a_missing_column_of_a_source_is_rejected_before_records_are_read(method: str) -> None:
    env = LocalStreamEnvironment()
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("t")
    strategy = getattr(strategy, method)("tt")
    timed = env.from_elements([], "k string, t bigint", uid="clicks").assign_timestamps_and_watermarks(strategy)
    windows = timed.key_by("k").window(TumblingEventTimeWindows.of(10))
    windows.count(uid="counts", schema="k string, start bigint, until bigint, n bigint").sink_to([])
    with pytest.raises(JobDefinitionError, match=rf"source 'clicks': {method}\('tt'\) does not fit .* columns k, t$"):
        env.execute()
