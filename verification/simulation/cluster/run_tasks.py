"""The tasks of a run and the channels between them: their possible moves and their messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, field

from statebackend.checkpoint.barriers.elements import CheckpointBarrier
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.messages import Acknowledged, Declined, NotifyAborted
from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointTask, TaskStatus
from statebackend.checkpoint.coordinator.requests import CheckpointFailureReason
from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.state_handles import OpaqueStateHandle, SubtaskState
from verification.simulation.cluster.channel import Channel
from verification.simulation.cluster.history import History
from verification.simulation.cluster.messages import Messages
from verification.simulation.cluster.moves import Move, describe
from verification.simulation.cluster.plan import ClusterPlan
from verification.simulation.cluster.run_storage import RunStorage, StoredTask
from verification.simulation.cluster.task import Snapshot, Task, shown_task
from verification.simulation.host.faults import FaultPlace, TaskFailed
from verification.simulation.host.machine import Machine

__all__ = ["RunTasks"]

_FORMAT: Final = "simulated"
_SLOWNESS: Final = 6


@define(eq=False)
class RunTasks:
    """The tasks of a run. Call `build` first."""

    plan: ClusterPlan
    machine: Machine
    messages: Messages
    history: History
    storage: RunStorage
    run_id: str
    tasks: dict[TaskId, Task] = field(factory=dict)
    channels: list[Channel] = field(factory=list)
    ends: dict[int, tuple[TaskId, TaskId]] = field(factory=dict)
    """The sender and the reader of each channel."""

    def build(self) -> None:
        """Create all tasks and channels, empty."""
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
                task.handler = plan.checkpointing_mode.handler(len(task.inputs))

    def restore(self, states: Mapping[TaskId, StoredTask]) -> None:
        """Restore the states of a checkpoint."""
        for task_id, (state, files) in states.items():
            task = self.tasks[task_id]
            task.state, task.files = state, files
            for number, records in state.on_the_way.items():
                self.channels[number].elements.extend(records)
            state.on_the_way = {}

    def checkpoint_tasks(self) -> Collection[CheckpointTask]:
        """Return all tasks, with the tasks that send barriers to them."""
        return [CheckpointTask(task, TaskStatus.RUNNING, self._senders(task)) for task in self.tasks]

    def seen(self) -> Mapping[int, list[Any]]:
        """Return the records that all subtasks of each node have received."""
        seen: dict[int, list[Any]] = {node: [] for node in self.plan.nodes}
        for task in self.tasks.values():
            seen[int(task.id.operator_uid)] += task.state.seen
        return seen

    @property
    def have_processed_all(self) -> bool:
        """Whether all input is read, and no record is in flight."""
        return all(task.state.position >= task.records for task in self.tasks.values()) and not any(
            channel.has_records for channel in self.channels
        )

    @property
    def have_snapshots(self) -> bool:
        """Whether a snapshot is being uploaded."""
        return any(task.snapshots for task in self.tasks.values())

    def timers(self) -> Sequence[int]:
        """The alignment timeouts of the tasks that have one, in milliseconds."""
        return [task.timer[1] for task in self.tasks.values() if task.timer is not None]

    def moves(self) -> Sequence[Move]:
        """Return the possible moves of the tasks."""
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
                        description = f"{name} takes {describe(channel.elements[0])} from {channel.sender}"
                        moves.append((description, partial(self._in_task, task, task.take, channel), weight))
            moves += [
                (f"{name} hears of a barrier in {channel.sender}", partial(task.announced, channel), 4)
                for channel in task.inputs
                if channel.unannounced
            ]
            if task.timer is not None and task.timer[1] <= self.machine.clock():
                moves.append((f"{name}: its alignment timed out", task.time_to_align_is_over, 4))
            for snapshot in sorted(task.snapshots.values(), key=lambda one: one.checkpoint_id)[:1]:
                if snapshot.is_whole:
                    description = f"{name} uploads {snapshot.checkpoint_id}"
                    moves.append((description, partial(self._upload, task, snapshot), 3))
        return moves

    def receive(self, to: TaskId, content: Any) -> None:
        """Deliver a message of the coordinator to a task."""
        task = self.tasks[to]
        if isinstance(content, CheckpointBarrier):
            task.begin(content)
        elif isinstance(content, NotifyAborted):
            task.cancel(content.checkpoint_id)

    def _senders(self, task: TaskId) -> frozenset[TaskId]:
        return frozenset(sender for sender, reader in self.ends.values() if reader == task)

    def _in_task(self, task: Task, move: Callable[..., None], *arguments: Any) -> None:
        fault = self.machine.faults.at(FaultPlace.TASK, "a step")
        if fault is not None:
            self.machine.disk.points.add((fault.kind.name, "a step"))
            self.machine.trace.add(f"FAULT, {fault.kind.description}: {task.id}")
            raise TaskFailed(str(task.id))
        move(*arguments)

    def _read(self, task: Task) -> None:
        task.read(int(task.id.operator_uid))

    def _upload(self, task: Task, snapshot: Snapshot) -> None:
        del task.snapshots[snapshot.checkpoint_id]
        # Each snapshot builds on the previous one, complete or not. Now and then a snapshot is whole.
        files = [] if snapshot.is_savepoint or len(task.files) > 3 else list(task.files)
        stored_upto = files[-1][1] if files else 0
        data = snapshot.state.encode(stored_upto)
        file_system = self.storage.files_of(snapshot.checkpoint_id, is_savepoint=snapshot.is_savepoint)
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
        self.history.on_acknowledged(self.run_id, snapshot.checkpoint_id, task.id, state)
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

    def _decline(self, task: TaskId, reason: CheckpointFailureReason, checkpoint_id: int) -> None:
        now_ms = self.machine.clock()
        self.messages.send(None, Declined("job", self.run_id, checkpoint_id, task, reason, "declined", now_ms))
