"""The environment of a job on Spark: where a program begins, and where it is checked and started.

Everything that can be wrong is found before anything is touched: the graph, the types, what the operators register, the
verdict of every stored snapshot on it, and whether directory, state and parallelism belong together. Only then is the
job directory locked and Spark started.

    <job_dir>/job.json, driver.lock     identity and lock (checkpoint.job_directory)
    <job_dir>/checkpoints/, shared/     completed checkpoints and their files
    <job_dir>/spark/                    Spark's own checkpoint location: offsets and commits of the source
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from checkpoint.completed_checkpoint_store import CompletedCheckpointStore, checkpoint_directory
from checkpoint.file_system import CheckpointFileSystem
from checkpoint.job_directory import JobDirectory
from checkpoint.metadata import METADATA_FILE_NAME, CheckpointMetadata
from checkpoint.savepoint import read_savepoint
from statebackend.backend_registry import state_backend
from statebackend.key_groups import check_parallelism
from statebackend.metrics import StateMetricsConfig
from statebackend.schema_resolution import SchemaReport
from statebackend.state_backend import StateBackend
from streamjobs.data_stream import DataStream
from streamjobs.errors import JobDefinitionError, JobRestoreError, SourceProgressMismatchError
from streamjobs.local_state_root import LocalStateRoot
from streamjobs.restore_plan import RestoredState, check_backend, check_files, check_operators, check_states
from streamjobs.spark.epoch_protocol import SINK, EpochProtocol, JobParts
from streamjobs.spark.job import SparkJob
from streamjobs.spark.pipeline import Pipeline, prepare_pipeline
from streamjobs.spark.session import (
    check_classic_session,
    check_spark_version,
    ensure_python_interpreter,
    is_on_one_host,
)
from streamjobs.spark.source_progress import newest_committed_batch, restore_source_progress
from streamjobs.state_registration import schema_report
from streamjobs.stream_graph import SourceNode, StreamGraph

DEFAULT_MAX_PARALLELISM = 128

RESTORED_FROM = "restored_from_savepoint"
"""The property of a checkpoint that names the savepoint its job began from."""


class SparkStreamEnvironment:
    """Builds one job and starts it.

    ``job_dir`` is the job's own directory (a path or URI), made if it does not exist. ``backend`` is ``"rocksdb"``,
    ``"heap"``, the name of an installed one, or a `StateBackend`. ``parallelism`` may differ from run to run,
    ``max_parallelism`` never. ``local_state_directory`` is where tasks keep working copies of their state, on the
    local disk of each executor (see `streamjobs.local_state_root`); by default below the system's temporary directory.
    ``metrics`` turns metrics of keyed state on (see `SparkJob.metrics`).

    Raises `JobDefinitionError` for a parallelism out of range, `UnsupportedSparkVersionError` for a Spark that is too
    old, `UnsupportedSparkSessionError` for a session of Spark Connect.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        job_dir: str | os.PathLike[str],
        backend: str | StateBackend = "rocksdb",
        parallelism: int = 2,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        retained_checkpoints: int = 3,
        local_state_directory: str | os.PathLike[str] | None = None,
        metrics: StateMetricsConfig | None = None,
    ) -> None:
        try:
            check_parallelism(parallelism, max_parallelism)
        except ValueError as error:
            raise JobDefinitionError(str(error)) from error
        check_classic_session(spark)
        check_spark_version(spark)
        ensure_python_interpreter(spark)
        self.spark = spark
        self.job_dir = os.fspath(job_dir)
        self.backend = state_backend(backend)
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.retained_checkpoints = retained_checkpoints
        self.metrics = metrics
        self._local_state_directory = None if local_state_directory is None else os.fspath(local_state_directory)
        self._graph = StreamGraph()

    def from_dataframe(self, frame: DataFrame) -> DataStream:
        """The stream of a streaming DataFrame: ``spark.readStream...load()``, with any stateless steps."""
        if not isinstance(frame, DataFrame) or not frame.isStreaming:
            raise JobDefinitionError("from_dataframe takes a streaming DataFrame, one made with spark.readStream")
        return DataStream(self._graph, SourceNode(frame))

    def check(
        self, *, from_savepoint: str | os.PathLike[str] | None = None, allow_non_restored_state: bool = False
    ) -> Mapping[str, SchemaReport]:
        """What a start would find, without starting or touching anything: the verdicts by operator uid.

        What is judged is what `execute` would continue from: the newest checkpoint of the job directory, or the
        savepoint where there is none. Raises as `execute` would, except that incompatible state is in the reports and
        not an error.
        """
        pipeline = self._prepare()
        savepoint = self._read_savepoint(from_savepoint)
        latest = self._read_latest(savepoint)
        if latest is not None:
            _check_same_savepoint(latest.metadata, savepoint, self.job_dir)
        return self._judge(pipeline, latest or savepoint, allow_non_restored_state)

    def execute(
        self,
        name: str,
        *,
        trigger: Mapping[str, Any] | None = None,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        restore_source_progress: bool = True,
    ) -> SparkJob:
        """Starts the job, or continues it from the newest checkpoint of its directory.

        ``trigger`` holds the arguments of Spark's ``DataStreamWriter.trigger``, such as ``{"availableNow": True}``.
        ``from_savepoint`` begins a new job directory from a savepoint, and at the source position that the savepoint
        carries unless ``restore_source_progress`` is False. A directory that was begun from that same savepoint just
        continues.

        Raises, before anything is touched, `JobDefinitionError`, `JobRestoreError`, `StateMigrationException` (stored
        state cannot be taken over), `JobDirectoryError` (another job's, or another driver is running),
        `SourceProgressMismatchError` (Spark's log knows of an epoch whose checkpoint is missing).
        """
        if trigger is not None and not isinstance(trigger, Mapping):
            raise JobDefinitionError(
                f"trigger is {trigger!r:.80}; it takes the arguments of Spark's trigger as a dict, such as "
                f'{{"processingTime": "1 second"}} or {{"availableNow": True}}'
            )
        pipeline = self._prepare()
        JobDirectory.check(self.job_dir, name, self.max_parallelism)
        savepoint = self._read_savepoint(from_savepoint)
        latest = self._read_latest(savepoint)
        if latest is not None:
            _check_same_savepoint(latest.metadata, savepoint, self.job_dir)
        elif savepoint is not None and restore_source_progress:
            _check_has_source_progress(savepoint)
        # A directory that was begun from the savepoint has gone on since: what counts is what it holds now.
        reports = self._require_compatible(pipeline, latest or savepoint, allow_non_restored_state)
        directory = JobDirectory.open(self.job_dir, name, self.max_parallelism)
        try:
            return self._start(
                name, directory, pipeline, savepoint, reports, dict(trigger or {}), restore_source_progress
            )
        except BaseException:
            directory.close()
            raise

    def _prepare(self) -> Pipeline:
        return prepare_pipeline(self.spark, self._graph.pipeline(), self.parallelism, self.max_parallelism)

    def _read_savepoint(self, path: str | os.PathLike[str] | None) -> RestoredState | None:
        if path is None:
            return None
        file_system, metadata = read_savepoint(os.fspath(path))
        return RestoredState(metadata, file_system)

    def _read_latest(self, savepoint: RestoredState | None) -> RestoredState | None:
        if JobDirectory.inspect(self.job_dir) is None:
            return None
        file_system = CheckpointFileSystem.from_uri(self.job_dir)
        # In this order: a driver that is still running completes an epoch before Spark commits its batch.
        committed = newest_committed_batch(_child(self.job_dir, "spark"))
        newest = CompletedCheckpointStore.peek(file_system)
        # Without a checkpoint, a job that begins from a savepoint begins Spark's log anew.
        if newest is not None or savepoint is None:
            _check_has_epoch(committed, newest, file_system)
        return None if newest is None else RestoredState(newest, file_system)

    def _judge(
        self, pipeline: Pipeline, restored: RestoredState | None, allow_non_restored_state: bool
    ) -> Mapping[str, SchemaReport]:
        if restored is None:
            return {}
        check_operators(restored, list(pipeline.operators), self.max_parallelism, allow_non_restored_state)
        check_backend(restored, self.backend)
        check_files(restored, pipeline.operators)
        reports: dict[str, SchemaReport] = {}
        for operator in pipeline.operators.values():
            metas = restored.keyed_metas_of(operator.uid)
            if metas:
                report = schema_report(
                    operator.uid,
                    operator.key_serializer,
                    operator.states,
                    metas,
                    restored.operator_state_metas_of(operator.uid),
                )
                check_states(report, allow_non_restored_state)
                reports[operator.uid] = report
        return reports

    def _require_compatible(
        self, pipeline: Pipeline, restored: RestoredState | None, allow_non_restored_state: bool
    ) -> Mapping[str, SchemaReport]:
        reports = self._judge(pipeline, restored, allow_non_restored_state)
        for report in reports.values():
            report.raise_if_incompatible()
        return reports

    def _start(
        self,
        name: str,
        directory: JobDirectory,
        pipeline: Pipeline,
        savepoint: RestoredState | None,
        reports: Mapping[str, SchemaReport],
        trigger: dict[str, Any],
        with_source_progress: bool,
    ) -> SparkJob:
        file_system = directory.file_system
        store = CompletedCheckpointStore(file_system, self.retained_checkpoints)
        latest = store.recover()
        store.delete_orphans()
        spark_directory = _child(self.job_dir, "spark")
        restored = RestoredState(latest, file_system) if latest is not None else None
        properties: dict[str, str] = {}
        if latest is not None:
            properties = {key: value for key, value in latest.properties.items() if key == RESTORED_FROM}
            _check_same_savepoint(latest, savepoint, self.job_dir)
        elif savepoint is not None:
            restored = savepoint
            properties = {RESTORED_FROM: _identity_of(savepoint)}
            # Without a completed checkpoint there is nothing of this job's own in Spark's log yet.
            file_system.delete_directory("spark")
            if with_source_progress:
                restore_source_progress(savepoint.metadata.source_progress, spark_directory)
        local_root = self._local_root(directory)
        if is_on_one_host(self.spark):
            # The tasks would clear up and refuse as well, but later.
            with local_root.open(self.parallelism):
                pass
        parts = JobParts(
            identity=directory.identity,
            run_id=directory.run_id,
            pipeline=pipeline,
            sink=pipeline.sink,
            backend=self.backend,
            parallelism=self.parallelism,
            file_system=file_system,
            store=store,
            spark_checkpoint_directory=spark_directory,
            local_root=local_root,
            properties=properties,
            metrics=self.metrics,
        )
        protocol = EpochProtocol(parts, restored)
        if latest is None and savepoint is not None and not with_source_progress:
            protocol.forget_source_progress()
        # What another job has staged up to the savepoint is not ours to remove.
        pipeline.sink.recover(protocol.last_epoch_id)
        if latest is not None and SINK in latest.sink_committables:
            pipeline.sink.commit(latest.checkpoint_id, latest.sink_committables[SINK])
        writer = (
            pipeline.source.writeStream.queryName(name)
            .option("checkpointLocation", spark_directory)
            .foreachBatch(protocol.run)
        )
        if trigger:
            writer = writer.trigger(**trigger)
        return SparkJob(self.spark, directory, protocol, reports, writer.start())

    def _local_root(self, directory: JobDirectory) -> LocalStateRoot:
        # One directory for all users would belong to the first of them.
        default = os.path.join(tempfile.gettempdir(), f"statebackend-{os.getuid()}")
        given = self._local_state_directory
        return LocalStateRoot(
            path=default if given is None else given if given.startswith("$") else os.path.abspath(given),
            is_given=given is not None,
            job_id=directory.identity.job_id,
            job_directory=directory.file_system.uri,
            began_s=time.time(),
        )


def _check_has_epoch(
    committed: int | None, newest: CheckpointMetadata | None, file_system: CheckpointFileSystem
) -> None:
    """Raises `SourceProgressMismatchError` if Spark knows a batch to be completed whose checkpoint is not there.

    Spark commits a batch after its epoch. To go on from an older checkpoint would remove the files of the missing one.
    """
    if committed is None or (newest is not None and newest.checkpoint_id >= committed):
        return
    there_is = "there is no checkpoint at all" if newest is None else f"the newest checkpoint is {newest.checkpoint_id}"
    raise SourceProgressMismatchError(
        f"Spark's source log {file_system.location('spark')} says that batch {committed} is completed, but "
        f"{file_system.location(f'{checkpoint_directory(committed)}/{METADATA_FILE_NAME}')} is missing "
        f"({there_is}). Nothing was touched. Put the file back from a backup, or start from a savepoint in a new job "
        f"directory; a job that was begun from a savepoint and has completed no epoch yet needs the same "
        f"from_savepoint again"
    )


def _check_same_savepoint(latest: CheckpointMetadata, savepoint: RestoredState | None, job_dir: str) -> None:
    if savepoint is not None and latest.properties.get(RESTORED_FROM) != _identity_of(savepoint):
        raise JobRestoreError(
            f"the job directory {job_dir} has checkpoints of its own (the newest is {latest.checkpoint_id}), which do "
            f"not come from the savepoint {savepoint.file_system.location('')}. Start without from_savepoint to "
            f"continue them, or use a new job directory to begin from the savepoint"
        )


def _check_has_source_progress(savepoint: RestoredState) -> None:
    if not savepoint.metadata.source_progress:
        raise JobRestoreError(
            f"the savepoint {savepoint.file_system.location('')} does not say how far its source was read: it was not "
            f"taken of a job on Spark. Pass restore_source_progress=False to take its state and read the source from "
            f"the beginning"
        )


def _identity_of(savepoint: RestoredState) -> str:
    metadata = savepoint.metadata
    return f"{metadata.job_id}/{metadata.checkpoint_id}/{metadata.timestamp_ms}"


def _child(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}" if "://" in directory else os.path.join(os.path.abspath(directory), name)
