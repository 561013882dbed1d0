"""What several writers of one state knew, as one snapshot.

Serializers may learn while they write: a POJO serializer meets subclasses. Each subtask then persists what its own
serializer has met, and one that restores the bytes of several must know what all of them knew. Snapshots are merged
only where each one's bytes mean the same under the merged one; nothing is judged or migrated here.
"""

from __future__ import annotations

from typing import Any

from snapshots.envelope import snapshot_to_bytes
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot


def merge_snapshots(
    one: TypeSerializerSnapshot[Any], other: TypeSerializerSnapshot[Any]
) -> TypeSerializerSnapshot[Any] | None:
    """The snapshot under which the bytes of both can be read, or None if there is none.

    Snapshots that are written alike are one; others are asked (`TypeSerializerSnapshot.merged_with`).
    """
    if snapshot_to_bytes(one) == snapshot_to_bytes(other):
        return one
    if type(one) is not type(other):
        return None
    return one.merged_with(other)


def merge_all(
    some: tuple[TypeSerializerSnapshot[Any], ...], others: tuple[TypeSerializerSnapshot[Any], ...]
) -> tuple[TypeSerializerSnapshot[Any], ...] | None:
    """Pair by pair, for the snapshots inside another one; None if they are not as many, or a pair cannot be merged."""
    if len(some) != len(others):
        return None
    merged = [merge_snapshots(one, other) for one, other in zip(some, others, strict=True)]
    found = tuple(snapshot for snapshot in merged if snapshot is not None)
    return found if len(found) == len(merged) else None
