"""Priority queues per key group, which hold the timers of a keyed operator: interface, descriptor and rows.

    row := key group, element in the place of the key, the void namespace, no user key, an empty value

A queue returns the smallest element of all key groups of the subtask first. Elements are ordered by the bytes that
their serializer writes, compared as unsigned, as Flink requires of its queue in RocksDB. So a backend can sort a queue
on disk without knowing its type, and every backend polls in the same order. Equal bytes in one key group are one
element. Equal elements in two key groups are two elements; the lower key group is polled first.

A queue is not a kind of keyed state: it has no current key, namespace or time-to-live, and its elements are never
migrated. The caller passes the key group of an element and gets it back at a poll. A queue belongs to one thread until
its backend is closed. A snapshot contains exactly what was added, removed and polled before it, also within
`poll_while`. In a snapshot queues are listed among the states, under a kind of their own.

Queues of timers are named as in Flink: `_timer_state/event_<service>` and `_timer_state/processing_<service>`. The
prefix is reserved for them. The names come from Flink's ``KeyGroupedInternalPriorityQueue``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

from attrs import evolve, field, frozen

from statebackend.state.descriptors import ELEMENT_ROLE, Descriptor, StoredKind, as_serializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import NullValueSerializer

__all__ = ["TIMER_STATES", "TimeDomain", "domain_and_service", "timer_state_name"]


T = TypeVar("T")


class KeyGroupedPriorityQueue(ABC, Generic[T]):
    """A priority queue per key group. Every method raises `StateBackendClosedError` once the backend is closed.

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
        """Adds elements, each with its key group; if one is rejected, none is added."""

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


TimeDomain = Literal["event", "processing"]

TIMER_STATES: Final = "_timer_state/"
"""What all of these names begin with, and no others may."""

_QUEUE_NAME: Final = re.compile(rf"{TIMER_STATES}(event|processing)_(.*)", re.DOTALL)


def timer_state_name(domain: TimeDomain, service: str) -> str:
    """The name of the queue of a service's timers of event time, or of processing time."""
    return f"{TIMER_STATES}{domain}_{service}"


def domain_and_service(state_name: str) -> tuple[str, str] | None:
    """``event`` or ``processing``, and the service, by the name of a queue of timers; None for any other name."""
    matched = _QUEUE_NAME.fullmatch(state_name)
    return None if matched is None else (matched[1], matched[2])


class QueueKind(StoredKind):
    """The stored form of priority queues."""

    name = "priority_queue"
    getter = "get_priority_queue"
    fixed_roles = MappingProxyType({ELEMENT_ROLE: "the elements of the queue"})

    def storage_serializer(self, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return NullValueSerializer()


PRIORITY_QUEUE: Final = QueueKind()


@frozen
class PriorityQueueDescriptor(Descriptor, Generic[T]):
    """A queue of elements in the order of their bytes, kept by key group and not by key: timers.

    The serializer must write what comes first as the smaller bytes, compared as unsigned, as `TimerSerializer` does.
    It is registered with `KeyedStateBackend.get_priority_queue`.
    """

    element_serializer: TypeSerializer[T] = field(converter=as_serializer)

    kind = PRIORITY_QUEUE

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ELEMENT_ROLE: self.element_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> PriorityQueueDescriptor[T]:
        """The same queue with another serializer, after it was reconfigured."""
        return evolve(self, element_serializer=serializers[ELEMENT_ROLE])
