"""Reads canonical rows of keyed state from the files of any backend, and decodes them to entries.

| Form of the state | Rows | Entry |
|---|---|---|
| value | one per key and namespace | the value |
| list | consecutive chunks | the whole list |
| map | one per map entry | user key and value |
| priority queue | one per element | a timer: key, namespace, and its time as value; else the element |

`stored_columns` reads a savepoint's files as they are, batch by batch. The files of a checkpoint belong to a backend:
the backend restores the requested key groups into a private scratch directory and exports its rows. Memory holds one
batch, except for a backend that keeps state in memory. Rows are sorted by key group, key, namespace and user key,
subtask by subtask.

Values of state with a time-to-live come without their time of last access, which is a separate attribute. Expired
entries that were not removed yet are included: only the program knows what counts as expired.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
from attrs import field, frozen

from statebackend.savepoint.conditions import LONG, ListType, StoredType
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.plain_values import value_repr
from statebackend.savepoint.value_forms import stored_type
from statebackend.state.backend_parameters import KeyedStateBackendParameters, RestoredHandle
from statebackend.state.canonical import SCHEMA, CanonicalBatch, rows_inside
from statebackend.state.canonical_files import CanonicalFile
from statebackend.state.descriptors import ELEMENT_ROLE, USER_KEY_ROLE
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.private_directory import temporary_directory
from statebackend.state.state_backend import state_backend
from statebackend.state.state_kind import TableForm
from statebackend.state.state_meta import CANONICAL_BACKEND, StateMeta
from typeserializers.containers.ttl import TtlValue
from typeserializers.scalars.void import VOID_NAMESPACE
from typeserializers.times.timers import Timer

__all__ = ["ALL_COLUMNS", "EntryReader", "StateEntry", "stored_columns", "unreadable_entry"]


ALL_COLUMNS: Sequence[str] = tuple(SCHEMA.names)
"""The columns of canonical rows."""


def stored_columns(
    restored: RestoredHandle,
    state: StateMeta,
    max_parallelism: int,
    key_groups: Sequence[KeyGroupRange],
    columns: Sequence[str] = ALL_COLUMNS,
    *,
    is_verified: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several key-group ranges as Arrow batches.

    Args:
        restored: The keyed state of the subtask.
        state: The state to read.
        max_parallelism: The number of key groups.
        key_groups: The ranges to read.
        columns: The columns to return, with the key group among them. Other columns of a savepoint are not read.
        is_verified: Whether to verify the checksum of each whole file. If not, only the needed pages of a large file
            are fetched and verified by their own checksums.

    Raises:
        CheckpointError: A file is missing or damaged.
        StateRestoreError: The files hold no valid state.
        UnknownStateBackendError: The backend of the files is not installed.
    """
    handle = restored.handle
    own = KeyGroupRange(handle.key_group_start, handle.key_group_end)
    wanted = [
        KeyGroupRange(max(own.start, one.start), min(own.end, one.end)) for one in key_groups if own.overlaps(one)
    ]
    if not wanted or not state.files:
        return
    if isinstance(restored.file_system, FlinkFiles):
        yield from restored.file_system.columns(handle.state_id, state.name, wanted, columns)
        return
    with temporary_directory() as directory:
        if handle.backend == CANONICAL_BACKEND:
            for file in state.files:
                stored = CanonicalFile(restored.file_system, handle.files[file.index])
                yield from stored.columns(wanted, directory, columns, is_verified=is_verified)
            return
        hull = KeyGroupRange(min(one.start for one in wanted), max(one.end for one in wanted))
        parameters = KeyedStateBackendParameters(
            operator_uid="reading",
            key_serializer=restored.meta.key_snapshot.restore_serializer(),
            max_parallelism=max_parallelism,
            key_group_range=hull,
            file_system=restored.file_system,
            file_prefix="unused",
            local_directory=os.path.join(directory, "state"),
            restore=(restored,),
        )
        with state_backend(handle.backend).create_keyed_state_backend(parameters) as backend:
            for exported in backend.export_state(state.name):
                batch = rows_inside(pa.record_batch(list(exported), schema=SCHEMA), wanted)
                if batch.num_rows:
                    yield batch.select(list(columns))


LastAccess: TypeAlias = "int | tuple[int, ...] | None"


@frozen
class StateEntry:
    """One entry of keyed state.

    Attributes:
        namespace: None if the state has no namespaces.
        user_key: The key of a map entry, otherwise None.
        last_access_ms: The last access of a value with time-to-live, in milliseconds since the epoch; of a list, one
            per element.
    """

    key_group: int
    key: Any = field(repr=value_repr)
    namespace: Any = field(repr=value_repr)
    user_key: Any = field(repr=value_repr)
    value: Any = field(repr=value_repr)
    last_access_ms: LastAccess = None


_Row: TypeAlias = "tuple[int, bytes, bytes, bytes | None, bytes]"
_Rows: TypeAlias = Iterable[_Row]


class EntryReader:
    """Decodes the rows of one state of one subtask. All serializers of ``schema`` are known.

    ``location_of`` returns the location of a key group for errors, if it is known.
    """

    def __init__(self, schema: EntrySchema, location_of: Callable[[int], str] | None = None) -> None:
        self._schema = schema
        self._location_of = location_of
        self._serializers = schema.serializers
        self._read_key = schema.key_serializer.from_bytes
        self._read_namespace = schema.namespace_serializer.from_bytes if schema.has_namespaces else _no_namespace
        self._read_value = schema.storage_serializer.from_bytes

    def columns(self) -> Mapping[str, StoredType]:
        """Return the types of the attributes that entries of this state have."""
        schema = self._schema
        if schema.is_queue and not schema.is_timers:
            return {"key_group": LONG, "value": stored_type(schema.serializers[ELEMENT_ROLE])}
        columns: dict[str, StoredType] = {"key_group": LONG}
        columns.update((name, stored_type(schema.values_of(name))) for name in schema.entry_columns)
        if schema.is_timed:
            columns["last_access_ms"] = ListType("list", lambda: LONG) if schema.is_list else LONG
        return columns

    def entries(self, batches: Iterable[CanonicalBatch]) -> Iterator[StateEntry]:
        """Yield the entries of sorted rows.

        Raises:
            StateRestoreError: A row cannot be decoded. The message names the state and the key group.
        """
        read = _ENTRIES_OF[self._schema.form]
        yield from read(self, self._rows(batches))

    def _rows(self, batches: Iterable[CanonicalBatch]) -> _Rows:
        for batch in batches:
            for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
                if value is None:
                    raise self._unreadable(key_group, "it has a row that is a removal")
                yield key_group, key, namespace, user_key, value

    def _values(self, rows: _Rows) -> Iterator[StateEntry]:
        for key_group, key, namespace, _, data in rows:
            value, last_access_ms = _untimed(self._decoded(self._read_value, data, key_group))
            yield StateEntry(key_group, *self._address(key_group, key, namespace), None, value, last_access_ms)

    def _lists(self, rows: _Rows) -> Iterator[StateEntry]:
        place: tuple[int, bytes, bytes] | None = None
        elements: list[Any] = []
        for key_group, key, namespace, _, data in rows:
            if place != (key_group, key, namespace):
                if place is not None:
                    yield self._list_entry(place, elements)
                place, elements = (key_group, key, namespace), []
            elements += self._decoded(self._read_value, data, key_group)
        if place is not None:
            yield self._list_entry(place, elements)

    def _list_entry(self, place: tuple[int, bytes, bytes], elements: Sequence[Any]) -> StateEntry:
        parts = [_untimed(element) for element in elements]
        times = tuple(time for _, time in parts if time is not None)
        return StateEntry(place[0], *self._address(*place), None, [value for value, _ in parts], times or None)

    def _maps(self, rows: _Rows) -> Iterator[StateEntry]:
        read_user_key = self._serializers[USER_KEY_ROLE].from_bytes
        for key_group, key, namespace, user_key, data in rows:
            if user_key is None:
                raise self._unreadable(key_group, "an entry of a map has no key of its own")
            known = self._decoded(read_user_key, user_key, key_group)
            value, last_access_ms = _untimed(self._decoded(self._read_value, data, key_group))
            yield StateEntry(key_group, *self._address(key_group, key, namespace), known, value, last_access_ms)

    def _elements(self, rows: _Rows) -> Iterator[StateEntry]:
        read = self._serializers[ELEMENT_ROLE].from_bytes
        for key_group, data, _, _, _ in rows:
            element = self._decoded(read, data, key_group)
            if isinstance(element, Timer):
                namespace = None if element.namespace is VOID_NAMESPACE else element.namespace
                yield StateEntry(key_group, element.key, namespace, None, element.timestamp)
            else:
                yield StateEntry(key_group, None, None, None, element)

    def _address(self, key_group: int, key: bytes, namespace: bytes) -> tuple[Any, Any]:
        return (
            self._decoded(self._read_key, key, key_group),
            self._decoded(self._read_namespace, namespace, key_group),
        )

    def _decoded(self, read: Callable[[bytes], Any], data: bytes, key_group: int) -> Any:
        try:
            return read(data)
        except Exception as error:
            # A custom serializer may raise anything for invalid bytes.
            raise self._unreadable(key_group, error) from error

    def _unreadable(self, key_group: int, reason: object) -> StateRestoreError:
        error = unreadable_entry(self._schema.name, key_group, reason)
        return StateRestoreError(f"{self._location_of(key_group)}: {error}") if self._location_of else error


def unreadable_entry(state_name: str, key_group: int, reason: object) -> StateRestoreError:
    """Return the error for bytes that are not a valid entry. ``reason`` may be an exception."""
    text = str(reason) or type(reason).__name__
    return StateRestoreError(f"state {state_name!r}, key group {key_group}: an entry cannot be read: {text}")


def _no_namespace(data: bytes) -> None:
    return None


def _untimed(value: Any) -> tuple[Any, int | None]:
    return (value.value, value.last_access_timestamp) if isinstance(value, TtlValue) else (value, None)


_ENTRIES_OF: Final[Mapping[TableForm | None, Callable[[EntryReader, _Rows], Iterator[StateEntry]]]] = {
    TableForm.VALUE: EntryReader._values,
    TableForm.LIST: EntryReader._lists,
    TableForm.MAP: EntryReader._maps,
    None: EntryReader._elements,
}
"""The decoder for each form of state; None is a priority queue."""
