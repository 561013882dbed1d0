"""Rolling back to an older checkpoint, without Spark: a written Spark log, and a crash at every step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    CheckpointNotFoundError,
    DirectoryCheckpointStore,
    StorageError,
)
from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.checkpoint.store.checkpoint_directories import DirectoryPointers
from statebackend.checkpoint.store.job_files import read_roll_back
from statebackend.spark.rollback import RollbackReport, planned_roll_back, roll_back
from statebackend.spark.sources.progress import SourceProgressError, source_order
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.runtime.job_sinks import JobSinks, SinkAdapter
from statebackend.streaming.runtime.starting_point import check_no_roll_back
from statebackend.streaming.sink import SinkError

pytestmark = pytest.mark.slow

NEWEST = 4


class TakingBack:
    """A sink that records its roll backs."""

    def __init__(self) -> None:
        self.rolled_back: list[tuple[int, str]] = []
        self.objection: Exception | None = None

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        if self.objection is not None:
            raise self.objection
        self.rolled_back.append((last_epoch_id, job_id))
        return ["/out/_set_aside"]


class Job:
    def __init__(self, directory: Path, *, ids_ahead: int = 0) -> None:
        self.fs = CheckpointFileSystem.from_uri(directory)
        self.spark_directory = str(directory / "spark")
        self.sink: Any = TakingBack()
        self.more_sinks: dict[str, Any] = {}
        store = DirectoryCheckpointStore(self.fs, 9)
        store.recover()
        self.fs.write_file("spark/metadata", b'{"id":"q"}')
        for epoch_id in range(NEWEST + 1):
            line = json.dumps({"path": f"file:///in/{epoch_id}", "timestamp": 1, "batchId": epoch_id})
            self.fs.write_file(f"spark/sources/0/{epoch_id}", f"v1\n{line}".encode())
            self.fs.write_file(f"spark/offsets/{epoch_id}", f'v1\n{{}}\n{{"logOffset":{epoch_id}}}'.encode())
            self.fs.write_file(f"spark/commits/{epoch_id}", b"v1\n{}")
            self.fs.write_file(f"spark/offsets/.{epoch_id}.crc", b"crc")
            store.add(
                CheckpointMetadata(
                    checkpoint_id=epoch_id + ids_ahead,
                    kind=CheckpointKind.CHECKPOINT,
                    job_id="job",
                    job_name="count",
                    timestamp_ms=5,
                    max_parallelism=4,
                    operators=(),
                    source_positions=SourcePositions(batch_id=epoch_id, offsets=b"") if ids_ahead else None,
                )
            )

    def roll_back(self, to: int | str) -> RollbackReport:
        planned, _ = planned_roll_back(DirectoryPointers(self.fs).find(), self.fs, self.spark_directory, to)
        store = DirectoryCheckpointStore(self.fs, 9)
        sinks = JobSinks({uid: SinkAdapter(sink) for uid, sink in {"sink": self.sink, **self.more_sinks}.items()})
        return roll_back(self.fs, self.spark_directory, store, sinks, "job", planned)

    def checkpoints(self) -> list[int]:
        return [int(name.removeprefix("chk-")) for name in self.fs.list_directories("checkpoints")]


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables syncs: only processes crash here, and syncing thousands of small files would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def log_after(epoch_id: int, oldest: int = 0) -> list[str]:
    batches = range(oldest, epoch_id + 1)
    return sorted(
        [
            "spark/metadata",
            *(f"spark/{kind}/{batch}" for kind in ("offsets", "commits") for batch in batches),
            *(f"spark/sources/0/{entry}" for entry in range(epoch_id + 1)),
        ]
    )


@pytest.mark.parametrize(("to", "target"), [(0, 0), (2, 2), ("previous", 3), (NEWEST, NEWEST)])
def test_the_log_is_truncated_and_kept_aside(job: Job, to: int | str, target: int) -> None:
    before = {name: job.fs.read_file(name) for name in job.fs.list_files("spark")}
    job.fs.write_file("set-aside/.copying-spark/half", b"of a copy that a crash has left")
    report = job.roll_back(to)
    assert list(job.fs.list_files("spark")) == log_after(target)
    copy = {name.replace("set-aside/spark-1", "spark"): name for name in job.fs.list_files("set-aside/spark-1")}
    assert {name: job.fs.read_file(path) for name, path in copy.items()} == before
    assert job.checkpoints() == list(range(target + 1))
    assert job.sink.rolled_back == [(target, "job")]
    assert report.abandoned == tuple(range(target + 1, NEWEST + 1))
    assert report.offsets_after == f'{{"logOffset":{target}}}'
    assert report.offsets_before == f'{{"logOffset":{NEWEST}}}'
    names = [Path(path).name for path in report.set_aside]
    assert names == [*(f"chk-{number:012d}-1" for number in report.abandoned), "spark-1", "_set_aside"]
    check_no_roll_back(job.fs)


def test_the_offsets_of_the_report_have_the_uids_of_their_sources(job: Job) -> None:
    order = source_order([ReadSource(name="FileSource[/in]", uid="flights", log="0"), ReadSource(name="rate")])
    job.fs.write_file("spark/source-order.json", order)
    for batch in range(NEWEST + 1):
        job.fs.write_file(f"spark/offsets/{batch}", f'v1\n{{}}\n{{"logOffset":{batch}}}\n{batch}'.encode())
    report = job.roll_back(2)
    assert report.offsets_after == 'flights: {"logOffset":2}, rate: 2'
    assert report.offsets_before == f'flights: {{"logOffset":{NEWEST}}}, rate: {NEWEST}'
    assert f"the source continues after {report.offsets_after}" in str(report)


def test_the_log_is_truncated_after_the_batch_of_the_checkpoint_and_not_after_its_id(tmp_path: Path) -> None:
    job = Job(tmp_path, ids_ahead=10)
    job.sink.objection = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone"):
        job.roll_back(12)
    job.sink.objection = None
    report = job.roll_back("previous")
    assert (report.checkpoint_id, report.abandoned) == (12, (13, 14))
    assert (report.offsets_after, report.offsets_before) == ('{"logOffset":2}', '{"logOffset":4}')
    assert list(job.fs.list_files("spark")) == log_after(2)
    assert job.checkpoints() == [10, 11, 12]
    assert job.sink.rolled_back == [(12, "job")]


def test_a_job_rolls_back_again_to_each_older_checkpoint(job: Job) -> None:
    for target in (3, 2, 1, 0):
        assert job.roll_back("previous").offsets_after == f'{{"logOffset":{target}}}'
        assert list(job.fs.list_files("spark")) == log_after(target)


def test_a_roll_back_leaves_out_batches_before_a_damaged_one(job: Job) -> None:
    job.fs.write_file("spark/offsets/1", b"v1")
    job.roll_back(3)
    assert list(job.fs.list_files("spark")) == log_after(3, oldest=2)


def test_an_impossible_roll_back_is_rejected_without_changes(job: Job) -> None:
    before = job.fs.list_files()
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 9; there are: 0, 1, 2, 3, 4"):
        job.roll_back(9)
    job.fs.delete("spark/sources/0/1")
    with pytest.raises(SourceProgressError, match="sources/0/1 is missing"):
        job.roll_back(2)
    job.fs.write_file("spark/sources/0/1", b'v1\n{"path":"a","timestamp":1,"batchId":1}')
    job.sink.objection = SinkError("not mine")
    with pytest.raises(SinkError, match="not mine"):
        job.roll_back(2)
    assert job.fs.list_files() == before
    check_no_roll_back(job.fs)


def test_a_roll_back_continues_after_a_sink_failed_because_it_may_have_done_a_part(job: Job) -> None:
    job.sink.objection = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone"):
        job.roll_back(2)
    with pytest.raises(JobRestoreError, match=r"rollback to checkpoint 2 .* is not finished.*roll_back_to=2"):
        check_no_roll_back(job.fs)
    job.sink.objection = SinkError("not mine")
    with pytest.raises(SinkError):
        job.roll_back(2)
    assert read_roll_back(job.fs) is not None, "the first attempt may have done something"
    job.sink.objection = None
    job.roll_back("previous")
    assert job.checkpoints() == [0, 1, 2]


def test_a_crash_at_any_change_is_repaired_by_rolling_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = ("write_file", "copy_file", "delete", "delete_directory", "move_directory")
    operations = crashes = 0
    while True:
        job = Job(tmp_path / str(operations))
        left = operations
        with monkeypatch.context() as patched:

            def limited(name: str) -> Any:
                original = getattr(CheckpointFileSystem, name)

                def change(*arguments: Any, **options: Any) -> Any:
                    nonlocal left
                    if not left:
                        raise StorageError("power is gone")
                    left -= 1
                    return original(*arguments, **options)

                return change

            for name in changing:
                patched.setattr(CheckpointFileSystem, name, limited(name))
            try:
                job.roll_back(2)
            except StorageError:
                crashes += 1
        if left:
            break
        if operations and read_roll_back(job.fs) is not None:
            with pytest.raises(JobRestoreError, match="roll_back_to=2"):
                check_no_roll_back(job.fs)
            report = job.roll_back("previous")
            assert report.abandoned == (3, 4)
            assert report.offsets_before == '{"logOffset":4}'
        if operations:
            assert job.checkpoints() == [0, 1, 2]
            assert list(job.fs.list_files("spark")) == log_after(2)
            assert len(job.fs.list_files("set-aside/spark-1")) == 21
            check_no_roll_back(job.fs)
        operations += 1
    assert crashes > 20


def test_rolling_back_further_than_started_is_possible_and_less_far_is_not(job: Job) -> None:
    job.sink.objection = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone"):
        job.roll_back(2)
    job.sink.objection = None
    for less_far in (3, NEWEST):
        with pytest.raises(JobRestoreError, match="roll_back_to=2"):
            job.roll_back(less_far)
    report = job.roll_back(1)
    assert (report.checkpoint_id, report.abandoned) == (1, (2, 3, 4))


def test_a_sink_that_cannot_roll_back_is_named(job: Job) -> None:
    job.sink = object()
    report = job.roll_back(3)
    assert not report.is_output_rolled_back
    assert "The sink builtins.object cannot hide its output" in str(report)
    assert "cannot hide" not in str(job.roll_back(3))


def test_a_sink_that_fails_after_another_has_hidden_rows_leaves_the_roll_back_open(job: Job) -> None:
    objecting = TakingBack()
    objecting.objection = SinkError("not mine")
    job.more_sinks = {"late": objecting, "log": object()}
    with pytest.raises(SinkError, match="not mine"):
        job.roll_back(2)
    assert job.sink.rolled_back == [(2, "job")]
    with pytest.raises(JobRestoreError, match="roll_back_to=2"):
        check_no_roll_back(job.fs)
    objecting.objection = None
    report = job.roll_back(2)
    assert objecting.rolled_back == [(2, "job")]
    assert report.set_aside[-2:] == ("/out/_set_aside", "/out/_set_aside")
    assert len(report.sinks) == 3
    assert (report.keeping, report.is_output_rolled_back) == (("builtins.object",), False)
    assert job.checkpoints() == [0, 1, 2]
