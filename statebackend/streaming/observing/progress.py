"""Listeners for progress: a function to call, and the lines in the log.

Every job logs that its state is migrated before the first entry is, and then the progress every few seconds, at INFO of
the logger ``statebackend.savepoint.progress_display``. For progress bars on a terminal:

    environment.add_listener(ProgressTo(shown_progress()))
"""

from __future__ import annotations

import time
from typing import Final

from snapshots.compatibility import CompatibilityKind
from snapshots.loggers import logger_of
from statebackend.savepoint.progress_display import LINES_EVERY_S, ProgressLines
from statebackend.state.progress import Progress, ProgressListener
from statebackend.streaming.observing.job_events import JobListener, StateRestored

__all__ = ["LoggedProgress", "ProgressTo"]

_log = logger_of("statebackend.savepoint.progress_display")

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
        self._lines = ProgressLines(_log.info, time.monotonic, LINES_EVERY_S)

    def restored(self, event: StateRestored) -> None:
        """Log which states are migrated."""
        for one in event.states:
            if one.compatibility == _MIGRATED:
                _log.info(
                    "job %r: state %r of operator %r is migrated to its new schema",
                    event.run.job_name,
                    one.state_name,
                    one.operator_uid,
                )

    def progress(self, progress: Progress) -> None:
        """Log the progress, every few seconds."""
        self._lines(progress)
