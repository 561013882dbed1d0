"""Checks whether registered descriptors are compatible with restored states.

The driver checks before anything changes; every backend checks when a state is registered. Key and namespace
serializers may stay or be reconfigured, but not migrated, because their bytes are the address of an entry. The same
holds for the user keys of a map, and for the elements of a priority queue, whose order is that of their bytes.

One exception: some namespaces or user keys become equal, because two constants of an enum were merged. All entries
are then rewritten, and the migration fails if two entries get the same address.

Everything else follows the serializers' compatibility results for the values that the user sees. A state that gets or
loses a time-to-live is always migrated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import evolve, field, frozen

from snapshots.compatibility import (
    CompatibilityIssue,
    CompatibilityKind,
    FieldCompatibility,
    Plan,
    TypeSerializerSchemaCompatibility,
    worst_kind,
)
from snapshots.type_serializer_snapshot import RULES, CompatibilityRules, TypeSerializerSnapshot, resolve_compatibility
from statebackend.state.descriptors import USER_KEY_ROLE, Descriptor
from statebackend.state.errors import StateMigrationException
from statebackend.state.priority_queue import displayed_state
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.state_meta import NAMESPACE_ROLE, StateMeta
from statebackend.state.ttl_change import RowPlan, TimeToLiveChange
from typeserializers.kernel.type_serializer import TypeSerializer

NOTHING_CHANGED: Final = "nothing was changed"
"""The ending of the message for a rejection before any change."""

RESTORED_STATE_UNCHANGED: Final = "the restored checkpoint or savepoint is unchanged"
"""The ending of the message for a rejection during a run."""

_FIXED_ROLES: Final[Mapping[str, str]] = {"key": "the keys of the operator", "namespace": "the namespaces of the state"}

_REWRITABLE_ROLES: Final = (NAMESPACE_ROLE, USER_KEY_ROLE)
"""The fixed roles whose bytes are rewritten if some of the values become equal; they do not affect the key group."""

_FIXES: Final[Mapping[str, str]] = {
    "key": "Keep the types of the columns in key_by; or start from a savepoint that was rewritten with other keys "
    "(Plan().change_keys, docs/changing-a-key.md); an operator of another uid begins without state",
    "namespace": "Keep their type",
}


@frozen
class StateCompatibility:
    """The compatibility result for one state: the worst of its roles, all issues, and the serializers to use by role.

    ``row_plan`` is the plan of a migration of keyed state, so that the migration resolves nothing again.
    """

    state_name: str
    kind: CompatibilityKind
    issues: tuple[CompatibilityIssue, ...]
    serializers: Mapping[str, TypeSerializer[Any]]
    row_plan: RowPlan | None = field(default=None, eq=False, repr=False)
    key_plans: Mapping[str, Plan] = field(factory=dict, eq=False, repr=False)
    """The plans by role, for namespaces and user keys that are rewritten."""

    def __str__(self) -> str:
        first = f"state {displayed_state(self.state_name)!r}: {self.kind.label}"
        return "\n".join([first, *(f"  {issue}" for issue in self.issues)])


def check_key_serializer(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any], rules: CompatibilityRules = RULES
) -> StateCompatibility:
    """Resolve the compatibility of an operator's key serializer."""
    return _resolve("(key)", {"key": old_snapshot}, {"key": new_serializer}, _FIXED_ROLES, rules)[0]


def check_state(
    old: StateMeta, descriptor: Descriptor, namespace_serializer: TypeSerializer[Any], rules: CompatibilityRules = RULES
) -> StateCompatibility:
    """Resolve the compatibility of a descriptor with a restored state."""
    if old.kind is not descriptor.kind:
        issue = CompatibilityIssue(
            "",
            FieldCompatibility.REJECT,
            "state-kind",
            f"the restored state is a {old.kind.name} state, the descriptor is of a {descriptor.kind.name} state",
            "Register the new kind under another name",
        )
        return StateCompatibility(old.name, CompatibilityKind.INCOMPATIBLE, (issue,), {})
    snapshots = {**old.role_snapshots, "namespace": old.namespace_snapshot}
    serializers = {**descriptor.serializers, "namespace": namespace_serializer}
    fixed_roles = {**_FIXED_ROLES, **old.kind.fixed_roles}
    if not isinstance(descriptor, StateDescriptor):
        return _resolve(old.name, snapshots, serializers, fixed_roles, rules)[0]
    change = TimeToLiveChange.between(descriptor.kind, snapshots, descriptor.ttl is not None)
    before, after = change.values_before(snapshots), change.values_after(serializers)
    compatibility, plans = _resolve(old.name, before, after, fixed_roles, rules)
    stored = change.of_stored_form(compatibility.kind, compatibility.issues, compatibility.serializers, serializers)
    # All other roles are fixed, so the plan of this role migrates the rows.
    plan = plans.get(descriptor.kind.timed_role)
    row_plan = None if plan is None else change.row_plan(plan, snapshots, serializers)
    return StateCompatibility(old.name, *stored, row_plan=row_plan, key_plans=compatibility.key_plans)


def _resolve(
    name: str,
    old_snapshots: Mapping[str, TypeSerializerSnapshot[Any]],
    new_serializers: Mapping[str, TypeSerializer[Any]],
    fixed_roles: Mapping[str, str],
    rules: CompatibilityRules,
) -> tuple[StateCompatibility, dict[str, Plan]]:
    """Return the compatibility result, and the plans of compatible roles to the serializers as given."""
    plans: dict[str, Plan] = {}
    key_plans: dict[str, Plan] = {}
    issues: list[CompatibilityIssue] = []
    kinds: list[CompatibilityKind] = []
    serializers: dict[str, TypeSerializer[Any]] = {}
    for role, new in new_serializers.items():
        compatibility = resolve_compatibility(old_snapshots[role], new, rules)
        if role in fixed_roles and role in _REWRITABLE_ROLES and compatibility.only_merges_values:
            key_plans[role] = compatibility.plan
            compatibility = TypeSerializerSchemaCompatibility.compatible_after_migration(
                compatibility.issues, plan=compatibility.plan
            )
        elif role in fixed_roles and (
            compatibility.is_after_migration or compatibility.is_incompatible or compatibility.merges_values
        ):
            compatibility = _reject_change(role, fixed_roles[role], compatibility)
        kinds.append(compatibility.kind)
        if not compatibility.is_incompatible:
            plans[role] = compatibility.plan
        prefix = f"<{role}>" if role in fixed_roles else ""
        issues += [issue.below(prefix) for issue in compatibility.issues]
        reconfigured = compatibility.is_with_reconfigured_serializer
        serializers[role] = compatibility.reconfigured_serializer if reconfigured else new
    if key_plans:
        # All rows are rewritten, so values need not be reconfigured to the old form.
        serializers |= {role: new for role, new in new_serializers.items() if role not in fixed_roles}
    return StateCompatibility(name, worst_kind(kinds), tuple(issues), serializers, key_plans=key_plans), plans


def _reject_change(
    role: str, what: str, compatibility: TypeSerializerSchemaCompatibility[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    rejection = CompatibilityIssue(
        "",
        FieldCompatibility.REJECT,
        f"{role}-migration",
        f"{what} decide where an entry is stored, so their bytes cannot be migrated on restore",
        _FIXES.get(role, "Keep their type, or register the state under another name and fill it from the old one"),
    )
    # The serializers' advice would make another value readable, which does not help here.
    issues = (evolve(issue, fix="") for issue in compatibility.issues)
    return TypeSerializerSchemaCompatibility.incompatible(rejection, *issues)


@frozen
class SchemaReport:
    """The compatibility results for all states of an operator, and the restored states that are not registered.

    Keyed and operator state are separate, since their names may be the same. If the keys are incompatible, so is all
    keyed state, and each of its results says so.
    """

    operator_uid: str
    key_compatibility: StateCompatibility
    compatibilities: tuple[StateCompatibility, ...]
    unregistered: tuple[str, ...] = ()
    operator_state_compatibilities: tuple[StateCompatibility, ...] = ()
    unregistered_operator_state: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.key_compatibility.kind is CompatibilityKind.INCOMPATIBLE:
            kind, issues = CompatibilityKind.INCOMPATIBLE, self.key_compatibility.issues
            rejected = tuple(
                evolve(compatibility, kind=kind, issues=issues + compatibility.issues)
                for compatibility in self.compatibilities
            )
            object.__setattr__(self, "compatibilities", rejected)

    @property
    def is_compatible(self) -> bool:
        """Whether everything can be restored."""
        return not self._rejected()

    def raise_if_incompatible(self, aftermath: str = NOTHING_CHANGED) -> None:
        """Raise `StateMigrationException` with every incompatible state and field; ``aftermath`` ends the message."""
        rejected = self._rejected()
        if rejected:
            raise StateMigrationException(incompatibility_message(self.operator_uid, rejected, aftermath))

    def __str__(self) -> str:
        lines = [f"operator {self.operator_uid!r}: {'compatible' if self.is_compatible else 'incompatible'}"]
        shown = [str(compatibility) for compatibility in self.compatibilities]
        if self.key_compatibility.kind is not CompatibilityKind.AS_IS:
            shown.insert(0, str(self.key_compatibility))
        shown += [f"operator {compatibility}" for compatibility in self.operator_state_compatibilities]
        lines += [f"  {line}" for compatibility in shown for line in compatibility.splitlines()]
        lines += [f"  state {displayed_state(name)!r}: not registered, kept as it is" for name in self.unregistered]
        lines += [
            f"  operator state {name!r}: not registered, kept as it is" for name in self.unregistered_operator_state
        ]
        return "\n".join(lines)

    def _rejected(self) -> list[StateCompatibility]:
        states = self.compatibilities
        if self.key_compatibility.kind is CompatibilityKind.INCOMPATIBLE:
            # The issues of the keys are listed once.
            own = len(self.key_compatibility.issues)
            states = tuple(
                evolve(compatibility, issues=compatibility.issues[own:])
                for compatibility in states
                if any(issue.compatibility is FieldCompatibility.REJECT for issue in compatibility.issues[own:])
            )
        return [
            compatibility
            for compatibility in (self.key_compatibility, *states, *self.operator_state_compatibilities)
            if compatibility.kind is CompatibilityKind.INCOMPATIBLE
        ]


def incompatibility_message(
    operator_uid: str, rejected: Iterable[StateCompatibility], aftermath: str = NOTHING_CHANGED
) -> str:
    """Format the message for incompatible state: states, field paths, reasons and fixes."""
    lines = [f"operator {operator_uid!r}: its state is incompatible; {aftermath}:"]
    for compatibility in rejected:
        lines.append(f"  state {compatibility.state_name!r}:")
        lines += [f"    {issue}" for issue in compatibility.issues if issue.compatibility is FieldCompatibility.REJECT]
    return "\n".join(lines)
