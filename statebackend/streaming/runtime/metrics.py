"""Metrics of subtasks: how they travel in acknowledgements, and how the driver aggregates them.

Checkpoints do not store metrics. They belong to one run and start again with the next. Metrics that cannot be decoded
are skipped and fail no epoch.

* **Restores**: ``report := { ["operator_state/"] "entries_migrated/" name: i64, ["operator_state/"] "duration_s/" name:
  f64 }``. The program that wrote an acknowledgement also reads it.
* **Barriers**: how long they took and what they overtook, aggregated by operator, in constant memory.
* **Event time**: the watermark of each source and operator, its lag (processing time of the last epoch minus the
  watermark), and late records.
* **Keyed state**: the state metrics of all subtasks.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve, frozen

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, ReportValue
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.metrics import KeyedStateMetrics
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP

__all__ = [
    "LATE_RECORDS_DROPPED",
    "BarrierTotals",
    "OperatorBarriers",
    "SubtaskBarriers",
    "TimeMetrics",
    "late_records_of",
    "time_metrics",
]


_NAMES = ("is_unaligned", "start_delay_ms", "alignment_ms", "capture_ms", "in_flight_bytes")
_PREFIX = "barrier_"


@frozen(kw_only=True)
class SubtaskBarriers:
    """The barriers of one checkpoint at one subtask; times in milliseconds of the clock of checkpoints.

    ``start_delay_ms`` from the making of the barrier to the first that came out, ``alignment_ms`` from there to the
    snapshot, ``capture_ms`` from there to the last one if they overtook; ``in_flight_bytes`` were written down.
    """

    is_unaligned: bool
    start_delay_ms: int
    alignment_ms: int
    capture_ms: int
    in_flight_bytes: int

    def report(self) -> dict[str, ReportValue]:
        """What a subtask says of them among the metrics of its acknowledgement."""
        return {_PREFIX + name: int(getattr(self, name)) for name in _NAMES}

    @classmethod
    def from_report(cls, metrics: Mapping[str, ReportValue]) -> SubtaskBarriers | None:
        """What an acknowledgement says; None if it says nothing that can be read."""
        values = [metrics.get(_PREFIX + name) for name in _NAMES]
        whole = [value for value in values if isinstance(value, int) and value >= 0]
        if len(whole) != len(_NAMES):
            return None
        is_unaligned, start_delay_ms, alignment_ms, capture_ms, in_flight_bytes = whole
        return cls(
            is_unaligned=bool(is_unaligned),
            start_delay_ms=start_delay_ms,
            alignment_ms=alignment_ms,
            capture_ms=capture_ms,
            in_flight_bytes=in_flight_bytes,
        )


@frozen(kw_only=True)
class OperatorBarriers:
    """Of an operator, over all its subtasks and the complete checkpoints of a run.

    ``snapshots`` of subtasks, of which ``unaligned_snapshots`` were taken before the last barrier; times are the
    longest of any, in milliseconds, and the bytes are sums.
    """

    snapshots: int = 0
    unaligned_snapshots: int = 0
    longest_start_delay_ms: int = 0
    longest_alignment_ms: int = 0
    longest_capture_ms: int = 0
    in_flight_bytes: int = 0

    def with_subtask(self, one: SubtaskBarriers) -> OperatorBarriers:
        """These and one more snapshot."""
        return evolve(
            self,
            snapshots=self.snapshots + 1,
            unaligned_snapshots=self.unaligned_snapshots + one.is_unaligned,
            longest_start_delay_ms=max(self.longest_start_delay_ms, one.start_delay_ms),
            longest_alignment_ms=max(self.longest_alignment_ms, one.alignment_ms),
            longest_capture_ms=max(self.longest_capture_ms, one.capture_ms),
            in_flight_bytes=self.in_flight_bytes + one.in_flight_bytes,
        )


class BarrierTotals:
    """Of a run: its operators, and the subtasks in its newest complete checkpoint."""

    def __init__(self) -> None:
        self.operators: dict[str, OperatorBarriers] = {}
        """By uid."""
        self.newest: dict[tuple[str, int], SubtaskBarriers] = {}
        """By uid and index of the subtask."""

    def note(self, acknowledgements: Iterable[Acknowledgement]) -> None:
        """A checkpoint is complete with these."""
        self.newest = {}
        for acknowledgement in acknowledgements:
            one = SubtaskBarriers.from_report(acknowledgement.metrics)
            if one is not None:
                uid = acknowledgement.operator_uid
                self.newest[uid, acknowledgement.subtask_index] = one
                self.operators[uid] = self.operators.get(uid, OperatorBarriers()).with_subtask(one)


LATE_RECORDS_DROPPED = "late_records_dropped"
"""What a subtask says of them among the metrics of its acknowledgement."""


@frozen(kw_only=True)
class TimeMetrics:
    """Of a source or an operator. Times are in milliseconds; None without a watermark, and without a lag at its end.

    ``late_records_dropped`` counts records of this run that came behind the watermark and went to no side output; a
    source has none.
    """

    watermark_ms: int | None = None
    lag_ms: int | None = None
    late_records_dropped: int = 0


def late_records_of(acknowledgements: Iterable[Acknowledgement]) -> Counter[str]:
    """How many late records each operator has dropped in an epoch, by uid."""
    dropped: Counter[str] = Counter()
    for acknowledgement in acknowledgements:
        with contextlib.suppress(TypeError, ValueError):
            dropped[acknowledgement.operator_uid] += int(acknowledgement.metrics.get(LATE_RECORDS_DROPPED) or 0)
    return dropped


def time_metrics(
    names: Iterable[str], known: Mapping[str, int], processing_time_ms: int | None, dropped: Mapping[str, int]
) -> Mapping[str, TimeMetrics]:
    """Those of sources, by name, and operators, by uid, of which the watermarks are ``known`` that there are.

    ``processing_time_ms`` is that of the last epoch, None before the first.
    """
    return {
        name: TimeMetrics(
            watermark_ms=known.get(name),
            lag_ms=_lag(known.get(name), processing_time_ms),
            late_records_dropped=dropped.get(name, 0),
        )
        for name in names
    }


def _lag(watermark_ms: int | None, processing_time_ms: int | None) -> int | None:
    if watermark_ms is None or processing_time_ms is None or watermark_ms == MAX_TIMESTAMP:
        return None
    return processing_time_ms - watermark_ms


REMEMBERED_EPOCHS: Final = 1000
"""Epochs of which single figures are kept; a job may run for years."""

RECORDS_IN: Final = "records_in"
"""What a subtask says, among the metrics of its acknowledgement, of the records that came to it in the epoch."""

OperatorMetrics = Mapping[str, KeyedStateMetrics]
"""Metrics by operator uid; empty if metrics are off."""


def metrics_of_epoch(acknowledgements: Iterable[Acknowledgement]) -> OperatorMetrics:
    """The metrics of each operator in an epoch, over all its subtasks."""
    return metrics_of_subtasks(map(_metrics_of_subtask, acknowledgements))


def _metrics_of_subtask(acknowledgement: Acknowledgement) -> OperatorMetrics:
    with contextlib.suppress(ValueError):
        metrics = KeyedStateMetrics.from_report(acknowledgement.metrics)
        return {} if metrics is None else {acknowledgement.operator_uid: metrics}
    return {}


def metrics_of_subtasks(subtasks: Iterable[OperatorMetrics]) -> OperatorMetrics:
    """The metrics of each operator, over those of its subtasks."""
    operators: dict[str, KeyedStateMetrics] = {}
    for metrics_of_one in subtasks:
        for uid, metrics in metrics_of_one.items():
            operators[uid] = operators[uid].merged_with(metrics) if uid in operators else metrics
    return operators


def metrics_of_epochs(earlier: OperatorMetrics, later: OperatorMetrics) -> OperatorMetrics:
    """The metrics of each operator over some epochs and one more."""
    operators = dict(earlier)
    for uid, metrics in later.items():
        operators[uid] = operators[uid].followed_by(metrics) if uid in operators else metrics
    return operators


def opening_metrics(*, is_local: bool, has_restore: bool, kept_bytes_of_host: int) -> dict[str, ReportValue]:
    """What a subtask says, among the metrics of its acknowledgement, about where its state was."""
    return {
        "local_opens": int(is_local),
        "restores": int(has_restore and not is_local),
        "kept_bytes_of_host": kept_bytes_of_host,
    }


_ENTRIES_MIGRATED: Final = "entries_migrated"
_DURATION_S: Final = "duration_s"
_OPERATOR_STATE: Final = "operator_state/"


@frozen
class RestoreMeasure:
    """What the migration of one state took: in one subtask, or the sum of entries and the slowest of several."""

    entries_migrated: int = 0
    duration_s: float = 0.0


def restore_report(
    keyed: Iterable[StateRestoreReport], operator_state: Iterable[StateRestoreReport]
) -> dict[str, ReportValue]:
    """The measures of one subtask, for the report of its acknowledgement."""
    report: dict[str, ReportValue] = {}
    for restored_states, prefix in ((keyed, ""), (operator_state, _OPERATOR_STATE)):
        for restored in restored_states:
            report[f"{prefix}{_ENTRIES_MIGRATED}/{restored.state_name}"] = restored.entries_migrated
            report[f"{prefix}{_DURATION_S}/{restored.state_name}"] = restored.duration_s
    return report


def measure_of(
    reports: Iterable[Mapping[str, ReportValue]], state_name: str, *, is_operator_state: bool
) -> RestoreMeasure:
    """What the migration of a state took, by the reports of all subtasks; nothing where nobody registered it."""
    prefix = _OPERATOR_STATE if is_operator_state else ""
    entries, duration_s = 0, 0.0
    for report in reports:
        migrated = report.get(f"{prefix}{_ENTRIES_MIGRATED}/{state_name}")
        took_s = report.get(f"{prefix}{_DURATION_S}/{state_name}")
        entries += migrated if isinstance(migrated, int) else 0
        duration_s = max(duration_s, took_s if isinstance(took_s, (int, float)) else 0.0)
    return RestoreMeasure(entries, duration_s)
