"""The versions of our own durable formats: the header of binary formats, and the errors of all formats.

    header := magic (4 bytes) i32(version)

Version 1 is that of the first release. What pre-releases wrote has another magic or key.
"""

from __future__ import annotations

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import MalformedDataError, format_value


def pre_release(where: str, advice: str) -> str:
    """The error of something that a version before the first release wrote."""
    return f"{where} was written by a pre-release of statebackend, which this version does not read. {advice}"


def newer_version(where: str, version: object, newest: int) -> str:
    """The error of something in a later version of its format."""
    return (
        f"{where} was written by a newer version of statebackend: its format has version {format_value(version)}, and "
        f"this version reads up to {newest}. Install the version that wrote it, or a newer one."
    )


def write_header(out: DataOutputView, magic: bytes, version: int) -> None:
    """Write the header."""
    out.write(magic)
    out.write_int(version)


def read_header(source: DataInputView, magic: bytes, newest: int, what: str) -> None:
    """Read the header. Raises `MalformedDataError` unless it is that of a known version. ``what`` names the format."""
    found = source.read(len(magic))
    if found != magic:
        where = (
            f"{what} begins with {format_value(found)} instead of {format_value(magic)}: it is not of this format, or"
        )
        raise MalformedDataError(pre_release(where, "Use a checkpoint or savepoint of a released version."))
    version = source.read_int()
    if version > newest:
        raise MalformedDataError(newer_version(what, version, newest))
    if version < 1:
        raise MalformedDataError(f"{what} has no version {version}: it is damaged")
