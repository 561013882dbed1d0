"""What the epochs of a run cost, and whether subtasks found their state, from what their tasks acknowledged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

from checkpointing.coordinator.acknowledgement import Acknowledgement
from streamjobs.runtime.job_metrics import OperatorMetrics

__all__ = ["EpochStatistics", "epoch_statistics"]


@frozen(kw_only=True)
class EpochStatistics:
    """What an epoch cost. Seconds on the driver: all of it, and the sink's action; of the slowest subtask: opening its
    state, processing, and the snapshot. Entries and bytes are what all subtasks wrote for the checkpoint.

    ``local_opens`` are the subtasks that found their state where they ran, ``restores`` those that had state and had to
    fetch it. ``kept_bytes_of_host`` is what the workers of a host keep in memory for later epochs, of the host that
    keeps most; an estimate. ``state_metrics`` are those of keyed state by operator uid, where metrics are on.
    ``has_batch`` is False for an epoch without records, which ran since time had something to do.
    ``late_records_dropped`` came behind the watermark, and went to no side output.
    """

    epoch_id: int
    duration_s: float
    action_s: float
    open_s: float
    process_s: float
    snapshot_s: float
    entries_written: int
    bytes_written: int
    local_opens: int = 0
    restores: int = 0
    kept_bytes_of_host: int = 0
    state_metrics: OperatorMetrics = field(factory=dict)
    has_batch: bool = True
    late_records_dropped: int = 0

    @property
    def local_share(self) -> float:
        """The part of the subtasks with state that found it where they ran, 0 to 1; 1 if there was no state yet."""
        opens = self.local_opens + self.restores
        return self.local_opens / opens if opens else 1.0


def epoch_statistics(
    epoch_id: int,
    acknowledgements: Sequence[Acknowledgement],
    duration_s: float,
    action_s: float,
    state_metrics: OperatorMetrics,
    *,
    has_batch: bool = True,
    late_records_dropped: int = 0,
) -> EpochStatistics:
    """The statistics of a completed epoch; a number that a subtask does not give counts as 0."""
    metrics = [acknowledgement.metrics for acknowledgement in acknowledgements]
    return EpochStatistics(
        epoch_id=epoch_id,
        duration_s=duration_s,
        action_s=action_s,
        entries_written=sum(_number(values, "entries_written") for values in metrics),
        bytes_written=sum(_number(values, "bytes_written") for values in metrics),
        local_opens=sum(_number(values, "local_opens") for values in metrics),
        restores=sum(_number(values, "restores") for values in metrics),
        kept_bytes_of_host=max((_number(values, "kept_bytes_of_host") for values in metrics), default=0),
        state_metrics=state_metrics,
        has_batch=has_batch,
        late_records_dropped=late_records_dropped,
        **{name: max((_seconds(values, name) for values in metrics), default=0.0) for name in _LAPS},
    )


_LAPS: Final = ("open_s", "process_s", "snapshot_s")


def _number(values: Mapping[str, Any], name: str) -> int:
    return int(values.get(name) or 0)


def _seconds(values: Mapping[str, Any], name: str) -> float:
    return float(values.get(name) or 0.0)
