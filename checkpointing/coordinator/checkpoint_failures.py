"""Why checkpoints are not begun, or fail."""

from __future__ import annotations

import enum

__all__ = ["CheckpointFailureReason"]


class CheckpointFailureReason(enum.Enum):
    """Why a checkpoint was not begun, or did not complete."""

    SHUTDOWN = "the coordinator has been shut down"
    SUSPENDED = "the job has been suspended"
    SCHEDULER_STOPPED = "checkpoints are not taken periodically any more"
    TOO_MANY_REQUESTS = "too many requests wait already"
    MINIMUM_PAUSE = "the pause behind the last checkpoint is not over"
    TASKS_NOT_RUNNING = "not all tasks are running"
    IO_ERROR = "storage failed while the checkpoint was begun"
    COORDINATOR_FAILED = "the coordinator of an operator failed"
    TASK_NOT_TRIGGERED = "a task could not be told to begin"
    DECLINED = "a task declined"
    DECLINED_NOT_READY = "a task declined, since it was not ready"
    DECLINED_BY_CANCELLATION = "a task declined, since one before it had cancelled the checkpoint"
    DECLINED_SUBSUMED = "a task declined, since a newer checkpoint had begun"
    DECLINED_END_OF_INPUT = "a task declined, since an input had ended"
    ASYNCHRONOUS_PART_FAILED = "a task could not store its state"
    TASK_FAILED = "a task failed"
    CONFLICT = "a task stored two different states"
    EXPIRED = "the checkpoint took too long"
    SUBSUMED = "a newer checkpoint completed first"
    FINALIZE_FAILED = "the completed checkpoint could not be stored"
