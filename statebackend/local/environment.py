"""The in-process environment: a program written for Spark, run over a list of elements.

Elements are dealt into epochs, each of which ends with a checkpoint. Subtasks stay open for the whole run; what a
function sees of state (a value that was changed without an update is as it was stored, a migration at a restore) is
what the job will see in production. Records between operators are rows of the schema that the operator before declares,
as on Spark. Output reaches the sink when the epoch's checkpoint is complete.

Whether the columns that strategies of event time name are there, and of a type that can be a timestamp.

What is not known before its records come, since a source has no schema or a step lies in between, is found at them.

What a program says of its checkpoints, checked before anything is touched.

Going back to an older checkpoint in one process: what sinks have shown since is taken back, then it is the newest.

    fall-back.json    written first: from here on the only start is one that goes back as far, or further
    the sinks         take back what they have shown of later epochs, those that can
    set-aside/        the newer checkpoints, the newest first
    fall-back.json    removed last

Without it a start behind a crash would go on from the newest checkpoint, whose output is hidden. Where no sink can take
anything back there is no such moment, and no file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

from migration import LIBRARY_RULES, EvolutionRules
from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.coordinator.requests import CheckpointLimits, FailurePolicy
from statebackend.checkpoint.errors import InvariantViolationError
from statebackend.checkpoint.ha.leadership import raising_root_cause
from statebackend.checkpoint.ha.object_store import default_services
from statebackend.checkpoint.ha.services import JobRecords, JobServices
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.checkpoint_directories import PREVIOUS, FoundCheckpoints
from statebackend.checkpoint.store.completed_checkpoint_store import (
    CompletedCheckpointStore,
    DefaultCompletedCheckpointStore,
)
from statebackend.checkpoint.store.job_directory import JobDirectory, write_origin
from statebackend.checkpoint.store.job_files import (
    NO_SOURCE_LOG,
    Rollback,
    end_roll_back,
    read_roll_back,
    write_roll_back,
)
from statebackend.local.job import LocalJob
from statebackend.local.local_run import LocalJobParts, LocalRun
from statebackend.local.network.channel import DEFAULT_CAPACITY
from statebackend.local.network.network import DownstreamFirst, Scheduler
from statebackend.local.network.subtasks import OutputListener
from statebackend.local.operator import ElementSource, PreparedGraph, prepare_graph, rows_of
from statebackend.local.run_snapshots import CheckpointSettings
from statebackend.local.sinks import StagedSinks, check_sinks
from statebackend.local.source_reading import read_all
from statebackend.local.split_feed import ReplayedSource
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.clock import Clock, wall_clock
from statebackend.state.key_groups import DEFAULT_MAX_PARALLELISM
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend, state_backend
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob, SchemaReports
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.observing.job_events import JobListener, JobListeners
from statebackend.streaming.observing.progress import LoggedProgress
from statebackend.streaming.output_tag import check_uid
from statebackend.streaming.rows.record_copies import copied_records
from statebackend.streaming.rows.record_schema import output_schema
from statebackend.streaming.runtime.event_time import EventTime, whole_milliseconds
from statebackend.streaming.runtime.job_start import (
    Engine,
    check_written_by,
    locked_start,
    looked_up,
)
from statebackend.streaming.runtime.settings import (
    TIMESTAMP_TYPES,
    check_given,
    check_whole_numbers,
    is_instance_of,
    unfit_column,
    unfit_type,
    warn_of_blocked_timers,
)
from statebackend.streaming.runtime.starting_point import StartingPoint, check_no_roll_back, starting_point
from statebackend.streaming.sink import SinkError
from statebackend.streaming.stream_graph import DataFrameNode, JobGraph, ReplayableSource, SourceNode, StreamGraph
from statebackend.streaming.time.timestamps import Duration, duration_ms

__all__ = ["CheckpointChoices", "check_timestamp_columns", "checkpoint_to_continue", "go_back", "settings_of"]


def check_timestamp_columns(event_time: EventTime | None) -> None:
    """Raises `JobDefinitionError` for a column that the schema of its source has not, or of another type."""
    nodes = {} if event_time is None else event_time.nodes
    for name, node in nodes.items():
        place = node.inputs[0].node
        schema = getattr(place.source, "schema", None) if isinstance(place, SourceNode) else None
        if schema is None:
            continue
        given = {"with_timestamps": node.strategy.timestamps, "with_channel": node.strategy.channel}
        for method, column in given.items():
            if isinstance(column, str) and schema.type_of(column) is None:
                raise unfit_column(name, method, column, schema.names)
        timestamps = node.strategy.timestamps
        type_name = schema.type_of(timestamps) if isinstance(timestamps, str) else None
        if type_name is not None and type_name not in TIMESTAMP_TYPES:
            raise unfit_type(name, type_name)


@frozen(kw_only=True)
class CheckpointChoices:
    """What a program says of its checkpoints; see `LocalStreamEnvironment`."""

    interval_ms: int | None
    mode: str
    is_unaligned: bool
    aligned_timeout_ms: int
    max_concurrent: int
    min_pause_ms: int
    timeout_ms: int
    tolerable_failures: int


def settings_of(choices: CheckpointChoices) -> CheckpointSettings:
    """The settings of a run; raises `JobDefinitionError` for what cannot be."""
    if choices.mode not in ("exactly_once", "at_least_once"):
        raise JobDefinitionError(f"checkpointing_mode is {choices.mode!r}; it is 'exactly_once' or 'at_least_once'")
    check_whole_numbers(
        {
            "max_concurrent_checkpoints": choices.max_concurrent,
            "tolerable_failed_checkpoints": choices.tolerable_failures,
        }
    )
    try:
        is_exactly_once = choices.mode == "exactly_once"
        has_timeout = choices.aligned_timeout_ms > 0
        mode = CheckpointingMode(
            is_exactly_once=is_exactly_once,
            is_unaligned=choices.is_unaligned and not has_timeout,
            alignment_timeout_ms=choices.aligned_timeout_ms if choices.is_unaligned and has_timeout else None,
        )
        limits = CheckpointLimits(
            max_concurrent_checkpoints=choices.max_concurrent, minimum_pause_ms=choices.min_pause_ms
        )
        FailurePolicy(choices.tolerable_failures)
    except InvariantViolationError as error:
        raise JobDefinitionError(f"checkpoints of the environment: {error}") from error
    return CheckpointSettings(
        mode=mode,
        interval_ms=choices.interval_ms,
        timeout_ms=choices.timeout_ms,
        limits=limits,
        tolerable_failures=choices.tolerable_failures,
        has_threads=choices.interval_ms is not None,
    )


def checkpoint_to_continue(
    found: FoundCheckpoints, records: JobRecords, roll_back_to: int | str | None
) -> CheckpointMetadata | None:
    """The checkpoint that a start goes on from, None if there is none; touches nothing.

    Raises `JobRestoreError` if going back was begun before and this start does not go back as far; what finding the
    checkpoint raises.
    """
    begun = read_roll_back(records.driver_files)
    if begun is None:
        return found.newest() if roll_back_to is None else found.roll_back_target(roll_back_to)
    if roll_back_to is None or begun.source_log != NO_SOURCE_LOG:
        check_no_roll_back(records.driver_files)
    target = found.roll_back_target(begun.checkpoint_id if roll_back_to in (None, PREVIOUS) else roll_back_to)
    if target.checkpoint_id > begun.checkpoint_id:
        # Of the epochs in between something may have been given up already.
        check_no_roll_back(records.driver_files)
    return target


def go_back(
    records: JobRecords, store: CompletedCheckpointStore, sinks: StagedSinks, checkpoint_id: int, job_id: str
) -> None:
    """Makes a checkpoint the newest again, and lets the sinks take back what they have shown since.

    The job is led by the caller. Raises `SinkError` if a sink cannot; if another has hidden something by then, the
    fall-back has begun, and the same one is to be started again.
    """
    driver_files, begun = records.driver_files, read_roll_back(records.driver_files)
    for number, sink in enumerate(sinks.rollback_sinks):
        if number == 0:
            newest_id = max(checkpoint_id, *records.pointers.find().ids, 0 if begun is None else begun.newest_id)
            planned = Rollback(checkpoint_id=checkpoint_id, newest_id=newest_id, source_log=NO_SOURCE_LOG)
            write_roll_back(driver_files, planned)
        try:
            sink.roll_back(checkpoint_id, job_id)
        except SinkError:
            if number == 0 and begun is None:
                # It has hidden nothing, so nothing has been done.
                end_roll_back(driver_files)
            raise
    store.recover(roll_back_to=checkpoint_id)
    if read_roll_back(driver_files) is not None:
        end_roll_back(driver_files)


@frozen
class _CheckedJob:
    """What the program says, with nothing wrong in it."""

    graph: JobGraph
    event_time: EventTime | None
    prepared: PreparedGraph


@frozen
class _Driving:
    """Who moves next in a run, who watches, and how checkpoints are taken."""

    scheduler: Scheduler
    capacity: int = DEFAULT_CAPACITY
    listener: OutputListener | None = None
    checkpoints: CheckpointSettings = field(factory=CheckpointSettings)


class LocalStreamEnvironment:
    """Builds one job and runs it in this process.

    Without ``job_dir`` its checkpoints live in a temporary directory for as long as the environment or one of its jobs
    does. With
    ``epoch_size`` an epoch, and so a checkpoint, ends after that many elements; without, all elements are one epoch.

    With ``checkpoint_interval`` sources are read on and on, and a checkpoint is taken every so often while records
    go on; state is written by threads beside them. ``checkpointing_mode`` is ``"exactly_once"`` or, without channels
    that stand still at barriers, ``"at_least_once"``. With ``unaligned_checkpoints`` barriers overtake records, which
    are part of the checkpoint then: at once, or behind ``aligned_checkpoint_timeout``. At most
    ``max_concurrent_checkpoints`` are under way, ``min_pause_between_checkpoints`` lies between the end of one and
    the begin of the next, and one that takes longer than ``checkpoint_timeout`` is given up.
    ``tolerable_failed_checkpoints`` in a row may fail; one more ends the job.

    ``metrics`` turns metrics of keyed state on (see `LocalJob.metrics`). ``rules`` judge and carry out what restored
    state becomes; None: those of this library. ``clock`` gives the time, in milliseconds, that an epoch has for state
    with a time-to-live; it is asked once per epoch, and by `LocalJob.savepoint`. ``high_availability`` says how several
    processes agree on which of them runs the job (see `ZooKeeperHighAvailability`): the others wait, and
    one of them continues from the newest checkpoint when the first has ended or died.
    """

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
        check_given(parallelism, max_parallelism, metrics, rules, high_availability)
        check_whole_numbers({"epoch_size": epoch_size})
        if epoch_size is not None and epoch_size < 1:
            raise JobDefinitionError(f"epoch_size is {epoch_size}; an epoch needs at least one element")
        if epoch_size is not None and checkpoint_interval is not None:
            raise JobDefinitionError(
                "epoch_size takes a checkpoint after so many elements, checkpoint_interval after so much time: "
                "leave one of them"
            )
        self._checkpoints = settings_of(
            CheckpointChoices(
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
        )
        self.backend = state_backend(backend)
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.metrics = metrics
        self.rules = rules or LIBRARY_RULES
        self.clock = whole_milliseconds(clock)
        self._epoch_size = epoch_size
        self._temporary = tempfile.TemporaryDirectory(prefix="statebackend-local-")
        self._job_dir = os.fspath(job_dir) if job_dir is not None else os.path.join(self._temporary.name, "job")
        self._services = high_availability or default_services(self._job_dir)
        self._graph = StreamGraph()
        self._stopping = threading.Event()
        self._listeners = JobListeners()

    def from_elements(self, elements: Iterable[Any], schema: Any = None, *, uid: str | None = None) -> DataStream:
        """A stream of records: objects with attributes, or mappings.

        ``schema`` is that of the elements: a record class, DDL or a ``StructType``. Then they are checked and become
        rows, as those of a DataFrame are. Without it they stay what they are, and the first one decides on the types
        of keys: an ``int`` is a ``bigint``, as Spark reads it from Python.

        ``uid`` is what the source is called in checkpoints and savepoints, where its part of event time is found again.
        """
        declared = None if schema is None else output_schema(schema, "from_elements", "")
        return DataStream(self._graph, self._graph.add_source(SourceNode(ElementSource(list(elements), declared), uid)))

    def from_source(self, source: ReplayableSource, schema: Any = None, *, uid: str) -> DataStream:
        """A stream of the records of a source that can be read again; ``schema`` as for `from_elements`.

        How far its splits are read stands in checkpoints and savepoints under ``uid``, so that a job that is started
        again reads on behind the records that its state has. Raises `JobDefinitionError` for what is no such source.
        """
        if not is_instance_of(source, ReplayableSource):
            raise JobDefinitionError(
                f"from_source was given {format_instance(source)}, which is no "
                f"ReplayableSource (statebackend.streaming): it "
                f"has splits() and read()"
            )
        check_uid("source", "from_source", "how far it is read", uid)
        declared = None if schema is None else output_schema(schema, "from_source", "")
        return DataStream(self._graph, self._graph.add_source(SourceNode(ReplayedSource(source, declared), uid)))

    def add_listener(self, listener: JobListener) -> None:
        """Lets a listener hear of the jobs that are executed from now on; see
        `statebackend.streaming.observing.job_events`.
        """
        self._listeners.add(listener)

    def remove_listener(self, listener: JobListener) -> None:
        """Ends that, for jobs that are executed from now on."""
        self._listeners.remove(listener)

    def check(
        self, *, from_savepoint: str | os.PathLike[str] | None = None, allow_non_restored_state: bool = False
    ) -> Mapping[str, SchemaReport]:
        """What a start would find, without starting or touching anything: the compatibility results by operator uid.

        As `SparkStreamEnvironment.check`: what is judged is the newest checkpoint of ``job_dir``, or the savepoint
        where there is none, and incompatible state is in the reports and not an error.
        """
        checked = self._checked(sources_tell_time=False)
        point = looked_up(
            self._job_dir,
            self._services,
            lambda records: self._starting_point(records, from_savepoint, roll_back_to=None),
        )
        return self._compatibilities(point, checked, allow_non_restored_state)

    def execute(
        self,
        name: str = "job",
        *,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        roll_back_to: int | Literal["previous"] | None = None,
        drain: bool = False,
    ) -> LocalJob:
        """Runs the job over all elements and returns when they are processed.

        Restores from ``from_savepoint``, or from the newest checkpoint of ``job_dir``. Raises what `execute` of the
        Spark environment raises. ``roll_back_to`` goes back to an older checkpoint, as it does there; the elements of
        the epochs that are given up have to be given again.

        The records of an epoch move event time at its end, and what they make due fires in it; a generator of the
        program may move time between any two records. With ``drain`` event time goes to its end behind the last
        element, and everything that waits for it fires: for jobs that are not continued.

        Sinks are functions, called with each record, or lists. They are given an epoch when its checkpoint is stored,
        and only once: what a sink raises ends the job behind that epoch, when the other sinks have their records, and
        what it has not taken of that epoch it is not given again.
        """
        # In this order: what the program says is rejected before its records are looked at, and both before anything is
        # touched.
        checked = self._runnable(sources_tell_time=False)
        records = {node: _records_of(node.source) for node in checked.graph.sources}
        warn_of_blocked_timers(checked.event_time, name)
        driving = _Driving(DownstreamFirst(), checkpoints=self._checkpoints)
        with self._opened(checked, name, from_savepoint, allow_non_restored_state, roll_back_to, driving) as run:
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
            run.finish()
            return LocalJob(run, self._temporary)

    @contextlib.contextmanager
    def opened_run(
        self,
        name: str = "job",
        *,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        roll_back_to: int | str | None = None,
        sources_tell_time: bool = False,
        scheduler: Scheduler | None = None,
        capacity: int = DEFAULT_CAPACITY,
        listener: OutputListener | None = None,
        checkpoints: CheckpointSettings | None = None,
    ) -> Iterator[LocalRun]:
        """A run of the job whose sources are fed by the caller, as a test harness does; closed behind the block.

        With ``sources_tell_time`` records come with timestamps, and watermarks from the sources themselves. The
        ``scheduler`` says who moves next, ``capacity`` how many elements a channel has room for, the ``listener`` is
        told what comes out, and ``checkpoints`` says how they are taken. Raises as `execute`.
        """
        checked = self._runnable(sources_tell_time)
        driving = _Driving(scheduler or DownstreamFirst(), capacity, listener, checkpoints or self._checkpoints)
        with self._opened(checked, name, from_savepoint, allow_non_restored_state, roll_back_to, driving) as run:
            yield run

    @contextlib.contextmanager
    def run_in(
        self,
        directory: JobDirectory,
        store: CompletedCheckpointStore,
        *,
        checkpoints: CheckpointSettings,
        scheduler: Scheduler,
        sources_tell_time: bool = False,
        allow_non_restored_state: bool = False,
        capacity: int = DEFAULT_CAPACITY,
        listener: OutputListener | None = None,
    ) -> Iterator[LocalRun]:
        """A run of the job in a directory and with a store that the caller has opened and recovered, for simulations.

        It goes on from the newest checkpoint of the store, and is driven step by step (`LocalRun.step`). All that
        decides what happens is given: the file system is that of the directory, the clock that of the environment,
        messages and timers are in ``checkpoints``, and who moves next is up to the ``scheduler``. Behind the block the
        run is closed, which raises nothing that a file system raises that is gone.
        """
        checked = self._runnable(sources_tell_time)
        latest = store.latest()
        state = None if latest is None else RestoredState(latest, directory.file_system)
        point = StartingPoint(state, is_own=state is not None)
        reports = self._judged(point, checked, allow_non_restored_state)
        driving = _Driving(scheduler, capacity, listener, checkpoints)
        parts = self._parts(checked, directory, store, allow_non_restored_state, driving)
        with LocalRun(parts, point, reports) as run:
            yield run

    def _runnable(self, sources_tell_time: bool) -> _CheckedJob:
        """The checked job. Raises `JobDefinitionError` if only Spark can run it."""
        checked = self._checked(sources_tell_time)
        if any(isinstance(node, DataFrameNode) for node in checked.graph.nodes):
            raise JobDefinitionError(
                "transform_dataframe() takes a function of a DataFrame, which only the Spark runtime can run; use "
                "map(), filter() or flat_map()"
            )
        return checked

    def _checked(self, sources_tell_time: bool) -> _CheckedJob:
        graph = self._graph.job()
        event_time = EventTime.of_sources(graph) if sources_tell_time else EventTime.of(graph)
        prepared = prepare_graph(graph, self.parallelism, self.max_parallelism)
        check_timestamp_columns(event_time)
        check_sinks(graph)
        # Two that write to the same place are rejected by its construction.
        StagedSinks(graph)
        return _CheckedJob(graph, event_time, prepared)

    @contextlib.contextmanager
    def _opened(
        self,
        checked: _CheckedJob,
        name: str,
        from_savepoint: str | os.PathLike[str] | None,
        allow_non_restored_state: bool,
        roll_back_to: int | str | None,
        driving: _Driving,
    ) -> Iterator[LocalRun]:
        start = locked_start(
            self._job_dir,
            name,
            self.max_parallelism,
            self._services,
            lambda records: self._starting_point(records, from_savepoint, roll_back_to),
            lambda records, found: self._judged(found, checked, allow_non_restored_state),
        )
        directory, point, reports = start.directory, start.point, start.compatibility
        with directory, raising_root_cause(directory.leadership):
            store = DefaultCompletedCheckpointStore(
                directory.file_system, start.records.pointers, leadership=directory.leadership
            )
            target = point.own_checkpoint if roll_back_to is not None else None
            if target is None:
                store.recover()
            else:
                sinks = StagedSinks(checked.graph)
                go_back(start.records, store, sinks, target.checkpoint_id, directory.identity.job_id)
            store.delete_orphans()
            if point.is_new_origin and point.origin is not None:
                write_origin(directory.file_system, point.origin)
            parts = self._parts(checked, directory, store, allow_non_restored_state, driving)
            with LocalRun(parts, point, reports) as run:
                yield run

    def _parts(
        self,
        checked: _CheckedJob,
        directory: JobDirectory,
        store: CompletedCheckpointStore,
        allow_non_restored_state: bool,
        driving: _Driving,
    ) -> LocalJobParts:
        return LocalJobParts(
            graph=checked.graph,
            operators=checked.prepared.operators,
            steps=checked.prepared.steps,
            directory=directory,
            store=store,
            backend=self.backend,
            parallelism=self.parallelism,
            clock=self.clock,
            metrics=self.metrics,
            rules=self.rules,
            allow_non_restored_state=allow_non_restored_state,
            event_time=checked.event_time,
            scheduler=driving.scheduler,
            checkpoints=driving.checkpoints,
            capacity=driving.capacity,
            listener=driving.listener,
            listeners=self._listeners.of_job(LoggedProgress()),
        )

    def _starting_point(
        self, records: JobRecords, from_savepoint: str | os.PathLike[str] | None, roll_back_to: int | str | None
    ) -> StartingPoint:
        # Its log alone tells a directory of Spark, whatever state its checkpoints are in.
        check_written_by(None, Engine.IN_PROCESS, records.driver_files)
        newest = checkpoint_to_continue(records.pointers.find(), records, roll_back_to)
        check_written_by(newest, Engine.IN_PROCESS, records.driver_files)
        # Elements are no source with a position: a savepoint's source progress is of no use here.
        return starting_point(records.file_system, newest, from_savepoint, False)

    def _judged(
        self, point: StartingPoint, checked: _CheckedJob, allow_non_restored_state: bool
    ) -> Mapping[str, SchemaReport]:
        if point.own_checkpoint is not None:
            StagedSinks(checked.graph).check_commits(point.own_checkpoint)
        reports = self._compatibilities(point, checked, allow_non_restored_state)
        reports.require_compatible()
        return reports

    def _compatibilities(
        self, point: StartingPoint, checked: _CheckedJob, allow_non_restored_state: bool
    ) -> SchemaReports:
        if point.state is None:
            return SchemaReports()
        return CompatibilityChecker(self._described(checked), point.state).check_start(
            backend=self.backend,
            parallelism=self.parallelism,
            allow_non_restored_state=allow_non_restored_state,
            restores_channel_state=True,
        )

    def described(self) -> DescribedJob:
        """The job by its operators and state, without records if the sources have schemas; raises as `execute`."""
        return self._described(self._checked(sources_tell_time=False))

    def _described(self, checked: _CheckedJob) -> DescribedJob:
        operators = checked.prepared.operators
        return DescribedJob(operators, self.max_parallelism, self.rules.compatibilities, _replayed(checked.graph))

    def request_stop(self) -> None:
        """Lets `execute` come to its end: no more is read, and what was read is in the last checkpoint.

        May be called from any thread, from a function or a sink of the job too. Sources that can be read again are read
        on from there by the next start. `LocalJob.savepoint` then writes the savepoint to stop with; where `execute`
        was called with ``drain``, event time goes to its end first.
        """
        self._stopping.set()

    def close(self) -> None:
        """Removes the temporary directory."""
        self._temporary.cleanup()


def _replayed(graph: JobGraph) -> list[str]:
    """The uids of the replayable sources."""
    sources = zip(graph.source_uids, graph.sources, strict=True)
    return [uid for uid, node in sources if isinstance(node.source, ReplayedSource)]


def _records_of(source: ElementSource | ReplayedSource) -> Sequence[Any]:
    """The elements as records of the job, which may change them; the elements stay as they are."""
    if source.schema is None:
        return copied_records(source.elements, "from_elements")
    return rows_of(source.elements, source.schema)
