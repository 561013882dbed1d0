"""Event time on Spark: watermarks of earlier epochs, the windows that they fire, and chained operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import pickled_by_value, write_batches
from spark_job_fixture import memory_sink, rows_of

from statebackend import (
    FUTURE_RECORDS,
    JobDefinitionError,
    OutputTag,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowContext,
)
from statebackend.spark.plans.event_time_column import EventTimeColumn
from statebackend.spark.tasks.arrow_rows import TIME_COLUMN
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.stream_graph import SourceNode, StreamGraph, TimestampsNode, UnionNode
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import BoundedOutOfOrdernessWatermarks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "k string, at bigint, v int"
TOTALS = "k string, until bigint, total bigint"
LATE: OutputTag[Any] = OutputTag("late", schema=SCHEMA)
BOUND, SIZES = 2, (10, 20)

Record = tuple[str, int, int]

BATCHES: list[list[Record]] = [
    [("a", 1, 1), ("a", 12, 2), ("b", 3, 4)],
    [("a", 5, 8), ("b", 15, 16)],
    [("a", 31, 32), ("b", 11, 64), ("b", 7, 1024)],
    [("a", 22, 128), ("b", 60, 256), ("a", 13, 2048)],
    [("c", 61, 512)],
]


class Total(ProcessWindowFunction[Any, Any, Any, Any]):
    def __init__(self, column: str) -> None:
        self.column = column

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterator[Any]:
        yield key, context.window.end, sum(row[self.column] for row in elements)


class ModelWindows:
    """Sums in tumbling windows, by key."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sums: dict[tuple[str, int], int] = {}

    def add(self, key: str, at: int, value: int, watermark: int) -> bool:
        """Add a record. Return whether it is late."""
        until = at - at % self.size + self.size
        if until - 1 <= watermark:
            return False
        self.sums[key, until] = self.sums.get((key, until), 0) + value
        return True

    def fired(self, watermark: int) -> list[tuple[str, int, int]]:
        due = [(*place, total) for place, total in self.sums.items() if place[1] - 1 <= watermark]
        for key, until, _ in due:
            del self.sums[key, until]
        return due


def modelled(batches: Sequence[Sequence[Record]]) -> tuple[list[Any], list[Any], list[Any]]:
    """The expected output of windows, of windows over these and all records, and late records, without order."""
    inner, outer = map(ModelWindows, SIZES)
    watermark, largest = MIN_TIMESTAMP, MIN_TIMESTAMP
    first, second, late = [], [], []
    for batch in batches:
        for record in batch:
            outer.add(*record, watermark)
        late += [record for record in batch if not inner.add(*record, watermark)]
        largest = max([largest, *(at for _, at, _ in batch)])
        before, watermark = watermark, largest - BOUND - 1
        # Windows that the records made due fire after the records, in the next epoch.
        for key, until, total in inner.fired(watermark):
            first.append((key, until, total))
            assert outer.add(key, until - 1, total, before), "what a window emits is on time for the next"
        second += outer.fired(watermark)
    return sorted(first), sorted(second), sorted(late)


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(__name__):
        yield


def strategy() -> WatermarkStrategy[Any]:
    return WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_timestamps("at")


def as_totals(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("k", "at as until", "cast(v as bigint) as total", "__statebackend_time")


class Job:
    """Windows, windows over their output and over all records, and late records. Each has a sink."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.columns: set[tuple[str, ...]] = set()
        self.epochs = 0
        self.sinks = [memory_sink() for _ in range(3)]

    def shown(self, frame: DataFrame) -> DataFrame:
        self.columns.add(tuple(frame.columns))
        return frame

    def environment(self) -> Any:
        from statebackend.spark import SparkStreamEnvironment

        directory = self.directory
        return SparkStreamEnvironment(
            self.spark,
            job_dir=directory / "job",
            local_state_directory=directory / "local",
            parallelism=2,
            max_parallelism=16,
            backend="heap",
        )

    def source(self) -> DataFrame:
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.directory / "source"))

    def run(self, batches: Sequence[Sequence[Record]]) -> Mapping[str, int]:
        """Run until all batches are processed, each file once over all runs. Return the watermarks."""
        rows = [[{"k": k, "at": at, "v": v} for k, at, v in batch] for batch in batches]
        write_batches(self.directory, rows)
        env = self.environment()
        events = env.from_dataframe(self.source()).assign_timestamps_and_watermarks(strategy())
        windows = events.key_by("k").window(TumblingEventTimeWindows.of(SIZES[0])).side_output_late_data(LATE)
        totals = windows.process(Total("v"), uid="inner", schema=TOTALS)
        # The records of the batch come before the output of windows that belongs before the watermark.
        all_of_it = events.transform_dataframe(as_totals).union(totals)
        of_totals = all_of_it.key_by("k").window(TumblingEventTimeWindows.of(SIZES[1]))
        totals.transform_dataframe(self.shown).sink_to(self.sinks[0], uid="first")
        of_totals.process(Total("total"), uid="outer", schema=TOTALS).sink_to(self.sinks[1], uid="second")
        totals.get_side_output(LATE).sink_to(self.sinks[2], uid="late")
        job = env.execute("windows", trigger={"availableNow": True})
        job.await_termination()
        self.epochs += len(job.epochs)
        watermarks: Mapping[str, int] = job.watermarks()
        return watermarks

    def results(self) -> tuple[list[Any], ...]:
        return tuple(map(rows_of, self.sinks))


def test_windows_and_chained_windows_fire_by_the_watermarks_of_earlier_epochs_across_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second, late = modelled(BATCHES)
    assert late == [("a", 5, 8), ("a", 13, 2048), ("b", 7, 1024)]
    assert [row for row in second if row[1] == 20] == [("a", 20, 3 + 11), ("b", 20, 84 + 1108)]

    job = Job(spark, tmp_path)
    job.run(BATCHES[:3])
    assert job.results() == modelled(BATCHES[:3])
    # Only the checkpoint has the watermark of the next epoch, by which windows fire and records are late.
    job.run(BATCHES[:4])
    assert job.results() == modelled(BATCHES[:4])
    largest = max(at for batch in BATCHES for _, at, _ in batch)
    assert job.run(BATCHES) == dict.fromkeys(("source", "inner", "outer"), largest - BOUND - 1)
    assert job.results() == (first, second, late)
    assert job.columns == {("k", "until", "total")}
    # One epoch for each batch, and one more at the end of a run if its last batch made windows due.
    ends = [modelled(BATCHES[:count])[:2] != modelled(BATCHES[: count - 1])[:2] for count in (3, 4, 5)]
    assert job.epochs == len(BATCHES) + sum(ends)


def test_programs_that_spark_cannot_run_are_rejected_before_anything_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path, [])

    def rejected(match: str, given: WatermarkStrategy[Any], step: Any = None) -> None:
        job = Job(spark, tmp_path)
        env = job.environment()
        events = env.from_dataframe(job.source()).assign_timestamps_and_watermarks(given)
        events = events if step is None else events.transform_dataframe(step)
        windows = events.key_by("k").window(TumblingEventTimeWindows.of(10))
        windows.process(Total("v"), uid="inner", schema=TOTALS).sink_to(memory_sink())
        with pytest.raises(JobDefinitionError, match=match):
            env.execute("windows", trigger={"availableNow": True})
        assert not (tmp_path / "job").exists()

    bounded = WatermarkStrategy.for_bounded_out_of_orderness(BOUND)
    rejected("keep it unchanged, with withColumn", strategy(), lambda frame: frame.select("k", "v"))
    rejected("no function of a record", bounded.with_timestamps(lambda row: row.at))
    rejected("has the type string; it must be a timestamp", bounded.with_timestamps("k"))
    rejected("which have the columns k, at, v", bounded.with_timestamps("when"))
    rejected(
        "for_generator",
        WatermarkStrategy.for_generator(lambda: BoundedOutOfOrdernessWatermarks(1)).with_timestamps("at"),
    )
    rejected("with_watermark_alignment", strategy().with_watermark_alignment("all", "1 hour"))


@pytest.mark.extended
def test_timestamps_and_channels_are_columns_of_any_of_their_types(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    frame = spark.createDataFrame([(1500, 3), (None, None)], "ms int, p int").withColumn(
        "a.t", F.timestamp_millis("ms")
    )
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(BOUND)
    for timestamps in ("a.t", "ms", F.col("ms").cast("bigint"), F.col("`a.t`") + F.expr("interval 0 hours")):
        time, node, union = timed(frame, bounded.with_timestamps(timestamps).with_channel("p"))
        [(tag, assigned)] = time.assigned(node, frame, 0)
        assert tag is None
        assert times_in(assigned) == [(1500, "source-0", "3", False), (None, "source-0", "", False)]

    both = time.before_union(union, [frame, assigned])
    assert both[0].dtypes == both[1].dtypes
    assert [row[0] for row in both[0].select(TIME_COLUMN).collect()] == [None, None]

    time, node, _ = timed(frame, WatermarkStrategy.no_watermarks().with_idleness("1 ms"))
    [(_, assigned)] = time.assigned(node, frame, 0)
    assert times_in(assigned) == 2 * [(None, "source-0", "", False)]

    time, node, _ = timed(frame, bounded.with_timestamps("ms").with_future_limit(1000))
    for now_ms, ahead in ((499, [(1500, None, None, False)]), (500, [])):
        (_, on_time), (tag, set_aside) = time.assigned(node, frame, now_ms)
        assert tag is FUTURE_RECORDS
        assert set_aside.dtypes == on_time.dtypes
        assert times_in(set_aside) == ahead
        # A record without timestamp is not in the future.
        expected = [(1500, "source-0"), (None, "source-0")]
        assert [row[:2] for row in times_in(on_time)] == expected[len(ahead) :]


def timed(frame: DataFrame, strategy: WatermarkStrategy[Any]) -> tuple[EventTimeColumn, TimestampsNode, UnionNode]:
    """The graph's event-time column, a node with timestamps, and the union of its source with another one."""
    graph = StreamGraph()
    source = DataStream(graph, graph.add(SourceNode(frame, "source-0")))
    events = source.assign_timestamps_and_watermarks(strategy)
    united = DataStream(graph, graph.add(SourceNode(frame, "source-1"))).union(events)
    united.key_by("p").count_window(1).process(Total("p"), uid="w", schema=TOTALS).sink_to([])
    time = EventTimeColumn(graph.job())
    node, union = events.edge.node, united.edge.node
    assert isinstance(node, TimestampsNode)
    assert isinstance(union, UnionNode)
    time.prepare(node, frame)
    return time, node, union


def times_in(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.select(f"{TIME_COLUMN}.*").collect()]
