"""Ends an epoch that takes too long: its Spark jobs are cancelled, which also ends workers that hang.

Spark runs all jobs of a streaming query in one job group. Cancelling it makes the sink's action fail, and some seconds
later Spark kills the Python workers of its tasks. What the sink's own function does on the driver cannot be ended from
outside; such an epoch fails when the function returns.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

from pyspark import SparkContext

from snapshots.loggers import logger_of
from streamjobs.spark.driver.repeated_cancelling import cancel_until

__all__ = ["EpochWatchdog"]

_JOB_GROUP: Final = "spark.jobGroup.id"

_logger = logger_of(__name__)


class EpochWatchdog:
    """A context for the action of an epoch, entered on the thread that runs it. Without a timeout it does nothing."""

    def __init__(self, context: SparkContext, epoch_id: int, timeout_s: float | None) -> None:
        self.has_expired = False
        """Whether the epoch took longer."""
        self._context = context
        self._epoch_id = epoch_id
        self._timeout_s = timeout_s
        self._group: str | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._timer = None if timeout_s is None else threading.Timer(timeout_s, self._expire)

    def __enter__(self) -> EpochWatchdog:
        if self._timer is not None:
            self._group = self._context.getLocalProperty(_JOB_GROUP)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._over.set()

    def _expire(self) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self.has_expired = True
            _logger.warning(
                "epoch %d has not ended within %g s; its tasks are cancelled", self._epoch_id, self._timeout_s
            )
        group = self._group
        if group is not None:
            cancel_until(lambda: self._cancel(group), self._over.wait)

    def _cancel(self, group: str) -> None:
        # What runs in the group behind the epoch is that of the next one.
        with self._lock:
            if not self._over.is_set():
                self._context.cancelJobGroup(group)
