"""The running checkpoints of a job, each in a phase of the triggering table.

One at a time is stored, so they complete in the order in which they were fully acknowledged. Savepoints are never
subsumed, subsume nothing, and never count as the last completed checkpoint, from which a job recovers.

The caller reports starts and results; the table returns the actions. It covers one checkpoint, from the start of its
request to the notification of its completion.

Each phase waits for one report of the caller, which carries out the actions. A checkpoint may fail in every phase. What
it has created by then is undone: its timer, its location, acknowledged state. Tasks that may know of it are notified.

`docs/coordinator.md` is generated from the table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from attrs import define, evolve, field, frozen

from statebackend.checkpoint.coordinator.checkpoint_coordinator import AbortedCheckpoint, CheckpointCoordinator
from statebackend.checkpoint.coordinator.messages import (
    AnswerRequest,
    AssignId,
    CoordinatorAction,
    DiscardStates,
    FailJob,
    InitializeLocation,
    NotifyAborted,
    NotifyComplete,
    RemoveLocation,
    RunMasterHooks,
    SnapshotOperatorCoordinators,
    StartTimeout,
    StopTimeout,
    StoreCheckpoint,
    TriggerTasks,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointPlan, CheckpointState
from statebackend.checkpoint.coordinator.requests import (
    CheckpointFailureReason,
    CheckpointRequest,
    CheckpointRequestKind,
    FailurePolicy,
)
from statebackend.checkpoint.errors import IllegalTransitionError, InvariantViolationError
from statebackend.checkpoint.transition_tables import table_as_text

__all__ = [
    "TRIGGERING_TRANSITIONS",
    "CheckpointAttempt",
    "CheckpointAttempts",
    "CheckpointCounts",
    "TriggeringEvent",
    "TriggeringPhase",
    "TriggeringStep",
    "triggering_as_text",
]


class TriggeringPhase(enum.Enum):
    """The phases of a checkpoint, by what it waits for."""

    NUMBERING = "its id"
    LOCATING = "its storage location"
    COORDINATING = "the state of the coordinators of operators"
    HOOKING = "hooks outside of the job"
    AWAITING = "the acknowledgements of tasks"
    STORING = "storage"
    OVER = "nothing; the checkpoint is complete or has failed"


class TriggeringEvent(enum.Enum):
    """The reports."""

    NUMBERED = "it has its id"
    LOCATED = "it has its storage location"
    COORDINATED = "the coordinators of operators have returned their state"
    HOOKED = "the hooks have returned"
    ALL_ACKNOWLEDGED = "all tasks have acknowledged, and no other checkpoint is being stored"
    STORED = "it is stored"
    FAILED = "it has failed, or is cancelled"


class TriggeringStep(enum.Enum):
    """The steps."""

    LOCATE = "request its storage location"
    OPEN = "start to accept acknowledgements"
    START_TIMER = "start the timeout"
    STOP_TIMER = "stop the timeout"
    COORDINATE = "request the state of the coordinators of operators"
    HOOK = "call the hooks"
    TRIGGER_TASKS = "trigger the tasks that start the barriers"
    STORE = "store the acknowledged state"
    SUBSUME = "end older incomplete checkpoints, except savepoints"
    NOTIFY_COMPLETE = "notify the tasks that it is complete; for a savepoint only if the job stops with it"
    NOTIFY_ABORTED = "notify the tasks that it is aborted, and which checkpoint completed last"
    DISCARD = "discard acknowledged state"
    ROLL_BACK = "discard the state that could not be stored"
    REMOVE_LOCATION = "remove its storage location"
    ANSWER = "answer the requester"


_P, _E, _S = TriggeringPhase, TriggeringEvent, TriggeringStep

TRIGGERING_TRANSITIONS: Final[
    Mapping[tuple[TriggeringPhase, TriggeringEvent], tuple[TriggeringPhase, tuple[TriggeringStep, ...]]]
] = MappingProxyType(
    {
        (_P.NUMBERING, _E.NUMBERED): (_P.LOCATING, (_S.LOCATE,)),
        (_P.LOCATING, _E.LOCATED): (_P.COORDINATING, (_S.OPEN, _S.START_TIMER, _S.COORDINATE)),
        (_P.COORDINATING, _E.COORDINATED): (_P.HOOKING, (_S.HOOK,)),
        (_P.HOOKING, _E.HOOKED): (_P.AWAITING, (_S.TRIGGER_TASKS,)),
        (_P.AWAITING, _E.ALL_ACKNOWLEDGED): (_P.STORING, (_S.STOP_TIMER, _S.STORE)),
        (_P.STORING, _E.STORED): (_P.OVER, (_S.SUBSUME, _S.NOTIFY_COMPLETE, _S.ANSWER)),
        (_P.NUMBERING, _E.FAILED): (_P.OVER, (_S.ANSWER,)),
        (_P.LOCATING, _E.FAILED): (_P.OVER, (_S.ANSWER,)),
        **{
            (phase, _E.FAILED): (
                _P.OVER,
                (_S.STOP_TIMER, _S.DISCARD, _S.REMOVE_LOCATION, _S.NOTIFY_ABORTED, _S.ANSWER),
            )
            for phase in (_P.COORDINATING, _P.HOOKING, _P.AWAITING)
        },
        (_P.STORING, _E.FAILED): (_P.OVER, (_S.ROLL_BACK, _S.REMOVE_LOCATION, _S.NOTIFY_ABORTED, _S.ANSWER)),
    }
)
"""(phase, event) -> (next phase, steps); everything else is illegal. Reports of ended checkpoints are ignored."""


def triggering_as_text() -> str:
    """The table as Markdown, for the documentation."""
    return table_as_text(TRIGGERING_TRANSITIONS, (TriggeringPhase, TriggeringEvent, TriggeringStep))


_Actions = Sequence[CoordinatorAction]


@frozen
class CheckpointCounts:
    """The started checkpoints and savepoints: how many completed and failed; the others are pending."""

    started: int = 0
    completed: int = 0
    failed: int = 0


@define
class CheckpointAttempt:
    """A started checkpoint; ``checkpoint_id`` is None in NUMBERING."""

    request: CheckpointRequest
    plan: CheckpointPlan
    phase: TriggeringPhase = TriggeringPhase.NUMBERING
    checkpoint_id: int | None = None
    failure: CheckpointFailureReason | None = None
    detail: str = ""
    subsumed_id: int | None = None

    @property
    def kind(self) -> CheckpointRequestKind:
        return self.request.kind

    @property
    def id(self) -> int:
        """The id, if one was assigned."""
        assert self.checkpoint_id is not None
        return self.checkpoint_id

    @property
    def is_beginning(self) -> bool:
        """Whether its tasks are not triggered yet."""
        return self.phase in _BEGINNING

    @property
    def can_time_out(self) -> bool:
        """Whether the time limit is on."""
        return self.phase in _TIMED


@define
class CheckpointAttempts:
    """The running attempts, found by request id."""

    coordinator: CheckpointCoordinator
    failures: FailurePolicy
    last_completed_id: int | None
    last_completed_ms: int | None = field(default=None, init=False)
    counts: CheckpointCounts = field(factory=CheckpointCounts, init=False)
    under_way: dict[int, CheckpointAttempt] = field(factory=dict, init=False)

    def by_id(self, checkpoint_id: int) -> CheckpointAttempt | None:
        """The running attempt with that id."""
        return next((one for one in self.under_way.values() if one.checkpoint_id == checkpoint_id), None)

    def begin(self, request: CheckpointRequest, plan: CheckpointPlan) -> _Actions:
        """Start an attempt, which waits for its id."""
        self.under_way[request.request_id] = CheckpointAttempt(request, plan)
        self.counts = evolve(self.counts, started=self.counts.started + 1)
        return (AssignId(request),)

    def advance(self, attempt: CheckpointAttempt, event: TriggeringEvent, now_ms: int) -> _Actions:
        """Process an event; raise `IllegalTransitionError`, changing nothing, if the table does not allow it."""
        following, steps = check_transition(attempt, event)
        actions: list[CoordinatorAction] = []
        for step in steps:
            actions += _STEPS[step](self, attempt, now_ms)
        attempt.phase = following
        if following is TriggeringPhase.OVER:
            del self.under_way[attempt.request.request_id]
        return actions

    def end(self, attempt: CheckpointAttempt, reason: CheckpointFailureReason, detail: str, now_ms: int) -> _Actions:
        """End an attempt that does not complete, and the job if it has too many failures."""
        were_triggered = not attempt.is_beginning
        attempt.failure, attempt.detail = reason, detail
        actions = [*self.advance(attempt, TriggeringEvent.FAILED, now_ms)]
        fails_job = self.failures.failed(attempt.checkpoint_id, reason, attempt.kind, were_triggered=were_triggered)
        return [*actions, FailJob(self._why_job_fails(attempt))] if fails_job else actions

    def store_next(self, now_ms: int) -> _Actions:
        """Store the oldest attempt that all tasks have acknowledged, unless one is being stored."""
        if any(one.phase is TriggeringPhase.STORING for one in self.under_way.values()):
            return ()
        ready = [one for one in self.under_way.values() if self._is_acknowledged(one)]
        if not ready:
            return ()
        oldest = min(ready, key=lambda one: one.id)
        try:
            return self.advance(oldest, TriggeringEvent.ALL_ACKNOWLEDGED, now_ms)
        except InvariantViolationError as error:
            # The acknowledgements are inconsistent; another attempt may succeed.
            failed = self.end(oldest, CheckpointFailureReason.FINALIZE_FAILED, str(error), now_ms)
            return (*failed, *self.store_next(now_ms))

    def _is_acknowledged(self, one: CheckpointAttempt) -> bool:
        # A source that starts a checkpoint itself acknowledges before it is triggered.
        if one.phase is not TriggeringPhase.AWAITING:
            return False
        return self.coordinator.state_of(one.id) is CheckpointState.ACKNOWLEDGED

    def _why_job_fails(self, one: CheckpointAttempt) -> str:
        name = f"checkpoint {one.checkpoint_id}" if one.checkpoint_id is not None else "a checkpoint without an id yet"
        if one.kind.stops_job:
            return f"{name}, a savepoint to stop with, failed, and tasks have stopped for it: {one.detail}"
        return (
            f"{name} failed ({one.detail}): {self.failures.failures} failures in a row, and "
            f"{self.failures.tolerable_failures} are tolerable"
        )

    def _locate(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return (InitializeLocation(one.id, one.kind),)

    def _open(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        self.coordinator.trigger(one.id, one.plan.await_, now_ms, one.plan.finished)
        return ()

    def _start_timer(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        timeout_ms = self.coordinator.timeout_ms
        return () if timeout_ms is None else (StartTimeout(one.id, now_ms + timeout_ms),)

    def _stop_timer(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return () if self.coordinator.timeout_ms is None else (StopTimeout(one.id),)

    def _coordinate(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return (SnapshotOperatorCoordinators(one.id),)

    def _hook(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return (RunMasterHooks(one.id),)

    def _trigger_tasks(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return (TriggerTasks(one.id, one.kind, one.plan.begin),)

    def _store(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return (StoreCheckpoint(self.coordinator.complete(one.id), one.kind),)

    def _subsume(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        self.last_completed_ms = now_ms
        self.counts = evolve(self.counts, completed=self.counts.completed + 1)
        if one.kind.is_savepoint:
            return ()
        self.failures.completed(one.id)
        one.subsumed_id, self.last_completed_id = self.last_completed_id, one.id
        actions: list[CoordinatorAction] = []
        for other in sorted(filter(_can_be_subsumed, self.under_way.values()), key=lambda other: other.id):
            if other.id < one.id:
                detail = f"checkpoint {one.id} completed first"
                actions += self.end(other, CheckpointFailureReason.SUBSUMED, detail, now_ms)
        return actions

    def _notify_complete(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        if one.kind.is_savepoint and not one.kind.stops_job:
            return ()
        return (NotifyComplete(one.id, one.plan.await_, one.subsumed_id),)

    def _notify_aborted(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return (NotifyAborted(one.id, one.plan.await_, self.last_completed_id),)

    def _discard(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        if one.failure is CheckpointFailureReason.SUBSUMED:
            return _discarded(self.coordinator.subsume(one.id))
        return _discarded(self.coordinator.abort(one.id, one.detail))

    def _roll_back(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return _discarded(self.coordinator.storing_failed(one.id, one.detail))

    def _remove_location(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        return (RemoveLocation(one.id),)

    def _answer(self, one: CheckpointAttempt, now_ms: int) -> _Actions:
        if one.failure is not None:
            self.counts = evolve(self.counts, failed=self.counts.failed + 1)
        return (AnswerRequest(one.request.request_id, one.checkpoint_id, one.failure, one.detail),)


def check_transition(
    attempt: CheckpointAttempt, event: TriggeringEvent
) -> tuple[TriggeringPhase, tuple[TriggeringStep, ...]]:
    """Look up the transition; raise `IllegalTransitionError` if the table has none."""
    try:
        return TRIGGERING_TRANSITIONS[attempt.phase, event]
    except KeyError:
        name = f"request {attempt.request.request_id}, checkpoint {attempt.checkpoint_id}"
        raise IllegalTransitionError(event.name, attempt.phase.name, name) from None


def _can_be_subsumed(one: CheckpointAttempt) -> bool:
    return one.checkpoint_id is not None and not one.kind.is_savepoint


def _discarded(aborted: AbortedCheckpoint) -> _Actions:
    return (DiscardStates(aborted.states_to_discard),) if aborted.states_to_discard else ()


_BEGINNING: Final = (
    TriggeringPhase.NUMBERING,
    TriggeringPhase.LOCATING,
    TriggeringPhase.COORDINATING,
    TriggeringPhase.HOOKING,
)
_TIMED: Final = (TriggeringPhase.COORDINATING, TriggeringPhase.HOOKING, TriggeringPhase.AWAITING)

_STEPS: Final[Mapping[TriggeringStep, Callable[[CheckpointAttempts, CheckpointAttempt, int], _Actions]]] = {
    TriggeringStep.LOCATE: CheckpointAttempts._locate,
    TriggeringStep.OPEN: CheckpointAttempts._open,
    TriggeringStep.START_TIMER: CheckpointAttempts._start_timer,
    TriggeringStep.STOP_TIMER: CheckpointAttempts._stop_timer,
    TriggeringStep.COORDINATE: CheckpointAttempts._coordinate,
    TriggeringStep.HOOK: CheckpointAttempts._hook,
    TriggeringStep.TRIGGER_TASKS: CheckpointAttempts._trigger_tasks,
    TriggeringStep.STORE: CheckpointAttempts._store,
    TriggeringStep.SUBSUME: CheckpointAttempts._subsume,
    TriggeringStep.NOTIFY_COMPLETE: CheckpointAttempts._notify_complete,
    TriggeringStep.NOTIFY_ABORTED: CheckpointAttempts._notify_aborted,
    TriggeringStep.DISCARD: CheckpointAttempts._discard,
    TriggeringStep.ROLL_BACK: CheckpointAttempts._roll_back,
    TriggeringStep.REMOVE_LOCATION: CheckpointAttempts._remove_location,
    TriggeringStep.ANSWER: CheckpointAttempts._answer,
}


if __name__ == "__main__":
    print(triggering_as_text(), end="")  # noqa: T201
