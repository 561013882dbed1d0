"""Checks and checksums that the value classes of checkpoints share.

The checksum of a file is xxh3 with 128 bits, written `xxh3:<32 lower-case hex digits>`. It detects accidents such as
truncation, bit rot or an overwritten file, not attacks. The prefix names the algorithm so that others can be added.

Paths come from files and messages, so they are checked where they enter and again by the file system. They are relative
POSIX paths that cannot leave their directory. The rule is lexical and the same on every store:

    path    := segment ("/" segment)*         at most 1024 bytes of UTF-8
    segment := 1..255 bytes, no "/", "\\", NUL or other control character, and neither "." nor ".."
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import BinaryIO, Final
from urllib.parse import quote

import xxhash

from snapshots.errors import format_value
from statebackend.checkpoint.errors import InvariantViolationError, UnsafePathError

__all__ = [
    "CHUNK_BYTES",
    "MAX_ID",
    "MAX_NAME_LENGTH",
    "MAX_PATH_BYTES",
    "UUID_PATTERN",
    "check_encodable",
    "check_identifier",
    "check_integer",
    "check_optional_integer",
    "check_uuid",
    "checked_relative_path",
    "checked_segment",
    "checksum_of_bytes",
    "checksum_of_chunks",
    "chunks_of",
    "is_checksum",
    "path_segment",
    "require",
]


MAX_NAME_LENGTH: Final = 1024
"""The limit of characters of a uid, a name or any other identifier."""

MAX_ID: Final = (1 << 63) - 1
"""The largest id and time: the largest long of Avro."""


UUID_PATTERN: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The pattern of a UUID as Python writes it."""


def require(condition: bool, message: str) -> None:
    """Raise `InvariantViolationError(message)` unless `condition` holds."""
    if not condition:
        raise InvariantViolationError(message)


def check_identifier(what: str, value: object) -> None:
    """Require `value` to be a string of 1 to 1024 encodable characters; `what` names it in the message."""
    if not (isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH):
        raise InvariantViolationError(
            f"{what} must be a string of 1 to {MAX_NAME_LENGTH} characters, not {format_value(value)}"
        )
    check_encodable(what, value)


def check_uuid(what: str, value: object) -> None:
    """Require `value` to be a UUID as text; `what` names it in the message."""
    if not (isinstance(value, str) and UUID_PATTERN.fullmatch(value)):
        raise InvariantViolationError(
            f"{what} must be a UUID such as '123e4567-e89b-12d3-a456-426614174000', not {format_value(value)}"
        )


def check_encodable(what: str, value: str) -> None:
    """Require `value` to have a UTF-8 encoding, which lone surrogates do not have."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvariantViolationError(f"{what} is not valid Unicode: {format_value(value)}") from None


def check_integer(what: str, value: object, low: int, high: int) -> None:
    """Require `value` to be an int (not a bool) with low <= value <= high."""
    if type(value) is not int or not low <= value <= high:
        raise InvariantViolationError(f"{what} must be an integer from {low} to {high}, not {format_value(value)}")


def check_optional_integer(what: str, value: object, low: int, high: int) -> None:
    """Require `value` to be None, or valid for `check_integer`."""
    if value is not None:
        check_integer(what, value, low, high)


MAX_PATH_BYTES = 1024
MAX_SEGMENT_BYTES = 255

_LONGEST_PLAIN_SEGMENT = 150
_PLAIN_SEGMENT = r"[A-Za-z0-9_~%=-][A-Za-z0-9_~%=.-]*"
_PLAIN_PATH = re.compile(f"{_PLAIN_SEGMENT}(?:/{_PLAIN_SEGMENT})*")
"""The form of nearly all paths. Such a path is accepted at once if it is no longer than a segment may be."""

_DOTS = {".": "%2E", "..": "%2E%2E"}


def checked_relative_path(path: str) -> str:
    """Return `path` unchanged if it obeys the grammar above, otherwise raise `UnsafePathError`."""
    reason = _objection(path)
    if reason is not None:
        raise UnsafePathError(
            f"path {format_value(path)} is rejected: {reason}. Paths are relative, with '/' between plain segments, "
            "for example 'shared/op-1/000042.sst'."
        )
    return path


def checked_segment(name: str) -> str:
    """Return `name` unchanged if it is a single segment of such a path, otherwise raise `UnsafePathError`."""
    if "/" in checked_relative_path(name):
        raise UnsafePathError(f"{format_value(name)} cannot be the name of a file or directory: it contains '/'")
    return name


def path_segment(name: str) -> str:
    """Return a unique path segment for the name of an operator, a state, or anything else.

    The name is escaped as in a URL. If the result is longer than 150 characters, it is cut and ends in a digest of the
    name, which leaves room for a suffix. Raises `UnsafePathError` for an empty name.
    """
    escaped = _DOTS.get(name) or quote(name, safe="")
    if len(escaped) > _LONGEST_PLAIN_SEGMENT:
        digest = xxhash.xxh3_128_hexdigest(name.encode())
        escaped = f"{escaped[: _LONGEST_PLAIN_SEGMENT - len(digest) - 1]}~{digest}"
    return checked_relative_path(escaped)


def _objection(path: object) -> str | None:
    if not isinstance(path, str):
        return f"it is a {type(path).__name__}, not a str"
    if len(path) <= MAX_SEGMENT_BYTES and _PLAIN_PATH.fullmatch(path):
        return None
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > MAX_PATH_BYTES:
        return f"it is {len(encoded)} bytes long, the limit is {MAX_PATH_BYTES}"
    if path.startswith("/"):
        return "it is absolute"
    if "\\" in path:
        return "it contains a backslash"
    if any(byte < 0x20 or byte == 0x7F for byte in encoded):
        return "it contains NUL or another control character"
    for segment in path.split("/"):
        if segment == "":
            return "it is empty or has an empty segment"
        if segment in (".", ".."):
            return f"it has a segment {segment!r}"
        if len(segment.encode("utf-8")) > MAX_SEGMENT_BYTES:
            return f"it has a segment longer than {MAX_SEGMENT_BYTES} bytes"
    return None


CHUNK_BYTES = 1 << 20

_CHECKSUM = re.compile(r"xxh3:[0-9a-f]{32}")


def is_checksum(text: object) -> bool:
    """Whether `text` has the form of a checksum."""
    return isinstance(text, str) and _CHECKSUM.fullmatch(text) is not None


def checksum_of_bytes(data: bytes) -> str:
    """The checksum of `data`."""
    return "xxh3:" + xxhash.xxh3_128_hexdigest(data)


def checksum_of_chunks(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Total size in bytes and checksum of the concatenated `chunks`, in constant memory."""
    hasher = xxhash.xxh3_128()
    size_bytes = 0
    for chunk in chunks:
        hasher.update(chunk)
        size_bytes += len(chunk)
    return size_bytes, "xxh3:" + hasher.hexdigest()


def chunks_of(source: BinaryIO) -> Iterable[bytes]:
    """The bytes of `source` from its position to its end, in chunks of at most 1 MiB."""
    while chunk := source.read(CHUNK_BYTES):
        yield chunk
