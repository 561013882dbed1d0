"""What every runtime offers to observe a started job: metrics, reports and events."""

from __future__ import annotations

import os

from statebackend.streaming.metrics import JobMetrics
from statebackend.streaming.observing.job_events import JobListener
from statebackend.streaming.observing.job_page import job_fragment
from statebackend.streaming.observing.job_recorder import JobRecorder
from statebackend.streaming.observing.restore_report import RestoreReport

__all__ = ["ObservedJob"]


class ObservedJob:
    """A job whose run ``recorder`` records."""

    def __init__(self, recorder: JobRecorder) -> None:
        self._recorder = recorder

    def metrics(self) -> JobMetrics:
        """Return all metrics of the job, as a copy.

        ``metrics().values()`` has each declared metric, ``metrics().epochs`` those of single epochs, and
        ``metrics().totals.state_metrics`` those of keyed state by operator uid, if they are on.
        """
        return self._recorder.metrics()

    def restore_report(self) -> RestoreReport:
        """What became of each restored state; complete after the first epoch, because migration runs in its tasks.

        Its ``str`` is for people: operator, state, compatibility result, issues, and what the migration did.
        """
        return self._recorder.restore_report()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a report for people: one HTML file with plots and tables, which loads nothing. Raises `OSError`."""
        self._recorder.report(path)

    def _repr_html_(self) -> str:
        return job_fragment(self.metrics())

    def add_listener(self, listener: JobListener) -> None:
        """Add a listener for what comes next; see `statebackend.streaming.observing.job_events`.

        The start is over. A listener of the start is added to the environment.
        """
        self._recorder.listeners.add(listener)

    def remove_listener(self, listener: JobListener) -> None:
        """Remove a listener."""
        self._recorder.listeners.remove(listener)
