"""Key-grouped priority queues: what timers are kept in, between the records of a keyed operator.

A queue holds elements, each in a key group, and gives them out smallest first over all key groups of the subtask. The
order is that of the bytes that the element serializer writes, compared as unsigned (Flink asks the same of the elements
of its queue in RocksDB): so a backend can keep the queue sorted on disk without knowing its type, and a queue polls in
the same order on every backend. Equal bytes in the same key group are one element; equal elements in two key groups are
two, since their keys are different ones, and the lower key group goes first.

A queue has no current key: whoever adds an element says the key group, and is told it when the element is polled.
Like every handle it belongs to one thread and lives until its backend is closed. Whatever was added, removed or polled
before a snapshot is in it, and nothing else, also in the middle of `poll_while`.

The kind and the names come from Flink's ``KeyGroupedInternalPriorityQueue``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyGroupedPriorityQueue(ABC, Generic[T]):
    """See the module. Every method raises `StateBackendClosedError` once the backend is closed.

    Methods that are given an element raise `SerializationError` if it does not fit the serializer, and those that are
    given a key group raise `StateBackendError` if it belongs to another subtask; the queue is then as it was.
    """

    __slots__ = ()

    @abstractmethod
    def add(self, element: T, key_group: int) -> bool:
        """Adds an element, if the key group does not hold it; returns whether the head is another one now.

        Costs O(log n).
        """

    @abstractmethod
    def add_all(self, entries: Iterable[tuple[T, int]]) -> None:
        """Adds elements, each with its key group; if one is refused, none is added."""

    @abstractmethod
    def remove(self, element: T, key_group: int) -> bool:
        """Removes an element, if the key group holds it; returns whether the head is another one now.

        So False is returned for an absent element and for one that was not the head. Costs O(log n) amortized.
        """

    @abstractmethod
    def peek(self) -> T | None:
        """The smallest element, which stays; None if there is none."""

    @abstractmethod
    def peek_key_group(self) -> int | None:
        """The key group of the smallest element; None if there is none."""

    @abstractmethod
    def poll(self) -> T | None:
        """Removes and returns the smallest element; None if there is none. Costs O(log n) amortized."""

    @abstractmethod
    def poll_while(self, is_due: Callable[[T], bool]) -> Iterator[tuple[T, int]]:
        """Polls elements, with their key groups, as long as the smallest one is due.

        Each is removed at the moment it is given out, so the caller may stop anywhere, and add and remove elements
        meanwhile: one that is added and due is given out in its turn. ``is_due`` must leave the queue alone.
        """

    def is_empty(self) -> bool:
        """Whether there is no element."""
        return self.peek_key_group() is None

    @abstractmethod
    def size(self) -> int:
        """The number of elements. May cost a pass over the whole queue."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[T, int]]:
        """All elements with their key groups, by key group and in order within one.

        Costs a pass over the whole queue. The queue may be changed meanwhile; whether that is seen is open.
        """

    @abstractmethod
    def subset_of_key_group(self, key_group: int) -> Iterator[T]:
        """The elements of one key group in order; otherwise as `entries`."""

    def __iter__(self) -> Iterator[T]:
        """All elements; otherwise as `entries`."""
        return (element for element, _ in self.entries())
