"""Reads the header of Flink's state files, which lists the states and their serializers.

    keyed    := i32(6) bool(compressed) serializer(key) i16(n) state*
    operator := i32(5, or 6 in newer releases) [6: bool(compressed)] i16(n) state* i16(n) state*      lists, broadcast
    state    := UTF(name) i32(type) i32(n) (UTF(option) UTF(value))* i32(n) (UTF(role) serializer)*
    serializer := i32(2) envelope                               the envelope is that of `snapshots.envelope`

The types are 0 keyed, 1 list, 2 broadcast, 3 priority queue. The position of a keyed state is its id in this file. A
header ends where the first key group or the first element begins.

A snapshot is stored without its length, so a snapshot of an unknown class cannot simply be skipped. The reader searches
for its end: the first position from which the rest of the header can be read up to the end of the header. The snapshot
is stored unread, with the reason, and all other states can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from attrs import evolve, frozen

from snapshots.data_views import DataInputView
from snapshots.envelope import UnopenedSnapshot, read_versioned_snapshot, snapshot_to_bytes
from snapshots.errors import MalformedDataError, StateFormatError, UnknownSnapshotError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.savepoint.foreign import flink_records, flink_table_types  # noqa: F401  (they register snapshots)
from statebackend.savepoint.foreign.snappy_frames import STREAM_START
from statebackend.state.descriptors import ELEMENT_ROLE, USER_KEY_ROLE, VALUE_ROLE, StoredKind
from statebackend.state.folding_states import ACCUMULATOR_ROLE
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.state_meta import STATE_KINDS, StateFile, StateMeta
from typeserializers.containers.lists import ArrayListSerializerSnapshot, ListSerializerSnapshot
from typeserializers.containers.maps import MapSerializerSnapshot
from typeserializers.scalars.void import VoidNamespaceSerializerSnapshot

Snapshot: TypeAlias = TypeSerializerSnapshot[Any]

_KEYED_VERSION: Final = 6
_OPERATOR_VERSIONS: Final = (5, 6)
_SERIALIZER_VERSION: Final = 2
_TYPES: Final = range(4)
_SERIALIZER_ROLES: Final = frozenset({"KEY_SERIALIZER", "NAMESPACE_SERIALIZER", "VALUE_SERIALIZER"})
_MIN_STATE_BYTES: Final = 14
_MAX_UNKNOWN: Final = 100
_MAX_WORK: Final = 1 << 18
"""The limit of the search for the ends of unknown snapshots, per header. Each position that is tried counts 1, each
part that is read there counts `_WORK_OF_PART`, and 16 bytes of a snapshot count 1."""

_WORK_OF_PART: Final = 16


@frozen
class StoredState:
    """One state of a header. The keys of ``snapshots`` are Flink's names of roles."""

    name: str
    type_code: int
    options: Mapping[str, str]
    snapshots: Mapping[str, Snapshot]

    def snapshot(self, role: str) -> Snapshot:
        """Return the snapshot of a role; raises `MalformedDataError` if there is none."""
        if role not in self.snapshots:
            raise MalformedDataError(f"state {self.name!r} has no {role}; it has {', '.join(self.snapshots) or 'none'}")
        return self.snapshots[role]

    def meta(self, files: tuple[StateFile, ...]) -> StateMeta:
        """Return a keyed state or priority queue in the form of Statebackend."""
        value = self.snapshot("VALUE_SERIALIZER")
        if self.type_code == 3:
            return StateMeta.of_one_schema(
                self.name, PRIORITY_QUEUE, VoidNamespaceSerializerSnapshot(), {ELEMENT_ROLE: value}, files
            )
        kind_name = self.options.get("KEYED_STATE_TYPE", "VALUE")
        kind: StoredKind | None = STATE_KINDS.get(kind_name.lower()) or STATE_KINDS.get(kind_name)
        if kind is None or kind_name not in _ROLES:
            raise MalformedDataError(f"state {self.name!r} is of the unknown kind {kind_name!r}")
        roles = _ROLES[kind_name](value)
        return StateMeta.of_one_schema(self.name, kind, self.snapshot("NAMESPACE_SERIALIZER"), roles, files)


def _list_roles(snapshot: Snapshot) -> dict[str, Snapshot]:
    if isinstance(snapshot, ListSerializerSnapshot | ArrayListSerializerSnapshot):
        return {ELEMENT_ROLE: snapshot.nested_snapshots[0]}
    return {ELEMENT_ROLE: _unreadable(snapshot)}


def _map_roles(snapshot: Snapshot) -> dict[str, Snapshot]:
    if isinstance(snapshot, MapSerializerSnapshot):
        return dict(zip((USER_KEY_ROLE, VALUE_ROLE), snapshot.nested_snapshots, strict=True))
    return dict.fromkeys((USER_KEY_ROLE, VALUE_ROLE), _unreadable(snapshot))


def _unreadable(snapshot: Snapshot) -> Snapshot:
    if isinstance(snapshot, UnopenedSnapshot):
        return snapshot
    name = type(snapshot).__name__
    return UnopenedSnapshot(
        snapshot_to_bytes(snapshot), UnknownSnapshotError(f"the elements were written by {name}, which has no elements")
    )


_ROLES: Final[Mapping[str, Callable[[Snapshot], dict[str, Snapshot]]]] = {
    "VALUE": lambda snapshot: {VALUE_ROLE: snapshot},
    "REDUCING": lambda snapshot: {VALUE_ROLE: snapshot},
    "AGGREGATING": lambda snapshot: {ACCUMULATOR_ROLE: snapshot},
    "LIST": _list_roles,
    "MAP": _map_roles,
}


@frozen
class KeyedHeader:
    """The header of keyed state; the position of a state is its id."""

    is_compressed: bool
    key_snapshot: Snapshot
    states: tuple[StoredState, ...]


@frozen
class OperatorHeader:
    """The header of operator state."""

    is_compressed: bool
    lists: tuple[StoredState, ...]
    broadcast: tuple[StoredState, ...]


def read_keyed_header(source: DataInputView) -> KeyedHeader:
    """Read the header of keyed state, which takes all bytes of the view.

    Raises:
        StateFormatError: The header is damaged or of an unknown version.
    """
    _check_version(source.read_int(), (_KEYED_VERSION,))
    is_compressed = source.read_boolean()
    [key], states = _Header(source).read(("key", "states"))
    return KeyedHeader(is_compressed, key, states)


def read_operator_header(source: DataInputView) -> OperatorHeader:
    """Read the header of operator state; otherwise as `read_keyed_header`."""
    version = source.read_int()
    _check_version(version, _OPERATOR_VERSIONS)
    is_compressed = version >= 6 and source.read_boolean()
    if is_compressed and source.data.endswith(STREAM_START):
        # The compressed stream starts before the first element.
        source = DataInputView(source.data[: -len(STREAM_START)], source.position)
    _, states = _Header(source).read(("states", "states"))
    lists = tuple(state for state in states if state.type_code == 1)
    broadcast = tuple(state for state in states if state.type_code == 2)
    if len(lists) + len(broadcast) != len(states):
        raise MalformedDataError("operator state has a state with keys")
    return OperatorHeader(is_compressed, lists, broadcast)


def _check_version(version: int, known: tuple[int, ...]) -> None:
    if version not in known:
        raise MalformedDataError(f"the state has version {version}; known are {', '.join(map(str, known))}")


@frozen
class _StateStart:
    name: str
    type_code: int
    options: Mapping[str, str]
    role_count: int


@frozen
class _Rest:
    """The parts not read yet: serializers of the current state, states of the section, and sections."""

    roles: int
    states: int
    sections: tuple[str, ...]


class _Header:
    """Reads a header into a list of tokens, so that the search for the end of a snapshot can go back."""

    def __init__(self, source: DataInputView) -> None:
        self._source = source
        self._work = 0
        self._failed: set[tuple[int, _Rest]] = set()

    def read(self, sections: tuple[str, ...]) -> tuple[list[Snapshot], tuple[StoredState, ...]]:
        """Return the snapshots of the key, if any, and the states."""
        keys: list[Snapshot] = []
        states: list[StoredState] = []
        tokens = iter(self._read(self._source.position, _Rest(0, 0, sections), [], 0))
        for token in tokens:
            if isinstance(token, _StateStart):
                roles = {next(tokens): next(tokens) for _ in range(token.role_count)}
                states.append(StoredState(token.name, token.type_code, token.options, roles))
            else:
                keys.append(token)
        if len({state.name for state in states}) != len(states):
            raise MalformedDataError("two states have the same name")
        return keys, tuple(states)

    def _read(self, position: int, rest: _Rest, tokens: list[Any], unknown: int) -> list[Any]:
        source = self._source
        source.position = position
        while rest.roles or rest.states or rest.sections:
            if unknown:
                self._count_work(_WORK_OF_PART)
            if rest.roles:
                tokens.append(self._role())
                rest = evolve(rest, roles=rest.roles - 1)
            elif rest.states:
                state = self._state_start()
                tokens.append(state)
                rest = evolve(rest, states=rest.states - 1, roles=state.role_count)
                continue
            else:
                is_key = rest.sections[0] == "key"
                rest = evolve(rest, sections=rest.sections[1:], states=0 if is_key else self._state_count())
                if not is_key:
                    continue
            start = self._serializer_start()
            try:
                tokens.append(self._snapshot(unknown))
            except UnknownSnapshotError as error:
                return self._after_unknown(start, rest, tokens, unknown + 1, error)
        if source.remaining:
            raise MalformedDataError(f"{source.remaining} bytes follow the metadata at byte {source.position}")
        return tokens

    def _role(self) -> str:
        role = self._source.read_utf()
        if role not in _SERIALIZER_ROLES:
            raise MalformedDataError(f"{role!r} before byte {self._source.position} is not a role of a serializer")
        return role

    def _state_count(self) -> int:
        count = self._source.read_short()
        if not 0 <= count * _MIN_STATE_BYTES <= self._source.remaining:
            raise MalformedDataError(f"{count} states at byte {self._source.position - 2}")
        return count

    def _serializer_start(self) -> int:
        version = self._source.read_int()
        if version != _SERIALIZER_VERSION:
            raise MalformedDataError(
                f"a serializer snapshot at byte {self._source.position - 4} has version {version}, not "
                f"{_SERIALIZER_VERSION}"
            )
        return self._source.position

    def _state_start(self) -> _StateStart:
        source = self._source
        name, type_code = source.read_utf(), source.read_int()
        if type_code == 4:
            raise MalformedDataError(
                f"state {name!r} was written by Flink's asynchronous state API, whose entries cannot be read here. "
                f"Use the synchronous API in the job, and take a savepoint of that"
            )
        if not name or type_code not in _TYPES:
            raise MalformedDataError(f"state {name!r} is of the unknown type {type_code}")
        options = {source.read_utf(): source.read_utf() for _ in range(source.read_count(4))}
        return _StateStart(name, type_code, options, source.read_count(2 + 4 + 6))

    def _count_work(self, amount: int) -> None:
        self._work += amount
        if self._work > _MAX_WORK:
            raise MalformedDataError(f"no end of an unknown serializer was found in {_MAX_WORK} attempts")

    def _snapshot(self, unknown: int) -> Snapshot:
        start = self._source.position
        try:
            return read_versioned_snapshot(self._source)
        finally:
            if unknown:
                self._work += (self._source.position - start) // 16

    def _after_unknown(
        self, start: int, rest: _Rest, tokens: list[Any], unknown: int, reason: UnknownSnapshotError
    ) -> list[Any]:
        data = self._source.data
        if unknown > _MAX_UNKNOWN:
            raise MalformedDataError(f"more than {_MAX_UNKNOWN} serializers are unknown; the last one: {reason}")
        # An envelope has at least a name and a version.
        first = start + 2 + int.from_bytes(data[start : start + 2], "big") + 4
        for end in range(first, len(data) + 1):
            if (end, rest) in self._failed:
                continue
            self._work += 1
            if self._work > _MAX_WORK:
                break
            try:
                return self._read(end, rest, [*tokens, UnopenedSnapshot(data[start:end], reason)], unknown)
            except StateFormatError:
                self._failed.add((end, rest))
        raise MalformedDataError(f"{reason}; and what follows it at byte {start} cannot be read") from reason
