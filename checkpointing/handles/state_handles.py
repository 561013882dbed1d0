"""Handles: what a checkpoint knows about state, without knowing what the state is.

A `FileHandle` names bytes in a store and can prove they are the right ones. A `KeyedStateHandle` is what one
subtask's backend hands over at a barrier: a range of key groups, the files that hold it, and `meta`,
bytes that only the backend reads. An `OperatorState` collects the handles of all subtasks of an operator.

Constructors check what concerns one object. `check_operator_state` checks what concerns the whole: every
key group from 0 to max_parallelism - 1 belongs to exactly one subtask. It runs before a checkpoint is
written and after it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import field, frozen

from checkpointing.errors import InvariantViolationError
from checkpointing.handles.checksum import is_checksum
from checkpointing.handles.relative_path import checked_relative_path

__all__ = [
    "MAX_MAX_PARALLELISM",
    "FileHandle",
    "KeyedStateHandle",
    "OperatorState",
    "SubtaskState",
    "check_operator_state",
    "check_operator_states",
    "files_by_path",
    "files_of_operators",
]

MAX_MAX_PARALLELISM = 1 << 15
"""Most key groups a job can have, as in Flink."""

MAX_NAME_LENGTH = 1024
"""Most characters of a uid, a name or any other identifier."""


def require(condition: bool, message: str) -> None:
    """Raise `InvariantViolationError(message)` unless `condition` holds."""
    if not condition:
        raise InvariantViolationError(message)


def check_identifier(what: str, value: object) -> None:
    """Require `value` to be a string of 1 to 1024 encodable characters; `what` names it in the message."""
    if not (isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH):
        raise InvariantViolationError(
            f"{what} must be a string of 1 to {MAX_NAME_LENGTH} characters, not {value!r:.80}"
        )
    check_encodable(what, value)


def check_encodable(what: str, value: str) -> None:
    """Require `value` to have a UTF-8 encoding, which lone surrogates have not."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvariantViolationError(f"{what} is not valid Unicode: {value!r:.80}") from None


def check_integer(what: str, value: object, low: int, high: int) -> None:
    """Require `value` to be an int (not a bool) with low <= value <= high."""
    if type(value) is not int or not low <= value <= high:
        raise InvariantViolationError(f"{what} must be an integer from {low} to {high}, not {value!r:.80}")


@frozen
class FileHandle:
    """A file in a store: `path` relative to the store's root, its size, and its checksum.

    Raises `UnsafePathError` or `InvariantViolationError` when built from anything else.
    """

    path: str
    size_bytes: int
    checksum: str

    def __attrs_post_init__(self) -> None:
        checked_relative_path(self.path)
        check_integer(f"size of file {self.path!r}", self.size_bytes, 0, (1 << 63) - 1)
        require(
            is_checksum(self.checksum),
            f"checksum of file {self.path!r} must look like 'xxh3:' and 32 hex digits, not {self.checksum!r}",
        )


@frozen
class KeyedStateHandle:
    """The state of one subtask at one barrier.

    `state_id` is unique for each snapshot ever taken, so two attempts at the same epoch differ in it.
    `backend` names the format of `meta` and `files`; `key_group_end` is inclusive. `meta` is opaque.
    """

    state_id: str
    backend: str
    key_group_start: int
    key_group_end: int
    meta: bytes = field(repr=lambda meta: f"<{len(meta)} bytes>")
    files: tuple[FileHandle, ...] = ()
    _encoding: bytes | None = field(default=None, init=False, eq=False, repr=False)

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
        require(type(self.meta) is bytes, f"meta of state {self.state_id!r} must be bytes")
        require(
            type(self.files) is tuple and all(type(file) is FileHandle for file in self.files),
            f"files of state {self.state_id!r} must be a tuple of FileHandle objects",
        )
        paths = [file.path for file in self.files]
        require(len(set(paths)) == len(paths), f"state {self.state_id!r} names the same file twice")

    def __getstate__(self) -> tuple[object, ...]:
        # Without its encoding, which would double what travels.
        return (self.state_id, self.backend, self.key_group_start, self.key_group_end, self.meta, self.files)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        names = ("state_id", "backend", "key_group_start", "key_group_end", "meta", "files")
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_encoding", None)

    @property
    def encoding(self) -> bytes | None:
        """The Avro binary encoding that this handle was decoded from, if it is kept; a copy of it has none."""
        return self._encoding

    def keep_encoding(self, encoding: bytes) -> None:
        """Keeps the bytes that this handle was just decoded from, for whoever writes it down again."""
        object.__setattr__(self, "_encoding", encoding)

    @property
    def size_bytes(self) -> int:
        """Bytes of `meta` and all files together."""
        return len(self.meta) + sum(file.size_bytes for file in self.files)


@frozen
class SubtaskState:
    """The handle that subtask `subtask_index` acknowledged with."""

    subtask_index: int
    handle: KeyedStateHandle

    def __attrs_post_init__(self) -> None:
        check_integer("subtask_index", self.subtask_index, 0, MAX_MAX_PARALLELISM - 1)
        require(type(self.handle) is KeyedStateHandle, "handle must be a KeyedStateHandle")


@frozen
class OperatorState:
    """All state of one operator: one `SubtaskState` for each of its `parallelism` subtasks, in order."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: tuple[SubtaskState, ...]

    def __attrs_post_init__(self) -> None:
        check_identifier("operator uid", self.uid)
        check_identifier(f"name of operator {self.uid!r}", self.name)
        check_integer(f"max_parallelism of operator {self.uid!r}", self.max_parallelism, 1, MAX_MAX_PARALLELISM)
        check_integer(f"parallelism of operator {self.uid!r}", self.parallelism, 1, self.max_parallelism)
        require(
            type(self.subtasks) is tuple and all(type(subtask) is SubtaskState for subtask in self.subtasks),
            f"subtasks of operator {self.uid!r} must be a tuple of SubtaskState objects",
        )


def check_operator_state(operator: OperatorState) -> None:
    """Raise `InvariantViolationError` unless

    1. the subtasks are 0 .. parallelism - 1 in this order, and
    2. their key-group ranges, in this order, cover 0 .. max_parallelism - 1, each group exactly once.
    """
    indexes = [subtask.subtask_index for subtask in operator.subtasks]
    require(
        indexes == list(range(operator.parallelism)),
        f"operator {operator.uid!r} has parallelism {operator.parallelism}, so its subtasks must be "
        f"0 to {operator.parallelism - 1} in order, not {_abbreviated(indexes)}",
    )
    expected_start = 0
    for subtask in operator.subtasks:
        handle = subtask.handle
        require(
            handle.key_group_start == expected_start,
            f"operator {operator.uid!r}, subtask {subtask.subtask_index}: its key groups must start at "
            f"{expected_start}, but its state {handle.state_id!r} covers {handle.key_group_start} to "
            f"{handle.key_group_end}; every key group must belong to exactly one subtask",
        )
        expected_start = handle.key_group_end + 1
    require(
        expected_start == operator.max_parallelism,
        f"operator {operator.uid!r} must cover key groups 0 to {operator.max_parallelism - 1}, "
        f"but its subtasks end at {expected_start - 1}",
    )


def check_operator_states(operators: Iterable[OperatorState]) -> None:
    """Check each operator, and that uids, state ids and file descriptions are unambiguous among them."""
    uids: set[str] = set()
    state_ids: set[str] = set()
    files: dict[str, FileHandle] = {}
    for operator in operators:
        require(operator.uid not in uids, f"two operators have the uid {operator.uid!r}")
        uids.add(operator.uid)
        check_operator_state(operator)
        for subtask in operator.subtasks:
            handle = subtask.handle
            require(handle.state_id not in state_ids, f"two subtasks carry the state id {handle.state_id!r}")
            state_ids.add(handle.state_id)
            own = {file.path: file for file in handle.files}
            # A checkpoint may have a hundred thousand files, and hardly ever one that two subtasks share.
            for path in files.keys() & own.keys() if not files.keys().isdisjoint(own) else ():
                if files[path] is not own[path] and files[path] != own[path]:
                    raise InvariantViolationError(f"one file is described in two ways: {files[path]} and {own[path]}")
            files.update(own)


def files_by_path(operators: Iterable[OperatorState]) -> dict[str, FileHandle]:
    """Every distinct file the operators refer to by its path, in order of first mention."""
    return {file.path: file for operator in operators for subtask in operator.subtasks for file in subtask.handle.files}


def files_of_operators(operators: Iterable[OperatorState]) -> tuple[FileHandle, ...]:
    """Every distinct file the operators refer to, in order of first mention."""
    return tuple(files_by_path(operators).values())


def _abbreviated(values: Sequence[int]) -> str:
    shown = ", ".join(str(value) for value in values[:8])
    return f"[{shown}, ...] ({len(values)} in all)" if len(values) > 8 else f"[{shown}]"
