"""The metrics of a job's keyed state, put together from what its subtasks acknowledge.

They travel in the acknowledgements of an epoch, of which checkpoints keep nothing; so they are those of one run, and
begin anew with the next. Metrics are for people: some that cannot be read are left out, and fail no epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

from checkpointing.coordinator.acknowledgement import Acknowledgement, ReportValue
from statebackend.metrics import KeyedStateMetrics

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
