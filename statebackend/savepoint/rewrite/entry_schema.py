"""What one state is, for whoever writes its entries: kind and serializers, and which columns entries and rows have.

An entry has up to five columns, and a row those of the canonical form that say something:

    state               entry                                           row
    one value, a list   key, [namespace], value, [last_access_ms]       key_group, key, [namespace], value
    a map               key, [namespace], user_key, value, [...]        key_group, key, [namespace], user_key, value
    timers              key, [namespace], value (milliseconds)          key_group, key (the timer)

The value of a list is the whole list. ``last_access_ms`` is there in state with a time-to-live; of a list it is a
sequence, one for each element. `entry_decoding` leads from rows to entries, `entry_encoding` back.

What stands for a serializer that this process cannot rebuild, so that its values go through as bytes.

A plan that removes a state, renames it, or places its entries by their keys needs no serializer of its values. Only who
reads or writes one is told that it is not known here. What is stored about the values is the snapshot as it was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NoReturn

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.state.descriptors import ELEMENT_ROLE, USER_KEY_ROLE, StoredKind
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.state_kind import StateDescriptor, StateKind, TableForm
from statebackend.state.state_meta import StateFile, StateMeta
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer
from typeserializers.times.timers import TimerSerializer

__all__ = ["EntrySchema", "UnknownSerializer", "restored_or_unknown"]


class UnknownSerializer(TypeSerializer[Any]):
    """``reason`` is why the serializer that the snapshot describes cannot be rebuilt."""

    def __init__(self, snapshot: TypeSerializerSnapshot[Any], reason: str) -> None:
        self._snapshot = snapshot
        self.reason = reason

    def serialize(self, value: Any, out: DataOutputView) -> NoReturn:
        raise UnresolvableSerializerError(self.reason)

    def deserialize(self, source: DataInputView) -> NoReturn:
        raise UnresolvableSerializerError(self.reason)

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:
        return self._snapshot

    def create_instance(self) -> NoReturn:
        raise UnresolvableSerializerError(self.reason)


def restored_or_unknown(
    snapshot: TypeSerializerSnapshot[Any], known: Sequence[TypeSerializer[Any]] = ()
) -> TypeSerializer[Any]:
    """The serializer that a snapshot describes, with the classes of those known, or one that only stands for it."""
    try:
        return restored_with(snapshot, *known)
    except UnresolvableSerializerError as error:
        return UnknownSerializer(snapshot, str(error))


_VOID: Final = VoidNamespaceSerializer()


class EntrySchema:
    """One state: its kind and the serializers of its keys, namespaces and, by role, of what is stored."""

    def __init__(
        self,
        name: str,
        kind: StoredKind,
        key_serializer: TypeSerializer[Any],
        namespace_serializer: TypeSerializer[Any],
        serializers: Mapping[str, TypeSerializer[Any]],
    ) -> None:
        self.name = name
        self.kind = kind
        self.key_serializer = key_serializer
        self.namespace_serializer = namespace_serializer
        self.serializers = serializers
        self.is_queue = kind is PRIORITY_QUEUE
        element = serializers.get(ELEMENT_ROLE)
        self.is_timers = self.is_queue and isinstance(element, TimerSerializer)
        # The namespace of a timer is inside of it.
        inside = element.namespace_serializer if isinstance(element, TimerSerializer) else namespace_serializer
        self.has_namespaces = not isinstance(inside, VoidNamespaceSerializer)
        self.is_list = isinstance(kind, StateKind) and kind.form is TableForm.LIST
        self.is_map = isinstance(kind, StateKind) and kind.form is TableForm.MAP
        self.is_timed = isinstance(kind, StateKind) and isinstance(serializers[kind.timed_role], TtlSerializer)

    @classmethod
    def of_descriptor(
        cls,
        descriptor: StateDescriptor,
        key_serializer: TypeSerializer[Any],
        namespace_serializer: TypeSerializer[Any] | None = None,
    ) -> EntrySchema:
        """That of a state as an operator registers it; with a time-to-live, that of its stored form."""
        serializers = dict(descriptor.serializers)
        if descriptor.ttl is not None:
            serializers = descriptor.kind.timed_serializers(serializers)
        return cls(descriptor.name, descriptor.kind, key_serializer, namespace_serializer or _VOID, serializers)

    @classmethod
    def of(
        cls,
        state: StateDescriptor | EntrySchema,
        key_serializer: TypeSerializer[Any],
        namespace_serializer: TypeSerializer[Any] | None = None,
    ) -> EntrySchema:
        """That of a state as it is told: by a descriptor, or by a schema, which has its namespaces, for these keys."""
        if isinstance(state, EntrySchema):
            return state.with_key(key_serializer)
        return cls.of_descriptor(state, key_serializer, namespace_serializer)

    @classmethod
    def of_timers(
        cls, name: str, key_serializer: TypeSerializer[Any], namespace_serializer: TypeSerializer[Any] | None = None
    ) -> EntrySchema:
        """That of a queue of timers."""
        timers: TimerSerializer[Any, Any] = TimerSerializer(key_serializer, namespace_serializer or _VOID)
        return cls(name, PRIORITY_QUEUE, key_serializer, _VOID, {ELEMENT_ROLE: timers})

    @classmethod
    def of_stored(
        cls, meta: StateMeta, key_serializer: TypeSerializer[Any], known: Sequence[TypeSerializer[Any]] = ()
    ) -> EntrySchema:
        """That of stored state, whose records become those of ``known``; what is not known here stays bytes."""
        serializers = {role: restored_or_unknown(snapshot, known) for role, snapshot in meta.role_snapshots.items()}
        namespaces = restored_or_unknown(meta.namespace_snapshot)
        return cls(meta.name, meta.kind, key_serializer, namespaces, serializers)

    def with_key(self, key_serializer: TypeSerializer[Any]) -> EntrySchema:
        """The same state under keys of another type."""
        serializers = dict(self.serializers)
        if self.is_timers:
            timers: Any = self.serializers[ELEMENT_ROLE]
            serializers[ELEMENT_ROLE] = TimerSerializer(key_serializer, timers.namespace_serializer)
        return EntrySchema(self.name, self.kind, key_serializer, self.namespace_serializer, serializers)

    def check_known(self) -> None:
        """Raises `UnresolvableSerializerError` if entries cannot be read, since a serializer is not known here."""
        for serializer in (self.namespace_serializer, *self.serializers.values()):
            if isinstance(serializer, UnknownSerializer):
                raise UnresolvableSerializerError(f"state {self.name!r}: {serializer.reason}")

    def is_like(self, other: EntrySchema) -> bool:
        """Whether rows of both are the same for the same entries."""
        return self.kind is other.kind and self._written_by == other._written_by

    def has_keys_of(self, other: EntrySchema) -> bool:
        """Whether the same keys are the same bytes in both."""
        return self._written_by["key"] == other._written_by["key"]

    def has_user_keys_of(self, other: EntrySchema) -> bool:
        """Whether the same user keys are the same bytes in both; of two that are no maps, they are."""
        return self._written_by.get(USER_KEY_ROLE) == other._written_by.get(USER_KEY_ROLE)

    def has_values_of(self, other: EntrySchema) -> bool:
        """Whether the same values are the same bytes in both."""
        one, another = (
            {role: data for role, data in schema._written_by.items() if role not in ("key", "namespace", USER_KEY_ROLE)}
            for schema in (self, other)
        )
        return one == another

    @cached_property
    def _written_by(self) -> Mapping[str, bytes]:
        """What the serializers say of themselves: two that say the same write the same, whatever their classes are."""
        every = {"key": self.key_serializer, "namespace": self.namespace_serializer, **self.serializers}
        return {role: snapshot_to_bytes(serializer.snapshot_configuration()) for role, serializer in every.items()}

    def renamed(self, name: str) -> EntrySchema:
        """The same state under another name."""
        return EntrySchema(name, self.kind, self.key_serializer, self.namespace_serializer, self.serializers)

    def meta(self, files: tuple[StateFile, ...] = ()) -> StateMeta:
        """What is stored about the state; to be asked when all is written, since serializers may learn meanwhile."""
        snapshots = {role: serializer.snapshot_configuration() for role, serializer in self.serializers.items()}
        namespaces = self.namespace_serializer.snapshot_configuration()
        return StateMeta.of_one_schema(self.name, self.kind, namespaces, snapshots, files)

    @property
    def entry_columns(self) -> tuple[str, ...]:
        """The columns of an entry, in the order in which a tuple has them; the time of last access is not in it."""
        names = ["key"]
        names += ["namespace"] if self.has_namespaces else []
        names += ["user_key"] if self.is_map else []
        return (*names, "value")

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of a row that say something."""
        if self.is_queue:
            return ("key_group", "key")
        names = ["key_group", "key"]
        names += ["namespace"] if self.has_namespaces else []
        names += ["user_key"] if self.is_map else []
        return (*names, "value")

    def values_of(self, column: str) -> TypeSerializer[Any]:
        """The serializer of the values in a column of entries that are no timers; of a value without the time of it."""
        if column != "value":
            return {"key": self.key_serializer, "namespace": self.namespace_serializer, **self.serializers}[
                USER_KEY_ROLE if column == "user_key" else column
            ]
        assert isinstance(self.kind, StateKind)
        stored = self.serializers[self.kind.timed_role]
        value = stored.value_serializer if isinstance(stored, TtlSerializer) else stored
        return ListSerializer(value) if self.is_list else value
