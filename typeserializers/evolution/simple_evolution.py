"""The evolution rules of Arrow types, enums and literals, and of serializers that adopt other state.

**Arrow.** Fields are matched by name, in record batches and in structs at any depth. Integers, floats and decimals may
widen, times may become finer, and strings may become binary or get longer offsets. A cast that would lose a value stops
the migration. An added field must be nullable and is null.

**Adoption.** The new serializer may adopt state that the old snapshot rejected:

* A serializer without configuration adopts serializers whose values it accepts. This always needs a migration, because
  it returns another Python type than the old serializer.
* The two list classes have one layout and are compared as one class.
* A `ConvertingSerializer` adopts what its inner serializer can restore, else what the source of one of its converters
  can restore; the first such converter is used.

**Enums.** Constants may be added, inserted and reordered. Old data keeps its ordinals: the new serializer is
reconfigured to the old order, followed by the new constants. A removed constant is *incompatible*. (Flink throws while
it reads the snapshot; inside a POJO it throws only when it restores the serializer.) To rename a constant, keep its old
name as an alias:

    class Colour(enum.Enum):
        CRIMSON = 1
        RED = CRIMSON  # the former name

If the name of one constant becomes an alias of another, the two become one, and the state is migrated. If the constants
become two again later, every stored value is therefore the one that both names had, on each state backend. Where values
must be distinct, as the keys of a map, the migration stops if two stored values become equal.

**Literals.** More values, and a literal that becomes its type, are *compatible as is*. Fewer values are *incompatible*,
because the state may hold the removed ones. A type that becomes a literal is migrated, and a value that is not allowed
stops the migration.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from snapshots.compatibility import (
    AS_IS,
    REWRITE,
    CompatibilityIssue,
    CompatibilityKind,
    FieldCompatibility,
    Plan,
    TypeSerializerSchemaCompatibility,
    another_serializer,
    names_apart,
    worst_kind,
)
from snapshots.envelope import snapshot_class_name
from snapshots.type_serializer_snapshot import RULES, TypeSerializerSnapshot, resolve_compatibility
from typeserializers.arrow import ArrowIpcSerializer, ArrowIpcSerializerSnapshot
from typeserializers.containers.converting import ConvertingSerializer, ConvertingSerializerSnapshot
from typeserializers.containers.lists import ListSerializer, ListSerializerSnapshot
from typeserializers.evolution.plans import ArrowPlan, ConverterPlan, EnumPlan, InnerPlan
from typeserializers.evolution.record_evolution import declared_former_names
from typeserializers.kernel.record_families import name_of
from typeserializers.kernel.type_serializer import AdoptingTypeSerializerSnapshot, TypeSerializer
from typeserializers.scalars.enums import EnumSerializer, EnumSerializerSnapshot
from typeserializers.scalars.literals import LiteralSerializer, LiteralSerializerSnapshot


@RULES.adopts(AdoptingTypeSerializerSnapshot)
def adopt_accepted(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any] | None:
    """Resolves a serializer that accepts the values of certain other serializers."""
    snapshot = new_serializer.snapshot_configuration()
    assert isinstance(snapshot, AdoptingTypeSerializerSnapshot)
    if snapshot_class_name(type(old_snapshot)) not in snapshot.adopted_snapshots:
        return None
    old_serializer = old_snapshot.restore_serializer()
    old, new = names_apart(old_serializer.type_name, type(old_serializer).__name__, new_serializer)
    reason = f"{old} becomes {new}; a value that does not fit it stops the migration"
    return TypeSerializerSchemaCompatibility.compatible_after_migration(
        [CompatibilityIssue("", FieldCompatibility.MIGRATE, "serializer-adopted", reason)], plan=REWRITE
    )


@RULES.adopts(ListSerializerSnapshot)
def adopt_list(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: ListSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any] | None:
    """Resolves a list over a list of the other class (`ArrayListSerializer`) as if the classes were equal."""
    snapshot_class = type(new_serializer.snapshot_configuration())
    if not isinstance(old_snapshot, ListSerializerSnapshot) or type(old_snapshot) is snapshot_class:
        return None
    return snapshot_class.around(*old_snapshot.nested_snapshots).resolve_schema_compatibility(new_serializer)


@RULES.adopts(ConvertingSerializerSnapshot)
def adopt_converted(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: ConvertingSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves the inner serializer; if it is incompatible, the first converter whose source is compatible."""
    compatibility = resolve_compatibility(old_snapshot, new_serializer.inner)
    if not compatibility.is_incompatible:
        reconfigured = None
        if compatibility.is_with_reconfigured_serializer:
            reconfigured = new_serializer.around(compatibility.reconfigured_serializer)
        plan = InnerPlan(compatibility.plan)
        return TypeSerializerSchemaCompatibility(
            compatibility.kind, compatibility.issues, reconfigured, unchanged=compatibility.unchanged, plan=plan
        )
    for converter in new_serializer.converters:
        source = resolve_compatibility(old_snapshot, converter.source)
        if not source.is_incompatible:
            reason = f"each {converter.source.type_name} goes through {name_of(converter.function)}"
            return TypeSerializerSchemaCompatibility.compatible_after_migration(
                [CompatibilityIssue("", FieldCompatibility.MIGRATE, "value-converted", reason), *source.issues],
                plan=ConverterPlan(converter, source.plan),
            )
    return compatibility


MAX_COMPARED_NAMES: Final = 100
"""With more constants on either side, similar names are not searched: it compares every pair."""


@RULES.resolves(EnumSerializerSnapshot)
def resolve_enum(old: EnumSerializerSnapshot[Any], new: TypeSerializer[Any]) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves an enum over the constants of an older enum."""
    if type(new) is not EnumSerializer:
        return TypeSerializerSchemaCompatibility.incompatible(another_serializer(old.name, "EnumSerializer", new))
    if old.name != new.name and old.name not in new.former_names:
        return TypeSerializerSchemaCompatibility.incompatible(_renamed(old.name, new))
    issues = []
    if old.name != new.name:
        issues.append(CompatibilityIssue("", FieldCompatibility.AS_IS, "enum-renamed", f"was {old.name}"))
    if old.constants == new.constants:
        return TypeSerializerSchemaCompatibility.compatible_as_is(issues)
    known: Mapping[str, Any] = new.enum_class.__members__
    added = _added_constants(old.constants, new.constants, known)
    removed = [constant for constant in old.constants if constant not in known]
    if removed:
        return TypeSerializerSchemaCompatibility.incompatible(_removed(old.name, removed, added))
    if added:
        reason = f"new: {', '.join(added)}; the old constants keep their ordinals"
        issues.append(CompatibilityIssue("", FieldCompatibility.RECONFIGURE, "enum-constants-added", reason))
    renamed = {constant: known[constant].name for constant in old.constants if known[constant].name != constant}
    for constant, name in renamed.items():
        issues.append(
            CompatibilityIssue("", FieldCompatibility.RECONFIGURE, "enum-constant-renamed", f"{constant} is now {name}")
        )
    merged = _merged(old.constants, known)
    for name, constants in merged.items():
        reason = f"{' and '.join(constants)} are one constant now: {name}"
        issues.append(
            CompatibilityIssue("", FieldCompatibility.MIGRATE, "enum-constants-merged", reason, merges_values=True)
        )
    plan = EnumPlan(tuple(known[constant].name for constant in old.constants))
    if merged:
        return TypeSerializerSchemaCompatibility.compatible_after_migration(issues, plan=plan)
    if not issues or issues[-1].compatibility is FieldCompatibility.AS_IS:
        reason = "the constants are in another order; the old ones keep their ordinals"
        issues.append(CompatibilityIssue("", FieldCompatibility.RECONFIGURE, "enum-constants-reordered", reason))
    order = (*plan.constants, *added)
    return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(
        EnumSerializer(new.enum_class, order, name=new.name, former_names=new.former_names), issues, plan=plan
    )


def _added_constants(old: Sequence[str], new: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Returns the constants that old data cannot contain, in the new order."""
    held = {known[constant].name for constant in old if constant in known}
    return [constant for constant in new if known[constant].name not in held]


def _merged(old: Sequence[str], known: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the old constants that are one constant now, by its name."""
    merged: dict[str, list[str]] = {}
    for constant in old:
        merged.setdefault(known[constant].name, []).append(constant)
    return {name: constants for name, constants in merged.items() if len(constants) > 1}


def _renamed(old: str, new: EnumSerializer[Any]) -> CompatibilityIssue:
    return CompatibilityIssue(
        "",
        FieldCompatibility.REJECT,
        "enum-class",
        f"the state holds constants of {old}, and the new enum is {new.name}",
        f"If {old} was renamed to {new.name}, {declared_former_names(old, new.name, new.former_names)}",
    )


def _removed(name: str, removed: list[str], added: list[str]) -> CompatibilityIssue:
    hints = []
    # The search compares every pair of names.
    comparable = len(removed) <= MAX_COMPARED_NAMES and len(added) <= MAX_COMPARED_NAMES
    for constant in removed if comparable else ():
        close = difflib.get_close_matches(constant, added, n=1, cutoff=0.5)
        if close:
            hints.append(f"if {constant} was renamed to {close[0]}, keep {constant} as an alias")
    return CompatibilityIssue(
        "",
        FieldCompatibility.REJECT,
        "enum-constants-removed",
        f"{name} no longer has {', '.join(removed)}, which the state may hold",
        "; ".join(["Keep the removed constants", *hints]),
    )


_INTEGER_BITS: Final = {
    pa.int8(): (8, True),
    pa.int16(): (16, True),
    pa.int32(): (32, True),
    pa.int64(): (64, True),
    pa.uint8(): (8, False),
    pa.uint16(): (16, False),
    pa.uint32(): (32, False),
    pa.uint64(): (64, False),
}
_FLOAT_BITS: Final = {pa.float16(): 16, pa.float32(): 32, pa.float64(): 64}
_UNITS: Final = ("s", "ms", "us", "ns")
_LONGER: Final = {
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.string(), pa.binary()),
    (pa.string(), pa.large_binary()),
    (pa.large_string(), pa.large_binary()),
    (pa.date32(), pa.date64()),
}


@RULES.resolves(ArrowIpcSerializerSnapshot)
def resolve_arrow(
    old: ArrowIpcSerializerSnapshot[Any], new: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves a schema over the batches or structs of another schema."""
    if type(new) is not old.serializer_class:
        name = old.serializer_class.__name__
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer("Arrow data", name, new, f"{name}(old_schema)")
        )
    assert isinstance(new, ArrowIpcSerializer)
    issues = resolve_fields(list(old.schema), list(new.schema), "")
    kind = worst_kind(issue.compatibility.kind for issue in issues)
    names = list(old.schema.names)
    columns = tuple(names.index(name) if name in names else None for name in new.schema.names)
    plan: Plan = AS_IS if kind is CompatibilityKind.AS_IS else ArrowPlan(columns)
    return TypeSerializerSchemaCompatibility(kind, tuple(issues), plan=plan)


def resolve_fields(old: list[pa.Field], new: list[pa.Field], path: str) -> list[CompatibilityIssue]:
    """Returns the issues of the fields of a record batch or struct."""
    found: list[CompatibilityIssue] = []
    old_fields = {part.name: part for part in old}
    for part in new:
        where = f"{path}.{part.name}"
        before = old_fields.get(part.name)
        if before is None:
            found.append(_added_field(part, where))
            continue
        found += _resolve_field(before, part, where)
    names = [part.name for part in new]
    for name in old_fields:
        if name not in names:
            reason = "the field was removed, and its values are lost"
            found.append(CompatibilityIssue(f"{path}.{name}", FieldCompatibility.LOSSY, "arrow-field-removed", reason))
    if [name for name in names if name in old_fields] != [name for name in old_fields if name in names]:
        reason = "the fields are in another order"
        found.append(CompatibilityIssue(path, FieldCompatibility.MIGRATE, "arrow-fields-reordered", reason))
    return found


def _resolve_field(old: pa.Field, new: pa.Field, path: str) -> list[CompatibilityIssue]:
    found = []
    if old.nullable and not new.nullable:
        reason = "the state may hold null here, the new field may not"
        found.append(
            CompatibilityIssue(
                path, FieldCompatibility.REJECT, "arrow-field-became-required", reason, "Keep it nullable"
            )
        )
    elif new.nullable and not old.nullable:
        found.append(
            CompatibilityIssue(path, FieldCompatibility.AS_IS, "arrow-field-became-optional", "it may be null now")
        )
    return found + resolve_types(old.type, new.type, path)


def resolve_types(old: pa.DataType, new: pa.DataType, path: str) -> list[CompatibilityIssue]:
    """Returns the issues of a type."""
    if pat.is_struct(old) and pat.is_struct(new):
        return resolve_fields(list(old), list(new), path)
    if _is_list(old) and old.id == new.id:
        if pat.is_fixed_size_list(old) and old.list_size != new.list_size:
            return [_changed(old, new, path)]
        return _resolve_field(old.value_field, new.value_field, path + "[]")
    if pat.is_map(old) and pat.is_map(new):
        return [
            *resolve_types(old.key_type, new.key_type, path + "{key}"),
            *_resolve_field(old.item_field, new.item_field, path + "{value}"),
        ]
    if old == new:
        return []
    if _is_widening(old, new):
        return [
            CompatibilityIssue(path, FieldCompatibility.MIGRATE, "arrow-type-widened", f"{old} is widened to {new}")
        ]
    return [_changed(old, new, path)]


def _added_field(part: pa.Field, where: str) -> CompatibilityIssue:
    if part.nullable:
        return CompatibilityIssue(where, FieldCompatibility.MIGRATE, "arrow-field-added", "null in old values")
    reason = "the field is new and not nullable"
    return CompatibilityIssue(
        where, FieldCompatibility.REJECT, "arrow-field-added-required", reason, "Make it nullable"
    )


def _changed(old: pa.DataType, new: pa.DataType, path: str) -> CompatibilityIssue:
    reason = f"{old} cannot become {new} without losing values"
    fix = "Keep the type, or add a field of another name"
    return CompatibilityIssue(path, FieldCompatibility.REJECT, "arrow-type-changed", reason, fix)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind))


def _is_widening(old: pa.DataType, new: pa.DataType) -> bool:
    if pat.is_null(old) or (old, new) in _LONGER:
        return True
    if old in _INTEGER_BITS and new in _INTEGER_BITS:
        (old_bits, old_signed), (new_bits, new_signed) = _INTEGER_BITS[old], _INTEGER_BITS[new]
        return new_bits > old_bits and (new_signed or not old_signed)
    if old in _INTEGER_BITS and pat.is_floating(new):
        return bool(new == pa.float64() or (new == pa.float32() and _INTEGER_BITS[old][0] <= 16))
    if old in _FLOAT_BITS and new in _FLOAT_BITS:
        return _FLOAT_BITS[new] > _FLOAT_BITS[old]
    if pat.is_decimal(old) and pat.is_decimal(new):
        more_digits = new.precision - new.scale >= old.precision - old.scale
        return bool(new.scale >= old.scale and more_digits and new.bit_width >= old.bit_width)
    return _is_finer_time(old, new)


def _is_finer_time(old: Any, new: Any) -> bool:
    for is_kind in (pat.is_timestamp, pat.is_duration, pat.is_time):
        if is_kind(old) and is_kind(new):
            same_zone = bool(getattr(old, "tz", None) == getattr(new, "tz", None))
            return same_zone and _UNITS.index(new.unit) > _UNITS.index(old.unit)
    return False


@RULES.adopts(LiteralSerializerSnapshot)
def adopt_values_of_the_type(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: LiteralSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any] | None:
    """Resolves a literal over state of its type."""
    if isinstance(old_snapshot, LiteralSerializerSnapshot):
        return None
    inner = resolve_compatibility(old_snapshot, new_serializer.inner)
    if inner.is_incompatible or inner.is_after_migration:
        return None
    reason = f"a stored value other than {new_serializer.described()} stops the migration"
    narrowed = CompatibilityIssue("", FieldCompatibility.MIGRATE, "became-literal", reason)
    return TypeSerializerSchemaCompatibility.compatible_after_migration([narrowed, *inner.issues], plan=REWRITE)
