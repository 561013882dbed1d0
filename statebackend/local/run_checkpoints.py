"""The checkpoints of a run in this process: what `JobCheckpoints` asks for is carried out, and what happens is told it.

Which checkpoint begins, who must acknowledge it and what becomes of it is decided by the coordinator alone; here are
its timers, its ids, and its messages. A message to or from a task, the writing of a snapshot and the storing of a
checkpoint are *mails* of the network: each is one move, which the scheduler of the run orders among all others. So
they can be late, and overtake each other. A `Post` may besides lose or double them.

Times are milliseconds of a clock that is passed in, and never goes back where it is that of the system. Timers fire
when `fire_due` is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from attrs import field, frozen

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.job_checkpoints import JobCheckpoints
from statebackend.checkpoint.coordinator.messages import (
    Acknowledged,
    AnswerRequest,
    AssignId,
    CheckpointFailed,
    CheckpointNumbered,
    CheckpointProgressed,
    CheckpointRequested,
    CoordinatorEvent,
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
    SchedulerStopped,
    Shutdown,
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
from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointTask, CompletedCheckpoint
from statebackend.checkpoint.coordinator.requests import CheckpointFailureReason, CheckpointRequestKind
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.local.network.subtasks import Mail
from statebackend.streaming.errors import StreamJobError

__all__ = ["CheckpointAnswer", "CheckpointFailedError", "CheckpointedRun", "Post", "RunCheckpoints"]

Post = Callable[[Mail], Iterable[Mail]]
"""What becomes of an mail that is sent: as a rule it alone; nothing if it is lost, several if it is doubled."""


class CheckpointFailedError(StreamJobError):
    """A checkpoint that was asked for did not complete, or a job endures no more failures of checkpoints."""


@frozen
class CheckpointAnswer:
    """What became of a request; ``failure`` is None if its checkpoint is complete."""

    checkpoint_id: int | None
    failure: CheckpointFailureReason | None = None
    detail: str = ""
    error: BaseException | None = field(default=None, eq=False)
    """What was raised where it failed, if anything was."""


class CheckpointedRun(Protocol):
    """The run whose checkpoints these are. What storing raises fails the checkpoint, anything else the run."""

    def checkpoint_tasks(self) -> Collection[CheckpointTask]:
        """All tasks, with whom they receive barriers from."""

    def next_checkpoint_id(self) -> int:
        """An id greater than all before."""

    def trigger(self, task: TaskId, checkpoint_id: int, kind: CheckpointRequestKind) -> None:
        """Lets a source send a barrier."""

    def store_checkpoint(self, completed: CompletedCheckpoint, kind: CheckpointRequestKind) -> None:
        """Stores what was acknowledged, durably."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """It is durable."""

    def checkpoint_failed(self, checkpoint_id: int) -> None:
        """It is given up."""

    def answered(self, answer: CheckpointAnswer) -> None:
        """What became of a request, whoever made it; behind all else that is told of its checkpoint."""

    def notify_complete(self, task: TaskId, checkpoint_id: int) -> None:
        """Tells a task that the checkpoint is complete."""

    def notify_aborted(self, task: TaskId, checkpoint_id: int) -> None:
        """Tells a task that the checkpoint is given up."""

    def discard_states(self, states: Sequence[SubtaskState]) -> None:
        """Nobody will ask for these states."""


class RunCheckpoints:
    """See the module. ``send`` puts an mail among the moves of the run."""

    def __init__(
        self,
        coordinator: JobCheckpoints,
        run: CheckpointedRun,
        *,
        identity: tuple[str, str],
        now_ms: Callable[[], int],
        send: Callable[[Mail], None],
    ) -> None:
        self.coordinator = coordinator
        self.failure: BaseException | None = None
        """Why the job endures no more, once it does not."""
        self._run = run
        self._job_id, self._run_id = identity
        self._now_ms = now_ms
        self._send = send
        self._last_request_id = 0
        self._events: deque[CoordinatorEvent] = deque()
        self._is_handling = False
        self._interval_ms = 0
        self._asked: set[int] = set()
        self._answers: dict[int, CheckpointAnswer] = {}
        self._errors: dict[int, BaseException] = {}
        self._last_error: BaseException | None = None
        self._timeouts: dict[int, int] = {}
        self._periodic_ms: int | None = None

    @property
    def due_ms(self) -> int | None:
        """When the next timer is due; None if there is none."""
        periodic = () if self._periodic_ms is None else (self._periodic_ms,)
        return min((*self._timeouts.values(), *periodic), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is under way and none waits."""
        return not self.coordinator.pending_ids and not self.coordinator.waiting_requests

    def start(self, interval_ms: int) -> None:
        """Checkpoints are taken every so often from now on."""
        self._interval_ms = interval_ms
        self._handle(SchedulerStarted(interval_ms, self._now_ms()))

    def stop(self) -> None:
        """None is taken by the clock any more."""
        self._handle(SchedulerStopped())

    def shut_down(self) -> None:
        """Nothing is begun any more, and what is under way is given up unless it is being stored."""
        self._handle(Shutdown(self._now_ms()))

    def request(self, kind: CheckpointRequestKind) -> int:
        """Asks for a checkpoint; returns the number under which `take_answer` gives what became of it.

        What is asked for as a savepoint is a checkpoint of which nothing is overtaken, from which a savepoint is then
        written (`LocalJob.savepoint`); the run goes on from it as from any other.
        """
        self._last_request_id += 1
        request_id = self._last_request_id
        self._tell_tasks_of_now()
        self._asked.add(request_id)
        self._handle(CheckpointRequested(request_id, kind, self._now_ms()))
        return request_id

    def take_answer(self, request_id: int) -> CheckpointAnswer | None:
        """What became of a request, once; None as long as it is open."""
        return self._answers.pop(request_id, None)

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Sends what a task has to say of a checkpoint."""
        self._send(
            Mail(
                "acknowledge",
                acknowledgement.checkpoint_id,
                acknowledgement.task,
                lambda: self._handle(Acknowledged(acknowledgement, self._now_ms())),
            )
        )

    def decline(
        self,
        checkpoint_id: int,
        task: TaskId,
        reason: CheckpointFailureReason,
        detail: str,
        error: BaseException | None = None,
    ) -> None:
        """Sends that a task cannot take part."""

        def deliver() -> None:
            # Nobody asks any more why one failed that is over.
            if error is not None and checkpoint_id in self.coordinator.pending_ids:
                self._errors.setdefault(checkpoint_id, error)
            declined = Declined(self._job_id, self._run_id, checkpoint_id, task, reason, detail, self._now_ms())
            self._handle(declined)

        self._send(Mail("decline", checkpoint_id, task, deliver))

    def fire_due(self) -> bool:
        """Fires the timers whose time has come; returns whether there were any."""
        now_ms = self._now_ms()
        late = [checkpoint_id for checkpoint_id, at_ms in self._timeouts.items() if at_ms <= now_ms]
        for checkpoint_id in late:
            if self._timeouts.pop(checkpoint_id, None) is not None:
                self._handle(TimedOut(checkpoint_id, now_ms))
        if self._periodic_ms is None or self._periodic_ms > now_ms:
            return bool(late)
        if any(one.kind.is_periodic for one in self.coordinator.waiting_requests):
            # One that waits is enough: those that came meanwhile would follow it without a pause.
            self._periodic_ms = now_ms + self._interval_ms
            return True
        self._periodic_ms = None
        self._last_request_id += 1
        self._tell_tasks_of_now()
        self._handle(PeriodicTimerFired(self._last_request_id, now_ms))
        return True

    def _tell_tasks_of_now(self) -> None:
        self._handle(TasksChanged(self._run.checkpoint_tasks()))

    def _handle(self, event: CoordinatorEvent) -> None:
        """Tells the coordinator, and carries out what it asks for; what happens by that is told it behind that."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                for action in self.coordinator.handle(self._events.popleft()):
                    _CARRY_OUT[type(action)](self, action)
        finally:
            self._is_handling = False

    def _assign_id(self, action: AssignId) -> None:
        request_id = action.request.request_id
        try:
            checkpoint_id = self._run.next_checkpoint_id()
        except Exception as error:
            reason = CheckpointFailureReason.IO_ERROR
            self._handle(CheckpointFailed(reason, str(error), self._now_ms(), request_id=request_id))
            return
        self._handle(CheckpointNumbered(request_id, checkpoint_id, self._now_ms()))

    def _go_on(self, action: InitializeLocation | SnapshotOperatorCoordinators | RunMasterHooks) -> None:
        """The store makes the place of a checkpoint with it, and no operator has a part outside of its tasks."""
        self._handle(CheckpointProgressed(action.checkpoint_id, self._now_ms()))

    def _tell_tasks(self, action: TellTasks) -> None:
        for task in action.tasks:
            self._send_to(
                "trigger",
                action.checkpoint_id,
                task,
                lambda task: self._run.trigger(task, action.checkpoint_id, action.kind),
            )

    def _start_timeout(self, action: StartTimeout) -> None:
        self._timeouts[action.checkpoint_id] = action.at_ms

    def _stop_timeout(self, action: StopTimeout) -> None:
        self._timeouts.pop(action.checkpoint_id, None)

    def _start_periodic(self, action: StartPeriodicTimer) -> None:
        self._periodic_ms = action.at_ms

    def _stop_periodic(self, action: StopPeriodicTimer) -> None:
        self._periodic_ms = None

    def _store(self, action: StoreCheckpoint) -> None:
        checkpoint_id = action.completed.checkpoint_id

        def store() -> None:
            try:
                self._run.store_checkpoint(action.completed, action.kind)
            except Exception as error:
                self._errors[checkpoint_id] = error
                reason = CheckpointFailureReason.FINALIZE_FAILED
                self._handle(CheckpointFailed(reason, str(error), self._now_ms(), checkpoint_id))
                return
            self._handle(CheckpointProgressed(checkpoint_id, self._now_ms()))
            if action.kind.is_savepoint and not action.kind.stops_job:
                # The coordinator tells nobody of a savepoint; here it is what a start would go on from.
                self._run.checkpoint_completed(checkpoint_id)

        # Nobody but the coordinator itself stores: it is not sent anywhere, but others may move before.
        self._send(Mail("store", checkpoint_id, None, store))

    def _notify_complete(self, action: NotifyComplete) -> None:
        self._run.checkpoint_completed(action.checkpoint_id)
        for task in action.tasks:
            self._send_to(
                "notify complete",
                action.checkpoint_id,
                task,
                lambda task: self._run.notify_complete(task, action.checkpoint_id),
            )

    def _notify_aborted(self, action: NotifyAborted) -> None:
        self._run.checkpoint_failed(action.checkpoint_id)
        for task in action.tasks:
            self._send_to(
                "notify aborted",
                action.checkpoint_id,
                task,
                lambda task: self._run.notify_aborted(task, action.checkpoint_id),
            )

    def _discard(self, action: DiscardStates) -> None:
        self._run.discard_states(action.states)

    def _nothing(self, action: RemoveLocation) -> None:
        """A store that could not store leaves nothing behind."""

    def _answer(self, action: AnswerRequest) -> None:
        checkpoint_id = action.checkpoint_id
        error = self._last_error = None if checkpoint_id is None else self._errors.pop(checkpoint_id, None)
        answer = CheckpointAnswer(checkpoint_id, action.failure, action.detail, error)
        if action.request_id in self._asked:
            # Nobody takes the answers to the requests of the clock.
            self._asked.remove(action.request_id)
            self._answers[action.request_id] = answer
        self._run.answered(answer)

    def _fail_job(self, action: FailJob) -> None:
        # What was raised where it failed is worth more than that it did.
        self.failure = self._last_error or CheckpointFailedError(action.detail)

    def _send_to(self, name: str, checkpoint_id: int, task: TaskId, deliver: Callable[[TaskId], None]) -> None:
        self._send(Mail(name, checkpoint_id, task, lambda: deliver(task)))


_CARRY_OUT: Final[Mapping[type, Callable[[RunCheckpoints, Any], None]]] = {
    AssignId: RunCheckpoints._assign_id,
    InitializeLocation: RunCheckpoints._go_on,
    SnapshotOperatorCoordinators: RunCheckpoints._go_on,
    RunMasterHooks: RunCheckpoints._go_on,
    TellTasks: RunCheckpoints._tell_tasks,
    StartTimeout: RunCheckpoints._start_timeout,
    StopTimeout: RunCheckpoints._stop_timeout,
    StartPeriodicTimer: RunCheckpoints._start_periodic,
    StopPeriodicTimer: RunCheckpoints._stop_periodic,
    StoreCheckpoint: RunCheckpoints._store,
    NotifyComplete: RunCheckpoints._notify_complete,
    NotifyAborted: RunCheckpoints._notify_aborted,
    DiscardStates: RunCheckpoints._discard,
    RemoveLocation: RunCheckpoints._nothing,
    AnswerRequest: RunCheckpoints._answer,
    FailJob: RunCheckpoints._fail_job,
}
