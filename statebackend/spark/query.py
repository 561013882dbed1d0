"""Start and end of a streaming query.

A query ends by itself, by `stop`, by a timeout or by Ctrl-C. Its end waits for the running epoch. An epoch that exceeds
the timeout is aborted: Spark cancels its tasks, nothing of it remains, and the next start processes it again. The jobs
of a no-data epoch, which the query does not know, are cancelled here until it has ended.

PySpark answers SIGINT by cancelling all jobs and raising KeyboardInterrupt inside its own code. While the main thread
waits for the query, this module handles the signal instead: the first one stops the job, the second one aborts the
epoch.

Spark writes its offset and commit logs through Hadoop's ``FileContext``. Without Hadoop's native library that starts a
process (``readlink``) for each local file, 14 per batch. ``FileSystem`` starts none and writes the same files in the
same steps: a temporary file and its checksum, then a rename. ``FileContext`` also rejects replacing a file atomically;
one driver leads a job, so no other driver writes these files (``docs/decisions/0039``). Spark reads the setting from
the session when the query first opens the log, so it is set only until then. A choice of the program is respected.
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
from statebackend.spark.session import ALLOWED_TIMES, configured, streaming_errors_unlogged
from statebackend.state.durations import duration_ms
from statebackend.streaming.errors import EpochTimeoutError

__all__ = ["DEFAULT_STOP_TIMEOUT_S", "Interrupts", "QueryEnd", "Timeout", "start_query", "timeout_seconds"]


_LOG_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
_WITHOUT_PROCESSES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_INITIALIZING: Final = "Initializing"
"""The first word of the status of a query that has not read its log yet."""

_START_POLL_S: Final = 0.01
_PATIENCE_S: Final = 10.0
"""Seconds to wait for the sources; after that the log is written in Spark's usual way."""


def start_query(
    source: DataFrame,
    name: str,
    log_directory: str,
    run: Callable[[DataFrame, int], None],
    trigger: Mapping[str, Any],
) -> StreamingQuery:
    """Start the query that reads ``source`` and calls ``run`` with each batch and its id.

    ``log_directory`` is an absolute path on a local or mounted disk. Errors of Spark pass through.
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
    # A query starts with a copy of the session's settings.
    log_files = session.conf.get(_LOG_FILES, None) or _WITHOUT_PROCESSES
    with configured(session, {_LOG_FILES: log_files, **ALLOWED_TIMES}):
        query = writer.start()
        try:
            _wait_until_initialized(query)
        except BaseException:
            # The caller does not get the query, so it cannot stop it.
            query.stop()
            raise
    return query


def _wait_until_initialized(query: StreamingQuery) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while query.status["message"].startswith(_INITIALIZING) and time.monotonic() < end_s:
        time.sleep(_START_POLL_S)


DEFAULT_STOP_TIMEOUT_S = 300.0
"""How many seconds stopping waits for the running epoch."""

ABORT_TIMEOUT_S = 60.0
"""How many seconds Spark may take to end a query whose epoch is aborted."""

_END_POLL_S = 0.2

_logger = logger_of(__name__)


Timeout: TypeAlias = float | str | timedelta
"""Seconds, a text such as "5 minutes", or a `timedelta`."""


def timeout_seconds(name: str, timeout_s: Timeout | None) -> float | None:
    """Return the seconds of a timeout, None for no limit. Raises `ValueError` for what is not a timeout."""
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
    """Counts the SIGINTs that arrive while the main thread waits."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Within the block SIGINT is only counted, if this is the main thread; else nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = signal.getsignal(signal.SIGINT)
        if former in (None, signal.SIG_IGN):
            # A program in C, or a shell that started this process in the background, has set it.
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
        """Wait until the query ends, the timeout passes or an interrupt arrives; return whether the query has ended.

        If the query has failed, Spark's error passes through.
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
        """Call ``before_end`` after the running epoch, then end the query.

        Raises:
            EpochTimeoutError: The epoch took longer than ``timeout_s``, or ``is_abandoned`` returned True, and it was
                aborted. The query has ended, too, unless `isActive` is True.
        """
        self._driver.request_stop()
        # A batch that Spark starts now is rejected; that needs no stack trace in Spark's log.
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
            f"epoch {epoch_id} was aborted {waited}, while the job was stopping. Nothing is lost: the next start "
            f"of the job processes it again"
        )
        self._driver.abandoned = reason
        if not self._abort():
            raise EpochTimeoutError(
                f"epoch {epoch_id} cannot be ended: the sink, or its function, is still busy on the driver "
                f"{ABORT_TIMEOUT_S:g} s after its tasks were cancelled. The job directory stays locked until it "
                f"returns or this process ends. Nothing is lost"
            )
        # Without a failure the epoch has completed just before.
        if self._driver.failure is not None:
            raise EpochTimeoutError(reason)

    def stop_at_interrupt(self, interrupts: Interrupts, timeout_s: float) -> None:
        """End the query after Ctrl-C, and log the result of the running epoch in one line."""
        if self._driver.running_epoch_id is not None:
            _logger.warning(
                "stopping: epoch %s is running and ends first, for at most %g s; Ctrl-C again aborts it",
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
            _logger.warning("stopped: %s, and the same program continues from there", done)

    def _abort(self) -> bool:
        """Interrupt the query and the epoch; return whether both have ended in time."""
        deadline = time.monotonic() + ABORT_TIMEOUT_S
        has_ended = False

        def is_over(within_s: float) -> bool:
            nonlocal has_ended
            stopping.join(within_s)
            has_ended = not self._query.isActive and self._driver.wait_until_idle(within_s, lambda: False)
            return has_ended or time.monotonic() >= deadline

        with streaming_errors_unlogged(self._spark):
            # Spark waits for its thread without limit, and that thread may be in a function of the user.
            stopping = threading.Thread(target=self._query.stop, name="stopping a query", daemon=True)
            stopping.start()
            cancel_until(lambda: self._spark.sparkContext.cancelJobGroup(str(self._query.runId)), is_over)
        return has_ended
