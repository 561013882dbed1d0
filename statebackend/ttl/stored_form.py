"""How state with time-to-live is stored: as the same kind of state, of values with the time of their last access.

    value        ttl value(value)
    list         ttl value(element), each element by itself
    map          ttl value(nullable(value)), each entry by itself, a null value too
    reducing     ttl value(value)
    aggregating  ttl value(accumulator)

`ttl value` is that of `typeserializers.containers.ttl`. A backend is given a descriptor of that form, without
time-to-live, and stores it like any other; the serializers' snapshots tell the two forms apart when the state is
restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.api.descriptors import ACCUMULATOR_ROLE, ELEMENT_ROLE, VALUE_ROLE, StateKind
from typeserializers.containers.nullable import NullableSerializer, NullableSerializerSnapshot
from typeserializers.containers.ttl import TtlSerializer, TtlSerializerSnapshot
from typeserializers.kernel.type_serializer import TypeSerializer

TIMED_ROLES: Final[Mapping[StateKind, str]] = {
    StateKind.VALUE: VALUE_ROLE,
    StateKind.LIST: ELEMENT_ROLE,
    StateKind.MAP: VALUE_ROLE,
    StateKind.REDUCING: VALUE_ROLE,
    StateKind.AGGREGATING: ACCUMULATOR_ROLE,
}
"""The role of what has a time-to-live, by kind."""


def stored_serializers(
    kind: StateKind, serializers: Mapping[str, TypeSerializer[Any]]
) -> dict[str, TypeSerializer[Any]]:
    """The serializers of the stored form by role, from the user's."""
    role = TIMED_ROLES[kind]
    return {**serializers, role: TtlSerializer(expiring_part(kind, serializers[role]))}


def expiring_part(kind: StateKind, serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """What has a time of its own: the user's value; that of a map may be null."""
    return NullableSerializer(serializer) if kind is StateKind.MAP else serializer


def expiring_part_snapshot(kind: StateKind, snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[Any]:
    """The snapshot of `expiring_part`, from the snapshot of the stored role with or without time-to-live."""
    if isinstance(snapshot, TtlSerializerSnapshot):
        return snapshot.value_snapshot
    if kind is not StateKind.MAP or isinstance(snapshot, NullableSerializerSnapshot):
        return snapshot
    return NullableSerializerSnapshot.around(snapshot)
