"""What operators hold: broadcast state, and its read-only side; list states are a `ListState`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from statebackend.api.states import MapState

K = TypeVar("K")
V = TypeVar("V")


class BroadcastState(MapState[K, V]):
    """A map that every subtask holds a copy of, and changes in the same way: from the same records, in the same order.

    Entries keep the order in which they were first put, over snapshots too.
    """

    __slots__ = ()

    @abstractmethod
    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        """A live view that cannot be changed, for the side of an operator whose records differ between subtasks."""


class ReadOnlyBroadcastState(ABC, Generic[K, V]):
    """The reading half of a `BroadcastState`."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """The value of an entry, or None."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is an entry, be its value None."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V | None]]:
        """All entries, in the order in which they were first put."""

    def keys(self) -> Iterator[K]:
        """All keys."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V | None]:
        """All values."""
        return (value for _, value in self.items())

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""
