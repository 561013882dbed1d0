"""Snapshots of serializers without configuration that take over the state of a few others.

The old snapshot of a simple serializer refuses every other class; the new one may then adopt it. Adoption here is
always a migration: the new serializer accepts on write what the old one returned, but returns another Python type,
so that even equal bytes must pass through both.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.registry import snapshot_class_name
from snapshots.simple import SimpleTypeSerializerSnapshot, names_apart
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot

T = TypeVar("T")


class AdoptingTypeSerializerSnapshot(SimpleTypeSerializerSnapshot[T]):
    """A simple snapshot with a list of others whose values its serializer accepts."""

    adopted_snapshots: ClassVar[tuple[str, ...]] = ()
    """The stable names of the snapshots that are taken over."""

    def adopt_schema(self, old_snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSchemaCompatibility[T] | None:
        if snapshot_class_name(type(old_snapshot)) not in self.adopted_snapshots:
            return None
        old_serializer = old_snapshot.restore_serializer()
        old, new = names_apart(old_serializer.type_name, type(old_serializer).__name__, self.create_serializer())
        reason = f"{old} becomes {new}; a value that does not fit it stops the migration"
        return TypeSerializerSchemaCompatibility.compatible_after_migration(
            [Finding("", FieldVerdict.MIGRATE, "serializer-adopted", reason)]
        )
