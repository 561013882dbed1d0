"""How many failures of checkpoints a job endures.

Failures are counted one behind the other: a checkpoint that completes begins the count again. Each checkpoint counts
once, whatever becomes of it, and what is no fault of storage or of a task does not count: a task that was not running,
a newer checkpoint, a stop. A savepoint that fails is told to who asked for it and is no failure of the job, unless the
job was to stop with it: then part of it has stopped already, and it cannot go on.
(Flink's ``CheckpointFailureManager``.)
"""

from __future__ import annotations

from typing import Final

from checkpointing.coordinator.checkpoint_failures import CheckpointFailureReason
from checkpointing.coordinator.checkpoint_requests import CheckpointRequestKind
from checkpointing.handles.invariants import MAX_ID, check_integer

__all__ = ["FailurePolicy"]


_COUNTED: Final = frozenset(
    {
        CheckpointFailureReason.IO_ERROR,
        CheckpointFailureReason.DECLINED,
        CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED,
        CheckpointFailureReason.EXPIRED,
        # A job that can never store a checkpoint must not run for ever without one.
        CheckpointFailureReason.FINALIZE_FAILED,
    }
)


class FailurePolicy:
    """Counts failures of one job; ``tolerable_failures`` in a row are endured."""

    def __init__(self, tolerable_failures: int = 0) -> None:
        """Raises `InvariantViolationError` for a negative number."""
        check_integer("tolerable_failures", tolerable_failures, 0, MAX_ID)
        self.tolerable_failures = tolerable_failures
        self._counted_ids: set[int] = set()
        self._failures = 0
        self._newest_completed_id = -1

    @property
    def failures(self) -> int:
        """Those that were counted since a checkpoint completed."""
        return self._failures

    def completed(self, checkpoint_id: int) -> None:
        """Begins to count again, if the checkpoint is newer than all that completed before."""
        if checkpoint_id > self._newest_completed_id:
            self._newest_completed_id = checkpoint_id
            self._failures = 0
            self._counted_ids.clear()

    def failed(
        self,
        checkpoint_id: int | None,
        reason: CheckpointFailureReason,
        kind: CheckpointRequestKind,
        *,
        were_tasks_told: bool,
    ) -> bool:
        """Takes in a failure and returns whether the job has to fail; the id is None if there is none yet."""
        if kind.stops_job:
            return were_tasks_told
        if kind.is_savepoint or reason not in _COUNTED or checkpoint_id in self._counted_ids:
            return False
        if checkpoint_id is not None:
            self._counted_ids.add(checkpoint_id)
        self._failures += 1
        return self._failures > self.tolerable_failures
