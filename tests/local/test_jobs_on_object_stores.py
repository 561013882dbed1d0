"""A local job with its job directory and savepoint on an S3-compatible store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from object_store import Bucket, Fault, FaultyProxy

from statebackend import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor
from statebackend.checkpoint import (
    CheckpointFileSystem,
    JobDirectoryLockedError,
    LeadershipLostError,
    MissingFileError,
    StorageError,
)
from statebackend.checkpoint.fs.retries import BoundedRetries
from statebackend.checkpoint.fs.s3_storage import S3Location, S3Storage
from statebackend.checkpoint.ha.object_store import COMPLETED_FILE_NAME, ObjectStoreHighAvailability
from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME, LeaseRecord
from statebackend.local import LocalStreamEnvironment

pytestmark = pytest.mark.slow


class Count(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value["key"], count


@pytest.fixture
def uri(bucket: Bucket, faulty_store: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The job directory behind the proxy, with few attempts and no pauses."""
    made = S3Storage.at
    retries = BoundedRetries(attempts=2, first_pause_s=0)
    monkeypatch.setattr(S3Storage, "at", lambda location, *_: made(location, retries, 1))
    assert S3Location.from_uri(bucket.uri()).bucket == bucket.name
    return bucket.uri("job", port=faulty_store.port)


SERVICES = ObjectStoreHighAvailability(lease_ms=500, monotonic_ms=lambda: 0)
"""The clock does not advance, so a lease never expires: it is renewed or released."""


def run(uri: str, keys: str, backend: str = "heap", **options: Any) -> list[Any]:
    rows: list[Any] = []
    environment = LocalStreamEnvironment(
        job_dir=uri, backend=backend, parallelism=2, epoch_size=2, high_availability=SERVICES
    )
    environment.from_elements([{"key": key} for key in keys]).key_by("key").process(
        Count(), uid="count", schema="key string, count int"
    ).sink_to(rows)
    try:
        environment.execute("job", **options)
    finally:
        environment.close()
    return sorted(tuple(row) for row in rows)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_job_continues_where_it_ended(uri, faulty_store, backend) -> None:
    # Listings return nothing, and the job must not need them.
    faulty_store.fail(Fault.EMPTY_LISTING, "GET", "list-type")
    assert run(uri, "abab", backend) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert run(uri, "ac", backend) == [("a", 3), ("c", 1)]


@pytest.mark.extended
def test_a_job_rolls_back_to_an_older_checkpoint(uri) -> None:
    run(uri, "aabb")
    assert run(uri, "b", roll_back_to="previous") == [("b", 1)]
    assert run(uri, "ab") == [("a", 3), ("b", 2)]


@pytest.mark.extended
def test_a_checkpoint_in_doubt_is_found_by_the_next_start(uri, faulty_store) -> None:
    run(uri, "aa")
    writes = faulty_store.asked("PUT", COMPLETED_FILE_NAME)

    def lose_the_second(request) -> None:
        # The first write takes over the job, the second one completes the checkpoint.
        is_write = request.method == "PUT" and COMPLETED_FILE_NAME in request.target
        written = faulty_store.asked("PUT", COMPLETED_FILE_NAME) - writes
        if is_write and written == 1:
            faulty_store.fail(Fault.LOSE_ANSWER, "PUT", COMPLETED_FILE_NAME)
        elif is_write and written == 2:
            faulty_store.fail(Fault.DROP, "GET", COMPLETED_FILE_NAME)

    faulty_store.before_request = lose_the_second
    with pytest.raises(StorageError, match=r"whether checkpoint .* is complete is unknown"):
        run(uri, "aa")
    faulty_store.before_request = None
    faulty_store.heal()
    assert run(uri, "a") == [("a", 5)]


@pytest.mark.extended
def test_a_second_driver_is_rejected_while_the_first_runs(uri) -> None:
    rejected: list[str] = []

    class Intruder(Count):
        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            if not rejected:
                with pytest.raises(JobDirectoryLockedError, match="which is alive: process") as caught:
                    run(uri, "a")
                rejected.append(str(caught.value))
            yield from super().process_element(value, context)

    rows: list[Any] = []
    environment = LocalStreamEnvironment(job_dir=uri, high_availability=SERVICES)
    environment.from_elements([{"key": "a"}]).key_by("key").process(
        Intruder(), uid="count", schema="key string, count int"
    ).sink_to(rows)
    environment.execute("job")
    environment.close()
    assert len(rejected) == 1
    assert run(uri, "a") == [("a", 2)]


def test_a_directory_on_a_store_uses_a_lease_by_default(bucket) -> None:
    environment = LocalStreamEnvironment(job_dir=bucket.uri("job"))
    rows: list[Any] = []
    environment.from_elements([{"key": "a"}]).key_by("key").process(
        Count(), uid="count", schema="key string, count int"
    ).sink_to(rows)
    environment.execute("job")
    environment.close()
    assert {"job/driver-lease.json", "job/completed-checkpoints.json", "job/high-availability.json"} < set(bucket.keys)


def overtake(uri: str) -> None:
    """Take the lease as another driver, as after a long pause."""
    objects = CheckpointFileSystem.from_uri(uri).conditional
    assert objects is not None
    taken = None
    # The holder may renew the lease between read and write.
    while taken is None:
        found = objects.read(LEASE_FILE_NAME)
        assert found is not None
        record = evolve(LeaseRecord.from_bytes(found.content, uri), token="another")
        taken = objects.write(LEASE_FILE_NAME, record.to_bytes(), found.version)


@pytest.mark.parametrize("is_overtaken", [True, False])
@pytest.mark.extended
def test_a_run_that_lost_its_lease_fails_with_that_cause_at_any_step(uri, is_overtaken) -> None:
    class Stumbling(Count):
        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            if is_overtaken:
                overtake(uri)
            raise ArithmeticError("a file of another service is not there")

    environment = LocalStreamEnvironment(job_dir=uri, high_availability=SERVICES)
    environment.from_elements([{"key": "a"}]).key_by("key").process(
        Stumbling(), uid="count", schema="key string, count int"
    ).sink_to([])
    with pytest.raises(Exception, match="another driver has acquired" if is_overtaken else "is not there") as raised:
        environment.execute("job")
    environment.close()
    assert isinstance(raised.value, LeadershipLostError) is is_overtaken
    causes, error = [], raised.value
    while error is not None:
        causes.append(type(error))
        error = error.__cause__
    assert causes[-1] is ArithmeticError


def test_a_start_that_lost_its_lease_fails_with_that_cause_at_any_step(uri, monkeypatch) -> None:
    def stumble(*_: object) -> None:
        overtake(uri)
        raise MissingFileError("the files of the driver before are not there")

    monkeypatch.setattr(ObjectStoreHighAvailability, "take_over", stumble)
    with pytest.raises(LeadershipLostError, match="another driver has acquired") as raised:
        run(uri, "a")
    assert isinstance(raised.value.__cause__, MissingFileError)
