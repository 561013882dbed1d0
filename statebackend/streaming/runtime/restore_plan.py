"""Distributes the state of a checkpoint to the subtasks of a new run.

Keyed state is distributed by key groups: a subtask restores every old handle with a range that overlaps its own, and
selects its rows. With the same parallelism each subtask restores its own handle. Operator state is redistributed by its
mode, once per run. In later epochs of the run every subtask continues from its own state (`continued_subtask`).

On Spark the restore plan of an epoch is a file. Each task reads only its own entry. Spark sends the function
of an operator to every task, so a large plan inside it would be sent many times. The driver writes the plan to the file
system of the job before the epoch and deletes it afterwards. A task knows the path and the offset of its operator's
index. A small plan is sent with the tasks instead. The file is used for one epoch only, so its format has no version.

    file          := (blob | record | index)*               an index follows what it points to
    index         := reference*                             one per subtask; the task knows the offset
    reference     := i64(offset) i32(length) u64(64-bit xxh3 of the bytes there)
    record        := u8(1) state                            the subtask continues from its own state
                   | u8(0) bool(is restored) i32(n) reference* to handles
                     bool(has operator state) [bool(may refer) i32(n) assigned*]
    assigned      := UTF(name) UTF(mode) reference reference     to the content and the carried content, as parts
    parts         := i32(n) (i32(roles) (UTF(role) i32(n) envelope)* i32(slices) slice* i32(n) digest)*
    slice         := UTF(path) i64(size) UTF(checksum) i64(first row) i64(end row, exclusive)
    state         := Avro binary encoding of the state of a subtask
    handle        := Avro binary encoding of a handle of keyed state

Values that several subtasks share (a handle that overlaps several ranges, the rows of a union list) are written once.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import xxhash
from attrs import field, frozen

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import StateFormatError
from statebackend.checkpoint.errors import MissingFileError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import Leadership
from statebackend.checkpoint.handle_records import (
    decode_keyed_state_handle,
    decode_subtask_state,
    encode_keyed_state_handle,
    encode_subtask_state,
)
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle, SubtaskState
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.operator_state_handles import FileSlice, StatePart
from statebackend.state.operator_state_redistribution import (
    AssignedState,
    RestoredOperatorState,
    continued_operator_state,
    restored_operator_state,
)
from statebackend.streaming.errors import JobRestoreError


@frozen
class SubtaskRestore:
    """The state that one subtask restores; picklable. ``is_restored`` is True if an earlier run wrote it."""

    keyed: tuple[RestoredHandle, ...] = ()
    operator: RestoredOperatorState | None = None
    is_restored: bool = False


def restores_by_subtask(restored: RestoredState | None, uid: str, parallelism: int) -> tuple[SubtaskRestore, ...]:
    """Return for each subtask the old handles that overlap its key groups, and its share of the operator state.

    The time is linear in the numbers of old subtasks, new subtasks and overlaps.
    """
    operator = None if restored is None else restored.operator(uid)
    if restored is None or operator is None:
        return (SubtaskRestore(),) * parallelism
    shares = restored_operator_state(
        [subtask.operator for subtask in operator.subtasks],
        restored.file_system,
        parallelism,
        restored.operator_state_handles(uid),
    )
    keyed = restored.keyed_handles(uid)
    plan = []
    for share, overlap in zip(
        shares, overlaps(operator.keyed_handles, parallelism, restored.max_parallelism), strict=True
    ):
        plan.append(SubtaskRestore(keyed[overlap], share if share.states else None, is_restored=True))
    return tuple(plan)


def overlaps(handles: Sequence[KeyedStateHandle], parallelism: int, max_parallelism: int) -> Iterator[slice]:
    """Yield for each subtask of the new run the slice of old handles that overlap its key groups."""
    ends = [handle.key_group_end for handle in handles]
    for subtask_index in range(parallelism):
        key_groups = key_group_range_of_subtask(subtask_index, parallelism, max_parallelism)
        # The ranges of the handles are consecutive, without gaps.
        yield slice(bisect_left(ends, key_groups.start), bisect_left(ends, key_groups.end) + 1)


def continued_subtask(state: SubtaskState, file_system: CheckpointFileSystem) -> SubtaskRestore:
    """Return the restore of a subtask that continues from its own state, in the run that wrote it."""
    keyed = () if state.keyed is None else (RestoredHandle(state.keyed, file_system),)
    [own] = continued_operator_state([state.operator], file_system)
    return SubtaskRestore(keyed, own if own.states else None)


RESTORE_PLANS_DIRECTORY: Final = "restore-plans"
"""The directory of restore plans in the job directory."""

MOST_TRAVELLING_BYTES: Final = 16 << 10
"""The maximum size of a plan that is sent with the tasks. Below it, a file takes longer."""

_REFERENCE: Final = struct.Struct(">qiQ")
_CONTINUED: Final = b"\x01"
_RESTORED: Final = 0

Parts = tuple[StatePart, ...]


@frozen
class RestorePlanSection:
    """The location of an operator's plan in a restore plan. Sent to its tasks, together with a small plan."""

    path: str
    index_offset: int
    plan: bytes | None = field(default=None, repr=False)

    def read(
        self, plans: CheckpointFileSystem, restored_from: CheckpointFileSystem, subtask_index: int
    ) -> SubtaskRestore:
        """Return the restore of one subtask. ``plans`` has the plan, ``restored_from`` the files of the state.

        Raises `JobRestoreError` if the plan is missing or damaged.
        """
        location = plans.location(self.path)
        try:
            with plans.open_input(self.path) if self.plan is None else io.BytesIO(self.plan) as source:

                def read(offset: int, length: int) -> bytes:
                    source.seek(offset)
                    return bytes(source.read(length))

                entry = read(self.index_offset + subtask_index * _REFERENCE.size, _REFERENCE.size)
                return _PlanReader(read, restored_from, location).restore(DataInputView(entry))
        except (StateFormatError, OSError) as error:
            raise _damaged(location, str(error)) from error
        except MissingFileError as error:
            raise JobRestoreError(
                f"this task cannot find the restore plan of its epoch, {location}. Either the epoch is over, or the "
                f"job directory is not on a store that the driver and all executors share ({error})"
            ) from error


def write_restore_plan(
    plans: CheckpointFileSystem,
    path: str,
    by_operator: Mapping[str, Sequence[SubtaskRestore | SubtaskState]],
    most_travelling_bytes: int = MOST_TRAVELLING_BYTES,
) -> Mapping[str, RestorePlanSection]:
    """Write the plan of all operators, and return the section of each operator by its uid.

    A plan of up to ``most_travelling_bytes`` is not written, but is part of the sections. A subtask is described by its
    restore, or by its own state, from which it continues.
    """
    writer = _PlanWriter()
    offsets = {uid: writer.add(restores) for uid, restores in by_operator.items()}
    plan = writer.to_bytes()
    travels = len(plan) <= most_travelling_bytes
    if not travels:
        plans.write_file(path, plan, durable=False)
    return {uid: RestorePlanSection(path, offset, plan if travels else None) for uid, offset in offsets.items()}


def delete_restore_plans(plans: CheckpointFileSystem, leadership: Leadership) -> None:
    """Delete the plans of earlier runs. Raises `LeadershipLostError` if another driver leads the job now."""
    left = plans.list_files(RESTORE_PLANS_DIRECTORY, include_temporary=True)
    if left:
        # List before the check: files that were listed while this driver led are not files of a later leader.
        leadership.check()
    for path in left:
        plans.delete(path)


class _PlanWriter:
    """Collects the pieces of a plan and their offsets."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._references: dict[int, tuple[object, bytes]] = {}

    def add(self, restores: Sequence[SubtaskRestore | SubtaskState]) -> int:
        """Add the plan of an operator, and return the offset of its index."""
        index = b"".join([self._record(restore) for restore in restores])
        offset = self._size_bytes
        self._append(index)
        return offset

    def to_bytes(self) -> bytes:
        """Return the whole file."""
        return b"".join(self._pieces)

    def _append(self, data: bytes) -> bytes:
        reference = _REFERENCE.pack(self._size_bytes, len(data), xxhash.xxh3_64_intdigest(data))
        self._pieces.append(data)
        self._size_bytes += len(data)
        return reference

    def _shared(self, value: object, encode: Callable[[], bytes]) -> bytes:
        known = self._references.get(id(value))
        if known is None:
            # Keep a reference to the value, so that no other object gets its id.
            known = self._references[id(value)] = (value, self._append(encode()))
        return known[1]

    def _record(self, restore: SubtaskRestore | SubtaskState) -> bytes:
        if isinstance(restore, SubtaskState):
            return self._append(_CONTINUED + encode_subtask_state(restore))
        return self._shared(restore, lambda: self._encode(restore))

    def _encode(self, restore: SubtaskRestore) -> bytes:
        out = DataOutputView()
        out.write_unsigned_byte(_RESTORED)
        out.write_boolean(restore.is_restored)
        out.write_int(len(restore.keyed))
        for restored in restore.keyed:
            handle = restored.handle
            out.write(self._shared(handle, lambda handle=handle: encode_keyed_state_handle(handle)))  # type: ignore[misc]
        out.write_boolean(restore.operator is not None)
        if restore.operator is not None:
            out.write_boolean(restore.operator.may_refer)
            out.write_int(len(restore.operator.states))
            for state in restore.operator.states:
                out.write_utf(state.name)
                out.write_utf(state.mode.value)
                for parts in (state.content, state.carried):
                    out.write(self._shared(parts, lambda parts=parts: _encode_parts(parts)))  # type: ignore[misc]
        return out.to_bytes()


class _PlanReader:
    """Reads an entry of a plan and the pieces that it refers to."""

    def __init__(self, read: Callable[[int, int], bytes], restored_from: CheckpointFileSystem, location: str) -> None:
        self._read = read
        self._restored_from = restored_from
        self._location = location

    def restore(self, entry: DataInputView) -> SubtaskRestore:
        record = self._piece(entry)
        if record[:1] == _CONTINUED:
            return continued_subtask(decode_subtask_state(record[1:]), self._restored_from)
        source = DataInputView(record, 1)
        is_restored = source.read_boolean()
        keyed = tuple(
            RestoredHandle(decode_keyed_state_handle(self._piece(source)), self._restored_from)
            for _ in range(source.read_count(_REFERENCE.size))
        )
        return SubtaskRestore(keyed, self._operator_state(source), is_restored)

    def _operator_state(self, source: DataInputView) -> RestoredOperatorState | None:
        if not source.read_boolean():
            return None
        may_refer = source.read_boolean()
        states = tuple(
            AssignedState(
                source.read_utf(),
                OperatorStateMode(source.read_utf()),
                _decode_parts(self._piece(source)),
                _decode_parts(self._piece(source)),
            )
            for _ in range(source.read_count(2 * _REFERENCE.size))
        )
        return RestoredOperatorState(states, self._restored_from, may_refer=may_refer)

    def _piece(self, source: DataInputView) -> bytes:
        offset, length, checksum = _REFERENCE.unpack(source.read(_REFERENCE.size))
        piece = self._read(offset, length)
        if len(piece) != length or xxhash.xxh3_64_intdigest(piece) != checksum:
            raise _damaged(self._location, f"its checksum does not match at byte {offset}")
        return piece


def _damaged(location: str, what: str) -> JobRestoreError:
    return JobRestoreError(
        f"the restore plan {location} is damaged or cannot be read ({what}). Nothing is lost: start the job again, "
        f"which replays the epoch"
    )


def _encode_parts(parts: Parts) -> bytes:
    out = DataOutputView()
    out.write_int(len(parts))
    for part in parts:
        out.write_int(len(part.envelopes))
        for role, envelope in part.envelopes.items():
            out.write_utf(role)
            out.write_sized_bytes(envelope)
        out.write_int(len(part.slices))
        for one in part.slices:
            out.write_utf(one.file.path)
            out.write_long(one.file.size_bytes)
            out.write_utf(one.file.checksum)
            out.write_long(one.start)
            out.write_long(one.stop)
        out.write_sized_bytes(part.digest or b"")
    return out.to_bytes()


def _decode_parts(data: bytes) -> Parts:
    source = DataInputView(data)
    return tuple(_decode_part(source) for _ in range(source.read_count(8)))


def _decode_part(source: DataInputView) -> StatePart:
    envelopes = {source.read_utf(): source.read_sized_bytes() for _ in range(source.read_count(6))}
    slices: list[Any] = []
    for _ in range(source.read_count(28)):
        file = FileHandle(source.read_utf(), source.read_long(), source.read_utf())
        slices.append(FileSlice(file, source.read_long(), source.read_long()))
    return StatePart(envelopes, tuple(slices), source.read_sized_bytes() or None)
