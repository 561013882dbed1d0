"""Carries out the actions of the coordinator of a run: storing, timers and messages.

Each action, message and timer is one move, so everything else may happen between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, field

from statebackend.checkpoint.coordinator.checkpoint_coordinator import CheckpointCoordinator
from statebackend.checkpoint.coordinator.job_checkpoints import JobCheckpoints
from statebackend.checkpoint.coordinator.messages import (
    AnswerRequest,
    AssignId,
    CheckpointFailed,
    CheckpointNumbered,
    CheckpointProgressed,
    CheckpointRequested,
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
    TimedOut,
    TriggerTasks,
)
from statebackend.checkpoint.coordinator.requests import (
    CheckpointFailureReason,
    CheckpointLimits,
    CheckpointRequestKind,
    FailurePolicy,
)
from statebackend.checkpoint.errors import LeadershipLostError, MissingFileError, StorageError, UncertainCheckpointError
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import SubtaskState
from verification.simulation.cluster.history import History, check_is_cut
from verification.simulation.cluster.messages import Messages
from verification.simulation.cluster.moves import Move
from verification.simulation.cluster.plan import ClusterPlan
from verification.simulation.cluster.run_storage import RunStorage
from verification.simulation.cluster.run_tasks import RunTasks
from verification.simulation.host.machine import Machine
from verification.simulation.promises import check_files
from verification.simulation.violation import require_that

__all__ = ["CoordinatorActions", "JobFailed"]


class JobFailed(Exception):
    """The run has ended, and the job restarts from its newest checkpoint."""


@define(eq=False)
class CoordinatorActions:
    """Carries out the coordinator's actions. Call `begin` first."""

    plan: ClusterPlan
    machine: Machine
    messages: Messages
    history: History
    storage: RunStorage
    tasks: RunTasks
    run_id: str
    is_settled: bool = False
    """Whether a complete checkpoint covers everything; reset when something is processed again."""
    timers: dict[tuple[str, int], int] = field(factory=dict)
    """The due time of each timer, in milliseconds."""
    _chores: list[tuple[str, Callable[[], None]]] = field(factory=list)
    _requests: int = 0
    _kinds: dict[int, CheckpointRequestKind] = field(factory=dict)
    _abandoned: list[SubtaskState] = field(factory=list)
    _coordinator: CheckpointCoordinator = field(init=False)
    _checkpoints: JobCheckpoints = field(init=False)

    def begin(self, newest_id: int | None) -> None:
        """Start to take checkpoints, after the one that the run was restored from."""
        plan = self.plan
        self._coordinator = CheckpointCoordinator(
            "job",
            self.run_id,
            plan.timeout_ms,
            max_parallelism=8,
            last_checkpoint_id=newest_id,
            max_concurrent_checkpoints=None,
        )
        self._checkpoints = JobCheckpoints(
            self._coordinator,
            limits=CheckpointLimits(max_concurrent_checkpoints=plan.max_concurrent),
            failures=FailurePolicy(plan.tolerable_failures),
            are_checkpoints_unaligned=plan.checkpointing_mode.may_be_unaligned,
            last_completed_id=newest_id,
        )
        self.tell(TasksChanged(self.tasks.checkpoint_tasks()))
        self.tell(SchedulerStarted(plan.interval_ms, self.machine.clock()))

    def request(self, kind: CheckpointRequestKind) -> None:
        """Request a checkpoint or savepoint."""
        self._requests += 1
        self.tell(CheckpointRequested(self._requests, kind, self.machine.clock()))

    def tell(self, event: Any) -> None:
        """Send an event to the coordinator, and carry out its actions."""
        for action in self._checkpoints.handle(event):
            _ACTIONS[type(action)](self, action)

    def moves(self) -> Sequence[Move]:
        """Return the next action, and the timers that are due."""
        moves: list[Move] = []
        if self._chores:
            what, chore = self._chores[0]
            moves.append((f"coordinator: {what}", partial(self._do_chore, chore), 6))
        for (kind, number), at_ms in self.timers.items():
            if at_ms <= self.machine.clock():
                moves.append((f"coordinator: {kind} {number}", partial(self._timer, kind, number), 4))
        return moves

    def _do_chore(self, chore: Callable[[], None]) -> None:
        self._chores.pop(0)
        chore()

    def _later(self, what: str, chore: Callable[[], None]) -> None:
        self._chores.append((what, chore))

    def _timer(self, kind: str, number: int) -> None:
        del self.timers[kind, number]
        if kind == "timeout":
            self.tell(TimedOut(number, self.machine.clock()))
        else:
            self._requests += 1
            self.tell(PeriodicTimerFired(self._requests, self.machine.clock()))

    def _assign_id(self, action: AssignId) -> None:
        def number() -> None:
            checkpoint_id = self.storage.store.next_checkpoint_id()
            self._kinds[checkpoint_id] = action.request.kind
            self.tell(CheckpointNumbered(action.request.request_id, checkpoint_id, self.machine.clock()))

        self._later("gives an id", number)

    def _progress(self, action: InitializeLocation | SnapshotOperatorCoordinators | RunMasterHooks) -> None:
        checkpoint_id = action.checkpoint_id
        what = f"{type(action).__name__} {checkpoint_id}"
        self._later(what, lambda: self.tell(CheckpointProgressed(checkpoint_id, self.machine.clock())))

    def _trigger_tasks(self, action: TriggerTasks) -> None:
        barrier = self.plan.checkpointing_mode.barrier(
            action.checkpoint_id, self.machine.clock(), is_savepoint=action.kind.is_savepoint
        )
        for task in action.tasks:
            self.messages.send(task, barrier)

    def _start_timeout(self, action: StartTimeout) -> None:
        self.timers["timeout", action.checkpoint_id] = action.at_ms

    def _stop_timeout(self, action: StopTimeout) -> None:
        self.timers.pop(("timeout", action.checkpoint_id), None)

    def _start_periodic(self, action: StartPeriodicTimer) -> None:
        self.timers["periodic", 0] = action.at_ms

    def _stop_periodic(self, action: StopPeriodicTimer) -> None:
        self.timers.pop(("periodic", 0), None)

    def _store_checkpoint(self, action: StoreCheckpoint) -> None:
        self._later(f"stores {action.completed.checkpoint_id}", partial(self._stored, action))

    def _stored(self, action: StoreCheckpoint) -> None:
        store, is_savepoint = self.storage.store, action.kind.is_savepoint
        parent = None if is_savepoint else store.latest()
        metadata = CheckpointMetadata(
            checkpoint_id=action.completed.checkpoint_id,
            kind=CheckpointKind.SAVEPOINT if is_savepoint else CheckpointKind.CHECKPOINT,
            job_id="job",
            job_name="job",
            timestamp_ms=self.machine.clock(),
            max_parallelism=8,
            operators=action.completed.operators,
            parent_checkpoint_id=None if parent is None else parent.checkpoint_id,
            parent_digest=None if parent is None else store.digest(parent.checkpoint_id),
        )
        try:
            root = self.storage.add(metadata)
        except (LeadershipLostError, UncertainCheckpointError) as error:
            # This driver can store nothing from here on.
            raise JobFailed(str(error)) from error
        except MissingFileError as error:
            # The next leader has deleted unreferenced files. No current leader needs them.
            require_that(not self.storage.leads, f"every file of a checkpoint exists: {error}")
            raise JobFailed(str(error)) from error
        except StorageError as error:
            reason = CheckpointFailureReason.FINALIZE_FAILED
            self.tell(CheckpointFailed(reason, str(error), self.machine.clock(), checkpoint_id=metadata.checkpoint_id))
            return
        self.machine.trace.add(f"{metadata.kind.value} {metadata.checkpoint_id} is complete")
        self._check_complete(metadata, root)
        if is_savepoint:
            self.history.savepoints[root] = metadata
        else:
            self.history.stored.add(metadata.checkpoint_id)
            self.is_settled = self.tasks.have_processed_all
            self._discard_abandoned()
        self.tell(CheckpointProgressed(metadata.checkpoint_id, self.machine.clock()))

    def _check_complete(self, metadata: CheckpointMetadata, root: str) -> None:
        self.history.check_acknowledged(self.run_id, metadata, list(self.tasks.tasks))
        if not self.storage.leads:
            # The next leader may have dropped it already, after its completion.
            return
        check_files(self.machine.disk, root, metadata, must_be_synced=True)
        states = {task: state for task, (state, _) in self.storage.states_of(metadata, root).items()}
        check_is_cut(states, self.tasks.ends, is_exactly_once=self.plan.is_exactly_once)
        if metadata.kind is CheckpointKind.SAVEPOINT:
            held = [task for task, state in states.items() if any(state.on_the_way.values())]
            require_that(not held, f"a savepoint holds no records in flight: {held}")
        self.storage.check_retained()

    def _notify(self, action: NotifyComplete | NotifyAborted) -> None:
        for task in action.tasks:
            self.messages.send(task, action)

    def _discard(self, action: DiscardStates) -> None:
        self._abandoned += [one for one in action.states if not self._is_of_savepoint(one)]

    def _discard_abandoned(self) -> None:
        """Delete abandoned snapshots. A pending snapshot may still refer to one, so it waits until none is pending."""
        if self._coordinator.pending_ids or self.messages.under_way or self.tasks.have_snapshots:
            return
        abandoned, self._abandoned = self._abandoned, []

        def discard() -> None:
            self.storage.store.discard(abandoned, self._coordinator.files_in_use())

        self._later("discards", discard)

    def _is_of_savepoint(self, state: SubtaskState) -> bool:
        # The files of a savepoint are in a directory of its own.
        return any(
            self._kinds[checkpoint_id].is_savepoint
            for (run_id, checkpoint_id, _), states in self.history.acknowledged.items()
            if run_id == self.run_id and checkpoint_id in self._kinds and state in states
        )

    def _fail_job(self, action: FailJob) -> None:
        raise JobFailed(action.detail)

    def _nothing(self, action: Any) -> None:
        pass


_ACTIONS: Final[Mapping[type, Callable[[CoordinatorActions, Any], None]]] = {
    AssignId: CoordinatorActions._assign_id,
    InitializeLocation: CoordinatorActions._progress,
    SnapshotOperatorCoordinators: CoordinatorActions._progress,
    RunMasterHooks: CoordinatorActions._progress,
    TriggerTasks: CoordinatorActions._trigger_tasks,
    StartTimeout: CoordinatorActions._start_timeout,
    StopTimeout: CoordinatorActions._stop_timeout,
    StartPeriodicTimer: CoordinatorActions._start_periodic,
    StopPeriodicTimer: CoordinatorActions._stop_periodic,
    StoreCheckpoint: CoordinatorActions._store_checkpoint,
    NotifyComplete: CoordinatorActions._notify,
    NotifyAborted: CoordinatorActions._notify,
    DiscardStates: CoordinatorActions._discard,
    RemoveLocation: CoordinatorActions._nothing,
    AnswerRequest: CoordinatorActions._nothing,
    FailJob: CoordinatorActions._fail_job,
}
