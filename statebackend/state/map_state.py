"""Map state: a map per key and namespace, with one stored entry per map entry. Values may be None, keys may not.

stored entry                       nullable(value), under the bytes of its user key
stored entry with a time-to-live   nullable(ttl value(nullable(value))): the outer one is never null; each entry expires
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from attrs import evolve, field, frozen

from snapshots.compatibility import PartsPlan, Plan
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.state.descriptors import USER_KEY_ROLE, VALUE_ROLE, OnClass, as_key_serializer, as_serializer
from statebackend.state.internal_states import InternalState, Lifetime, Timed, TtlState
from statebackend.state.key_batch import KeyBatch
from statebackend.state.state_kind import HandleSource, StateDescriptor, StateKind, TableForm
from statebackend.state.states import MapState
from statebackend.state.timed_access import TimedLines, set_timed_methods
from typeserializers.containers.nullable import NullableSerializer, NullableSerializerSnapshot
from typeserializers.evolution.plans import BecameOptionalPlan
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer

K = TypeVar("K")
V = TypeVar("V")


class InternalMapState(InternalState, MapState[K, V]):
    """Map state with namespaces. Bulk operations access pairs of key and user key."""

    __slots__ = ()

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["stored = self.get(key)"]

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["self.put(key, stored)"]

    def get_many(self, keys: KeyBatch, user_keys: Sequence[K]) -> list[V | None]:
        """Return the value of each pair, as `get` does. Afterwards any key may be current."""
        return [self.get(user_key) for _, user_key in zip(keys.each(), user_keys, strict=True)]

    def contains_many(self, keys: KeyBatch, user_keys: Sequence[K]) -> list[bool]:
        """Return whether each pair has an entry."""
        return [self.contains(user_key) for _, user_key in zip(keys.each(), user_keys, strict=True)]

    def put_many(self, keys: KeyBatch, user_keys: Sequence[K], values: Sequence[V | None]) -> None:
        """Set the entry of each pair, as `put` does. The last value of a pair that occurs twice counts."""
        for _, user_key, value in zip(keys.each(), user_keys, values, strict=True):
            self.put(user_key, value)

    def remove_many(self, keys: KeyBatch, user_keys: Sequence[K]) -> None:
        """Remove the entry of each pair."""
        for _, user_key in zip(keys.each(), user_keys, strict=True):
            self.remove(user_key)


class MapKind(StateKind):
    """Map state: a map per key."""

    name = "map"
    getter = "get_map_state"
    form = TableForm.MAP
    handle_class = InternalMapState
    fixed_roles = MappingProxyType({USER_KEY_ROLE: "the keys of the map"})
    timed_role = VALUE_ROLE
    timestamp_offset = 1
    """The time follows a flag, which marks a null value."""
    reads = MappingProxyType({"get": "key", "contains": "key", "items": "", "keys": "", "values": "", "is_empty": ""})
    writes = MappingProxyType({"put": "key, value", "put_all": "entries", "remove": "key", "clear": ""})

    def storage_serializer(self, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return NullableSerializer(serializers[VALUE_ROLE])

    def create_handle(
        self, table: HandleSource, context: Any, descriptor: MapStateDescriptor[Any, Any]
    ) -> InternalState:
        state: InternalState = table.map_state(context, descriptor.key_serializer, descriptor.value_serializer)
        return state

    def expiring_part(self, serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
        return NullableSerializer(serializer)

    def expiring_part_snapshot(self, snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[Any]:
        part = super().expiring_part_snapshot(snapshot)
        if part is not snapshot or isinstance(snapshot, NullableSerializerSnapshot):
            return part
        return NullableSerializerSnapshot.around(snapshot)

    def expiring_part_plan(self, values: Plan, old: TypeSerializerSnapshot[Any], new: TypeSerializer[Any]) -> Plan:
        if not isinstance(old, NullableSerializerSnapshot):
            return PartsPlan((values,))
        # One flag marks null in both forms; a converter for nullable values receives the null.
        return values if isinstance(new, NullableSerializer) else BecameOptionalPlan(values)

    def timed_descriptor(
        self,
        descriptor: MapStateDescriptor[Any, Any],
        serializers: Mapping[str, TypeSerializer[Any]],
        lifetime: Lifetime,
    ) -> StateDescriptor:
        return evolve(
            descriptor, key_serializer=serializers[USER_KEY_ROLE], value_serializer=serializers[VALUE_ROLE], ttl=None
        )

    def timed_handle(
        self,
        stored: InternalMapState[Any, Timed[Any]],
        lifetime: Lifetime,
        descriptor: MapStateDescriptor[Any, Any],
    ) -> TtlState:
        return TtlMapState(stored, lifetime, descriptor)


MAP: Final = MapKind()


@frozen
class MapStateDescriptor(StateDescriptor, OnClass[MapState[K, V]]):
    """A map per key, with separately stored entries."""

    key_serializer: TypeSerializer[K] = field(converter=as_key_serializer)
    value_serializer: TypeSerializer[V] = field(converter=as_serializer)

    kind = MAP

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {USER_KEY_ROLE: self.key_serializer, VALUE_ROLE: self.value_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> MapStateDescriptor[K, V]:
        return evolve(self, key_serializer=serializers[USER_KEY_ROLE], value_serializer=serializers[VALUE_ROLE])


def _timed_methods(lines: TimedLines) -> dict[str, tuple[str, list[str]]]:
    remove = "self.remove(key)"
    return {
        "get": ("key", [*lines.visible("None", remove), "return value"]),
        "contains": ("key", [*lines.visible("False", remove), "return True"]),
        "put": ("key, value", [*lines.start, *lines.kept, "stored = (value, now_ms)", *lines.write]),
    }


class TtlMapState(TtlState, InternalMapState[K, V]):
    """Map state with a time-to-live. Each entry expires separately, also one whose value is null.

    The accessors of single entries are generated.
    """

    __slots__ = ("_serializer", "contains", "get", "put")

    get: Any
    contains: Any
    put: Any

    def __init__(
        self, stored: InternalMapState[K, Timed[V | None]], lifetime: Lifetime, descriptor: MapStateDescriptor[K, V]
    ) -> None:
        super().__init__(stored, lifetime)
        self._serializer = descriptor.value_serializer
        self.set_methods()

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        self._clean_up()
        now_ms = self.lifetime.clock()
        self._stored.put_all({key: (value, now_ms) for key, value in entries.items()})

    def remove(self, key: K) -> None:
        self._clean_up()
        self._stored.remove(key)

    def items(self) -> Iterator[tuple[K, V | None]]:
        self._clean_up()
        context = self.key_context
        return self._visible_items((context.key, context.key_group), self._stored.items())

    def is_empty(self) -> bool:
        self._clean_up()
        is_visible = self.lifetime.is_visible
        for key, stored in self._stored.items():
            if is_visible(stored):
                return False
            self._stored.remove(key)
        return True

    def remove_expired(self) -> None:
        is_expired = self.lifetime.is_expired
        for key, stored in self._stored.items():
            if is_expired(stored):
                self._stored.remove(key)

    def _visible_items(
        self, started_at: tuple[Any, int], items: Iterator[tuple[K, Timed[V | None]]]
    ) -> Iterator[tuple[K, V | None]]:
        context, lifetime = self.key_context, self.lifetime
        for key, stored in items:
            if (context.key, context.key_group) == started_at:
                visible = self._accessed(key, stored, lifetime.clock())
            else:
                # Another key is current now; its map must not be changed.
                visible = stored if lifetime.is_visible(stored) else None
            if visible is not None:
                yield key, visible[0]

    def _accessed(self, key: K, stored: Timed[V | None], now_ms: int) -> Timed[V | None] | None:
        """The entry if it is visible. Removes it if it has expired, and renews it if reads renew."""
        if stored[1] + self.lifetime.ttl_ms <= now_ms:
            self._stored.remove(key)
            return stored if self.lifetime.returns_expired else None
        if self.lifetime.renews_on_read and stored[1] < now_ms:
            self._stored.put(key, (stored[0], now_ms))
        return stored

    def set_methods(self) -> None:
        set_timed_methods(self, self._stored, self._serializer, _timed_methods)
