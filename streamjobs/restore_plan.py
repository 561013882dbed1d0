"""From the operator states of a checkpoint to what each subtask of the new run restores.

Key groups decide: a subtask takes every old handle whose range overlaps its own, and picks its rows from them. The same
parallelism gives every subtask its own handle back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from checkpoint.file_system import CheckpointFileSystem
from checkpoint.handles import OperatorState
from checkpoint.metadata import CheckpointMetadata
from statebackend.key_groups import KeyGroupRange, key_group_range_of_subtask
from statebackend.keyed_state_backend import RestoredHandle, StateBackend
from statebackend.state_meta import KeyedStateMeta, decode_meta, merge_metas
from streamjobs.errors import JobRestoreError


@frozen
class RestoredState:
    """The operator states to continue from, the store their files are in, and the checkpoint they belong to."""

    metadata: CheckpointMetadata
    file_system: CheckpointFileSystem

    def operator(self, uid: str) -> OperatorState | None:
        """The state of an operator, if there is any."""
        return next((operator for operator in self.metadata.operators if operator.uid == uid), None)

    def meta_of(self, uid: str) -> KeyedStateMeta | None:
        """What the state of an operator is, over all its subtasks."""
        operator = self.operator(uid)
        if operator is None:
            return None
        handles = [subtask.handle for subtask in operator.subtasks]
        return merge_metas([decode_meta(handle.meta, len(handle.files)) for handle in handles])


def handles_by_subtask(
    operator: OperatorState | None, file_system: CheckpointFileSystem, parallelism: int, max_parallelism: int
) -> tuple[tuple[RestoredHandle, ...], ...]:
    """For each new subtask the old handles that overlap its key groups."""
    if operator is None:
        return ((),) * parallelism
    plan = []
    for subtask_index in range(parallelism):
        key_groups = key_group_range_of_subtask(subtask_index, parallelism, max_parallelism)
        plan.append(
            tuple(
                RestoredHandle(subtask.handle, file_system)
                for subtask in operator.subtasks
                if key_groups.overlaps(KeyGroupRange(subtask.handle.key_group_start, subtask.handle.key_group_end))
            )
        )
    return tuple(plan)


def check_operators(
    restored: RestoredState, uids: Sequence[str], max_parallelism: int, allow_non_restored_state: bool
) -> None:
    """Raises `JobRestoreError` if the state does not fit the job's operators or key groups."""
    metadata = restored.metadata
    where = restored.file_system.location("")
    if metadata.max_parallelism != max_parallelism:
        raise JobRestoreError(
            f"the state at {where} has max_parallelism {metadata.max_parallelism}, the job {max_parallelism}: "
            f"keys would change their groups. Set max_parallelism={metadata.max_parallelism}"
        )
    unknown = [operator.uid for operator in metadata.operators if operator.uid not in uids]
    if unknown and not allow_non_restored_state:
        raise JobRestoreError(
            f"the state at {where} has operators that the job has not: {_listed(unknown)} (the job has "
            f"{_listed(uids)}). Give an operator its old uid back, or pass allow_non_restored_state=True to drop "
            f"their state"
        )


def check_backend(restored: RestoredState, backend: StateBackend) -> None:
    """Raises `JobRestoreError` if the state is in the own format of another backend."""
    for operator in restored.metadata.operators:
        for subtask in operator.subtasks:
            if not backend.can_restore(subtask.handle.backend):
                raise JobRestoreError(
                    f"the state of operator {operator.uid!r} at {restored.file_system.location('')} was written by the "
                    f"backend {subtask.handle.backend!r}, whose own format {backend.name!r} does not read. Take a "
                    f"savepoint with the old backend, and begin a new job directory from it with the new one"
                )


def check_states(operator_uid: str, unregistered: Sequence[str], allow_non_restored_state: bool) -> None:
    """Raises `JobRestoreError` if an operator does not register all its restored states."""
    if unregistered and not allow_non_restored_state:
        raise JobRestoreError(
            f"operator {operator_uid!r} has stored state that its open() does not register: {_listed(unregistered)}. "
            f"Register it under its old name, or pass allow_non_restored_state=True: it is then kept untouched and "
            f"goes into the next savepoint"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


