"""One checkpoint from trigger to completion: its state, its tasks, its acknowledgements.

    state         event             next state      meaning
    ------------  ----------------  --------------  ------------------------------------------------
    PENDING       ACKNOWLEDGE       PENDING         another task has stored its state
    PENDING       ACKNOWLEDGE_LAST  ACKNOWLEDGED    now all tasks have; a checkpoint without tasks starts here
    PENDING       CONFLICT          CONFLICTED      one task stored two different states
    ACKNOWLEDGED  CONFLICT          CONFLICTED
    ACKNOWLEDGED  COMPLETE          COMPLETED       the states go to the checkpoint's metadata
    COMPLETED     FAIL_STORING      ABORTED         the metadata could not be stored
    PENDING, ACKNOWLEDGED, CONFLICTED
                  ABORT             ABORTED         the epoch failed
                  EXPIRE            EXPIRED         the timeout passed first
                  SUBSUME           SUBSUMED        a newer checkpoint completed first

Everything not listed raises `IllegalTransitionError` and changes nothing. A CONFLICTED checkpoint can only end: it is
unknown which of the two states is right, so the epoch must be replayed.

An `AcknowledgementPolicy` decides which tasks a checkpoint waits for and which of them are triggered. These are the
tasks that receive no barrier: sources, and tasks whose upstream tasks have all finished.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from attrs import frozen

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.errors import IllegalTransitionError, IncompleteCheckpointError
from statebackend.checkpoint.metadata import ChannelTimestamp, TimersDue
from statebackend.checkpoint.state_handles import OperatorState, SubtaskState

__all__ = [
    "CHECKPOINT_TRANSITIONS",
    "AcknowledgementPolicy",
    "CheckpointEvent",
    "CheckpointPlan",
    "CheckpointState",
    "CheckpointTask",
    "CompletedCheckpoint",
    "PendingCheckpoint",
    "TaskStatus",
    "all_tasks",
    "all_unfinished_tasks",
]


class TaskStatus(enum.Enum):
    """The status of a task."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@frozen
class CheckpointTask:
    """A task of the job, and the tasks that it receives barriers from."""

    task: TaskId
    status: TaskStatus
    inputs: frozenset[TaskId] = frozenset()


@frozen
class CheckpointPlan:
    """Tasks to trigger, to wait for, and that count as acknowledged; or the reason why the checkpoint cannot start."""

    begin: tuple[TaskId, ...] = ()
    await_: tuple[TaskId, ...] = ()
    finished: tuple[TaskId, ...] = ()
    obstacle: str = ""


AcknowledgementPolicy = Callable[[Collection[CheckpointTask]], CheckpointPlan]
"""Plans a checkpoint, in time proportional to the tasks and their inputs."""


def all_tasks(tasks: Collection[CheckpointTask]) -> CheckpointPlan:
    """Require every task to be running; a finished task prevents checkpoints."""
    return _plan(tasks, [one for one in tasks if one.status is not TaskStatus.RUNNING])


def all_unfinished_tasks(tasks: Collection[CheckpointTask]) -> CheckpointPlan:
    """Count finished tasks as acknowledged. All others must be running, and at least one must remain."""
    ready = (TaskStatus.RUNNING, TaskStatus.FINISHED)
    return _plan(tasks, [one for one in tasks if one.status not in ready])


def _plan(tasks: Collection[CheckpointTask], obstacles: Sequence[CheckpointTask]) -> CheckpointPlan:
    if obstacles:
        shown = ", ".join(f"{one.task} is {one.status.value}" for one in obstacles[:10])
        more = f" and {len(obstacles) - 10} more" if len(obstacles) > 10 else ""
        return CheckpointPlan(obstacle=f"{shown}{more}")
    unfinished = {one.task: one.inputs for one in tasks if one.status is not TaskStatus.FINISHED}
    if not unfinished:
        return CheckpointPlan(obstacle="all tasks have finished" if tasks else "there are no tasks")
    return CheckpointPlan(
        begin=tuple(sorted(task for task, inputs in unfinished.items() if inputs.isdisjoint(unfinished))),
        await_=tuple(sorted(unfinished)),
        finished=tuple(sorted(one.task for one in tasks if one.status is TaskStatus.FINISHED)),
    )


class CheckpointState(enum.Enum):
    """The phase of a triggered checkpoint."""

    PENDING = "PENDING"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    CONFLICTED = "CONFLICTED"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"
    EXPIRED = "EXPIRED"
    SUBSUMED = "SUBSUMED"


class CheckpointEvent(enum.Enum):
    """The events of a triggered checkpoint."""

    ACKNOWLEDGE = "ACKNOWLEDGE"
    ACKNOWLEDGE_LAST = "ACKNOWLEDGE_LAST"
    CONFLICT = "CONFLICT"
    COMPLETE = "COMPLETE"
    FAIL_STORING = "FAIL_STORING"
    ABORT = "ABORT"
    EXPIRE = "EXPIRE"
    SUBSUME = "SUBSUME"


_UNFINISHED = (CheckpointState.PENDING, CheckpointState.ACKNOWLEDGED, CheckpointState.CONFLICTED)

CHECKPOINT_TRANSITIONS: Mapping[tuple[CheckpointState, CheckpointEvent], CheckpointState] = MappingProxyType(
    {
        (CheckpointState.PENDING, CheckpointEvent.ACKNOWLEDGE): CheckpointState.PENDING,
        (CheckpointState.PENDING, CheckpointEvent.ACKNOWLEDGE_LAST): CheckpointState.ACKNOWLEDGED,
        (CheckpointState.PENDING, CheckpointEvent.CONFLICT): CheckpointState.CONFLICTED,
        (CheckpointState.ACKNOWLEDGED, CheckpointEvent.CONFLICT): CheckpointState.CONFLICTED,
        (CheckpointState.ACKNOWLEDGED, CheckpointEvent.COMPLETE): CheckpointState.COMPLETED,
        (CheckpointState.COMPLETED, CheckpointEvent.FAIL_STORING): CheckpointState.ABORTED,
        **{(state, CheckpointEvent.ABORT): CheckpointState.ABORTED for state in _UNFINISHED},
        **{(state, CheckpointEvent.EXPIRE): CheckpointState.EXPIRED for state in _UNFINISHED},
        **{(state, CheckpointEvent.SUBSUME): CheckpointState.SUBSUMED for state in _UNFINISHED},
    }
)


@frozen(kw_only=True)
class CompletedCheckpoint:
    """The acknowledgements of all tasks, to be stored.

    The source positions and the processing time of the epoch are known to the caller. `operators` are sorted by uid.
    `channel_timestamps` are the largest of all subtasks, by source and channel. `timers_due` are the earliest timers of
    each operator that has timers.
    """

    checkpoint_id: int
    operators: tuple[OperatorState, ...]
    channel_timestamps: tuple[ChannelTimestamp, ...] = ()
    timers_due: tuple[TimersDue, ...] = ()


class PendingCheckpoint:
    """Tasks and acknowledgements of one checkpoint, triggered at `triggered_ms` on the caller's clock.

    Tasks in `finished` do not acknowledge any more. Only `advance` and `record` change it.
    """

    def __init__(
        self, checkpoint_id: int, tasks: Collection[TaskId], triggered_ms: int, finished: Collection[TaskId] = ()
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.tasks = frozenset(tasks)
        self.finished = frozenset(finished)
        self.triggered_ms = triggered_ms
        self.state = CheckpointState.PENDING if tasks else CheckpointState.ACKNOWLEDGED
        self._acknowledgements: dict[TaskId, Acknowledgement] = {}

    @property
    def acknowledgements(self) -> Mapping[TaskId, Acknowledgement]:
        """The acknowledgements so far."""
        return MappingProxyType(self._acknowledgements)

    @property
    def states(self) -> tuple[SubtaskState, ...]:
        """All state acknowledged so far."""
        return tuple(acknowledgement.state for acknowledgement in self._acknowledgements.values())

    def channel_timestamps(self) -> tuple[ChannelTimestamp, ...]:
        """The largest event time of each channel in the acknowledgements so far, by source and channel."""
        largest: dict[tuple[str, str], int] = {}
        for acknowledgement in self._acknowledgements.values():
            for one in acknowledgement.channel_timestamps:
                name = (one.source, one.channel)
                largest[name] = max(one.timestamp_ms, largest.get(name, one.timestamp_ms))
        return tuple(ChannelTimestamp(*name, timestamp_ms) for name, timestamp_ms in sorted(largest.items()))

    def timers_due(self) -> tuple[TimersDue, ...]:
        """The earliest timers of each operator in the acknowledgements so far, sorted by uid."""
        due: dict[str, TimersDue] = {}
        for one in self._acknowledgements.values():
            if one.has_timers:
                own = one.timers_due
                due[own.operator_uid] = own.earliest(due.get(own.operator_uid, own))
        return tuple(due[uid] for uid in sorted(due))

    def missing_tasks(self) -> tuple[TaskId, ...]:
        """Tasks that have not acknowledged, sorted."""
        return tuple(sorted(self.tasks - self._acknowledgements.keys()))

    def check(self, event: CheckpointEvent) -> CheckpointState:
        """The next state for `event`; `IllegalTransitionError` if the table does not list it."""
        try:
            return CHECKPOINT_TRANSITIONS[self.state, event]
        except KeyError:
            pass
        if event is CheckpointEvent.COMPLETE and self.state is CheckpointState.PENDING:
            missing = [str(task) for task in self.missing_tasks()]
            shown = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
            raise IncompleteCheckpointError(
                event.name,
                self.state.name,
                f"checkpoint {self.checkpoint_id} lacks the acknowledgements of {len(missing)} of "
                f"{len(self.tasks)} tasks: {shown}",
                missing,
            )
        raise IllegalTransitionError(event.name, self.state.name, f"checkpoint {self.checkpoint_id}")

    def advance(self, event: CheckpointEvent) -> None:
        """Take the transition for `event`, or raise and change nothing."""
        self.state = self.check(event)

    def record(self, acknowledgement: Acknowledgement) -> None:
        """Record the first acknowledgement of one of the tasks, or raise and change nothing."""
        is_last = len(self._acknowledgements) + 1 == len(self.tasks)
        self.advance(CheckpointEvent.ACKNOWLEDGE_LAST if is_last else CheckpointEvent.ACKNOWLEDGE)
        self._acknowledgements[acknowledgement.task] = acknowledgement
