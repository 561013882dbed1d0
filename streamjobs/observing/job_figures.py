"""The figures of a job: what it has done so far and how large its state is, as plain values.

They are a copy, made when they are asked for, and `JobFigures.to_json` makes JSON of them; nothing stores them. Epochs
and failures are those of one run: the last of them one by one, all together in `JobTotals`. Sizes of operators,
subtasks and states are those of the newest checkpoint, as its metadata says them
(`savepoints.reading.checkpoint_figures`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attrs import AttrsInstance, evolve, field, fields, frozen, has

from savepoints.export import SavepointReport
from savepoints.reading.checkpoint_figures import CheckpointFigures
from statebackend.metrics import LatencyHistogram
from streamjobs.observing.epoch_statistics import EpochStatistics
from streamjobs.runtime.barrier_metrics import OperatorBarriers
from streamjobs.runtime.job_metrics import OperatorMetrics, metrics_of_epochs
from streamjobs.runtime.time_metrics import TimeMetrics

__all__ = ["FailedCheckpoint", "JobFigures", "JobTotals", "ObservedRun", "RestoredStateFigures"]


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
    """A state that the run began from: the verdict on it, as text, and what its migration did over all subtasks."""

    operator_uid: str
    state_name: str
    verdict: str
    findings: tuple[str, ...] = ()
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
    """See the module. ``epochs``, ``failures`` and ``savepoints`` are the last of them, oldest first.

    ``ended_ms`` is None while the job runs; ``failure`` says why it failed. ``time`` is by name of source and uid,
    ``barriers`` by uid, in one process only.
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

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: objects, lists, texts and numbers; what is no number (NaN, infinity) is null."""
        return {"status": self.status, "watermark_lag_ms": self.watermark_lag_ms, **_plain(self)}


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
