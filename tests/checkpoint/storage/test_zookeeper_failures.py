"""The ZooKeeper store when answers, connections, sessions, servers or files are lost."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from kazoo.client import KazooClient
from zookeeper_jobs import SESSION_TIMEOUT_S, led, services_of
from zookeeper_server import GIVE_UP_S, LossyNetwork, ZooKeeperServer, running_ensemble, running_server

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CorruptMetadataError,
    DirectoryCheckpointStore,
    IllegalTransitionError,
    InvariantViolationError,
    JobDirectory,
    JobDirectoryLockedError,
    JobDirectoryMismatchError,
    LeadershipLostError,
    StorageError,
    UncertainCheckpointError,
    ZooKeeperHighAvailability,
)
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.testing.stores import LeaderStore, file_handle, subtask_state


@define
class DriversClock:
    """The clock of a driver. While ``hurries`` returns true, each call advances it by a session timeout."""

    hurries: Callable[[], bool]
    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += SESSION_TIMEOUT_S * self.hurries()
        return self.now_s


@pytest.fixture
def network(zookeeper_server: ZooKeeperServer) -> Iterator[LossyNetwork]:
    network = LossyNetwork(zookeeper_server.port)
    yield network
    network.close()


def pointers(server: ZooKeeperServer, root: str) -> list[str]:
    client = KazooClient(server.hosts, timeout=GIVE_UP_S)
    client.start(timeout=GIVE_UP_S)
    try:
        return sorted(client.get_children(f"{root}/flights/checkpoints"))
    finally:
        client.stop()
        client.close()


def test_a_metadata_file_that_cannot_be_deleted_is_deleted_with_the_next_checkpoint(
    tmp_path: Path, zookeeper_server: ZooKeeperServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = led(tmp_path / "job", services_of(zookeeper_server.hosts, root))
    delete = LocalStorage.delete

    def rejected(storage: LocalStorage, path: str, durable: bool) -> None:
        delete(storage, path, durable)
        if path.startswith("checkpoints/chk-000000000001"):
            raise OSError("the directory could not be synced")

    for checkpoint_id in (1, 2, 3):
        first.led.add(checkpoint_id, f"{checkpoint_id}")
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete", rejected)
        first.led.add(4, "4")
        assert first.led.ids == [1, 2, 3, 4]
    first.led.add(5, "5")
    assert first.led.ids == [3, 4, 5]
    assert first.led.shared() == ["3", "4", "5"]
    first.directory.close()


def test_a_checkpoint_whose_answer_was_lost_is_complete_once(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer, network: LossyNetwork
) -> None:
    job = led(tmp_path / "job", services_of(network.hosts, root))
    with job.directory:
        job.led.add(1, "a")
        network.lose_answer_to(b"/checkpoints/000000000002")
        job.led.add(2, "b")
        assert network.lost_answers == 1
        network.lose_answer_to(b"last-id")
        job.led.add(3, "c")
        # The request that drops the oldest checkpoint is retried too.
        network.lose_answer_to(b"/checkpoints/000000000001")
        job.led.add(4, "d")
        assert network.lost_answers == 3
        assert job.led.ids == [2, 3, 4]
        assert pointers(zookeeper_server, root) == [f"{number:012d}" for number in (2, 3, 4)]
        assert job.led.shared() == ["b", "c", "d"]
        job.store.recover()
        assert job.store.next_checkpoint_id() == 5
        assert job.led.metadata_paths(1) == []


def test_an_uncertain_checkpoint_keeps_its_files_for_the_next_leader(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer, network: LossyNetwork
) -> None:
    # After the lost answer, the clock advances, so the driver waits for no session.
    clock = DriversClock(lambda: network.lost_answers > 0)
    job = led(tmp_path / "job", services_of(network.hosts, root, monotonic_s=clock))
    session = job.client.client_id
    job.led.add(1, "a")
    network.lose_answer_to(b"/checkpoints/000000000002", then_cut=True)
    with pytest.raises(UncertainCheckpointError, match=r"checkpoint 2 is complete is unknown.*nothing is lost"):
        job.led.add(2, "a", "b")
    with pytest.raises(IllegalTransitionError, match=r"UNCERTAIN.*checkpoint 2"):
        job.led.add(3)
    assert job.store.discard([subtask_state([file_handle("shared/b")])]) == ()
    job.directory.close()
    zookeeper_server.end_session(session)
    with led(tmp_path / "job", services_of(zookeeper_server.hosts, root)).directory as directory:
        records = services_of(zookeeper_server.hosts, root).take_over(directory)
        found = records.pointers.find()
        assert sorted(found.retained) == [1, 2]
        records.file_system.verify_present(found.retained[2].metadata.files)


def test_a_reconnect_within_the_session_ends_nothing(tmp_path: Path, root: str, network: LossyNetwork) -> None:
    job = led(tmp_path / "job", services_of(network.hosts, root))
    lost: list[LeadershipLostError] = []
    job.directory.leadership.at_loss(lost.append)
    with job.directory:
        network.cut()
        adding = threading.Thread(target=job.led.add, args=(1, "a"))
        adding.start()
        checking = threading.Thread(target=job.directory.leadership.check)
        checking.start()
        network.mend()
        adding.join()
        checking.join()
        assert job.led.ids == [1]
    assert lost == []


@pytest.mark.extended
def test_a_restarted_server_ends_no_session_and_loses_nothing(tmp_path: Path, root: str) -> None:
    with running_server(tmp_path / "server") as server, contextlib.ExitStack() as stack:
        network = LossyNetwork(server.port)
        stack.callback(network.close)
        # The clock does not advance, so the driver waits as long as the server takes to start.
        job = led(tmp_path / "job", services_of(network.hosts, root, monotonic_s=DriversClock(lambda: False)))
        with job.directory:
            job.led.add(1, "a")
            network.cut()
            server.stop()
            adding = threading.Thread(target=job.led.add, args=(2, "b"))
            adding.start()
            server.start()
            # Connect after the start: a starting server may answer that client late or never.
            network.mend()
            adding.join()
            assert job.led.ids == [1, 2]
            job.directory.leadership.check()
        again = led(tmp_path / "job", services_of(server.hosts, root))
        with again.directory:
            assert again.led.ids == [1, 2]


def test_a_driver_without_session_is_notified_and_completes_nothing(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    job = led(tmp_path / "job", services_of(zookeeper_server.hosts, root))
    reported = threading.Event()
    lost: list[LeadershipLostError] = []

    def listener(error: LeadershipLostError) -> None:
        lost.append(error)
        reported.set()

    job.directory.leadership.at_loss(listener)
    zookeeper_server.end_session(job.client.client_id)
    assert reported.wait()
    assert "\n" not in str(lost[0])
    for call in (job.directory.leadership.check, lambda: job.led.add(1)):
        with pytest.raises(LeadershipLostError, match="does not lead job 'flights' any more"):
            call()
    # A listener that registers after the loss is notified too.
    later = threading.Event()
    job.directory.leadership.at_loss(lambda error: later.set())
    assert later.wait()
    job.directory.close()
    assert pointers(zookeeper_server, root) == []


def test_a_driver_that_closes_itself_gets_no_loss_notification(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    job = led(tmp_path / "job", services_of(zookeeper_server.hosts, root))
    lost: list[LeadershipLostError] = []
    job.directory.leadership.at_loss(lost.append)
    job.directory.close()
    job.directory.close()
    with pytest.raises(LeadershipLostError, match="it has released the leadership"):
        job.directory.leadership.check()
    assert lost == []


class LeaderSeen(logging.Handler):
    """Counts the standby drivers that have read which process leads."""

    def __init__(self) -> None:
        super().__init__()
        self.times = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        if "standing by for job 'flights', which is led by process" in record.getMessage():
            self.times.release()


@pytest.fixture
def leader_seen() -> Iterator[LeaderSeen]:
    handler, logger = LeaderSeen(), logging.getLogger("statebackend.checkpoint.ha.zookeeper")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_one_of_two_standby_drivers_leads_at_a_time(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer, leader_seen: LeaderSeen
) -> None:
    services = services_of(zookeeper_server.hosts, root)
    first = led(tmp_path / "job", services)
    first.led.add(0)
    leading: list[int] = []
    most: list[int] = []

    def stand_by() -> None:
        job = led(tmp_path / "job", services)
        leading.append(1)
        most.append(len(leading))
        newest = job.store.latest()
        assert newest is not None
        job.led.add(newest.checkpoint_id + 1)
        leading.pop()
        job.directory.close()

    threads = [threading.Thread(target=stand_by) for _ in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(JobDirectoryLockedError, match=r"led by another driver: process \d+ on host"):
        led(tmp_path / "job", services_of(zookeeper_server.hosts, root, stand_by_timeout_s=0))
    for _ in threads:
        assert leader_seen.times.acquire(timeout=600), "nobody stands by"
    first.directory.close()
    for thread in threads:
        thread.join()
    assert most == [1, 1]
    with led(tmp_path / "job", services).directory as directory:
        assert sorted(services.take_over(directory).pointers.find().retained) == [0, 1, 2]


def test_a_pointer_to_a_missing_file_is_not_a_checkpoint_to_restore(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    services = services_of(zookeeper_server.hosts, root)
    job = led(tmp_path / "job", services)
    for checkpoint_id in (1, 2, 3):
        job.led.add(checkpoint_id)
    [path] = job.led.metadata_paths(3)
    job.records.file_system.delete(path)
    with pytest.raises(CorruptMetadataError, match=r"points to a file that has changed.*roll_back_to=2"):
        job.store.recover()
    assert job.records.pointers.find().roll_back_target("previous").checkpoint_id == 2
    job.store.recover(roll_back_to=2)
    job.led.add(3)
    job.directory.close()
    with led(tmp_path / "job", services).directory as directory:
        assert sorted(services.take_over(directory).pointers.find().retained) == [1, 2, 3]


def test_files_of_a_crash_between_files_and_pointer_are_removed_by_the_next_leader(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = services_of(zookeeper_server.hosts, root)
    job = led(tmp_path / "job", services)
    for checkpoint_id in (1, 2, 3):
        job.led.add(checkpoint_id, f"f{checkpoint_id}")

    def crash(*arguments: Any, **options: Any) -> None:
        raise StorageError("the machine is gone")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFileSystem, "delete", crash)
        job.led.add(4, "f4")
    job.directory.close()
    assert pointers(zookeeper_server, root) == [f"{number:012d}" for number in (2, 3, 4)]
    assert len(job.led.metadata_paths(1)) == 1
    again = led(tmp_path / "job", services)
    with again.directory:
        assert again.led.ids == [2, 3, 4]
        assert again.led.metadata_paths(1) == []
        assert again.store.delete_orphans() == ("shared/f1",)


def test_a_directory_is_recovered_with_its_checkpoints_and_never_again_read_without_zookeeper(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    job_dir = tmp_path / "job"
    with JobDirectory.open(str(job_dir), "flights", 4) as directory:
        store = DirectoryCheckpointStore(directory.file_system)
        store.recover()
        before = LeaderStore(store, directory.file_system, directory.close, directory.close)
        for checkpoint_id in (1, 2, 3):
            before.add(checkpoint_id, f"f{checkpoint_id}")
        store.recover(roll_back_to=2)
        directory.file_system.write_file("spark/offsets/2", b"v1")
        directory.file_system.write_file("no-data-epoch.json", b"{}")
        with pytest.raises(JobDirectoryLockedError, match="in use by another driver"):
            led(job_dir, services_of(zookeeper_server.hosts, root))
    services = services_of(zookeeper_server.hosts, root)
    job = led(job_dir, services)
    assert job.led.ids == [1, 2]
    assert job.store.next_checkpoint_id() == 4
    assert job.records.driver_files.list_files() == ("no-data-epoch.json", "spark/offsets/2")
    assert job.store.delete_orphans() == ()
    for checkpoint_id in (4, 5, 6):
        job.led.add(checkpoint_id)
    assert job.led.metadata_paths(1) == job.led.metadata_paths(2) == []
    job.directory.close()
    with pytest.raises(JobDirectoryMismatchError, match=r"recorded in zookeeper:/.*in the directory only"):
        JobDirectory.open(str(job_dir), "flights", 4)
    with pytest.raises(JobDirectoryMismatchError, match=r"recorded in zookeeper:/.*would look in zookeeper:/other"):
        led(job_dir, services_of(zookeeper_server.hosts, "/other"))
    with pytest.raises(JobDirectoryMismatchError, match=r"belongs to the job in .*another name, or another root"):
        led(tmp_path / "another", services)
    again = led(job_dir, services)
    with again.directory:
        assert again.led.ids == [4, 5, 6]
        assert len(again.records.file_system.list_directories("drivers")) == 1


def test_empty_zookeeper_data_is_not_taken_for_a_job_without_checkpoints(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    services = services_of(zookeeper_server.hosts, root)
    job = led(tmp_path / "job", services)
    job.led.add(1)
    job.client.delete(f"{root}/flights/job")
    job.directory.close()
    before = job.records.file_system.list_files()
    with pytest.raises(JobDirectoryMismatchError, match=r"does not exist.*another ZooKeeper, or it has lost its data"):
        led(tmp_path / "job", services)
    assert job.records.file_system.list_files() == before


def test_an_altered_pointer_is_reported_and_nothing_is_removed(
    tmp_path: Path, root: str, zookeeper_server: ZooKeeperServer
) -> None:
    services = services_of(zookeeper_server.hosts, root)
    job = led(tmp_path / "job", services)
    with job.directory:
        for checkpoint_id in (1, 2):
            job.led.add(checkpoint_id)
        node = f"{root}/flights/checkpoints/000000000001"
        data, _ = job.client.get(node)
        job.client.set(node, data.replace(b"checkpoints/", b"../../etc/x/"))
        job.store.recover()
        assert list(job.store.unreadable) == [1]
        assert len(job.led.metadata_paths(1)) == 1


@pytest.mark.extended
def test_without_a_quorum_nothing_is_completed_and_nothing_lost(tmp_path: Path, root: str) -> None:
    with running_ensemble(tmp_path / "ensemble") as servers:
        hosts = ",".join(server.hosts for server in servers)
        stopped: list[ZooKeeperServer] = []
        job = led(tmp_path / "job", services_of(hosts, root, monotonic_s=DriversClock(lambda: bool(stopped))))
        session = job.client.client_id
        job.led.add(1, "a")
        for server in servers[1:]:
            server.stop()
        stopped.extend(servers[1:])
        # The remaining server serves read-only clients.
        with pytest.raises((LeadershipLostError, StorageError)):
            job.led.add(2, "b")
        with pytest.raises((LeadershipLostError, StorageError)):
            job.directory.leadership.check()
        job.directory.close()
        for server in servers[1:]:
            server.begin()
        for server in servers[1:]:
            server.wait_until_it_serves()
        servers[1].end_session(session)
        again = led(tmp_path / "job", services_of(hosts, root))
        with again.directory:
            assert again.led.ids == [1]
            again.led.add(2, "b")


@pytest.mark.extended
def test_a_server_without_free_connections_rejects_a_driver_and_the_leader_continues(tmp_path: Path, root: str) -> None:
    # The leader uses one session at a time: it closes the session that reads before it opens the one that leads.
    server = ZooKeeperServer(tmp_path / "server", settings="maxClientCnxns=1")
    try:
        server.start()
        job = led(tmp_path / "job", services_of(server.hosts, root))
        job.led.add(1, "a")
        crowded = ZooKeeperHighAvailability(server.hosts, root, connection_timeout_s=1.0)
        with pytest.raises(StorageError, match=r"has answered in 1 s .* and take another connection"):
            led(tmp_path / "job", crowded)
        with job.directory:
            job.led.add(2, "b")
        with led(tmp_path / "job", services_of(server.hosts, root)).directory as directory:
            assert directory.identity.job_name == "flights"
    finally:
        server.stop()


def test_a_missing_server_and_a_missing_package_are_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = ZooKeeperHighAvailability("127.0.0.1:1", connection_timeout_s=0.2)
    with pytest.raises(
        StorageError, match=r"no server of ZooKeeper at 127\.0\.0\.1:1 has answered in 0\.2 s"
    ) as caught:
        led(tmp_path / "job", services)
    assert "\n" not in str(caught.value)
    for name in ("kazoo", "kazoo.client", "kazoo.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StorageError, match=r"pip install 'statebackend\[zookeeper\]'"):
        led(tmp_path / "job", services)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ZooKeeperHighAvailability(""),
        lambda: ZooKeeperHighAvailability("h", "words"),
        lambda: ZooKeeperHighAvailability("h", "/a//b"),
        lambda: ZooKeeperHighAvailability("h", "/zookeeper/x"),
        lambda: ZooKeeperHighAvailability("h", "/.."),
        lambda: ZooKeeperHighAvailability("h", session_timeout_s=0),
        lambda: ZooKeeperHighAvailability("h", stand_by_timeout_s=-1),
        lambda: ZooKeeperHighAvailability("h", connection_timeout_s=True),
    ],
)
def test_invalid_settings_are_rejected(make: Callable[[], object]) -> None:
    with pytest.raises(InvariantViolationError):
        make()
