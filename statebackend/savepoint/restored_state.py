"""What a checkpoint or savepoint holds: its operators, and the meta data of their keyed and operator state.

What a start asks of stored state before it looks at any file: the same of a savepoint, a checkpoint and a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.state_handles import OperatorState
from statebackend.state.operator_state_handles import OperatorStateMeta
from statebackend.state.operator_state_redistribution import operator_state_metas
from statebackend.state.state_meta import KeyedStateMeta, decode_meta, distinct_metas

__all__ = ["StoredSchemas"]


class StoredSchemas(Protocol):
    """The operators that have state, and what their states are."""

    @property
    def where(self) -> str:
        """What errors call it by: a place."""

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""

    @property
    def operator_uids(self) -> Sequence[str]:
        """The operators, by uid."""

    def keyed_metas_of(self, uid: str) -> Sequence[KeyedStateMeta]:
        """What the keyed state of an operator is: the meta data of its subtasks, alike ones once."""

    def operator_state_metas_of(self, uid: str) -> Sequence[OperatorStateMeta]:
        """What the operator state of an operator is, over all its subtasks."""


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
