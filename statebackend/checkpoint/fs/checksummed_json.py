"""Small JSON files of a job directory that notice any change.

A sealed JSON file is one JSON object with `format_version`, content of its own, and `checksum`: the checksum of the
same object without it, with sorted keys, ASCII escapes and no white space. It has at most 64 KiB, unless its reader
says otherwise. The checksum is judged before the version, so that a newer file can be told from a damaged one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from snapshots.errors import cut, shown
from statebackend.checkpoint.errors import CorruptJobIdentityError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import checksum_of_bytes

__all__ = ["checksummed_json", "corrupt", "parse_checksummed_json", "read_checksummed_json"]

_MAX_BYTES = 64 << 10


def checksummed_json(content: Mapping[str, Any], format_version: int) -> bytes:
    """The bytes of a file with this content."""
    sealed: dict[str, Any] = {"format_version": format_version, **content}
    sealed["checksum"] = checksum_of_bytes(_canonical(sealed))
    return (json.dumps(sealed, indent=2) + "\n").encode()


def read_checksummed_json(
    file_system: CheckpointFileSystem, path: str, *format_versions: int, max_bytes: int = _MAX_BYTES
) -> dict[str, Any]:
    """The content of a file of one of these versions, proved whole; its values are not judged.

    Raises `CorruptJobIdentityError`.
    """
    if file_system.size(path) > max_bytes:
        corrupt(file_system, path, "is too large")
    return parse_checksummed_json(file_system.read_file(path), file_system.location(path), *format_versions)


def parse_checksummed_json(data: bytes, where: str, *format_versions: int) -> dict[str, Any]:
    """The content of these bytes, as `read_checksummed_json` tells it; `where` they are from is for messages."""
    try:
        content: dict[str, Any] = json.loads(data.decode("utf-8"))
        checksum = content.pop("checksum")
        version = content.pop("format_version")
        expected = checksum_of_bytes(_canonical({"format_version": version, **content}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unusable(where, f"cannot be read ({cut(repr(error), 200)})") from error
    if checksum != expected:
        raise _unusable(where, "is altered: its checksum does not match")
    if version not in format_versions:
        readable = " and ".join(map(str, format_versions))
        raise CorruptJobIdentityError(
            f"{where} has format version {shown(version)}; this release reads {readable}. "
            "Use the release of this package that wrote it, or a newer one."
        )
    return content


def corrupt(file_system: CheckpointFileSystem, path: str, what: str) -> NoReturn:
    """Raise `CorruptJobIdentityError` for the file."""
    raise _unusable(file_system.location(path), what)


def _unusable(where: str, what: str) -> CorruptJobIdentityError:
    return CorruptJobIdentityError(
        f"{where} {what}. Bring it back from a backup, or start from a savepoint in a new job directory."
    )


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
