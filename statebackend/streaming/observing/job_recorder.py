"""Records what a runtime measures, keeps a bounded part of it, and calls the listeners.

A runtime reports the start, each epoch with its acknowledgements, failures, savepoints and the end, in that order. It
returns values that change all the time on request (`LiveMetrics`), last at the end, since it may be closed afterwards.
The recorder keeps the last `REMEMBERED_EPOCHS` epochs and sums over all, so memory does not grow with the age of a run.

Any thread may call anything. Listeners are called outside of the lock, in the order of events, which come from one
thread at a time.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Final

from attrs import evolve, field, frozen

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility
from snapshots.errors import cut, one_line
from snapshots.loggers import logger_of
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, ReportValue, TaskId
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.savepoint.export import SavepointReport
from statebackend.savepoint.html_pages import table_fragment, write_page
from statebackend.savepoint.sizes import counted
from statebackend.savepoint.statistics import CheckpointSizes, checkpoint_sizes
from statebackend.state.clock import Clock, wall_clock
from statebackend.state.progress import Progress
from statebackend.state.state_compatibility import SchemaReport, StateCompatibility
from statebackend.streaming.compatibility_check import COMPATIBILITY_COLUMNS, compatibility_rows
from statebackend.streaming.errors import describe_exception
from statebackend.streaming.metrics import (
    REMEMBERED_EPOCHS,
    CheckpointCost,
    EpochMetrics,
    FailedCheckpoint,
    JobMetrics,
    ObservedRun,
    OperatorBarriers,
    RestoredStateMetrics,
    RunMetrics,
    SinkMetrics,
    SubtaskMetrics,
    TimeMetrics,
    metrics_of_epoch,
    restore_metrics,
    sinks_of,
)
from statebackend.streaming.observing.job_events import (
    CheckpointCompleted,
    CheckpointFailed,
    EpochCompleted,
    JobListener,
    JobListeners,
    JobStarted,
    JobTerminated,
    SavepointWritten,
    StateMigrated,
    StateRestored,
)
from statebackend.streaming.observing.job_page import job_fragment, job_page
from statebackend.streaming.stream_graph import JobGraph

__all__ = [
    "JobRecorder",
    "LiveMetrics",
    "ObservedJob",
    "RestoreReport",
    "RestoredStateReport",
    "SubtaskReport",
    "restore_report_of",
]


TEXT_CHARACTERS: Final = 2000
"""Longer texts of failures are cut."""

_READINGS: Final = 5
"""The number of attempts to read the live values of a runtime before the last known ones are returned."""

_log = logger_of(__name__)

REMEMBERED_FAILURES: Final = 100
"""The number of failed checkpoints, and of savepoints, that are kept one by one."""


@frozen
class LiveMetrics:
    """What a runtime knows of itself at a moment; ``schema_reports`` are the compatibility results on restored state,
    by uid.
    """

    schema_reports: Mapping[str, SchemaReport] = field(factory=dict)
    newest: CheckpointMetadata | None = None
    time: Mapping[str, TimeMetrics] = field(factory=dict)
    barriers: Mapping[str, OperatorBarriers] = field(factory=dict)


class JobRecorder:
    """The recorder of one run. ``live`` is called from any thread.

    A runtime that does not count the records of its sinks passes the ``graph``, from which they are computed.

    With ``keeps_subtasks_open``, subtasks open their state when they need it, and report the restore then. Otherwise
    all of them report it in the first epoch, and later epochs restore only what the run has written.
    """

    def __init__(
        self,
        run: ObservedRun,
        live: Callable[[], LiveMetrics],
        listeners: JobListeners,
        *,
        keeps_subtasks_open: bool,
        graph: JobGraph | None = None,
        clock: Clock = wall_clock,
    ) -> None:
        self.run = run
        self.listeners = listeners
        self._live = live
        self._graph = graph
        self._clock = clock
        self._lock = threading.Lock()
        self._totals = RunMetrics()
        self._epochs: deque[EpochMetrics] = deque(maxlen=REMEMBERED_EPOCHS)
        self._failures: deque[FailedCheckpoint] = deque(maxlen=REMEMBERED_FAILURES)
        self._savepoints: deque[SavepointReport] = deque(maxlen=REMEMBERED_FAILURES)
        self._keeps_subtasks_open = keeps_subtasks_open
        self._subtask_reports: dict[TaskId, Mapping[str, ReportValue]] = {}
        self._migrated: set[tuple[str, str, bool]] = set()
        self._ended_ms: int | None = None
        self._error: BaseException | None = None
        self._latest = LiveMetrics()
        self._last: LiveMetrics | None = None
        self._sizes_of_newest: tuple[CheckpointMetadata, CheckpointSizes] | None = None

    @property
    def epochs(self) -> Sequence[EpochMetrics]:
        """The last epochs, oldest first."""
        with self._lock:
            return tuple(self._epochs)

    @property
    def totals(self) -> RunMetrics:
        """Sums over all epochs."""
        return self._totals

    @property
    def subtask_reports(self) -> Sequence[SubtaskReport]:
        """The restores that subtasks reported."""
        with self._lock:
            return tuple((task.operator_uid, report) for task, report in self._subtask_reports.items())

    def restore_report(self) -> RestoreReport:
        """Return the report of each restored state; complete after the first epoch."""
        return restore_report_of(self._live_now().schema_reports, self.subtask_reports)

    def started(self) -> None:
        """The run starts; the compatibility results of its restored state are known."""
        self.listeners.call(lambda listener: listener.started(JobStarted(self.run, self)))
        states = self._restored()
        if states:
            self.listeners.call(lambda listener: listener.restored(StateRestored(self.run, states)))

    def epoch_completed(
        self,
        epoch_id: int,
        acknowledgements: Sequence[Acknowledgement],
        cost: CheckpointCost,
        *,
        subtasks: Mapping[TaskId, SubtaskMetrics] | None = None,
        sinks: Mapping[str, SinkMetrics] | None = None,
    ) -> EpochMetrics:
        """An epoch and its checkpoint are complete; see `metrics_of_epoch`."""
        lags = (one.lag_ms for one in self._live_now().time.values() if one.lag_ms is not None)
        epoch = metrics_of_epoch(
            epoch_id,
            acknowledgements,
            evolve(cost, ended_ms=self._clock()),
            subtasks=subtasks,
            sinks=sinks,
            watermark_lag_ms=max(lags, default=None),
        )
        if sinks is None and self._graph is not None:
            epoch = evolve(epoch, sinks=sinks_of(self._graph, epoch.operators))
        with self._lock:
            has_news = self._keeps_subtasks_open or self._totals.epochs == 0
            self._totals = self._totals.followed_by(epoch)
            self._epochs.append(epoch)
            if has_news:
                self._subtask_reports.update({one.task: one.report for one in acknowledgements if one.report})
        if has_news and self._subtask_reports:
            self._report_migrations()
        completed = CheckpointCompleted(self.run, epoch_id, epoch.size_bytes, epoch.bytes_written, epoch.checkpoint_s)
        self.listeners.call(lambda listener: listener.checkpoint_completed(completed))
        self.listeners.call(lambda listener: listener.epoch_completed(EpochCompleted(self.run, epoch)))
        return epoch

    def checkpoint_failed(self, checkpoint_id: int | None, reason: str) -> None:
        """A checkpoint failed."""
        failed = FailedCheckpoint(
            checkpoint_id=checkpoint_id, reason=cut(one_line(reason), TEXT_CHARACTERS), at_ms=self._clock()
        )
        with self._lock:
            self._failures.append(failed)
            self._totals = evolve(self._totals, failed_checkpoints=self._totals.failed_checkpoints + 1)
        self.listeners.call(lambda listener: listener.checkpoint_failed(CheckpointFailed(self.run, failed)))

    def savepoint_written(self, report: SavepointReport) -> None:
        """A savepoint is complete."""
        with self._lock:
            self._savepoints.append(report)
            self._totals = evolve(self._totals, savepoints=self._totals.savepoints + 1)
        self.listeners.call(lambda listener: listener.savepoint_written(SavepointWritten(self.run, report)))

    def progress(self, progress: Progress) -> None:
        """A restore, a migration or a savepoint progresses."""
        self.listeners.progress(progress)

    def terminated(self, error: BaseException | None) -> None:
        """The run has ended; only the first call counts."""
        try:
            last = self._live_now()
        except Exception:
            # The run may end because it could not start. Do not hide its own error.
            _log.warning("the last metrics of the run of %s cannot be read", self.run.job_name, exc_info=True)
            last = self._latest
        with self._lock:
            if self._ended_ms is not None:
                return
            self._ended_ms, self._error, self._last = self._clock(), error, last
            # Metrics of a run that has ended must not keep the run alive.
            self._live = lambda: last
        self.listeners.call(lambda listener: listener.terminated(JobTerminated(self.run, error)))

    def metrics(self) -> JobMetrics:
        """Return the metrics at this moment, as a copy."""
        live = self._live_now()
        newest = None if live.newest is None else self._sizes_of(live.newest)
        restored = self._restored()
        with self._lock:
            return JobMetrics(
                run=self.run,
                at_ms=self._clock(),
                ended_ms=self._ended_ms,
                failure=None if self._error is None else cut(describe_exception(self._error), TEXT_CHARACTERS),
                totals=self._totals,
                epochs=tuple(self._epochs),
                failures=tuple(self._failures),
                savepoints=tuple(self._savepoints),
                restored=restored,
                newest_checkpoint=newest,
                time=dict(live.time),
                barriers=dict(live.barriers),
            )

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a report for people: one HTML file with plots and tables. Raises `OSError`."""
        write_page(path, job_page(self.metrics()))

    def _live_now(self) -> LiveMetrics:
        if self._last is not None:
            return self._last
        for _ in range(_READINGS):
            # Another thread may change a mapping while it is copied; Python then raises RuntimeError.
            with suppress(RuntimeError):
                self._latest = self._live()
                break
        return self._latest

    def _report_migrations(self) -> None:
        for state in self._restored():
            name = state.operator_uid, state.state_name, state.is_operator_state
            if state.entries_migrated and name not in self._migrated:
                self._migrated.add(name)
                self.listeners.call(methodcaller("migrated", StateMigrated(self.run, state)))

    def _sizes_of(self, metadata: CheckpointMetadata) -> CheckpointSizes:
        known = self._sizes_of_newest
        if known is None or known[0] is not metadata:
            known = self._sizes_of_newest = metadata, checkpoint_sizes(metadata)
        return known[1]

    def _restored(self) -> tuple[RestoredStateMetrics, ...]:
        return tuple(
            RestoredStateMetrics(
                operator_uid=one.operator_uid,
                state_name=one.state_name,
                compatibility=one.compatibility.kind.label,
                issues=tuple(map(str, one.compatibility.issues)),
                entries_migrated=one.entries_migrated,
                duration_s=one.duration_s,
                is_operator_state=one.is_operator_state,
            )
            for one in self.restore_report()
        )


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


SubtaskReport = tuple[str, Mapping[str, ReportValue]]
"""The uid of an operator, and the restores that one of its subtasks reported
(`statebackend.streaming.metrics`)."""


@frozen
class RestoredStateReport:
    """One restored state: the compatibility result, and the migration over all subtasks.

    ``duration_s`` is that of the slowest subtask. ``is_operator_state`` is False for keyed state.
    """

    operator_uid: str
    compatibility: StateCompatibility
    entries_migrated: int
    duration_s: float
    is_operator_state: bool = False

    @property
    def state_name(self) -> str:
        """The name of the state."""
        return self.compatibility.state_name

    def issues(self, *rules: str) -> tuple[CompatibilityIssue, ...]:
        """The issues of these rules, such as ``field-renamed``."""
        return tuple(issue for issue in self.compatibility.issues if issue.rule in rules)

    @property
    def lost(self) -> tuple[CompatibilityIssue, ...]:
        """The data that the upgrade drops."""
        return tuple(issue for issue in self.compatibility.issues if issue.compatibility is FieldCompatibility.LOSSY)

    def __str__(self) -> str:
        migrated = f"{counted(self.entries_migrated, 'entry', 'entries')} migrated in {self.duration_s:.1f} s"
        return f"operator {self.operator_uid!r}, {self.compatibility}\n  {migrated}"


class RestoreReport(tuple[RestoredStateReport, ...]):
    """The reports of all restored states; as text, one after the other."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no state was restored"

    def _repr_html_(self) -> str:
        rows = (
            (*row, f"{one.entries_migrated:,}" if one.entries_migrated else None)
            for one in self
            for row in compatibility_rows(one.operator_uid, (one.compatibility,))
        )
        title = f"{counted(len(self), 'state')} restored" if self else "no state was restored"
        return table_fragment(title, (*COMPATIBILITY_COLUMNS, "entries migrated"), rows)


def restore_report_of(schema_reports: Mapping[str, SchemaReport], subtasks: Iterable[SubtaskReport]) -> RestoreReport:
    """Return the report of each restored state, from the compatibility results and the reports of subtasks so far."""
    measured: dict[str, list[Mapping[str, ReportValue]]] = {}
    for uid, report in subtasks:
        measured.setdefault(uid, []).append(report)
    reports: list[RestoredStateReport] = []
    for uid, schema_report in schema_reports.items():
        ours = measured.get(uid, [])
        reports += [_restored_state(uid, compatibility, ours, False) for compatibility in schema_report.compatibilities]
        reports += [
            _restored_state(uid, compatibility, ours, True)
            for compatibility in schema_report.operator_state_compatibilities
        ]
    return RestoreReport(reports)


def _restored_state(
    uid: str, compatibility: StateCompatibility, measured: Sequence[Mapping[str, ReportValue]], is_operator_state: bool
) -> RestoredStateReport:
    measure = restore_metrics(measured, compatibility.state_name, is_operator_state=is_operator_state)
    return RestoredStateReport(uid, compatibility, measure.entries_migrated, measure.duration_s, is_operator_state)
