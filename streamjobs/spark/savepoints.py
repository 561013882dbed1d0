"""Savepoints of a Spark job: a completed checkpoint rewritten in canonical form by a Spark job of its own.

Every subtask's handle is opened in a temporary directory of a task and exported as Parquet. The checkpoint is pinned
meanwhile, so that epochs go on and their clean-up does not take its files. The savepoint also carries Spark's source
progress as of that epoch; `streamjobs.spark.source_progress` knows which of Spark's files that is.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Mapping
from urllib.parse import quote

from attrs import evolve, frozen
from pyspark.sql import SparkSession

from checkpoint.file_system import CheckpointFileSystem
from checkpoint.handles import OperatorState, StateHandle, SubtaskState
from checkpoint.metadata import CheckpointKind, CheckpointMetadata
from checkpoint.savepoint import create_savepoint_directory, write_savepoint
from statebackend.backend_registry import state_backend
from statebackend.canonical_handles import export_canonical_handle
from statebackend.key_groups import KeyGroupRange
from statebackend.keyed_state_backend import KeyedStateBackendParameters, RestoredHandle
from statebackend.state_meta import decode_meta
from streamjobs.spark.source_progress import capture_source_progress


@frozen
class SavepointReport:
    """What was written: where, of which epoch, the rows of each operator's states, and how long it took."""

    path: str
    epoch_id: int
    rows: Mapping[str, Mapping[str, int]]
    size_bytes: int
    duration_s: float


@frozen
class _ExportTask:
    """One subtask's handle to export; runs in a Spark task."""

    operator_uid: str
    subtask_index: int
    max_parallelism: int
    handle: StateHandle
    source: CheckpointFileSystem
    target: CheckpointFileSystem

    def run(self) -> tuple[str, int, StateHandle, dict[str, int]]:
        """Writes the files; returns the canonical handle and the rows per state."""
        meta = decode_meta(self.handle.meta, len(self.handle.files))
        with tempfile.TemporaryDirectory(prefix="statebackend-savepoint-") as local_directory:
            parameters = KeyedStateBackendParameters(
                operator_uid=self.operator_uid,
                key_serializer=meta.key_snapshot.restore_serializer(),
                max_parallelism=self.max_parallelism,
                key_group_range=KeyGroupRange(self.handle.key_group_start, self.handle.key_group_end),
                file_system=self.target,
                file_prefix="unused",
                local_directory=os.path.join(local_directory, "state"),
                restore=(RestoredHandle(self.handle, self.source),),
            )
            with state_backend(self.handle.backend).create_keyed_state_backend(parameters) as backend:
                handle, rows = export_canonical_handle(
                    backend,
                    self.target,
                    f"operators/{quote(self.operator_uid, safe='')}",
                    f"part-{self.subtask_index:05d}",
                    uuid.uuid4().hex,
                )
        return self.operator_uid, self.subtask_index, handle, rows


def take_savepoint(
    spark: SparkSession,
    metadata: CheckpointMetadata,
    source: CheckpointFileSystem,
    spark_checkpoint_directory: str,
    path: str,
) -> SavepointReport:
    """Writes the savepoint of a completed checkpoint, which the caller keeps pinned, to a new directory.

    Raises `SavepointExistsError` if the directory is not empty.
    """
    started = time.monotonic()
    progress = capture_source_progress(spark_checkpoint_directory, metadata.checkpoint_id)
    target = create_savepoint_directory(path)
    tasks = [
        _ExportTask(operator.uid, subtask.subtask_index, metadata.max_parallelism, subtask.handle, source, target)
        for operator in metadata.operators
        for subtask in operator.subtasks
    ]
    results = spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(_ExportTask.run).collect() if tasks else []
    handles: dict[str, list[SubtaskState]] = {}
    rows: dict[str, dict[str, int]] = {}
    for uid, subtask_index, handle, rows_by_state in results:
        handles.setdefault(uid, []).append(SubtaskState(subtask_index, handle))
        counted = rows.setdefault(uid, {})
        for name, count in rows_by_state.items():
            counted[name] = counted.get(name, 0) + count
    operators = tuple(
        OperatorState(
            operator.uid,
            operator.name,
            operator.parallelism,
            operator.max_parallelism,
            tuple(sorted(handles[operator.uid], key=lambda subtask: subtask.subtask_index)),
        )
        for operator in metadata.operators
    )
    savepoint = evolve(
        metadata,
        kind=CheckpointKind.SAVEPOINT,
        operators=operators,
        timestamp_ms=time.time_ns() // 1_000_000,
        parent_checkpoint_id=None,
        parent_digest=None,
        source_progress=progress,
        sink_committables={},
    )
    write_savepoint(target, savepoint)
    return SavepointReport(
        target.location(""), metadata.checkpoint_id, rows, savepoint.size_bytes, time.monotonic() - started
    )
