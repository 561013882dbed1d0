"""Start and end of a streaming query.

A query ends by itself, by `stop`, by a timeout or by Ctrl-C. Its end waits for the running epoch. An epoch that exceeds
the timeout is aborted: Spark cancels its tasks, nothing of it remains, and the next start processes it again. The jobs
of a no-data epoch, which runs beside the query, are cancelled here until it has ended.

PySpark answers SIGINT by cancelling all jobs and raising KeyboardInterrupt inside its own code. While the main thread
waits for the query, this module handles the signal instead: the first one stops the job, the second one aborts the
epoch.

Spark writes its offset and commit logs through Hadoop's ``FileContext``. Without Hadoop's native library that starts a
process (``readlink``) for each local file, 14 per batch. ``FileSystem`` starts none and writes the same files in the
same steps: a temporary file and its checksum, then a rename. ``FileContext`` also rejects replacing a file atomically;
one driver leads a job, so nobody else writes these files (``docs/decisions/0039``). Spark reads the setting from the
session when the query first opens the log, so it is set only until then. A choice of the program is respected.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from snapshots.loggers import logger_of
from statebackend.spark.epoch_driver import EpochDriver, cancel_until
from statebackend.spark.session import configured, streaming_errors_unlogged
from statebackend.state.durations import duration_ms
from statebackend.streaming.errors import EpochTimeoutError

__all__ = ["DEFAULT_STOP_TIMEOUT_S", "Interrupts", "QueryEnd", "Timeout", "start_query", "timeout_seconds"]


_LOG_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
_WITHOUT_PROCESSES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_INITIALIZING: Final = "Initializing"
"""How the status of a query begins that has not looked into its log."""

_START_POLL_S: Final = 0.01
_PATIENCE_S: Final = 10.0
"""For so long sources may take to be there; beyond that the log is written in Spark's usual way."""


def start_query(
    source: DataFrame,
    name: str,
    log_directory: str,
    run: Callable[[DataFrame, int], None],
    trigger: Mapping[str, Any],
) -> StreamingQuery:
    """Starts the query that reads ``source`` and calls ``run`` with each batch and its id; raises what Spark does.

    ``log_directory`` is an absolute path on a local or mounted disk.
    """
    writer = (
        source.writeStream.queryName(name)
        # Not a plain path, which the default file system of Hadoop may look for elsewhere.
        .option("checkpointLocation", f"file://{log_directory}")
        .foreachBatch(run)
    )
    if trigger:
        writer = writer.trigger(**trigger)
    session = source.sparkSession
    if session.conf.get(_LOG_FILES, None) is not None:
        return writer.start()
    with configured(session, {_LOG_FILES: _WITHOUT_PROCESSES}):
        query = writer.start()
        try:
            _wait_until_initialized(query)
        except BaseException:
            # Nobody is given it to stop.
            query.stop()
            raise
    return query


def _wait_until_initialized(query: StreamingQuery) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while query.status["message"].startswith(_INITIALIZING) and time.monotonic() < end_s:
        time.sleep(_START_POLL_S)


DEFAULT_STOP_TIMEOUT_S = 300.0
"""How long stopping waits for the epoch that is running."""

GIVING_UP_TIMEOUT_S = 60.0
"""How long Spark may take to end a query whose epoch is given up."""

_END_POLL_S = 0.2

_logger = logger_of(__name__)


Timeout: TypeAlias = float | str | timedelta
"""Seconds, a text such as "5 minutes", or a `timedelta`."""


def timeout_seconds(name: str, timeout_s: Timeout | None) -> float | None:
    """Return the seconds of a timeout, None for no limit. Raises `ValueError` for what is no timeout."""
    if isinstance(timeout_s, (str, timedelta)):
        timeout_s = duration_ms(timeout_s, name) / 1000
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and 0 <= timeout_s <= threading.TIMEOUT_MAX):
        raise ValueError(
            f"{name} is {timeout_s!r}; "
            f"it takes seconds from 0 on, or None for no limit, or a duration such as '5 minutes'"
        )
    return timeout_s


class Interrupts:
    """The SIGINTs that came while the main thread waited."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Within the block, in the main thread, SIGINT only counts; elsewhere it does what it did."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = signal.getsignal(signal.SIGINT)
        if former in (None, signal.SIG_IGN):
            # Set by a program in C, or by a shell that started us in the background: not for us to change.
            yield
            return
        signal.signal(signal.SIGINT, self._count)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, former)

    def _count(self, number: int, frame: Any) -> None:
        self.count += 1


class QueryEnd:
    """Ends one query."""

    def __init__(self, spark: SparkSession, driver: EpochDriver, query: StreamingQuery) -> None:
        self._spark = spark
        self._driver = driver
        self._query = query

    def wait(self, timeout_s: float | None, interrupts: Interrupts) -> bool:
        """Waits for the query to end, for the time to be up or for an interrupt; returns whether it has ended.

        Raises what Spark raises if the query has failed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not interrupts.count:
            left = _END_POLL_S if deadline is None else min(_END_POLL_S, deadline - time.monotonic())
            # Spark takes whole milliseconds from 1 on.
            if self._query.awaitTermination(max(left, 0.001)):  # type: ignore[arg-type]
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return False

    def stop(
        self,
        timeout_s: float | None,
        is_abandoned: Callable[[], bool] = lambda: False,
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Ends the query after the epoch that is running, and after what is to be done ``before_end``.

        An epoch that takes longer than ``timeout_s``, or as soon as ``is_abandoned``, is given up, which raises
        `EpochTimeoutError`; the query has ended then too, unless `isActive` says that it has not.
        """
        self._driver.request_stop()
        # Spark may just be beginning the next batch, which is then rejected: no reason for a stack trace in its log.
        if self._driver.wait_until_idle(timeout_s, is_abandoned):
            try:
                before_end()
            finally:
                with streaming_errors_unlogged(self._spark):
                    self._query.stop()
            return
        epoch_id = self._driver.running_epoch_id
        waited = "at a second interrupt" if is_abandoned() else f"after {timeout_s:g} s"
        reason = (
            f"epoch {epoch_id} was given up {waited}, while the job was being stopped. Nothing is lost: it is "
            f"processed again when the job is started again"
        )
        self._driver.abandoned = reason
        if not self._give_up():
            raise EpochTimeoutError(
                f"epoch {epoch_id} cannot be ended: the function of the sink, or the sink, is still busy on the driver "
                f"{GIVING_UP_TIMEOUT_S:g} s after its tasks were cancelled. The job directory stays locked until it "
                f"returns or this process ends, which loses nothing"
            )
        # It may have ended all the same just before.
        if self._driver.failure is not None:
            raise EpochTimeoutError(reason)

    def stop_at_interrupt(self, interrupts: Interrupts, timeout_s: float) -> None:
        """Ends the query after Ctrl-C, and says in one line what became of the running epoch."""
        if self._driver.running_epoch_id is not None:
            _logger.warning(
                "stopping: epoch %s is running and ends first, for at most %g s; Ctrl-C again gives it up",
                self._driver.running_epoch_id,
                timeout_s,
            )
        try:
            self.stop(timeout_s, lambda: interrupts.count > 1)
        except EpochTimeoutError as error:
            _logger.warning("stopped: %s", error)
        else:
            last = self._driver.last_epoch_id
            done = "no epoch is complete" if last is None else f"epoch {last} is complete"
            _logger.warning("stopped: %s, and the same program goes on from there", done)

    def _give_up(self) -> bool:
        """Interrupts the query and the epoch; returns whether both have ended in time."""
        deadline = time.monotonic() + GIVING_UP_TIMEOUT_S
        has_ended = False

        def is_over(within_s: float) -> bool:
            nonlocal has_ended
            stopping.join(within_s)
            has_ended = not self._query.isActive and self._driver.wait_until_idle(within_s, lambda: False)
            return has_ended or time.monotonic() >= deadline

        with streaming_errors_unlogged(self._spark):
            # Spark waits for its thread without end, and that may be waiting for a function of the user's.
            stopping = threading.Thread(target=self._query.stop, name="stopping a query", daemon=True)
            stopping.start()
            cancel_until(lambda: self._spark.sparkContext.cancelJobGroup(str(self._query.runId)), is_over)
        return has_ended
