"""The handle of a running Spark job, and the watcher that ends a run after its query.

A query may end by itself: its source failed between two epochs, or has no more data. A listener in Python would also be
called for every epoch, which is slow. So a thread waits in the JVM for the end of the query.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from snapshots.loggers import logger_of
from statebackend.checkpoint.errors import LeadershipLostError
from statebackend.checkpoint.ha.leadership import raising_root_cause
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.savepoint.export import SavepointReport
from statebackend.spark.epoch_driver import EpochDriver
from statebackend.spark.no_data_epochs import NoDataEpochs
from statebackend.spark.query import DEFAULT_STOP_TIMEOUT_S, Interrupts, QueryEnd, Timeout, timeout_seconds
from statebackend.spark.rollback import RollbackReport
from statebackend.spark.savepoints import take_savepoint
from statebackend.spark.session import streaming_errors_unlogged
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.errors import EpochError
from statebackend.streaming.metrics import EpochMetrics
from statebackend.streaming.observing.job_page import EpochHistory
from statebackend.streaming.observing.job_recorder import ObservedJob

__all__ = ["RunWatch"]


class RunWatch:
    """Calls ``at_end`` once, when ``await_end`` returns or raises the failure of the query."""

    def __init__(self, await_end: Callable[[], object], at_end: Callable[[], None]) -> None:
        self._await_end = await_end
        self._at_end = at_end
        self.thread = threading.Thread(target=self._watch, name="watching a query", daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        # A stopped session has ended the query itself.
        with contextlib.suppress(Py4JError, OSError):
            # `SparkJob.await_termination` raises the failure.
            with contextlib.suppress(PySparkException):
                self._await_end()
            self._at_end()


_log = logger_of(__name__)


class SparkJob(ObservedJob):
    """A started job. All methods may be called from any thread."""

    def __init__(
        self,
        spark: SparkSession,
        directory: JobDirectory,
        driver: EpochDriver,
        schema_reports: Mapping[str, SchemaReport],
        query: StreamingQuery,
        no_data_epochs: NoDataEpochs,
        roll_back_report: RollbackReport | None = None,
    ) -> None:
        super().__init__(driver.recorder)
        self.query = query
        """Spark's own handle of the streaming query, for progress and metrics."""
        self.schema_reports = schema_reports
        """The compatibility results of the restored state by operator uid; empty if nothing was restored."""
        self.roll_back_report = roll_back_report
        """What the rollback to an older checkpoint did, if the job was started with ``roll_back_to``."""
        self._spark = spark
        self._directory = directory
        self._driver = driver
        self._no_data_epochs = no_data_epochs
        self._end = QueryEnd(spark, driver, query)
        # The directory stays locked until the user has got the reason of the end.
        self._watch = RunWatch(query.awaitTermination, no_data_epochs.query_ended)
        self._is_unlocked = False
        directory.leadership.at_loss(self._leadership_lost)

    @property
    def last_completed_epoch(self) -> int | None:
        """The last epoch whose effects are durable: of this run, or of the state that it started from."""
        return self._driver.last_epoch_id

    @property
    def epochs(self) -> Sequence[EpochMetrics]:
        """The metrics of the last thousand epochs of this run, oldest first."""
        return EpochHistory(self._recorder.epochs)

    def last_progress(self) -> dict[str, Any] | None:
        """Return Spark's progress of the last micro-batch as JSON, with the metrics of the job.

        ``observedMetrics["statebackend"]`` contains a list of values for each metric that has any, by its full name,
        such as ``operator.records_in``. Each has ``labels`` and ``value``. None before the first micro-batch.
        """
        progress = self.query.lastProgress
        if progress is None:
            return None
        values: dict[str, list[dict[str, Any]]] = {}
        for one in self.metrics().values():
            values.setdefault(one.metric.full_name, []).append({"labels": one.labels, "value": one.value})
        plain: dict[str, Any] = json.loads(progress.json)
        return {**plain, "observedMetrics": {**plain.get("observedMetrics", {}), "statebackend": values}}

    def watermarks(self) -> Mapping[str, int]:
        """Return the watermarks of the next epoch by uid of operator and source, in milliseconds.

        Operators and sources without a watermark are left out.
        """
        return self._driver.watermarks()

    def await_termination(self, timeout_s: Timeout | None = None) -> bool:
        """Wait for the job to end, or for ``timeout_s`` seconds. Raises the error that the job failed with.

        A job with the trigger ``availableNow`` or ``once`` ends when all timers that are due have fired, which may be
        after its `query`.

        Ctrl-C stops the job as `stop` does, logs the result of the running epoch in one line, and raises
        `KeyboardInterrupt`. A second Ctrl-C aborts the running epoch.

        Returns:
            Whether the job has ended.
        """
        timeout_s = timeout_seconds("timeout_s", timeout_s)
        interrupts = Interrupts()
        with interrupts.counted():
            try:
                has_ended = self._end.wait(timeout_s, interrupts)
            except PySparkException as error:
                if self.query.isActive:
                    raise
                # Before the directory is unlocked, and before `RunWatch` ends the run as one without a failure.
                failure = self._driver.query_failed(error)
                self._no_data_epochs.query_ended()
                self._close()
                if self._driver.is_stopping and self._driver.failure is None:
                    return True
                raise failure from error
            if has_ended:
                self._no_data_epochs.query_ended()
                self._close()
                if self._driver.failure is not None:
                    # Spark reports an epoch that a stop has interrupted as one that has ended.
                    raise self._driver.failure
            elif interrupts.count:
                try:
                    self._end.stop_at_interrupt(interrupts, DEFAULT_STOP_TIMEOUT_S)
                finally:
                    self._close_if_ended()
        if interrupts.count:
            raise KeyboardInterrupt
        return has_ended

    def process_all_available(self) -> None:
        """Waits until everything that the source has now is processed, and has fired what is due then.

        For tests and demonstrations.
        """
        try:
            self.query.processAllAvailable()
        except PySparkException as error:
            raise self._driver.query_failed(error) from error
        self._no_data_epochs.run_due()
        if self._driver.failure is not None:
            raise self._driver.failure

    def savepoint(self, path: str | os.PathLike[str]) -> SavepointReport:
        """Write a savepoint of the last completed epoch to a new directory, while the job continues.

        Raises:
            EpochError: No epoch of this job has completed yet, or the output of the last one is not committed.
            SavepointExistsError: The directory is not empty.
            MissingFileError, CorruptFileError, SavepointError: The state cannot be read; the message names the file.
            LeadershipLostError: Another driver leads the job now.
        """
        parts = self._driver.parts
        with ExitStack() as pins:
            if not self._is_unlocked:
                pins.enter_context(raising_root_cause(parts.leadership))
            with self._driver.committing:
                metadata = pins.enter_context(parts.store.pin(self._committed_epoch()))
            registered = {uid: operator.states.keyed for uid, operator in parts.pipeline.operators.items()}
            report = take_savepoint(
                self._spark,
                metadata,
                parts.file_system,
                parts.spark_checkpoint_directory,
                path,
                registered,
                parts.local_root,
                parts.sources,
                self._driver.progress,
            )
        self._recorder.savepoint_written(report)
        return report

    def _committed_epoch(self) -> int:
        latest = self._driver.parts.store.latest()
        if latest is None:
            failure = self._driver.failure
            because = f"; the job failed: {failure}" if failure is not None else " yet"
            raise EpochError(f"there is nothing to save: no epoch of this job has completed{because}") from failure
        if latest.checkpoint_id != self._driver.last_epoch_id:
            # Only this job directory knows the staged rows. A job that started from the savepoint would lose them.
            raise EpochError(
                f"the output of epoch {latest.checkpoint_id} is not committed yet ({self._driver.failure}); "
                f"execute the job again, which commits it, before taking a savepoint"
            )
        return latest.checkpoint_id

    def stop(self, timeout_s: Timeout | None = DEFAULT_STOP_TIMEOUT_S) -> None:
        """End the job after the running epoch. The same program continues it when it is executed again.

        Raises:
            EpochTimeoutError: The epoch did not end within ``timeout_s`` seconds (None: no limit) and was aborted. Its
                tasks are cancelled and the job has ended, unless the message says otherwise.
        """
        timeout_s = timeout_seconds("timeout_s", timeout_s)
        try:
            self._end.stop(timeout_s)
        finally:
            self._close_if_ended()

    def stop_with_savepoint(
        self,
        path: str | os.PathLike[str],
        timeout_s: Timeout | None = DEFAULT_STOP_TIMEOUT_S,
        *,
        drain: bool = False,
    ) -> SavepointReport:
        """End the job after the running epoch, and write a savepoint of it.

        With ``drain`` one more epoch advances event time to its end, so all windows and event-time timers fire: for a
        job that is not continued. Processing-time timers stay pending and are in the savepoint.

        Raises the error that the job failed with, and `EpochTimeoutError` as `stop` does. `savepoint` then still saves
        the last completed epoch.
        """
        timeout_s = timeout_seconds("timeout_s", timeout_s)
        try:
            if drain:
                self._no_data_epochs.announce_drain()
                self._end.stop(timeout_s, before_end=self._no_data_epochs.drain)
            else:
                self._end.stop(timeout_s)
            if self._driver.failure is not None:
                raise self._driver.failure
            # The directory stays locked meanwhile: another driver would delete the files that are being exported.
            return self.savepoint(path)
        finally:
            self._close_if_ended()

    def _leadership_lost(self, lost: LeadershipLostError) -> None:
        self._driver.leadership_lost(lost)
        _log.error("%s", lost)
        # A stopped session has ended the query itself.
        with contextlib.suppress(Exception), streaming_errors_unlogged(self._spark):
            self.query.stop()

    def _close_if_ended(self) -> None:
        # No other driver may run while the query, or an epoch after it, runs.
        if not self.query.isActive and self._driver.running_epoch_id is None:
            self._close()

    def _close(self) -> None:
        self._no_data_epochs.close()
        self._is_unlocked = True
        self._directory.close()
