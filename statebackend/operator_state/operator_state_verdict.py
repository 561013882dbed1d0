"""Whether a descriptor may take over restored operator state, and with which serializers.

Every role may be migrated, the keys of a broadcast state too: no key group and no address depends on their bytes. What
is restored may have been written under several schemas, one for each part, since the subtasks of the old run need not
have registered the state all. One set of serializers must then do for all parts: a reconfigured serializer is put to
every part again, until none asks for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from snapshots.compatibility import CompatibilityKind, FieldVerdict, Finding, worst_kind
from snapshots.envelope import snapshot_to_bytes
from snapshots.plans import Plan
from snapshots.type_serializer_snapshot import RULES, TypeSerializerSnapshot, VerdictRules, resolve_compatibility
from statebackend.api.operator_state_descriptors import OperatorStateDescriptor, OperatorStateMode
from statebackend.keyed.state_verdicts import StateVerdict
from statebackend.operator_state.operator_state_handles import StatePart
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class OperatorStateTakeover:
    """The verdict on the parts of a restored state, and how those of its schemas that are migrated are.

    ``plans`` are by role and by the envelope of what the serializer was; they lead to the serializers of the verdict.
    """

    verdict: StateVerdict
    plans: Mapping[tuple[str, bytes], Plan]


def judge_operator_state(
    mode: OperatorStateMode,
    parts: Sequence[StatePart],
    descriptor: OperatorStateDescriptor,
    rules: VerdictRules = RULES,
) -> StateVerdict:
    """The verdict of `plan_operator_state`."""
    return plan_operator_state(mode, parts, descriptor, rules).verdict


def plan_operator_state(
    mode: OperatorStateMode,
    parts: Sequence[StatePart],
    descriptor: OperatorStateDescriptor,
    rules: VerdictRules = RULES,
) -> OperatorStateTakeover:
    """The verdict on a descriptor taking over the parts of a restored state, with the serializers to use by role.

    Raises `StateRestoreError` if what an old serializer was cannot be read here.
    """
    if mode is not descriptor.mode:
        finding = Finding(
            "",
            FieldVerdict.REFUSE,
            "state-mode",
            f"the restored state is a {mode.value} state, the descriptor is of a {descriptor.mode.value} state",
            "Register the new mode under another name",
        )
        return OperatorStateTakeover(StateVerdict(descriptor.name, CompatibilityKind.INCOMPATIBLE, (finding,), {}), {})
    kinds: list[CompatibilityKind] = []
    findings: list[Finding] = []
    serializers: dict[str, TypeSerializer[Any]] = {}
    plans: dict[tuple[str, bytes], Plan] = {}
    for role, serializer in descriptor.serializers.items():
        written = {part.envelopes[role]: part for part in parts}
        snapshots = {envelope: part.snapshot(descriptor.name, role) for envelope, part in written.items()}
        kind, found, serializers[role], migrating = _judge_role(snapshots, serializer, rules)
        kinds.append(kind)
        findings += [finding.below(f"<{role}>" if len(descriptor.serializers) > 1 else "") for finding in found]
        plans.update({(role, envelope): plan for envelope, plan in migrating.items()})
    verdict = StateVerdict(descriptor.name, worst_kind(kinds), tuple(dict.fromkeys(findings)), serializers)
    return OperatorStateTakeover(verdict, plans)


def _judge_role(
    snapshots: Mapping[bytes, TypeSerializerSnapshot[Any]], serializer: TypeSerializer[Any], rules: VerdictRules
) -> tuple[CompatibilityKind, list[Finding], TypeSerializer[Any], dict[bytes, Plan]]:
    kinds = [CompatibilityKind.AS_IS]
    findings: list[Finding] = []
    # Each round but the last adopts what at least one more schema asks for.
    for _ in range(len(snapshots) + 1):
        is_settled, plans = True, dict[bytes, Plan]()
        for envelope, snapshot in snapshots.items():
            verdict = resolve_compatibility(snapshot, serializer, rules)
            kinds.append(verdict.kind)
            findings += verdict.findings
            if verdict.is_after_migration:
                plans[envelope] = verdict.plan
            if verdict.is_with_reconfigured_serializer and not _is_like(verdict.reconfigured_serializer, serializer):
                serializer, is_settled = verdict.reconfigured_serializer, False
        if is_settled:
            return worst_kind(kinds), findings, serializer, plans
    conflict = Finding(
        "",
        FieldVerdict.REFUSE,
        "reconfiguration-conflict",
        f"it was written under {len(snapshots)} schemas, and no one form of {serializer!r} can take over all of them",
        "Restore once with the old program and register the state in every subtask",
    )
    return CompatibilityKind.INCOMPATIBLE, [*findings, conflict], serializer, {}


def _is_like(one: TypeSerializer[Any], other: TypeSerializer[Any]) -> bool:
    """Whether both know the same: serializers that have learned other things may be equal all the same."""
    return snapshot_to_bytes(one.snapshot_configuration()) == snapshot_to_bytes(other.snapshot_configuration())
