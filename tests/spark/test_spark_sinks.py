"""The rows of each epoch become visible once, for any number of attempts and driver crashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statebackend.spark import ParquetSink
from statebackend.spark.frame_sinks import (
    ForEachEpochSink,
    FrameSink,
    FrameSinkAdapter,
    MemorySink,
    NoopSink,
    stage_epoch,
)
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.row_reader import UnreadableRowError
from statebackend.streaming.sink import SinkEpoch, SinkLineage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


JOB = SinkLineage("sink", "job")


def epoch(epoch_id: int, run_id: str = "a") -> SinkEpoch:
    return SinkEpoch(JOB, epoch_id, run_id)


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "id bigint")


def visible(spark: SparkSession, path: Path) -> dict[int, list[int]]:
    rows = spark.read.schema("id bigint, epoch int").parquet(str(path)).collect()
    epochs = sorted({row.epoch for row in rows})
    return {epoch: sorted(row.id for row in rows if row.epoch == epoch) for epoch in epochs}


@pytest.mark.parametrize("sink", [NoopSink(), ForEachEpochSink(lambda frame, epoch_id: None), MemorySink()])
def test_every_sink_of_spark_is_a_frame_sink(sink: Any) -> None:
    assert isinstance(sink, FrameSink)


@pytest.mark.spark
def test_rows_are_visible_after_commit_and_spark_reads_them_by_epoch(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out of doors"
    sink = ParquetSink(f"file://{path}")
    sink.recover(JOB, None)
    first = stage_epoch(sink, numbers(spark, 1, 2), epoch(0))
    assert not list(path.glob("epoch=*"))
    sink.commit(epoch(0), first)
    sink.commit(epoch(1), stage_epoch(sink, numbers(spark), epoch(1)))
    second = stage_epoch(sink, numbers(spark, 3), epoch(2))
    assert visible(spark, path) == {0: [1, 2]}, "what is staged must stay hidden"
    sink.commit(epoch(2), second)

    read = spark.read.parquet(str(path))
    assert read.dtypes == [("id", "bigint"), ("epoch", "int")]
    assert visible(spark, path) == {0: [1, 2], 2: [3]}
    assert spark.read.parquet(str(path / "epoch=000000000001")).dtypes == [("id", "bigint")], "the schema is kept"


@pytest.mark.spark
def test_spark_reads_all_kinds_of_columns_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "select cast(id as int) i, id l, cast(id as double) d, cast(id as decimal(20,3)) c, string(id) s, "
        "binary(string(id)) b, timestamp_micros(id * 1000001) t, timestamp_ntz '2020-01-01 00:00:00' n, "
        "date '2020-02-29' e, array(id, null) a, map(string(id), id) m, named_struct('x', id, 'y', null) r, "
        "if(id = 1, null, id) o from range(3)"
    )
    sink = ParquetSink(tmp_path)
    sink.commit(epoch(0), stage_epoch(sink, frame, epoch(0)))
    assert sorted(spark.read.parquet(str(tmp_path / "epoch=000000000000")).collect()) == sorted(frame.collect())


@pytest.mark.spark
def test_staging_runs_one_action(spark: SparkSession, tmp_path: Path) -> None:
    ran = spark.sparkContext.accumulator(0)

    def count(rows: Any) -> Any:
        for row in rows:
            ran.add(1)
            yield row

    frame = spark.createDataFrame(numbers(spark, 1, 2, 3).rdd.mapPartitions(count), "id bigint")
    for sink in (ParquetSink(tmp_path / "out"), FrameSinkAdapter(NoopSink()), FrameSinkAdapter(MemorySink())):
        before = ran.value
        stage_epoch(sink, frame, epoch(0))
        assert ran.value - before == 3, sink


@pytest.mark.spark
def test_a_function_gets_each_epoch_and_its_error_fails_the_epoch(spark: SparkSession) -> None:
    seen: list[tuple[int, list[int]]] = []
    sink = ForEachEpochSink(lambda frame, epoch_id: seen.append((epoch_id, [row.id for row in frame.collect()])))
    committable = sink.stage(numbers(spark, 4), 3, "a")
    sink.commit(3, committable)
    sink.commit(3, committable)
    assert seen == [(3, [4])]

    def fail(frame: DataFrame, epoch_id: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ForEachEpochSink(fail).stage(numbers(spark, 4), 3, "a")


@pytest.mark.spark
def test_memory_shows_committed_epochs_once_and_in_order(spark: SparkSession) -> None:
    sink = MemorySink()
    later = sink.stage(numbers(spark, 2), 1, "a")
    sink.commit(0, sink.stage(numbers(spark, 1), 0, "a"))
    sink.stage(numbers(spark, 666), 2, "a")
    assert [row.id for row in sink.rows] == [1]
    sink.recover(1, "job")
    sink.commit(1, later)
    sink.commit(1, later)
    sink.commit(2, b"a")
    assert {epoch: [row.id for row in rows] for epoch, rows in sink.rows_by_epoch.items()} == {0: [1], 1: [2]}
    assert [row.id for row in sink.rows] == [1, 2]


@pytest.mark.spark
@pytest.mark.parametrize("crash", ["before staging", "after staging", "after the checkpoint", "after the commit"])
@pytest.mark.extended
def test_a_stream_killed_at_any_step_of_an_epoch_has_each_row_once(
    spark: SparkSession, tmp_path: Path, crash: str
) -> None:
    """A small epoch protocol over a real query. Its driver crashes once in epoch 1 and starts again."""
    spark.range(0, 6, 1, 3).write.parquet(str(tmp_path / "in"))
    checkpoints: dict[int, list[bytes]] = {}
    to_die = [crash]

    class DriverDiedError(Exception):
        pass

    def die(point: str, epoch_id: int) -> None:
        if epoch_id == 1 and to_die == [point]:
            to_die.clear()
            raise DriverDiedError

    def epoch_of(sink: ParquetSink, run_id: str) -> Callable[[DataFrame, int], None]:
        def each(frame: DataFrame, epoch_id: int) -> None:
            if epoch_id in checkpoints:
                sink.commit(epoch(epoch_id, run_id), checkpoints[epoch_id])
                return
            die("before staging", epoch_id)
            committables = stage_epoch(sink, frame, epoch(epoch_id, run_id))
            die("after staging", epoch_id)
            checkpoints[epoch_id] = committables
            die("after the checkpoint", epoch_id)
            sink.commit(epoch(epoch_id, run_id), committables)
            die("after the commit", epoch_id)

        return each

    def run(run_id: str) -> None:
        sink = ParquetSink(tmp_path / "out")
        sink.recover(JOB, max(checkpoints, default=None))
        stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        query = (
            stream.writeStream.foreachBatch(epoch_of(sink, run_id))
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="DriverDiedError"):
        run("first")
    run("second")

    assert to_die == []
    rows = visible(spark, tmp_path / "out")
    assert sorted(number for numbers in rows.values() for number in numbers) == list(range(6))
    assert sorted(rows) == [0, 1, 2]
    assert list((tmp_path / "out" / "_staging").iterdir()) == []


@pytest.mark.parametrize("value", ["timestamp'0000-03-01'", "date'0000-01-01'", "array(timestamp'10000-01-01')"])
def test_a_memory_sink_names_the_column_of_a_value_without_python_type(spark: SparkSession, value: str) -> None:
    frame = spark.sql(f"select 7 as id, {value} as `at`")
    with pytest.raises(UnreadableRowError, match=r"MemorySink: column 'at' .* cannot hold: .*; the record: id=7"):
        MemorySink().stage(frame, 1, "a")


def test_a_memory_sink_names_the_column_of_a_type_that_python_does_not_have(spark: SparkSession) -> None:
    frame = spark.sql("select 7 as id, array(interval '3' month) as spans")
    with pytest.raises(JobDefinitionError, match=r"MemorySink: column 'spans' is of type array<interval month>"):
        MemorySink().stage(frame, 1, "a")
