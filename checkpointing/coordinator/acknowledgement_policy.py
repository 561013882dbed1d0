"""Which tasks a checkpoint waits for, and which of them are told to begin.

The tasks that begin are those that nobody sends a barrier to: sources and, once tasks have finished, those behind
finished ones only. What a policy decides is passed to the coordinator as an object.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence

from attrs import frozen

from checkpointing.coordinator.acknowledgement import TaskId

__all__ = [
    "AcknowledgementPolicy",
    "CheckpointPlan",
    "CheckpointTask",
    "TaskStatus",
    "all_tasks",
    "all_unfinished_tasks",
]


class TaskStatus(enum.Enum):
    """Where a task is in its life."""

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
    """Tasks to tell, tasks to wait for, tasks that count as acknowledged; or why the checkpoint cannot begin."""

    begin: tuple[TaskId, ...] = ()
    await_: tuple[TaskId, ...] = ()
    finished: tuple[TaskId, ...] = ()
    obstacle: str = ""


AcknowledgementPolicy = Callable[[Collection[CheckpointTask]], CheckpointPlan]
"""Makes the plan of a checkpoint; takes time proportional to the tasks and their inputs."""


def all_tasks(tasks: Collection[CheckpointTask]) -> CheckpointPlan:
    """Every task must be running: one that has finished is an obstacle."""
    return _plan(tasks, [one for one in tasks if one.status is not TaskStatus.RUNNING])


def all_unfinished_tasks(tasks: Collection[CheckpointTask]) -> CheckpointPlan:
    """Tasks that have finished count as acknowledged; the others must be running, and one at least must be left."""
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
