"""The cases of Flink's CheckpointCoordinatorTest by name, without those about storage."""

from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_harness import TIMEOUT_MS, A, B, Reason, is_clean, outside, running, stateless, states

from statebackend.checkpoint import IllegalTransitionError, TaskId
from statebackend.checkpoint.coordinator.messages import (
    Acknowledged,
    AssignId,
    CheckpointNumbered,
    CheckpointProgressed,
    FailJob,
    InitializeLocation,
    NotifyAborted,
    NotifyComplete,
    RemoveLocation,
    RunMasterHooks,
    SchedulerStopped,
    Shutdown,
    SnapshotOperatorCoordinators,
    StoreCheckpoint,
    Suspended,
    TasksChanged,
    TriggerTasks,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointTask, TaskStatus, all_unfinished_tasks
from statebackend.checkpoint.coordinator.triggering import (
    TRIGGERING_TRANSITIONS,
    TriggeringEvent,
    TriggeringPhase,
    TriggeringStep,
    triggering_as_text,
)


def test_schedule_trigger_request_during_shutdown() -> None:
    one = outside()
    one.handle(Shutdown(0))
    one.start(10)
    one.pass_time(100)
    assert one.periodic_at_ms is None
    assert one.answers[one.request()].failure is Reason.SHUTDOWN
    one.handle(Shutdown(0))


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
    (reported,) = one.of(TriggerTasks)
    # A task whose upstream tasks have all finished is triggered too, because no task sends it a barrier.
    assert reported.tasks == (others[1], others[2], sources[2])
    for task in reported.tasks:
        one.handle(
            Acknowledged(stateless(1, task), 0),
        )
    assert one.answers[number].failure is None
    (stored,) = one.of(StoreCheckpoint)
    assert [operator.parallelism for operator in stored.completed.operators] == [3, 3]


def test_sources_are_triggered_and_other_tasks_get_barriers() -> None:
    source, middle, sink = (TaskId(uid, 0) for uid in ("source", "middle", "a-sink"))
    inputs = {sink: [middle], middle: [source], source: []}
    tasks = tuple(CheckpointTask(task, TaskStatus.RUNNING, frozenset(given)) for task, given in inputs.items())
    one = outside(tasks=tasks, policy=all_unfinished_tasks)
    one.request()
    [reported] = one.of(TriggerTasks)
    assert reported.tasks == (source,)
    one.decline(1, source)
    [aborted] = one.of(NotifyAborted)
    assert aborted.tasks == (sink, middle, source)


@pytest.mark.parametrize("count", [10, 11])
def test_ten_of_many_inactive_tasks_are_named(count: int) -> None:
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


def test_a_checkpoint_without_an_id_is_not_subsumed() -> None:
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
    assert (counts.started, counts.completed, counts.failed) == (2, 2, 0)


def test_periodic_scheduling_with_inactive_tasks() -> None:
    one = outside(tasks=running(A, B, status=TaskStatus.STARTING))
    one.start(10)
    one.pass_time(30)
    assert one.reported == []
    one.handle(TasksChanged(running(A, B)))
    one.pass_time(40)
    assert one.reported == [1]


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


def test_nothing_is_triggered_without_a_request() -> None:
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
    # The checkpoint that is being stored may be durable already, so its request is not answered yet.
    assert stored not in one.answers
    one.release(StoreCheckpoint)
    assert one.answers[stored].checkpoint_id == 1
    one.pass_time(100)
    assert one.of(FailJob) == []
    assert one.reported == [1, 2]
    one.start(10)
    one.pass_time(110)
    assert one.reported == [1, 2, 3]


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


def test_a_decline_after_all_acknowledgements_is_ignored() -> None:
    one = outside(held={StoreCheckpoint})
    number = one.request()
    one.acknowledge(1, A, B)
    one.decline(1, A)
    one.release(StoreCheckpoint)
    assert one.answers[number].failure is None


def test_a_restored_job_counts_from_its_checkpoint() -> None:
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
def test_out_of_order_reports_are_errors_that_change_nothing(event: object, message: str) -> None:
    one = outside()
    number = one.request()
    with pytest.raises(IllegalTransitionError, match=message):
        one.handle(event)
    one.acknowledge(1, A, B)
    assert one.answers[number].checkpoint_id == 1
    assert one.next_id == 2


def test_reports_of_unknown_checkpoints_are_ignored() -> None:
    one = outside()
    one.request()
    one.acknowledge(1, A, B)
    before = list(one.actions)
    for checkpoint_id in (1, 9):
        one.fail(Reason.IO_ERROR, checkpoint_id=checkpoint_id)
    one.fail(Reason.IO_ERROR, request_id=9)
    assert one.actions == before


def test_the_document_shows_the_table() -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "coordinator.md"
    assert triggering_as_text() in document.read_text("utf-8")


def test_every_phase_and_event_is_listed_or_known_to_be_out_of_order() -> None:
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
