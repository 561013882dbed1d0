"""The harness of whole jobs: output order, time, snapshots for other jobs, and rejected calls."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import (
    AsyncDataStream,
    AsyncFunction,
    JobDefinitionError,
    KeyedProcessFunction,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessWindowFunction,
    RuntimeContext,
    StreamJobError,
    TimeDomain,
    TumblingEventTimeWindows,
    UserFunctionError,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowContext,
    count,
    sum_,
)
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import WatermarkStatus
from statebackend.testing.jobs import Emitted, EmittedStatus, EmittedWatermark, HarnessJob, JobTestHarness

pytestmark = pytest.mark.slow

RECORD = "k string, v bigint"
LATE: OutputTag[Any] = OutputTag("late", RECORD)
SIDE: OutputTag[Any] = OutputTag("side", RECORD)
SIZE = 10


class Remember(KeyedProcessFunction[str, Any, Any]):
    """Sums, and emits the sum ten milliseconds of event time and five of processing time after each record."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        self.total.update(self.total.value() + value.v)
        context.output(SIDE, value)
        if context.timestamp is not None:
            context.timer_service.register_event_time_timer(context.timestamp + 10)
        context.timer_service.register_processing_time_timer(context.timer_service.current_processing_time() + 5)
        yield context.current_key, -value.v

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        if context.time_domain is TimeDomain.EVENT_TIME:
            context.output(SIDE, (context.current_key, timestamp))
        yield context.current_key, self.total.value()


def remembering(job: HarnessJob) -> None:
    totals = job.source("in", RECORD).key_by("k").process(Remember(), uid="remember", schema=RECORD)
    job.output("out", totals)
    job.output("side", totals.get_side_output(SIDE))


def shown(elements: Sequence[Any]) -> list[Any]:
    return [
        (one.output, tuple(one.record), one.timestamp_ms, one.watermark_ms) if isinstance(one, Emitted) else one
        for one in elements
    ]


def test_all_outputs_are_in_one_order_and_time_follows_its_timers() -> None:
    with JobTestHarness(remembering) as harness:
        source = harness.source("in")
        source.send(("a", 3), timestamp_ms=1)
        assert shown(harness.taken()) == [
            ("side", ("a", 3), 1, MIN_TIMESTAMP),
            ("out", ("a", -3), 1, MIN_TIMESTAMP),
        ]
        source.watermark(11)
        assert shown(harness.taken()) == [
            ("side", ("a", 11), 11, 11),
            ("out", ("a", 3), 11, 11),
            EmittedWatermark("out", 11),
            EmittedWatermark("side", 11),
        ]
        assert harness.watermarks() == {"in": 11, "remember": 11}
        harness.advance_processing_time(5)
        assert shown(harness.taken()) == [("out", ("a", 3), None, 11)]
        source.idle()
        source.watermark(20)
        source.active()
        assert harness.taken() == [
            EmittedStatus(output, status)
            for status in (WatermarkStatus.IDLE, WatermarkStatus.ACTIVE)
            for output in ("out", "side")
        ]
        source.end()
        assert harness.taken()[-1] == EmittedWatermark("side", MAX_TIMESTAMP)


@pytest.mark.parametrize(("before", "after"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_a_snapshot_continues_with_another_backend_and_parallelism(tmp_path: Path, before: str, after: str) -> None:
    keys = "abcdef"
    with JobTestHarness(remembering, backend=before, parallelism=2, processing_time_ms=100) as harness:
        harness.source("in").send_all([(key, 1) for key in keys], [5] * 6)
        harness.source("in").watermark(14)
        harness.taken()
        snapshot = harness.snapshot(tmp_path / "snapshot")
        # The harness continues, and the snapshot does not change.
        harness.source("in").watermark(15)
        assert sorted(harness.taken_records("out")) == [(key, 1) for key in keys]
    with JobTestHarness(remembering, backend=after, parallelism=3, from_snapshot=snapshot) as restored:
        assert restored.watermarks() == {"in": 14, "remember": 14}
        assert restored.taken() == []
        restored.source("in").watermark(13)
        assert restored.taken() == []
        restored.source("in").send(("a", 2), timestamp_ms=90)
        restored.source("in").watermark(15)
        assert sorted(restored.taken_records("out")) == [("a", -2), ("a", 3), *((key, 1) for key in keys[1:])]


def test_time_does_not_go_back_before_a_snapshot(tmp_path: Path) -> None:
    with JobTestHarness(remembering, processing_time_ms=100) as harness:
        harness.source("in").send(("a", 1))
        snapshot = harness.snapshot(tmp_path / "snapshot")
    with JobTestHarness(remembering, from_snapshot=snapshot, processing_time_ms=7) as restored:
        restored.source("in").send(("b", 1))
        restored.advance_processing_time(104)
        assert [tuple(row) for row in restored.taken_records("out")] == [("b", -1)]
        restored.advance_processing_time(105)
        assert sorted(map(tuple, restored.taken_records("out"))) == [("a", 1), ("b", 1)]
        assert [tuple(row) for row in restored.taken_records("side")] == [("b", 1)]
        restored.advance_processing_time(105)
        assert restored.taken() == []


class DueAtOnce(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        context.timer_service.register_processing_time_timer(context.timer_service.current_processing_time())
        yield context.current_key, value.v

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        yield context.current_key, timestamp


def due_at_once(job: HarnessJob) -> None:
    job.output("out", job.source("in", RECORD).key_by("k").process(DueAtOnce(), uid="due", schema=RECORD))


def test_after_a_snapshot_an_epoch_starts_and_due_timers_fire(tmp_path: Path) -> None:
    with JobTestHarness(due_at_once, processing_time_ms=7) as harness:
        harness.source("in").send(("a", 1))
        assert [tuple(row) for row in harness.taken_records("out")] == [("a", 1)]
        for number, fired in enumerate(([("a", 7)], [])):
            harness.snapshot(tmp_path / f"snapshot-{number}")
            assert [tuple(row) for row in harness.taken_records("out")] == fired


def test_state_without_operator_is_dropped_only_with_permission(tmp_path: Path) -> None:
    with JobTestHarness(remembering) as harness:
        harness.source("in").send(("a", 1))
        snapshot = harness.snapshot(tmp_path / "snapshot")
    with pytest.raises(StreamJobError, match="remember"):
        JobTestHarness(due_at_once, from_snapshot=snapshot)
    with JobTestHarness(due_at_once, from_snapshot=snapshot, allow_non_restored_state=True) as harness:
        harness.source("in").send(("b", 2))
        assert [key for key, _ in harness.taken_records("out")] == ["b"]


class Summed(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any]:
        yield key, context.window.start, sum(row.v for row in elements)


SUMS = "k string, start bigint, total bigint"


def windowed(job: HarnessJob) -> None:
    streams = [job.source(name, RECORD) for name in ("first", "second")]
    windows = streams[0].union(streams[1]).key_by("k").window(TumblingEventTimeWindows.of(SIZE))
    sums = windows.side_output_late_data(LATE).process(Summed(), uid="sums", schema=SUMS)
    job.output("late", sums.get_side_output(LATE))
    large = sums.key_by("k").window(TumblingEventTimeWindows.of(4 * SIZE))
    job.output("sums", sums)
    job.output("counts", large.process(Counted(), uid="counts", schema=SUMS))


class Counted(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any]:
        yield key, context.window.start, sum(row.total for row in elements)


Step = tuple[int, Any]
batch = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-20, 80), st.integers(1, 9)), min_size=1, max_size=5)
steps = st.lists(st.tuples(st.integers(0, 1), st.one_of(batch, st.integers(-20, 90))), max_size=25)


def model(script: Sequence[Step]) -> dict[str, list[Any]]:
    """The output of `windowed` without idleness: sums by window, and late records."""
    watermarks = [MIN_TIMESTAMP, MIN_TIMESTAMP]
    sums: dict[Any, int] = defaultdict(int)
    late: list[Any] = []
    for source, step in script:
        if isinstance(step, int):
            watermarks[source] = max(step, watermarks[source])
            continue
        for key, time_ms, value in step:
            start = time_ms // SIZE * SIZE
            if start + SIZE - 1 <= min(watermarks):
                late.append((key, value))
            else:
                sums[key, start] += value
    counts: dict[Any, int] = defaultdict(int)
    for (key, start), total in sums.items():
        counts[key, start // (4 * SIZE) * 4 * SIZE] += total
    return {
        "sums": sorted((*window, total) for window, total in sums.items()),
        "counts": sorted((*window, total) for window, total in counts.items()),
        "late": sorted(late),
    }


@settings(max_examples=examples(14), deadline=None)
@given(
    st.sampled_from(["heap", "rocksdb"]),
    steps,
    st.integers(1, 3),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(0, 99)),
    st.integers(1, 4),
    st.integers(0, 25),
)
def test_results_equal_the_model_for_any_cut_and_order_of_moves(
    tmp_path_factory: pytest.TempPathFactory,
    backend: str,
    script: list[Step],
    parallelism: int,
    parallelism_after: int,
    seed: int | None,
    capacity: int,
    snapshot_at: int,
) -> None:
    seen: dict[str, list[Any]] = {"sums": [], "counts": [], "late": []}
    given = {"seed": seed, "capacity": capacity}

    def played(harness: JobTestHarness, part: Sequence[Step]) -> None:
        for source, step in part:
            one = harness.source(("first", "second")[source])
            if isinstance(step, int):
                one.watermark(step)
            else:
                one.send_all([(key, value) for key, _, value in step], [time_ms for _, time_ms, _ in step])
        for element in harness.taken():
            if isinstance(element, Emitted):
                seen[element.output].append(tuple(element.record))

    with JobTestHarness(windowed, backend=backend, parallelism=parallelism, **given) as harness:
        played(harness, script[:snapshot_at])
        snapshot = harness.snapshot(tmp_path_factory.mktemp("harness") / "snapshot")
    other = "heap" if backend == "rocksdb" else "rocksdb"
    with JobTestHarness(
        windowed, backend=other, parallelism=parallelism_after, from_snapshot=snapshot, **given
    ) as harness:
        played(harness, script[snapshot_at:])
        harness.source("first").end()
        harness.source("second").end()
        played(harness, [])
    assert {name: sorted(rows) for name, rows in seen.items()} == model(script)


def test_strategies_are_called_when_the_clock_advances_and_idle_sources_are_ignored() -> None:
    strategy: WatermarkStrategy[Any] = WatermarkStrategy.for_bounded_out_of_orderness(2).with_timestamps("v")

    def build(job: HarnessJob) -> None:
        timed = [
            job.source(name, RECORD).assign_timestamps_and_watermarks(strategy.with_idleness(100)) for name in "ab"
        ]
        job.output("out", timed[0].union(timed[1]).key_by("k").process(Remember(), uid="remember", schema=RECORD))

    with JobTestHarness(build) as harness:
        harness.source("a").send(("x", 7))
        harness.source("b").send(("x", 50))
        harness.advance_processing_time(1)
        assert EmittedWatermark("out", 4) in harness.taken()
        for now_ms in (50, 150):
            harness.source("b").send(("x", 60))
            harness.advance_processing_time(now_ms)
            assert harness.watermarks()["remember"] == 4
        harness.source("b").send(("x", 60))
        harness.advance_processing_time(151)
        assert harness.watermarks()["remember"] == 57


def test_a_source_ahead_of_its_group_waits() -> None:
    def build(job: HarnessJob) -> None:
        kind: WatermarkStrategy[Any] = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("v")
        timed = [
            job.source(name, RECORD).assign_timestamps_and_watermarks(kind.with_watermark_alignment("all", 10))
            for name in ("fast", "slow")
        ]
        job.output("out", timed[0].union(timed[1]).key_by("k").process(Remember(), uid="remember", schema=RECORD))

    with JobTestHarness(build) as harness:
        fast, slow = harness.source("fast"), harness.source("slow")
        slow.send(("x", 1))
        fast.send(("x", 30))
        harness.advance_processing_time(1)
        assert (fast.is_paused, slow.is_paused) == (True, False)
        harness.taken()
        fast.send(("x", 31))
        assert (fast.unread, harness.taken()) == (1, [])
        slow.end()
        assert (fast.unread, fast.is_paused) == (0, False)
        assert ("x", -31) in harness.taken_records("out")


class Answer(AsyncFunction[Any, Any]):
    async def async_invoke(self, value: Any, context: Any) -> list[Any]:
        return [(value.k, value.v * 10)]


def test_a_watermark_waits_for_earlier_async_results() -> None:
    def build(job: HarnessJob) -> None:
        keyed = job.source("in", RECORD).key_by("k")
        answered = AsyncDataStream.ordered_wait(keyed, Answer(), timeout="1 minute", uid="ask", schema=RECORD)
        job.output("out", answered)

    with JobTestHarness(build) as harness:
        harness.source("in").send(("a", 1), timestamp_ms=3)
        harness.source("in").end()
        # The request may complete before the input ends.
        [answer, end] = harness.taken()
        assert (tuple(answer.record), answer.timestamp_ms) == (("a", 10), 3)
        assert end == EmittedWatermark("out", MAX_TIMESTAMP)


class Failing(KeyedProcessFunction[str, Any, Any]):
    closed: ClassVar[list[int]] = []

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        yield 100 // value.v, 1

    def close(self) -> None:
        self.closed.append(1)


def test_an_exception_of_a_job_is_raised_in_the_test_and_ends_the_job(tmp_path: Path) -> None:
    def build(job: HarnessJob) -> None:
        job.output("out", job.source("in", RECORD).key_by("k").process(Failing(), uid="divide", schema="a int, b int"))

    with JobTestHarness(build, parallelism=2) as harness:
        harness.source("in").send(("a", 4))
        Failing.closed.clear()
        with pytest.raises(UserFunctionError, match=r"operator 'divide', key 'a', record .*ZeroDivisionError"):
            harness.source("in").send(("a", 0))
        # Both subtasks are closed, each once.
        assert Failing.closed == [1, 1]
        with pytest.raises(StreamJobError, match="the run has failed"):
            harness.source("in").send(("a", 4))
        with pytest.raises(StreamJobError, match="the run has failed"):
            harness.snapshot(tmp_path / "snapshot")


def test_a_harness_whose_job_cannot_be_built_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def build(job: HarnessJob) -> None:
        raise ValueError("not built")

    with pytest.raises(ValueError, match="not built"):
        JobTestHarness(build)
    assert list(tmp_path.iterdir()) == []


def test_invalid_calls_are_rejected_and_change_nothing() -> None:
    def twice(job: HarnessJob) -> None:
        job.source("in")
        job.source("in")

    with pytest.raises(JobDefinitionError, match="two sources of the harness are called 'in'"):
        JobTestHarness(twice)
    with pytest.raises(JobDefinitionError, match="the job has no sink"):
        JobTestHarness(lambda job: None)
    with JobTestHarness(remembering, processing_time_ms=10) as harness:
        source = harness.source("in")
        with pytest.raises(KeyError, match="no source 'other'; it reads 'in'"):
            harness.source("other")
        with pytest.raises(ValueError, match="the clock is at 10 ms and cannot go back to 9 ms"):
            harness.advance_processing_time(9)
        with pytest.raises(ValueError, match="a watermark is 'noon'"):
            source.watermark("noon")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"the timestamp of a record is 1\.5"):
            source.send(("a", 1), timestamp_ms=1.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="2 records were given 1 timestamps"):
            source.send_all([("a", 1), ("b", 1)], [1])
        source.end()
        with pytest.raises(IllegalTransitionError, match="has ended"):
            source.send(("a", 1))
        assert harness.taken() == [EmittedWatermark("out", MAX_TIMESTAMP), EmittedWatermark("side", MAX_TIMESTAMP)]


def test_aggregates_without_windows_emit_at_a_snapshot_and_at_the_end(tmp_path: Path) -> None:
    def build(job: HarnessJob) -> None:
        rows = job.source("in", RECORD).key_by("k")
        job.output("out", rows.aggregate(n=count(), total=sum_("v"), uid="totals"))

    with JobTestHarness(build) as harness:
        source = harness.source("in")
        source.send_all([("a", 1), ("a", 2)])
        harness.advance_processing_time(1_000)
        assert harness.taken() == []
        harness.snapshot(tmp_path / "snapshot")
        assert [tuple(row) for row in harness.taken_records("out")] == [("a", 2, 3)]
        source.send(("a", 4))
        source.end()
        assert [tuple(row) for row in harness.taken_records("out")] == [("a", 3, 7)]


def test_times_may_be_datetimes() -> None:
    noon = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.timezone.utc)
    noon_ms = int(noon.timestamp() * 1000)

    def build(job: HarnessJob) -> None:
        job.output("out", job.source("in", "k string").filter(lambda row: True))

    with JobTestHarness(build, processing_time_ms=noon) as harness:
        source = harness.source("in")
        source.send(("a",), timestamp_ms=noon)
        source.send_all([("b",), ("c",)], [noon.replace(tzinfo=None), None])
        source.watermark(noon)
        [*emitted, watermark] = harness.taken()
        assert [one.timestamp_ms for one in emitted if isinstance(one, Emitted)] == [noon_ms, noon_ms, None]
        assert watermark == EmittedWatermark("out", noon_ms)
        harness.advance_processing_time(noon + datetime.timedelta(seconds=1))
        with pytest.raises(ValueError, match=f"the clock is at {noon_ms + 1000} ms and cannot go back"):
            harness.advance_processing_time(noon)


def test_the_chapter_on_testing_jobs_shows_real_output(tmp_path: Path) -> None:
    chapter = (Path(__file__).resolve().parents[3] / "docs" / "testing-a-job.md").read_text(encoding="utf-8")
    [program] = re.findall(r"<!-- tests/\S+ runs this -->\n```python\n(.*?)```", chapter, re.S)
    exec(program, {"tmp_path": tmp_path})
