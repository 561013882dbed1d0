"""No-data epochs: when timers or idle sources are due and Spark delivers no batch.

Spark calls only with records. So a thread waits for the next due time and starts an epoch then. A batch that arrives
meanwhile takes precedence, since it fires the same timers. With the triggers ``availableNow`` and ``once``, due timers
fire after the last batch, when the query has ended. A no-data epoch runs in the job group of the query, so it is
cancelled with it, and on a copy of the session from the start of the job. If one fails, the query ends.

A no-data epoch after every batch would double the cost of a busy job, and it is unknown whether a batch follows. The
rules for its start, on a monotonic clock in milliseconds:

    after a batch, and the trigger leaves time for it    at once
    after a batch, otherwise                             after as much time as the epoch costs, if no batch arrives:
                                                         a busy job never pays, another waits at most twice as long as
                                                         necessary (the ski-rental problem)
    after a no-data epoch                                when the trigger would deliver the next batch: at most one per
                                                         interval, however dense the timers
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from statebackend.checkpoint.fs.retries import monotonic_ms
from statebackend.spark.epoch_driver import EpochDriver
from statebackend.spark.session import cloned_session, streaming_errors_unlogged
from statebackend.streaming.errors import EpochError

_MOST_FIRST_COST_MS: Final = 1000
"""The largest expected cost of the first no-data epoch, which is that of the batch. Later ones cost as the last one."""


class EpochPacing:
    """When a no-data epoch may start. ``interval_ms`` is the trigger interval, 0 for batches without pause."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._cost_ms: int | None = None
        self.earliest_ms: int | None = None
        """When a no-data epoch may start; None before the first epoch: at once."""

    def batch_ended(self, began_ms: int, ended_ms: int) -> None:
        """An epoch with a batch has run."""
        cost_ms = min(ended_ms - began_ms, _MOST_FIRST_COST_MS) if self._cost_ms is None else self._cost_ms
        has_room = ended_ms + cost_ms <= began_ms + self._interval_ms
        self.earliest_ms = ended_ms if has_room else ended_ms + cost_ms

    def no_data_epoch_ended(self, began_ms: int, ended_ms: int) -> None:
        """A no-data epoch has run."""
        self._cost_ms = ended_ms - began_ms
        self.earliest_ms = max(ended_ms, began_ms + self._interval_ms)


_LONGEST_WAIT_S: Final = 60.0
"""The longest delay until a clock that was set forward is noticed."""

_ENDING_TRIGGERS: Final = ("availableNow", "once")


class EmptyBatch:
    """Creates the frames of no-data epochs."""

    def __init__(self, spark: SparkSession, schema: StructType) -> None:
        self._spark = cloned_session(spark)
        self._schema = schema

    def __call__(self) -> DataFrame:
        """Return a frame without rows and partitions: Spark computes nothing for it."""
        session: Any = self._spark
        schema = session._jsparkSession.parseDataType(self._schema.json())
        rows = session._jvm.java.util.ArrayList()
        return DataFrame(session._jsparkSession.createDataFrame(rows, schema), session)


class NoDataEpochs:
    """The no-data epochs of one run, from the start of its query."""

    def __init__(
        self, spark: SparkSession, driver: EpochDriver, query: StreamingQuery, trigger: Mapping[str, Any]
    ) -> None:
        self._spark = spark
        self._driver = driver
        self._query = query
        self._is_ending = any(trigger.get(name) for name in _ENDING_TRIGGERS)
        self._is_draining = False
        self._is_over = False
        self._pacing = EpochPacing(0 if self._is_ending else _interval_ms(spark, trigger))
        self._news = threading.Event()
        self.thread: threading.Thread | None = None
        if not self._is_ending:
            driver.at_news = self._news.set
            self.thread = threading.Thread(target=self._run, name="time of a job", daemon=True)
            self.thread.start()

    def run_due(self) -> None:
        """Run the epochs that are due now. Errors of an epoch pass through."""
        driver = self._driver
        with driver.exclusively(), self._in_group():
            now_ms = driver.clock()
            while (due_ms := driver.next_no_data_epoch_ms()) is not None and due_ms <= now_ms:
                driver.run_no_data_epoch()

    def query_ended(self) -> None:
        """End the run after its query: fire due timers if all records are read, unless the job is being drained.

        Waits for the running epoch. May be called again. `EpochDriver.failure` has the error.
        """
        with self._driver.exclusively():
            if self._is_draining:
                return
            with contextlib.suppress(Exception):
                failure = self._query.exception()
                if self._is_ending and failure is None:
                    self.run_due()
                elif failure is not None:
                    # A source may have failed between two epochs.
                    self._driver.query_failed(failure)
            self.close()

    def announce_drain(self) -> None:
        """Keep the run for `drain`, although its query may end before."""
        with self._driver.exclusively():
            if self._driver.is_closed:
                failure = self._driver.failure
                raise failure or EpochError(
                    "the job has ended and cannot be drained: start it again without availableNow, and stop it with "
                    "drain=True"
                )
            self._is_draining = True

    def drain(self) -> None:
        """Run an epoch at the end of event time. Errors of the epoch pass through."""
        with self._in_group():
            self._driver.drain()

    def close(self) -> None:
        """End the run; no further epoch starts. May be called again."""
        self._is_over = True
        self._news.set()
        self._driver.close()

    def _run(self) -> None:
        try:
            with self._in_group():
                while not self._is_over:
                    self._news.clear()
                    self._news.wait(self._turn())
        except Exception:
            # The driver remembers the error. A stopped session has ended the query itself.
            with contextlib.suppress(Exception), streaming_errors_unlogged(self._spark):
                self._query.stop()

    def _turn(self) -> float | None:
        """Run an epoch if it is due; return the seconds until the next turn, None to wait for `at_news`."""
        driver = self._driver
        with driver.exclusively():
            self._learn_of_batches()
            due_ms = driver.next_no_data_epoch_ms()
            if due_ms is None or self._is_over or driver.has_batch_waiting:
                return None
            left_ms = due_ms - driver.clock()
            if self._pacing.earliest_ms is not None:
                left_ms = max(left_ms, self._pacing.earliest_ms - monotonic_ms())
            if left_ms > 0:
                return min(left_ms / 1000, _LONGEST_WAIT_S)
            began_ms = monotonic_ms()
            driver.run_no_data_epoch()
            self._pacing.no_data_epoch_ended(began_ms, monotonic_ms())
            return 0.0

    def _learn_of_batches(self) -> None:
        batch, self._driver.last_batch = self._driver.last_batch, None
        if batch is not None:
            self._pacing.batch_ended(*batch)

    @contextlib.contextmanager
    def _in_group(self) -> Iterator[None]:
        """Within the block, the jobs of this thread belong to the query's job group."""
        with _job_group(self._spark.sparkContext, str(self._query.runId)):
            yield


@contextlib.contextmanager
def _job_group(context: SparkContext, group: str) -> Iterator[None]:
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    context.setJobGroup(group, "an epoch without records", interruptOnCancel=True)
    try:
        yield
    finally:
        # A stopped session has no properties to restore.
        with contextlib.suppress(Py4JError, ConnectionError, AttributeError):
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type]


def _interval_ms(spark: SparkSession, trigger: Mapping[str, Any]) -> int:
    text = trigger.get("processingTime")
    if not text:
        return 0
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(text).intervalMs())
