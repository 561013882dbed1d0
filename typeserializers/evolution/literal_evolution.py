"""What may change about a literal.

more values                 as is: the bytes are those of the type
fewer values                rejected, as an enum that lost a constant: the state may hold them
a literal becomes its type  as is
a type becomes a literal    migration, which stops at a value that is not allowed
"""

from __future__ import annotations

from typing import Any

from snapshots.compatibility import REWRITE, CompatibilityIssue, FieldCompatibility, TypeSerializerSchemaCompatibility
from snapshots.type_serializer_snapshot import RULES, TypeSerializerSnapshot, resolve_compatibility
from typeserializers.scalars.literals import LiteralSerializer, LiteralSerializerSnapshot


@RULES.adopts(LiteralSerializerSnapshot)
def adopt_values_of_the_type(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: LiteralSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any] | None:
    """The result for a literal over state whose values were all those of its type."""
    if isinstance(old_snapshot, LiteralSerializerSnapshot):
        return None
    inner = resolve_compatibility(old_snapshot, new_serializer.inner)
    if inner.is_incompatible or inner.is_after_migration:
        return None
    reason = f"a stored value that is none of {new_serializer.described()} stops the migration"
    narrowed = CompatibilityIssue("", FieldCompatibility.MIGRATE, "became-literal", reason)
    return TypeSerializerSchemaCompatibility.compatible_after_migration([narrowed, *inner.issues], plan=REWRITE)
