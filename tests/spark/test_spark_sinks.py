"""The rows of each epoch become visible once, for any number of attempts and crashes of the driver."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statebackend.checkpoint import StorageError
from statebackend.spark.frame_sinks import ForEachEpochSink, FrameSink, MemorySink, NoopSink
from statebackend.spark.parquet_sink import ParquetSink
from statebackend.streaming.rows.row_reader import UnreadableRowError
from statebackend.streaming.sink import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "id bigint")


def visible(spark: SparkSession, path: Path) -> dict[int, list[int]]:
    rows = spark.read.schema("id bigint, epoch int").parquet(str(path)).collect()
    epochs = sorted({row.epoch for row in rows})
    return {epoch: sorted(row.id for row in rows if row.epoch == epoch) for epoch in epochs}


def staged(path: Path) -> list[str]:
    return sorted(entry.name for entry in (path / "_staging").iterdir())


def stage_by_hand(path: Path, epoch_id: int, attempt_id: str) -> bytes:
    directory = path / "_staging" / f"{epoch_id:012d}-{attempt_id}"
    directory.mkdir(parents=True)
    (directory / "part-0.parquet").write_bytes(attempt_id.encode())
    committable = json.dumps({"version": 1, "epoch": epoch_id, "attempt": attempt_id}).encode()
    (directory / "_committable").write_bytes(committable)
    return committable


def files_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "sink", [ParquetSink("/nowhere"), NoopSink(), ForEachEpochSink(lambda frame, epoch_id: None), MemorySink()]
)
def test_every_sink_of_spark_is_a_frame_sink(sink: Any) -> None:
    assert isinstance(sink, FrameSink)


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ParquetSink("~/out").identity == ParquetSink(tmp_path / "out").identity
    assert ParquetSink("file:///~/out").identity == "ParquetSink('/~/out')"


@pytest.mark.spark
def test_rows_are_visible_after_commit_and_spark_reads_them_by_epoch(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out of doors"
    sink = ParquetSink(f"file://{path}")
    sink.recover(None, "job")
    first = sink.stage(numbers(spark, 1, 2), 0, "a")
    assert not list(path.glob("epoch=*"))
    sink.commit(0, first)
    sink.commit(1, sink.stage(numbers(spark), 1, "a"))
    second = sink.stage(numbers(spark, 3), 2, "a")
    assert visible(spark, path) == {0: [1, 2]}, "what is staged must stay hidden"
    sink.commit(2, second)

    read = spark.read.parquet(str(path))
    assert read.dtypes == [("id", "bigint"), ("epoch", "int")]
    assert visible(spark, path) == {0: [1, 2], 2: [3]}
    assert spark.read.parquet(str(path / "epoch=000000000001")).dtypes == [("id", "bigint")]


@pytest.mark.spark
def test_staging_runs_one_action(spark: SparkSession, tmp_path: Path) -> None:
    ran = spark.sparkContext.accumulator(0)

    def count(rows: Any) -> Any:
        for row in rows:
            ran.add(1)
            yield row

    frame = spark.createDataFrame(numbers(spark, 1, 2, 3).rdd.mapPartitions(count), "id bigint")
    for sink in (ParquetSink(tmp_path / "out"), NoopSink(), MemorySink()):
        before = ran.value
        sink.stage(frame, 0, "a")
        assert ran.value - before == 3, sink


@pytest.mark.spark
def test_a_replayed_epoch_replaces_the_remains_of_the_failed_attempt(spark: SparkSession, tmp_path: Path) -> None:
    ParquetSink(tmp_path).stage(numbers(spark, 1), 0, "job.dead")

    sink = ParquetSink(tmp_path)
    sink.recover(None, "job")
    assert staged(tmp_path) == []
    sink.commit(0, sink.stage(numbers(spark, 1), 0, "job.alive"))
    assert visible(spark, tmp_path) == {0: [1]}


@pytest.mark.spark
def test_a_zombie_attempt_changes_nothing_visible(spark: SparkSession, tmp_path: Path) -> None:
    sink, zombie = ParquetSink(tmp_path), ParquetSink(tmp_path)
    committable = sink.stage(numbers(spark, 1), 0, "job.alive")
    zombies_committable = zombie.stage(numbers(spark, 666), 0, "job.zombie")
    sink.commit(0, committable)
    with pytest.raises(SinkError, match="was not written by the attempt that completed epoch 0"):
        zombie.commit(0, zombies_committable)
    with pytest.raises(SinkError, match="has not completed epoch 0"):
        zombie.stage(numbers(spark, 666), 0, "job.zombie")
    assert visible(spark, tmp_path) == {0: [1]}
    sink.recover(0, "job")
    assert staged(tmp_path) == []


def test_a_crash_between_checkpoint_and_rename_is_repaired_by_another_commit(tmp_path: Path) -> None:
    committable = stage_by_hand(tmp_path, 7, "job.a")
    leftovers = [stage_by_hand(tmp_path, 8, "job.a"), stage_by_hand(tmp_path, 9, "job.a")]
    assert len(leftovers) == 2

    sink = ParquetSink(tmp_path)
    sink.recover(7, "job")
    assert staged(tmp_path) == ["000000000007-job.a"]
    sink.commit(7, committable)
    after_commit = files_below(tmp_path)
    assert after_commit["epoch=000000000007/part-0.parquet"] == b"job.a"
    for _ in range(2):
        ParquetSink(tmp_path).recover(7, "job")
        ParquetSink(tmp_path).commit(7, committable)
    assert files_below(tmp_path) == after_commit


def test_an_unmarked_epoch_is_not_committed(tmp_path: Path) -> None:
    committable = stage_by_hand(tmp_path, 7, "job.a")
    (tmp_path / "epoch=000000000007").mkdir()
    with pytest.raises(SinkError, match="was not written by the attempt that completed epoch 7"):
        ParquetSink(tmp_path).commit(7, committable)
    assert staged(tmp_path) == ["000000000007-job.a"]


def test_a_crash_while_epochs_are_rolled_back_keeps_the_first_of_them_without_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(tmp_path)
    for epoch_id in range(1, 5):
        sink.commit(epoch_id, stage_by_hand(tmp_path, epoch_id, "job.a"))
    rename, left = os.rename, 2

    def dying(source: Any, target: Any, **directories: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("dead")
        rename(source, target, **directories)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", dying)
        with pytest.raises(StorageError, match="dead"):
            sink.roll_back(1, "job")
    assert sorted(path.name for path in tmp_path.glob("epoch=*")) == ["epoch=000000000001", "epoch=000000000002"]
    sink.roll_back(1, "job")
    assert sorted(path.name for path in tmp_path.glob("epoch=*")) == ["epoch=000000000001"]


def test_abort_removes_only_the_attempt(tmp_path: Path) -> None:
    stage_by_hand(tmp_path, 1, "a")
    stage_by_hand(tmp_path, 1, "b")
    sink = ParquetSink(tmp_path)
    sink.abort(1, "a")
    sink.abort(1, "a")
    sink.abort(2, "never-staged")
    assert staged(tmp_path) == ["000000000001-b"]


def test_recovery_ignores_foreign_names(tmp_path: Path) -> None:
    (tmp_path / "_staging" / "notes").mkdir(parents=True)
    stage_by_hand(tmp_path, 1, "job.a")
    ParquetSink(tmp_path).recover(None, "job")
    assert staged(tmp_path) == ["notes"]


def test_recovery_keeps_staged_files_of_another_job(tmp_path: Path) -> None:
    # A job that was begun from a savepoint of the other, which has yet to commit what it staged last.
    theirs = stage_by_hand(tmp_path, 8, "job.a")
    for attempt in ("job-2.a", "job2.a", "another.job.a"):
        stage_by_hand(tmp_path, 8, attempt)
    ParquetSink(tmp_path).recover(7, "job-2")
    assert staged(tmp_path) == ["000000000008-another.job.a", "000000000008-job.a", "000000000008-job2.a"]
    ParquetSink(tmp_path).recover(8, "job")
    ParquetSink(tmp_path).commit(8, theirs)
    assert files_below(tmp_path)["epoch=000000000008/part-0.parquet"] == b"job.a"


def test_missing_rows_are_an_error(tmp_path: Path) -> None:
    committable = stage_by_hand(tmp_path, 1, "a")
    shutil.rmtree(tmp_path / "_staging")
    with pytest.raises(SinkError, match="the rows of epoch 1 are gone"):
        ParquetSink(tmp_path).commit(1, committable)


@pytest.mark.parametrize(
    "committable",
    [
        b"",
        b"[]",
        b'{"version":1,"epoch":1}',
        b'{"version":2,"epoch":1,"attempt":"a"}',
        b'{"version":1,"epoch":2,"attempt":"a"}',
        b'{"version":1,"epoch":1,"attempt":7}',
        b'{"version":1,"epoch":1,"attempt":"../../elsewhere"}',
    ],
)
def test_a_damaged_committable_is_rejected(tmp_path: Path, committable: bytes) -> None:
    stage_by_hand(tmp_path, 1, "a")
    before = files_below(tmp_path)
    with pytest.raises(SinkError):
        ParquetSink(tmp_path).commit(1, committable)
    assert files_below(tmp_path) == before


@pytest.mark.spark
def test_a_frame_that_has_the_epoch_column_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="adds a column 'epoch'"):
        ParquetSink(tmp_path).stage(numbers(spark, 1).withColumnRenamed("id", "Epoch"), 0, "a")


def test_a_store_without_atomic_rename_is_rejected_at_once() -> None:
    with pytest.raises(ValueError, match="ForEachEpochSink"):
        ParquetSink("gs://bucket/out")


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
def test_a_stream_killed_at_any_step_of_an_epoch_has_each_row_once(
    spark: SparkSession, tmp_path: Path, crash: str
) -> None:
    """A small epoch protocol over a real query, whose driver dies once in epoch 1 and starts again."""
    spark.range(0, 6, 1, 3).write.parquet(str(tmp_path / "in"))
    checkpoints: dict[int, bytes] = {}
    to_die = [crash]

    class DriverDiedError(Exception):
        pass

    def die(point: str, epoch_id: int) -> None:
        if epoch_id == 1 and to_die == [point]:
            to_die.clear()
            raise DriverDiedError

    def epoch_of(sink: ParquetSink, attempt_id: str) -> Callable[[DataFrame, int], None]:
        def each(frame: DataFrame, epoch_id: int) -> None:
            if epoch_id in checkpoints:
                sink.commit(epoch_id, checkpoints[epoch_id])
                return
            die("before staging", epoch_id)
            committable = sink.stage(frame, epoch_id, attempt_id)
            die("after staging", epoch_id)
            checkpoints[epoch_id] = committable
            die("after the checkpoint", epoch_id)
            sink.commit(epoch_id, committable)
            die("after the commit", epoch_id)

        return each

    def run(attempt_id: str) -> None:
        sink = ParquetSink(tmp_path / "out")
        sink.recover(max(checkpoints, default=None), "job")
        stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        query = (
            stream.writeStream.foreachBatch(epoch_of(sink, attempt_id))
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="DriverDiedError"):
        run("job.first")
    run("job.second")

    assert to_die == []
    rows = visible(spark, tmp_path / "out")
    assert sorted(number for numbers in rows.values() for number in numbers) == list(range(6))
    assert sorted(rows) == [0, 1, 2]
    assert staged(tmp_path / "out") == []


def test_the_names_of_staged_files_are_durable_before_the_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statebackend.spark import parquet_sink as local_epoch_files

    synced: list[str] = []
    monkeypatch.setattr(local_epoch_files, "sync_directory", synced.append)
    root = tmp_path / "new" / "rows"
    ParquetSink(root).stage(spark.range(1), 7, "attempt")
    staged = root / "_staging" / "000000000007-attempt"
    assert synced.index(str(staged)) < synced.index(str(staged.parent)) < synced.index(str(root))


@pytest.mark.parametrize("value", ["timestamp'0000-03-01'", "date'0000-01-01'", "array(timestamp'10000-01-01')"])
def test_a_memory_sink_names_the_column_of_a_value_without_python_type(spark: SparkSession, value: str) -> None:
    frame = spark.sql(f"select 7 as id, {value} as `at`")
    with pytest.raises(UnreadableRowError, match=r"MemorySink: column 'at' .* cannot hold: .*; the record: id=7"):
        MemorySink().stage(frame, 1, "a")
