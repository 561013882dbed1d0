"""Whether a descriptor may take over restored operator state, and with which serializers.

Every role may be migrated, the keys of a broadcast state too: no key group and no address depends on their bytes. What
is restored may have been written under several schemas, one for each part, since the subtasks of the old run need not
have registered the state all. One set of serializers must then do for all parts: a reconfigured serializer is put to
every part again, until none asks for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from snapshots.compatibility import CompatibilityKind, FieldVerdict, Finding, worst_kind
from snapshots.envelope import snapshot_to_bytes
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from statebackend.api.operator_state_descriptors import OperatorStateDescriptor, OperatorStateMode
from statebackend.keyed.state_verdicts import StateVerdict
from statebackend.operator_state.operator_state_handles import StatePart
from typeserializers.kernel.type_serializer import TypeSerializer


def judge_operator_state(
    mode: OperatorStateMode, parts: Sequence[StatePart], descriptor: OperatorStateDescriptor
) -> StateVerdict:
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
        return StateVerdict(descriptor.name, CompatibilityKind.INCOMPATIBLE, (finding,), {})
    kinds: list[CompatibilityKind] = []
    findings: list[Finding] = []
    serializers: dict[str, TypeSerializer[Any]] = {}
    for role, serializer in descriptor.serializers.items():
        snapshots = [
            part.snapshot(descriptor.name, role) for part in {part.envelopes[role]: part for part in parts}.values()
        ]
        kind, found, serializers[role] = _judge_role(snapshots, serializer)
        kinds.append(kind)
        findings += [finding.below(f"<{role}>" if len(descriptor.serializers) > 1 else "") for finding in found]
    return StateVerdict(descriptor.name, worst_kind(kinds), tuple(dict.fromkeys(findings)), serializers)


def _judge_role(
    snapshots: Sequence[TypeSerializerSnapshot[Any]], serializer: TypeSerializer[Any]
) -> tuple[CompatibilityKind, list[Finding], TypeSerializer[Any]]:
    kinds = [CompatibilityKind.AS_IS]
    findings: list[Finding] = []
    # Each round but the last adopts what at least one more schema asks for.
    for _ in range(len(snapshots) + 1):
        is_settled = True
        for snapshot in snapshots:
            verdict = resolve_compatibility(snapshot, serializer)
            kinds.append(verdict.kind)
            findings += verdict.findings
            if verdict.is_with_reconfigured_serializer and not _is_like(verdict.reconfigured_serializer, serializer):
                serializer, is_settled = verdict.reconfigured_serializer, False
        if is_settled:
            return worst_kind(kinds), findings, serializer
    conflict = Finding(
        "",
        FieldVerdict.REFUSE,
        "reconfiguration-conflict",
        f"it was written under {len(snapshots)} schemas, and no one form of {serializer!r} can take over all of them",
        "Restore once with the old program and register the state in every subtask",
    )
    return CompatibilityKind.INCOMPATIBLE, [*findings, conflict], serializer


def _is_like(one: TypeSerializer[Any], other: TypeSerializer[Any]) -> bool:
    """Whether both know the same: serializers that have learned other things may be equal all the same."""
    return snapshot_to_bytes(one.snapshot_configuration()) == snapshot_to_bytes(other.snapshot_configuration())
