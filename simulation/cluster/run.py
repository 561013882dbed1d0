"""One run of the cluster's job: from the newest checkpoint to a failure, a death or the end.

Who moves next is chance's choice among all who may: a task takes what comes out of a channel, a source reads, a message
arrives, a snapshot is uploaded, the coordinator does one of the things it was asked for, a timer goes off, time passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, field

from checkpointing.barriers.barrier_elements import BarrierHandler, CheckpointBarrier
from checkpointing.barriers.barrier_tracker import BarrierTracker
from checkpointing.barriers.exactly_once_handler import (
    ExactlyOnceHandler,
    alternating,
    always_aligned,
    always_unaligned,
)
from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.acknowledgement_policy import CheckpointTask, TaskStatus
from checkpointing.coordinator.checkpoint_coordinator import CheckpointCoordinator
from checkpointing.coordinator.checkpoint_failures import CheckpointFailureReason
from checkpointing.coordinator.checkpoint_requests import CheckpointLimits, CheckpointRequestKind
from checkpointing.coordinator.coordinator_messages import (
    Acknowledged,
    AnswerRequest,
    AssignId,
    CheckpointFailed,
    CheckpointNumbered,
    CheckpointProgressed,
    CheckpointRequested,
    Declined,
    DiscardStates,
    FailJob,
    InitializeLocation,
    NotifyAborted,
    NotifyComplete,
    PeriodicTimerFired,
    RemoveLocation,
    RunMasterHooks,
    SchedulerStarted,
    SnapshotOperatorCoordinators,
    StartPeriodicTimer,
    StartTimeout,
    StopPeriodicTimer,
    StopTimeout,
    StoreCheckpoint,
    TasksChanged,
    TellTasks,
    TimedOut,
)
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.job_checkpoints import JobCheckpoints
from checkpointing.errors import LeadershipLostError, MissingFileError, StorageError, UncertainCheckpointError
from checkpointing.handles.checksum import checksum_of_bytes
from checkpointing.handles.state_handles import FileHandle, OpaqueStateHandle, SubtaskState
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.storage.default_checkpoint_store import DefaultCompletedCheckpointStore
from checkpointing.storage.directory_checkpoint_store import DirectoryCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.leadership import LossListener
from checkpointing.storage.object_pointers import ObjectPointers
from checkpointing.storage.savepoint_directory import write_savepoint
from simulation.cluster.channel import Channel, Record
from simulation.cluster.history import History, check_is_cut
from simulation.cluster.messages import Messages
from simulation.cluster.plan import BarrierMode, ClusterPlan
from simulation.cluster.task import Snapshot, Task, TaskState, shown_task
from simulation.host.disk import Process
from simulation.host.faults import FaultKind, FaultPlace, TaskFailed
from simulation.host.machine import Machine
from simulation.promises import check_files, check_nothing_is_left
from simulation.violation import require_that

__all__ = ["ClusterRun", "JobFailed"]

JOB_ROOT: Final = "job"
_FORMAT: Final = "simulated"
_MOST_MOVES: Final = 8_000
_SLOWNESS: Final = 6


class JobFailed(Exception):
    """The run is over, and the job begins again from its newest checkpoint."""


@define(eq=False)
class _Lease:
    """That of a run, until another one takes it; a `Leadership`."""

    run: ClusterRun

    def check(self) -> None:
        if self.run.history.leader != self.run.run_id:
            raise LeadershipLostError(f"{self.run.run_id} does not lead any more")

    def at_loss(self, listener: LossListener) -> None:
        """Who stands still hears of nothing."""

    def close(self) -> None:
        """The next one takes it."""


Move = tuple[str, Callable[[], None], int]
"""What is told of it, what it does, and how often it is chosen."""


@define(eq=False)
class ClusterRun:
    """See the module."""

    plan: ClusterPlan
    machine: Machine
    messages: Messages
    history: History
    process: Process
    run_id: str
    tasks: dict[TaskId, Task] = field(factory=dict)
    channels: list[Channel] = field(factory=list)
    ends: dict[int, tuple[TaskId, TaskId]] = field(factory=dict)
    _chores: list[tuple[str, Callable[[], None]]] = field(factory=list)
    _timers: dict[tuple[str, int], int] = field(factory=dict)
    _requests: int = 0
    _kinds: dict[int, CheckpointRequestKind] = field(factory=dict)
    _is_settled: bool = False
    _given_up: list[SubtaskState] = field(factory=list)
    _file_system: CheckpointFileSystem = field(init=False)
    _store: DefaultCompletedCheckpointStore = field(init=False)
    _coordinator: CheckpointCoordinator = field(init=False)
    _checkpoints: JobCheckpoints = field(init=False)

    def start(self) -> None:
        """Finds what is there, and goes on from the newest checkpoint."""
        known = max(self.history.stored, default=-1)
        self._store = self._made_store()
        newest = self._store.recover()
        struck = len(self.machine.faults.struck)
        self._store.delete_orphans()
        self._check_start(newest, known, orphans_are_gone=len(self.machine.faults.struck) == struck)
        self._build()
        if newest is not None:
            self._restore(newest)
        newest_id = None if newest is None else newest.checkpoint_id
        self._coordinator = CheckpointCoordinator(
            "job",
            self.run_id,
            self.plan.timeout_ms,
            max_parallelism=8,
            last_checkpoint_id=newest_id,
            max_concurrent_checkpoints=None,
        )
        self._checkpoints = JobCheckpoints(
            self._coordinator,
            limits=CheckpointLimits(max_concurrent_checkpoints=self.plan.max_concurrent),
            failures=FailurePolicy(self.plan.tolerable_failures),
            are_checkpoints_unaligned=self.plan.mode in (BarrierMode.UNALIGNED, BarrierMode.ALTERNATING),
            last_completed_id=newest_id,
        )
        self._tell(TasksChanged([CheckpointTask(task, TaskStatus.RUNNING, self._senders(task)) for task in self.tasks]))
        self._tell(SchedulerStarted(self.plan.interval_ms, self.machine.clock()))

    def _made_store(self) -> DefaultCompletedCheckpointStore:
        are_objects = self.plan.is_on_objects
        self._file_system = files = self.machine.file_system(JOB_ROOT, self.process, are_objects=are_objects)
        if not are_objects:
            return DirectoryCheckpointStore(files, self.plan.retained)
        objects = files.conditional
        assert objects is not None
        self.history.leader = self.run_id
        pointers = ObjectPointers(files, objects, "job")
        pointers.take_over(self.run_id, lambda record: record)
        return DefaultCompletedCheckpointStore(files, pointers, self.plan.retained, leadership=_Lease(self))

    def run(self, moves_so_far: int, most: int | None = None) -> int:
        """Moves until all is processed and a checkpoint behind it complete, or something ends it; returns the moves.

        Ends behind ``most`` moves, if that is given.
        """
        count = moves_so_far
        settled_for = 0
        while settled_for < 400:
            count += 1
            if most is not None and count > most:
                break
            require_that(count < _MOST_MOVES, "the job comes to its end: it stands still")
            self.messages.moment += 1
            if count in self.plan.savepoints:
                self._request(CheckpointRequestKind.SAVEPOINT)
            kind = self.machine.clock_faults()
            if kind is FaultKind.DRIVER_DIES:
                raise JobFailed("the driver dies")
            told, move, _ = self._chosen()
            self.machine.trace.move(told)
            move()
            if self._is_processed():
                settled_for += 1
                if self._is_settled:
                    break
            else:
                self._is_settled = False
        self._tell_nothing_more()
        return count

    def seen(self) -> Mapping[int, list[Any]]:
        """What all subtasks of each node have seen."""
        seen: dict[int, list[Any]] = {node: [] for node in self.plan.nodes}
        for task in self.tasks.values():
            seen[int(task.id.operator_uid)] += task.state.seen
        return seen

    def _tell_nothing_more(self) -> None:
        self.messages.forget_tasks()

    def _check_start(self, newest: CheckpointMetadata | None, known: int, *, orphans_are_gone: bool) -> None:
        if not self.leads:
            raise JobFailed("another driver has begun to lead")
        disk = self.machine.disk
        found = -1 if newest is None else newest.checkpoint_id
        require_that(found >= known, f"what was stored is found: checkpoint {known} was, and {found} is the newest one")
        for metadata in self._store.all():
            check_files(disk, JOB_ROOT, metadata, must_be_synced=False)
        for root, metadata in self.history.savepoints.items():
            check_files(disk, root, metadata, must_be_synced=False)
        if orphans_are_gone and not (self.plan.is_on_objects and disk.lists_late):
            check_nothing_is_left(disk, JOB_ROOT, self._store.all())

    def _build(self) -> None:
        plan = self.plan
        for node in plan.nodes:
            for index in range(plan.parallelism):
                task_id = TaskId(str(node), index)
                self.tasks[task_id] = Task(
                    task_id,
                    None,
                    [],
                    [],
                    [],
                    plan.records if node in plan.sources else 0,
                    plan.is_exactly_once,
                    self.machine.clock,
                    partial(self._decline, task_id, CheckpointFailureReason.DECLINED_BY_CANCELLATION),
                )
        for edge in plan.edges:
            for sender_index in range(plan.parallelism):
                sender = self.tasks[TaskId(str(edge.sender), sender_index)]
                outputs = []
                for reader_index in range(plan.parallelism):
                    reader = self.tasks[TaskId(str(edge.reader), reader_index)]
                    number = len(self.channels)
                    channel = Channel(
                        number, shown_task(sender.id), shown_task(reader.id), plan.capacity, len(reader.inputs)
                    )
                    self.ends[number] = sender.id, reader.id
                    self.channels.append(channel)
                    reader.inputs.append(channel)
                    outputs.append(channel)
                sender.outputs.append(outputs)
                sender.are_broadcast.append(edge.is_broadcast)
        for task in self.tasks.values():
            if task.inputs:
                task.handler = self._handler(len(task.inputs))

    def _handler(self, count: int) -> BarrierHandler:
        if self.plan.mode is BarrierMode.AT_LEAST_ONCE:
            return BarrierTracker(count)
        policies = {
            BarrierMode.ALIGNED: always_aligned,
            BarrierMode.UNALIGNED: always_unaligned,
            BarrierMode.ALTERNATING: alternating,
        }
        return ExactlyOnceHandler(count, policies[self.plan.mode])

    def _restore(self, metadata: CheckpointMetadata) -> None:
        for task_id, (state, files) in self._states_of(metadata).items():
            task = self.tasks[task_id]
            task.state, task.files = state, files
            for number, records in state.on_the_way.items():
                self.channels[number].elements.extend(records)
            state.on_the_way = {}

    def _states_of(
        self, metadata: CheckpointMetadata, root: str = JOB_ROOT
    ) -> dict[TaskId, tuple[TaskState, tuple[tuple[FileHandle, int], ...]]]:
        states: dict[TaskId, tuple[TaskState, tuple[tuple[FileHandle, int], ...]]] = {}
        for operator in metadata.operators:
            for index, subtask in enumerate(operator.subtasks):
                assert subtask.operator is not None
                pieces, files, upto = [], [], 0
                for file in subtask.operator.files:
                    content = self.machine.disk.files.get(f"{root}/{file.path}", b"")
                    require_that(
                        checksum_of_bytes(content) == file.checksum,
                        f"no file is missing: {file.path} is not as written",
                    )
                    pieces.append(content)
                    upto = len(TaskState.decode(pieces).seen)
                    files.append((file, upto))
                states[TaskId(operator.uid, index)] = TaskState.decode(pieces), tuple(files)
        return states

    def _senders(self, task: TaskId) -> frozenset[TaskId]:
        return frozenset(sender for sender, reader in self.ends.values() if reader == task)

    def _chosen(self) -> Move:
        moves = [*self._task_moves(), *self._coordinator_moves()]
        moves.append(("time passes", partial(self._pass_time, is_all=not moves), 2))
        weights = [weight for _, _, weight in moves]
        return self.machine.moves_chance.choices(moves, weights)[0]

    def _task_moves(self) -> Sequence[Move]:
        moves: list[Move] = []
        for task in self.tasks.values():
            name = shown_task(task.id)
            if task.handler is None:
                if task.state.position < task.records and task.has_room:
                    moves.append((f"{name} reads", partial(self._in_task, task, self._read, task), 3))
            elif task.has_room:
                for channel in task.inputs:
                    if channel.elements and not channel.stands_still:
                        weight = 1 if channel.number in self.plan.slow else _SLOWNESS
                        told = f"{name} takes {_told(channel.elements[0])} from {channel.sender}"
                        moves.append((told, partial(self._in_task, task, task.take, channel), weight))
            moves += [
                (f"{name} hears of a barrier in {channel.sender}", partial(task.announced, channel), 4)
                for channel in task.inputs
                if channel.unannounced
            ]
            if task.timer is not None and task.timer[1] <= self.machine.clock():
                moves.append((f"{name}: its time to align is over", task.time_to_align_is_over, 4))
            for snapshot in sorted(task.snapshots.values(), key=lambda one: one.checkpoint_id)[:1]:
                if snapshot.is_whole:
                    told = f"{name} uploads {snapshot.checkpoint_id}"
                    moves.append((told, partial(self._upload, task, snapshot), 3))
        return moves

    def _coordinator_moves(self) -> Sequence[Move]:
        moves: list[Move] = []
        for message in self.messages.deliverable()[:8]:
            told = f"{message.to or 'coordinator'} hears {_told(message.content)}"
            moves.append((told, partial(self._deliver, message), 4))
        if self._chores:
            what, chore = self._chores[0]
            moves.append((f"coordinator: {what}", partial(self._do_chore, chore), 6))
        for (kind, number), at_ms in self._timers.items():
            if at_ms <= self.machine.clock():
                moves.append((f"coordinator: {kind} {number}", partial(self._timer, kind, number), 4))
        return moves

    def _in_task(self, task: Task, move: Callable[..., None], *arguments: Any) -> None:
        fault = self.machine.faults.at(FaultPlace.TASK, "a step")
        if fault is not None:
            self.machine.disk.points.add((fault.kind.name, "a step"))
            self.machine.trace.add(f"FAULT, {fault.kind.told}: {task.id}")
            raise TaskFailed(str(task.id))
        move(*arguments)

    def _read(self, task: Task) -> None:
        task.read(int(task.id.operator_uid))

    def _pass_time(self, is_all: bool) -> None:
        timers = [*self._timers.values(), *(task.timer[1] for task in self.tasks.values() if task.timer is not None)]
        if is_all and timers and not self.messages.under_way:
            self.machine.clock.now_ms = max(self.machine.clock.now_ms, min(timers))
        else:
            self.machine.clock.now_ms += self.machine.moves_chance.choice((1, 5, 20))

    def _deliver(self, message: Any) -> None:
        content = self.messages.taken(message)
        if message.to is None:
            self._tell(content)
            return
        task = self.tasks[message.to]
        if isinstance(content, CheckpointBarrier):
            task.begin(content)
        elif isinstance(content, NotifyAborted):
            task.cancel(content.checkpoint_id)

    def _upload(self, task: Task, snapshot: Snapshot) -> None:
        del task.snapshots[snapshot.checkpoint_id]
        # Each is built upon the one before, whatever became of that; now and then a new one is whole.
        files = [] if snapshot.is_savepoint or len(task.files) > 3 else list(task.files)
        stored_upto = files[-1][1] if files else 0
        data = snapshot.state.encode(stored_upto)
        file_system = self._place_of(snapshot)
        path = f"shared/{task.id.operator_uid}-{task.id.subtask_index}-{self.run_id}-{snapshot.checkpoint_id}"
        try:
            new = file_system.write_file(path, data)
        except StorageError as error:
            self._decline(task.id, CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED, snapshot.checkpoint_id)
            self.machine.trace.add(f"the upload fails: {error}")
            return
        handles = (*(file for file, _ in files), new)
        if not snapshot.is_savepoint:
            task.files = (*files, (new, len(snapshot.state.seen)))
        state = SubtaskState(operator=OpaqueStateHandle(_FORMAT, b"", handles))
        self.history.said(self.run_id, snapshot.checkpoint_id, task.id, state)
        acknowledgement = Acknowledgement(
            "job",
            self.run_id,
            snapshot.checkpoint_id,
            task.id.operator_uid,
            task.id.subtask_index,
            "0",
            new.checksum,
            state,
        )
        self.messages.send(None, Acknowledged(acknowledgement, self.machine.clock()))

    def _place_of(self, snapshot: Snapshot) -> CheckpointFileSystem:
        if not snapshot.is_savepoint:
            return self._file_system
        return self._savepoint_files(snapshot.checkpoint_id)

    def _savepoint_files(self, checkpoint_id: int) -> CheckpointFileSystem:
        root = self._savepoint_root(checkpoint_id)
        return self.machine.file_system(root, self.process, are_objects=self.plan.is_on_objects)

    def _savepoint_root(self, checkpoint_id: int) -> str:
        return f"savepoints/{self.run_id}-{checkpoint_id}"

    def _decline(self, task: TaskId, reason: CheckpointFailureReason, checkpoint_id: int) -> None:
        now_ms = self.machine.clock()
        self.messages.send(None, Declined("job", self.run_id, checkpoint_id, task, reason, "declined", now_ms))

    def _request(self, kind: CheckpointRequestKind) -> None:
        self._requests += 1
        self._tell(CheckpointRequested(self._requests, kind, self.machine.clock()))

    def _tell(self, event: Any) -> None:
        for action in self._checkpoints.handle(event):
            _ACTIONS[type(action)](self, action)

    def _do_chore(self, chore: Callable[[], None]) -> None:
        self._chores.pop(0)
        chore()

    def _later(self, what: str, chore: Callable[[], None]) -> None:
        self._chores.append((what, chore))

    def _timer(self, kind: str, number: int) -> None:
        del self._timers[kind, number]
        if kind == "timeout":
            self._tell(TimedOut(number, self.machine.clock()))
        else:
            self._requests += 1
            self._tell(PeriodicTimerFired(self._requests, self.machine.clock()))

    def _assign_id(self, action: AssignId) -> None:
        def number() -> None:
            checkpoint_id = self._store.next_checkpoint_id()
            self._kinds[checkpoint_id] = action.request.kind
            self._tell(CheckpointNumbered(action.request.request_id, checkpoint_id, self.machine.clock()))

        self._later("gives an id", number)

    def _progress(self, action: InitializeLocation | SnapshotOperatorCoordinators | RunMasterHooks) -> None:
        checkpoint_id = action.checkpoint_id
        what = f"{type(action).__name__} {checkpoint_id}"
        self._later(what, lambda: self._tell(CheckpointProgressed(checkpoint_id, self.machine.clock())))

    def _tell_tasks(self, action: TellTasks) -> None:
        barrier = CheckpointBarrier(
            checkpoint_id=action.checkpoint_id,
            created_ms=self.machine.clock(),
            is_savepoint=action.kind.is_savepoint,
            is_unaligned=self.plan.mode is BarrierMode.UNALIGNED and not action.kind.is_savepoint,
            alignment_timeout_ms=self.plan.alignment_timeout_ms,
        )
        for task in action.tasks:
            self.messages.send(task, barrier)

    def _start_timeout(self, action: StartTimeout) -> None:
        self._timers["timeout", action.checkpoint_id] = action.at_ms

    def _stop_timeout(self, action: StopTimeout) -> None:
        self._timers.pop(("timeout", action.checkpoint_id), None)

    def _start_periodic(self, action: StartPeriodicTimer) -> None:
        self._timers["periodic", 0] = action.at_ms

    def _stop_periodic(self, action: StopPeriodicTimer) -> None:
        self._timers.pop(("periodic", 0), None)

    def _store_checkpoint(self, action: StoreCheckpoint) -> None:
        self._later(f"stores {action.completed.checkpoint_id}", partial(self._stored, action))

    def _stored(self, action: StoreCheckpoint) -> None:
        parent = None if action.kind.is_savepoint else self._store.latest()
        metadata = CheckpointMetadata(
            checkpoint_id=action.completed.checkpoint_id,
            kind=CheckpointKind.SAVEPOINT if action.kind.is_savepoint else CheckpointKind.CHECKPOINT,
            job_id="job",
            job_name="job",
            timestamp_ms=self.machine.clock(),
            max_parallelism=8,
            operators=action.completed.operators,
            parent_checkpoint_id=None if parent is None else parent.checkpoint_id,
            parent_digest=None if parent is None else self._store.digest(parent.checkpoint_id),
        )
        root = self._savepoint_root(metadata.checkpoint_id) if action.kind.is_savepoint else JOB_ROOT
        try:
            if action.kind.is_savepoint:
                write_savepoint(self._savepoint_files(metadata.checkpoint_id), metadata)
            else:
                self._store.add(metadata)
        except (LeadershipLostError, UncertainCheckpointError) as error:
            # Nothing can be stored by this driver any more.
            raise JobFailed(str(error)) from error
        except MissingFileError as error:
            # The next leader has deleted what no checkpoint has; whoever still leads lacks nothing.
            require_that(not self.leads, str(error))
            raise JobFailed(str(error)) from error
        except StorageError as error:
            reason = CheckpointFailureReason.FINALIZE_FAILED
            self._tell(CheckpointFailed(reason, str(error), self.machine.clock(), checkpoint_id=metadata.checkpoint_id))
            return
        self.machine.trace.add(f"{metadata.kind.value} {metadata.checkpoint_id} is complete")
        self._check_complete(metadata, root)
        if action.kind.is_savepoint:
            self.history.savepoints[root] = metadata
        else:
            self.history.stored.add(metadata.checkpoint_id)
            self._is_settled = self._is_processed()
            self._discard_given_up()
        self._tell(CheckpointProgressed(metadata.checkpoint_id, self.machine.clock()))

    def _check_complete(self, metadata: CheckpointMetadata, root: str) -> None:
        self.history.check_acknowledged(self.run_id, metadata, list(self.tasks))
        if not self.leads:
            # The next leader may have dropped it already, behind the moment at which it was complete.
            return
        check_files(self.machine.disk, root, metadata, must_be_synced=True)
        states = {task: state for task, (state, _) in self._states_of(metadata, root).items()}
        is_exactly_once = self.plan.is_exactly_once
        check_is_cut(states, self.ends, is_exactly_once=is_exactly_once)
        if metadata.kind is CheckpointKind.SAVEPOINT:
            held = [task for task, state in states.items() if any(state.on_the_way.values())]
            require_that(not held, f"a savepoint holds no records on their way: {held}")
        for one in self._store.all():
            check_files(self.machine.disk, JOB_ROOT, one, must_be_synced=False)

    @property
    def leads(self) -> bool:
        """Whether no other driver has taken the lease."""
        return not self.plan.is_on_objects or self.history.leader == self.run_id

    def _notify(self, action: NotifyComplete | NotifyAborted) -> None:
        for task in action.tasks:
            self.messages.send(task, action)

    def _discard(self, action: DiscardStates) -> None:
        self._given_up += [one for one in action.states if not self._is_of_savepoint(one)]

    def _discard_given_up(self) -> None:
        """What was given up can be part of a later snapshot as long as any is under way."""
        if (
            self._coordinator.pending_ids
            or self.messages.under_way
            or any(task.snapshots for task in self.tasks.values())
        ):
            return
        given_up, self._given_up = self._given_up, []

        def discard() -> None:
            self._store.discard(given_up, self._coordinator.files_in_use())

        self._later("discards", discard)

    def _is_of_savepoint(self, state: SubtaskState) -> bool:
        # Those of a savepoint lie elsewhere, where nobody else's are.
        return any(
            self._kinds[checkpoint_id].is_savepoint
            for (run_id, checkpoint_id, _), states in self.history.acknowledged.items()
            if run_id == self.run_id and checkpoint_id in self._kinds and state in states
        )

    def _fail_job(self, action: FailJob) -> None:
        raise JobFailed(action.detail)

    def _nothing(self, action: Any) -> None:
        pass

    def _is_processed(self) -> bool:
        return all(task.state.position >= task.records for task in self.tasks.values()) and not any(
            channel.elements for channel in self.channels
        )


_ACTIONS: Final[Mapping[type, Callable[[ClusterRun, Any], None]]] = {
    AssignId: ClusterRun._assign_id,
    InitializeLocation: ClusterRun._progress,
    SnapshotOperatorCoordinators: ClusterRun._progress,
    RunMasterHooks: ClusterRun._progress,
    TellTasks: ClusterRun._tell_tasks,
    StartTimeout: ClusterRun._start_timeout,
    StopTimeout: ClusterRun._stop_timeout,
    StartPeriodicTimer: ClusterRun._start_periodic,
    StopPeriodicTimer: ClusterRun._stop_periodic,
    StoreCheckpoint: ClusterRun._store_checkpoint,
    NotifyComplete: ClusterRun._notify,
    NotifyAborted: ClusterRun._notify,
    DiscardStates: ClusterRun._discard,
    RemoveLocation: ClusterRun._nothing,
    AnswerRequest: ClusterRun._nothing,
    FailJob: ClusterRun._fail_job,
}


def _told(content: Any) -> str:
    if isinstance(content, Record):
        return f"record {content.number}"
    checkpoint_id = getattr(content, "checkpoint_id", None)
    if isinstance(content, Acknowledged):
        one = content.acknowledgement
        return f"{one.task} acknowledge {one.checkpoint_id} of {one.run_id}"
    return f"{type(content).__name__} {checkpoint_id}"
