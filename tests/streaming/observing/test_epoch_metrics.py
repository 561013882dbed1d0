"""The cost of an epoch, from the acknowledgements of its subtasks."""

from __future__ import annotations

from typing import Any

import attrs

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement
from statebackend.checkpoint.state_handles import KeyedStateHandle, SubtaskState
from statebackend.streaming.metrics import CheckpointCost, EpochMetrics, metrics_of_epoch, opening_metrics

HANDLE = KeyedStateHandle("state", "heap", 0, 15, b"", ())
ACKNOWLEDGEMENT = Acknowledgement(
    job_id="job",
    run_id="run",
    checkpoint_id=3,
    operator_uid="words",
    subtask_index=0,
    attempt_id="1.0.0.1",
    digest="digest",
    state=SubtaskState(HANDLE),
    report={},
    metrics={},
)


def metrics_of(*metrics: dict[str, Any]) -> EpochMetrics:
    acknowledgements = [attrs.evolve(ACKNOWLEDGEMENT, metrics=each) for each in metrics]
    return metrics_of_epoch(3, acknowledgements, CheckpointCost(duration_s=2.0, action_s=1.5))


def test_seconds_are_the_maximum_over_subtasks_and_entries_and_bytes_are_sums() -> None:
    found = metrics_of(
        {"open_s": 0.5, "process_s": 0.1, "snapshot_s": 0.2, "entries_written": 3, "bytes_written": 30},
        {"open_s": 0.1, "process_s": 0.4, "snapshot_s": 0.1, "entries_written": 4, "bytes_written": 50},
    )
    assert (found.epoch_id, found.duration_s, found.action_s) == (3, 2.0, 1.5)
    assert (found.open_s, found.process_s, found.snapshot_s) == (0.5, 0.4, 0.2)
    assert (found.entries_written, found.bytes_written) == (7, 80)


def test_the_local_share_counts_only_subtasks_with_state() -> None:
    local = opening_metrics(is_local=True, has_restore=True, worker_cache_bytes=5)
    restored = opening_metrics(is_local=False, has_restore=True, worker_cache_bytes=7)
    fresh = opening_metrics(is_local=False, has_restore=False, worker_cache_bytes=0)
    found = metrics_of(local, restored, local, local, fresh)
    assert (found.local_opens, found.restores, found.local_share, found.worker_cache_bytes) == (3, 1, 0.75, 7)
    assert metrics_of(fresh, fresh).local_share == 1.0
    assert metrics_of(restored).local_share == 0.0


def test_a_missing_metric_is_zero() -> None:
    found = metrics_of({}, {"open_s": None, "local_opens": None})
    assert attrs.asdict(found) == {
        **dict.fromkeys(attrs.asdict(found), 0),
        "epoch_id": 3,
        "duration_s": 2.0,
        "action_s": 1.5,
        "state_metrics": {},
        "operators": {},
        "sinks": {},
        "watermark_lag_ms": None,
        "has_batch": True,
    }
    assert attrs.asdict(metrics_of())["process_s"] == 0.0
