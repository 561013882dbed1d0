"""An epoch on the driver, without Spark. The tests provide the acknowledgements of the tasks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from driver_fixture import IDENTITY, Job, job_without_spark
from retained_items import grown, retained_items

from statebackend.checkpoint import Acknowledgement, KeyedStateHandle, ReadSource, StorageError, SubtaskState
from statebackend.savepoint.restored_state import RestoredState
from statebackend.spark import epoch_driver
from statebackend.spark.epoch_driver import EpochDriver
from statebackend.streaming.errors import EpochError, EpochTimeoutError, SourceProgressMismatchError
from statebackend.streaming.observing.job_events import JobListener, JobListeners
from statebackend.streaming.runtime.restore_plan import RESTORE_PLANS_DIRECTORY


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return job_without_spark(tmp_path, monkeypatch)


def test_an_epoch_is_stored_before_it_is_committed_and_counts_after_that(job: Job) -> None:
    job.sink.fails_at["commit"] = RuntimeError("the disk is full")
    with pytest.raises(RuntimeError, match="the disk is full"):
        job.run(0)
    assert job.latest.checkpoint_id == 0
    assert job.driver.last_epoch_id is None
    assert job.sink.reported == [("stage", 0, f"{IDENTITY.job_id}.run-1"), ("commit", 0, b"rows of 0")]
    job.sink.fails_at.clear()
    job.start()
    job.replay(0)
    job.run(1)
    assert job.sink.reported[2:] == [
        ("commit", 0, b"rows of 0"),
        ("stage", 1, f"{IDENTITY.job_id}.run-2"),
        ("commit", 1, b"rows of 1"),
    ]
    assert job.driver.last_epoch_id == job.latest.checkpoint_id == job.latest.parent_checkpoint_id + 1 == 1
    assert job.latest.source_offsets == (job.directory / "spark" / "offsets" / "1").read_bytes()


def test_the_offsets_of_an_epoch_are_durable_before_its_tasks_run(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        epoch_driver,
        "make_offsets_durable",
        lambda directory, epoch_id: job.sink.reported.append((directory, epoch_id)),
    )
    job.run(0)
    assert job.sink.reported[:2] == [(str(job.directory / "spark"), 0), ("stage", 0, f"{IDENTITY.job_id}.run-1")]


def test_session_settings_are_set_in_every_epoch(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_driver, "configure_query", lambda session: job.sink.reported.append("settings"))
    for epoch_id in range(2):
        job.run(epoch_id)
    assert [reported if reported == "settings" else reported[0] for reported in job.sink.reported] == [
        "settings",
        "stage",
        "commit",
    ] * 2


def test_no_epoch_begins_once_the_job_is_stopping(job: Job) -> None:
    job.run(0)
    job.driver.request_stop()
    with pytest.raises(EpochError, match="epoch 1 was not started: the job is stopping"):
        job.run(1)
    assert job.sink.reported[-1] == ("commit", 0, b"rows of 0")
    assert job.driver.failure is None, "a job that was stopped has not failed"


@pytest.mark.parametrize("epoch_id", [0, 1, 2, 3])
def test_the_first_epoch_is_number_0(job: Job, epoch_id: int) -> None:
    if epoch_id == 0:
        job.run(0)
        return
    with pytest.raises(SourceProgressMismatchError, match=rf"batch {epoch_id}, the state log at epoch none.*must be 0"):
        job.run(epoch_id)
    assert job.sink.reported == []


@pytest.mark.parametrize("epoch_id", [0, 1, 4, 5])
def test_a_batch_before_or_after_that_of_the_state_is_rejected(job: Job, epoch_id: int) -> None:
    for number in (0, 1, 2):
        job.run(number)
    reported = list(job.sink.reported)
    with pytest.raises(SourceProgressMismatchError, match=rf"at batch {epoch_id}, the state log at epoch 2.*must be 3"):
        job.run(epoch_id)
    assert job.sink.reported == reported
    job.start()
    with pytest.raises(SourceProgressMismatchError, match="must be 3"):
        job.run(epoch_id)


def test_a_completed_batch_with_other_offsets_is_rejected(job: Job) -> None:
    job.run(0)
    job.run(1)
    reported = list(job.sink.reported)
    job.start()
    with pytest.raises(SourceProgressMismatchError, match="epoch 1 was completed for other source offsets"):
        job.run(1, offset=9)
    assert job.sink.reported == reported
    job.start()
    job.run(1)
    assert job.sink.reported == [*reported, ("commit", 1, b"rows of 1")]


def test_an_epoch_that_cannot_be_stored_is_discarded_and_runs_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run(0)
    files = job.files()
    with monkeypatch.context() as patched:
        patched.setattr(job.driver.parts.store, "add", mock.Mock(side_effect=StorageError("the disk is full")))
        with pytest.raises(StorageError, match="the disk is full"):
            job.run(1)
    assert job.files() == files
    assert job.driver.last_epoch_id == 0
    assert isinstance(job.driver.failure, StorageError)
    job.start()
    job.replay(1)
    assert job.latest.checkpoint_id == 1


@pytest.mark.parametrize("failure", [ArithmeticError("as it must"), KeyboardInterrupt("as it must")])
def test_an_epoch_that_fails_is_aborted_and_leaves_nothing(job: Job, failure: BaseException) -> None:
    job.sink.fails_at["stage"] = failure
    # Py4J can answer the JVM only with an Exception, and not with any other BaseException.
    with pytest.raises(ArithmeticError if isinstance(failure, Exception) else EpochError, match="as it must"):
        job.run(0)
    assert job.driver.failure is failure
    assert job.driver.running_epoch_id is None
    assert job.sink.reported == [("stage", 0, f"{IDENTITY.job_id}.run-1"), ("abort", 0, f"{IDENTITY.job_id}.run-1")]
    assert job.latest is None
    broadcast: Any = epoch_driver.RunBroadcast
    broadcast.return_value.destroy.assert_called_once_with()


def test_a_restore_plan_is_removed_with_its_epoch_in_any_case(job: Job) -> None:
    planned: list[int] = []

    def acknowledge(epoch_id: int) -> list[Acknowledgement]:
        planned.append(len(job.fs.list_files(RESTORE_PLANS_DIRECTORY)))
        return [job.acknowledgement(epoch_id, index) for index in range(2 if epoch_id < 2 else 1)]

    job.acknowledge = acknowledge
    job.run(0)
    job.run(1)
    assert job.fs.list_files(RESTORE_PLANS_DIRECTORY) == ()
    with pytest.raises(Exception, match="lacks the acknowledgements"):
        job.run(2)
    assert job.fs.list_files(RESTORE_PLANS_DIRECTORY) == ()
    assert planned[1:] == [1, 1], "the first epoch has nothing to restore"


def test_a_failed_clean_up_does_not_hide_the_first_error(job: Job) -> None:
    job.sink.fails_at |= {"stage": ArithmeticError("the cause"), "abort": OSError("an effect")}
    with pytest.raises(ArithmeticError, match="the cause"):
        job.run(0)


def test_a_missing_acknowledgement_fails_the_epoch_and_the_received_state_is_discarded(job: Job) -> None:
    job.acknowledge = lambda epoch_id: [job.acknowledgement(epoch_id, 0)]
    with pytest.raises(Exception, match="lacks the acknowledgements of 1 of 2 tasks"):
        job.run(0)
    assert job.files() == []


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"digest": "another", "state": SubtaskState(KeyedStateHandle("x", "heap", 0, 1, b"", ()))}, "conflict"),
        ({"subtask_index": 7}, "unknown"),
        ({"operator_uid": "others"}, "unknown"),
        ({"checkpoint_id": 3}, "discarded"),
        ({"run_id": "run-0"}, "foreign"),
        ({"job_id": "another"}, "foreign"),
    ],
)
def test_a_foreign_acknowledgement_fails_the_epoch(job: Job, changes: dict[str, Any], match: str) -> None:
    job.acknowledge = lambda epoch_id: [
        job.acknowledgement(epoch_id, 0),
        job.acknowledgement(epoch_id, 1),
        job.acknowledgement(epoch_id, 0, **changes),
    ]
    with pytest.raises(EpochError, match=match):
        job.run(0)
    assert job.latest is None


def test_a_duplicate_acknowledgement_counts_once(job: Job) -> None:
    job.acknowledge = lambda epoch_id: [job.acknowledgement(epoch_id, index) for index in (0, 1, 1)]
    job.run(0)
    assert job.latest.checkpoint_id == 0
    assert job.files() == ["shared/1-0-0", "shared/1-0-1"]


def test_the_time_of_an_epoch_is_that_of_its_batch_in_every_attempt_and_never_goes_back(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []
    task_type = epoch_driver.EpochTask

    def noted(**content: Any) -> Any:
        times.append(content["epoch"].processing_time_ms)
        return task_type(**content)

    monkeypatch.setattr(epoch_driver, "EpochTask", noted)
    job.run(0, time_ms=5000)
    job.sink.fails_at["stage"] = ArithmeticError("as it must")
    with pytest.raises(ArithmeticError):
        job.run(1, time_ms=6000)
    job.sink.fails_at.clear()
    job.start()
    job.replay(1)
    job.run(2, time_ms=5500)
    job.run(3, time_ms=6001)
    assert times == [5000, 6000, 6000, 6000, 6001]
    assert job.latest.processing_time_ms == 6001
    assert job.latest.sink_identities == {"sink": "a sink"}
    positions = job.latest.source_positions
    assert positions is not None
    assert (positions.batch_id, positions.sources) == (3, (ReadSource("words", "words", "0"),))


def test_idle_time_counts_from_the_last_epoch_if_the_clock_was_set_back(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[int | None] = []
    watermarks = epoch_driver.EpochWatermarks

    def noted(event_time: Any, restored: Any, now_ms: int | None) -> Any:
        began.append(now_ms)
        return watermarks(event_time, restored, now_ms)

    monkeypatch.setattr(epoch_driver, "EpochWatermarks", noted)
    monkeypatch.setattr(epoch_driver, "wall_clock", lambda: 5000)
    job.run(0, time_ms=9000)
    driver = job.start()
    driver.forget_source_progress()
    monkeypatch.setattr(epoch_driver, "wall_clock", lambda: 9500)
    job.start()
    assert began == [9000, 9000, 9500], "the epochs to come have this time at least"


def test_an_epoch_that_took_too_long_does_not_count_even_if_all_have_acknowledged(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock is read twice at each moment: for the batch and for its epoch.
    now_ms = iter([0, 0, 99, 99, 1000, 1000, 1100, 1100])
    monkeypatch.setattr(epoch_driver, "monotonic_ms", lambda: next(now_ms))
    monkeypatch.setattr(epoch_driver, "EpochWatchdog", mock.MagicMock())
    job.start(epoch_timeout_s=0.1)
    job.run(0)
    files = job.files()
    with pytest.raises(EpochTimeoutError, match=r"epoch 1 did not end within 0\.1 s"):
        job.run(1)
    assert job.files() == files
    assert job.sink.reported[-1] == ("abort", 1, f"{IDENTITY.job_id}.run-2")


def test_an_abandoned_epoch_reports_that_with_any_error(job: Job) -> None:
    def fail(epoch_id: int) -> list[Acknowledgement]:
        job.driver.abandoned = "epoch 0 was aborted"
        raise ArithmeticError("the job was cancelled")

    job.acknowledge = fail
    with pytest.raises(EpochTimeoutError, match=r"^epoch 0 was aborted$") as failure:
        job.run(0)
    assert job.driver.failure is failure.value
    assert failure.value.__suppress_context__, "the error for the JVM is one line"
    metrics = job.driver.recorder.metrics()
    for reported in (metrics.failure, metrics.failures[0].reason):
        assert reported is not None
        assert reported.startswith("EpochTimeoutError: epoch 0 was aborted"), "what is raised, and not what came of it"


def test_waiting_for_the_running_epoch(job: Job) -> None:
    waiting, going_on = threading.Event(), threading.Event()

    def acknowledge(epoch_id: int) -> list[Acknowledgement]:
        waiting.set()
        going_on.wait()
        return [job.acknowledgement(epoch_id, index) for index in (0, 1)]

    job.acknowledge = acknowledge
    assert job.driver.wait_until_idle(0, lambda: False)
    running = threading.Thread(target=job.run, args=[0])
    running.start()
    waiting.wait()
    assert job.driver.running_epoch_id == 0
    assert not job.driver.wait_until_idle(0, lambda: False)
    assert not job.driver.wait_until_idle(None, lambda: True)
    going_on.set()
    assert job.driver.wait_until_idle(None, lambda: False)
    running.join()
    assert job.driver.running_epoch_id is None
    assert job.latest.checkpoint_id == 0


def test_epochs_count_from_0_again_for_state_without_its_source_position(job: Job) -> None:
    job.run(0)
    job.run(1)
    other = EpochDriver(job.driver.parts, RestoredState(job.latest, job.fs), mock.MagicMock(), job.empty_batch)
    assert other.last_epoch_id == 1
    other.forget_source_progress()
    assert other.last_epoch_id is None


@pytest.mark.extended
def test_a_driver_holds_the_same_after_a_few_epochs_as_after_hundreds(job: Job) -> None:
    for epoch_id in range(60):
        job.run(epoch_id)
    before = retained_items(job.driver)
    for epoch_id in range(60, 300):
        job.run(epoch_id)
    assert len(job.driver.recorder.epochs) == 300
    # Only the records of the fixture itself grow.
    grown_items = set(grown(before, retained_items(job.driver), by=50))
    assert grown_items == {"Job.planned_without_records", "RecordingSink.reported"}


def test_listeners_are_notified_of_epochs_failures_and_the_end(job: Job) -> None:
    heard: list[str] = []

    class Listening(JobListener):
        def epoch_completed(self, event: Any) -> None:
            heard.append(f"epoch {event.epoch.epoch_id}")

        def checkpoint_failed(self, event: Any) -> None:
            heard.append(f"failed {event.checkpoint.checkpoint_id}: {event.checkpoint.reason}")

        def terminated(self, event: Any) -> None:
            heard.append(f"over: {event.error}")

    driver = job.start(listeners=JobListeners((Listening(),)))
    job.run(0)
    job.run(1)
    job.sink.fails_at["stage"] = RuntimeError("the disk is full")
    with pytest.raises(RuntimeError):
        job.run(2)
    driver.close()
    assert heard[:2] == ["epoch 0", "epoch 1"]
    assert heard[2].startswith("failed 2: RuntimeError: the disk is full")
    assert heard[3:] == ["over: the disk is full"]
    metrics = driver.recorder.metrics()
    assert (metrics.status, metrics.totals.epochs, metrics.totals.failed_checkpoints) == ("failed", 2, 1)
    assert metrics.newest_checkpoint is not None
    assert metrics.newest_checkpoint.checkpoint_id == 1
    assert metrics.newest_checkpoint.size_bytes == metrics.epochs[-1].size_bytes or not metrics.epochs[-1].operators


def test_a_job_that_is_stopped_ends_without_a_failure(job: Job) -> None:
    job.run(0)
    job.driver.request_stop()
    job.driver.close()
    metrics = job.driver.recorder.metrics()
    assert (metrics.status, metrics.failure) == ("ended", None)
