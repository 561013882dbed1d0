"""From canonical rows to entries: what a person who knows the state calls one thing in it.

| form of the state | rows | an entry |
|---|---|---|
| one value | one a key and namespace | the value |
| a list | its chunks, one behind the other | the whole list |
| a map | one an entry of the map | the user key and the value |
| a priority queue | one an element | a timer as its key, its namespace and, as the value, its time; else the element |

The values of state with a time-to-live come without their times, which are beside them. What has expired and was not
removed yet is there still: what counts as expired is the program's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from attrs import frozen

from savepoints.reading.stored_types import LONG, ListType, StoredType, stored_type
from statebackend.api.descriptors import ELEMENT_ROLE, USER_KEY_ROLE
from statebackend.api.errors import StateRestoreError
from statebackend.canonical.canonical_entries import CanonicalBatch
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta
from statebackend.kinds.state_kind import TableForm
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.ttl import TtlSerializer, TtlValue
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer
from typeserializers.times.timers import Timer, TimerSerializer

__all__ = ["EntryReader", "StateEntry", "unreadable_entry"]

LastAccess: TypeAlias = "int | tuple[int, ...] | None"


@frozen
class StateEntry:
    """One entry of keyed state; see the module. ``namespace`` is None where the state has no namespaces.

    ``user_key`` is that of an entry of a map, None of every other. ``last_access_ms`` is when a value with a
    time-to-live was used last, in milliseconds since the Unix epoch; of a list, one for each element.
    """

    key_group: int
    key: Any
    namespace: Any
    user_key: Any
    value: Any
    last_access_ms: LastAccess = None


_Row: TypeAlias = "tuple[int, bytes, bytes, bytes | None, bytes]"
_Rows: TypeAlias = Iterable[_Row]


class EntryReader:
    """Reads the rows of one state of one subtask, whose meta data says how; records become those of ``known``.

    Raises `UnresolvableSerializerError` if a serializer is not known in this process: it says which, and what to do.
    """

    def __init__(self, meta: KeyedStateMeta, state: StateMeta, known: Sequence[TypeSerializer[Any]] = ()) -> None:
        self._state = state
        self._keys = meta.key_snapshot.restore_serializer()
        self._read_key = self._keys.from_bytes
        self._namespaces = state.namespace_snapshot.restore_serializer()
        has_namespaces = not isinstance(self._namespaces, VoidNamespaceSerializer)
        self._read_namespace = self._namespaces.from_bytes if has_namespaces else _no_namespace
        self._serializers: Mapping[str, TypeSerializer[Any]] = {
            role: restored_with(snapshot, *known) for role, snapshot in state.role_snapshots.items()
        }
        self._storage = state.kind.storage_serializer(self._serializers)
        self._read_value = self._storage.from_bytes

    def columns(self) -> Mapping[str, StoredType]:
        """The types of the attributes that entries of this state have."""
        element = self._serializers.get(ELEMENT_ROLE)
        if self._state.form is None and not isinstance(element, TimerSerializer):
            return {"key_group": LONG, "value": stored_type(self._serializers[ELEMENT_ROLE])}
        keys, namespaces = self._keys, self._namespaces
        if isinstance(element, TimerSerializer):
            keys, namespaces = element.key_serializer, element.namespace_serializer
        columns: dict[str, StoredType] = {"key_group": LONG, "key": stored_type(keys)}
        if not isinstance(namespaces, VoidNamespaceSerializer):
            columns["namespace"] = stored_type(namespaces)
        if USER_KEY_ROLE in self._serializers:
            columns["user_key"] = stored_type(self._serializers[USER_KEY_ROLE])
        stored = self._storage if element is None else element
        is_list = self._state.form is TableForm.LIST
        if isinstance(element, TimerSerializer):
            columns["value"] = LONG
        else:
            columns["value"] = ListType("list", lambda: stored_type(stored)) if is_list else stored_type(stored)
        if isinstance(stored.inner if isinstance(stored, NullableSerializer) else stored, TtlSerializer):
            columns["last_access_ms"] = ListType("list", lambda: LONG) if is_list else LONG
        return columns

    def entries(self, batches: Iterable[CanonicalBatch]) -> Iterator[StateEntry]:
        """The entries of these rows, which come sorted.

        Raises `StateRestoreError`, naming state and key group, for bytes that the serializers cannot read.
        """
        read = _ENTRIES_OF[self._state.form]
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
            # A serializer may be anybody's: whatever it makes of bytes that do not fit, one kind of error comes out.
            raise self._unreadable(key_group, error) from error

    def _unreadable(self, key_group: int, reason: object) -> StateRestoreError:
        return unreadable_entry(self._state.name, key_group, reason)


def unreadable_entry(state_name: str, key_group: int, reason: object) -> StateRestoreError:
    """The error for bytes that are no entry of the state; the reason may be an exception."""
    told = str(reason) or type(reason).__name__
    return StateRestoreError(f"state {state_name!r}, key group {key_group}: an entry cannot be read: {told}")


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
"""What reads the rows, by the form of the state; None is a priority queue."""
