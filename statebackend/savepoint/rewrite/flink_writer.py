"""Writes a canonical Flink savepoint from a savepoint or checkpoint of Statebackend. Flink 1.13 and later restore it.

`statebackend.savepoint.foreign` describes the layouts: `_metadata` version 3, and one file of keyed state and one of
operator state per subtask. Keys get Flink's key groups. The id of an operator is the hash of its uid.

The rows of each state are sorted by Flink's key groups in scratch space. Then the file of a subtask is written key
group by key group, from all states at once. Memory holds one batch per run. `_metadata` is written last.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataOutputView
from snapshots.envelope import registered_names, snapshot_class_name, snapshot_from_bytes, snapshot_to_bytes
from snapshots.errors import StateFormatError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.store.savepoint_directory import release_savepoint_directory, reserved_directory
from statebackend.savepoint.column_codecs import write_column
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.foreign.flink_metadata import MAGIC, operator_id_of
from statebackend.savepoint.foreign.flink_rows import TIMED_BYTES, step_of
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.drafts import Drafts, OperatorDraft, StateDraft
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.rewrite.sorted_rows import Run, fewer_runs, merged_runs
from statebackend.savepoint.rewrite.staged_entries import scratch_space
from statebackend.savepoint.rewrite.state_tasks import (
    CollectTask,
    ProgressLabel,
    StoredState,
    all_runs,
    without_empty_lists,
)
from statebackend.state.descriptors import ELEMENT_ROLE, USER_KEY_ROLE, VALUE_ROLE
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import KeyGroupRange, key_group_range_of_subtask
from statebackend.state.operator_state_descriptors import KEY_ROLE, OperatorStateMode
from statebackend.state.operator_state_handles import OperatorStateMeta, read_slices
from statebackend.state.progress import ProgressListener, no_progress
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.sets import SetSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer

__all__ = ["FlinkKeyPlacement", "write_flink_savepoint"]

Snapshot = TypeSerializerSnapshot[Any]

_WORD: Final = 0xFFFFFFFF
_LAST: Final = 0x80
_END: Final = b"\xff\xff"
_COLLECTIONS: Final = (ListSerializer, MapSerializer, SetSerializer)
_VOID: Final = b"\0"
_BYTES: Final = BytesSerializer()
_INT: Final = struct.Struct(">i")
_MODES: Final = {
    OperatorStateMode.SPLIT: (0, "SPLIT_DISTRIBUTE"),
    OperatorStateMode.UNION: (1, "UNION"),
    OperatorStateMode.BROADCAST: (2, "BROADCAST"),
}


def _text_hash(text: str) -> int:
    units = text.encode() if text.isascii() else memoryview(text.encode("utf-16-be", "surrogatepass")).cast("B")
    found = 0
    if text.isascii():
        for unit in units:
            found = found * 31 + unit & _WORD
        return found
    for high, low in zip(units[::2], units[1::2], strict=True):
        found = found * 31 + (high << 8 | low) & _WORD
    return found


_HASHES: Final[Mapping[str, Callable[[Any], int]]] = {
    "string": _text_hash,
    "bigint": lambda number: (number ^ (number >> 32)) & _WORD,
    "int": lambda number: number & _WORD,
    "smallint": lambda number: number & _WORD,
    "tinyint": lambda number: number & _WORD,
    "boolean": lambda flag: 1231 if flag else 1237,
}
"""The hash codes of Java by key type."""


def _mixed(code: int) -> int:
    """Return Flink's hash of a hash code: the steps of MurmurHash3 x86 32 (Appleby) for one word."""
    code = code * 0xCC9E2D51 & _WORD
    code = (code << 15 | code >> 17) * 0x1B873593 & _WORD
    code = (code << 13 | code >> 19) & _WORD
    code = (code * 5 + 0xE6546B64 & _WORD) ^ 4
    code = (code ^ code >> 16) * 0x85EBCA6B & _WORD
    code = (code ^ code >> 13) * 0xC2B2AE35 & _WORD
    code ^= code >> 16
    # The absolute value of a signed number. The smallest number has none and becomes 0.
    return code if code < 1 << 31 else (1 << 32) - code & 0x7FFFFFFF


class FlinkKeyPlacement(KeyPlacement):
    """Maps keys to the key groups of Flink. Raises `PlanError` for key columns that Flink does not support."""

    def __init__(self, columns: Sequence[str], max_parallelism: int) -> None:
        super().__init__(columns, max_parallelism)
        unknown = [column for column in columns if column not in _HASHES]
        if unknown:
            raise PlanError(
                f"a key of type {', '.join(unknown)} is not a key of Flink; change the keys first (change_keys)"
            )
        hashes = [_HASHES[column] for column in columns]
        self._column_serializer = None
        if len(hashes) == 1:
            [hash_of] = hashes
            self._hash = lambda key: _mixed(hash_of(key)) % max_parallelism
            return

        def group_of(key: Any) -> int:
            code = 0
            for hash_part, part in zip(hashes, key, strict=True):
                code = code * 31 + hash_part(part) & _WORD
            return _mixed(code) % max_parallelism

        self._hash = group_of

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return FlinkKeyPlacement, (self._columns, self._max_parallelism)


@frozen
class _File:
    """A file of state, by its name in the savepoint."""

    name: str
    size_bytes: int

    def write_handle(self, out: DataOutputView) -> None:
        out.write_unsigned_byte(6)
        out.write_utf(self.name)
        out.write_long(self.size_bytes)


def write_flink_savepoint(
    source: RestoredState,
    uri: str | os.PathLike[str],
    *,
    scratch_directory: str | None = None,
    progress: ProgressListener = no_progress,
) -> Mapping[str, Mapping[str, int]]:
    """Write the state as a canonical Flink savepoint. If this fails, the target is emptied.

    Args:
        source: The savepoint or checkpoint, which is not changed.
        uri: The target directory, absent or empty.
        scratch_directory: The directory for sorting. It needs space for all rows. Default: the system's temporary one.
        progress: Receives progress.

    Returns:
        The rows of each state by operator uid.

    Raises:
        PlanError: A state has a type that Flink does not have. The message lists all such states.
        SavepointExistsError: The target is not empty.
        StorageError: The target cannot be written.
    """
    with reserved_directory(uri, ["flink-*"]) as target, scratch_space(scratch_directory) as scratch:
        export = _Export(source, target, scratch, progress)
        data = export.metadata()
        target.write_file("_metadata", data)
        release_savepoint_directory(target)
    return export.rows


class _Export:
    def __init__(
        self, source: RestoredState, target: CheckpointFileSystem, scratch: str, progress: ProgressListener
    ) -> None:
        self._source = source
        self._target = target
        self._scratch = scratch
        self._progress = progress
        self._max_parallelism = source.max_parallelism
        self.rows: dict[str, dict[str, int]] = {}

    def metadata(self) -> bytes:
        """Write all files and return the content of `_metadata`."""
        self._check_complete()
        drafts = Drafts(self._source)
        opened = [drafts.opened(uid) for uid in tuple(drafts.operators)]
        operators = [draft for draft in opened if draft.states or draft.operator_states]
        problems = [f"operator {draft.uid!r}: {problem}" for draft in operators for problem in _problems(draft)]
        if problems:
            raise PlanError(
                "Flink cannot read this state; nothing was written:\n"
                + "\n".join(problems)
                + "\nConvert it (change_values), or leave it out (remove_state), with statebackend rewrite"
            )
        out = DataOutputView()
        out.write(MAGIC)
        out.write_int(3)
        out.write_long(max(1, self._source.metadata.checkpoint_id))
        out.write_int(0)
        out.write_int(len(operators))
        for draft in operators:
            self._write_operator(draft, out)
        return out.to_bytes()

    def _check_complete(self) -> None:
        """Raise `PlanError` for records and output that a savepoint of Flink cannot hold."""
        metadata = self._source.metadata
        for operator in metadata.operators:
            for index, subtask in enumerate(operator.subtasks):
                if subtask.has_in_flight_records:
                    raise PlanError(
                        f"subtask {index} of operator {operator.uid!r} has records in flight, which would be lost; "
                        f"nothing was written. Take a savepoint, or a checkpoint with aligned barriers, and export that"
                    )
        if metadata.sink_committables:
            raise PlanError(
                f"sinks of the checkpoint {metadata.checkpoint_id} have output to commit "
                f"({', '.join(sorted(metadata.sink_committables))}), which would be lost; nothing was written. Take a "
                f"savepoint, and export that"
            )

    def _write_operator(self, draft: OperatorDraft, out: DataOutputView) -> None:
        stored = self._source.operator(draft.uid)
        assert stored is not None
        self.rows[draft.uid] = {}
        parallelism = min(max(1, stored.parallelism), self._max_parallelism)
        is_id = re.fullmatch("[0-9a-f]{32}", draft.uid)
        out.write(bytes.fromhex(draft.uid if is_id else operator_id_of(draft.uid)))
        out.write_int(parallelism)
        out.write_int(self._max_parallelism)
        out.write_unsigned_byte(0)
        out.write_int(parallelism)
        runs = [self._sorted(draft, state) for state in draft.states.values()]
        for index in range(parallelism):
            out.write_int(index)
            self._write_operator_state(draft.uid, index, out)
            out.write_int(0)
            groups = key_group_range_of_subtask(index, parallelism, self._max_parallelism)
            self._write_keyed_state(draft, runs, groups, out)
            # Raw keyed state, and records in channels.
            out.write_unsigned_byte(0)
            out.write_int(0)
            out.write_int(0)

    def _sorted(self, draft: OperatorDraft, state: StateDraft) -> tuple[Run, ...]:
        placement = FlinkKeyPlacement(draft.key_columns, self._max_parallelism)
        schema, [stored] = state.schema, state.stored
        tasks = [
            CollectTask(
                StoredState(
                    handle.handle,
                    stored.state_name,
                    self._source.file_system,
                    self._max_parallelism,
                    schema,
                    joins_chunks=True,
                ),
                schema,
                placement,
                self._scratch,
                ProgressLabel(draft.uid, schema.name, index),
            )
            for index, handle in enumerate(self._source.keyed_handles(draft.uid))
        ]
        collected = [task.run(self._progress) for task in tasks]
        self.rows[draft.uid][schema.name] = sum(one.rows for one in collected)
        return fewer_runs(all_runs(collected), self._scratch)

    # Keyed state.

    def _write_keyed_state(
        self, draft: OperatorDraft, runs: Sequence[tuple[Run, ...]], groups: KeyGroupRange, out: DataOutputView
    ) -> None:
        if not draft.states:
            out.write_unsigned_byte(0)
            return
        schemas = [state.schema for state in draft.states.values()]
        path = os.path.join(self._scratch, f"flink-{uuid.uuid4().hex}")
        with open(path, "xb") as file:
            file.write(_keyed_header(draft, schemas))
            offsets = self._write_groups(schemas, runs, groups, file)
        stored = self._stored(path)
        out.write_unsigned_byte(7)
        out.write_int(groups.start)
        out.write_int(len(offsets))
        for offset in offsets:
            out.write_long(offset)
        stored.write_handle(out)

    def _write_groups(
        self, schemas: Sequence[EntrySchema], runs: Sequence[tuple[Run, ...]], groups: KeyGroupRange, file: IO[bytes]
    ) -> list[int]:
        """Write the key groups and return their offsets. The offset of an empty key group is 0."""
        writers = [
            _StateEntries(number, schema, merged_runs(own, groups), self._max_parallelism)
            for number, (schema, own) in enumerate(zip(schemas, runs, strict=True))
        ]
        offsets = []
        for key_group in range(groups.start, groups.end + 1):
            start = file.tell()
            for writer in writers:
                writer.write_group(key_group, file)
            is_empty = file.tell() == start
            offsets.append(0 if is_empty else start)
            if not is_empty:
                file.write(_END)
        return offsets

    # Operator state.

    def _write_operator_state(self, uid: str, index: int, out: DataOutputView) -> None:
        handle = self._source.operator_state_handles(uid)[index]
        if not handle.states:
            out.write_int(0)
            return
        out.write_int(1)
        header, body = DataOutputView(), DataOutputView()
        header.write_int(5)
        for is_broadcast in (False, True):
            own = [one for one in handle.states if (one.mode is OperatorStateMode.BROADCAST) is is_broadcast]
            header.write_short(len(own))
            for state in own:
                _write_operator_meta(state, header)
        start = len(header.to_bytes())
        out.write_unsigned_byte(4)
        out.write_int(len(handle.states))
        for state in handle.states:
            offsets = self._write_elements(state, body)
            self.rows[uid][state.name] = self.rows[uid].get(state.name, 0) + state.row_count
            out.write_utf(state.name)
            out.write_unsigned_byte(_MODES[state.mode][0])
            out.write_int(len(offsets))
            for offset in offsets:
                out.write_long(start + offset)
        path = os.path.join(self._scratch, f"flink-{uuid.uuid4().hex}")
        with open(path, "xb") as file:
            file.write(header.to_bytes() + body.to_bytes())
        self._stored(path).write_handle(out)

    def _write_elements(self, state: OperatorStateMeta, out: DataOutputView) -> list[int]:
        rows = [row for part in state.parts for row in read_slices(self._source.file_system, part.slices)]
        if state.mode is not OperatorStateMode.BROADCAST:
            offsets = []
            for _, value in rows:
                offsets.append(out.position)
                out.write(value or b"")
            return offsets
        start = out.position
        out.write_int(len(rows))
        for key, value in rows:
            if key is None or value is None:
                raise SavepointError(f"operator state {state.name!r} has the value None, which Flink cannot store")
            out.write(key)
            out.write(value)
        return [start]

    def _stored(self, path: str) -> _File:
        size_bytes = os.path.getsize(path)
        name = os.path.basename(path)
        self._target.upload(path, name)
        os.unlink(path)
        return _File(name, size_bytes)


def _problems(draft: OperatorDraft) -> Iterator[str]:
    """Yield the reasons why Flink could not read the state of an operator."""
    try:
        if draft.states:
            FlinkKeyPlacement(draft.key_columns, 1)
    except (PlanError, StateRestoreError) as error:
        yield str(error)
    for state in draft.states.values():
        try:
            state.check_has_keys()
            state.schema.check_known()
        except (PlanError, StateFormatError) as error:
            yield f"state {state.schema.name!r}: {error}"
            continue
        meta = state.schema.meta()
        roles = {**meta.role_snapshots, "namespace": meta.namespace_snapshot}
        yield from _unknown_types(state.schema.name, {role: snapshot_to_bytes(one) for role, one in roles.items()})
    for operator_state in draft.operator_states.values():
        for envelopes in operator_state.schemas:
            yield from _unknown_types(operator_state.name, envelopes)
            if dict(envelopes) != dict(operator_state.schemas[0]):
                yield f"operator state {operator_state.name!r} has elements of two schemas"


def _unknown_types(state_name: str, envelopes: Mapping[str, bytes]) -> Iterator[str]:
    own = [name for name in registered_names() if not name.startswith("org.apache.flink.")]
    for role, envelope in envelopes.items():
        found = [name for name in own if len(name).to_bytes(2, "big") + name.encode() in envelope]
        if not found:
            continue
        paths: dict[str, str] = {}
        with contextlib.suppress(StateFormatError):
            for path, name in _names_inside(snapshot_from_bytes(envelope).restore_serializer(), ""):
                paths.setdefault(name, path)
        for name in found:
            part = "" if role in (VALUE_ROLE, ELEMENT_ROLE) else role.replace("_", " ")
            places = ", ".join(filter(None, (part, paths.get(name))))
            yield f"state {state_name!r} has a type that Flink does not have: {name}{places and f' at {places}'}"


def _names_inside(serializer: TypeSerializer[Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield path and snapshot name of a serializer and of all inside it."""
    snapshot = serializer.snapshot_configuration()
    yield path, snapshot_class_name(type(snapshot))
    if isinstance(snapshot, CompositeTypeSerializerSnapshot):
        parts = [(snapshot.nested_path(n), one) for n, one in enumerate(snapshot.nested_serializers(serializer))]
    else:
        parts = [(f".{one.name}", one.serializer) for one in getattr(serializer, "fields", ())]
    for step, part in parts:
        yield from _names_inside(part, path + step)


# Headers.


def _write_meta(
    name: str, type_code: int, options: Mapping[str, str], roles: Mapping[str, bytes], out: DataOutputView
) -> None:
    out.write_utf(name)
    out.write_int(type_code)
    out.write_int(len(options))
    for option, value in options.items():
        out.write_utf(option)
        out.write_utf(value)
    out.write_int(len(roles))
    for role, envelope in roles.items():
        out.write_utf(role)
        out.write_int(2)
        out.write(envelope)


def _keyed_header(draft: OperatorDraft, schemas: Sequence[EntrySchema]) -> bytes:
    assert draft.key_serializer is not None
    out = DataOutputView()
    out.write_int(6)
    out.write_boolean(False)
    out.write_int(2)
    out.write(snapshot_to_bytes(draft.key_serializer.snapshot_configuration()))
    out.write_short(len(schemas))
    for schema in schemas:
        roles = {"VALUE_SERIALIZER": snapshot_to_bytes(_value_snapshot(schema))}
        if schema.is_queue:
            _write_meta(schema.name, 3, {}, roles, out)
            continue
        roles["NAMESPACE_SERIALIZER"] = snapshot_to_bytes(schema.namespace_serializer.snapshot_configuration())
        _write_meta(schema.name, 0, {"KEYED_STATE_TYPE": schema.kind.name.upper()}, roles, out)
    return out.to_bytes()


def _value_snapshot(schema: EntrySchema) -> Snapshot:
    serializers = schema.serializers
    if schema.is_list:
        return ListSerializer(serializers[ELEMENT_ROLE]).snapshot_configuration()
    if schema.is_map:
        value = serializers[VALUE_ROLE]
        inner = _plain_value(value)
        if inner is not None:
            value = TtlSerializer(inner)
        return MapSerializer(serializers[USER_KEY_ROLE], value).snapshot_configuration()
    [serializer] = serializers.values()
    return serializer.snapshot_configuration()


def _plain_value(value: TypeSerializer[Any]) -> TypeSerializer[Any] | None:
    """Return the type in Flink of the values of a map with TTL, which are nullable here. None for all other values.

    Collections that Flink infers are nullable there too, and so are their elements.
    """
    if not isinstance(value, TtlSerializer) or not isinstance(value.value_serializer, NullableSerializer):
        return None
    inner = value.value_serializer.inner
    collection: Any = inner.snapshot_configuration()
    is_inferred = isinstance(inner, _COLLECTIONS) and isinstance(
        collection.nested_serializers(inner)[0], NullableSerializer
    )
    return None if is_inferred else inner


def _map_values(schema: EntrySchema) -> Callable[[pa.Array], pa.Array] | None:
    """Return the function that converts stored values of a map to Flink's form; None if they are the same."""
    value = schema.serializers[VALUE_ROLE] if schema.is_map else None
    if isinstance(value, NullableSerializer):
        # Flink marks null in the map, and again in the value.
        return lambda values: pc.binary_join_element_wise(b"\0", values, b"")
    inner = None if value is None else _plain_value(value)
    if inner is None:
        return None
    null = inner.to_bytes(None) if inner.accepts_none else None

    def without_flag(values: pa.Array) -> pa.Array:
        is_null = pc.not_equal(pc.binary_slice(values, TIMED_BYTES, TIMED_BYTES + 1), b"\0")
        if null is None and pc.any(is_null).as_py():
            raise SavepointError(
                f"state {schema.name!r} is a map with a time-to-live and has the value None, which Flink cannot store "
                f"there. Remove such entries: keep_entries in a plan of statebackend rewrite"
            )
        plain = pc.binary_replace_slice(values, TIMED_BYTES, TIMED_BYTES + 1, b"")
        return plain if null is None else pc.if_else(is_null, pc.binary_join_element_wise(plain, null, b""), plain)

    return without_flag


def _write_operator_meta(state: OperatorStateMeta, out: DataOutputView) -> None:
    envelopes = state.parts[0].envelopes
    # The envelopes have Flink's format. Reading them checks this.
    for envelope in envelopes.values():
        snapshot_from_bytes(envelope)
    options = {"OPERATOR_STATE_DISTRIBUTION_MODE": _MODES[state.mode][1]}
    if state.mode is OperatorStateMode.BROADCAST:
        roles = {"KEY_SERIALIZER": envelopes[KEY_ROLE], "VALUE_SERIALIZER": envelopes[VALUE_ROLE]}
        _write_meta(state.name, 2, options, roles, out)
        return
    _write_meta(state.name, 1, options, {"VALUE_SERIALIZER": envelopes[ELEMENT_ROLE]}, out)


# Entries.


class _StateEntries:
    """Writes the sorted rows of one state, key group by key group."""

    def __init__(self, number: int, schema: EntrySchema, rows: Iterator[pa.RecordBatch], max_parallelism: int) -> None:
        self._number = number
        self._schema = schema
        self._prefix_bytes = 1 if max_parallelism <= 128 else 2
        self._has_lengths = schema.key_serializer.length < 0 and schema.namespace_serializer.length < 0
        self._rows = (batch for batch in without_empty_lists(schema, rows) if batch.num_rows)
        self._next = next(self._rows, None)
        self._split = _list_splitter(schema)
        self._map_values = _map_values(schema)

    def write_group(self, key_group: int, file: IO[bytes]) -> None:
        """Write the number of the state and the entries of a key group. Writes nothing without entries."""
        last = b""
        for rows in self._of_group(key_group):
            entries = self._entries(rows, key_group.to_bytes(self._prefix_bytes, "big"))
            if not last:
                file.write(self._number.to_bytes(2, "big"))
            file.write(last)
            file.write(b"".join(entries[:-1].to_pylist()))
            last = entries[-1].as_py()
        if last:
            # A flag marks the last entry.
            file.write(last[:4] + bytes((last[4] | _LAST,)) + last[5:])

    def _of_group(self, key_group: int) -> Iterator[pa.RecordBatch]:
        while self._next is not None:
            rows = self._next
            groups = rows.column("key_group")
            if groups[0].as_py() != key_group:
                return
            end = pc.sum(pc.equal(groups, key_group)).as_py()
            self._next = rows.slice(end) if end < rows.num_rows else next(self._rows, None)
            yield rows.slice(0, end)

    def _entries(self, rows: pa.RecordBatch, prefix: bytes) -> pa.Array:
        schema, keys = self._schema, rows.column("key")
        parts = [pa.scalar(prefix, pa.binary()), keys]
        if schema.is_queue:
            values = pa.repeat(pa.scalar(b"", pa.binary()), len(keys))
        else:
            spaces = rows.column("namespace") if schema.has_namespaces else pa.scalar(_VOID, pa.binary())
            parts += [_lengths(keys), spaces, _lengths(spaces)] if self._has_lengths else [spaces]
            if schema.is_map:
                parts.append(rows.column("user_key"))
            values = rows.column("value")
            if self._split is not None:
                values = pa.array(map(self._split, values.to_pylist()), pa.binary())
            elif self._map_values is not None:
                values = self._map_values(values)
        addresses = pc.binary_join_element_wise(*parts, b"")
        return pc.binary_join_element_wise(*(write_column(_BYTES, one) for one in (addresses, values)), b"")


def _lengths(column: pa.Array) -> pa.Array:
    """Return the lengths as Flink writes them after a key or namespace: little-endian, as few bytes as possible."""
    lengths = pc.binary_length(column).to_pylist()
    return pa.array([one.to_bytes(max(1, (one.bit_length() + 7) // 8), "little") for one in lengths], pa.binary())


def _list_splitter(schema: EntrySchema) -> Callable[[bytes], bytes] | None:
    """Return the function that converts a stored list to Flink's form: ``,`` between elements, and no count."""
    if not schema.is_list:
        return None
    step = step_of(schema.serializers[ELEMENT_ROLE])

    def split(value: bytes) -> bytes:
        position, elements = 4, []
        for _ in range(_INT.unpack_from(value)[0]):
            end = step(value, position)
            elements.append(value[position:end])
            position = end
        return b",".join(elements)

    return split
