from __future__ import annotations

import copy
import pickle

import attrs
import pytest
from checkpoint_builders import acknowledgement, file_handle
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from statebackend.checkpoint import (
    AcknowledgementOutcome,
    ChannelTimestamp,
    CheckpointCoordinator,
    CheckpointState,
    IllegalTransitionError,
    IncompleteCheckpointError,
    InvariantViolationError,
    SubtaskState,
    TaskId,
    TimersDue,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import (
    CHECKPOINT_TRANSITIONS,
    CheckpointEvent,
    CompletedCheckpoint,
    PendingCheckpoint,
)

TASKS = (TaskId("counter", 0), TaskId("counter", 1))
Outcome = AcknowledgementOutcome


@pytest.fixture
def coordinator() -> CheckpointCoordinator:
    one = CheckpointCoordinator("job", "run", 1000, max_parallelism=4, operator_names={"counter": "Counter"})
    one.trigger(1, TASKS, now_ms=0)
    return one


def complete(coordinator: CheckpointCoordinator, checkpoint_id: int) -> None:
    for task in TASKS:
        coordinator.acknowledge(acknowledgement(checkpoint_id, task.subtask_index))
    coordinator.complete(checkpoint_id)


def test_all_acknowledgements_complete_a_checkpoint(coordinator) -> None:
    second, first = acknowledgement(1, 1), acknowledgement(1, 0)
    assert coordinator.acknowledge(second).outcome is Outcome.SUCCESS
    assert coordinator.missing_tasks(1) == (TASKS[0],)
    assert coordinator.acknowledge(first).outcome is Outcome.SUCCESS
    assert coordinator.state_of(1) is CheckpointState.ACKNOWLEDGED
    (operator,) = coordinator.complete(1).operators
    assert (operator.uid, operator.name, operator.parallelism, operator.max_parallelism) == (
        "counter",
        "Counter",
        2,
        4,
    )
    assert operator.subtasks == (first.state, second.state)
    assert coordinator.last_completed_id == 1
    assert coordinator.pending_ids == ()
    assert coordinator.acknowledgements(1) == {TASKS[0]: first, TASKS[1]: second}


def test_completion_is_rejected_naming_the_missing_tasks(coordinator) -> None:
    coordinator.acknowledge(acknowledgement(1, 0))
    with pytest.raises(IncompleteCheckpointError, match=r"COMPLETE .* PENDING.*1 of 2 tasks: counter\[1\]") as caught:
        coordinator.complete(1)
    assert caught.value.missing == ("counter[1]",)
    assert pickle.loads(pickle.dumps(caught.value)).missing == ("counter[1]",)
    assert coordinator.state_of(1) is CheckpointState.PENDING


def test_the_same_message_again_is_a_duplicate_with_nothing_to_discard(coordinator) -> None:
    coordinator.acknowledge(acknowledgement(1, 0))
    result = coordinator.acknowledge(acknowledgement(1, 0))
    assert (result.outcome, result.states_to_discard) == (Outcome.DUPLICATE, ())


def test_an_equal_acknowledgement_of_another_attempt_is_a_duplicate_whose_own_files_are_discarded(coordinator) -> None:
    first, second = acknowledgement(1, 0, state_id="a"), acknowledgement(1, 0, state_id="b")
    coordinator.acknowledge(first)
    result = coordinator.acknowledge(second)
    assert (result.outcome, result.states_to_discard) == (Outcome.DUPLICATE, (second.state,))
    coordinator.acknowledge(acknowledgement(1, 1))
    assert coordinator.complete(1).operators[0].subtasks[0] == first.state


@pytest.mark.parametrize("is_last", [False, True])
def test_a_different_acknowledgement_is_a_conflict_and_the_checkpoint_can_only_be_aborted(coordinator, is_last) -> None:
    first, second = acknowledgement(1, 0), acknowledgement(1, 0, state_id="other", digest="other")
    third = acknowledgement(1, 1)
    coordinator.acknowledge(first)
    if is_last:
        coordinator.acknowledge(third)
    result = coordinator.acknowledge(second)
    assert (result.outcome, result.states_to_discard) == (Outcome.CONFLICT, (second.state,))
    assert "digest digest" in result.detail
    assert "digest other" in result.detail
    if not is_last:
        late = coordinator.acknowledge(third)
        assert (late.outcome, late.states_to_discard) == (Outcome.DISCARDED, (third.state,))
    assert coordinator.acknowledge(second).outcome is Outcome.CONFLICT
    with pytest.raises(IllegalTransitionError, match="COMPLETE is not legal in state CONFLICTED"):
        coordinator.complete(1)
    aborted = coordinator.abort(1, "conflict")
    assert aborted.states_to_discard == ((first.state, third.state) if is_last else (first.state,))


def test_an_acknowledgement_of_an_unknown_task_is_answered_and_its_state_discarded(coordinator) -> None:
    for stranger in (acknowledgement(1, 2), acknowledgement(1, 0, operator_uid="other")):
        result = coordinator.acknowledge(stranger)
        assert (result.outcome, result.states_to_discard) == (Outcome.UNKNOWN, (stranger.state,))


def test_messages_of_another_job_or_run_are_ignored(coordinator) -> None:
    for stranger in (acknowledgement(1, 0, job_id="other"), acknowledgement(1, 0, run_id="other")):
        result = coordinator.acknowledge(stranger)
        assert (result.outcome, result.states_to_discard) == (Outcome.FOREIGN, ())
    assert coordinator.missing_tasks(1) == TASKS


def test_late_messages_are_discarded(coordinator) -> None:
    coordinator.acknowledge(acknowledgement(1, 0))
    aborted = coordinator.abort(1, "task failed")
    assert (aborted.reason, len(aborted.states_to_discard)) == ("task failed", 1)
    for late in (acknowledgement(1, 1), acknowledgement(9, 0)):
        result = coordinator.acknowledge(late)
        assert (result.outcome, result.states_to_discard) == (Outcome.DISCARDED, (late.state,))


def test_a_duplicate_after_completion_does_not_discard_files_of_the_checkpoint(coordinator) -> None:
    complete(coordinator, 1)
    result = coordinator.acknowledge(acknowledgement(1, 0))
    assert (result.outcome, result.states_to_discard) == (Outcome.DISCARDED, ())
    other = acknowledgement(1, 0, state_id="other")
    assert coordinator.acknowledge(other).states_to_discard == (other.state,)


def test_ids_strictly_increase_even_after_an_abort(coordinator) -> None:
    coordinator.abort(1, "x")
    for checkpoint_id in (0, 1):
        with pytest.raises(IllegalTransitionError, match="strictly increase"):
            coordinator.trigger(checkpoint_id, TASKS, 5)
    coordinator.trigger(7, TASKS, 5)
    resumed = CheckpointCoordinator("job", "run", 1000, last_checkpoint_id=7)
    with pytest.raises(IllegalTransitionError, match="not greater than 7"):
        resumed.trigger(7, TASKS, 5)


def test_one_pending_checkpoint_is_the_limit_unless_more_are_allowed(coordinator) -> None:
    with pytest.raises(IllegalTransitionError, match=r"1 pending \(1 \(PENDING\)\)"):
        coordinator.trigger(2, TASKS, 0)
    several = CheckpointCoordinator("job", "run", 1000, max_concurrent_checkpoints=2)
    several.trigger(1, TASKS, 0)
    several.trigger(2, TASKS, 0)
    several.acknowledge(acknowledgement(1, 0))
    complete(several, 2)
    subsumed = several.subsume(1)
    assert (subsumed.checkpoint_id, subsumed.state) == (1, CheckpointState.SUBSUMED)
    assert subsumed.states_to_discard == (acknowledgement(1, 0).state,)
    with pytest.raises(IllegalTransitionError, match="SUBSUME"):
        several.subsume(1)


def test_checkpoints_older_than_the_timeout_expire(coordinator) -> None:
    coordinator.acknowledge(acknowledgement(1, 0))
    assert coordinator.expire(999) == ()
    (expired,) = coordinator.expire(1000)
    assert expired.state is CheckpointState.EXPIRED
    assert "counter[1]" in expired.reason
    assert expired.states_to_discard == (acknowledgement(1, 0).state,)
    with pytest.raises(IllegalTransitionError, match=r"ABORT .* EXPIRED.*not complete after 1000 ms"):
        coordinator.abort(1, "again")


def test_completion_with_missing_key_groups_is_rejected_and_changes_nothing() -> None:
    coordinator = CheckpointCoordinator("job", "run", 1000, max_parallelism=5)
    coordinator.trigger(1, TASKS, 0)
    for task in TASKS:
        coordinator.acknowledge(acknowledgement(1, task.subtask_index))
    with pytest.raises(InvariantViolationError, match="must cover key groups 0 to 4"):
        coordinator.complete(1)
    assert coordinator.state_of(1) is CheckpointState.ACKNOWLEDGED
    assert len(coordinator.abort(1, "broken").states_to_discard) == 2


def test_a_completion_that_cannot_be_stored_is_rolled_back(coordinator) -> None:
    complete(coordinator, 1)
    rolled_back = coordinator.storing_failed(1, "disk full")
    assert (rolled_back.state, len(rolled_back.states_to_discard)) == (CheckpointState.ABORTED, 2)
    assert coordinator.last_completed_id is None
    with pytest.raises(IllegalTransitionError, match=r"FAIL_STORING .* ABORTED.*disk full"):
        coordinator.storing_failed(1, "again")


def test_files_of_pending_checkpoints_are_in_use(coordinator) -> None:
    coordinator.acknowledge(acknowledgement(1, 0, files=(file_handle("shared/a"),)))
    assert coordinator.files_in_use() == {"shared/a"}
    coordinator.abort(1, "x")
    assert coordinator.files_in_use() == frozenset()


@pytest.mark.parametrize("tasks", [(TASKS[0], TASKS[0]), (TASKS[1],), (TASKS[0], TaskId("counter", 2))])
def test_invalid_tasks_are_rejected(tasks) -> None:
    coordinator = CheckpointCoordinator("job", "run", 1000)
    with pytest.raises(InvariantViolationError):
        coordinator.trigger(1, tasks, 0)
    coordinator.trigger(1, TASKS, 0)


@pytest.mark.parametrize("event", CheckpointEvent)
@pytest.mark.parametrize("state", CheckpointState)
def test_every_event_in_every_state_follows_the_table_or_changes_nothing(state, event) -> None:
    pending = PendingCheckpoint(1, TASKS, 0)
    pending.state = state
    if (state, event) in CHECKPOINT_TRANSITIONS:
        pending.advance(event)
        assert pending.state is CHECKPOINT_TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError) as caught:
            pending.advance(event)
        assert (caught.value.event, caught.value.state) == (event.name, state.name)
        assert pending.state is state


@pytest.mark.parametrize("checkpoint_id", [0, 2])
def test_only_the_last_completion_can_be_rolled_back_or_subsume_others(coordinator, checkpoint_id) -> None:
    for event in (coordinator.storing_failed, lambda number, _: coordinator.subsume(number)):
        with pytest.raises(IllegalTransitionError):
            event(checkpoint_id, "nothing is completed")
    complete(coordinator, 1)
    for event in (coordinator.storing_failed, lambda number, _: coordinator.subsume(number)):
        with pytest.raises(IllegalTransitionError):
            event(checkpoint_id, "another is")
    assert coordinator.last_completed_id == 1
    coordinator.trigger(2, TASKS, 0)
    with pytest.raises(IllegalTransitionError, match="SUBSUME"):
        coordinator.subsume(2)
    assert coordinator.pending_ids == (2,)


@pytest.mark.parametrize("other", ["a", "z"])
def test_a_message_of_another_job_or_run_is_foreign_in_either_sort_order(coordinator, other) -> None:
    for message in (acknowledgement(1, 0, job_id=other), acknowledgement(1, 0, run_id=other)):
        assert coordinator.acknowledge(message).outcome is Outcome.FOREIGN
    assert coordinator.missing_tasks(1) == TASKS


def test_acknowledgements_are_those_of_a_pending_checkpoint_or_of_the_last_completed_one() -> None:
    coordinator = CheckpointCoordinator("job", "run", None)
    coordinator.trigger(0, TASKS, 0)
    coordinator.acknowledge(acknowledgement(0, 1))
    assert list(coordinator.acknowledgements(0)) == [TASKS[1]]
    for checkpoint_id in (0, 1):
        if checkpoint_id:
            coordinator.trigger(1, TASKS, 0)
        complete(coordinator, checkpoint_id)
        assert list(coordinator.acknowledgements(checkpoint_id)) == (list(TASKS) if checkpoint_id else [*TASKS[::-1]])
    with pytest.raises(IllegalTransitionError, match="ACKNOWLEDGEMENTS"):
        coordinator.acknowledgements(0)
    coordinator.trigger(2, TASKS, 0)
    assert coordinator.acknowledgements(2) == {}
    assert coordinator.last_completed_id == 1


def test_nothing_expires_without_a_timeout_and_only_late_checkpoints_with_one(coordinator) -> None:
    patient = CheckpointCoordinator("job", "run", None)
    patient.trigger(1, TASKS, 0)
    assert patient.expire(1 << 62) == ()
    several = CheckpointCoordinator("job", "run", 1000, max_concurrent_checkpoints=2)
    several.trigger(1, TASKS, 0)
    several.trigger(2, TASKS, 1)
    (expired,) = several.expire(1000)
    assert expired.checkpoint_id == 1
    assert several.pending_ids == (2,)


def test_only_older_checkpoints_are_subsumed() -> None:
    several = CheckpointCoordinator("job", "run", None, max_concurrent_checkpoints=3)
    for checkpoint_id in (1, 2, 3):
        several.trigger(checkpoint_id, TASKS, 0)
    complete(several, 2)
    assert several.subsume(1).checkpoint_id == 1
    for newer in (2, 3):
        with pytest.raises(IllegalTransitionError, match="SUBSUME"):
            several.subsume(newer)
    assert several.pending_ids == (3,)


def test_finished_tasks_count_as_subtasks_without_state() -> None:
    coordinator = CheckpointCoordinator("job", "run", None, max_parallelism=4)
    coordinator.trigger(1, [TaskId("counter", 1)], 0, finished=[TaskId("counter", 0)])
    assert coordinator.missing_tasks(1) == (TaskId("counter", 1),)
    state = SubtaskState()
    coordinator.acknowledge(attrs.evolve(acknowledgement(1, 1), state=state))
    (operator,) = coordinator.complete(1).operators
    assert operator.subtasks == (SubtaskState(), state)
    with pytest.raises(InvariantViolationError, match="must be 0 to 0"):
        coordinator.trigger(2, [TaskId("counter", 1)], 0)


def test_a_checkpoint_without_tasks_can_be_completed_at_once_or_aborted() -> None:
    coordinator = CheckpointCoordinator("job", "run", None)
    coordinator.trigger(1, [], 0)
    assert coordinator.complete(1) == CompletedCheckpoint(checkpoint_id=1, operators=())
    coordinator.trigger(2, [], 0)
    assert coordinator.abort(2, "as it must").states_to_discard == ()


def test_the_job_coordinator_creates_a_coordinator_without_a_limit() -> None:
    coordinator = CheckpointCoordinator("job", "run", None, max_concurrent_checkpoints=None)
    for checkpoint_id in range(3):
        coordinator.trigger(checkpoint_id, TASKS, 0)
    assert coordinator.pending_ids == (0, 1, 2)


def test_a_late_message_gets_the_result_of_its_checkpoint(coordinator) -> None:
    assert coordinator.acknowledge(acknowledgement(7, 0)).detail == "never triggered"
    coordinator.abort(1, "x")
    assert coordinator.acknowledge(acknowledgement(1, 0)).detail == "ABORTED"
    assert coordinator.state_of(7) is None


def test_default_max_parallelism_comes_from_the_key_groups_and_the_default_name_from_the_uid() -> None:
    coordinator = CheckpointCoordinator("job", "run", None)
    coordinator.trigger(1, TASKS, 0)
    for index in (1, 0):
        coordinator.acknowledge(acknowledgement(1, index))
    (operator,) = coordinator.complete(1).operators
    assert (operator.max_parallelism, operator.name) == (4, "counter")


def test_a_checkpoint_in_conflict_accepts_no_acknowledgement(coordinator) -> None:
    coordinator.acknowledge(acknowledgement(1, 0))
    for digest in ("another", "a third"):
        conflict = coordinator.acknowledge(acknowledgement(1, 0, digest=digest, state_id=digest))
        assert conflict.outcome is Outcome.CONFLICT
        assert [state.keyed.state_id for state in conflict.states_to_discard] == [digest]
    late = acknowledgement(1, 1)
    result = coordinator.acknowledge(late)
    assert (result.outcome, result.states_to_discard) == (Outcome.DISCARDED, (late.state,))
    assert coordinator.missing_tasks(1) == (TASKS[1],)
    with pytest.raises(IllegalTransitionError):
        coordinator.complete(1)


def snapshot_of(coordinator: CheckpointCoordinator) -> object:
    pending = {
        checkpoint_id: (one.state, dict(one.acknowledgements), one.tasks, one.triggered_ms)
        for checkpoint_id, one in coordinator._pending.items()
    }
    return (
        pending,
        coordinator._last_triggered_id,
        coordinator.last_completed_id,
        copy.copy(coordinator._ended),
    )


def test_times_of_tasks_are_merged_in_the_completed_checkpoint() -> None:
    coordinator = CheckpointCoordinator("job", "run", None)
    tasks = [TaskId("counter", 0), TaskId("counter", 1), TaskId("rules", 0)]
    coordinator.trigger(9, tasks, 0)
    rate, other = ("rate", ""), ("flights", "partition 1")
    coordinator.acknowledge(
        acknowledgement(
            9,
            0,
            channel_timestamps=(ChannelTimestamp(*rate, 5), ChannelTimestamp(*other, -7)),
            event_time_timer_ms=50,
            processing_time_timer_ms=7,
        )
    )
    coordinator.acknowledge(
        acknowledgement(9, 1, channel_timestamps=(ChannelTimestamp(*rate, 3),), event_time_timer_ms=40)
    )
    coordinator.acknowledge(acknowledgement(9, 0, operator_uid="rules"))
    completed = coordinator.complete(9)
    assert completed.checkpoint_id == 9
    assert completed.channel_timestamps == (ChannelTimestamp(*other, -7), ChannelTimestamp(*rate, 5))
    assert completed.timers_due == (TimersDue("counter", 40, 7),)


def test_a_subtask_without_state_takes_part_in_a_checkpoint() -> None:
    coordinator = CheckpointCoordinator("job", "run", None, last_checkpoint_id=7)
    coordinator.trigger(12, [TaskId("counter", 0)], 0)
    coordinator.acknowledge(attrs.evolve(acknowledgement(12), state=SubtaskState()))
    completed = coordinator.complete(12)
    assert (completed.timers_due, completed.channel_timestamps) == ((), ())
    [operator] = completed.operators
    assert operator.subtasks == (SubtaskState(),)


class RandomEvents(RuleBasedStateMachine):
    """Random events: illegal events change nothing, and no handle is lost or returned twice."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = CheckpointCoordinator("job", "run", 10, max_parallelism=4, max_concurrent_checkpoints=2)
        self.now_ms = 0
        self.handed_in: set[str] = set()
        self.given_out: list[str] = []
        self.completed: list[str] = []
        self.completed_ids: list[int] = []

    def attempt(self, call) -> object:
        before = snapshot_of(self.coordinator)
        try:
            return call()
        except (IllegalTransitionError, InvariantViolationError):
            assert snapshot_of(self.coordinator) == before
            return None

    def give_out(self, aborted) -> None:
        self.given_out += [state.keyed.state_id for state in aborted.states_to_discard]

    @rule(checkpoint_id=st.integers(0, 6), passed_ms=st.integers(0, 4))
    def trigger(self, checkpoint_id: int, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.attempt(lambda: self.coordinator.trigger(checkpoint_id, TASKS, self.now_ms))

    @rule(
        checkpoint_id=st.integers(0, 6),
        subtask=st.integers(0, 2),
        attempt=st.integers(0, 2),
        digest=st.sampled_from(["same", "same", "same", "other"]),
        run_id=st.sampled_from(["run", "run", "run", "foreign"]),
    )
    def acknowledge(self, checkpoint_id, subtask, attempt, digest, run_id) -> None:
        state_id = f"{checkpoint_id}-{subtask}-{attempt}-{digest}"
        if state_id in self.given_out:
            return
        message = acknowledgement(checkpoint_id, subtask, state_id=state_id, digest=digest, run_id=run_id)
        before = snapshot_of(self.coordinator)
        result = self.coordinator.acknowledge(message)
        assert set(result.states_to_discard) <= {message.state}
        if result.outcome is Outcome.FOREIGN:
            assert result.states_to_discard == ()
        else:
            self.handed_in.add(state_id)
        if result.outcome not in (Outcome.SUCCESS, Outcome.CONFLICT):
            assert snapshot_of(self.coordinator) == before
        self.given_out += [state.keyed.state_id for state in result.states_to_discard]

    @rule(checkpoint_id=st.integers(0, 6))
    def complete(self, checkpoint_id: int) -> None:
        completed = self.attempt(lambda: self.coordinator.complete(checkpoint_id))
        if completed is not None:
            self.completed = [subtask.keyed.state_id for one in completed.operators for subtask in one.subtasks]
            self.given_out += self.completed
            self.completed_ids.append(checkpoint_id)
            for older in [one for one in self.coordinator.pending_ids if one < checkpoint_id]:
                self.give_out(self.coordinator.subsume(older))

    @rule(checkpoint_id=st.integers(0, 6))
    def abort(self, checkpoint_id: int) -> None:
        aborted = self.attempt(lambda: self.coordinator.abort(checkpoint_id, "x"))
        if aborted is not None:
            self.give_out(aborted)

    @rule(passed_ms=st.integers(0, 12))
    def expire(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for expired in self.coordinator.expire(self.now_ms):
            self.give_out(expired)

    @invariant()
    def every_handle_is_in_exactly_one_place(self) -> None:
        held = [state.keyed.state_id for one in self.coordinator._pending.values() for state in one.states]
        assert sorted(held + self.given_out) == sorted(self.handed_in)

    @invariant()
    def completed_ids_increase(self) -> None:
        assert self.completed_ids == sorted(set(self.completed_ids))


TestRandomEvents = RandomEvents.TestCase
TestRandomEvents.settings = settings(max_examples=examples(100), stateful_step_count=40)
