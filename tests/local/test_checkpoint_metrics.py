"""Job metrics include the counts of each subtask once, whether or not checkpoints complete."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.local.checkpoints import CheckpointMetrics
from statebackend.state.metrics import KeyedStateMetrics, StateMetrics
from statebackend.streaming.metrics import LATE_RECORDS_DROPPED, RECORDS_IN, ObservedRun
from statebackend.streaming.observing.job_events import JobListeners
from statebackend.streaming.observing.job_recorder import JobRecorder, LiveMetrics

RUN = ObservedRun(
    job_name="job", job_id="job", run_id="run", engine="local", parallelism=2, max_parallelism=8, started_ms=0
)
COUNT = StateMetrics(reads=3, writes=2, entries=5)


def acknowledged(checkpoint_id: int, index: int, metrics: dict[str, Any]) -> Acknowledgement:
    return Acknowledgement(
        job_id="job",
        run_id="run",
        checkpoint_id=checkpoint_id,
        operator_uid="count",
        subtask_index=index,
        attempt_id="0",
        digest="0" * 32,
        state=SubtaskState(),
        metrics=metrics,
    )


def test_counts_of_a_failed_checkpoint_belong_to_the_epoch_of_the_next_one() -> None:
    recorder = JobRecorder(RUN, LiveMetrics, JobListeners(), keeps_subtasks_open=True)
    metrics = CheckpointMetrics(recorder)
    for checkpoint_id in range(3):
        metrics.triggered(checkpoint_id, [checkpoint_id])
        reported = [
            acknowledged(
                checkpoint_id,
                index,
                {
                    RECORDS_IN: 10,
                    LATE_RECORDS_DROPPED: 1 + index,
                    "records_out/main": 4,
                    **KeyedStateMetrics({"n": evolve(COUNT, entries=5 + checkpoint_id)}).to_report(),
                },
            )
            for index in (0, 1)
        ]
        for one in reported:
            metrics.acknowledged(one)
        if checkpoint_id != 1:
            metrics.completed(checkpoint_id, reported, {})
    found = recorder.metrics()
    assert [epoch.records_in for epoch in found.epochs] == [20, 40]
    assert [epoch.late_records_dropped for epoch in found.epochs] == [3, 6]
    assert found.totals.late_records_dropped == found.totals.operators["count"].late_records_dropped == 9
    assert [epoch.operators["count"].outputs["main"].records_out for epoch in found.epochs] == [8, 16]
    states = [epoch.state_metrics["count"].states["n"] for epoch in found.epochs]
    assert [(one.reads, one.writes, one.entries) for one in states] == [(6, 4, 10), (12, 8, 14)]
    total = found.totals.state_metrics["count"].states["n"]
    assert (total.reads, total.writes, total.entries) == (18, 12, 14)
