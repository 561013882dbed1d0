"""Opens a savepoint or checkpoint from Python: metadata, types and entries.

    savepoint = Savepoint.open("/savepoints/flights-1")
    for entry in savepoint.read("aircraft", "legs"):
        print(entry.key, entry.value)
    savepoint.read("aircraft", "legs").to_arrow()

Neither Spark nor the job's program is needed. Records are stand-in objects with the stored fields, or instances of the
program's classes if those are passed. Nothing is changed and nothing stays open between two calls.

Looking up one key hashes it once, reads only its key group, and does not decode the values of other keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from attrs import evolve, frozen

from snapshots.envelope import snapshot_or_unopened
from snapshots.errors import SerializationError, format_value, printable
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.services import JobServices
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.state_handles import OperatorState
from statebackend.savepoint.errors import UnknownOperatorError, UnknownStateError
from statebackend.savepoint.foreign.flink_files import FlinkFiles, with_uids
from statebackend.savepoint.foreign.flink_metadata import operator_id_of
from statebackend.savepoint.html_pages import table_fragment
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.sizes import counted
from statebackend.savepoint.state_entries import EntriesPart, OperatorStateElements, StateEntries
from statebackend.savepoint.state_location import find_state
from statebackend.savepoint.statistics import EntryStatistics, stored_files
from statebackend.savepoint.stored_entries import stored_columns, unreadable_entry
from statebackend.savepoint.type_descriptions import TypeDescription, describe_type
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.canonical import SCHEMA, CanonicalBatch
from statebackend.state.descriptors import ELEMENT_ROLE, as_serializer
from statebackend.state.key_columns import columns_of_key
from statebackend.state.key_groups import KeyGroupRange, KeyHashError, key_group_hasher
from statebackend.state.operator_state_handles import OperatorStateMeta, StatePart
from statebackend.state.progress import Operation, ProgressListener, StateProgress, no_progress
from statebackend.state.state_kind import TableForm
from statebackend.state.state_meta import KeyedStateMeta, StateMeta
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializerSnapshot
from typeserializers.times.timers import Timer

__all__ = ["Savepoint", "StateDescription", "StoredOperator", "group_of_key", "rows_of_key"]


def group_of_key(meta: KeyedStateMeta, key: Any, max_parallelism: int) -> int:
    """Return the key group of a key.

    Raises:
        KeyHashError: The key is not of the key's type, or is a datetime without a time zone.
    """
    serializer = meta.key_snapshot.restore_serializer()
    columns = columns_of_key(serializer)
    key_group = key_group_hasher(columns, max_parallelism)(key)
    # A value of another type may have a hash, but is not in the state.
    try:
        serializer.to_bytes(key)
    except SerializationError as error:
        raise KeyHashError(f"{format_value(key)} is not a key of the type ({', '.join(columns)}): {error}") from error
    for column, part in zip(columns, key if len(columns) > 1 else (key,), strict=True):
        if column == "timestamp" and part is not None and part.utcoffset() is None:
            raise KeyHashError(
                f"{format_value(part)} has no time zone, so its moment is unknown: add one, such as tzinfo=timezone.utc"
            )
    return key_group


def rows_of_key(
    batches: Iterable[CanonicalBatch], meta: KeyedStateMeta, state: StateMeta, key: Any
) -> Iterator[CanonicalBatch]:
    """Yield the rows of one key out of sorted rows.

    Raises:
        StateRestoreError: A key cannot be decoded.
    """
    is_wanted = _of_key(meta, state, key)
    last, is_last_wanted = None, False
    for batch in batches:
        kept = CanonicalBatch.empty()
        for row in zip(*batch, strict=True):
            # A key has many consecutive rows.
            if row[1] != last:
                last = row[1]
                try:
                    is_last_wanted = is_wanted(last)
                except Exception as error:
                    raise unreadable_entry(state.name, row[0], error) from error
            if is_last_wanted:
                kept.append(*row)
        if kept.row_count:
            yield kept


def _of_key(meta: KeyedStateMeta, state: StateMeta, key: Any) -> Callable[[bytes], bool]:
    if state.form is not None:
        read_key = meta.key_snapshot.restore_serializer().from_bytes
        return lambda data: bool(read_key(data) == key)
    read_element = state.role_snapshots[ELEMENT_ROLE].restore_serializer().from_bytes

    def is_of_key(data: bytes) -> bool:
        element = read_element(data)
        return isinstance(element, Timer) and bool(element.key == key)

    return is_of_key


_EVERY: Final = object()

_STATE_COLUMNS: Final = ("operator", "state", "kind", "types")


@frozen
class StateDescription:
    """The name and kind of a state, and its types by role: key, namespace (if any) and stored values."""

    name: str
    kind: str
    types: Mapping[str, TypeDescription]

    @property
    def unknown(self) -> str | None:
        """Why the entries cannot be read in this process and how to fix it; None if they can."""
        return next((one.unknown for one in self.types.values() if one.unknown), None)

    def _repr_html_(self) -> str:
        fields = [
            (role, record.name, f"{part.name}: {part.type_name}")
            for role, described in self.types.items()
            for record in described.records
            for part in record.fields
        ]
        roles = [(role, described.name, described.unknown) for role, described in self.types.items()]
        return table_fragment(f"{self.kind} state {self.name}", ("role", "type", "fields"), [*roles, *fields])


class StoredOperator:
    """The state of one operator: ``states`` are keyed states by name, ``operator_states`` operator states by name."""

    def __init__(self, state: OperatorState, restored: RestoredState) -> None:
        self.uid = state.uid
        self.name = state.name
        self.parallelism = state.parallelism
        self.max_parallelism = state.max_parallelism
        self.size_bytes = state.size_bytes
        self._restored = restored

    @cached_property
    def states(self) -> Mapping[str, StateDescription]:
        """Keyed states by name. If subtasks differ in a schema, the first is used."""
        found: dict[str, StateDescription] = {}
        for part in self.parts:
            key = describe_type(part.meta.key_snapshot)
            for state in part.meta.states:
                if state.name not in found:
                    found[state.name] = _schema(key, state)
        return found

    @cached_property
    def operator_states(self) -> Mapping[str, OperatorStateMeta]:
        """Operator states by name. If subtasks differ in a schema, the first is used."""
        found: dict[str, OperatorStateMeta] = {}
        for meta in self._restored.operator_state_metas_of(self.uid):
            found.setdefault(meta.name, meta)
        return found

    def operator_state_schema(self, name: str) -> StateDescription:
        """Return the description of an operator state, with its mode as kind. If parts differ, the last is used.

        Raises:
            StateFormatError: The schema is damaged.
        """
        meta = self.operator_states[name]
        part = meta.parts[-1]
        snapshots = {role: snapshot_or_unopened(envelope) for role, envelope in part.envelopes.items()}
        return StateDescription(name, meta.mode.value, {role: describe_type(one) for role, one in snapshots.items()})

    @property
    def parts(self) -> Sequence[RestoredHandle]:
        """The keyed state of the subtasks, in the order of their key groups."""
        return self._restored.keyed_handles(self.uid)

    def operator_state_parts(self, state_name: str) -> Iterator[tuple[int, Sequence[StatePart]]]:
        """Yield the parts of an operator state, with the index of the subtask that has them."""
        for index, stored in enumerate(self._restored.operator_state_handles(self.uid)):
            state = stored.state(state_name)
            if state is not None:
                yield index, state.parts

    def state_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield operator uid, state name, kind and types of each state."""
        for name, schema in self.states.items():
            types = ", ".join(f"{role} {described.name}" for role, described in schema.types.items())
            yield self.uid, name, schema.kind, types
        for name, meta in self.operator_states.items():
            yield self.uid, name, f"{meta.mode.value}, without keys", ""

    def _repr_html_(self) -> str:
        return table_fragment(f"operator {self.uid}", _STATE_COLUMNS, self.state_rows())

    def __repr__(self) -> str:
        states = _names([*self.states, *self.operator_states]) or "no state"
        return f"<operator {self.uid!r}: {states}>"


class _FlinkOperators(dict[str, StoredOperator]):
    """Operators by uid. Where Flink stored only the id of an operator, the uid finds it, because the id is its hash."""

    def __missing__(self, uid: str) -> StoredOperator:
        found = super().get(operator_id_of(uid))
        if found is None:
            raise KeyError(uid)
        return found

    def __contains__(self, uid: object) -> bool:
        return super().__contains__(uid) or (isinstance(uid, str) and super().__contains__(operator_id_of(uid)))

    def get(self, uid: str, default: Any = None) -> Any:
        return super().get(uid) or super().get(operator_id_of(uid), default)


class Savepoint:
    """A savepoint or checkpoint opened for reading. ``metadata`` holds everything durable except the state itself."""

    def __init__(
        self,
        restored: RestoredState,
        known: Sequence[TypeSerializer[Any]] = (),
        progress: ProgressListener = no_progress,
    ) -> None:
        self._restored = restored
        self._progress = progress
        self._known = tuple(known)
        self.metadata: CheckpointMetadata = restored.metadata
        self.uri = restored.file_system.uri
        operators = {operator.uid: StoredOperator(operator, restored) for operator in restored.metadata.operators}
        self.operators: Mapping[str, StoredOperator] = operators
        if isinstance(restored.file_system, FlinkFiles):
            self.operators = _FlinkOperators(operators)
            restored.file_system.known = self._known

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        checkpoint_id: int | None = None,
        *,
        known: Iterable[TypeSerializer[Any] | type[Any]] = (),
        high_availability: JobServices | None = None,
        moved: Mapping[str, str] | None = None,
        progress: ProgressListener = no_progress,
    ) -> Savepoint:
        """Open a savepoint, a checkpoint or a job directory. Reads the metadata and checks that all files exist.

        Args:
            uri: The path or URI.
            checkpoint_id: The checkpoint of a job directory; None for the newest.
            known: Classes or serializers of the program. Records and enumerations with their names and fields are
                decoded to them.
            high_availability: The services of the job. Required for a job directory of a job that uses ZooKeeper.
            moved: Directories that the metadata of a Flink checkpoint names, with their present places.
            progress: Receives progress while whole states are read.

        Raises:
            SavepointError: There is no state at the path. See `find_state` for more.
            UnknownTypeError: No serializer can be inferred for a class in ``known``.
        """
        restored = find_state(uri, checkpoint_id, high_availability, moved)
        return cls(restored, [as_serializer(one) for one in known], progress)

    def for_comparison(self, uids: Iterable[str]) -> Savepoint:
        """Return a Flink savepoint with these uids for ids, their hashes, and without operators that have no state.

        Other savepoints are returned unchanged.
        """
        if not isinstance(self.file_system, FlinkFiles):
            return self
        restored = with_uids(self._restored, uids)
        operators = tuple(
            operator
            for operator in restored.metadata.operators
            if any(one.keyed is not None or one.operator is not None for one in operator.subtasks)
        )
        metadata = evolve(restored.metadata, operators=operators)
        return Savepoint(evolve(restored, metadata=metadata), self._known, self._progress)

    @property
    def restored(self) -> RestoredState:
        """The metadata and the files."""
        return self._restored

    @property
    def file_system(self) -> CheckpointFileSystem:
        """The file system of the files. `uri` is the same location without credentials."""
        return self._restored.file_system

    @property
    def states(self) -> tuple[tuple[str, str], ...]:
        """All keyed states as pairs of operator uid and state name."""
        return tuple((uid, name) for uid, operator in self.operators.items() for name in operator.states)

    def schema(self, operator_uid: str, state_name: str) -> StateDescription:
        """Return the description of a keyed state.

        Raises:
            UnknownOperatorError: There is no such operator.
            UnknownStateError: The operator has no such keyed state.
        """
        operator = self._operator(operator_uid)
        if state_name not in operator.states:
            raise UnknownStateError(
                f"operator {operator_uid!r} has no keyed state {state_name!r}; it has "
                f"{_names(operator.states) or 'none'}"
            )
        return operator.states[state_name]

    def read(
        self, operator_uid: str, state_name: str, *, key: Any = _EVERY, key_groups: KeyGroupRange | None = None
    ) -> StateEntries:
        """Return the entries of a keyed state.

        Args:
            operator_uid: The uid of the operator.
            state_name: The name of the state.
            key: Return only the entries of this key, and read only its key group. A key of several columns is a tuple.
            key_groups: Return only the entries of these key groups. Ignored with ``key``.

        Raises:
            UnknownOperatorError: There is no such operator.
            UnknownStateError: The operator has no such keyed state.
            KeyHashError: The key is not of the key's type.
        """
        self.schema(operator_uid, state_name)
        if key is _EVERY:
            return StateEntries(self._parts_of(operator_uid, state_name, key_groups), self._known)
        stored = self._stored(operator_uid, state_name)
        if isinstance(self.file_system, FlinkFiles):
            # Flink computes key groups with another hash.
            groups, holding = KeyGroupRange(0, self.metadata.max_parallelism - 1), stored
        else:
            group = group_of_key(stored[0].meta, key, self.metadata.max_parallelism)
            # Only the subtask with the group has entries of the key.
            groups, holding = (
                KeyGroupRange(group, group),
                [part for part in stored if part.handle.key_group_start <= group <= part.handle.key_group_end]
                or stored[:1],
            )
        return StateEntries([self._part_of_key(part, state_name, groups, key) for part in holding], self._known)

    def read_operator_state(self, operator_uid: str, state_name: str) -> OperatorStateElements:
        """Return the elements of operator state, subtask by subtask; of broadcast state, the entries of every copy.

        Raises:
            UnknownOperatorError: There is no such operator.
            UnknownStateError: The operator has no such operator state.
        """
        operator = self._operator(operator_uid)
        if state_name not in operator.operator_states:
            raise UnknownStateError(
                f"operator {operator_uid!r} has no operator state {state_name!r}; it has "
                f"{_names(operator.operator_states) or 'none'}"
            )
        found = [(index, part) for index, parts in operator.operator_state_parts(state_name) for part in parts]
        return OperatorStateElements(state_name, found, self._restored.file_system, self._known)

    def key_columns(self, operator_uid: str) -> tuple[str, ...]:
        """The types of the columns of an operator's keys, by Spark's names; raises as `columns_of_key`."""
        parts = self._operator(operator_uid).parts
        return columns_of_key(parts[0].meta.key_snapshot.restore_serializer()) if parts else ()

    def statistics(self, operator_uid: str, state_name: str) -> EntryStatistics:
        """Count the entries of a keyed state and their bytes. Decodes nothing, so it works for any type."""
        self.schema(operator_uid, state_name)
        statistics = EntryStatistics()
        for part in self._parts_of(operator_uid, state_name):
            statistics.add(part.columns(), is_list=part.state.form is TableForm.LIST)
        return statistics

    def verify(self) -> Iterator[tuple[str, int]]:
        """Read every file and verify its checksum. Yields the path and size of each valid file.

        Raises:
            MissingFileError: A file is missing.
            CorruptFileError: A file does not match its checksum.
        """
        handles = {file.path: file for file in self.metadata.files}
        for (uid, states), group in groupby(
            stored_files([self.metadata]), lambda file: (file.operator_uid, file.states)
        ):
            files = list(group)
            total_bytes = sum(file.size_bytes for file in files)
            operator_uid = self.metadata.job_name if uid is None else uid
            progress = StateProgress(self._progress, Operation.READ, operator_uid, " + ".join(states), total_bytes)
            for file in files:
                self._restored.file_system.verify_content(handles[file.path])
                progress.add(size_bytes=file.size_bytes)
                yield file.path, file.size_bytes
            progress.done()

    def _stored(self, operator_uid: str, state_name: str) -> Sequence[RestoredHandle]:
        return [part for part in self._operator(operator_uid).parts if part.meta.state(state_name) is not None]

    def _parts_of(
        self, operator_uid: str, state_name: str, key_groups: KeyGroupRange | None = None
    ) -> Sequence[EntriesPart]:
        """Return all parts of a state, or of a range of key groups; reading them reports progress."""
        stored = self._stored(operator_uid, state_name)
        max_parallelism = self.metadata.max_parallelism
        read = key_groups or KeyGroupRange(0, max_parallelism - 1)
        # One for all subtasks; reading the first one again starts another.
        current: list[StateProgress] = []

        def columns(index: int, state: StateMeta) -> Iterator[pa.RecordBatch]:
            if index == 0 or not current:
                current[:] = [StateProgress(self._progress, Operation.READ, operator_uid, state_name)]
            [progress] = current
            for batch in stored_columns(stored[index], state, max_parallelism, (read,)):
                yield batch
                part = (batch.column("key_group")[-1].as_py() + 1) / max_parallelism
                progress.reach_part(part, batch.num_rows, batch.column("value").nbytes)
            if index == len(stored) - 1:
                progress.done()

        parts: list[EntriesPart] = []
        for index, part in enumerate(stored):
            state = part.meta.state(state_name)
            assert state is not None
            parts.append(EntriesPart(part.meta, state, partial(columns, index, state), _location_of(part, state)))
        return parts

    def _part_of_key(self, part: RestoredHandle, state_name: str, groups: KeyGroupRange, key: Any) -> EntriesPart:
        state = part.meta.state(state_name)
        assert state is not None

        def columns() -> Iterator[pa.RecordBatch]:
            stored = stored_columns(part, state, self.metadata.max_parallelism, (groups,))
            for batch in rows_of_key(map(CanonicalBatch.of, stored), part.meta, state, key):
                yield pa.record_batch(list(batch), schema=SCHEMA)

        return EntriesPart(part.meta, state, columns, _location_of(part, state))

    def _operator(self, uid: str) -> StoredOperator:
        if uid not in self.operators:
            known = _names(self.operators) or "none"
            raise UnknownOperatorError(f"there is no operator {uid!r} in {self.uri}; there are {known}")
        return self.operators[uid]

    def __repr__(self) -> str:
        kind = self.metadata.kind.value.lower()
        return (
            f"<{kind} {self.metadata.checkpoint_id} of job {self.metadata.job_name!r} in {printable(self.uri)}: "
            f"{counted(len(self.operators), 'operator')}, {counted(len(self.states), 'keyed state')}, "
            f"{counted(self.metadata.size_bytes, 'byte')}>"
        )

    def _repr_html_(self) -> str:
        rows = (row for operator in self.operators.values() for row in operator.state_rows())
        return table_fragment(repr(self).strip("<>"), _STATE_COLUMNS, rows)


def _location_of(part: RestoredHandle, state: StateMeta) -> Callable[[int], str] | None:
    files = part.file_system
    return partial(files.location_of, part.handle.state_id, state.name) if isinstance(files, FlinkFiles) else None


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(printable, names))


def _schema(key: TypeDescription, state: StateMeta) -> StateDescription:
    types = {"key": key}
    if not isinstance(state.namespace_snapshot, VoidNamespaceSerializerSnapshot):
        types["namespace"] = describe_type(state.namespace_snapshot)
    types |= {role: describe_type(snapshot) for role, snapshot in state.role_snapshots.items()}
    return StateDescription(state.name, state.kind.name, types)
