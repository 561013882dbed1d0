"""Checksummed JSON: small JSON files of a job directory that detect any change.

Such a file is one JSON object with `version`, its content and `checksum`. The checksum covers the same object
without `checksum`, written with sorted keys, ASCII escapes and no white space. A file has at most 64 KiB, unless its
reader sets another limit. A reader checks the checksum before the version, so a newer file is not taken for a damaged
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from snapshots.errors import cut, format_value
from snapshots.format_versions import newer_version, pre_release
from statebackend.checkpoint.errors import CorruptJobIdentityError, InvariantViolationError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import checksum_of_bytes

T = TypeVar("T")

_MAX_BYTES = 64 << 10
_VERSION_KEY = "version"
_PRE_RELEASE_KEY = "format_version"


def checksummed_json(content: Mapping[str, Any], format_version: int) -> bytes:
    """The bytes of a checksummed JSON file."""
    checksummed: dict[str, Any] = {_VERSION_KEY: format_version, **content}
    checksummed["checksum"] = checksum_of_bytes(_canonical(checksummed))
    return (json.dumps(checksummed, indent=2) + "\n").encode()


def read_checksummed_json(
    file_system: CheckpointFileSystem, path: str, format_version: int, max_bytes: int = _MAX_BYTES
) -> dict[str, Any]:
    """Read the content of a file and verify its checksum; its values are not checked.

    Raises `CorruptJobIdentityError`.
    """
    if file_system.size(path) > max_bytes:
        corrupt(file_system, path, "is too large")
    return parse_checksummed_json(file_system.read_file(path), file_system.location(path), format_version)


def read_record(file_system: CheckpointFileSystem, path: str, format_version: int, make: Callable[..., T]) -> T | None:
    """Return what ``make`` makes of the fields of a file, None if there is no file.

    Raises `CorruptJobIdentityError`, also if ``make`` rejects the fields.
    """
    if not file_system.exists(path):
        return None
    content = read_checksummed_json(file_system, path, format_version)
    try:
        return make(**content)
    except (InvariantViolationError, TypeError) as error:
        corrupt(file_system, path, f"is not valid: {error}")


def parse_checksummed_json(data: bytes, where: str, format_version: int) -> dict[str, Any]:
    """Like `read_checksummed_json`, for bytes; `where` names their origin in messages."""
    try:
        content: dict[str, Any] = json.loads(data.decode("utf-8"))
        checksum = content.pop("checksum")
        version_key = _VERSION_KEY if _VERSION_KEY in content else _PRE_RELEASE_KEY
        version = content.pop(version_key)
        expected = checksum_of_bytes(_canonical({version_key: version, **content}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unusable(where, f"cannot be read ({cut(repr(error), 200)})") from error
    if checksum != expected:
        raise _unusable(where, "is altered: its checksum does not match")
    if version_key == _PRE_RELEASE_KEY:
        raise CorruptJobIdentityError(pre_release(where, "Start the job in a new job directory."))
    if type(version) is not int or version < 1:
        raise _unusable(where, f"has no version {format_value(version)}")
    if version > format_version:
        raise CorruptJobIdentityError(newer_version(where, version, format_version))
    return content


def corrupt(file_system: CheckpointFileSystem, path: str, what: str) -> NoReturn:
    """Raise `CorruptJobIdentityError` for the file."""
    raise _unusable(file_system.location(path), what)


def _unusable(where: str, what: str) -> CorruptJobIdentityError:
    return CorruptJobIdentityError(
        f"{where} {what}. Restore it from a backup, or start from a savepoint in a new job directory."
    )


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
