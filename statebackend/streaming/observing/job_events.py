"""The events of a job, and how they are passed to listeners: one after the other, on the threads of the job.

    started                                     once, first
    restored, migrated                          the compatibility results at the start; each state, when all its
                                                subtasks are done
    epoch_completed                             after each epoch, with its checkpoint
    checkpoint_completed, checkpoint_failed
    savepoint_written
    terminated                                  once, last except for savepoints that are written after the end

The job waits while a listener is called, so a listener runs long work on its own thread. Its errors never affect the
job: they are logged once with a traceback. Names and order follow Spark's ``StreamingQueryListener``.

Every job logs that its state is migrated before the first entry is, and then the progress every few seconds, at INFO of
the logger ``statebackend.savepoint.progress_display``. For progress bars on a terminal:

    environment.add_listener(ProgressTo(shown_progress()))
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from attrs import frozen

from snapshots.compatibility import CompatibilityKind
from snapshots.loggers import logger_of
from statebackend.savepoint.export import SavepointReport
from statebackend.savepoint.progress_display import LINES_EVERY_S, ProgressLines
from statebackend.state.progress import Progress, ProgressListener
from statebackend.streaming.metrics import (
    EpochMetrics,
    FailedCheckpoint,
    JobMetrics,
    ObservedRun,
    RestoredStateMetrics,
)

__all__ = [
    "CheckpointCompleted",
    "CheckpointFailed",
    "EpochCompleted",
    "JobListener",
    "JobListeners",
    "JobStarted",
    "JobTerminated",
    "LoggedProgress",
    "ObservedJob",
    "ProgressTo",
    "SavepointWritten",
    "StateMigrated",
    "StateRestored",
]


_log = logger_of(__name__)


class ObservedJob(Protocol):
    """The job that a listener receives."""

    def metrics(self) -> JobMetrics:
        """Return its metrics at this moment, on any thread."""

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write them as an HTML page, also for a failed job. Raises `OSError`."""


@frozen
class JobStarted:
    """A run starts. ``job`` returns metrics and reports during the run and after it."""

    run: ObservedRun
    job: ObservedJob


@frozen
class StateRestored:
    """The run restores state; migrations follow."""

    run: ObservedRun
    states: tuple[RestoredStateMetrics, ...]


@frozen
class StateMigrated:
    """A state is migrated, in all subtasks."""

    run: ObservedRun
    state: RestoredStateMetrics


@frozen
class EpochCompleted:
    """An epoch has ended and is durable."""

    run: ObservedRun
    epoch: EpochMetrics


@frozen
class CheckpointCompleted:
    """A checkpoint is stored: ``size_bytes`` of state, ``bytes_written`` of them new."""

    run: ObservedRun
    checkpoint_id: int
    size_bytes: int
    bytes_written: int
    duration_s: float


@frozen
class CheckpointFailed:
    """A checkpoint failed. The job may continue."""

    run: ObservedRun
    checkpoint: FailedCheckpoint


@frozen
class SavepointWritten:
    """A savepoint is complete."""

    run: ObservedRun
    report: SavepointReport


@frozen
class JobTerminated:
    """The run has ended. ``error`` made it fail; None if it did not fail."""

    run: ObservedRun
    error: BaseException | None


class JobListener:
    """A listener of the events of jobs; override the methods of the events that you need."""

    def started(self, event: JobStarted) -> None:
        """The run starts. Called once, first."""

    def restored(self, event: StateRestored) -> None:
        """The state of the start is compatible; the results by state."""

    def migrated(self, event: StateMigrated) -> None:
        """All subtasks have migrated a state."""

    def epoch_completed(self, event: EpochCompleted) -> None:
        """An epoch is complete, and so is its checkpoint."""

    def checkpoint_completed(self, event: CheckpointCompleted) -> None:
        """A checkpoint is stored."""

    def checkpoint_failed(self, event: CheckpointFailed) -> None:
        """A checkpoint failed."""

    def savepoint_written(self, event: SavepointWritten) -> None:
        """A savepoint is complete."""

    def terminated(self, event: JobTerminated) -> None:
        """The run has ended, with the error that failed it, if any."""

    def progress(self, progress: Progress) -> None:
        """How far a restore, a migration or a savepoint is (`statebackend.state.progress`)."""


class JobListeners:
    """The listeners of a job or an environment. Any thread may call any method."""

    def __init__(self, listeners: tuple[JobListener, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._listeners = listeners
        self._faulty: set[int] = set()

    def of_job(self, *own: JobListener) -> JobListeners:
        """Return the listeners of a job: its own, then these."""
        return JobListeners((*own, *self._listeners))

    def add(self, listener: JobListener) -> None:
        """Add a listener. A listener is called once for each event, even if it is added twice."""
        with self._lock:
            if not any(one is listener for one in self._listeners):
                self._listeners = (*self._listeners, listener)

    def remove(self, listener: JobListener) -> None:
        """Remove a listener, if it was added."""
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not listener)
            self._faulty.discard(id(listener))

    def call(self, call: Callable[[JobListener], object]) -> None:
        """Call each listener. Raises nothing but `KeyboardInterrupt`."""
        for listener in self._listeners:
            self._call_one(listener, call)

    def progress(self, progress: Progress) -> None:
        """Call all listeners with progress."""
        self.call(lambda listener: listener.progress(progress))

    def _call_one(self, listener: JobListener, call: Callable[[JobListener], object]) -> None:
        try:
            call(listener)
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._note(listener)

    def _note(self, listener: JobListener) -> None:
        with self._lock:
            is_first = id(listener) not in self._faulty
            self._faulty.add(id(listener))
        if is_first:
            _log.warning("a listener of the job failed; the job is not affected: %r", type(listener), exc_info=True)


_progress_log = logger_of("statebackend.savepoint.progress_display")

_MIGRATED: Final = CompatibilityKind.AFTER_MIGRATION.label


class ProgressTo(JobListener):
    """Calls a function with all progress, such as that of `shown_progress`."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    def progress(self, progress: Progress) -> None:
        """Call the listener."""
        self._listener(progress)


class LoggedProgress(JobListener):
    """Logs the progress of one job."""

    def __init__(self) -> None:
        self._lines = ProgressLines(_progress_log.info, time.monotonic, LINES_EVERY_S)

    def restored(self, event: StateRestored) -> None:
        """Log which states are migrated."""
        for one in event.states:
            if one.compatibility == _MIGRATED:
                _progress_log.info(
                    "job %r: state %r of operator %r is migrated to its new schema",
                    event.run.job_name,
                    one.state_name,
                    one.operator_uid,
                )

    def progress(self, progress: Progress) -> None:
        """Log the progress, every few seconds."""
        self._lines(progress)
