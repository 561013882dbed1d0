"""Runs the epochs of one run on the driver: called by Spark's stream thread, asked and stopped from others.

Spark calls with a micro-batch through ``foreachBatch``; when the call returns, Spark commits the batch. One epoch runs
at a time. Whatever makes an epoch fail is remembered, for Spark passes it on as text.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import DataFrame

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.checkpoint_coordinator import CheckpointCoordinator
from savepoints.restored_state import RestoredState
from streamjobs.errors import EpochError, EpochTimeoutError
from streamjobs.runtime.checkpoint_writing import durable_epoch_of
from streamjobs.runtime.epoch import Epochs
from streamjobs.runtime.epoch_events import BatchArrived, Epoch, TimePassed
from streamjobs.runtime.epoch_runner import EpochRunner
from streamjobs.runtime.epoch_table import EpochState
from streamjobs.runtime.job_metrics import OperatorMetrics, metrics_of_epoch, metrics_of_epochs
from streamjobs.spark.driver.epoch_rim import SparkEpoch, SparkRun
from streamjobs.spark.driver.epoch_statistics import EpochStatistics, epoch_statistics
from streamjobs.spark.driver.job_parts import JobParts
from streamjobs.spark.session import is_speculative, were_tasks_repeated
from streamjobs.spark.sources.source_progress import read_offsets

__all__ = ["REMEMBERED_EPOCHS", "EpochDriver"]

REMEMBERED_EPOCHS: Final = 1000
"""Epochs whose statistics are kept; a job may run for years."""

_POLL_S: Final = 0.2


class EpochDriver:
    """One instance is one run of the job."""

    def __init__(self, parts: JobParts, restored: RestoredState | None, spark_context: SparkContext) -> None:
        self.parts = parts
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
        self._running = threading.RLock()
        self.committing = self._run.committing
        """Held from the storing of a checkpoint until the output of its epoch is committed."""
        self.given_up: str | None = None
        """Set by whoever does not wait for the running epoch: what to say of it when it fails."""
        self.running_epoch_id: int | None = None
        """The epoch that is running, if one is."""
        self.failure: BaseException | None = None
        self.restore_reports: list[Mapping[str, Any]] = []
        self.statistics: deque[EpochStatistics] = deque(maxlen=REMEMBERED_EPOCHS)
        self.state_metrics: OperatorMetrics = {}
        """Those of all epochs of this run together."""

    @property
    def last_epoch_id(self) -> int | None:
        """The last epoch whose effects are durable: of this run, or of what it continues from."""
        return self._epochs.last_epoch_id

    @property
    def is_stopping(self) -> bool:
        """Whether no further epoch begins."""
        return self._epochs.is_stopping

    def request_stop(self) -> None:
        """Lets no further epoch begin; the one that is running goes on."""
        self._epochs.request_stop()

    def forget_source_progress(self) -> None:
        """Lets epochs count from 0 again, for a job that takes the state of a savepoint but another source."""
        self._epochs.forget_source_progress()
        self._run.forget_source_progress()

    def watermarks(self) -> Mapping[str, int]:
        """What the operators are at, by uid, in milliseconds; those without a watermark are left out."""
        return self._run.watermarks.known()

    def close(self) -> None:
        """Takes back what went out to the workers for this run, which begins no epoch any more; may be called again."""
        self._run.close()

    def run(self, frame: DataFrame, batch_id: int) -> None:
        """Runs one epoch, or recognises it as done; raises, and remembers, whatever makes it fail."""
        with self._running:
            self.running_epoch_id = batch_id
            try:
                self._run_epoch(frame, batch_id)
            except Exception as error:
                if self._epochs.state is EpochState.STOPPED:
                    # A job that was stopped has not failed.
                    raise
                self.failure = error
                self.close()
                if self.given_up is None:
                    raise
                self.failure = EpochTimeoutError(self.given_up)
                # Spark runs a regular expression over the text of an error while it ends a query, and its stack
                # overflows at that of an interrupted action.
                raise self.failure from None
            except BaseException as error:
                self.failure = error
                self.close()
                # Py4J answers the JVM for exceptions only; without an answer Spark's thread would wait for ever.
                raise EpochError(f"epoch {batch_id} was interrupted by {type(error).__name__}: {error}") from error
            finally:
                self.running_epoch_id = None

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

    def _run_epoch(self, frame: DataFrame, batch_id: int) -> None:
        self._run_one(frame, BatchArrived(batch_id, read_offsets(self.parts.spark_checkpoint_directory, batch_id)))
        if self._run.is_due and not self._epochs.is_stopping:
            # What the records of the batch have made due does not wait for the next ones, which may never come.
            self._run_one(frame.where("false"), TimePassed())

    def _run_one(self, frame: DataFrame, cause: BatchArrived | TimePassed) -> None:
        started = time.monotonic()
        rim = SparkEpoch(self._run, frame)
        runner = EpochRunner(self._epochs, rim, monotonic_ms)
        epoch = runner.run(cause)
        if epoch is None:
            return
        acknowledgements = self._epochs.acknowledgements(epoch)
        attempt_ids = [acknowledgement.attempt_id for acknowledgement in acknowledgements.values()]
        if self._is_speculative or were_tasks_repeated(self._spark_context, attempt_ids):
            # Attempts that failed, or lost against another one, may have written files that nobody was told of.
            self.parts.store.delete_orphans(self._epochs.files_in_use())
        self._note(epoch, acknowledgements, time.monotonic() - started, rim.action_s)

    def _note(
        self, epoch: Epoch, acknowledgements: Mapping[TaskId, Acknowledgement], duration_s: float, action_s: float
    ) -> None:
        # Only the first epoch of a run finds state that another program wrote.
        for task, acknowledgement in acknowledgements.items() if not self.statistics else ():
            if acknowledgement.report:
                self.restore_reports.append(
                    {"operator_uid": task.operator_uid, "subtask_index": task.subtask_index, **acknowledgement.report}
                )
        state_metrics = metrics_of_epoch(acknowledgements.values())
        self.state_metrics = metrics_of_epochs(self.state_metrics, state_metrics)
        self.statistics.append(
            epoch_statistics(epoch.checkpoint_id, list(acknowledgements.values()), duration_s, action_s, state_metrics)
        )


def monotonic_ms() -> int:
    """The time of a clock that never goes back, in milliseconds."""
    return time.monotonic_ns() // 1_000_000
