"""Savepoints of a Spark job: the export runs as a Spark job of its own, one task per subtask.

The caller pins the checkpoint meanwhile, so that epochs go on and their clean-up does not take its files. The savepoint
also carries Spark's source progress as of that epoch; `streamjobs.spark.source_progress` knows which of Spark's files
that is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from checkpoint.file_system import CheckpointFileSystem
from checkpoint.metadata import CheckpointMetadata
from checkpoint.savepoint import create_savepoint_directory
from statebackend.clock import wall_clock
from statebackend.descriptors import StateDescriptor
from streamjobs.savepoint_export import ExportTask, SavepointReport, export_tasks, finish_savepoint
from streamjobs.spark.source_progress import capture_source_progress


def take_savepoint(
    spark: SparkSession,
    metadata: CheckpointMetadata,
    source: CheckpointFileSystem,
    spark_checkpoint_directory: str,
    path: str | os.PathLike[str],
    registered: Mapping[str, Iterable[StateDescriptor]],
) -> SavepointReport:
    """Writes the savepoint of a completed checkpoint, which the caller keeps pinned, to a new directory.

    ``registered`` are the job's descriptors of keyed state by operator uid; what has expired by them is left out.
    Raises `SavepointExistsError` if the directory is not empty.
    """
    started_s = time.monotonic()
    progress = capture_source_progress(spark_checkpoint_directory, metadata.checkpoint_id)
    target = create_savepoint_directory(path)
    tasks = export_tasks(metadata, source, target, registered, wall_clock())
    exported = spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(ExportTask.run).collect()
    return finish_savepoint(metadata, exported, target, progress, started_s)
