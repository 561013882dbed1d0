"""The end of jobs: waits with a timeout, stopping a function that hangs, and an epoch timeout."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_job_fixture import CountWords, WordCount, memory_sink, pickled_by_value, rows_of

from statebackend import EpochTimeoutError, JobDefinitionError
from statebackend.checkpoint import JobDirectory, JobDirectoryLockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebackend.spark import SparkJob

pytestmark = pytest.mark.spark

HANGS = b"hangs"


@pytest.fixture(scope="module")
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


@pytest.fixture
def word_count(spark: SparkSession, tmp_path: Path, _by_value: None) -> WordCount:
    place = WordCount(spark, tmp_path)
    place.add_batch([("a", 1)])
    place.add_batch([("hang", 1), ("a", 1)])
    return place


class Hangs(CountWords):
    """Hangs at a marked word until the gate of this directory is opened."""

    def __init__(self, gate: Gate) -> None:
        self.reached, self.opened = str(gate.reached), str(gate.opened)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        if value.word == "hang":
            Path(self.reached).write_bytes(HANGS)
            open(self.opened, "rb", buffering=0).close()
        yield from super().process_element(value, context)


class Gate:
    """Two named pipes. With the first a function reports that it hangs. Then it waits for a writer of the second."""

    def __init__(self, directory: Path, held: contextlib.ExitStack) -> None:
        self.reached, self.opened = directory / "reached", directory / "opened"
        for pipe in (self.reached, self.opened):
            os.mkfifo(pipe)
        self._held = held
        # While the pipe has a reader, opening it for writing does not block.
        self._news = self._hold(self.reached)

    def _hold(self, pipe: Path) -> int:
        """Open both ends of a pipe at once, without waiting."""
        descriptor = os.open(pipe, os.O_RDWR)
        self._held.callback(os.close, descriptor)
        return descriptor

    def wait_for_somebody(self, job: SparkJob) -> None:
        """Wait until a function of the job hangs. Fail if the job ends before."""
        threading.Thread(target=self._tell_of_the_end, args=(job,), daemon=True).start()
        news = os.read(self._news, len(HANGS))
        assert news == HANGS, f"nothing hangs: {job.query.exception()}"

    def _tell_of_the_end(self, job: SparkJob) -> None:
        with contextlib.suppress(Exception):
            job.query.awaitTermination()
        # If there is no reader, the test has stopped waiting.
        with contextlib.suppress(OSError):
            descriptor = os.open(self.reached, os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, b"ended")
            os.close(descriptor)

    def open(self) -> None:
        self._hold(self.opened)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with contextlib.ExitStack() as held:
        yield Gate(tmp_path, held)


def hanging(word_count: WordCount, gate: Gate) -> SparkJob:
    """A job that hangs in its second epoch."""
    job = word_count.start(memory_sink(), Hangs(gate))
    gate.wait_for_somebody(job)
    return job


@pytest.mark.extended
def test_waiting_with_any_timeout_keeps_the_directory_locked_while_the_job_runs(
    word_count: WordCount, gate: Gate
) -> None:
    job = hanging(word_count, gate)
    for timeout_s in (0, 0.0, 0.0001, 0.01):
        assert not job.await_termination(timeout_s)
    for wrong in (-1, -0.5, float("nan"), True, "1"):
        for call in (job.await_termination, job.stop):
            with pytest.raises(ValueError, match=r"timeout_s is .*(from 0 on, or None|which is not a duration)"):
                call(wrong)
    with pytest.raises(JobDirectoryLockedError):
        JobDirectory.open(word_count.directory / "job", "count words", 16)
    with pytest.raises(JobDefinitionError, match="a query named 'count words' is running in this Spark session"):
        word_count.start(memory_sink())
    gate.open()
    assert job.await_termination()
    assert job.await_termination(0)
    assert job.last_completed_epoch == 1
    word_count.run(memory_sink())


def test_a_hanging_job_is_stopped_and_a_restart_processes_the_epoch_again(word_count: WordCount, gate: Gate) -> None:
    job = hanging(word_count, gate)
    with pytest.raises(EpochTimeoutError, match=r"epoch 1 was aborted after 0 s.*the next start"):
        job.stop_with_savepoint(word_count.directory / "savepoint", timeout_s=0)
    assert not job.query.isActive
    assert not (word_count.directory / "savepoint").exists()
    with pytest.raises(EpochTimeoutError, match="epoch 1 was aborted"):
        job.await_termination()
    # A savepoint of the last complete epoch is still possible, and the job directory is released.
    assert job.savepoint(word_count.directory / "savepoint").epoch_id == 0
    gate.open()
    sink = memory_sink()
    word_count.run(sink, Hangs(gate))
    assert rows_of(sink) == [("a", 2, 2), ("hang", 1, 1)]


@pytest.mark.extended
def test_an_epoch_timeout_abandons_the_epoch_which_is_processed_again(word_count: WordCount, gate: Gate) -> None:
    expected = r"epoch \d did not end within 0\.5 s \(epoch_timeout_s\) and was aborted\. The next start of the job"
    with pytest.raises(EpochTimeoutError, match=expected):
        word_count.run(memory_sink(), Hangs(gate), epoch_timeout_s=0.5)
    gate.open()
    sink = memory_sink()
    assert word_count.run(sink, Hangs(gate)).last_completed_epoch == 1
    assert ("a", 2, 2) in rows_of(sink)


@pytest.mark.extended
def test_an_epoch_with_a_slow_sink_is_abandoned_when_the_sink_returns(word_count: WordCount) -> None:
    from statebackend.spark import epoch_driver as epoch_watchdog
    from statebackend.spark.frame_sinks import ForEachEpochSink

    expired = threading.Event()

    class WaitsForTheWatchdog(epoch_watchdog.EpochWatchdog):
        def _expire(self) -> None:
            self.has_expired = True
            expired.set()

        def __exit__(self, *arguments: Any) -> None:
            expired.wait()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("statebackend.spark.epoch_driver.EpochWatchdog", WaitsForTheWatchdog)
        with pytest.raises(EpochTimeoutError, match=r"epoch 0 did not end within 0\.01 s"):
            word_count.run(ForEachEpochSink(lambda frame, epoch_id: frame.collect()), epoch_timeout_s=0.01)
    assert not list((word_count.directory / "job" / "shared").rglob("*.sst"))
