"""No-data epochs on the driver, without Spark: their time, replay, output, and end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from driver_fixture import Job, job_without_spark

from statebackend.checkpoint import Acknowledgement, CorruptJobIdentityError, StorageError
from statebackend.checkpoint.store.job_files import NO_DATA_EPOCH_FILE_NAME, read_no_data_epoch
from statebackend.spark.epoch_driver import is_output_pending
from statebackend.streaming.errors import EpochError
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP

TIMER_MS = 2000


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose tasks have a timer at `TIMER_MS` until an epoch at that time has fired it."""
    made = job_without_spark(tmp_path, monkeypatch)

    def acknowledge(epoch_id: int) -> list[Acknowledgement]:
        timer_ms = None if times and times[-1] >= TIMER_MS else TIMER_MS
        return [made.acknowledgement(epoch_id, index, processing_time_timer_ms=timer_ms) for index in (0, 1)]

    times: list[int] = []
    made.times = times  # type: ignore[attr-defined]
    made.acknowledge = acknowledge
    note_times(made, monkeypatch)
    return made


def note_times(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from statebackend.spark import epoch_driver

    task_type = epoch_driver.EpochTask

    def noted(**content: Any) -> Any:
        job.times.append(content["epoch"].processing_time_ms)
        return task_type(**content)

    monkeypatch.setattr(epoch_driver, "EpochTask", noted)


def test_a_no_data_epoch_has_the_next_id_and_the_time_of_the_clock(job: Any) -> None:
    assert job.driver.next_no_data_epoch_ms() is None, "without a batch time has nothing to do"
    job.run(0)
    assert job.driver.next_no_data_epoch_ms() == TIMER_MS
    job.now_ms = 2500
    job.driver.run_no_data_epoch()
    assert job.driver.next_no_data_epoch_ms() is None
    job.run(1)
    assert job.times == [1000, 2500, 2500], "time never goes back"
    assert [reported for reported in job.sink.reported if reported[0] == "commit"] == [
        ("commit", epoch_id, f"rows of {epoch_id}".encode()) for epoch_id in (0, 1, 2)
    ]
    assert [one.has_batch for one in job.driver.recorder.epochs] == [True, False, True]
    assert job.planned_without_records == {0: False, 1: True, 2: False}
    positions = job.latest.source_positions
    assert (job.latest.checkpoint_id, positions.batch_id) == (2, 1)
    assert read_no_data_epoch(job.fs) is None


def test_its_time_is_durable_before_its_tasks_run_and_it_is_replayed_first_with_that_time(job: Any) -> None:
    job.run(0)
    job.now_ms = 2500
    job.sink.fails_at["stage"] = ArithmeticError("as it must")
    with pytest.raises(ArithmeticError):
        job.driver.run_no_data_epoch()
    assert isinstance(job.driver.failure, ArithmeticError)
    job.sink.fails_at.clear()
    job.now_ms = 9000
    job.start()
    assert job.driver.next_no_data_epoch_ms() == MIN_TIMESTAMP
    job.run(1, time_ms=4000)
    assert job.times == [1000, 2500, 2500, 4000]
    assert [reported[:2] for reported in job.sink.reported[-4:]] == [
        ("stage", 1),
        ("commit", 1),
        ("stage", 2),
        ("commit", 2),
    ]


def test_a_replay_replaces_the_epoch_that_the_clock_would_start(job: Any) -> None:
    job.run(0)
    job.now_ms = 2500
    job.sink.fails_at["stage"] = KeyboardInterrupt("as it must")
    with pytest.raises(EpochError, match="epoch 1 was interrupted"):
        job.driver.run_no_data_epoch()
    job.sink.fails_at.clear()
    job.now_ms = 9000
    job.start()
    job.driver.run_no_data_epoch()
    assert job.times == [1000, 2500, 2500]
    assert job.driver.next_no_data_epoch_ms() is None


def test_uncommitted_output_is_committed_by_the_next_start_and_the_epoch_is_not_processed_again(
    job: Any,
) -> None:
    job.run(0)
    job.sink.fails_at["commit"] = RuntimeError("the disk is full")
    job.now_ms = 2500
    with pytest.raises(RuntimeError):
        job.driver.run_no_data_epoch()
    job.sink.fails_at.clear()
    assert is_output_pending(job.fs, job.latest)
    job.start()
    assert job.driver.next_no_data_epoch_ms() is None
    job.run(1)
    assert job.times == [1000, 2500, 2500]
    assert not is_output_pending(job.fs, job.latest)


def test_an_open_epoch_of_an_abandoned_history_is_ignored(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run(0)
    job.now_ms = 2500
    job.sink.fails_at["stage"] = ArithmeticError("as it must")
    with pytest.raises(ArithmeticError):
        job.driver.run_no_data_epoch()
    left_open = (job.directory / NO_DATA_EPOCH_FILE_NAME).read_bytes()
    job.sink.fails_at.clear()
    job.start()
    job.run(1)
    (job.directory / NO_DATA_EPOCH_FILE_NAME).write_bytes(left_open)
    job.start()
    assert not is_output_pending(job.fs, job.latest)
    times = len(job.times)
    job.run(2)
    assert len(job.times) == times + 1


def test_a_damaged_file_is_reported_and_nothing_starts(job: Any) -> None:
    job.run(0)
    (job.directory / NO_DATA_EPOCH_FILE_NAME).write_bytes(b"{}")
    with pytest.raises(CorruptJobIdentityError, match=r"no-data-epoch\.json"):
        job.start()


def test_an_epoch_whose_checkpoint_cannot_be_stored_leaves_nothing_and_is_replayed(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(0)
    files = job.files()
    job.now_ms = 2500
    with monkeypatch.context() as patched:
        patched.setattr(job.driver.parts.store, "add", mock.Mock(side_effect=StorageError("the disk is full")))
        with pytest.raises(StorageError, match="the disk is full"):
            job.driver.run_no_data_epoch()
    assert job.files() == files
    assert job.driver.last_epoch_id == 0
    job.start()
    job.now_ms = 7000
    job.driver.run_no_data_epoch()
    assert job.times == [1000, 2500, 2500]


def test_no_epoch_starts_after_a_failed_one_or_in_a_stopping_job(job: Any) -> None:
    job.run(0)
    job.driver.request_stop()
    assert job.driver.next_no_data_epoch_ms() is None
    job.start()
    job.sink.fails_at["stage"] = ArithmeticError("as it must")
    with pytest.raises(ArithmeticError):
        job.driver.run_no_data_epoch()
    assert job.driver.next_no_data_epoch_ms() is None
    with pytest.raises(EpochError, match="epoch 1 was not started: the job has failed") as failure:
        job.run(1)
    assert isinstance(failure.value.__cause__, ArithmeticError)
    assert isinstance(job.driver.failure, ArithmeticError), "the first error is raised"


def test_a_batch_that_arrives_meanwhile_waits_and_is_known_to_wait(job: Any) -> None:
    job.run(0)
    batch = threading.Thread(target=job.run, args=[1])
    staging, arrived = threading.Event(), threading.Event()
    waited: list[bool] = []
    acknowledge = job.acknowledge

    def slowly(epoch_id: int) -> list[Acknowledgement]:
        if epoch_id == 1:
            staging.set()
            arrived.wait()
            waited.append(job.driver.has_batch_waiting)
        acknowledgements: list[Acknowledgement] = acknowledge(epoch_id)
        return acknowledgements

    job.acknowledge = slowly
    set_waiting = type(job.driver).__setattr__

    class Watched(type(job.driver)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            set_waiting(self, name, value)
            if name == "has_batch_waiting" and value:
                arrived.set()

    job.driver.__class__ = Watched
    clock = threading.Thread(target=job.driver.run_no_data_epoch)
    clock.start()
    staging.wait()
    batch.start()
    for thread in (clock, batch):
        thread.join()
    assert waited == [True]
    assert job.driver.has_batch_waiting is False
    assert [one.has_batch for one in job.driver.recorder.epochs] == [True, False, True]
    assert job.driver.last_epoch_id == 2


def test_listeners_are_notified_of_the_end_of_a_batch_and_of_the_run(job: Any) -> None:
    news: list[tuple[bool, bool]] = []
    job.driver.at_news = lambda: news.append((job.driver.last_batch is not None, job.driver.is_closed))
    job.run(0)
    job.driver.run_no_data_epoch()
    job.driver.close()
    assert news == [(True, False), (True, True)]
    assert job.driver.next_no_data_epoch_ms() is None
