"""Listeners are called in order, and their exceptions do no harm."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from observed_job import RUN, TrackingEvent, acknowledged, migrated_job, recorder_by_hand, visits_environment

from statebackend.streaming.errors import UserFunctionError
from statebackend.streaming.metrics import CheckpointCost
from statebackend.streaming.observing.job_events import JobListener, JobListeners, JobStarted, ProgressTo


class Raising(JobListener):
    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def note(self, event: Any) -> None:
        self.calls += 1
        raise self.error

    started = restored = migrated = epoch_completed = checkpoint_completed = note
    checkpoint_failed = savepoint_written = terminated = progress = note


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), GeneratorExit(), RecursionError()])
def test_a_listener_exception_is_logged_once_and_affects_neither_the_job_nor_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    raising, heard = Raising(error), TrackingEvent()
    with caplog.at_level(logging.WARNING):
        job = migrated_job(tmp_path / "job", raising, heard)
        job.savepoint(tmp_path / "savepoint")
    assert job.epochs == 2
    assert heard.kinds[-2:] == ["JobTerminated", "SavepointWritten"]
    assert raising.calls == len(heard.events) + len(heard.reported)
    assert caplog.text.count("a listener of the job failed") == 1


def test_an_interrupt_in_a_listener_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        recorder_by_hand(Raising(KeyboardInterrupt())).started()


def test_a_removed_listener_gets_no_further_events(tmp_path: Path) -> None:
    heard = TrackingEvent()
    environment = visits_environment(tmp_path)
    for _ in range(2):
        environment.add_listener(heard)
    environment.execute("visits")
    assert heard.kinds.count("JobStarted") == 1
    recorder = recorder_by_hand(heard)
    recorder.listeners.remove(heard)
    recorder.listeners.remove(heard)
    before = len(heard.events)
    recorder.started()
    assert len(heard.events) == before


def test_a_listener_of_one_job_is_not_called_for_the_next() -> None:
    own, common = TrackingEvent(), TrackingEvent()
    of_environment = JobListeners((common,))
    of_environment.of_job(own)
    event = JobStarted(RUN, recorder_by_hand())
    of_environment.of_job().call(lambda listener: listener.started(event))
    assert (own.kinds, common.kinds) == ([], ["JobStarted"])


def test_the_end_is_reported_once_with_the_first_reason() -> None:
    heard = TrackingEvent()
    recorder = recorder_by_hand(heard)
    failure = ValueError("first")
    recorder.terminated(failure)
    recorder.terminated(None)
    [event] = heard.events
    assert event.error is failure
    assert recorder.metrics().status == "failed"


def test_tolerated_failed_checkpoints_are_reported_and_counted() -> None:
    heard = TrackingEvent()
    recorder = recorder_by_hand(heard)
    recorder.checkpoint_failed(3, "expired:\n not complete")
    recorder.epoch_completed(4, [acknowledged(4, 0)], CheckpointCost())
    assert heard.kinds == ["CheckpointFailed", "CheckpointCompleted", "EpochCompleted"]
    assert heard.events[0].checkpoint.reason == "expired: | not complete"
    assert recorder.metrics().totals.failed_checkpoints == 1


def test_a_job_logs_the_migrated_states_before_migrating(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reported: list[Any] = []
    with caplog.at_level(logging.INFO):
        migrated_job(tmp_path, ProgressTo(reported.append))
    lines = [
        record.getMessage() for record in caplog.records if record.name == "statebackend.savepoint.progress_display"
    ]
    assert lines[0] == "job 'visits': state 'last visit' of operator 'count' is migrated to its new schema"
    assert lines[1].startswith("operator 'count', state 'last visit': migrating")
    assert reported


def test_each_job_of_an_environment_has_its_own_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environment = visits_environment(tmp_path / "job")
    # The log of one job neither suppresses lines of the next one nor leaves operations open in it.
    for name in ("first", "second"):
        with caplog.at_level(logging.INFO, "statebackend.savepoint.progress_display"):
            caplog.clear()
            environment.execute("visits").savepoint(tmp_path / name)
        lines = [
            record.getMessage() for record in caplog.records if record.name == "statebackend.savepoint.progress_display"
        ]
        assert any("state 'last visit': saving" in line for line in lines)


def test_a_function_that_fails_during_migration_ends_the_job_and_not_the_listeners(tmp_path: Path) -> None:
    heard = TrackingEvent()
    environment = visits_environment(tmp_path, fails_at=0)
    environment.add_listener(heard)
    with pytest.raises(UserFunctionError):
        environment.execute("visits")
    assert heard.kinds == ["JobStarted", "JobTerminated"]


def test_a_listener_added_again_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    raising = Raising(ValueError("no"))
    recorder = recorder_by_hand(raising)
    with caplog.at_level(logging.WARNING):
        recorder.started()
        recorder.listeners.remove(raising)
        recorder.listeners.add(raising)
        recorder.started()
    assert caplog.text.count("a listener of the job failed") == 2
