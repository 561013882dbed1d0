"""What `open()` registered on the driver, as workers are told it: that a worker registers the same is checked there.

What a start promises, it promises for the serializers that the driver has seen. A worker runs `open()` again: with
another version of a module, or with a descriptor that depends on the host, it would write under another schema than
was judged, and perhaps not all workers alike. So the snapshots of the driver's serializers go along, and a worker's
are held against them when it registers them in `open()`, before any record. A serializer that learns from what it
writes may know more or less in a process that has run before: what reads and writes the same bytes is the same.
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
    """A state as a descriptor has it now: serializers may learn from what is written later."""
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
    """Raises `StateRegistrationError` if a worker's descriptor is another than the driver's of the same name."""
    where = f"operator {operator_uid!r}: subtask {subtask_index} registers state {descriptor.name!r}"
    if _kind_of(descriptor) != planned.kind:
        raise StateRegistrationError(
            f"{where} as {_kind_of(descriptor)} state, and open() on the driver as {planned.kind} state: {_ADVICE}"
        )
    for role, serializer in descriptor.serializers.items():
        if snapshot_to_bytes(serializer.snapshot_configuration()) == planned.snapshots[role]:
            continue
        compatibility = resolve_compatibility(snapshot_from_bytes(planned.snapshots[role]), serializer)
        if compatibility.kind not in _SAME_BYTES:
            told = "; ".join(map(str, compatibility.issues)) or compatibility.kind.label
            raise StateRegistrationError(
                f"{where} with another {role} serializer, {type(serializer).__name__}, than open() on the driver, "
                f"which the start has judged ({told}): {_ADVICE}"
            )


_SAME_BYTES = (CompatibilityKind.AS_IS, CompatibilityKind.WITH_RECONFIGURED_SERIALIZER)

_ADVICE = (
    "give all workers the modules of the driver, in one version (spark.sparkContext.addPyFile(...) or spark-submit "
    "--py-files), and let open() make the same descriptors in every process"
)


def _kind_of(descriptor: StateDescriptor | OperatorStateDescriptor) -> str:
    return descriptor.kind.name if isinstance(descriptor, StateDescriptor) else descriptor.mode.value
