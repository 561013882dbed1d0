"""Savepoints among the checkpoints of a job: requested, stopped with, and never subsumed."""

from __future__ import annotations

import pytest
from coordinator_harness import A, B, Kind, Reason, outside

from statebackend.checkpoint.coordinator.messages import (
    FailJob,
    InitializeLocation,
    NotifyComplete,
    StoreCheckpoint,
    TriggerTasks,
)


def test_trigger_and_confirm_simple_savepoint() -> None:
    one = outside()
    number = one.request(Kind.SAVEPOINT)
    one.acknowledge(1, A, B)
    (stored,) = one.of(StoreCheckpoint)
    assert stored.kind is Kind.SAVEPOINT
    assert one.answers[number].checkpoint_id == 1
    assert one.of(NotifyComplete) == []
    assert one.checkpoints.last_completed_id is None


def test_savepoints_are_not_subsumed() -> None:
    one = outside(most=10)
    for kind in (Kind.ON_DEMAND, Kind.SAVEPOINT, Kind.ON_DEMAND, Kind.SAVEPOINT, Kind.ON_DEMAND, Kind.ON_DEMAND):
        one.request(kind)
    one.acknowledge(3, A, B)
    assert one.checkpoints.pending_ids == (2, 4, 5, 6)
    one.acknowledge(4, A, B)
    assert one.checkpoints.pending_ids == (2, 5, 6)
    one.acknowledge(6, A, B)
    assert one.checkpoints.pending_ids == (2,)
    one.acknowledge(2, A, B)
    assert one.stored == [3, 4, 6, 2]
    assert [(reported.checkpoint_id, reported.subsumed_id) for reported in one.of(NotifyComplete)] == [
        (3, None),
        (6, 3),
    ]
    assert one.checkpoints.last_completed_id == 6


def test_concurrent_savepoints() -> None:
    one = outside()
    numbers = [one.request(Kind.SAVEPOINT) for _ in range(5)]
    assert one.checkpoints.pending_ids == (1, 2, 3, 4, 5)
    for checkpoint_id in (1, 2, 3, 4, 5):
        one.acknowledge(checkpoint_id, A, B)
    assert [one.answers[number].checkpoint_id for number in numbers] == [1, 2, 3, 4, 5]


def test_min_delay_between_savepoints() -> None:
    one = outside(pause_ms=10**12)
    one.request(Kind.SAVEPOINT)
    one.acknowledge(1, A, B)
    one.request(Kind.SAVEPOINT)
    assert one.reported == [1, 2]


@pytest.mark.parametrize("kind", [Kind.STOP_WITH_SAVEPOINT, Kind.DRAIN_WITH_SAVEPOINT])
def test_the_job_fails_if_the_savepoint_it_stops_with_is_discarded(kind: Kind) -> None:
    one = outside(tolerable=100)
    one.request(kind)
    one.decline(1, A, Reason.DECLINED_NOT_READY)
    (failed,) = one.of(FailJob)
    assert "tasks have stopped for it" in failed.detail


def test_a_stop_with_savepoint_that_no_task_was_triggered_for_does_not_fail_the_job() -> None:
    one = outside(held={InitializeLocation})
    one.request(Kind.STOP_WITH_SAVEPOINT)
    one.fail(Reason.IO_ERROR, checkpoint_id=1)
    assert one.of(FailJob) == []


def test_tasks_are_notified_of_a_savepoint_that_they_stop_with() -> None:
    one = outside()
    one.request(Kind.STOP_WITH_SAVEPOINT)
    one.acknowledge(1, A, B)
    assert one.of(NotifyComplete) == [NotifyComplete(1, (A, B), None)]


def test_a_failed_savepoint_does_not_fail_the_job() -> None:
    one = outside()
    number = one.request(Kind.SAVEPOINT)
    one.decline(1, A)
    assert one.answers[number].failure is Reason.DECLINED
    assert one.of(FailJob) == []


def test_savepoint_scheduled_in_unaligned_mode() -> None:
    one = outside(are_checkpoints_unaligned=True)
    one.request()
    waiting = [one.request() for _ in range(10)]
    savepoint = one.request(Kind.SAVEPOINT)
    first = one.checkpoints.waiting_requests[0]
    assert (first.request_id, first.is_forced) == (savepoint, False)
    assert one.reported == [1]
    one.acknowledge(1, A, B)
    assert [request.request_id for request in one.checkpoints.waiting_requests] == waiting
    assert one.of(TriggerTasks)[-1].kind is Kind.SAVEPOINT
