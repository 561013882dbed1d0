"""What Spark does for an epoch: the tasks of a micro-batch, the actions of the sinks, the checkpoint, the commit.

What comes next is decided by `streamjobs.runtime.epoch`. A `SparkRun` is what goes on from epoch to epoch of a run, a
`SparkEpoch` one epoch of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.pending_checkpoint import CompletedCheckpoint
from checkpointing.errors import CheckpointError
from checkpointing.handles.handle_records import KnownFiles
from checkpointing.handles.operator_states import files_by_path
from checkpointing.handles.state_handles import SubtaskState
from checkpointing.metadata.checkpoint_sections import WatermarkState
from checkpointing.storage.time_epoch_file import OpenTimeEpoch, end_time_epoch, write_time_epoch
from savepoints.restored_state import RestoredState
from statebackend.api.clock import wall_clock
from streamjobs.errors import EpochError, EpochTimeoutError
from streamjobs.runtime.checkpoint_writing import store_checkpoint
from streamjobs.runtime.epoch import too_late
from streamjobs.runtime.epoch_events import Epoch, TimePassed
from streamjobs.runtime.epoch_watermarks import EpochWatermarks
from streamjobs.runtime.processing_time import not_before
from streamjobs.runtime.restore_plan import SubtaskRestore, restores_by_subtask
from streamjobs.runtime.restore_plan_file import RESTORE_PLANS_DIRECTORY, RestorePlanSection, write_restore_plan
from streamjobs.spark.driver.epoch_time import make_offsets_durable, newest_digest, processing_time_of_epoch_ms
from streamjobs.spark.driver.epoch_watchdog import EpochWatchdog
from streamjobs.spark.driver.job_parts import JobParts, operator_tasks
from streamjobs.spark.driver.worker_errors import python_cause
from streamjobs.spark.plans.placement import SubtaskPlacement
from streamjobs.spark.session import keep_adaptive_disabled
from streamjobs.spark.tasks.acknowledgement_channel import AcknowledgementChannel
from streamjobs.spark.tasks.epoch_task import EpochTask
from streamjobs.spark.tasks.progress_channel import ProgressSender
from streamjobs.spark.tasks.run_broadcast import RunBroadcast

__all__ = ["SparkEpoch", "SparkRun"]


class SparkRun:
    """What one run of a job carries from epoch to epoch: the state to go on from, and what the workers were sent."""

    def __init__(self, parts: JobParts, restored: RestoredState | None, spark_context: SparkContext) -> None:
        self.parts = parts
        self.restored = restored
        """The state of the epoch before: of this run, or of what it continues from."""
        self.restore: Mapping[str, Sequence[SubtaskRestore | SubtaskState]] = first_restore(parts, restored)
        """What the subtasks restore in the next epoch, by operator; none for one without state."""
        self.watermarks = self._begun_watermarks(None if restored is None else restored.metadata.watermarks)
        """Those of the epoch that comes next."""
        self.broadcast = RunBroadcast(spark_context, parts.run_id, operator_tasks(parts))
        self.placement = SubtaskPlacement(parts.parallelism)
        self.acknowledgements = AcknowledgementChannel(spark_context)
        self.committing = threading.RLock()
        """Held from the storing of a checkpoint until the output of its epoch is committed."""

    @property
    def processing_time_ms(self) -> int | None:
        """That of the epoch before, which the next one is not earlier than; None if there was none."""
        return None if self.restored is None else self.restored.metadata.processing_time_ms

    def next_time_epoch_ms(self) -> int | None:
        """The processing time from which an epoch without records has something to do; None if none ever has."""
        timers = () if self.restored is None else self.restored.metadata.timers_due
        # Another program may have left timers of operators that are no more.
        return self.watermarks.next_epoch_ms(
            [one for one in timers if one.operator_uid in self.parts.pipeline.operators]
        )

    def forget_source_progress(self) -> None:
        """Lets event time begin anew, with sources that begin anew."""
        self.watermarks = self._begun_watermarks(None)

    def _begun_watermarks(self, known: WatermarkState | None) -> EpochWatermarks:
        # Silence counts in the time of epochs, which a clock that was set back does not take back.
        now_ms = not_before(wall_clock(), self.processing_time_ms)
        return EpochWatermarks(self.parts.pipeline.time.event_time, known, now_ms)

    def close(self) -> None:
        """Takes back what went out to the workers for this run, which begins no epoch any more; may be called again."""
        self.broadcast.destroy()
        self.placement.close()


def first_restore(
    parts: JobParts, restored: RestoredState | None
) -> Mapping[str, Sequence[SubtaskRestore | SubtaskState]]:
    """What the subtasks restore in the first epoch of a run."""
    if restored is None:
        return {}
    return {
        uid: restores_by_subtask(
            operator,
            restored.file_system,
            parts.parallelism,
            parts.identity.max_parallelism,
            is_same_run=False,
        )
        for uid in parts.pipeline.operators
        if (operator := restored.operator(uid)) is not None
    }


class SparkEpoch:
    """One epoch over the frame of its micro-batch, or over one without rows; an `EpochRim`."""

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

    @property
    def committing(self) -> threading.RLock:
        """See `SparkRun`."""
        return self._run.committing

    def begin(self, epoch: Epoch) -> Sequence[TaskId]:
        """Fixes the time of the epoch, and writes down what its tasks restore."""
        # Whoever does not lead any more might still hand rows to a sink that shows them at once.
        self._parts.leadership.check()
        if epoch.time_passed is None:
            make_offsets_durable(self._parts.spark_checkpoint_directory, epoch.batch_id)
            self._processing_time_ms = processing_time_of_epoch_ms(epoch.offsets, self._run.processing_time_ms)
        else:
            self._begin_time_epoch(epoch.checkpoint_id, epoch.time_passed)
        self._tasks = self._planned_tasks(epoch)
        return [TaskId(uid, index) for uid in self._tasks for index in range(self._parts.parallelism)]

    def run(self, epoch: Epoch) -> Iterable[Acknowledgement]:
        """Runs the actions of the sinks; raises `EpochError` with the cause of what fails in a task."""
        try:
            encoded = self._run_action(epoch)
        finally:
            # What cannot be removed now is removed when the job is started again.
            with contextlib.suppress(CheckpointError):
                self._parts.file_system.delete(self._restore_plan_path(epoch))
        # Most files of the state are those of the epoch before.
        restored = self._run.restored
        known_files = {} if restored is None else files_by_path(restored.metadata.operators)
        return self._decoded(epoch, encoded, known_files)

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        """Stores the checkpoint, which the next epoch goes on from."""
        parts = self._parts
        following = self._watermarks.after(completed.channel_timestamps, self._processing_time_ms)
        started = time.monotonic()
        metadata = store_checkpoint(
            parts.store,
            parts.identity,
            epoch,
            completed,
            processing_time_ms=self._processing_time_ms,
            sources=parts.sources,
            restored_from=parts.restored_from,
            sink_committables=self._committables,
            sink_identities=parts.sinks.identities,
            watermarks=following.state(),
        )
        self.store_s = time.monotonic() - started
        self._run.watermarks = following
        self._run.restored = RestoredState(metadata, parts.file_system)
        self._run.restore = {operator.uid: operator.subtasks for operator in completed.operators}

    def commit(self, epoch: Epoch) -> None:
        """Commits what the sinks staged, unless another driver leads now, which has done it then."""
        self._parts.leadership.check()
        self._parts.sinks.commit(epoch.checkpoint_id, self._committables)
        if epoch.time_passed is not None:
            end_time_epoch(self._parts.driver_files)

    def commit_again(self, checkpoint_id: int) -> None:
        """Commits the newest checkpoint's output, which is that of the replayed batch."""
        latest = self._parts.store.latest()
        if latest is not None:
            self._parts.sinks.commit_again(latest)

    def abort(self, epoch: Epoch) -> None:
        """Lets the sinks forget this run's attempt."""
        self._parts.sinks.abort(epoch.checkpoint_id, self._parts.attempt_id)

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        """Deletes what nobody else needs."""
        self._parts.store.discard(states, in_use)

    def _begin_time_epoch(self, checkpoint_id: int, time_passed: TimePassed) -> None:
        self._processing_time_ms = time_passed.processing_time_ms
        if time_passed.is_drain:
            self._watermarks = self._watermarks.at_the_end()
        opened = OpenTimeEpoch(
            checkpoint_id=checkpoint_id,
            parent_digest=newest_digest(self._parts.store),
            processing_time_ms=time_passed.processing_time_ms,
            is_drain=time_passed.is_drain,
        )
        write_time_epoch(self._parts.driver_files, opened)

    def _decoded(self, epoch: Epoch, encoded: Sequence[bytes], known_files: KnownFiles) -> Iterator[Acknowledgement]:
        # One by one: what was given out before an error is known to the coordinator, which gives up its files.
        unheard = set(self._tasks)
        for one in encoded:
            acknowledgement = Acknowledgement.decode(one, known_files)
            unheard.discard(acknowledgement.operator_uid)
            yield acknowledgement
        if unheard:
            raise EpochError(
                f"epoch {epoch.checkpoint_id}: no acknowledgement of operator {min(unheard)!r} came: the step or sink "
                f"behind it did not compute its rows"
            )

    def _planned_tasks(self, epoch: Epoch) -> Mapping[str, EpochTask]:
        """What the tasks of each operator are sent; writes the restore plan that they read."""
        restored, restore = self._run.restored, self._run.restore
        sections: Mapping[str, RestorePlanSection] = {}
        if restore:
            sections = write_restore_plan(self._parts.file_system, self._restore_plan_path(epoch), restore)
        return {
            uid: EpochTask(
                run_reference=self._run.broadcast.reference,
                operator_uid=uid,
                epoch_id=epoch.checkpoint_id,
                processing_time_ms=self._processing_time_ms,
                watermark_ms=self._watermarks.of(uid),
                previous_watermark_ms=self._watermarks.before_of(uid),
                restore=sections.get(uid),
                restored_from=restored.file_system if restored is not None else self._parts.file_system,
                acknowledgements=self._run.acknowledgements.sender,
                progress=self._progress,
            )
            for uid in self._parts.pipeline.operators
        }

    def _restore_plan_path(self, epoch: Epoch) -> str:
        return f"{RESTORE_PLANS_DIRECTORY}/{self._parts.run_id}-{epoch.checkpoint_id}"

    def _run_action(self, epoch: Epoch) -> Sequence[bytes]:
        parts, session, epoch_id = self._parts, self._frame.sparkSession, epoch.checkpoint_id
        # In every epoch: a step or sink of the user's may have set the session otherwise in the one before.
        keep_adaptive_disabled(session)
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
                    self._committables = parts.sinks.stage(
                        lambda uid, sink: sink.stage(plan.frames[uid], epoch_id, parts.attempt_id)
                    )
        except Exception as error:
            if watchdog.has_expired:
                raise EpochTimeoutError(too_late(epoch_id, f"{parts.epoch_timeout_s:g} s")) from error
            if isinstance(error, (PySparkException, Py4JJavaError)):
                raise EpochError(f"epoch {epoch_id} failed: {python_cause(error)}") from error
            raise
        self.action_s = time.monotonic() - started
        return self._run.acknowledgements.take(epoch_id)
