"""What runs in a Spark task: one subtask of one operator for one epoch.

Spark calls the function once per partition with the partition's rows as Arrow batches; the partition id is the subtask
index. The subtask opens or restores its state, processes the rows, takes the snapshot, closes, and then emits one more
row that holds nothing but its acknowledgement. Opening and closing within one task is a must: Spark deals partitions to
other workers in the next epoch, and a database left open would lock them out.

The acknowledgement column travels beside the user's columns. It is null in every data row; in the acknowledgement row
everything else is null.
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

from checkpoint.acknowledgement import Acknowledgement
from checkpoint.file_system import CheckpointFileSystem
from checkpoint.relative_path import path_segment
from statebackend.backend_parameters import KeyedStateBackendParameters, KeyedStateSnapshot
from statebackend.clock import StoppedClock
from statebackend.key_groups import key_group_range_of_subtask, subtask_of_key_group
from statebackend.metrics import StateMetricsConfig
from statebackend.state_backend import StateBackend, SubtaskIdentity
from streamjobs.errors import EpochError
from streamjobs.keyed_operator import (
    KeyedProcessOperator,
    SubtaskContext,
    check_keys,
    paused_garbage_collection,
)
from streamjobs.local_state_root import LocalStateRoot
from streamjobs.restore_plan import SubtaskRestore
from streamjobs.spark.arrow_rows import RowReader, RowWriter, column_values
from streamjobs.spark.session import task_identity
from streamjobs.subtask_state import SubtaskState
from typeserializers.type_serializer import TypeSerializer

KEY_GROUP_COLUMN: Final = "__statebackend_key_group"
KEY_COLUMN_PREFIX: Final = "__statebackend_key_"
ACKNOWLEDGEMENT_COLUMN: Final = "__statebackend_acknowledgement"
OPERATOR_STATE_PREFIX: Final = "operator_state/"
"""What the names of operator state begin with in the report of an acknowledgement."""


@frozen(kw_only=True)
class SubtaskTask:
    """Everything that the subtasks of one operator need in one epoch; travels to the workers by pickling."""

    job_id: str
    run_id: str
    epoch_id: int
    operator_uid: str
    function_pickle: bytes
    key_serializer: TypeSerializer[Any]
    key_columns: tuple[str, ...]
    row_columns: tuple[str, ...]
    output_schema: pa.Schema
    parallelism: int
    max_parallelism: int
    backend: StateBackend
    planned: tuple[str, ...]
    planned_operator_state: tuple[str, ...]
    restore: tuple[SubtaskRestore, ...]
    file_system: CheckpointFileSystem
    local_root: LocalStateRoot
    processing_time_ms: int
    metrics: StateMetricsConfig | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the partition; yields the emitted rows, then the acknowledgement."""
        with self.local_root.open(self.parallelism) as local_directory:
            yield from self._run(batches, local_directory)

    def _run(self, batches: Iterator[pa.RecordBatch], local_directory: str) -> Iterator[pa.RecordBatch]:
        identity = task_identity()
        subtask_index = identity.partition_id
        subtask = SubtaskIdentity(self.job_id, subtask_index, self.parallelism)
        clock = _Stopwatch()
        backend = self.backend.lease_keyed_state_backend(self._parameters(subtask_index, local_directory), subtask)
        succeeded = False
        try:
            clock.lap("open_s")
            with (
                paused_garbage_collection(),
                contextlib.closing(SubtaskState(backend, self.restore[subtask_index].operator)) as state,
            ):
                snapshot = yield from self._process(batches, state, subtask_index, clock)
                clock.lap("snapshot_s")
                report, metrics = _report(state), state.metrics_report()
            succeeded = True
        finally:
            self.backend.return_keyed_state_backend(backend, subtask, succeeded=succeeded)
        acknowledgement = Acknowledgement(
            job_id=self.job_id,
            run_id=self.run_id,
            checkpoint_id=self.epoch_id,
            operator_uid=self.operator_uid,
            subtask_index=subtask_index,
            attempt_id=identity.attempt_id,
            digest=snapshot.digest,
            handle=snapshot.handle,
            report=report,
            metrics={
                "entries_written": snapshot.entries_written,
                "bytes_written": snapshot.bytes_written,
                **clock.laps,
                **metrics,
            },
        )
        yield self._acknowledgement_batch(acknowledgement.encode())

    def _process(
        self, batches: Iterator[pa.RecordBatch], state: SubtaskState, subtask_index: int, clock: _Stopwatch
    ) -> Generator[pa.RecordBatch, None, KeyedStateSnapshot]:
        function = cloudpickle.loads(self.function_pickle)
        context = SubtaskContext(
            state,
            self.operator_uid,
            subtask_index,
            self.parallelism,
            self.epoch_id,
            is_restored=self.restore[subtask_index].is_restored,
            planned=self.planned,
            planned_operator_state=self.planned_operator_state,
        )
        operator = KeyedProcessOperator(function, context)
        writer = RowWriter(self.output_schema, self.operator_uid)
        reader: RowReader | None = None
        is_composite = len(self.key_columns) > 1
        try:
            operator.open()
            for batch in batches:
                if not batch.num_rows:
                    continue
                columns = batch.select(list(self.row_columns))
                if reader is None:
                    reader = RowReader(columns.schema)
                parts = [column_values(batch.column(name)) for name in self.key_columns]
                keys = list(zip(*parts, strict=True)) if is_composite else parts[0]
                check_keys(self.operator_uid, keys, is_composite)
                key_groups = column_values(batch.column(KEY_GROUP_COLUMN))
                self._check_routing(key_groups[0], subtask_index)
                emitted = operator.process(reader.rows(columns), keys, key_groups)
                if emitted:
                    yield self._with_acknowledgement(writer.batch(emitted), None)
        finally:
            operator.close()
        clock.lap("process_s")
        return state.snapshot(self.epoch_id, uuid.uuid4().hex)

    def _check_routing(self, key_group: int, subtask_index: int) -> None:
        """A batch holds rows of one subtask; that it is not this one means that the plan was changed behind us."""
        owner = subtask_of_key_group(key_group, self.parallelism, self.max_parallelism)
        if owner != subtask_index:
            raise EpochError(
                f"operator {self.operator_uid!r}: the rows of subtask {owner} came to task {subtask_index}. A step "
                f"behind the operator, in transform() or in the sink's function, runs its partitions in other tasks, "
                f"as coalesce() and union() do; use repartition(n) there instead of coalesce(n)"
            )

    def _parameters(self, subtask_index: int, local_directory: str) -> KeyedStateBackendParameters:
        uid = path_segment(self.operator_uid)
        return KeyedStateBackendParameters(
            operator_uid=self.operator_uid,
            key_serializer=self.key_serializer,
            max_parallelism=self.max_parallelism,
            key_group_range=key_group_range_of_subtask(subtask_index, self.parallelism, self.max_parallelism),
            file_system=self.file_system,
            file_prefix=f"shared/{uid}/{subtask_index:05d}",
            local_directory=os.path.join(local_directory, uid, f"{subtask_index:05d}"),
            restore=self.restore[subtask_index].keyed,
            clock=StoppedClock(self.processing_time_ms),
            metrics=self.metrics,
        )

    def _with_acknowledgement(self, batch: pa.RecordBatch, acknowledgement: bytes | None) -> pa.RecordBatch:
        column = pa.array([acknowledgement] * batch.num_rows, pa.binary())
        return pa.RecordBatch.from_arrays(
            [*batch.columns, column], names=[*batch.schema.names, ACKNOWLEDGEMENT_COLUMN]
        )

    def _acknowledgement_batch(self, acknowledgement: bytes) -> pa.RecordBatch:
        nulls = [pa.nulls(1, field.type) for field in self.output_schema]
        return pa.RecordBatch.from_arrays(
            [*nulls, pa.array([acknowledgement], pa.binary())],
            names=[*self.output_schema.names, ACKNOWLEDGEMENT_COLUMN],
        )


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


def _report(state: SubtaskState) -> dict[str, int | float]:
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

