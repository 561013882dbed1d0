"""The operator states of a checkpoint or savepoint, with the meta data of keyed and operator state."""

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
    """The schemas of stored state: of a savepoint, a checkpoint or a schema lockfile. One check serves all."""

    @property
    def where(self) -> str:
        """The location that errors name."""

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""

    @property
    def operator_uids(self) -> Sequence[str]:
        """The uids of the operators that have state."""

    def keyed_metas_of(self, uid: str) -> Sequence[KeyedStateMeta]:
        """Return the distinct metas of an operator's keyed state, over all subtasks."""

    def operator_state_metas_of(self, uid: str) -> Sequence[OperatorStateMeta]:
        """Return the metas of an operator's operator state, over all subtasks."""


@frozen
class RestoredState:
    """A checkpoint or savepoint to restore from, and the file system that holds its files."""

    metadata: CheckpointMetadata
    file_system: CheckpointFileSystem

    @property
    def where(self) -> str:
        """The location that errors name."""
        return self.file_system.location("")

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self.metadata.max_parallelism

    @property
    def operator_uids(self) -> Sequence[str]:
        """The uids of the operators that have state."""
        return [operator.uid for operator in self.metadata.operators]

    def operator(self, uid: str) -> OperatorState | None:
        """Return the state of an operator, or None."""
        return next((operator for operator in self.metadata.operators if operator.uid == uid), None)

    def keyed_metas_of(self, uid: str) -> tuple[KeyedStateMeta, ...]:
        """Return the distinct metas of an operator's keyed state, over all subtasks."""
        operator = self.operator(uid)
        handles = () if operator is None else operator.keyed_handles
        return distinct_metas([decode_meta(handle.meta, len(handle.files)) for handle in handles])

    def operator_state_metas_of(self, uid: str) -> tuple[OperatorStateMeta, ...]:
        """Return the metas of an operator's operator state, over all subtasks."""
        operator = self.operator(uid)
        return operator_state_metas([] if operator is None else [subtask.operator for subtask in operator.subtasks])
