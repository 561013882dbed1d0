"""The rules by which a record may change between two versions of a program.

Fields are matched by name, then by declared former names (`typeserializers.evolution.field_matching`). The rules, each
with its id in the findings:

    field-renamed               declared: costs nothing by itself, the bytes carry no names
    field-added                 the default completes old records; without one: field-added-without-default, refused
    field-default-unfit         refused: what the factory of an added field makes does not fit it
    field-removed               lossy; if a new field looks like it, the fix says how to declare a rename
    fields-reordered            migration
    field-widened               a promotion (`evolution.promotions`), also inside lists, maps and optionals
    field-became-optional       migration: every old value is present
    field-became-required       refused: an old value may be None
    field-type-changed          refused, as is field-type-narrowed, unless the field names a converter: field-converted
    field-unreadable            refused: nothing here reads the old values, not even to step over them
    pickle-class                refused: a converter needs values that this program has not said it unpickles
    ambiguous-rename            a field exists under its own name *and* its former name: refused
    record-renamed              refused unless the new class declares the former name
    record-converted            migration: converters lead from the old schema version to the new one
    schema-version-older        refused: the state was written under a later schema version than that of the program

Inside a record more is allowed than at the top of a state: there, a simple serializer is the same class or nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from snapshots.compatibility import (
    CompatibilityKind,
    FieldVerdict,
    Finding,
    worst_kind,
)
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from snapshots.value_text import shown
from typeserializers.evolution.field_matching import FieldMatch, match_fields
from typeserializers.evolution.part_evolution import resolve_part
from typeserializers.kernel.field_metadata import name_of
from typeserializers.kernel.held_parts import all_inside
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.opaque.pickles import PickleSerializer
from typeserializers.records.record_checks import default_problem
from typeserializers.records.record_shape import RecordField, RecordShape

SIMILAR_NAMES = 0.5
"""From this ratio of matching characters on, a removed field is mentioned as the possible origin of a new one."""

MAX_COMPARED_NAMES = 100
"""With more fields on either side no likeness is looked for: every pair of names would be compared."""


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
    schema_version: int = 1


@frozen
class RecordJudgement:
    """The verdict on a record, the fields that did not change, and the serializers of those to be reconfigured."""

    kind: CompatibilityKind
    findings: tuple[Finding, ...]
    reconfigured: Mapping[str, TypeSerializer[Any]]
    unchanged: tuple[str, ...] = ()


def judge_record(old: WrittenRecord, new: RecordShape) -> RecordJudgement:
    """The verdict on a new record shape taking over an old record."""
    findings = [*_judge_name(old, new), *_judge_version(old, new)]
    kinds: list[CompatibilityKind] = []
    unchanged: list[str] = []
    reconfigured: dict[str, TypeSerializer[Any]] = {}
    matches = match_fields(old.fields, new.fields)
    matched = [match.old_index for match in matches if match.old_index is not None]
    goes_on = set(matched)
    removed = [part for index, part in enumerate(old.fields) if index not in goes_on]
    for match in matches:
        path = f".{match.new.name}"
        if match.old_index is None:
            findings.append(_added(match.new, removed))
            continue
        written = old.fields[match.old_index]
        told = len(findings)
        if written.name != match.new.name:
            findings.append(Finding(path, FieldVerdict.AS_IS, "field-renamed", f"was {written.name}"))
        verdict = resolve_part(written.snapshot, match.new.serializer)
        if verdict.is_incompatible and match.new.converter is not None:
            findings += _needed(written) or [_converted(match.new)]
            continue
        kinds.append(verdict.kind)
        findings += [finding.below(path) for finding in verdict.findings]
        unchanged += [path + inner for inner in verdict.unchanged]
        if len(findings) == told and not verdict.unchanged:
            unchanged.append(path)
        if verdict.is_with_reconfigured_serializer:
            reconfigured[match.new.name] = verdict.reconfigured_serializer
    findings += _removed(removed, matches, new)
    if matched != sorted(matched):
        findings.append(
            Finding("", FieldVerdict.MIGRATE, "fields-reordered", "the fields are written in another order")
        )
    if new.conversion_steps(old.schema_version):
        findings = _left_to_converters(findings)
        findings += [finding for part in old.fields for finding in _needed(part)]
        kinds = []
    kind = worst_kind([*kinds, *(finding.verdict.kind for finding in findings)])
    return RecordJudgement(kind, tuple(findings), reconfigured, tuple(unchanged))


def _judge_name(old: WrittenRecord, new: RecordShape) -> Sequence[Finding]:
    if old.name == new.name:
        return ()
    if old.name in new.former_names:
        return (Finding("", FieldVerdict.AS_IS, "record-renamed", f"was {old.name}"),)
    return (
        Finding(
            "",
            FieldVerdict.REFUSE,
            "record-renamed",
            f"the state holds records of {old.name}, the new class is {new.name}",
            f'If {new.name} is what {old.name} became, declare __former_names__ = ("{old.name}",) on it',
        ),
    )


def _judge_version(old: WrittenRecord, new: RecordShape) -> Sequence[Finding]:
    if old.schema_version > new.schema_version:
        return (
            Finding(
                "",
                FieldVerdict.REFUSE,
                "schema-version-older",
                f"the state has schema version {old.schema_version}, {new.name} has only {new.schema_version}",
                "Restore with the program that wrote it, or a later one",
            ),
        )
    steps = new.conversion_steps(old.schema_version)
    if not steps:
        return ()
    path = ", ".join(f"{version} -> {version + 1} by {name_of(converter)}" for version, converter in steps)
    return (Finding("", FieldVerdict.MIGRATE, "record-converted", f"schema versions {path}"),)


def _left_to_converters(findings: Sequence[Finding]) -> list[Finding]:
    """What the rules refuse about fields is the converters' business, and so is what a removed field held."""
    return [
        evolve(finding, verdict=FieldVerdict.MIGRATE, reason=f"{finding.reason}: left to the converters", fix="")
        if finding.path and finding.verdict in (FieldVerdict.REFUSE, FieldVerdict.LOSSY)
        else finding
        for finding in findings
    ]


def _converted(new: RecordField) -> Finding:
    assert new.converter is not None
    reason = f"each old value goes through {name_of(new.converter)}"
    return Finding(f".{new.name}", FieldVerdict.MIGRATE, "field-converted", reason)


def _needed(part: WrittenField) -> list[Finding]:
    """What a converter cannot be given: values that this program must not read."""
    try:
        inside = list(all_inside(part.snapshot.restore_serializer()))
    except UnresolvableSerializerError as error:
        return [Finding(f".{part.name}", FieldVerdict.REFUSE, "field-unreadable", str(error))]
    pickles = {one.class_name for one in inside if isinstance(one, PickleSerializer) and not one.is_chosen}
    return [
        Finding(
            f".{part.name}",
            FieldVerdict.REFUSE,
            "pickle-class",
            f"the converter needs the values, which are pickles of {name}, and are only unpickled in a program that "
            f"says so itself",
            f"Make a PickleSerializer({name.rpartition(':')[2]}) before the state is restored",
        )
        for name in sorted(pickles)
    ]


def _stepped_over(part: WrittenField) -> list[Finding]:
    """Why the values of a removed field cannot even be stepped over; nothing if they can."""
    try:
        part.snapshot.restore_serializer()
    except UnresolvableSerializerError as error:
        return [Finding(f".{part.name}", FieldVerdict.REFUSE, "field-unreadable", str(error))]
    return []


def _added(new: RecordField, removed: Sequence[WrittenField]) -> Finding:
    path = f".{new.name}"
    origin = _looks_like(new.name, [part.name for part in removed])
    # It was seen to fit when the class was registered, but a factory may make another one today.
    problem = default_problem(new) if new.default_factory is not None else ""
    if problem:
        return Finding(path, FieldVerdict.REFUSE, "field-default-unfit", problem, "Give it one that fits")
    if new.has_default:
        how = "made by its factory" if new.default_factory is not None else f"default {shown(new.default)}"
        return Finding(path, FieldVerdict.MIGRATE, "field-added", how)
    rename = f', or declare the rename: metadata=former_names("{origin}")' if origin else ""
    return Finding(
        path,
        FieldVerdict.REFUSE,
        "field-added-without-default",
        "the field is new and old records have no value for it",
        f"Give it a default{rename}",
    )


def _removed(
    removed: Sequence[WrittenField], matches: Sequence[FieldMatch[RecordField]], new: RecordShape
) -> list[Finding]:
    added = [match.new.name for match in matches if match.old_index is None]
    findings = []
    claimant_of: dict[str, str] = {}
    for other in new.fields:
        for former in other.former_names:
            claimant_of.setdefault(former, other.name)
    for part in removed:
        claimant = claimant_of.get(part.name)
        if claimant is not None:
            findings.append(
                Finding(
                    f".{part.name}",
                    FieldVerdict.REFUSE,
                    "ambiguous-rename",
                    f"{claimant} declares the former name {part.name}, but the state holds both fields",
                    f"Keep {part.name} until {claimant} is renamed too, or drop the former name",
                )
            )
            continue
        target = _looks_like(part.name, added) if len(removed) <= MAX_COMPARED_NAMES else None
        fix = f'It looks like a rename to {target}: declare metadata=former_names("{part.name}")' if target else ""
        findings += _stepped_over(part)
        findings.append(
            Finding(f".{part.name}", FieldVerdict.LOSSY, "field-removed", "the field is gone, its values are lost", fix)
        )
    return findings


def _looks_like(name: str, candidates: Sequence[str]) -> str | None:
    if len(candidates) > MAX_COMPARED_NAMES:
        return None
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=SIMILAR_NAMES)
    return close[0] if close else None
