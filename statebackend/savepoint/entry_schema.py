"""The schema of one state: its kind and serializers, and the columns of its entries and rows.

| State | Entry | Row |
|---|---|---|
| value, list | key, [namespace], value, [last_access_ms] | key_group, key, [namespace], value |
| map | key, [namespace], user_key, value, [last_access_ms] | key_group, key, [namespace], user_key, value |
| timers | key, [namespace], value (milliseconds) | key_group, key (the timer) |

The value of a list is the whole list. ``last_access_ms`` exists in state with time-to-live. For a list it is a sequence
with one time per element.

| Direction | By |
|---|---|
| rows to entries, one by one | `statebackend.savepoint.stored_entries` |
| rows to columns of a table | `statebackend.savepoint.tables` |
| rows to lists of values, and back | `statebackend.savepoint.rewrite.entry_codec` |
| columns to rows and back, vectorised | `statebackend.savepoint.column_codecs` |

`UnknownSerializer` replaces a serializer that cannot be restored in this process. Its values pass through as bytes, so
a plan can remove, rename and redistribute such state. Only reading or writing a value raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NoReturn

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import StateFormatError, UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.state.descriptors import ELEMENT_ROLE, USER_KEY_ROLE, StoredKind
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.state_kind import StateDescriptor, StateKind, TableForm
from statebackend.state.state_meta import KeyedStateMeta, StateFile, StateMeta
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer
from typeserializers.times.timers import TimerSerializer

__all__ = ["EntrySchema", "UnknownSerializer", "restored_or_unknown"]


class UnknownSerializer(TypeSerializer[Any]):
    """Keeps the snapshot of a serializer that cannot be restored, with the reason."""

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
    """Restore a serializer with the classes of ``known``, or return an `UnknownSerializer`."""
    try:
        return restored_with(snapshot, *known)
    except StateFormatError as error:
        return UnknownSerializer(snapshot, str(error))


_VOID: Final = VoidNamespaceSerializer()


class EntrySchema:
    """The kind of a state and its serializers: of keys, of namespaces and, by role, of stored values."""

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
        # The namespace of a timer is part of its element.
        inside = element.namespace_serializer if isinstance(element, TimerSerializer) else namespace_serializer
        self.has_namespaces = not isinstance(inside, VoidNamespaceSerializer)
        self.form = kind.form if isinstance(kind, StateKind) else None
        """The form of its rows; None for a queue."""
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
        """Return the schema of a registered state. With time-to-live it is the schema of the stored form."""
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
        """Return the schema of a descriptor, or an existing schema with another key serializer."""
        if isinstance(state, EntrySchema):
            return state.with_key(key_serializer)
        return cls.of_descriptor(state, key_serializer, namespace_serializer)

    @classmethod
    def of_timers(
        cls, name: str, key_serializer: TypeSerializer[Any], namespace_serializer: TypeSerializer[Any] | None = None
    ) -> EntrySchema:
        """Return the schema of a timer queue."""
        timers: TimerSerializer[Any, Any] = TimerSerializer(key_serializer, namespace_serializer or _VOID)
        return cls(name, PRIORITY_QUEUE, key_serializer, _VOID, {ELEMENT_ROLE: timers})

    @classmethod
    def of_stored(
        cls, meta: StateMeta, key_serializer: TypeSerializer[Any], known: Sequence[TypeSerializer[Any]] = ()
    ) -> EntrySchema:
        """Return the schema of stored state. Records are read as classes in ``known``; unknown types stay bytes."""
        serializers = {role: restored_or_unknown(snapshot, known) for role, snapshot in meta.role_snapshots.items()}
        namespaces = restored_or_unknown(meta.namespace_snapshot)
        return cls(meta.name, meta.kind, key_serializer, namespaces, serializers)

    @classmethod
    def of_rows(cls, meta: KeyedStateMeta, state: StateMeta, known: Sequence[TypeSerializer[Any]] = ()) -> EntrySchema:
        """Return the schema of a stored state with the keys that it was stored with."""
        return cls.of_stored(state, restored_or_unknown(meta.key_snapshot), known)

    def with_key(self, key_serializer: TypeSerializer[Any]) -> EntrySchema:
        """Return the schema with another key type."""
        serializers = dict(self.serializers)
        if self.is_timers:
            timers: Any = self.serializers[ELEMENT_ROLE]
            serializers[ELEMENT_ROLE] = TimerSerializer(key_serializer, timers.namespace_serializer)
        return EntrySchema(self.name, self.kind, key_serializer, self.namespace_serializer, serializers)

    def check_known(self) -> None:
        """Raise `UnresolvableSerializerError` if a serializer is unknown in this process."""
        for serializer in (self.key_serializer, self.namespace_serializer, *self.serializers.values()):
            if isinstance(serializer, UnknownSerializer):
                raise UnresolvableSerializerError(f"state {self.name!r}: {serializer.reason}")

    def is_like(self, other: EntrySchema) -> bool:
        """Whether both schemas write the same entries as the same rows."""
        return self.kind is other.kind and self._written_by == other._written_by

    def has_keys_of(self, other: EntrySchema) -> bool:
        """Whether both schemas write the same keys as the same bytes."""
        return self._written_by["key"] == other._written_by["key"]

    def has_user_keys_of(self, other: EntrySchema) -> bool:
        """Whether both schemas write the same user keys as the same bytes. True if neither is a map."""
        return self._written_by.get(USER_KEY_ROLE) == other._written_by.get(USER_KEY_ROLE)

    def has_values_of(self, other: EntrySchema) -> bool:
        """Whether both schemas write the same values as the same bytes."""
        one, another = (
            {role: data for role, data in schema._written_by.items() if role not in ("key", "namespace", USER_KEY_ROLE)}
            for schema in (self, other)
        )
        return one == another

    @cached_property
    def _written_by(self) -> Mapping[str, bytes]:
        """The snapshots by role. Serializers with equal snapshots write the same bytes."""
        every = {"key": self.key_serializer, "namespace": self.namespace_serializer, **self.serializers}
        return {role: snapshot_to_bytes(serializer.snapshot_configuration()) for role, serializer in every.items()}

    def renamed(self, name: str) -> EntrySchema:
        """Return the schema with another name."""
        return EntrySchema(name, self.kind, self.key_serializer, self.namespace_serializer, self.serializers)

    def meta(self, files: tuple[StateFile, ...] = ()) -> StateMeta:
        """Return the meta of the state. Call it after writing, because serializers may learn types while they write."""
        snapshots = {role: serializer.snapshot_configuration() for role, serializer in self.serializers.items()}
        namespaces = self.namespace_serializer.snapshot_configuration()
        return StateMeta.of_one_schema(self.name, self.kind, namespaces, snapshots, files)

    @property
    def entry_columns(self) -> tuple[str, ...]:
        """The columns of an entry in tuple order, without the time of last access."""
        names = ["key"]
        names += ["namespace"] if self.has_namespaces else []
        names += ["user_key"] if self.is_map else []
        return (*names, "value")

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of a row that carry data."""
        if self.is_queue:
            return ("key_group", "key")
        names = ["key_group", "key"]
        names += ["namespace"] if self.has_namespaces else []
        names += ["user_key"] if self.is_map else []
        return (*names, "value")

    @property
    def storage_serializer(self) -> TypeSerializer[Any]:
        """The serializer of the values in rows; an `UnknownSerializer` if one of a role is."""
        unknown = (one for one in self.serializers.values() if isinstance(one, UnknownSerializer))
        return next(unknown, None) or self.kind.storage_serializer(self.serializers)

    def values_of(self, column: str) -> TypeSerializer[Any]:
        """Return the serializer of a column of entries. For values it does not include the time."""
        if self.is_timers:
            timers: Any = self.serializers[ELEMENT_ROLE]
            found: TypeSerializer[Any] = (
                LongSerializer() if column == "value" else getattr(timers, f"{column}_serializer")
            )
            return found
        if column != "value":
            return {"key": self.key_serializer, "namespace": self.namespace_serializer, **self.serializers}[
                USER_KEY_ROLE if column == "user_key" else column
            ]
        assert isinstance(self.kind, StateKind)
        stored = self.serializers[self.kind.timed_role]
        value = stored.value_serializer if isinstance(stored, TtlSerializer) else stored
        return ListSerializer(value) if self.is_list else value
