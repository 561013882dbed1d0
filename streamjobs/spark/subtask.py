"""What runs in a Spark task: one subtask of one operator for one epoch.

Spark calls the function once per partition with the partition's rows as Arrow batches; the partition id is the subtask
index. The subtask opens or restores its state, processes the rows, takes the snapshot, closes, and then emits one more
row that holds nothing but its acknowledgement. Opening and closing within one task is a must: Spark deals partitions to
other workers in the next epoch, and a database left open would lock them out.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Generator, Iterator
from typing import Any, Final

import pyarrow as pa
from attrs import frozen
from pyspark import cloudpickle

from checkpointing.coordinator.acknowledgement import Acknowledgement
from checkpointing.handles.relative_path import path_segment
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.clock import StoppedClock
from statebackend.api.key_groups import key_group_range_of_subtask, subtask_of_key_group
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters
from statebackend.keyed.state_backend import StateBackend, SubtaskIdentity
from statebackend.metrics import StateMetricsConfig
from streamjobs.errors import EpochError
from streamjobs.operators.operator import CollectingEmitter, Operator
from streamjobs.operators.operator_factories import OperatorFactory
from streamjobs.operators.operator_run import OperatorRun
from streamjobs.operators.record_function import paused_garbage_collection
from streamjobs.operators.subtask_backends import SubtaskBackends, SubtaskSnapshot
from streamjobs.operators.subtask_context import SubtaskContext
from streamjobs.runtime.local_state_root import LocalStateRoot
from streamjobs.runtime.restore_plan import SubtaskRestore
from streamjobs.spark.arrow_input import KEY_GROUP_COLUMN, InputColumns, InputReader
from streamjobs.spark.epoch_statistics import opening_metrics
from streamjobs.spark.output_rows import OutputSchema, OutputWriter
from streamjobs.spark.session import TaskIdentity
from typeserializers.kernel.type_serializer import TypeSerializer

OPERATOR_STATE_PREFIX: Final = "operator_state/"
"""What the names of operator state begin with in the report of an acknowledgement."""


@frozen(kw_only=True)
class OperatorTask:
    """What the subtasks of one operator need in all epochs of a run; goes out to the workers once per run."""

    job_id: str
    run_id: str
    operator_uid: str
    operator_factory: OperatorFactory
    function_pickle: bytes
    key_serializer: TypeSerializer[Any]
    inputs: tuple[InputColumns, ...]
    outputs: OutputSchema
    parallelism: int
    max_parallelism: int
    backend: StateBackend
    planned: tuple[str, ...]
    planned_operator_state: tuple[str, ...]
    file_system: CheckpointFileSystem
    local_root: LocalStateRoot
    metrics: StateMetricsConfig | None = None


@frozen(kw_only=True)
class SubtaskTask:
    """One subtask in one epoch; put together on the worker."""

    operator: OperatorTask
    epoch_id: int
    processing_time_ms: int
    identity: TaskIdentity
    restore: SubtaskRestore

    @property
    def subtask_index(self) -> int:
        """The index of the subtask: that of the partition."""
        return self.identity.partition_id

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the partition; yields the emitted rows, then the acknowledgement."""
        with self.operator.local_root.open(self.operator.parallelism) as local_directory:
            yield from self._run(batches, local_directory)

    def _run(self, batches: Iterator[pa.RecordBatch], local_directory: str) -> Iterator[pa.RecordBatch]:
        operator = self.operator
        clock = _Stopwatch()
        # Unpickling the function imports the modules of the user's that reading restored state may need.
        function = cloudpickle.loads(operator.function_pickle)
        subtask = SubtaskIdentity(operator.job_id, self.subtask_index, operator.parallelism)
        backend = operator.backend.lease_keyed_state_backend(self._parameters(local_directory), subtask)
        succeeded = False
        try:
            clock.lap("open_s")
            with (
                paused_garbage_collection(),
                contextlib.closing(SubtaskBackends(backend, self.restore.operator)) as state,
            ):
                running = operator.operator_factory(function, operator.operator_uid)
                snapshot = yield from self._process(running, batches, state, clock)
                clock.lap("snapshot_s")
                report, metrics = _report(state), state.metrics_report()
            succeeded = True
        finally:
            operator.backend.return_keyed_state_backend(backend, subtask, succeeded=succeeded)
        opening = opening_metrics(
            is_local=backend.is_local,
            has_restore=bool(self.restore.keyed),
            kept_bytes_of_host=operator.backend.kept_bytes_of_host(),
        )
        acknowledgement = Acknowledgement(
            job_id=operator.job_id,
            run_id=operator.run_id,
            checkpoint_id=self.epoch_id,
            operator_uid=operator.operator_uid,
            subtask_index=self.subtask_index,
            attempt_id=self.identity.attempt_id,
            digest=snapshot.digest,
            state=snapshot.state,
            report=report,
            metrics={
                "entries_written": snapshot.entries_written,
                "bytes_written": snapshot.bytes_written,
                **clock.laps,
                **opening,
                **metrics,
            },
        )
        yield OutputWriter(operator.outputs, operator.operator_uid).acknowledgement(acknowledgement.encode())

    def _process(
        self,
        running: Operator,
        batches: Iterator[pa.RecordBatch],
        state: SubtaskBackends,
        clock: _Stopwatch,
    ) -> Generator[pa.RecordBatch, None, SubtaskSnapshot]:
        task = self.operator
        context = SubtaskContext(
            state,
            task.operator_uid,
            self.subtask_index,
            task.parallelism,
            self.epoch_id,
            is_restored=self.restore.is_restored,
            planned=task.planned,
            planned_operator_state=task.planned_operator_state,
        )
        operator = OperatorRun(running, task.operator_uid)
        emitter = CollectingEmitter(task.outputs.tags)
        writer = OutputWriter(task.outputs, task.operator_uid)
        reader = InputReader(task.inputs[0], task.operator_uid)
        with operator.opened(context, emitter):
            for batch in batches:
                if not batch.num_rows:
                    continue
                self._check_routing(batch.column(KEY_GROUP_COLUMN)[0].as_py())
                operator.process_batch(0, reader.batch(batch))
                yield from _written(emitter, writer)
            operator.prepare_snapshot()
            yield from _written(emitter, writer)
        clock.lap("process_s")
        return state.snapshot(self.epoch_id, uuid.uuid4().hex)

    def _check_routing(self, key_group: int) -> None:
        """A batch holds rows of one subtask; that it is not this one means that the plan was changed behind us."""
        owner = subtask_of_key_group(key_group, self.operator.parallelism, self.operator.max_parallelism)
        if owner != self.subtask_index:
            raise EpochError(
                f"operator {self.operator.operator_uid!r}: the rows of subtask {owner} came to task "
                f"{self.subtask_index}. A step behind the operator, in transform() or in the sink's function, runs its "
                f"partitions in other tasks, as coalesce() and union() do; use repartition(n) there instead of "
                f"coalesce(n)"
            )

    def _parameters(self, local_directory: str) -> KeyedStateBackendParameters:
        operator, index = self.operator, self.subtask_index
        uid = path_segment(operator.operator_uid)
        return KeyedStateBackendParameters(
            operator_uid=operator.operator_uid,
            key_serializer=operator.key_serializer,
            max_parallelism=operator.max_parallelism,
            key_group_range=key_group_range_of_subtask(index, operator.parallelism, operator.max_parallelism),
            file_system=operator.file_system,
            file_prefix=f"shared/{uid}/{index:05d}",
            local_directory=os.path.join(local_directory, uid, f"{index:05d}"),
            restore=self.restore.keyed,
            clock=StoppedClock(self.processing_time_ms),
            metrics=operator.metrics,
        )


def _written(emitter: CollectingEmitter, writer: OutputWriter) -> Iterator[pa.RecordBatch]:
    for tag, rows in emitter.taken():
        yield from writer.batches(tag, rows)


class _Stopwatch:
    """The seconds between laps, for the metrics of an epoch."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        """Ends a lap under that name."""
        now = time.monotonic()
        self.laps[name] = now - self._since
        self._since = now


def _report(state: SubtaskBackends) -> dict[str, int | float]:
    """What was restored and migrated, flat: ``[operator_state/]<measure>/<state>``."""
    report: dict[str, int | float] = {}
    for prefix, reports in (
        ("", state.keyed.restore_reports),
        (OPERATOR_STATE_PREFIX, state.operator_state_restore_reports),
    ):
        for restored in reports:
            report[f"{prefix}entries_migrated/{restored.state_name}"] = restored.entries_migrated
            report[f"{prefix}duration_s/{restored.state_name}"] = restored.duration_s
    return report
