"""Runs the epochs of one run on the driver: called by Spark's stream thread, asked and stopped from others.

Spark calls with a micro-batch through ``foreachBatch``; when the call returns, Spark commits the batch. Epochs without
records are begun from other threads (`time_epochs`). One epoch runs at a time. Whatever makes an epoch fail is
remembered, for Spark passes it on as text, and no other begins.

An epoch without records that was interrupted is processed again first, with the time that it had.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pyspark import SparkContext
from pyspark.sql import DataFrame

from checkpointing.coordinator.checkpoint_coordinator import CheckpointCoordinator
from checkpointing.errors import LeadershipLostError
from checkpointing.storage.leadership import loss_behind, told_failure
from checkpointing.storage.steady_clock import steady_ms
from savepoints.restored_state import RestoredState
from statebackend.api.clock import Clock, wall_clock
from streamjobs.errors import EpochError, EpochTimeoutError
from streamjobs.observing.epoch_statistics import EpochCost, seconds_of
from streamjobs.observing.job_figures import ObservedRun
from streamjobs.observing.job_recorder import JobRecorder, LiveFigures
from streamjobs.runtime.checkpoint_writing import durable_epoch_of
from streamjobs.runtime.epoch import Epochs
from streamjobs.runtime.epoch_events import BatchArrived, TimePassed
from streamjobs.runtime.epoch_runner import EpochRunner
from streamjobs.runtime.epoch_table import EpochState
from streamjobs.runtime.processing_time import not_before
from streamjobs.runtime.time_metrics import TimeMetrics, late_records_of, time_metrics
from streamjobs.spark.driver.epoch_rim import SparkEpoch, SparkRun
from streamjobs.spark.driver.epoch_time import time_epoch_left_open
from streamjobs.spark.driver.job_parts import JobParts
from streamjobs.spark.session import is_speculative, were_tasks_repeated
from streamjobs.spark.sources.source_progress import read_offsets
from streamjobs.spark.tasks.progress_channel import ProgressChannel
from streamjobs.time.timestamps import MIN_TIMESTAMP
from streamjobs.user_errors import told

__all__ = ["EpochDriver"]

_POLL_S: Final = 0.2


class EpochDriver:
    """One instance is one run of the job. ``empty_batch`` makes the frame of an epoch without records.

    Everything may be called from any thread.
    """

    def __init__(
        self,
        parts: JobParts,
        restored: RestoredState | None,
        spark_context: SparkContext,
        empty_batch: Callable[[], DataFrame],
        clock: Clock = wall_clock,
    ) -> None:
        self.parts = parts
        self.clock = clock
        self._empty_batch = empty_batch
        latest = parts.store.latest()
        coordinator = CheckpointCoordinator(
            parts.identity.job_id,
            parts.run_id,
            timeout_ms=None if parts.epoch_timeout_s is None else max(1, round(parts.epoch_timeout_s * 1000)),
            max_parallelism=parts.identity.max_parallelism,
            operator_names={operator.uid: operator.node.name for operator in parts.pipeline.operators.values()},
            last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
        )
        self._epochs = Epochs(
            coordinator,
            None if restored is None else durable_epoch_of(restored.metadata, is_own=latest is not None),
            source_log=parts.spark_checkpoint_directory,
            state_log=parts.file_system.location("checkpoints"),
            limit="" if parts.epoch_timeout_s is None else f"{parts.epoch_timeout_s:g} s",
        )
        self._run = SparkRun(parts, restored, spark_context)
        self._spark_context = spark_context
        self._is_speculative = is_speculative(spark_context)
        self._open_epoch = time_epoch_left_open(parts.driver_files, parts.store)
        self._running = threading.RLock()
        self.committing = self._run.committing
        """Held from the storing of a checkpoint until the output of its epoch is committed."""
        self.given_up: str | None = None
        """Set by whoever does not wait for the running epoch: what to say of it when it fails."""
        self._is_running = False
        self.failure: BaseException | None = None
        self._lost: LeadershipLostError | None = None
        self.is_closed = False
        self.has_batch_waiting = False
        """Whether Spark has brought a batch that waits for the epoch that is running."""
        self.last_batch: tuple[int, int] | None = None
        """When the last epoch with a batch began and ended, by `steady_ms`, until somebody takes it."""
        self.at_news: Callable[[], object] = lambda: None
        """Called when an epoch with a batch has ended, however, and when the run is over."""
        self._late_records: Counter[str] = Counter()
        self.recorder = JobRecorder(
            ObservedRun(
                job_name=parts.identity.job_name,
                job_id=parts.identity.job_id,
                run_id=parts.run_id,
                engine="spark",
                parallelism=parts.parallelism,
                max_parallelism=parts.identity.max_parallelism,
                started_ms=wall_clock(),
                restored_id=None if restored is None else restored.metadata.checkpoint_id,
            ),
            self._live_figures,
            parts.listeners,
            keeps_subtasks_open=False,
        )
        """What is seen of the run."""
        self.progress = ProgressChannel(spark_context, self.recorder.progress)
        """How tasks tell how far they are."""

    @property
    def last_epoch_id(self) -> int | None:
        """The last epoch whose effects are durable: of this run, or of what it continues from."""
        return self._epochs.last_epoch_id

    @property
    def running_epoch_id(self) -> int | None:
        """The epoch that is running, or whose output is being committed again; None if none is."""
        if not self._is_running:
            return None
        running_id, last_id = self._epochs.open_epoch_id, self.last_epoch_id
        return running_id if running_id is not None else 0 if last_id is None else last_id

    @property
    def is_stopping(self) -> bool:
        """Whether no further epoch begins."""
        return self._epochs.is_stopping

    def leadership_lost(self, lost: LeadershipLostError) -> None:
        """Lets the run fail by this, and not by what fails in consequence; whoever calls ends the query."""
        self._lost = lost
        if self.failure is None:
            self.failure = lost

    def query_failed(self, error: object) -> BaseException:
        """Returns what to tell of a query that Spark has ended for ``error``, and lets the run fail by it.

        That is what an epoch has failed by, if one has. Waits for the epoch that is running. A job that is being
        stopped does not fail.
        """
        with self._running:
            failed = EpochError(f"the streaming query failed: {error}")
            if self.failure is None and not self.is_stopping:
                self.failure = told_failure(self.parts.leadership, failed)
            return self.failure or failed

    def request_stop(self) -> None:
        """Lets no further epoch begin; the one that is running goes on."""
        self._epochs.request_stop()

    def forget_source_progress(self) -> None:
        """Lets epochs count from 0 again, for a job that takes the state of a savepoint but another source."""
        self._epochs.forget_source_progress()
        self._run.forget_source_progress()

    def watermarks(self) -> Mapping[str, int]:
        """What sources have sent and operators are at, in milliseconds; those without a watermark are left out."""
        return self._run.watermarks.known()

    def time_metrics(self) -> Mapping[str, TimeMetrics]:
        """How far event time is for sources and operators, and what was late."""
        watermarks = self._run.watermarks
        return time_metrics(watermarks.names, watermarks.known(), self._run.processing_time_ms, self._late_records)

    def close(self) -> None:
        """Takes back what went out to the workers for this run, which begins no epoch any more; may be called again.

        Waits for the epoch that is running.
        """
        with self._running:
            self.is_closed = True
            self.recorder.terminated(self.failure)
            self._run.close()
        self.at_news()

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Within the block no epoch begins but those that it runs; waits for the one that is running."""
        with self._running:
            yield

    def next_time_epoch_ms(self) -> int | None:
        """The processing time from which an epoch without records has something to do; None if none has.

        To be asked exclusively. Before the first batch there is nothing that time could do.
        """
        if self._epochs.is_stopping or self._epochs.is_over or self.is_closed or self.last_epoch_id is None:
            return None
        return self._run.next_time_epoch_ms() if self._open_epoch is None else MIN_TIMESTAMP

    def run(self, frame: DataFrame, batch_id: int) -> None:
        """Runs the epoch of a batch, or recognises it as done; raises, and remembers, whatever makes it fail."""
        self.has_batch_waiting = True
        with self._running:
            self.has_batch_waiting = False
            began_ms = steady_ms()
            try:
                with self._remembering_failures(batch_id):
                    if not self._epochs.is_stopping:
                        self._process_again()
                    offsets = read_offsets(self.parts.spark_checkpoint_directory, batch_id)
                    self._run_one(frame, BatchArrived(batch_id, offsets))
            except (LeadershipLostError, EpochError) as error:
                if isinstance(self.failure, LeadershipLostError) and self.failure in (error, error.__cause__):
                    # Spark runs a regular expression over the text of an error while it ends a query, and its stack
                    # overflows at that of an interrupted action. `failure` keeps it.
                    raise type(error)(*error.args) from None
                raise
            finally:
                self.last_batch = began_ms, steady_ms()
                self.at_news()

    def run_time_epoch(self) -> None:
        """Runs an epoch without records, at the time of the clock; raises, and remembers, whatever makes it fail."""
        self._run_without_records(is_drain=False)

    def drain(self) -> None:
        """Runs an epoch at the end of event time, unless there was none yet; raises, and remembers, what fails it."""
        if self.last_epoch_id is not None:
            self._run_without_records(is_drain=True)

    def _run_without_records(self, *, is_drain: bool) -> None:
        with self._running, self._remembering_failures((self.last_epoch_id or 0) + 1):
            was_open = self._process_again()
            if is_drain or not was_open:
                self._run_one(self._empty_batch(), self._time_passed(self.clock(), is_drain))

    def _process_again(self) -> bool:
        """Runs the epoch without records that a run before has left open, if it has."""
        opened, self._open_epoch = self._open_epoch, None
        if opened is None or self.last_epoch_id is None:
            return False
        self._run_one(self._empty_batch(), self._time_passed(opened.processing_time_ms, is_drain=False))
        return True

    def _time_passed(self, time_ms: int, is_drain: bool) -> TimePassed:
        return TimePassed(not_before(time_ms, self._run.processing_time_ms), is_drain)

    @contextlib.contextmanager
    def _remembering_failures(self, epoch_id: int) -> Iterator[None]:
        if self.failure is not None:
            raise EpochError(f"epoch {epoch_id} was not begun: the job has failed before it") from self.failure
        self._is_running = True
        try:
            yield
        except Exception as error:
            if self._epochs.state is EpochState.STOPPED:
                # A job that was stopped has not failed.
                raise
            given_up = None if self.given_up is None else EpochTimeoutError(self.given_up)
            if self._lost is not None:
                is_told = isinstance(error, LeadershipLostError)
                self.failure = error if is_told else loss_behind(error, self._lost)
            else:
                self.failure = given_up or told_failure(self.parts.leadership, error)
            self._tell_of_failed_checkpoint(self.failure)
            self.close()
            if self.failure is error:
                raise
            raise self.failure from self.failure.__cause__
        except BaseException as error:
            self.failure = error
            self._tell_of_failed_checkpoint(error)
            self.close()
            # Py4J answers the JVM for exceptions only; without an answer Spark's thread would wait for ever.
            raise EpochError(f"epoch {epoch_id} was interrupted by {type(error).__name__}: {error}") from error
        finally:
            self._is_running = False

    def _tell_of_failed_checkpoint(self, failure: BaseException) -> None:
        # A batch that is refused has no checkpoint, and one whose output could not be committed has its own.
        failed_id = self._epochs.unstored_epoch_id
        if failed_id is not None:
            self.recorder.checkpoint_failed(failed_id, told(failure))

    def wait_until_idle(self, timeout_s: float | None, is_given_up: Callable[[], bool]) -> bool:
        """Waits until no epoch is running, for so long or until it is given up; returns whether none is."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if self._running.acquire(timeout=max(left, 0.0)):
                self._running.release()
                return True
            if is_given_up() or (deadline is not None and time.monotonic() >= deadline):
                return False

    def _run_one(self, frame: DataFrame, cause: BatchArrived | TimePassed) -> None:
        started = time.monotonic()
        rim = SparkEpoch(self._run, frame, self.progress.sender)
        runner = EpochRunner(self._epochs, rim, steady_ms)
        epoch = runner.run(cause)
        if epoch is None:
            return
        acknowledgements = self._epochs.acknowledgements(epoch)
        attempt_ids = [acknowledgement.attempt_id for acknowledgement in acknowledgements.values()]
        if self._is_speculative or were_tasks_repeated(self._spark_context, attempt_ids):
            # Attempts that failed, or lost against another one, may have written files that nobody was told of.
            self.parts.store.delete_orphans(self._epochs.files_in_use())
        snapshots_s = [seconds_of(one, "snapshot_s") for one in acknowledgements.values()]
        cost = EpochCost(
            duration_s=time.monotonic() - started,
            checkpoint_s=rim.store_s + max(snapshots_s, default=0.0),
            action_s=rim.action_s,
            has_batch=isinstance(cause, BatchArrived),
        )
        self._late_records += late_records_of(acknowledgements.values())
        self.recorder.epoch_completed(epoch.checkpoint_id, list(acknowledgements.values()), cost)

    def _live_figures(self) -> LiveFigures:
        restored = self._run.restored
        newest = None if restored is None else restored.metadata
        return LiveFigures(self.parts.schema_reports, newest, self.time_metrics())
