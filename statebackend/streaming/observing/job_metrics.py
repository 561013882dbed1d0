"""The metrics of a job, as plain values: progress, state sizes, and the cost of epochs.

They are a copy, created on request; `JobFigures.to_json` returns them as JSON, and nothing stores them. Epochs and
failures belong to one run: the last ones in detail, all of them in `JobTotals`. The sizes of operators, subtasks and
states are those of the newest checkpoint (`statebackend.savepoint.statistics`). Acknowledgements report the cost of
epochs, and the size and balance of state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import AttrsInstance, evolve, field, fields, frozen, has

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.savepoint.export import SavepointReport
from statebackend.savepoint.statistics import CheckpointFigures, skew_of
from statebackend.state.metrics import LatencyHistogram
from statebackend.streaming.runtime.metrics import (
    RECORDS_IN,
    OperatorBarriers,
    OperatorMetrics,
    TimeMetrics,
    late_records_of,
    metrics_of_epoch,
    metrics_of_epochs,
)

__all__ = [
    "EpochCost",
    "EpochCounts",
    "EpochStatistics",
    "FailedCheckpoint",
    "JobFigures",
    "JobTotals",
    "ObservedRun",
    "OperatorEpoch",
    "RestoredStateFigures",
    "epoch_statistics",
    "seconds_of",
]


@frozen(kw_only=True)
class OperatorEpoch:
    """One operator in one epoch: the records that came to it, and the size of its state behind it, in bytes.

    A skew is the most of a subtask over the mean of all: 1.0 where they are equal.
    """

    subtasks: int = 0
    records_in: int = 0
    records_skew: float = 1.0
    size_bytes: int = 0
    size_skew: float = 1.0


@frozen(kw_only=True)
class EpochCost:
    """What the runtime measures of an epoch itself. ``ended_ms`` is the time of the wall, which may go back.

    ``checkpoint_s`` is how long its checkpoint took: in one process from its begin to its completion, on Spark the
    snapshot of the slowest subtask and the storing. ``action_s`` is the sinks' action on Spark.
    """

    ended_ms: int = 0
    duration_s: float = 0.0
    checkpoint_s: float = 0.0
    action_s: float = 0.0
    has_batch: bool = True


@frozen(kw_only=True)
class EpochCounts:
    """What was counted in an epoch, where the acknowledgements of its checkpoint tell a part of it: checkpoints before
    that one were given up, and what subtasks had counted by then they have told with those.
    """

    records_in: Mapping[TaskId, int]
    late_records_dropped: int
    state_metrics: OperatorMetrics


@frozen(kw_only=True)
class EpochStatistics:
    """What an epoch cost. Seconds on the driver: all of it, its checkpoint, and the sink's action; of the slowest
    subtask: opening its state, processing, and the snapshot. Entries and bytes written are what all subtasks wrote for
    the checkpoint, ``size_bytes`` is all the state that it has, over subtasks.

    ``local_opens`` are the subtasks that found their state where they ran, ``restores`` those that had state and had to
    fetch it. ``kept_bytes_of_host`` is what the workers of a host keep in memory for later epochs, of the host that
    keeps most; an estimate. ``state_metrics`` are those of keyed state by operator uid, where metrics are on.
    ``has_batch`` is False for an epoch without records, which ran since time had something to do.
    ``late_records_dropped`` came behind the watermark, and went to no side output. ``operators`` are by uid.
    ``watermark_lag_ms`` is that of the last of sources and operators, None where none has any.
    """

    epoch_id: int
    ended_ms: int = 0
    duration_s: float
    checkpoint_s: float = 0.0
    action_s: float
    open_s: float
    process_s: float
    snapshot_s: float
    records_in: int = 0
    entries_written: int
    bytes_written: int
    size_bytes: int = 0
    local_opens: int = 0
    restores: int = 0
    kept_bytes_of_host: int = 0
    state_metrics: OperatorMetrics = field(factory=dict)
    has_batch: bool = True
    late_records_dropped: int = 0
    watermark_lag_ms: int | None = None
    operators: Mapping[str, OperatorEpoch] = field(factory=dict)

    @property
    def local_share(self) -> float:
        """The part of the subtasks with state that found it where they ran, 0 to 1; 1 if there was no state yet."""
        opens = self.local_opens + self.restores
        return self.local_opens / opens if opens else 1.0


def epoch_statistics(
    epoch_id: int,
    acknowledgements: Sequence[Acknowledgement],
    cost: EpochCost,
    *,
    counts: EpochCounts | None = None,
    watermark_lag_ms: int | None = None,
) -> EpochStatistics:
    """The statistics of a completed epoch; a number that a subtask does not give counts as 0.

    Without ``counts`` they are those of the acknowledgements.
    """
    metrics = [acknowledgement.metrics for acknowledgement in acknowledgements]
    operators = _operators(acknowledgements, None if counts is None else counts.records_in)
    return EpochStatistics(
        epoch_id=epoch_id,
        ended_ms=cost.ended_ms,
        duration_s=cost.duration_s,
        checkpoint_s=cost.checkpoint_s,
        action_s=cost.action_s,
        records_in=sum(one.records_in for one in operators.values()),
        entries_written=_sum(metrics, "entries_written"),
        bytes_written=_sum(metrics, "bytes_written"),
        size_bytes=sum(one.size_bytes for one in operators.values()),
        local_opens=_sum(metrics, "local_opens"),
        restores=_sum(metrics, "restores"),
        kept_bytes_of_host=max((_number(values, "kept_bytes_of_host") for values in metrics), default=0),
        state_metrics=metrics_of_epoch(acknowledgements) if counts is None else counts.state_metrics,
        has_batch=cost.has_batch,
        late_records_dropped=(
            late_records_of(acknowledgements).total() if counts is None else counts.late_records_dropped
        ),
        watermark_lag_ms=watermark_lag_ms,
        operators=operators,
        **{name: max((seconds_of(one, name) for one in acknowledgements), default=0.0) for name in _LAPS},
    )


_LAPS: Final = ("open_s", "process_s", "snapshot_s")


def _operators(
    acknowledgements: Iterable[Acknowledgement], records_in: Mapping[TaskId, int] | None
) -> Mapping[str, OperatorEpoch]:
    by_uid: dict[str, list[Acknowledgement]] = {}
    for one in acknowledgements:
        # A source or sink acknowledges too, and has no records of an operator.
        if RECORDS_IN in one.metrics:
            by_uid.setdefault(one.operator_uid, []).append(one)
    found = {}
    for uid, subtasks in by_uid.items():
        records = [
            _number(one.metrics, RECORDS_IN) if records_in is None else records_in.get(one.task, 0) for one in subtasks
        ]
        sizes = [one.state.size_bytes for one in subtasks]
        found[uid] = OperatorEpoch(
            subtasks=len(subtasks),
            records_in=sum(records),
            records_skew=skew_of(records),
            size_bytes=sum(sizes),
            size_skew=skew_of(sizes),
        )
    return found


def _sum(metrics: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(_number(values, name) for values in metrics)


def _number(values: Mapping[str, Any], name: str) -> int:
    return int(values.get(name) or 0)


def seconds_of(acknowledgement: Acknowledgement, name: str) -> float:
    """What a subtask says that something took; 0.0 if it says nothing."""
    return float(acknowledgement.metrics.get(name) or 0.0)


@frozen(kw_only=True)
class ObservedRun:
    """Which run of which job: ``engine`` is ``"spark"`` or ``"in process"``, ``started_ms`` the time of the wall."""

    job_name: str
    job_id: str
    run_id: str
    engine: str
    parallelism: int
    max_parallelism: int
    started_ms: int
    restored_id: int | None = None
    """The checkpoint or savepoint that the run goes on from."""


@frozen(kw_only=True)
class FailedCheckpoint:
    """One that did not complete, and when that was known; the id is None for an epoch that had none yet."""

    checkpoint_id: int | None
    reason: str
    at_ms: int


@frozen(kw_only=True)
class RestoredStateFigures:
    """A state that the run began from: the compatibility result on it, as text, and what its migration did over all
    subtasks.
    """

    operator_uid: str
    state_name: str
    compatibility: str
    issues: tuple[str, ...] = ()
    entries_migrated: int = 0
    duration_s: float = 0.0
    is_operator_state: bool = False


@frozen(kw_only=True)
class JobTotals:
    """Sums over all epochs of a run."""

    epochs: int = 0
    epochs_without_records: int = 0
    failed_checkpoints: int = 0
    savepoints: int = 0
    duration_s: float = 0.0
    checkpoint_s: float = 0.0
    records_in: int = 0
    entries_written: int = 0
    bytes_written: int = 0
    late_records_dropped: int = 0
    local_opens: int = 0
    restores: int = 0
    state_metrics: OperatorMetrics = field(factory=dict)

    def with_epoch(self, epoch: EpochStatistics) -> JobTotals:
        """These and one epoch more."""
        summed = {name: getattr(self, name) + getattr(epoch, name) for name in _SUMMED}
        return evolve(
            self,
            epochs=self.epochs + 1,
            epochs_without_records=self.epochs_without_records + (not epoch.has_batch),
            state_metrics=metrics_of_epochs(self.state_metrics, epoch.state_metrics),
            **summed,
        )

    @property
    def local_share(self) -> float:
        """The part of the subtasks with state that found it where they ran, 0 to 1; 1 if there was no state."""
        opens = self.local_opens + self.restores
        return self.local_opens / opens if opens else 1.0


_SUMMED = (
    "duration_s",
    "checkpoint_s",
    "records_in",
    "entries_written",
    "bytes_written",
    "late_records_dropped",
    "local_opens",
    "restores",
)


@frozen(kw_only=True)
class JobFigures:
    """The metrics of a run. ``epochs``, ``failures`` and ``savepoints`` are the last ones, oldest first.

    ``ended_ms`` is None while the job runs; ``failure`` is the reason of a failure. ``time`` is by source name and
    operator uid, ``barriers`` by uid, on the local runtime only.
    """

    run: ObservedRun
    at_ms: int
    ended_ms: int | None = None
    failure: str | None = None
    totals: JobTotals = field(factory=JobTotals)
    epochs: tuple[EpochStatistics, ...] = ()
    failures: tuple[FailedCheckpoint, ...] = ()
    savepoints: tuple[SavepointReport, ...] = ()
    restored: tuple[RestoredStateFigures, ...] = ()
    newest_checkpoint: CheckpointFigures | None = None
    time: Mapping[str, TimeMetrics] = field(factory=dict)
    barriers: Mapping[str, OperatorBarriers] = field(factory=dict)

    @property
    def status(self) -> str:
        """``running``, ``ended`` or ``failed``."""
        if self.failure is not None:
            return "failed"
        return "running" if self.ended_ms is None else "ended"

    @property
    def watermark_lag_ms(self) -> int | None:
        """That of the last of sources and operators, None where none has any."""
        return max((one.lag_ms for one in self.time.values() if one.lag_ms is not None), default=None)

    @property
    def entries_migrated(self) -> int:
        """Over all states that the run began from."""
        return sum(one.entries_migrated for one in self.restored)

    def to_json(self) -> str:
        """Return the metrics as JSON text. NaN and infinity are null."""
        return json.dumps({"status": self.status, "watermark_lag_ms": self.watermark_lag_ms, **_plain(self)})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, LatencyHistogram):
        return {"count": value.count, "total_ns": value.total_ns, "maximum_ns": value.maximum_ns}
    if has(type(value)):
        instance: AttrsInstance = value
        return {one.name: _plain(getattr(instance, one.name)) for one in fields(type(instance))}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
