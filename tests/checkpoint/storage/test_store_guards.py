"""Rarely used safeguards of the store and the lock of a job directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_builders import metadata_of

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    DirectoryCheckpointStore,
    FileHandle,
    IllegalTransitionError,
    SavepointError,
    read_savepoint,
    write_savepoint,
)
from statebackend.checkpoint.errors import InvariantViolationError, LeadershipLostError, UncertainCheckpointError
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.checkpoint.ha.leadership import LossListener
from statebackend.checkpoint.store import savepoint_directory
from statebackend.checkpoint.store.checkpoint_directories import DirectoryPointers, write_metadata
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.driver_lock import DriverLock
from statebackend.checkpoint.store.job_files import (
    ROLL_BACK_FILE_NAME,
    Rollback,
    end_roll_back,
    read_roll_back,
    write_roll_back,
)
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory


@pytest.fixture
def fs(tmp_path: Path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path / "job")


def store_of(fs: CheckpointFileSystem, max_retained: int, *checkpoint_ids: int) -> DirectoryCheckpointStore:
    store = DirectoryCheckpointStore(fs, max_retained)
    store.recover()
    for checkpoint_id in checkpoint_ids:
        store.add(metadata_of(checkpoint_id, ()))
    return store


def test_an_id_is_not_reused_after_another_recovery(fs: CheckpointFileSystem) -> None:
    store = store_of(fs, 3, 0)
    assert [store.next_checkpoint_id() for _ in range(2)] == [1, 2]
    store.recover()
    assert store.next_checkpoint_id() == 3


def test_a_checkpoint_that_cannot_be_dropped_keeps_its_files_until_the_next_attempt(
    fs: CheckpointFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [fs.write_file(f"shared/{number}", b"rows") for number in range(4)]
    store = DirectoryCheckpointStore(fs, 1)
    store.recover()
    store.add(metadata_of(0, (files[0],)))
    delete = LocalStorage.delete

    def rejected(storage: LocalStorage, path: str, durable: bool) -> None:
        if path.endswith("chk-000000000000/_metadata"):
            raise OSError("the store is down")
        delete(storage, path, durable)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete", rejected)
        store.add(metadata_of(1, (files[1],)))
        assert fs.exists("shared/0")
        assert [one.checkpoint_id for one in store.all()] == [0, 1]
    store.add(metadata_of(2, (files[2],)))
    assert [one.checkpoint_id for one in store.all()] == [2]
    assert fs.list_files("shared") == ("shared/2", "shared/3")


def test_a_damaged_checkpoint_stays_until_enough_newer_ones_are_retained(
    fs: CheckpointFileSystem,
) -> None:
    store_of(fs, 3, 1, 2)
    fs.write_file("checkpoints/chk-000000000001/_metadata", b"damaged")
    store = store_of(fs, 3)
    for checkpoint_id, kept in ((3, [1]), (4, [])):
        assert list(store.unreadable) == [1]
        store.add(metadata_of(checkpoint_id, ()))
        assert list(store.unreadable) == kept
        assert fs.exists("checkpoints/chk-000000000001/_metadata") is bool(kept)


def test_a_damaged_checkpoint_that_is_newer_than_the_oldest_retained_stays(fs: CheckpointFileSystem) -> None:
    store_of(fs, 3, 1, 2, 3)
    fs.write_file("checkpoints/chk-000000000002/_metadata", b"damaged")
    store = store_of(fs, 3)
    store.add(metadata_of(4, ()))
    assert [one.checkpoint_id for one in store.all()] == [1, 3, 4]
    assert list(store.unreadable) == [2]


def test_a_probe_of_a_lock_does_not_hold_it(tmp_path: Path) -> None:
    path = str(tmp_path / "driver.lock")
    with contextlib.closing(DriverLock(path)):
        assert DriverLock.is_held(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        assert not DriverLock.is_held(path)
    finally:
        os.close(descriptor)


def test_a_roll_back_starts_and_ends_durably(fs: CheckpointFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    durable: list[tuple[str, str, bool]] = []
    put, delete = LocalStorage.put, LocalStorage.delete

    def noted_put(storage: LocalStorage, path: str, data: bytes, durably: bool = True) -> None:
        durable.append(("put", path, durably))
        put(storage, path, data, durably)

    def noted_delete(storage: LocalStorage, path: str, durably: bool) -> None:
        durable.append(("delete", path, durably))
        delete(storage, path, durably)

    monkeypatch.setattr(LocalStorage, "put", noted_put)
    monkeypatch.setattr(LocalStorage, "delete", noted_delete)
    unfinished = Rollback(checkpoint_id=3, newest_id=3, source_log="spark-1")
    write_roll_back(fs, unfinished)
    assert read_roll_back(fs) == unfinished
    end_roll_back(fs)
    assert read_roll_back(fs) is None
    assert durable == [("put", ROLL_BACK_FILE_NAME, True), ("delete", ROLL_BACK_FILE_NAME, True)]


@pytest.mark.parametrize(
    ("checkpoint_id", "newest_id", "source_log"),
    [(3, 2, "spark-1"), (-1, 3, "spark-1"), (3, 1 << 63, "spark-1"), (True, 3, "spark-1"), (3, 3.0, "spark-1")]
    + [(3, 4, name) for name in ("", ".", "..", "a/b", "../spark", "/spark", None, 5)],
)
def test_an_invalid_roll_back_is_rejected(checkpoint_id: int, newest_id: int, source_log: str) -> None:
    for ids in ((3, 4), (0, 0), (0, (1 << 63) - 1)):
        Rollback(checkpoint_id=ids[0], newest_id=ids[1], source_log="spark-1")
    with pytest.raises(InvariantViolationError):
        Rollback(checkpoint_id=checkpoint_id, newest_id=newest_id, source_log=source_log)


def test_a_directory_stays_reserved_until_the_metadata_of_its_savepoint_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = create_savepoint_directory(tmp_path / "savepoint")
    savepoint = metadata_of(4, (fs.write_file("data/part-0", b"rows"),), kind=CheckpointKind.SAVEPOINT)
    with monkeypatch.context() as patched:
        patched.setattr(savepoint_directory, "write_metadata", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_savepoint(fs, savepoint)
    with pytest.raises(SavepointError, match="started there and not finished"):
        read_savepoint(tmp_path / "savepoint")
    # Files of an earlier attempt are not mistaken for files of another owner.
    fs.write_file("data/part-of-an-attempt", b"ro")
    write_savepoint(fs, savepoint)
    assert fs.list_files(include_temporary=True) == ("_metadata", "data/part-0")


class Failing(DirectoryPointers):
    """Pointers whose publishing fails after the checkpoint may have been completed."""

    error: BaseException | None = None

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        if self.error is not None:
            raise self.error
        return super().publish(metadata)


@pytest.mark.parametrize(
    "error",
    [UncertainCheckpointError("?"), LeadershipLostError("?"), KeyboardInterrupt()],
    ids=lambda one: type(one).__name__,
)
def test_nothing_is_deleted_of_a_checkpoint_that_may_be_complete(
    fs: CheckpointFileSystem, error: BaseException
) -> None:
    pointers = Failing(fs)
    store = CompletedCheckpointStore(fs, pointers)
    store.recover()
    file = fs.write_file("shared/rows", b"rows")
    pointers.error = error
    with pytest.raises(type(error)):
        store.add(metadata_of(1, (file,)))
    pointers.error = None
    assert store.discard([metadata_of(1, (file,)).operators[0].subtasks[0]]) == ()
    assert store.delete_orphans() == ()
    with pytest.raises(IllegalTransitionError, match=r"call recover\(\)"):
        store.add(metadata_of(2, ()))
    store.recover()
    store.add(metadata_of(2, ()))
    assert store.delete_orphans() == ("shared/rows",)


class Noticing:
    """A leadership that is decided when it is checked."""

    def __init__(self, at_check: Callable[[], object]) -> None:
        self.check = at_check

    def at_loss(self, listener: LossListener) -> None:
        """Calls no listener."""

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


def lost() -> None:
    raise LeadershipLostError("another driver leads")


def test_a_driver_without_leadership_removes_and_withdraws_nothing(fs: CheckpointFileSystem) -> None:
    store_of(fs, 3, 1)
    fs.write_file("checkpoints/.chk-000000000002/.tmp-0123", b"half of the next leader's")
    before = fs.list_files(include_temporary=True)
    with pytest.raises(LeadershipLostError):
        DirectoryCheckpointStore(fs, leadership=Noticing(lost)).recover()
    with pytest.raises(LeadershipLostError):
        DirectoryPointers(fs, Noticing(lost)).withdraw(1)
    assert fs.list_files(include_temporary=True) == before


def test_files_of_the_next_leader_are_not_orphans(fs: CheckpointFileSystem) -> None:
    fs.write_file("shared/left", b"rows")
    store = DirectoryCheckpointStore(fs, leadership=Noticing(lambda: fs.write_file("shared/of-the-next", b"rows")))
    store.recover()
    assert store.delete_orphans() == ("shared/left",)
    assert fs.list_files("shared") == ("shared/of-the-next",)


def test_a_checkpoint_that_can_neither_be_written_nor_rolled_back_is_uncertain(
    fs: CheckpointFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = LocalStorage.move_directory

    def fail(storage: LocalStorage, path: str, target: str) -> None:
        if not target.rpartition("/")[2].startswith("."):
            move(storage, path, target)
        raise OSError("Input/output error")

    store = store_of(fs, 3, 1)
    monkeypatch.setattr(LocalStorage, "move_directory", fail)
    with pytest.raises(UncertainCheckpointError, match="the next start finds out whether checkpoint 2 is complete"):
        store.add(metadata_of(2, ()))


def test_a_savepoint_in_place_of_a_checkpoint_is_ignored(tmp_path: Path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    pointers = DirectoryPointers(fs)
    pointers.publish(metadata_of(1))
    write_metadata(fs, "checkpoints/chk-000000000002", metadata_of(2, kind=CheckpointKind.SAVEPOINT))
    found = pointers.find()
    assert (list(found.retained), list(found.unreadable)) == ([1], [2])
    assert "describes SAVEPOINT 2, its directory is for CHECKPOINT 2" in str(found.unreadable[2])
