"""Objects that are written under a condition: the one thing by which drivers on an object store exclude each other.

A store that has such writes puts an object only if there is none yet (`If-None-Match: *`), or only if it is still the
version that the writer has read (`If-Match: <ETag>`): compare and set. Of two who write on the same version, one does.

A write whose answer is lost may have taken effect, and trying again then meets one's own object. So every content that
is written must be unlike all others, and whoever finds his own content under a condition that does not hold has
written it. That is done here; writers only take care that their contents differ, by a random token for example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from attrs import frozen

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.retries import BoundedRetries, is_passing_status

__all__ = ["ConditionalObjects", "S3ConditionalObjects", "VersionedObject"]

T = TypeVar("T")

_CONDITION_FAILED = 412
_CONFLICT = 409
_MISSING = 404
_MAX_BYTES = 16 << 20
_PASSING_CODES = frozenset({"RequestTimeout", "SlowDown", "ThrottlingException", "Throttling", "InternalError"})


@frozen
class VersionedObject:
    """The content of an object, and what the store calls this version of it."""

    content: bytes
    version: str


class ConditionalObjects(Protocol):
    """Objects below the root of a file system, by checked relative path. All methods raise `StorageError`."""

    def read(self, path: str) -> VersionedObject | None:
        """The object as it is now, asked for by its key; None if there is none."""

    def write(self, path: str, content: bytes, version: str | None) -> str | None:
        """Puts the object if it is still that version, or for None if there is none; returns the new version.

        Returns None if the condition does not hold, and the object is as it was. ``content`` is unlike all others that
        were ever written there. When it raises, nobody knows whether the object was written.
        """


class S3ConditionalObjects:
    """Those of an S3-compatible store, by boto3's client; made by `S3Location.conditional_client`."""

    def __init__(self, client: Any, bucket: str, prefix: str, retries: BoundedRetries) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._retries = retries

    def read(self, path: str) -> VersionedObject | None:
        """The object as it is now; None if there is none."""
        return self._reporting("read", path, lambda: self._read(path))

    def write(self, path: str, content: bytes, version: str | None) -> str | None:
        """Puts the object under its condition; see `ConditionalObjects`."""
        from botocore.exceptions import ClientError

        def attempt() -> str | None:
            conflict = None
            try:
                written = self._put(path, content, version)
            except ClientError as error:
                if _status(error) != _CONFLICT:
                    raise
                written, conflict = None, error
            if written is not None:
                return written
            # An attempt of ours may have been the one that it meets, and its answer was lost.
            there = self._read(path)
            if there is not None and there.content == content:
                return there.version
            if conflict is not None and (None if there is None else there.version) == version:
                # Two requests met, and the store has carried out neither, or not yet the other one, which may be an
                # attempt of ours: the condition still holds, and nobody has lost.
                raise conflict
            return None

        return self._reporting("write", path, attempt)

    def _read(self, path: str) -> VersionedObject | None:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(path))
        except ClientError as error:
            if _status(error) == _MISSING and error.response["Error"].get("Code") != "NoSuchBucket":
                return None
            raise
        if answer["ContentLength"] > _MAX_BYTES:
            raise StorageError(
                f"s3://{self._bucket}/{self._key(path)} has {answer['ContentLength']} bytes, more than the limit of "
                f"{_MAX_BYTES}: no driver has written it. Bring back the original from a backup"
            )
        return VersionedObject(answer["Body"].read(), self._version(answer, path))

    def _put(self, path: str, content: bytes, version: str | None) -> str | None:
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            answer = self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=content, **condition)
        except ClientError as error:
            is_gone = version is not None and _status(error) == _MISSING
            if _status(error) == _CONDITION_FAILED or (
                is_gone and error.response["Error"].get("Code") != "NoSuchBucket"
            ):
                return None
            raise
        return self._version(answer, path)

    def _version(self, answer: Mapping[str, Any], path: str) -> str:
        version = answer.get("ETag")
        if not version:
            raise StorageError(
                f"the answer for s3://{self._bucket}/{self._key(path)} has no ETag, which identifies its version: "
                f"what answers is no S3-compatible store, or something in between takes it away"
            )
        return str(version)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _reporting(self, action: str, path: str, attempt: Callable[[], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self._retries.run(attempt, _is_passing)
        except (BotoCoreError, ClientError) as error:
            raise StorageError(
                f"cannot {action} s3://{self._bucket}/{self._key(path)}: {error}. See that the store can be reached "
                f"and the credentials may read and write there, then start the job again"
            ) from error


def _is_passing(error: Exception) -> bool:
    from botocore import exceptions as botocore_errors

    if isinstance(error, botocore_errors.ClientError):
        is_passing = is_passing_status(_status(error)) or _status(error) == _CONFLICT
        return is_passing or error.response["Error"].get("Code") in _PASSING_CODES
    # No connection, no answer in time, or one that broke off. A certificate is no better the next time.
    passing = (botocore_errors.ConnectionError, botocore_errors.HTTPClientError, botocore_errors.IncompleteReadError)
    return isinstance(error, passing) and not isinstance(error, botocore_errors.SSLError)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
