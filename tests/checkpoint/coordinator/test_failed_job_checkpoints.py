"""Failed checkpoints of a job: what they clean up, and when failures fail the job."""

from __future__ import annotations

import pytest
from coordinator_harness import TIMEOUT_MS, A, B, Kind, Reason, is_clean, outside, running, stateless, states

from statebackend.checkpoint.coordinator.messages import (
    Acknowledged,
    AssignId,
    CheckpointNumbered,
    CheckpointProgressed,
    FailJob,
    InitializeLocation,
    NotifyAborted,
    RemoveLocation,
    RunMasterHooks,
    SnapshotOperatorCoordinators,
    StoreCheckpoint,
    Suspended,
    TasksChanged,
    TriggerTasks,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import TaskStatus
from statebackend.checkpoint.coordinator.requests import FailurePolicy


@pytest.mark.parametrize("reason", [Reason.DECLINED, Reason.ASYNCHRONOUS_PART_FAILED, Reason.IO_ERROR, Reason.EXPIRED])
def test_more_than_the_tolerable_failures_fail_the_job(reason: Reason) -> None:
    one = outside(tolerable=1)
    for checkpoint_id in (1, 2):
        one.request()
        if reason is Reason.EXPIRED:
            one.pass_time(one.now_ms + TIMEOUT_MS)
        elif reason is Reason.IO_ERROR:
            one.fail(reason, checkpoint_id=checkpoint_id)
        else:
            one.decline(checkpoint_id, A, reason)
        assert len(one.of(FailJob)) == checkpoint_id - 1
    detail = one.of(FailJob)[0].detail
    assert detail.startswith("checkpoint 2 failed (")
    assert "2 failures in a row, and 1 are tolerable" in detail


@pytest.mark.parametrize(
    "reason",
    [
        Reason.DECLINED_NOT_READY,
        Reason.DECLINED_BY_CANCELLATION,
        Reason.DECLINED_SUBSUMED,
        Reason.DECLINED_END_OF_INPUT,
        Reason.TASK_FAILED,
        Reason.TASK_NOT_TRIGGERED,
    ],
)
def test_other_failures_than_those_of_storage_or_tasks_are_not_counted(reason: Reason) -> None:
    one = outside()
    for checkpoint_id in range(1, 5):
        one.request()
        one.decline(checkpoint_id, A, reason)
    assert one.of(FailJob) == []
    assert one.checkpoints.counts.failed == 4


def test_a_checkpoint_counts_once_and_an_older_completion_does_not_reset_the_counter() -> None:
    policy = FailurePolicy(2)
    policy.completed(5)
    for checkpoint_id in (6, 6, 7, 7):
        assert not policy.failed(checkpoint_id, Reason.DECLINED, Kind.ON_DEMAND, were_triggered=True)
    policy.completed(4)
    policy.completed(5)
    assert policy.failures == 2
    # Each failure without a checkpoint id counts as a separate one.
    assert [policy.failed(None, Reason.IO_ERROR, Kind.PERIODIC, were_triggered=False) for _ in range(2)] == [True] * 2
    policy.completed(8)
    assert policy.failures == 0
    assert not policy.failed(9, Reason.EXPIRED, Kind.PERIODIC, were_triggered=True)


def test_a_completed_checkpoint_resets_the_failure_counter() -> None:
    one = outside(tolerable=1, most=3)
    for checkpoint_id in range(1, 10):
        one.request()
        if checkpoint_id % 2:
            one.decline(checkpoint_id, A)
        else:
            one.acknowledge(checkpoint_id, A, B)
    assert one.of(FailJob) == []
    one.request()
    one.decline(10, A)
    assert len(one.of(FailJob)) == 1


def test_a_completed_savepoint_does_not_reset_the_counter() -> None:
    one = outside(tolerable=1)
    one.request()
    one.decline(1, A)
    one.request(Kind.SAVEPOINT)
    one.acknowledge(2, A, B)
    one.request()
    one.decline(3, A)
    assert len(one.of(FailJob)) == 1


def test_checkpoint_aborts_after_storage_io_exception() -> None:
    one = outside(held={InitializeLocation})
    number = one.request()
    one.fail(Reason.IO_ERROR, checkpoint_id=1)
    assert (one.answers[number].failure, one.answers[number].detail) == (Reason.IO_ERROR, "disk full")
    assert len(one.of(FailJob)) == 1
    assert one.checkpoints.counts.failed == 1
    assert is_clean(one)
    # The location arrives after the failure: no task is notified.
    one.handle(CheckpointProgressed(1, 0))
    assert one.reported == []


def test_trigger_checkpoint_with_counter_io_exception() -> None:
    one = outside(held={AssignId}, tolerable=1)
    number = one.request()
    one.fail(Reason.IO_ERROR, request_id=number)
    assert one.answers[number].failure is Reason.IO_ERROR
    assert (one.checkpoints.counts.started, one.checkpoints.counts.failed) == (1, 1)
    assert is_clean(one)
    one.handle(CheckpointNumbered(number, 7, 0))
    assert one.checkpoints.pending_ids == ()


def test_io_exception_for_periodic_scheduling_with_inactive_tasks() -> None:
    one = outside(tasks=running(A, B, status=TaskStatus.STARTING), held={AssignId})
    one.start(10)
    one.pass_time(10)
    assert [answer.failure for answer in one.answers.values()] == [Reason.TASKS_NOT_RUNNING]
    one.handle(TasksChanged(running(A, B)))
    one.pass_time(20)
    [assigned] = one.of(AssignId)
    one.fail(Reason.IO_ERROR, request_id=assigned.request.request_id)
    answer = one.answers[assigned.request.request_id]
    assert (answer.failure, answer.detail) == (Reason.IO_ERROR, "disk full")
    [failed] = one.of(FailJob)
    assert "a checkpoint without an id yet failed (disk full)" in failed.detail
    assert is_clean(one)


def test_checkpoint_aborts_if_trigger_tasks_are_finished_and_io_exception() -> None:
    one = outside(tasks=(*running(A), *running(B, status=TaskStatus.FINISHED)), held={AssignId})
    answer = one.answers[one.request()]
    # Task states are checked before storage is used, so no storage error can occur and no failure is counted.
    assert (answer.failure, one.of(AssignId), one.of(FailJob)) == (Reason.TASKS_NOT_RUNNING, [], [])
    assert is_clean(one)


def test_exception_in_storing_completed_checkpoint_is_reported() -> None:
    one = outside(held={StoreCheckpoint})
    number = one.request()
    one.acknowledge(1, A, B)
    one.fail(Reason.IO_ERROR, checkpoint_id=1)
    assert one.answers[number].failure is Reason.FINALIZE_FAILED
    assert one.discarded == states(1, A, B)
    assert one.checkpoints.counts.failed == 1
    assert one.checkpoints.last_completed_id is None
    assert len(one.of(FailJob)) == 1
    assert one.of(NotifyAborted) == [NotifyAborted(1, (A, B), None)]
    assert is_clean(one)


def test_timeout_while_checkpoint_operator_coordinator_not_finishing() -> None:
    one = outside(held={SnapshotOperatorCoordinators}, tolerable=1)
    first, second = one.request(), one.request()
    assert one.checkpoints.pending_ids == (1,)
    one.pass_time(TIMEOUT_MS)
    assert one.answers[first].failure is Reason.EXPIRED
    assert second not in one.answers
    assert one.checkpoints.pending_ids == (2,)


@pytest.mark.parametrize("held", [SnapshotOperatorCoordinators, RunMasterHooks, TriggerTasks, StoreCheckpoint])
def test_a_failure_at_any_step_discards_what_was_created_for_the_checkpoint(held: type) -> None:
    one = outside(held={held}, tolerable=5)
    number = one.request()
    one.acknowledge(1, A, *([B] if held is StoreCheckpoint else []))
    one.fail(Reason.COORDINATOR_FAILED, checkpoint_id=1)
    assert one.answers[number].failure in (Reason.COORDINATOR_FAILED, Reason.FINALIZE_FAILED)
    assert one.discarded == states(1, A, *([B] if held is StoreCheckpoint else []))
    assert one.of(RemoveLocation) == [RemoveLocation(1)]
    assert one.of(NotifyAborted) == [NotifyAborted(1, (A, B), None)]
    assert is_clean(one)


def test_aborting_before_triggering_checkpoint_operator_coordinator() -> None:
    one = outside(held={InitializeLocation})
    one.request()
    one.handle(Suspended(0))
    one.release(InitializeLocation)
    assert one.of(SnapshotOperatorCoordinators) == []


def test_report_latest_completed_checkpoint_id_with_abort() -> None:
    one = outside(tolerable=5)
    one.request()
    one.acknowledge(1, A, B)
    one.request(Kind.SAVEPOINT)
    one.acknowledge(2, A, B)
    one.request()
    one.decline(3, A)
    assert one.of(NotifyAborted) == [NotifyAborted(3, (A, B), 1)]


def test_the_next_checkpoint_is_stored_after_one_could_not_be() -> None:
    one = outside(most=2, held={StoreCheckpoint}, tolerable=1)
    one.request()
    one.request()
    one.acknowledge(1, A, B)
    one.acknowledge(2, A, B)
    one.fail(Reason.IO_ERROR, checkpoint_id=1)
    assert [action.completed.checkpoint_id for action in one.of(StoreCheckpoint)] == [1, 2]


def test_two_states_of_one_task_fail_the_checkpoint() -> None:
    one = outside(tolerable=0)
    number = one.request()
    one.acknowledge(1, A)
    one.acknowledge(1, A, digest="another", state_id="other")
    assert one.answers[number].failure is Reason.CONFLICT
    assert len(one.discarded) == 2
    assert one.of(FailJob) == []


def test_inconsistent_state_fails_its_checkpoint_only() -> None:
    one = outside(tolerable=5)
    number = one.request()
    one.acknowledge(1, A)
    one.handle(Acknowledged(stateless(1, B), 0))
    assert one.answers[number].failure is Reason.FINALIZE_FAILED
    assert "must cover key groups" in one.answers[number].detail
    assert is_clean(one)
    one.request()
    one.acknowledge(2, A, B)
    assert one.stored == [2]
