"""What may change about Arrow types.

Fields are matched by name, in record batches as in structs at any depth. Integers, floats and decimals may widen, times
may become finer, strings may become binary or get longer offsets; a cast that would lose a value stops the migration.
An added field must be nullable, and is null.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from snapshots.compatibility import (
    CompatibilityKind,
    FieldVerdict,
    Finding,
    TypeSerializerSchemaCompatibility,
    worst_kind,
)
from snapshots.plans import AS_IS, Plan
from snapshots.refusals import another_serializer
from snapshots.type_serializer_snapshot import RULES
from typeserializers.arrow.arrow_serializer import ArrowIpcSerializer, ArrowIpcSerializerSnapshot
from typeserializers.evolution.evolution_plans import ArrowPlan
from typeserializers.kernel.type_serializer import TypeSerializer

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


@RULES.judges(ArrowIpcSerializerSnapshot)
def judge_arrow(
    old: ArrowIpcSerializerSnapshot[Any], new: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """The verdict on a schema taking over the batches, or structs, of another one."""
    if type(new) is not old.serializer_class:
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer("Arrow data", old.serializer_class.__name__, new)
        )
    assert isinstance(new, ArrowIpcSerializer)
    findings = resolve_fields(list(old.schema), list(new.schema), "")
    kind = worst_kind(finding.verdict.kind for finding in findings)
    names = list(old.schema.names)
    columns = tuple(names.index(name) if name in names else None for name in new.schema.names)
    plan: Plan = AS_IS if kind is CompatibilityKind.AS_IS else ArrowPlan(columns)
    return TypeSerializerSchemaCompatibility(kind, tuple(findings), plan=plan)


def resolve_fields(old: list[pa.Field], new: list[pa.Field], path: str) -> list[Finding]:
    """What happens to the fields of a record batch or struct."""
    found: list[Finding] = []
    old_fields = {part.name: part for part in old}
    for part in new:
        where = f"{path}.{part.name}"
        before = old_fields.get(part.name)
        if before is None:
            found.append(_added(part, where))
            continue
        found += _resolve_field(before, part, where)
    names = [part.name for part in new]
    for name in old_fields:
        if name not in names:
            reason = "the field is gone, its values are lost"
            found.append(Finding(f"{path}.{name}", FieldVerdict.LOSSY, "arrow-field-removed", reason))
    if [name for name in names if name in old_fields] != [name for name in old_fields if name in names]:
        reason = "the fields are in another order"
        found.append(Finding(path, FieldVerdict.MIGRATE, "arrow-fields-reordered", reason))
    return found


def _resolve_field(old: pa.Field, new: pa.Field, path: str) -> list[Finding]:
    found = []
    if old.nullable and not new.nullable:
        reason = "the state may hold null here, the new field may not"
        found.append(Finding(path, FieldVerdict.REFUSE, "arrow-field-became-required", reason, "Keep it nullable"))
    elif new.nullable and not old.nullable:
        found.append(Finding(path, FieldVerdict.AS_IS, "arrow-field-became-optional", "it may be null now"))
    return found + resolve_types(old.type, new.type, path)


def resolve_types(old: pa.DataType, new: pa.DataType, path: str) -> list[Finding]:
    """What happens to values of a type."""
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
        return [Finding(path, FieldVerdict.MIGRATE, "arrow-type-widened", f"{old} is widened to {new}")]
    return [_changed(old, new, path)]


def _added(part: pa.Field, where: str) -> Finding:
    if part.nullable:
        return Finding(where, FieldVerdict.MIGRATE, "arrow-field-added", "null in what was before")
    reason = "the field is new and not nullable"
    return Finding(where, FieldVerdict.REFUSE, "arrow-field-added-required", reason, "Make it nullable")


def _changed(old: pa.DataType, new: pa.DataType, path: str) -> Finding:
    reason = f"{old} cannot become {new} without losing values"
    fix = "Keep the type, or add a field of another name"
    return Finding(path, FieldVerdict.REFUSE, "arrow-type-changed", reason, fix)


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
