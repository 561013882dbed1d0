"""The state that a start continues from, and rejected starts: every combination, without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from statebackend import (
    JobRestoreError,
    KeyedProcessFunction,
    RuntimeContext,
    SourceProgressMismatchError,
    StateMigrationException,
    ValueStateDescriptor,
)
from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    CheckpointNotFoundError,
    JobDirectoryMismatchError,
    JobOrigin,
    SavepointIdentity,
    write_savepoint,
)
from statebackend.checkpoint.metadata import SourcePositions
from statebackend.checkpoint.store.job_directory import write_origin
from statebackend.checkpoint.store.job_files import Rollback, end_roll_back, write_roll_back
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory, write_source_progress
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.restored_state import RestoredState
from statebackend.streaming.runtime.starting_point import StartingPoint, check_has_every_epoch, starting_point


def metadata(checkpoint_id: int, **changes: Any) -> CheckpointMetadata:
    content: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "kind": CheckpointKind.SAVEPOINT,
        "job_id": "first",
        "job_name": "count",
        "timestamp_ms": 5,
        "max_parallelism": 4,
        "operators": (),
    }
    return CheckpointMetadata(**{**content, **changes})


def savepoint(path: Path, **changes: Any) -> str:
    fs = create_savepoint_directory(path)
    files = write_source_progress(fs, {"metadata": b"{}", "offsets/7": b"v1"})
    write_savepoint(fs, metadata(7, **{"source_progress_files": files, **changes}))
    return str(path)


@pytest.fixture
def job(tmp_path: Path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path / "job")


def begin(job: CheckpointFileSystem, point: StartingPoint) -> StartingPoint:
    """The record that a start writes before its first epoch."""
    assert point.origin is not None
    write_origin(job, point.origin)
    return point


def test_a_job_without_origin_finds_nothing(job: CheckpointFileSystem) -> None:
    assert starting_point(job, None, None, True) == StartingPoint()
    assert starting_point(job, None, None, True).restored_from is None


def test_a_directory_without_a_checkpoint_continues_from_its_savepoint(
    job: CheckpointFileSystem, tmp_path: Path
) -> None:
    path = savepoint(tmp_path / "savepoint")
    first = starting_point(job, None, path, True)
    assert first.is_new_origin
    assert first.restored_from == SavepointIdentity("first", 7, 5)
    begin(job, first)
    for given in (None, path):
        again = starting_point(job, None, given, True)
        assert again.identity == first.identity
        assert not again.is_new_origin


def test_another_savepoint_is_rejected_also_before_the_first_checkpoint(
    job: CheckpointFileSystem, tmp_path: Path
) -> None:
    begin(job, starting_point(job, None, savepoint(tmp_path / "savepoint"), True))
    for name, changes in (("theirs", {"job_id": "other"}), ("later", {"timestamp_ms": 6})):
        with pytest.raises(JobRestoreError, match=rf"was started from the savepoint .* of epoch 7, not .*{name}"):
            starting_point(job, None, savepoint(tmp_path / name, **changes), True)


def test_a_moved_savepoint_must_be_named_again(job: CheckpointFileSystem, tmp_path: Path) -> None:
    path = savepoint(tmp_path / "savepoint")
    begin(job, starting_point(job, None, path, True))
    shutil.move(path, tmp_path / "moved")
    with pytest.raises(JobRestoreError, match=r"no checkpoint yet and was started from .*pass from_savepoint="):
        starting_point(job, None, None, True)
    assert starting_point(job, None, tmp_path / "moved", True).state is not None


def test_the_source_position_is_that_of_the_last_start_that_named_the_savepoint(
    job: CheckpointFileSystem, tmp_path: Path
) -> None:
    def asked(given: str | None, progress: bool) -> tuple[bool, bool]:
        point = starting_point(job, None, given, progress)
        assert point.origin is not None
        return point.origin.with_source_progress, point.is_new_origin

    path = savepoint(tmp_path / "savepoint")
    begin(job, starting_point(job, None, path, True))
    assert asked(None, True) == (True, False)
    assert asked(None, False) == asked(path, False) == (False, True)
    begin(job, starting_point(job, None, path, False))
    assert asked(None, True) == asked(None, False) == asked(path, False) == (False, False)
    assert asked(path, True) == (True, True)


def test_missing_progress_of_a_savepoint_needs_permission_once(job: CheckpointFileSystem, tmp_path: Path) -> None:
    path = savepoint(tmp_path / "savepoint", source_progress_files=())
    with pytest.raises(JobRestoreError, match="restore_source_progress=False"):
        starting_point(job, None, path, True)
    begin(job, starting_point(job, None, path, False))
    assert starting_point(job, None, None, True).state is not None


def test_own_checkpoints_have_precedence_and_record_their_origin(job: CheckpointFileSystem, tmp_path: Path) -> None:
    path = savepoint(tmp_path / "savepoint")
    own = metadata(8, kind=CheckpointKind.CHECKPOINT, job_id="second", restored_from=SavepointIdentity("first", 7, 5))
    point = starting_point(job, own, path, True)
    assert point.own_checkpoint == own
    assert point.restored_from == SavepointIdentity("first", 7, 5)
    stranger = attrs.evolve(own, restored_from=None)
    assert starting_point(job, stranger, None, True).restored_from is None
    with pytest.raises(JobRestoreError, match=r"checkpoints of its own \(the newest is 8\)"):
        starting_point(job, stranger, path, True)
    # The job directory contains the origin, even if the checkpoint does not.
    begin(job, starting_point(job, None, path, True))
    assert starting_point(job, stranger, path, True).own_checkpoint == stranger


ORIGIN = JobOrigin(
    savepoint_uri="/s", savepoint_job_id="first", savepoint_id=7, savepoint_timestamp_ms=5, with_source_progress=True
)


def test_two_starts_are_equal_only_with_the_same_state_owner_and_origin(
    job: CheckpointFileSystem,
) -> None:
    def point(checkpoint_id: int, **changes: Any) -> StartingPoint:
        return StartingPoint(RestoredState(metadata(checkpoint_id), job), **changes)

    assert point(8).identity == point(8, is_new_origin=True).identity
    assert point(8, origin=ORIGIN).identity == point(8, origin=ORIGIN).identity
    others = [point(9), point(8, is_own=True), point(8, origin=ORIGIN), StartingPoint(), StartingPoint(origin=ORIGIN)]
    for other in others:
        assert point(8).identity != other.identity
        assert point(8, origin=attrs.evolve(ORIGIN, with_source_progress=False)).identity != other.identity


@pytest.mark.parametrize(
    ("point", "highest"),
    [
        (StartingPoint(), -1),
        (StartingPoint(origin=ORIGIN), 7),
        (StartingPoint(origin=ORIGIN, is_new_origin=True), 7),
        (StartingPoint(origin=attrs.evolve(ORIGIN, with_source_progress=False)), -1),
        (StartingPoint(origin=attrs.evolve(ORIGIN, with_source_progress=False), is_new_origin=True), 7),
    ],
)
def test_a_batch_completed_by_spark_but_without_a_checkpoint_is_detected(
    job: CheckpointFileSystem, point: StartingPoint, highest: int
) -> None:
    if point.origin is not None:
        savepoint = metadata(9, source_positions=SourcePositions(batch_id=7, offsets=b""))
        point = attrs.evolve(point, state=RestoredState(savepoint, job))
    check_has_every_epoch(point, None, job)
    if highest >= 0:
        check_has_every_epoch(point, highest, job)
    with pytest.raises(SourceProgressMismatchError, match=rf"batch {highest + 1} .*there is no checkpoint at all"):
        check_has_every_epoch(point, highest + 1, job)


def test_a_batch_after_the_newest_checkpoint_is_detected(job: CheckpointFileSystem) -> None:
    point = starting_point(job, metadata(8, kind=CheckpointKind.CHECKPOINT), None, True)
    check_has_every_epoch(point, 7, job)
    check_has_every_epoch(point, 8, job)
    with pytest.raises(SourceProgressMismatchError, match="the newest checkpoint is 8"):
        check_has_every_epoch(point, 9, job)


def test_batches_are_compared_with_the_batch_of_a_checkpoint_and_not_with_its_id(job: CheckpointFileSystem) -> None:
    positions = SourcePositions(batch_id=8, offsets=b"")
    newest = metadata(12, kind=CheckpointKind.CHECKPOINT, source_positions=positions)
    point = starting_point(job, newest, None, True)
    check_has_every_epoch(point, 8, job)
    with pytest.raises(
        SourceProgressMismatchError, match=r"batch 10 .*chk-000000000014/_metadata is missing \(the newest .* is 12\)"
    ):
        check_has_every_epoch(point, 10, job)


class Count(KeyedProcessFunction[str, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: Any) -> Any:
        if value["word"] == "poison":
            raise ArithmeticError("poison")
        self.count.update((self.count.value() or 0) + 1)
        yield value["word"], self.count.value()


def run(job_dir: Path, words: str, **options: Any) -> tuple[list[Any], Any]:
    environment = LocalStreamEnvironment(job_dir=job_dir)
    rows: list[Any] = []
    environment.from_elements([{"word": word} for word in words.split()]).key_by("word").process(
        Count(), uid="count", schema="word string, count bigint"
    ).sink_to(rows)
    return rows, environment.execute("count", **options)


def test_state_of_a_savepoint_survives_a_failed_first_epoch(tmp_path: Path) -> None:
    path = tmp_path / "savepoint"
    run(tmp_path / "old", "a a b")[1].savepoint(path)
    with pytest.raises(Exception, match="poison"):
        run(tmp_path / "new", "a poison", from_savepoint=path)
    assert run(tmp_path / "new", "a b")[0] == [("a", 3), ("b", 2)]
    assert run(tmp_path / "new", "a", from_savepoint=path)[0] == [("a", 4)]
    run(tmp_path / "new", "a")[1].savepoint(tmp_path / "other")
    with pytest.raises(JobRestoreError, match="checkpoints of its own"):
        run(tmp_path / "new", "a", from_savepoint=tmp_path / "other")
    assert run(tmp_path / "new", "a")[0] == [("a", 6)]


def test_a_local_job_rolls_back_too(tmp_path: Path) -> None:
    for words in ("a", "a", "a"):
        run(tmp_path / "job", words)
    assert run(tmp_path / "job", "a", roll_back_to=0)[0] == [("a", 2)]
    assert run(tmp_path / "job", "a", roll_back_to="previous")[0] == [("a", 2)]
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 5; there are: 0, 4"):
        run(tmp_path / "job", "a", roll_back_to=5)
    assert run(tmp_path / "job", "a")[0] == [("a", 3)]


class Texts(Count):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", str))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"uid": "other"}, JobRestoreError),
        ({"function": Texts()}, StateMigrationException),
        ({"backend": "rocksdb"}, JobRestoreError),
        ({"name": "another"}, JobDirectoryMismatchError),
    ],
)
def test_an_incompatible_job_abandons_nothing_by_rolling_back(
    tmp_path: Path, change: dict[str, Any], error: type[Exception]
) -> None:
    for _ in range(3):
        run(tmp_path / "job", "a")
    before = CheckpointFileSystem.from_uri(tmp_path / "job").list_files()
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", backend=change.get("backend", "heap"))
    environment.from_elements([{"word": "a"}]).key_by("word").process(
        change.get("function", Count()), uid=change.get("uid", "count"), schema="word string, count bigint"
    ).sink_to([])
    with pytest.raises(error):
        environment.execute(change.get("name", "count"), roll_back_to=0)
    assert CheckpointFileSystem.from_uri(tmp_path / "job").list_files() == before
    assert run(tmp_path / "job", "a")[0] == [("a", 4)]


def test_a_local_job_does_not_continue_an_open_roll_back_of_spark(tmp_path: Path) -> None:
    run(tmp_path / "job", "a")
    file_system = CheckpointFileSystem.from_uri(tmp_path / "job")
    write_roll_back(file_system, Rollback(checkpoint_id=0, newest_id=1, source_log="spark-1"))
    before = file_system.list_files()
    for options in ({}, {"roll_back_to": 0}):
        with pytest.raises(JobRestoreError, match=r"is not finished.* on Spark again with roll_back_to=0"):
            run(tmp_path / "job", "a", **options)
    assert file_system.list_files() == before
    end_roll_back(file_system)
    assert run(tmp_path / "job", "a")[0] == [("a", 2)]
