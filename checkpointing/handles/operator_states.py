"""The state of an operator: that of all its subtasks, and what must hold among them.

`check_operator_states` runs before a checkpoint is written and after it was read. Its heart: wherever an operator has
keyed state, every key group from 0 to max_parallelism - 1 belongs to exactly one subtask. An operator without keyed
state is valid, and so is a subtask without state.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from checkpointing.errors import InvariantViolationError
from checkpointing.handles.invariants import check_identifier, check_integer, require
from checkpointing.handles.state_handles import MAX_MAX_PARALLELISM, FileHandle, KeyedStateHandle, SubtaskState

__all__ = ["OperatorState", "check_operator_state", "check_operator_states", "files_by_path", "files_of_operators"]


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
        """Bytes of the opaque metas of all subtasks, which lie in `_metadata` and in no file of their own."""
        return sum(subtask.meta_bytes for subtask in self.subtasks)

    @property
    def size_bytes(self) -> int:
        """Bytes of all state: files, each once however many subtasks refer to it, and metas."""
        return self.meta_bytes + sum(file.size_bytes for file in files_of_operators([self]))

    @property
    def keyed_handles(self) -> tuple[KeyedStateHandle, ...]:
        """The keyed state of all subtasks that have any, in their order, which is that of the key groups."""
        return tuple([subtask.keyed for subtask in self.subtasks if subtask.keyed is not None])


def check_operator_state(operator: OperatorState) -> None:
    """Raise `InvariantViolationError` unless the keyed state of the subtasks, in their order, covers the key groups.

    Where there is any, 0 to max_parallelism - 1 must be covered, each group exactly once.
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
    """Check each operator, and that uids, state ids and file descriptions are unambiguous among them."""
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
    # A checkpoint may have a hundred thousand files, and hardly ever one that two subtasks share.
    for path in files.keys() & own.keys() if not files.keys().isdisjoint(own) else ():
        if files[path] is not own[path] and files[path] != own[path]:
            raise InvariantViolationError(f"one file is described in two ways: {files[path]} and {own[path]}")
    files.update(own)


def files_by_path(operators: Iterable[OperatorState]) -> dict[str, FileHandle]:
    """Every distinct file the operators refer to by its path, in order of first mention."""
    return {
        file.path: file
        for operator in operators
        for subtask in operator.subtasks
        for part in subtask.parts
        for file in part.files
    }


def files_of_operators(operators: Iterable[OperatorState]) -> tuple[FileHandle, ...]:
    """Every distinct file the operators refer to, in order of first mention."""
    return tuple(files_by_path(operators).values())
