"""What a start asks of stored state before it looks at any file: the same of a savepoint, a checkpoint and a lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from statebackend.keyed.state_meta import KeyedStateMeta
from statebackend.operator_state import OperatorStateMeta

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
