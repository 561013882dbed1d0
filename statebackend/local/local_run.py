"""One execution of a job in this process: its network, its clock, and its checkpoints.

Who moves when is decided in `statebackend.local.network`, which checkpoint is taken and what becomes of it in
`statebackend.checkpoint.coordinator.job_checkpoints`, what a subtask does in `statebackend.streaming.runtime.subtask`.
Here they meet. Subtasks stay open for the whole run.

A run is driven from outside, in one of two ways, which may be mixed:

    begin_epoch, process, end_epoch    something is fed, processed to its end, and a checkpoint taken: what comes out
                                       does not depend on when anything is written
    step                               one move: an element, an mail, a timer that is due. Between any two the run may
                                       be abandoned (`close` it, or lose its file system first, as a process that dies
                                       does) and another begun in its job directory

A run that is stepped is decided by its scheduler, its clocks, its file system and what it is fed, and by nothing else:
with `InlineWriter`, the same seed makes the same moves.

The operators of a run: what their subtasks are made of and restore, and the types of keys that records tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import field, frozen

from migration import EvolutionRules
from statebackend.checkpoint.barriers.elements import AbortReason
from statebackend.checkpoint.coordinator.requests import CheckpointRequestKind
from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.local.channel_restore import InFlightShares, restore_checkpoint
from statebackend.local.job_network import NetworkParts, build_network
from statebackend.local.network.channel import DEFAULT_CAPACITY, SubtaskOutput
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.local.network.network import Move, Scheduler
from statebackend.local.network.subtasks import OutputListener
from statebackend.local.network_watermarks import operator_watermarks, restore_network
from statebackend.local.operator import LocalOperator, Step
from statebackend.local.run_checkpoints import CheckpointFailedError
from statebackend.local.run_snapshots import CheckpointSettings, RunSnapshots, RunSnapshotsParts
from statebackend.local.sinks import SinkRecords, StagedSinks
from statebackend.local.source import LocalSource
from statebackend.local.split_feed import positions_of
from statebackend.local.subtask import CurrentEpoch, LocalSubtask
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.clock import Clock, wall_clock
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.private_directory import temporary_directory
from statebackend.state.progress import ProgressListener
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.metrics import ObservedRun, RunBarriers, TimeMetrics, time_metrics
from statebackend.streaming.observing.job_events import JobListeners
from statebackend.streaming.observing.job_recorder import JobRecorder, LiveMetrics
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.operators.record_function import paused_garbage_collection
from statebackend.streaming.runtime.event_time import EventTime, not_before
from statebackend.streaming.runtime.restore_plan import restores_by_subtask
from statebackend.streaming.runtime.starting_point import StartingPoint
from statebackend.streaming.runtime.subtask import FrozenSubtask, OperatorParts
from statebackend.streaming.runtime.worker_functions import RunIdentity, WorkerFunctions
from statebackend.streaming.stream_graph import JobGraph, Node
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP

__all__ = ["LocalJobParts", "LocalRun", "RunOperators", "RunOperatorsParts"]


@frozen(kw_only=True)
class RunOperatorsParts:
    """What all operators of a run share."""

    operators: Mapping[str, LocalOperator]
    directory: JobDirectory
    restored: RestoredState | None
    backend: StateBackend
    parallelism: int
    metrics: StateMetricsConfig | None
    rules: EvolutionRules
    allow_non_restored_state: bool
    has_time: bool
    epoch: CurrentEpoch
    local_directory: str
    functions: WorkerFunctions
    progress: ProgressListener


class RunOperators:
    """See the module; ``reports`` are the compatibility results of the start."""

    def __init__(self, parts: RunOperatorsParts, reports: Mapping[str, SchemaReport]) -> None:
        self._parts = parts
        self.schema_reports: dict[str, SchemaReport] = dict(reports)
        """The compatibility results on restored state, by operator uid."""
        self._restores = {uid: restores_by_subtask(parts.restored, uid, parts.parallelism) for uid in parts.operators}
        self._prepare_keys()

    def make_subtask(
        self,
        operator: LocalOperator,
        index: int,
        output: SubtaskOutput,
        snapshots: Callable[[LocalSubtask, SubtaskCapture, FrozenSubtask | None], None],
        aborted: Callable[[LocalSubtask, int, AbortReason], None],
    ) -> LocalSubtask:
        """A subtask that sends into an output; of ``snapshots`` and ``aborted`` see `LocalSubtask`."""
        parts = self._parts
        run = RunIdentity(parts.directory.identity.job_id, parts.directory.run_id)
        return LocalSubtask(
            operator=operator,
            index=index,
            restore=self._restores[operator.uid][index],
            epoch=parts.epoch,
            output=output,
            local_directory=parts.local_directory,
            has_time=parts.has_time,
            parts=self._operator_parts,
            make_function=partial(parts.functions.function, run, operator.uid, operator.make_function),
            snapshots=snapshots,
            aborted=aborted,
            progress=parts.progress,
        )

    def learn_keys(self, operator: LocalOperator, input_index: int, records: Sequence[Any]) -> None:
        """Takes the types of the keys from a record, if nothing has told them yet.

        Raises `StateMigrationException` or `JobRestoreError` if what is restored has keys of others.
        """
        if operator.knows_keys:
            return
        operator.learn_keys(lambda index: records if index == input_index else ())
        if not operator.knows_keys:
            return
        parts = self._parts
        if parts.restored is not None:
            job = DescribedJob(parts.operators, parts.restored.max_parallelism, parts.rules.compatibilities)
            report = CompatibilityChecker(job, parts.restored).report(operator.uid, parts.allow_non_restored_state)
            if report is not None:
                report.raise_if_incompatible(_JUDGED_LATE)
                self.schema_reports[operator.uid] = report

    def _prepare_keys(self) -> None:
        """Where nothing tells the types of the keys but what is restored, they are those."""
        for operator in self._parts.operators.values():
            metas = () if self._parts.restored is None else self._parts.restored.keyed_metas_of(operator.uid)
            if operator.key_serializer is None and metas:
                operator.key_serializer = metas[0].key_snapshot.restore_serializer()

    def _operator_parts(self, operator: LocalOperator) -> OperatorParts:
        parts = self._parts
        assert operator.key_serializer is not None
        return OperatorParts(
            job_id=parts.directory.identity.job_id,
            run_id=parts.directory.run_id,
            operator_uid=operator.uid,
            operator_factory=operator_factory(operator.node.function),
            side_outputs=tuple(tag for tag in operator.outputs if tag is not None),
            key_serializer=operator.key_serializer,
            parallelism=parts.parallelism,
            max_parallelism=parts.directory.identity.max_parallelism,
            backend=parts.backend,
            planned=operator.states.planned,
            planned_operator_state=operator.states.planned_operator_state,
            input_schemas=operator.states.input_schemas,
            file_system=parts.directory.file_system,
            metrics=parts.metrics,
            rules=parts.rules,
            # So that a test sees what every restore does.
            keeps_backends=False,
        )


_JUDGED_LATE: Final = (
    "only a record told the types of its keys, when the job had begun: this epoch is given up, what it goes on from is "
    "as it was"
)
"""What is told of a compatibility result that no start can give."""


@frozen(kw_only=True)
class LocalJobParts:
    """What a running job is made of. ``listener`` is told what comes out, in order, beside the sinks, and
    ``listeners`` what becomes of the job.
    """

    graph: JobGraph
    operators: Mapping[str, LocalOperator]
    steps: Mapping[Node, Sequence[Step]]
    directory: JobDirectory
    store: CompletedCheckpointStore
    backend: StateBackend
    parallelism: int
    clock: Clock
    metrics: StateMetricsConfig | None
    rules: EvolutionRules
    allow_non_restored_state: bool
    event_time: EventTime | None
    scheduler: Scheduler
    checkpoints: CheckpointSettings = field(factory=CheckpointSettings)
    capacity: int = DEFAULT_CAPACITY
    listener: OutputListener | None = None
    listeners: JobListeners = field(factory=JobListeners)


class LocalRun:
    """See the module. Whatever raises ends the run: all subtasks are closed, and the last checkpoint stays the last."""

    def __init__(self, parts: LocalJobParts, point: StartingPoint, reports: Mapping[str, SchemaReport]) -> None:
        self.parts = parts
        self.restored_id = None if point.state is None else point.state.metadata.checkpoint_id
        """The checkpoint or savepoint that the run goes on from, if any."""
        self.functions = WorkerFunctions()
        """What was set up for this run; to be closed at its end."""
        self.current = CurrentEpoch()
        """The epoch that is under way, and the processing time."""
        self._staged = StagedSinks(parts.graph)
        identity = parts.directory.identity
        self.recorder = JobRecorder(
            ObservedRun(
                job_name=identity.job_name,
                job_id=identity.job_id,
                run_id=parts.directory.run_id,
                engine="in process",
                parallelism=parts.parallelism,
                max_parallelism=identity.max_parallelism,
                started_ms=wall_clock(),
                restored_id=self.restored_id,
            ),
            self._live_metrics,
            parts.listeners,
            keeps_subtasks_open=True,
        )
        """What is seen of the run."""
        output = SinkRecords(parts.graph, parts.listener, self._staged, f"{identity.job_id}.{parts.directory.run_id}")
        self._local_space = contextlib.ExitStack()
        self._local_directory = self._local_space.enter_context(temporary_directory())
        self._restored = point.state
        self._own_checkpoint = point.own_checkpoint
        self._previous_time_ms = None if point.state is None else point.state.metadata.processing_time_ms
        self._is_resumed = self._has_failed = False
        self.has_stopped = False
        """Whether it has stopped with a checkpoint; its sources read nothing any more."""
        uids = zip(parts.graph.source_uids, (node.source for node in parts.graph.sources), strict=True)
        self.positions = positions_of(dict(uids), point.state, parts.directory.file_system)
        """How far replayable sources are read, by uid."""
        self._operators = RunOperators(self._operators_parts(), reports)
        self._snapshots = RunSnapshots(self._snapshots_parts(point.restored_from), output, self.current)
        self.job_network = build_network(self._network_parts(output))
        self.network = self.job_network.network
        """The subtasks and channels."""
        self.checkpoints = self._snapshots.begin(self.job_network)
        """What is asked for checkpoints."""
        self.recorder.started()

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # A test harness leaves its block by ending a generator, which is no failure.
        self.recorder.terminated(None if isinstance(error, GeneratorExit) else error)
        self.close()

    @property
    def epochs(self) -> int:
        """How many checkpoints were complete, or would have been if anything had state."""
        return self._snapshots.completed_count

    @property
    def barriers(self) -> RunBarriers:
        """How long the barriers of complete checkpoints took, and what they overtook."""
        return self._snapshots.metrics.barriers

    @property
    def schema_reports(self) -> Mapping[str, SchemaReport]:
        """The compatibility results on restored state, by operator uid."""
        return self._operators.schema_reports

    @property
    def restore_reports(self) -> list[StateRestoreReport]:
        """What each subtask did to each restored keyed state."""
        return [report for one in self.job_network.subtasks for report in one.restore_reports]

    @property
    def operator_state_restore_reports(self) -> list[StateRestoreReport]:
        """What each subtask did to each restored operator state."""
        return [report for one in self.job_network.subtasks for report in one.operator_state_restore_reports]

    def run_epoch(self, feeds: Iterable[Callable[[], None]]) -> None:
        """Runs one epoch: what each of the feeds gives the sources to read is processed before the next one does."""
        self.begin_epoch()
        for feed in feeds:
            feed()
            self.process()
        self.end_epoch()

    def drain(self) -> None:
        """Runs an epoch at the end of time, in which every timer of event time is due, and nothing waits any more."""
        self.run_epoch([self._feed_end])

    def begin_epoch(self) -> None:
        """Opens what has state, and fires what is due by the clock, which then stands still."""
        self.current.epoch_id = self._snapshots.last_id + 1
        self.current.processing_time_ms = not_before(self.parts.clock(), self._previous_time_ms)
        self._previous_time_ms = self.current.processing_time_ms
        with self._running():
            self._resume()
            self.network.run()
            self.network.advance_processing_time()
            self.network.run()

    def process(self) -> None:
        """Processes what the sources have been given to read."""
        with self._running():
            self.network.run()

    def process_all(self) -> None:
        """As `process`, and then the records that wait for others to be sorted with, operator by operator."""
        self.process()
        with self._running():
            while waiting := [one for one in self.job_network.subtasks if one.has_records_to_order]:
                for one in waiting:
                    if one.operator is waiting[0].operator:
                        one.process_ordered()
                self.network.run()

    def read_on(self, feed: Callable[[], bool]) -> bool:
        """Calls ``feed`` whenever all that it gave is processed, until it has nothing, or a checkpoint is complete.

        Returns whether there is more. Timers that are due fire meanwhile. The garbage collector of Python stands still
        for as long, and has its turn between two calls.
        """
        with self._running():
            self._resume()
            completed = self.epochs
            while feed():
                while self._step() is not None:
                    pass
                if self.epochs != completed:
                    return True
        return False

    def step(self) -> Move | None:
        """Makes one move and returns it; None if nobody can. Timers that are due fire first.

        Raises what a function of the user's raises, and `CheckpointFailedError` when the job endures no more failures
        of checkpoints.
        """
        with self._running():
            self._resume()
            return self._step()

    def advance_processing_time(self, time_ms: int) -> None:
        """Moves the clock within the epoch, unless that is no progress: what is due fires, then sources look at it.

        What comes of it is processed; checkpoints that are due meanwhile begin, however much it is.
        """
        self.current.processing_time_ms = not_before(time_ms, self.current.processing_time_ms)
        self._previous_time_ms = self.current.processing_time_ms
        with self._running():
            self.network.advance_processing_time()
            self.emit_periodically()
            while self._step() is not None:
                pass

    def emit_periodically(self) -> None:
        """Lets sources send what is due by their strategies, behind what they have to read."""
        for source in self.job_network.sources.values():
            if not source.has_ended and not source.is_paused:
                source.feed(LocalSource.emit_periodically)

    def end_epoch(self) -> None:
        """Takes a checkpoint, and raises why it failed if it did; the sinks have what came out when it is complete."""
        for one in self.job_network.subtasks:
            one.check_can_be_snapshotted()
        self.take_checkpoint(CheckpointRequestKind.ON_DEMAND)

    def stop(self, *, drains: bool = False) -> None:
        """Takes the checkpoint that the run stops with: sources read nothing behind its barrier.

        With ``drains`` event time is at its end before it, and everything that waits for it fires. Raises as
        `take_checkpoint`.
        """
        for one in self.job_network.subtasks:
            one.check_can_be_snapshotted()
        kinds = CheckpointRequestKind.STOP_WITH_SAVEPOINT, CheckpointRequestKind.DRAIN_WITH_SAVEPOINT
        self.take_checkpoint(kinds[drains])
        self.has_stopped = True

    def take_checkpoint(self, kind: CheckpointRequestKind) -> int | None:
        """Takes a checkpoint while all moves go on, and returns its id.

        Raises what made it fail, or `CheckpointFailedError`; the run is over then.
        """
        with self._running():
            request_id = self.checkpoints.request(kind)
            while (answer := self.checkpoints.take_answer(request_id)) is None:
                is_waiting = self._snapshots.is_writing or self.checkpoints.due_ms is not None
                if self._step(waits=True) is None and not is_waiting:
                    raise StreamJobError("a checkpoint that nobody goes on with: an error of this runtime")
            # What follows from its end: the messages of its completion.
            while self.network.mails:
                self._step()
            if answer.failure is not None:
                raise answer.error or CheckpointFailedError(answer.detail)
            return answer.checkpoint_id

    def watermarks(self) -> Mapping[str, int]:
        """How far event time is, by name of source and operator uid, in milliseconds; without a watermark, left out."""
        if self.parts.event_time is None:
            return {}
        sources = zip(self.parts.graph.source_uids, self.job_network.sources.values(), strict=True)
        known = {**{name: one.work.watermark_ms for name, one in sources}, **operator_watermarks(self.network)}
        return {name: time_ms for name, time_ms in known.items() if time_ms > MIN_TIMESTAMP}

    def time_metrics(self) -> Mapping[str, TimeMetrics]:
        """Return the event time of sources and operators."""
        event_time = self.parts.event_time
        names = () if event_time is None else event_time.names
        return time_metrics(names, self.watermarks(), self._previous_time_ms)

    def finish(self) -> None:
        """Closes what is open, behind the last record; raises what a function raises when it is closed."""
        with self._running():
            for subtask in self.job_network.subtasks:
                subtask.finish()

    def close(self) -> None:
        """Closes what is open, as given up, and what was set up."""
        self.recorder.terminated(None)
        self._give_up()
        self.functions.close()
        self._local_space.close()

    def _step(self, *, waits: bool = False) -> Move | None:
        has_fired = self.checkpoints.fire_due()
        self._snapshots.collect()
        move = self.network.step()
        if waits and move is None and not has_fired:
            self._wait()
        if self.checkpoints.failure is not None and not self.network.mails:
            raise self.checkpoints.failure
        return move

    def _wait(self) -> None:
        """Waits until threads have written something, or a timer is due: nothing else can happen."""
        due_ms, settings = self.checkpoints.due_ms, self.parts.checkpoints
        until_due_s = None if due_ms is None else max(0, due_ms - settings.now_ms()) / 1000
        if self._snapshots.is_writing:
            self._snapshots.collect(until_due_s)
        elif until_due_s is not None:
            settings.wait(until_due_s)

    def _feed_end(self) -> None:
        for source in self.network.sources:
            source.feed_end()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        if self._has_failed:
            raise StreamJobError("the run has failed and is over; begin another one from its last checkpoint")
        try:
            with paused_garbage_collection():
                yield
        except BaseException as error:
            self._has_failed = True
            self.recorder.terminated(error)
            self._give_up()
            raise

    def _live_metrics(self) -> LiveMetrics:
        newest = self._snapshots.newest
        if newest is None and self._restored is not None:
            newest = self._restored.metadata
        # Copies: who asks reads them while this thread goes on.
        return LiveMetrics(dict(self.schema_reports), newest, self.time_metrics(), dict(self.barriers.operators))

    def _give_up(self) -> None:
        self._snapshots.close()
        for subtask in self.job_network.subtasks:
            subtask.close()
        for positions in self.positions.values():
            positions.close()
        self._snapshots.discard_abandoned()

    def _resume(self) -> None:
        if self._is_resumed:
            return
        self._is_resumed = True
        self._staged.recover(self._own_checkpoint, self.parts.directory.identity.job_id)
        watermarks = None if self._restored is None else self._restored.metadata.watermarks
        if self.parts.event_time is not None and watermarks is not None:
            state = self.parts.event_time.of_checkpoint(watermarks)
            restore_network(self.network, self.parts.event_time.watermark_nodes(), state)
        if self._restored is not None:
            shares = InFlightShares(self.parts.operators, self.parts.parallelism, self._operators.learn_keys)
            has_time = self.parts.event_time is not None and watermarks is not None
            restore_checkpoint(self.network, shares, self._restored, has_time=has_time)
        self.network.resume()

    def _operators_parts(self) -> RunOperatorsParts:
        parts = self.parts
        return RunOperatorsParts(
            operators=parts.operators,
            directory=parts.directory,
            restored=self._restored,
            backend=parts.backend,
            parallelism=parts.parallelism,
            metrics=parts.metrics,
            rules=parts.rules,
            allow_non_restored_state=parts.allow_non_restored_state,
            has_time=parts.event_time is not None,
            epoch=self.current,
            local_directory=self._local_directory,
            functions=self.functions,
            progress=self.recorder.progress,
        )

    def _snapshots_parts(self, restored_from: SavepointIdentity | None) -> RunSnapshotsParts:
        parts = self.parts
        return RunSnapshotsParts(
            directory=parts.directory,
            store=parts.store,
            settings=parts.checkpoints,
            operators=parts.operators,
            event_time=parts.event_time,
            restored_id=self.restored_id,
            restored_from=restored_from,
            staged=self._staged,
            positions=self.positions,
            recorder=self.recorder,
        )

    def _network_parts(self, output: SinkRecords) -> NetworkParts:
        parts, snapshots = self.parts, self._snapshots

        def make_subtask(operator: LocalOperator, index: int, output: SubtaskOutput) -> LocalSubtask:
            return self._operators.make_subtask(
                operator, index, output, snapshots.barrier_at_operator, snapshots.aborted_at_operator
            )

        return NetworkParts(
            graph=parts.graph,
            operators=parts.operators,
            steps=parts.steps,
            event_time=parts.event_time,
            parallelism=parts.parallelism,
            now_ms=self.current.now_ms,
            make_subtask=make_subtask,
            learn_keys=self._operators.learn_keys,
            on_source_barrier=snapshots.barrier_at_source,
            on_output_barrier=snapshots.barrier_at_the_end,
            on_output_abort=snapshots.aborted_at_the_end,
            mode=parts.checkpoints.mode,
            barrier_now_ms=parts.checkpoints.now_ms,
            forms=self._snapshots.forms,
            listener=output,
            scheduler=parts.scheduler,
            capacity=parts.capacity,
        )
