"""The handles through which a function reads and writes the state of the current key.

Semantics are Flink's. What a handle returns is the caller's own: changing it has no effect until it is given back by an
update, on every backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


class State(ABC):
    """What every kind of state can do."""

    __slots__ = ()

    @abstractmethod
    def clear(self) -> None:
        """Removes the state of the current key."""


class ValueState(State, Generic[T]):
    """One value."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> T | None:
        """The value, or (a copy of) the default while there is none."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Sets the value; None clears. Raises `SerializationError`, changing nothing, if the value does not fit."""


class DefaultedValueState(ValueState[T]):
    """What a `ValueState` whose descriptor has a default is to type checkers: its value is never None."""

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
        """Appends one element, without reading the others. None is refused."""

    @abstractmethod
    def add_all(self, elements: Iterable[T]) -> None:
        """Appends the elements: all of them or, if one does not fit, none."""

    @abstractmethod
    def update(self, elements: Iterable[T]) -> None:
        """Replaces the list; an empty one clears."""


class MapState(State, Generic[K, V]):
    """A map whose entries are read and written one by one; values may be None, keys may not."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of an entry, or None."""

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Sets one entry."""

    @abstractmethod
    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Sets the entries: all of them or, if one does not fit, none."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removes one entry; a missing one is no error."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is an entry, be its value None."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V | None]]:
        """All entries, in no promised order; entries may be changed while iterating."""

    def keys(self) -> Iterator[K]:
        """All keys."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V | None]:
        """All values."""
        return (value for _, value in self.items())

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""


class ReducingState(State, Generic[T]):
    """One value, into which every added value is folded by the reduce function of the descriptor."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> T | None:
        """The folded value, or None before the first `add`."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Folds a value in. None is refused; whatever fails, in the function or the serializer, changes nothing."""


class AggregatingState(State, Generic[I, O]):
    """An accumulator, into which every added value is folded by the aggregate function of the descriptor."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> O | None:
        """The result that the function makes of the accumulator, or None before the first `add`."""

    @abstractmethod
    def add(self, value: I) -> None:
        """Folds a value in; as `ReducingState.add`."""
