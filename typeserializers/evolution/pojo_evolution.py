"""What may change about a POJO: Flink's order of decisions, and the few places where we go on.

1. the new serializer is not a PojoSerializer                               refused
2. the class has another name                                              refused, unless declared as former name
3. a subclass that was seen can no longer be loaded                        refused
4. fields on both sides are judged by their serializers; one refuses       refused
5. subclasses on both sides likewise                                       refused
6. a field was added or removed, or something above needs migration        migration
7. the registrations are no prefix of the new ones, unregistered subclasses were seen, or something above must be
   reconfigured                                                            reconfigured: old tags stay what they are
8. otherwise                                                               as is

Where we differ: a field renamed by a declared former name keeps its values, as does a class; a removed field is said to
be lossy; the state of an *unregistered* subclass is judged too, which Flink does not and then misreads; an added field
without a default gets None if it is optional, else the zero of its type, which is what Java would give it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from snapshots.compatibility import (
    CompatibilityKind,
    FieldVerdict,
    Finding,
    TypeSerializerSchemaCompatibility,
    worst_kind,
)
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import resolve_compatibility
from typeserializers.evolution.field_matching import match_fields
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_format import UnreadableSnapshot, WrittenPart, WrittenPojo

if TYPE_CHECKING:
    from typeserializers.pojos.pojo_shape import PojoField
    from typeserializers.pojos.pojos import PojoSerializer


@frozen
class PojoJudgement:
    """The verdict, and the serializers of fields and subclasses that must be reconfigured, by name."""

    kind: CompatibilityKind
    findings: tuple[Finding, ...]
    reconfigured_fields: Mapping[str, TypeSerializer[Any]]
    subclasses: Mapping[str, Any]
    """The serializer to use for each old subclass, by class name."""


def judge_pojo(old: WrittenPojo, new: PojoSerializer[Any]) -> PojoJudgement:
    """The verdict on a new POJO serializer taking over an old POJO."""
    findings: list[Finding] = []
    kinds: list[CompatibilityKind] = []
    if old.name != new.shape.name:
        findings.append(_renamed(old.name, new))
    fields = _judge_fields(old, new, findings, kinds)
    subclasses = _judge_subclasses(old, new, findings, kinds)
    old_tags = [part.name for part in old.registered]
    new_tags = [subclass.shape.name for subclass in new.registered_subclasses]
    if new_tags[: len(old_tags)] != old_tags:
        reason = f"registered were {', '.join(old_tags)}; their tags are kept, new ones follow"
        findings.append(Finding("", FieldVerdict.RECONFIGURE, "pojo-registration-order", reason))
    if old.unregistered:
        names = ", ".join(part.name for part in old.unregistered)
        reason = f"the state holds {names}, which were not registered; they stay readable"
        findings.append(Finding("", FieldVerdict.RECONFIGURE, "pojo-unregistered-subclasses", reason))
    kind = worst_kind([*kinds, *(finding.verdict.kind for finding in findings)])
    return PojoJudgement(kind, tuple(findings), fields, subclasses)


def _judge_fields(
    old: WrittenPojo, new: PojoSerializer[Any], findings: list[Finding], kinds: list[CompatibilityKind]
) -> dict[str, TypeSerializer[Any]]:
    reconfigured: dict[str, TypeSerializer[Any]] = {}
    matches = match_fields(old.fields, new.shape.fields)
    matched = {match.old_index for match in matches}
    for match in matches:
        path = f".{match.new.name}"
        if match.old_index is None:
            findings.append(_added(match.new, path))
            continue
        written = old.fields[match.old_index]
        if written.name != match.new.name:
            # The order on the wire is that of the names, so a new name may be another place.
            findings.append(Finding(path, FieldVerdict.MIGRATE, "pojo-field-renamed", f"was {written.name}"))
        verdict: TypeSerializerSchemaCompatibility[Any] = resolve_compatibility(written.snapshot, match.new.serializer)
        kinds.append(verdict.kind)
        findings += [finding.below(path) for finding in verdict.findings]
        if verdict.is_with_reconfigured_serializer:
            reconfigured[match.new.name] = verdict.reconfigured_serializer
    for index, written in enumerate(old.fields):
        if index in matched:
            continue
        path, snapshot = f".{written.name}", written.snapshot
        if isinstance(snapshot, UnreadableSnapshot):
            findings += [finding.below(path) for finding in snapshot.resolve_schema_compatibility(new).findings]
        else:
            try:
                snapshot.restore_serializer()
            except UnresolvableSerializerError as error:
                findings.append(Finding(path, FieldVerdict.REFUSE, "pojo-field-unreadable", str(error)))
        reason = "the field is gone, its values are lost"
        findings.append(Finding(path, FieldVerdict.LOSSY, "pojo-field-removed", reason))
    return reconfigured


def _judge_subclasses(
    old: WrittenPojo, new: PojoSerializer[Any], findings: list[Finding], kinds: list[CompatibilityKind]
) -> dict[str, Any]:
    serializers: dict[str, Any] = {}
    for part in (*old.registered, *old.unregistered):
        path = f"<{part.name}>"
        taking_over = new.subclass_named(part.name)
        if taking_over is None:
            if not new.shape.is_stand_in or isinstance(part.snapshot, UnreadableSnapshot):
                findings.append(_missing(part, path, new))
                continue
            serializers[part.name] = part.snapshot.restore_serializer()
            continue
        verdict: TypeSerializerSchemaCompatibility[Any] = resolve_compatibility(part.snapshot, taking_over)
        kinds.append(verdict.kind)
        findings += [finding.below(path) for finding in verdict.findings]
        reconfigured = verdict.is_with_reconfigured_serializer
        serializers[part.name] = verdict.reconfigured_serializer if reconfigured else taking_over
    return serializers


def _added(new: PojoField, path: str) -> Finding:
    if new.completes_old_values:
        return Finding(path, FieldVerdict.MIGRATE, "pojo-field-added", "old objects get its default")
    try:
        new.serializer.to_bytes(new.make_default())
    except Exception as error:
        return Finding(
            path,
            FieldVerdict.REFUSE,
            "pojo-field-added-without-default",
            f"the field is new and its type has no zero that old objects could get ({error})",
            "Give it a default",
        )
    return Finding(path, FieldVerdict.MIGRATE, "pojo-field-added", "old objects get a zero")


def _renamed(old_name: str, new: PojoSerializer[Any]) -> Finding:
    if old_name in new.shape.former_names:
        return Finding("", FieldVerdict.AS_IS, "pojo-class-renamed", f"was {old_name}")
    return Finding(
        "",
        FieldVerdict.REFUSE,
        "pojo-class",
        f"the state holds objects of {old_name}, the new class is {new.shape.name}",
        f'If it is what {old_name} became, declare __former_names__ = ("{old_name}",) on it',
    )


def _missing(part: WrittenPart, path: str, new: PojoSerializer[Any]) -> Finding:
    return Finding(
        path,
        FieldVerdict.REFUSE,
        "pojo-subclass-missing",
        f"the state may hold objects of {part.name}, of which there is no class here",
        f'Keep the class: a subclass of {new.shape.record_class.__name__} with __pojo_class__ = "{part.name}"',
    )
