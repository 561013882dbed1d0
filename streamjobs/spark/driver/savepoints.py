"""Savepoints of a Spark job: the export runs as a Spark job of its own, one task per subtask.

The caller pins the checkpoint meanwhile, so that epochs go on and their clean-up does not take its files. The savepoint
also carries Spark's source progress as of that epoch; `streamjobs.spark.sources.source_progress` knows which of Spark's
files that is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from attrs import evolve, frozen
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from checkpointing.errors import SavepointError
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.metadata.checkpoint_sections import ReadSource, SourcePositions
from checkpointing.metadata.metadata_bytes import check_metadata_size
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.savepoint_directory import create_savepoint_directory, write_source_progress
from savepoints.export import SavepointReport, export_tasks, finish_savepoint
from savepoints.handle_export import ExportedSubtask, ExportTask
from statebackend import StateDescriptor
from statebackend.api.clock import wall_clock
from streamjobs.runtime.checkpoint_writing import batch_of
from streamjobs.runtime.local_state_root import LocalStateRoot
from streamjobs.spark.driver.worker_errors import python_cause
from streamjobs.spark.sources.source_progress import capture_source_progress
from streamjobs.spark.tasks.program_modules import ProgramModules, naming_missing_modules
from streamjobs.spark.tasks.progress_channel import ProgressChannel, ProgressSender


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
            source_progress={},
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
