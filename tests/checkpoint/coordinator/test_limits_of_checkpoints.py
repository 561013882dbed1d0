"""Limits of checkpoints: how many run at once, the pause between them, and how many requests wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from coordinator_harness import A, B, Kind, Reason, outside, running

from statebackend.checkpoint import CheckpointCoordinator, IllegalTransitionError, InvariantViolationError
from statebackend.checkpoint.coordinator.job_checkpoints import JobCheckpoints
from statebackend.checkpoint.coordinator.messages import (
    AssignId,
    CheckpointNumbered,
    RemovalsChanged,
    SchedulerStopped,
    TasksChanged,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import TaskStatus
from statebackend.checkpoint.coordinator.requests import CheckpointLimits, FailurePolicy


def test_min_checkpoint_pause() -> None:
    one = outside(pause_ms=50)
    one.start(10)
    one.pass_time(10)
    one.pass_time(35)
    one.acknowledge(1, A, B)
    assert one.reported == [1]
    one.pass_time(84)
    assert one.reported == [1]
    one.pass_time(85)
    assert one.reported == [1, 2]
    early = [answer for answer in one.answers.values() if answer.failure is Reason.MINIMUM_PAUSE]
    assert early


def test_a_savepoint_is_followed_by_the_pause_too() -> None:
    one = outside(pause_ms=50)
    one.start(10)
    one.request(Kind.SAVEPOINT)
    one.acknowledge(1, A, B)
    one.pass_time(49)
    assert one.reported == [1]
    one.pass_time(50)
    assert one.reported == [1, 2]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_max_concurrent_attempts(most: int) -> None:
    one = outside(most=most)
    one.start(10)
    one.pass_time(10 * (most + 5))
    assert one.reported == list(range(1, most + 1))
    one.acknowledge(1, A, B)
    assert one.reported == list(range(1, most + 2))
    one.acknowledge(2, A, B)
    assert one.reported == list(range(1, most + 3))


def test_max_concurrent_attempts_with_subsumption() -> None:
    one = outside(most=2)
    one.start(10)
    one.pass_time(50)
    assert one.reported == [1, 2]
    one.acknowledge(2, A, B)
    assert one.reported == [1, 2, 3, 4]


def test_pending_requests_are_kept_when_the_scheduler_stops() -> None:
    one = outside(held={AssignId})
    one.start(10)
    number = one.request()
    one.handle(SchedulerStopped())
    one.release(AssignId)
    one.acknowledge(1, A, B)
    assert one.answers[number].checkpoint_id == 1


def test_no_checkpoint_starts_while_too_many_are_being_removed() -> None:
    one = outside()
    one.handle(RemovalsChanged(2, 0))
    one.request()
    assert one.reported == []
    one.handle(RemovalsChanged(1, 0))
    assert one.reported == [1]


def test_a_full_queue_drops_periodic_requests_and_rejects_the_rest() -> None:
    one = outside(waiting=2)
    one.start(10)
    one.request()
    asked = one.request()
    one.pass_time(10)
    periodic = one.checkpoints.waiting_requests[-1].request_id
    also_asked = one.request()
    assert one.answers[periodic].failure is Reason.TOO_MANY_REQUESTS
    # Waiting requests were accepted, so not even a savepoint replaces them.
    for rejected in (one.request(), one.request(Kind.SAVEPOINT)):
        assert one.answers[rejected].failure is Reason.TOO_MANY_REQUESTS
    assert [request.request_id for request in one.checkpoints.waiting_requests] == [asked, also_asked]


def test_many_requests_whose_tasks_stop_running_are_all_answered() -> None:
    one = outside()
    one.request()
    numbers = [one.request() for _ in range(999)]
    one.handle(TasksChanged(running(A, B, status=TaskStatus.FAILED)))
    one.acknowledge(1, A, B)
    assert {one.answers[number].failure for number in numbers} == {Reason.TASKS_NOT_RUNNING}


@pytest.mark.parametrize(
    "make",
    [
        lambda: CheckpointLimits(max_concurrent_checkpoints=0),
        lambda: CheckpointLimits(minimum_pause_ms=-1),
        lambda: CheckpointLimits(max_waiting_requests=0),
        lambda: FailurePolicy(-1),
        lambda: outside().start(0),
        lambda: outside().handle(RemovalsChanged(-1, 0)),
    ],
)
def test_invalid_limits_are_rejected(make: Callable[[], object]) -> None:
    CheckpointLimits(max_concurrent_checkpoints=1, minimum_pause_ms=0, max_waiting_requests=1)
    with pytest.raises(InvariantViolationError):
        make()


def test_ids_of_finished_requests_are_not_reused() -> None:
    one = outside(held={AssignId})
    number = one.request()
    one.fail(Reason.IO_ERROR, request_id=number)
    one.handle(CheckpointNumbered(number, 5, 0))
    one.request()
    with pytest.raises(IllegalTransitionError, match="5 is not greater than 5"):
        one.handle(CheckpointNumbered(2, 5, 0))


def test_a_coordinator_with_its_own_limit_is_rejected() -> None:
    with pytest.raises(InvariantViolationError, match="belongs into CheckpointLimits"):
        JobCheckpoints(CheckpointCoordinator("job", "run", None))
