"""From a descriptor with time-to-live to the one that a backend is given, and to the handle that a user is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve

from statebackend.api.clock import Clock
from statebackend.api.descriptors import (
    ACCUMULATOR_ROLE,
    ELEMENT_ROLE,
    USER_KEY_ROLE,
    VALUE_ROLE,
    StateDescriptor,
    StateKind,
)
from statebackend.kinds.internal_states import InternalState
from statebackend.ttl.folding_states import (
    TtlAggregateFunction,
    TtlAggregatingState,
    TtlReduceFunction,
    TtlReducingState,
)
from statebackend.ttl.lifetime import Lifetime
from statebackend.ttl.states import TtlListState, TtlMapState, TtlState, TtlValueState
from statebackend.ttl.stored_form import stored_serializers
from typeserializers.kernel.type_serializer import TypeSerializer


class TtlRegistration:
    """One state with time-to-live: ``descriptor`` is the user's, ``serializers`` are those of the stored form by role.

    ``stored_descriptor`` is what the backend makes a state from, and `handle` wraps that state.
    """

    def __init__(
        self, descriptor: StateDescriptor, serializers: Mapping[str, TypeSerializer[Any]] | None, clock: Clock
    ) -> None:
        ttl = descriptor.ttl
        assert ttl is not None
        if serializers is None:
            serializers = stored_serializers(descriptor.kind, descriptor.serializers)
        if descriptor.kind is StateKind.VALUE:
            # The default is copied by the serializer that is in use, which may be a reconfigured one.
            stored: Any = serializers[VALUE_ROLE]
            descriptor = descriptor.with_serializers({VALUE_ROLE: stored.value_serializer})
        self.lifetime = Lifetime(ttl, clock)
        self._descriptor: Any = descriptor
        self.stored_descriptor: StateDescriptor = _STORED[descriptor.kind](self._descriptor, serializers, self.lifetime)

    def handle(self, stored: InternalState) -> TtlState:
        """The handle over the state that the backend has made."""
        return _HANDLES[self._descriptor.kind](stored, self.lifetime, self._descriptor)


_STORED: Final[dict[StateKind, Callable[[Any, Mapping[str, TypeSerializer[Any]], Lifetime], StateDescriptor]]] = {
    StateKind.VALUE: lambda descriptor, serializers, _: evolve(
        descriptor, serializer=serializers[VALUE_ROLE], default=None, ttl=None
    ),
    StateKind.LIST: lambda descriptor, serializers, _: evolve(
        descriptor, element_serializer=serializers[ELEMENT_ROLE], ttl=None
    ),
    StateKind.MAP: lambda descriptor, serializers, _: evolve(
        descriptor, key_serializer=serializers[USER_KEY_ROLE], value_serializer=serializers[VALUE_ROLE], ttl=None
    ),
    StateKind.REDUCING: lambda descriptor, serializers, lifetime: evolve(
        descriptor,
        reduce_function=TtlReduceFunction(descriptor.reduce_function, lifetime, descriptor.name),
        serializer=serializers[VALUE_ROLE],
        ttl=None,
    ),
    StateKind.AGGREGATING: lambda descriptor, serializers, lifetime: evolve(
        descriptor,
        aggregate_function=TtlAggregateFunction(descriptor.aggregate_function, lifetime, descriptor.name),
        accumulator_serializer=serializers[ACCUMULATOR_ROLE],
        ttl=None,
    ),
}

_HANDLES: Final[dict[StateKind, Callable[[Any, Lifetime, Any], TtlState]]] = {
    StateKind.VALUE: TtlValueState,
    StateKind.LIST: lambda stored, lifetime, descriptor: TtlListState(stored, lifetime, descriptor.name),
    StateKind.MAP: lambda stored, lifetime, _: TtlMapState(stored, lifetime),
    StateKind.REDUCING: lambda stored, lifetime, descriptor: TtlReducingState(stored, lifetime, descriptor.name),
    StateKind.AGGREGATING: lambda stored, lifetime, descriptor: TtlAggregatingState(
        stored, lifetime, descriptor.name, descriptor.aggregate_function
    ),
}
