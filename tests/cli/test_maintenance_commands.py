"""`statebackend gc`, `fall-back` and `du` on job directories: what they remove, reject, start and count."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from object_store import Bucket

from statebackend import KeyedProcessFunction, MapStateDescriptor, RuntimeContext, Savepoint, ValueStateDescriptor
from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    DirectoryCheckpointStore,
    ZooKeeperHighAvailability,
)
from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.store.driver_lock import DriverLockFile
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.checkpoint.store.job_files import read_roll_back, write_stored_in
from statebackend.cli.main import main
from statebackend.cli.streams import MISUSED, NOT_READABLE
from statebackend.cli.terminal import services_of
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.statistics import checkpoint_sizes

pytestmark = pytest.mark.slow


class Count(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))
        self.seen = context.get_map_state(MapStateDescriptor("seen", int, str))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.seen.put(count, "x" * 100)
        yield value["key"], count


class Staged:
    """A sink with a commit."""

    identity = "staged"

    def stage_records(self, records: Sequence[Any], epoch_id: int, attempt_id: str) -> bytes:
        return b"1"

    def commit(self, epoch_id: int, committable: bytes) -> None: ...

    def abort(self, epoch_id: int, attempt_id: str) -> None: ...

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None: ...


def run(job_dir: Any, keys: str, sink: Any = None, backend: str = "heap") -> list[tuple[str, int]]:
    """One record in each epoch."""
    rows: list[Any] = []
    with closing(LocalStreamEnvironment(job_dir=job_dir, epoch_size=1, backend=backend)) as environment:
        environment.from_elements([{"key": key} for key in keys], schema="key string").key_by("key").process(
            Count(), uid="count", schema="key string, count int"
        ).sink_to(rows if sink is None else sink)
        environment.execute("count")
    return [tuple(row) for row in rows]


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    assert main([*map(str, arguments), "--json"]) == status
    reported = capsys.readouterr()
    return json.loads(reported.out) if status == 0 else reported.err


@pytest.fixture
def job(tmp_path: Path) -> Path:
    run(tmp_path / "job", "abc")
    return tmp_path / "job"


def files_of(job: Path) -> set[str]:
    return {str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()}


def test_only_unneeded_files_are_named_and_removed(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(job)
    answer(capsys, "roll-back", job, "previous")
    kept = files_of(job)
    assert {path.rpartition("/")[2] for path in before - kept} == {"_metadata"}, "set aside, not removed"
    left = ["shared/count/left", "shared/.half.tmp", "shared/.tmp-half", "restore-plans/0.plan"]
    left.append("checkpoints/.chk-000000000009/half")
    for path in left:
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_bytes(b"123")
    planned = answer(capsys, "gc", job, "--dry-run")
    assert files_of(job) == kept | set(left)
    assert [file["path"] for file in planned["files"]] == [*sorted(left[:3]), left[3]]
    assert (planned["size_bytes"], planned["unfinished_checkpoints"]) == (12, ["checkpoints/.chk-000000000009"])
    removed = answer(capsys, "gc", job)
    assert removed == {**planned, "removed": True}
    assert files_of(job) == kept
    assert answer(capsys, "gc", job)["files"] == []
    assert run(job, "c") == [("c", 1)]


def test_a_file_that_cannot_be_deleted_is_not_reported_as_removed(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("left", "locked"):
        (job / "shared" / name).write_bytes(b"123")
    delete = CheckpointFileSystem.delete

    def failing(self: CheckpointFileSystem, path: str, **options: Any) -> None:
        if path.endswith("locked"):
            raise StorageError("locked")
        delete(self, path, **options)

    monkeypatch.setattr(CheckpointFileSystem, "delete", failing)
    assert [file["path"] for file in answer(capsys, "gc", job)["files"]] == ["shared/left"]
    assert (job / "shared" / "locked").exists()


def test_files_stay_that_an_unreadable_checkpoint_may_need(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "shared" / "left").write_bytes(b"123")
    [oldest, *_] = sorted((job / "checkpoints").iterdir())
    (oldest / "_metadata").write_bytes(b"damaged")
    before = files_of(job)
    found = answer(capsys, "gc", job)
    assert (found["files"], found["unreadable_checkpoints"]) == ([], [0])
    assert files_of(job) == before


@pytest.mark.parametrize("command", [["gc"], ["roll-back", "previous"]])
def test_other_places_are_reported_for_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (tmp_path / "savepoint").mkdir()
    (tmp_path / "savepoint" / "_metadata").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    for place, error in (
        ("savepoint", "is a savepoint, or one checkpoint: .*; pass the directory of the job"),
        ("photos", "is not a job directory: it has no file job.json"),
        ("nowhere", "does not exist; pass the directory of a job"),
    ):
        reported = answer(capsys, command[0], tmp_path / place, *command[1:], status=NOT_READABLE)
        assert re.search(f"{place} {error}", reported), reported
        assert "Use an empty or a new directory" not in reported
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("command", [["gc"], ["gc", "--dry-run"], ["roll-back", "previous"]])
def test_a_running_job_is_left_unchanged_and_its_driver_named(
    job: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    before = files_of(job)
    with closing(DriverLockFile().lead(CheckpointFileSystem.from_uri(job), "count")):
        reported = answer(capsys, command[0], job, *command[1:], status=NOT_READABLE)
    assert "process" in reported
    assert files_of(job) == before


def test_an_unknown_checkpoint_is_rejected(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there are: 0, 1, 2" in answer(capsys, "roll-back", job, "7", status=NOT_READABLE)
    assert "neither" in answer(capsys, "roll-back", job, "latest", status=MISUSED)


def test_a_job_continues_from_the_checkpoint_it_was_rolled_back_to(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(job)
    planned = answer(capsys, "roll-back", job, "0", "--dry-run")
    assert (planned["status"], planned["abandoned"], files_of(job)) == ("planned", [1, 2], before)
    done = answer(capsys, "roll-back", job, "0")
    assert (done["status"], done["checkpoint_id"], len(done["set_aside"])) == ("done", 0, 2)
    assert Savepoint.open(job).metadata.checkpoint_id == 0
    assert run(job, "ab") == [("a", 2), ("b", 1)]


def test_sinks_that_only_their_program_can_roll_back_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "job", "abc", Staged())
    before = files_of(tmp_path / "job")
    reported = answer(capsys, "roll-back", tmp_path / "job", "previous", status=NOT_READABLE)
    assert "start it with execute(roll_back_to=1). Nothing was changed" in reported
    assert files_of(tmp_path / "job") == before


@pytest.mark.parametrize(("has_sink", "status"), [(True, NOT_READABLE), (False, 0)])
def test_an_unreadable_abandoned_checkpoint_is_assumed_to_have_output_of_all_sinks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_sink: bool, status: int
) -> None:
    run(tmp_path / "job", "abc", Staged() if has_sink else None)
    (sorted((tmp_path / "job" / "checkpoints").iterdir())[-1] / "_metadata").write_bytes(b"damaged")
    before = files_of(tmp_path / "job")
    reported = answer(capsys, "roll-back", tmp_path / "job", "previous", status=status)
    if has_sink:
        assert "start it with execute(roll_back_to=1). Nothing was changed" in reported
        assert files_of(tmp_path / "job") == before
    else:
        assert (reported["status"], reported["abandoned"]) == ("done", [2])


def test_on_spark_a_roll_back_is_started_and_other_starts_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, file_system = tmp_path / "job", CheckpointFileSystem.from_uri(tmp_path / "job")
    with JobDirectory.open(str(job), "count", 4):
        store = DirectoryCheckpointStore(file_system, 9)
        store.recover()
        file_system.write_file("spark/metadata", b'{"id":"q"}')
        for epoch_id in range(4):
            # The last epoch is one without records.
            offset = min(epoch_id, 2)
            file_system.write_file(f"spark/offsets/{epoch_id}", f'v1\n{{}}\n{{"logOffset":{offset}}}'.encode())
            file_system.write_file(f"spark/commits/{epoch_id}", b"v1\n{}")
            store.add(
                CheckpointMetadata(
                    checkpoint_id=epoch_id,
                    kind=CheckpointKind.CHECKPOINT,
                    job_id="job",
                    job_name="count",
                    timestamp_ms=5,
                    max_parallelism=4,
                    operators=(),
                )
            )
    before = files_of(job)
    assert answer(capsys, "roll-back", job, "2", "--dry-run")["processed_again"] == "no records"
    assert answer(capsys, "roll-back", job, "1", "--dry-run")["status"] == "planned"
    assert files_of(job) - {"driver.lock"} == before - {"driver.lock"}
    recorded = answer(capsys, "roll-back", job, "1")
    assert (recorded["status"], recorded["abandoned"]) == ("recorded", [2, 3])
    assert recorded["processed_again"] == 'the records after {"logOffset":1}, up to {"logOffset":2}'
    assert "execute(roll_back_to=1)" in recorded["next"]
    noted = read_roll_back(file_system)
    assert noted is not None
    assert (noted.checkpoint_id, noted.newest_id) == (1, 3)
    assert answer(capsys, "roll-back", job, "previous")["checkpoint_id"] == 1
    assert "is not finished" in answer(capsys, "roll-back", job, "2", status=NOT_READABLE)
    assert files_of(job) == before | {"rollback.json"}


def test_a_job_on_an_object_store_keeps_its_leadership_service(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = bucket.uri("job")
    run(uri, "ab")
    bucket.write("job/shared/left", b"123")
    assert [file["path"] for file in answer(capsys, "gc", uri)["files"]] == ["shared/left"]
    assert answer(capsys, "roll-back", uri, "previous")["status"] == "done"
    assert run(uri, "b") == [("b", 1)]


def test_a_job_cannot_change_its_leadership_service(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = "--zookeeper=127.0.0.1:1/jobs"
    assert services_of(nobody.partition("=")[2], stands_by=False) == ZooKeeperHighAvailability(
        "127.0.0.1:1", "/jobs", stand_by_timeout_s=0.0
    )
    # The lock file decides who leads this job. ZooKeeper is not asked, because it would take over the checkpoints.
    assert answer(capsys, "gc", job, nobody)["files"] == []
    write_stored_in(CheckpointFileSystem.from_uri(job), "zookeeper:/jobs/count")
    before = files_of(job)
    for option in ([], ["--zookeeper=127.0.0.1:1/others"]):
        assert "recorded in zookeeper:/jobs/count" in answer(capsys, "gc", job, *option, status=NOT_READABLE)
    assert files_of(job) == before


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_du_shows_bytes_by_state_and_shared_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    run(tmp_path / "job", "abcabc", backend=backend)
    found = answer(capsys, "du", tmp_path / "job")
    sizes = {path: (tmp_path / "job" / path).stat().st_size for path in files_of(tmp_path / "job")}
    assert {file["path"]: file["size_bytes"] for file in found["by_file"]} == {
        path: size for path, size in sizes.items() if path.startswith("shared/")
    }
    [operator] = found["operators"]
    assert found["size_bytes"] == operator["size_bytes"] == found["file_bytes"] + found["meta_bytes"]
    assert found["file_bytes"] == sum(one["size_bytes"] for one in operator["states"])
    assert len(found["checkpoints"]) == 3
    alone = sum(one["alone_bytes"] for one in found["checkpoints"])
    shared = sum(file["size_bytes"] for file in found["by_file"] if len(file["checkpoints"]) > 1)
    assert alone + shared == found["size_bytes"]
    newest = Savepoint.open(tmp_path / "job").metadata
    own = answer(capsys, "du", tmp_path / "job", "--checkpoint", newest.checkpoint_id)
    assert own["file_bytes"] == sum(file.size_bytes for file in newest.files)
    assert own["size_bytes"] == newest.size_bytes == found["checkpoints"][-1]["size_bytes"]
    inspected = answer(capsys, "inspect", tmp_path / "job")
    [figures] = checkpoint_sizes(newest).operators
    assert inspected["size_bytes"] == own["size_bytes"]
    sizes_of_operator = {inspected["operators"][0]["size_bytes"], own["operators"][0]["size_bytes"], figures.size_bytes}
    assert sizes_of_operator == {newest.size_bytes}
    assert main(["du", str(tmp_path / "job"), "--files"]) == 0
    assert "checkpoint\tbytes\tof them alone\tfiles" in capsys.readouterr().out
