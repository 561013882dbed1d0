"""One run of a job on the local runtime, step by step, from its newest checkpoint to a failure or its end.

The runtime acknowledges for a source when its barrier leaves it, and for the sinks when the last barrier reaches them.
At these moments the run records the positions of the sources and the emitted rows.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from attrs import define, field

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.coordinator.requests import CheckpointLimits, CheckpointRequestKind
from statebackend.checkpoint.errors import MissingFileError
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.completed_checkpoint_store import DirectoryCheckpointStore
from statebackend.checkpoint.store.driver_lock import DriverLockFile
from statebackend.checkpoint.store.job_directory import JobDirectory, JobIdentity
from statebackend.local import LocalStreamEnvironment
from statebackend.local.checkpoints import CheckpointFailedError
from statebackend.local.graph import rows_of
from statebackend.local.job_parts import CheckpointSettings
from statebackend.local.network.channel import RecordBatch
from statebackend.local.network.network import Move
from statebackend.local.network.subtasks import Mail
from statebackend.local.run import LocalRun
from statebackend.local.source import LocalSource
from statebackend.state.state_backend import state_backend
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkElement
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import Fault, FaultKind, FaultPlace, TaskFailed
from verification.simulation.host.machine import Machine
from verification.simulation.jobs.other_system import OtherSystem, StagingSink
from verification.simulation.jobs.plan import Event, JobPlan
from verification.simulation.jobs.program import SCHEMA, Observer, Row, build
from verification.simulation.promises import check_files, check_nothing_is_left
from verification.simulation.violation import require_that

__all__ = ["DriverDied", "JobHistory", "JobRun", "JobStopped"]

ROOT: Final = "job"
_JOB_ID: Final = "00000000-0000-0000-0000-000000000000"
_ROWS: Final = parsed_schema(SCHEMA, "a simulated source")
_MAX_PARALLELISM: Final = 8
_MOST_MOVES: Final = 2500
_MOST_MOVES_WITH_CHECKPOINTS: Final = 400
_LATE_MOVES: Final = 40
_SLOW_ONE_IN: Final = 5


_backend: Final = functools.cache(state_backend)
"""Cached, because it reads the entry points of all installed packages."""


class DriverDied(Exception):
    """The driver dies between two moves."""


class JobStopped(Exception):
    """The job has stopped with a savepoint as requested, or has failed because it could not."""


@define
class JobHistory:
    """The sources' positions and the output in each checkpoint, and the stored ones; over all runs."""

    positions: dict[tuple[str, int], dict[str, int]] = field(factory=dict)
    outputs: dict[tuple[str, int], list[list[Row]]] = field(factory=dict)
    written_by: dict[int, str] = field(factory=dict)
    """The run that stored each checkpoint, or was about to store it."""
    stored: set[int] = field(factory=set)
    acknowledged: set[tuple[str, int, TaskId]] = field(factory=set)
    given: dict[int, list[Row]] = field(factory=dict)
    """The records that each sink received. A restart does not revert them."""
    systems: dict[int, OtherSystem] = field(factory=dict)
    """The external system of two-phase sinks."""


class _WatchedStore(DirectoryCheckpointStore):
    """Checks each checkpoint before and after it completes."""

    def __init__(self, run: JobRun, retained: int) -> None:
        super().__init__(run.file_system, retained, leadership=run.leadership)
        self._run = run

    def add(self, metadata: CheckpointMetadata) -> Any:
        self._run.about_to_store(metadata)
        try:
            handle = super().add(metadata)
        except MissingFileError as error:
            # No fault deletes a file, so the product deleted a file that a snapshot builds on.
            self._run.broken = f"every file of a checkpoint exists: {error}"
            raise
        self._run.has_stored(metadata)
        return handle


@define(eq=False)
class JobRun:
    """One run of a job; ``life`` counts its runs."""

    plan: JobPlan
    machine: Machine
    history: JobHistory
    process: Process
    life: int
    outputs: list[list[Row]] = field(factory=list)
    leadership: Any = None
    file_system: Any = None
    run_id: str = ""
    broken: str = ""
    """A broken promise that could not be raised where it was found."""
    _moment: int = 0
    _held: dict[int, int] = field(factory=dict)
    _positions: dict[str, int] = field(factory=dict)
    _watermarks: dict[int, int] = field(factory=dict)
    _store: Any = None
    _was_asked_to_stop: bool = False

    def run(self) -> None:
        """Run to the end. Raises the error that ends it before."""
        self.file_system = self.machine.file_system(ROOT, self.process)
        self.leadership = DriverLockFile().lead(self.file_system, "job")
        with contextlib.closing(self.leadership), self._opened() as run:
            self._feed(run)
            self._play(run)

    def check_start(self) -> None:
        """Start and check the restored state, without running."""
        self.file_system = self.machine.file_system(ROOT, self.process)
        self._recovered()

    def about_to_store(self, metadata: CheckpointMetadata) -> None:
        """The checkpoint is about to complete."""
        self.history.written_by[metadata.checkpoint_id] = self.run_id

    def has_stored(self, metadata: CheckpointMetadata) -> None:
        """The checkpoint is complete."""
        self.machine.trace.add(f"checkpoint {metadata.checkpoint_id} is complete")
        self.history.stored.add(metadata.checkpoint_id)
        check_files(self.machine.disk, ROOT, metadata, must_be_synced=True)
        for operator in metadata.operators:
            for index in range(len(operator.subtasks)):
                acknowledgement = (self.run_id, metadata.checkpoint_id, TaskId(operator.uid, index))
                require_that(
                    acknowledgement in self.history.acknowledged,
                    f"a checkpoint completes only with every acknowledgement: {operator.uid}[{index}] has not "
                    f"acknowledged checkpoint {metadata.checkpoint_id}",
                )

    def choose(self, moves: Iterator[Any]) -> Any:
        """Return the next move."""
        chance = self.machine.moves_chance
        known: list[Move] = list(moves)
        free = [one for one in known if one.mail is None or self._held.get(id(one.mail), 0) <= self._moment]
        if not free:
            return None
        move = chance.choice(free)
        if self._is_slow(move) and chance.randrange(_SLOW_ONE_IN):
            move = chance.choice(free)
        self.machine.trace.move(str(move))
        return move

    def post(self, mail: Mail) -> Iterable[Mail]:
        """Send a message, subject to faults."""
        self._note(mail)
        fault = self.machine.faults.at(FaultPlace.MESSAGE, mail.name)
        if fault is None:
            return (mail,)
        self.machine.disk.points.add((fault.kind.name, mail.name))
        self.machine.trace.add(f"FAULT, {fault.kind.description}: {mail}")
        if fault.kind is FaultKind.MESSAGE_LATE:
            self._held[id(mail)] = self._moment + _LATE_MOVES
        return {FaultKind.MESSAGE_LOST: (), FaultKind.MESSAGE_DOUBLED: (mail, mail)}.get(fault.kind, (mail,))

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        """Receive emitted records."""
        self.outputs[sink_index] += [(row.k, row.id, row.n) for row in batch.records]

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        """Receive the watermark at the end of the job."""
        if isinstance(element, Watermark):
            before = self._watermarks.get(sink_index, element.timestamp_ms)
            require_that(
                element.timestamp_ms >= before,
                f"watermarks never go back: sink {sink_index} was at {before}, is at {element.timestamp_ms}",
            )
            self._watermarks[sink_index] = element.timestamp_ms

    @contextlib.contextmanager
    def _opened(self) -> Iterator[LocalRun]:
        plan = self.plan
        newest = self._recovered()
        identity = JobIdentity(_JOB_ID, "job", _MAX_PARALLELISM, 0)
        directory = JobDirectory(self.file_system, identity, self.leadership)
        self.run_id = directory.run_id
        sinks = 2 if plan.shape.name == "TWO_SINKS" else 1
        self.outputs = [[] for _ in range(sinks)]
        if newest is not None:
            known = self.history.written_by[newest.checkpoint_id], newest.checkpoint_id
            self._positions = dict(self.history.positions[known])
            self.outputs = [list(one) for one in self.history.outputs[known]]
        parallelism = plan.parallelism[min(self.life, len(plan.parallelism) - 1)]
        environment = LocalStreamEnvironment(
            backend=_backend(plan.backend),
            parallelism=parallelism,
            max_parallelism=_MAX_PARALLELISM,
            clock=self.machine.clock,
        )
        build(plan, environment, Observer(self._step_of_task), [self._sink(index) for index in range(sinks)])
        settings = CheckpointSettings(
            mode=plan.mode.checkpointing_mode(plan.alignment_timeout_ms),
            timeout_ms=plan.timeout_ms,
            limits=CheckpointLimits(max_concurrent_checkpoints=plan.max_concurrent),
            tolerable_failures=1000,
            # As in a real job, a monotonic clock measures timeouts and intervals.
            now_ms=lambda: self.machine.clock.monotonic_ms,
            post=self.post,
        )
        try:
            with environment.run_in(
                directory,
                self._store,
                checkpoints=settings,
                scheduler=self,
                sources_send_time=True,
                capacity=plan.capacity,
                listener=self,
            ) as run:
                yield run
        finally:
            environment.close()

    def _recovered(self) -> CheckpointMetadata | None:
        self._store = store = _WatchedStore(self, self.plan.retained)
        newest = store.recover()
        struck = len(self.machine.faults.struck)
        store.delete_orphans()
        known, found = max(self.history.stored, default=-1), -1 if newest is None else newest.checkpoint_id
        require_that(found >= known, f"a start finds the newest stored checkpoint: {known}, and not {found}")
        for metadata in store.all():
            check_files(self.machine.disk, ROOT, metadata, must_be_synced=False)
        if len(self.machine.faults.struck) == struck:
            check_nothing_is_left(self.machine.disk, ROOT, store.all())
        return newest

    def _feed(self, run: LocalRun) -> None:
        for index, source in enumerate(run.job_network.sources.values()):
            name = f"source-{index}"
            events = self.plan.events[index]
            # The end is not a position of the source: a run that reaches it again reports it again.
            self._positions[name] = min(self._positions.get(name, 0), len(events) - 1)
            for event in events[self._positions[name] :]:
                if event.time is None:
                    source.feed(partial(self._read, name, LocalSource.end_of_input))
                else:
                    source.feed(partial(self._read, name, _reading(event)))

    def _read(self, name: str, reading: Callable[[LocalSource], None], source: LocalSource) -> None:
        self._positions[name] += 1
        reading(source)

    def _sink(self, index: int) -> Any:
        if not self.plan.has_staged_sinks:
            return partial(self._give, index)

        def step(deed: str) -> Fault | None:
            what = f"{deed} in another system"
            return self.machine.disk.strike(self.process, what, FaultPlace.COMPLETION if deed == "commit" else None)

        return StagingSink(f"sink {index}", self.history.systems.setdefault(index, OtherSystem()), step)

    def _play(self, run: LocalRun) -> None:
        try:
            self._make_moves(run)
        except CheckpointFailedError as error:
            if not self._was_asked_to_stop:
                raise
            raise JobStopped(str(error)) from error

    def _stops_now(self) -> bool:
        return self.life < len(self.plan.stops) and self._moment == self.plan.stops[self.life]

    def _make_moves(self, run: LocalRun) -> None:
        chance, clock = self.machine.moves_chance, self.machine.clock
        run.checkpoints.start(self.plan.interval_ms)
        request: int | None = None
        is_stopping, has_more = False, True
        while True:
            self._moment += 1
            require_that(not self.broken, self.broken)
            require_that(self._moment < _MOST_MOVES, "the job terminates: no move is possible")
            clock.pass_ms(chance.choice((0, 0, 1, 4)))
            if self.machine.clock_faults() is FaultKind.DRIVER_DIES:
                raise DriverDied
            if has_more and (self._has_read_all or self._moment > _MOST_MOVES_WITH_CHECKPOINTS):
                # Pending checkpoints continue, and the last one is requested. Otherwise a job would never end if its
                # checkpoints took more moves than the interval between them.
                run.checkpoints.stop()
                has_more = False
            if request is None and self._stops_now():
                request = run.checkpoints.request(CheckpointRequestKind.STOP_WITH_SAVEPOINT)
                self._was_asked_to_stop = is_stopping = True
            if run.step() is not None:
                continue
            if request is not None and (answer := run.checkpoints.take_answer(request)) is not None:
                if answer.failure is None and is_stopping:
                    raise JobStopped("with a savepoint")
                if answer.failure is None:
                    return
                request, is_stopping = None, False
            if not has_more and request is None and not run.network.mails and run.checkpoints.is_idle:
                request = run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
            elif run.checkpoints.due_ms is not None:
                clock.pass_ms(max(1, min(run.checkpoints.due_ms - clock.monotonic_ms, 50)))

    @property
    def _has_read_all(self) -> bool:
        return all(
            self._positions.get(f"source-{index}", 0) == len(events) for index, events in enumerate(self.plan.events)
        )

    def _give(self, sink_index: int, row: Any) -> None:
        given = self.history.given.setdefault(sink_index, [])
        given.append((row.k, row.id, row.n))
        if self.plan.is_exactly_once:
            too_many = Counter(given) - Counter(self.outputs[sink_index])
            require_that(
                not too_many, f"a sink receives each result once: sink {sink_index} has too often {dict(too_many)}"
            )

    def _step_of_task(self, uid: str) -> None:
        fault = self.machine.faults.at(FaultPlace.TASK, uid)
        if fault is not None:
            self.machine.disk.points.add((fault.kind.name, uid))
            self.machine.trace.add(f"FAULT, {fault.kind.description}: {uid}")
            raise TaskFailed(uid)

    def _note(self, mail: Mail) -> None:
        """Record the positions and the output of a checkpoint when they are acknowledged."""
        if mail.name != "acknowledge" or mail.task is None:
            return
        self.history.acknowledged.add((self.run_id, mail.checkpoint_id, mail.task))
        key = (self.run_id, mail.checkpoint_id)
        uid = mail.task.operator_uid
        if uid.startswith("source-"):
            self.history.positions.setdefault(key, {})[uid] = self._positions.get(uid, 0)
        elif uid not in ("numbered", "total", "paired", "ruled"):
            self.history.outputs[key] = [list(one) for one in self.outputs]

    def _is_slow(self, move: Move) -> bool:
        if move.channel is None or self.plan.slow is None:
            return False
        return zlib.crc32(str(move).encode()) % 4 == self.plan.slow


def _reading(event: Event) -> Callable[[LocalSource], None]:
    if event.key is None:
        assert event.time is not None
        return partial(LocalSource.read_time, element=Watermark(event.time))
    record = {"k": event.key, "id": event.id, "n": 0}
    return partial(LocalSource.read, records=rows_of([record], _ROWS), timestamps=[event.time])
