"""A subtask between open and close: records, time and barriers come to it in band, in any order.

It stays open over barriers. At one the state is frozen as it is (`OpenedSubtask.freeze`), and the subtask goes on; what
was frozen is written later, on any thread (`FrozenSubtask.write`), and only then is there something to acknowledge
(`OpenedSubtask.acknowledged`, on the subtask's own thread again). Several frozen ones may wait to be written, and be
written in any order.

Counters of an acknowledgement (late records, metrics of state) are those since the acknowledgement before, so that
whoever adds them up counts each event once, whether a subtask lives for one epoch or for many.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from checkpointing.coordinator.acknowledgement import Acknowledgement, ReportValue
from statebackend.keyed.backend_parameters import StateRestoreReport
from statebackend.metrics import KeyedStateMetrics
from streamjobs.operators.operator_run import OperatorRun
from streamjobs.operators.operator_time import advance_processing_time, advance_watermark
from streamjobs.operators.subtask_backends import SubtaskBackends, SubtaskSnapshot, SubtaskSnapshotTask
from streamjobs.operators.subtask_context import SubtaskContext
from streamjobs.runtime.job_metrics import RECORDS_IN

__all__ = ["FrozenSubtask", "OpenedSubtask", "SnapshotReport", "timers_due"]


@frozen(kw_only=True)
class SnapshotReport:
    """What a snapshot has to tell beside its state: the earliest timers pending, of event and of processing time, in
    milliseconds; late records dropped; what is for people.
    """

    timers_due: tuple[int | None, int | None] = (None, None)
    late_records_dropped: int = 0
    restore_reports: Sequence[StateRestoreReport] = ()
    operator_state_restore_reports: Sequence[StateRestoreReport] = ()
    metrics: Mapping[str, ReportValue] = field(factory=dict)


@define(eq=False)
class FrozenSubtask:
    """The state of a subtask as it was at a barrier, to be written once."""

    checkpoint_id: int
    timers_due: tuple[int | None, int | None]
    frozen_s: float
    task: SubtaskSnapshotTask
    records_in: int
    """The records that had come to the subtask at the barrier, since it was opened."""
    snapshot: SubtaskSnapshot | None = None
    """Set when it is written: from then on its files are durable."""
    written_s: float = 0.0

    def write(self) -> None:
        """Writes the files, on any thread; raises what the storage and the serializers raise."""
        began_s = time.monotonic()
        self.snapshot = self.task.run()
        self.written_s = time.monotonic() - began_s

    def cancel(self) -> None:
        """Gives it up, on any thread; what was written is removed. Nothing happens to one that is written."""
        self.task.cancel()


class OpenedSubtask:
    """See the module; belongs to one thread. What an operator raises, its methods raise as `Operator` says.

    ``acknowledge`` makes the acknowledgement of a checkpoint of a snapshot and its report.
    """

    def __init__(
        self,
        operator: OperatorRun,
        context: SubtaskContext,
        backends: SubtaskBackends,
        acknowledge: Callable[[int, SubtaskSnapshot, SnapshotReport], Acknowledgement],
        opening_metrics: Mapping[str, ReportValue],
    ) -> None:
        self._operator = operator
        self._context = context
        self._backends = backends
        self._acknowledge = acknowledge
        self._opening_metrics = opening_metrics
        self._late_records_told = self._records_in_told = 0
        self._metrics_told: KeyedStateMetrics | None = None
        self.holds_watermarks = operator.holds_watermarks
        """Whether the operator says itself which watermarks go on."""
        self.process_batch = operator.process_batch
        self.let_watermarks_out = operator.let_watermarks_out
        self.prepare_snapshot = operator.prepare_snapshot

    @property
    def has_timers(self) -> bool:
        """Whether the operator may have any."""
        return bool(self._context.timer_services)

    @property
    def restore_reports(self) -> Sequence[StateRestoreReport]:
        """What became of each restored keyed state that was registered so far."""
        return tuple(self._context.keyed.restore_reports)

    @property
    def operator_state_restore_reports(self) -> Sequence[StateRestoreReport]:
        """What became of each restored operator state that was registered so far."""
        return tuple(self._backends.operator_state_restore_reports)

    def advance_watermark(self, watermark_ms: int) -> None:
        """Moves event time on: what is due fires, then the operator is told."""
        advance_watermark(self._operator, self._context, watermark_ms)

    def advance_processing_time(self) -> None:
        """Fires what is due by the clock."""
        advance_processing_time(self._operator, self._context)

    def freeze(self, checkpoint_id: int) -> FrozenSubtask:
        """The synchronous part of a snapshot, behind `prepare_snapshot`; the next epoch begins with it.

        Its cost does not grow with the state.
        """
        began_s = time.monotonic()
        due = timers_due(self._context)
        task = self._backends.prepare_snapshot(checkpoint_id, uuid.uuid4().hex)
        self._context.begin_epoch(checkpoint_id + 1)
        self._operator.begin_epoch(checkpoint_id + 1)
        return FrozenSubtask(checkpoint_id, due, time.monotonic() - began_s, task, self._operator.records_in)

    def acknowledged(self, frozen: FrozenSubtask) -> Acknowledgement:
        """What is acknowledged of a snapshot that is written."""
        snapshot = frozen.snapshot
        assert snapshot is not None
        late = self._operator.late_records_dropped
        dropped, self._late_records_told = late - self._late_records_told, late
        records_in = max(frozen.records_in - self._records_in_told, 0)
        self._records_in_told += records_in
        metrics: dict[str, ReportValue] = {
            "process_s": 0.0,
            "snapshot_s": frozen.frozen_s + frozen.written_s,
            RECORDS_IN: records_in,
        }
        opening, self._opening_metrics = self._opening_metrics, {}
        report = SnapshotReport(
            timers_due=frozen.timers_due,
            late_records_dropped=dropped,
            restore_reports=self.restore_reports,
            operator_state_restore_reports=self.operator_state_restore_reports,
            metrics={**metrics, **opening, **self._metrics_since(frozen)},
        )
        return self._acknowledge(frozen.checkpoint_id, snapshot, report)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete: later snapshots may refer to its files."""
        self._backends.notify_checkpoint_complete(checkpoint_id)

    def _metrics_since(self, frozen: FrozenSubtask) -> Mapping[str, Any]:
        """The metrics of keyed state since they were told last; none if they are off."""
        if self._context.keyed.parameters.metrics is None:
            return {}
        now = self._backends.metrics_now(frozen.task.keyed_snapshot)
        told, self._metrics_told = self._metrics_told, now
        return (now if told is None else now.since(told)).to_report()


def timers_due(context: SubtaskContext) -> tuple[int | None, int | None]:
    """The earliest timers pending of event time and of processing time, in milliseconds."""
    services = context.timer_services
    event = [due for one in services if (due := one.next_event_time_timer()) is not None]
    processing = [due for one in services if (due := one.next_processing_time_timer()) is not None]
    return min(event, default=None), min(processing, default=None)
