"""Conditional writes on S3: the meaning of each answer of the store, and which requests are retried."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from statebackend.checkpoint import StorageError
from statebackend.checkpoint.fs.conditional_objects import S3ConditionalObjects, VersionedObject
from statebackend.checkpoint.fs.retries import BoundedRetries

ATTEMPTS = 3


def rejection(status: int, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


@define
class Store:
    """A boto3 client of a store with one object. ``puts`` and ``gets`` are the results of the next requests."""

    content: bytes | None = None
    revision: int = 0
    puts: list[Callable[[], object]] = field(factory=list)
    gets: list[Callable[[], object]] = field(factory=list)
    is_large: bool = False
    asked: list[str] = field(factory=list)

    @property
    def version(self) -> str:
        return f'"{self.revision}"'

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, **condition: str) -> Any:  # noqa: N803
        self.asked.append("put")
        if self.puts and (error := self.puts.pop(0)()):
            raise error
        if condition == {"IfNoneMatch": "*"}:
            holds = self.content is None
        elif self.content is None:
            raise rejection(404, "NoSuchKey")
        else:
            holds = condition == {"IfMatch": self.version}
        if not holds:
            raise rejection(412, "PreconditionFailed")
        self.content, self.revision = Body, self.revision + 1
        return {"ETag": self.version}

    def get_object(self, *, Bucket: str, Key: str) -> Any:  # noqa: N803
        self.asked.append("get")
        if self.gets and (error := self.gets.pop(0)()):
            raise error
        if self.content is None:
            raise rejection(404, "NoSuchKey")
        length = 1 << 40 if self.is_large else len(self.content)
        return {"ContentLength": length, "Body": io.BytesIO(self.content), "ETag": self.version}


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def objects(store: Store) -> S3ConditionalObjects:
    retries = BoundedRetries(attempts=ATTEMPTS, first_pause_s=0, sleep=lambda _: None)
    return S3ConditionalObjects(store, "bucket", "job", retries)


def test_an_object_is_created_if_absent_and_replaced_if_unchanged(store: Store, objects: S3ConditionalObjects) -> None:
    assert objects.read("a") is None
    first = objects.write("a", b"one", None)
    assert objects.read("a") == VersionedObject(b"one", str(first))
    assert objects.write("a", b"again", None) is None
    second = objects.write("a", b"two", first)
    assert objects.write("a", b"late", first) is None
    assert objects.read("a") == VersionedObject(b"two", str(second))


@pytest.mark.parametrize("loses", [1, ATTEMPTS - 1])
@pytest.mark.parametrize("version", [False, True])
def test_a_driver_that_reads_back_its_own_content_has_written_it(
    store: Store, objects: S3ConditionalObjects, version: bool, loses: int
) -> None:
    former = objects.write("a", b"before", None) if version else None

    def take_and_lose_the_answer() -> Exception:
        store.content, store.revision = b"own", store.revision + 1
        return ReadTimeoutError(endpoint_url="here")

    store.puts = [take_and_lose_the_answer, *[lambda: rejection(503, "SlowDown")] * (loses - 1)]
    assert objects.write("a", b"own", former) == store.version
    assert store.content == b"own"


def test_a_write_that_finds_the_object_of_another_driver_after_a_lost_answer_has_failed(
    store: Store, objects: S3ConditionalObjects
) -> None:
    def lose_to_another() -> Exception:
        store.content = b"another driver's"
        return EndpointConnectionError(endpoint_url="here")

    store.puts = [lose_to_another]
    assert objects.write("a", b"own", None) is None
    assert store.content == b"another driver's"


@pytest.mark.parametrize("answer", [(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")])
def test_a_failed_condition_is_not_an_error(
    store: Store, objects: S3ConditionalObjects, answer: tuple[int, str]
) -> None:
    def lose_to_another() -> Exception:
        store.content = b"another driver's"
        return rejection(*answer)

    store.puts = [lose_to_another]
    assert objects.write("a", b"own", None) is None
    assert store.asked == ["put", "get"]


CONFLICT = rejection(409, "ConditionalRequestConflict")


@pytest.mark.parametrize("version", [False, True])
def test_conflicting_requests_are_retried_while_the_condition_holds(
    store: Store, objects: S3ConditionalObjects, version: bool
) -> None:
    former = objects.write("a", b"before", None) if version else None
    store.puts = [lambda: CONFLICT] * (ATTEMPTS - 1)
    assert objects.write("a", b"own", former) == store.version
    assert store.content == b"own"
    store.puts = [lambda: CONFLICT] * ATTEMPTS
    with pytest.raises(StorageError, match="cannot write s3://bucket/job/a"):
        objects.write("a", b"next", store.version)
    assert store.content == b"own"


def test_a_write_that_conflicts_with_its_own_earlier_attempt_has_happened_once(
    store: Store, objects: S3ConditionalObjects
) -> None:
    def carry_the_first_out() -> Exception:
        store.content, store.revision = b"own", 1
        return CONFLICT

    store.puts = [lambda: ReadTimeoutError(endpoint_url="here"), carry_the_first_out]
    assert objects.write("a", b"own", None) == '"1"'
    assert store.asked == ["put", "put", "get"]


def test_a_deleted_object_is_not_the_version_that_was_read(store: Store, objects: S3ConditionalObjects) -> None:
    former = objects.write("a", b"one", None)
    store.content = None
    assert objects.write("a", b"two", former) is None
    assert store.content is None


@pytest.mark.parametrize("version", [None, '"1"'])
def test_a_missing_bucket_is_an_error_and_not_a_missing_object(
    store: Store, objects: S3ConditionalObjects, version: str | None
) -> None:
    store.puts = [lambda: rejection(404, "NoSuchBucket")]
    with pytest.raises(StorageError, match="cannot write s3://bucket/job/a"):
        objects.write("a", b"own", version)
    store.gets = [lambda: rejection(404, "NoSuchBucket")]
    with pytest.raises(StorageError, match="cannot read s3://bucket/job/a"):
        objects.read("a")
    assert store.asked == ["put", "get"]


@pytest.mark.parametrize(
    "error",
    [
        rejection(500, "InternalError"),
        rejection(503, "SlowDown"),
        rejection(502, "a proxy's own"),
        rejection(400, "RequestTimeout"),
        rejection(400, "Throttling"),
        rejection(429, "of another store"),
        ReadTimeoutError(endpoint_url="here"),
        ConnectTimeoutError(endpoint_url="here"),
        EndpointConnectionError(endpoint_url="here"),
        ConnectionClosedError(endpoint_url="here"),
        IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ],
)
def test_transient_errors_are_retried_up_to_the_limit(
    store: Store, objects: S3ConditionalObjects, error: Exception
) -> None:
    store.puts = [lambda: error] * (ATTEMPTS - 1)
    assert objects.write("a", b"own", None) == '"1"'
    store.gets = [lambda: error] * (ATTEMPTS - 1)
    assert objects.read("a") == VersionedObject(b"own", '"1"')
    assert store.asked == ["put"] * ATTEMPTS + ["get"] * ATTEMPTS
    store.gets = [lambda: error] * ATTEMPTS
    with pytest.raises(StorageError, match="Check that the store can be reached"):
        objects.read("a")


@pytest.mark.parametrize(
    "error",
    [
        rejection(403, "AccessDenied"),
        rejection(400, "InvalidRequest"),
        SSLError(endpoint_url="here", error="a certificate that nobody knows"),
        NoCredentialsError(),
    ],
)
def test_permanent_errors_are_raised_at_once(store: Store, objects: S3ConditionalObjects, error: Exception) -> None:
    store.puts = [lambda: error]
    with pytest.raises(StorageError):
        objects.write("a", b"own", None)
    assert store.asked == ["put"]


def test_an_object_that_is_too_large_is_not_read(store: Store, objects: S3ConditionalObjects) -> None:
    store.content, store.is_large = b"large", True
    with pytest.raises(StorageError, match=r"s3://bucket/job/a has 1099511627776 bytes, more than the limit"):
        objects.read("a")


def test_a_store_without_versions_is_an_error(
    store: Store, objects: S3ConditionalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.write("a", b"one", None)
    monkeypatch.setattr(Store, "version", "")
    with pytest.raises(StorageError, match="has no ETag"):
        objects.read("a")
    with pytest.raises(StorageError, match="has no ETag"):
        objects.write("b", b"one", "")
