"""The evolution rules of POJOs: Flink's order of decisions, with a few extensions.

1. The new serializer is not a PojoSerializer: incompatible.
2. The class has another name: incompatible, unless the old name is declared as a former name.
3. A stored subclass can no longer be loaded: incompatible.
4. A field that both classes have is incompatible: incompatible.
5. A subclass that both have is incompatible: incompatible.
6. A field was added or removed, or a part needs migration: after migration.
7. The old registrations are not a prefix of the new ones, unregistered subclasses were stored, or a part is
   reconfigured: with reconfigured serializer; old tags keep their meaning.
8. Otherwise: as is.

Extensions of Flink's rules: a field or class renamed by a declared former name keeps its values. A removed field is
reported as data loss. The state of an *unregistered* subclass is checked too; Flink does not check it and misreads it.
An added field without a default is None if it is optional, else the zero of its type, as in Java.
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
    declared_former_names,
    match_fields,
    names_in_cycles,
    reused_name,
)
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_format import UnreadableSnapshot, WrittenPart, WrittenPojo
from typeserializers.pojos.pojo_serializer import PojoSerializer, PojoSerializerSnapshot
from typeserializers.pojos.pojo_shape import PojoField


@define
class _Resolution:
    """The results so far, and the serializers to use for fields and subclasses, by name."""

    issues: list[CompatibilityIssue] = field(factory=list)
    kinds: list[CompatibilityKind] = field(factory=list)
    origins: list[Origin | None] = field(factory=list)
    reconfigured_fields: dict[str, TypeSerializer[Any]] = field(factory=dict)
    subclasses: dict[str, PojoSerializer[Any]] = field(factory=dict)
    subclass_plans: dict[str, Plan] = field(factory=dict)

    def add(self, path: str, compatibility: TypeSerializerSchemaCompatibility[Any]) -> None:
        """Adds the compatibility result of a part."""
        self.kinds.append(compatibility.kind)
        self.issues += [issue.below(path) for issue in compatibility.issues]


@RULES.resolves(PojoSerializerSnapshot)
def resolve_pojo(
    old_snapshot: PojoSerializerSnapshot[Any], new: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves a new POJO serializer over an old POJO."""
    old = old_snapshot.pojo
    if type(new) is not PojoSerializer:
        return TypeSerializerSchemaCompatibility.incompatible(another_serializer(old.name, "PojoSerializer", new))
    resolution = _Resolution()
    issues = resolution.issues
    if old.name != new.shape.name:
        issues.append(_renamed(old.name, new))
    _resolve_fields(old, new, resolution)
    _resolve_subclasses(old, new, resolution)
    old_tags = [part.name for part in old.registered]
    new_tags = [subclass.shape.name for subclass in new.registered_subclasses]
    if new_tags[: len(old_tags)] != old_tags:
        reason = f"the registrations changed; {', '.join(old_tags)} keep their tags, new ones follow"
        issues.append(CompatibilityIssue("", FieldCompatibility.RECONFIGURE, "pojo-registration-order", reason))
    if old.unregistered:
        names = ", ".join(part.name for part in old.unregistered)
        reason = f"the state holds {names}, which are not registered; they stay readable"
        issues.append(CompatibilityIssue("", FieldCompatibility.RECONFIGURE, "pojo-unregistered-subclasses", reason))
    kind = worst_kind([*resolution.kinds, *(issue.compatibility.kind for issue in issues)])
    plan: Plan | None = None
    if kind is not CompatibilityKind.INCOMPATIBLE:
        as_is = kind is CompatibilityKind.AS_IS
        plan = AS_IS if as_is else PojoPlan(tuple(resolution.origins), resolution.subclass_plans)
    reconfigured: TypeSerializer[Any] | None = None
    if kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER:
        reconfigured = new.reconfigured(resolution.reconfigured_fields, resolution.subclasses, old_tags)
    return TypeSerializerSchemaCompatibility(kind, tuple(issues), reconfigured, plan=plan)


def _resolve_fields(old: WrittenPojo, new: PojoSerializer[Any], resolution: _Resolution) -> None:
    issues = resolution.issues
    matches = match_fields(old.fields, new.shape.fields, declarations_are_known=False)
    matched = {match.old_index for match in matches}
    held = {part.name for part in old.fields}
    # The snapshot of a POJO does not contain the former names declared when it was written.
    cycle = names_in_cycles({part.name: part.former_names for part in new.shape.fields if part.name in held})
    for match in matches:
        path = f".{match.new.name}"
        if match.disputed:
            issues.append(
                CompatibilityIssue(path, FieldCompatibility.REJECT, "pojo-rename-ambiguous", *ambiguous_rename(match))
            )
            resolution.origins.append(None)
            continue
        if match.new.name in cycle:
            issues.append(
                CompatibilityIssue(path, FieldCompatibility.REJECT, "pojo-rename-ambiguous", *_swapped(cycle))
            )
            resolution.origins.append(None)
            continue
        if match.old_index is None:
            issues.append(_added(match, path))
            resolution.origins.append(None)
            continue
        written = old.fields[match.old_index]
        if written.name != match.new.name:
            # Fields are written in the order of their names, so a new name may change the position.
            issues.append(
                CompatibilityIssue(path, FieldCompatibility.MIGRATE, "pojo-field-renamed", f"was {written.name}")
            )
        compatibility: TypeSerializerSchemaCompatibility[Any] = resolve_compatibility(
            written.snapshot, match.new.serializer
        )
        resolution.add(path, compatibility)
        if not compatibility.is_incompatible:
            resolution.origins.append(Origin(match.old_index, compatibility.plan))
        if compatibility.is_with_reconfigured_serializer:
            resolution.reconfigured_fields[match.new.name] = compatibility.reconfigured_serializer
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
        reason = "the field was removed, and its values are lost"
        issues.append(CompatibilityIssue(path, FieldCompatibility.LOSSY, "pojo-field-removed", reason))


def _resolve_subclasses(old: WrittenPojo, new: PojoSerializer[Any], resolution: _Resolution) -> None:
    held = {part.name for part in (*old.registered, *old.unregistered)}
    subclasses = (*new.registered_subclasses, *new.unregistered_subclasses)
    for part in (*old.registered, *old.unregistered):
        path = f"<{part.name}>"
        renamed = next((one for one in subclasses if part.name in one.shape.former_names), None)
        if renamed is not None and renamed.shape.name not in held:
            resolution.issues.append(_renamed_subclass(part, path, renamed))
            continue
        successor = new.subclass_named(part.name)
        if successor is None:
            if not new.shape.is_stand_in or isinstance(part.snapshot, UnreadableSnapshot):
                resolution.issues.append(_missing(part, path, new))
                continue
            kept = restored_with(part.snapshot, new)
            assert isinstance(kept, PojoSerializer)
            resolution.subclasses[part.name], resolution.subclass_plans[part.name] = kept, AS_IS
            continue
        compatibility: TypeSerializerSchemaCompatibility[Any] = resolve_compatibility(part.snapshot, successor)
        resolution.add(path, compatibility)
        if not compatibility.is_incompatible:
            resolution.subclass_plans[part.name] = compatibility.plan
        resolution.subclasses[part.name] = successor
        if compatibility.is_with_reconfigured_serializer:
            reconfigured = compatibility.reconfigured_serializer
            assert isinstance(reconfigured, PojoSerializer)
            resolution.subclasses[part.name] = reconfigured


def _swapped(names: Iterable[str]) -> tuple[str, str]:
    return (
        f"the fields {', '.join(sorted(names))} declare each other's names as former names, and Flink's format does "
        f"not say whether the state was written before or after that",
        "Remove these former names; rename the fields one by one, through a name that is not in use",
    )


def _added(match: FieldMatch[PojoField], path: str) -> CompatibilityIssue:
    new, reused = match.new, reused_name(match)
    if new.completes_old_values:
        return CompatibilityIssue(
            path, FieldCompatibility.MIGRATE, "pojo-field-added", "old objects get the default" + reused
        )
    try:
        new.serializer.to_bytes(new.make_default())
    except Exception as error:
        return CompatibilityIssue(
            path,
            FieldCompatibility.REJECT,
            "pojo-field-added-without-default",
            f"the field is new and its type has no zero value for old objects ({error})" + reused,
            "Give it a default",
        )
    return CompatibilityIssue(
        path, FieldCompatibility.MIGRATE, "pojo-field-added", "old objects get the zero value of its type" + reused
    )


def _renamed(old_name: str, new: PojoSerializer[Any]) -> CompatibilityIssue:
    if old_name in new.shape.former_names:
        return CompatibilityIssue("", FieldCompatibility.AS_IS, "pojo-class-renamed", f"was {old_name}")
    return CompatibilityIssue(
        "",
        FieldCompatibility.REJECT,
        "pojo-class",
        f"the state holds objects of {old_name}, and the new class is {new.shape.name}",
        f"If {old_name} was renamed, "
        f"{declared_former_names(old_name, new.record_class.__name__, new.shape.former_names)}",
    )


def _renamed_subclass(part: WrittenPart, path: str, renamed: PojoSerializer[Any]) -> CompatibilityIssue:
    return CompatibilityIssue(
        path,
        FieldCompatibility.REJECT,
        "pojo-subclass-renamed",
        f"the state may hold objects of {part.name}, which {renamed.shape.name} declares as its former name, and a "
        f"subclass keeps its name in the state",
        f'Keep the name: __pojo_class__ = "{part.name}" on {renamed.record_class.__name__}, without __former_names__',
    )


def _missing(part: WrittenPart, path: str, new: PojoSerializer[Any]) -> CompatibilityIssue:
    return CompatibilityIssue(
        path,
        FieldCompatibility.REJECT,
        "pojo-subclass-missing",
        f"the state may hold objects of {part.name}, and no class for it exists",
        f'Keep the class: a subclass of {new.shape.record_class.__name__} with __pojo_class__ = "{part.name}"',
    )
