"""What may change about a POJO: Flink's order of decisions, and the few places where we go on.

1. the new serializer is not a PojoSerializer                               rejected
2. the class has another name                                              rejected, unless declared as former name
3. a subclass that was seen can no longer be loaded                        rejected
4. fields on both sides are judged by their serializers; one rejects       rejected
5. subclasses on both sides likewise                                       rejected
6. a field was added or removed, or something above needs migration        migration
7. the registrations are no prefix of the new ones, unregistered subclasses were seen, or something above must be
   reconfigured                                                            reconfigured: old tags stay what they are
8. otherwise                                                               as is

Where we differ: a field renamed by a declared former name keeps its values, as does a class; a removed field is said to
be lossy; the state of an *unregistered* subclass is judged too, which Flink does not and then misreads; an added field
without a default gets None if it is optional, else the zero of its type, which is what Java would give it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from snapshots.compatibility import (
    AS_IS,
    CompatibilityIssue,
    CompatibilityKind,
    FieldCompatibility,
    Plan,
    TypeSerializerSchemaCompatibility,
    another_serializer,
    worst_kind,
)
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import RULES, resolve_compatibility
from typeserializers.evolution.plans import Origin, PojoPlan
from typeserializers.evolution.record_evolution import (
    FieldMatch,
    ambiguous_rename,
    match_fields,
    names_in_circles,
    reused_name,
)
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_format import UnreadableSnapshot, WrittenPart, WrittenPojo
from typeserializers.pojos.pojo_serializer import PojoSerializer, PojoSerializerSnapshot
from typeserializers.pojos.pojo_shape import PojoField


@define
class _Judgement:
    """What has been found so far: of the parts, and by name what is to be used for the fields and subclasses."""

    issues: list[CompatibilityIssue] = field(factory=list)
    kinds: list[CompatibilityKind] = field(factory=list)
    origins: list[Origin | None] = field(factory=list)
    reconfigured_fields: dict[str, TypeSerializer[Any]] = field(factory=dict)
    subclasses: dict[str, PojoSerializer[Any]] = field(factory=dict)
    subclass_plans: dict[str, Plan] = field(factory=dict)

    def add(self, path: str, compatibility: TypeSerializerSchemaCompatibility[Any]) -> None:
        """Takes in the compatibility result on a part."""
        self.kinds.append(compatibility.kind)
        self.issues += [issue.below(path) for issue in compatibility.issues]


@RULES.resolves(PojoSerializerSnapshot)
def judge_pojo(
    old_snapshot: PojoSerializerSnapshot[Any], new: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """The compatibility result on a new POJO serializer taking over an old POJO."""
    old = old_snapshot.pojo
    if type(new) is not PojoSerializer:
        return TypeSerializerSchemaCompatibility.incompatible(another_serializer(old.name, "PojoSerializer", new))
    judgement = _Judgement()
    issues = judgement.issues
    if old.name != new.shape.name:
        issues.append(_renamed(old.name, new))
    _judge_fields(old, new, judgement)
    _judge_subclasses(old, new, judgement)
    old_tags = [part.name for part in old.registered]
    new_tags = [subclass.shape.name for subclass in new.registered_subclasses]
    if new_tags[: len(old_tags)] != old_tags:
        reason = f"registered were {', '.join(old_tags)}; their tags are kept, new ones follow"
        issues.append(CompatibilityIssue("", FieldCompatibility.RECONFIGURE, "pojo-registration-order", reason))
    if old.unregistered:
        names = ", ".join(part.name for part in old.unregistered)
        reason = f"the state holds {names}, which were not registered; they stay readable"
        issues.append(CompatibilityIssue("", FieldCompatibility.RECONFIGURE, "pojo-unregistered-subclasses", reason))
    kind = worst_kind([*judgement.kinds, *(issue.compatibility.kind for issue in issues)])
    plan: Plan | None = None
    if kind is not CompatibilityKind.INCOMPATIBLE:
        as_is = kind is CompatibilityKind.AS_IS
        plan = AS_IS if as_is else PojoPlan(tuple(judgement.origins), judgement.subclass_plans)
    reconfigured: TypeSerializer[Any] | None = None
    if kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER:
        reconfigured = new.reconfigured(judgement.reconfigured_fields, judgement.subclasses, old_tags)
    return TypeSerializerSchemaCompatibility(kind, tuple(issues), reconfigured, plan=plan)


def _judge_fields(old: WrittenPojo, new: PojoSerializer[Any], judgement: _Judgement) -> None:
    issues = judgement.issues
    matches = match_fields(old.fields, new.shape.fields, declarations_are_known=False)
    matched = {match.old_index for match in matches}
    held = {part.name for part in old.fields}
    # A POJO's snapshot does not say which former names were declared when it was written.
    circle = names_in_circles({part.name: part.former_names for part in new.shape.fields if part.name in held})
    for match in matches:
        path = f".{match.new.name}"
        if match.disputed:
            issues.append(
                CompatibilityIssue(path, FieldCompatibility.REJECT, "pojo-rename-ambiguous", *ambiguous_rename(match))
            )
            judgement.origins.append(None)
            continue
        if match.new.name in circle:
            issues.append(
                CompatibilityIssue(path, FieldCompatibility.REJECT, "pojo-rename-ambiguous", *_swapped(circle))
            )
            judgement.origins.append(None)
            continue
        if match.old_index is None:
            issues.append(_added(match, path))
            judgement.origins.append(None)
            continue
        written = old.fields[match.old_index]
        if written.name != match.new.name:
            # The order on the wire is that of the names, so a new name may be another place.
            issues.append(
                CompatibilityIssue(path, FieldCompatibility.MIGRATE, "pojo-field-renamed", f"was {written.name}")
            )
        compatibility: TypeSerializerSchemaCompatibility[Any] = resolve_compatibility(
            written.snapshot, match.new.serializer
        )
        judgement.add(path, compatibility)
        if not compatibility.is_incompatible:
            judgement.origins.append(Origin(match.old_index, compatibility.plan))
        if compatibility.is_with_reconfigured_serializer:
            judgement.reconfigured_fields[match.new.name] = compatibility.reconfigured_serializer
    for index, written in enumerate(old.fields):
        if index in matched:
            continue
        path, snapshot = f".{written.name}", written.snapshot
        if isinstance(snapshot, UnreadableSnapshot):
            issues += [issue.below(path) for issue in snapshot.resolve_schema_compatibility(new).issues]
        else:
            try:
                snapshot.restore_serializer()
            except UnresolvableSerializerError as error:
                issues.append(CompatibilityIssue(path, FieldCompatibility.REJECT, "pojo-field-unreadable", str(error)))
        reason = "the field is gone, its values are lost"
        issues.append(CompatibilityIssue(path, FieldCompatibility.LOSSY, "pojo-field-removed", reason))


def _judge_subclasses(old: WrittenPojo, new: PojoSerializer[Any], judgement: _Judgement) -> None:
    held = {part.name for part in (*old.registered, *old.unregistered)}
    subclasses = (*new.registered_subclasses, *new.unregistered_subclasses)
    for part in (*old.registered, *old.unregistered):
        path = f"<{part.name}>"
        heir = next((one for one in subclasses if part.name in one.shape.former_names), None)
        if heir is not None and heir.shape.name not in held:
            judgement.issues.append(_renamed_subclass(part, path, heir))
            continue
        taking_over = new.subclass_named(part.name)
        if taking_over is None:
            if not new.shape.is_stand_in or isinstance(part.snapshot, UnreadableSnapshot):
                judgement.issues.append(_missing(part, path, new))
                continue
            kept = restored_with(part.snapshot, new)
            assert isinstance(kept, PojoSerializer)
            judgement.subclasses[part.name], judgement.subclass_plans[part.name] = kept, AS_IS
            continue
        compatibility: TypeSerializerSchemaCompatibility[Any] = resolve_compatibility(part.snapshot, taking_over)
        judgement.add(path, compatibility)
        if not compatibility.is_incompatible:
            judgement.subclass_plans[part.name] = compatibility.plan
        judgement.subclasses[part.name] = taking_over
        if compatibility.is_with_reconfigured_serializer:
            reconfigured = compatibility.reconfigured_serializer
            assert isinstance(reconfigured, PojoSerializer)
            judgement.subclasses[part.name] = reconfigured


def _swapped(names: Iterable[str]) -> tuple[str, str]:
    return (
        f"the fields {', '.join(sorted(names))} declare each other's names as former names, and Flink's format does "
        f"not say whether the state was written before or after that",
        "Remove these former names; rename the fields one after the other, by way of a name that is not in use",
    )


def _added(match: FieldMatch[PojoField], path: str) -> CompatibilityIssue:
    new, reused = match.new, reused_name(match)
    if new.completes_old_values:
        return CompatibilityIssue(
            path, FieldCompatibility.MIGRATE, "pojo-field-added", "old objects get its default" + reused
        )
    try:
        new.serializer.to_bytes(new.make_default())
    except Exception as error:
        return CompatibilityIssue(
            path,
            FieldCompatibility.REJECT,
            "pojo-field-added-without-default",
            f"the field is new and its type has no zero that old objects could get ({error})" + reused,
            "Give it a default",
        )
    return CompatibilityIssue(path, FieldCompatibility.MIGRATE, "pojo-field-added", "old objects get a zero" + reused)


def _renamed(old_name: str, new: PojoSerializer[Any]) -> CompatibilityIssue:
    if old_name in new.shape.former_names:
        return CompatibilityIssue("", FieldCompatibility.AS_IS, "pojo-class-renamed", f"was {old_name}")
    return CompatibilityIssue(
        "",
        FieldCompatibility.REJECT,
        "pojo-class",
        f"the state holds objects of {old_name}, the new class is {new.shape.name}",
        f'If it is what {old_name} became, declare __former_names__ = ("{old_name}",) on it',
    )


def _renamed_subclass(part: WrittenPart, path: str, heir: PojoSerializer[Any]) -> CompatibilityIssue:
    return CompatibilityIssue(
        path,
        FieldCompatibility.REJECT,
        "pojo-subclass-renamed",
        f"the state may hold objects of {part.name}, which {heir.shape.name} declares as its former name, and a "
        f"subclass keeps its name in the state",
        f'Keep the name: __pojo_class__ = "{part.name}" on {heir.record_class.__name__}, without __former_names__',
    )


def _missing(part: WrittenPart, path: str, new: PojoSerializer[Any]) -> CompatibilityIssue:
    return CompatibilityIssue(
        path,
        FieldCompatibility.REJECT,
        "pojo-subclass-missing",
        f"the state may hold objects of {part.name}, of which there is no class here",
        f'Keep the class: a subclass of {new.shape.record_class.__name__} with __pojo_class__ = "{part.name}"',
    )
