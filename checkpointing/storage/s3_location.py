"""A place in an S3-compatible store: what its URI says, and the two clients that it is used by.

    s3://[KEY:SECRET@]bucket[/prefix][?parameter=value&...]

| parameter | what it says |
|---|---|
| `endpoint_override` | host and port of a store that is not Amazon's; buckets are then part of the path |
| `scheme` | `https`, the default, or `http` |
| `region` | the region; by default `AWS_REGION` or `AWS_DEFAULT_REGION`, and else the store is asked |
| `tls_ca_file_path` | the certificates that the store's is checked by, as a file in PEM format |
| `request_timeout_s` | for how long a connection and an answer are waited for, before the request is made again |

Credentials that the URI does not name come from where Amazon's tools look for them: the variables `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, the file `~/.aws/credentials`, the machine's role. Workers look there
too. pyarrow moves the bytes; conditional writes, which pyarrow does not have, are boto3's.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow.fs
from attrs import field, frozen

from checkpointing.errors import StorageError
from checkpointing.storage.store_uri import without_secrets

__all__ = ["S3Location"]

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
"""With nothing that could make another host of it."""

_SECONDS: Final = re.compile("[1-9][0-9]{0,5}")


@frozen(kw_only=True)
class S3Location:
    """``prefix`` has no slash at its ends, and is empty for a whole bucket. Texts may be empty for what is not said."""

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
        """Raises `StorageError` for what is no place in such a store."""
        shown = without_secrets(uri)
        try:
            parts = urlsplit(uri)
            parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            bucket, access_key, secret_key = _authority(parts.netloc)
        except ValueError:
            raise StorageError(f"cannot open {shown!r}: it is no URI of the form s3://bucket/path?name=value") from None
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
        """The place as pyarrow writes it."""
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket

    def file_system(self, attempts: int = 3) -> pyarrow.fs.FileSystem:
        """pyarrow's client, with so many attempts at a request. Asks the store for its region if nobody says it."""
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
            # A small file is one request then, which the store takes whole or not at all.
            allow_delayed_open=True,
        )

    def conditional_client(self) -> Any:
        """boto3's client. Raises `StorageError` if boto3 is not installed, naming the extra that brings it."""
        return _conditional_client(self, self._region(), tuple(map(os.environ.get, _CREDENTIALS)))

    def _region(self) -> str:
        said = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if said:
            return said
        if self.endpoint_override:
            return _REGION_WITHOUT_MEANING
        return str(pyarrow.fs.resolve_s3_region(self.bucket))


@functools.lru_cache(maxsize=8)
def _conditional_client(location: S3Location, region: str, credentials: tuple[str | None, ...]) -> Any:
    """One for all who ask alike: to make it takes longer than to use it, and threads may share it."""
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
            # Who writes under a condition must know of every attempt: a second one may meet the first.
            retries={"mode": "standard", "total_max_attempts": 1},
            s3={"addressing_style": "path" if location.endpoint_override else "auto"},
        ),
    )


def _authority(netloc: str) -> tuple[str, str, str]:
    user, _, bucket = netloc.rpartition("@")
    access_key, _, secret_key = user.partition(":")
    return bucket, unquote(access_key), unquote(secret_key)
