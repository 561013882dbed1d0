"""Failing epochs on the driver, without Spark: lost leadership, timeouts, leftover files, missing acknowledgements."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from driver_fixture import Job, job_without_spark

from statebackend.checkpoint import Acknowledgement
from statebackend.checkpoint.errors import LeadershipLostError, StorageError
from statebackend.spark import epoch_driver
from statebackend.spark import epoch_driver as repeated_cancelling
from statebackend.spark.epoch_driver import EpochWatchdog
from statebackend.spark.epochs import REPEATABLE_ADVICE
from statebackend.spark.savepoints import python_cause
from statebackend.streaming.errors import EpochError, SourceProgressMismatchError

LOST = LeadershipLostError("another driver leads the job")
LONG_S = 600.0


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return job_without_spark(tmp_path, monkeypatch)


def test_a_run_that_lost_leadership_fails_with_that_cause(job: Job) -> None:
    def lose(epoch_id: int) -> list[Acknowledgement]:
        job.driver.leadership_lost(LOST)
        raise ArithmeticError("the query was ended")

    job.acknowledge = lose
    with pytest.raises(LeadershipLostError, match="another driver leads the job") as raised:
        job.run(0)
    assert raised.value.__cause__ is None, "Spark formats the error as text"
    assert isinstance(reported := job.driver.failure, LeadershipLostError)
    assert isinstance(reported.__cause__, ArithmeticError)
    assert LOST.__cause__ is None
    assert job.latest is None


def test_a_driver_without_leadership_commits_nothing_that_it_stored(job: Job) -> None:
    def check() -> None:
        if job.latest is not None:
            raise LOST

    job.leadership.check.side_effect = check
    with pytest.raises(LeadershipLostError):
        job.run(0)
    assert [reported[0] for reported in job.sink.reported] == ["stage"]
    job.leadership.check.side_effect = None
    job.start()
    job.replay(0)
    assert job.sink.reported[-1] == ("commit", 0, b"rows of 0")


def test_no_epoch_starts_after_leadership_is_lost(job: Job) -> None:
    job.run(0)
    reported = list(job.sink.reported)
    job.driver.leadership_lost(LOST)
    with pytest.raises(EpochError, match="epoch 1 was not started: the job has failed in an earlier epoch"):
        job.run(1)
    assert (job.sink.reported, job.driver.failure) == (reported, LOST)


def test_a_loss_of_leadership_after_a_failure_does_not_replace_it(job: Job) -> None:
    failure = job.sink.fails_at["stage"] = ArithmeticError("the cause")
    with pytest.raises(ArithmeticError):
        job.run(0)
    job.driver.leadership_lost(LOST)
    assert job.driver.failure is failure


def overtaken(job: Job, epoch_id: int) -> None:
    """Let another driver lead and remove the files of this driver, which notices neither."""
    job.leadership.check.side_effect = LOST
    (job.directory / "spark" / "offsets" / str(epoch_id)).unlink(missing_ok=True)


def test_a_driver_whose_files_were_removed_by_another_leader_fails_with_that_cause(job: Job) -> None:
    job.run(0)
    overtaken(job, 1)
    with pytest.raises(LeadershipLostError, match="another driver leads the job") as raised:
        job.replay(1)
    assert raised.value.__cause__ is None, "Spark formats the error as text"
    failure = job.driver.failure
    assert isinstance(failure, LeadershipLostError)
    assert "offsets" in str(failure.__cause__)
    with pytest.raises(EpochError, match="the job has failed in an earlier epoch") as raised_again:
        job.run(2)
    assert raised_again.value.__cause__ is None
    assert job.driver.failure is failure


def test_a_query_that_fails_because_another_driver_leads_reports_that(job: Job) -> None:
    job.run(0)
    overtaken(job, 0)
    reported = job.driver.query_failed("offsets/0 is missing")
    assert reported is job.driver.failure
    assert isinstance(reported, LeadershipLostError)
    assert str(reported.__cause__) == "the streaming query failed: offsets/0 is missing"


def unknown_lead() -> LeadershipLostError:
    """The error that `check` raises when the service is unreachable."""
    lost = LeadershipLostError("its leadership cannot be verified")
    lost.__cause__ = StorageError("nobody answers")
    return lost


@pytest.mark.parametrize("reported", [None, StorageError("nobody"), unknown_lead(), RuntimeError("no thread")])
def test_a_failure_is_not_attributed_to_an_unknown_leadership(job: Job, reported: Exception | None) -> None:
    job.run(0)
    job.leadership.check.side_effect = reported
    assert isinstance(failed := job.driver.query_failed("the source failed"), EpochError)
    assert str(failed) == "the streaming query failed: the source failed"
    assert job.driver.failure is failed is job.driver.query_failed("and once more")


def test_a_source_in_python_that_fails_is_reported_without_its_traceback(job: Job) -> None:
    job.run(0)
    failed = job.driver.query_failed(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed "
        "when Python streaming data source perform latestOffset: Traceback (most recent call last):\n"
        '  File "kafka_clients.py", line 109, in partition_ids\n'
        '    raise StreamJobError(f"{where}: topic {topic!r} does not exist")\n'
        "statebackend.streaming.errors.StreamJobError: KafkaSource('b:9092', 't'): topic 't' does not exist\n"
        " SQLSTATE: 38000"
    )
    assert str(failed) == (
        "the streaming query failed: statebackend.streaming.errors.StreamJobError: KafkaSource('b:9092', 't'): topic "
        "'t' does not exist"
    )


def test_a_job_that_is_being_stopped_does_not_fail_with_its_query(job: Job) -> None:
    job.run(0)
    job.driver.request_stop()
    job.leadership.check.reset_mock()
    assert isinstance(job.driver.query_failed("it was interrupted"), EpochError)
    assert job.driver.failure is None
    assert not job.leadership.check.called, "nobody asks why it has ended"


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("speculative", [False, True])
def test_files_of_discarded_attempts_are_removed_with_the_epoch(
    job: Job, monkeypatch: pytest.MonkeyPatch, repeated: bool, speculative: bool
) -> None:
    monkeypatch.setattr(epoch_driver, "were_tasks_repeated", lambda context, attempt_ids: repeated)
    monkeypatch.setattr(epoch_driver, "is_speculative", lambda context: speculative)
    job.start()
    job.fs.write_file("shared/unacknowledged", b"state")
    job.run(0)
    kept = set() if repeated or speculative else {"shared/unacknowledged"}
    assert set(job.files()) == {"shared/2-0-0", "shared/2-0-1"} | kept


def test_an_operator_without_acknowledgement_fails_the_epoch_by_name(job: Job) -> None:
    job.acknowledge = lambda epoch_id: []
    with pytest.raises(EpochError, match="epoch 0: operator 'words' sent no acknowledgement"):
        job.run(0)
    assert job.latest is None


def test_a_drain_is_an_epoch_after_the_last_one_and_none_before_the_first_batch(job: Job) -> None:
    job.driver.drain()
    assert job.sink.reported == []
    job.run(0)
    job.driver.drain()
    assert [reported[:2] for reported in job.sink.reported if reported[0] == "commit"] == [("commit", 0), ("commit", 1)]
    assert job.planned_without_records == {0: False, 1: True}


def test_a_failed_checkpoint_is_reported_by_its_own_id_and_not_by_that_of_the_batch(job: Job) -> None:
    job.run(0)
    job.driver.drain()
    job.sink.fails_at["stage"] = RuntimeError("the disk is full")
    with pytest.raises(RuntimeError):
        job.run(1)
    [failed] = job.driver.recorder.metrics().failures
    assert job.sink.reported[-1][:2] == ("abort", failed.checkpoint_id) == ("abort", 2)


@pytest.mark.parametrize("batch_id", [1, 7])
def test_no_checkpoint_has_failed_if_one_is_stored_or_none_was_started(job: Job, batch_id: int) -> None:
    job.run(0)
    job.sink.fails_at["commit"] = RuntimeError("the disk is full")
    with pytest.raises((RuntimeError, EpochError, SourceProgressMismatchError)):
        job.run(batch_id)
    assert job.latest.checkpoint_id == (1 if batch_id == 1 else 0)
    metrics = job.driver.recorder.metrics()
    assert (metrics.status, metrics.failures) == ("failed", ())


def test_an_epoch_that_takes_too_long_is_cancelled_with_its_job_group() -> None:
    cancelled, names = threading.Event(), list[str]()
    context: Any = SimpleNamespace(
        getLocalProperty={"spark.jobGroup.id": "of the query"}.get,
        cancelJobGroup=lambda group: (names.append(group), cancelled.set()),
    )
    with EpochWatchdog(context, 3, 0.0) as watchdog:
        cancelled.wait()
    # The watchdog may cancel the group more than once before this check.
    assert (watchdog.has_expired, set(names)) == (True, {"of the query"})


def test_a_spark_job_started_after_the_timeout_is_cancelled_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeated_cancelling, "_AGAIN_S", 0.0)
    too_early, submitted, cancelled = threading.Event(), threading.Event(), threading.Event()

    def cancel_what_runs(group: str) -> None:
        too_early.set()
        if submitted.is_set():
            cancelled.set()

    context: Any = SimpleNamespace(
        getLocalProperty={"spark.jobGroup.id": "of the query"}.get, cancelJobGroup=cancel_what_runs
    )
    with EpochWatchdog(context, 3, 0.0):
        too_early.wait()
        submitted.set()
        assert cancelled.wait(LONG_S)


def test_a_timeout_at_the_end_of_an_epoch_cancels_nothing_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = mock.MagicMock()
    monkeypatch.setattr("statebackend.spark.epoch_driver.threading.Timer", timer)
    context = mock.MagicMock()
    with EpochWatchdog(context, 3, 60.0) as watchdog:
        pass
    # The timer's thread had already started, and its function runs only now.
    timer.call_args.args[1]()
    assert (watchdog.has_expired, context.cancelJobGroup.call_count) == (False, 0)


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_an_epoch_that_ends_in_time_is_not_cancelled(monkeypatch: pytest.MonkeyPatch, timeout_s: float | None) -> None:
    timer = mock.MagicMock()
    monkeypatch.setattr("statebackend.spark.epoch_driver.threading.Timer", timer)
    with EpochWatchdog(mock.MagicMock(), 3, timeout_s) as watchdog:
        pass
    assert not watchdog.has_expired
    calls = [] if timeout_s is None else [mock.call.start(), mock.call.cancel()]
    assert timer.return_value.method_calls == calls


def test_rows_that_differ_in_a_second_attempt_are_reported_with_advice() -> None:
    text = "org.apache.spark.SparkException: a stage with indeterminate output was rolled back"
    assert REPEATABLE_ADVICE in python_cause(Exception(text))


@pytest.mark.parametrize("text", ["java.lang.OutOfMemoryError: heap", "Traceback (most recent call last):\n  no error"])
def test_a_failure_without_a_python_exception_is_reported_in_full(text: str) -> None:
    assert python_cause(Exception(text)) == text


def test_an_exception_is_extracted_from_a_traceback_that_mentions_recomputation() -> None:
    text = 'indeterminate output\nTraceback (most recent call last):\n  File "a"\nValueError: five\n\n\tat org.Foo'
    assert python_cause(Exception(text)) == "ValueError: five"
