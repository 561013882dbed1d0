"""Guarantees of a ZooKeeper job at every step of a recovery and of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zookeeper_jobs import led, services_of
from zookeeper_server import ZooKeeperServer

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CorruptMetadataError,
    DirectoryCheckpointStore,
    JobDirectory,
    JobDirectoryMismatchError,
    LeadershipLostError,
    StorageError,
)
from statebackend.checkpoint.ha import zookeeper as zookeeper_high_availability
from statebackend.checkpoint.ha import zookeeper as zookeeper_pointers
from statebackend.checkpoint.ha.zookeeper import UnknownOutcomeError, ZooKeeperLeadership
from statebackend.checkpoint.store.driver_lock import DriverLockFile
from statebackend.checkpoint.store.job_files import Rollback, end_roll_back, write_roll_back
from statebackend.testing.stores import LeaderStore, checkpoint


def go_on_in_the_directory(job: Path, *checkpoint_ids: int) -> None:
    """Continue as a driver that does not use ZooKeeper and retains three checkpoints."""
    with JobDirectory.open(str(job), "flights", 4) as directory:
        store = DirectoryCheckpointStore(directory.file_system, 3)
        store.recover()
        for checkpoint_id in checkpoint_ids:
            LeaderStore(store, directory.file_system, directory.close, directory.close).add(checkpoint_id)


def fail_at(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, is_at: Callable[..., bool]) -> None:
    """Crash in a function call whose arguments match."""
    done = getattr(module, name)

    def crash_or_do(*arguments: Any) -> Any:
        if is_at(*arguments):
            raise StorageError("the driver has crashed here")
        return done(*arguments)

    monkeypatch.setattr(module, name, crash_or_do)


def test_a_directory_that_continued_after_an_interrupted_recovery_is_recovered_in_its_current_state(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on_in_the_directory(tmp_path / "job", 1, 2)
    services = services_of(zookeeper_server.hosts, root)
    with monkeypatch.context() as patched:
        fail_at(patched, zookeeper_high_availability, "write_stored_in", lambda *_: True)
        with pytest.raises(StorageError, match="crashed here"):
            led(tmp_path / "job", services)
    go_on_in_the_directory(tmp_path / "job", 3, 4)
    job = led(tmp_path / "job", services)
    with job.directory:
        assert job.led.ids == [2, 3, 4]
        assert job.store.next_checkpoint_id() == 5


def test_the_lock_of_a_directory_is_released_after_its_checkpoints_are_recovered(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    go_on_in_the_directory(tmp_path / "job", 1)
    job = led(tmp_path / "job", services_of(zookeeper_server.hosts, root))
    with job.directory:
        DriverLockFile().lead(job.records.file_system, "flights").close()


def test_a_directory_that_is_rolling_back_is_not_recovered(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    go_on_in_the_directory(tmp_path / "job", 1, 2)
    fs = CheckpointFileSystem.from_uri(tmp_path / "job")
    write_roll_back(fs, Rollback(checkpoint_id=1, newest_id=2, source_log="1"))
    services = services_of(zookeeper_server.hosts, root)
    with pytest.raises(JobDirectoryMismatchError, match="is not finished; finish it without high availability first"):
        led(tmp_path / "job", services)
    DriverLockFile().lead(fs, "flights").close()
    end_roll_back(fs)
    job = led(tmp_path / "job", services)
    with job.directory:
        assert job.led.ids == [1, 2]


def test_driver_files_stay_until_those_of_the_next_driver_are_recorded(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = services_of(zookeeper_server.hosts, root)
    with (first := led(tmp_path / "job", services)).directory:
        first.records.driver_files.write_file("spark/offsets/0", b"v1")
    with monkeypatch.context() as patched:
        fail_at(patched, ZooKeeperLeadership, "carry_out", lambda _, what, *more: what.startswith("record"))
        with pytest.raises(StorageError, match="crashed here"):
            led(tmp_path / "job", services)
    assert first.records.driver_files.read_file("spark/offsets/0") == b"v1"
    with (again := led(tmp_path / "job", services)).directory:
        assert again.records.driver_files.read_file("spark/offsets/0") == b"v1"
        # Files of former drivers are deleted, including those of the one that crashed.
        assert len(again.records.file_system.list_directories("drivers")) == 1


def test_a_checkpoint_that_zookeeper_rejects_leaves_no_files(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    job = led(tmp_path / "job", services_of(zookeeper_server.hosts, root))
    with job.directory:
        job.led.add(1)
        job.client.create(f"{root}/flights/checkpoints/000000000002", b"of another program")
        with pytest.raises(StorageError, match=r"checkpoint 2 cannot be completed.*Another program may have changed"):
            job.led.add(2)
        assert job.led.metadata_paths(2) == []
        assert len(job.led.metadata_paths(1)) == 1


def test_the_id_of_a_removed_checkpoint_is_not_reused(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    services = services_of(zookeeper_server.hosts, root)
    with (job := led(tmp_path / "job", services)).directory:
        for checkpoint_id in (1, 2):
            job.led.add(checkpoint_id)
        job.records.pointers.find()
        job.records.pointers.withdraw(2)
    with (again := led(tmp_path / "job", services)).directory:
        assert again.led.ids == [1]
        assert again.store.next_checkpoint_id() == 3


def test_a_reader_repeats_its_read_while_the_leader_drops_a_checkpoint(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = services_of(zookeeper_server.hosts, root)
    job = led(tmp_path / "job", services)
    read, later = zookeeper_pointers.read_pointed_metadata, [4, 5]

    def read_while_the_leader_goes_on(*arguments: Any) -> Any:
        if later:
            job.led.add(later.pop(0))
        return read(*arguments)

    with job.directory, services.read_only(job.records.file_system, job.directory.identity) as looked:
        for checkpoint_id in (1, 2, 3):
            job.led.add(checkpoint_id)
        monkeypatch.setattr(zookeeper_pointers, "read_pointed_metadata", read_while_the_leader_goes_on)
        found = looked.pointers.find()
    assert (sorted(found.retained), found.unreadable) == ([3, 4, 5], {})


def test_a_pointer_is_valid_for_its_own_checkpoint_only(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    job = led(tmp_path / "job", services_of(zookeeper_server.hosts, root))
    with job.directory:
        for checkpoint_id in (1, 2):
            job.led.add(checkpoint_id)
        data, _ = job.client.get(f"{root}/flights/checkpoints/000000000001")
        job.client.set(f"{root}/flights/checkpoints/000000000002", data)
        found = job.records.pointers.find()
        assert list(found.retained) == [1]
        with pytest.raises(CorruptMetadataError, match="000000000002"):
            raise found.unreadable[2]


def test_each_name_of_a_job_is_one_node_below_the_root(root: str) -> None:
    services = services_of("localhost:2181", root)
    nodes = [services.stored_in(name) for name in (".", "..", "a.b", "a%2Eb", "a/b", "ä")]
    names = ("%2E", "%2E%2E", "a%2Eb", "a%252Eb", "a%2Fb", "%C3%A4")
    assert nodes == [f"zookeeper:{root}/{name}" for name in names]


def test_a_checkpoint_of_a_driver_without_leadership_does_not_count(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    job = led(tmp_path / "job", services_of(zookeeper_server.hosts, root))
    with job.directory:
        leader = zookeeper_server.leading_node(f"{root}/flights/leaders")
        zookeeper_server.remove_node(leader)
        for change in (lambda: job.records.pointers.publish(checkpoint(1)), job.directory.leadership.check):
            with pytest.raises(LeadershipLostError, match="does not lead job 'flights'"):
                change()
        assert job.client.get_children(f"{root}/flights/checkpoints") == []


@pytest.mark.parametrize(
    ("is_led", "error", "reported"),
    [(True, StorageError, "cannot be completed"), (False, LeadershipLostError, "does not lead job 'flights'")],
)
def test_a_lost_request_has_completed_nothing_when_the_next_one_is_rejected(
    tmp_path: Path,
    root: str,
    zookeeper_server: ZooKeeperServer,
    monkeypatch: pytest.MonkeyPatch,
    is_led: bool,
    error: type[Exception],
    reported: str,
) -> None:
    job = led(tmp_path / "job", services_of(zookeeper_server.hosts, root))
    with job.directory:
        session = job.directory.leadership.session
        commit, losses = session.commit, [UnknownOutcomeError("no answer")]

        def lose_the_first(*arguments: Any) -> Any:
            if losses:
                raise losses.pop()
            return commit(*arguments)

        if is_led:
            job.client.create(f"{root}/flights/checkpoints/000000000001", b"of another program")
        else:
            zookeeper_server.remove_node(zookeeper_server.leading_node(f"{root}/flights/leaders"))
        monkeypatch.setattr(session, "commit", lose_the_first)
        with pytest.raises(error, match=reported):
            job.records.pointers.publish(checkpoint(1))
        assert losses == []
        assert list(job.records.pointers.find().retained) == []
