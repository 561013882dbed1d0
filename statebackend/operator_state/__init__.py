"""State that belongs to a subtask and not to a key: what holds it, writes it, and deals it out at a restore.

On the heap whatever keeps keyed state, and independent of it: nothing here knows a key or a key group. What a user
imports, descriptors and `BroadcastState`, is in `statebackend.api`.
"""

from statebackend.operator_state.operator_snapshot_task import OperatorStateSnapshotTask
from statebackend.operator_state.operator_state_backend import OperatorStateBackend, OperatorStateBackendParameters
from statebackend.operator_state.operator_state_export import export_operator_state
from statebackend.operator_state.operator_state_handles import (
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorStateSnapshot,
    decode_operator_state,
    encode_operator_state,
)
from statebackend.operator_state.operator_state_verdict import judge_operator_state
from statebackend.operator_state.redistribution import (
    RestoredOperatorState,
    continued_operator_state,
    operator_state_metas,
    restored_operator_state,
)

__all__ = [
    "OperatorStateBackend",
    "OperatorStateBackendParameters",
    "OperatorStateHandle",
    "OperatorStateMeta",
    "OperatorStateSnapshot",
    "OperatorStateSnapshotTask",
    "RestoredOperatorState",
    "continued_operator_state",
    "decode_operator_state",
    "encode_operator_state",
    "export_operator_state",
    "judge_operator_state",
    "operator_state_metas",
    "restored_operator_state",
]
