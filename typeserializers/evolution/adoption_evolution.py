"""What a new serializer takes over although the old snapshot, which cannot know it, has refused it.

* A serializer without configuration adopts those whose values it accepts. That is always a migration: it accepts on
  write what the old one returned, but returns another Python type, so that even equal bytes must pass through both.
* Lists of either class have one layout, and are judged as if they were of one.
* A `ConvertingSerializer` takes over what its inner serializer may; else what a source of its converters may, through
  the function of the first such converter.
"""

from __future__ import annotations

from typing import Any

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.envelope import snapshot_class_name
from snapshots.plans import REWRITE
from snapshots.refusals import names_apart
from snapshots.type_serializer_snapshot import RULES, TypeSerializerSnapshot, resolve_compatibility
from typeserializers.containers.converting import ConvertingSerializer, ConvertingSerializerSnapshot
from typeserializers.containers.lists import ListSerializer, ListSerializerSnapshot
from typeserializers.evolution.evolution_plans import ConverterPlan, InnerPlan
from typeserializers.kernel.adoption import AdoptingTypeSerializerSnapshot
from typeserializers.kernel.field_metadata import name_of
from typeserializers.kernel.type_serializer import TypeSerializer


@RULES.adopts(AdoptingTypeSerializerSnapshot)
def adopt_accepted(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any] | None:
    """The verdict on a serializer that accepts the values of a few others."""
    snapshot = new_serializer.snapshot_configuration()
    assert isinstance(snapshot, AdoptingTypeSerializerSnapshot)
    if snapshot_class_name(type(old_snapshot)) not in snapshot.adopted_snapshots:
        return None
    old_serializer = old_snapshot.restore_serializer()
    old, new = names_apart(old_serializer.type_name, type(old_serializer).__name__, new_serializer)
    reason = f"{old} becomes {new}; a value that does not fit it stops the migration"
    return TypeSerializerSchemaCompatibility.compatible_after_migration(
        [Finding("", FieldVerdict.MIGRATE, "serializer-adopted", reason)], plan=REWRITE
    )


@RULES.adopts(ListSerializerSnapshot)
def adopt_list(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: ListSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any] | None:
    """The verdict on a list of another class (`ArrayListSerializer`): that on one of the same class."""
    snapshot_class = type(new_serializer.snapshot_configuration())
    if not isinstance(old_snapshot, ListSerializerSnapshot) or type(old_snapshot) is snapshot_class:
        return None
    return snapshot_class.around(*old_snapshot.nested_snapshots).resolve_schema_compatibility(new_serializer)


@RULES.adopts(ConvertingSerializerSnapshot)
def adopt_converted(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: ConvertingSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """The inner serializer's own verdict if it allows anything, else the first converter that fits."""
    verdict = resolve_compatibility(old_snapshot, new_serializer.inner)
    if not verdict.is_incompatible:
        reconfigured = None
        if verdict.is_with_reconfigured_serializer:
            reconfigured = new_serializer.around(verdict.reconfigured_serializer)
        plan = InnerPlan(verdict.plan)
        return TypeSerializerSchemaCompatibility(
            verdict.kind, verdict.findings, reconfigured, unchanged=verdict.unchanged, plan=plan
        )
    for converter in new_serializer.converters:
        source = resolve_compatibility(old_snapshot, converter.source)
        if not source.is_incompatible:
            reason = f"each {converter.source.type_name} goes through {name_of(converter.function)}"
            return TypeSerializerSchemaCompatibility.compatible_after_migration(
                [Finding("", FieldVerdict.MIGRATE, "value-converted", reason), *source.findings],
                plan=ConverterPlan(converter, source.plan),
            )
    return verdict
