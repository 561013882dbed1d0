"""What a checkpoint or savepoint holds: its operators, and the meta data of their keyed and operator state."""

from __future__ import annotations

from attrs import frozen

from checkpointing.handles.state_handles import KeyedStateHandle, OperatorState
from checkpointing.metadata.metadata_file import CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.keyed.state_meta import KeyedStateMeta, decode_meta, distinct_metas
from statebackend.operator_state import OperatorStateMeta, operator_state_metas, split_handle


@frozen
class RestoredState:
    """The operator states to continue from, the store their files are in, and the checkpoint they belong to."""

    metadata: CheckpointMetadata
    file_system: CheckpointFileSystem

    def operator(self, uid: str) -> OperatorState | None:
        """The state of an operator, if there is any."""
        return next((operator for operator in self.metadata.operators if operator.uid == uid), None)

    def keyed_metas_of(self, uid: str) -> tuple[KeyedStateMeta, ...]:
        """What the keyed state of an operator is: the meta data of its subtasks, alike ones once."""
        keyed = [split_handle(handle)[0] for handle in self._handles(uid)]
        return distinct_metas([decode_meta(handle.meta, len(handle.files)) for handle in keyed])

    def operator_state_metas_of(self, uid: str) -> tuple[OperatorStateMeta, ...]:
        """What the operator state of an operator is, over all its subtasks."""
        return operator_state_metas(self._handles(uid))

    def _handles(self, uid: str) -> tuple[KeyedStateHandle, ...]:
        operator = self.operator(uid)
        return () if operator is None else handles_of(operator)


def handles_of(operator: OperatorState) -> tuple[KeyedStateHandle, ...]:
    """The handles of an operator, in the order of its subtasks."""
    return tuple(subtask.handle for subtask in sorted(operator.subtasks, key=lambda one: one.subtask_index))
