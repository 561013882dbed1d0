"""The epochs of a run on the driver: the work of Spark for each, as the table of `statebackend.spark.epochs` decides.

Spark calls `EpochDriver.run` with each micro-batch (``foreachBatch``) and commits the batch when the call returns.
Other threads start no-data epochs (`statebackend.spark.no_data_epochs`). One epoch runs at a time. `EpochRunner` passes
events to the table and carries out its actions by an `EpochRuntime`, here a `SparkEpoch`; `SparkRun` holds what lasts
from epoch to epoch. The first error fails the run: acknowledged state is discarded, the sinks abort, and no epoch
follows. Errors of this cleanup are suppressed. A no-data epoch that a crash interrupted is processed again first.

* **Watermarks** (`EpochWatermarks`): what the tasks of an epoch report determines those of the next epoch. They are an
  immutable value in the checkpoint, so an epoch that fails changes nothing.
* **Timeout** (`EpochWatchdog`): Spark runs all jobs of a query in one job group. The watchdog cancels the group
  repeatedly, because the epoch may be planning its next job. Spark then kills the Python workers after some seconds. It
  cannot interrupt the sink's own code on the driver; such an epoch fails when that returns.
* **Processing time**: one for all tasks of an epoch, and the same in a replay, because TTL depends on it. It is the
  batch time that Spark writes to its offset log before the batch runs, and that ``current_timestamp()`` shows:

      offsets/<batch>:   v1
                         {"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{...}}
                         <one line for each source>

  Spark does not sync this file; `make_offsets_durable` does, before the first task runs. A no-data epoch takes the
  clock, and writes the time to a file of the job first (`statebackend.checkpoint.store.job_files`).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol

from attrs import field, frozen
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from migration import LIBRARY_RULES, EvolutionRules
from snapshots.errors import format_value
from snapshots.loggers import logger_of
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.checkpoint_coordinator import CheckpointCoordinator
from statebackend.checkpoint.coordinator.pending_checkpoint import CompletedCheckpoint
from statebackend.checkpoint.errors import CheckpointError, LeadershipLostError, StorageError, fix_of
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.local_storage import sync_directory
from statebackend.checkpoint.fs.retries import monotonic_ms
from statebackend.checkpoint.ha.leadership import Leadership, loss_caused_by, root_cause
from statebackend.checkpoint.handle_records import KnownFiles
from statebackend.checkpoint.metadata import (
    CheckpointMetadata,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    WatermarkState,
)
from statebackend.checkpoint.state_handles import SubtaskState, files_by_path
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import JobIdentity
from statebackend.checkpoint.store.job_files import (
    OpenNoDataEpoch,
    end_no_data_epoch,
    read_no_data_epoch,
    write_no_data_epoch,
)
from statebackend.savepoint.restored_state import RestoredState
from statebackend.spark.epochs import (
    AbortSink,
    Acknowledged,
    ActionReturned,
    AllIn,
    BatchArrived,
    Commit,
    CommitAgain,
    Committed,
    Discard,
    DurableEpoch,
    Epoch,
    Epochs,
    EpochState,
    EpochWatermarks,
    Failed,
    Open,
    Reject,
    RunAction,
    Store,
    Stored,
    TimePassed,
    Triggered,
    too_late,
)
from statebackend.spark.frame_sinks import stage_epoch
from statebackend.spark.plans.pipeline import Pipeline
from statebackend.spark.plans.placement import SubtaskPlacement
from statebackend.spark.savepoints import python_cause
from statebackend.spark.session import configure_query, is_speculative, were_tasks_repeated
from statebackend.spark.sources.progress import read_offsets
from statebackend.spark.tasks.channels import AcknowledgementChannel, ProgressChannel, ProgressSender
from statebackend.spark.tasks.epoch_task import EpochTask, OperatorTask, RunBroadcast
from statebackend.state.clock import Clock, wall_clock
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.errors import EpochError, EpochTimeoutError, SourceProgressMismatchError, describe_exception
from statebackend.streaming.metrics import CheckpointCost, ObservedRun, slowest_s, time_metrics
from statebackend.streaming.observing.job_events import JobListeners
from statebackend.streaming.observing.job_recorder import JobRecorder, LiveMetrics
from statebackend.streaming.operators.async_wait import STATE_NAME
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.runtime.checkpoint_writing import store_checkpoint
from statebackend.streaming.runtime.event_time import not_before
from statebackend.streaming.runtime.job_sinks import JobSinks, StagedEpoch, encode_committables
from statebackend.streaming.runtime.local_state_root import LocalStateRoot
from statebackend.streaming.runtime.restore_plan import (
    RESTORE_PLANS_DIRECTORY,
    RestorePlanSection,
    SubtaskRestore,
    restores_by_subtask,
    write_restore_plan,
)
from statebackend.streaming.runtime.subtask import OperatorEpoch, OperatorParts
from statebackend.streaming.runtime.worker_functions import check_broadcast_copies
from statebackend.streaming.sink import Sink, SinkEpoch, SinkLineage
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP

__all__ = [
    "EpochDriver",
    "EpochRunner",
    "EpochRuntime",
    "EpochWatchdog",
    "SparkEpoch",
    "SparkRun",
    "cancel_until",
    "is_output_pending",
    "make_offsets_durable",
    "processing_time_of_epoch_ms",
]


@frozen(kw_only=True)
class JobParts:
    """The parts of a running job. ``schema_reports`` are the compatibility results of the restored state by uid."""

    identity: JobIdentity
    run_id: str
    pipeline: Pipeline
    sinks: JobSinks
    backend: StateBackend
    parallelism: int
    file_system: CheckpointFileSystem
    driver_files: CheckpointFileSystem
    leadership: Leadership
    store: CompletedCheckpointStore
    spark_checkpoint_directory: str
    local_root: LocalStateRoot
    sources: tuple[ReadSource, ...]
    restored_from: SavepointIdentity | None = None
    metrics: StateMetricsConfig | None = None
    rules: EvolutionRules = LIBRARY_RULES
    epoch_timeout_s: float | None = None
    schema_reports: Mapping[str, SchemaReport] = field(factory=dict)
    listeners: JobListeners = field(factory=JobListeners)


def operator_tasks(parts: JobParts) -> Sequence[OperatorTask]:
    """What workers get for each operator of the job."""
    return [
        OperatorTask(
            parts=OperatorParts(
                job_id=parts.identity.job_id,
                run_id=parts.run_id,
                operator_uid=operator.uid,
                operator_factory=operator_factory(operator.node.function),
                side_outputs=tuple(operator.layout.side_outputs),
                key_serializer=operator.key_serializer,
                parallelism=parts.parallelism,
                max_parallelism=parts.identity.max_parallelism,
                backend=parts.backend,
                planned=operator.states.planned,
                planned_operator_state=operator.states.planned_operator_state,
                input_schemas=operator.states.input_schemas,
                file_system=parts.file_system,
                metrics=parts.metrics,
                rules=parts.rules,
            ),
            function_pickle=operator.function_pickle,
            inputs=operator.inputs,
            outputs=operator.layout.to_arrow(),
            local_root=parts.local_root,
        )
        for operator in parts.pipeline.operators.values()
    ]


class EpochRuntime(Protocol):
    """The work of a runtime for an epoch. Any error fails the epoch."""

    @property
    def committing(self) -> AbstractContextManager[Any]:
        """The lock from the storing of a checkpoint until its epoch is committed."""

    def begin(self, epoch: Epoch) -> Collection[TaskId]:
        """Prepare the epoch; return its tasks, none in a job without state."""

    def run(self, epoch: Epoch) -> Iterable[Acknowledgement]:
        """Run the action to its end; return the acknowledgements of the tasks."""

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        """Store the checkpoint: from here on the epoch is durable."""

    def commit(self, epoch: Epoch) -> None:
        """Make the output of the epoch visible."""

    def commit_again(self, checkpoint_id: int) -> None:
        """Commit the output of an earlier epoch again, in case a crash prevented it."""

    def abort(self, epoch: Epoch) -> None:
        """Let the sinks remove what they staged for the epoch."""

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        """Delete the files of abandoned state that are not in use."""


class EpochRunner:
    """Passes events to `Epochs` and carries out its actions by a runtime. ``now_ms`` is a monotonic clock."""

    def __init__(self, epochs: Epochs, runtime: EpochRuntime, now_ms: Callable[[], int]) -> None:
        self._epochs = epochs
        self._runtime = runtime
        self._now_ms = now_ms

    def run(self, cause: BatchArrived | TimePassed) -> Epoch | None:
        """Run the epoch of a batch, or a no-data epoch.

        Returns:
            The epoch if it is durable now, None for a batch that was completed before.

        Raises:
            EpochError: The batch is rejected. Any error of the runtime passes through.
            SourceProgressMismatchError: The batch does not follow the last epoch.
        """
        before = self._epochs.last
        try:
            self._take(cause)
        except BaseException as error:
            if not self._epochs.is_over:
                with contextlib.suppress(Exception):
                    self._take(Failed(f"{type(error).__name__}: {error}"))
            raise
        last = self._epochs.last
        return None if last is before or last is None else Epoch(last.checkpoint_id, last.batch_id, last.offsets)

    def _take(self, event: object) -> None:
        for action in self._epochs.handle(event):
            self._PERFORMERS[type(action)](self, action)

    def _open(self, action: Open) -> None:
        self._take(Triggered(self._runtime.begin(action.epoch), self._now_ms()))

    def _run_action(self, action: RunAction) -> None:
        acknowledgements = self._runtime.run(action.epoch)
        self._take(ActionReturned())
        for acknowledgement in acknowledgements:
            self._take(Acknowledged(acknowledgement))
        self._take(AllIn(self._now_ms()))

    def _store(self, action: Store) -> None:
        check_broadcast_copies(action.completed)
        with self._runtime.committing:
            self._runtime.store(action.epoch, action.completed)
            self._take(Stored())

    def _commit(self, action: Commit) -> None:
        self._runtime.commit(action.epoch)
        self._take(Committed())

    def _commit_again(self, action: CommitAgain) -> None:
        self._runtime.commit_again(action.checkpoint_id)
        self._take(Committed())

    def _discard(self, action: Discard) -> None:
        # The first error matters more than an error of the cleanup. The store finds files that stay as orphans.
        if action.states:
            with contextlib.suppress(Exception):
                self._runtime.discard(action.states, action.in_use)

    def _abort_sink(self, action: AbortSink) -> None:
        # The sink cleans up at the next start of the job.
        with contextlib.suppress(Exception):
            self._runtime.abort(action.epoch)

    def _reject(self, action: Reject) -> None:
        raise action.error

    _PERFORMERS: Final[Mapping[type, Callable[[EpochRunner, Any], None]]] = {
        Open: _open,
        RunAction: _run_action,
        Store: _store,
        Commit: _commit,
        CommitAgain: _commit_again,
        Discard: _discard,
        AbortSink: _abort_sink,
        Reject: _reject,
    }


_AGAIN_S: Final = 1.0
"""Seconds between two cancellations."""


def cancel_until(cancel: Callable[[], object], is_over: Callable[[float], bool]) -> None:
    """Call ``cancel`` repeatedly until ``is_over(seconds)``, which waits that long, returns True."""
    while True:
        cancel()
        if is_over(_AGAIN_S):
            return


_JOB_GROUP: Final = "spark.jobGroup.id"

_logger = logger_of(__name__)


class EpochWatchdog:
    """Cancels the Spark jobs of an action that exceeds the timeout; a context on the thread of the action."""

    def __init__(self, context: SparkContext, epoch_id: int, timeout_s: float | None) -> None:
        self.has_expired = False
        """Whether the epoch exceeded the timeout."""
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
        # After the epoch, the jobs of the group are those of the next one.
        with self._lock:
            if not self._over.is_set():
                self._context.cancelJobGroup(group)


def processing_time_of_epoch_ms(offsets: bytes, previous_ms: int | None) -> int:
    """Return the processing time of the epoch with these offsets, in ms since 1970.

    Args:
        offsets: The content of Spark's offsets file of the batch.
        previous_ms: The processing time of the checkpoint or savepoint before.

    Raises:
        SourceProgressMismatchError: The offsets contain no batch time.
    """
    lines = offsets.decode("utf-8", "replace").split("\n")
    try:
        batch_ms = json.loads(lines[1])["batchTimestampMs"]
    except (IndexError, ValueError, KeyError, TypeError):
        batch_ms = None
    if not isinstance(batch_ms, int) or isinstance(batch_ms, bool):
        raise SourceProgressMismatchError(
            f"Spark's offsets of this epoch contain no time of the batch: {format_value(offsets, 200)}. Restore the "
            f"file from a backup, or start from a savepoint in a new job directory"
        )
    return not_before(batch_ms, previous_ms)


def make_offsets_durable(spark_checkpoint_directory: str, epoch_id: int) -> None:
    """Sync `offsets/<epoch_id>`: its time and offsets must be durable before the epoch runs."""
    directory = os.path.join(spark_checkpoint_directory, "offsets")
    path = os.path.join(directory, str(epoch_id))
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(directory)
    except OSError as error:
        fix = fix_of(str(error))
        raise StorageError(f"cannot sync {path}: {error}{f'. {fix}' if fix else ''}") from error


def _newest_digest(store: CompletedCheckpointStore) -> str | None:
    """The digest of the newest checkpoint, the parent of the next one; None without a checkpoint."""
    newest = store.latest()
    return None if newest is None else store.digest(newest.checkpoint_id)


def is_output_pending(file_system: CheckpointFileSystem, newest: CheckpointMetadata) -> bool:
    """Whether the newest checkpoint is of a no-data epoch whose output may not be committed."""
    opened = read_no_data_epoch(file_system)
    return opened is not None and opened.is_epoch_of(newest)


class SparkRun:
    """What lasts from epoch to epoch of a run: the state to continue from, and the broadcast of the workers."""

    def __init__(self, parts: JobParts, restored: RestoredState | None, spark_context: SparkContext) -> None:
        self.parts = parts
        self.restored = restored
        """The state of the epoch before: of this run, or of the state that it started from."""
        self.restore: Mapping[str, Sequence[SubtaskRestore | SubtaskState]] = first_restore(parts, restored)
        """What the subtasks restore in the next epoch, by operator uid; operators without state are left out."""
        self.watermarks = self._first_watermarks(None if restored is None else restored.metadata.watermarks)
        """The watermarks of the next epoch."""
        self.broadcast = RunBroadcast(spark_context, parts.run_id, operator_tasks(parts))
        self.placement = SubtaskPlacement(parts.parallelism)
        self.acknowledgements = AcknowledgementChannel(spark_context)
        self.committing = threading.RLock()
        """Held from the storing of a checkpoint until the output of its epoch is committed."""
        self.has_requests_to_send = restored is not None and any(
            one.processing_time_ms is not None and STATE_NAME in operator.states.planned_operator_state
            for one in restored.metadata.timers_due
            if (operator := parts.pipeline.operators.get(one.operator_uid)) is not None
        )
        """Whether the run restores requests in flight, and no epoch has sent them again."""

    @property
    def processing_time_ms(self) -> int | None:
        """The processing time of the epoch before, the least of the next one; None if there was none."""
        return None if self.restored is None else self.restored.metadata.processing_time_ms

    def next_no_data_epoch_ms(self) -> int | None:
        """Return the processing time from which a no-data epoch has something to do; None if there is none."""
        if self.has_requests_to_send:
            return MIN_TIMESTAMP
        timers = () if self.restored is None else self.restored.metadata.timers_due
        # The state may have timers of operators that the program no longer has.
        return self.watermarks.next_epoch_ms(
            [one for one in timers if one.operator_uid in self.parts.pipeline.operators]
        )

    def forget_source_progress(self) -> None:
        """Restart event time, because the sources are read from their beginning."""
        self.watermarks = self._first_watermarks(None)

    def _first_watermarks(self, known: WatermarkState | None) -> EpochWatermarks:
        # Idleness is measured in the processing time of epochs, which never goes back.
        now_ms = not_before(wall_clock(), self.processing_time_ms)
        return EpochWatermarks(self.parts.pipeline.time.event_time, known, now_ms)

    def close(self) -> None:
        """Remove the broadcast of the run from the workers. No epoch may follow. May be called again."""
        self.broadcast.destroy()
        self.placement.close()


def first_restore(
    parts: JobParts, restored: RestoredState | None
) -> Mapping[str, Sequence[SubtaskRestore | SubtaskState]]:
    """Return what the subtasks restore in the first epoch of a run, by operator uid."""
    if restored is None:
        return {}
    return {
        uid: restores_by_subtask(restored, uid, parts.parallelism)
        for uid in parts.pipeline.operators
        if restored.operator(uid) is not None
    }


class SparkEpoch:
    """One epoch over the frame of its micro-batch, or over an empty one; an `EpochRuntime`."""

    def __init__(self, run: SparkRun, frame: DataFrame, progress: ProgressSender) -> None:
        self.action_s = 0.0
        self.store_s = 0.0
        self._progress = progress
        self._run = run
        self._watermarks = run.watermarks
        self._parts = run.parts
        self._frame = frame
        self._processing_time_ms = 0
        self._tasks: Mapping[str, EpochTask] = {}
        self._committables: Mapping[str, bytes] = {}
        self._metadata: CheckpointMetadata | None = None

    @property
    def committing(self) -> threading.RLock:
        """The lock from the storing of a checkpoint until its epoch is committed."""
        return self._run.committing

    def begin(self, epoch: Epoch) -> Sequence[TaskId]:
        """Determine the processing time of the epoch, and write the restore plan."""
        # A driver that lost the leadership must not pass rows to a sink that shows them at once.
        self._parts.leadership.check()
        if epoch.time_passed is None:
            make_offsets_durable(self._parts.spark_checkpoint_directory, epoch.batch_id)
            self._processing_time_ms = processing_time_of_epoch_ms(epoch.offsets, self._run.processing_time_ms)
        else:
            self._begin_no_data_epoch(epoch.checkpoint_id, epoch.time_passed)
        self._tasks = self._planned_tasks(epoch)
        return [TaskId(uid, index) for uid in self._tasks for index in range(self._parts.parallelism)]

    def run(self, epoch: Epoch) -> Iterable[Acknowledgement]:
        """Run the actions of the sinks; raise `EpochError` with the cause of a failed task."""
        try:
            encoded = self._run_action(epoch)
        finally:
            # The next start of the job deletes what stays.
            with contextlib.suppress(CheckpointError):
                self._parts.file_system.delete(self._restore_plan_path(epoch))
        # Most files of the state are unchanged since the epoch before.
        restored = self._run.restored
        known_files = {} if restored is None else files_by_path(restored.metadata.operators)
        return self._decoded(epoch, encoded, known_files)

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        """Store the checkpoint, from which the next epoch continues."""
        parts = self._parts
        following = self._watermarks.after(completed.channel_timestamps, self._processing_time_ms)
        positions = SourcePositions(batch_id=epoch.batch_id, offsets=epoch.offsets, sources=parts.sources)
        started = time.monotonic()
        metadata = self._metadata = store_checkpoint(
            parts.store,
            parts.identity,
            completed,
            processing_time_ms=self._processing_time_ms,
            source_positions=positions,
            restored_from=parts.restored_from,
            sink_committables=self._committables,
            sink_identities=parts.sinks.identities,
            watermarks=following.state(),
        )
        self.store_s = time.monotonic() - started
        self._run.has_requests_to_send = False
        self._run.watermarks = following
        self._run.restored = RestoredState(metadata, parts.file_system)
        self._run.restore = {operator.uid: operator.subtasks for operator in completed.operators}

    def commit(self, epoch: Epoch) -> None:
        """Commit what the sinks staged, unless another driver leads the job now: it has committed that."""
        self._parts.leadership.check()
        assert self._metadata is not None
        self._parts.sinks.commit(self._metadata)
        if epoch.time_passed is not None:
            end_no_data_epoch(self._parts.driver_files)

    def commit_again(self, checkpoint_id: int) -> None:
        """Commit the output of the newest checkpoint, that of the replayed batch."""
        latest = self._parts.store.latest()
        if latest is not None:
            self._parts.sinks.commit_again(latest)

    def abort(self, epoch: Epoch) -> None:
        """Let the sinks remove the attempt of this run."""
        self._parts.sinks.abort(self._parts.identity.job_id, self._parts.run_id, epoch.checkpoint_id)

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        """Delete the files that are not in use."""
        self._parts.store.discard(states, in_use)

    def _begin_no_data_epoch(self, checkpoint_id: int, time_passed: TimePassed) -> None:
        self._processing_time_ms = time_passed.processing_time_ms
        if time_passed.is_drain:
            self._watermarks = self._watermarks.at_the_end()
        opened = OpenNoDataEpoch(
            checkpoint_id=checkpoint_id,
            parent_digest=_newest_digest(self._parts.store),
            processing_time_ms=time_passed.processing_time_ms,
            is_drain=time_passed.is_drain,
        )
        write_no_data_epoch(self._parts.driver_files, opened)

    def _decoded(self, epoch: Epoch, encoded: Sequence[bytes], known_files: KnownFiles) -> Iterator[Acknowledgement]:
        # One by one: the coordinator discards the files of what was yielded before an error.
        missing = set(self._tasks)
        for one in encoded:
            acknowledgement = Acknowledgement.decode(one, known_files)
            missing.discard(acknowledgement.operator_uid)
            yield acknowledgement
        if missing:
            raise EpochError(
                f"epoch {epoch.checkpoint_id}: operator {min(missing)!r} sent no acknowledgement: the step or sink "
                f"after it did not compute its rows"
            )

    def _planned_tasks(self, epoch: Epoch) -> Mapping[str, EpochTask]:
        """Return the task of each operator; write the restore plan that they read."""
        restored, restore = self._run.restored, self._run.restore
        sections: Mapping[str, RestorePlanSection] = {}
        if restore:
            sections = write_restore_plan(self._parts.file_system, self._restore_plan_path(epoch), restore)
        return {
            uid: EpochTask(
                run_reference=self._run.broadcast.reference,
                operator_uid=uid,
                epoch=OperatorEpoch(
                    epoch_id=epoch.checkpoint_id,
                    processing_time_ms=self._processing_time_ms,
                    has_records=epoch.time_passed is None,
                    watermark_ms=self._watermarks.of(uid),
                    previous_watermark_ms=self._watermarks.before_of(uid),
                    is_idle=self._watermarks.is_idle(uid),
                ),
                restore=sections.get(uid),
                restored_from=restored.file_system if restored is not None else self._parts.file_system,
                acknowledgements=self._run.acknowledgements.sender,
                progress=self._progress,
            )
            for uid in self._parts.pipeline.operators
        }

    def _staged(self, uid: str, sink: Sink, frame: DataFrame, epoch_id: int) -> bytes:
        parts = self._parts
        lineage = SinkLineage(uid, parts.identity.job_id, parts.restored_from)
        committables = stage_epoch(sink, frame, SinkEpoch(lineage, epoch_id, parts.run_id))
        return encode_committables([StagedEpoch(epoch_id, parts.run_id, committables)])

    def _restore_plan_path(self, epoch: Epoch) -> str:
        return f"{RESTORE_PLANS_DIRECTORY}/{self._parts.run_id}-{epoch.checkpoint_id}"

    def _run_action(self, epoch: Epoch) -> Sequence[bytes]:
        parts, session, epoch_id = self._parts, self._frame.sparkSession, epoch.checkpoint_id
        # In every epoch: a step or sink of the user may have changed the session.
        configure_query(session)
        started = time.monotonic()
        watchdog = EpochWatchdog(session.sparkContext, epoch_id, parts.epoch_timeout_s)
        try:
            with watchdog:
                self._run.placement.prepare(session)
                built = parts.pipeline.build(
                    self._frame,
                    self._tasks,
                    self._run.placement,
                    self._processing_time_ms,
                    is_without_records=epoch.time_passed is not None,
                )
                with contextlib.closing(built) as plan:
                    self._committables = {
                        uid: self._staged(uid, sink, plan.frames[uid], epoch_id)
                        for uid, sink in parts.sinks.by_uid.items()
                    }
        except Exception as error:
            if watchdog.has_expired:
                raise EpochTimeoutError(too_late(epoch_id, f"{parts.epoch_timeout_s:g} s")) from error
            if isinstance(error, (PySparkException, Py4JJavaError)):
                raise EpochError(f"epoch {epoch_id} failed: {python_cause(error)}") from error
            raise
        self.action_s = time.monotonic() - started
        return self._run.acknowledgements.take(epoch_id)


_POLL_S: Final = 0.2


class EpochDriver:
    """One run of the job. ``empty_batch`` creates the frame of a no-data epoch.

    Any thread may call anything.
    """

    def __init__(
        self,
        parts: JobParts,
        restored: RestoredState | None,
        spark_context: SparkContext,
        empty_batch: Callable[[], DataFrame],
        clock: Clock = wall_clock,
    ) -> None:
        self.parts = parts
        self.clock = clock
        self._empty_batch = empty_batch
        latest = parts.store.latest()
        coordinator = CheckpointCoordinator(
            parts.identity.job_id,
            parts.run_id,
            timeout_ms=None if parts.epoch_timeout_s is None else max(1, round(parts.epoch_timeout_s * 1000)),
            max_parallelism=parts.identity.max_parallelism,
            operator_names={operator.uid: operator.node.name for operator in parts.pipeline.operators.values()},
            last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
        )
        self._epochs = Epochs(
            coordinator,
            None if restored is None else DurableEpoch.of(restored.metadata, is_own=latest is not None),
            source_log=parts.spark_checkpoint_directory,
            state_log=parts.file_system.location("checkpoints"),
            limit="" if parts.epoch_timeout_s is None else f"{parts.epoch_timeout_s:g} s",
        )
        self._run = SparkRun(parts, restored, spark_context)
        self._spark_context = spark_context
        self._is_speculative = is_speculative(spark_context)
        opened = read_no_data_epoch(parts.driver_files)
        # A crash has interrupted this no-data epoch; it is processed again before any other.
        self._open_epoch = opened if opened is not None and opened.follows(_newest_digest(parts.store)) else None
        self._running = threading.RLock()
        self.committing = self._run.committing
        """Held from the storing of a checkpoint until the output of its epoch is committed."""
        self.abandoned: str | None = None
        """The error message of the running epoch, if no query waits for it."""
        self._is_running = False
        self.failure: BaseException | None = None
        self._lost: LeadershipLostError | None = None
        self.is_closed = False
        self.has_batch_waiting = False
        """Whether a batch of Spark waits for the running epoch."""
        self.last_batch: tuple[int, int] | None = None
        """When the last epoch with a batch started and ended, by `monotonic_ms`, until it is read."""
        self.at_news: Callable[[], object] = lambda: None
        """Called when an epoch with a batch has ended or failed, and when the run is over."""
        self.recorder = JobRecorder(
            ObservedRun(
                job_name=parts.identity.job_name,
                job_id=parts.identity.job_id,
                run_id=parts.run_id,
                engine="spark",
                parallelism=parts.parallelism,
                max_parallelism=parts.identity.max_parallelism,
                started_ms=wall_clock(),
                restored_id=None if restored is None else restored.metadata.checkpoint_id,
            ),
            self._live_metrics,
            parts.listeners,
            keeps_subtasks_open=False,
            graph=parts.pipeline.graph,
        )
        """Records events and metrics of the run."""
        self.progress = ProgressChannel(spark_context, self.recorder.progress)
        """Receives the progress of tasks."""

    @property
    def last_epoch_id(self) -> int | None:
        """The last epoch whose effects are durable: of this run, or of the state that it started from."""
        return self._epochs.last_epoch_id

    @property
    def running_epoch_id(self) -> int | None:
        """The epoch that is running, or whose output is being committed again; None without one."""
        if not self._is_running:
            return None
        running_id, last_id = self._epochs.open_epoch_id, self.last_epoch_id
        return running_id if running_id is not None else 0 if last_id is None else last_id

    @property
    def is_stopping(self) -> bool:
        """Whether no further epoch starts."""
        return self._epochs.is_stopping

    def leadership_lost(self, lost: LeadershipLostError) -> None:
        """Make this the error of the run, rather than the errors that follow from it. The caller ends the query."""
        self._lost = lost
        if self.failure is None:
            self.failure = lost

    def query_failed(self, error: object) -> BaseException:
        """Return the error of a query that Spark has ended for ``error``, and make it the error of the run.

        If an epoch has failed, that error is returned. Waits for the running epoch. A job that is being stopped does
        not fail.
        """
        with self._running:
            failed = EpochError(f"the streaming query failed: {python_cause(error)}")
            if self.failure is None and not self.is_stopping:
                self.failure = root_cause(self.parts.leadership, failed)
            return self.failure or failed

    def request_stop(self) -> None:
        """Let no further epoch start; the running one continues."""
        self._epochs.request_stop()

    def forget_source_progress(self) -> None:
        """Count epochs from 0 again, for a job that restores the state of a savepoint but reads another source."""
        self._epochs.forget_source_progress()
        self._run.forget_source_progress()

    def watermarks(self) -> Mapping[str, int]:
        """Return the watermarks of sources and operators that have one, in milliseconds."""
        return self._run.watermarks.known()

    def close(self) -> None:
        """End the run and remove its broadcast from the workers. Waits for the running epoch. May be called again."""
        with self._running:
            self.is_closed = True
            self.recorder.terminated(self.failure)
            self._run.close()
            self.parts.sinks.close()
        self.at_news()

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Within the block only its own epochs start. Waits for the running epoch."""
        with self._running:
            yield

    def next_no_data_epoch_ms(self) -> int | None:
        """Return the processing time from which a no-data epoch has something to do; None if there is none.

        Call it within `exclusively`. Before the first batch there is no timer.
        """
        if self._epochs.is_stopping or self._epochs.is_over or self.is_closed or self.last_epoch_id is None:
            return None
        return self._run.next_no_data_epoch_ms() if self._open_epoch is None else MIN_TIMESTAMP

    def run(self, frame: DataFrame, batch_id: int) -> None:
        """Run the epoch of a batch unless it is durable already. Raises, and remembers, any error."""
        self.has_batch_waiting = True
        with self._running:
            self.has_batch_waiting = False
            began_ms = monotonic_ms()
            try:
                with self._remembering_failures(batch_id):
                    if not self._epochs.is_stopping:
                        self._process_again()
                    offsets = read_offsets(self.parts.spark_checkpoint_directory, batch_id)
                    self._run_one(frame, BatchArrived(batch_id, offsets))
            except (LeadershipLostError, EpochError) as error:
                if isinstance(self.failure, LeadershipLostError) and self.failure in (error, error.__cause__):
                    # Spark runs a regular expression over the text of an error while it ends a query, and its stack
                    # overflows at that of an interrupted action. `failure` keeps it.
                    raise type(error)(*error.args) from None
                raise
            finally:
                self.last_batch = began_ms, monotonic_ms()
                self.at_news()

    def run_no_data_epoch(self) -> None:
        """Run a no-data epoch at the time of the clock. Raises, and remembers, any error."""
        self._run_without_records(is_drain=False)

    def drain(self) -> None:
        """Run an epoch at the end of event time, unless there was no epoch yet. Raises, and remembers, any error."""
        if self.last_epoch_id is not None:
            self._run_without_records(is_drain=True)

    def _run_without_records(self, *, is_drain: bool) -> None:
        with self._running, self._remembering_failures((self.last_epoch_id or 0) + 1):
            was_open = self._process_again()
            if is_drain or not was_open:
                self._run_one(self._empty_batch(), self._time_passed(self.clock(), is_drain))

    def _process_again(self) -> bool:
        """Run the no-data epoch that an earlier run left open; return whether there was one."""
        opened, self._open_epoch = self._open_epoch, None
        if opened is None or self.last_epoch_id is None:
            return False
        self._run_one(self._empty_batch(), self._time_passed(opened.processing_time_ms, is_drain=False))
        return True

    def _time_passed(self, time_ms: int, is_drain: bool) -> TimePassed:
        return TimePassed(not_before(time_ms, self._run.processing_time_ms), is_drain)

    @contextlib.contextmanager
    def _remembering_failures(self, epoch_id: int) -> Iterator[None]:
        if self.failure is not None:
            raise EpochError(
                f"epoch {epoch_id} was not started: the job has failed in an earlier epoch"
            ) from self.failure
        self._is_running = True
        try:
            yield
        except Exception as error:
            if self._epochs.state is EpochState.STOPPED:
                # A stopped job has not failed.
                raise
            abandoned = None if self.abandoned is None else EpochTimeoutError(self.abandoned)
            if self._lost is not None:
                is_loss = isinstance(error, LeadershipLostError)
                self.failure = error if is_loss else loss_caused_by(error, self._lost)
            else:
                self.failure = abandoned or root_cause(self.parts.leadership, error)
            self._report_failed_checkpoint(self.failure)
            self.close()
            if self.failure is error:
                raise
            raise self.failure from self.failure.__cause__
        except BaseException as error:
            self.failure = error
            self._report_failed_checkpoint(error)
            self.close()
            # Py4J answers the JVM for exceptions only; without an answer Spark's thread would wait for ever.
            raise EpochError(f"epoch {epoch_id} was interrupted by {type(error).__name__}: {error}") from error
        finally:
            self._is_running = False

    def _report_failed_checkpoint(self, failure: BaseException) -> None:
        # A batch that is rejected has no checkpoint, and one whose output could not be committed has its own.
        failed_id = self._epochs.unstored_epoch_id
        if failed_id is not None:
            self.recorder.checkpoint_failed(failed_id, describe_exception(failure))

    def wait_until_idle(self, timeout_s: float | None, is_abandoned: Callable[[], bool]) -> bool:
        """Wait until no epoch is running, at most ``timeout_s`` or until it is abandoned; return whether none is."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if self._running.acquire(timeout=max(left, 0.0)):
                self._running.release()
                return True
            if is_abandoned() or (deadline is not None and time.monotonic() >= deadline):
                return False

    def _run_one(self, frame: DataFrame, cause: BatchArrived | TimePassed) -> None:
        started = time.monotonic()
        runtime = SparkEpoch(self._run, frame, self.progress.sender)
        runner = EpochRunner(self._epochs, runtime, monotonic_ms)
        epoch = runner.run(cause)
        if epoch is None:
            return
        acknowledgements = self._epochs.acknowledgements(epoch)
        attempt_ids = [acknowledgement.attempt_id for acknowledgement in acknowledgements.values()]
        if self._is_speculative or were_tasks_repeated(self._spark_context, attempt_ids):
            # Attempts that failed, or lost against another one, may have written files that no acknowledgement names.
            self.parts.store.delete_orphans(self._epochs.files_in_use())
        cost = CheckpointCost(
            duration_s=time.monotonic() - started,
            checkpoint_s=runtime.store_s + slowest_s(acknowledgements.values(), "snapshot_s"),
            action_s=runtime.action_s,
            has_batch=isinstance(cause, BatchArrived),
        )
        self.recorder.epoch_completed(epoch.checkpoint_id, list(acknowledgements.values()), cost)

    def _live_metrics(self) -> LiveMetrics:
        restored = self._run.restored
        newest = None if restored is None else restored.metadata
        watermarks = self._run.watermarks
        time = time_metrics(watermarks.names, watermarks.known(), self._run.processing_time_ms)
        return LiveMetrics(self.parts.schema_reports, newest, time)
