"""The lease of a driver: who acquires it, when another driver takes it over, and how its holder notices that."""

from __future__ import annotations

import threading

import pytest
from attrs import evolve
from memory_objects import MemoryObjects

from statebackend.checkpoint import (
    CheckpointFileSystem,
    JobDirectory,
    JobDirectoryLockedError,
    LeadershipLostError,
    StorageError,
)
from statebackend.checkpoint.errors import CorruptJobIdentityError, JobDirectoryError
from statebackend.checkpoint.fs.conditional_objects import VersionedObject
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME, DriverLease, LeaseRecord, ObjectStoreLease

LONG_MS = 3_600_000
"""Longer than any test, so that no thread renews the lease."""

GIVE_UP_S = 600
"""Limits the wait for a thread that never runs, so that tests cannot hang. A busy machine does not reach it."""

FRESH = LeaseRecord(token="x", renewal=0, lease_ms=LONG_MS, is_released=False, holder="somebody")


class Waiting:
    """A clock that advances when a driver waits, and runs other steps during the wait."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.happens: dict[int, object] = {}

    def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        for at_ms in [at_ms for at_ms in self.happens if at_ms <= self.now_ms]:
            self.happens.pop(at_ms)()

    def lease(self, lease_ms: int = LONG_MS, is_stand_by: bool = False) -> ObjectStoreLease:
        return ObjectStoreLease(
            lease_ms=lease_ms, is_stand_by=is_stand_by, monotonic_ms=lambda: self.now_ms, sleep=self.sleep
        )


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
def leases():
    """Closes the leases that a test has acquired."""
    taken: list[DriverLease] = []
    yield taken.append
    for lease in taken:
        lease.close()


def record_of(objects: MemoryObjects) -> LeaseRecord:
    return LeaseRecord.from_bytes(objects.read(LEASE_FILE_NAME).content, "here")


def test_a_free_lease_is_taken_without_waiting(waiting, leases) -> None:
    objects = MemoryObjects()
    lease = waiting.lease().taken(objects, "here")
    leases(lease)
    lease.check()
    assert waiting.now_ms == 0
    assert record_of(objects).token == lease.token
    assert "process" in record_of(objects).holder


def test_a_released_lease_is_taken_without_waiting(waiting, leases) -> None:
    objects = MemoryObjects()
    former = waiting.lease().taken(objects, "here")
    former.close()
    former.close()
    assert record_of(objects).is_released
    leases(waiting.lease().taken(objects, "here"))
    assert waiting.now_ms == 0
    with pytest.raises(LeadershipLostError, match="released here"):
        former.check()
    former.close()
    assert not record_of(objects).is_released


def test_the_holder_is_named_as_soon_as_it_renews_the_lease(waiting, leases) -> None:
    objects = MemoryObjects()
    holder = waiting.lease().taken(objects, "here")
    leases(holder)
    waiting.happens[LONG_MS // 3] = holder.renew
    with pytest.raises(JobDirectoryLockedError, match=r"here is held by another driver, which is alive: process \d+"):
        waiting.lease().taken(objects, "here")
    assert LONG_MS // 3 <= waiting.now_ms <= LONG_MS // 2
    holder.check()


def test_an_expired_lease_is_taken(waiting, leases) -> None:
    objects = MemoryObjects()
    paused = waiting.lease().taken(objects, "here")
    leases(paused)
    taken = waiting.lease(lease_ms=500_000).taken(objects, "here")
    leases(taken)
    # The duration is that of the holder's lease, not that of the waiting driver.
    assert waiting.now_ms == LONG_MS
    taken.check()
    with pytest.raises(LeadershipLostError, match="another driver has acquired here"):
        paused.check()


def test_a_standby_waits_while_the_leader_renews(waiting, leases) -> None:
    objects = MemoryObjects()
    leader = waiting.lease().taken(objects, "here")
    leases(leader)
    for third in range(1, 30):
        waiting.happens[third * LONG_MS // 3] = leader.renew
    leases(waiting.lease(is_stand_by=True).taken(objects, "here"))
    assert waiting.now_ms >= 29 * LONG_MS // 3 + LONG_MS
    with pytest.raises(LeadershipLostError):
        leader.check()


def test_one_of_many_concurrent_drivers_gets_the_lease(leases) -> None:
    objects = MemoryObjects()
    start = threading.Barrier(8)
    won, lost = [], []

    def take() -> None:
        start.wait()
        try:
            won.append(ObjectStoreLease(lease_ms=600).taken(objects, "here"))
        except JobDirectoryLockedError as error:
            lost.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for lease in won:
        leases(lease)
    assert len(lost) == 8 - len(won)
    # A thread without processor time may have lost its lease to another thread. Two threads never hold it at once.
    holding = [lease for lease in won if lease.token == record_of(objects).token]
    assert len(holding) == 1
    holding[0].check()


def test_a_renewal_at_the_moment_of_the_take_over_wins(waiting, leases) -> None:
    objects, other = MemoryObjects(), MemoryObjects()
    other.stored = objects.stored
    holder = waiting.lease().taken(objects, "here")
    leases(holder)

    def renew_first(path: str, content: bytes) -> None:
        other.before_write = None
        holder.renew()
        waiting.happens[waiting.now_ms + LONG_MS // 3] = holder.renew

    other.before_write = renew_first
    with pytest.raises(JobDirectoryLockedError):
        waiting.lease().taken(other, "here")
    holder.check()


@pytest.mark.parametrize("loses", [1, 2])
def test_a_renewal_with_a_lost_answer_is_recognised_as_its_own(waiting, leases, loses) -> None:
    objects = MemoryObjects()
    holder = waiting.lease().taken(objects, "here")
    leases(holder)
    objects.loses = loses
    for _ in range(loses):
        with pytest.raises(StorageError):
            holder.renew()
    assert holder.renew()
    holder.check()
    assert record_of(objects).renewal == loses + 1


def test_a_driver_continues_after_an_outage_if_its_lease_is_untaken(waiting, leases) -> None:
    objects = MemoryObjects()
    holder = waiting.lease().taken(objects, "here")
    leases(holder)
    objects.is_cut_off = True
    waiting.sleep(10 * LONG_MS / 1000)
    for act in (holder.check, holder.renew):
        with pytest.raises(StorageError):
            act()
    objects.is_cut_off = False
    holder.check()
    assert holder.renew()


def test_a_lease_that_was_deleted_is_lost(waiting) -> None:
    objects = MemoryObjects()
    holder = waiting.lease().taken(objects, "here")
    del objects.stored.by_path[LEASE_FILE_NAME]
    with pytest.raises(LeadershipLostError, match="or the lease was deleted"):
        holder.check()
    assert not holder.renew()
    holder.close()
    assert objects.read(LEASE_FILE_NAME) is None


def test_a_lease_is_renewed_three_times_per_duration(waiting) -> None:
    intervals_s: list[float] = []

    class Keeper:
        def __init__(self, keep, interval_s) -> None:
            intervals_s.append(interval_s)

        def stop(self) -> None:
            pass

    evolve(waiting.lease(lease_ms=6000), keeper=Keeper).taken(MemoryObjects(), "here").close()
    assert intervals_s == [2.0]


def test_the_thread_renews_and_reports_a_loss(leases) -> None:
    objects = MemoryObjects()
    renewed, lost = threading.Event(), threading.Event()
    objects.before_write = lambda path, content: renewed.set() if b'"renewal": 2' in content else None
    holder = ObjectStoreLease(lease_ms=300).taken(objects, "here")
    holder.at_loss(lambda error: lost.set() if isinstance(error, LeadershipLostError) else None)
    assert renewed.wait(GIVE_UP_S)
    another = VersionedObject(FRESH.to_bytes(), "another")
    with objects.stored.lock:
        objects.stored.by_path[LEASE_FILE_NAME] = another
    assert lost.wait(GIVE_UP_S)
    with pytest.raises(LeadershipLostError):
        holder.check()
    reported: list[LeadershipLostError] = []
    holder.at_loss(reported.append)
    assert len(reported) == 1
    holder.close()
    assert objects.read(LEASE_FILE_NAME) == another


def test_the_thread_continues_when_the_store_is_unreachable(leases) -> None:
    objects = MemoryObjects()
    tried = threading.Semaphore(0)
    objects.before_write = lambda path, content: tried.release()
    holder = ObjectStoreLease(lease_ms=150).taken(objects, "here")
    leases(holder)
    objects.loses = 2
    for _ in range(6):
        assert tried.acquire(timeout=GIVE_UP_S)
    holder.check()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        FRESH.to_bytes()[:-3],
        FRESH.to_bytes().replace(b'"renewal": 0', b'"renewal": 1'),
        FRESH.to_bytes().replace(b'"version": 1', b'"version": 2'),
    ],
)
def test_an_object_that_is_not_a_lease_is_neither_taken_nor_overwritten(waiting, content) -> None:
    objects = MemoryObjects()
    objects.stored.by_path[LEASE_FILE_NAME] = VersionedObject(content, "v")
    with pytest.raises(CorruptJobIdentityError, match="here"):
        waiting.lease().taken(objects, "here")
    assert objects.written == []


@pytest.mark.parametrize(
    "fields",
    [{"lease_ms": 0}, {"lease_ms": 1 << 60}, {"token": ""}, {"renewal": -1}, {"is_released": 1}, {"holder": 1}],
)
def test_a_record_that_breaks_an_invariant_is_rejected(fields) -> None:
    from attrs import asdict

    from statebackend.checkpoint.fs.checksummed_json import checksummed_json

    with pytest.raises(JobDirectoryError, match="is not valid"):
        LeaseRecord.from_bytes(checksummed_json({**asdict(FRESH), **fields}, 1), "here")


def test_a_record_round_trips() -> None:
    assert LeaseRecord.from_bytes(FRESH.to_bytes(), "here") == FRESH


def test_a_store_without_conditional_writes_is_rejected(tmp_path) -> None:
    with pytest.raises(JobDirectoryError, match="no conditional writes"):
        ObjectStoreLease().lead(CheckpointFileSystem.from_uri(tmp_path), "job")


def test_a_job_directory_on_an_object_store_has_one_leader(bucket) -> None:
    # The clock of the waiting driver does not advance, so the lease is renewed before it expires.
    uri, lease = bucket.uri("job"), ObjectStoreLease(lease_ms=600, monotonic_ms=lambda: 0)
    with JobDirectory.open(uri, "flights", 128, leadership=lease) as directory:
        directory.leadership.check()
        with pytest.raises(JobDirectoryLockedError, match="which is alive: process"):
            JobDirectory.open(uri, "flights", 128, leadership=lease)
        directory.leadership.check()
    with JobDirectory.open(uri, "flights", 128, leadership=lease) as directory:
        assert directory.identity.job_name == "flights"
    assert sorted(bucket.keys) == ["job/driver-lease.json", "job/job.json"]


class Heedless(MemoryObjects):
    """A store that accepts conditions and ignores some of them."""

    heeds_absence = True

    def write(self, path: str, content: bytes, version: str | None) -> str | None:
        there = self.read(path)
        if version is None and self.heeds_absence and there is not None:
            return None
        return super().write(path, content, None if there is None else there.version)


@pytest.mark.parametrize("heeds_absence", [False, True])
def test_a_store_that_ignores_a_condition_is_rejected(tmp_path, monkeypatch, waiting, heeds_absence) -> None:
    objects = Heedless()
    objects.heeds_absence = heeds_absence
    monkeypatch.setattr(LocalStorage, "conditional", lambda storage: objects)
    with pytest.raises(JobDirectoryError, match="If-Match" if heeds_absence else "If-None-Match"):
        waiting.lease().lead(CheckpointFileSystem.from_uri(tmp_path), "job")
    assert record_of(objects).is_released


def test_a_store_that_honours_conditions_is_probed_once_and_left_unchanged(
    tmp_path, monkeypatch, waiting, leases
) -> None:
    objects = MemoryObjects()
    monkeypatch.setattr(LocalStorage, "conditional", lambda storage: objects)
    lease = waiting.lease().lead(CheckpointFileSystem.from_uri(tmp_path), "job")
    leases(lease)
    assert objects.written == [LEASE_FILE_NAME]
    assert lease.renew()
    lease.check()


def test_a_renewal_is_retried_after_an_unexpected_error(leases, waiting) -> None:
    objects, kept = MemoryObjects(), []

    class Keeper:
        def __init__(self, keep, interval_s: float) -> None:
            kept.append(keep)

        def stop(self) -> None:
            pass

    lease = evolve(waiting.lease(), keeper=Keeper).taken(objects, "here")
    leases(lease)

    def fail(path: str, content: bytes) -> None:
        raise RuntimeError("no more threads")

    objects.before_write = fail
    assert kept[0]()
    objects.before_write = None
    assert kept[0]()
    lease.check()
