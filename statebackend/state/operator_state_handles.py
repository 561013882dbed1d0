"""Operator state in a snapshot: its metadata, and its rows in Parquet.

A state consists of *parts*, one per schema, and a part of *slices*, ranges of rows of files. A rescale assigns slices
and neither reads nor copies rows. A part keeps the snapshots of its serializers as bytes, so that an unregistered state
is copied although this process does not know its serializers.

    meta  := "SBOS" i32(version 1) i32(states) state*
    state := UTF(name) UTF(mode) i32(parts) part*
    part  := i32(roles) (UTF(role) i32(n) envelope)* i32(slices) slice* i32(0 or 16) digest
    slice := i32(number of a file) i64(first row) i64(end row, exclusive)

The digest covers the rows, if it is known. It shows that referenced state equals rewritten state. The first file
of the handle has the number 0. Both reader and writer check these invariants: names are unique, modes are known, the
roles are those of the mode, a state has a part, a slice has rows, and each file of the handle is referenced.

The rows are stored in Parquet:

    row := key binary or null, value binary or null

A list has one row per element, in order, with a null key. A broadcast state has one row per entry, in the order of its
map; a null value is the value None. The key-value metadata of the file holds
``statebackend.operator_state`` = ``1``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from attrs import field, frozen

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import snapshot_from_bytes, snapshot_to_bytes
from snapshots.errors import StateFormatError
from snapshots.format_versions import read_header, write_header
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle, OpaqueStateHandle
from statebackend.state.errors import StateRestoreError
from statebackend.state.operator_state_descriptors import ROLES, OperatorStateMode
from statebackend.state.parquet_bounds import MAX_ROW_GROUP_ROWS, BoundedParquetFile, check_written
from typeserializers.kernel.type_serializer import TypeSerializer

MAGIC: Final = b"SBOS"
VERSION: Final = 1

DIGEST_BYTES: Final = 16

FORMAT: Final = "operator_state"
"""The format of a handle in a checkpoint; a savepoint has its own."""

MAX_SLICES: Final = 16
"""A state in more slices is rewritten. A union list may contain the rows of a file once per slice."""

_MAX_ROWS_PER_BYTE: Final = 1 << 10
"""A row group takes more than 64 bytes of a file and has at most 65,536 rows."""

_MODES: Final = {mode.value: mode for mode in OperatorStateMode}


@frozen
class FileSlice:
    """The rows ``start`` to ``stop - 1`` of a file."""

    file: FileHandle
    start: int
    stop: int

    @property
    def row_count(self) -> int:
        """The number of rows; at least one."""
        return self.stop - self.start


@frozen
class StatePart:
    """Rows under one schema: the envelopes of the serializers' snapshots by role, and the slices with the rows."""

    envelopes: Mapping[str, bytes] = field(repr=lambda envelopes: "{" + ", ".join(envelopes) + "}")
    slices: tuple[FileSlice, ...] = ()
    digest: bytes | None = field(default=None, eq=False, repr=False)
    """The digest of the rows; None if it is not known, as after a redistribution."""

    @property
    def row_count(self) -> int:
        """The number of rows of all slices."""
        return sum(one.row_count for one in self.slices)

    def snapshot(self, state_name: str, role: str) -> TypeSerializerSnapshot[Any]:
        """Read the snapshot of the serializer of a role; raise `StateRestoreError` if it cannot be read."""
        try:
            return snapshot_from_bytes(self.envelopes[role])
        except StateFormatError as error:
            raise StateRestoreError(
                f"operator state {state_name!r}: the snapshot of its {role} serializer cannot be read: {error}"
            ) from error


@frozen
class OperatorStateMeta:
    """One state of one subtask. A state without rows has a part without slices, which keeps its schema."""

    name: str
    mode: OperatorStateMode
    parts: tuple[StatePart, ...]

    @property
    def row_count(self) -> int:
        """The number of rows of all parts."""
        return sum(part.row_count for part in self.parts)


@frozen
class OperatorStateHandle:
    """All operator state of one subtask at one barrier."""

    states: tuple[OperatorStateMeta, ...] = ()

    @property
    def files(self) -> tuple[FileHandle, ...]:
        """Every referenced file, once, in the order of first mention."""
        return tuple(dict.fromkeys(one.file for state in self.states for part in state.parts for one in part.slices))

    def state(self, name: str) -> OperatorStateMeta | None:
        return next((state for state in self.states if state.name == name), None)


@frozen
class OperatorStateSnapshot:
    """The result of a snapshot: the handle, a digest of changed and unchanged state, and its cost."""

    handle: OperatorStateHandle
    digest: str
    entries_written: int
    bytes_written: int


def envelopes_of(serializers: Mapping[str, TypeSerializer[Any]]) -> dict[str, bytes]:
    """The current snapshots of serializers as envelopes, by role."""
    return {role: snapshot_to_bytes(serializer.snapshot_configuration()) for role, serializer in serializers.items()}


def encode_operator_state(operator: OperatorStateHandle, format_name: str = FORMAT) -> OpaqueStateHandle | None:
    """Encode the operator part of a subtask's state; None if there is no state.

    Raises `StateRestoreError` if the invariants do not hold.
    """
    if not operator.states:
        return None
    files = operator.files
    return OpaqueStateHandle(format_name, _encode(operator, {file: number for number, file in enumerate(files)}), files)


def decode_operator_state(part: OpaqueStateHandle | None) -> OperatorStateHandle:
    """Decode the operator part of a subtask's state. Raises `StateRestoreError` if it is malformed."""
    if part is None:
        return OperatorStateHandle()
    try:
        return _decode(DataInputView(part.meta), part)
    except StateFormatError as error:
        raise StateRestoreError(f"the metadata of operator state cannot be read: {error}") from error


def check_subtask_states(states: Iterable[OperatorStateMeta]) -> None:
    """Raise `StateRestoreError` unless the invariants of one subtask's states hold."""
    names: set[str] = set()
    for state in states:
        _require(state.name not in names, state.name, "appears twice in one handle")
        names.add(state.name)
        _require(bool(state.parts), state.name, "has no part, and so no schema")
        for part in state.parts:
            _require(
                set(part.envelopes) == set(ROLES[state.mode]),
                state.name,
                f"is a {state.mode.value} state with the serializers {', '.join(sorted(part.envelopes)) or 'none'}",
            )
            for one in part.slices:
                _require(0 <= one.start < one.stop, state.name, f"has the rows {one.start} to {one.stop} of a file")
                _require(
                    one.stop <= one.file.size_bytes * _MAX_ROWS_PER_BYTE,
                    state.name,
                    f"refers to row {one.stop} of {one.file.path!r}, which has only {one.file.size_bytes} bytes",
                )
        check_overlaps(state.name, state.parts, MAX_SLICES if state.mode is OperatorStateMode.UNION else 1)


def check_overlaps(state_name: str, parts: Iterable[StatePart], most: int) -> None:
    """Raise `StateRestoreError` if more than ``most`` slices refer to one row."""
    by_file: dict[FileHandle, list[FileSlice]] = {}
    for part in parts:
        for one in part.slices:
            by_file.setdefault(one.file, []).append(one)
    for file, slices in by_file.items():
        if len(slices) <= most:
            continue
        stops: list[int] = []
        for one in sorted(slices, key=lambda one: one.start):
            while stops and stops[0] <= one.start:
                heapq.heappop(stops)
            heapq.heappush(stops, one.stop)
            _require(
                len(stops) <= most,
                state_name,
                f"refers to row {one.start} of {file.path!r} {len(stops)} times: its slices overlap",
            )


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise StateRestoreError(f"operator state {name!r} {message}")


def _encode(operator: OperatorStateHandle, numbers: Mapping[FileHandle, int]) -> bytes:
    check_subtask_states(operator.states)
    out = DataOutputView()
    write_header(out, MAGIC, VERSION)
    out.write_int(len(operator.states))
    for state in operator.states:
        out.write_utf(state.name)
        out.write_utf(state.mode.value)
        out.write_int(len(state.parts))
        for part in state.parts:
            out.write_int(len(part.envelopes))
            for role in ROLES[state.mode]:
                out.write_utf(role)
                out.write_sized_bytes(part.envelopes[role])
            out.write_int(len(part.slices))
            for one in part.slices:
                out.write_int(numbers[one.file])
                out.write_long(one.start)
                out.write_long(one.stop)
            out.write_sized_bytes(part.digest or b"")
    return out.to_bytes()


def _decode(source: DataInputView, part: OpaqueStateHandle) -> OperatorStateHandle:
    read_header(source, MAGIC, VERSION, "operator state")
    files = dict(enumerate(part.files))
    states = tuple(_decode_state(source, files) for _ in range(source.read_count(minimum_item_bytes=16)))
    if source.remaining:
        raise StateRestoreError(f"{source.remaining} bytes follow the metadata of operator state")
    check_subtask_states(states)
    operator = OperatorStateHandle(states)
    if len(operator.files) != len(files) or not states:
        raise StateRestoreError("there are files of operator state that no state refers to")
    return operator


def _decode_state(source: DataInputView, files: Mapping[int, FileHandle]) -> OperatorStateMeta:
    name, mode = source.read_utf(), source.read_utf()
    if mode not in _MODES:
        raise StateRestoreError(f"operator state {name!r} has the unknown mode {mode!r}")
    parts = []
    for _ in range(source.read_count(minimum_item_bytes=8)):
        envelopes = {
            source.read_utf(): source.read_sized_bytes() for _ in range(source.read_count(minimum_item_bytes=6))
        }
        slices = []
        for _ in range(source.read_count(minimum_item_bytes=20)):
            index = source.read_int()
            if index not in files:
                raise StateRestoreError(f"operator state {name!r} refers to file {index}, which is not one of its own")
            slices.append(FileSlice(files[index], source.read_long(), source.read_long()))
        digest = source.read_sized_bytes()
        if len(digest) not in (0, DIGEST_BYTES):
            raise StateRestoreError(f"operator state {name!r} has a digest of {len(digest)} bytes")
        parts.append(StatePart(envelopes, tuple(slices), digest or None))
    return OperatorStateMeta(name, _MODES[mode], tuple(parts))


FORMAT_KEY: Final = b"statebackend.operator_state"
ROWS_FORMAT: Final = b"1"

SCHEMA: Final = pa.schema(
    [pa.field("key", pa.binary()), pa.field("value", pa.binary())], metadata={FORMAT_KEY: ROWS_FORMAT}
)

BATCH_ROWS: Final = MAX_ROW_GROUP_ROWS
"""The limit of rows in a batch and a row group."""

BATCH_BYTES: Final = 16 << 20
"""The limit of bytes of keys and values in a batch; a larger row is a batch by itself."""

OperatorStateRow = tuple["bytes | None", "bytes | None"]
"""Key and value."""


def encoded_rows(rows: Iterable[OperatorStateRow]) -> bytes:
    """Encode rows as a Parquet file."""
    import pyarrow.parquet as pq

    target = pa.BufferOutputStream()
    written: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        target, SCHEMA, compression="zstd", write_statistics=False, metadata_collector=written
    ) as writer:
        for batch in batches(rows):
            keys, values = (pa.array(column, pa.binary()) for column in zip(*batch, strict=True))
            writer.write_batch(pa.record_batch([keys, values], schema=SCHEMA), row_group_size=BATCH_ROWS)
    check_written(written[0])
    data: bytes = target.getvalue().to_pybytes()
    return data


def batches(rows: Iterable[OperatorStateRow]) -> Iterator[list[OperatorStateRow]]:
    """Group rows, in order, into batches that are bounded in rows and bytes."""
    batch: list[OperatorStateRow] = []
    size_bytes = 0
    for row in rows:
        row_bytes = sum(len(column) for column in row if column is not None)
        if batch and (len(batch) == BATCH_ROWS or size_bytes + row_bytes > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(row)
        size_bytes += row_bytes
    if batch:
        yield batch


def read_slice(file_system: CheckpointFileSystem, wanted: FileSlice) -> Iterator[OperatorStateRow]:
    """Read the rows of a slice. The file is read whole and its checksum verified.

    Raises a `CheckpointError` for a missing or damaged file, and `StateRestoreError` if it is not operator state or is
    shorter than the slice. All name the file.
    """
    path = file_system.location(wanted.file.path)
    content = file_system.read_file(wanted.file)
    try:
        with BoundedParquetFile(pa.BufferReader(content)) as file:
            problem = file.format_problem(SCHEMA, "operator state", path)
            if problem is not None:
                raise StateRestoreError(problem)
            if file.metadata.num_rows < wanted.stop:
                raise StateRestoreError(
                    f"{path} has {file.metadata.num_rows} rows, but rows up to {wanted.stop} are referred to"
                )
            position = 0
            for row_group in range(file.metadata.num_row_groups):
                rows = file.rows_of_group(row_group)
                if position + rows <= wanted.start or position >= wanted.stop:
                    position += rows
                    continue
                for batch in file.batches(row_group, SCHEMA.names, BATCH_ROWS, BATCH_BYTES):
                    first, last = max(wanted.start - position, 0), min(wanted.stop - position, batch.num_rows)
                    position += batch.num_rows
                    if first < last:
                        selected = batch.slice(first, last - first)
                        yield from zip(selected.column(0).to_pylist(), selected.column(1).to_pylist(), strict=True)
    except pa.ArrowMemoryError:
        # The file is not damaged.
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StateRestoreError(f"{path} cannot be read as operator state: {error}") from error


def read_slices(file_system: CheckpointFileSystem, slices: Iterable[FileSlice]) -> Iterator[OperatorStateRow]:
    """The rows of the slices, in order."""
    for wanted in slices:
        yield from read_slice(file_system, wanted)
