"""One micro-batch is one epoch, and its end is the barrier: the protocol between driver, tasks, sink and Spark's log.

    Spark calls with batch N
      N is the last completed epoch     -> replayed after a crash: commit the sink again, process nothing
      N is the one after it             -> trigger checkpoint N
                                           run the sink's one action; the tasks process and acknowledge
                                           all acknowledged -> complete checkpoint N, store it
                                           commit the sink
      anything else                     -> refused: the state log and Spark's source log do not belong together
    return -> Spark commits N

The moment that counts is the storing of checkpoint N. Before it, a crash leaves files that nobody refers to, and the
replay starts from checkpoint N-1. After it, the replay finds epoch N done. The sink follows the same moment: what it
staged is made visible by `commit`, which is repeated after a crash. So each record has its effect on state and output
once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.checkpoint_coordinator import AcknowledgementOutcome, CheckpointCoordinator
from checkpointing.errors import CheckpointError
from checkpointing.handles.state_handles import KeyedStateHandle, OperatorState, files_by_path
from checkpointing.metadata.metadata_file import CheckpointKind, CheckpointMetadata
from savepoints.restored_state import RestoredState, handles_of
from streamjobs.errors import EpochError, EpochTimeoutError, SourceProgressMismatchError
from streamjobs.runtime.job_metrics import OperatorMetrics, metrics_of_epoch, metrics_of_epochs
from streamjobs.runtime.processing_time import PROCESSING_TIME_PROPERTY
from streamjobs.runtime.restore_plan import SubtaskRestore, restores_by_subtask
from streamjobs.runtime.restore_plan_file import RESTORE_PLANS_DIRECTORY, RestorePlanSection, write_restore_plan
from streamjobs.spark.epoch_statistics import EpochStatistics, epoch_statistics
from streamjobs.spark.epoch_task import EpochTask
from streamjobs.spark.epoch_time import make_offsets_durable, processing_time_of_epoch_ms
from streamjobs.spark.epoch_watchdog import EpochWatchdog
from streamjobs.spark.job_parts import JobParts, operator_tasks
from streamjobs.spark.observed_acknowledgements import observed_acknowledgements
from streamjobs.spark.placement import SubtaskPlacement
from streamjobs.spark.run_broadcast import RunBroadcast
from streamjobs.spark.session import keep_adaptive_disabled, were_tasks_repeated
from streamjobs.spark.source_progress import read_offsets
from streamjobs.spark.worker_errors import BE_REPEATABLE, python_cause

REMEMBERED_EPOCHS: Final = 1000
"""Epochs whose statistics are kept; a job may run for years."""

_POLL_S: Final = 0.2


class EpochProtocol:
    """Runs epochs; called by Spark's stream thread through ``foreachBatch``. One instance is one run of the job."""

    def __init__(self, parts: JobParts, restored: RestoredState | None, spark_context: SparkContext) -> None:
        self.parts = parts
        self._restored = restored
        latest = parts.store.latest()
        self._last_epoch_id = restored.metadata.checkpoint_id if restored is not None else None
        self._continues_own_log = latest is not None
        self._coordinator = CheckpointCoordinator(
            parts.identity.job_id,
            parts.run_id,
            timeout_ms=None if parts.epoch_timeout_s is None else max(1, round(parts.epoch_timeout_s * 1000)),
            max_parallelism=parts.identity.max_parallelism,
            operator_names={operator.uid: operator.node.name for operator in parts.pipeline.operators.values()},
            last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
        )
        self._restore = self._first_restore()
        self._run_broadcast = RunBroadcast(spark_context, parts.run_id, operator_tasks(parts))
        self._placement = SubtaskPlacement(parts.parallelism)
        self._running = threading.RLock()
        self.committing = threading.RLock()
        """Held from the storing of a checkpoint until the output of its epoch is committed."""
        self.is_stopping = False
        """Set by whoever ends the job: no further epoch begins."""
        self.given_up: str | None = None
        """Set by whoever does not wait for the running epoch: what to say of it when it fails."""
        self.running_epoch_id: int | None = None
        """The epoch that is running, if one is."""
        self.failure: BaseException | None = None
        self.restore_reports: list[Mapping[str, Any]] = []
        self.statistics: deque[EpochStatistics] = deque(maxlen=REMEMBERED_EPOCHS)
        self.state_metrics: OperatorMetrics = {}
        """Those of all epochs of this run together."""

    @property
    def last_epoch_id(self) -> int | None:
        """The last epoch whose effects are durable: of this run, or of what it continues from."""
        return self._last_epoch_id

    def forget_source_progress(self) -> None:
        """Lets epochs count from 0 again, for a job that takes the state of a savepoint but another source."""
        self._last_epoch_id = None

    def close(self) -> None:
        """Takes back what went out to the workers for this run, which begins no epoch any more; may be called again."""
        self._run_broadcast.destroy()
        self._placement.close()

    def run(self, frame: DataFrame, epoch_id: int) -> None:
        """Runs one epoch, or recognises it as done; raises, and remembers, whatever makes it fail."""
        with self._running:
            if self.is_stopping:
                raise EpochError(f"epoch {epoch_id} was not begun: the job is stopping")
            self.running_epoch_id = epoch_id
            try:
                self._run(frame, epoch_id)
            except Exception as error:
                self.failure = error
                self.close()
                if self.given_up is None:
                    raise
                self.failure = EpochTimeoutError(self.given_up)
                # Spark runs a regular expression over the text of an error while it ends a query, and its stack
                # overflows at that of an interrupted action.
                raise self.failure from None
            except BaseException as error:
                self.failure = error
                self.close()
                # Py4J answers the JVM for exceptions only; without an answer Spark's thread would wait for ever.
                raise EpochError(f"epoch {epoch_id} was interrupted by {type(error).__name__}: {error}") from error
            finally:
                self.running_epoch_id = None

    def wait_until_idle(self, timeout_s: float | None, is_given_up: Callable[[], bool]) -> bool:
        """Waits until no epoch is running, for so long or until it is given up; returns whether none is."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if self._running.acquire(timeout=max(left, 0.0)):
                self._running.release()
                return True
            if is_given_up() or (deadline is not None and time.monotonic() >= deadline):
                return False

    def _run(self, frame: DataFrame, epoch_id: int) -> None:
        offsets = read_offsets(self.parts.spark_checkpoint_directory, epoch_id)
        if epoch_id == self._last_epoch_id:
            self._recognise_replay(epoch_id, offsets)
            return
        self._check_successor(epoch_id)
        started = time.monotonic()
        make_offsets_durable(self.parts.spark_checkpoint_directory, epoch_id)
        previous = self._restored.metadata.properties if self._restored is not None else {}
        processing_time_ms = processing_time_of_epoch_ms(offsets, previous)
        tasks = self._tasks(epoch_id, processing_time_ms)
        expected = [TaskId(uid, index) for uid in tasks for index in range(self.parts.parallelism)]
        self._coordinator.trigger(epoch_id, expected, _monotonic_ms())
        try:
            committables, action_s = self._run_action(frame, epoch_id, tasks)
            self._check_in_time(epoch_id)
            acknowledgements = self._coordinator.acknowledgements(epoch_id)
            operators = self._coordinator.complete(epoch_id)
        except BaseException as error:
            self._abort(epoch_id, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._remove_restore_plan(epoch_id)
        with self.committing:
            self._store(epoch_id, operators, offsets, committables, processing_time_ms)
            self.parts.sinks.commit(epoch_id, committables)
            self._last_epoch_id = epoch_id
        attempt_ids = [acknowledgement.attempt_id for acknowledgement in acknowledgements.values()]
        if were_tasks_repeated(frame.sparkSession, attempt_ids):
            # Attempts that failed, or lost against another one, may have written files that nobody was told of.
            self.parts.store.delete_orphans(self._coordinator.files_in_use())
        self._restore = {operator.uid: handles_of(operator) for operator in operators}
        self._note(epoch_id, acknowledgements, time.monotonic() - started, action_s)

    def _recognise_replay(self, epoch_id: int, offsets: bytes) -> None:
        """Spark replays the batch of a completed epoch: its state and output are there, so only the sink is told."""
        assert self._restored is not None or self._continues_own_log
        metadata = self.parts.store.latest() or (self._restored.metadata if self._restored is not None else None)
        assert metadata is not None
        if metadata.source_offsets and metadata.source_offsets != offsets:
            raise SourceProgressMismatchError(
                f"epoch {epoch_id} was completed for other source offsets than Spark replays now: the state log says "
                f"{metadata.source_offsets.decode(errors='replace')!r}, "
                f"Spark's log {offsets.decode(errors='replace')!r}. "
                f"Spark's checkpoint directory was exchanged; put the right one back, or start from a savepoint"
            )
        if self._continues_own_log:
            self.parts.sinks.commit_again(metadata)

    def _check_successor(self, epoch_id: int) -> None:
        expected = 0 if self._last_epoch_id is None else self._last_epoch_id + 1
        if epoch_id != expected:
            raise SourceProgressMismatchError(
                f"Spark's source log is at batch {epoch_id}, the state log at epoch "
                f"{'none' if self._last_epoch_id is None else self._last_epoch_id}: the next batch must be {expected}. "
                f"The directories {self.parts.spark_checkpoint_directory} and "
                f"{self.parts.file_system.location('checkpoints')} do not belong together; restore both, or start "
                f"from a savepoint in a new job directory"
            )

    def _tasks(self, epoch_id: int, processing_time_ms: int) -> Mapping[str, EpochTask]:
        """What the tasks of each operator are sent; writes the restore plan that they read."""
        restored_from = self._restored.file_system if self._restored is not None else self.parts.file_system
        sections: Mapping[str, RestorePlanSection] = {}
        if self._restore:
            sections = write_restore_plan(self.parts.file_system, self._restore_plan_path(epoch_id), self._restore)
        return {
            uid: EpochTask(
                run_reference=self._run_broadcast.reference,
                operator_uid=uid,
                epoch_id=epoch_id,
                processing_time_ms=processing_time_ms,
                restore=sections.get(uid),
                restored_from=restored_from,
            )
            for uid in self.parts.pipeline.operators
        }

    def _restore_plan_path(self, epoch_id: int) -> str:
        return f"{RESTORE_PLANS_DIRECTORY}/{self.parts.run_id}-{epoch_id}"

    def _remove_restore_plan(self, epoch_id: int) -> None:
        # What cannot be removed now is removed when the job is started again.
        with contextlib.suppress(CheckpointError):
            self.parts.file_system.delete(self._restore_plan_path(epoch_id))

    def _run_action(
        self, frame: DataFrame, epoch_id: int, tasks: Mapping[str, EpochTask]
    ) -> tuple[Mapping[str, bytes], float]:
        keep_adaptive_disabled(frame.sparkSession)
        started = time.monotonic()
        watchdog = EpochWatchdog(frame.sparkSession.sparkContext, epoch_id, self.parts.epoch_timeout_s)
        try:
            with watchdog:
                self._placement.prepare(frame.sparkSession)
                with contextlib.closing(self.parts.pipeline.build(frame, tasks, self._placement)) as plan:
                    committables = self.parts.sinks.stage(
                        lambda uid, sink: sink.stage(plan.frames[uid], epoch_id, self.parts.attempt_id)
                    )
        except Exception as error:
            if watchdog.has_expired:
                raise EpochTimeoutError(_too_late(epoch_id, f"{self.parts.epoch_timeout_s:g} s")) from error
            if isinstance(error, (PySparkException, Py4JJavaError)):
                raise EpochError(f"epoch {epoch_id} failed: {python_cause(error)}") from error
            raise
        action_s = time.monotonic() - started
        # Most files of the state are those of the epoch before.
        known_files = {} if self._restored is None else files_by_path(self._restored.metadata.operators)
        for encoded in chain.from_iterable(plan.acknowledgements.values()):
            self._acknowledge(Acknowledgement.decode(encoded, known_files))
        for uid, observation in plan.observations.items():
            for encoded in observed_acknowledgements(frame.sparkSession, observation, uid, epoch_id):
                self._acknowledge(Acknowledgement.decode(encoded, known_files))
        return committables, action_s

    def _check_in_time(self, epoch_id: int) -> None:
        for expired in self._coordinator.expire(_monotonic_ms()):
            self._discard(expired.handles_to_discard)
            raise EpochTimeoutError(_too_late(epoch_id, f"{self.parts.epoch_timeout_s:g} s"))

    def _acknowledge(self, acknowledgement: Acknowledgement) -> None:
        result = self._coordinator.acknowledge(acknowledgement)
        if result.handles_to_discard:
            self.parts.store.discard(result.handles_to_discard, self._coordinator.files_in_use())
        if result.outcome not in (AcknowledgementOutcome.SUCCESS, AcknowledgementOutcome.DUPLICATE):
            raise EpochError(
                f"epoch {acknowledgement.checkpoint_id}: {result.outcome.name.lower()} acknowledgement of "
                f"{acknowledgement.task}: {_ADVICE.get(result.outcome, '')}{result.detail}"
            )

    def _store(
        self,
        epoch_id: int,
        operators: Sequence[OperatorState],
        offsets: bytes,
        committables: Mapping[str, bytes],
        processing_time_ms: int,
    ) -> None:
        parts = self.parts
        parent = parts.store.latest()
        metadata = CheckpointMetadata(
            checkpoint_id=epoch_id,
            kind=CheckpointKind.CHECKPOINT,
            job_id=parts.identity.job_id,
            job_name=parts.identity.job_name,
            timestamp_ms=_now_ms(),
            max_parallelism=parts.identity.max_parallelism,
            operators=tuple(operators),
            parent_checkpoint_id=parent.checkpoint_id if parent is not None else None,
            parent_digest=parts.store.digest(parent.checkpoint_id) if parent is not None else None,
            source_offsets=offsets,
            sink_committables=dict(committables),
            properties={
                **parts.properties,
                PROCESSING_TIME_PROPERTY: str(processing_time_ms),
                **parts.sinks.properties,
            },
        )
        try:
            parts.store.add(metadata)
        except BaseException as error:
            aborted = self._coordinator.storing_failed(epoch_id, f"{type(error).__name__}: {error}")
            self._discard(aborted.handles_to_discard)
            raise
        self._restored = RestoredState(metadata, parts.file_system)
        self._continues_own_log = True

    def _abort(self, epoch_id: int, reason: str) -> None:
        if epoch_id in self._coordinator.pending_ids:
            self._discard(self._coordinator.abort(epoch_id, reason).handles_to_discard)
        # What made the epoch fail is worth more than what then went wrong with clearing it away.
        with contextlib.suppress(Exception):
            self.parts.sinks.abort(epoch_id, self.parts.attempt_id)

    def _discard(self, handles: Sequence[KeyedStateHandle]) -> None:
        self.parts.store.discard(handles, self._coordinator.files_in_use())

    def _first_restore(self) -> Mapping[str, Sequence[SubtaskRestore | KeyedStateHandle]]:
        """What the subtasks restore in the first epoch of this run, by operator; none for one without state."""
        parts, restored = self.parts, self._restored
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

    def _note(
        self, epoch_id: int, acknowledgements: Mapping[TaskId, Acknowledgement], duration_s: float, action_s: float
    ) -> None:
        # Only the first epoch of a run finds state that another program wrote.
        for task, acknowledgement in acknowledgements.items() if not self.statistics else ():
            if acknowledgement.report:
                self.restore_reports.append(
                    {"operator_uid": task.operator_uid, "subtask_index": task.subtask_index, **acknowledgement.report}
                )
        state_metrics = metrics_of_epoch(acknowledgements.values())
        self.state_metrics = metrics_of_epochs(self.state_metrics, state_metrics)
        self.statistics.append(
            epoch_statistics(epoch_id, list(acknowledgements.values()), duration_s, action_s, state_metrics)
        )


_ADVICE: Final = {
    AcknowledgementOutcome.CONFLICT: f"Spark ran its task again, which made other state than before. {BE_REPEATABLE}. "
}


def _too_late(epoch_id: int, limit: str) -> str:
    return (
        f"epoch {epoch_id} did not end within {limit} (epoch_timeout_s) and was given up. It is processed again when "
        f"the job is started again: look for a function that waits for ever, or give it more time"
    )


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
