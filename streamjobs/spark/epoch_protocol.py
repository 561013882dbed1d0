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
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from attrs import field, frozen
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation

from checkpoint.acknowledgement import Acknowledgement, TaskId
from checkpoint.completed_checkpoint_store import CompletedCheckpointStore
from checkpoint.coordinator import AcknowledgementOutcome, CheckpointCoordinator
from checkpoint.file_system import CheckpointFileSystem
from checkpoint.handles import OperatorState, StateHandle
from checkpoint.job_directory import JobIdentity
from checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.metrics import StateMetricsConfig
from statebackend.state_backend import StateBackend
from streamjobs.errors import EpochError, SourceProgressMismatchError
from streamjobs.job_metrics import OperatorMetrics, metrics_of_epoch, metrics_of_epochs
from streamjobs.local_state_root import LocalStateRoot
from streamjobs.processing_time import PROCESSING_TIME_PROPERTY
from streamjobs.restore_plan import RestoredState, SubtaskRestore, restores_by_subtask
from streamjobs.spark.epoch_time import make_offsets_durable, processing_time_of_epoch_ms
from streamjobs.spark.pipeline import Pipeline
from streamjobs.spark.session import keep_adaptive_disabled, were_tasks_repeated
from streamjobs.spark.source_progress import read_offsets
from streamjobs.spark.subtask import SubtaskTask
from streamjobs.spark.worker_errors import BE_REPEATABLE, python_cause

SINK: Final = "sink"
"""The name of the job's sink among the committables of a checkpoint."""

REMEMBERED_EPOCHS: Final = 1000
"""Epochs whose statistics are kept; a job may run for years."""

OBSERVATION_TIMEOUT_S: Final = 60.0
"""How long to wait for acknowledgements after the sink's action has returned; they are there at once, or never."""


@frozen(kw_only=True)
class JobParts:
    """What a running job is made of."""

    identity: JobIdentity
    run_id: str
    pipeline: Pipeline
    sink: Any
    backend: StateBackend
    parallelism: int
    file_system: CheckpointFileSystem
    store: CompletedCheckpointStore
    spark_checkpoint_directory: str
    local_root: LocalStateRoot
    properties: Mapping[str, str]
    metrics: StateMetricsConfig | None = None


@frozen(kw_only=True)
class EpochStatistics:
    """What an epoch cost. Seconds on the driver: all of it, and the sink's action; of the slowest subtask: opening its
    state, processing, and the snapshot. Entries and bytes are what all subtasks wrote for the checkpoint.
    ``state_metrics`` are those of keyed state by operator uid, where metrics are on.
    """

    epoch_id: int
    duration_s: float
    action_s: float
    open_s: float
    process_s: float
    snapshot_s: float
    entries_written: int
    bytes_written: int
    state_metrics: OperatorMetrics = field(factory=dict)


class EpochProtocol:
    """Runs epochs; called by Spark's stream thread through ``foreachBatch``. One instance is one run of the job."""

    def __init__(self, parts: JobParts, restored: RestoredState | None) -> None:
        self.parts = parts
        self._restored = restored
        latest = parts.store.latest()
        self._last_epoch_id = restored.metadata.checkpoint_id if restored is not None else None
        self._continues_own_log = latest is not None
        self._coordinator = CheckpointCoordinator(
            parts.identity.job_id,
            parts.run_id,
            timeout_ms=2**53,
            max_parallelism=parts.identity.max_parallelism,
            operator_names={operator.uid: operator.node.name for operator in parts.pipeline.operators.values()},
            last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
        )
        self._restore = self._plan_restore(is_same_run=False)
        self.lock = threading.RLock()
        self.committing = threading.RLock()
        """Held from the storing of a checkpoint until the output of its epoch is committed."""
        self.is_stopping = False
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

    def run(self, frame: DataFrame, epoch_id: int) -> None:
        """Runs one epoch, or recognises it as done; raises, and remembers, whatever makes it fail."""
        with self.lock:
            if self.is_stopping:
                raise EpochError(f"epoch {epoch_id} was not begun: the job is stopping")
            try:
                self._run(frame, epoch_id)
            except Exception as error:
                self.failure = error
                raise
            except BaseException as error:
                self.failure = error
                # Py4J answers the JVM for exceptions only; without an answer Spark's thread would wait for ever.
                raise EpochError(f"epoch {epoch_id} was interrupted by {type(error).__name__}: {error}") from error

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
        self._coordinator.trigger(epoch_id, expected, _now_ms())
        try:
            committable, action_s = self._run_action(frame, epoch_id, tasks)
            acknowledgements = self._coordinator.acknowledgements(epoch_id)
            operators = self._coordinator.complete(epoch_id)
        except BaseException as error:
            self._abort(epoch_id, f"{type(error).__name__}: {error}")
            raise
        with self.committing:
            self._store(epoch_id, operators, offsets, committable, processing_time_ms)
            self.parts.sink.commit(epoch_id, committable)
            self._last_epoch_id = epoch_id
        attempt_ids = [acknowledgement.attempt_id for acknowledgement in acknowledgements.values()]
        if were_tasks_repeated(frame.sparkSession, attempt_ids):
            # Attempts that failed, or lost against another one, may have written files that nobody was told of.
            self.parts.store.delete_orphans(self._coordinator.files_in_use())
        self._restore = self._plan_restore(is_same_run=True)
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
        if self._continues_own_log and SINK in metadata.sink_committables:
            self.parts.sink.commit(epoch_id, metadata.sink_committables[SINK])

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

    def _tasks(self, epoch_id: int, processing_time_ms: int) -> Mapping[str, SubtaskTask]:
        parts = self.parts
        return {
            operator.uid: SubtaskTask(
                job_id=parts.identity.job_id,
                run_id=parts.run_id,
                epoch_id=epoch_id,
                operator_uid=operator.uid,
                function_pickle=operator.function_pickle,
                key_serializer=operator.key_serializer,
                key_columns=operator.key_columns,
                row_columns=operator.row_columns,
                output_schema=operator.output_schema,
                parallelism=parts.parallelism,
                max_parallelism=parts.identity.max_parallelism,
                backend=parts.backend,
                planned=operator.states.keyed_names,
                planned_operator_state=operator.states.operator_names,
                restore=self._restore[operator.uid],
                file_system=parts.file_system,
                local_root=parts.local_root,
                processing_time_ms=processing_time_ms,
                metrics=parts.metrics,
            )
            for operator in parts.pipeline.operators.values()
        }

    def _run_action(
        self, frame: DataFrame, epoch_id: int, tasks: Mapping[str, SubtaskTask]
    ) -> tuple[bytes, float]:
        keep_adaptive_disabled(frame.sparkSession)
        started = time.monotonic()
        try:
            with contextlib.closing(self.parts.pipeline.build(frame, tasks)) as plan:
                committable: bytes = self.parts.sink.stage(plan.frame, epoch_id, self.parts.run_id)
        except (PySparkException, Py4JJavaError) as error:
            raise EpochError(f"epoch {epoch_id} failed: {python_cause(error)}") from error
        action_s = time.monotonic() - started
        for encoded in chain.from_iterable(plan.acknowledgements.values()):
            self._acknowledge(Acknowledgement.decode(encoded))
        for uid, observation in plan.observations.items():
            for encoded in _acknowledgements_of(observation, uid, epoch_id):
                self._acknowledge(Acknowledgement.decode(encoded))
        return committable, action_s

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
        committable: bytes,
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
            sink_committables={SINK: committable},
            properties={**parts.properties, PROCESSING_TIME_PROPERTY: str(processing_time_ms)},
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
            self.parts.sink.abort(epoch_id, self.parts.run_id)

    def _discard(self, handles: Sequence[StateHandle]) -> None:
        self.parts.store.discard(handles, self._coordinator.files_in_use())

    def _plan_restore(self, *, is_same_run: bool) -> Mapping[str, tuple[SubtaskRestore, ...]]:
        parts = self.parts
        restored = self._restored
        return {
            uid: restores_by_subtask(
                restored.operator(uid) if restored is not None else None,
                restored.file_system if restored is not None else parts.file_system,
                parts.parallelism,
                parts.identity.max_parallelism,
                is_same_run=is_same_run,
            )
            for uid in parts.pipeline.operators
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
        metrics = [acknowledgement.metrics for acknowledgement in acknowledgements.values()]
        self.statistics.append(
            EpochStatistics(
                epoch_id=epoch_id,
                duration_s=duration_s,
                action_s=action_s,
                entries_written=sum(_number(values, "entries_written") for values in metrics),
                bytes_written=sum(_number(values, "bytes_written") for values in metrics),
                state_metrics=state_metrics,
                **{name: max(_seconds(values, name) for values in metrics) for name in _LAPS},
            )
        )


_ADVICE: Final = {
    AcknowledgementOutcome.CONFLICT: f"Spark ran its task again, which made other state than before. {BE_REPEATABLE}. "
}

_LAPS: Final = ("open_s", "process_s", "snapshot_s")


def _number(values: Mapping[str, Any], name: str) -> int:
    return int(values.get(name) or 0)


def _seconds(values: Mapping[str, Any], name: str) -> float:
    return float(values.get(name) or 0.0)


def _acknowledgements_of(observation: Observation, uid: str, epoch_id: int) -> Sequence[bytes]:
    """What the observation collected; it blocks for ever if no action ran, which is found out here."""
    found: list[Any] = []
    failures: list[Exception] = []

    def wait() -> None:
        try:
            found.append(observation.get)
        except Exception as error:
            failures.append(error)

    waiting = threading.Thread(target=wait, name=f"acknowledgements-{uid}-{epoch_id}", daemon=True)
    waiting.start()
    waiting.join(OBSERVATION_TIMEOUT_S)
    if failures:
        raise EpochError(
            f"epoch {epoch_id}: Spark could not say what the tasks of operator {uid!r} acknowledged: {failures[0]}"
        ) from failures[0]
    if not found:
        raise EpochError(
            f"epoch {epoch_id}: no acknowledgement of operator {uid!r} came within {OBSERVATION_TIMEOUT_S:.0f} s of "
            f"the sink's return: the step or sink behind it did not compute its rows"
        )
    return [bytes(encoded) for encoded in found[0]["acknowledgements"]]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
