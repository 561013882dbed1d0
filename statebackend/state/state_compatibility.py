"""Whether registered descriptors may take over restored states: asked by the driver before anything is touched, and by
every backend when a state is registered.

Key and namespace serializers may stay or be reconfigured, never migrated, because their bytes decide where an entry
lies; the same holds for the user keys of a map and the elements of a priority queue, whose order is that of their
bytes. The one exception are namespaces and user keys of which some become equal (two constants of an enum that became
one): all entries are then rewritten, and two entries whose keys become equal stop that. Everything else follows the
serializers' own verdicts, on the values that the user sees: that state is given a time-to-live, or loses it, is a
migration by itself, whatever the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import evolve, field, frozen

from snapshots.compatibility import (
    CompatibilityKind,
    FieldVerdict,
    Finding,
    Plan,
    TypeSerializerSchemaCompatibility,
    worst_kind,
)
from snapshots.type_serializer_snapshot import RULES, TypeSerializerSnapshot, VerdictRules, resolve_compatibility
from statebackend.state.descriptors import USER_KEY_ROLE, Descriptor
from statebackend.state.errors import StateMigrationException
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.state_meta import NAMESPACE_ROLE, StateMeta
from statebackend.state.ttl_change import RowPlan, TimeToLiveChange
from typeserializers.kernel.type_serializer import TypeSerializer

NOTHING_CHANGED: Final = "nothing was changed"
"""What is told of a refusal before anything is touched."""

RESTORED_AS_IT_WAS: Final = "what it was restored from is as it was"
"""What is told of a refusal in the middle of a run."""

_FIXED_ROLES: Final[Mapping[str, str]] = {"key": "the keys of the operator", "namespace": "the namespaces of the state"}

_REWRITABLE_ROLES: Final = (NAMESPACE_ROLE, USER_KEY_ROLE)
"""The fixed roles whose bytes are rewritten if some of the values become equal; they do not decide the key group."""

_FIXES: Final[Mapping[str, str]] = {
    "key": "Keep the types of the columns in key_by; or start from a savepoint that was written anew with other keys "
    "(Plan().change_keys, docs/changing-state.md); an operator of another uid begins without state",
    "namespace": "Keep their type",
}


@frozen
class StateVerdict:
    """The verdict on one state: the worst of its roles, all findings, and the serializers to use by role.

    ``row_plan`` is what a migration of keyed state carries out, so that nothing has to be judged again for it.
    """

    state_name: str
    kind: CompatibilityKind
    findings: tuple[Finding, ...]
    serializers: Mapping[str, TypeSerializer[Any]]
    row_plan: RowPlan | None = field(default=None, eq=False, repr=False)
    key_plans: Mapping[str, Plan] = field(factory=dict, eq=False, repr=False)
    """By role, for namespaces and user keys that are rewritten."""

    def __str__(self) -> str:
        lines = [f"state {self.state_name!r}: {self.kind.label}", *(f"  {finding}" for finding in self.findings)]
        return "\n".join(lines)


def judge_key_serializer(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any], rules: VerdictRules = RULES
) -> StateVerdict:
    """The verdict on the key serializer of an operator."""
    return _judge("(key)", {"key": old_snapshot}, {"key": new_serializer}, _FIXED_ROLES, rules)[0]


def judge_state(
    old: StateMeta, descriptor: Descriptor, namespace_serializer: TypeSerializer[Any], rules: VerdictRules = RULES
) -> StateVerdict:
    """The verdict on a descriptor taking over a restored state."""
    if old.kind is not descriptor.kind:
        finding = Finding(
            "",
            FieldVerdict.REFUSE,
            "state-kind",
            f"the restored state is a {old.kind.name} state, the descriptor is of a {descriptor.kind.name} state",
            "Register the new kind under another name",
        )
        return StateVerdict(old.name, CompatibilityKind.INCOMPATIBLE, (finding,), {})
    snapshots = {**old.role_snapshots, "namespace": old.namespace_snapshot}
    serializers = {**descriptor.serializers, "namespace": namespace_serializer}
    fixed_roles = {**_FIXED_ROLES, **old.kind.fixed_roles}
    if not isinstance(descriptor, StateDescriptor):
        return _judge(old.name, snapshots, serializers, fixed_roles, rules)[0]
    change = TimeToLiveChange.between(descriptor.kind, snapshots, descriptor.ttl is not None)
    before, after = change.values_before(snapshots), change.values_after(serializers)
    verdict, plans = _judge(old.name, before, after, fixed_roles, rules)
    stored = change.of_stored_form(verdict.kind, verdict.findings, verdict.serializers, serializers)
    # All other roles are fixed, so that the rows are migrated by what happens to this one.
    plan = plans.get(descriptor.kind.timed_role)
    row_plan = None if plan is None else change.row_plan(plan, snapshots, serializers)
    return StateVerdict(old.name, *stored, row_plan=row_plan, key_plans=verdict.key_plans)


def _judge(
    name: str,
    old_snapshots: Mapping[str, TypeSerializerSnapshot[Any]],
    new_serializers: Mapping[str, TypeSerializer[Any]],
    fixed_roles: Mapping[str, str],
    rules: VerdictRules,
) -> tuple[StateVerdict, dict[str, Plan]]:
    """The verdict, and the plans of the roles that can be taken over, to the serializers as they were given."""
    plans: dict[str, Plan] = {}
    key_plans: dict[str, Plan] = {}
    findings: list[Finding] = []
    kinds: list[CompatibilityKind] = []
    serializers: dict[str, TypeSerializer[Any]] = {}
    for role, new in new_serializers.items():
        verdict = resolve_compatibility(old_snapshots[role], new, rules)
        if role in fixed_roles and role in _REWRITABLE_ROLES and verdict.only_merges_values:
            key_plans[role] = verdict.plan
            verdict = TypeSerializerSchemaCompatibility.compatible_after_migration(verdict.findings, plan=verdict.plan)
        elif role in fixed_roles and (verdict.is_after_migration or verdict.is_incompatible or verdict.merges_values):
            verdict = _refuse_change(role, fixed_roles[role], verdict)
        kinds.append(verdict.kind)
        if not verdict.is_incompatible:
            plans[role] = verdict.plan
        prefix = f"<{role}>" if role in fixed_roles else ""
        findings += [finding.below(prefix) for finding in verdict.findings]
        reconfigured = verdict.is_with_reconfigured_serializer
        serializers[role] = verdict.reconfigured_serializer if reconfigured else new
    if key_plans:
        # All rows are rewritten, so that values need not be reconfigured to what was written before.
        serializers |= {role: new for role, new in new_serializers.items() if role not in fixed_roles}
    return StateVerdict(name, worst_kind(kinds), tuple(findings), serializers, key_plans=key_plans), plans


def _refuse_change(
    role: str, what: str, verdict: TypeSerializerSchemaCompatibility[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    refusal = Finding(
        "",
        FieldVerdict.REFUSE,
        f"{role}-migration",
        f"{what} decide where an entry is stored, so their bytes cannot be migrated on restore",
        _FIXES.get(role, "Keep their type, or register the state under another name and fill it from the old one"),
    )
    # What the serializers advise would make another value readable, and is no way out here.
    findings = (evolve(finding, fix="") for finding in verdict.findings)
    return TypeSerializerSchemaCompatibility.incompatible(refusal, *findings)


@frozen
class SchemaReport:
    """The verdicts on all states of an operator, and the restored states that nobody registered.

    Keyed and operator state are told apart: their names may be the same. Keyed state whose keys are refused cannot be
    taken over either, whatever it holds: its verdicts say so, so that who reads only them misses nothing.
    """

    operator_uid: str
    key_verdict: StateVerdict
    verdicts: tuple[StateVerdict, ...]
    unregistered: tuple[str, ...] = ()
    operator_state_verdicts: tuple[StateVerdict, ...] = ()
    unregistered_operator_state: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.key_verdict.kind is CompatibilityKind.INCOMPATIBLE:
            kind, findings = CompatibilityKind.INCOMPATIBLE, self.key_verdict.findings
            refused = tuple(
                evolve(verdict, kind=kind, findings=findings + verdict.findings) for verdict in self.verdicts
            )
            object.__setattr__(self, "verdicts", refused)

    @property
    def is_compatible(self) -> bool:
        """Whether everything can be restored."""
        return not self._refused()

    def raise_if_incompatible(self, aftermath: str = NOTHING_CHANGED) -> None:
        """Raises `StateMigrationException` with every refused state and field; ``aftermath`` says what was changed."""
        refused = self._refused()
        if refused:
            raise StateMigrationException(incompatibility_message(self.operator_uid, refused, aftermath))

    def __str__(self) -> str:
        lines = [f"operator {self.operator_uid!r}: {'compatible' if self.is_compatible else 'incompatible'}"]
        shown = [str(verdict) for verdict in self.verdicts]
        if self.key_verdict.kind is not CompatibilityKind.AS_IS:
            shown.insert(0, str(self.key_verdict))
        shown += [f"operator {verdict}" for verdict in self.operator_state_verdicts]
        lines += [f"  {line}" for verdict in shown for line in verdict.splitlines()]
        lines += [f"  state {name!r}: not registered, kept as it is" for name in self.unregistered]
        lines += [
            f"  operator state {name!r}: not registered, kept as it is" for name in self.unregistered_operator_state
        ]
        return "\n".join(lines)

    def _refused(self) -> list[StateVerdict]:
        states = self.verdicts
        if self.key_verdict.kind is CompatibilityKind.INCOMPATIBLE:
            # What is said of the keys is said once.
            own = len(self.key_verdict.findings)
            states = tuple(
                evolve(verdict, findings=verdict.findings[own:])
                for verdict in states
                if any(finding.verdict is FieldVerdict.REFUSE for finding in verdict.findings[own:])
            )
        return [
            verdict
            for verdict in (self.key_verdict, *states, *self.operator_state_verdicts)
            if verdict.kind is CompatibilityKind.INCOMPATIBLE
        ]


def incompatibility_message(
    operator_uid: str, refused: Iterable[StateVerdict], aftermath: str = NOTHING_CHANGED
) -> str:
    """What a person reads when state cannot be taken over: states, field paths, reasons, what to do."""
    lines = [f"operator {operator_uid!r} cannot take over its state; {aftermath}:"]
    for verdict in refused:
        lines.append(f"  state {verdict.state_name!r}:")
        lines += [f"    {finding}" for finding in verdict.findings if finding.verdict is FieldVerdict.REFUSE]
    return "\n".join(lines)
