"""Restarts of Spark jobs: recorded settings, replays, roll back, and changes between runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_job_fixture import CountWords, WordCount, crashing_once, memory_sink, pickled_by_value, rows_of

from statebackend import EpochError, JobDefinitionError, JobRestoreError
from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointMetadata,
    CheckpointNotFoundError,
    CorruptMetadataError,
    JobDirectory,
    ZooKeeperHighAvailability,
)
from statebackend.checkpoint.store.checkpoint_directories import DirectoryPointers
from statebackend.checkpoint.store.job_directory import read_origin
from statebackend.streaming.sink import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from zookeeper_server import ZooKeeperServer

GIVE_UP_S = 600.0
"""Limits the wait for an answer. A busy machine does not reach it."""

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


@pytest.fixture
def word_count(spark: SparkSession, tmp_path: Path, _by_value: None) -> WordCount:
    place = WordCount(spark, tmp_path)
    place.add_batch([("a", 1), ("b", 2), ("a", 3)])
    place.add_batch([("c", 5), ("a", 7)])
    return place


class Fails(CountWords):
    """Fails at every row."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        raise ArithmeticError("as it must")
        yield


def newest(word_count: WordCount, job: str = "job") -> CheckpointMetadata:
    found = DirectoryPointers(CheckpointFileSystem.from_uri(word_count.directory / job)).find().newest()
    assert found is not None
    return found


@pytest.mark.parametrize("restore_source_progress", [True, False])
@pytest.mark.extended
def test_a_job_that_fails_in_its_first_epoch_keeps_the_state_of_its_savepoint(
    word_count: WordCount, restore_source_progress: bool
) -> None:
    savepoint = word_count.directory / "savepoint"
    word_count.run(memory_sink()).savepoint(savepoint)
    word_count.add_batch([("a", 100)])
    execute = {"from_savepoint": savepoint, "restore_source_progress": restore_source_progress}
    with pytest.raises(EpochError, match="as it must"):
        word_count.run(memory_sink(), Fails(), job="new", execute=execute)
    origin = read_origin(CheckpointFileSystem.from_uri(str(word_count.directory / "new")))
    assert origin is not None
    assert (origin.savepoint_uri, origin.with_source_progress) == (str(savepoint), restore_source_progress)
    epoch_id = 2 if restore_source_progress else 0
    offsets = word_count.directory / "new" / "spark" / "offsets" / str(epoch_id)
    planned = offsets.read_bytes()
    sink = memory_sink()
    word_count.run(sink, job="new")
    # The job continues without naming the savepoint, and first runs the batch that Spark had planned.
    assert offsets.read_bytes() == planned
    assert sorted(sink.rows_by_epoch) == ([2] if restore_source_progress else [0, 1, 2])
    assert ("a", 4, 111) in rows_of(sink) if restore_source_progress else ("a", 7, 122) in rows_of(sink)
    assert newest(word_count, "new").restored_from == origin.savepoint_identity


def test_a_replayed_epoch_has_its_former_time(word_count: WordCount) -> None:
    with pytest.raises((EpochError, KeyboardInterrupt)):
        word_count.run(crashing_once(memory_sink(), "stage", 1))
    first = newest(word_count).processing_time_ms
    offsets = (word_count.directory / "job" / "spark" / "offsets" / "1").read_text()
    planned = json.loads(offsets.split("\n")[1])["batchTimestampMs"]
    word_count.run(memory_sink())
    assert first is not None
    assert first < planned == newest(word_count).processing_time_ms


@pytest.mark.extended
def test_a_job_changes_its_sink_once_the_output_of_the_former_is_committed(word_count: WordCount) -> None:
    from statebackend.spark import ParquetSink
    from statebackend.spark.frame_sinks import NoopSink

    former, latter = ParquetSink(word_count.directory / "former"), ParquetSink(word_count.directory / "latter")
    with pytest.raises((EpochError, KeyboardInterrupt)):
        word_count.run(crashing_once(former, "commit", 1))
    for sink in (latter, NoopSink()):
        with pytest.raises(JobRestoreError, match=r"staged by another sink: ParquetSink\(.*former'\)"):
            word_count.run(sink)
    word_count.run(former)
    assert (word_count.directory / "former" / "epoch=000000000001").is_dir()
    for epoch_id, sink in ((2, latter), (3, NoopSink()), (4, memory_sink()), (5, former)):
        word_count.add_batch([("a", 1)])
        assert word_count.run(sink).last_completed_epoch == epoch_id
    epochs = sorted(path.name for path in word_count.directory.glob("*/epoch=*"))
    assert epochs == [f"epoch={number:012d}" for number in (0, 1, 2, 5)]


def shown(word_count: WordCount) -> list[tuple[Any, ...]]:
    rows = word_count.spark.read.parquet(str(word_count.directory / "out")).collect()
    return sorted((row.word, row.times, row.total) for row in rows)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_a_job_rolls_back_to_an_older_checkpoint_and_processes_the_later_input_again(
    word_count: WordCount, backend: str
) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count.directory / "out")
    word_count.add_batch([("b", 11)])
    word_count.run(output, backend=backend)
    expected = word_count.expected()
    newest = word_count.directory / "job" / "checkpoints" / "chk-000000000002" / "_metadata"
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.raises(CorruptMetadataError, match="start with roll_back_to=1; readable are 0, 1"):
        word_count.run(output, backend=backend)
    job = word_count.run(output, backend=backend, execute={"roll_back_to": "previous"})
    report = job.roll_back_report
    assert report is not None
    assert (report.checkpoint_id, report.abandoned, report.is_output_rolled_back) == (1, (2,), True)
    assert str(report).startswith("rolled back to checkpoint 1. Removed epochs: 2; set aside: ")
    assert 'continues after {"logOffset":1}; it had reached {"logOffset":2}.' in str(report)
    assert all(Path(path).is_dir() for path in report.set_aside)
    assert [epoch.epoch_id for epoch in job.epochs] == [2]
    assert shown(word_count) == expected
    # Roll back over two complete epochs, to a job that reads their records as one epoch.
    job = word_count.run(output, backend=backend, execute={"roll_back_to": 0})
    assert job.roll_back_report is not None
    assert job.roll_back_report.abandoned == (1, 2)
    assert shown(word_count) == expected
    assert sorted(path.name for path in (word_count.directory / "out" / "_set_aside").iterdir()) == [
        "epoch=000000000001-1",
        "epoch=000000000002-1",
        "epoch=000000000002-2",
    ]


@pytest.mark.extended
def test_a_job_with_zookeeper_leadership_rolls_back_to_an_older_checkpoint(
    word_count: WordCount, zookeeper_server: ZooKeeperServer
) -> None:
    from statebackend.spark import ParquetSink

    # Longer than any test, so that no session expires on a busy machine.
    services = ZooKeeperHighAvailability(
        zookeeper_server.hosts, f"/{word_count.directory.name}", session_timeout_s=120.0, connection_timeout_s=GIVE_UP_S
    )
    output = ParquetSink(word_count.directory / "out")
    word_count.add_batch([("b", 11)])
    word_count.run(output, high_availability=services)
    expected = word_count.expected()
    [newest] = (word_count.directory / "job" / "checkpoints").glob("chk-000000000002-*/_metadata")
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.raises(CorruptMetadataError, match="start with roll_back_to=1; readable are 0, 1"):
        word_count.run(output, high_availability=services)
    job = word_count.run(output, high_availability=services, execute={"roll_back_to": "previous"})
    report = job.roll_back_report
    assert report is not None
    assert (report.checkpoint_id, report.abandoned, report.is_output_rolled_back) == (1, (2,), True)
    assert [place for place in report.set_aside if place.startswith("zookeeper:")]
    assert [epoch.epoch_id for epoch in job.epochs] == [2]
    assert shown(word_count) == expected


@pytest.mark.extended
def test_rolling_back_is_finished_after_a_crash_at_any_step(
    word_count: WordCount, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statebackend.spark import ParquetSink
    from statebackend.spark import rollback as roll_back

    output = ParquetSink(word_count.directory / "out")
    word_count.run(output)
    expected = word_count.expected()
    steps = ("_copy_source_log", "_cut_source_log", "end_roll_back")
    for owner, step in ((ParquetSink, "roll_back"), *((roll_back, step) for step in steps)):
        with monkeypatch.context() as patched:
            patched.setattr(owner, step, lambda *arguments: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                word_count.start(output, execute={"roll_back_to": "previous"})
        for execute in ({}, {"from_savepoint": None}):
            with pytest.raises(JobRestoreError, match=r"checkpoint 0 .* is not finished.*again with roll_back_to=0"):
                word_count.start(output, execute=execute)
    job = word_count.run(output, execute={"roll_back_to": "previous"})
    assert job.roll_back_report is not None
    assert (job.roll_back_report.checkpoint_id, job.roll_back_report.abandoned) == (0, (1,))
    assert shown(word_count) == expected
    assert not (word_count.directory / "job" / "rollback.json").exists()


@pytest.mark.extended
def test_rolling_back_is_rejected_without_changes_if_output_of_others_is_in_the_way(word_count: WordCount) -> None:
    from statebackend.spark import ParquetSink
    from statebackend.spark.frame_sinks import ForEachEpochSink

    output = ParquetSink(word_count.directory / "out")
    word_count.run(output)
    theirs = word_count.directory / "out" / "epoch=000000000007"
    theirs.mkdir()
    with pytest.raises(SinkError, match=r"epoch=000000000007 is later than epoch 0, and this job did not write it"):
        word_count.start(output, execute={"roll_back_to": 0})
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 7; there are: 0, 1"):
        word_count.start(output, execute={"roll_back_to": 7})
    theirs.rmdir()
    word_count.add_batch([("a", 1)])
    assert word_count.run(output).last_completed_epoch == 2
    # No other sink can undo the effect of a function.
    job = word_count.run(ForEachEpochSink(lambda frame, epoch_id: frame.collect()), execute={"roll_back_to": 1})
    assert "for-each-epoch cannot hide its output" in str(job.roll_back_report)


@pytest.mark.extended
def test_two_jobs_run_from_one_savepoint(word_count: WordCount) -> None:
    savepoint = word_count.directory / "savepoint"
    word_count.run(memory_sink()).savepoint(savepoint)
    endless = {"from_savepoint": savepoint, "trigger": {"processingTime": "0 seconds"}}
    sinks = {name: memory_sink() for name in ("one", "other")}
    jobs = [word_count.start(sink, job=name, name=name, execute=endless) for name, sink in sinks.items()]
    try:
        before = len(word_count.expected())
        word_count.add_batch([("a", 100)])
        for job in jobs:
            job.process_all_available()
            assert job.query.isActive
    finally:
        for job in jobs:
            job.stop()
    assert [len(sink.rows) for sink in sinks.values()] == [len(word_count.expected()) - before] * 2


@pytest.mark.extended
def test_another_source_is_rejected_before_anything_changes(word_count: WordCount) -> None:
    word_count.run(memory_sink()).savepoint(word_count.directory / "savepoint")
    job = word_count.directory / "job"
    before = {path: path.stat().st_mtime_ns for path in job.rglob("*")}
    moved = word_count.directory / "moved"
    word_count.source.rename(moved)
    former, word_count.source = word_count.source, moved
    reads = r"reads FileSource\[.*/moved\].*has read FileSource\[.*/source\].*restore_source_progress=False"
    with pytest.raises(JobRestoreError, match=reads):
        word_count.run(memory_sink())
    execute = {"from_savepoint": word_count.directory / "savepoint"}
    with pytest.raises(JobRestoreError, match="restore_source_progress=False"):
        word_count.run(memory_sink(), job="new", execute=execute)
    rates = word_count.spark.readStream.format("rate").load().selectExpr("'a' AS word", "cast(value AS int) AS number")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(word_count, "stream", lambda: rates)
        with pytest.raises(JobRestoreError, match=r"the job reads .*rate.*, and the state .* has read FileSource"):
            word_count.run(memory_sink())
    assert not (word_count.directory / "new").exists()
    assert {path: path.stat().st_mtime_ns for path in job.rglob("*")} == before
    sink = memory_sink()
    word_count.run(sink, job="new", execute={**execute, "restore_source_progress": False})
    assert ("a", 6, 22) in rows_of(sink)
    word_count.add_batch([("a", 1)])
    assert word_count.run(memory_sink(), job="new").last_completed_epoch == 2
    moved.rename(former)


def test_a_trigger_that_spark_rejects_is_rejected_at_once(word_count: WordCount) -> None:
    from statebackend.spark.sources.source_identity import check_trigger

    frame = word_count.stream()
    for right in (None, {}, {"availableNow": True}, {"processingTime": "1 second"}, {"once": True}):
        check_trigger(frame, right)
    for wrong, match in (
        ({"availableNw": True}, "trigger has 'availableNw', and takes one of processingTime, availableNow, once"),
        ({"continuous": "1 second"}, "trigger has 'continuous'"),
        ({"processingTime": "1 sekund"}, "which Spark rejects"),
        ({"processingTime": 5}, "which Spark rejects"),
        ({"availableNow": True, "once": True}, "which Spark rejects"),
        ("1 second", "as a dict"),
    ):
        with pytest.raises(JobDefinitionError, match=match) as failure:
            check_trigger(frame, wrong)
        assert "\n" not in str(failure.value)
    assert not (word_count.directory / "job").exists()


@pytest.mark.extended
def test_a_directory_with_blanks_is_the_same_for_the_state_and_for_spark(word_count: WordCount) -> None:
    directory = word_count.directory / "with 50% of blanks"
    uri = directory.as_uri()
    assert "%20" in uri
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(word_count, "directory", _Uri(uri, word_count.directory))
        word_count.run(memory_sink())
        word_count.add_batch([("a", 1)])
        sink = memory_sink()
        word_count.run(sink)
    assert rows_of(sink) == [("a", 4, 12)]
    names = sorted(path.name for path in directory.iterdir())
    assert {"checkpoints", "driver.lock", "job.json", "shared", "spark"} <= set(names)
    assert [path.name for path in word_count.directory.glob("with*")] == [directory.name]


class _Uri:
    """A job directory given by its URI."""

    def __init__(self, uri: str, directory: Path) -> None:
        self._uri, self._directory = uri, directory

    def __truediv__(self, name: str) -> Any:
        return self._uri if name == "job" else self._directory / name


@pytest.mark.parametrize("uri", ["s3://bucket/job", "mock:///job"])
def test_a_job_directory_on_another_store_needs_a_disk_for_the_log_of_spark(spark: SparkSession, uri: str) -> None:
    from statebackend.spark import SparkStreamEnvironment

    with pytest.raises(JobDefinitionError, match=r"not on a local or mounted disk.*pass spark_log_directory"):
        SparkStreamEnvironment(spark, job_dir=uri)
    with pytest.raises(JobDefinitionError, match=r"spark_log_directory is 's3://bucket/log'; it is a path on a local"):
        SparkStreamEnvironment(spark, job_dir=uri, spark_log_directory="s3://KEY:SECRET@bucket/log")


def test_a_rejected_job_directory_is_shown_without_its_secret(spark: SparkSession) -> None:
    from statebackend.spark import SparkStreamEnvironment

    with pytest.raises(JobDefinitionError, match="job_dir is 's3://bucket/job'"):
        SparkStreamEnvironment(spark, job_dir="s3://KEY:SECRET@bucket/job")


@pytest.mark.extended
def test_progress_between_check_and_lock_is_continued(word_count: WordCount, monkeypatch: pytest.MonkeyPatch) -> None:
    savepoint = word_count.directory / "savepoint"
    word_count.run(memory_sink()).savepoint(savepoint)
    opened = JobDirectory.open

    def after_another(uri: str, *arguments: Any, **options: Any) -> JobDirectory:
        with monkeypatch.context() as patched:
            patched.setattr(JobDirectory, "open", opened)
            word_count.run(memory_sink(), job="new", execute={"from_savepoint": savepoint})
        return opened(uri, *arguments, **options)

    word_count.add_batch([("a", 1)])
    with monkeypatch.context() as patched:
        patched.setattr(JobDirectory, "open", after_another)
        sink = memory_sink()
        job = word_count.run(sink, job="new", execute={"from_savepoint": savepoint})
    assert rows_of(sink) == []
    word_count.add_batch([("a", 1)])
    assert word_count.run(memory_sink(), job="new").last_completed_epoch == (job.last_completed_epoch or 0) + 1


@pytest.mark.extended
def test_a_crash_during_a_change_of_the_source_position_keeps_the_former_one(
    word_count: WordCount, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statebackend.spark.sources import offset_log as source_log

    savepoint = word_count.directory / "savepoint"
    word_count.run(memory_sink()).savepoint(savepoint)
    word_count.add_batch([("a", 100)])
    with pytest.raises(EpochError, match="as it must"):
        word_count.run(memory_sink(), Fails(), job="new", execute={"from_savepoint": savepoint})
    from_the_beginning = {"from_savepoint": savepoint, "restore_source_progress": False}
    with monkeypatch.context() as patched:
        patched.setattr(source_log, "write_origin", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            word_count.start(memory_sink(), job="new", execute=from_the_beginning)
    sink = memory_sink()
    word_count.run(sink, job="new")
    assert sink.rows_by_epoch.keys() == {2}
    assert rows_of(sink) == [("a", 4, 111)]
