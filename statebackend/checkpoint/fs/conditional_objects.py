"""Conditional writes of objects, with which drivers on an object store exclude each other.

A store with such writes puts an object only if it does not exist (`If-None-Match: *`), or only if it still has the
version that the writer has read (`If-Match: <ETag>`): compare and set. Of two writers of one version, one succeeds.

A write without an answer may have taken effect, and a repetition then finds its own object. So every written content
must be unique. If the condition fails and the object has the writer's content, the write has succeeded. This module
does that; writers only make their contents unique, for example with a random token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from attrs import frozen

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.retries import BoundedRetries, is_temporary_status

T = TypeVar("T")

_CONDITION_FAILED = 412
_CONFLICT = 409
_MISSING = 404
_MAX_BYTES = 16 << 20
_TEMPORARY_CODES = frozenset({"RequestTimeout", "SlowDown", "ThrottlingException", "Throttling", "InternalError"})


@frozen
class VersionedObject:
    """The content of an object, and the store's name for this version."""

    content: bytes
    version: str


class ConditionalObjects(Protocol):
    """Objects below the root of a file system, by checked relative path. All methods raise `StorageError`."""

    def read(self, path: str) -> VersionedObject | None:
        """The current object, read by its key; None if it does not exist."""

    def write(self, path: str, content: bytes, version: str | None) -> str | None:
        """Put the object if it still has that version (None: if it does not exist); return the new version.

        Returns None, changing nothing, if the condition fails. ``content`` must differ from all others ever written
        there. If this raises, it is unknown whether the object was written.
        """


class S3ConditionalObjects:
    """The objects of an S3-compatible store, through the client of `S3Location.conditional_client`."""

    def __init__(self, client: Any, bucket: str, prefix: str, retries: BoundedRetries) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._retries = retries

    def read(self, path: str) -> VersionedObject | None:
        """The current object; None if it does not exist."""
        return self._reporting("read", path, lambda: self._read(path))

    def write(self, path: str, content: bytes, version: str | None) -> str | None:
        """Put the object under its condition; see `ConditionalObjects`."""
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
            # An earlier attempt of this call, whose answer was lost, may have written it.
            there = self._read(path)
            if there is not None and there.content == content:
                return there.version
            if conflict is not None and (None if there is None else there.version) == version:
                # Two requests conflicted. The store carried out neither, or not yet the other one, which may be an
                # earlier attempt of this call. The condition still holds, so try again.
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
                f"{_MAX_BYTES}: no driver has written it. Restore the original from a backup"
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
                f"the response for s3://{self._bucket}/{self._key(path)} has no ETag, which identifies its version: "
                f"the server is not an S3-compatible store, or a proxy removes the header"
            )
        return str(version)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _reporting(self, action: str, path: str, attempt: Callable[[], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self._retries.run(attempt, _is_temporary)
        except (BotoCoreError, ClientError) as error:
            raise StorageError(
                f"cannot {action} s3://{self._bucket}/{self._key(path)}: {error}. Check that the store can be "
                f"reached and that the credentials may read and write there, then start the job again"
            ) from error


def _is_temporary(error: Exception) -> bool:
    from botocore import exceptions as botocore_errors

    if isinstance(error, botocore_errors.ClientError):
        is_temporary = is_temporary_status(_status(error)) or _status(error) == _CONFLICT
        return is_temporary or error.response["Error"].get("Code") in _TEMPORARY_CODES
    # No connection, no answer in time, or a broken connection. A rejected certificate is a permanent error.
    temporary = (botocore_errors.ConnectionError, botocore_errors.HTTPClientError, botocore_errors.IncompleteReadError)
    return isinstance(error, temporary) and not isinstance(error, botocore_errors.SSLError)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
