"""The environment of the local runtime: it runs a job without a JVM.

A program for Spark runs over a list of elements or a replayable source. Records between operators are rows of the
declared schemas, and state behaves as in production: a value that was changed without an update is as it was stored,
and restored state is migrated. Elements are divided into epochs, each of which ends with a checkpoint; the sinks get
its results after it. Subtasks stay open for the whole run. Without a schema, columns of event time and types of keys
are checked when the records arrive.

A rollback to an older checkpoint has these steps. After a crash, only a start that repeats it (or goes back further)
is possible, because a start from the newest checkpoint would continue without the output that sinks have hidden:

    rollback.json    written first
    the sinks         hide the output of later epochs, if they can
    set-aside/        the newer checkpoints, the newest first
    rollback.json    removed last

If no sink can roll back, there is no such moment, and no file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from migration import EvolutionRules
from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.coordinator.requests import CheckpointLimits, FailurePolicy
from statebackend.checkpoint.errors import InvariantViolationError
from statebackend.checkpoint.ha.leadership import raising_root_cause
from statebackend.checkpoint.ha.object_store import default_services
from statebackend.checkpoint.ha.services import JobRecords, JobServices
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.completed_checkpoint_store import (
    CompletedCheckpointStore,
)
from statebackend.checkpoint.store.job_directory import JobDirectory, write_origin
from statebackend.checkpoint.store.job_files import (
    NO_SOURCE_LOG,
    Rollback,
    end_roll_back,
    read_roll_back,
)
from statebackend.local.graph import ElementSource, PreparedGraph, rows_of
from statebackend.local.job_parts import CheckpointSettings, LocalProgram
from statebackend.local.network.channel import DEFAULT_CAPACITY
from statebackend.local.network.network import DownstreamFirst, Scheduler
from statebackend.local.network.subtasks import OutputListener
from statebackend.local.run import LocalJob, LocalRun
from statebackend.local.sinks import LocalSinks, check_sinks
from statebackend.local.source import ArrowRows, ReplayedSource
from statebackend.local.source_reading import read_all
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.clock import Clock, wall_clock
from statebackend.state.key_groups import DEFAULT_MAX_PARALLELISM
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.observing.job_events import LoggedProgress
from statebackend.streaming.operators.record_function import paused_garbage_collection
from statebackend.streaming.output_tag import check_uid
from statebackend.streaming.rows.declared_schema import schema_of_arrow
from statebackend.streaming.rows.record_copies import copied_records
from statebackend.streaming.rows.record_schema import output_schema
from statebackend.streaming.runtime.event_time import EventTime, whole_milliseconds
from statebackend.streaming.runtime.job_start import Engine, check_written_by
from statebackend.streaming.runtime.settings import (
    TIMESTAMP_TYPES,
    check_whole_numbers,
    is_instance_of,
    unfit_column,
    unfit_type,
    warn_of_blocked_timers,
)
from statebackend.streaming.runtime.starting_point import (
    StartingPoint,
    check_no_roll_back,
    check_restored_progress,
    roll_back_target,
    starting_point,
)
from statebackend.streaming.stream_environment import StartOptions, StreamEnvironment
from statebackend.streaming.stream_graph import DataFrameNode, ReplayableSource, SourceNode
from statebackend.streaming.time.timestamps import Duration, duration_ms


class LocalStreamEnvironment(StreamEnvironment[LocalProgram]):
    """Builds one job and runs it on the local runtime.

    Args:
        job_dir: The job directory. Without it, checkpoints are in a temporary directory, which exists as long as the
            environment or one of its jobs.
        backend: The state backend, or its name.
        parallelism: The number of subtasks of each operator.
        max_parallelism: The number of key groups.
        epoch_size: An epoch, and so a checkpoint, ends after so many elements of a source. Without it, all elements
            are one epoch.
        checkpoint_interval: Take checkpoints by the clock instead, while records are processed. Threads write state.
        checkpointing_mode: ``"exactly_once"`` or ``"at_least_once"``, in which channels do not wait at barriers.
        unaligned_checkpoints: Barriers overtake records, which become part of the checkpoint.
        aligned_checkpoint_timeout: Barriers overtake only after this time.
        max_concurrent_checkpoints: The number of checkpoints that may be in progress.
        min_pause_between_checkpoints: The time from the end of a checkpoint to the start of the next one.
        checkpoint_timeout: A checkpoint that takes longer is aborted.
        tolerable_failed_checkpoints: So many checkpoints in a row may fail; one more fails the job.
        metrics: Turns metrics of keyed state on, see `LocalJob.metrics`.
        rules: The rules that resolve the compatibility of restored state and migrate it; None: those of the library.
        clock: Returns the processing time in milliseconds. It is called once per epoch, and by `LocalJob.savepoint`.
        high_availability: How several processes agree on which of them runs the job, see `ZooKeeperHighAvailability`.
            The others wait. When the first has ended, one of them continues from the newest checkpoint.

    Raises:
        JobDefinitionError: A setting is invalid.
    """

    _restores_channel_state = True

    def __init__(
        self,
        *,
        job_dir: str | os.PathLike[str] | None = None,
        backend: str | StateBackend = "heap",
        parallelism: int = 1,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        epoch_size: int | None = None,
        checkpoint_interval: Duration | None = None,
        checkpointing_mode: Literal["exactly_once", "at_least_once"] = "exactly_once",
        unaligned_checkpoints: bool = False,
        aligned_checkpoint_timeout: Duration = 0,
        max_concurrent_checkpoints: int = 1,
        min_pause_between_checkpoints: Duration = 0,
        checkpoint_timeout: Duration = "10 minutes",
        tolerable_failed_checkpoints: int = 0,
        metrics: StateMetricsConfig | None = None,
        rules: EvolutionRules | None = None,
        clock: Clock = wall_clock,
        high_availability: JobServices | None = None,
    ) -> None:
        super().__init__(
            backend=backend,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            metrics=metrics,
            rules=rules,
            high_availability=high_availability,
        )
        check_whole_numbers({"epoch_size": epoch_size})
        if epoch_size is not None and epoch_size < 1:
            raise JobDefinitionError(f"epoch_size is {epoch_size}; an epoch needs at least one element")
        if epoch_size is not None and checkpoint_interval is not None:
            raise JobDefinitionError(
                "epoch_size sets the elements between two checkpoints, checkpoint_interval the time: pass only one of "
                "them"
            )
        self._checkpoints = checkpoint_settings(
            interval_ms=None
            if checkpoint_interval is None
            else duration_ms(checkpoint_interval, "checkpoint_interval", at_least_ms=1),
            mode=checkpointing_mode,
            is_unaligned=unaligned_checkpoints,
            aligned_timeout_ms=duration_ms(aligned_checkpoint_timeout, "aligned_checkpoint_timeout", at_least_ms=0),
            max_concurrent=max_concurrent_checkpoints,
            min_pause_ms=duration_ms(min_pause_between_checkpoints, "min_pause_between_checkpoints", at_least_ms=0),
            timeout_ms=duration_ms(checkpoint_timeout, "checkpoint_timeout", at_least_ms=1),
            tolerable_failures=tolerable_failed_checkpoints,
        )
        self.clock = whole_milliseconds(clock)
        self._epoch_size = epoch_size
        self._temporary = tempfile.TemporaryDirectory(prefix="statebackend-local-")
        self._is_temporary = job_dir is None
        self.job_dir = os.fspath(job_dir) if job_dir is not None else os.path.join(self._temporary.name, "job")
        self._services = high_availability or default_services(self.job_dir)
        self._stopping = threading.Event()

    def from_elements(self, elements: Iterable[Any], schema: Any = None, *, uid: str | None = None) -> DataStream:
        """A stream of records: objects with attributes, or mappings.

        Args:
            elements: The records.
            schema: Their schema: a record class, DDL or a ``StructType``. Elements are checked and become rows, as
                those of a DataFrame. Without it they stay as they are, and the first one decides on the types of keys:
                an ``int`` is a ``bigint``.
            uid: The name of the source in checkpoints and savepoints, which have its event time.
        """
        declared = None if schema is None else output_schema(schema, "from_elements", "")
        return DataStream(self._graph, self._graph.add_source(SourceNode(ElementSource(list(elements), declared), uid)))

    def from_source(self, source: ReplayableSource, schema: Any = None, *, uid: str) -> DataStream:
        """A stream of the records of a replayable source; ``schema`` is as for `from_elements`.

        Checkpoints and savepoints have the positions of its splits under ``uid``, and a start continues from them.

        Raises:
            JobDefinitionError: The object is not a `ReplayableSource`, or the uid is invalid.
        """
        if not is_instance_of(source, ReplayableSource):
            raise JobDefinitionError(
                f"from_source was given {format_instance(source)}; pass a ReplayableSource (statebackend.streaming), "
                f"which implements splits() and read()"
            )
        check_uid("source", "from_source", "how far it is read", uid)
        self._split_sources.add(uid)
        declared = None if schema is None else output_schema(schema, "from_source", "")
        return DataStream(self._graph, self._graph.add_source(SourceNode(ReplayedSource(source, declared), uid)))

    def from_arrow(self, data: pa.Table | Callable[[], pa.RecordBatchReader], *, uid: str) -> DataStream:
        """A stream of the rows of Arrow data, which stay in columns up to functions that need objects.

        Checkpoints and savepoints have the number of rows read under ``uid``, and a start continues from there.

        Args:
            data: A table, or a function that returns a reader of the same rows at each call, such as
                ``lambda: dataset.scanner().to_reader()``. Its schema is the schema of the stream.
            uid: The name of the source in checkpoints and savepoints.

        Raises:
            JobDefinitionError: The data is not one of these, the schema has a type that rows cannot have, or the uid is
                invalid.
        """
        check_uid("source", "from_arrow", "how far it is read", uid)
        self._split_sources.add(uid)
        if isinstance(data, pa.Table):
            schema, open_reader = data.schema, data.to_reader
        elif callable(data) and isinstance(reader := data(), pa.RecordBatchReader):
            schema, open_reader = reader.schema, data
            reader.close()
        else:
            raise JobDefinitionError(
                f"from_arrow was given {format_instance(data)}; pass a pyarrow.Table, or a function that returns a "
                f"pyarrow.RecordBatchReader"
            )
        source = ReplayedSource(ArrowRows(open_reader), schema_of_arrow(schema, "from_arrow"))
        return DataStream(self._graph, self._graph.add_source(SourceNode(source, uid)))

    def execute(
        self,
        name: str = "job",
        *,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        restore_source_progress: bool | Mapping[str, bool] = True,
        roll_back_to: int | Literal["previous"] | None = None,
        drain: bool = False,
    ) -> LocalJob:
        """Run the job over all elements, and return when they are processed.

        It continues from the newest checkpoint of ``job_dir``, or from ``from_savepoint``. The records of an epoch
        advance event time at its end, and timers fire in it; a custom watermark generator may emit a watermark after
        any record. Sinks are functions, lists or `Sink`s. They get the records of an epoch once, after its
        checkpoint. If a function or a list raises, the job ends after that epoch. The other sinks have their records,
        and the records that it has not taken are lost. With ``carry_in_flight=True``, records whose requests are in
        flight at the end are in the last checkpoint, for the next run. Without a ``job_dir`` the run waits for them.

        Args:
            name: The name of the job.
            from_savepoint: The path of a savepoint.
            allow_non_restored_state: State that no operator registers is allowed.
            restore_source_progress: Whether to continue at the source positions of the savepoint; a dict decides by
                uid, such as ``{"flights": False}``. Only replayable sources have positions. Those of most sources of
                Spark cannot be continued here, which is rejected.
            roll_back_to: The id of an older checkpoint, or ``"previous"``. The elements of later epochs must be given
                again.
            drain: Advance event time to its end after the last element, so that all event-time timers fire. For jobs
                that are not continued.

        Raises:
            JobDefinitionError: The program is invalid.
            JobRestoreError: The program does not fit the stored state; see `SparkStreamEnvironment.execute`.
        """
        # The program is checked before its records, and both before anything is changed.
        job = self._runnable(
            name=name,
            from_savepoint=from_savepoint,
            allow_non_restored_state=allow_non_restored_state,
            restore_source_progress=restore_source_progress,
            roll_back_to=roll_back_to,
        )
        uids = zip(job.graph.source_uids, job.graph.sources, strict=True)
        with paused_garbage_collection():
            records = {node: _records_of(node.source, f"source {uid!r}") for uid, node in uids}
        warn_of_blocked_timers(job.event_time, name)
        with self._opened(job) as run:
            read_all(
                run,
                records,
                epoch_size=self._epoch_size,
                interval_ms=self._checkpoints.interval_ms,
                is_stopping=self._stopping.is_set,
                drains=drain,
            )
            if drain and not run.has_stopped:
                run.drain()
            elif not self._stopping.is_set():
                if run.epochs == 0 and run.restores_in_flight:
                    # There are no records to send the restored requests before.
                    run.run_epoch(())
                if self._is_temporary and run.holds_output:
                    # No later run would get these results.
                    run.run_epoch([run.await_in_flight])
            run.finish()
            return LocalJob(run, self._temporary)

    @contextlib.contextmanager
    def opened_run(self, name: str = "job", **options: Any) -> Iterator[LocalRun]:
        """A run whose sources the caller feeds, as a test harness does; closed after the block.

        The ``options`` are those of `execute`, and: ``sources_send_time`` (records come with timestamps, and sources
        send watermarks), ``scheduler`` (chooses the next move), ``capacity`` (of a channel, in elements), ``listener``
        (gets all results) and ``checkpoints`` (`CheckpointSettings`). Raises as `execute`.
        """
        with self._opened(self._runnable(name=name, **options)) as run:
            yield run

    @contextlib.contextmanager
    def run_in(self, directory: JobDirectory, store: CompletedCheckpointStore, **options: Any) -> Iterator[LocalRun]:
        """A run in a directory and with a store that the caller has opened and recovered, for simulations.

        It continues from the newest checkpoint of the store, and is driven by `LocalRun.step`. ``options`` are those of
        `opened_run`. They decide all that happens, with the clock of the environment and the file system of the
        directory. Closing the run raises nothing, even if the file system has failed.
        """
        job = self._runnable(**options)
        latest = store.latest()
        state = None if latest is None else RestoredState(latest, directory.file_system)
        point = StartingPoint(state, is_own=state is not None)
        reports = self._compatible(job.name, job, point, job.options.allow_non_restored_state)
        _check_commits(job, point)
        with LocalRun(job, directory, store, point, reports) as run:
            yield run

    def request_stop(self) -> None:
        """Let `execute` end: no more is read, and the last checkpoint has what was read.

        May be called from any thread, also from a function or a sink of the job. The next start continues to read
        replayable sources from there. `LocalJob.savepoint` then writes the savepoint to stop with. If `execute` was
        called with ``drain``, event time advances to its end first.
        """
        self._stopping.set()

    def close(self) -> None:
        """Remove the temporary directory."""
        self._temporary.cleanup()

    def _runnable(self, **options: Any) -> LocalProgram:
        """The checked job. Raises `JobDefinitionError` if only Spark can run it."""
        job = self._prepare(**options)
        check_restored_progress(job.graph.source_uids, job.options.restore_source_progress)
        if any(isinstance(node, DataFrameNode) for node in job.graph.nodes):
            raise JobDefinitionError(
                "transform_dataframe() takes a function of a DataFrame, which only the Spark runtime can run; use "
                "map(), filter() or flat_map()"
            )
        return job

    def _prepare(
        self,
        name: str = "job",
        *,
        sources_send_time: bool = False,
        scheduler: Scheduler | None = None,
        capacity: int = DEFAULT_CAPACITY,
        listener: OutputListener | None = None,
        checkpoints: CheckpointSettings | None = None,
        **options: Any,
    ) -> LocalProgram:
        graph = self._graph.job()
        event_time = EventTime.of_sources(graph) if sources_send_time else EventTime.of(graph)
        prepared = PreparedGraph(graph, self.parallelism, self.max_parallelism)
        _check_timestamp_columns(event_time)
        check_sinks(graph)
        return LocalProgram(
            graph=graph,
            prepared=prepared,
            event_time=event_time,
            name=name,
            options=StartOptions(**options),
            backend=self.backend,
            parallelism=self.parallelism,
            clock=self.clock,
            metrics=self.metrics,
            rules=self.rules,
            scheduler=scheduler or DownstreamFirst(),
            checkpoints=checkpoints or self._checkpoints,
            capacity=capacity,
            listener=listener,
            listeners=self._listeners.of_job(LoggedProgress()),
        )

    @contextlib.contextmanager
    def _opened(self, job: LocalProgram) -> Iterator[LocalRun]:
        def check(_: JobRecords, point: StartingPoint) -> None:
            _check_commits(job, point)

        start = self._locked_start(job.name, job, job.options, check)
        directory, point = start.directory, start.point
        with directory, raising_root_cause(directory.leadership):
            store = CompletedCheckpointStore(
                directory.file_system, start.records.pointers, leadership=directory.leadership
            )
            target = point.own_checkpoint if job.options.roll_back_to is not None else None
            if target is None:
                store.recover()
            else:
                sinks, job_id = LocalSinks(job.graph), directory.identity.job_id
                _roll_back(start.records, store, sinks, target.checkpoint_id, job_id)
            store.delete_orphans()
            if point.is_new_origin and point.origin is not None:
                write_origin(directory.file_system, point.origin)
            with LocalRun(job, directory, store, point, start.compatibility) as run:
                yield run

    def _starting_point(self, records: JobRecords, options: StartOptions) -> StartingPoint:
        # The log of a Spark job identifies its directory, whatever the state of its checkpoints.
        check_written_by(None, Engine.LOCAL, records.driver_files)
        newest = _checkpoint_to_continue(records, options.roll_back_to)
        check_written_by(newest, Engine.LOCAL, records.driver_files)
        return starting_point(
            records.file_system,
            newest,
            options.from_savepoint,
            options.restore_source_progress,
            self._split_sources,
            self._graph.job().source_uids,
        )


def checkpoint_settings(
    *,
    interval_ms: int | None,
    mode: str,
    is_unaligned: bool,
    aligned_timeout_ms: int,
    max_concurrent: int,
    min_pause_ms: int,
    timeout_ms: int,
    tolerable_failures: int,
) -> CheckpointSettings:
    """The settings of a run from those of an environment; raises `JobDefinitionError` for an invalid one."""
    if mode not in ("exactly_once", "at_least_once"):
        raise JobDefinitionError(f"checkpointing_mode is {mode!r}; it is 'exactly_once' or 'at_least_once'")
    numbers = {"max_concurrent_checkpoints": max_concurrent, "tolerable_failed_checkpoints": tolerable_failures}
    check_whole_numbers(numbers)
    has_timeout = aligned_timeout_ms > 0
    try:
        checkpointing_mode = CheckpointingMode(
            is_exactly_once=mode == "exactly_once",
            is_unaligned=is_unaligned and not has_timeout,
            alignment_timeout_ms=aligned_timeout_ms if is_unaligned and has_timeout else None,
        )
        limits = CheckpointLimits(max_concurrent_checkpoints=max_concurrent, minimum_pause_ms=min_pause_ms)
        FailurePolicy(tolerable_failures)
    except InvariantViolationError as error:
        raise JobDefinitionError(f"checkpoints of the environment: {error}") from error
    return CheckpointSettings(
        mode=checkpointing_mode,
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        limits=limits,
        tolerable_failures=tolerable_failures,
        has_threads=interval_ms is not None,
    )


def _check_timestamp_columns(event_time: EventTime | None) -> None:
    """Raises `JobDefinitionError` for an event-time column that the schema does not have, or of another type."""
    for name, node in ({} if event_time is None else event_time.nodes).items():
        place = node.inputs[0].node
        schema = getattr(place.source, "schema", None) if isinstance(place, SourceNode) else None
        if schema is None:
            continue
        timestamps = node.strategy.timestamps
        for method, column in (("with_timestamps", timestamps), ("with_channel", node.strategy.channel)):
            if isinstance(column, str) and schema.type_of(column) is None:
                raise unfit_column(name, method, column, schema.names)
        type_name = schema.type_of(timestamps) if isinstance(timestamps, str) else None
        if type_name is not None and type_name not in TIMESTAMP_TYPES:
            raise unfit_type(name, type_name)


def _check_commits(job: LocalProgram, point: StartingPoint) -> None:
    if point.own_checkpoint is not None:
        LocalSinks(job.graph).check_commits(point.own_checkpoint)


def _checkpoint_to_continue(records: JobRecords, roll_back_to: int | str | None) -> CheckpointMetadata | None:
    """The checkpoint that a start continues from, None if there is none; changes nothing.

    Raises `JobRestoreError` if a rollback has started and this start does not go back as far.
    """
    found, started = records.pointers.find(), read_roll_back(records.driver_files)
    if roll_back_to is None or (started is not None and started.source_log != NO_SOURCE_LOG):
        check_no_roll_back(records.driver_files)
    return found.newest() if roll_back_to is None else roll_back_target(found, records.driver_files, roll_back_to)


def _roll_back(
    records: JobRecords, store: CompletedCheckpointStore, sinks: LocalSinks, checkpoint_id: int, job_id: str
) -> None:
    """Make a checkpoint the newest again, and let the sinks hide later output. The caller leads the job.

    Raises as `JobSinks.roll_back`.
    """
    driver_files, started = records.driver_files, read_roll_back(records.driver_files)
    if sinks.rollback_sinks:
        newest_id = max(checkpoint_id, *records.pointers.find().ids, 0 if started is None else started.newest_id)
        planned = Rollback(checkpoint_id=checkpoint_id, newest_id=newest_id, source_log=NO_SOURCE_LOG)
        sinks.roll_back(driver_files, planned, job_id)
    store.recover(roll_back_to=checkpoint_id)
    if read_roll_back(driver_files) is not None:
        end_roll_back(driver_files)


def _records_of(source: ElementSource | ReplayedSource, where: str) -> Sequence[Any]:
    """The elements as records of the job, which may change them; the elements themselves stay as they are."""
    if source.schema is None:
        return copied_records(source.elements, where)
    return rows_of(source.elements, source.schema, where)
