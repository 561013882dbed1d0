"""What several writers of one POJO have learned, as one snapshot: the subclasses that any of them has met.

The class and its fields must be the same, and a tag must stand for one class: the registrations of one writer begin
with those of the other. A subclass is the same wherever it is named, with a tag or without.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from snapshots.merging import merge_snapshots
from typeserializers.pojos.pojo_format import UnreadableSnapshot, WrittenPart, WrittenPojo


def merged_pojo(one: WrittenPojo, other: WrittenPojo) -> WrittenPojo | None:
    """The POJO with the subclasses of both; None if their bytes cannot be read under one snapshot."""
    longer, shorter = sorted((one.registered, other.registered), key=len, reverse=True)
    tags = _names(longer)
    # Parts are equal whatever their snapshots.
    if one.name != other.name or one.fields != other.fields or _names(shorter) != tags[: len(shorter)]:
        return None
    fields = _merged_by_name([*one.fields, *other.fields])
    subclasses = _merged_by_name([*longer, *shorter, *one.unregistered, *other.unregistered])
    if fields is None or subclasses is None:
        return None
    met = dict.fromkeys(_names([*one.unregistered, *other.unregistered]))
    return WrittenPojo(
        one.name,
        tuple(fields[part.name] for part in one.fields),
        tuple(subclasses[name] for name in tags),
        tuple(subclasses[name] for name in met),
    )


def _names(parts: Iterable[WrittenPart]) -> list[str]:
    return [part.name for part in parts]


def _merged_by_name(parts: Iterable[WrittenPart]) -> dict[str, WrittenPart] | None:
    merged: dict[str, WrittenPart] = {}
    for part in parts:
        known = merged.get(part.name)
        both = part if known is None else _merged(known, part)
        if both is None:
            return None
        merged[part.name] = both
    return merged


def _merged(one: WrittenPart, other: WrittenPart) -> WrittenPart | None:
    if isinstance(one.snapshot, UnreadableSnapshot) or isinstance(other.snapshot, UnreadableSnapshot):
        return one if _unread(one) is not None and _unread(one) == _unread(other) else None
    snapshot = merge_snapshots(one.snapshot, other.snapshot)
    return None if snapshot is None else evolve(one, snapshot=snapshot)


def _unread(part: WrittenPart) -> bytes | None:
    return part.snapshot.data if isinstance(part.snapshot, UnreadableSnapshot) else None
