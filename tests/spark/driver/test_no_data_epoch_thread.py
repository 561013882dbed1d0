"""What starts no-data epochs, without Spark: the thread of a job, the end of its query, or a drain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from driver_fixture import Job, job_without_spark
from pyspark.errors import StreamingQueryException

from statebackend.checkpoint import LeadershipLostError, MissingFileError
from statebackend.spark import job as spark_job
from statebackend.spark.job import SparkJob
from statebackend.spark.no_data_epochs import NoDataEpochs
from statebackend.streaming.errors import EpochError

DONE_WITHIN_S = 600


class Place:
    """A job with its query. Its tasks have a processing-time timer, which an epoch at that time fires."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.timer_ms: int | None = 2000
        self.query = mock.MagicMock(runId="run 1")
        self.query.exception.return_value = None
        self.stopped = threading.Event()
        self.query.stop.side_effect = self.stopped.set
        self.committed = threading.Event()
        job.acknowledge = self.acknowledge
        commit = job.sink.commit

        def commit_and_tell(epoch_id: int, committable: bytes) -> None:
            commit(epoch_id, committable)
            if epoch_id == 1:
                self.committed.set()

        job.sink.commit = commit_and_tell  # type: ignore[method-assign]

    def acknowledge(self, epoch_id: int) -> list[Any]:
        timer_ms = self.timer_ms if epoch_id == 0 else None
        return [self.job.acknowledgement(epoch_id, index, processing_time_timer_ms=timer_ms) for index in (0, 1)]

    def started(self, **trigger: Any) -> NoDataEpochs:
        return NoDataEpochs(mock.MagicMock(), self.job.driver, self.query, trigger)

    @property
    def kinds(self) -> list[bool]:
        return [one.has_batch for one in self.job.driver.recorder.epochs]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(job_without_spark(tmp_path, monkeypatch))


def ended(no_data_epochs: NoDataEpochs) -> bool:
    no_data_epochs.close()
    assert no_data_epochs.thread is not None
    no_data_epochs.thread.join(DONE_WITHIN_S)
    return not no_data_epochs.thread.is_alive()


def test_the_thread_starts_an_epoch_when_a_timer_is_due_and_no_other(place: Place) -> None:
    no_data_epochs = place.started()
    place.job.now_ms = 2500
    place.job.run(0)
    assert place.committed.wait(DONE_WITHIN_S)
    assert ended(no_data_epochs)
    assert place.kinds == [True, False]
    place.query.stop.assert_not_called()


def test_timers_due_from_a_former_run_fire_without_a_batch(place: Place) -> None:
    place.job.run(0)
    place.job.start()
    place.job.now_ms = 2500
    no_data_epochs = place.started()
    assert place.committed.wait(DONE_WITHIN_S)
    assert ended(no_data_epochs)
    assert place.kinds == [False]


def test_an_epoch_that_fails_ends_the_query(place: Place) -> None:
    place.job.run(0)
    place.job.sink.fails_at["stage"] = ArithmeticError("as it must")
    place.job.now_ms = 2500
    no_data_epochs = place.started()
    assert place.stopped.wait(DONE_WITHIN_S)
    assert ended(no_data_epochs)
    assert isinstance(place.job.driver.failure, ArithmeticError)
    assert place.job.driver.is_closed


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_with_bounded_triggers_due_timers_fire_after_the_query(place: Place, trigger: str) -> None:
    no_data_epochs = place.started(**{trigger: True})
    assert no_data_epochs.thread is None
    place.job.now_ms = 2500
    place.job.run(0)
    assert place.kinds == [True]
    no_data_epochs.query_ended()
    assert place.kinds == [True, False]
    no_data_epochs.query_ended()
    assert place.kinds == [True, False]
    assert place.job.driver.is_closed


@pytest.mark.parametrize(
    "instead",
    [
        lambda place: place.query.exception.configure_mock(return_value=RuntimeError("the source failed")),
        lambda place: place.job.driver.request_stop(),
    ],
)
def test_nothing_fires_after_a_query_that_failed_or_was_stopped(
    place: Place, instead: Callable[[Place], object]
) -> None:
    no_data_epochs = place.started(availableNow=True)
    place.job.now_ms = 2500
    place.job.run(0)
    instead(place)
    no_data_epochs.query_ended()
    assert place.kinds == [True]
    assert place.job.driver.is_closed


def test_a_failed_source_is_reported_even_to_an_early_waiter(place: Place) -> None:
    failure, is_watched = StreamingQueryException("the source failed"), threading.Event()
    place.query.exception.return_value = failure
    place.query.isActive = False

    def await_end(timeout_s: float | None = None) -> bool:
        if timeout_s is None:
            is_watched.wait(DONE_WITHIN_S)
        raise failure

    place.query.awaitTermination.side_effect = await_end
    place.job.run(0)
    job = SparkJob(mock.MagicMock(), mock.MagicMock(), place.job.driver, {}, place.query, place.started(once=True))
    with pytest.raises(EpochError, match=r"the streaming query failed: .*the source failed"):
        job.await_termination()
    is_watched.set()
    job._watch.thread.join(DONE_WITHIN_S)
    metrics = job.metrics()
    assert (metrics.status, metrics.failure is not None and "the source failed" in metrics.failure) == ("failed", True)


def running_job(place: Place) -> SparkJob:
    place.query.awaitTermination.side_effect = lambda timeout_s=None: place.stopped.wait(DONE_WITHIN_S)
    place.job.run(0)
    return SparkJob(mock.MagicMock(), mock.MagicMock(), place.job.driver, {}, place.query, place.started(once=True))


@pytest.mark.parametrize("is_stopped_with_it", [False, True])
def test_a_savepoint_without_files_that_another_leader_removed_reports_that(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_stopped_with_it: bool
) -> None:
    missing = MissingFileError("shared/a is missing")
    monkeypatch.setattr(spark_job, "take_savepoint", mock.Mock(side_effect=missing))
    job = running_job(place)
    with pytest.raises(MissingFileError):
        job.savepoint("savepoint")
    place.job.leadership.check.side_effect = LeadershipLostError("another driver leads the job")
    with pytest.raises(LeadershipLostError) as raised:
        (job.stop_with_savepoint if is_stopped_with_it else job.savepoint)("savepoint")
    assert raised.value.__cause__ is missing
    place.query.isActive = False
    job.stop()


def test_a_job_that_released_leadership_has_not_lost_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = MissingFileError("shared/a is missing")
    monkeypatch.setattr(spark_job, "take_savepoint", mock.Mock(side_effect=missing))
    job = running_job(place)
    place.query.isActive = False
    job.stop()
    place.job.leadership.check.side_effect = LeadershipLostError("this driver has given it back")
    with pytest.raises(MissingFileError) as raised:
        job.savepoint("savepoint")
    assert raised.value is missing


def test_due_timers_can_be_queried(place: Place) -> None:
    no_data_epochs = place.started(availableNow=True)
    place.job.run(0)
    no_data_epochs.run_due()
    assert place.kinds == [True]
    place.job.now_ms = 2000
    no_data_epochs.run_due()
    no_data_epochs.run_due()
    assert place.kinds == [True, False]


def test_a_drained_run_outlives_its_query_and_a_finished_one_cannot_be_drained(place: Place) -> None:
    no_data_epochs = place.started(availableNow=True)
    place.job.run(0)
    no_data_epochs.announce_drain()
    no_data_epochs.query_ended()
    assert not place.job.driver.is_closed
    no_data_epochs.drain()
    assert place.kinds == [True, False], "a drain is an epoch of its own, without event time too"
    no_data_epochs.close()
    with pytest.raises(EpochError, match="the job has ended and cannot be drained"):
        no_data_epochs.announce_drain()
