"""What is measured of the checkpoints of a run, and so of its epochs, each of which ends with a complete one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.checkpoint_failures import CheckpointFailureReason
from streamjobs.inprocess.run_checkpoints import CheckpointAnswer
from streamjobs.observing.epoch_statistics import EpochCost, EpochCounts
from streamjobs.observing.job_recorder import JobRecorder
from streamjobs.runtime.barrier_metrics import BarrierTotals
from streamjobs.runtime.job_metrics import (
    RECORDS_IN,
    OperatorMetrics,
    metrics_of_epoch,
    metrics_of_epochs,
    metrics_of_subtasks,
)
from streamjobs.runtime.time_metrics import late_records_of

__all__ = ["CheckpointMeasures"]


class CheckpointMeasures:
    """Tells the recorder of what is complete and of what failed.

    What was counted and acknowledged to a checkpoint that failed is of the epoch that the next complete one ends.
    """

    def __init__(self, recorder: JobRecorder) -> None:
        self.barriers = BarrierTotals()
        """How long the barriers of complete checkpoints took, and what they overtook."""
        self.late_records: Counter[str] = Counter()
        """How many records each operator has dropped, by uid."""
        self._recorder = recorder
        self._late_records_told = 0
        self._records_in: Counter[TaskId] = Counter()
        self._state_metrics: dict[TaskId, OperatorMetrics] = {}
        self._begun_s: dict[int, float] = {}
        self._ended_s = time.monotonic()

    def begun(self, checkpoint_id: int, pending: Collection[int]) -> None:
        """A checkpoint is begun while these are under way; others are over."""
        self._begun_s = {known: begun_s for known, begun_s in self._begun_s.items() if known in pending}
        self._begun_s[checkpoint_id] = time.monotonic()

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """A task has acknowledged a checkpoint, whatever becomes of that."""
        self.late_records += late_records_of([acknowledgement])
        task = acknowledgement.task
        self._records_in[task] += int(acknowledgement.metrics.get(RECORDS_IN) or 0)
        metrics = metrics_of_epoch([acknowledgement])
        if metrics:
            self._state_metrics[task] = metrics_of_epochs(self._state_metrics.get(task, {}), metrics)

    def completed(self, checkpoint_id: int, acknowledgements: Sequence[Acknowledgement]) -> None:
        """A checkpoint is complete, and the sinks have what belongs to it."""
        self.barriers.note(acknowledgements)
        now_s, ended_s = time.monotonic(), self._ended_s
        self._ended_s = now_s
        cost = EpochCost(duration_s=now_s - ended_s, checkpoint_s=now_s - self._begun_s.pop(checkpoint_id, now_s))
        self._recorder.epoch_completed(checkpoint_id, acknowledgements, cost, counts=self._counts_taken())

    def _counts_taken(self) -> EpochCounts:
        records_in, self._records_in = self._records_in, Counter()
        metrics, self._state_metrics = self._state_metrics, {}
        late, told = self.late_records.total(), self._late_records_told
        self._late_records_told = late
        return EpochCounts(
            records_in=records_in,
            late_records_dropped=late - told,
            state_metrics=metrics_of_subtasks(metrics.values()),
        )

    def answered(self, answer: CheckpointAnswer) -> None:
        """A request is over; what is given up at the end of the run has not failed."""
        if answer.failure not in (None, CheckpointFailureReason.SHUTDOWN) and answer.checkpoint_id is not None:
            self._recorder.checkpoint_failed(answer.checkpoint_id, answer.detail)
