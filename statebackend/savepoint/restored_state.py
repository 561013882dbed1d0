"""A checkpoint or savepoint to restore, with the metadata of its state, decoded once for check and restore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from attrs import field, frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.state_handles import OperatorState
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.operator_state_handles import OperatorStateHandle, OperatorStateMeta, decode_operator_state
from statebackend.state.operator_state_redistribution import operator_state_metas
from statebackend.state.state_meta import KeyedStateMeta, distinct_metas

__all__ = ["SOURCE_POSITIONS", "SPLIT_IDENTITIES", "StoredSchemas"]


SOURCE_POSITIONS: Final = "splits"
"""The operator state with the positions of a replayable source."""

SPLIT_IDENTITIES: Final = "identities"
"""The operator state with the identities of its splits, if it has any. A source has no other state under its uid."""


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
    _keyed: dict[str, tuple[RestoredHandle, ...]] = field(factory=dict, init=False, eq=False, repr=False)
    _operator_states: dict[str, tuple[OperatorStateHandle, ...]] = field(factory=dict, init=False, eq=False, repr=False)

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

    @property
    def positioned_sources(self) -> Sequence[str]:
        """The uids of the replayable sources of the local runtime that have positions here."""
        return [
            operator.uid
            for operator in self.metadata.operators
            if not operator.keyed_handles
            and {state.name for state in self.operator_state_metas_of(operator.uid)}
            in ({SOURCE_POSITIONS}, {SOURCE_POSITIONS, SPLIT_IDENTITIES})
        ]

    def operator(self, uid: str) -> OperatorState | None:
        return next((operator for operator in self.metadata.operators if operator.uid == uid), None)

    def keyed_handles(self, uid: str) -> tuple[RestoredHandle, ...]:
        """Return the keyed state of an operator, one handle per subtask. Its metadata is decoded once."""
        if uid not in self._keyed:
            operator = self.operator(uid)
            handles = () if operator is None else operator.keyed_handles
            self._keyed[uid] = tuple(RestoredHandle(handle, self.file_system) for handle in handles)
        return self._keyed[uid]

    def keyed_metas_of(self, uid: str) -> tuple[KeyedStateMeta, ...]:
        """Return the distinct metas of an operator's keyed state, over all subtasks."""
        return distinct_metas([handle.meta for handle in self.keyed_handles(uid)])

    def operator_state_handles(self, uid: str) -> tuple[OperatorStateHandle, ...]:
        """Return the operator state of an operator, one handle per subtask. It is decoded once."""
        if uid not in self._operator_states:
            operator = self.operator(uid)
            subtasks = () if operator is None else operator.subtasks
            self._operator_states[uid] = tuple(decode_operator_state(subtask.operator) for subtask in subtasks)
        return self._operator_states[uid]

    def operator_state_metas_of(self, uid: str) -> tuple[OperatorStateMeta, ...]:
        """Return the metas of an operator's operator state, over all subtasks."""
        return operator_state_metas(self.operator_state_handles(uid))
