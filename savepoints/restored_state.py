"""What a checkpoint or savepoint holds: its operators, and the meta data of their keyed and operator state."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from checkpointing.handles.operator_states import OperatorState
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.keyed.state_meta import KeyedStateMeta, decode_meta, distinct_metas
from statebackend.operator_state import OperatorStateMeta, operator_state_metas


@frozen
class RestoredState:
    """The operator states to continue from, the store their files are in, and the checkpoint they belong to."""

    metadata: CheckpointMetadata
    file_system: CheckpointFileSystem

    @property
    def where(self) -> str:
        """The place that errors name."""
        return self.file_system.location("")

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self.metadata.max_parallelism

    @property
    def operator_uids(self) -> Sequence[str]:
        """The operators that have state, by uid."""
        return [operator.uid for operator in self.metadata.operators]

    def operator(self, uid: str) -> OperatorState | None:
        """The state of an operator, if there is any."""
        return next((operator for operator in self.metadata.operators if operator.uid == uid), None)

    def keyed_metas_of(self, uid: str) -> tuple[KeyedStateMeta, ...]:
        """What the keyed state of an operator is: the meta data of its subtasks, alike ones once."""
        operator = self.operator(uid)
        handles = () if operator is None else operator.keyed_handles
        return distinct_metas([decode_meta(handle.meta, len(handle.files)) for handle in handles])

    def operator_state_metas_of(self, uid: str) -> tuple[OperatorStateMeta, ...]:
        """What the operator state of an operator is, over all its subtasks."""
        operator = self.operator(uid)
        return operator_state_metas([] if operator is None else [subtask.operator for subtask in operator.subtasks])
