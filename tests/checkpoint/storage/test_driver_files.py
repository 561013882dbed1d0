"""Files that a driver updates in place, and how the next driver copies them while the previous one may still write."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory_objects import MemoryObjects

from statebackend.checkpoint import CheckpointFileSystem, JobDirectoryMismatchError, StorageError
from statebackend.checkpoint.ha.object_store import CompletedRecord, ObjectPointers
from statebackend.checkpoint.store.driver_files import copy_driver_files, delete_driver_files
from statebackend.testing.stores import checkpoint


def test_driver_files_are_copied_as_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    for path in ("sources/0/0", "offsets/0", "commits/0", "offsets/.1.crc"):
        fs.write_file(f"drivers/former/spark/{path}", path.encode())
    fs.write_file("drivers/former/no-data-epoch.json", b"one")
    upload = CheckpointFileSystem.upload
    left = ["sources/0/1", "offsets/1", "commits/1"]

    def upload_while_somebody_writes(self: CheckpointFileSystem, *arguments: Any, **options: Any) -> Any:
        if left:
            fs.write_file(f"drivers/former/spark/{left.pop(0)}", b"later")
            fs.write_file("drivers/former/no-data-epoch.json", b"two")
            fs.delete("drivers/former/spark/commits/0")
        return upload(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFileSystem, "upload", upload_while_somebody_writes)
        copy_driver_files(fs, "drivers/former", "drivers/next")
    own = CheckpointFileSystem.from_uri(tmp_path / "drivers" / "next")
    names = ["commits/1", "offsets/0", "offsets/1", "sources/0/0", "sources/0/1"]
    assert own.list_files() == ("no-data-epoch.json", *(f"spark/{name}" for name in names))
    assert own.read_file("no-data-epoch.json") == b"two"
    # Later writes of the previous driver have no effect on the copy.
    fs.write_file("drivers/former/spark/offsets/2", b"of a driver that woke up")
    fs.write_file("drivers/former/no-data-epoch.json", b"three")
    assert own.read_file("no-data-epoch.json") == b"two"
    assert not own.exists("spark/offsets/2")


def test_driver_files_that_keep_changing_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    fs.write_file("drivers/former/spark/offsets/0", b"v1")
    written = iter(range(1, 10_000))
    list_files = CheckpointFileSystem.list_files

    def list_while_somebody_writes(self: CheckpointFileSystem, *arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(StopIteration):
            fs.write_file(f"drivers/former/spark/offsets/{next(written)}", b"v1", durable=False)
        return list_files(self, *arguments, **options)

    monkeypatch.setattr(CheckpointFileSystem, "list_files", list_while_somebody_writes)
    with pytest.raises(StorageError, match="changes all the time"):
        copy_driver_files(fs, "drivers/former", "drivers/next")


def between_looks(monkeypatch: pytest.MonkeyPatch, changes: list[Callable[[], object]]) -> None:
    """Make one change after each listing of the previous driver's files, until no change is left."""
    list_files = CheckpointFileSystem.list_files

    def look_and_change(self: CheckpointFileSystem, *arguments: Any, **options: Any) -> Any:
        found = list_files(self, *arguments, **options)
        if self.uri.endswith("former") and changes:
            changes.pop(0)()
        return found

    monkeypatch.setattr(CheckpointFileSystem, "list_files", look_and_change)


def test_a_file_replaced_by_one_of_equal_size_is_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    fs.write_file("drivers/former/no-data-epoch.json", b"one")
    between_looks(monkeypatch, [lambda: None, lambda: fs.write_file("drivers/former/no-data-epoch.json", b"two")])
    fs.write_file("drivers/former/spark/offsets/0", b"v1")
    copy_driver_files(fs, "drivers/former", "drivers/next")
    assert fs.read_file("drivers/next/no-data-epoch.json") == fs.read_file("drivers/former/no-data-epoch.json")


def test_files_that_the_former_driver_has_deleted_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    for path in ("no-data-epoch.json", "spark/offsets/0", "spark/offsets/1"):
        fs.write_file(f"drivers/former/{path}", b"v1")
    between_looks(monkeypatch, [lambda: None, lambda: fs.delete("drivers/former/no-data-epoch.json")])
    copy_driver_files(fs, "drivers/former", "drivers/next")
    monkeypatch.undo()
    assert fs.list_files("drivers/next") == tuple(
        path.replace("former", "next") for path in fs.list_files("drivers/former")
    )


@pytest.mark.parametrize("log", [(), ("spark/offsets/0",)])
def test_a_repeated_copy_takes_the_current_files(tmp_path: Path, log: tuple[str, ...]) -> None:
    fs, objects = CheckpointFileSystem.from_uri(tmp_path), MemoryObjects()
    former = ObjectPointers(fs, objects, "job")
    former.take_over("former", lambda record: record)
    for path in ("no-data-epoch.json", *log):
        fs.write_file(f"drivers/former/{path}", b"one")

    def begin(record: CompletedRecord) -> CompletedRecord:
        copy_driver_files(fs, "drivers/former", "drivers/next")
        if fs.exists("drivers/former/no-data-epoch.json"):
            # The former leader ends its epoch and publishes the result before the next one leads.
            fs.delete("drivers/former/no-data-epoch.json")
            for path in log:
                fs.write_file(f"drivers/former/{path}", b"two!")
            former.publish(checkpoint(1))
        return record

    latter = ObjectPointers(fs, objects, "job")
    latter.take_over("next", begin)
    assert list(latter.find().retained) == [1]
    assert fs.list_files("drivers/next") == tuple(f"drivers/next/{path}" for path in log)
    assert [fs.read_file(path) for path in fs.list_files("drivers/next")] == [b"two!" for _ in log]


def test_incomplete_files_of_spark_are_not_copied(tmp_path: Path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    for path in ("0", ".0.crc", ".1.5f3e.tmp"):
        fs.write_file(f"drivers/former/spark/offsets/{path}", b"v1")
    copy_driver_files(fs, "drivers/former", "drivers/next")
    left = [one.name for one in (tmp_path / "drivers" / "next").rglob("*") if one.is_file()]
    assert left == ["0"]


def test_a_log_that_was_being_reordered_in_a_job_directory_is_copied(tmp_path: Path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    for path in ("spark/offsets/0", "spark-rewritten/offsets/0", "rollback.json", "shared/a", "job.json"):
        fs.write_file(path, b"v1")
    copy_driver_files(fs, "", "drivers/next")
    assert fs.list_files("drivers/next") == (
        "drivers/next/rollback.json",
        "drivers/next/spark-rewritten/offsets/0",
        "drivers/next/spark/offsets/0",
    )


def test_missing_driver_files_are_not_taken_for_empty_ones(tmp_path: Path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    with pytest.raises(JobDirectoryMismatchError, match="pass the directory that the job used before"):
        copy_driver_files(fs, "drivers/former", "drivers/next")
    assert not (tmp_path / "drivers").exists()


def test_a_log_that_replaces_another_during_the_copy_is_copied_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    former = tmp_path / "drivers" / "former"
    for time_s, (name, content) in enumerate({"spark": b"old", "spark-rewritten": b"new"}.items()):
        for path in ("offsets/0", "offsets/1", "commits/0"):
            fs.write_file(f"drivers/former/{name}/{path}", content)
            os.utime(former / name / path, (time_s, time_s))
    upload, left = CheckpointFileSystem.upload, [1] * 5 + [0]

    def upload_while_it_is_rearranged(self: CheckpointFileSystem, *arguments: Any, **options: Any) -> Any:
        uploaded = upload(self, *arguments, **options)
        if left and not left.pop(0):
            (former / "spark").rename(tmp_path / "aside")
            (former / "spark-rewritten").rename(former / "spark")
        return uploaded

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFileSystem, "upload", upload_while_it_is_rearranged)
        copy_driver_files(fs, "drivers/former", "drivers/next")
    names = fs.list_files("drivers/next")
    assert names == tuple(f"drivers/next/spark/{path}" for path in ("commits/0", "offsets/0", "offsets/1"))
    assert [fs.read_file(name) for name in names] == [b"new"] * 3


def test_driver_files_that_vanish_during_the_copy_are_not_taken_for_empty_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    for name in ("0", "1"):
        fs.write_file(f"drivers/former/spark/offsets/{name}", b"v1")
    upload = CheckpointFileSystem.upload

    def upload_while_a_third_driver_clears_away(self: CheckpointFileSystem, *arguments: Any, **options: Any) -> Any:
        fs.delete_directory("drivers/former")
        return upload(self, *arguments, **options)

    monkeypatch.setattr(CheckpointFileSystem, "upload", upload_while_a_third_driver_clears_away)
    with pytest.raises(JobDirectoryMismatchError, match="pass the directory that the job used before"):
        copy_driver_files(fs, "drivers/former", "drivers/next")


def test_only_the_named_directories_are_deleted(tmp_path: Path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    for name in ("one", "other", "own"):
        fs.write_file(f"drivers/{name}/spark/offsets/0", b"v1")
    delete_driver_files(fs, ["one", "other", "that is not there"])
    assert fs.list_directories("drivers") == ("own",)
