"""State that belongs to a subtask and not to a key: split lists, union lists, broadcast state."""

from statebackend.operator_state.backend import OperatorStateBackend, OperatorStateBackendParameters
from statebackend.operator_state.descriptors import (
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    OperatorStateMode,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.operator_state.handles import (
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorStateSnapshot,
    decode_operator_state,
    encode_operator_state,
)
from statebackend.operator_state.redistribution import (
    RestoredOperatorState,
    continued_operator_state,
    operator_state_metas,
    restored_operator_state,
)
from statebackend.operator_state.savepoint import export_operator_state
from statebackend.operator_state.schema_resolution import judge_operator_state
from statebackend.operator_state.snapshot_task import OperatorStateSnapshotTask
from statebackend.operator_state.states import BroadcastState, ReadOnlyBroadcastState

__all__ = [
    "BroadcastState",
    "BroadcastStateDescriptor",
    "OperatorStateBackend",
    "OperatorStateBackendParameters",
    "OperatorStateDescriptor",
    "OperatorStateHandle",
    "OperatorStateMeta",
    "OperatorStateMode",
    "OperatorStateSnapshot",
    "OperatorStateSnapshotTask",
    "ReadOnlyBroadcastState",
    "RestoredOperatorState",
    "SplitListStateDescriptor",
    "UnionListStateDescriptor",
    "continued_operator_state",
    "decode_operator_state",
    "encode_operator_state",
    "export_operator_state",
    "judge_operator_state",
    "operator_state_metas",
    "restored_operator_state",
]
