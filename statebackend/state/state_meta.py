"""The metadata of a state handle: the opaque ``meta`` of a handle in a checkpoint.

    meta  := "SBKS" i32(version 1) i32(n) envelope(key serializer) i64(sequence) i32(states) state*
    state := UTF(name) UTF(kind) i32(n) envelope(namespace serializer) i32(roles) (UTF(role) i32(n) envelope)*
             i32(files) (i32(index into the handle's files) UTF(state id that wrote it))*

The files of a state are in the order in which they apply: a later file overrides an earlier one. ``sequence`` is the
next number of a list chunk. Reader and writer check: names are unique, kinds are known, file indexes exist.

In memory a state is a list of *parts*, each a schema and the files that were written under it. Version 1 has exactly
one part. A lazy migration would add a second part for the entries in the old schema, and a version 2 of the format.

A state has its new schema only after its entries have it. Registration comes first: until `StateStore.restore_as_is` or
`StateStore.rewrite` has run, the table keeps the schema of its entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from attrs import evolve, frozen

from snapshots.composite import merge_snapshots
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import snapshot_or_unopened, snapshot_to_bytes
from snapshots.errors import StateFormatError
from snapshots.format_versions import read_header, write_header
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.state.clock import Clock
from statebackend.state.descriptors import Descriptor, StoredKind
from statebackend.state.errors import StateRestoreError
from statebackend.state.folding_states import AGGREGATING, REDUCING
from statebackend.state.list_state import LIST
from statebackend.state.map_state import MAP
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.state_kind import RowFilter, StateDescriptor, StateKind, TableForm
from statebackend.state.ttl import Expiry
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.state.value_state import VALUE
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.type_serializer import TypeSerializer

STATE_KINDS: Final[Mapping[str, StateKind]] = {kind.name: kind for kind in (VALUE, LIST, MAP, REDUCING, AGGREGATING)}


CANONICAL_BACKEND: Final = "canonical"
"""The backend name of a handle of canonical Parquet files; every backend restores it."""

MAGIC: Final = b"SBKS"
VERSION: Final = 1


@frozen
class StateFile:
    """One file of a state: its index among the files of the handle, and the state id of the snapshot that wrote it."""

    index: int
    written_by: str


@frozen
class SchemaPart:
    """The content of one schema: the snapshots of the serializers, and the files in order."""

    namespace_snapshot: TypeSerializerSnapshot[Any]
    role_snapshots: Mapping[str, TypeSerializerSnapshot[Any]]
    files: tuple[StateFile, ...] = ()


@frozen
class StateMeta:
    """One state: name, kind, and its parts, the newest schema last. There is only one part today."""

    name: str
    kind: StoredKind
    parts: tuple[SchemaPart, ...]

    @classmethod
    def of_one_schema(
        cls,
        name: str,
        kind: StoredKind,
        namespace_snapshot: TypeSerializerSnapshot[Any],
        role_snapshots: Mapping[str, TypeSerializerSnapshot[Any]],
        files: tuple[StateFile, ...] = (),
    ) -> StateMeta:
        """Create a state with one schema."""
        return cls(name, kind, (SchemaPart(namespace_snapshot, role_snapshots, files),))

    @property
    def form(self) -> TableForm | None:
        """The form of its table; None for a priority queue."""
        return self.kind.form if isinstance(self.kind, StateKind) else None

    @property
    def namespace_snapshot(self) -> TypeSerializerSnapshot[Any]:
        """The namespace snapshot of the newest schema."""
        return self.parts[-1].namespace_snapshot

    @property
    def role_snapshots(self) -> Mapping[str, TypeSerializerSnapshot[Any]]:
        """The role snapshots of the newest schema."""
        return self.parts[-1].role_snapshots

    @property
    def files(self) -> tuple[StateFile, ...]:
        """The files of all parts, in the order in which they apply."""
        return tuple(file for part in self.parts for file in part.files)

    def with_files(self, files: tuple[StateFile, ...]) -> StateMeta:
        """Return the state with other files, all of the newest schema."""
        return evolve(self, parts=(evolve(self.parts[-1], files=files),))

    def as_written_by(self, serializers: Mapping[str, TypeSerializer[Any]]) -> StateMeta:
        """Return the state with the current snapshots of these serializers, by role and "namespace".

        Call it when a snapshot is taken, and not only at registration: a serializer may learn while it writes.
        """
        snapshots = {role: serializer.snapshot_configuration() for role, serializer in serializers.items()}
        namespace_snapshot = snapshots.pop("namespace")
        return StateMeta.of_one_schema(self.name, self.kind, namespace_snapshot, snapshots, self.files)

    def has_schema_of(self, other: StateMeta) -> bool:
        """Whether both have the same kind and the same serializer snapshots, to the byte."""
        return _schema(self) == _schema(other)


@frozen
class KeyedStateMeta:
    """All states of one subtask of an operator."""

    key_snapshot: TypeSerializerSnapshot[Any]
    sequence: int
    states: tuple[StateMeta, ...]

    def state(self, name: str) -> StateMeta | None:
        return next((state for state in self.states if state.name == name), None)


def meta_of_descriptor(descriptor: Descriptor, namespace_serializer: TypeSerializer[Any]) -> StateMeta:
    """The current metadata of a registered state, without files. Serializers may learn while they write."""
    return _meta_of(descriptor, descriptor.serializers, namespace_serializer)


def first_meta_of(descriptor: Descriptor, namespace_serializer: TypeSerializer[Any]) -> StateMeta:
    """The first metadata of a new state with this descriptor, with its time-to-live."""
    if isinstance(descriptor, StateDescriptor) and descriptor.ttl is not None:
        return _meta_of(descriptor, descriptor.kind.timed_serializers(descriptor.serializers), namespace_serializer)
    return meta_of_descriptor(descriptor, namespace_serializer)


def _meta_of(
    descriptor: Descriptor, serializers: Mapping[str, TypeSerializer[Any]], namespace_serializer: TypeSerializer[Any]
) -> StateMeta:
    return StateMeta.of_one_schema(
        descriptor.name,
        descriptor.kind,
        namespace_serializer.snapshot_configuration(),
        {role: serializer.snapshot_configuration() for role, serializer in serializers.items()},
    )


def merge_metas(metas: Sequence[KeyedStateMeta]) -> KeyedStateMeta | None:
    """Merge the metadata of several subtasks into one; None if there is none.

    Serializers that learn while they write have learned different things in each subtask; their snapshots are merged.
    Raises `StateRestoreError` if the keys or a state have different schemas in different subtasks. This happens
    to a state that only some subtasks registered, and so migrated.
    """
    if not metas:
        return None
    key_snapshot = metas[0].key_snapshot
    for meta in metas[1:]:
        merged_key = merge_snapshots(key_snapshot, meta.key_snapshot)
        if merged_key is None:
            raise StateRestoreError(
                "the keys of one operator were written by different serializers in different subtasks: these handles "
                "are not of one snapshot of one operator"
            )
        key_snapshot = merged_key
    states: dict[str, StateMeta] = {}
    for meta in metas:
        for state in meta.states:
            known = states.get(state.name)
            merged = state.with_files(()) if known is None else _merged_state(known, state)
            if merged is None:
                raise StateRestoreError(
                    f"state {state.name!r} was written under different schemas by different subtasks; restore once "
                    f"with the old parallelism and register the state in open(), so that all of them migrate"
                )
            states[state.name] = merged
    return KeyedStateMeta(key_snapshot, max(meta.sequence for meta in metas), tuple(states.values()))


def _merged_state(one: StateMeta, other: StateMeta) -> StateMeta | None:
    if one.kind is not other.kind or one.role_snapshots.keys() != other.role_snapshots.keys():
        return None
    namespace_snapshot = merge_snapshots(one.namespace_snapshot, other.namespace_snapshot)
    if namespace_snapshot is None:
        return None
    roles = {}
    for role, snapshot in one.role_snapshots.items():
        merged = merge_snapshots(snapshot, other.role_snapshots[role])
        if merged is None:
            return None
        roles[role] = merged
    return StateMeta.of_one_schema(one.name, one.kind, namespace_snapshot, roles, one.files)


def distinct_metas(metas: Sequence[KeyedStateMeta]) -> tuple[KeyedStateMeta, ...]:
    """Return one of each group of metas that have the same keys and the same states with the same schemas."""
    distinct: dict[object, KeyedStateMeta] = {}
    for meta in metas:
        states = frozenset((state.name, _schema(state)) for state in meta.states)
        distinct.setdefault((snapshot_to_bytes(meta.key_snapshot), states), meta)
    return tuple(distinct.values())


def _schema(state: StateMeta) -> tuple[object, ...]:
    roles = frozenset((role, snapshot_to_bytes(snapshot)) for role, snapshot in state.role_snapshots.items())
    return state.kind, snapshot_to_bytes(state.namespace_snapshot), roles


def encode_meta(meta: KeyedStateMeta) -> bytes:
    """Encode the metadata."""
    out = DataOutputView()
    write_header(out, MAGIC, VERSION)
    out.write_sized_bytes(snapshot_to_bytes(meta.key_snapshot))
    out.write_long(meta.sequence)
    out.write_int(len(meta.states))
    for state in meta.states:
        if len(state.parts) != 1:
            raise StateRestoreError(f"state {state.name!r} has {len(state.parts)} parts; version {VERSION} writes one")
        out.write_utf(state.name)
        out.write_utf(state.kind.name)
        out.write_sized_bytes(snapshot_to_bytes(state.namespace_snapshot))
        out.write_int(len(state.role_snapshots))
        for role, snapshot in state.role_snapshots.items():
            out.write_utf(role)
            out.write_sized_bytes(snapshot_to_bytes(snapshot))
        out.write_int(len(state.files))
        for file in state.files:
            out.write_int(file.index)
            out.write_utf(file.written_by)
    return out.to_bytes()


def decode_meta(data: bytes, file_count: int) -> KeyedStateMeta:
    """Decode the metadata of a handle with ``file_count`` files; raise `StateRestoreError` if it is malformed."""
    try:
        return _decode(DataInputView(data), file_count)
    except StateFormatError as error:
        raise StateRestoreError(f"the metadata of a state handle cannot be read: {error}") from error


def _decode(source: DataInputView, file_count: int) -> KeyedStateMeta:
    read_header(source, MAGIC, VERSION, "keyed state")
    key_snapshot = snapshot_or_unopened(source.read_sized_bytes())
    sequence = source.read_long()
    states = tuple(_decode_state(source, file_count) for _ in range(source.read_count(minimum_item_bytes=16)))
    if source.remaining:
        raise StateRestoreError(f"{source.remaining} bytes follow the metadata of a state handle")
    names = [state.name for state in states]
    if len(set(names)) != len(names):
        raise StateRestoreError(f"a state appears twice in the metadata of a handle: {', '.join(names)}")
    return KeyedStateMeta(key_snapshot, sequence, states)


def _decode_state(source: DataInputView, file_count: int) -> StateMeta:
    name, kind_name = source.read_utf(), source.read_utf()
    kind: StoredKind | None = PRIORITY_QUEUE if kind_name == PRIORITY_QUEUE.name else STATE_KINDS.get(kind_name)
    if kind is None:
        raise StateRestoreError(f"state {name!r} is of kind {kind_name!r}, which is not known here")
    try:
        namespace_snapshot = snapshot_or_unopened(source.read_sized_bytes())
        roles = {
            source.read_utf(): snapshot_or_unopened(source.read_sized_bytes())
            for _ in range(source.read_count(minimum_item_bytes=6))
        }
    except StateFormatError as error:
        raise StateRestoreError(f"the metadata of state {name!r} cannot be read: {error}") from error
    files = tuple(
        StateFile(source.read_int(), source.read_utf()) for _ in range(source.read_count(minimum_item_bytes=6))
    )
    for file in files:
        if not 0 <= file.index < file_count:
            raise StateRestoreError(f"state {name!r} refers to file {file.index} of {file_count}")
    return StateMeta.of_one_schema(name, kind, namespace_snapshot, roles, files)


NAMESPACE_ROLE: Final = "namespace"
"""The role of the namespace serializer, in addition to the roles of a descriptor."""


@frozen(eq=False)
class StateSchema:
    """One state: ``serializers`` are by role, including the namespace role; empty while it is not registered.

    ``expiry`` is set for a registered state with a time-to-live. ``is_released`` means that the serializers are of an
    earlier epoch: they define the form of the entries in memory, but only ``meta`` describes the state. ``is_bulk``
    means that functions access many keys together: a store may choose other handles and another form in memory.
    """

    meta: StateMeta
    serializers: Mapping[str, TypeSerializer[Any]] = MappingProxyType({})
    expiry: Expiry | None = None
    is_bulk: bool = False
    is_released: bool = False

    def meta_now(self) -> StateMeta:
        """The metadata with the present snapshots of the serializers, which may learn while they write."""
        is_written = self.serializers and not self.is_released
        return self.meta.as_written_by(self.serializers) if is_written else self.meta

    def has_entries_of(self, other: StateSchema) -> bool:
        """Whether entries in memory have the same form under both schemas."""
        return self.serializers == other.serializers and self.is_bulk == other.is_bulk

    def expired_filter(self) -> RowFilter | None:
        """A filter of the entries that have expired by now, or None."""
        return None if self.expiry is None else self.expiry.filter_now()

    def snapshot_filter(self) -> RowFilter | None:
        """The filter of expired rows for a snapshot that writes the state whole now; None to keep all rows.

        Call it once per snapshot, in the synchronous part.
        """
        return self.expired_filter() if self.expiry is not None and self.expiry.config.cleanup_full_snapshot else None

    def expiring(self, ttl: StateTtlConfig, clock: Clock) -> StateSchema:
        """Set the time-to-live of an unregistered state, if its entries have access times."""
        kind = self.meta.kind
        if not isinstance(kind, StateKind):
            return self
        serializer = self.meta.role_snapshots[kind.timed_role].restore_serializer()
        if not isinstance(serializer, TtlSerializer):
            return self
        return evolve(self, expiry=Expiry(kind, serializer, ttl, clock))

    def unregistered(self) -> StateSchema:
        """Return the schema as not yet registered, for the next epoch; keep the serializers that wrote the entries."""
        return evolve(self, meta=self.meta_now(), expiry=None, is_released=True)
