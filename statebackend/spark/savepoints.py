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
_TRACEBACK_END = re.compile(r"\n\s*(?:at |The above exception|During handling)|\n\n", re.MULTILINE)


def python_cause(error: Exception) -> str:
    """The exception that a task's Python traceback ends with, or all of Spark's message if there is none."""
    text = str(error)
    if _RECOMPUTED_OTHERWISE in text and "Traceback" not in text:
        return (
            f"rows that an operator had sent on were lost and computed again, and came out otherwise, when a part of "
            f"them had been used already. {REPEATABLE_ADVICE}; the epoch is then replayed by executing the job again"
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
    told: ProgressChannel,
) -> SavepointReport:
    """Writes the savepoint of a completed checkpoint, which the caller keeps pinned, to a new directory.

    ``registered`` are the job's descriptors of keyed state by operator uid; what has expired by them is left out.
    The tasks work in ``local_root``, and ``told`` hears of each that has ended; ``sources`` are those of the
    log, in its order. Raises `SavepointExistsError` if
    the directory is not empty, `MissingFileError` or `CorruptFileError` if a file of the checkpoint is absent or of
    another size, which is found before anything is written, and `SavepointError` with the cause if a task fails.
    """
    started_s = time.monotonic()
    batch_id = batch_of(metadata)
    progress = capture_source_progress(spark_checkpoint_directory, batch_id)
    # The checkpoint may be older than the order that the log, and so the savepoint, has its sources in.
    positions = SourcePositions(batch_id=batch_id, offsets=progress[f"offsets/{batch_id}"], sources=sources)
    metadata = evolve(metadata, source_positions=positions)
    source.verify_present(metadata.files)
    target = create_savepoint_directory(path)
    progress_files = write_source_progress(target, progress)
    # Before the export, which may take long: its own metadata is about as large as that of the checkpoint.
    check_metadata_size(
        evolve(
            metadata,
            kind=CheckpointKind.SAVEPOINT,
            source_progress_files=progress_files,
        )
    )
    tasks = export_tasks(metadata, source, target, registered, wall_clock(), local_root)
    try:
        export = _Export(ProgramModules.of_this_process(), told.sender)
        exported = spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(export.run).collect()
    except (PySparkException, Py4JError) as error:
        # An RDD's action raises what Py4J brings, unless Spark recognises it as an exception of its own.
        raise SavepointError(
            f"the savepoint {target.location('')} of epoch {metadata.checkpoint_id} is not complete: "
            f"{python_cause(error)}. Once that is put right, take it again into a new directory"
        ) from error
    return finish_savepoint(metadata, exported, target, progress_files, started_s)


@frozen
class _Export:
    """What a worker does with a task; the modules are those of the serializers that the state names."""

    modules: ProgramModules
    progress: ProgressSender

    def run(self, task: ExportTask) -> ExportedSubtask:
        with naming_missing_modules(f"operator {task.operator_uid!r}"):
            self.modules.install()
            return task.run(self.progress.send)
