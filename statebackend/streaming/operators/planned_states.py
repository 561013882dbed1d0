"""The states that `open()` registered on the driver. Every worker must register the same states.

The compatibility check of a start covers the serializers on the driver. A worker runs `open()` again. With another
version of a module, or a descriptor that depends on the host, it would write with an unchecked schema. So the driver
sends the snapshots of its serializers to the workers, which compare their own serializers in `open()`, before the first
record. A serializer that learns from the values it writes may differ if it reads and writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from snapshots.compatibility import CompatibilityKind
from snapshots.envelope import snapshot_from_bytes, snapshot_to_bytes
from snapshots.type_serializer_snapshot import resolve_compatibility
from statebackend.state.errors import StateRegistrationError
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.state_kind import StateDescriptor

__all__ = ["PlannedState", "check_is_as_planned", "planned_state"]


@frozen
class PlannedState:
    """The kind of a state, and the snapshots of its serializers by role, each in its envelope."""

    kind: str
    snapshots: Mapping[str, bytes]


def planned_state(descriptor: StateDescriptor | OperatorStateDescriptor) -> PlannedState:
    """Return the current state of a descriptor. Serializers may later learn from values."""
    return PlannedState(
        _kind_of(descriptor),
        {
            role: snapshot_to_bytes(serializer.snapshot_configuration())
            for role, serializer in descriptor.serializers.items()
        },
    )


def check_is_as_planned(
    planned: PlannedState, descriptor: StateDescriptor | OperatorStateDescriptor, operator_uid: str, subtask_index: int
) -> None:
    """Raise `StateRegistrationError` if a worker's descriptor differs from the driver's."""
    where = f"operator {operator_uid!r}: subtask {subtask_index} registers state {descriptor.name!r}"
    if _kind_of(descriptor) != planned.kind:
        raise StateRegistrationError(
            f"{where} as {_kind_of(descriptor)} state, but open() on the driver as {planned.kind} state: {_ADVICE}"
        )
    for role, serializer in descriptor.serializers.items():
        if snapshot_to_bytes(serializer.snapshot_configuration()) == planned.snapshots[role]:
            continue
        compatibility = resolve_compatibility(snapshot_from_bytes(planned.snapshots[role]), serializer)
        if compatibility.kind not in _SAME_BYTES:
            reason = "; ".join(map(str, compatibility.issues)) or compatibility.kind.label
            raise StateRegistrationError(
                f"{where} with the {role} serializer {type(serializer).__name__}, but open() on the driver with "
                f"another one ({reason}): {_ADVICE}"
            )


_SAME_BYTES = (CompatibilityKind.AS_IS, CompatibilityKind.WITH_RECONFIGURED_SERIALIZER)

_ADVICE = (
    "give all workers the modules of the driver, in one version (spark.sparkContext.addPyFile(...) or spark-submit "
    "--py-files), and let open() make the same descriptors in every process"
)


def _kind_of(descriptor: StateDescriptor | OperatorStateDescriptor) -> str:
    return descriptor.kind.name if isinstance(descriptor, StateDescriptor) else descriptor.mode.value
