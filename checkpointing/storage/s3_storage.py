"""Files on an S3-compatible store: what `ArrowStorage` does, done again where the store is busy or the network fails.

* An object appears when its put ends, whole: a small file is one request, a large one an upload in parts that the last
  request makes an object. Whoever dies in between leaves no object, but perhaps parts, which a rule of the bucket
  (AbortIncompleteMultipartUpload) clears away.
* There are no directories. pyarrow leaves empty objects `x/` where it has deleted the last file of one; nothing here
  takes them for files, and nothing is told by them.
* A listing may lag behind: it may lack what was just written, and have what was just deleted. What is asked for by its
  key does not. So whoever must know asks by key, and listings are for clearing up.

pyarrow tries most requests three times, except for some that it has begun to read; here the whole operation is tried
again, from its beginning, which is harmless: all of them may be done twice. What another attempt cannot help (rights, a
bucket that is not there, a certificate) is reported at once.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import pyarrow
from attrs import frozen

from checkpointing.errors import StorageError
from checkpointing.storage.arrow_storage import ArrowStorage
from checkpointing.storage.bounded_retries import BoundedRetries, is_passing_status
from checkpointing.storage.conditional_objects import ConditionalObjects, S3ConditionalObjects
from checkpointing.storage.local_storage import Accept
from checkpointing.storage.s3_location import S3Location

__all__ = ["S3Storage"]

T = TypeVar("T")

_AWS_ERROR = re.compile(r"AWS Error ([A-Z_0-9]+)(?: \(HTTP status (\d+)\))?")
_PASSING: Final = frozenset(
    {
        "INTERNAL_FAILURE",
        "NETWORK_CONNECTION",
        "REQUEST_EXPIRED",
        "REQUEST_TIMEOUT",
        "SERVICE_UNAVAILABLE",
        "SLOW_DOWN",
        "THROTTLING",
        "UNKNOWN",
        "NO_SUCH_UPLOAD",
    }
)
"""What may be otherwise the next time; of an upload in parts also that it is unknown, which begins again."""

_READ_AT_ONCE_BYTES: Final = 16 << 20


@frozen
class S3Storage:
    """Files below a place in an S3-compatible store; takes checked relative paths. See `Storage`."""

    location: S3Location
    files: ArrowStorage
    retries: BoundedRetries

    @classmethod
    def at(cls, location: S3Location, retries: BoundedRetries | None = None, attempts_at_once: int = 3) -> S3Storage:
        """The store at a place. ``attempts_at_once`` are pyarrow's own at one request, within each of ``retries``."""
        files = ArrowStorage(location.file_system(attempts_at_once), location.root)
        return cls(location, files, BoundedRetries() if retries is None else retries)

    @property
    def has_conditional_writes(self) -> bool:
        """Yes."""
        return True

    def conditional(self) -> ConditionalObjects:
        """Its objects, to be written under conditions. Raises `StorageError` if boto3 is not installed."""
        location = self.location
        return S3ConditionalObjects(location.conditional_client(), location.bucket, location.prefix, self.retries)

    def local_path(self, path: str) -> str | None:
        """None: the files have no path on this machine."""
        return self.files.local_path(path)

    def make_root(self) -> None:
        """Nothing: there are no directories."""

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a file. If it fails, the object is as before, or the new one whole."""
        self._try(lambda: self.files.replace(path, data))

    def create(self, path: str, data: bytes) -> bool:
        """Write a file under a condition; without the package for conditions, as on stores that have none."""
        try:
            objects = self.conditional()
        except StorageError:
            return self._try(lambda: self.files.create(path, data))
        return objects.write(path, data, None) is not None

    def put_file(self, source_path: str, path: str, may_link: bool) -> tuple[int, str]:
        """Upload a local file; return its size in bytes and its checksum, both taken from the bytes."""
        return self._try(lambda: self.files.put_file(source_path, path, may_link))

    def get_file(self, path: str, target_path: str, may_link: bool, accept: Accept) -> None:
        """Download a file to `target_path`, which appears only if `accept(size, checksum)` does not raise."""
        self._try(lambda: self.files.get_file(path, target_path, may_link, accept))

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        return self._try(lambda: self.files.read(path))

    def open_input(self, path: str) -> pyarrow.NativeFile:
        """A seekable file object. Of a large file, who reads from it meets errors that are not tried again here."""
        size_bytes = self.size_bytes(path)
        if size_bytes is not None and size_bytes <= _READ_AT_ONCE_BYTES:
            return pyarrow.BufferReader(self.read(path))
        return self._try(lambda: self.files.open_input(path))

    def size_bytes(self, path: str) -> int | None:
        """Size of a file, None if there is none."""
        return self.sizes_bytes((path,))[0]

    def sizes_bytes(self, paths: Iterable[str]) -> list[int | None]:
        """`size_bytes` of each path, each asked for by its key."""
        asked = list(paths)
        return self._try(lambda: self.files.sizes_bytes(asked))

    def list_files(self, prefix: str) -> list[str]:
        """Relative paths of all files below the directory `prefix`, as the store lists them."""
        return self._try(lambda: self.files.list_files(prefix))

    def list_directories(self, prefix: str) -> list[str]:
        """Names of the directories directly below `prefix`, as the store lists them."""
        return self._try(lambda: self.files.list_directories(prefix))

    def copy(self, path: str, target: str) -> None:
        """A second object with the same bytes, made by the store itself, which takes up to 5 GiB."""
        root, filesystem = self.location.root, self.files.filesystem
        try:
            self._try(lambda: filesystem.copy_file(f"{root}/{path}", f"{root}/{target}"))
        except OSError as error:
            found = _AWS_ERROR.search(str(error))
            if found is not None and found[1] == "NO_SUCH_KEY":
                raise FileNotFoundError(errno.ENOENT, "no such object", path) from error
            raise

    def delete(self, path: str, durable: bool) -> None:
        """Remove a file; a missing one is fine."""
        with contextlib.suppress(FileNotFoundError):
            self._try(lambda: self.files.filesystem.delete_file(f"{self.location.root}/{path}"))

    def delete_directory(self, path: str) -> None:
        """Remove all files that are listed below a directory."""
        self._try(lambda: self.files.delete_directory(path))

    def move_directory(self, path: str, target: str) -> None:
        """Copy every file that is listed below a directory, then delete those: a crash in between leaves both."""
        moved = self.list_files(path)
        for file in moved:
            self.copy(file, target + file[len(path) :])
        for file in moved:
            self.delete(file, durable=True)

    def _try(self, action: Callable[[], T]) -> T:
        return self.retries.run(action, _is_passing)


def _is_passing(error: Any) -> bool:
    if isinstance(error, FileNotFoundError) or not isinstance(error, (OSError, pyarrow.ArrowException)):
        return False
    found = _AWS_ERROR.search(str(error))
    if found is None:
        return False
    status = int(found[2] or 0)
    return is_passing_status(status) or (not status and found[1] in _PASSING)
