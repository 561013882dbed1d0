"""What each subtask of a new run restores, from the operator states of a checkpoint.

Keyed state follows key groups: a subtask restores every old handle whose range overlaps its own, and selects its rows.
With the same parallelism each subtask gets its own handle. Operator state is redistributed by its mode, once per run;
later epochs of the run return to every subtask what it had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import KeyedStateHandle, OperatorState, SubtaskState, files_of_operators
from statebackend.savepoint.restored_state import RestoredState, StoredSchemas
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.operator_state_redistribution import (
    RestoredOperatorState,
    continued_operator_state,
    restored_operator_state,
)
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_compatibility import SchemaReport
from statebackend.state.state_meta import decode_meta, merge_metas
from statebackend.streaming.errors import JobRestoreError


@frozen
class SubtaskRestore:
    """What one subtask restores; picklable. ``is_restored`` says whether an earlier run wrote it."""

    keyed: tuple[RestoredHandle, ...] = ()
    operator: RestoredOperatorState | None = None
    is_restored: bool = False


def restores_by_subtask(
    operator: OperatorState | None,
    file_system: CheckpointFileSystem,
    parallelism: int,
    max_parallelism: int,
    *,
    is_same_run: bool,
) -> tuple[SubtaskRestore, ...]:
    """For each subtask the old handles that overlap its key groups, and its share of the operator state.

    ``is_same_run`` says that the state is that of the epoch before, in this run: then nothing is dealt out again.
    Takes time in proportion to the old and the new subtasks, and the overlaps.
    """
    if operator is None:
        return (SubtaskRestore(),) * parallelism
    if is_same_run:
        return tuple(continued_subtask(subtask, file_system) for subtask in operator.subtasks)
    dealt = restored_operator_state([subtask.operator for subtask in operator.subtasks], file_system, parallelism)
    handles = operator.keyed_handles
    keyed = [RestoredHandle(handle, file_system) for handle in handles]
    plan = []
    for own, overlap in zip(dealt, _overlaps(handles, parallelism, max_parallelism), strict=True):
        plan.append(SubtaskRestore(tuple(keyed[overlap]), own if own.states else None, is_restored=True))
    return tuple(plan)


def _overlaps(handles: Sequence[KeyedStateHandle], parallelism: int, max_parallelism: int) -> Iterator[slice]:
    """For each subtask of the new run which of the old handles have key groups of its own."""
    ends = [handle.key_group_end for handle in handles]
    for subtask_index in range(parallelism):
        key_groups = key_group_range_of_subtask(subtask_index, parallelism, max_parallelism)
        # The ranges of the handles follow each other without a gap.
        yield slice(bisect_left(ends, key_groups.start), bisect_left(ends, key_groups.end) + 1)


def continued_subtask(state: SubtaskState, file_system: CheckpointFileSystem) -> SubtaskRestore:
    """What a subtask restores that goes on from its own state, in the run that wrote it."""
    keyed = () if state.keyed is None else (RestoredHandle(state.keyed, file_system),)
    [own] = continued_operator_state([state.operator], file_system)
    return SubtaskRestore(keyed, own if own.states else None)


def check_operators(
    stored: StoredSchemas, uids: Sequence[str], max_parallelism: int, allow_non_restored_state: bool
) -> None:
    """Raises `JobRestoreError` if the state does not fit the job's operators or key groups."""
    where = stored.where
    rejection = rejection_of_key_groups(stored, max_parallelism)
    if rejection is not None:
        raise JobRestoreError(rejection)
    unknown = [uid for uid in stored.operator_uids if uid not in uids]
    if unknown and not allow_non_restored_state:
        raise JobRestoreError(
            f"the state at {where} has operators that the job has not: {_listed(unknown)} (the job has "
            f"{_listed(uids)}). Give an operator its old uid back, or the state the new one "
            f"(Plan().rename_operator, docs/changing-state.md); or pass allow_non_restored_state=True to drop their "
            f"state"
        )


def rejection_of_key_groups(stored: StoredSchemas, max_parallelism: int) -> str | None:
    """Why no job of that `max_parallelism` can start from the state, with the ways out; None if it can."""
    if stored.max_parallelism == max_parallelism:
        return None
    return (
        f"the state at {stored.where} has max_parallelism {stored.max_parallelism}, the job {max_parallelism}: "
        f"keys would change their groups. Set max_parallelism={stored.max_parallelism}; or start from a savepoint that "
        f"was rewritten with Plan().change_max_parallelism({max_parallelism}) (docs/changing-state.md)"
    )


def check_no_channel_state(restored: RestoredState, uids: Iterable[str]) -> None:
    """Raises `JobRestoreError` if the state of these operators has records that were on their way.

    For a runtime in which no subtask takes them in; to leave them out would lose them.
    """
    for uid in uids:
        operator = restored.operator(uid)
        for index, subtask in enumerate(() if operator is None else operator.subtasks):
            if subtask.has_records_on_their_way:
                raise JobRestoreError(
                    f"subtask {index} of operator {uid!r} has records on their way among its state at "
                    f"{restored.file_system.location('')}, which only the in-process runtime takes in. Nothing was "
                    f"changed; take a savepoint there, which never has such records, and continue from that"
                )


def check_files(restored: RestoredState, uids: Iterable[str]) -> None:
    """Raises `MissingFileError` or `CorruptFileError` if a file of these operators is absent or of another size.

    One look at each file and no reading. Subtasks that still have the state on their local disks would not look, and
    the next checkpoints would go on referring to what is not there.
    """
    kept = frozenset(uids)
    operators = [operator for operator in restored.metadata.operators if operator.uid in kept]
    restored.file_system.verify_present(files_of_operators(operators))


def check_backend(restored: RestoredState, backend: StateBackend) -> None:
    """Raises `JobRestoreError` if the state is in the own format of another backend."""
    for operator in restored.metadata.operators:
        for handle in operator.keyed_handles:
            if not backend.can_restore(handle.backend):
                raise JobRestoreError(
                    f"the state of operator {operator.uid!r} at {restored.file_system.location('')} was written by the "
                    f"backend {handle.backend!r}, whose own format {backend.name!r} does not read. Take a "
                    f"savepoint with the old backend, and begin a new job directory from it with the new one"
                )


def check_merges(restored: RestoredState, uids: Iterable[str], parallelism: int) -> None:
    """Raises `JobRestoreError` if a subtask of the new run would have to read one state under two schemas.

    Every subtask would find out for itself, after the run has begun.
    """
    for uid in uids:
        operator = restored.operator(uid)
        if operator is None or len(restored.keyed_metas_of(uid)) < 2:
            continue
        handles = operator.keyed_handles
        metas = [decode_meta(handle.meta, len(handle.files)) for handle in handles]
        try:
            for overlap in _overlaps(handles, parallelism, operator.max_parallelism):
                merge_metas(metas[overlap])
        except StateRestoreError as error:
            raise JobRestoreError(
                f"operator {uid!r} cannot go from parallelism {operator.parallelism} to {parallelism}; nothing was "
                f"changed: {error}"
            ) from error


def check_states(report: SchemaReport, allow_non_restored_state: bool) -> None:
    """Raises `JobRestoreError` if an operator does not register all its restored states."""
    unregistered = [repr(name) for name in report.unregistered]
    unregistered += [f"{name!r} (operator state)" for name in report.unregistered_operator_state]
    if unregistered and not allow_non_restored_state:
        raise JobRestoreError(
            f"operator {report.operator_uid!r} has stored state that its open() does not register: "
            f"{', '.join(unregistered)}. Register it under its old name, or pass allow_non_restored_state=True: it is "
            f"then kept untouched and goes into the next savepoint"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
