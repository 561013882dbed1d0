"""A savepoint or checkpoint to look into, from Python: what is in it, what its types are, and its entries.

    with_delays = Savepoint.open("/savepoints/flights-1")
    for entry in with_delays.read("aircraft", "legs"):
        print(entry.key, entry.value)

Neither Spark nor the job's program is needed. Records are stand-ins with the fields that were stored, or of the
program's own classes where those are passed and have the same fields. Nothing is changed, and nothing is held open
between two calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from attrs import frozen

from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from savepoints.errors import UnknownOperatorError, UnknownStateError
from savepoints.reading.state_location import find_state
from savepoints.reading.state_statistics import StateStatistics
from savepoints.reading.stored_entries import EntryReader, StateEntry
from savepoints.reading.stored_rows import stored_rows
from savepoints.reading.type_descriptions import TypeDescription, describe_type
from savepoints.restored_state import RestoredState
from statebackend.api.descriptors import as_serializer
from statebackend.api.key_columns import columns_of_key
from statebackend.api.key_groups import KeyGroupRange
from statebackend.api.key_hash import key_group_hasher
from statebackend.canonical.canonical_entries import CanonicalBatch
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta, decode_meta
from statebackend.kinds.list_kind import LIST
from statebackend.operator_state import OperatorStateMeta, decode_operator_state
from statebackend.operator_state.operator_state_handles import StatePart
from statebackend.operator_state.operator_state_rows import read_slices
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializerSnapshot

__all__ = ["OperatorStateElement", "Savepoint", "StateSchema", "StoredOperator"]

_EVERY: Final = object()


@frozen
class StateSchema:
    """What a state is: its kind, and the types of key, namespace, if it has any, and what is stored, by role."""

    name: str
    kind: str
    types: Mapping[str, TypeDescription]

    @property
    def unknown(self) -> str | None:
        """Why its entries cannot be read in this process, with what to do; None if they can."""
        return next((one.unknown for one in self.types.values() if one.unknown), None)


@frozen
class OperatorStateElement:
    """One element of a list of operator state, or one entry of a broadcast state, and the subtask that has it."""

    subtask_index: int
    key: Any
    value: Any


@frozen
class _StoredPart:
    """The keyed state of one subtask."""

    handle: KeyedStateHandle
    meta: KeyedStateMeta


class StoredOperator:
    """The state of one operator: ``states`` is keyed state by name, ``operator_states`` the state without keys."""

    def __init__(self, state: OperatorState, restored: RestoredState) -> None:
        self.uid = state.uid
        self.name = state.name
        self.parallelism = state.parallelism
        self.max_parallelism = state.max_parallelism
        self.size_bytes = sum(part.size_bytes for subtask in state.subtasks for part in subtask.parts)
        self._state = state
        self._restored = restored

    @cached_property
    def states(self) -> Mapping[str, StateSchema]:
        """Keyed state by name; where subtasks differ in the schema of a state, that of the first that has it."""
        found: dict[str, StateSchema] = {}
        for part in self.parts():
            key = describe_type(part.meta.key_snapshot)
            for state in part.meta.states:
                if state.name not in found:
                    found[state.name] = _schema(key, state)
        return found

    @cached_property
    def operator_states(self) -> Mapping[str, OperatorStateMeta]:
        """State without keys by name; where subtasks differ in its schema, that of the first that has it."""
        found: dict[str, OperatorStateMeta] = {}
        for meta in self._restored.operator_state_metas_of(self.uid):
            found.setdefault(meta.name, meta)
        return found

    def parts(self) -> Iterator[_StoredPart]:
        """The keyed state of the subtasks, in the order of their key groups."""
        for handle in self._state.keyed_handles:
            yield _StoredPart(handle, decode_meta(handle.meta, len(handle.files)))

    def operator_state_parts(self, state_name: str) -> Iterator[tuple[int, Sequence[StatePart]]]:
        """The parts of a state without keys, by the index of the subtask that has them."""
        for index, subtask in enumerate(self._state.subtasks):
            state = decode_operator_state(subtask.operator).state(state_name)
            if state is not None:
                yield index, state.parts

    def __repr__(self) -> str:
        states = ", ".join([*self.states, *self.operator_states]) or "no state"
        return f"<operator {self.uid!r}: {states}>"


class Savepoint:
    """See the module. ``metadata`` is all that is durable about it beside the state itself."""

    def __init__(self, restored: RestoredState, known: Sequence[TypeSerializer[Any]] = ()) -> None:
        self._restored = restored
        self._known = tuple(known)
        self.metadata: CheckpointMetadata = restored.metadata
        self.uri = restored.file_system.uri
        self.operators: Mapping[str, StoredOperator] = {
            operator.uid: StoredOperator(operator, restored) for operator in restored.metadata.operators
        }

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        checkpoint_id: int | None = None,
        *,
        known: Iterable[TypeSerializer[Any] | type[Any]] = (),
    ) -> Savepoint:
        """Opens a savepoint, a checkpoint, or a job directory at its newest checkpoint or at ``checkpoint_id``.

        ``known`` are classes of the program, or serializers of them: records and enumerations of their names and fields
        are then read as them. Reads the metadata, and looks whether all files are there. Raises what `find_state`
        raises, and `UnknownTypeError` for a class that no serializer can be inferred for.
        """
        return cls(find_state(uri, checkpoint_id), [as_serializer(one) for one in known])

    @property
    def states(self) -> tuple[tuple[str, str], ...]:
        """All keyed states, as pairs of the operator's uid and the state's name."""
        return tuple((uid, name) for uid, operator in self.operators.items() for name in operator.states)

    def schema(self, operator_uid: str, state_name: str) -> StateSchema:
        """What a keyed state is. Raises `UnknownOperatorError` or `UnknownStateError`, naming those there are."""
        operator = self._operator(operator_uid)
        if state_name not in operator.states:
            raise UnknownStateError(
                f"operator {operator_uid!r} has no keyed state {state_name!r}; it has "
                f"{', '.join(operator.states) or 'none'}"
            )
        return operator.states[state_name]

    def read(self, operator_uid: str, state_name: str, *, key: Any = _EVERY) -> Iterator[StateEntry]:
        """The entries of a keyed state, sorted by key group and stored key; with ``key``, those of that key only.

        A key of several columns is a tuple. Looking one up reads the rows of its key group and no others. Memory holds
        a batch of rows, and the largest list. Raises `UnknownOperatorError`, `UnknownStateError`, `KeyHashError` for a
        key that is not of the key's types, `UnresolvableSerializerError` for types not known here, `CheckpointError`
        and `StateRestoreError` for what is damaged.
        """
        self.schema(operator_uid, state_name)
        for part in self._operator(operator_uid).parts():
            state = part.meta.state(state_name)
            if state is None:
                continue
            reader = EntryReader(part.meta, state, self._known)
            if key is _EVERY:
                yield from reader.entries(self._rows(part, state, self._all_key_groups))
                continue
            group = self._key_group(part.meta, key)
            wanted = reader.entries(self._rows(part, state, KeyGroupRange(group, group)))
            yield from (entry for entry in wanted if entry.key == key)

    def read_operator_state(self, operator_uid: str, state_name: str) -> Iterator[OperatorStateElement]:
        """The elements of operator state, subtask by subtask; of broadcast state, the entries of every copy.

        Raises as `read` does.
        """
        operator = self._operator(operator_uid)
        if state_name not in operator.operator_states:
            raise UnknownStateError(
                f"operator {operator_uid!r} has no operator state {state_name!r}; it has "
                f"{', '.join(operator.operator_states) or 'none'}"
            )
        for index, parts in operator.operator_state_parts(state_name):
            for part in parts:
                snapshots = {role: part.snapshot(state_name, role) for role in part.envelopes}
                serializers = {role: restored_with(snapshot, *self._known) for role, snapshot in snapshots.items()}
                for key, value in read_slices(self._restored.file_system, part.slices):
                    if key is None:
                        yield OperatorStateElement(index, None, serializers["element"].from_bytes(value or b""))
                    else:
                        read_value = None if value is None else serializers["value"].from_bytes(value)
                        yield OperatorStateElement(index, serializers["key"].from_bytes(key), read_value)

    def key_columns(self, operator_uid: str) -> tuple[str, ...]:
        """The types of the columns of an operator's keys, by Spark's names; raises as `columns_of_key`."""
        part = next(self._operator(operator_uid).parts(), None)
        return () if part is None else columns_of_key(part.meta.key_snapshot.restore_serializer())

    def statistics(self, operator_uid: str, state_name: str) -> StateStatistics:
        """Counts the entries of a keyed state, by reading all its rows without decoding them; works for any type."""
        is_list = self.schema(operator_uid, state_name).kind == LIST.name
        statistics = StateStatistics()
        for part in self._operator(operator_uid).parts():
            state = part.meta.state(state_name)
            if state is not None:
                statistics.add(self._rows(part, state, self._all_key_groups), is_list=is_list)
        return statistics

    def verify(self) -> Iterator[tuple[str, int]]:
        """Reads every file and compares it with its checksum; gives path and size of each as it is found right.

        Raises `MissingFileError` or `CorruptFileError`, naming the first that is not.
        """
        for file in self.metadata.files:
            self._restored.file_system.read_file(file)
            yield file.path, file.size_bytes

    @property
    def _all_key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(0, self.metadata.max_parallelism - 1)

    def _rows(self, part: _StoredPart, state: StateMeta, key_groups: KeyGroupRange) -> Iterable[CanonicalBatch]:
        return stored_rows(
            part.handle, part.meta, state, self._restored.file_system, self.metadata.max_parallelism, key_groups
        )

    def _key_group(self, meta: KeyedStateMeta, key: Any) -> int:
        columns = columns_of_key(meta.key_snapshot.restore_serializer())
        return key_group_hasher(columns, self.metadata.max_parallelism)(key)

    def _operator(self, uid: str) -> StoredOperator:
        if uid not in self.operators:
            known = ", ".join(self.operators) or "none"
            raise UnknownOperatorError(f"there is no operator {uid!r} in {self.uri}; there are {known}")
        return self.operators[uid]

    def __repr__(self) -> str:
        kind = self.metadata.kind.value.lower()
        return (
            f"<{kind} {self.metadata.checkpoint_id} of job {self.metadata.job_name!r} in {self.uri}: "
            f"{len(self.operators)} operators, {len(self.states)} keyed states, {self.metadata.size_bytes:,} bytes>"
        )


def _schema(key: TypeDescription, state: StateMeta) -> StateSchema:
    types = {"key": key}
    if not isinstance(state.namespace_snapshot, VoidNamespaceSerializerSnapshot):
        types["namespace"] = describe_type(state.namespace_snapshot)
    types |= {role: describe_type(snapshot) for role, snapshot in state.role_snapshots.items()}
    return StateSchema(state.name, state.kind.name, types)
