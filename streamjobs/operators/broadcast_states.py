"""The broadcast states of an operator, guarded: only what every subtask does alike may change them.

`GuardedBroadcastStates.may_change` is true while a record of the broadcast stream is processed, and in `open()`.
Outside of it a change is an error, also by a handle that the function has kept. Views for the other side refuse by
saying so, not by lacking a method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from statebackend.api.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from statebackend.api.errors import StateBackendError, StateRegistrationError
from statebackend.api.operator_state_descriptors import BroadcastStateDescriptor, OperatorStateDescriptor
from statebackend.api.states import State
from streamjobs.user_errors import cited

__all__ = ["BroadcastWriteError", "GuardedBroadcastStates"]

K = TypeVar("K")
V = TypeVar("V")


class BroadcastWriteError(StateBackendError):
    """Broadcast state was to be changed where the subtasks do not do the same."""


class GuardedBroadcastStates:
    """See the module; ``register`` registers operator state."""

    def __init__(self, uid: str, register: Callable[[OperatorStateDescriptor], State]) -> None:
        self.may_change = True
        """Whether what runs now runs alike in all subtasks."""
        self._uid = uid
        self._register = register
        self._states: dict[str, tuple[BroadcastStateDescriptor[Any, Any], GuardedBroadcastState[Any, Any]]] = {}

    def register(self, descriptor: BroadcastStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Registers a state; raises as the backend does."""
        # The backend refuses a second descriptor of one name.
        state: Any = self._register(descriptor)
        known = self._states.get(descriptor.name)
        if known is None:
            known = descriptor, GuardedBroadcastState(state, descriptor.name, self)
            self._states[descriptor.name] = known
        return known[1]

    def writable(self, descriptor: BroadcastStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """The state of a descriptor; raises `StateRegistrationError` for one that is not registered."""
        known = self._states.get(descriptor.name) if isinstance(descriptor, BroadcastStateDescriptor) else None
        if known is None or (known[0] is not descriptor and known[0] != descriptor):
            names = ", ".join(map(repr, self._states)) or "none"
            raise StateRegistrationError(
                f"get_broadcast_state was given {cited(descriptor, 120)}, and the broadcast states of the operator are "
                f"{names}: pass it to broadcast(...) too, or register it in open() with "
                f"context.operator_state.get_broadcast_state"
            )
        return known[1]

    def read_only(self, descriptor: BroadcastStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
        """As `writable`, a view that refuses to change it."""
        return self.writable(descriptor).read_only()


class _Readable(Generic[K, V]):
    """What state and view read alike."""

    __slots__ = ("_guard", "_name", "_state")

    def __init__(self, state: BroadcastState[K, V], name: str, guard: GuardedBroadcastStates) -> None:
        self._state = state
        self._name = name
        self._guard = guard

    def get(self, key: K) -> V | None:
        return self._state.get(key)

    def contains(self, key: K) -> bool:
        return self._state.contains(key)

    def items(self) -> Iterator[tuple[K, V | None]]:
        return self._state.items()

    def is_empty(self) -> bool:
        return self._state.is_empty()


class GuardedBroadcastState(_Readable[K, V], BroadcastState[K, V]):
    """A broadcast state that is changed only where it may be."""

    __slots__ = ()

    def put(self, key: K, value: V | None) -> None:
        self._changing().put(key, value)

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        self._changing().put_all(entries)

    def remove(self, key: K) -> None:
        self._changing().remove(key)

    def clear(self) -> None:
        self._changing().clear()

    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        return _RefusingView(self._state, self._name, self._guard)

    def _changing(self) -> BroadcastState[K, V]:
        if not self._guard.may_change:
            raise write_refused(self._name)
        return self._state


class _RefusingView(_Readable[K, V], ReadOnlyBroadcastState[K, V]):
    """A state that can only be read, and says so."""

    __slots__ = ()

    def put(self, key: K, value: V | None) -> NoReturn:
        """Refused."""
        raise write_refused(self._name)

    def put_all(self, entries: Mapping[K, V | None]) -> NoReturn:
        """Refused."""
        raise write_refused(self._name)

    def remove(self, key: K) -> NoReturn:
        """Refused."""
        raise write_refused(self._name)

    def clear(self) -> NoReturn:
        """Refused."""
        raise write_refused(self._name)


def write_refused(name: str) -> BroadcastWriteError:
    """What is raised where the state of that name must not be changed."""
    return BroadcastWriteError(
        f"broadcast state {name!r} can be changed in process_broadcast_element only: what else runs in a subtask "
        f"is not what runs in the others, so that their copies would differ"
    )
