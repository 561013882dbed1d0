"""Converts keyed state of Flink to canonical rows (`statebackend.state.canonical`), key group by key group.

**Canonical savepoints**, of every backend. A file has, at the offset of each key group that is not empty:

    group := (u16(state id) entry*)* u16(0xFFFF)
    entry := i32(length) key i32(length) value          the first bit of the key is set on the last entry before a u16

**RocksDB**: the same keys and values, in a column family per state.

    key   := key group (1 byte, or 2 if there are more than 128) key [length] namespace [length] [user key of a map]
             lengths only if key and namespace both vary in length: little-endian, as few bytes as possible
    value := the value; of a list its elements with ``,`` between them; of a map bool(is null) [value]
    key   := key group, timer; value empty                                    of a priority queue

**HashMap**, native. At the offset of each key group, without lengths:

    group := i32(key group) (i16(state id) i32(n) entry*)*      entry := namespace key value | timer

Here a list is i32(n) and its elements, a map i32(n) and keys with bool(is null) and values. If a serializer is unknown,
the reader searches the next state: the first position from which the rest of the group can be read.

**Raw keyed state**: the timers of RocksDB with heap timers, in checkpoints.

    group   := u32(0xF1CD859F) i32(2) i32(n) service*
    service := UTF(name) envelope(key) envelope(namespace) i32(n) timer* i32(n) timer*     event time, processing time
    timer   := key namespace i64(timestamp)

Compression frames each group of a canonical savepoint, and each state in a group of a native one, with Snappy.

A canonical row has separate columns for key, namespace and user key. A list has its count, and a timer is stored as the
bytes of its serializer. Flink marks a null value of a map in the map, and again in a nullable value; a row has one
flag. In maps with time-to-live, Statebackend's values are nullable, and Flink's are not (`with_flags`).

The rows of a key group are sorted, so memory holds one key group; of RocksDB, which sorts itself, one batch.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve

from snapshots.data_views import DataInputView
from snapshots.envelope import read_versioned_snapshot
from snapshots.errors import (
    EndOfDataError,
    MalformedDataError,
    StateFormatError,
    UnknownSubclassError,
    UnresolvableSerializerError,
)
from statebackend.savepoint.foreign.flink_headers import Snapshot
from statebackend.savepoint.foreign.snappy_frames import decompress_frames, stream_starts
from statebackend.state.canonical import SCHEMA, CanonicalBatch
from statebackend.state.descriptors import ELEMENT_ROLE, VALUE_ROLE
from statebackend.state.priority_queue import TimeDomain, timer_state_name
from statebackend.state.state_kind import TableForm
from statebackend.state.state_meta import StateMeta
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.nullable import NullableSerializer, NullableSerializerSnapshot
from typeserializers.containers.ttl import TtlSerializer, TtlSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, indented
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.stepping_over import stepping_over
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer
from typeserializers.times.timers import TimerSerializer, TimerSerializerSnapshot

_SHORT: Final = struct.Struct(">H")
_INT: Final = struct.Struct(">i")
_END: Final = 0xFFFF
_LAST: Final = 0x80
_MAX_BYTES: Final = (1 << 31) - 1
_SEPARATOR: Final = b","
_ONE: Final = b"\0\0\0\1"
_VOID: Final = b"\0"
TIMED_BYTES: Final = 9
"""The length of the flag and the time before a value of a map with time-to-live."""
_RAW_MAGIC: Final = 0xF1CD859F
_SIGN: Final = 1 << 63

Known: TypeAlias = Sequence[TypeSerializer[Any]]
"""Serializers of the program, whose classes replace generated ones."""

Step: TypeAlias = Callable[[bytes, int], int]
"""Returns the position after the value at a position."""

GroupReader: TypeAlias = Callable[[bytes, int, CanonicalBatch], None]
"""Appends the entries of one state from the bytes of a key group and its number, without the number."""


def step_of(serializer: TypeSerializer[Any]) -> Step:
    """Return the function that steps over a value without creating it."""
    length = serializer.length
    if length >= 0:

        def step_fixed(data: bytes, position: int) -> int:
            if position + length > len(data):
                raise _truncated(position)
            return position + length

        return step_fixed
    read = stepping_over(serializer).codec.read

    def step(data: bytes, position: int) -> int:
        try:
            _, end = read(data, position)
        except StateFormatError:
            raise
        except Exception as error:
            # Generated code may raise any error for damaged bytes.
            raise MalformedDataError(f"no value at byte {position}: {type(error).__name__}: {error}") from error
        if end > len(data):
            raise _truncated(position)
        return end

    return step


def _truncated(position: int) -> EndOfDataError:
    return EndOfDataError(f"the value at byte {position} is truncated")


def _emit_step(function: GeneratedFunction, serializer: TypeSerializer[Any]) -> list[str]:
    """Return the lines that move ``pos`` after a value. If ``data`` is too short, they raise or move it too far."""
    if serializer.length >= 0:
        return [f"pos += {serializer.length}"]
    if isinstance(serializer, TtlSerializer):
        return ["pos += 8", *_emit_step(function, serializer.value_serializer)]
    if isinstance(serializer, TimerSerializer):
        parts = (serializer.key_serializer, serializer.namespace_serializer)
        return ["pos += 8", *(line for part in parts for line in _emit_step(function, part))]
    step = f"pos = {function.bind('step', step_of(serializer))}(data, pos)"
    if type(serializer) is StringSerializer:
        # A short ASCII text has its length plus one, and its bytes.
        return [
            "n = data[pos]",
            "e = pos + n",
            "if 0 < n < 128 and data[pos + 1 : e].isascii(): pos = e",
            f"else: {step}",
        ]
    if isinstance(serializer, ListSerializer):
        element = serializer.element_serializer
        lines = [f"count = {function.bind('read_count', _count)}(data, pos)", "pos += 4"]
        if element.length >= 0:
            return [*lines, f"pos += count * {element.length}"]
        if not isinstance(element, ListSerializer):
            return [*lines, "for _ in range(count):", *indented(_emit_step(function, element))]
    return [step]


class RowMaker:
    """Creates canonical rows from the composite keys and the values of one state.

    Raises:
        UnresolvableSerializerError: The serializer of the key, the namespace or the user key is unknown.
    """

    def __init__(self, key_snapshot: Snapshot, state: StateMeta, max_parallelism: int, known: Known = ()) -> None:
        self._prefix_bytes = 1 if max_parallelism <= 128 else 2
        self._form = state.form
        self._value_length = -1
        if state.form is None:
            return
        keys = key_snapshot.restore_serializer()
        namespaces = state.namespace_snapshot.restore_serializer()
        self._key_length, self._namespace_length = keys.length, namespaces.length
        function = GeneratedFunction("address", "data, pos")
        step_keys, step_namespaces = _emit_step(function, keys), _emit_step(function, namespaces)
        lines = ["key_start = pos", *step_keys, "key_end = start = pos", *step_namespaces, "end = pos"]
        if keys.length < 0 and namespaces.length < 0:
            after = function.bind("after_length", _after_length)
            lines = [
                "key_start = pos",
                *step_keys,
                "key_end = pos",
                f"start = pos = {after}(data, pos, pos - key_start)",
            ]
            lines += [*step_namespaces, "end = pos", f"pos = {after}(data, pos, pos - start)"]
        self._address_of = function.compile([*lines, "return key_end, start, end, pos"])
        self._step_element: Step | None = None
        self._element_length = -1
        value = list(state.role_snapshots.values())[-1]
        self._has_flag = isinstance(value, NullableSerializerSnapshot)
        self._null = _null_of(value)
        if state.form is not TableForm.LIST:
            # Values of an unknown serializer are not checked.
            with contextlib.suppress(UnresolvableSerializerError):
                self._value_length = restored_with(value, *known).length
        if state.form is TableForm.LIST:
            # Elements of an unknown serializer are not separated.
            with contextlib.suppress(UnresolvableSerializerError):
                element = restored_with(state.role_snapshots[ELEMENT_ROLE], *known)
                self._step_element, self._element_length = step_of(element), element.length

    def prefix(self, key_group: int) -> bytes:
        """Return the first bytes of the keys of a key group."""
        return key_group.to_bytes(self._prefix_bytes, "big")

    def columns(
        self, raw_keys: Sequence[bytes], values: Sequence[bytes], key_groups: Sequence[int] | None = None
    ) -> pa.RecordBatch:
        """Return the sorted rows of entries, whose keys must be of these key groups if they are given."""
        raw = pa.array(raw_keys, pa.binary())
        if (pc.min(pc.binary_length(raw)).as_py() or 0) < self._prefix_bytes:
            raise EndOfDataError("a key is truncated")
        prefixes = pc.binary_slice(raw, 0, self._prefix_bytes).dictionary_encode()
        numbers = [int.from_bytes(one, "big") for one in prefixes.dictionary.to_pylist()]
        groups = pa.array(numbers, pa.int32()).take(prefixes.indices)
        if key_groups is not None and not groups.equals(pa.array(key_groups, pa.int32())):
            raise MalformedDataError("a key of another key group in this key group")
        if self._form is None:
            address = self._fixed_addresses(raw, 0)
            address = [address[0], pa.repeat(pa.scalar(_VOID, pa.binary()), len(raw)), address[2]]
            values = [b""] * len(raw)
        elif self._form is not TableForm.MAP and self._namespace_length >= 0:
            if self._key_length >= 0:
                _check_lengths("key", raw, self._prefix_bytes + self._key_length + self._namespace_length)
            address = self._fixed_addresses(raw, self._namespace_length)
        else:
            address = self._parsed_addresses(raw_keys)
        column = pa.array(self._lists(values) if self._form is TableForm.LIST else values, pa.binary())
        if self._form is TableForm.MAP:
            if b"" in values:
                raise MalformedDataError("an entry of a map has no value")
            is_null = pc.not_equal(pc.binary_slice(column, 0, 1), b"\0")
            if self._value_length >= 0:
                _check_lengths("value", column.filter(pc.invert(is_null)), 1 + self._value_length)
            if self._has_flag:
                column = pc.binary_replace_slice(column, 0, 1, b"")
            if pc.any(is_null).as_py():
                # For a null value Flink writes the flag, with or without unused bytes.
                column = pc.if_else(is_null, self._null, column)
        elif self._value_length >= 0:
            _check_lengths("value", column, self._value_length)
        columns = [groups, *address, column]
        rows = pa.record_batch(columns, schema=SCHEMA)
        is_sorted = pc.all(pc.less_equal(raw.slice(0, len(raw) - 1), raw.slice(1)), min_count=0).as_py()
        return rows if is_sorted else rows.take(pc.sort_indices(raw))

    def _fixed_addresses(self, raw: pa.Array, size: int) -> list[pa.Array]:
        """Return the columns of keys before a namespace of ``size`` bytes."""
        if (pc.min(pc.binary_length(raw)).as_py() or 0) < self._prefix_bytes + size:
            raise EndOfDataError("a key is truncated")
        # Arrow's `binary_slice` fails for some lengths.
        keys = pc.binary_replace_slice(raw, 0, self._prefix_bytes, b"")
        if size:
            keys = pc.binary_replace_slice(keys, -size, _MAX_BYTES, b"")
            spaces = pc.binary_replace_slice(raw, 0, -size, b"")
        else:
            spaces = pa.repeat(pa.scalar(b"", pa.binary()), len(raw))
        return [keys, spaces, pa.nulls(len(raw), pa.binary())]

    def _parsed_addresses(self, raw_keys: Sequence[bytes]) -> list[pa.Array]:
        keys: list[bytes] = []
        namespaces: list[bytes] = []
        user_keys: list[bytes | None] = []
        is_map = self._form is TableForm.MAP
        if not is_map and self._key_length >= 0:
            # Nothing follows the namespace.
            end = self._prefix_bytes + self._key_length
            if min(map(len, raw_keys), default=end) < end:
                raise EndOfDataError("a key is truncated")
            keys = [raw_key[self._prefix_bytes : end] for raw_key in raw_keys]
            namespaces = [raw_key[end:] for raw_key in raw_keys]
            return [pa.array(keys, pa.binary()), pa.array(namespaces, pa.binary()), pa.nulls(len(keys), pa.binary())]
        prefix, address_of = self._prefix_bytes, self._address_of
        key = namespace = last = b""
        end = 0
        for raw_key in raw_keys:
            # No serialized key is a prefix of another key, so a match is the same key. The entries of a map share it.
            if not end or not raw_key.startswith(last):
                try:
                    key_end, start, stop, end = address_of(raw_key, prefix)
                except IndexError as error:
                    raise EndOfDataError(f"a key of {len(raw_key)} bytes is truncated") from error
                if end > len(raw_key):
                    raise EndOfDataError(f"a key of {len(raw_key)} bytes is truncated")
                key, namespace, last = raw_key[prefix:key_end], raw_key[start:stop], raw_key[:end]
            keys.append(key)
            namespaces.append(namespace)
            user_keys.append(raw_key[end:])
        if not is_map:
            rest = next((rest for rest in user_keys if rest), b"")
            if rest:
                raise MalformedDataError(f"{len(rest)} bytes follow the namespace of a key")
            user_keys = [None] * len(keys)
        return [pa.array(one, pa.binary()) for one in (keys, namespaces, user_keys)]

    def _lists(self, values: Sequence[bytes]) -> list[bytes]:
        """Return the values of lists with their counts instead of separators."""
        step, length = self._step_element, self._element_length
        if step is None:
            return list(values)
        if length <= 0:
            return [_joined_list(step, value) for value in values]
        stride = length + 1
        known: dict[int, tuple[bytes, bytes]] = {}
        lists: list[bytes] = []
        for value in values:
            size = len(value)
            if size not in known:
                count, rest = divmod(size + 1, stride)
                if rest:
                    raise MalformedDataError(f"a list of {size} bytes has no elements of {length} bytes")
                known[size] = _INT.pack(count), _SEPARATOR * (count - 1)
            count_bytes, separators = known[size]
            if separators:
                if value[length::stride] != separators:
                    raise MalformedDataError(f"a list of {size} bytes has no separators of elements of {length} bytes")
                elements = bytearray(value)
                del elements[length::stride]
                lists.append(count_bytes + elements)
            else:
                lists.append(count_bytes + value)
        return lists


def _null_of(value: TypeSerializer[Any] | Snapshot) -> bytes:
    """Return the stored form of a null value of a map."""
    if isinstance(value, NullableSerializer | NullableSerializerSnapshot):
        return b"\1" + bytes(value.padding_length)
    return b"\1"


def _check_lengths(what: str, column: pa.Array, size: int) -> None:
    """Raise `MalformedDataError` unless all values have this length. Damaged ones could be copied otherwise."""
    lengths = pc.min_max(pc.binary_length(column)).as_py()
    wrong = next((one for one in lengths.values() if one not in (None, size)), None)
    if wrong is not None:
        raise MalformedDataError(f"a {what} of {wrong} bytes instead of {size}")


def _after_length(data: bytes, position: int, length: int) -> int:
    """Return the position after the length of a key or namespace, which must be at this position."""
    size = max(1, (length.bit_length() + 7) // 8)
    if data[position : position + size] != length.to_bytes(size, "little"):
        raise MalformedDataError(f"expected the length {length} at byte {position} of a key")
    return position + size


def _joined_list(step: Step, value: bytes) -> bytes:
    elements: list[bytes] = []
    position = 0
    while True:
        end = step(value, position)
        if end == len(value):
            if not position:
                return _ONE + value
            elements.append(value[position:])
            return _INT.pack(len(elements)) + b"".join(elements)
        elements.append(value[position:end])
        if value[end] != _SEPARATOR[0]:
            raise MalformedDataError(f"no separator at byte {end} of a list")
        position = end + 1


class CanonicalGroups:
    """Reads the key groups of a file of a canonical savepoint. Remembers the place of each state in each group."""

    def __init__(self, state_count: int, *, is_compressed: bool) -> None:
        self._state_count = state_count
        self._is_compressed = is_compressed
        self._blocks: dict[int, array[int]] = {}
        """By key group: the ids and the starts of the states found so far, and where to search the next one or -1."""

    def read(self, state_id: int, data: bytes, key_group: int, batch: CanonicalBatch) -> None:
        """Append the composite keys and the values of one state."""
        data = decompress_frames(data) if self._is_compressed else data
        blocks = self._blocks.setdefault(key_group, array("q", [0]))
        try:
            for index in range(0, len(blocks) - 1, 2):
                if blocks[index] == state_id:
                    _read_block(data, blocks[index + 1], batch)
                    return
            # States are mostly read in their order in the group, so the search continues after the last state.
            while (position := blocks[-1]) >= 0:
                found = self._next(data, position, blocks)
                if found == state_id:
                    blocks[-1] = _read_block(data, position + 2, batch)
                    # Check the end of the last state too.
                    if _short(data, blocks[-1]) == _END:
                        self._next(data, blocks[-1], blocks)
                    return
                if found != _END:
                    blocks[-1] = _block_end(data, position + 2)
        except (struct.error, IndexError) as error:
            raise EndOfDataError(f"the key group of {len(data)} bytes is truncated") from error

    def _next(self, data: bytes, position: int, blocks: array[int]) -> int:
        """Add the state at a position to the blocks, and return its id."""
        found = _short(data, position)
        if found == _END:
            blocks[-1] = -1
            if position + 2 != len(data):
                raise MalformedDataError(
                    f"{len(data) - position - 2} bytes follow the key group at byte {position + 2}"
                )
        elif found >= self._state_count or found in blocks[:-1:2]:
            raise MalformedDataError(f"byte {position}: state {found} does not exist or is there twice")
        else:
            blocks[-1:] = array("q", (found, position + 2, -1))
        return found


def _block_end(data: bytes, position: int) -> int:
    """Return the position after the last entry of a state. Truncated data may have no last entry."""
    unpack = _INT.unpack_from
    is_last = 0
    while not is_last:
        start = position + 4
        (size,) = unpack(data, position)
        (value_size,) = unpack(data, start + size)
        if size < 1 or value_size < 0:
            raise _misplaced(position, size, value_size)
        is_last = data[start] & _LAST
        position = start + size + 4 + value_size
    return position


def _read_block(data: bytes, position: int, batch: CanonicalBatch) -> int:
    """Append the entries of a state. Return the position after them."""
    unpack = _INT.unpack_from
    append_key, append_value = batch.keys.append, batch.values.append
    is_last = 0
    while not is_last:
        start = position + 4
        end = start + unpack(data, position)[0]
        value_start = end + 4
        next_position = value_start + unpack(data, end)[0]
        if end <= start or next_position < value_start:
            raise _misplaced(position, end - start, next_position - value_start)
        position = next_position
        is_last = data[start] & _LAST
        append_key(data[start:end])
        append_value(data[value_start:position])
    keys = batch.keys
    keys[-1] = bytes((keys[-1][0] & ~_LAST,)) + keys[-1][1:]
    return position


def _misplaced(position: int, key_bytes: int, value_bytes: int) -> MalformedDataError:
    return MalformedDataError(f"byte {position}: a key of {key_bytes} bytes, a value of {value_bytes} bytes")


def _short(data: bytes, position: int) -> int:
    if position + 2 > len(data):
        raise _truncated(position)
    number: int = _SHORT.unpack_from(data, position)[0]
    return number


class _HeapState:
    """Steps over, or reads, the entries of one state in a key group of the HashMap backend."""

    def __init__(self, key_snapshot: Snapshot, state: StateMeta, known: Known) -> None:
        self._name = state.name
        self._form = state.form
        self._reason: UnresolvableSerializerError | None = None
        try:
            self._set_steps(key_snapshot, state, known)
        except UnresolvableSerializerError as error:
            self._reason = error

    def _set_steps(self, key_snapshot: Snapshot, state: StateMeta, known: Known) -> None:
        serializers = [restored_with(snapshot, *known) for snapshot in state.role_snapshots.values()]
        if state.form is None:
            address = []
        else:
            address = [state.namespace_snapshot.restore_serializer(), key_snapshot.restore_serializer()]
        if state.form is TableForm.LIST:
            serializers = [ListSerializer(serializers[0])]
        self._skip = _entry_reader(state.form, address, serializers, is_appending=False)
        self._append = _entry_reader(state.form, address, serializers, is_appending=True)

    @property
    def is_known(self) -> bool:
        """Whether the entries can be stepped over."""
        return self._reason is None

    def read(self, data: bytes, position: int, batch: CanonicalBatch | None) -> int:
        """Append the entries after the state id, or skip them. Returns the position after them."""
        count = _count(data, position)
        position += 4
        if self._reason is not None and count:
            raise self._reason
        if not count:
            return position
        try:
            if batch is None:
                position = self._skip(data, position, count)
            else:
                columns = (batch.keys, batch.namespaces, batch.user_keys, batch.values)
                position = self._append(data, position, count, *columns)
        except (struct.error, IndexError) as error:
            raise _truncated(position) from error
        if position > len(data):
            raise _truncated(position)
        return position


def _entry_reader(
    form: TableForm | None,
    address: Sequence[TypeSerializer[Any]],
    serializers: Sequence[TypeSerializer[Any]],
    *,
    is_appending: bool,
) -> Callable[..., int]:
    """Return the generated function that appends or skips entries, and returns the position after them.

    ``address`` are the serializers of namespace and key, ``serializers`` those of the element, the value, or the user
    key and the value.
    """
    columns = ("keys", "namespaces", "user_keys", "values") if is_appending else ()
    function = GeneratedFunction("read", ", ".join(("data, pos, entries", *columns)))
    appends = [f"append_{column} = {column}.append" for column in columns]

    def append(column: str, start: str) -> list[str]:
        return [f"append_{column}(data[{start}:pos])"] if is_appending else []

    step_value = _emit_step(function, serializers[-1])
    if form is None:
        body = ["start = pos", *step_value, *append("keys", "start")]
        return function.compile([*appends, "for _ in range(entries):", *indented(body), "return pos"])
    namespaces, keys = address
    body = ["start = pos", *_emit_step(function, namespaces), *append("namespaces", "start")]
    if isinstance(namespaces, VoidNamespaceSerializer):
        # A column without namespaces stands for this namespace.
        body = [f"if data[pos]: {function.bind('reject', _reject_namespace)}(pos)", "pos += 1"]
    body += ["start = pos", *_emit_step(function, keys)]
    if form is not TableForm.MAP:
        body += [*append("keys", "start"), "start = pos", *step_value, *append("values", "start")]
        return function.compile([*appends, "for _ in range(entries):", *indented(body), "return pos"])
    body += [f"size = {function.bind('read_count', _count)}(data, pos)"]
    if is_appending:
        repeat = function.bind("repeat", itertools.repeat)
        body += [f"keys += {repeat}(data[start:pos], size)"]
        if not isinstance(namespaces, VoidNamespaceSerializer):
            body += [f"namespaces += {repeat}(namespaces.pop(), size)"]
    entry = [
        "start = pos",
        *_emit_step(function, serializers[0]),
        *append("user_keys", "start"),
        "start = pos",
        "pos += 1",
    ]
    value = serializers[-1]
    null = function.bind("null", _null_of(value))
    entry += ["if data[start]:", *indented([f"append_values({null})"] if is_appending else []), "else:"]
    entry += indented(
        [*step_value, *append("values", "start + 1" if isinstance(value, NullableSerializer) else "start")]
    )
    body += ["pos += 4", "for _ in range(size):", *indented(entry)]
    return function.compile([*appends, "for _ in range(entries):", *indented(body), "return pos"])


def _reject_namespace(position: int) -> None:
    raise MalformedDataError(f"byte {position}: a namespace in a state without namespaces")


def _count(data: bytes, position: int) -> int:
    if position + 4 > len(data):
        raise _truncated(position)
    count: int = _INT.unpack_from(data, position)[0]
    if not 0 <= count <= len(data):
        raise MalformedDataError(f"byte {position}: {count} entries")
    return count


_MAX_WORK: Final = 1 << 20
_MAX_WORK_PER_BYTE: Final = 8
"""The limit of the search for states after unknown ones, per key group. Each position that is looked at counts 1, each
state that is tried counts `_WORK_OF_STATE`."""
_WORK_OF_STATE: Final = 32
_MAX_DIVISIONS: Final = 16
"""With this many possible divisions of a key group into states, no place is certain."""
_UNCERTAIN: Final = (-1, -1)


class HeapGroups:
    """Reads the key groups of a file of the HashMap backend. Remembers the place of each state in each group."""

    def __init__(
        self, key_snapshot: Snapshot, metas: Sequence[StateMeta], known: Known = (), *, is_compressed: bool
    ) -> None:
        self._names = [meta.name for meta in metas]
        self._states = [_HeapState(key_snapshot, meta, known) for meta in metas]
        self._is_compressed = is_compressed
        self._work_left = 0
        self._order: tuple[int, ...] | None = None
        """The state ids in their order in each group."""
        self._is_in_order = not is_compressed and all(state.is_known for state in self._states)
        self._starts: dict[int, array[int]] = {}
        """By key group: the starts of the states found so far, and where to search the next one."""
        self._spans: dict[int, array[int]] = {}
        """By key group: the position of each state and the position after it, by state id."""

    def reader(self, state_id: int) -> GroupReader:
        """Return the reader of one state. It appends canonical rows."""

        def read(data: bytes, key_group: int, batch: CanonicalBatch) -> None:
            if data[:4] != key_group.to_bytes(4, "big"):
                raise MalformedDataError(f"the data is not of this key group but of 0x{data[:4].hex()}")
            data = data[4:]
            if self._is_in_order:
                try:
                    self._read_next(state_id, data, key_group, batch)
                    return
                except UnknownSubclassError:
                    if batch.keys[len(batch.key_groups) :]:
                        raise
                    # A state before this one has values without a known end.
                    self._is_in_order = False
            spans = self._spans.get(key_group)
            if spans is None:
                found = self._streams(data) if self._is_compressed else self._found(data)
                spans = array("q", [place for number in range(len(self._states)) for place in found[number]])
                self._spans[key_group] = spans
            if spans[2 * state_id] < 0:
                raise MalformedDataError(
                    "values of states with unknown serializers hide where this state begins. Take a canonical savepoint"
                )
            part = data[spans[2 * state_id] : spans[2 * state_id + 1]]
            part = decompress_frames(part) if self._is_compressed else part
            if _short(part, 0) != state_id:
                raise MalformedDataError(f"state {_short(part, 0)} is at the place of state {state_id}")
            end = self._states[state_id].read(part, 2, batch)
            if end != len(part):
                raise MalformedDataError(f"{len(part) - end} bytes follow the entries of {self._names[state_id]!r}")

        return read

    def _read_next(self, state_id: int, data: bytes, key_group: int, batch: CanonicalBatch) -> None:
        """Read one state of an uncompressed group without unknown states.

        States are mostly read in their order in the group, so the search continues after the last state.
        """
        count = len(self._states)
        starts = self._starts.setdefault(key_group, array("q", [-1] * count + [0]))
        if starts[state_id] >= 0:
            self._states[state_id].read(data, starts[state_id] + 2, batch)
            return
        number = -1
        while number != state_id:
            position = starts[count]
            number = _short(data, position)
            if number >= count or starts[number] >= 0:
                raise MalformedDataError(f"byte {position}: state {number} does not exist or is there twice")
            starts[count] = self._states[number].read(data, position + 2, batch if number == state_id else None)
            starts[number] = position
        if min(starts) >= 0 and starts[count] != len(data):
            raise MalformedDataError(f"{len(data) - starts[count]} bytes follow the states at byte {starts[count]}")

    def _streams(self, data: bytes) -> dict[int, tuple[int, int]]:
        """Return the places of the states in a compressed group, which has one stream for each state."""
        places = list(itertools.pairwise((*stream_starts(data), len(data))))
        if self._order is None:
            self._order = tuple(_short(decompress_frames(data[start:stop]), 0) for start, stop in places)
        if len(places) != len(self._states) or sorted(self._order) != list(range(len(self._states))):
            raise MalformedDataError(f"the key group does not have the {len(self._states)} states of the file")
        return dict(zip(self._order, places, strict=True))

    def learn_order(self, data: bytes) -> None:
        """Remember the order of the states, which all groups of the file have, from a group with few entries."""
        if not self._is_compressed:
            with contextlib.suppress(StateFormatError):
                self._found(data[4:])

    def _found(self, data: bytes) -> dict[int, tuple[int, int]]:
        """Return the places of the states in an uncompressed group. A place that is not certain is negative."""
        self._work_left = _MAX_WORK + _MAX_WORK_PER_BYTE * len(data)
        every = list(itertools.islice(self._places(data, 0, {}), _MAX_DIVISIONS))
        if len(every) == _MAX_DIVISIONS or self._work_left < 0:
            return dict.fromkeys(range(len(self._states)), _UNCERTAIN)
        if len(every) == 1:
            self._order = tuple(every[0])
        return {
            number: place if all(one[number] == place for one in every) else _UNCERTAIN
            for number, place in every[0].items()
        }

    def _places(
        self, data: bytes, position: int, found: dict[int, tuple[int, int]]
    ) -> Iterator[dict[int, tuple[int, int]]]:
        """Yield each possible division of a group, in the order of the group. ``found`` is before the position.

        Values of an unknown state may end wherever the rest of the group can be read.
        """
        states = self._states
        while position < len(data):
            self._work_left -= _WORK_OF_STATE
            number = _short(data, position)
            if not self._may_follow(found, number):
                raise MalformedDataError(f"byte {position}: state {number} does not exist or is there twice")
            state = states[number]
            with contextlib.suppress(UnknownSubclassError):
                if state.is_known or not _count(data, position + 2):
                    end = state.read(data, position + 2, None)
                    found = {**found, number: (position, end)}
                    position = end
                    continue
            if len(found) == len(states) - 1:
                yield {**found, number: (position, len(data))}
                return
            has_place = False
            before = {*found, number}
            for end in range(position + 6, len(data) - 5):
                self._work_left -= 1
                if self._work_left < 0:
                    break
                if not self._may_follow(before, _short(data, end)):
                    continue
                with contextlib.suppress(StateFormatError):
                    for places in self._places(data, end, {**found, number: (position, end)}):
                        has_place = True
                        yield places
            if not has_place:
                raise MalformedDataError(
                    f"byte {position}: what follows the values of state {self._names[number]!r} is unknown"
                )
            return
        if len(found) != len(states):
            raise EndOfDataError(f"{len(states) - len(found)} states are missing at byte {position}")
        yield found

    def _may_follow(self, found: Collection[int], number: int) -> bool:
        """Whether this state can be the next one after those found."""
        if self._order is not None:
            return len(found) < len(self._order) and self._order[len(found)] == number
        return number < len(self._states) and number not in found


def with_nullable_values(state: StateMeta) -> StateMeta:
    """Return the schema of a map with time-to-live in the form of Statebackend: its values are nullable."""
    value = state.role_snapshots.get(VALUE_ROLE)
    if state.form is not TableForm.MAP or not isinstance(value, TtlSerializerSnapshot):
        return state
    if isinstance(value.value_snapshot, NullableSerializerSnapshot):
        return state
    times, _ = value.nested_snapshots
    nullable: Snapshot = TtlSerializerSnapshot.around(times, NullableSerializerSnapshot.around(value.value_snapshot))
    [part] = state.parts
    return evolve(state, parts=(evolve(part, role_snapshots={**part.role_snapshots, VALUE_ROLE: nullable}),))


def with_flags(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a map with time-to-live with the flag of `with_nullable_values` after the times."""
    values = rows.column("value")
    flagged = pc.binary_replace_slice(values, TIMED_BYTES, TIMED_BYTES, b"\0")
    is_null = pc.not_equal(pc.binary_slice(values, 0, 1), b"\0")
    return rows.set_column(
        rows.schema.names.index("value"), SCHEMA.field("value"), pc.if_else(is_null, values, flagged)
    )


def sorted_rows(batch: CanonicalBatch) -> pa.RecordBatch:
    """Return the rows, with the columns that all have in common if they are empty."""
    columns = list(batch)
    for index, common in ((2, _VOID), (3, None), (4, b"")):
        columns[index] = columns[index] or pa.repeat(pa.scalar(common, pa.binary()), len(batch.keys))
    rows = pa.record_batch(columns, schema=SCHEMA)
    names = ("key_group", "key", "namespace", *(("user_key",) if batch.user_keys else ()))
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))


def timer_reader(name: str) -> GroupReader:
    """Return the reader of one queue in raw keyed state. It appends canonical rows."""

    def read(data: bytes, key_group: int, batch: CanonicalBatch) -> None:
        for found, _, elements in raw_timers(data):
            if found == name:
                batch.keys.extend(elements)

    return read


def raw_timers(data: bytes) -> Iterator[tuple[str, Snapshot, list[bytes]]]:
    """Yield the timers of one key group of raw keyed state: name of the queue, snapshot, and serialized elements.

    Raises:
        StateFormatError: The bytes are damaged.
    """
    source = DataInputView(data)
    if source.read_int() & 0xFFFFFFFF != _RAW_MAGIC:
        raise MalformedDataError("raw keyed state without timers")
    version = source.read_int()
    if version != 2:
        raise MalformedDataError(f"timers of version {version}, not 2")
    domains: tuple[TimeDomain, ...] = ("event", "processing")
    for _ in range(source.read_count(22)):
        name = source.read_utf()
        keys, namespaces = read_versioned_snapshot(source), read_versioned_snapshot(source)
        step_key, step_namespace = step_of(keys.restore_serializer()), step_of(namespaces.restore_serializer())
        for domain in domains:
            elements: list[bytes] = []
            for _ in range(source.read_count(8)):
                start = source.position
                source.position = step_namespace(data, step_key(data, start))
                address = data[start : source.position]
                timestamp = source.read_long() + _SIGN
                elements.append(timestamp.to_bytes(8, "big") + address)
            yield timer_state_name(domain, name), TimerSerializerSnapshot.around(keys, namespaces), elements
    if source.remaining:
        raise MalformedDataError(f"{source.remaining} bytes follow the timers at byte {source.position}")
