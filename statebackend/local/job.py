"""A job that ran in this process: its last checkpoint, and savepoints of it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence

from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory
from statebackend.local.local_run import LocalRun
from statebackend.savepoint.export import SavepointReport, export_tasks, finish_savepoint
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.errors import EpochError
from statebackend.streaming.metrics import JobMetrics
from statebackend.streaming.observing.job_events import JobListener
from statebackend.streaming.observing.job_page import job_fragment
from statebackend.streaming.observing.restore_report import RestoreReport


class LocalJob:
    """What is left of a job when all its elements are processed."""

    def __init__(self, run: LocalRun, temporary: tempfile.TemporaryDirectory[str]) -> None:
        parts = run.parts
        self.schema_reports: Mapping[str, SchemaReport] = run.schema_reports
        """The compatibility results on restored state, by operator uid."""
        self.restore_reports: Sequence[StateRestoreReport] = run.restore_reports
        """What each subtask did to each restored keyed state."""
        self.operator_state_restore_reports: Sequence[StateRestoreReport] = run.operator_state_restore_reports
        """What each subtask did to each restored operator state."""
        self.epochs = run.epochs
        """How many epochs ran."""
        self._recorder = run.recorder
        self._watermarks = run.watermarks()
        self._store = parts.store
        self._file_system = parts.directory.file_system
        self._registered = {uid: operator.states.keyed for uid, operator in parts.operators.items()}
        self._clock = parts.clock
        # The directory goes with the last reference to it, and a savepoint reads what is in it.
        self._temporary = temporary

    def restore_report(self) -> RestoreReport:
        """What became of each state that was restored; as text, for people. Empty if nothing was."""
        return self._recorder.restore_report()

    def metrics(self) -> JobMetrics:
        """Return all metrics of the job, as a copy.

        ``metrics().values()`` has each declared metric, ``metrics().epochs`` those of single epochs, and
        ``metrics().totals.state_metrics`` those of keyed state by operator uid, if they are on.
        """
        return self._recorder.metrics()

    def add_listener(self, listener: JobListener) -> None:
        """Lets a listener hear of what is still to come, which is savepoints; others go to the environment."""
        self._recorder.listeners.add(listener)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes a report for people: one HTML file with plots and tables, which loads nothing. Raises `OSError`."""
        self._recorder.report(path)

    def _repr_html_(self) -> str:
        return job_fragment(self.metrics())

    def watermarks(self) -> Mapping[str, int]:
        """How far event time is, by operator uid and name of source, in milliseconds; without a watermark, left out."""
        return self._watermarks

    def savepoint(self, path: str | os.PathLike[str]) -> SavepointReport:
        """Writes a savepoint of the job's state to a new directory; every environment and backend can restore it."""
        latest = self._store.latest()
        if latest is None:
            raise EpochError("there is nothing to save: the job has processed nothing")
        started_s = time.monotonic()
        with self._store.pin(latest.checkpoint_id) as metadata:
            target = create_savepoint_directory(path)
            tasks = export_tasks(metadata, self._file_system, target, self._registered, self._clock())
            exported = [task.run(self._recorder.progress) for task in tasks]
            report = finish_savepoint(metadata, exported, target, (), started_s)
        self._recorder.savepoint_written(report)
        return report
