"""The rules by which a record may change between two versions of a program.

Fields are matched by name, then by declared former names; never by position and never by guess. The rules, each with
its id in the findings:

    field-renamed             declared: costs nothing by itself, the bytes carry no names
    field-added               the default completes old records; without one: field-added-without-default, refused
    field-removed             lossy; if a new field looks like it, the fix says how to declare a rename
    fields-reordered          migration
    field-widened             a promotion (`typeserializers.promotions`), also inside lists, maps and optionals
    field-became-optional     migration: every old value is present
    ambiguous-rename          a field exists under its own name *and* its former name: refused
    record-renamed            refused unless the new class declares the former name

Inside a record more is allowed than at the top of a state: there, a simple serializer is the same class or nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from snapshots.compatibility import (
    CompatibilityKind,
    FieldVerdict,
    Finding,
    TypeSerializerSchemaCompatibility,
    worst_kind,
)
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from typeserializers.nullable import NullableSerializer, NullableSerializerSnapshot
from typeserializers.promotions import PROMOTIONS
from typeserializers.record_shape import RecordField, RecordShape
from typeserializers.type_serializer import TypeSerializer

SIMILAR_NAMES = 0.5
"""From this ratio of matching characters on, a removed field is mentioned as the possible origin of a new one."""


@frozen
class WrittenField:
    """A field as the snapshot has it."""

    name: str
    snapshot: TypeSerializerSnapshot[Any] = field(eq=False)
    former_names: tuple[str, ...] = ()
    default_is_made: bool = False
    default: bytes | None = None


@frozen
class WrittenRecord:
    """A record as the snapshot has it."""

    name: str
    fields: tuple[WrittenField, ...]


@frozen
class RecordJudgement:
    """The verdict on a record, and the serializers of fields that must be reconfigured."""

    kind: CompatibilityKind
    findings: tuple[Finding, ...]
    reconfigured: Mapping[str, TypeSerializer[Any]]


@frozen
class FieldMatch:
    """Which written field a new field takes over: ``old_index`` is None for an added one."""

    new: RecordField
    old_index: int | None


def match_fields(old_names: list[str], new_fields: tuple[RecordField, ...]) -> list[FieldMatch]:
    """For each new field the old one that it continues: the one of the same name, else of a former name."""
    by_name = {name: index for index, name in enumerate(old_names)}
    taken = {by_name[part.name] for part in new_fields if part.name in by_name}
    matches = []
    for part in new_fields:
        index = by_name.get(part.name)
        if index is None:
            for former in part.former_names:
                candidate = by_name.get(former)
                if candidate is not None and candidate not in taken:
                    index = candidate
                    taken.add(candidate)
                    break
        matches.append(FieldMatch(part, index))
    return matches


def judge_record(old: WrittenRecord, new: RecordShape) -> RecordJudgement:
    """The verdict on a new record shape taking over an old record."""
    findings: list[Finding] = []
    kinds: list[CompatibilityKind] = []
    reconfigured: dict[str, TypeSerializer[Any]] = {}
    if old.name != new.name and old.name not in new.former_names:
        findings.append(
            Finding(
                "",
                FieldVerdict.REFUSE,
                "record-renamed",
                f"the state holds records of {old.name}, the new class is {new.name}",
                f'If {new.name} is what {old.name} became, declare __former_names__ = ("{old.name}",) on it',
            )
        )
    elif old.name != new.name:
        findings.append(Finding("", FieldVerdict.AS_IS, "record-renamed", f"was {old.name}"))
    old_names = [part.name for part in old.fields]
    matches = match_fields(old_names, new.fields)
    matched = [match.old_index for match in matches if match.old_index is not None]
    removed = [part for index, part in enumerate(old.fields) if index not in matched]
    for match in matches:
        path = f".{match.new.name}"
        if match.old_index is None:
            findings.append(_added(match.new, removed))
            continue
        written = old.fields[match.old_index]
        if written.name != match.new.name:
            findings.append(Finding(path, FieldVerdict.AS_IS, "field-renamed", f"was {written.name}"))
        verdict = resolve_part(written.snapshot, match.new.serializer)
        kinds.append(verdict.kind)
        findings += [finding.below(path) for finding in verdict.findings]
        if verdict.is_with_reconfigured_serializer:
            reconfigured[match.new.name] = verdict.reconfigured_serializer
    findings += _removed(removed, [match.new for match in matches if match.old_index is None], new)
    if matched != sorted(matched):
        findings.append(
            Finding("", FieldVerdict.MIGRATE, "fields-reordered", "the fields are written in another order")
        )
    kind = worst_kind([*kinds, *(finding.verdict.kind for finding in findings)])
    return RecordJudgement(kind, tuple(findings), reconfigured)


def resolve_part(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """The verdict on a part of a record: what the snapshots allow, and promotions and optionality beyond."""
    if isinstance(old_snapshot, CompositeTypeSerializerSnapshot):
        verdict = old_snapshot.resolve_with(new_serializer, resolve_part)
    else:
        verdict = resolve_compatibility(old_snapshot, new_serializer)
    if not verdict.is_incompatible:
        return verdict
    old_serializer = old_snapshot.restore_serializer()
    promotion = PROMOTIONS.get((type(old_serializer), type(new_serializer)))
    if promotion is not None:
        return TypeSerializerSchemaCompatibility.compatible_after_migration(
            [Finding("", FieldVerdict.MIGRATE, "field-widened", promotion.reason)]
        )
    if isinstance(new_serializer, NullableSerializer) and not isinstance(old_snapshot, NullableSerializerSnapshot):
        inner = resolve_part(old_snapshot, new_serializer.inner)
        if inner.is_incompatible:
            return inner
        optional = Finding("", FieldVerdict.MIGRATE, "field-became-optional", "every old value is present")
        return TypeSerializerSchemaCompatibility.compatible_after_migration([optional, *inner.findings])
    if isinstance(old_snapshot, NullableSerializerSnapshot) and not isinstance(new_serializer, NullableSerializer):
        return TypeSerializerSchemaCompatibility.incompatible(
            Finding(
                "",
                FieldVerdict.REFUSE,
                "field-became-required",
                "the state may hold None here, the new field may not",
                "Keep the field optional",
            )
        )
    if type(old_serializer) is not type(new_serializer):
        return TypeSerializerSchemaCompatibility.incompatible(_type_changed(old_serializer, new_serializer))
    return verdict


def _type_changed(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> Finding:
    narrowed = PROMOTIONS.get((type(new), type(old))) is not None
    what = "narrowed" if narrowed else "changed"
    return Finding(
        "",
        FieldVerdict.REFUSE,
        f"field-type-{what}",
        f"the type was {what} from {old!r} to {new!r}, and not every old value fits",
        "Keep the old type, or add a field of another name with a default and fill it from the old one",
    )


def _added(new: RecordField, removed: list[WrittenField]) -> Finding:
    path = f".{new.name}"
    if new.has_default:
        how = "made by its factory" if new.default_factory is not None else f"default {new.default!r:.60}"
        return Finding(path, FieldVerdict.MIGRATE, "field-added", how)
    origin = _looks_like(new.name, [part.name for part in removed])
    rename = f', or declare the rename: metadata=former_names("{origin}")' if origin else ""
    return Finding(
        path,
        FieldVerdict.REFUSE,
        "field-added-without-default",
        "the field is new and old records have no value for it",
        f"Give it a default{rename}",
    )


def _removed(removed: list[WrittenField], added: list[RecordField], new: RecordShape) -> list[Finding]:
    findings = []
    for part in removed:
        claimants = [other.name for other in new.fields if part.name in other.former_names]
        if claimants:
            findings.append(
                Finding(
                    f".{part.name}",
                    FieldVerdict.REFUSE,
                    "ambiguous-rename",
                    f"{claimants[0]} declares the former name {part.name}, but the state holds both fields",
                    f"Keep {part.name} until {claimants[0]} is renamed too, or drop the former name",
                )
            )
            continue
        target = _looks_like(part.name, [other.name for other in added])
        fix = f'It looks like a rename to {target}: declare metadata=former_names("{part.name}")' if target else ""
        findings.append(
            Finding(f".{part.name}", FieldVerdict.LOSSY, "field-removed", "the field is gone, its values are lost", fix)
        )
    return findings


def _looks_like(name: str, candidates: list[str]) -> str | None:
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=SIMILAR_NAMES)
    return close[0] if close else None
