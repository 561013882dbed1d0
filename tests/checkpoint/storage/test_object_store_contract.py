"""The store of completed checkpoints on an object store passes the contract, with tests of its own properties."""

from __future__ import annotations

import json
import pathlib
from collections import defaultdict
from typing import Any

import pytest
from attrs import evolve
from memory_objects import MemoryObjects, StoredObjects
from object_store import Bucket, Fault, FaultyProxy

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CorruptMetadataError,
    DirectoryCheckpointStore,
    JobDirectory,
    JobDirectoryMismatchError,
    LeadershipLostError,
    StorageError,
)
from statebackend.checkpoint.errors import CorruptJobIdentityError, UncertainCheckpointError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.checkpoint.fs.retries import BoundedRetries
from statebackend.checkpoint.fs.s3_storage import S3Location, S3Storage
from statebackend.checkpoint.ha import object_store as object_store_high_availability
from statebackend.checkpoint.ha.object_store import (
    COMPLETED_FILE_NAME,
    CompletedRecord,
    ObjectPointers,
    ObjectStoreHighAvailability,
)
from statebackend.checkpoint.store.checkpoint_directories import CheckpointPointer
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.driver_files import copy_driver_files
from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME, LeaseRecord
from statebackend.testing.stores import CompletedCheckpointStoreContract, LeaderStore, checkpoint, file_handle

pytestmark = pytest.mark.slow

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
FORMATS = REPOSITORY / "docs" / "formats-checkpoint.md"

SERVICES = ObjectStoreHighAvailability(lease_ms=3_600_000)


def led(uri: str, max_retained: int = 3, driver_directory: str | None = None) -> LeaderStore:
    """The store of the driver that leads the job."""
    services = evolve(SERVICES, driver_directory=driver_directory)
    directory = JobDirectory.open(uri, "flights", 4, leadership=services, stored_in=services.stored_in("flights"))
    try:
        records = services.take_over(directory)
    except BaseException:
        directory.close()
        raise
    fs, leadership = directory.file_system, directory.leadership
    store = CompletedCheckpointStore(fs, records.pointers, max_retained, leadership=leadership)
    return LeaderStore(store, fs, lose=lambda: expire(fs), close=directory.close)


def expire(fs: CheckpointFileSystem) -> None:
    """Let the lease of a paused driver expire, so that another driver can lead."""
    found = fs.conditional.read(LEASE_FILE_NAME)
    record = evolve(LeaseRecord.from_bytes(found.content, ""), is_released=True)
    fs.conditional.write(LEASE_FILE_NAME, record.to_bytes(), found.version)


class TestStoreOnObjects(CompletedCheckpointStoreContract):
    """Files on a disk with simulated conditional writes, because creating and dropping hundreds of objects is slow."""

    @pytest.fixture(autouse=True)
    def _conditional(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stored: defaultdict[str, StoredObjects] = defaultdict(StoredObjects)
        monkeypatch.setattr(LocalStorage, "conditional", lambda storage: MemoryObjects(stored[storage.root]))

    def lead(self, directory: pathlib.Path, max_retained: int) -> LeaderStore:
        return led(str(directory), max_retained)


@pytest.fixture
def uri(bucket: Bucket, faulty_store: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """An object store behind the proxy, with few attempts and no pauses."""
    made = S3Storage.at

    def at(location: S3Location, *_: object) -> S3Storage:
        return made(location, BoundedRetries(attempts=2, first_pause_s=0), 1)

    monkeypatch.setattr(S3Storage, "at", at)
    return bucket.uri("job", port=faulty_store.port)


def test_a_late_listing_hides_no_checkpoint_and_deletes_nothing(uri, faulty_store) -> None:
    faulty_store.fail(Fault.EMPTY_LISTING, "GET", "list-type")
    first = led(uri)
    first.store.recover()
    for checkpoint_id in range(1, 6):
        first.store.add(checkpoint(checkpoint_id))
    first.close()
    again = led(uri)
    assert again.store.recover().checkpoint_id == 5
    assert again.ids == [3, 4, 5]
    assert again.store.recover(roll_back_to=4).checkpoint_id == 4
    assert again.store.next_checkpoint_id() == 6
    again.close()


def test_a_listing_with_deleted_objects_does_no_harm(uri, bucket) -> None:
    first = led(uri, 1)
    first.store.recover()
    first.add(1, "a")
    first.add(2, "a", "b")
    bucket.write("job/shared/", b"")
    bucket.write("job/checkpoints/chk-000000000001-" + 32 * "0" + "/", b"")
    assert first.store.recover().checkpoint_id == 2
    assert first.store.delete_orphans() == ()
    assert first.shared() == ["a", "b"]
    first.close()


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.DROP, Fault.ERROR_503])
def test_a_checkpoint_whose_answer_was_lost_once_is_complete(uri, faulty_store, fault) -> None:
    first = led(uri)
    first.store.recover()
    failed = faulty_store.fail(fault, "PUT", COMPLETED_FILE_NAME, times=1)
    first.add(1, "a")
    assert failed() == 1
    first.add(2, "a")
    assert first.ids == [1, 2]
    first.close()


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.DROP])
def test_a_checkpoint_in_doubt_is_uncertain_and_nothing_of_it_is_deleted(uri, faulty_store, fault) -> None:
    first = led(uri)
    first.store.recover()
    first.add(1, "a")
    faulty_store.fail(fault, "PUT", COMPLETED_FILE_NAME)
    faulty_store.fail(Fault.DROP, "GET", COMPLETED_FILE_NAME)
    with pytest.raises(UncertainCheckpointError, match="whether checkpoint 2 is complete is unknown"):
        first.add(2, "b")
    faulty_store.heal()
    state = checkpoint(2, [file_handle("shared/b")]).operators[0].subtasks[0]
    assert first.store.discard([state]) == ()
    newest = first.store.recover()
    assert newest.checkpoint_id == (2 if fault is Fault.LOSE_ANSWER else 1)
    first.add(3, "b")
    first.close()
    again = led(uri)
    again.store.recover()
    assert again.ids == ([1, 2, 3] if fault is Fault.LOSE_ANSWER else [1, 3])
    again.close()


def test_a_drop_whose_answer_is_lost_does_not_stop_the_job(uri, faulty_store, caplog) -> None:
    first = led(uri, 1)
    first.store.recover()
    first.add(1, "a")

    def lose_the_drop(request) -> None:
        # The first write completes the checkpoint, the second one removes the older one.
        is_write = request.method == "PUT" and COMPLETED_FILE_NAME in request.target
        if is_write and faulty_store.asked("PUT", COMPLETED_FILE_NAME) == writes + 1:
            faulty_store.fail(Fault.LOSE_ANSWER, "PUT", COMPLETED_FILE_NAME, times=2)
            faulty_store.fail(Fault.DROP, "GET", COMPLETED_FILE_NAME, times=4)

    writes = faulty_store.asked("PUT", COMPLETED_FILE_NAME)
    faulty_store.before_request = lose_the_drop
    first.add(2, "b")
    faulty_store.before_request = None
    assert "checkpoint 1 could not be dropped" in caplog.text
    faulty_store.heal()
    first.add(3, "c")
    assert first.ids == [3]
    assert first.shared() == ["c"]
    first.close()


def test_two_drivers_that_both_believe_to_lead_complete_one_history(uri) -> None:
    former = led(uri)
    former.store.recover()
    former.add(1, "a")
    former.lose()
    latter = led(uri)
    # Between its lease and the take-over, the former driver may complete a checkpoint, which the latter then finds.
    assert latter.store.recover().checkpoint_id == 1
    with pytest.raises(LeadershipLostError, match=r"another driver has acquired .*completed-checkpoints.json"):
        former.add(2, "of-former")
    latter.add(2, "of-latter")
    with pytest.raises(LeadershipLostError):
        former.store.recover()
    with pytest.raises(LeadershipLostError):
        former.store.delete_orphans()
    assert latter.ids == [1, 2]
    latter.store.get(2)
    assert "of-latter" in latter.shared()
    former.close()
    latter.close()


def test_a_driver_without_a_lease_and_without_a_successor_still_completes(uri) -> None:
    first = led(uri)
    first.store.recover()
    first.lose()
    # The driver owns the record until another driver takes it over.
    first.add(1, "a")
    second = led(uri)
    assert second.store.recover().checkpoint_id == 1
    first.close()
    second.close()


def test_writes_of_a_former_leader_are_recovered(uri) -> None:
    former = led(uri)
    former.store.recover()
    former.add(1)
    former.lose()
    services, added = SERVICES, []
    directory = JobDirectory.open(uri, "flights", 4, leadership=services, stored_in=services.stored_in("flights"))
    pointers = ObjectPointers(directory.file_system, directory.file_system.conditional, directory.identity.job_id)

    def begin(record: CompletedRecord) -> CompletedRecord:
        if not added:
            added.append(former.add(2))
        return record

    pointers.take_over("the-next", begin)
    assert sorted(pointers.find().retained) == [1, 2]
    former.close()
    directory.close()


def test_a_driver_that_is_replaced_during_recovery_takes_nothing_from_the_leader(tmp_path, monkeypatch) -> None:
    stored: defaultdict[str, StoredObjects] = defaultdict(StoredObjects)
    monkeypatch.setattr(LocalStorage, "conditional", lambda storage: MemoryObjects(stored[storage.root]))
    uri = str(tmp_path)
    first = led(uri)
    first.store.recover()
    first.add(1)
    first.lose()
    leaders: list[LeaderStore] = []

    def paused_while_another_takes_over(*arguments: Any) -> None:
        copy_driver_files(*arguments)
        if not leaders:
            leaders.append(first)
            expire(first.file_system)
            leaders.append(led(uri))

    monkeypatch.setattr(object_store_high_availability, "copy_driver_files", paused_while_another_takes_over)
    with pytest.raises(LeadershipLostError):
        led(uri)
    leader = leaders[1]
    assert leader.store.recover().checkpoint_id == 1
    leader.add(2)
    assert leader.store.latest().checkpoint_id == 2
    leader.close()
    first.close()


def test_a_directory_with_another_leadership_service_is_rejected(uri, tmp_path) -> None:
    led(uri).close()
    with pytest.raises(JobDirectoryMismatchError, match=r"are recorded in object:completed-checkpoints.json"):
        JobDirectory.open(uri, "flights", 4, lock_path=str(tmp_path / "lock"))


def led_by_lock(opened: JobDirectory) -> LeaderStore:
    """The store of a driver that records its checkpoints in the directory only."""
    store = DirectoryCheckpointStore(opened.file_system, leadership=opened.leadership)
    store.recover()
    return LeaderStore(store, opened.file_system, lose=opened.close, close=opened.close)


def test_earlier_checkpoints_are_recovered(uri, tmp_path) -> None:
    with JobDirectory.open(uri, "flights", 4, lock_path=str(tmp_path / "lock")) as opened:
        former = led_by_lock(opened)
        for checkpoint_id in (1, 2):
            former.add(checkpoint_id, "a")
        opened.file_system.write_file("checkpoints/.chk-000000000007/_metadata", b"of a driver that was killed")
    again = led(uri)
    again.store.recover()
    assert again.ids == [1, 2]
    assert again.store.next_checkpoint_id() == 8
    again.add(8, "a")
    again.add(9, "a")
    assert again.ids == [2, 8, 9]
    again.close()


def test_an_interrupted_first_recovery_is_repeated(uri, tmp_path, faulty_store) -> None:
    with JobDirectory.open(uri, "flights", 4, lock_path=str(tmp_path / "lock")) as opened:
        led_by_lock(opened).add(1, "a")
    faulty_store.fail(Fault.ERROR_503, "PUT", COMPLETED_FILE_NAME)
    with pytest.raises(StorageError):
        led(uri)
    faulty_store.heal()
    again = led(uri)
    assert again.store.recover().checkpoint_id == 1
    again.close()


def test_a_directory_with_a_damaged_newest_checkpoint_is_not_recovered(uri, tmp_path, bucket) -> None:
    with JobDirectory.open(uri, "flights", 4, lock_path=str(tmp_path / "lock")) as opened:
        former = led_by_lock(opened)
        for checkpoint_id in (1, 2):
            former.add(checkpoint_id, "a")
        [newest] = former.metadata_paths(2)
    bucket.write(f"job/{newest}", bucket.read(f"job/{newest}")[:-1])
    with pytest.raises(CorruptMetadataError, match="chk-000000000002"):
        led(uri)
    assert f"job/{COMPLETED_FILE_NAME}" not in bucket.keys


def test_a_missing_record_is_not_taken_for_a_job_without_checkpoints(uri, bucket) -> None:
    first = led(uri)
    first.store.recover()
    first.add(1, "a")
    first.close()
    bucket.delete(f"job/{COMPLETED_FILE_NAME}")
    with pytest.raises(JobDirectoryMismatchError, match=COMPLETED_FILE_NAME):
        led(uri)
    assert "job/shared/a" in bucket.keys


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data.replace(b'"revision"', b'"reversion"')])
def test_a_damaged_record_is_rejected_and_nothing_is_deleted(uri, bucket, damage) -> None:
    first = led(uri)
    first.store.recover()
    first.add(1, "a")
    first.close()
    bucket.write(f"job/{COMPLETED_FILE_NAME}", damage(bucket.read(f"job/{COMPLETED_FILE_NAME}")))
    with pytest.raises(CorruptJobIdentityError, match=COMPLETED_FILE_NAME):
        led(uri)
    assert "job/shared/a" in bucket.keys


def test_a_replaced_metadata_file_is_detected(uri, bucket) -> None:
    first = led(uri)
    first.store.recover()
    first.add(1, "a")
    other = first.add(2, "a")
    path = first.metadata_paths(2)[0]
    bucket.write(f"job/{path}", bucket.read(f"job/{first.metadata_paths(1)[0]}"))
    assert other.path == path
    first.close()
    again = led(uri)
    with pytest.raises(CorruptMetadataError, match="2"):
        again.store.recover()
    assert again.store.recover(roll_back_to=1).checkpoint_id == 1
    again.close()


RECORD = CompletedRecord(
    job_id="job",
    leader="0" * 32,
    revision=7,
    greatest_id=9,
    completed=(CheckpointPointer(4, file_handle("checkpoints/a/_metadata")),),
    set_aside=(CheckpointPointer(9, file_handle("checkpoints/b/_metadata")),),
    driver_files="drivers/" + 32 * "0",
)


def test_a_record_round_trips() -> None:
    assert CompletedRecord.from_bytes(RECORD.to_bytes(), "here") == RECORD


@pytest.mark.parametrize(
    "changes",
    [
        {"greatest_id": 8},
        {"greatest_id": "9"},
        {"completed": [[4, "../x/_metadata", 4, file_handle("a").checksum]]},
        {"completed": [[4, "_metadata", 4, file_handle("a").checksum]]},
        {"completed": [[4, "a/b"]]},
        {"completed": {}},
        {"completed": 2 * [[4, "checkpoints/a/_metadata", 4, file_handle("a").checksum]]},
        {"driver_files": "../x"},
        {"driver_files": 1},
        {"revision": -1},
        {"job_id": ""},
        {"unknown": 1},
    ],
)
def test_a_record_that_breaks_an_invariant_is_rejected(changes) -> None:
    content = json.loads(RECORD.to_bytes())
    for name in ("checksum", "version"):
        del content[name]
    with pytest.raises(CorruptJobIdentityError, match=r"here is not valid"):
        CompletedRecord.from_bytes(checksummed_json({**content, **changes}, 1), "here")


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("place", [None, "another log"])
def test_missing_driver_files_of_the_job_are_rejected(uri, tmp_path, place) -> None:
    services = evolve(SERVICES, driver_directory=str(tmp_path / "log"))
    with JobDirectory.open(
        uri, "flights", 4, leadership=services, stored_in=services.stored_in("flights")
    ) as directory:
        services.take_over(directory).driver_files.write_file("spark/offsets/0", b"0")
    wrong = evolve(SERVICES, driver_directory=place and str(tmp_path / place))
    opened = JobDirectory.open(uri, "flights", 4, leadership=wrong, stored_in=wrong.stored_in("flights"))
    with opened as directory, pytest.raises(JobDirectoryMismatchError, match="that the job used before"):
        wrong.take_over(directory)
    with JobDirectory.open(
        uri, "flights", 4, leadership=services, stored_in=services.stored_in("flights")
    ) as directory:
        assert services.take_over(directory).driver_files.read_file("spark/offsets/0") == b"0"


def test_driver_files_on_a_disk_belong_to_each_driver(uri, tmp_path) -> None:
    root = tmp_path / "log"
    services = evolve(SERVICES, driver_directory=str(root))
    former = JobDirectory.open(uri, "flights", 4, leadership=services, stored_in=services.stored_in("flights"))
    records = services.take_over(former)
    records.driver_files.write_file("spark/offsets/0", b"0")
    expire(former.file_system)
    latter = JobDirectory.open(uri, "flights", 4, leadership=services, stored_in=services.stored_in("flights"))
    with services.read_only(latter.file_system, latter.identity) as looked:
        assert looked.driver_files.uri == records.driver_files.uri
    taken = services.take_over(latter)
    # The files of the former driver are deleted when they are no longer needed.
    assert [one.name for one in root.glob("*/drivers/*")] == [taken.driver_files.uri.rpartition("/")[2]]
    assert taken.driver_files.uri != records.driver_files.uri
    assert taken.driver_files.read_file("spark/offsets/0") == b"0"
    records.driver_files.write_file("spark/offsets/1", b"1")
    assert taken.driver_files.list_files() == ("spark/offsets/0",)
    former.close()
    latter.close()
