"""Priority queues per key group, which hold the timers of a keyed operator: interface, descriptor and rows.

    row := key group, element instead of the key, the void namespace, no user key, an empty value

A queue returns the smallest element of all key groups of the subtask first. Elements are ordered by the bytes that
their serializer writes, compared as unsigned, as Flink requires of its queue in RocksDB. So a backend can sort a queue
on disk without knowing its type, and every backend polls in the same order. Equal bytes in one key group are one
element. Equal elements in two key groups are two elements; the lower key group is polled first.

A queue is not a kind of keyed state: it has no current key, namespace or time-to-live, and its elements are never
migrated. The caller passes the key group of an element and gets it back at a poll. A queue belongs to one thread until
its backend is closed. A snapshot contains exactly what was added, removed and polled before it, also within
`poll_while`. A snapshot lists queues among the states, with a kind of their own.

Queues of timers are named as in Flink: `_timer_state/event_<service>` and `_timer_state/processing_<service>`. The
prefix is reserved for them. The names come from Flink's ``KeyGroupedInternalPriorityQueue``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

from attrs import evolve, field, frozen

from statebackend.state.descriptors import ELEMENT_ROLE, Descriptor, StoredKind, as_serializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import NullValueSerializer

__all__ = ["TIMER_STATES", "TimeDomain", "displayed_kind", "displayed_state", "domain_and_service", "timer_state_name"]


T = TypeVar("T")


class KeyGroupedPriorityQueue(ABC, Generic[T]):
    """A priority queue per key group. Every method raises `StateBackendClosedError` after the backend is closed.

    A method with an element raises `SerializationError` if the serializer rejects it. A method with a key group raises
    `StateBackendError` if it belongs to another subtask. The queue is then unchanged.
    """

    __slots__ = ()

    @abstractmethod
    def add(self, element: T, key_group: int) -> bool:
        """Add an element, unless the key group holds it; return whether the head has changed.

        Costs O(log n).
        """

    @abstractmethod
    def add_all(self, entries: Iterable[tuple[T, int]]) -> None:
        """Add elements, each with its key group; if one is rejected, add none."""

    @abstractmethod
    def remove(self, element: T, key_group: int) -> bool:
        """Remove an element, if the key group holds it; return whether the head has changed.

        So the result is False for an absent element, and for one that was not the head. Costs O(log n) amortized.
        """

    @abstractmethod
    def peek(self) -> T | None:
        """The smallest element, without removing it; None if the queue is empty."""

    @abstractmethod
    def peek_key_group(self) -> int | None:
        """The key group of the smallest element; None if the queue is empty."""

    @abstractmethod
    def poll(self) -> T | None:
        """Remove and return the smallest element; None if the queue is empty. Costs O(log n) amortized."""

    @abstractmethod
    def poll_while(self, is_due: Callable[[T], bool]) -> Iterator[tuple[T, int]]:
        """Poll elements, with their key groups, as long as the smallest one is due.

        Each element is removed when it is yielded, so the caller may stop at any time. It may also add and remove
        elements meanwhile; an added element that is due is yielded in order. ``is_due`` must not change the queue.
        """

    def poll_many(self, is_due: Callable[[T], bool], most: int) -> list[tuple[T, int]]:
        """Poll elements as `poll_while`, at most so many."""
        return list(islice(self.poll_while(is_due), most))

    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return self.peek_key_group() is None

    @abstractmethod
    def size(self) -> int:
        """The number of elements. May cost a pass over the whole queue."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[T, int]]:
        """All elements with their key groups, sorted by key group and element.

        The cost is a pass over the whole queue. Changes during the iteration may or may not be visible.
        """

    @abstractmethod
    def subset_of_key_group(self, key_group: int) -> Iterator[T]:
        """The sorted elements of one key group; otherwise as `entries`."""

    def __iter__(self) -> Iterator[T]:
        """All elements; otherwise as `entries`."""
        return (element for element, _ in self.entries())


TimeDomain = Literal["event", "processing"]

TIMER_STATES: Final = "_timer_state/"
"""The reserved prefix of the names of timer queues."""

_QUEUE_NAME: Final = re.compile(rf"{TIMER_STATES}(event|processing)_(.*)", re.DOTALL)


def timer_state_name(domain: TimeDomain, service: str) -> str:
    """The name of a service's timer queue, for event time or processing time."""
    return f"{TIMER_STATES}{domain}_{service}"


def domain_and_service(state_name: str) -> tuple[str, str] | None:
    """``event`` or ``processing``, and the service, from the name of a timer queue; None for any other name."""
    matched = _QUEUE_NAME.fullmatch(state_name)
    return None if matched is None else (matched[1], matched[2])


def displayed_state(state_name: str) -> str:
    """The name of a state for people: a queue of timers is ``event-time timers`` or ``processing-time timers``.

    Other services than that of functions are added: ``event-time timers (window-timers)``.
    """
    matched = domain_and_service(state_name)
    if matched is None:
        return state_name
    domain, service = matched
    return f"{domain}-time timers" if service == "user-timers" else f"{domain}-time timers ({service})"


class QueueKind(StoredKind):
    """The stored form of priority queues."""

    name = "priority_queue"
    getter = "get_priority_queue"
    fixed_roles = MappingProxyType({ELEMENT_ROLE: "the elements of the queue"})

    def storage_serializer(self, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return NullValueSerializer()


PRIORITY_QUEUE: Final = QueueKind()


def displayed_kind(kind_name: str) -> str:
    """The kind of a state for people: ``timers`` for a queue."""
    return "timers" if kind_name == PRIORITY_QUEUE.name else kind_name


@frozen
class PriorityQueueDescriptor(Descriptor, Generic[T]):
    """A queue of elements in the order of their bytes, by key group instead of key: timers.

    The serializer must write smaller elements as smaller bytes, compared as unsigned, as `TimerSerializer` does.
    Register it with `KeyedStateBackend.get_priority_queue`.
    """

    element_serializer: TypeSerializer[T] = field(converter=as_serializer)

    kind = PRIORITY_QUEUE

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ELEMENT_ROLE: self.element_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> PriorityQueueDescriptor[T]:
        """Return the queue with another serializer, after it was reconfigured."""
        return evolve(self, element_serializer=serializers[ELEMENT_ROLE])
