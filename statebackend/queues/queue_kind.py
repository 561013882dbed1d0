"""What a priority queue is registered by, and what its rows are.

    row := key group, element in the place of the key, the void namespace, no user key, an empty value

A queue is no kind of keyed state: it has no current key, no namespaces, no time-to-live, and its elements are never
migrated, because their order is that of their bytes. What it shares with keyed state is its place among the states of a
snapshot, under its own kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, field, frozen

from statebackend.api.descriptors import ELEMENT_ROLE, Descriptor, StoredKind, as_serializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import NullValueSerializer

T = TypeVar("T")


class QueueKind(StoredKind):
    """See the module."""

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
