"""The public state interfaces of a user's function, keyed and broadcast, and the functions that fold values.

Semantics and names are Flink's. A handle reads and writes the state of the current key. A returned object belongs to
the caller: a change of it has no effect on any backend until it is passed to an update.

An aggregate function's *accumulator* is stored. Its type may be mutable: a function may change the accumulator that it
receives, or return another one. Only the returned one is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
O = TypeVar("O")  # noqa: E741

ReduceFunction = Callable[[T, T], T]
"""Combines two values into one of the same type; must be associative if namespaces are merged."""


class AggregateFunction(ABC, Generic[I, A, O]):
    """Folds values of type ``I`` into an accumulator of type ``A``, and computes a result of type ``O`` from it."""

    @abstractmethod
    def create_accumulator(self) -> A:
        """Create an empty accumulator; called for the first value of every key."""

    @abstractmethod
    def add(self, value: I, accumulator: A) -> A:
        """Return the accumulator with the value added: the passed one, changed, or another one."""

    @abstractmethod
    def get_result(self, accumulator: A) -> O:
        """Return the result of the accumulator; called at every read."""

    def merge(self, left: A, right: A) -> A:
        """Merge two accumulators; only session windows, which merge namespaces, need it."""
        raise NotImplementedError(f"{type(self).__name__} has no merge(), which merging namespaces needs")


K = TypeVar("K")
V = TypeVar("V")


class State(ABC):
    """The base of every kind of state."""

    __slots__ = ()

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key."""


class ValueState(State, Generic[T]):
    """One value."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> T | None:
        """The value, or (a copy of) the default while there is none."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value; None clears. Raises `SerializationError`, changing nothing, if the serializer rejects it."""


class DefaultedValueState(ValueState[T]):
    """A `ValueState` whose descriptor has a default. For type checkers: its value is never None."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> T:
        """The value, or a copy of the default while there is none."""


class ListState(State, Generic[T]):
    """A list in insertion order; duplicates are kept."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> list[T]:
        """All elements; empty when there are none."""

    @abstractmethod
    def add(self, element: T) -> None:
        """Append one element, without reading the others. None is rejected."""

    @abstractmethod
    def add_all(self, elements: Iterable[T]) -> None:
        """Append all elements, or none if the serializer rejects one."""

    @abstractmethod
    def update(self, elements: Iterable[T]) -> None:
        """Replace the list; an empty one clears."""


class MapState(State, Generic[K, V]):
    """A map whose entries are read and written one by one; values may be None, keys may not."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of an entry, or None."""

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Set one entry."""

    @abstractmethod
    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set all entries, or none if a serializer rejects one."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove one entry, if it exists."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether an entry exists, even if its value is None."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V | None]]:
        """All entries, unordered; entries may be changed during the iteration."""

    def keys(self) -> Iterator[K]:
        """All keys."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V | None]:
        """All values."""
        return (value for _, value in self.items())

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the map is empty."""


class ReducingState(State, Generic[T]):
    """One value; the reduce function of the descriptor folds every added value into it."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> T | None:
        """The folded value, or None before the first `add`."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Fold a value in. None is rejected. A failure of the function or the serializer changes nothing."""


class AggregatingState(State, Generic[I, O]):
    """An accumulator; the aggregate function of the descriptor folds every added value into it."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> O | None:
        """The result of the accumulator, or None before the first `add`."""

    @abstractmethod
    def add(self, value: I) -> None:
        """Fold a value in; as `ReducingState.add`."""


class BroadcastState(MapState[K, V]):
    """A map with a copy in every subtask. All apply the same changes, from the same records in the same order.

    Entries keep the order of their first put, also in snapshots.
    """

    __slots__ = ()

    @abstractmethod
    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        """A live read-only view, for the input of an operator whose records differ between subtasks."""


class ReadOnlyBroadcastState(ABC, Generic[K, V]):
    """The read methods of a `BroadcastState`."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of an entry, or None."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether an entry exists, even if its value is None."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V | None]]:
        """All entries, in the order of their first put."""

    def keys(self) -> Iterator[K]:
        """All keys."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V | None]:
        """All values."""
        return (value for _, value in self.items())

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the map is empty."""
