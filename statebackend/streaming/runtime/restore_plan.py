"""Distributes the state of a checkpoint to the subtasks of a new run.

Keyed state is distributed by key groups: a subtask restores every old handle with a range that overlaps its own, and
selects its rows. With the same parallelism each subtask restores its own handle. Operator state is redistributed by its
mode, once per run. In later epochs of the run every subtask continues from its own state (`continued_subtask`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from attrs import frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import KeyedStateHandle, SubtaskState
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.operator_state_redistribution import (
    RestoredOperatorState,
    continued_operator_state,
    restored_operator_state,
)


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
