"""The file `_metadata` of a Flink savepoint or retained checkpoint, versions 3 to 6 (Flink 1.13 to 2.3).

All integers are big-endian. ``UTF`` is Java's modified UTF-8 with an unsigned 16-bit length.

    file       := u32(0x4960672D) i32(version) i64(checkpoint id) i32(n) master* i32(n) operator* properties
    properties := version 4 and later: a Java-serialized object up to the end of the file; it is never read
    master     := i32(0xC96B1696) i32(length) bytes
    operator   := [version 5 and later: UTF(name) UTF(uid)]  bytes[16](operator id)  i32(parallelism)
                  i32(max parallelism)  stream(coordinator)  i32(n, or -1: finished)  subtask*
    subtask    := i32(index)  managed operator state, raw operator state: i32(0 or 1) [operator state]
                  keyed(managed) keyed(raw)  i32(n) input channel*  i32(n) output channel*
                | i32(-index - 1), a finished subtask
    operator state := u8(4) i32(n) (UTF(state name) u8(mode) i32(n) i64(offset)*)* stream
    keyed      := u8(0)
                | u8(3 | 7 | 12) range i64(offset of a key group)* stream [12: UTF(id)]
                | u8(5 | 11) i64(checkpoint id) UTF(backend id) range [11: i64(size)] stream(metadata)
                  twice, shared and private: i32(n) (UTF(file name) stream)*  [11: UTF(id)]
    range      := i32(first key group) i32(number of key groups)
    stream     := u8(0)
                | u8(1) UTF(name) i32(length) bytes               inline
                | u8(2) i64(size) UTF(absolute URI)
                | u8(6) UTF(path relative to this directory) i64(size)

An operator id is the hash of the uid (`operator_id_of`). Before version 5 the uid itself is not stored. Handles of the
changelog backend (8 to 10, 13, 14) and of merged checkpoint files (15 and later) are rejected with advice, and so are
records in channels of unaligned checkpoints. The layouts follow Flink's `MetadataV3Serializer` and its successors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from attrs import frozen

from snapshots.data_views import DataInputView
from snapshots.errors import MalformedDataError
from statebackend.checkpoint.state_handles import MAX_MAX_PARALLELISM
from statebackend.savepoint.errors import (
    ForeignFormatError,
    UnsupportedForeignStateError,
    naming_position,
)

__all__ = [
    "MAGIC",
    "FlinkMetadata",
    "FlinkOperator",
    "IncrementalHandle",
    "KeyGroupsHandle",
    "OperatorHandle",
    "PartitionedState",
    "StreamHandle",
    "SubtaskHandles",
    "operator_id_of",
    "read_flink_metadata",
]

MAGIC: Final = bytes.fromhex("4960672d")
VERSIONS: Final = range(3, 7)

_MASTER_MAGIC: Final = -0x3694E96A
_MODES: Final = ("SPLIT_DISTRIBUTE", "UNION", "BROADCAST")

T = TypeVar("T")


@frozen
class StreamHandle:
    """Bytes of state: a file (``path``), or a part of `_metadata` from ``start`` on."""

    path: str | None
    start: int
    size_bytes: int
    is_relative: bool = False


@frozen
class KeyGroupsHandle:
    """A file of keyed state with the offset of each key group. ``is_canonical`` is true for a canonical savepoint."""

    first_key_group: int
    offsets: tuple[int, ...]
    stream: StreamHandle
    is_canonical: bool

    @property
    def key_group_count(self) -> int:
        """The number of key groups."""
        return len(self.offsets)


@frozen
class IncrementalHandle:
    """The files of a RocksDB database, by name, and the file with the metadata of its states."""

    first_key_group: int
    key_group_count: int
    meta: StreamHandle
    files: tuple[tuple[str, StreamHandle], ...]


@frozen
class PartitionedState:
    """One operator state of a subtask: its mode, and the offset of each element."""

    name: str
    mode: str
    offsets: tuple[int, ...]


@frozen
class OperatorHandle:
    """The operator state of a subtask."""

    states: tuple[PartitionedState, ...]
    stream: StreamHandle | None


@frozen
class SubtaskHandles:
    """The state of one subtask. A finished subtask has none."""

    index: int
    operator_state: OperatorHandle | None = None
    keyed: KeyGroupsHandle | IncrementalHandle | None = None
    raw_keyed: KeyGroupsHandle | None = None


@frozen
class FlinkOperator:
    """One operator. ``name`` and ``uid`` are empty if they are not stored, ``operator_id`` is hexadecimal."""

    operator_id: str
    name: str
    uid: str
    parallelism: int
    max_parallelism: int
    is_finished: bool
    coordinator: StreamHandle | None
    subtasks: tuple[SubtaskHandles, ...]


@frozen
class FlinkMetadata:
    """The content of `_metadata`."""

    version: int
    checkpoint_id: int
    operators: tuple[FlinkOperator, ...]


def read_flink_metadata(data: bytes, location: str) -> FlinkMetadata:
    """Read the bytes of a `_metadata`. ``location`` names the file in errors.

    Raises:
        ForeignFormatError: The file is damaged or of an unknown version.
        UnsupportedForeignStateError: It refers to unsupported state.
    """
    source = DataInputView(data)
    with naming_position(location, source):
        return _Reader(source, location).metadata()


class _Reader:
    def __init__(self, source: DataInputView, location: str) -> None:
        self._source = source
        self._location = location
        self._version = 0

    def metadata(self) -> FlinkMetadata:
        source = self._source
        if source.read(4) != MAGIC:
            raise ForeignFormatError(f"{self._location} is not metadata of Flink: it does not begin with {MAGIC.hex()}")
        self._version = source.read_int()
        if self._version not in VERSIONS:
            raise ForeignFormatError(
                f"{self._location} has version {self._version} of Flink's metadata; versions {VERSIONS.start} to "
                f"{VERSIONS.stop - 1} (Flink 1.13 to 2.3) can be read"
            )
        checkpoint_id = source.read_long()
        if checkpoint_id < 0:
            raise MalformedDataError(f"the checkpoint id is {checkpoint_id}")
        self._list(self._skip_master, 8)
        operators = self._list(self._operator, 29)
        if self._version == VERSIONS.start and source.remaining:
            raise MalformedDataError(f"{source.remaining} bytes follow the last operator")
        ids = {operator.operator_id for operator in operators}
        if len(ids) != len(operators):
            raise MalformedDataError("two operators have the same id")
        return FlinkMetadata(self._version, checkpoint_id, operators)

    def _list(self, read: Callable[[], T], minimum_item_bytes: int) -> tuple[T, ...]:
        return tuple(read() for _ in range(self._source.read_count(minimum_item_bytes)))

    def _skip_master(self) -> None:
        if self._source.read_int() != _MASTER_MAGIC:
            raise MalformedDataError("a state of a master hook does not begin with its magic number")
        self._source.read_sized_bytes()

    def _operator(self) -> FlinkOperator:
        source = self._source
        name, uid = (source.read_utf(), source.read_utf()) if self._version >= 5 else ("", "")
        operator_id = source.read(16).hex()
        parallelism, max_parallelism = source.read_int(), source.read_int()
        if not 0 < parallelism <= max_parallelism <= MAX_MAX_PARALLELISM:
            raise MalformedDataError(
                f"operator {uid or operator_id} has parallelism {parallelism} and max parallelism {max_parallelism}"
            )
        coordinator = self._stream()
        position = source.position
        is_finished = source.read_int() == -1
        source.position = position + 4 if is_finished else position
        subtasks = () if is_finished else self._list(lambda: self._subtask(uid or operator_id, max_parallelism), 4)
        indexes = [subtask.index for subtask in subtasks]
        if len(set(indexes)) != len(indexes) or not all(0 <= index < parallelism for index in indexes):
            raise MalformedDataError(f"operator {uid or operator_id} has subtasks that are repeated or do not exist")
        return FlinkOperator(
            operator_id,
            name,
            uid,
            parallelism,
            max_parallelism,
            is_finished,
            coordinator,
            tuple(sorted(subtasks, key=lambda subtask: subtask.index)),
        )

    def _subtask(self, operator: str, max_parallelism: int) -> SubtaskHandles:
        source = self._source
        index = source.read_int()
        if index < 0:
            return SubtaskHandles(-index - 1)
        managed, raw = self._optional_operator_state(), self._optional_operator_state()
        if raw is not None and raw.states:
            raise UnsupportedForeignStateError(
                f"{self._location}: operator {operator} has raw operator state, whose format only the operator knows. "
                f"Take a savepoint of a job without this operator"
            )
        keyed, raw_keyed = self._keyed(operator, max_parallelism), self._keyed(operator, max_parallelism)
        if isinstance(raw_keyed, IncrementalHandle):
            raise MalformedDataError(f"operator {operator} has raw keyed state in a database")
        for what in ("input", "output"):
            channels = source.read_int()
            if channels:
                raise UnsupportedForeignStateError(
                    f"{self._location}, byte {source.position - 4}: operator {operator} has records in {channels} "
                    f"{what} channels: this is an unaligned checkpoint. Take a savepoint, or a checkpoint with "
                    f"execution.checkpointing.unaligned.enabled: false"
                )
        return SubtaskHandles(index, managed, keyed, raw_keyed)

    def _optional_operator_state(self) -> OperatorHandle | None:
        present = self._source.read_int()
        if present not in (0, 1):
            raise MalformedDataError(f"{present} handles of operator state in one subtask")
        if not present:
            return None
        kind = self._source.read_unsigned_byte()
        if kind == 0:
            return None
        if kind != 4:
            raise self._unknown_handle(kind, "operator state")
        states = self._list(self._partitioned_state, 7)
        return OperatorHandle(states, self._stream())

    def _partitioned_state(self) -> PartitionedState:
        name, mode = self._source.read_utf(), self._source.read_unsigned_byte()
        if mode >= len(_MODES):
            raise MalformedDataError(f"operator state {name!r} has the mode {mode}")
        return PartitionedState(name, _MODES[mode], self._list(self._source.read_long, 8))

    def _keyed(self, operator: str, max_parallelism: int) -> KeyGroupsHandle | IncrementalHandle | None:
        source = self._source
        kind = source.read_unsigned_byte()
        if kind == 0:
            return None
        if kind in (3, 7, 12):
            first, count = self._range(operator, max_parallelism, 8)
            offsets = tuple(source.read_long() for _ in range(count))
            stream = self._required_stream(operator)
            if kind == 12:
                source.read_utf()
            return KeyGroupsHandle(first, offsets, stream, kind == 7)
        if kind in (5, 11):
            source.read_long()
            source.read_utf()
            first, count = self._range(operator, max_parallelism)
            if kind == 11:
                source.read_long()
            meta = self._required_stream(operator)
            files = tuple(file for _ in range(2) for file in self._list(lambda: self._named_stream(operator), 3))
            if kind == 11:
                source.read_utf()
            return IncrementalHandle(first, count, meta, files)
        if kind in (8, 9, 10, 13, 14):
            raise UnsupportedForeignStateError(
                f"{self._location}, byte {source.position - 1}: operator {operator} has a checkpoint of the changelog "
                f"state backend. Take a canonical savepoint: flink savepoint --type canonical <job>"
            )
        raise self._unknown_handle(kind, "keyed state")

    def _range(self, operator: str, max_parallelism: int, item_bytes: int = 0) -> tuple[int, int]:
        first = self._source.read_int()
        count = self._source.read_count(item_bytes) if item_bytes else self._source.read_int()
        if not (first >= 0 and count > 0 and first + count <= max_parallelism):
            raise MalformedDataError(
                f"operator {operator} has key groups {first} to {first + count - 1} of {max_parallelism}"
            )
        return first, count

    def _named_stream(self, operator: str) -> tuple[str, StreamHandle]:
        return self._source.read_utf(), self._required_stream(operator)

    def _required_stream(self, operator: str) -> StreamHandle:
        stream = self._stream()
        if stream is None:
            raise MalformedDataError(f"operator {operator} has keyed state without a file")
        return stream

    def _stream(self) -> StreamHandle | None:
        source = self._source
        kind = source.read_unsigned_byte()
        if kind == 0:
            return None
        if kind == 1:
            source.read_utf()
            size_bytes = source.read_count()
            start = source.position
            source.read(size_bytes)
            return StreamHandle(None, start, size_bytes)
        if kind == 2:
            size_bytes = source.read_long()
            return StreamHandle(source.read_utf(), 0, self._checked_size(size_bytes))
        if kind == 6:
            path = source.read_utf()
            return StreamHandle(path, 0, self._checked_size(source.read_long()), is_relative=True)
        raise self._unknown_handle(kind, "a file")

    def _checked_size(self, size_bytes: int) -> int:
        if size_bytes < 0:
            raise MalformedDataError(f"a file has {size_bytes} bytes")
        return size_bytes

    def _unknown_handle(self, kind: int, what: str) -> Exception:
        if 15 <= kind <= 18:
            return UnsupportedForeignStateError(
                f"{self._location}, byte {self._source.position - 1}: the checkpoint has merged files. Take a "
                f"savepoint, or a checkpoint with execution.checkpointing.file-merging.enabled: false"
            )
        return MalformedDataError(f"a handle of {what} is of the unknown type {kind}")


_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def operator_id_of(uid: str) -> str:
    """Return the id of the operator with this uid, in hexadecimal: MurmurHash3 x64 128 (Appleby) with seed 0."""
    data = uid.encode("utf-8", "surrogatepass")
    first = second = 0
    padded = data + bytes(-len(data) % 16)
    for start in range(0, len(padded), 16):
        low = int.from_bytes(padded[start : start + 8], "little")
        high = int.from_bytes(padded[start + 8 : start + 16], "little")
        low_mixed = _rotated(low * _C1 & _MASK, 31) * _C2 & _MASK
        high_mixed = _rotated(high * _C2 & _MASK, 33) * _C1 & _MASK
        if start + 16 > len(data):
            # The tail is mixed in without a rotation of the state.
            first ^= low_mixed
            second ^= high_mixed
            break
        first = ((_rotated(first ^ low_mixed, 27) + second) * 5 + 0x52DCE729) & _MASK
        second = ((_rotated(second ^ high_mixed, 31) + first) * 5 + 0x38495AB5) & _MASK
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    first, second = _finished(first), _finished(second)
    first = first + second & _MASK
    second = second + first & _MASK
    return (first.to_bytes(8, "little") + second.to_bytes(8, "little")).hex()


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


def _finished(word: int) -> int:
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & _MASK
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33
