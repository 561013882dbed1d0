"""What is in a lock: of each operator the schemas of its states, in the form in which a checkpoint has them.

A start asks stored state for its operators, its key groups, and for what the states of each operator are
(`savepoints.stored_schemas`). A lock answers that as a savepoint does, so that both are judged by the same code.
Operators and states are in the order of their names: the order of a program is no part of what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from statebackend.keyed.state_meta import KeyedStateMeta
from statebackend.operator_state import OperatorStateMeta

__all__ = ["LockedOperator", "StateLock"]


@frozen
class LockedOperator:
    """The states of one operator; ``keyed`` is the meta data of a snapshot without entries.

    The states of both are in the order of their names.
    """

    uid: str
    keyed: KeyedStateMeta
    operator_states: tuple[OperatorStateMeta, ...] = ()


@frozen
class StateLock:
    """What a job stores; ``where`` is what errors call it by."""

    max_parallelism: int
    operators: tuple[LockedOperator, ...]
    where: str = field(default="the lock", eq=False)

    @property
    def operator_uids(self) -> Sequence[str]:
        """The operators that have state, by uid, in order."""
        return [one.uid for one in self.operators]

    def keyed_metas_of(self, uid: str) -> Sequence[KeyedStateMeta]:
        """What the keyed state of an operator is, if it has some."""
        known = self._by_uid.get(uid)
        return () if known is None else (known.keyed,)

    def operator_state_metas_of(self, uid: str) -> Sequence[OperatorStateMeta]:
        """What the operator state of an operator is."""
        known = self._by_uid.get(uid)
        return () if known is None else known.operator_states

    @property
    def _by_uid(self) -> Mapping[str, LockedOperator]:
        return {one.uid: one for one in self.operators}
