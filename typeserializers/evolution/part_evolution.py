"""What is allowed of a part of a record, beyond what the snapshots of the serializers allow by themselves.

At the top of a state a serializer without configuration is the same class or nothing. A field of a record, and whatever
is nested in it, may besides widen along `typeserializers.evolution.promotions`, and may become optional. A record that
changes its type altogether needs a converter (`typeserializers.kernel.field_metadata`).
"""

from __future__ import annotations

from typing import Any

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.errors import UnresolvableSerializerError
from snapshots.refusals import names_apart
from snapshots.type_serializer_snapshot import (
    SimpleTypeSerializerSnapshot,
    TypeSerializerSnapshot,
    resolve_compatibility,
    resolved_once,
)
from typeserializers.containers.nullable import NullableSerializer, NullableSerializerSnapshot
from typeserializers.evolution.evolution_plans import BecameOptionalPlan, PromotionPlan
from typeserializers.evolution.promotions import PROMOTIONS
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.literals import LiteralSerializer, LiteralSerializerSnapshot


@resolved_once
def resolve_part(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """The verdict on a part of a record: what the snapshots allow, and promotions and optionality beyond."""
    if isinstance(old_snapshot, SimpleTypeSerializerSnapshot):
        widened = _widened(old_snapshot.create_serializer(), new_serializer)
        if widened is not None:
            return widened
    verdict = resolve_compatibility(old_snapshot, new_serializer)
    if not verdict.is_incompatible:
        return verdict
    may_be_literal = isinstance(new_serializer, (LiteralSerializer, NullableSerializer))
    if isinstance(old_snapshot, LiteralSerializerSnapshot) and not may_be_literal:
        # The values of a literal may widen as those of its type.
        return resolve_part(old_snapshot.nested_snapshots[0], new_serializer)
    if isinstance(old_snapshot, CompositeTypeSerializerSnapshot):
        verdict = old_snapshot.resolve_with(new_serializer, resolve_part)
        if not verdict.is_incompatible:
            return verdict
    try:
        old_serializer = restored_with(old_snapshot, new_serializer)
    except UnresolvableSerializerError:
        return verdict
    widened = _widened(old_serializer, new_serializer)
    if widened is not None:
        return widened
    if isinstance(new_serializer, NullableSerializer) and not isinstance(old_snapshot, NullableSerializerSnapshot):
        return _optional(resolve_part(old_snapshot, new_serializer.inner))
    if isinstance(old_snapshot, NullableSerializerSnapshot) and not isinstance(new_serializer, NullableSerializer):
        return TypeSerializerSchemaCompatibility.incompatible(
            Finding(
                "",
                FieldVerdict.REFUSE,
                "field-became-required",
                "the state may hold None here, the new field may not",
                "Keep the field optional, or say what becomes of None in its metadata: converted_by(function)",
            )
        )
    of_another_class = all(finding.rule == "serializer-class" for finding in verdict.findings)
    if type(old_serializer) is not type(new_serializer) and of_another_class:
        return TypeSerializerSchemaCompatibility.incompatible(_type_changed(old_serializer, new_serializer))
    return verdict


def is_promotion(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> bool:
    """Whether a scalar may be widened to another."""
    return (type(old), type(new)) in PROMOTIONS


def _widened(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> TypeSerializerSchemaCompatibility[Any] | None:
    promotion = PROMOTIONS.get((type(old), type(new)))
    if promotion is None:
        return None
    return TypeSerializerSchemaCompatibility.compatible_after_migration(
        [Finding("", FieldVerdict.MIGRATE, "field-widened", promotion.reason)], plan=PromotionPlan(promotion)
    )


def _optional(inner: TypeSerializerSchemaCompatibility[Any]) -> TypeSerializerSchemaCompatibility[Any]:
    if inner.is_incompatible:
        return inner
    optional = Finding("", FieldVerdict.MIGRATE, "field-became-optional", "every old value is present")
    return TypeSerializerSchemaCompatibility.compatible_after_migration(
        [optional, *inner.findings], plan=BecameOptionalPlan(inner.plan)
    )


def _type_changed(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> Finding:
    old_name, new_name = names_apart(old.type_name, type(old).__name__, new)
    what = "narrowed" if is_promotion(new, old) else "changed"
    return Finding(
        "",
        FieldVerdict.REFUSE,
        f"field-type-{what}",
        f"the type was {what} from {old_name} to {new_name}, and not every old value fits",
        f"Keep {old_name}, or say how a {new_name} is made of it, in the field's metadata: converted_by(function)",
    )
