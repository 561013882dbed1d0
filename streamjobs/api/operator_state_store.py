"""What a function reaches its operator state through: state of the subtask it runs in, and of no key.

The names are those of Flink's ``OperatorStateStore``. A descriptor says itself how its state is dealt out to the
subtasks of another run, so each method takes the descriptors of one mode and refuses the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from statebackend.api.broadcast_state import BroadcastState
from statebackend.api.errors import StateRegistrationError
from statebackend.api.operator_state_descriptors import (
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    OperatorStateMode,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.api.states import ListState, State
from streamjobs.user_errors import cited

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class OperatorStateStore:
    """The operator state of one subtask in one epoch."""

    def __init__(self, operator_uid: str, register: Callable[[OperatorStateDescriptor], State]) -> None:
        self._operator_uid = operator_uid
        self._register = register

    def get_list_state(self, descriptor: SplitListStateDescriptor[T]) -> ListState[T]:
        """A list of this subtask's own; at another parallelism the elements of all subtasks are dealt out evenly.

        Raises `StateMigrationException` if restored state cannot be taken over.
        """
        state: ListState[T] = self._registered(descriptor, OperatorStateMode.SPLIT)
        return state

    def get_union_list_state(self, descriptor: UnionListStateDescriptor[T]) -> ListState[T]:
        """A list of this subtask's own; in the first epoch after a start it holds the elements of all subtasks.

        Keep your own part of it then, with `update`: what is in it at the end of the epoch is what the subtask has.
        Raises as `get_list_state`.
        """
        state: ListState[T] = self._registered(descriptor, OperatorStateMode.UNION)
        return state

    def get_broadcast_state(self, descriptor: BroadcastStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """A map of which every subtask has a copy; all of them must write the same. Raises as `get_list_state`."""
        state: BroadcastState[K, V] = self._registered(descriptor, OperatorStateMode.BROADCAST)
        return state

    def _registered(self, descriptor: OperatorStateDescriptor, mode: OperatorStateMode) -> Any:
        given = descriptor.mode if isinstance(descriptor, OperatorStateDescriptor) else None
        if given is not mode:
            method, wanted = _REGISTRATION[mode]
            how = f"it takes a {wanted}"
            if given is not None:
                how += f"; a {given.value} state is registered with {_REGISTRATION[given][0]}"
            raise StateRegistrationError(
                f"operator {self._operator_uid!r}: operator_state.{method} was given {cited(descriptor, 120)}; {how}"
            )
        return self._register(descriptor)


_REGISTRATION: Final = {
    OperatorStateMode.SPLIT: ("get_list_state", SplitListStateDescriptor.__name__),
    OperatorStateMode.UNION: ("get_union_list_state", UnionListStateDescriptor.__name__),
    OperatorStateMode.BROADCAST: ("get_broadcast_state", BroadcastStateDescriptor.__name__),
}
