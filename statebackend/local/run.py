"""One execution of a local job: its network, its clock and its checkpoints. Subtasks stay open for the whole run.

A run is driven from outside in two ways, which may be mixed:

    begin_epoch, process, end_epoch    feed, process all of it, take a checkpoint: the results do not depend on when
                                       anything is written
    step                               one move: an element, a mail, a timer that is due. Between two moves the run may
                                       be abandoned (`close` it, or first take its file system away, as a crash does),
                                       and another one started in its job directory

A run that is stepped depends on its scheduler, clocks, file system and input only. Without
threads, the same seed makes the same moves.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from statebackend.checkpoint.coordinator.requests import CheckpointRequestKind
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory
from statebackend.local.channel_restore import InFlightShares, restore_checkpoint
from statebackend.local.checkpoints import CheckpointFailedError, RunCheckpoints
from statebackend.local.job_network import JobNetwork
from statebackend.local.job_parts import LocalJobParts, LocalProgram
from statebackend.local.network.network import Move
from statebackend.local.network_watermarks import operator_watermarks, restore_network
from statebackend.local.sinks import LocalSinks
from statebackend.local.source import LocalSource, ReplayedSource, SplitPositions
from statebackend.local.subtask import RunOperators
from statebackend.savepoint.export import SavepointReport, export_tasks, finish_savepoint
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.clock import wall_clock
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.errors import EpochError, StreamJobError
from statebackend.streaming.metrics import ObservedRun, RunBarriers, TimeMetrics, time_metrics
from statebackend.streaming.observing.job_recorder import JobRecorder, LiveMetrics, ObservedJob
from statebackend.streaming.operators.async_wait import STATE_NAME
from statebackend.streaming.operators.record_function import paused_garbage_collection
from statebackend.streaming.runtime.event_time import not_before
from statebackend.streaming.runtime.starting_point import StartingPoint
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP


class LocalRun:
    """A run from a starting point. Any exception ends it: subtasks close, and the last checkpoint stays the last."""

    def __init__(
        self,
        program: LocalProgram,
        directory: JobDirectory,
        store: CompletedCheckpointStore,
        point: StartingPoint,
        reports: Mapping[str, SchemaReport],
    ) -> None:
        restored = point.state
        self.restored_id = point.restored_id
        """The checkpoint or savepoint that the run continues from, if any."""
        identity = directory.identity
        self.recorder = JobRecorder(
            ObservedRun(
                job_name=identity.job_name,
                job_id=identity.job_id,
                run_id=directory.run_id,
                engine="local",
                parallelism=program.parallelism,
                max_parallelism=identity.max_parallelism,
                started_ms=wall_clock(),
                restored_id=self.restored_id,
            ),
            self._live_metrics,
            program.listeners,
            keeps_subtasks_open=True,
        )
        parts = self.parts = LocalJobParts(
            program=program, directory=directory, store=store, point=point, recorder=self.recorder
        )
        self._previous_time_ms = None if restored is None else restored.metadata.processing_time_ms
        self._is_resumed = self._has_failed = False
        self.has_stopped = False
        """Whether it has stopped with a checkpoint; its sources read nothing more."""
        self.positions = {
            uid: SplitPositions(
                uid, node.source.source, None if uid in point.restarted_sources else restored, directory.file_system
            )
            for uid, node in zip(program.graph.source_uids, program.graph.sources, strict=True)
            if isinstance(node.source, ReplayedSource)
        }
        """The positions of replayable sources, by uid."""
        self._sinks = LocalSinks(program.graph, program.prepared.sink_writers, program.listener)
        self._operators = RunOperators(parts, reports)
        self.checkpoints = RunCheckpoints(parts, self._sinks, self.positions)
        """Takes requests for checkpoints."""
        self.job_network = JobNetwork(program, self._operators, self.checkpoints, self._sinks)
        self.network = self.job_network.network
        self.checkpoints.begin(self.network, self.job_network.subtasks)
        self.recorder.started()

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # A test harness ends its block by closing a generator, which is not a failure.
        self.recorder.terminated(None if isinstance(error, GeneratorExit) else error)
        self.close()

    @property
    def epochs(self) -> int:
        """How many checkpoints completed, including those without any state."""
        return self.checkpoints.completed_count

    @property
    def barriers(self) -> RunBarriers:
        """Durations of the barriers of complete checkpoints, and what they overtook."""
        return self.checkpoints.metrics.barriers

    @property
    def schema_reports(self) -> Mapping[str, SchemaReport]:
        """The compatibility results of restored state, by operator uid."""
        return self._operators.schema_reports

    @property
    def restore_reports(self) -> list[StateRestoreReport]:
        """What each subtask did to each restored keyed state."""
        return [report for one in self.job_network.subtasks for report in one.restore_reports]

    @property
    def operator_state_restore_reports(self) -> list[StateRestoreReport]:
        """What each subtask did to each restored operator state."""
        return [report for one in self.job_network.subtasks for report in one.operator_state_restore_reports]

    @property
    def holds_output(self) -> bool:
        """Whether an operator holds results back, such as those of asynchronous requests."""
        return any(one.holds_output for one in self.job_network.subtasks)

    @property
    def restores_in_flight(self) -> bool:
        """Whether the run starts with requests that a checkpoint carries."""
        return self._operators.restores(STATE_NAME)

    def run_epoch(self, feeds: Iterable[Callable[[], None]]) -> None:
        """Run one epoch: what each feed gives the sources is processed before the next one feeds."""
        self.begin_epoch()
        for feed in feeds:
            feed()
            self.process()
        self.end_epoch()

    def drain(self) -> None:
        """Run an epoch at the end of event time: all event-time timers fire, and buffered elements are emitted."""

        def feed_end() -> None:
            for source in self.network.sources:
                source.feed_end()

        self.run_epoch([feed_end])

    def await_in_flight(self) -> None:
        """Process all results that operators hold back, and wait for asynchronous requests first."""
        with self._running():
            for one in self.job_network.subtasks:
                one.end_input()
                self.network.run()

    def begin_epoch(self) -> None:
        """Open the subtasks and fire processing-time timers that are due; then processing time is fixed."""
        self.parts.epoch.epoch_id = self.checkpoints.last_id + 1
        self._set_time(not_before(self.parts.program.clock(), self._previous_time_ms))
        with self._running():
            self.network.run()
            self.network.advance_processing_time()
            self.network.run()

    def process(self) -> None:
        """Process what was fed to the sources."""
        with self._running():
            self.network.run()

    def process_all(self) -> None:
        """As `process`, then process the records that are buffered to be sorted, operator by operator."""
        with self._running():
            self.network.run()
            while waiting := [one for one in self.job_network.subtasks if one.has_records_to_order]:
                for one in waiting:
                    if one.operator is waiting[0].operator:
                        one.process_ordered()
                self.network.run()

    def read_on(self, feed: Callable[[], bool]) -> bool:
        """Call ``feed`` again and again, and process what it feeds, until it returns False or a checkpoint completes.

        Returns whether there is more. Timers that are due fire meanwhile. Python's garbage collector is paused, and
        runs between two calls.
        """
        with self._running():
            completed = self.epochs
            while feed():
                self._make_moves()
                if self.epochs != completed:
                    return True
        return False

    def step(self) -> Move | None:
        """Fire the timers that are due, make one move and return it; None if none is possible.

        Raises what a user function raises, and `CheckpointFailedError` after too many failed checkpoints.
        """
        with self._running():
            return self._step()

    def advance_processing_time(self, time_ms: int) -> None:
        """Advance the clock within the epoch: timers that are due fire, then sources emit periodic watermarks.

        Checkpoints that are due meanwhile start.
        """
        self._set_time(not_before(time_ms, self.parts.epoch.clock.now_ms))
        with self._running():
            self.network.advance_processing_time()
            self.emit_periodically()
            self._make_moves()

    def emit_periodically(self) -> None:
        """Let sources emit what is due by their strategies, after what they have to read."""
        for source in self.job_network.sources.values():
            if not source.has_ended and not source.is_paused:
                source.feed(LocalSource.emit_periodically)

    def end_epoch(self) -> None:
        """Take a checkpoint, after which the sinks have the results; raises why it failed."""
        self._end_with(CheckpointRequestKind.ON_DEMAND)

    def stop(self, *, drains: bool = False) -> None:
        """Take the last checkpoint: sources read nothing after its barrier.

        With ``drains`` event time advances to its end before it. Raises as `take_checkpoint`.
        """
        kinds = CheckpointRequestKind.STOP_WITH_SAVEPOINT, CheckpointRequestKind.DRAIN_WITH_SAVEPOINT
        self._end_with(kinds[drains])
        self.has_stopped = True

    def take_checkpoint(self, kind: CheckpointRequestKind) -> int | None:
        """Take a checkpoint while all moves go on, and return its id.

        Raises the exception that made it fail, or `CheckpointFailedError`; the run is over then.
        """
        with self._running():
            request_id = self.checkpoints.request(kind)
            while (answer := self.checkpoints.take_answer(request_id)) is None:
                is_waiting = self.checkpoints.writer.is_writing or self.checkpoints.due_ms is not None
                if self._step(waits=True) is None and not is_waiting:
                    raise StreamJobError(
                        "a checkpoint makes no progress. This is a bug of Statebackend; please report it"
                    )
            # The notifications of its completion.
            while self.network.mails:
                self._step()
            if answer.failure is not None:
                raise answer.error or CheckpointFailedError(answer.detail)
            return answer.checkpoint_id

    def watermarks(self) -> Mapping[str, int]:
        """The watermarks of sources and operators by uid, in milliseconds; those without one are left out."""
        if self.parts.program.event_time is None:
            return {}
        sources = zip(self.parts.program.graph.source_uids, self.job_network.sources.values(), strict=True)
        known = {**{name: one.work.watermark_ms for name, one in sources}, **operator_watermarks(self.network)}
        return {name: time_ms for name, time_ms in known.items() if time_ms > MIN_TIMESTAMP}

    def time_metrics(self) -> Mapping[str, TimeMetrics]:
        """The event time of sources and operators."""
        event_time = self.parts.program.event_time
        names = () if event_time is None else event_time.names
        return time_metrics(names, self.watermarks(), self._previous_time_ms)

    def finish(self) -> None:
        """Close the functions after the last record; raises what a function raises in `close`."""
        with self._running(resumes=False):
            for subtask in self.job_network.subtasks:
                subtask.finish()

    def close(self) -> None:
        """Abort what is open, and release all resources."""
        self.recorder.terminated(None)
        self._abort()
        self._sinks.close()
        self._operators.close()

    def _set_time(self, time_ms: int) -> None:
        self.parts.epoch.clock.now_ms = self._previous_time_ms = time_ms

    def _end_with(self, kind: CheckpointRequestKind) -> None:
        for one in self.job_network.subtasks:
            one.check_can_be_snapshotted()
        self.take_checkpoint(kind)

    def _make_moves(self) -> None:
        """Make moves until none is possible.

        After a periodic checkpoint, the next one starts when a source has read or no move is left. Otherwise barriers
        and messages would hold up all records if they take longer than the interval.
        """
        may_start = True
        while (move := self._step(starts_periodic=may_start)) is not None:
            may_start = move.is_reading or (may_start and move.mail is None)

    def _step(self, *, waits: bool = False, starts_periodic: bool = True) -> Move | None:
        has_fired = self.checkpoints.fire_due(starts_periodic=starts_periodic)
        self.checkpoints.writer.collect()
        move = self.network.step()
        if waits and move is None and not has_fired:
            self._wait()
        if self.checkpoints.failure is not None and not self.network.mails:
            raise self.checkpoints.failure
        return move

    def _wait(self) -> None:
        """Wait until a thread has written a snapshot or a timer is due: nothing else can happen."""
        due_ms, settings = self.checkpoints.due_ms, self.parts.program.checkpoints
        until_due_s = None if due_ms is None else max(0, due_ms - settings.now_ms()) / 1000
        if self.checkpoints.writer.is_writing:
            self.checkpoints.writer.collect(until_due_s)
        elif until_due_s is not None:
            settings.wait(until_due_s)

    @contextlib.contextmanager
    def _running(self, *, resumes: bool = True) -> Iterator[None]:
        if self._has_failed:
            raise StreamJobError("the run has failed; start another one from its last checkpoint")
        try:
            with paused_garbage_collection():
                if resumes and not self._is_resumed:
                    self._is_resumed = True
                    self._resume()
                yield
        except BaseException as error:
            self._has_failed = True
            self.recorder.terminated(error)
            self._abort()
            raise

    def _live_metrics(self) -> LiveMetrics:
        newest, restored = self.checkpoints.newest, self.parts.point.state
        if newest is None and restored is not None:
            newest = restored.metadata
        # Copies, because another thread may read them.
        return LiveMetrics(dict(self.schema_reports), newest, self.time_metrics(), dict(self.barriers.operators))

    def _abort(self) -> None:
        self.checkpoints.close()
        for subtask in self.job_network.subtasks:
            subtask.close()
        for positions in self.positions.values():
            positions.close()
        self.checkpoints.discard_abandoned()

    def _resume(self) -> None:
        program, point = self.parts.program, self.parts.point
        if point.own_checkpoint is not None:
            self._sinks.commit_again(point.own_checkpoint)
        self._sinks.recover(self.restored_id, self.parts.directory.identity.job_id, point.restored_from)
        if point.state is not None:
            watermarks = None if point.restarts_every_source else point.state.metadata.watermarks
            event_time = program.event_time
            if event_time is not None and watermarks is not None:
                restore_network(self.network, event_time.watermark_nodes(), watermarks)
            shares = InFlightShares(program.prepared.operators, program.parallelism, self._operators.learn_keys)
            has_time = event_time is not None and watermarks is not None
            restore_checkpoint(self.network, shares, point.state, has_time=has_time)
        self.network.resume()


class LocalJob(ObservedJob):
    """A job that has processed all its elements: its metrics, and savepoints of its last checkpoint."""

    def __init__(self, run: LocalRun, temporary: tempfile.TemporaryDirectory[str]) -> None:
        super().__init__(run.recorder)
        parts, program = run.parts, run.parts.program
        self.schema_reports: Mapping[str, SchemaReport] = run.schema_reports
        """The compatibility results of restored state, by operator uid."""
        self.restore_reports: Sequence[StateRestoreReport] = run.restore_reports
        """What each subtask did to each restored keyed state."""
        self.operator_state_restore_reports: Sequence[StateRestoreReport] = run.operator_state_restore_reports
        """What each subtask did to each restored operator state."""
        self.epochs = run.epochs
        """How many epochs ran."""
        self._watermarks = run.watermarks()
        self._store = parts.store
        self._file_system = parts.directory.file_system
        self._registered = {uid: operator.states.keyed for uid, operator in program.prepared.operators.items()}
        self._clock = program.clock
        # The directory is removed with its last reference, and `savepoint` reads it.
        self._temporary = temporary

    def watermarks(self) -> Mapping[str, int]:
        """The watermarks of operators and sources by uid, in milliseconds; those without one are left out."""
        return self._watermarks

    def savepoint(self, path: str | os.PathLike[str]) -> SavepointReport:
        """Write a savepoint of the state to a new directory. Every environment and backend can restore it.

        Raises:
            EpochError: The job has processed nothing.
        """
        latest = self._store.latest()
        if latest is None:
            raise EpochError("there is nothing to save: the job has processed nothing or has no state")
        started_s = time.monotonic()
        with self._store.pin(latest.checkpoint_id) as metadata:
            target = create_savepoint_directory(path)
            tasks = export_tasks(metadata, self._file_system, target, self._registered, self._clock())
            exported = [task.run(self._recorder.progress) for task in tasks]
            report = finish_savepoint(metadata, exported, target, (), started_s)
        self._recorder.savepoint_written(report)
        return report
