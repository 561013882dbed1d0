"""No-data epochs on Spark: idle streams and sources, drained jobs, and functions that fail in a timer."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import event_time_model
import pytest
from event_time_model import SCHEMA, SIZE, SUMS, Summed, bounded
from spark_job_fixture import pickled_by_value, rows_of

from statebackend import (
    EpochError,
    JobDefinitionError,
    KeyedProcessFunction,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    TumblingEventTimeWindows,
)
from statebackend.checkpoint.store.job_files import NO_DATA_EPOCH_FILE_NAME
from statebackend.spark.frame_sinks import MemorySink
from statebackend.streaming.metrics import TimeMetrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from statebackend.spark import SparkJob, SparkStreamEnvironment

pytestmark = pytest.mark.spark

FIRED = "k string, timer bigint, at bigint"
AHEAD: OutputTag[Any] = OutputTag("ahead", SCHEMA)
GIVE_UP_S = 900
"""Limits the wait for an event that never comes. A busy machine does not reach it."""


class Alarm(KeyedProcessFunction[Any, Any, Any]):
    """Emits key, timer and clock once for each record, some time after it."""

    def __init__(self, delay_ms: int, fails: bool = False) -> None:
        self.delay_ms, self.fails = delay_ms, fails

    def process_element(self, value: Any, context: ProcessContext[Any]) -> None:
        timers = context.timer_service
        timers.register_processing_time_timer(timers.current_processing_time() + self.delay_ms)

    def on_timer(self, timestamp: int, context: OnTimerContext[Any]) -> Iterator[Any]:
        if self.fails:
            raise ArithmeticError("as it must")
        yield context.current_key, timestamp, context.timer_service.current_processing_time()


class Telling(MemorySink):
    """Signals when rows become visible."""

    def __init__(self) -> None:
        super().__init__()
        self.has_rows = threading.Event()

    def commit(self, epoch_id: int, committable: bytes) -> None:
        super().commit(epoch_id, committable)
        if self.rows:
            self.has_rows.set()

    def wait_for_rows(self, job: SparkJob) -> None:
        """Wait until there are rows. Fail if the job ends before."""

        def wait_for_the_end() -> None:
            with contextlib.suppress(Exception):
                job.query.awaitTermination()
            self.has_rows.set()

        threading.Thread(target=wait_for_the_end, daemon=True).start()
        assert self.has_rows.wait(GIVE_UP_S)
        assert self.rows, f"nothing fires: {job.query.exception()}"


class Place:
    """A directory with a source of one file per batch, and jobs over it."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.files = 0

    def add(self, *records: tuple[str, int, int], source: str = "source") -> None:
        directory = self.directory / source
        directory.mkdir(exist_ok=True)
        rows = "".join(f'{{"k":"{key}","t":{at},"v":{value}}}\n' for key, at, value in records)
        staged = self.directory / "staged"
        staged.write_text(rows)
        staged.rename(directory / f"{self.files:05d}.json")
        self.files += 1

    def frame(self, source: str = "source") -> DataFrame:
        (self.directory / source).mkdir(exist_ok=True)
        return self.spark.readStream.schema(SCHEMA).json(str(self.directory / source))

    def environment(self, job: str = "job") -> SparkStreamEnvironment:
        from statebackend.spark import SparkStreamEnvironment

        return SparkStreamEnvironment(
            self.spark,
            job_dir=self.directory / job,
            local_state_directory=self.directory / "local",
            backend="heap",
            parallelism=2,
            max_parallelism=16,
        )

    def alarms(self, sink: Any, delay_ms: int, job: str = "job", fails: bool = False, **execute: Any) -> SparkJob:
        env = self.environment(job)
        stream = env.from_dataframe(self.frame()).key_by("k")
        stream.process(Alarm(delay_ms, fails), uid="alarms", schema=FIRED).sink_to(sink)
        return env.execute("alarms", **execute)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[Place]:
    with pickled_by_value(sys.modules[__name__], event_time_model):
        yield Place(spark, tmp_path)


def test_processing_time_timers_fire_on_an_idle_stream_in_a_separate_epoch(place: Place) -> None:
    sink = Telling()
    place.add(("a", 0, 0), ("b", 0, 0))
    job = place.alarms(sink, 300)
    sink.wait_for_rows(job)
    job.stop()
    assert [one.has_batch for one in job.epochs] == [True, False]
    assert [key for key, _, _ in rows_of(sink)] == ["a", "b"]
    assert all(timer <= at for _, timer, at in rows_of(sink))
    assert not (place.directory / "job" / NO_DATA_EPOCH_FILE_NAME).exists()


@pytest.mark.extended
def test_an_idle_source_does_not_delay_the_watermark_of_an_idle_stream(place: Place) -> None:
    sink = Telling()
    place.add(("a", 1, 1), ("a", 40, 2))
    env = place.environment()
    strategy = bounded().with_idleness("1 second")
    streams = [env.from_dataframe(place.frame(name), uid=name) for name in ("source", "silent")]
    both = [stream.assign_timestamps_and_watermarks(strategy) for stream in streams]
    windows = both[0].union(both[1]).key_by("k").window(TumblingEventTimeWindows.of(SIZE))
    windows.process(Summed(), uid="sums", schema=SUMS).sink_to(sink)
    job = env.execute("silent", trigger={"processingTime": "100 milliseconds"})
    sink.wait_for_rows(job)
    job.stop()
    assert rows_of(sink) == [("a", 0, 1)]
    # If the batch was not late, one no-data epoch records that the source is idle. One more fires the due windows.
    assert [one.has_batch for one in job.epochs] in ([True, False, False], [True, False])
    assert job.watermarks()["sums"] == 34


@pytest.mark.extended
def test_a_job_that_ends_leaves_later_timers_pending_and_the_next_one_fires_them(place: Place) -> None:
    later = Telling()
    place.add(("a", 0, 0))
    job = place.alarms(later, 3_600_000, trigger={"availableNow": True})
    assert job.await_termination()
    assert [one.has_batch for one in job.epochs] == [True]
    assert rows_of(later) == []
    job = place.alarms(later, 0, trigger={"once": True})
    assert job.await_termination()
    assert job.epochs == ()
    place.add(("b", 0, 0))
    job = place.alarms(later, 0, trigger={"availableNow": True})
    assert job.await_termination()
    assert [one.has_batch for one in job.epochs] == [True, False]
    assert [key for key, _, _ in rows_of(later)] == ["b"]
    with pytest.raises(EpochError, match="the job has ended and cannot be drained"):
        job.stop_with_savepoint(place.directory / "savepoint", drain=True)


@pytest.mark.extended
def test_a_drained_job_has_fired_all_of_event_time_and_its_savepoint_continues_without_it(place: Place) -> None:
    def started(job: str, fired: Any, sums: Any, **execute: Any) -> SparkJob:
        env = place.environment(job)
        events = env.from_dataframe(place.frame()).assign_timestamps_and_watermarks(
            bounded().with_future_limit("1 hour", AHEAD)
        )
        events.key_by("k").process(Alarm(3_600_000), uid="alarms", schema=FIRED).sink_to(fired, uid="fired")
        windows = events.key_by("k").window(TumblingEventTimeWindows.of(SIZE))
        windows.process(Summed(), uid="sums", schema=SUMS).sink_to(sums, uid="sums")
        events.get_side_output(AHEAD).sink_to(ahead, uid="ahead")
        return env.execute("drained", **execute)

    ahead = Telling()
    fired, sums = Telling(), Telling()
    far_ms = 1 << 50
    place.add(("a", 1, 1), ("a", 12, 2), ("b", far_ms, 4))
    job = started("job", fired, sums)
    job.process_all_available()
    assert job.watermarks()["sums"] == 6, "what is in the future moves no time"
    assert rows_of(ahead) == [("b", far_ms, 4)]
    report = job.stop_with_savepoint(place.directory / "savepoint", drain=True)
    assert rows_of(sums) == [("a", 0, 1), ("a", 10, 2)]
    assert rows_of(fired) == [], "the clock is where it was"
    assert job.metrics().time["sums"].lag_ms is None
    assert report.epoch_id == job.last_completed_epoch == 1

    place.add(("a", 3, 8))
    job = started("another", fired, sums, from_savepoint=place.directory / "savepoint")
    job.process_all_available()
    metadata: Any = job._driver.parts.store.latest()  # type: ignore[attr-defined]
    job.stop()
    assert job.watermarks()["sums"] == 6, "the end of time is not gone on from"
    assert {one.operator_uid: one.processing_time_ms is None for one in metadata.timers_due} == {
        "alarms": False,
        "sums": True,
    }


@pytest.mark.extended
def test_a_function_that_fails_at_a_timer_ends_an_idle_job_like_a_busy_one(place: Place) -> None:
    place.add(("a", 0, 0))
    job = place.alarms(Telling(), 200, fails=True)
    with pytest.raises(EpochError, match=r"'alarms', key 'a'.*on_timer raised ArithmeticError: as it must"):
        job.await_termination(GIVE_UP_S)
    assert not job.query.isActive
    assert job.last_completed_epoch == 0
    # The job directory is released, and the next job first processes the epoch again.
    sink = Telling()
    job = place.alarms(sink, 200)
    sink.wait_for_rows(job)
    job.stop()
    assert [one.has_batch for one in job.epochs] == [False]


def test_a_watermark_of_the_frame_is_used_or_rejected(place: Place) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.sources.source_identity import watermark_of_frame

    plain = place.frame().withColumn("at", F.timestamp_millis("t"))
    marked = plain.withWatermark("at", "5 seconds")
    assert watermark_of_frame(plain) is None
    for frame, column in (
        (marked, "at"),
        (marked.select("k", F.col("at").alias("other at"), "v").where("v > 0"), "other at"),
    ):
        strategy = watermark_of_frame(frame)
        assert strategy is not None
        assert (strategy.out_of_orderness_ms, strategy.timestamps) == (5000, column)
    for frame, why in (
        (marked.select("k", "v"), "its column is no longer a timestamp column of the source"),
        (
            marked.select("k", (F.col("at") + F.expr("interval 1 day")).alias("at")),
            "its column is no longer a timestamp column",
        ),
        (marked.union(plain), "below a union"),
        (plain.union(marked), "below a union"),
        (marked.union(marked), "more than once"),
    ):
        with pytest.raises(JobDefinitionError, match=f"withWatermark\\('at', ...\\).*{why}.*assign_timestamps"):
            watermark_of_frame(frame)
    assert watermark_of_frame(marked.dropDuplicates(["k", "at"])) is None, "Spark uses it itself"
    joined = marked.alias("l").join(marked.alias("r"), F.expr("l.at = r.at"))
    assert watermark_of_frame(joined) is None

    env = place.environment()
    stream = env.from_dataframe(marked)
    with pytest.raises(JobDefinitionError, match="timestamps already, by this method or by withWatermark"):
        stream.assign_timestamps_and_watermarks(bounded("at"))
    assert env.from_dataframe(marked).edge == stream.edge
    place.add(("a", 1_000, 1), ("a", 31_000, 2))
    sink = Telling()
    windows = (
        stream.transform_dataframe(lambda frame: frame.drop("at"))
        .key_by("k")
        .window(TumblingEventTimeWindows.of("10 seconds"))
    )
    windows.process(Summed(), uid="sums", schema=SUMS).sink_to(sink)
    job = env.execute("marked", trigger={"availableNow": True})
    job.await_termination()
    assert rows_of(sink) == [("a", 0, 1)]
    metrics = job.metrics().time
    assert metrics["sums"] == metrics["source"] == TimeMetrics(watermark_ms=25_999, lag_ms=metrics["sums"].lag_ms)
    assert [one.has_batch for one in job.epochs] == [True, False]
