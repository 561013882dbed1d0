"""Holds the subtasks of an operator to one copy of its broadcast state, before a checkpoint becomes durable.

Every subtask has a copy, and makes it from the same records in the same order. A function that goes by anything else
(a clock, a random number, its subtask) makes copies that differ, and which of them a key meets after a rescale would be
chance. So the copies are compared at every barrier, by the digests that they travel with: none is read. What operators
keep for themselves under reserved names is theirs to answer for.
"""

from __future__ import annotations

from collections.abc import Iterable

from checkpointing.coordinator.pending_checkpoint import CompletedCheckpoint
from checkpointing.handles.state_handles import SubtaskState
from statebackend.api.operator_state_descriptors import OperatorStateMode
from statebackend.operator_state import OperatorStateMeta, decode_operator_state
from streamjobs.errors import EpochError
from streamjobs.operators.stateful_processor.processor_handle import RESERVED_PREFIX

__all__ = ["check_broadcast_copies"]


def check_broadcast_copies(completed: CompletedCheckpoint) -> None:
    """Raises `EpochError` if two subtasks of an operator have acknowledged other copies of a broadcast state."""
    for operator in completed.operators:
        _check(operator.uid, completed.checkpoint_id, operator.subtasks)


def _check(uid: str, checkpoint_id: int, subtasks: Iterable[SubtaskState]) -> None:
    first: dict[str, tuple[int, bytes]] = {}
    for index, subtask in enumerate(subtasks):
        if subtask.operator is None:
            continue
        for state in decode_operator_state(subtask.operator).states:
            digest = _digest(state)
            if digest is None or state.name.startswith(RESERVED_PREFIX):
                continue
            first_index, known = first.setdefault(state.name, (index, digest))
            if digest != known:
                raise EpochError(
                    f"operator {uid!r}, epoch {checkpoint_id}: the copies of broadcast state {state.name!r} in "
                    f"subtasks {first_index} and {index} differ; what changes it must do the same in every subtask, so "
                    f"let it go by the broadcast record and by broadcast state alone"
                )


def _digest(state: OperatorStateMeta) -> bytes | None:
    """What the copy of a broadcast state is told by; None where it is not known, as behind a rescale, or no copy."""
    if state.mode is not OperatorStateMode.BROADCAST or len(state.parts) > 1:
        return None
    [part] = state.parts
    return b"" if not part.slices else part.digest
