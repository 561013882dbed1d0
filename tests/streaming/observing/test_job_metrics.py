"""The metrics of a job: both runtimes record them, and all displays read them."""

from __future__ import annotations

import gc
import json
import math
import weakref
from pathlib import Path

import pytest
from observed_job import HOSTILE, RUN, TrackingEvent, acknowledged, migrated_job, recorder_by_hand, visits_environment
from retained_items import grown, retained_items

from statebackend import Operation, Savepoint, StateMetricsConfig
from statebackend.local.run import LocalRun
from statebackend.savepoint.inspection import inspection
from statebackend.savepoint.statistics import checkpoint_sizes
from statebackend.streaming.errors import UserFunctionError
from statebackend.streaming.metrics import REMEMBERED_EPOCHS, CheckpointCost, TimeMetrics
from statebackend.streaming.observing.job_events import JobListeners
from statebackend.streaming.observing.job_recorder import JobRecorder, LiveMetrics

TIME = TimeMetrics(watermark_ms=5)


def test_metrics_report_and_command_line_show_the_same_numbers(tmp_path: Path) -> None:
    job = migrated_job(tmp_path / "job", metrics=StateMetricsConfig())
    metrics = job.metrics()
    newest = metrics.newest_checkpoint
    assert newest is not None
    looked_at = Savepoint.open(tmp_path / "job")
    reported = inspection(looked_at, now_ms=0, counts=True)
    assert newest == checkpoint_sizes(looked_at.metadata)
    for name in ("checkpoint_id", "kind", "job_name", "job_id", "timestamp_ms", "max_parallelism", "size_bytes"):
        assert getattr(newest, name) == reported[name], name
    assert newest.file_count == reported["files"]
    [operator], [answer] = newest.operators, reported["operators"]
    assert (operator.uid, operator.parallelism, operator.size_bytes) == (
        answer["uid"],
        answer["parallelism"],
        answer["size_bytes"],
    )
    last = metrics.epochs[-1]
    assert (last.epoch_id, last.size_bytes) == (newest.checkpoint_id, newest.size_bytes)
    assert last.operators["count"].size_bytes == operator.size_bytes
    assert last.operators["count"].size_skew == operator.skew
    state = metrics.totals.state_metrics["count"].states["last visit"]
    assert state.size_bytes == operator.bytes_by_state["last visit"]
    assert state.entries == answer["states"][0]["entries"] == 8
    assert job.epochs == metrics.totals.epochs == len(metrics.epochs) == 2
    assert metrics.totals.records_in == sum(one.records_in for one in metrics.epochs) == 8
    assert metrics.totals.bytes_written == metrics.totals.state_metrics["count"].snapshot.bytes_written
    assert metrics.entries_migrated == sum(one.entries_migrated for one in job.restore_reports) == 8
    assert sum(one.entries_migrated for one in job.restore_report()) == 8
    assert [one.kind.label for one in job.schema_reports["count"].compatibilities] == [
        one.compatibility for one in metrics.restored
    ]
    assert metrics.status == "ended"


def test_a_thousand_epochs_keep_the_last_ones_and_all_sums() -> None:
    recorder = recorder_by_hand()
    sizes = []
    for epoch_id in range(REMEMBERED_EPOCHS + 500):
        acknowledgements = [acknowledged(epoch_id, index, records=epoch_id * index) for index in (0, 1)]
        recorder.epoch_completed(epoch_id, acknowledgements, CheckpointCost(duration_s=1.0, checkpoint_s=0.5))
        recorder.checkpoint_failed(epoch_id, "full " * 1000)
        if epoch_id in (500, 1400):
            sizes.append(retained_items(recorder))
    metrics = recorder.metrics()
    assert [one.epoch_id for one in metrics.epochs] == list(range(500, 1500))
    assert metrics.totals.epochs == metrics.totals.duration_s == 1500
    assert metrics.totals.failed_checkpoints == 1500
    assert len(metrics.failures) == 100
    assert len(metrics.failures[0].reason) < 3000
    assert metrics.epochs[-1].operators["count"].records_skew == 2.0
    assert grown(*sizes, by=10) == {}


def test_metrics_are_json_for_any_numbers_and_names() -> None:
    recorder = recorder_by_hand()
    for epoch_id, seconds in enumerate((math.nan, math.inf, -math.inf, -1.0)):
        acknowledgements = [acknowledged(epoch_id, 0, uid=HOSTILE)]
        recorder.epoch_completed(epoch_id, acknowledgements, CheckpointCost(duration_s=seconds, checkpoint_s=seconds))
    recorder.checkpoint_failed(None, HOSTILE)
    recorder.terminated(ValueError(HOSTILE))
    again = json.loads(recorder.metrics().to_json(), parse_constant=pytest.fail)
    assert [one["duration_s"] for one in again["epochs"]] == [None, None, None, -1.0]
    assert again["run"]["job_name"] == HOSTILE
    assert list(again["epochs"][0]["operators"]) == [HOSTILE]
    assert again["status"] == "failed"


def test_a_job_without_epochs_and_one_that_fails_have_metrics(tmp_path: Path) -> None:
    assert recorder_by_hand().metrics().status == "running"
    heard = TrackingEvent()
    environment = visits_environment(tmp_path, fails_at=5)
    environment.add_listener(heard)
    with pytest.raises(UserFunctionError):
        environment.execute("visits")
    assert heard.kinds == ["JobStarted", "CheckpointCompleted", "EpochCompleted", "JobTerminated"]
    metrics = heard.events[0].job.metrics()
    assert metrics.status == "failed"
    assert "UserFunctionError" in metrics.failure
    assert metrics.totals.epochs == 1
    assert isinstance(heard.events[-1].error, UserFunctionError)


def test_a_clock_that_goes_back_changes_no_duration() -> None:
    times = iter([1000, 500, 100, 50, 20])
    recorder = recorder_by_hand(clock=lambda: next(times))
    for epoch_id in range(2):
        recorder.epoch_completed(epoch_id, [acknowledged(epoch_id, 0)], CheckpointCost(duration_s=1.0))
    metrics = recorder.metrics()
    assert [one.ended_ms for one in metrics.epochs] == [1000, 500]
    assert [one.duration_s for one in metrics.epochs] == [1.0, 1.0]


def test_progress_of_a_migration_and_of_a_savepoint_is_reported_with_the_subtask(tmp_path: Path) -> None:
    heard = TrackingEvent()
    job = migrated_job(tmp_path / "job", heard)
    job.savepoint(tmp_path / "savepoint")
    assert heard.kinds == [
        "JobStarted",
        "StateRestored",
        "StateMigrated",
        "CheckpointCompleted",
        "EpochCompleted",
        "CheckpointCompleted",
        "EpochCompleted",
        "JobTerminated",
        "SavepointWritten",
    ]
    for operation in (Operation.MIGRATION, Operation.SAVEPOINT):
        done = [one for one in heard.reported if one.operation is operation and one.is_done]
        assert sorted(one.subtask_index for one in done) == [0, 1]
        assert sum(one.entries for one in done) == 8
    assert job.metrics().savepoints[0].size_bytes > 0


def test_a_changed_file_is_read_again_and_a_damaged_one_reported() -> None:
    reported: list[Exception | LiveMetrics] = [LiveMetrics(time={"source": TIME})]

    def live() -> LiveMetrics:
        found = reported.pop(0) if len(reported) > 1 else reported[0]
        if isinstance(found, Exception):
            raise found
        return found

    recorder = JobRecorder(RUN, live, JobListeners(()), keeps_subtasks_open=True)
    assert recorder.metrics().time == {"source": TIME}
    reported[:] = [RuntimeError("dictionary changed size during iteration"), LiveMetrics(time={"other": TIME})]
    assert recorder.metrics().time == {"other": TIME}
    reported[:] = [RuntimeError("dictionary changed size during iteration")]
    assert recorder.metrics().time == {"other": TIME}, "what is known of the last moment, and not nothing"
    reported[:] = [AttributeError("no such metric")]
    with pytest.raises(AttributeError, match="no such metric"):
        recorder.metrics()
    recorder.terminated(None)
    assert recorder.metrics().time == {"other": TIME}


def test_the_lag_of_an_epoch_is_the_maximum_over_sources_with_a_lag() -> None:
    time = {name: TimeMetrics(lag_ms=lag_ms) for name, lag_ms in (("a", 5), ("b", 70), ("c", None), ("d", 20))}
    recorder = JobRecorder(RUN, lambda: LiveMetrics(time=time), JobListeners(()), keeps_subtasks_open=True)
    assert recorder.epoch_completed(1, [acknowledged(1, 0)], CheckpointCost()).watermark_lag_ms == 70
    without = recorder_by_hand().epoch_completed(1, [acknowledged(1, 0)], CheckpointCost())
    assert without.watermark_lag_ms is None


def test_reading_metrics_is_not_disturbed_by_the_running_job(tmp_path: Path) -> None:
    visits_environment(tmp_path).execute("visits")
    with visits_environment(tmp_path).opened_run("visits") as run:
        reading = iter(run.recorder._live().schema_reports.items())
        # A record may add key types during the read.
        run.schema_reports["later"] = run.schema_reports["count"]  # type: ignore[index]
        assert [uid for uid, _ in reading] == ["count"]


def test_the_metrics_of_a_finished_run_reference_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[weakref.ref[LocalRun]] = []
    begin = LocalRun.__enter__

    def noted(run: LocalRun) -> LocalRun:
        runs.append(weakref.ref(run))
        return begin(run)

    monkeypatch.setattr(LocalRun, "__enter__", noted)
    job = visits_environment(tmp_path).execute("visits")
    gc.collect()
    assert [run() for run in runs] == [None]
    assert job.metrics().totals.records_in == 8
    assert job.restore_report() == ()
