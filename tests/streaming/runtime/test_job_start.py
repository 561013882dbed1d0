"""A start rejects invalid jobs before anything changes, with the same errors in every environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    JobDefinitionError,
    JobRestoreError,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StateMigrationException,
    ValueStateDescriptor,
)
from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    JobDirectory,
    JobDirectoryMismatchError,
)
from statebackend.checkpoint.ha.services import DirectoryServices, JobRecords
from statebackend.checkpoint.metadata import SourcePositions
from statebackend.checkpoint.store.job_directory import JobOrigin, read_origin
from statebackend.local import LocalJob, LocalStreamEnvironment
from statebackend.streaming.runtime.job_start import Engine, check_written_by, locked_start
from statebackend.streaming.runtime.starting_point import StartingPoint


class Count(KeyedProcessFunction[Any, Any, tuple[str, int]]):
    """Counts per key, in a state of a given type."""

    def __init__(self, kind: type[Any] = int) -> None:
        self.kind = kind

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", self.kind))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[tuple[str, int]]:
        self.count.update((self.count.value() or 0) + 1)
        yield str(context.current_key), self.count.value()


def run(
    job_dir: Path, records: list[Any], function: Count | None = None, key: str = "key", schema: str | None = None,
    **execute: Any,
) -> tuple[LocalJob, list[Any]]:  # fmt: skip
    environment = LocalStreamEnvironment(job_dir=job_dir)
    rows: list[Any] = []
    keyed = environment.from_elements(records, schema=schema).key_by(key)
    keyed.process(function or Count(), uid="count", schema="key string, count bigint").sink_to(rows)
    return environment.execute("job", **execute), rows


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def metadata(**sections: Any) -> CheckpointMetadata:
    return CheckpointMetadata(
        checkpoint_id=3,
        kind=CheckpointKind.CHECKPOINT,
        job_id="job",
        job_name="job",
        timestamp_ms=1,
        max_parallelism=4,
        operators=(),
        **sections,
    )


ON_SPARK = SourcePositions(batch_id=3, offsets=b"v1", sources=None)


@pytest.mark.parametrize(
    ("engine", "written_by", "newest", "has_log"),
    [
        (Engine.LOCAL, Engine.SPARK, metadata(source_positions=ON_SPARK), False),
        (Engine.LOCAL, Engine.SPARK, None, True),
        (Engine.SPARK, Engine.LOCAL, metadata(), False),
    ],
)
def test_a_job_directory_of_the_other_runtime_is_rejected(
    tmp_path: Path, engine: Engine, written_by: Engine, newest: CheckpointMetadata | None, has_log: bool
) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    if has_log:
        fs.write_file("spark/metadata", b"{}")
    check_written_by(newest, written_by, fs)
    check_written_by(None, engine, CheckpointFileSystem.from_uri(tmp_path / "new"))
    with pytest.raises(
        JobRestoreError, match=rf"was written by {written_by.value}, and {engine.value} cannot continue it"
    ):
        check_written_by(newest, engine, fs)


@pytest.mark.parametrize("roll_back_to", [None, 0, "previous"])
def test_a_directory_of_a_spark_job_is_not_changed(tmp_path: Path, roll_back_to: Any) -> None:
    for _ in range(2):
        run(tmp_path / "job", [{"key": "a"}])
    CheckpointFileSystem.from_uri(tmp_path / "job").write_file("spark/metadata", b"{}")
    before = files(tmp_path / "job")
    with pytest.raises(JobRestoreError, match="Take a savepoint there, and start a new job directory from it"):
        run(tmp_path / "job", [{"key": "a"}], roll_back_to=roll_back_to)
    assert files(tmp_path / "job") == before


def test_another_savepoint_than_that_of_the_directory_is_rejected_locally_too(tmp_path: Path) -> None:
    run(tmp_path / "own", [{"key": "a"}])
    other, _ = run(tmp_path / "other", [{"key": "a"}])
    other.savepoint(tmp_path / "savepoint")
    before = files(tmp_path / "own")
    with pytest.raises(JobRestoreError, match="which do not come from the savepoint"):
        run(tmp_path / "own", [{"key": "a"}], from_savepoint=tmp_path / "savepoint")
    assert files(tmp_path / "own") == before
    assert run(tmp_path / "started", [{"key": "a"}], from_savepoint=tmp_path / "savepoint")[1] == [("a", 2)]
    assert run(tmp_path / "started", [{"key": "a"}], from_savepoint=tmp_path / "savepoint")[1] == [("a", 3)]


@pytest.mark.parametrize(("schema", "key"), [("key bigint", 7), (None, 7), ("key date, other string", None)])
def test_keys_of_another_type_are_rejected_before_anything_changes(
    tmp_path: Path, schema: str | None, key: Any
) -> None:
    run(tmp_path / "job", [{"key": "a"}])
    before = files(tmp_path / "job")
    # The key type comes from the schema if there is no element, and from the first element if there is no schema.
    elements = [] if key is None else [{"key": key}]
    with pytest.raises(StateMigrationException, match="key"):
        run(tmp_path / "job", elements, schema=schema)
    assert files(tmp_path / "job") == before


def test_state_of_another_type_is_rejected_before_anything_changes(tmp_path: Path) -> None:
    run(tmp_path / "job", [{"key": "a"}])
    before = files(tmp_path / "job")
    with pytest.raises(StateMigrationException, match="'count'"):
        run(tmp_path / "job", [{"key": "a"}], Count(bytes))
    assert files(tmp_path / "job") == before


def test_an_output_without_a_schema_and_an_unknown_column_are_rejected(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    environment.from_elements([{"key": "a"}]).key_by("key").process(Count(), uid="count").sink_to([])
    with pytest.raises(
        JobDefinitionError, match=r"operator 'count': pass schema=RecordClass or schema='name type, ...' after its uid"
    ):
        environment.execute("job")
    with pytest.raises(JobDefinitionError, match="which has the columns key: there is no column 'other'"):
        run(tmp_path / "job", [{"key": "a"}], key="other", schema="key string")
    assert not (tmp_path / "job").exists()


def test_a_new_directory_records_its_origin_before_anything_runs(tmp_path: Path) -> None:
    origin = JobOrigin(
        savepoint_uri="file:///savepoint",
        savepoint_job_id="other",
        savepoint_id=3,
        savepoint_timestamp_ms=5,
        with_source_progress=False,
    )
    point = StartingPoint(origin=origin, is_new_origin=True)
    job_dir, services = str(tmp_path / "job"), DirectoryServices()
    start = locked_start(job_dir, "job", 128, services, lambda records: point, lambda records, point: None)
    start.directory.close()
    assert read_origin(CheckpointFileSystem.from_uri(tmp_path / "job")) == origin


def test_progress_of_another_driver_is_checked_again(tmp_path: Path) -> None:
    job_dir, services = str(tmp_path / "job"), DirectoryServices()
    run(tmp_path / "job", [{"key": "a"}])
    before, after = StartingPoint(), StartingPoint(is_own=True)
    for points, checked in (([before, after], [before, after]), ([before, before], [before])):
        found, checked_points = iter(points), []

        def check(
            records: JobRecords, point: StartingPoint, checked_points: list[StartingPoint] = checked_points
        ) -> StartingPoint:
            checked_points.append(point)
            return point

        start = locked_start(job_dir, "job", 128, services, lambda records, found=found: next(found), check)
        with start.directory:
            assert (start.point, start.compatibility) == (points[-1], checked[-1])
        assert checked_points == checked
    with pytest.raises(JobDirectoryMismatchError):
        locked_start(job_dir, "another job", 128, services, lambda records: before, check)


@pytest.mark.parametrize("why", [JobRestoreError("not that"), KeyboardInterrupt("not that")])
def test_a_rejection_or_interrupt_in_the_second_check_releases_the_lock(tmp_path: Path, why: BaseException) -> None:
    job_dir, services = str(tmp_path / "job"), DirectoryServices()
    points = iter([StartingPoint(), StartingPoint(is_own=True)])

    def check(records: JobRecords, point: StartingPoint) -> None:
        if point.is_own:
            raise why

    with pytest.raises(type(why), match="not that"):
        locked_start(job_dir, "job", 128, services, lambda records: next(points), check)
    JobDirectory.open(job_dir, "job", 128).close()
