"""Checkpoint ids: the next id, and which driver may complete a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_builders import metadata_of

from statebackend.checkpoint import (
    CheckpointFileSystem,
    DirectoryCheckpointStore,
    IllegalTransitionError,
    JobDirectory,
    LeadershipLostError,
)
from statebackend.checkpoint.store.driver_lock import DriverLock


@pytest.fixture
def fs(tmp_path: Path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path / "job")


def opened(fs: CheckpointFileSystem, roll_back_to: int | None = None) -> DirectoryCheckpointStore:
    store = DirectoryCheckpointStore(fs)
    store.recover(roll_back_to=roll_back_to)
    return store


def test_ids_increase_over_runs_failures_and_roll_backs(fs: CheckpointFileSystem) -> None:
    store = opened(fs)
    assert [store.next_checkpoint_id() for _ in range(2)] == [0, 1]
    store.add(metadata_of(1))
    assert store.next_checkpoint_id() == 2
    store.add(metadata_of(5))
    assert store.next_checkpoint_id() == 6
    # An id that was assigned without a checkpoint is not stored. An attempt that left a directory is visible.
    assert opened(fs).next_checkpoint_id() == 6
    fs.write_file("checkpoints/.chk-000000000008/_metadata", b"")
    assert opened(fs).next_checkpoint_id() == 9
    # After a roll back, the id of the abandoned checkpoint 5 is not reused.
    assert opened(fs, roll_back_to=1).next_checkpoint_id() == 6
    again = opened(fs)
    assert again.next_checkpoint_id() == 6
    # A driver that counts from the target of the roll back reuses the id of an abandoned checkpoint. Both are kept.
    for counted in (2, 5):
        again.add(metadata_of(counted))
    assert again.latest() == metadata_of(5)
    assert fs.exists("set-aside/chk-000000000005-1/_metadata")
    assert again.next_checkpoint_id() == 7
    opened(fs, roll_back_to=2)
    assert fs.exists("set-aside/chk-000000000005-2/_metadata")


def test_ids_of_unreadable_checkpoints_are_not_reused(fs: CheckpointFileSystem) -> None:
    store = opened(fs)
    for checkpoint_id in (3, 4):
        store.add(metadata_of(checkpoint_id))
    fs.write_file("checkpoints/chk-000000000003/_metadata", b"damaged")
    fs.write_file("set-aside/chk-000000000011-2/_metadata", b"damaged")
    fs.write_file("set-aside/spark-12/offsets", b"not a checkpoint")
    assert opened(fs).next_checkpoint_id() == 12


def test_ids_are_assigned_after_recovery_only(fs: CheckpointFileSystem) -> None:
    with pytest.raises(IllegalTransitionError, match="recover"):
        DirectoryCheckpointStore(fs).next_checkpoint_id()


def test_a_driver_without_leadership_completes_no_checkpoint(tmp_path: Path) -> None:
    directory = JobDirectory.open(str(tmp_path / "job"), "flights", 4)
    store = DirectoryCheckpointStore(directory.file_system, leadership=directory.leadership)
    store.recover()
    store.add(metadata_of(1))
    directory.close()
    with pytest.raises(LeadershipLostError, match="completes no more checkpoints"):
        store.add(metadata_of(2))
    assert [one.checkpoint_id for one in opened(directory.file_system).all()] == [1]


def test_a_pipe_in_place_of_the_lock_file_is_not_a_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "driver.lock")
    assert not DriverLock.is_held(str(tmp_path / "driver.lock"))
