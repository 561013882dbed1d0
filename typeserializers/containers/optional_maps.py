"""Flink's optional map: an ordered map from names whose keys and values may each be absent.

    optional map := i64(0x000004F2C69A3D70) i32(entries) entry*
    entry        := UTF(name) part(key) part(value)
    part         := 00 | 01 i32(length) bytes

Flink writes what it can no longer load as absent; here the bytes of both parts are kept as they are, so that a map is
written back as it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import SnapshotFormatError

MAGIC: Final = 0x000004F2C69A3D70

# A name length and two flags.
_MINIMUM_ENTRY_BYTES: Final = 4


@frozen
class OptionalEntry:
    """One name with the bytes of its key and value, either of which may be None."""

    name: str
    key: bytes | None
    value: bytes | None


def write_optional_map(out: DataOutputView, entries: Sequence[OptionalEntry]) -> None:
    """Writes the entries in their order."""
    out.write_long(MAGIC)
    out.write_int(len(entries))
    for entry in entries:
        out.write_utf(entry.name)
        for part in (entry.key, entry.value):
            out.write_boolean(part is not None)
            if part is not None:
                out.write_sized_bytes(part)


def read_optional_map(source: DataInputView) -> tuple[OptionalEntry, ...]:
    """Reads the entries; raises `SnapshotFormatError` for anything else and for a name that comes twice."""
    position = source.position
    magic = source.read_long()
    if magic != MAGIC:
        raise SnapshotFormatError(f"no optional map begins at byte {position}: found {magic:#x} for {MAGIC:#x}")
    count = source.read_count(_MINIMUM_ENTRY_BYTES)
    entries = tuple(OptionalEntry(source.read_utf(), _read_part(source), _read_part(source)) for _ in range(count))
    if len({entry.name for entry in entries}) != len(entries):
        raise SnapshotFormatError(f"the optional map at byte {position} has a name twice: the bytes are damaged")
    return entries


def _read_part(source: DataInputView) -> bytes | None:
    return source.read_sized_bytes() if source.read_boolean() else None
