"""The environment of a job on Spark: it builds, checks and starts the job.

A start first checks everything without changing anything: the graph, the types, the registered states, their
compatibility with the stored snapshots, and whether directory, state and parallelism belong together. Then it locks the
job directory and starts Spark.

    <job_dir>/job.json, driver.lock     identity and lock (statebackend.checkpoint.store.job_directory)
    <job_dir>/checkpoints/, shared/     completed checkpoints and their files
    <job_dir>/no-data-epoch.json           the open no-data epoch (statebackend.checkpoint.store.job_files)
    <job_dir>/spark/                    Spark's own checkpoint location: offsets and commits of the sources

The last two are driver files: with high availability, or a directory of their own, they are elsewhere
(statebackend.checkpoint.store.driver_files).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from migration import EvolutionRules
from snapshots.loggers import logger_of
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import is_uri, scheme_of, without_secrets
from statebackend.checkpoint.ha.leadership import raising_root_cause
from statebackend.checkpoint.ha.object_store import default_services
from statebackend.checkpoint.ha.services import JobRecords, JobServices
from statebackend.checkpoint.metadata import CheckpointMetadata, ReadSource
from statebackend.checkpoint.store.checkpoint_directories import METADATA_FILE_NAME
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import IMPORTED_DIRECTORY, JobDirectory, read_origin
from statebackend.checkpoint.store.job_files import end_no_data_epoch
from statebackend.checkpoint.store.savepoint_directory import read_savepoint
from statebackend.spark.epoch_driver import EpochDriver, JobParts, is_output_pending
from statebackend.spark.foreign_state import SPARK_QUERY, SparkCheckpoint, processor_plan
from statebackend.spark.job import SparkJob
from statebackend.spark.no_data_epochs import EmptyBatch, NoDataEpochs
from statebackend.spark.plans.pipeline import Pipeline, prepare_pipeline
from statebackend.spark.plans.placement import locality_advice
from statebackend.spark.query import Timeout, start_query, timeout_seconds
from statebackend.spark.rollback import check_log, planned_roll_back, roll_back
from statebackend.spark.session import (
    ALLOWED_TIMES,
    check_classic_session,
    check_spark_version,
    check_time_zone,
    configured,
    end_with_program,
    ensure_python_interpreter,
    is_on_one_host,
)
from statebackend.spark.sources.micro_batches import frame_of
from statebackend.spark.sources.offset_log import (
    SOURCE_LOG_DIRECTORY,
    SourceLogPlan,
    end_interrupted_rearrangement,
    planned_source_log,
    source_log_directory,
)
from statebackend.spark.sources.progress import newest_committed_batch
from statebackend.spark.sources.source_identity import (
    check_sources_named,
    check_trigger,
    read_schemas,
    read_sources,
    watermark_of_frame,
)
from statebackend.spark.tasks.program_pickles import unpickled
from statebackend.state.key_groups import DEFAULT_MAX_PARALLELISM
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.private_directory import default_local_root
from statebackend.state.state_backend import StateBackend
from statebackend.streaming.compatibility_check import SchemaReports
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.errors import JobDefinitionError, JobRestoreError, format_instance
from statebackend.streaming.observing.job_events import LoggedProgress
from statebackend.streaming.output_tag import check_uid
from statebackend.streaming.rows.record_schema import output_schema
from statebackend.streaming.runtime.checkpoint_writing import batch_of
from statebackend.streaming.runtime.job_start import (
    Engine,
    LockedStart,
    check_written_by,
)
from statebackend.streaming.runtime.local_state_root import LocalStateRoot, given_local_root
from statebackend.streaming.runtime.restore_plan import delete_restore_plans
from statebackend.streaming.runtime.settings import (
    check_whole_numbers,
    is_instance_of,
    warn_of_blocked_timers,
)
from statebackend.streaming.runtime.starting_point import (
    StartingPoint,
    check_has_every_epoch,
    check_no_roll_back,
    starting_point,
)
from statebackend.streaming.stateful_processor import StatefulProcessorFunction
from statebackend.streaming.stream_environment import StartOptions, StreamEnvironment
from statebackend.streaming.stream_graph import MicroBatchSource, SourceNode

_log = logger_of(__name__)


class SparkStreamEnvironment(StreamEnvironment[Pipeline]):
    """Builds one job and starts it.

    Args:
        spark: A classic Spark session.
        job_dir: The directory of the job, created if it does not exist: on a disk that the driver and all workers
            share (a path, or a ``file:///`` URI), or on an object store (``s3://bucket/path``).
        backend: ``"rocksdb"``, ``"heap"``, the name of an installed backend, or a `StateBackend`.
        parallelism: The number of subtasks of each operator; may differ from run to run.
        max_parallelism: The number of key groups; never changes.
        retained_checkpoints: How many completed checkpoints are kept.
        local_state_directory: Where tasks keep working copies of their state, on the local disk of each executor (see
            `statebackend.streaming.runtime.local_state_root`). Default: below the system's temporary directory.
        metrics: Turns on metrics of keyed state (see `SparkJob.metrics`).
        rules: The compatibility rules and conversions of restored state. Default: those of this library.
        epoch_timeout_s: An epoch that takes longer is aborted, and the job fails: seconds, or a text such as
            "5 minutes". None: no limit.
        high_availability: How the drivers of the job elect a leader, such as `ZooKeeperHighAvailability`. Default: a
            lock file in the job directory, or a lease on the object store; a second driver is rejected.
        spark_log_directory: Where Spark keeps its own log of the job: a disk that every driver of the job can read.
            Default: in the job directory, which then cannot be on an object store.

    Raises:
        JobDefinitionError: A setting is invalid.
        UnsupportedSparkVersionError: Spark is too old.
        UnsupportedSparkSessionError: The session is one of Spark Connect.
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
        rules: EvolutionRules | None = None,
        epoch_timeout_s: Timeout | None = None,
        high_availability: JobServices | None = None,
        spark_log_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            backend=backend,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            metrics=metrics,
            rules=rules,
            high_availability=high_availability,
        )
        check_whole_numbers({"retained_checkpoints": retained_checkpoints})
        try:
            self.epoch_timeout_s = timeout_seconds("epoch_timeout_s", epoch_timeout_s)
        except ValueError as error:
            raise JobDefinitionError(str(error)) from error
        check_classic_session(spark)
        check_spark_version(spark)
        ensure_python_interpreter(spark)
        end_with_program(spark)
        self.spark = spark
        self.job_dir = os.fspath(job_dir)
        self.retained_checkpoints = retained_checkpoints
        self._services = _services(self.job_dir, high_availability, spark_log_directory)
        self._local_state_directory = None if local_state_directory is None else os.fspath(local_state_directory)
        self._sources: list[SourceNode] = []
        self._streams: dict[SourceNode, DataStream] = {}

    def from_dataframe(self, frame: DataFrame, *, uid: str | None = None) -> DataStream:
        """Return the stream of a streaming DataFrame, made with ``spark.readStream`` and stateless steps.

        A second call with the same frame returns the same stream. ``withWatermark`` on the frame acts as
        `DataStream.assign_timestamps_and_watermarks`.

        Args:
            frame: The streaming DataFrame.
            uid: The permanent name under which checkpoints and savepoints store the position and event time of the
                source. Required if the job has several sources; a job's only source is stored as ``source`` without it.

        Raises:
            JobDefinitionError: The uid is invalid or used twice, or ``withWatermark`` cannot be used (see
                `statebackend.spark.sources.source_identity`).
        """
        if not isinstance(frame, DataFrame) or not frame.isStreaming:
            raise JobDefinitionError("from_dataframe takes a streaming DataFrame, one made with spark.readStream")
        known = (node for node in self._sources if node.source is frame)
        node = next(known, None)
        if node is None:
            strategy = watermark_of_frame(frame)
            node = SourceNode(frame, uid)
            stream = DataStream(self._graph, self._graph.add_source(node))
            self._sources.append(node)
            self._streams[node] = stream if strategy is None else stream.assign_timestamps_and_watermarks(strategy)
        elif uid not in (None, node.uid):
            raise JobDefinitionError(
                f"from_dataframe got the same frame with uid={node.uid!r} and with uid={uid!r}: it is one source, so "
                f"give it one uid"
            )
        return self._streams[node]

    def from_source(
        self, source: MicroBatchSource, schema: Any, *, uid: str, epoch_size: int | None = None
    ) -> DataStream:
        """Return the stream of a source that needs no jar, such as `statebackend.connectors.KafkaSource`.

        Checkpoints and savepoints have the positions of its splits under ``uid``, and a start continues from them.

        Args:
            source: The source.
            schema: The columns of its records: DDL, a record class or a ``StructType``.
            uid: The permanent name of the source.
            epoch_size: The maximum number of records of the source in one epoch. None: all that there are.

        Raises:
            JobDefinitionError: The object is no such source, the schema or the uid is invalid, or Spark is older than
                4.2.
        """
        if not is_instance_of(source, MicroBatchSource):
            raise JobDefinitionError(
                f"from_source was given {format_instance(source)}, which is no MicroBatchSource "
                f"(statebackend.streaming). Read it with spark.readStream and from_dataframe"
            )
        check_whole_numbers({"epoch_size": epoch_size})
        if epoch_size is not None and epoch_size < 1:
            raise JobDefinitionError(f"epoch_size is {epoch_size}; it takes at least 1 record")
        check_uid("source", "from_source", "how far it is read", uid)
        declared = output_schema(schema, "from_source", "pass it as the second argument")
        self._split_sources.add(uid)
        return self.from_dataframe(frame_of(self.spark, source, declared, epoch_size), uid=uid)

    def execute(
        self,
        name: str,
        *,
        trigger: Mapping[str, Any] | None = None,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        restore_source_progress: bool | Mapping[str, bool] = True,
        allow_dropped_sources: Collection[str] = (),
        roll_back_to: int | Literal["previous"] | None = None,
        from_spark_checkpoint: str | os.PathLike[str] | None = None,
    ) -> SparkJob:
        """Start the job, or continue it from the newest checkpoint of its directory.

        Args:
            name: The name of the job.
            trigger: The arguments of Spark's ``DataStreamWriter.trigger``, such as ``{"availableNow": True}``.
            from_savepoint: A savepoint that a new job directory starts from. A directory that started from this
                savepoint continues.
            allow_non_restored_state: Accept stored state that the job does not register. It is lost.
            restore_source_progress: Whether to continue at the source positions of the savepoint; a dict decides by
                uid, such as ``{"flights": False}``.
            allow_dropped_sources: Uids of sources that the state has read and the job no longer has. Their remaining
                records are lost. A new source starts as Spark starts it; the others continue, in any order.
            roll_back_to: An older checkpoint of the directory to continue from: its id, or "previous" for the newest
                readable one before the newest. Later epochs are set aside, hidden by sinks that can, and processed
                again; see `SparkJob.roll_back_report`.
            from_spark_checkpoint: The checkpoint directory of a query of Spark with ``transformWithState``, which this
                job continues after the last committed batch. The query must not run any more. The first start imports
                its state into the job directory; later starts continue from there.

        Returns:
            The running job.

        Raises:
            JobDefinitionError: The job is invalid. This and the following are raised before anything changes.
            JobRestoreError: The job does not fit the state.
            StateMigrationException: Stored state is incompatible.
            JobDirectoryError: The directory belongs to another job, or another driver is running.
            SourceProgressMismatchError: The checkpoint of an epoch in Spark's log is missing.
            SavepointError, PlanError: ``from_spark_checkpoint`` cannot be read, or does not fit the job.
        """
        pipeline = self._prepare()
        check_trigger(pipeline.source, trigger)
        check_sources_named(pipeline.graph.source_uids, restore_source_progress, allow_dropped_sources)
        sources = read_sources(pipeline.graph, pipeline.source)
        if from_spark_checkpoint is not None:
            if from_savepoint is not None:
                raise JobDefinitionError("pass from_savepoint or from_spark_checkpoint, not both")
            JobDirectory.check(self.job_dir, name, self.max_parallelism)
            from_savepoint = self._imported(name, pipeline, sources, from_spark_checkpoint, allow_non_restored_state)
        schemas = read_schemas(pipeline.source)

        def check(records: JobRecords, point: StartingPoint) -> None:
            self._check_name(name)
            planned_source_log(records.driver_files, point, sources, allow_dropped_sources, schemas)
            self._check_sink(pipeline, point, records.driver_files)

        options = StartOptions(
            from_savepoint=from_savepoint,
            allow_non_restored_state=allow_non_restored_state,
            roll_back_to=roll_back_to,
            restore_source_progress=restore_source_progress,
        )
        start = self._locked_start(name, pipeline, options, check)
        try:
            with raising_root_cause(start.directory.leadership):
                driver_files = start.records.driver_files
                source_log = planned_source_log(driver_files, start.point, sources, allow_dropped_sources, schemas)
                return self._start(name, start, pipeline, source_log, dict(trigger or {}), roll_back_to)
        except BaseException:
            start.directory.close()
            raise

    def _imported(
        self,
        name: str,
        pipeline: Pipeline,
        sources: tuple[ReadSource, ...],
        path: str | os.PathLike[str],
        allow_non_restored_state: bool,
    ) -> str | None:
        """Import the checkpoint of a query of Spark, unless an earlier start has.

        Returns the savepoint to start from. None if it was deleted: the job then continues from its own checkpoints.
        """
        files = CheckpointFileSystem.from_uri(self.job_dir)
        target = files.location(IMPORTED_DIRECTORY)
        checkpoint = SparkCheckpoint(self.spark, path)
        if files.exists(f"{IMPORTED_DIRECTORY}/{METADATA_FILE_NAME}"):
            _, metadata = read_savepoint(target)
            if metadata.properties.get(SPARK_QUERY) != checkpoint.query_id:
                raise JobRestoreError(
                    f"the job directory {files.uri} was started from another query of Spark than that of "
                    f"{checkpoint.location}. Use a new job directory"
                )
            return target
        origin = read_origin(files)
        if origin is not None and origin.savepoint_uri == CheckpointFileSystem.from_uri(target).uri:
            return None
        if JobDirectory.inspect(self.job_dir) is not None:
            raise JobRestoreError(
                f"the job directory {files.uri} was not started from {checkpoint.location}. Start without "
                f"from_spark_checkpoint to continue it, or use a new job directory"
            )
        # An import that was killed has left files without metadata.
        files.delete_directory(IMPORTED_DIRECTORY)
        processors = {
            uid: unpickled(one.function_pickle)
            for uid, one in pipeline.operators.items()
            if isinstance(one.node.function, StatefulProcessorFunction)
        }
        plan = processor_plan(checkpoint, processors, allow_non_restored_state=allow_non_restored_state)
        checkpoint.write(
            target,
            plan,
            sources=[one.uid or "" for one in sources],
            max_parallelism=self.max_parallelism,
            job_name=name,
        )
        return target

    def _prepare(self) -> Pipeline:
        check_time_zone(self.spark)
        with configured(self.spark, ALLOWED_TIMES):
            return prepare_pipeline(self.spark, self._graph.job(), self.parallelism, self.max_parallelism)

    def _starting_point(self, records: JobRecords, options: StartOptions) -> StartingPoint:
        roll_back_to, progress = options.roll_back_to, options.restore_source_progress
        file_system, driver_files = records.file_system, records.driver_files
        # Where a crash may have left it.
        source_log = _local_path(driver_files, source_log_directory(driver_files))
        if roll_back_to is not None:
            _, target = planned_roll_back(records.pointers.find(), driver_files, source_log, roll_back_to)
            check_written_by(target, Engine.SPARK, driver_files)
            return starting_point(file_system, target, options.from_savepoint, progress, self._split_sources)
        check_no_roll_back(driver_files)
        # In this order: a driver that is still running completes an epoch before Spark commits its batch.
        committed = newest_committed_batch(source_log)
        found = records.pointers.find()
        newest = found.newest()
        check_written_by(newest, Engine.SPARK, driver_files)
        point = starting_point(file_system, newest, options.from_savepoint, progress, self._split_sources)
        check_has_every_epoch(point, committed, driver_files)
        if not point.is_new_origin:
            check_log(found, source_log)
        return point

    def _may_be_uncommitted(self, newest: CheckpointMetadata, driver_files: CheckpointFileSystem) -> bool:
        """Whether output of the newest checkpoint may not be committed.

        Spark records committed batches. A file of the job records the no-data epoch after them.
        """
        committed = newest_committed_batch(_local_path(driver_files, SOURCE_LOG_DIRECTORY))
        is_batch_done = committed is not None and committed >= batch_of(newest)
        return not is_batch_done or is_output_pending(driver_files, newest)

    def _check_sink(self, pipeline: Pipeline, point: StartingPoint, driver_files: CheckpointFileSystem) -> None:
        own = point.own_checkpoint
        if own is not None and self._may_be_uncommitted(own, driver_files):
            pipeline.sinks.check_commits(own)

    def _check_name(self, name: str) -> None:
        if any(query.name == name for query in self.spark.streams.active):
            raise JobDefinitionError(
                f"a query named {name!r} is running in this Spark session: give this job another name, or stop the "
                f"other one first"
            )

    def _start(
        self,
        name: str,
        start: LockedStart[SchemaReports],
        pipeline: Pipeline,
        source_log: SourceLogPlan,
        trigger: dict[str, Any],
        roll_back_to: int | str | None,
    ) -> SparkJob:
        directory, point, driver_files = start.directory, start.point, start.records.driver_files
        file_system, leadership, pointers = directory.file_system, directory.leadership, start.records.pointers
        # Spark follows links, waits for pipes, and deletes old files of its log.
        driver_files.check_regular(SOURCE_LOG_DIRECTORY)
        spark_directory = _local_path(driver_files, SOURCE_LOG_DIRECTORY)
        store = CompletedCheckpointStore(file_system, pointers, self.retained_checkpoints, leadership=leadership)
        end_interrupted_rearrangement(driver_files)
        rolled_back = None
        if roll_back_to is not None:
            planned, _ = planned_roll_back(pointers.find(), driver_files, spark_directory, roll_back_to)
            job_id = directory.identity.job_id
            rolled_back = roll_back(driver_files, spark_directory, store, pipeline.sinks, job_id, planned)
        latest = store.recover()
        store.delete_orphans()
        delete_restore_plans(file_system, leadership)
        source_log.carry_out(driver_files, point, file_system)
        local_root = self._local_root(directory)
        if is_on_one_host(self.spark):
            # The tasks also clean up and reject the directory, but later.
            with local_root.open(self.parallelism):
                pass
        advice = locality_advice(self.spark)
        if advice is not None:
            _log.warning("job %r: %s", name, advice)
        warn_of_blocked_timers(pipeline.time.event_time, name)
        parts = JobParts(
            identity=directory.identity,
            run_id=directory.run_id,
            pipeline=pipeline,
            sinks=pipeline.sinks,
            backend=self.backend,
            parallelism=self.parallelism,
            file_system=file_system,
            driver_files=driver_files,
            leadership=leadership,
            store=store,
            spark_checkpoint_directory=spark_directory,
            local_root=local_root,
            sources=source_log.now,
            restored_from=point.restored_from,
            metrics=self.metrics,
            rules=self.rules,
            epoch_timeout_s=self.epoch_timeout_s,
            schema_reports=start.compatibility,
            listeners=self._listeners.of_job(LoggedProgress()),
        )
        empty_batch = EmptyBatch(self.spark, pipeline.source.schema)
        driver = EpochDriver(parts, source_log.state(point.state), self.spark.sparkContext, empty_batch)
        try:
            # Emit `started` first, so that no listener sees only `terminated`.
            driver.recorder.started()
            if point.restarts_every_source:
                driver.forget_source_progress()
            # A former leader must not remove what the new one has staged.
            leadership.check()
            pipeline.sinks.recover(driver.last_epoch_id, directory.identity.job_id, point.restored_from)
            if latest is not None and self._may_be_uncommitted(latest, driver_files):
                pipeline.sinks.commit_again(latest)
                if is_output_pending(driver_files, latest):
                    end_no_data_epoch(driver_files)
            query = start_query(pipeline.source, name, spark_directory, driver.run, trigger)
            no_data_epochs = NoDataEpochs(self.spark, driver, query, trigger)
            return SparkJob(self.spark, directory, driver, start.compatibility, query, no_data_epochs, rolled_back)
        except BaseException as error:
            driver.recorder.terminated(error)
            # The broadcast would otherwise stay as long as the session.
            driver.close()
            raise

    def _local_root(self, directory: JobDirectory) -> LocalStateRoot:
        given = self._local_state_directory
        return LocalStateRoot(
            path=default_local_root() if given is None else given_local_root(given),
            is_given=given is not None,
            job_id=directory.identity.job_id,
            job_directory=directory.file_system.uri,
            began_s=time.time(),
        )


def _local_path(file_system: CheckpointFileSystem, path: str) -> str:
    local_path = file_system.local_path(path)
    assert local_path is not None
    return local_path


def _services(
    job_dir: str, given: JobServices | None, spark_log_directory: str | os.PathLike[str] | None
) -> JobServices:
    """The services of the job, with the directory of Spark's log, on which Spark and this library must agree."""
    # Do not connect to another store only to learn that it is not a disk.
    is_elsewhere = is_uri(job_dir) and scheme_of(job_dir) != "file"
    if spark_log_directory is None:
        if is_elsewhere or CheckpointFileSystem.from_uri(job_dir).local_path() is None:
            raise JobDefinitionError(
                f"job_dir is {without_secrets(job_dir)!r}, which is not on a local or mounted disk. Spark's own log of "
                f"the job must be on one: pass spark_log_directory, a path that every driver of the job can read"
            )
        return given or default_services(job_dir)
    log_directory = os.fspath(spark_log_directory)
    is_log_elsewhere = is_uri(log_directory) and scheme_of(log_directory) != "file"
    path = None if is_log_elsewhere else CheckpointFileSystem.from_uri(log_directory).local_path()
    if path is None:
        raise JobDefinitionError(
            f"spark_log_directory is {without_secrets(log_directory)!r}; it is a path on a local or mounted disk"
        )
    return (given or default_services(job_dir)).with_driver_directory(path)
