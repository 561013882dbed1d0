"""A coordinator, and an executor that carries out its actions at once unless a test holds them.

It records the visible effects by checkpoint id. Requests are numbered in the order in which they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from attrs import define, evolve, field
from checkpoint_builders import acknowledgement

from statebackend.checkpoint import CheckpointCoordinator, SubtaskState, TaskId
from statebackend.checkpoint.coordinator.job_checkpoints import JobCheckpoints
from statebackend.checkpoint.coordinator.messages import (
    Acknowledged,
    AnswerRequest,
    AssignId,
    CheckpointFailed,
    CheckpointNumbered,
    CheckpointProgressed,
    CheckpointRequested,
    CoordinatorAction,
    CoordinatorEvent,
    Declined,
    DiscardStates,
    FailJob,
    InitializeLocation,
    NotifyAborted,
    NotifyComplete,
    PeriodicTimerFired,
    RemoveLocation,
    RunMasterHooks,
    SchedulerStarted,
    SnapshotOperatorCoordinators,
    StartPeriodicTimer,
    StartTimeout,
    StopPeriodicTimer,
    StopTimeout,
    StoreCheckpoint,
    TasksChanged,
    TimedOut,
    TriggerTasks,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointTask, TaskStatus
from statebackend.checkpoint.coordinator.requests import (
    CheckpointFailureReason,
    CheckpointLimits,
    CheckpointRequestKind,
    FailurePolicy,
)

A, B = TaskId("counter", 0), TaskId("counter", 1)
TIMEOUT_MS: Final = 600
Kind = CheckpointRequestKind
Reason = CheckpointFailureReason


def running(*tasks: TaskId, status: TaskStatus = TaskStatus.RUNNING) -> tuple[CheckpointTask, ...]:
    return tuple(CheckpointTask(task, status) for task in tasks)


@define
class Outside:
    """The executor and its records. Actions of the ``held`` classes are collected in ``waiting``."""

    checkpoints: JobCheckpoints
    held: set[type] = field(factory=set)
    now_ms: int = 0
    waiting: list[CoordinatorAction] = field(factory=list)
    actions: list[CoordinatorAction] = field(factory=list)
    answers: dict[int, AnswerRequest] = field(factory=dict)
    timeouts: dict[int, int] = field(factory=dict)
    periodic_at_ms: int | None = None
    reported: list[int] = field(factory=list)
    stored: list[int] = field(factory=list)
    discarded: list[SubtaskState] = field(factory=list)
    next_id: int = 1
    next_request: int = 1

    def request(self, kind: Kind = Kind.ON_DEMAND) -> int:
        """Request a checkpoint, and return the number of the request."""
        number, self.next_request = self.next_request, self.next_request + 1
        self.handle(CheckpointRequested(number, kind, self.now_ms))
        return number

    def start(self, interval_ms: int) -> None:
        self.handle(SchedulerStarted(interval_ms, self.now_ms))

    def pass_time(self, until_ms: int) -> None:
        """Advance the clock and fire timers in order."""
        while True:
            due = [at_ms for at_ms in (self.periodic_at_ms, *self.timeouts.values()) if at_ms is not None]
            if not due or min(due) > until_ms:
                break
            self.now_ms = max(self.now_ms, min(due))
            for checkpoint_id in [one for one, at_ms in self.timeouts.items() if at_ms <= self.now_ms]:
                self.timeouts.pop(checkpoint_id, None)
                self.handle(TimedOut(checkpoint_id, self.now_ms))
            if self.periodic_at_ms is not None and self.periodic_at_ms <= self.now_ms:
                self.periodic_at_ms = None
                number, self.next_request = self.next_request, self.next_request + 1
                self.handle(PeriodicTimerFired(number, self.now_ms))
        self.now_ms = until_ms

    def acknowledge(self, checkpoint_id: int, *tasks: TaskId, **changes: Any) -> None:
        for task in tasks:
            one = acknowledgement(checkpoint_id, task.subtask_index, **changes)
            self.handle(Acknowledged(one, self.now_ms))

    def decline(self, checkpoint_id: int, task: TaskId, reason: Reason = Reason.DECLINED, job_id: str = "job") -> None:
        self.handle(Declined(job_id, "run", checkpoint_id, task, reason, "not now", self.now_ms))

    def fail(self, reason: Reason, *, checkpoint_id: int | None = None, request_id: int | None = None) -> None:
        self.handle(CheckpointFailed(reason, "disk full", self.now_ms, checkpoint_id, request_id))

    def release(self, kind: type) -> None:
        """Carry out the held actions of a class, and hold no more of them."""
        self.held.discard(kind)
        held = [one for one in self.waiting if type(one) is kind]
        self.waiting = [one for one in self.waiting if type(one) is not kind]
        for one in held:
            _CARRY_OUT[kind](self, one)

    def of(self, kind: type) -> list[Any]:
        return [one for one in self.actions if type(one) is kind]

    def handle(self, event: CoordinatorEvent) -> None:
        for action in self.checkpoints.handle(event):
            self.actions.append(action)
            if type(action) in self.held:
                self.waiting.append(action)
            else:
                _CARRY_OUT[type(action)](self, action)

    def _assign(self, action: AssignId) -> None:
        number, self.next_id = self.next_id, self.next_id + 1
        self.handle(CheckpointNumbered(action.request.request_id, number, self.now_ms))

    def _progress(self, action: InitializeLocation | SnapshotOperatorCoordinators | RunMasterHooks) -> None:
        self.handle(CheckpointProgressed(action.checkpoint_id, self.now_ms))

    def _tell(self, action: TriggerTasks) -> None:
        self.reported.append(action.checkpoint_id)

    def _store(self, action: StoreCheckpoint) -> None:
        self.stored.append(action.completed.checkpoint_id)
        self.handle(CheckpointProgressed(action.completed.checkpoint_id, self.now_ms))

    def _start_timeout(self, action: StartTimeout) -> None:
        self.timeouts[action.checkpoint_id] = action.at_ms

    def _stop_timeout(self, action: StopTimeout) -> None:
        self.timeouts.pop(action.checkpoint_id, None)

    def _start_periodic(self, action: StartPeriodicTimer) -> None:
        self.periodic_at_ms = action.at_ms

    def _stop_periodic(self, action: StopPeriodicTimer) -> None:
        self.periodic_at_ms = None

    def _answer(self, action: AnswerRequest) -> None:
        assert action.request_id not in self.answers
        self.answers[action.request_id] = action

    def _discard(self, action: DiscardStates) -> None:
        self.discarded.extend(action.states)

    def _note(self, action: CoordinatorAction) -> None:
        """Record the action. It has no other effect."""


_CARRY_OUT: Final[Mapping[type, Callable[[Outside, Any], None]]] = {
    AssignId: Outside._assign,
    InitializeLocation: Outside._progress,
    SnapshotOperatorCoordinators: Outside._progress,
    RunMasterHooks: Outside._progress,
    TriggerTasks: Outside._tell,
    StoreCheckpoint: Outside._store,
    StartTimeout: Outside._start_timeout,
    StopTimeout: Outside._stop_timeout,
    StartPeriodicTimer: Outside._start_periodic,
    StopPeriodicTimer: Outside._stop_periodic,
    AnswerRequest: Outside._answer,
    DiscardStates: Outside._discard,
    NotifyComplete: Outside._note,
    NotifyAborted: Outside._note,
    RemoveLocation: Outside._note,
    FailJob: Outside._note,
}


def outside(
    *,
    most: int = 1,
    pause_ms: int = 0,
    waiting: int = 1000,
    tolerable: int = 0,
    tasks: tuple[CheckpointTask, ...] | None = None,
    held: Collection[type] = (),
    **changes: Any,
) -> Outside:
    """A job with two running subtasks at time 0."""
    limits = CheckpointLimits(max_concurrent_checkpoints=most, minimum_pause_ms=pause_ms, max_waiting_requests=waiting)
    coordinator = CheckpointCoordinator("job", "run", TIMEOUT_MS, max_parallelism=4, max_concurrent_checkpoints=None)
    one = Outside(JobCheckpoints(coordinator, limits=limits, failures=FailurePolicy(tolerable), **changes), set(held))
    one.handle(TasksChanged(running(A, B) if tasks is None else tasks))
    return one


def states(checkpoint_id: int, *tasks: TaskId) -> list[SubtaskState]:
    return [acknowledgement(checkpoint_id, task.subtask_index).state for task in tasks]


def is_clean(one: Outside) -> bool:
    return one.checkpoints.pending_ids == () and not one.timeouts


def stateless(checkpoint_id: int, task: TaskId) -> object:
    one = acknowledgement(checkpoint_id, task.subtask_index, operator_uid=task.operator_uid)
    return evolve(one, state=SubtaskState())
