"""Reducing and aggregating state: a value state that holds what was folded so far.

An accumulator is stored as a value is, so every backend's value state will do, with its cache, its checks and its
ownership of mutable values: a function may change the accumulator it is given, which is its own. A fold is a read, the
user's function, and an update; whatever fails, fails before the update. An exception of the function goes on as it is,
with a note (PEP 678) that names the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from snapshots.errors import SerializationError, StateFormatError
from statebackend.api.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor, StateKind
from statebackend.api.errors import StateBackendError
from statebackend.keyed.key_context import AnyKeyContext
from statebackend.kinds.internal_states import (
    InternalAggregatingState,
    InternalReducingState,
    InternalState,
    InternalValueState,
    fold_namespaces,
)

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
O = TypeVar("O")  # noqa: E741


class ValueBackedReducingState(InternalReducingState[T]):
    """See the module."""

    __slots__ = ("_name", "_reduce", "_values")

    def __init__(self, values: InternalValueState[T], descriptor: ReducingStateDescriptor[T]) -> None:
        self._values = values
        self._name = descriptor.name
        self._reduce = descriptor.reduce_function

    @property
    def key_context(self) -> AnyKeyContext:
        return self._values.key_context

    def get(self) -> T | None:
        return self._values.value()

    def add(self, value: T) -> None:
        if value is None:
            raise refusal(self._name, "None cannot be added to a reducing state")
        current = self._values.value()
        self._values.update(value if current is None else self._reduced(current, value))

    def clear(self) -> None:
        self._values.clear()

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        fold_namespaces(self, target, sources, self._values.value, self._fold)

    def _fold(self, values: list[T]) -> None:
        current = self._values.value()
        for value in values:
            current = value if current is None else self._reduced(current, value)
        self._values.update(current)

    def _reduced(self, left: T, right: T) -> T:
        try:
            reduced = self._reduce(left, right)
        except Exception as error:
            note_function(error, self._name, "the reduce function")
            raise
        # An update with None would clear what was folded so far.
        return folded(reduced, self._name, "the reduce function")


class ValueBackedAggregatingState(InternalAggregatingState[I, O]):
    """See the module."""

    __slots__ = ("_accumulators", "_function", "_name")

    def __init__(
        self, accumulators: InternalValueState[Any], descriptor: AggregatingStateDescriptor[I, Any, O]
    ) -> None:
        self._accumulators = accumulators
        self._name = descriptor.name
        self._function = descriptor.aggregate_function

    @property
    def key_context(self) -> AnyKeyContext:
        return self._accumulators.key_context

    def get(self) -> O | None:
        accumulator = self._accumulators.value()
        if accumulator is None:
            return None
        try:
            return self._function.get_result(accumulator)
        except Exception as error:
            note_function(error, self._name, "get_result() of the aggregate function")
            raise

    def add(self, value: I) -> None:
        if value is None:
            raise refusal(self._name, "None cannot be added to an aggregating state")
        accumulator = self._accumulators.value()
        try:
            if accumulator is None:
                accumulator = self._function.create_accumulator()
            added = self._function.add(value, accumulator)
        except Exception as error:
            note_function(error, self._name, "add() of the aggregate function")
            raise
        self._accumulators.update(folded(added, self._name, "add() of the aggregate function"))

    def clear(self) -> None:
        self._accumulators.clear()

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        fold_namespaces(self, target, sources, self._accumulators.value, self._fold)

    def _fold(self, accumulators: list[Any]) -> None:
        merged = self._accumulators.value()
        for accumulator in accumulators:
            if merged is None:
                merged = accumulator
            else:
                merged = folded(self._merged(merged, accumulator), self._name, "merge() of the aggregate function")
        self._accumulators.update(merged)

    def _merged(self, left: Any, right: Any) -> Any:
        try:
            return self._function.merge(left, right)
        except Exception as error:
            note_function(error, self._name, "merge() of the aggregate function")
            raise


def folded(result: T | None, name: str, function: str) -> T:
    """What a user's function has folded; raises `SerializationError` if that is None."""
    if result is None:
        raise refusal(name, f"{function} returned None; it must return what it has folded")
    return result


def note_function(error: Exception, name: str, function: str) -> None:
    """Notes on an exception of a user's function which one it was; an error that names its state is left alone."""
    if isinstance(error, (StateFormatError, StateBackendError)):
        return
    # Python 3.10 has no add_note().
    error.__notes__ = [*getattr(error, "__notes__", ()), f"in {function} of state {name!r}"]  # type: ignore[attr-defined]


def refusal(name: str, problem: str) -> SerializationError:
    """The error for a value that a folding state does not take."""
    return SerializationError(f"state {name!r}", (problem,))


_FOLDING: Final[dict[StateKind, Callable[[Any, Any], InternalState]]] = {
    StateKind.REDUCING: ValueBackedReducingState,
    StateKind.AGGREGATING: ValueBackedAggregatingState,
}


def stored_descriptor(descriptor: StateDescriptor) -> StateDescriptor:
    """The state that a backend keeps for a descriptor: itself, or the value state that it is folded into."""
    return getattr(descriptor, "stored_value", descriptor)


def handle_of_kind(stored: InternalState, descriptor: StateDescriptor) -> InternalState:
    """The handle to give out: ``stored`` itself, or the folding state over the value state that it is."""
    folding = _FOLDING.get(descriptor.kind)
    return stored if folding is None else folding(stored, descriptor)
