"""Savepoints of a Spark job, and the cause of a failed Python task.

The export runs as a Spark job with one task per subtask. The caller pins the checkpoint, so that epochs continue and
cleanup keeps its files. The savepoint includes Spark's source progress at that epoch
(`statebackend.spark.sources.progress`).

Spark reports a failed task as one text: its own message, the worker's Python traceback and the JVM stack.
`python_cause` extracts the exception at the end of the traceback.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve, frozen
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata, ReadSource, SourcePositions
from statebackend.checkpoint.metadata_bytes import check_metadata_size
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory, write_source_progress
from statebackend.savepoint.export import ExportedSubtask, ExportTask, SavepointReport, export_tasks, finish_savepoint
from statebackend.spark.epochs import REPEATABLE_ADVICE
from statebackend.spark.sources.progress import capture_source_progress
from statebackend.spark.tasks.channels import ProgressChannel, ProgressSender
from statebackend.spark.tasks.program_pickles import ProgramModules, naming_missing_modules
from statebackend.state.clock import wall_clock
from statebackend.state.state_kind import StateDescriptor
from statebackend.streaming.runtime.checkpoint_writing import batch_of
from statebackend.streaming.runtime.local_state_root import LocalStateRoot

_RECOMPUTED_OTHERWISE: Final = "indeterminate output"

_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception): ", re.MULTILINE)
_TRACEBACK_END = re.compile(r"\n\s*(?:at |SQLSTATE: |The above exception|During handling)|\n\n", re.MULTILINE)


def python_cause(error: object) -> str:
    """Return the exception at the end of a Python traceback of Spark, or Spark's whole message without a traceback."""
    text = str(error)
    if _RECOMPUTED_OTHERWISE in text and "Traceback" not in text:
        return (
            f"rows that an operator had emitted were lost and computed again with another result, after a part of them "
            f"had been used. {REPEATABLE_ADVICE}. Then execute the job again, which replays the epoch"
        )
    raised = list(_RAISED.finditer(text))
    if "Traceback" not in text or not raised:
        return text
    cause = text[raised[-1].start() :]
    end = _TRACEBACK_END.search(cause)
    return (cause[: end.start()] if end else cause).strip()


def take_savepoint(
    spark: SparkSession,
    metadata: CheckpointMetadata,
    source: CheckpointFileSystem,
    spark_checkpoint_directory: str,
    path: str | os.PathLike[str],
    registered: Mapping[str, Iterable[StateDescriptor]],
    local_root: LocalStateRoot,
    sources: tuple[ReadSource, ...],
    progress: ProgressChannel,
) -> SavepointReport:
    """Write the savepoint of a completed checkpoint, which the caller has pinned, to a new directory.

    Args:
        spark: The session that exports the state.
        metadata: The checkpoint.
        source: Its file system.
        spark_checkpoint_directory: The directory of Spark's offset log.
        path: The directory of the savepoint.
        registered: The job's descriptors of keyed state by operator uid; expired entries are left out.
        local_root: Where the tasks work.
        sources: The sources of the log, in its order.
        progress: Receives the progress of each task when it has ended.

    Raises:
        SavepointExistsError: The directory is not empty.
        MissingFileError, CorruptFileError: A file of the checkpoint is missing or has another size. Nothing is written.
        SavepointError: A task failed; the message has the cause.
    """
    started_s = time.monotonic()
    batch_id = batch_of(metadata)
    source_log = capture_source_progress(spark_checkpoint_directory, batch_id)
    # The checkpoint may be older than the order of the sources in the log, and so in the savepoint.
    positions = SourcePositions(batch_id=batch_id, offsets=source_log[f"offsets/{batch_id}"], sources=sources)
    metadata = evolve(metadata, source_positions=positions)
    source.verify_present(metadata.files)
    target = create_savepoint_directory(path)
    progress_files = write_source_progress(target, source_log)
    # Before the long export: the savepoint's metadata is about as large as that of the checkpoint.
    check_metadata_size(
        evolve(
            metadata,
            kind=CheckpointKind.SAVEPOINT,
            source_progress_files=progress_files,
        )
    )
    tasks = export_tasks(metadata, source, target, registered, wall_clock(), local_root)
    try:
        export = _Export(ProgramModules.of_this_process(), progress.sender)
        exported = spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(export.run).collect()
    except (PySparkException, Py4JError) as error:
        # The action of an RDD raises Py4J's errors, unless Spark recognises its own exception.
        raise SavepointError(
            f"the savepoint {target.location('')} of epoch {metadata.checkpoint_id} is not complete: "
            f"{python_cause(error)}. Fix the cause, then take the savepoint again into a new directory"
        ) from error
    return finish_savepoint(metadata, exported, target, progress_files, started_s)


@frozen
class _Export:
    """Runs an export task on a worker; ``modules`` are those of the serializers in the state."""

    modules: ProgramModules
    progress: ProgressSender

    def run(self, task: ExportTask) -> ExportedSubtask:
        with naming_missing_modules(f"operator {task.operator_uid!r}"):
            self.modules.install()
            return task.run(self.progress.send)
