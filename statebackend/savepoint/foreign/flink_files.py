"""Presents a Flink savepoint as a savepoint of Statebackend. Its state is converted to canonical rows when it is read.

`open_flink_savepoint` reads `_metadata` and the header of each state file, and checks that all files exist. The result
is a `RestoredState`, so tables, comparison, export and the compatibility check work unchanged. Its file system,
`FlinkFiles`, creates the rows. It is pickled as its URI, for the tasks of Spark.

An operator has its uid, or its id if the uid is not stored (`_metadata` before version 5). Keys keep Flink's key
groups. A subtask without keyed state, such as a finished one, has its key groups without entries.

**Location of files.** A savepoint refers to its files by paths relative to its directory. A checkpoint uses absolute
paths: in its directory, and in the directories `shared` and `taskowned` next to it. If a path is in another directory,
``moved`` maps this directory to its new location. Without that, the file is expected at the same path relative to the
opened directory. No other file is read.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
from attrs import evolve, frozen

from snapshots.data_views import DataInputView
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import MalformedDataError, StateFormatError, UnresolvableSerializerError, printable
from statebackend.checkpoint.errors import (
    CorruptFileError,
    InvariantViolationError,
    MissingFileError,
    UnsafePathError,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import parent_and_name
from statebackend.checkpoint.invariants import checked_relative_path
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import (
    FileHandle,
    KeyedStateHandle,
    OpaqueStateHandle,
    OperatorState,
    SubtaskState,
)
from statebackend.savepoint.errors import ForeignFormatError, naming_position
from statebackend.savepoint.foreign.flink_headers import (
    KeyedHeader,
    OperatorHeader,
    Snapshot,
    StoredState,
    read_keyed_header,
    read_operator_header,
)
from statebackend.savepoint.foreign.flink_metadata import (
    MAGIC,
    FlinkMetadata,
    FlinkOperator,
    IncrementalHandle,
    KeyGroupsHandle,
    OperatorHandle,
    StreamHandle,
    SubtaskHandles,
    operator_id_of,
    read_flink_metadata,
)
from statebackend.savepoint.foreign.flink_rows import (
    CanonicalGroups,
    GroupReader,
    HeapGroups,
    RowMaker,
    raw_timers,
    sorted_rows,
    step_of,
    timer_reader,
    with_flags,
    with_nullable_values,
)
from statebackend.savepoint.foreign.rocksdb_files import ForeignDatabase, is_needed
from statebackend.savepoint.foreign.snappy_frames import decompress_frames
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.canonical import BATCH_BYTES, BATCH_ROWS, CanonicalBatch
from statebackend.state.descriptors import ELEMENT_ROLE, VALUE_ROLE
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.operator_state_descriptors import KEY_ROLE, OperatorStateMode
from statebackend.state.operator_state_handles import (
    FileSlice,
    OperatorStateMeta,
    OperatorStateRow,
    StatePart,
    encode_operator_state,
    encoded_rows,
)
from statebackend.state.operator_state_handles import OperatorStateHandle as OwnOperatorState
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.private_directory import temporary_directory
from statebackend.state.state_meta import CANONICAL_BACKEND, KeyedStateMeta, StateFile, StateMeta, encode_meta
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializerSnapshot

__all__ = ["FlinkFiles", "is_flink_metadata", "open_flink_savepoint", "with_uids"]

METADATA_FILE_NAME: Final = "_metadata"
MAX_HEADER_BYTES: Final = 64 << 20
"""The maximum size of the header of a state file."""

_OPEN_DATABASES: Final = 4
"""The maximum number of idle open databases."""

_Header = TypeVar("_Header", KeyedHeader, OperatorHeader)
T = TypeVar("T")

_NO_CHECKSUM: Final = "xxh3:" + 32 * "0"
"""Flink stores no checksums of files."""

_CHECKPOINT_DIRECTORY: Final = re.compile(r"chk-\d+")
_BESIDE_CHECKPOINTS: Final = ("shared", "taskowned")
_MODES: Final = {
    "SPLIT_DISTRIBUTE": OperatorStateMode.SPLIT,
    "UNION": OperatorStateMode.UNION,
    "BROADCAST": OperatorStateMode.BROADCAST,
}


def is_flink_metadata(file_system: CheckpointFileSystem) -> bool:
    """Return whether the `_metadata` of the directory is Flink's, by its magic number."""
    with file_system.open_input(METADATA_FILE_NAME) as file:
        return bool(file.read(len(MAGIC)) == MAGIC)


def open_flink_savepoint(uri: str, moved: Mapping[str, str] | None = None) -> RestoredState:
    """Open a Flink savepoint or retained checkpoint.

    Args:
        uri: The directory that contains `_metadata`.
        moved: Directories in absolute paths of `_metadata`, with their new locations.

    Raises:
        ForeignFormatError: A file is damaged, of an unknown version, or outside of the known directories.
        UnsupportedForeignStateError: There is unsupported state.
        MissingFileError: A file is missing.
        CorruptFileError: A file has the wrong size.
    """
    files = _flink_files(uri, moved or {})
    return RestoredState(files.checkpoint_metadata, files)


def with_uids(restored: RestoredState, uids: Iterable[str]) -> RestoredState:
    """Return the state with operator ids replaced by these uids, if the Flink savepoint stores only ids."""
    if not isinstance(restored.file_system, FlinkFiles):
        return restored
    by_id = {operator_id_of(uid): uid for uid in uids}
    operators = tuple(evolve(one, uid=by_id.get(one.uid, one.uid)) for one in restored.metadata.operators)
    return evolve(restored, metadata=evolve(restored.metadata, operators=operators))


def _flink_files(uri: str, moved: Mapping[str, str]) -> FlinkFiles:
    files = FlinkFiles.from_uri(uri)
    assert isinstance(files, FlinkFiles)
    files.moved = dict(moved)
    return files


@frozen
class _Region:
    """Bytes of state: their file, and their offset in it."""

    file_system: CheckpointFileSystem
    path: str
    start: int
    size_bytes: int

    @property
    def location(self) -> str:
        return self.file_system.location(self.path)

    def check_present(self) -> None:
        """Raise `MissingFileError` if the file does not exist, `CorruptFileError` if it has the wrong size."""
        try:
            found = self.file_system.size(self.path)
        except MissingFileError as error:
            raise MissingFileError(
                f"{self.location} is missing. If the files of the savepoint were moved, say where they are (moved=...; "
                f"on the command line --moved OLD=NEW)"
            ) from error
        if found < self.start + self.size_bytes or (self.path != METADATA_FILE_NAME and found != self.size_bytes):
            raise CorruptFileError(f"{self.location} has {found} bytes; {self.size_bytes} are expected")

    @contextmanager
    def opened(self) -> Iterator[Callable[[int, int], bytes]]:
        """Open the file and yield a function that reads a range of the region."""
        self.check_present()
        with self.file_system.open_input(self.path) as file:

            def read(first: int, stop: int) -> bytes:
                if not 0 <= first <= stop <= self.size_bytes:
                    raise ForeignFormatError(
                        f"{self.location}: bytes {self.start + first} to {self.start + stop} are outside of the state, "
                        f"which has {self.size_bytes} bytes from {self.start} on"
                    )
                file.seek(self.start + first)
                data: bytes = file.read(stop - first)
                if len(data) != stop - first:
                    raise ForeignFormatError(f"{self.location}, byte {self.start + first}: the file is truncated")
                return data

            yield read


@frozen
class _Part:
    """The handles of one subtask and their headers."""

    handles: SubtaskHandles
    key_groups: KeyGroupRange
    key_snapshot: Snapshot | None = None
    header: KeyedHeader | None = None
    metas: tuple[StateMeta, ...] = ()
    timers: tuple[tuple[str, Snapshot], ...] = ()


class FlinkFiles(CheckpointFileSystem):
    """The files of a Flink savepoint, with their state as canonical rows."""

    moved: Mapping[str, str] = MappingProxyType({})
    known: Sequence[TypeSerializer[Any]] = ()
    """Serializers of the program, whose classes replace generated ones."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _flink_files, (self._whole_uri, dict(self.moved))

    # The content of the directory.

    @cached_property
    def _flink(self) -> FlinkMetadata:
        return read_flink_metadata(self.read_file(METADATA_FILE_NAME), self.location(METADATA_FILE_NAME))

    @cached_property
    def _regions(self) -> dict[str, _Region]:
        """The bytes of state by the paths in the handles of this file system."""
        return {}

    @cached_property
    def _elements(self) -> dict[str, _Elements]:
        """The rows of operator state by the paths of their virtual files."""
        return {}

    @cached_property
    def _parts(self) -> dict[str, _Part]:
        """The keyed state of each subtask by its state id."""
        return {}

    @cached_property
    def _groups(self) -> dict[str, CanonicalGroups | HeapGroups]:
        """The places of states in key groups, by state id."""
        return {}

    @cached_property
    def checkpoint_metadata(self) -> CheckpointMetadata:
        """Return the metadata in the form of Statebackend. Raises as `open_flink_savepoint`."""
        location = self.location(METADATA_FILE_NAME)
        is_checkpoint = _CHECKPOINT_DIRECTORY.fullmatch(self._name) is not None
        try:
            operators = tuple(map(self._operator_state, self._flink.operators))
            return CheckpointMetadata(
                checkpoint_id=self._flink.checkpoint_id,
                kind=CheckpointKind.CHECKPOINT if is_checkpoint else CheckpointKind.SAVEPOINT,
                job_id="flink",
                job_name="flink",
                timestamp_ms=self._modified_ms(),
                max_parallelism=max((operator.max_parallelism for operator in operators), default=1),
                operators=operators,
                properties={"flink.metadata-version": str(self._flink.version)},
            )
        except InvariantViolationError as error:
            raise ForeignFormatError(f"{location}: {error}") from error

    def _read_headers(self) -> None:
        """Read the headers if needed. An unpickled object has not read them yet."""
        _ = self.checkpoint_metadata

    @property
    def _name(self) -> str:
        return parent_and_name(self._uri)[1]

    def _modified_ms(self) -> int:
        path = self.local_path(METADATA_FILE_NAME)
        return 0 if path is None else max(0, int(os.stat(path).st_mtime * 1000))

    def _operator_state(self, operator: FlinkOperator) -> OperatorState:
        uid = operator.uid or operator.operator_id
        by_index = {subtask.index: subtask for subtask in operator.subtasks}
        parts = [
            self._part(uid, operator, by_index.get(index, SubtaskHandles(index)))
            for index in range(operator.parallelism)
        ]
        key_snapshot = next((part.key_snapshot for part in parts if part.key_snapshot is not None), None)
        subtasks = []
        for part in parts:
            keyed = None if key_snapshot is None else self._keyed_handle(operator, part, key_snapshot)
            subtasks.append(SubtaskState(keyed, self._operator_part(operator, part.handles)))
        return OperatorState(uid, operator.name or uid, operator.max_parallelism, tuple(subtasks))

    def _part(self, uid: str, operator: FlinkOperator, handles: SubtaskHandles) -> _Part:
        count, index = operator.max_parallelism, handles.index
        # Flink assigns key groups to subtasks in this way.
        first = (index * count + operator.parallelism - 1) // operator.parallelism
        last = ((index + 1) * count - 1) // operator.parallelism
        part = _Part(handles, KeyGroupRange(first, last))
        for handle in (handles.keyed, handles.raw_keyed):
            if handle is not None and (handle.first_key_group, handle.key_group_count) != (first, last - first + 1):
                raise ForeignFormatError(
                    f"{self.location(METADATA_FILE_NAME)}: operator {printable(uid)}, subtask {index} has "
                    f"{handle.key_group_count} key groups from {handle.first_key_group} on; it owns {first} to {last}"
                )
        if handles.keyed is not None:
            header = self._keyed_header(handles.keyed)
            keyed = handles.keyed
            if isinstance(keyed, KeyGroupsHandle) and not keyed.is_canonical and self._is_canonical(keyed, header):
                handles = evolve(handles, keyed=evolve(keyed, is_canonical=True))
            part = evolve(part, handles=handles, header=header, key_snapshot=header.key_snapshot)
        if handles.raw_keyed is not None:
            timers = self._raw_timer_states(handles.raw_keyed)
            key_snapshot = part.key_snapshot
            if timers and key_snapshot is None:
                key_snapshot = timers[0][1].nested_snapshots[0]  # type: ignore[attr-defined]
            # Full checkpoints of RocksDB up to Flink 1.15 have heap timers in their keyed state too.
            queues = {state.name for state in part.header.states} if part.header is not None else set()
            timers = tuple((name, snapshot) for name, snapshot in timers if name not in queues)
            part = evolve(part, timers=timers, key_snapshot=key_snapshot)
        return part

    def _keyed_handle(self, operator: FlinkOperator, part: _Part, key_snapshot: Snapshot) -> KeyedStateHandle:
        handles = part.handles
        streams: list[StreamHandle] = []
        if isinstance(handles.keyed, IncrementalHandle):
            streams += [handles.keyed.meta, *(stream for _, stream in handles.keyed.files)]
        elif handles.keyed is not None:
            streams.append(handles.keyed.stream)
        if handles.raw_keyed is not None:
            streams.append(handles.raw_keyed.stream)
        files = tuple(self._file(stream) for stream in streams)
        files = tuple(dict.fromkeys(files))
        state_id = f"{operator.operator_id}-{handles.index}"
        # The files of a database belong to all of its states, and so to none of them.
        references = (StateFile(0, state_id),) if files else ()
        metas: list[StateMeta] = []
        if part.header is not None:
            with self._naming(streams[0]):
                metas += [state.meta(references) for state in part.header.states]
        part = evolve(part, metas=tuple(metas))
        self._parts[state_id] = part
        metas = list(map(with_nullable_values, metas))
        metas += [_queue(name, snapshot, (StateFile(len(files) - 1, state_id),)) for name, snapshot in part.timers]
        meta = encode_meta(KeyedStateMeta(key_snapshot, 0, tuple(metas)))
        return KeyedStateHandle(state_id, CANONICAL_BACKEND, part.key_groups.start, part.key_groups.end, meta, files)

    @contextmanager
    def _naming(self, stream: StreamHandle) -> Iterator[None]:
        try:
            yield
        except StateFormatError as error:
            region = self._region(stream)
            raise ForeignFormatError(f"{region.location}, byte {region.start}: {error}") from error

    def _keyed_header(self, handle: KeyGroupsHandle | IncrementalHandle) -> KeyedHeader:
        if isinstance(handle, IncrementalHandle):
            region = self._region(handle.meta)
            return self._header(region, region.size_bytes, read_keyed_header)
        region = self._region(handle.stream)
        stop = min((offset for offset in handle.offsets if offset), default=region.size_bytes)
        return self._header(region, stop, read_keyed_header)

    def _header(self, region: _Region, stop: int, read_header: Callable[[DataInputView], _Header]) -> _Header:
        if not 0 <= stop <= min(region.size_bytes, MAX_HEADER_BYTES):
            raise ForeignFormatError(
                f"{region.location}: the metadata ends at byte {region.start + stop}, which is not in the state"
            )
        with region.opened() as read:
            source = DataInputView(read(0, stop))
        with naming_position(region.location, source, region.start):
            return read_header(source)

    def _is_canonical(self, handle: KeyGroupsHandle, header: KeyedHeader) -> bool:
        """Whether a checkpoint has canonical key groups. Full checkpoints of RocksDB have them up to Flink 1.15."""
        if not all(handle.offsets):
            # The HashMap backend writes empty key groups too.
            return True
        key_group, _, data = next(self._group_data(handle, [handle.first_key_group]))
        if key_group and data[:4] == key_group.to_bytes(4, "big"):
            return False
        try:
            groups = CanonicalGroups(len(header.states), is_compressed=header.is_compressed)
            groups.read(0, data, key_group, CanonicalBatch.empty())
        except StateFormatError:
            return False
        return True

    # Keyed state.

    def columns(
        self, state_id: str, state_name: str, key_groups: Sequence[KeyGroupRange], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state of a subtask in these key groups, as `statebackend.savepoint.stored_entries` does.

        Raises:
            ForeignFormatError: A file is damaged.
            UnresolvableSerializerError: A serializer is unknown, so the ends of entries cannot be found.
        """
        self._read_headers()
        stored = next((one for one in self._parts[state_id].metas if one.name == state_name), None)
        has_flags = stored is None or with_nullable_values(stored) is stored
        for batch in self._batches(state_id, state_name, key_groups):
            yield (batch if has_flags else with_flags(batch)).select(list(columns))

    def _batches(self, state_id: str, state_name: str, key_groups: Sequence[KeyGroupRange]) -> Iterator[pa.RecordBatch]:
        part = self._parts[state_id]
        raw = part.handles.raw_keyed
        if raw is not None and state_name in [name for name, _ in part.timers]:
            yield from self._group_batches(raw, key_groups, timer_reader(state_name), sorted_rows, no_offset=-1)
            return
        index = next(index for index, meta in enumerate(part.metas) if meta.name == state_name)
        keyed, header = part.handles.keyed, part.header
        assert keyed is not None
        assert header is not None
        if isinstance(keyed, KeyGroupsHandle) and not keyed.is_canonical:
            heap = self._groups.get(state_id)
            if not isinstance(heap, HeapGroups):
                heap = HeapGroups(header.key_snapshot, part.metas, self.known, is_compressed=header.is_compressed)
                self._groups[state_id] = heap
                ends = self._group_ends(keyed)
                sizes = [ends.get(start, sys.maxsize) - start for start in keyed.offsets]
                smallest = keyed.first_key_group + sizes.index(min(sizes))
                for _, _, data in self._group_data(keyed, [smallest]):
                    heap.learn_order(data)
            yield from self._group_batches(keyed, key_groups, heap.reader(index), sorted_rows)
            return
        operator = next(one for one in self._flink.operators if state_id.startswith(one.operator_id))
        maker = RowMaker(header.key_snapshot, part.metas[index], operator.max_parallelism, self.known)
        if isinstance(keyed, IncrementalHandle):
            yield from self._database_batches(keyed, maker, state_name, key_groups)
            return
        groups = self._groups.get(state_id)
        if not isinstance(groups, CanonicalGroups):
            groups = CanonicalGroups(len(header.states), is_compressed=header.is_compressed)
            self._groups[state_id] = groups

        def rows_of(batch: CanonicalBatch) -> pa.RecordBatch:
            return maker.columns(batch.keys, cast("list[bytes]", batch.values), batch.key_groups)

        yield from self._group_batches(keyed, key_groups, partial(groups.read, index), rows_of)

    def location_of(self, state_id: str, state_name: str, key_group: int) -> str:
        """Return the file with a key group of a state, and the start of the group in it, for errors."""
        part = self._parts[state_id]
        handles = part.handles
        handle = handles.raw_keyed if state_name in [name for name, _ in part.timers] else handles.keyed
        if isinstance(handle, KeyGroupsHandle):
            region = self._region(handle.stream)
            return f"{region.location}, byte {region.start + handle.offsets[key_group - handle.first_key_group]}"
        assert handle is not None
        return f"{self._region(handle.meta).location} and its files of RocksDB"

    def _group_batches(
        self,
        handle: KeyGroupsHandle,
        key_groups: Sequence[KeyGroupRange],
        read: GroupReader,
        rows_of: Callable[[CanonicalBatch], pa.RecordBatch],
        no_offset: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        region = self._region(handle.stream)
        batch, size_bytes, first, first_start = CanonicalBatch.empty(), 0, 0, 0
        wanted = (group for one in key_groups for group in range(one.start, one.end + 1))
        for key_group, start, data in self._group_data(handle, wanted, no_offset):
            if not batch.keys:
                first, first_start = key_group, start
            with _naming_group(region, start, key_group):
                read(data, key_group, batch)
            batch.key_groups.extend([key_group] * (len(batch.keys) - len(batch.key_groups)))
            size_bytes += len(data)
            if batch.keys and (len(batch.keys) >= BATCH_ROWS or size_bytes >= BATCH_BYTES):
                with _naming_group(region, first_start, first):
                    rows = rows_of(batch)
                yield from _bounded(rows)
                batch, size_bytes = CanonicalBatch.empty(), 0
        if batch.keys:
            with _naming_group(region, first_start, first):
                rows = rows_of(batch)
            yield from _bounded(rows)

    def _group_ends(self, handle: KeyGroupsHandle) -> dict[int, int]:
        return dict(itertools.pairwise(sorted({*handle.offsets, self._region(handle.stream).size_bytes})))

    def _group_data(
        self, handle: KeyGroupsHandle, key_groups: Iterable[int], no_offset: int = 0
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield the existing key groups, with the start and the bytes of each."""
        region = self._region(handle.stream)
        following = self._group_ends(handle)
        with region.opened() as read:
            for key_group in key_groups:
                start = handle.offsets[key_group - handle.first_key_group]
                if start == no_offset:
                    continue
                stop = following.get(start)
                if stop is None or start < 0:
                    raise ForeignFormatError(
                        f"{region.location}: key group {key_group} starts at byte {region.start + start}, which is not "
                        f"in the state of {region.size_bytes} bytes from byte {region.start} on"
                    )
                yield key_group, start, read(start, stop)

    def _database_batches(
        self, handle: IncrementalHandle, maker: RowMaker, state_name: str, key_groups: Sequence[KeyGroupRange]
    ) -> Iterator[pa.RecordBatch]:
        location = f"{self._region(handle.meta).location}, state {printable(state_name)}"
        with self._database(handle) as database:
            for one in key_groups:
                keys: list[bytes] = []
                values: list[bytes] = []
                size_bytes = 0
                for chunk in database.scan(state_name, maker.prefix(one.start), maker.prefix(one.end + 1)):
                    own_keys, own_values = zip(*chunk, strict=True)
                    keys += own_keys
                    values += own_values
                    size_bytes += sum(map(len, own_keys)) + sum(map(len, own_values))
                    if len(keys) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
                        yield from _bounded(_database_rows(location, maker, keys, values))
                        keys, values, size_bytes = [], [], 0
                if keys:
                    yield from _bounded(_database_rows(location, maker, keys, values))

    @contextmanager
    def _database(self, handle: IncrementalHandle) -> Iterator[ForeignDatabase]:
        """Open the database. It stays open for the next state, until `_OPEN_DATABASES` others are used."""
        location = self.location(METADATA_FILE_NAME)
        opened = self._databases.pop(handle, None)
        if opened is None:
            with ExitStack() as stack:
                directory = stack.enter_context(temporary_directory())
                stored: dict[str, str] = {}
                for name, stream in handle.files:
                    if is_needed(name, location):
                        self._bring(stream, os.path.join(directory, name))
                        region = self._region(stream)
                        stored[name] = f"{name} ({region.location}, byte {region.start})"
                opened = ForeignDatabase(directory, location, stored), stack.pop_all()
            weakref.finalize(opened[0], opened[1].close)
        yield opened[0]
        self._databases[handle] = opened
        while len(self._databases) > _OPEN_DATABASES:
            self._databases.pop(next(iter(self._databases)))

    @cached_property
    def _databases(self) -> dict[IncrementalHandle, tuple[ForeignDatabase, ExitStack]]:
        """The open databases without a reader, the least recently used one first."""
        return {}

    def _bring(self, stream: StreamHandle, target: str) -> None:
        region = self._region(stream)
        if os.path.exists(target):
            raise ForeignFormatError(f"{region.location}: {os.path.basename(target)} is there twice")
        local = region.file_system.local_path(region.path) if stream.path is not None else None
        if local is not None:
            # A link is enough, because RocksDB only reads the file.
            os.symlink(local, target)
            return
        with region.opened() as read, open(target, "xb") as file:
            for start in range(0, region.size_bytes, 8 << 20):
                file.write(read(start, min(start + (8 << 20), region.size_bytes)))

    def _raw_timer_states(self, handle: KeyGroupsHandle) -> tuple[tuple[str, Snapshot], ...]:
        """Return the queues of raw keyed state. Each key group describes all queues, so the first one is read."""
        found: dict[str, Snapshot] = {}
        held = [handle.first_key_group + index for index, offset in enumerate(handle.offsets) if offset != -1]
        region = self._region(handle.stream)
        for key_group, start, data in self._group_data(handle, held[:1], no_offset=-1):
            with _naming_group(region, start, key_group):
                found.update({name: snapshot for name, snapshot, _ in raw_timers(data)})
        return tuple(found.items())

    # Operator state.

    def _operator_part(self, operator: FlinkOperator, handles: SubtaskHandles) -> OpaqueStateHandle | None:
        handle = handles.operator_state
        if handle is None or not handle.states:
            return None
        if handle.stream is None:
            raise ForeignFormatError(
                f"{self.location(METADATA_FILE_NAME)}: operator {printable(operator.uid or operator.operator_id)} has "
                f"operator state without a file"
            )
        region = self._region(handle.stream)
        offsets = [offset for state in handle.states for offset in state.offsets]
        header = self._header(region, min(offsets, default=region.size_bytes), read_operator_header)
        stored = {state.name: state for state in (*header.lists, *header.broadcast)}
        ends = _ends(handle, list(stored), region)
        states = []
        for number, state in enumerate(handle.states):
            try:
                roles = _operator_roles(state.mode, stored.get(state.name), state.name)
            except MalformedDataError as error:
                raise ForeignFormatError(f"{region.location}, byte {region.start}: {error}") from error
            spans = [(offset, ends[state.name, index]) for index, offset in enumerate(state.offsets)]
            elements = _Elements(region, header.is_compressed, state.mode == "BROADCAST", roles, tuple(spans))
            slices: tuple[FileSlice, ...] = ()
            if elements.row_count:
                path = f"operator-state/{operator.operator_id}/{handles.index}/{number}"
                self._elements[path] = elements
                # Count at least one byte per row.
                size_bytes = max(elements.row_count, sum(stop - start for start, stop in spans))
                slices = (FileSlice(FileHandle(path, size_bytes, _NO_CHECKSUM), 0, elements.row_count),)
            envelopes = {role: snapshot_to_bytes(snapshot) for role, snapshot in roles.items()}
            states.append(OperatorStateMeta(state.name, _MODES[state.mode], (StatePart(envelopes, slices),)))
        return encode_operator_state(OwnOperatorState(tuple(states)), CANONICAL_BACKEND)

    # Files.

    def location(self, path: str) -> str:
        """Return the location of a file for errors. Operator state has the location of its first element."""
        elements = self._elements.get(path) if path != METADATA_FILE_NAME else None
        if elements is None:
            return super().location(path)
        return f"{elements.region.location}, byte {elements.region.start + elements.spans[0][0]}"

    def read_file(self, handle_or_path: FileHandle | str) -> bytes:
        """Return all bytes of a file. Operator state is returned as a Parquet file, as `read_slice` expects."""
        if isinstance(handle_or_path, str):
            return super().read_file(handle_or_path)
        self._read_headers()
        elements = self._elements.get(handle_or_path.path)
        if elements is not None:
            return encoded_rows(elements.rows())
        region = self._regions[handle_or_path.path]
        with region.opened() as read:
            return read(0, region.size_bytes)

    def verify_present(self, handles: Iterable[FileHandle]) -> None:
        """Check that each file exists with the right size. Raises `MissingFileError` or `CorruptFileError`."""
        for handle in handles:
            region = self._regions.get(handle.path)
            if region is not None:
                region.check_present()

    def verify_content(self, handle: FileHandle) -> None:
        """Check only the size, because Flink stores no checksums of files."""
        self.verify_present([handle])

    def _file(self, stream: StreamHandle) -> FileHandle:
        region = self._region(stream)
        name = f"{METADATA_FILE_NAME}@{stream.start}" if stream.path is None else region.path
        if self._regions.setdefault(name, region) != region:
            # A file in another directory has the same name.
            name = f"{len(self._regions)}/{name}"
            self._regions[name] = region
        return FileHandle(name, stream.size_bytes, _NO_CHECKSUM)

    def _region(self, stream: StreamHandle) -> _Region:
        if stream.path is None:
            return _Region(self, METADATA_FILE_NAME, stream.start, stream.size_bytes)
        try:
            file_system, path = (self, stream.path) if stream.is_relative else self._located(stream.path)
            return _Region(file_system, checked_relative_path(path), 0, stream.size_bytes)
        except UnsafePathError as error:
            raise ForeignFormatError(f"{self.location(METADATA_FILE_NAME)}: {error}") from error

    def _located(self, path: str) -> tuple[CheckpointFileSystem, str]:
        place = _plain_path(path)
        for old, new in sorted(self.moved.items(), key=lambda item: -len(item[0])):
            inside = _inside(place, _plain_path(old))
            if inside is not None:
                return CheckpointFileSystem.from_uri(new), inside
        root: CheckpointFileSystem = self
        prefix = ""
        if _CHECKPOINT_DIRECTORY.fullmatch(self._name) is not None:
            root, prefix = CheckpointFileSystem.from_uri(parent_and_name(self._whole_uri)[0]), f"{self._name}/"
        inside = _inside(place, _plain_path(root.uri))
        if inside is not None:
            return root, inside
        # The directory was moved: the file has the same path relative to the opened directory.
        *_, directory, name = ["", *place.split("/")]
        if prefix and directory in (self._name, *_BESIDE_CHECKPOINTS):
            return root, f"{directory}/{name}"
        if root.exists(checked_relative_path(prefix + name)):
            return root, prefix + name
        raise ForeignFormatError(
            f"{self.location(METADATA_FILE_NAME)} names {printable(path)}, which is outside of the directory. If you "
            f"trust it, say where its directory is now (moved=...; on the command line --moved OLD=NEW)"
        )


def _plain_path(uri: str) -> str:
    """Return the URI without the scheme of local files and without a slash at the end."""
    local = re.fullmatch("file:/+(.*)", uri, re.DOTALL)
    return (f"/{local[1]}" if local else uri).rstrip("/")


def _inside(place: str, directory: str) -> str | None:
    return place[len(directory) + 1 :] if place.startswith(f"{directory}/") else None


@contextmanager
def _naming_group(region: _Region, start: int, key_group: int) -> Iterator[None]:
    try:
        yield
    except UnresolvableSerializerError:
        raise
    except StateFormatError as error:
        raise ForeignFormatError(
            f"{region.location}, key group {key_group} from byte {region.start + start} on: {error}"
        ) from error


def _bounded(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    step = max(1, min(BATCH_ROWS, BATCH_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _database_rows(location: str, maker: RowMaker, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    try:
        return maker.columns(keys, values)
    except StateFormatError as error:
        raise ForeignFormatError(f"{location}, key group 0x{keys[0][:2].hex()} or later: {error}") from error


def _queue(name: str, snapshot: Snapshot, files: tuple[StateFile, ...]) -> StateMeta:
    return StateMeta.of_one_schema(
        name, PRIORITY_QUEUE, VoidNamespaceSerializerSnapshot(), {ELEMENT_ROLE: snapshot}, files
    )


def _operator_roles(mode: str, state: StoredState | None, name: str) -> dict[str, Snapshot]:
    if state is None:
        raise MalformedDataError(f"the file does not describe the operator state {name!r}")
    if mode != "BROADCAST":
        return {ELEMENT_ROLE: state.snapshot("VALUE_SERIALIZER")}
    return {KEY_ROLE: state.snapshot("KEY_SERIALIZER"), VALUE_ROLE: state.snapshot("VALUE_SERIALIZER")}


def _ends(handle: OperatorHandle, order: Sequence[str], region: _Region) -> dict[tuple[str, int], int]:
    """Return the end of each element, which is the start of the next element in the file."""
    places = {name: place for place, name in enumerate(order)}
    starts = sorted(
        (offset, places.get(state.name, 0), index, state.name)
        for state in handle.states
        for index, offset in enumerate(state.offsets)
    )
    ends = [offset for offset, *_ in starts[1:]] + [region.size_bytes]
    return {(name, index): end for (_, _, index, name), end in zip(starts, ends, strict=True)} if starts else {}


@frozen(slots=False)
class _Elements:
    """The rows of one operator state of one subtask."""

    region: _Region
    is_compressed: bool
    is_broadcast: bool
    snapshots: Mapping[str, Snapshot]
    spans: tuple[tuple[int, int], ...]

    @cached_property
    def row_count(self) -> int:
        if not self.is_broadcast:
            return len(self.spans)
        return sum(self._read(lambda data: [DataInputView(data).read_count()]))

    def rows(self) -> list[OperatorStateRow]:
        return self._read(self._entries if self.is_broadcast else lambda data: [(None, data)])

    def _read(self, read: Callable[[bytes], list[T]]) -> list[T]:
        found: list[T] = []
        with self.region.opened() as read_bytes:
            for start, stop in self.spans:
                data = read_bytes(start, stop)
                try:
                    # All elements are in one stream. Each element starts a new chunk.
                    found += read(decompress_frames(data, is_whole=False) if self.is_compressed else data)
                except UnresolvableSerializerError:
                    raise
                except StateFormatError as error:
                    raise ForeignFormatError(
                        f"{self.region.location}, byte {self.region.start + start}: {error}"
                    ) from error
        return found

    def _entries(self, data: bytes) -> list[OperatorStateRow]:
        step_key, step_value = (step_of(snapshot.restore_serializer()) for snapshot in self.snapshots.values())
        position = 4
        rows: list[OperatorStateRow] = []
        for _ in range(DataInputView(data).read_count()):
            key_end = step_key(data, position)
            end = step_value(data, key_end)
            rows.append((data[position:key_end], data[key_end:end]))
            position = end
        if position != len(data):
            raise MalformedDataError(f"{len(data) - position} bytes follow the entries")
        return rows
