"""What the epochs of a run cost, from what their tasks acknowledged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

from checkpoint.acknowledgement import Acknowledgement
from streamjobs.job_metrics import OperatorMetrics

__all__ = ["EpochStatistics", "epoch_statistics"]


@frozen(kw_only=True)
class EpochStatistics:
    """What an epoch cost. Seconds on the driver: all of it, and the sink's action; of the slowest subtask: opening its
    state, processing, and the snapshot. Entries and bytes are what all subtasks wrote for the checkpoint.
    ``state_metrics`` are those of keyed state by operator uid, where metrics are on.
    """

    epoch_id: int
    duration_s: float
    action_s: float
    open_s: float
    process_s: float
    snapshot_s: float
    entries_written: int
    bytes_written: int
    state_metrics: OperatorMetrics = field(factory=dict)


def epoch_statistics(
    epoch_id: int,
    acknowledgements: Sequence[Acknowledgement],
    duration_s: float,
    action_s: float,
    state_metrics: OperatorMetrics,
) -> EpochStatistics:
    """The statistics of a completed epoch."""
    metrics = [acknowledgement.metrics for acknowledgement in acknowledgements]
    return EpochStatistics(
        epoch_id=epoch_id,
        duration_s=duration_s,
        action_s=action_s,
        entries_written=sum(_number(values, "entries_written") for values in metrics),
        bytes_written=sum(_number(values, "bytes_written") for values in metrics),
        state_metrics=state_metrics,
        **{name: max(_seconds(values, name) for values in metrics) for name in _LAPS},
    )


_LAPS: Final = ("open_s", "process_s", "snapshot_s")


def _number(values: Mapping[str, Any], name: str) -> int:
    return int(values.get(name) or 0)


def _seconds(values: Mapping[str, Any], name: str) -> float:
    return float(values.get(name) or 0.0)
