"""The driver's side of the checkpoint protocol, as a pure state machine.

Events are method calls, decisions are return values. There is no clock, thread or storage here: the caller passes the
time, runs the tasks, writes the metadata, and discards the returned states. Each checkpoint follows the table in
`pending_checkpoint`; this class manages several of them.

Invariants:
1. Checkpoint ids strictly increase within a run. An id is never used twice, so a late message about it can be
   recognised. The replay of an epoch after a failure is a new checkpoint, in a new run or with a greater id. The caller
   assigns ids; only their order matters. The caller knows which batch the records of a checkpoint come from; several
   checkpoints may have the same batch or none.
2. A message of another job or run changes nothing, and its state is never touched: the replaced or the replacing run
   may be using it.
3. All acknowledged state is in exactly one place: a pending checkpoint, the result of `complete`, or the states to
   discard of some result. An acknowledgement that arrives twice (with equal state) counts once.
4. An illegal event raises `IllegalTransitionError` and changes nothing.

States to discard may share files with live checkpoints; `CompletedCheckpointStore.discard` deletes only unshared
files. The classification of acknowledgements is Flink's.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter

from attrs import frozen

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.pending_checkpoint import (
    CheckpointEvent,
    CheckpointState,
    CompletedCheckpoint,
    PendingCheckpoint,
)
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.checkpoint.invariants import MAX_ID, check_identifier, check_integer, require
from statebackend.checkpoint.state_handles import OperatorState, SubtaskState, check_operator_states

__all__ = [
    "AbortedCheckpoint",
    "AcknowledgementOutcome",
    "AcknowledgementResult",
    "CheckpointCoordinator",
]

_TASK_ORDER = attrgetter("operator_uid", "subtask_index")
"""The order of `TaskId`, whose own comparison is slower."""

_REMEMBERED_ENDS = 64
"""How many ended checkpoints are remembered for error messages."""


class AcknowledgementOutcome(enum.Enum):
    """The result for an acknowledgement."""

    SUCCESS = "recorded"
    DUPLICATE = "the task has already acknowledged the same content"
    CONFLICT = "the task has already acknowledged different content: fail the epoch and replay it"
    UNKNOWN = "no such task takes part in this checkpoint"
    DISCARDED = "the checkpoint is not pending"
    FOREIGN = "of another job or run"


@frozen
class AcknowledgementResult:
    """The outcome, and the states whose files are no longer needed (never those of a FOREIGN message)."""

    outcome: AcknowledgementOutcome
    states_to_discard: tuple[SubtaskState, ...] = ()
    detail: str = ""


@frozen
class AbortedCheckpoint:
    """A checkpoint that ended without completing, and its acknowledged state."""

    checkpoint_id: int
    state: CheckpointState
    reason: str
    states_to_discard: tuple[SubtaskState, ...]


class CheckpointCoordinator:
    """Coordinates the checkpoints of one run of one job. Not thread-safe; one driver thread needs no lock.

    `timeout_ms` counts from the trigger; None means no limit. `last_checkpoint_id` is the newest id already
    used in this job directory, None in a fresh one. `operator_names` are the names of operators in the
    result, by uid (default: the uid). `max_parallelism` is checked against the acknowledged key groups;
    when None, it is taken from them. `max_concurrent_checkpoints` is None if the caller enforces the limit.
    """

    def __init__(
        self,
        job_id: str,
        run_id: str,
        timeout_ms: int | None,
        *,
        max_parallelism: int | None = None,
        operator_names: Mapping[str, str] | None = None,
        last_checkpoint_id: int | None = None,
        max_concurrent_checkpoints: int | None = 1,
    ) -> None:
        check_identifier("job_id", job_id)
        check_identifier("run_id", run_id)
        if timeout_ms is not None:
            check_integer("timeout_ms", timeout_ms, 1, MAX_ID)
        if max_concurrent_checkpoints is not None:
            check_integer("max_concurrent_checkpoints", max_concurrent_checkpoints, 1, 1000)
        self.job_id = job_id
        self.run_id = run_id
        self.timeout_ms = timeout_ms
        self.max_concurrent_checkpoints = max_concurrent_checkpoints
        self._max_parallelism = max_parallelism
        self._operator_names = dict(operator_names or {})
        self._last_triggered_id = -1 if last_checkpoint_id is None else last_checkpoint_id
        self._pending: dict[int, PendingCheckpoint] = {}
        self._last_completed: PendingCheckpoint | None = None
        self._ended: deque[tuple[int, CheckpointState, str]] = deque(maxlen=_REMEMBERED_ENDS)

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Ids of the checkpoints that are neither completed nor ended, oldest first."""
        return tuple(self._pending)

    @property
    def last_completed_id(self) -> int | None:
        """Id of the newest checkpoint of this run that completed."""
        return None if self._last_completed is None else self._last_completed.checkpoint_id

    def state_of(self, checkpoint_id: int) -> CheckpointState | None:
        """State of a checkpoint; None if it was never triggered or ended too long ago."""
        if checkpoint_id in self._pending:
            return self._pending[checkpoint_id].state
        return next((state for known, state, _ in self._ended if known == checkpoint_id), None)

    def missing_tasks(self, checkpoint_id: int) -> tuple[TaskId, ...]:
        """Tasks of a pending checkpoint that have not acknowledged, sorted."""
        return self._get("MISSING_TASKS", checkpoint_id).missing_tasks()

    def why_late(self, checkpoint_id: int) -> str:
        """The reason for a timeout: the tasks that a late pending checkpoint misses."""
        missing = ", ".join(map(str, self.missing_tasks(checkpoint_id)[:10])) or "nothing"
        return f"not complete after {self.timeout_ms} ms; missing: {missing}"

    def acknowledgements(self, checkpoint_id: int) -> Mapping[TaskId, Acknowledgement]:
        """Acknowledgements recorded so far for a pending checkpoint or the one completed last."""
        if checkpoint_id == self.last_completed_id and self._last_completed is not None:
            return self._last_completed.acknowledgements
        return self._get("ACKNOWLEDGEMENTS", checkpoint_id).acknowledgements

    def files_in_use(self) -> frozenset[str]:
        """Paths of all files that pending checkpoints refer to, and that must not be deleted."""
        return frozenset(
            file.path for pending in self._pending.values() for state in pending.states for file in state.files
        )

    def trigger(
        self, checkpoint_id: int, tasks: Collection[TaskId], now_ms: int, finished: Collection[TaskId] = ()
    ) -> None:
        """Start a checkpoint that `tasks` must acknowledge. Without tasks it can be completed at once.

        Tasks in `finished` count as subtasks without state. Together the subtasks of an operator must be 0, 1, 2, ...

        Raises `IllegalTransitionError` if the id is not greater than all before or too many checkpoints are pending,
        `InvariantViolationError` if the tasks are inconsistent.
        """
        check_integer("checkpoint_id", checkpoint_id, 0, MAX_ID)
        _check_tasks((*tasks, *finished))
        for check in self._TRIGGER_CHECKS:
            check(self, checkpoint_id)
        self._pending[checkpoint_id] = PendingCheckpoint(checkpoint_id, tasks, now_ms, finished)
        self._last_triggered_id = checkpoint_id

    def acknowledge(self, acknowledgement: Acknowledgement) -> AcknowledgementResult:
        """Process an acknowledgement. Returns a result for every message; never raises."""
        if acknowledgement.job_id != self.job_id or acknowledgement.run_id != self.run_id:
            return AcknowledgementResult(
                AcknowledgementOutcome.FOREIGN,
                detail=f"from run {acknowledgement.run_id} of job {acknowledgement.job_id}, "
                f"this is run {self.run_id} of job {self.job_id}",
            )
        pending = self._pending.get(acknowledgement.checkpoint_id)
        if pending is None:
            return self._discard_late(acknowledgement)
        if acknowledgement.task not in pending.tasks:
            return _rejected(AcknowledgementOutcome.UNKNOWN, acknowledgement, "")
        known = pending.acknowledgements.get(acknowledgement.task)
        if known is not None:
            return _classify_repetition(pending, known, acknowledgement)
        if pending.state is CheckpointState.CONFLICTED:
            return _rejected(AcknowledgementOutcome.DISCARDED, acknowledgement, "the checkpoint is in conflict")
        pending.record(acknowledgement)
        return AcknowledgementResult(AcknowledgementOutcome.SUCCESS)

    def complete(self, checkpoint_id: int) -> CompletedCheckpoint:
        """Complete a checkpoint that all tasks have acknowledged.

        The caller then owns the state: it stores the metadata, or calls `storing_failed`. Raises
        `IncompleteCheckpointError` with the missing tasks, `IllegalTransitionError`, or
        `InvariantViolationError` if the acknowledged key groups do not cover the operator. After an error nothing
        has changed, and the checkpoint can be aborted.
        """
        pending = self._get(CheckpointEvent.COMPLETE.name, checkpoint_id)
        pending.check(CheckpointEvent.COMPLETE)
        operators = self._operators_of(pending)
        check_operator_states(operators)
        self._end(pending, CheckpointEvent.COMPLETE, "")
        self._last_completed = pending
        return CompletedCheckpoint(
            checkpoint_id=checkpoint_id,
            operators=operators,
            channel_timestamps=pending.channel_timestamps(),
            timers_due=pending.timers_due(),
        )

    def storing_failed(self, checkpoint_id: int, reason: str) -> AbortedCheckpoint:
        """Undo the last completion, because the checkpoint could not be stored."""
        pending = self._last_completed
        if pending is None or pending.checkpoint_id != checkpoint_id:
            raise self._illegal(CheckpointEvent.FAIL_STORING.name, checkpoint_id)
        self._last_completed = None
        return self._end(pending, CheckpointEvent.FAIL_STORING, reason)

    def abort(self, checkpoint_id: int, reason: str) -> AbortedCheckpoint:
        """End a pending checkpoint without completing it."""
        return self._end(self._get(CheckpointEvent.ABORT.name, checkpoint_id), CheckpointEvent.ABORT, reason)

    def expire(self, now_ms: int) -> tuple[AbortedCheckpoint, ...]:
        """End all pending checkpoints that were triggered `timeout_ms` ago or earlier."""
        if self.timeout_ms is None:
            return ()
        timeout_ms = self.timeout_ms
        late = [p for p in self._pending.values() if now_ms - p.triggered_ms >= timeout_ms]
        return tuple(
            self._end(
                pending,
                CheckpointEvent.EXPIRE,
                self.why_late(pending.checkpoint_id),
            )
            for pending in late
        )

    def subsume(self, checkpoint_id: int) -> AbortedCheckpoint:
        """End a pending checkpoint, because a newer one has completed.

        Raises `IllegalTransitionError` if the last completed one is not newer.
        """
        pending = self._get(CheckpointEvent.SUBSUME.name, checkpoint_id)
        if self.last_completed_id is None or self.last_completed_id < checkpoint_id:
            raise self._illegal(CheckpointEvent.SUBSUME.name, checkpoint_id)
        return self._end(pending, CheckpointEvent.SUBSUME, f"checkpoint {self.last_completed_id} completed first")

    def _check_id_increases(self, checkpoint_id: int) -> None:
        if checkpoint_id <= self._last_triggered_id:
            state = self.state_of(checkpoint_id)
            raise IllegalTransitionError(
                "TRIGGER",
                "NOT_TRIGGERED" if state is None else state.name,
                f"checkpoint ids strictly increase; {checkpoint_id} is not greater than "
                f"{self._last_triggered_id}, the last one triggered",
            )

    def _check_concurrency(self, checkpoint_id: int) -> None:
        most = self.max_concurrent_checkpoints
        if most is not None and len(self._pending) >= most:
            listed = ", ".join(f"{p.checkpoint_id} ({p.state.name})" for p in self._pending.values())
            raise IllegalTransitionError(
                "TRIGGER",
                "NOT_TRIGGERED",
                f"checkpoint {checkpoint_id} must wait: {len(self._pending)} pending ({listed}), "
                f"the limit is {most}. Complete or abort it first.",
            )

    _TRIGGER_CHECKS: tuple[Callable[[CheckpointCoordinator, int], None], ...] = (
        _check_id_increases,
        _check_concurrency,
    )

    def _discard_late(self, acknowledgement: Acknowledgement) -> AcknowledgementResult:
        completed = self._last_completed
        if completed is not None and completed.checkpoint_id == acknowledgement.checkpoint_id:
            known = completed.acknowledgements.get(acknowledgement.task)
            if known is not None and known.state == acknowledgement.state:
                # The completed checkpoint owns this state, so it must not be discarded.
                return AcknowledgementResult(AcknowledgementOutcome.DISCARDED, detail="a repetition")
        state = self.state_of(acknowledgement.checkpoint_id)
        return _rejected(AcknowledgementOutcome.DISCARDED, acknowledgement, state.name if state else "never triggered")

    def _operators_of(self, pending: PendingCheckpoint) -> tuple[OperatorState, ...]:
        by_uid: dict[str, list[SubtaskState]] = {}
        for task in sorted((*pending.tasks, *pending.finished), key=_TASK_ORDER):
            known = pending.acknowledgements.get(task)
            by_uid.setdefault(task.operator_uid, []).append(SubtaskState() if known is None else known.state)
        return tuple(
            OperatorState(
                uid=uid,
                name=self._operator_names.get(uid, uid),
                max_parallelism=self._max_parallelism or _key_groups_of(subtasks),
                subtasks=tuple(subtasks),
            )
            for uid, subtasks in by_uid.items()
        )

    def _end(self, pending: PendingCheckpoint, event: CheckpointEvent, reason: str) -> AbortedCheckpoint:
        pending.advance(event)
        self._pending.pop(pending.checkpoint_id, None)
        self._ended.appendleft((pending.checkpoint_id, pending.state, reason))
        return AbortedCheckpoint(pending.checkpoint_id, pending.state, reason, pending.states)

    def _get(self, event: str, checkpoint_id: int) -> PendingCheckpoint:
        try:
            return self._pending[checkpoint_id]
        except KeyError:
            raise self._illegal(event, checkpoint_id) from None

    def _illegal(self, event: str, checkpoint_id: int) -> IllegalTransitionError:
        state = self.state_of(checkpoint_id)
        reason = next((reason for known, _, reason in self._ended if known == checkpoint_id), "")
        return IllegalTransitionError(
            event,
            "NOT_TRIGGERED" if state is None else state.name,
            f"checkpoint {checkpoint_id}" + (f" ({reason})" if reason else ""),
        )


def _check_tasks(tasks: Collection[TaskId]) -> None:
    require(len(set(tasks)) == len(tasks), "the tasks of a checkpoint must be distinct")
    by_uid: dict[str, list[int]] = {}
    for task in sorted(tasks, key=_TASK_ORDER):
        by_uid.setdefault(task.operator_uid, []).append(task.subtask_index)
    for uid, indexes in by_uid.items():
        require(
            indexes == list(range(len(indexes))),
            f"the subtasks of operator {uid!r} must be 0 to {len(indexes) - 1}, not {indexes[:20]}",
        )


def _classify_repetition(
    pending: PendingCheckpoint, known: Acknowledgement, acknowledgement: Acknowledgement
) -> AcknowledgementResult:
    """Classify a repeated acknowledgement: harmless with the same content, otherwise fatal for the epoch."""
    is_same_state = known.state == acknowledgement.state
    surplus = () if is_same_state else (acknowledgement.state,)
    if known.digest == acknowledgement.digest:
        return AcknowledgementResult(AcknowledgementOutcome.DUPLICATE, surplus)
    if pending.state is not CheckpointState.CONFLICTED:
        pending.advance(CheckpointEvent.CONFLICT)
    return AcknowledgementResult(
        AcknowledgementOutcome.CONFLICT,
        surplus,
        f"{known.task} acknowledged checkpoint {known.checkpoint_id} with digest {known.digest} "
        f"(attempt {known.attempt_id}) and with digest {acknowledgement.digest} "
        f"(attempt {acknowledgement.attempt_id}): processing is not deterministic or an attempt read "
        "other input",
    )


def _key_groups_of(subtasks: Sequence[SubtaskState]) -> int:
    """The number of key groups of the state; without keyed state the smallest possible number."""
    return max([len(subtasks), *[one.keyed.key_group_end + 1 for one in subtasks if one.keyed is not None]])


def _rejected(outcome: AcknowledgementOutcome, acknowledgement: Acknowledgement, detail: str) -> AcknowledgementResult:
    return AcknowledgementResult(outcome, (acknowledgement.state,), detail)
