"""The evolution rules of records and of their parts.

Fields are matched by name, then by declared former names, never by position or similarity (`match_fields`). The rules,
each with its id in the issues:

    field-renamed               declared; the bytes carry no names, so it needs no migration
    field-added                 the default completes old records; without one: field-added-without-default, rejected
    field-default-unfit         rejected: the factory of an added field returned a value that does not fit
    field-removed               data loss; if a new field has a similar name, the fix shows how to declare a rename
    fields-reordered            migration
    field-widened               a promotion (`evolution.plans`), also inside lists, maps and optionals
    field-became-optional       migration: every old value is present
    field-became-required       rejected: an old value may be None
    field-type-changed          rejected, as is field-type-narrowed, unless the field has a converter: field-converted
    field-unreadable            rejected: this program cannot read the old values, not even to skip them
    pickle-class                rejected: a converter needs values that this program does not allow to unpickle
    ambiguous-rename            rejected: several new fields could continue an old one
    record-renamed              rejected unless the new class declares the former name
    record-converted            migration by converters between schema versions; a removed field is data loss unless a
                                converter declares that it reads it
    schema-version-older        rejected: the state has a later schema version than the program

A part of a record may change more than the top level of a state. At the top level, a serializer without configuration
must keep its class. A field, and everything nested in it, may also widen and become optional.

A new field may reuse the name that another field was renamed from. The field that declares the former name continues
the old field, and the field with the reused name is added. If the latter declares former names too, the match is
ambiguous:

    old: late     new: minutes (formerly late), late     minutes continues late, late is added
    old: late     new: minutes (formerly late), late (formerly delay)     ambiguous

If the old type has both names, the former names in the snapshot decide. If the old field of the same name already
declared the former name, it continues itself. If not, the new field continues the old field that it names, provided
that the old field of its own name continues elsewhere; otherwise the match is ambiguous, because one field would be
lost:

    old: a, b     new: a (formerly b), b (formerly a)             a continues b, b continues a
    old: a (formerly b), b (formerly a)     new: the same         a continues a, b continues b
    old: late, minutes     new: minutes (formerly late)           ambiguous
    old: late, minutes     new: minutes (formerly late), late     ambiguous
    old: late, minutes (formerly late)     new: minutes (formerly late)     minutes continues, late is removed
"""

from __future__ import annotations

import difflib
import typing
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar

from attrs import evolve, frozen

from snapshots.compatibility import (
    AS_IS,
    AsIsPlan,
    CompatibilityIssue,
    CompatibilityKind,
    FieldCompatibility,
    Plan,
    TypeSerializerSchemaCompatibility,
    another_serializer,
    names_apart,
    worst_kind,
)
from snapshots.compatibility_report import split_path
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.errors import UnresolvableSerializerError, format_value
from snapshots.type_serializer_snapshot import (
    RULES,
    SimpleTypeSerializerSnapshot,
    TypeSerializerSnapshot,
    resolve_compatibility,
    resolved_once,
)
from typeserializers.containers.nullable import NullableSerializer, NullableSerializerSnapshot
from typeserializers.evolution.plans import (
    PROMOTIONS,
    BecameOptionalPlan,
    FieldConverterPlan,
    Origin,
    Origins,
    PromotionPlan,
    RecordConvertersPlan,
    RecordPlan,
    ReferencePlan,
)
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.record_families import ABSENT, DeclaredField, ReadingConverter, RecordConverter, name_of
from typeserializers.kernel.references import ReferenceSerializer, ReferenceSerializerSnapshot, all_inside
from typeserializers.kernel.serializer_inference import DEFAULT_RULES, described
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.opaque import PickleSerializer
from typeserializers.records.column_names import displayed_names
from typeserializers.records.record_format import WrittenField, WrittenRecord
from typeserializers.records.record_serializer import AttrsSerializer, AttrsSerializerSnapshot, default_problem
from typeserializers.records.record_shape import RecordField, RecordShape
from typeserializers.scalars.literals import LiteralSerializer, LiteralSerializerSnapshot


@resolved_once
def resolve_part(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves a part of a record: like `resolve_compatibility`, plus promotions and optional fields."""
    if isinstance(old_snapshot, SimpleTypeSerializerSnapshot):
        widened = _widened(old_snapshot.create_serializer(), new_serializer)
        if widened is not None:
            return widened
    compatibility = resolve_compatibility(old_snapshot, new_serializer)
    if not compatibility.is_incompatible:
        return compatibility
    may_be_literal = isinstance(new_serializer, (LiteralSerializer, NullableSerializer))
    if isinstance(old_snapshot, LiteralSerializerSnapshot) and not may_be_literal:
        # The values of a literal widen like those of its type.
        return resolve_part(old_snapshot.nested_snapshots[0], new_serializer)
    if isinstance(old_snapshot, CompositeTypeSerializerSnapshot):
        compatibility = old_snapshot.resolve_with(new_serializer, resolve_part)
        if not compatibility.is_incompatible:
            return compatibility
    try:
        old_serializer = restored_with(old_snapshot, new_serializer)
    except UnresolvableSerializerError:
        return compatibility
    widened = _widened(old_serializer, new_serializer)
    if widened is not None:
        return widened
    if isinstance(new_serializer, NullableSerializer) and not isinstance(old_snapshot, NullableSerializerSnapshot):
        return _optional(resolve_part(old_snapshot, new_serializer.inner))
    if isinstance(old_snapshot, NullableSerializerSnapshot) and not isinstance(new_serializer, NullableSerializer):
        return TypeSerializerSchemaCompatibility.incompatible(
            CompatibilityIssue(
                "",
                FieldCompatibility.REJECT,
                "field-became-required",
                "the state may hold None here, and the new field may not",
                "Keep the field optional, or convert None: add metadata=converted_by(function) to the field",
            )
        )
    of_another_class = all(issue.rule == "serializer-class" for issue in compatibility.issues)
    if type(old_serializer) is not type(new_serializer) and of_another_class:
        return TypeSerializerSchemaCompatibility.incompatible(_type_changed(old_serializer, new_serializer))
    return compatibility


def is_promotion(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> bool:
    """Whether a promotion from the old scalar to the new one exists."""
    return (type(old), type(new)) in PROMOTIONS


def _widened(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> TypeSerializerSchemaCompatibility[Any] | None:
    promotion = PROMOTIONS.get((type(old), type(new)))
    if promotion is None:
        return None
    return TypeSerializerSchemaCompatibility.compatible_after_migration(
        [CompatibilityIssue("", FieldCompatibility.MIGRATE, "field-widened", promotion.reason)],
        plan=PromotionPlan(promotion),
    )


def _optional(inner: TypeSerializerSchemaCompatibility[Any]) -> TypeSerializerSchemaCompatibility[Any]:
    if inner.is_incompatible:
        return inner
    optional = CompatibilityIssue("", FieldCompatibility.MIGRATE, "field-became-optional", "every old value is present")
    return TypeSerializerSchemaCompatibility.compatible_after_migration(
        [optional, *inner.issues], plan=BecameOptionalPlan(inner.plan)
    )


def _type_changed(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> CompatibilityIssue:
    old_name, new_name = names_apart(old.type_name, type(old).__name__, new)
    what = "narrowed" if is_promotion(new, old) else "changed"
    return CompatibilityIssue(
        "",
        FieldCompatibility.REJECT,
        f"field-type-{what}",
        f"the type was {what} from {old_name} to {new_name}, and not every old value fits",
        f"Keep {old_name}, or convert it to {new_name}: add metadata=converted_by(function) to the field",
    )


SIMILAR_NAMES = 0.5
"""The least ratio of matching characters at which a removed field is suggested as the origin of a new one."""

MAX_COMPARED_NAMES = 100
"""With more fields on either side, similar names are not searched: it compares every pair."""


class NamedField(Protocol):
    """A field that `match_fields` accepts."""

    @property
    def name(self) -> str: ...

    @property
    def former_names(self) -> tuple[str, ...]: ...


F = TypeVar("F", bound=NamedField)


@frozen
class FieldMatch(Generic[F]):
    """The old field that a new field continues.

    Attributes:
        new: The new field.
        old_index: The index of the old field; None for an added field.
        claimant: The new field that continues the old field of this name, because it declares the former name.
        disputed: The old field that this field or the new field of that name could continue; the match is ambiguous.
    """

    new: F
    old_index: int | None
    claimant: str = ""
    disputed: str = ""


def match_fields(
    old_fields: Sequence[NamedField], new_fields: Sequence[F], *, declarations_are_known: bool = True
) -> list[FieldMatch[F]]:
    """Returns for each new field the old field that it continues, in the order of the new fields.

    Args:
        old_fields: The fields of the stored type.
        new_fields: The fields of the new type.
        declarations_are_known: Whether the old fields have the former names that were declared when they were written.
            If not, a field continues the old field of its own name if there is one.
    """
    old = {part.name: part for part in old_fields}
    new = {part.name: part for part in new_fields}
    moved = _moved_names(old_fields, new_fields)
    # A field with the name of a field that was renamed is new.
    moved_on = set(moved.values())
    origins = {name: moved.get(name, name) for name in new if name in moved or (name in old and name not in moved_on)}
    namesakes = {name for name, origin in origins.items() if name == origin}
    taken = set(origins.values())
    claimants: dict[str, str] = {}
    disputed: dict[str, str] = {}
    for part in new_fields:
        held = [name for name in part.former_names if name in old]
        if part.name in old:
            known = old[part.name].former_names
            unsettled = [name for name in held if name in namesakes and name not in known]
            if declarations_are_known and unsettled and part.name in namesakes:
                disputed[part.name] = unsettled[0]
            continue
        free = next((name for name in held if name not in taken), None)
        if free is not None:
            origins[part.name] = free
            taken.add(free)
            continue
        # Every former name is in use again. A name that another of them was renamed from belongs to a later field.
        former = {name for other in held for name in old[other].former_names if name != other}
        reused = [name for name in held if name in namesakes and name not in former]
        if len(reused) == 1 and not new[reused[0]].former_names:
            origins[part.name] = reused[0]
            claimants[reused[0]] = part.name
        elif reused:
            disputed[part.name] = reused[0]
    for name in claimants:
        del origins[name]
    index_of = {part.name: index for index, part in enumerate(old_fields)}
    return [
        FieldMatch(
            part,
            index_of[origins[part.name]] if part.name in origins else None,
            claimants.get(part.name, ""),
            disputed.get(part.name, ""),
        )
        for part in new_fields
    ]


@RULES.resolves(AttrsSerializerSnapshot)
def resolve_record(
    old_snapshot: AttrsSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves a new record over an old one."""
    if type(new_serializer) is not AttrsSerializer:
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer(old_snapshot.record.name, "RecordSerializer", new_serializer)
        )
    old, new = _with_displayed_names(old_snapshot.record, new_serializer.shape)
    steps = _steps(old, new)
    matches = match_fields(old.fields, new.fields)
    matched = [match.old_index for match in matches if match.old_index is not None]
    continued = set(matched)
    removed = [part for index, part in enumerate(old.fields) if index not in continued]
    fields = [_resolved_field(match, old, removed, new_serializer) for match in matches]
    issues = [*_name_issues(old, new), *_version_issues(old, new, steps)]
    issues += [issue for one in fields for issue in one.issues]
    issues += _removed(removed, matches, old.fields, new, bool(steps))
    if matched != sorted(matched):
        issues.append(
            CompatibilityIssue(
                "", FieldCompatibility.MIGRATE, "fields-reordered", "the fields are written in another order"
            )
        )
    if steps:
        issues = _left_to_converters(issues, old, matches, steps)
        issues += [issue for part in old.fields for issue in _converter_input_issues(part, new_serializer)]
    # Converters of the record replace the results of its fields.
    kinds = [] if steps else [one.kind for one in fields if one.kind is not None]
    kind = worst_kind([*kinds, *(issue.compatibility.kind for issue in issues)])
    plan: Plan | None = None
    if kind is not CompatibilityKind.INCOMPATIBLE:
        plan = (
            RecordConvertersPlan(steps, _untouched(old, new))
            if steps
            else _plan(kind, tuple(one.origin for one in fields))
        )
    reconfigured = {
        stored.name: one.reconfigured
        for stored, one in zip(new_serializer.shape.fields, fields, strict=True)
        if one.reconfigured is not None
    }
    return TypeSerializerSchemaCompatibility(
        kind,
        tuple(issues),
        new_serializer.with_serializers(reconfigured) if kind is _RECONFIGURED else None,
        unchanged=tuple(path for one in fields for path in one.unchanged),
        plan=plan,
    )


@frozen
class _ResolvedField:
    """The compatibility of one field of the new record.

    ``kind`` is None if the values come from a converter or a default. ``unchanged`` are the paths without a change.
    """

    issues: Sequence[CompatibilityIssue]
    origin: Origin | None = None
    kind: CompatibilityKind | None = None
    unchanged: Sequence[str] = ()
    reconfigured: TypeSerializer[Any] | None = None


def _resolved_field(
    match: FieldMatch[RecordField],
    old: WrittenRecord,
    removed: Sequence[WrittenField],
    new_serializer: AttrsSerializer[Any],
) -> _ResolvedField:
    path = f".{match.new.name}"
    if match.disputed:
        reason = ambiguous_rename(match)
        return _ResolvedField([CompatibilityIssue(path, FieldCompatibility.REJECT, "ambiguous-rename", *reason)])
    if match.old_index is None:
        return _ResolvedField([_added(match, removed, new_serializer.shape)])
    written = old.fields[match.old_index]
    issues: list[CompatibilityIssue] = []
    if written.name != match.new.name:
        issues.append(CompatibilityIssue(path, FieldCompatibility.AS_IS, "field-renamed", f"was {written.name}"))
    compatibility = resolve_part(written.snapshot, match.new.serializer)
    if compatibility.is_incompatible and match.new.converter is not None:
        issues += _converter_input_issues(written, new_serializer) or [_converted(match.new)]
        by_converter = FieldConverterPlan(match.new.converter, match.new.rejects_none)
        return _ResolvedField(issues, Origin(match.old_index, by_converter))
    is_column = match.new.declared_rename is not None
    issues += [(_of_column(issue) if is_column else issue).below(path) for issue in compatibility.issues]
    unchanged = [path + inner for inner in compatibility.unchanged]
    return _ResolvedField(
        issues,
        None if compatibility.is_incompatible else Origin(match.old_index, compatibility.plan),
        compatibility.kind,
        unchanged if issues or unchanged else [path],
        compatibility.reconfigured_serializer if compatibility.is_with_reconfigured_serializer else None,
    )


def _with_displayed_names(old: WrittenRecord, new: RecordShape) -> tuple[WrittenRecord, RecordShape]:
    """Return both records, with the names of columns if the fields of the new one are columns."""
    if any(part.declared_rename is None for part in new.fields):
        return old, new
    fields: tuple[NamedField, ...] = (*old.fields, *new.fields)
    names = list(dict.fromkeys(name for part in fields for name in (part.name, *part.former_names)))
    displayed = dict(zip(names, displayed_names(names), strict=True))

    def renamed(part: Any) -> Any:
        former = tuple(displayed[name] for name in part.former_names)
        return evolve(part, name=displayed[part.name], former_names=former)

    return evolve(old, fields=tuple(map(renamed, old.fields))), evolve(new, fields=tuple(map(renamed, new.fields)))


@RULES.resolves(ReferenceSerializerSnapshot)
def resolve_reference(
    old_snapshot: ReferenceSerializerSnapshot, new_serializer: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves a record inside itself: only the name must match, because the enclosing record is resolved itself."""
    name = old_snapshot.name
    if not isinstance(new_serializer, ReferenceSerializer):
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer(name, "ReferenceSerializer", new_serializer)
        )
    if name != new_serializer.name and name not in _former_names(new_serializer):
        reason = f"the state holds the record {name} here, and the new class is {new_serializer.name}"
        return TypeSerializerSchemaCompatibility.incompatible(
            CompatibilityIssue(
                "", FieldCompatibility.REJECT, "record-renamed", reason, "Declare the former name on the new class"
            )
        )
    return TypeSerializerSchemaCompatibility.compatible_as_is(plan=ReferencePlan(name))


_RECONFIGURED: Final = CompatibilityKind.WITH_RECONFIGURED_SERIALIZER


def _former_names(reference: ReferenceSerializer) -> tuple[str, ...]:
    try:
        target = reference.target
    except UnresolvableSerializerError:
        return ()
    return target.shape.former_names if isinstance(target, AttrsSerializer) else ()


def _plan(kind: CompatibilityKind, origins: Origins) -> Plan:
    # A record with references is not as is, because the enclosing record may change.
    stays = kind is CompatibilityKind.AS_IS and all(
        origin is not None and isinstance(origin.plan, AsIsPlan) for origin in origins
    )
    return AS_IS if stays else RecordPlan(origins)


def _steps(old: WrittenRecord, new: RecordShape) -> tuple[tuple[int, RecordConverter], ...]:
    """Returns the converters from the old version to the new one, each with the version it starts from."""
    return tuple(
        (version, new.converters[version])
        for version in range(old.schema_version, new.schema_version)
        if version in new.converters
    )


def _untouched(old: WrittenRecord, new: RecordShape) -> dict[tuple[str, str], Plan]:
    """Returns the plans for old values that no converter replaces, by old and new field name."""
    written = {part.name: part for part in old.fields}
    plans: dict[tuple[str, str], Plan] = {}
    for part in new.fields:
        for name in (part.name, *part.former_names):
            if name not in written:
                continue
            compatibility = resolve_part(written[name].snapshot, part.serializer)
            if not compatibility.is_incompatible:
                plans[name, part.name] = compatibility.plan
    return plans


def declared_former_names(old: str, new: str, declared: Sequence[str]) -> str:
    """Return advice to declare a former name of a class besides those that it declares."""
    return f"declare __former_names__ = {(*declared, old)!r} on {new}".replace("'", '"')


def _name_issues(old: WrittenRecord, new: RecordShape) -> Sequence[CompatibilityIssue]:
    if old.name == new.name:
        return ()
    if old.name in new.former_names:
        return (CompatibilityIssue("", FieldCompatibility.AS_IS, "record-renamed", f"was {old.name}"),)
    return (
        CompatibilityIssue(
            "",
            FieldCompatibility.REJECT,
            "record-renamed",
            f"the state holds records of {old.name}, and the new class is {new.name}",
            f"If {old.name} was renamed to {new.name}, {declared_former_names(old.name, new.name, new.former_names)}",
        ),
    )


def _version_issues(
    old: WrittenRecord, new: RecordShape, steps: Sequence[tuple[int, RecordConverter]]
) -> Sequence[CompatibilityIssue]:
    if old.schema_version > new.schema_version:
        return (
            CompatibilityIssue(
                "",
                FieldCompatibility.REJECT,
                "schema-version-older",
                f"the state has schema version {old.schema_version}, and {new.name} has only {new.schema_version}",
                "Restore with the program that wrote the state, or a later one",
            ),
        )
    if not steps:
        return ()
    path = ", ".join(f"{version} -> {version + 1} by {name_of(converter)}" for version, converter in steps)
    return (CompatibilityIssue("", FieldCompatibility.MIGRATE, "record-converted", f"schema versions {path}"),)


def _left_to_converters(
    issues: Sequence[CompatibilityIssue],
    old: WrittenRecord,
    matches: Sequence[FieldMatch[RecordField]],
    steps: Sequence[tuple[int, RecordConverter]],
) -> list[CompatibilityIssue]:
    """Leaves rejected and added fields to the converters; a removed field is lost unless a converter reads it."""
    read = {name for _, step in steps if isinstance(step, ReadingConverter) for name in step.fields}
    names = {f".{part.name}": part.name for part in old.fields}
    names |= {
        f".{match.new.name}": old.fields[match.old_index].name for match in matches if match.old_index is not None
    }
    left = []
    for issue in issues:
        name = names.get(next(iter(split_path(issue.path)), ""))
        if issue.compatibility is FieldCompatibility.LOSSY and name not in read:
            fixes = (issue.fix, f'If a converter reads {name}, declare it: reads_fields("{name}")(converter)')
            reason = f"{issue.reason} unless a converter reads them"
            issue = evolve(issue, reason=reason, fix=". ".join(filter(None, fixes)))
        elif issue.path and issue.compatibility in (FieldCompatibility.REJECT, FieldCompatibility.LOSSY):
            is_lost = issue.compatibility is FieldCompatibility.LOSSY
            left_to = ", except to the converter that reads them" if is_lost else ": left to the converters"
            reason = f"{issue.reason}{left_to}"
            issue = evolve(issue, compatibility=FieldCompatibility.MIGRATE, reason=reason, fix="")
        elif issue.rule == "field-added" and len(list(split_path(issue.path))) == 1:
            issue = evolve(issue, reason=f"{issue.reason}, unless a converter returns it")
        left.append(issue)
    return left


def _of_column(issue: CompatibilityIssue) -> CompatibilityIssue:
    """Correct the fix of an issue of a column, which cannot declare a converter."""
    if "converted_by(" not in issue.fix:
        return issue
    kept = issue.fix.partition(",")[0]
    return evolve(issue, fix=f"{kept}: convert the column before it is stored, or give it another name")


def _converted(new: RecordField) -> CompatibilityIssue:
    assert new.converter is not None
    reason = f"each old value goes through {name_of(new.converter)}"
    return CompatibilityIssue(f".{new.name}", FieldCompatibility.MIGRATE, "field-converted", reason)


def _converter_input_issues(part: WrittenField, new: AttrsSerializer[Any]) -> list[CompatibilityIssue]:
    """Returns issues for values that a converter needs and this program must not read."""
    try:
        inside = list(all_inside(restored_with(part.snapshot, new)))
    except UnresolvableSerializerError as error:
        return [CompatibilityIssue(f".{part.name}", FieldCompatibility.REJECT, "field-unreadable", str(error))]
    pickles = {one.class_name for one in inside if isinstance(one, PickleSerializer) and not one.is_chosen}
    return [
        CompatibilityIssue(
            f".{part.name}",
            FieldCompatibility.REJECT,
            "pickle-class",
            f"the converter needs the values, which are pickles of {name}, and this program does not allow to unpickle "
            f"them",
            f"Give the new record source_serializers=[PickleSerializer({name.rpartition(':')[2]})]",
        )
        for name in sorted(pickles)
    ]


def _skip_issues(part: WrittenField) -> list[CompatibilityIssue]:
    """Returns issues if the values of a removed field cannot even be skipped."""
    try:
        part.snapshot.restore_serializer()
    except UnresolvableSerializerError as error:
        return [CompatibilityIssue(f".{part.name}", FieldCompatibility.REJECT, "field-unreadable", str(error))]
    return []


def names_in_cycles(former_names: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the names that form cycles of renames, such as a swap."""
    names: set[str] = set()
    left = set(former_names)
    while left != names:
        names = left
        claims = {name: names.intersection(former_names[name]) - {name} for name in names}
        claimed = set().union(*claims.values())
        left = {name for name in names if name in claimed and claims[name]}
    return names


def ambiguous_rename(match: FieldMatch[Any]) -> tuple[str, str]:
    """Returns reason and fix of an ambiguous rename."""
    name, former = match.new.name, match.disputed
    return (
        f"{name} declares the former name {former}, and the new type has a field {former} too: the stored {former} "
        f"could be either of them",
        f"Remove former names that no stored state needs from {name} and {former}; or restore this state with a "
        f"version of the program that renamed {former} and did not use the name again",
    )


def reused_name(match: FieldMatch[Any]) -> str:
    """Returns a note for a new field whose name another field had before; empty for other fields."""
    return f"; the stored {match.new.name} continues as {match.claimant}" if match.claimant else ""


@lru_cache(maxsize=8)
def _declared_fields(record_class: type) -> Mapping[str, DeclaredField]:
    """Return the declared fields of a class by name. Each field of a class may be looked up, so they are kept."""
    family = DEFAULT_RULES.family_of(record_class)
    return {one.name: one for one in family.fields(record_class)} if family is not None else {}


def _declared_rename(record: RecordShape, name: str, former: str) -> str:
    """Return the declaration of a field with a former name, as code for the class."""
    declared = _declared_fields(record.record_class).get(name)
    [new] = [part for part in record.fields if part.name == name]
    if new.declared_rename is not None:
        return new.declared_rename(former)
    names = ", ".join(f'"{one}"' for one in (*new.former_names, former))
    annotated = f"former_names({names})"
    hint = ABSENT if declared is None else declared.hint
    if hint is ABSENT:
        return annotated
    is_annotated = typing.get_origin(hint) is Annotated
    kept = [part for part in typing.get_args(hint) if not isinstance(part, Mapping)] if is_annotated else [hint]
    return f"{name}: Annotated[{', '.join(map(described, kept))}, {annotated}]"


def _added(match: FieldMatch[RecordField], removed: Sequence[WrittenField], record: RecordShape) -> CompatibilityIssue:
    new = match.new
    path = f".{new.name}"
    origin = _similar_name(new.name, [part.name for part in removed])
    likely = None if origin else _only_field_that_fits(new, removed)
    # The default was checked at registration, but a factory may return another value now.
    problem = default_problem(new) if new.default_factory is not None else ""
    if problem:
        return CompatibilityIssue(
            path, FieldCompatibility.REJECT, "field-default-unfit", problem, "Give it one that fits"
        )
    if new.has_default:
        how = "default from its factory" if new.default_factory is not None else f"default {format_value(new.default)}"
        return CompatibilityIssue(path, FieldCompatibility.MIGRATE, "field-added", how + reused_name(match))
    declared = _declared_fields(record.record_class).get(new.name)
    is_computed = declared is not None and declared.needs_other_fields
    default = "a default that does not need the other fields" if is_computed else "a default"
    rename = f", or declare the rename: {_declared_rename(record, new.name, origin)}" if origin else ""
    if likely:
        rename = f", or, if {likely} was renamed, declare it: {_declared_rename(record, new.name, likely)}"
    return CompatibilityIssue(
        path,
        FieldCompatibility.REJECT,
        "field-added-without-default",
        "the field is new and old records have no value for it" + reused_name(match),
        f"Give it {default}{rename}",
    )


def _removed(
    removed: Sequence[WrittenField],
    matches: Sequence[FieldMatch[RecordField]],
    old_fields: Sequence[WrittenField],
    record: RecordShape,
    has_converters: bool,
) -> list[CompatibilityIssue]:
    added = [match.new.name for match in matches if match.old_index is None]
    issues = []
    claimant_of: dict[str, str] = {}
    for match in matches:
        # A declaration that the stored field already has does not refer to the removed field.
        known = () if match.old_index is None else old_fields[match.old_index].former_names
        for former in match.new.former_names:
            if former not in known:
                claimant_of.setdefault(former, match.new.name)
    for part in removed:
        claimant = claimant_of.get(part.name)
        if claimant is not None and not has_converters:
            issues.append(
                CompatibilityIssue(
                    f".{part.name}",
                    FieldCompatibility.REJECT,
                    "ambiguous-rename",
                    f"{claimant} declares the former name {part.name}, but the state holds both fields",
                    f"Keep {part.name} until {claimant} is renamed too, or drop the former name",
                )
            )
            continue
        target = _similar_name(part.name, added) if len(removed) <= MAX_COMPARED_NAMES else None
        rename = _declared_rename(record, target, part.name) if target else ""
        fix = f"It looks like a rename to {target}: declare {rename}" if rename else ""
        issues += _skip_issues(part)
        issues.append(
            CompatibilityIssue(
                f".{part.name}",
                FieldCompatibility.LOSSY,
                "field-removed",
                "the field was removed, and its values are lost",
                fix,
            )
        )
    return issues


def _only_field_that_fits(new: RecordField, removed: Sequence[WrittenField]) -> str | None:
    """Return the name of the removed field whose values may fit the new field, if there is exactly one."""
    if len(removed) > MAX_COMPARED_NAMES:
        return None
    fitting = [part.name for part in removed if _may_fit(part.snapshot, new.serializer)]
    return fitting[0] if len(fitting) == 1 else None


def _may_fit(old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]) -> bool:
    # Resolving composites here would compare all pairs of their parts once more at each level.
    if isinstance(old_snapshot, SimpleTypeSerializerSnapshot):
        return not resolve_part(old_snapshot, new_serializer).is_incompatible
    return type(new_serializer.snapshot_configuration()) is type(old_snapshot)


def _similar_name(name: str, candidates: Sequence[str]) -> str | None:
    if len(candidates) > MAX_COMPARED_NAMES:
        return None
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=SIMILAR_NAMES)
    return close[0] if close else None


def _moved_names(old_fields: Sequence[NamedField], new_fields: Sequence[NamedField]) -> dict[str, str]:
    """Returns the new names that the old record has too but that continue another old field: new name -> old name."""
    old = {part.name: part for part in old_fields}
    moved: dict[str, str] = {}
    for part in new_fields:
        if part.name not in old:
            continue
        news = [name for name in part.former_names if name in old and name not in old[part.name].former_names]
        if len(news) == 1:
            moved[part.name] = news[0]
    added = {
        name: part.name for part in new_fields if part.name not in old for name in part.former_names if name in old
    }
    # Only renames in a cycle, or on to a new field, lose nothing; other claims are dropped.
    while True:
        claims = Counter(moved.values())
        lost = [name for name, origin in moved.items() if claims[origin] > 1 or not (name in claims or name in added)]
        if not lost:
            return moved
        for name in lost:
            del moved[name]
