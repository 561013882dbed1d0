"""What may change about an enum.

Constants may be added, inserted and reordered: old data keeps its ordinals, because the new serializer is
reconfigured to the old order with new constants behind it. A constant that is gone makes the verdict *incompatible*,
naming it. (Flink throws while it reads the snapshot, before there is a verdict, and inside a POJO only when the
serializer is restored, after it has said that all is well.) A constant is renamed by leaving its old name as an alias,
which Python's enums have:

    class Colour(enum.Enum):
        CRIMSON = 1
        RED = CRIMSON  # the former name

Two constants become one if the name of one of them becomes an alias of the other. Where values must be different, as
the keys of a map, the state is then migrated, and rejected if two stored values become equal.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.refusals import another_serializer
from snapshots.type_serializer_snapshot import RULES
from typeserializers.evolution.evolution_plans import EnumPlan
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.enums import EnumSerializer, EnumSerializerSnapshot

MAX_COMPARED_NAMES: Final = 100
"""With more constants on either side no likeness is looked for: every pair of names would be compared."""


@RULES.judges(EnumSerializerSnapshot)
def judge_enum(old: EnumSerializerSnapshot[Any], new: TypeSerializer[Any]) -> TypeSerializerSchemaCompatibility[Any]:
    """The verdict on an enum taking over the constants of another one."""
    if type(new) is not EnumSerializer:
        return TypeSerializerSchemaCompatibility.incompatible(another_serializer(old.name, "EnumSerializer", new))
    if old.name != new.name and old.name not in new.former_names:
        return TypeSerializerSchemaCompatibility.incompatible(_renamed(old.name, new.name))
    findings = []
    if old.name != new.name:
        findings.append(Finding("", FieldVerdict.AS_IS, "enum-renamed", f"was {old.name}"))
    if old.constants == new.constants:
        return TypeSerializerSchemaCompatibility.compatible_as_is(findings)
    known: Mapping[str, Any] = new.enum_class.__members__
    added = _added(old.constants, new.constants, known)
    removed = [constant for constant in old.constants if constant not in known]
    if removed:
        return TypeSerializerSchemaCompatibility.incompatible(_removed(old.name, removed, added))
    if added:
        reason = f"new: {', '.join(added)}; the old constants keep their ordinals"
        findings.append(Finding("", FieldVerdict.RECONFIGURE, "enum-constants-added", reason))
    renamed = {constant: known[constant].name for constant in old.constants if known[constant].name != constant}
    for constant, name in renamed.items():
        findings.append(Finding("", FieldVerdict.RECONFIGURE, "enum-constant-renamed", f"{constant} is now {name}"))
    for name, merged in _merged(old.constants, known).items():
        reason = f"{' and '.join(merged)} are one constant now: {name}"
        findings.append(Finding("", FieldVerdict.RECONFIGURE, "enum-constants-merged", reason, merges_values=True))
    if not findings or findings[-1].verdict is FieldVerdict.AS_IS:
        reason = "the constants are in another order; the old ones keep their ordinals"
        findings.append(Finding("", FieldVerdict.RECONFIGURE, "enum-constants-reordered", reason))
    order = (*_named_anew(old.constants, known), *added)
    return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(
        EnumSerializer(new.enum_class, order, name=new.name, former_names=new.former_names),
        findings,
        plan=EnumPlan(tuple(known[constant].name for constant in old.constants)),
    )


def _added(old: Sequence[str], new: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The constants that old data cannot hold, in the new order."""
    held = {known[constant].name for constant in old if constant in known}
    return [constant for constant in new if known[constant].name not in held]


def _merged(old: Sequence[str], known: Mapping[str, Any]) -> dict[str, list[str]]:
    """The old constants that are one constant now, by its name."""
    merged: dict[str, list[str]] = {}
    for constant in old:
        merged.setdefault(known[constant].name, []).append(constant)
    return {name: constants for name, constants in merged.items() if len(constants) > 1}


def _named_anew(old: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The old constants under their new names; two that became one keep both, so that no ordinal is lost."""
    names: list[str] = []
    canonical = {known[constant].name for constant in old if known[constant].name == constant}
    for constant in old:
        name = known[constant].name
        names.append(name if name not in names and (name == constant or name not in canonical) else constant)
    return names


def _renamed(old: str, new: str) -> Finding:
    return Finding(
        "",
        FieldVerdict.REFUSE,
        "enum-class",
        f"the state holds constants of {old}, the new enum is {new}",
        f'If {new} is what {old} became, declare __former_names__ = ("{old}",) on it',
    )


def _removed(name: str, removed: list[str], added: list[str]) -> Finding:
    hints = []
    # With more constants on either side every pair of names would be compared.
    comparable = len(removed) <= MAX_COMPARED_NAMES and len(added) <= MAX_COMPARED_NAMES
    for constant in removed if comparable else ():
        close = difflib.get_close_matches(constant, added, n=1, cutoff=0.5)
        if close:
            hints.append(f"if {constant} became {close[0]}, keep {constant} as an alias of it")
    return Finding(
        "",
        FieldVerdict.REFUSE,
        "enum-constants-removed",
        f"{name} no longer has {', '.join(removed)}, which the state may hold",
        "; ".join(["Keep what was removed", *hints]),
    )
