"""The evolution rules of unions.

Members are matched by type, never by position: Python keeps no order of ``int | str``, and another import order may
reorder the members of an unchanged hint. A member continues as:

1. the member of the same kind with its name, or one that declares the name as a former name;
2. else the only member that can restore its state without another Python type.

If one member has the name and a new one declares it as a former name, the match is ambiguous: a class declares former
names once for all states, so the stored member could be either. A member never changes from one type to another, such
as from ``int`` to ``float``, though a field may.

    union-members-reordered     reconfigured: the members keep their stored tags
    union-member-added          migration: no old value belongs to it
    union-member-removed        incompatible: an old value may belong to it
    union-member-ambiguous      incompatible: two members could continue as one, or one as two
    became-union                migration: every old value belongs to the named member
    union-member-missing        incompatible: the old type is not a member

The parts of a member may change as the field of a record may (`typeserializers.evolution.record_evolution`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen

from snapshots.compatibility import (
    AS_IS,
    AsIsPlan,
    CompatibilityIssue,
    CompatibilityKind,
    FieldCompatibility,
    Plan,
    TypeSerializerSchemaCompatibility,
    another_serializer,
    converting_type,
    worst_kind,
)
from snapshots.errors import StateFormatError, UnresolvableSerializerError
from snapshots.type_serializer_snapshot import RULES, SimpleTypeSerializerSnapshot, TypeSerializerSnapshot
from typeserializers.containers.nullable import NullableSerializerSnapshot
from typeserializers.containers.unions import UnionSerializer, UnionSerializerSnapshot
from typeserializers.evolution.plans import BecameUnionPlan, Origin, UnionPlan
from typeserializers.evolution.record_evolution import (
    declared_former_names,
    is_promotion,
    names_in_cycles,
    resolve_part,
)
from typeserializers.kernel.known_serializers import known_serializers
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_serializer import AttrsSerializer, AttrsSerializerSnapshot

_MOST_CHARACTERS: Final = 100
"""A path names a member with at most this many characters."""


@frozen
class MemberMatch:
    """An old member, the index of the new member that continues it, and their compatibility result.

    Without an index, ``rivals`` are the names of the new members if the match is ambiguous.
    """

    old_name: str
    new_index: int | None = None
    compatibility: TypeSerializerSchemaCompatibility[Any] | None = None
    rivals: tuple[str, ...] = ()

    @property
    def successor(self) -> Origin:
        """The new member and the plan for the values; only for a compatible match."""
        assert self.new_index is not None
        assert self.compatibility is not None
        return Origin(self.new_index, self.compatibility.plan)


def resolve_member(
    old_snapshot: TypeSerializerSnapshot[Any],
    old_serializer: TypeSerializer[Any] | None,
    new_serializer: TypeSerializer[Any],
) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves a member over an old one: like a part of a record, without promotions to another Python type.

    ``old_serializer`` is None for a record, which is never promoted.
    """
    compatibility = resolve_part(old_snapshot, new_serializer)
    if compatibility.is_incompatible or old_serializer is None:
        return compatibility
    if not is_promotion(old_serializer, new_serializer) or old_serializer.python_type is new_serializer.python_type:
        return compatibility
    reason = f"values of {old_serializer.type_name} in a union do not become {new_serializer.type_name}"
    return TypeSerializerSchemaCompatibility.incompatible(
        CompatibilityIssue("", FieldCompatibility.REJECT, "union-member", reason)
    )


def match_members(
    old_snapshots: Sequence[TypeSerializerSnapshot[Any]], new_members: Sequence[TypeSerializer[Any]]
) -> tuple[MemberMatch, ...]:
    """Matches each old member with a new one; two old members never become one."""
    restored: dict[int, TypeSerializer[Any]] = {}

    def restore(members: Sequence[int]) -> None:
        simple = all(isinstance(old_snapshots[old], SimpleTypeSerializerSnapshot) for old in members)
        # Scalars are restored without the classes of the program, which takes a walk over all of them.
        with known_serializers(*(() if simple else new_members)):
            restored.update((old, old_snapshots[old].restore_serializer()) for old in members)

    # A record has its name in the snapshot. Restoring it would restore every union inside it again at each level.
    restore([old for old, snapshot in enumerate(old_snapshots) if not isinstance(snapshot, AttrsSerializerSnapshot)])
    old_names = [
        snapshot.record.name if isinstance(snapshot, AttrsSerializerSnapshot) else restored[old].type_name
        for old, snapshot in enumerate(old_snapshots)
    ]
    new_kinds = [_snapshot_class(member) for member in new_members]
    matches: dict[int, MemberMatch] = {}
    free = set(range(len(new_members)))

    def resolved(old: int, new: int) -> TypeSerializerSchemaCompatibility[Any]:
        return resolve_member(old_snapshots[old], restored.get(old), new_members[new])

    def decide(candidates: dict[int, list[int]]) -> None:
        wanted = Counter(new for found in candidates.values() for new in found)
        for old, found in candidates.items():
            if len(found) == 1 and wanted[found[0]] == 1:
                matches[old] = MemberMatch(old_names[old], found[0], resolved(old, found[0]))
                free.discard(found[0])
            elif found:
                rivals = tuple(new_members[index].type_name for index in found)
                matches[old] = MemberMatch(old_names[old], rivals=rivals)

    def undecided() -> list[int]:
        return [old for old in range(len(old_snapshots)) if old not in matches]

    def is_of_one_kind(old: int, new: int) -> bool:
        return type(old_snapshots[old]) is new_kinds[new]

    def is_namesake(old: int, new: int) -> bool:
        return is_of_one_kind(old, new) and old_names[old] == new_members[new].type_name

    # By name, because a comparison of every pair takes seconds for thousands of members.
    named: defaultdict[str, list[int]] = defaultdict(list)
    for new, member in enumerate(new_members):
        for name in {member.type_name, *member.former_type_names}:
            named[name].append(new)
    found_by_name = {old: named.get(name, []) for old, name in enumerate(old_names)}
    kept = {new for old, found in found_by_name.items() for new in found if is_namesake(old, new)}
    in_cycles = names_in_cycles({new_members[new].type_name: new_members[new].former_type_names for new in kept})

    def is_declared(old: int, new: int) -> bool:
        if is_namesake(old, new):
            return True
        name, new_name = old_names[old], new_members[new].type_name
        # If the old union has the member too, the rename happened earlier, unless the names form a cycle.
        is_new = new not in kept or {name, new_name} <= in_cycles
        return is_new and is_of_one_kind(old, new) and name in new_members[new].former_type_names

    def can_restore(old: int, new: int) -> bool:
        return not resolved(old, new).is_incompatible

    def is_of_one_class(old: int, new: int) -> bool:
        return _python_type(restored[old]) is _python_type(new_members[new])

    decide({old: [new for new in found if is_declared(old, new)] for old, found in found_by_name.items()})
    decide({old: [new for new in sorted(free) if can_restore(old, new)] for old in undecided()})
    # This rule matches members that are incompatible anyway, so that the result has the reason.
    restore([old for old in undecided() if old not in restored])
    decide({old: [new for new in sorted(free) if is_of_one_class(old, new)] for old in undecided()})
    return tuple(matches.get(old, MemberMatch(name)) for old, name in enumerate(old_names))


@RULES.resolves(UnionSerializerSnapshot)
def resolve_union(
    old_snapshot: UnionSerializerSnapshot, new_serializer: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves a union over an old union, at the top level and in a record."""
    if type(new_serializer) is not UnionSerializer:
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer(old_snapshot.type_name_of_state(), UnionSerializer.__name__, new_serializer)
        )
    new_members = new_serializer.member_serializers
    try:
        matches = match_members(old_snapshot.nested_snapshots, new_members)
    except UnresolvableSerializerError as error:
        return TypeSerializerSchemaCompatibility.incompatible(
            CompatibilityIssue(
                "", FieldCompatibility.REJECT, "union-member-unknown", str(error), "Register the state again"
            )
        )
    issues, unchanged = _issues_of(matches, new_members)
    continued = [match.new_index for match in matches]
    rivals = {name for match in matches for name in match.rivals}
    added = [
        member for index, member in enumerate(new_members) if index not in continued and member.type_name not in rivals
    ]
    if None in continued:
        old_type = " | ".join(match.old_name for match in matches)
        removed = [match.old_name for match in matches if match.new_index is None]
        keep = " | ".join(dict.fromkeys((*(member.type_name for member in new_members), *removed)))
        convert = converting_type(f"serializer_for({old_type})", new_serializer)
        fix = f"Keep {' and '.join(removed)} in the union: {keep}; or {convert}"
        issues += [
            _advice(match, [member for member in added if _may_be_renamed(old, member)], new_members, fix)
            for match, old in zip(matches, old_snapshot.nested_snapshots, strict=True)
            if match.new_index is None
        ]
    issues += [
        CompatibilityIssue(
            _path(member.type_name), FieldCompatibility.MIGRATE, "union-member-added", "no old value belongs to it"
        )
        for member in added
    ]
    if not added and continued != sorted(index for index in continued if index is not None):
        order = ", ".join(match.old_name for match in matches)
        reason = f"the members keep the order in which they were written: {order}"
        issues.append(CompatibilityIssue("", FieldCompatibility.RECONFIGURE, "union-members-reordered", reason))
    compatibilities = [match.compatibility for match in matches if match.compatibility is not None]
    kind = worst_kind(
        [*(issue.compatibility.kind for issue in issues), *(compatibility.kind for compatibility in compatibilities)]
    )
    plan: Plan | None = None
    if kind is not CompatibilityKind.INCOMPATIBLE:
        plan = _plan(kind, tuple(match.successor for match in matches))
    reconfigured: TypeSerializer[Any] | None = None
    if kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER:
        reconfigured = UnionSerializer([_continued(match, new_members) for match in matches])
    return TypeSerializerSchemaCompatibility(kind, tuple(issues), reconfigured, unchanged=unchanged, plan=plan)


@RULES.adopts(UnionSerializerSnapshot)
def adopt_one_type(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: UnionSerializer
) -> TypeSerializerSchemaCompatibility[Any] | None:
    """Resolves a union over state of one type: ``X`` may become ``X | Y``."""
    if isinstance(old_snapshot, (UnionSerializerSnapshot, NullableSerializerSnapshot)):
        return None
    new_members = new_serializer.member_serializers
    try:
        (match,) = matches = match_members([old_snapshot], new_members)
    except UnresolvableSerializerError:
        return None  # The result of the old snapshot has the reason.
    if match.rivals:
        return TypeSerializerSchemaCompatibility.incompatible(_advice(match, (), new_members))
    if match.new_index is None:
        new_type = " | ".join(member.type_name for member in new_members)
        return TypeSerializerSchemaCompatibility.incompatible(
            CompatibilityIssue(
                "",
                FieldCompatibility.REJECT,
                "union-member-missing",
                f"the state holds {match.old_name}, and the new type is {new_type}",
                f"Make {match.old_name} a member too, or convert the old values (converted_by, ConvertingSerializer)",
            )
        )
    issues, _ = _issues_of(matches, new_members)
    became = CompatibilityIssue("", FieldCompatibility.MIGRATE, "became-union", f"every old value is {match.old_name}")
    kind = worst_kind([issue.compatibility.kind for issue in (became, *issues)])
    plan = None if kind is CompatibilityKind.INCOMPATIBLE else BecameUnionPlan(match.successor)
    return TypeSerializerSchemaCompatibility(kind, (became, *issues), plan=plan)


def _plan(kind: CompatibilityKind, successors: tuple[Origin, ...]) -> Plan:
    # All members as is and in order; a member with a reference depends on the enclosing record.
    stays = kind is CompatibilityKind.AS_IS and all(isinstance(member.plan, AsIsPlan) for member in successors)
    return AS_IS if stays else UnionPlan(successors)


def _issues_of(
    matches: Sequence[MemberMatch], new_members: Sequence[TypeSerializer[Any]]
) -> tuple[list[CompatibilityIssue], tuple[str, ...]]:
    issues: list[CompatibilityIssue] = []
    unchanged: list[str] = []
    for match in matches:
        if match.new_index is None or match.compatibility is None:
            continue
        path = _path(new_members[match.new_index].type_name)
        issues += [issue.below(path) for issue in match.compatibility.issues]
        unchanged += [path + inner for inner in match.compatibility.unchanged]
    return issues, tuple(unchanged)


def _may_be_renamed(old_snapshot: TypeSerializerSnapshot[Any], new_member: TypeSerializer[Any]) -> bool:
    """Whether the old member could continue as the new one if that declared its name."""
    has_former_names = type(new_member).former_type_names is not TypeSerializer.former_type_names
    return has_former_names and _snapshot_class(new_member) is type(old_snapshot)


def _snapshot_class(serializer: TypeSerializer[Any]) -> type[TypeSerializerSnapshot[Any]]:
    # The snapshot of a record contains that of every union inside it.
    return AttrsSerializerSnapshot if type(serializer) is AttrsSerializer else type(serializer.snapshot_configuration())


def _advice(
    match: MemberMatch,
    added: Sequence[TypeSerializer[Any]],
    new_members: Sequence[TypeSerializer[Any]],
    fix: str = "",
) -> CompatibilityIssue:
    path = _path(match.old_name)
    if match.rivals:
        reason = f"{match.old_name} could continue as {' or as '.join(match.rivals)}"
        if len(match.rivals) == 1:
            reason = f"{match.old_name} and another member of the state could both continue as {match.rivals[0]}"
        fix = "Give the members different names, or remove the former names that lead to several members"
        return CompatibilityIssue(path, FieldCompatibility.REJECT, "union-member-ambiguous", reason, fix)
    rename = ""
    if added:
        renames = (declared_former_names(match.old_name, one.type_name, one.former_type_names) for one in added)
        rename = f"; if it was renamed, {' or '.join(renames)}"
    return CompatibilityIssue(
        path,
        FieldCompatibility.REJECT,
        "union-member-removed",
        f"the state may hold {match.old_name} here, and the new members are {_listed(new_members)}",
        f"{fix}{rename}",
    )


def _continued(match: MemberMatch, new_members: Sequence[TypeSerializer[Any]]) -> TypeSerializer[Any]:
    assert match.new_index is not None
    assert match.compatibility is not None
    if match.compatibility.is_with_reconfigured_serializer:
        return match.compatibility.reconfigured_serializer
    return new_members[match.new_index]


def _path(name: str) -> str:
    # Whole names of nested unions would make the paths of a report grow with the square of the schema's size.
    return f"{{member {name if len(name) <= _MOST_CHARACTERS else name[: _MOST_CHARACTERS - 3] + '...'}}}"


def _listed(members: Sequence[TypeSerializer[Any]]) -> str:
    return ", ".join(member.type_name for member in members)


def _python_type(serializer: TypeSerializer[Any]) -> object:
    """Returns the class of the values, or a unique object if it is unknown."""
    try:
        return serializer.python_type
    except StateFormatError:
        return object()
