"""The checkpoints of a job: by their names, the cases of Flink's CheckpointCoordinatorTest that are none of storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from checkpoint_builders import acknowledgement
from coordinator_harness import TIMEOUT_MS, A, B, Kind, Outside, Reason, outside, running

from checkpointing import CheckpointCoordinator, IllegalTransitionError, InvariantViolationError, SubtaskState, TaskId
from checkpointing.coordinator.acknowledgement_policy import (
    CheckpointTask,
    TaskStatus,
    all_unfinished_tasks,
)
from checkpointing.coordinator.checkpoint_requests import CheckpointLimits
from checkpointing.coordinator.coordinator_messages import (
    Acknowledged,
    AssignId,
    CheckpointNumbered,
    CheckpointProgressed,
    FailJob,
    InitializeLocation,
    NotifyAborted,
    NotifyComplete,
    RemovalsChanged,
    RemoveLocation,
    RunMasterHooks,
    SchedulerStopped,
    Shutdown,
    SnapshotOperatorCoordinators,
    StoreCheckpoint,
    Suspended,
    TasksChanged,
    TellTasks,
)
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.job_checkpoints import JobCheckpoints
from checkpointing.coordinator.triggering_table import (
    TRIGGERING_TRANSITIONS,
    TriggeringEvent,
    TriggeringPhase,
    TriggeringStep,
    triggering_as_text,
)


def states(checkpoint_id: int, *tasks: TaskId) -> list[SubtaskState]:
    return [acknowledgement(checkpoint_id, task.subtask_index).state for task in tasks]


def is_clean(one: Outside) -> bool:
    return one.checkpoints.pending_ids == () and not one.timeouts


def test_schedule_trigger_request_during_shutdown() -> None:
    one = outside()
    one.handle(Shutdown(0))
    one.start(10)
    one.pass_time(100)
    assert one.periodic_at_ms is None
    assert one.answers[one.request()].failure is Reason.SHUTDOWN
    one.handle(Shutdown(0))


def test_min_checkpoint_pause() -> None:
    one = outside(pause_ms=50)
    one.start(10)
    one.pass_time(10)
    one.pass_time(35)
    one.acknowledge(1, A, B)
    assert one.told == [1]
    one.pass_time(84)
    assert one.told == [1]
    one.pass_time(85)
    assert one.told == [1, 2]
    early = [answer for answer in one.answers.values() if answer.failure is Reason.MINIMUM_PAUSE]
    assert early


def test_checkpoint_aborts_if_trigger_tasks_are_not_executed() -> None:
    one = outside(tasks=running(A, B, status=TaskStatus.STARTING))
    answer = one.answers[one.request()]
    assert answer.failure is Reason.TASKS_NOT_RUNNING
    assert "counter[0] is starting, counter[1] is starting" in answer.detail
    assert is_clean(one)
    assert one.next_id == 1


def test_checkpoint_aborts_if_trigger_tasks_are_finished() -> None:
    one = outside(tasks=(*running(A), *running(B, status=TaskStatus.FINISHED)))
    answer = one.answers[one.request()]
    assert (answer.failure, answer.detail) == (Reason.TASKS_NOT_RUNNING, "counter[1] is finished")
    assert is_clean(one)


def test_checkpoint_triggered_after_some_tasks_finished_if_allowed() -> None:
    sources = [TaskId("source", index) for index in range(3)]
    others = [TaskId("sink", index) for index in range(3)]
    finished = {sources[0], sources[1], others[0]}
    tasks = tuple(
        CheckpointTask(
            task,
            TaskStatus.FINISHED if task in finished else TaskStatus.RUNNING,
            frozenset(sources[:2] * (task in others)),
        )
        for task in (*sources, *others)
    )
    one = outside(tasks=tasks, policy=all_unfinished_tasks)
    number = one.request()
    (told,) = one.of(TellTasks)
    # Those behind finished tasks alone have nobody left who sends them a barrier.
    assert told.tasks == (others[1], others[2], sources[2])
    for task in told.tasks:
        one.handle(
            Acknowledged(_stateless(1, task), 0),
        )
    assert one.answers[number].failure is None
    (stored,) = one.of(StoreCheckpoint)
    assert [operator.parallelism for operator in stored.completed.operators] == [3, 3]


def test_those_are_told_who_have_nobody_before_them_that_runs_and_the_others_hear_by_barriers() -> None:
    source, middle, sink = (TaskId(uid, 0) for uid in ("source", "middle", "a-sink"))
    inputs = {sink: [middle], middle: [source], source: []}
    tasks = tuple(CheckpointTask(task, TaskStatus.RUNNING, frozenset(given)) for task, given in inputs.items())
    one = outside(tasks=tasks, policy=all_unfinished_tasks)
    one.request()
    [told] = one.of(TellTasks)
    assert told.tasks == (source,)
    one.decline(1, source)
    [aborted] = one.of(NotifyAborted)
    assert aborted.tasks == (sink, middle, source)


@pytest.mark.parametrize("count", [10, 11])
def test_of_many_tasks_that_do_not_run_ten_are_named(count: int) -> None:
    tasks = running(*(TaskId("counter", index) for index in range(count)), status=TaskStatus.STARTING)
    one = outside(tasks=tasks)
    detail = one.answers[one.request()].detail
    assert detail.count(" is starting") == 10
    assert detail.endswith(" and 1 more") is (count == 11)


def test_all_tasks_have_finished() -> None:
    one = outside(tasks=running(A, B, status=TaskStatus.FINISHED), policy=all_unfinished_tasks)
    assert one.answers[one.request()].detail == "all tasks have finished"


def test_tasks_finish_during_triggering() -> None:
    one = outside()
    number = one.request()
    one.fail(Reason.TASK_NOT_TRIGGERED, checkpoint_id=1)
    assert one.answers[number].failure is Reason.TASK_NOT_TRIGGERED
    assert one.of(NotifyAborted) == [NotifyAborted(1, (A, B), None)]
    assert is_clean(one)
    assert one.of(FailJob) == []


@pytest.mark.parametrize("reason", [Reason.DECLINED, Reason.ASYNCHRONOUS_PART_FAILED, Reason.IO_ERROR, Reason.EXPIRED])
def test_a_failure_beyond_what_is_tolerable_fails_the_job(reason: Reason) -> None:
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
def test_what_is_no_fault_of_storage_or_of_a_task_is_not_counted(reason: Reason) -> None:
    one = outside()
    for checkpoint_id in range(1, 5):
        one.request()
        one.decline(checkpoint_id, A, reason)
    assert one.of(FailJob) == []
    assert one.checkpoints.counts.failed == 4


def test_a_checkpoint_counts_once_and_an_older_one_that_completes_does_not_begin_the_count_again() -> None:
    policy = FailurePolicy(2)
    policy.completed(5)
    for checkpoint_id in (6, 6, 7, 7):
        assert not policy.failed(checkpoint_id, Reason.DECLINED, Kind.ON_DEMAND, were_tasks_told=True)
    policy.completed(4)
    policy.completed(5)
    assert policy.failures == 2
    # Those without an id are each another one.
    assert [policy.failed(None, Reason.IO_ERROR, Kind.PERIODIC, were_tasks_told=False) for _ in range(2)] == [True] * 2
    policy.completed(8)
    assert policy.failures == 0
    assert not policy.failed(9, Reason.EXPIRED, Kind.PERIODIC, were_tasks_told=True)


def test_a_checkpoint_that_completes_begins_the_count_of_failures_again() -> None:
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


def test_a_savepoint_that_completes_does_not_begin_the_count_again() -> None:
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
    # Its place comes after all: nobody is told.
    one.handle(CheckpointProgressed(1, 0))
    assert one.told == []


def test_trigger_checkpoint_with_counter_io_exception() -> None:
    one = outside(held={AssignId}, tolerable=1)
    number = one.request()
    one.fail(Reason.IO_ERROR, request_id=number)
    assert one.answers[number].failure is Reason.IO_ERROR
    assert (one.checkpoints.counts.begun, one.checkpoints.counts.failed) == (1, 1)
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
    # The tasks are looked at first: nothing is asked of storage that could fail, and no failure is counted.
    assert (answer.failure, one.of(AssignId), one.of(FailJob)) == (Reason.TASKS_NOT_RUNNING, [], [])
    assert is_clean(one)


def test_trigger_and_decline_checkpoint_simple() -> None:
    one = outside(tolerable=5)
    one.request()
    one.acknowledge(1, B, B)
    one.decline(1, A)
    assert is_clean(one)
    assert one.discarded == states(1, B)
    one.decline(1, A)
    one.decline(1, B)
    assert one.checkpoints.counts.failed == 1
    assert len(one.of(NotifyAborted)) == 1
    assert one.of(RemoveLocation) == [RemoveLocation(1)]


def test_trigger_and_decline_checkpoint_complex() -> None:
    one = outside(most=2, tolerable=5)
    one.request()
    one.request()
    one.decline(1, A)
    assert one.of(NotifyAborted) == [NotifyAborted(1, (A, B), None)]
    assert one.checkpoints.pending_ids == (2,)
    one.decline(1, B)
    assert len(one.of(NotifyAborted)) == 1
    one.acknowledge(2, A, B)
    assert one.stored == [2]


def test_trigger_and_confirm_simple_checkpoint() -> None:
    one = outside()
    number = one.request()
    one.acknowledge(1, B)
    one.acknowledge(1, B)
    assert one.stored == []
    one.acknowledge(1, A)
    assert one.answers[number].checkpoint_id == 1
    assert one.of(NotifyComplete) == [NotifyComplete(1, (A, B), None)]
    assert one.checkpoints.last_completed_id == 1
    assert one.discarded == []
    assert is_clean(one)
    one.request()
    one.acknowledge(2, A, B)
    assert one.of(NotifyComplete)[-1] == NotifyComplete(2, (A, B), 1)


def test_multiple_concurrent_checkpoints() -> None:
    one = outside(most=2)
    one.request()
    one.request()
    one.acknowledge(1, A)
    one.acknowledge(2, A)
    one.acknowledge(1, B)
    one.acknowledge(2, B)
    assert one.stored == [1, 2]


def test_successful_checkpoint_subsumes_unsuccessful() -> None:
    one = outside(most=2)
    first, _ = one.request(), one.request()
    one.acknowledge(1, A)
    one.acknowledge(2, A, B)
    assert one.answers[first].failure is Reason.SUBSUMED
    assert one.discarded == states(1, A)
    assert one.of(NotifyAborted) == [NotifyAborted(1, (A, B), 2)]
    one.acknowledge(1, B)
    assert one.discarded == states(1, A, B)
    assert one.of(FailJob) == []
    assert is_clean(one)


def test_checkpoint_timeout_isolated() -> None:
    one = outside(tolerable=1)
    number = one.request()
    one.acknowledge(1, A)
    one.pass_time(TIMEOUT_MS)
    assert one.answers[number].failure is Reason.EXPIRED
    assert "missing: counter[1]" in one.answers[number].detail
    assert one.discarded == states(1, A)
    assert one.of(NotifyComplete) == []
    assert is_clean(one)


def test_handle_messages_for_non_existing_checkpoints() -> None:
    one = outside()
    one.request()
    before = list(one.actions)
    one.decline(7, A)
    one.decline(1, A, job_id="another")
    one.acknowledge(1, A, job_id="another")
    assert one.actions == before
    assert one.checkpoints.pending_ids == (1,)


def test_state_cleanup_for_late_or_unknown_messages() -> None:
    one = outside(tolerable=5)
    one.request()
    one.acknowledge(1, A)
    one.acknowledge(1, TaskId("counter", 5))
    assert one.discarded == states(1, TaskId("counter", 5))
    one.acknowledge(1, B, job_id="another")
    one.acknowledge(1, A)
    assert one.discarded == states(1, TaskId("counter", 5))
    one.decline(1, A)
    one.acknowledge(1, B)
    one.acknowledge(9, B)
    assert one.discarded == [*states(1, TaskId("counter", 5), A, B), *states(9, B)]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_max_concurrent_attempts(most: int) -> None:
    one = outside(most=most)
    one.start(10)
    one.pass_time(10 * (most + 5))
    assert one.told == list(range(1, most + 1))
    one.acknowledge(1, A, B)
    assert one.told == list(range(1, most + 2))
    one.acknowledge(2, A, B)
    assert one.told == list(range(1, most + 3))


def test_max_concurrent_attempts_with_subsumption() -> None:
    one = outside(most=2)
    one.start(10)
    one.pass_time(50)
    assert one.told == [1, 2]
    one.acknowledge(2, A, B)
    assert one.told == [1, 2, 3, 4]


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
    assert [(told.checkpoint_id, told.subsumed_id) for told in one.of(NotifyComplete)] == [(3, None), (6, 3)]
    assert one.checkpoints.last_completed_id == 6


def test_what_has_no_number_yet_is_not_subsumed() -> None:
    one = outside(most=10)
    one.request()
    one.held.add(AssignId)
    one.request()
    one.acknowledge(1, A, B)
    assert one.stored == [1]
    one.release(AssignId)
    one.acknowledge(2, A, B)
    assert one.stored == [1, 2]
    counts = one.checkpoints.counts
    assert (counts.begun, counts.completed, counts.failed) == (2, 2, 0)


def test_periodic_scheduling_with_inactive_tasks() -> None:
    one = outside(tasks=running(A, B, status=TaskStatus.STARTING))
    one.start(10)
    one.pass_time(30)
    assert one.told == []
    one.handle(TasksChanged(running(A, B)))
    one.pass_time(40)
    assert one.told == [1]


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
    assert one.told == [1, 2]


@pytest.mark.parametrize("kind", [Kind.STOP_WITH_SAVEPOINT, Kind.DRAIN_WITH_SAVEPOINT])
def test_the_job_fails_if_a_savepoint_that_it_stops_with_is_discarded(kind: Kind) -> None:
    one = outside(tolerable=100)
    one.request(kind)
    one.decline(1, A, Reason.DECLINED_NOT_READY)
    (failed,) = one.of(FailJob)
    assert "tasks have stopped for it" in failed.detail


def test_a_savepoint_to_stop_with_that_no_task_was_told_of_does_not_fail_the_job() -> None:
    one = outside(held={InitializeLocation})
    one.request(Kind.STOP_WITH_SAVEPOINT)
    one.fail(Reason.IO_ERROR, checkpoint_id=1)
    assert one.of(FailJob) == []


def test_tasks_are_told_of_a_savepoint_that_they_stop_with() -> None:
    one = outside()
    one.request(Kind.STOP_WITH_SAVEPOINT)
    one.acknowledge(1, A, B)
    assert one.of(NotifyComplete) == [NotifyComplete(1, (A, B), None)]


def test_a_savepoint_that_fails_is_no_failure_of_the_job() -> None:
    one = outside()
    number = one.request(Kind.SAVEPOINT)
    one.decline(1, A)
    assert one.answers[number].failure is Reason.DECLINED
    assert one.of(FailJob) == []


def test_trigger_checkpoint_after_stopping() -> None:
    one = outside(held={AssignId})
    one.start(10)
    one.pass_time(10)
    one.handle(SchedulerStopped())
    one.release(AssignId)
    (answer,) = one.answers.values()
    assert answer.failure is Reason.SCHEDULER_STOPPED
    assert one.periodic_at_ms is None
    assert is_clean(one)
    assert one.of(InitializeLocation) == []


def test_what_was_asked_for_goes_on_when_the_scheduler_stops() -> None:
    one = outside(held={AssignId})
    one.start(10)
    number = one.request()
    one.handle(SchedulerStopped())
    one.release(AssignId)
    one.acknowledge(1, A, B)
    assert one.answers[number].checkpoint_id == 1


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


def test_savepoint_scheduled_in_unaligned_mode() -> None:
    one = outside(are_checkpoints_unaligned=True)
    one.request()
    waiting = [one.request() for _ in range(10)]
    savepoint = one.request(Kind.SAVEPOINT)
    first = one.checkpoints.waiting_requests[0]
    assert (first.request_id, first.is_forced) == (savepoint, False)
    assert one.told == [1]
    one.acknowledge(1, A, B)
    assert [request.request_id for request in one.checkpoints.waiting_requests] == waiting
    assert one.of(TellTasks)[-1].kind is Kind.SAVEPOINT


def test_tasks_may_acknowledge_before_hooks_have_run() -> None:
    one = outside(held={SnapshotOperatorCoordinators, RunMasterHooks})
    number = one.request()
    one.acknowledge(1, A, B)
    assert one.stored == []
    one.release(SnapshotOperatorCoordinators)
    assert [type(action) for action in one.waiting] == [RunMasterHooks]
    assert one.stored == []
    one.release(RunMasterHooks)
    assert one.stored == [1]
    assert one.answers[number].failure is None


def test_timeout_while_checkpoint_operator_coordinator_not_finishing() -> None:
    one = outside(held={SnapshotOperatorCoordinators}, tolerable=1)
    first, second = one.request(), one.request()
    assert one.checkpoints.pending_ids == (1,)
    one.pass_time(TIMEOUT_MS)
    assert one.answers[first].failure is Reason.EXPIRED
    assert second not in one.answers
    assert one.checkpoints.pending_ids == (2,)


@pytest.mark.parametrize("held", [SnapshotOperatorCoordinators, RunMasterHooks, TellTasks, StoreCheckpoint])
def test_whatever_a_checkpoint_waits_for_its_failure_undoes_what_was_made_for_it(held: type) -> None:
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


def test_nothing_is_asked_for_as_long_as_nobody_wants_checkpoints() -> None:
    one = outside()
    one.pass_time(10**9)
    assert one.actions == []


def test_suspend_and_resume() -> None:
    one = outside(most=2, held={StoreCheckpoint}, tolerable=0)
    one.start(10)
    stored, pending, waiting = one.request(), one.request(), one.request()
    one.acknowledge(1, A, B)
    one.acknowledge(2, A)
    one.handle(Suspended(0))
    assert one.answers[pending].failure is Reason.SUSPENDED
    assert one.answers[waiting].failure is Reason.SUSPENDED
    assert one.answers[one.request()].failure is Reason.SUSPENDED
    assert one.discarded == states(2, A)
    # What is being stored may be durable already.
    assert stored not in one.answers
    one.release(StoreCheckpoint)
    assert one.answers[stored].checkpoint_id == 1
    one.pass_time(100)
    assert one.of(FailJob) == []
    assert one.told == [1, 2]
    one.start(10)
    one.pass_time(110)
    assert one.told == [1, 2, 3]


def test_one_checkpoint_is_stored_at_a_time_oldest_first() -> None:
    one = outside(most=3, held={StoreCheckpoint})
    for checkpoint_id in (1, 2, 3):
        one.request()
        if checkpoint_id != 2:
            one.acknowledge(checkpoint_id, A, B)
    one.acknowledge(2, A, B)
    assert [action.completed.checkpoint_id for action in one.of(StoreCheckpoint)] == [1]
    one.release(StoreCheckpoint)
    assert one.stored == [1, 2, 3]


def test_the_next_one_is_stored_when_one_could_not_be() -> None:
    one = outside(most=2, held={StoreCheckpoint}, tolerable=1)
    one.request()
    one.request()
    one.acknowledge(1, A, B)
    one.acknowledge(2, A, B)
    one.fail(Reason.IO_ERROR, checkpoint_id=1)
    assert [action.completed.checkpoint_id for action in one.of(StoreCheckpoint)] == [1, 2]


def test_a_decline_of_what_all_have_acknowledged_comes_too_late() -> None:
    one = outside(held={StoreCheckpoint})
    number = one.request()
    one.acknowledge(1, A, B)
    one.decline(1, A)
    one.release(StoreCheckpoint)
    assert one.answers[number].failure is None


def test_two_states_of_one_task_fail_the_checkpoint() -> None:
    one = outside(tolerable=0)
    number = one.request()
    one.acknowledge(1, A)
    one.acknowledge(1, A, digest="another", state_id="other")
    assert one.answers[number].failure is Reason.CONFLICT
    assert len(one.discarded) == 2
    assert one.of(FailJob) == []


def test_state_that_makes_no_whole_fails_its_checkpoint_alone() -> None:
    one = outside(tolerable=5)
    number = one.request()
    one.acknowledge(1, A)
    one.handle(Acknowledged(_stateless(1, B), 0))
    assert one.answers[number].failure is Reason.FINALIZE_FAILED
    assert "must cover key groups" in one.answers[number].detail
    assert is_clean(one)
    one.request()
    one.acknowledge(2, A, B)
    assert one.stored == [2]


def test_nothing_is_begun_while_too_many_are_removed() -> None:
    one = outside()
    one.handle(RemovalsChanged(2, 0))
    one.request()
    assert one.told == []
    one.handle(RemovalsChanged(1, 0))
    assert one.told == [1]


def test_a_queue_that_is_full_drops_what_is_periodic_and_refuses_the_rest() -> None:
    one = outside(waiting=2)
    one.start(10)
    one.request()
    asked = one.request()
    one.pass_time(10)
    periodic = one.checkpoints.waiting_requests[-1].request_id
    also_asked = one.request()
    assert one.answers[periodic].failure is Reason.TOO_MANY_REQUESTS
    # What waits has been accepted: not even a savepoint takes its place.
    for refused in (one.request(), one.request(Kind.SAVEPOINT)):
        assert one.answers[refused].failure is Reason.TOO_MANY_REQUESTS
    assert [request.request_id for request in one.checkpoints.waiting_requests] == [asked, also_asked]


def test_many_requests_whose_tasks_stop_running_are_all_answered() -> None:
    one = outside()
    one.request()
    numbers = [one.request() for _ in range(999)]
    one.handle(TasksChanged(running(A, B, status=TaskStatus.FAILED)))
    one.acknowledge(1, A, B)
    assert {one.answers[number].failure for number in numbers} == {Reason.TASKS_NOT_RUNNING}


def test_a_job_that_was_restored_counts_from_its_checkpoint() -> None:
    one = outside(last_completed_id=7)
    one.next_id = 8
    one.request()
    one.decline(8, A)
    assert one.of(NotifyAborted) == [NotifyAborted(8, (A, B), 7)]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (CheckpointProgressed(1, 0), "AWAITING"),
        (CheckpointNumbered(1, 2, 0), "NUMBERED"),
        (CheckpointNumbered(1, 1, 0), "not greater than 1"),
        (CheckpointNumbered(99, 1, 0), "not greater than 1"),
    ],
)
def test_reports_out_of_turn_are_errors_that_change_nothing(event: object, message: str) -> None:
    one = outside()
    number = one.request()
    with pytest.raises(IllegalTransitionError, match=message):
        one.handle(event)
    one.acknowledge(1, A, B)
    assert one.answers[number].checkpoint_id == 1
    assert one.next_id == 2


def test_reports_of_checkpoints_that_nobody_knows_are_ignored() -> None:
    one = outside()
    one.request()
    one.acknowledge(1, A, B)
    before = list(one.actions)
    for checkpoint_id in (1, 9):
        one.fail(Reason.IO_ERROR, checkpoint_id=checkpoint_id)
    one.fail(Reason.IO_ERROR, request_id=9)
    assert one.actions == before


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
def test_limits_that_make_no_sense_are_refused(make: Callable[[], object]) -> None:
    CheckpointLimits(max_concurrent_checkpoints=1, minimum_pause_ms=0, max_waiting_requests=1)
    with pytest.raises(InvariantViolationError):
        make()


def test_ids_of_requests_that_are_over_are_used_up() -> None:
    one = outside(held={AssignId})
    number = one.request()
    one.fail(Reason.IO_ERROR, request_id=number)
    one.handle(CheckpointNumbered(number, 5, 0))
    one.request()
    with pytest.raises(IllegalTransitionError, match="5 is not greater than 5"):
        one.handle(CheckpointNumbered(2, 5, 0))


def test_a_coordinator_with_a_limit_of_its_own_is_refused() -> None:
    with pytest.raises(InvariantViolationError, match="belongs into CheckpointLimits"):
        JobCheckpoints(CheckpointCoordinator("job", "run", None))


def _stateless(checkpoint_id: int, task: TaskId) -> object:
    one = acknowledgement(checkpoint_id, task.subtask_index, operator_uid=task.operator_uid)
    return attrs.evolve(one, state=SubtaskState())


def test_the_document_shows_the_table() -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "coordinator.md"
    assert triggering_as_text() in document.read_text("utf-8")


def test_every_phase_and_event_is_listed_or_known_to_be_out_of_turn() -> None:
    listed = {(phase, event) for phase, event in TRIGGERING_TRANSITIONS}
    done = {
        TriggeringPhase.NUMBERING: TriggeringEvent.NUMBERED,
        TriggeringPhase.AWAITING: TriggeringEvent.ALL_ACKNOWLEDGED,
    }
    done |= {
        TriggeringPhase.LOCATING: TriggeringEvent.LOCATED,
        TriggeringPhase.COORDINATING: TriggeringEvent.COORDINATED,
        TriggeringPhase.HOOKING: TriggeringEvent.HOOKED,
        TriggeringPhase.STORING: TriggeringEvent.STORED,
    }
    assert listed == {*done.items(), *((phase, TriggeringEvent.FAILED) for phase in done)}
    assert {step for _, steps in TRIGGERING_TRANSITIONS.values() for step in steps} == set(TriggeringStep)
