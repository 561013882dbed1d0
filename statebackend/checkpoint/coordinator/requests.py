"""Requests for checkpoints: which one is next, why they fail, and how many failures a job tolerates.

Rules of the queue (Flink's ``CheckpointRequestDecider``):

* Order: savepoints, then forced requests, then requests on demand, then periodic ones; then the oldest.
* No request starts while another one is starting, or while too many old checkpoints are being removed.
* If the limit of pending checkpoints is reached, only forced requests start.
* Periodic requests keep a pause after the last completed checkpoint: they are rejected and repeated.
* A full queue rejects new requests, or drops a periodic request for one on demand.

A savepoint is forced if checkpoints are aligned. Otherwise its barriers would wait for records that checkpoints
overtake, so it is first in the queue but waits its turn.

Rules of failures (Flink's ``CheckpointFailureManager``): failures in a row count, once per checkpoint, and a complete
checkpoint resets the count. Only failures of storage or of a task count: not a task that was not running, a newer
checkpoint or a stop. A failed savepoint is reported to its requester and does not fail the job. The exception is a
savepoint that stops the job: part of the job has stopped by then, so the job fails.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Sequence
from typing import Final

from attrs import field, frozen

from statebackend.checkpoint.invariants import MAX_ID, check_integer


class CheckpointFailureReason(enum.Enum):
    """The reasons why a checkpoint did not start or complete."""

    SHUTDOWN = "the coordinator has been shut down"
    SUSPENDED = "the job has been suspended"
    SCHEDULER_STOPPED = "periodic checkpoints were stopped"
    TOO_MANY_REQUESTS = "too many requests wait already"
    MINIMUM_PAUSE = "the pause after the last checkpoint is not over"
    TASKS_NOT_RUNNING = "not all tasks are running"
    IO_ERROR = "storage failed while the checkpoint was started"
    COORDINATOR_FAILED = "the coordinator of an operator failed"
    TASK_NOT_TRIGGERED = "a task could not be triggered"
    DECLINED = "a task declined"
    DECLINED_NOT_READY = "a task declined, because it was not ready"
    DECLINED_BY_CANCELLATION = "a task declined, because an upstream task cancelled the checkpoint"
    DECLINED_SUBSUMED = "a task declined, because a newer checkpoint has started"
    DECLINED_END_OF_INPUT = "a task declined, because an input has ended"
    ASYNCHRONOUS_PART_FAILED = "a task could not store its state"
    TASK_FAILED = "a task failed"
    CONFLICT = "a task stored two different states"
    EXPIRED = "the checkpoint took too long"
    SUBSUMED = "a newer checkpoint completed first"
    FINALIZE_FAILED = "the completed checkpoint could not be stored"


class CheckpointRequestKind(enum.Enum):
    """The kinds of requests."""

    PERIODIC = "a checkpoint, by the clock"
    ON_DEMAND = "a checkpoint, by somebody"
    SAVEPOINT = "a savepoint"
    STOP_WITH_SAVEPOINT = "a savepoint, after which the job stops where it is"
    DRAIN_WITH_SAVEPOINT = "a savepoint, after which the job stops at the end of time"

    @property
    def is_periodic(self) -> bool:
        """Whether it is repeated automatically."""
        return self is CheckpointRequestKind.PERIODIC

    @property
    def is_savepoint(self) -> bool:
        """Whether its requester owns it: it is never subsumed, and subsumes nothing."""
        return self not in (CheckpointRequestKind.PERIODIC, CheckpointRequestKind.ON_DEMAND)

    @property
    def stops_job(self) -> bool:
        """Whether tasks process nothing after its barrier."""
        return self in (CheckpointRequestKind.STOP_WITH_SAVEPOINT, CheckpointRequestKind.DRAIN_WITH_SAVEPOINT)


@frozen
class CheckpointRequest:
    """One request; ``request_id`` identifies it for the requester, and ids increase with time."""

    request_id: int
    kind: CheckpointRequestKind
    is_forced: bool = False

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """The position in the queue: smaller is earlier."""
        return (not self.kind.is_savepoint, not self.is_forced, self.kind.is_periodic, self.request_id)


@frozen
class BeginCheckpoint:
    """The request starts now."""

    request: CheckpointRequest


@frozen
class RejectRequest:
    """The request is rejected; a periodic one may be repeated after ``retry_in_ms``."""

    request: CheckpointRequest
    reason: CheckpointFailureReason
    retry_in_ms: int | None = None


RequestDecision = BeginCheckpoint | RejectRequest


@frozen(kw_only=True)
class CheckpointLimits:
    """The limit of concurrent checkpoints, the pause between two of them, and the limit of waiting requests."""

    max_concurrent_checkpoints: int = 1
    minimum_pause_ms: int = 0
    max_waiting_requests: int = 1000

    def __attrs_post_init__(self) -> None:
        check_integer("max_concurrent_checkpoints", self.max_concurrent_checkpoints, 1, 1000)
        check_integer("minimum_pause_ms", self.minimum_pause_ms, 0, MAX_ID)
        check_integer("max_waiting_requests", self.max_waiting_requests, 1, 1_000_000)


@frozen(kw_only=True)
class CoordinatorLoad:
    """The load of the coordinator: whether a checkpoint is starting, how many wait for tasks, how many are removed.

    ``last_completed_ms`` is the time of the last completed checkpoint, on the clock of ``now_ms``, or None.
    """

    now_ms: int
    is_beginning: bool
    pending_count: int
    removing_count: int = 0
    last_completed_ms: int | None = None


@frozen
class CheckpointRequestQueue:
    """The waiting requests. Each call starts at most one request, and may reject others."""

    limits: CheckpointLimits
    _waiting: list[CheckpointRequest] = field(factory=list, init=False, repr=False)

    @property
    def waiting(self) -> Sequence[CheckpointRequest]:
        """The waiting requests, the next one first."""
        return tuple(self._waiting)

    def submit(self, request: CheckpointRequest, load: CoordinatorLoad) -> Sequence[RequestDecision]:
        """Add a request; O(waiting requests)."""
        is_full = len(self._waiting) >= self.limits.max_waiting_requests
        if is_full and not self._waiting[-1].kind.is_periodic:
            return (RejectRequest(request, CheckpointFailureReason.TOO_MANY_REQUESTS),)
        bisect.insort(self._waiting, request, key=lambda one: one.rank)
        dropped = [RejectRequest(self._waiting.pop(), CheckpointFailureReason.TOO_MANY_REQUESTS)] if is_full else []
        return (*dropped, *self.next(load))

    def next(self, load: CoordinatorLoad) -> Sequence[RequestDecision]:
        """Return the request that starts, or is rejected because it is too early; empty if none may start."""
        most = self.limits.max_concurrent_checkpoints
        if load.is_beginning or not self._waiting or load.removing_count > most:
            return ()
        first = self._waiting[0]
        if load.pending_count >= most and not first.is_forced:
            return ()
        del self._waiting[0]
        wait_ms = self._left_of_pause_ms(load)
        if first.kind.is_periodic and not first.is_forced and wait_ms > 0:
            return (RejectRequest(first, CheckpointFailureReason.MINIMUM_PAUSE, wait_ms),)
        return (BeginCheckpoint(first),)

    def drop_all(self) -> Sequence[CheckpointRequest]:
        """Empty the queue; return its requests."""
        dropped = tuple(self._waiting)
        self._waiting.clear()
        return dropped

    def _left_of_pause_ms(self, load: CoordinatorLoad) -> int:
        if load.last_completed_ms is None:
            return 0
        # A clock that went back must not extend the pause.
        passed_ms = max(0, load.now_ms - load.last_completed_ms)
        return max(0, self.limits.minimum_pause_ms - passed_ms)


_COUNTED: Final = frozenset(
    {
        CheckpointFailureReason.IO_ERROR,
        CheckpointFailureReason.DECLINED,
        CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED,
        CheckpointFailureReason.EXPIRED,
        # A job that can never store a checkpoint must not run for ever.
        CheckpointFailureReason.FINALIZE_FAILED,
    }
)


class FailurePolicy:
    """Counts failures of one job; ``tolerable_failures`` in a row are tolerated."""

    def __init__(self, tolerable_failures: int = 0) -> None:
        """Raise `InvariantViolationError` for a negative number."""
        check_integer("tolerable_failed_checkpoints", tolerable_failures, 0, MAX_ID)
        self.tolerable_failures = tolerable_failures
        self._counted_ids: set[int] = set()
        self._failures = 0
        self._newest_completed_id = -1

    @property
    def failures(self) -> int:
        """The failures counted since the last completed checkpoint."""
        return self._failures

    def completed(self, checkpoint_id: int) -> None:
        """Reset the count, if the checkpoint is newer than all that completed before."""
        if checkpoint_id > self._newest_completed_id:
            self._newest_completed_id = checkpoint_id
            self._failures = 0
            self._counted_ids.clear()

    def failed(
        self,
        checkpoint_id: int | None,
        reason: CheckpointFailureReason,
        kind: CheckpointRequestKind,
        *,
        were_triggered: bool,
    ) -> bool:
        """Count a failure and return whether the job must fail; the id is None if none was assigned yet."""
        if kind.stops_job:
            return were_triggered
        if kind.is_savepoint or reason not in _COUNTED or checkpoint_id in self._counted_ids:
            return False
        if checkpoint_id is not None:
            self._counted_ids.add(checkpoint_id)
        self._failures += 1
        return self._failures > self.tolerable_failures
