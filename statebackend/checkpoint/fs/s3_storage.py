"""Files on an S3-compatible store: `ArrowStorage` with retries if the store is busy or the network fails.

* An object appears whole when its put ends. A small file is one request. A large one is an upload in parts, which the
  last request turns into an object. A crash in between leaves no object, but perhaps parts, which a rule of the bucket
  (AbortIncompleteMultipartUpload) removes.
* There are no directories. pyarrow leaves empty objects `x/` after it deleted the last file of `x`. They are ignored
  here.
* A listing may be out of date: it may lack recent writes, and contain recently deleted files. A request by key is never
  out of date. So correctness depends only on requests by key; listings serve to find files to delete.

pyarrow retries most requests three times, except some reads. Here the whole operation is retried from its beginning,
which is safe because all operations may be repeated. Permanent errors (rights, a missing bucket, a certificate) are
reported at once.

The location of such a store is given by its URI, and used by two clients.

    s3://[KEY:SECRET@]bucket[/prefix][?parameter=value&...]

| parameter | meaning |
|---|---|
| `endpoint_override` | host and port of a store other than Amazon's; buckets are then part of the path |
| `scheme` | `https`, the default, or `http` |
| `region` | the region; by default `AWS_REGION` or `AWS_DEFAULT_REGION`, otherwise the store is asked |
| `tls_ca_file_path` | a PEM file with the certificates for verifying the store's certificate |
| `request_timeout_s` | the timeout of a connection and an answer, before the request is repeated |

Credentials that are not in the URI are found as by Amazon's tools: the variables `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, the file `~/.aws/credentials`, the machine's role. Workers use the same
places. pyarrow moves the bytes; boto3 does the conditional writes, which pyarrow does not have.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow
import pyarrow.fs
from attrs import field, frozen

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.arrow_storage import ArrowStorage
from statebackend.checkpoint.fs.conditional_objects import ConditionalObjects, S3ConditionalObjects
from statebackend.checkpoint.fs.local_storage import Accept
from statebackend.checkpoint.fs.retries import BoundedRetries, is_temporary_status
from statebackend.checkpoint.fs.store_uri import without_secrets

_PARAMETERS: Final = ("endpoint_override", "scheme", "region", "tls_ca_file_path", "request_timeout_s")
_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
)
_REGION_WITHOUT_MEANING: Final = "us-east-1"
_CONNECT_TIMEOUT_S: Final = 5.0
_READ_TIMEOUT_S: Final = 10.0
_BUCKET: Final = re.compile("[A-Za-z0-9._-]+")
_HOST_OR_REGION: Final = re.compile(r"[A-Za-z0-9._:\[\]-]*")
"""Only characters that cannot redirect a request to another host."""

_SECONDS: Final = re.compile("[1-9][0-9]{0,5}")


@frozen(kw_only=True)
class S3Location:
    """``prefix`` has no slash at its ends, and is empty for a whole bucket. Unspecified texts are empty."""

    bucket: str
    prefix: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    endpoint_override: str = ""
    scheme: str = "https"
    region: str = ""
    tls_ca_file_path: str = ""
    request_timeout_s: float | None = None

    @classmethod
    def from_uri(cls, uri: str) -> S3Location:
        """Parse a URI. Raises `StorageError` if it is not a location in such a store."""
        shown = without_secrets(uri)
        try:
            parts = urlsplit(uri)
            parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            bucket, access_key, secret_key = _authority(parts.netloc)
        except ValueError:
            raise StorageError(
                f"cannot open {shown!r}: it is not a URI of the form s3://bucket/path?name=value"
            ) from None
        unknown = sorted(set(parameters).difference(_PARAMETERS))
        if unknown:
            raise StorageError(
                f"cannot open {shown!r}: it has the parameter {unknown[0]!r}; there are {', '.join(_PARAMETERS)}. "
                f"Credentials go before the bucket, or into the environment"
            )
        if not _BUCKET.fullmatch(bucket) or parts.fragment or bool(access_key) != bool(secret_key):
            raise StorageError(
                f"cannot open {shown!r}: give s3://bucket/path, with KEY:SECRET@ before the bucket or with neither"
            )
        scheme = parameters.get("scheme", "https")
        if scheme not in ("https", "http"):
            raise StorageError(f"cannot open {shown!r}: its scheme is 'https' or 'http'")
        for name in ("endpoint_override", "region"):
            if name in parameters and not _HOST_OR_REGION.fullmatch(parameters[name]):
                raise StorageError(f"cannot open {shown!r}: its {name} is not the name of a host or region")
        timeout = parameters.get("request_timeout_s")
        if timeout is not None and not _SECONDS.fullmatch(timeout):
            raise StorageError(f"cannot open {shown!r}: its request_timeout_s takes seconds, from 1 to 999999")
        return cls(
            bucket=bucket,
            prefix="/".join(part for part in unquote(parts.path).split("/") if part),
            access_key=access_key,
            secret_key=secret_key,
            endpoint_override=parameters.get("endpoint_override", ""),
            scheme=scheme,
            region=parameters.get("region", ""),
            tls_ca_file_path=parameters.get("tls_ca_file_path", ""),
            request_timeout_s=None if timeout is None else float(timeout),
        )

    @property
    def root(self) -> str:
        """The location in pyarrow's form."""
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket

    def file_system(self, attempts: int = 3) -> pyarrow.fs.FileSystem:
        """Create pyarrow's client, with a limit of attempts per request. Asks the store for an unspecified region."""
        return pyarrow.fs.S3FileSystem(
            access_key=self.access_key or None,
            secret_key=self.secret_key or None,
            region=self._region(),
            scheme=self.scheme,
            endpoint_override=self.endpoint_override or None,
            tls_ca_file_path=self.tls_ca_file_path or None,
            request_timeout=self.request_timeout_s,
            connect_timeout=self.request_timeout_s,
            retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
            # A small file is then one request, which the store accepts whole or not at all.
            allow_delayed_open=True,
        )

    def conditional_client(self) -> Any:
        """Create boto3's client. Raises `StorageError` with the name of the extra if boto3 is not installed."""
        return _conditional_client(self, self._region(), tuple(map(os.environ.get, _CREDENTIALS)))

    def _region(self) -> str:
        configured = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if configured:
            return configured
        if self.endpoint_override:
            return _REGION_WITHOUT_MEANING
        return str(pyarrow.fs.resolve_s3_region(self.bucket))


@functools.lru_cache(maxsize=8)
def _conditional_client(location: S3Location, region: str, credentials: tuple[str | None, ...]) -> Any:
    """Cache a client by its arguments: creating one is slow, and threads may share it."""
    try:
        import boto3
        import botocore.config
    except ImportError as error:
        raise StorageError(
            "conditional writes on S3 need boto3, which is not installed: pip install 'statebackend[s3]'"
        ) from error
    session = boto3.session.Session(
        aws_access_key_id=location.access_key or None, aws_secret_access_key=location.secret_key or None
    )
    return session.client(
        "s3",
        region_name=region,
        endpoint_url=f"{location.scheme}://{location.endpoint_override}" if location.endpoint_override else None,
        use_ssl=location.scheme == "https",
        verify=location.tls_ca_file_path or None,
        config=botocore.config.Config(
            connect_timeout=location.request_timeout_s or _CONNECT_TIMEOUT_S,
            read_timeout=location.request_timeout_s or _READ_TIMEOUT_S,
            # A conditional writer must know of every attempt, because a second one may meet the result of the first.
            retries={"mode": "standard", "total_max_attempts": 1},
            s3={"addressing_style": "path" if location.endpoint_override else "auto"},
        ),
    )


def _authority(netloc: str) -> tuple[str, str, str]:
    user, _, bucket = netloc.rpartition("@")
    access_key, _, secret_key = user.partition(":")
    return bucket, unquote(access_key), unquote(secret_key)


T = TypeVar("T")

_AWS_ERROR = re.compile(r"AWS Error ([A-Z_0-9]+)(?: \(HTTP status (\d+)\))?")
_TEMPORARY: Final = frozenset(
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
"""Names of temporary errors. An unknown multipart upload is one too, because the upload restarts."""

_READ_AT_ONCE_BYTES: Final = 16 << 20


@frozen
class S3Storage:
    """Files below a place in an S3-compatible store; takes checked relative paths. See `Storage`."""

    location: S3Location
    files: ArrowStorage
    retries: BoundedRetries

    @classmethod
    def at(cls, location: S3Location, retries: BoundedRetries | None = None, attempts_at_once: int = 3) -> S3Storage:
        """The store at a location. ``attempts_at_once`` are pyarrow's own per request, within each of ``retries``."""
        files = ArrowStorage(location.file_system(attempts_at_once), location.root)
        return cls(location, files, BoundedRetries() if retries is None else retries)

    @property
    def has_conditional_writes(self) -> bool:
        """Yes."""
        return True

    def conditional(self) -> ConditionalObjects:
        """The objects for conditional writes. Raises `StorageError` if boto3 is not installed."""
        location = self.location
        return S3ConditionalObjects(location.conditional_client(), location.bucket, location.prefix, self.retries)

    def local_path(self, path: str) -> str | None:
        """None: the files have no path on this machine."""
        return self.files.local_path(path)

    def make_root(self) -> None:
        """Do nothing: there are no directories."""

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a file. After an error the object is unchanged, or is the whole new one."""
        self._try(lambda: self.files.replace(path, data))

    def create(self, path: str, data: bytes) -> bool:
        """Create a file with a conditional write; without boto3, as on stores without such writes."""
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
        """A seekable file object. Errors while reading a large file are not retried here."""
        size_bytes = self.size_bytes(path)
        if size_bytes is not None and size_bytes <= _READ_AT_ONCE_BYTES:
            return pyarrow.BufferReader(self.read(path))
        return self._try(lambda: self.files.open_input(path))

    def size_bytes(self, path: str) -> int | None:
        """Size of a file, None if it does not exist."""
        return self.sizes_bytes((path,))[0]

    def sizes_bytes(self, paths: Iterable[str]) -> list[int | None]:
        """`size_bytes` of each path, requested by key."""
        asked = list(paths)
        return self._try(lambda: self.files.sizes_bytes(asked))

    def list_files(self, prefix: str) -> list[str]:
        """Relative paths of all files below the directory `prefix`, as the store lists them."""
        return self._try(lambda: self.files.list_files(prefix))

    def list_directories(self, prefix: str) -> list[str]:
        """Names of the directories directly below `prefix`, as the store lists them."""
        return self._try(lambda: self.files.list_directories(prefix))

    def copy(self, path: str, target: str) -> None:
        """Copy an object within the store; at most 5 GiB."""
        root, filesystem = self.location.root, self.files.filesystem
        try:
            self._try(lambda: filesystem.copy_file(f"{root}/{path}", f"{root}/{target}"))
        except OSError as error:
            found = _AWS_ERROR.search(str(error))
            if found is not None and found[1] == "NO_SUCH_KEY":
                raise FileNotFoundError(errno.ENOENT, "no such object", path) from error
            raise

    def delete(self, path: str, durable: bool) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._try(lambda: self.files.filesystem.delete_file(f"{self.location.root}/{path}"))

    def delete_directory(self, path: str) -> None:
        """Remove all listed files below a directory."""
        self._try(lambda: self.files.delete_directory(path))

    def move_directory(self, path: str, target: str) -> None:
        """Copy all listed files below a directory, then delete them; a crash in between leaves both."""
        moved = self.list_files(path)
        for file in moved:
            self.copy(file, target + file[len(path) :])
        for file in moved:
            self.delete(file, durable=True)

    def _try(self, action: Callable[[], T]) -> T:
        return self.retries.run(action, _is_temporary)


def _is_temporary(error: Any) -> bool:
    if isinstance(error, FileNotFoundError) or not isinstance(error, (OSError, pyarrow.ArrowException)):
        return False
    found = _AWS_ERROR.search(str(error))
    if found is None:
        return False
    status = int(found[2] or 0)
    return is_temporary_status(status) or (not status and found[1] in _TEMPORARY)
