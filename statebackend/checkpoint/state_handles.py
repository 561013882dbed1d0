"""State handles: references to state whose content the checkpoint does not interpret.

A `FileHandle` names a file in a store and verifies its bytes. A `SubtaskState` is the acknowledged state of a subtask.
Each of its parts may be missing:

* keyed state, a `KeyedStateHandle`: its range of key groups, and the files;
* operator state, which belongs to the subtask instead of a key;
* channel state: records in flight into the subtask and out of it.

Operator and channel state are `OpaqueStateHandle` objects. Only the writer, which `backend` or `format` names, reads
`meta`. Constructors check single objects.

An `OperatorState` holds the state of all subtasks of an operator. `check_operator_states` runs before a write and after
a read. Its main invariant: if an operator has keyed state, every key group from 0 to max_parallelism - 1 belongs to
exactly one subtask. An operator or a subtask without state is valid.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import InvariantViolationError
from statebackend.checkpoint.invariants import (
    MAX_ID,
    check_identifier,
    check_integer,
    checked_relative_path,
    is_checksum,
    require,
)

__all__ = [
    "MAX_MAX_PARALLELISM",
    "FileHandle",
    "KeyedStateHandle",
    "OpaqueStateHandle",
    "OperatorState",
    "SubtaskState",
    "check_operator_state",
    "check_operator_states",
    "files_by_path",
    "files_of_operators",
]


MAX_MAX_PARALLELISM = 1 << 15
"""The limit of key groups of a job, as in Flink."""


@frozen
class FileHandle:
    """A file in a store: `path` relative to the store's root, its size, and its checksum.

    Raises `UnsafePathError` or `InvariantViolationError` for invalid values.
    """

    path: str
    size_bytes: int
    checksum: str

    def __attrs_post_init__(self) -> None:
        checked_relative_path(self.path)
        check_integer(f"size of file {self.path!r}", self.size_bytes, 0, MAX_ID)
        require(
            is_checksum(self.checksum),
            f"checksum of file {self.path!r} must look like 'xxh3:' and 32 hex digits, not "
            f"{format_value(self.checksum)}",
        )


def _shown_size(meta: bytes) -> str:
    return f"<{len(meta)} bytes>"


@frozen
class KeyedStateHandle:
    """The keyed state of one subtask at one barrier.

    `state_id` is unique for each snapshot ever taken, so two attempts at the same epoch differ in it.
    `backend` names the format of `meta` and `files`; `key_group_end` is inclusive. `meta` is opaque.
    """

    state_id: str
    backend: str
    key_group_start: int
    key_group_end: int
    meta: bytes = field(repr=_shown_size)
    files: tuple[FileHandle, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_identifier("state_id", self.state_id)
        check_identifier(f"backend of state {self.state_id!r}", self.backend)
        check_integer(f"key_group_start of state {self.state_id!r}", self.key_group_start, 0, MAX_MAX_PARALLELISM - 1)
        check_integer(
            f"key_group_end of state {self.state_id!r}",
            self.key_group_end,
            self.key_group_start,
            MAX_MAX_PARALLELISM - 1,
        )
        _check_content(f"state {self.state_id!r}", self.meta, self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of `meta` and all files together."""
        return len(self.meta) + sum(file.size_bytes for file in self.files)


@frozen
class OpaqueStateHandle:
    """State of one subtask without key groups; `format` names the reader of `meta` and `files`."""

    format: str
    meta: bytes = field(repr=_shown_size)
    files: tuple[FileHandle, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_identifier("format of a state handle", self.format)
        _check_content(f"a state handle of format {self.format!r}", self.meta, self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of `meta` and all files together."""
        return len(self.meta) + sum(file.size_bytes for file in self.files)


@frozen
class SubtaskState:
    """All state of one subtask at one barrier, in parts; a missing part is None.

    The states of two attempts with the same content differ in the `state_id` of the keyed part. Equal objects are the
    same state, in the same files.
    """

    keyed: KeyedStateHandle | None = None
    operator: OpaqueStateHandle | None = None
    input_channels: OpaqueStateHandle | None = None
    output_channels: OpaqueStateHandle | None = None
    _encoding: bytes | None = field(default=None, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        require(
            self.keyed is None or type(self.keyed) is KeyedStateHandle,
            "the keyed part of a subtask's state must be a KeyedStateHandle",
        )
        for name in ("operator", "input_channels", "output_channels"):
            part = getattr(self, name)
            require(
                part is None or type(part) is OpaqueStateHandle,
                f"the part {name!r} of a subtask's state must be an OpaqueStateHandle",
            )

    def __getstate__(self) -> tuple[object, ...]:
        # Without its encoding, which would double the size of a message.
        return (self.keyed, self.operator, self.input_channels, self.output_channels)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        names = ("keyed", "operator", "input_channels", "output_channels")
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_encoding", None)

    @property
    def parts(self) -> tuple[KeyedStateHandle | OpaqueStateHandle, ...]:
        """The parts that exist."""
        every = (self.keyed, self.operator, self.input_channels, self.output_channels)
        return tuple(part for part in every if part is not None)

    @property
    def has_in_flight_records(self) -> bool:
        """Whether a restore that leaves out the channels would lose records."""
        return any(part is not None and part.files for part in (self.input_channels, self.output_channels))

    @property
    def files(self) -> tuple[FileHandle, ...]:
        """The files of all parts, in their order."""
        return tuple([file for part in self.parts for file in part.files])

    @property
    def meta_bytes(self) -> int:
        """Bytes of the `meta` of all parts together."""
        return sum(len(part.meta) for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts together."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def encoding(self) -> bytes | None:
        """The Avro binary encoding from which this state was decoded, if kept; copies do not have it."""
        return self._encoding

    def keep_encoding(self, encoding: bytes) -> None:
        """Keep the bytes from which this state was decoded, so that it need not be encoded again."""
        object.__setattr__(self, "_encoding", encoding)


def _check_content(what: str, meta: bytes, files: tuple[FileHandle, ...]) -> None:
    require(type(meta) is bytes, f"meta of {what} must be bytes")
    require(
        type(files) is tuple and all(type(file) is FileHandle for file in files),
        f"files of {what} must be a tuple of FileHandle objects",
    )
    paths = {file.path for file in files}
    require(len(paths) == len(files), f"{what} names the same file twice")


@frozen
class OperatorState:
    """All state of one operator: a `SubtaskState` for each of its subtasks, in the order of their indexes."""

    uid: str
    name: str
    max_parallelism: int
    subtasks: tuple[SubtaskState, ...]

    def __attrs_post_init__(self) -> None:
        check_identifier("operator uid", self.uid)
        check_identifier(f"name of operator {self.uid!r}", self.name)
        check_integer(f"max_parallelism of operator {self.uid!r}", self.max_parallelism, 1, MAX_MAX_PARALLELISM)
        require(
            type(self.subtasks) is tuple and all(type(subtask) is SubtaskState for subtask in self.subtasks),
            f"subtasks of operator {self.uid!r} must be a tuple of SubtaskState objects",
        )
        check_integer(f"parallelism of operator {self.uid!r}", self.parallelism, 1, self.max_parallelism)

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""
        return len(self.subtasks)

    @property
    def meta_bytes(self) -> int:
        """Bytes of the opaque metas of all subtasks, which are in `_metadata` instead of separate files."""
        return sum(subtask.meta_bytes for subtask in self.subtasks)

    @property
    def size_bytes(self) -> int:
        """Bytes of all state: metas, and files; a file that several subtasks share counts once."""
        return self.meta_bytes + sum(file.size_bytes for file in files_of_operators([self]))

    @property
    def keyed_handles(self) -> tuple[KeyedStateHandle, ...]:
        """The keyed state of all subtasks that have any, in order, which is also the order of the key groups."""
        return tuple([subtask.keyed for subtask in self.subtasks if subtask.keyed is not None])


def check_operator_state(operator: OperatorState) -> None:
    """Raise `InvariantViolationError` unless the keyed state of the subtasks, in order, covers the key groups.

    If there is any, it must cover 0 to max_parallelism - 1, each group exactly once.
    """
    expected_start = 0
    for index, subtask in enumerate(operator.subtasks):
        handle = subtask.keyed
        if handle is None:
            continue
        require(
            handle.key_group_start == expected_start,
            f"operator {operator.uid!r}, subtask {index}: its key groups must start at "
            f"{expected_start}, but its state {handle.state_id!r} covers {handle.key_group_start} to "
            f"{handle.key_group_end}; every key group must belong to exactly one subtask",
        )
        expected_start = handle.key_group_end + 1
    require(
        expected_start in (0, operator.max_parallelism),
        f"operator {operator.uid!r} must cover key groups 0 to {operator.max_parallelism - 1}, "
        f"but its subtasks end at {expected_start - 1}",
    )


def check_operator_states(operators: Iterable[OperatorState]) -> None:
    """Check each operator, and that no uid, state id or file is defined twice in different ways."""
    uids: set[str] = set()
    state_ids: set[str] = set()
    files: dict[str, FileHandle] = {}
    for operator in operators:
        require(operator.uid not in uids, f"two operators have the uid {operator.uid!r}")
        uids.add(operator.uid)
        check_operator_state(operator)
        for subtask in operator.subtasks:
            if subtask.keyed is not None:
                state_id = subtask.keyed.state_id
                require(state_id not in state_ids, f"two subtasks carry the state id {state_id!r}")
                state_ids.add(state_id)
            for part in subtask.parts:
                _add_files(files, {file.path: file for file in part.files})


def _add_files(files: dict[str, FileHandle], own: dict[str, FileHandle]) -> None:
    # A checkpoint may have a hundred thousand files, and almost none is shared by two subtasks.
    for path in files.keys() & own.keys() if not files.keys().isdisjoint(own) else ():
        if files[path] is not own[path] and files[path] != own[path]:
            raise InvariantViolationError(f"one file is described in two ways: {files[path]} and {own[path]}")
    files.update(own)


def files_by_path(operators: Iterable[OperatorState]) -> dict[str, FileHandle]:
    """Every distinct file that the operators refer to, by its path, in order of first mention."""
    return {
        file.path: file
        for operator in operators
        for subtask in operator.subtasks
        for part in subtask.parts
        for file in part.files
    }


def files_of_operators(operators: Iterable[OperatorState]) -> tuple[FileHandle, ...]:
    """Every distinct file that the operators refer to, in order of first mention."""
    return tuple(files_by_path(operators).values())
