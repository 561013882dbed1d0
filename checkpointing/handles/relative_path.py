"""Relative POSIX paths that cannot leave their directory.

Paths inside checkpoints and savepoints come from files and messages, so they are checked wherever they
enter: in the value classes that carry them and again by the file system that follows them. The rule is
lexical and the same on every store:

    path    := segment ("/" segment)*         at most 1024 bytes of UTF-8
    segment := 1..255 bytes, no "/", "\\", NUL or other control character, and neither "." nor ".."
"""

from __future__ import annotations

import re
from urllib.parse import quote

import xxhash

from checkpointing.errors import UnsafePathError
from snapshots.value_text import shown

__all__ = ["MAX_PATH_BYTES", "checked_relative_path", "checked_segment", "path_segment"]

MAX_PATH_BYTES = 1024
MAX_SEGMENT_BYTES = 255

_LONGEST_PLAIN_SEGMENT = 150
_PLAIN_SEGMENT = r"[A-Za-z0-9_~%=-][A-Za-z0-9_~%=.-]*"
_PLAIN_PATH = re.compile(f"{_PLAIN_SEGMENT}(?:/{_PLAIN_SEGMENT})*")
"""What nearly all paths are like; such a path of no more characters than a segment may have is found good at once."""

_DOTS = {".": "%2E", "..": "%2E%2E"}


def checked_relative_path(path: str) -> str:
    """Return `path` unchanged if it obeys the grammar above, otherwise raise `UnsafePathError`."""
    reason = _objection(path)
    if reason is not None:
        raise UnsafePathError(
            f"path {shown(path)} is refused: {reason}. Paths are relative, with '/' between plain segments, "
            "for example 'shared/op-1/000042.sst'."
        )
    return path


def checked_segment(name: str) -> str:
    """Return `name` unchanged if it is a single segment of such a path, otherwise raise `UnsafePathError`."""
    if "/" in checked_relative_path(name):
        raise UnsafePathError(f"{shown(name)} cannot be the name of a file or directory: it contains '/'")
    return name


def path_segment(name: str) -> str:
    """A segment for anything that has a name, such as an operator or a state; other names have other segments.

    The name is escaped as in a URL. What gets longer than 150 characters by that is cut, and ends in a digest of the
    name, so that there is room for a suffix. Raises `UnsafePathError` for an empty name.
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
