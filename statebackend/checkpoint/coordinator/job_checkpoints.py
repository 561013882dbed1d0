"""The checkpoints of one job, from request to notification: events in, actions out.

Each part has one responsibility:

    requests                which request is next, which is rejected, and how many failures the job tolerates
    pending_checkpoint      which tasks a checkpoint waits for, and its state
    triggering              the steps of a checkpoint, from its id to the notification, as a table
    checkpoint_coordinator  which acknowledgements count, and which state is discarded

Several checkpoints may wait for tasks. Only one at a time is being triggered, and only one is being stored.

Reports of a finished checkpoint, and messages about an unknown one, are ignored; late state is discarded. Other reports
out of order raise `IllegalTransitionError` and change nothing.
(Flink's ``CheckpointCoordinator``, without its threads, timers and storage.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from statebackend.checkpoint.coordinator.checkpoint_coordinator import AcknowledgementOutcome, CheckpointCoordinator
from statebackend.checkpoint.coordinator.messages import (
    Acknowledged,
    AnswerRequest,
    CheckpointFailed,
    CheckpointNumbered,
    CheckpointProgressed,
    CheckpointRequested,
    CoordinatorAction,
    CoordinatorEvent,
    Declined,
    DiscardStates,
    PeriodicTimerFired,
    RemovalsChanged,
    SchedulerStarted,
    SchedulerStopped,
    Shutdown,
    StartPeriodicTimer,
    StopPeriodicTimer,
    Suspended,
    TasksChanged,
    TimedOut,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import AcknowledgementPolicy, CheckpointTask, all_tasks
from statebackend.checkpoint.coordinator.requests import (
    CheckpointFailureReason,
    CheckpointLimits,
    CheckpointRequest,
    CheckpointRequestKind,
    CheckpointRequestQueue,
    CoordinatorLoad,
    FailurePolicy,
    RejectRequest,
    RequestDecision,
)
from statebackend.checkpoint.coordinator.triggering import (
    CheckpointAttempt,
    CheckpointAttempts,
    CheckpointCounts,
    TriggeringEvent,
    TriggeringPhase,
    check_transition,
)
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.checkpoint.invariants import MAX_ID, check_integer, require

__all__ = ["JobCheckpoints"]

_Actions = Sequence[CoordinatorAction]


class JobCheckpoints:
    """The checkpoints of one job. Not thread-safe.

    ``coordinator`` must have no limit of its own, since savepoints may exceed that of ``limits``.
    ``last_completed_id`` is the checkpoint that the run started from, if any.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        *,
        limits: CheckpointLimits | None = None,
        policy: AcknowledgementPolicy = all_tasks,
        failures: FailurePolicy | None = None,
        are_checkpoints_unaligned: bool = False,
        last_completed_id: int | None = None,
    ) -> None:
        require(
            coordinator.max_concurrent_checkpoints is None,
            "the limit of checkpoints at once belongs into CheckpointLimits: make the coordinator without one",
        )
        self._coordinator = coordinator
        self._queue = CheckpointRequestQueue(limits or CheckpointLimits())
        self._policy = policy
        self._attempts = CheckpointAttempts(coordinator, failures or FailurePolicy(), last_completed_id)
        self._are_savepoints_forced = not are_checkpoints_unaligned
        self._tasks: Collection[CheckpointTask] = ()
        self._interval_ms: int | None = None
        self._rejection: CheckpointFailureReason | None = None
        self._removing_count = 0
        self._numbered_up_to = -1 if last_completed_id is None else last_completed_id

    @property
    def counts(self) -> CheckpointCounts:
        """The numbers of started, completed and failed checkpoints."""
        return self._attempts.counts

    @property
    def last_completed_id(self) -> int | None:
        """The checkpoint for recovery; never a savepoint."""
        return self._attempts.last_completed_id

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Ids of the checkpoints that have an id and have not ended, oldest first."""
        return tuple(sorted(one.id for one in self._attempts.under_way.values() if one.checkpoint_id is not None))

    @property
    def waiting_requests(self) -> Sequence[CheckpointRequest]:
        """The requests that have not started, the next one first."""
        return self._queue.waiting

    def handle(self, event: CoordinatorEvent) -> _Actions:
        """Handle an event; return the actions in order. Raises `IllegalTransitionError`, changing nothing."""
        return tuple(_EVENTS[type(event)](self, event))

    def _tasks_changed(self, event: TasksChanged) -> _Actions:
        self._tasks = tuple(event.tasks)
        return ()

    def _start_scheduler(self, event: SchedulerStarted) -> _Actions:
        check_integer("interval_ms", event.interval_ms, 1, MAX_ID)
        if self._rejection is CheckpointFailureReason.SHUTDOWN:
            return ()
        self._rejection = None
        self._interval_ms = event.interval_ms
        return (StartPeriodicTimer(event.now_ms + event.interval_ms),)

    def _stop_scheduler(self, event: SchedulerStopped) -> _Actions:
        self._interval_ms = None
        return (StopPeriodicTimer(),)

    def _suspend(self, event: Suspended) -> _Actions:
        return self._reject_all(CheckpointFailureReason.SUSPENDED, event.now_ms)

    def _shut_down(self, event: Shutdown) -> _Actions:
        return self._reject_all(CheckpointFailureReason.SHUTDOWN, event.now_ms)

    def _reject_all(self, reason: CheckpointFailureReason, now_ms: int) -> _Actions:
        if self._rejection is CheckpointFailureReason.SHUTDOWN:
            return ()
        self._rejection = reason
        self._interval_ms = None
        waiting = self._queue.drop_all()
        actions: list[CoordinatorAction] = [StopPeriodicTimer()]
        actions += [AnswerRequest(request.request_id, None, reason, reason.value) for request in waiting]
        for one in list(self._attempts.under_way.values()):
            # A checkpoint that is being stored may be durable already: its report decides.
            if one.phase is not TriggeringPhase.STORING:
                actions += self._attempts.end(one, reason, reason.value, now_ms)
        return actions

    def _periodic(self, event: PeriodicTimerFired) -> _Actions:
        if self._interval_ms is None:
            return ()
        again = StartPeriodicTimer(event.now_ms + self._interval_ms)
        request = CheckpointRequest(event.request_id, CheckpointRequestKind.PERIODIC)
        return (again, *self._submit(request, event.now_ms))

    def _requested(self, event: CheckpointRequested) -> _Actions:
        is_forced = event.kind.is_savepoint and self._are_savepoints_forced
        return self._submit(CheckpointRequest(event.request_id, event.kind, is_forced), event.now_ms)

    def _submit(self, request: CheckpointRequest, now_ms: int) -> _Actions:
        if self._rejection is not None:
            return (AnswerRequest(request.request_id, None, self._rejection, self._rejection.value),)
        return self._decided(self._queue.submit(request, self._load(now_ms)), now_ms)

    def _next(self, now_ms: int) -> _Actions:
        return self._decided(self._queue.next(self._load(now_ms)), now_ms)

    def _decided(self, decisions: Sequence[RequestDecision], now_ms: int) -> _Actions:
        actions: list[CoordinatorAction] = []
        while decisions:
            for one in decisions:
                actions += self._rejected(one, now_ms) if isinstance(one, RejectRequest) else self._begin(one.request)
            # The request is rejected because its tasks are not running, so the next request is tried.
            decisions = self._queue.next(self._load(now_ms))
        return actions

    def _rejected(self, decision: RejectRequest, now_ms: int) -> _Actions:
        answer = AnswerRequest(decision.request.request_id, None, decision.reason, decision.reason.value)
        if decision.retry_in_ms is None or self._interval_ms is None:
            return (answer,)
        return (answer, StartPeriodicTimer(now_ms + decision.retry_in_ms))

    def _begin(self, request: CheckpointRequest) -> _Actions:
        plan = self._policy(self._tasks)
        if plan.obstacle:
            reason = CheckpointFailureReason.TASKS_NOT_RUNNING
            return (AnswerRequest(request.request_id, None, reason, plan.obstacle),)
        return self._attempts.begin(request, plan)

    def _numbered(self, event: CheckpointNumbered) -> _Actions:
        check_integer("checkpoint_id", event.checkpoint_id, 0, MAX_ID)
        attempt = self._attempts.under_way.get(event.request_id)
        phase = TriggeringPhase.OVER if attempt is None else attempt.phase
        if event.checkpoint_id <= self._numbered_up_to:
            raise IllegalTransitionError(
                TriggeringEvent.NUMBERED.name,
                phase.name,
                f"checkpoint ids strictly increase, and {event.checkpoint_id} is not greater than "
                f"{self._numbered_up_to}",
            )
        if attempt is not None:
            check_transition(attempt, TriggeringEvent.NUMBERED)
        self._numbered_up_to = event.checkpoint_id
        if attempt is None:
            return ()
        if attempt.kind.is_periodic and self._interval_ms is None:
            stopped = CheckpointFailureReason.SCHEDULER_STOPPED
            return self._fail(attempt, stopped, stopped.value, event.now_ms)
        attempt.checkpoint_id = event.checkpoint_id
        return self._attempts.advance(attempt, TriggeringEvent.NUMBERED, event.now_ms)

    def _progressed(self, event: CheckpointProgressed) -> _Actions:
        attempt = self._attempts.by_id(event.checkpoint_id)
        if attempt is None:
            return ()
        done = _DONE.get(attempt.phase)
        if done is None:
            raise IllegalTransitionError("PROGRESSED", attempt.phase.name, f"checkpoint {event.checkpoint_id}")
        actions = self._attempts.advance(attempt, done, event.now_ms)
        return (*actions, *self._attempts.store_next(event.now_ms), *self._next(event.now_ms))

    def _failed(self, event: CheckpointFailed) -> _Actions:
        attempt = None if event.request_id is None else self._attempts.under_way.get(event.request_id)
        if event.checkpoint_id is not None:
            attempt = self._attempts.by_id(event.checkpoint_id)
        if attempt is None:
            return ()
        is_stored = attempt.phase is TriggeringPhase.STORING
        reason = CheckpointFailureReason.FINALIZE_FAILED if is_stored else event.reason
        return self._fail(attempt, reason, event.detail, event.now_ms)

    def _declined(self, event: Declined) -> _Actions:
        if (event.job_id, event.run_id) != (self._coordinator.job_id, self._coordinator.run_id):
            return ()
        attempt = self._attempts.by_id(event.checkpoint_id)
        if attempt is None or attempt.phase is TriggeringPhase.STORING:
            # After all tasks have acknowledged, a checkpoint cannot be declined.
            return ()
        return self._fail(attempt, event.reason, f"{event.task}: {event.detail}", event.now_ms)

    def _timed_out(self, event: TimedOut) -> _Actions:
        attempt = self._attempts.by_id(event.checkpoint_id)
        if attempt is None or not attempt.can_time_out:
            return ()
        detail = self._coordinator.why_late(attempt.id)
        return self._fail(attempt, CheckpointFailureReason.EXPIRED, detail, event.now_ms)

    def _removals(self, event: RemovalsChanged) -> _Actions:
        check_integer("count", event.count, 0, MAX_ID)
        self._removing_count = event.count
        return self._next(event.now_ms)

    def _acknowledged(self, event: Acknowledged) -> _Actions:
        result = self._coordinator.acknowledge(event.acknowledgement)
        discarded = (DiscardStates(result.states_to_discard),) if result.states_to_discard else ()
        attempt = self._attempts.by_id(event.acknowledgement.checkpoint_id)
        if result.outcome is AcknowledgementOutcome.CONFLICT and attempt is not None:
            conflict = CheckpointFailureReason.CONFLICT
            return (*discarded, *self._fail(attempt, conflict, result.detail, event.now_ms))
        if result.outcome is not AcknowledgementOutcome.SUCCESS:
            return discarded
        return self._attempts.store_next(event.now_ms)

    def _fail(self, attempt: CheckpointAttempt, reason: CheckpointFailureReason, detail: str, now_ms: int) -> _Actions:
        ended = self._attempts.end(attempt, reason, detail, now_ms)
        return (*ended, *self._attempts.store_next(now_ms), *self._next(now_ms))

    def _load(self, now_ms: int) -> CoordinatorLoad:
        under_way = self._attempts.under_way.values()
        return CoordinatorLoad(
            now_ms=now_ms,
            is_beginning=any(one.is_beginning for one in under_way),
            pending_count=len(under_way),
            removing_count=self._removing_count,
            last_completed_ms=self._attempts.last_completed_ms,
        )


_DONE: Final[Mapping[TriggeringPhase, TriggeringEvent]] = {
    TriggeringPhase.LOCATING: TriggeringEvent.LOCATED,
    TriggeringPhase.COORDINATING: TriggeringEvent.COORDINATED,
    TriggeringPhase.HOOKING: TriggeringEvent.HOOKED,
    TriggeringPhase.STORING: TriggeringEvent.STORED,
}
"""The event of a progress report, by the phase that waited for it."""

_EVENTS: Final[Mapping[type, Callable[[JobCheckpoints, Any], _Actions]]] = {
    TasksChanged: JobCheckpoints._tasks_changed,
    SchedulerStarted: JobCheckpoints._start_scheduler,
    SchedulerStopped: JobCheckpoints._stop_scheduler,
    Suspended: JobCheckpoints._suspend,
    Shutdown: JobCheckpoints._shut_down,
    PeriodicTimerFired: JobCheckpoints._periodic,
    CheckpointRequested: JobCheckpoints._requested,
    CheckpointNumbered: JobCheckpoints._numbered,
    CheckpointProgressed: JobCheckpoints._progressed,
    CheckpointFailed: JobCheckpoints._failed,
    Acknowledged: JobCheckpoints._acknowledged,
    Declined: JobCheckpoints._declined,
    TimedOut: JobCheckpoints._timed_out,
    RemovalsChanged: JobCheckpoints._removals,
}
