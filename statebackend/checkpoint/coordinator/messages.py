"""Messages to and from the coordinator of a job's checkpoints.

Requests and answers carry request ids, which the caller assigns; all other messages carry checkpoint ids. Times are
milliseconds of one clock of the caller.
"""

from __future__ import annotations

from collections.abc import Collection

from attrs import frozen

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointTask, CompletedCheckpoint
from statebackend.checkpoint.coordinator.requests import (
    CheckpointFailureReason,
    CheckpointRequest,
    CheckpointRequestKind,
)
from statebackend.checkpoint.state_handles import SubtaskState

__all__ = [
    "Acknowledged",
    "AnswerRequest",
    "AssignId",
    "CheckpointFailed",
    "CheckpointNumbered",
    "CheckpointProgressed",
    "CheckpointRequested",
    "CoordinatorAction",
    "CoordinatorEvent",
    "Declined",
    "DiscardStates",
    "FailJob",
    "InitializeLocation",
    "NotifyAborted",
    "NotifyComplete",
    "PeriodicTimerFired",
    "RemovalsChanged",
    "RemoveLocation",
    "RunMasterHooks",
    "SchedulerStarted",
    "SchedulerStopped",
    "Shutdown",
    "SnapshotOperatorCoordinators",
    "StartPeriodicTimer",
    "StartTimeout",
    "StopPeriodicTimer",
    "StopTimeout",
    "StoreCheckpoint",
    "Suspended",
    "TasksChanged",
    "TellTasks",
    "TimedOut",
]


@frozen
class TasksChanged:
    """All tasks of the job, and where they are in their lives."""

    tasks: Collection[CheckpointTask]


@frozen
class SchedulerStarted:
    """Checkpoints are taken every so often from now on, the first one after that time."""

    interval_ms: int
    now_ms: int


@frozen
class SchedulerStopped:
    """No checkpoint is taken by the clock any more; what was asked for is."""


@frozen
class Suspended:
    """The job is suspended: pending checkpoints are aborted, and requests rejected, until the scheduler starts."""

    now_ms: int


@frozen
class Shutdown:
    """No more checkpoints start."""

    now_ms: int


@frozen
class PeriodicTimerFired:
    """The time of `StartPeriodicTimer` has come; ``request_id`` is for the request that it makes."""

    request_id: int
    now_ms: int


@frozen
class CheckpointRequested:
    """Somebody asks for a checkpoint or a savepoint."""

    request_id: int
    kind: CheckpointRequestKind
    now_ms: int


@frozen
class CheckpointNumbered:
    """The answer to `AssignId`."""

    request_id: int
    checkpoint_id: int
    now_ms: int


@frozen
class CheckpointProgressed:
    """What was asked for last of that checkpoint is done: its place, coordinators, hooks, or storage."""

    checkpoint_id: int
    now_ms: int


@frozen
class CheckpointFailed:
    """A requested action failed. The request identifies a checkpoint that has no id yet."""

    reason: CheckpointFailureReason
    detail: str
    now_ms: int
    checkpoint_id: int | None = None
    request_id: int | None = None


@frozen
class Acknowledged:
    """A task has stored its state."""

    acknowledgement: Acknowledgement
    now_ms: int


@frozen
class Declined:
    """A task cannot take part."""

    job_id: str
    run_id: str
    checkpoint_id: int
    task: TaskId
    reason: CheckpointFailureReason
    detail: str
    now_ms: int


@frozen
class TimedOut:
    """The time of `StartTimeout` has come."""

    checkpoint_id: int
    now_ms: int


@frozen
class RemovalsChanged:
    """So many old checkpoints are being removed."""

    count: int
    now_ms: int


CoordinatorEvent = (
    TasksChanged
    | SchedulerStarted
    | SchedulerStopped
    | Suspended
    | Shutdown
    | PeriodicTimerFired
    | CheckpointRequested
    | CheckpointNumbered
    | CheckpointProgressed
    | CheckpointFailed
    | Acknowledged
    | Declined
    | TimedOut
    | RemovalsChanged
)


@frozen
class AssignId:
    """Answer with `CheckpointNumbered`: an id greater than all before, durably taken."""

    request: CheckpointRequest


@frozen
class InitializeLocation:
    """Make the place where the checkpoint will be stored."""

    checkpoint_id: int
    kind: CheckpointRequestKind


@frozen
class RemoveLocation:
    """Remove the place, which nothing refers to."""

    checkpoint_id: int


@frozen
class SnapshotOperatorCoordinators:
    """Ask what operators have on the driver for its state."""

    checkpoint_id: int


@frozen
class RunMasterHooks:
    """Let what is outside of the job take part."""

    checkpoint_id: int


@frozen
class TellTasks:
    """These tasks begin the checkpoint; the barriers go on from them."""

    checkpoint_id: int
    kind: CheckpointRequestKind
    tasks: tuple[TaskId, ...]


@frozen
class StartTimeout:
    """Tell `TimedOut` at that time."""

    checkpoint_id: int
    at_ms: int


@frozen
class StopTimeout:
    """Do not tell it any more."""

    checkpoint_id: int


@frozen
class StartPeriodicTimer:
    """Tell `PeriodicTimerFired` at that time, in place of any time before."""

    at_ms: int


@frozen
class StopPeriodicTimer:
    """Do not tell it any more."""


@frozen
class StoreCheckpoint:
    """Store what was acknowledged: a checkpoint in the store, a savepoint where it was asked for."""

    completed: CompletedCheckpoint
    kind: CheckpointRequestKind


@frozen
class NotifyComplete:
    """Tell tasks and coordinators that the checkpoint is complete, and that older ones are subsumed by it."""

    checkpoint_id: int
    tasks: tuple[TaskId, ...]
    subsumed_id: int | None


@frozen
class NotifyAborted:
    """Notify tasks and coordinators that the checkpoint is aborted, and which one completed last."""

    checkpoint_id: int
    tasks: tuple[TaskId, ...]
    last_completed_id: int | None


@frozen
class DiscardStates:
    """Nobody will ask for these states: files that nothing else shares can go."""

    states: tuple[SubtaskState, ...]


@frozen
class AnswerRequest:
    """The request is over: it has its checkpoint, or failed."""

    request_id: int
    checkpoint_id: int | None
    failure: CheckpointFailureReason | None = None
    detail: str = ""


@frozen
class FailJob:
    """The job endures no more."""

    detail: str


CoordinatorAction = (
    AssignId
    | InitializeLocation
    | RemoveLocation
    | SnapshotOperatorCoordinators
    | RunMasterHooks
    | TellTasks
    | StartTimeout
    | StopTimeout
    | StartPeriodicTimer
    | StopPeriodicTimer
    | StoreCheckpoint
    | NotifyComplete
    | NotifyAborted
    | DiscardStates
    | AnswerRequest
    | FailJob
)
