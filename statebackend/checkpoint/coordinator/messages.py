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


@frozen
class TasksChanged:
    """All tasks of the job, and their status."""

    tasks: Collection[CheckpointTask]


@frozen
class SchedulerStarted:
    """Take checkpoints periodically from now on, the first one after that time."""

    interval_ms: int
    now_ms: int


@frozen
class SchedulerStopped:
    """Take no more periodic checkpoints; requests are still served."""


@frozen
class Suspended:
    """The job is suspended: pending checkpoints are aborted, and requests rejected, until the scheduler starts."""

    now_ms: int


@frozen
class Shutdown:
    """Start no more checkpoints."""

    now_ms: int


@frozen
class PeriodicTimerFired:
    """The time of `StartPeriodicTimer` was reached; ``request_id`` is for the resulting request."""

    request_id: int
    now_ms: int


@frozen
class CheckpointRequested:
    """A checkpoint or a savepoint was requested."""

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
    """The last requested action of that checkpoint is done: its location, coordinators, hooks, or storage."""

    checkpoint_id: int
    now_ms: int


@frozen
class CheckpointFailed:
    """A requested action failed. A checkpoint without an id is identified by its request."""

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
    """A task cannot take part in the checkpoint."""

    job_id: str
    run_id: str
    checkpoint_id: int
    task: TaskId
    reason: CheckpointFailureReason
    detail: str
    now_ms: int


@frozen
class TimedOut:
    """The time of `StartTimeout` was reached."""

    checkpoint_id: int
    now_ms: int


@frozen
class RemovalsChanged:
    """The number of old checkpoints that are being removed."""

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
    """Assign a durable id greater than all before, and answer with `CheckpointNumbered`."""

    request: CheckpointRequest


@frozen
class InitializeLocation:
    """Create the location where the checkpoint will be stored."""

    checkpoint_id: int
    kind: CheckpointRequestKind


@frozen
class RemoveLocation:
    """Remove the location, which nothing refers to."""

    checkpoint_id: int


@frozen
class SnapshotOperatorCoordinators:
    """Take snapshots of the operator coordinators on the driver."""

    checkpoint_id: int


@frozen
class RunMasterHooks:
    """Run the hooks of external systems that take part."""

    checkpoint_id: int


@frozen
class TriggerTasks:
    """Trigger the checkpoint in these tasks, which send the barriers."""

    checkpoint_id: int
    kind: CheckpointRequestKind
    tasks: tuple[TaskId, ...]


@frozen
class StartTimeout:
    """Send `TimedOut` at that time."""

    checkpoint_id: int
    at_ms: int


@frozen
class StopTimeout:
    """Do not send `TimedOut`."""

    checkpoint_id: int


@frozen
class StartPeriodicTimer:
    """Send `PeriodicTimerFired` at that time, replacing any earlier timer."""

    at_ms: int


@frozen
class StopPeriodicTimer:
    """Do not send `PeriodicTimerFired`."""


@frozen
class StoreCheckpoint:
    """Store the acknowledged state: a checkpoint in the store, a savepoint at the requested location."""

    completed: CompletedCheckpoint
    kind: CheckpointRequestKind


@frozen
class NotifyComplete:
    """Notify tasks and coordinators that the checkpoint is complete, and that it subsumes older ones."""

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
    """Discard these states: delete the files that no other state shares."""

    states: tuple[SubtaskState, ...]


@frozen
class AnswerRequest:
    """The request is finished: it has its checkpoint, or failed."""

    request_id: int
    checkpoint_id: int | None
    failure: CheckpointFailureReason | None = None
    detail: str = ""


@frozen
class FailJob:
    """Fail the job: it has too many failed checkpoints."""

    detail: str


CoordinatorAction = (
    AssignId
    | InitializeLocation
    | RemoveLocation
    | SnapshotOperatorCoordinators
    | RunMasterHooks
    | TriggerTasks
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
