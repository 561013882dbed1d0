"""The table of an epoch: every state with every event, and invariants for any order of events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import (
    Acknowledgement,
    CheckpointCoordinator,
    FileHandle,
    KeyedStateHandle,
    SubtaskState,
    TaskId,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import CompletedCheckpoint
from statebackend.checkpoint.errors import IllegalTransitionError, InvariantViolationError
from statebackend.spark.epochs import (
    EPOCH_TRANSITIONS,
    AbortSink,
    Acknowledged,
    ActionReturned,
    AllIn,
    BatchArrived,
    Commit,
    CommitAgain,
    Committed,
    Discard,
    DurableEpoch,
    Epoch,
    EpochAction,
    EpochEvent,
    Epochs,
    EpochState,
    Failed,
    Open,
    Reject,
    RunAction,
    Store,
    Stored,
    TimePassed,
    Triggered,
    transitions_as_text,
)
from statebackend.streaming.errors import EpochError, EpochTimeoutError, SourceProgressMismatchError

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "epochs.md"
TASKS = (TaskId("words", 0), TaskId("words", 1))
OFFSETS = b"as far as this"
TIMEOUT_MS = 100

KIND_OF_ACTION: dict[type, EpochAction] = {
    Open: EpochAction.OPEN,
    RunAction: EpochAction.RUN_ACTION,
    Discard: EpochAction.DISCARD,
    Store: EpochAction.STORE,
    Commit: EpochAction.COMMIT,
    CommitAgain: EpochAction.COMMIT_AGAIN,
    AbortSink: EpochAction.ABORT_SINK,
    Reject: EpochAction.REJECT,
}


def acknowledgement(checkpoint_id: int, index: int, content: str = "same", attempt: str = "a") -> Acknowledged:
    file = FileHandle(f"shared/{checkpoint_id}-{index}-{attempt}", 5, "xxh3:" + 32 * "0")
    return Acknowledged(
        Acknowledgement(
            job_id="job",
            run_id="run",
            checkpoint_id=checkpoint_id,
            operator_uid="words",
            subtask_index=index,
            attempt_id=attempt,
            digest=content,
            state=SubtaskState(KeyedStateHandle(file.path, "heap", 2 * index, 2 * index + 1, b"", (file,))),
        )
    )


def epochs(last: DurableEpoch | None = None) -> Epochs:
    latest = last.checkpoint_id if last is not None and last.is_own else None
    coordinator = CheckpointCoordinator(
        "job", "run", timeout_ms=TIMEOUT_MS, max_parallelism=4, last_checkpoint_id=latest
    )
    return Epochs(coordinator, last, source_log="/spark", state_log="/checkpoints", limit="0.1 s")


OWN = DurableEpoch(3, 3, OFFSETS, is_own=True)
OF_A_SAVEPOINT = DurableEpoch(3, 3, OFFSETS, is_own=False)

WAY_TO: dict[EpochState, tuple[object, ...]] = {
    EpochState.IDLE: (),
    EpochState.OPENED: (BatchArrived(4, b"x"),),
    EpochState.TRIGGERED: (BatchArrived(4, b"x"), Triggered(TASKS, 0)),
    EpochState.RETURNED: (BatchArrived(4, b"x"), Triggered(TASKS, 0), acknowledgement(4, 0), ActionReturned()),
    EpochState.STORING: (
        *(BatchArrived(4, b"x"), Triggered(TASKS, 0), ActionReturned()),
        *(acknowledgement(4, 0), acknowledgement(4, 1), AllIn(1)),
    ),
    EpochState.COMMITTING: (
        *(BatchArrived(4, b"x"), Triggered(TASKS, 0), ActionReturned()),
        *(acknowledgement(4, 0), acknowledgement(4, 1), AllIn(1), Stored()),
    ),
    EpochState.RECOMMITTING: (BatchArrived(3, OFFSETS),),
    EpochState.FAILED: (Failed("as it must"),),
}

TOLD: dict[EpochEvent, tuple[object, ...]] = {
    EpochEvent.NEXT_BATCH: (BatchArrived(4, b"x"),),
    EpochEvent.REPLAYED_BATCH: (BatchArrived(3, OFFSETS),),
    EpochEvent.RESTORED_BATCH: (BatchArrived(3, OFFSETS),),
    EpochEvent.OTHER_OFFSETS: (BatchArrived(3, b"others"),),
    EpochEvent.FOREIGN_BATCH: (BatchArrived(9),),
    EpochEvent.BATCH_WHEN_STOPPING: (BatchArrived(4),),
    EpochEvent.TIME_PASSED: (TimePassed(5),),
    EpochEvent.TRIGGERED: (Triggered(TASKS, 0),),
    EpochEvent.ACKNOWLEDGED: (acknowledgement(4, 1),),
    EpochEvent.REPEATED: (acknowledgement(4, 0), acknowledgement(4, 0, attempt="b")),
    EpochEvent.REJECTED: (acknowledgement(4, 7),),
    EpochEvent.ACTION_RETURNED: (ActionReturned(),),
    EpochEvent.ALL_ACKNOWLEDGED: (acknowledgement(4, 0), acknowledgement(4, 1), AllIn(TIMEOUT_MS - 1)),
    EpochEvent.NOT_ALL_ACKNOWLEDGED: (AllIn(TIMEOUT_MS - 1),),
    EpochEvent.TIMED_OUT: (acknowledgement(4, 0), acknowledgement(4, 1), AllIn(TIMEOUT_MS)),
    EpochEvent.STORED: (Stored(),),
    EpochEvent.COMMITTED: (Committed(),),
    EpochEvent.FAILED: (Failed("as it must"),),
}
"""The arguments for an event. The last message is the event itself."""


def in_state(state: EpochState, event: EpochEvent) -> Epochs:
    machine = epochs(OF_A_SAVEPOINT if event is EpochEvent.RESTORED_BATCH and state is EpochState.IDLE else OWN)
    if state is EpochState.STOPPED:
        machine.request_stop()
        machine.handle(BatchArrived(4))
    else:
        for reported in WAY_TO[state]:
            machine.handle(reported)
    if event is EpochEvent.BATCH_WHEN_STOPPING:
        machine.request_stop()
    assert machine.state is state
    return machine


def all_of(machine: Epochs) -> object:
    return machine.state, machine.last, machine.next_batch_id, machine.files_in_use(), machine.is_stopping


@pytest.mark.parametrize("event", EpochEvent)
@pytest.mark.parametrize("state", EpochState)
def test_every_state_and_event_follows_the_table_or_changes_nothing(state: EpochState, event: EpochEvent) -> None:
    machine = in_state(state, event)
    if state is EpochState.STOPPED and event in _BATCHES:
        event = EpochEvent.BATCH_WHEN_STOPPING
    listed = EPOCH_TRANSITIONS.get((state, event))
    *before, reported = TOLD[event]
    if listed is None:
        remembered = all_of(machine)
        with pytest.raises(IllegalTransitionError) as rejected:
            machine.handle(reported)
        assert rejected.value.state == state.name
        assert rejected.value.event in ALIKE[event]
        assert all_of(machine) == remembered
        return
    for earlier in before:
        machine.handle(earlier)
    actions = machine.handle(reported)
    assert (machine.state, tuple(KIND_OF_ACTION[type(action)] for action in actions)) == listed


_BATCHES = {
    EpochEvent.NEXT_BATCH,
    EpochEvent.REPLAYED_BATCH,
    EpochEvent.RESTORED_BATCH,
    EpochEvent.OTHER_OFFSETS,
    EpochEvent.FOREIGN_BATCH,
    EpochEvent.BATCH_WHEN_STOPPING,
}
_TOGETHER: tuple[set[EpochEvent], ...] = (
    _BATCHES,
    {EpochEvent.ACKNOWLEDGED, EpochEvent.REPEATED, EpochEvent.REJECTED},
    {EpochEvent.ALL_ACKNOWLEDGED, EpochEvent.NOT_ALL_ACKNOWLEDGED, EpochEvent.TIMED_OUT},
)
ALIKE: dict[EpochEvent, set[str]] = {
    event: {one.name for one in next((group for group in _TOGETHER if event in group), {event})} for event in EpochEvent
}
"""Events of one group. Where the table lists none of the group, any of them may be in the error."""


def test_the_document_shows_the_table_of_the_code() -> None:
    _, marker, shown = DOCUMENT.read_text().partition("<!-- generated from statebackend/spark/epochs.py -->\n")
    assert marker
    assert shown == transitions_as_text()


def test_every_state_can_be_reached_and_left() -> None:
    reached = {EpochState.IDLE}
    while True:
        more = {following for (state, _), (following, _) in EPOCH_TRANSITIONS.items() if state in reached}
        if more <= reached:
            break
        reached |= more
    assert reached == set(EpochState)
    left = {state for state, _ in EPOCH_TRANSITIONS}
    assert set(EpochState) - left == {EpochState.FAILED}


def rejected(machine: Epochs, event: object) -> Exception:
    [rejection] = [action for action in machine.handle(event) if isinstance(action, Reject)]
    return rejection.error


def test_rejections_have_a_reason() -> None:
    ahead = rejected(epochs(OWN), BatchArrived(9))
    assert "at batch 9, the state log at epoch 3: the next batch must be 4" in str(ahead)
    assert "the state log at epoch none: the next batch must be 0" in str(rejected(epochs(), BatchArrived(1)))
    assert "epoch 3 was completed for other source offsets" in str(rejected(epochs(OWN), BatchArrived(3, b"others")))
    assert isinstance(ahead, SourceProgressMismatchError)
    for event, kind, words in (
        (AllIn(1), IllegalTransitionError, "lacks the acknowledgements of 1 of 2 tasks"),
        (AllIn(TIMEOUT_MS), EpochTimeoutError, r"epoch 4 did not end within 0.1 s"),
        (acknowledgement(4, 7), EpochError, "unknown acknowledgement"),
        (acknowledgement(4, 0, content="others", attempt="b"), EpochError, "conflict acknowledgement"),
    ):
        error = rejected(in_state(EpochState.RETURNED, EpochEvent.ACKNOWLEDGED), event)
        assert isinstance(error, kind)
        assert words in str(error)


def test_a_checkpoint_has_the_id_of_its_batch_unless_that_is_used() -> None:
    ahead = epochs(DurableEpoch(7, 3, b"", is_own=True))
    [opened] = ahead.handle(BatchArrived(4))
    assert opened == Open(Epoch(8, 4))
    [opened] = epochs(OF_A_SAVEPOINT).handle(BatchArrived(4))
    assert opened == Open(Epoch(4, 4))
    [opened] = epochs(evolve(OF_A_SAVEPOINT, checkpoint_id=7)).handle(BatchArrived(4))
    assert opened == Open(Epoch(8, 4)), "a sink has the epochs up to 7"
    other_source = epochs(OF_A_SAVEPOINT)
    other_source.forget_source_progress()
    [opened] = other_source.handle(BatchArrived(0))
    assert opened == Open(Epoch(0, 0))
    with pytest.raises(IllegalTransitionError, match="FORGET_SOURCE_PROGRESS is not legal in state OPENED"):
        other_source.forget_source_progress()


def test_an_epoch_of_a_job_without_state_has_a_checkpoint() -> None:
    machine = epochs(OWN)
    for event in (BatchArrived(4), Triggered((), 0), ActionReturned()):
        machine.handle(event)
    [store] = machine.handle(AllIn(1))
    assert store.completed == CompletedCheckpoint(checkpoint_id=4, operators=())
    assert machine.handle(Stored()) == (Commit(Epoch(4, 4)),)
    machine.handle(Committed())
    assert machine.last == DurableEpoch(4, 4, b"", is_own=True)


def test_a_stored_epoch_that_cannot_be_committed_is_committed_by_the_next_start() -> None:
    stored = in_state(EpochState.COMMITTING, EpochEvent.FAILED)
    assert stored.handle(Failed("the disk is full")) == (), "the next start commits it again"


def test_inconsistent_state_leaves_the_epoch_unchanged() -> None:
    machine = epochs()
    for event in (BatchArrived(0), Triggered([TaskId("words", 0)], 0), acknowledgement(0, 0), ActionReturned()):
        machine.handle(event)
    with pytest.raises(InvariantViolationError):
        machine.handle(AllIn(1))
    assert machine.state is EpochState.RETURNED
    discard, abort = machine.handle(Failed("it does not cover all key groups"))
    assert [file.path for state in discard.states for file in state.files] == ["shared/0-0-a"]
    assert abort == AbortSink(Epoch(0, 0))


class World:
    """A model of the runtime that only carries out the actions."""

    def __init__(self) -> None:
        self.machine = epochs()
        self.acknowledged: set[str] = set()
        self.discarded: set[str] = set()
        self.stored: dict[int, set[str]] = {}
        self.opened: list[int] = []
        self.committed: list[int] = []
        self.running: Epoch | None = None

    def tell(self, event: object) -> None:
        before = all_of(self.machine)
        try:
            actions = self.machine.handle(event)
        except IllegalTransitionError:
            assert all_of(self.machine) == before
            return
        if isinstance(event, Acknowledged):
            self.acknowledged |= {file.path for file in event.acknowledgement.state.files}
        if isinstance(event, BatchArrived) and self.machine.last is not None and before == all_of(self.machine):
            assert actions == ()
        for action in actions:
            self.do(action)

    def do(self, action: Any) -> None:
        if isinstance(action, Open):
            assert not self.opened or action.epoch.checkpoint_id > self.opened[-1]
            self.opened.append(action.epoch.checkpoint_id)
            self.running = action.epoch
        elif isinstance(action, Discard):
            self.discarded |= {file.path for state in action.states for file in state.files}
        elif isinstance(action, Store):
            paths = {
                file.path for operator in action.completed.operators for one in operator.subtasks for file in one.files
            }
            self.stored[action.epoch.checkpoint_id] = paths
        elif isinstance(action, Commit):
            assert action.epoch.checkpoint_id in self.stored
            self.committed.append(action.epoch.checkpoint_id)
        elif isinstance(action, CommitAgain):
            assert action.checkpoint_id in self.stored, "an epoch that was never stored is not committed again"


def events_of(checkpoint_id: int) -> st.SearchStrategy[object]:
    batches = [BatchArrived(checkpoint_id + offset, b"%d" % (checkpoint_id + offset)) for offset in (-1, 0, 1)]
    acknowledgements = [
        acknowledgement(checkpoint_id, index, content, attempt)
        for index in (0, 1, 2)
        for content, attempt in (("same", "a"), ("same", "b"), ("others", "c"))
    ]
    others = [Triggered(TASKS, 0), Triggered((), 0), ActionReturned(), AllIn(1), AllIn(TIMEOUT_MS), Stored()]
    # Steps towards the end of an epoch are drawn more often, because few sequences would reach it otherwise.
    way = [BatchArrived(checkpoint_id, b"%d" % checkpoint_id), Triggered(TASKS, 0), ActionReturned(), AllIn(1)]
    way += [Stored(), Committed(), acknowledgement(checkpoint_id, 0), acknowledgement(checkpoint_id, 1)]
    return st.sampled_from([*batches, *acknowledgements, *others, *way * 4, Failed("as it must")])


@given(st.data())
def test_invariants_hold_for_any_order_of_events(data: st.DataObject) -> None:
    world = World()
    for _ in range(data.draw(st.integers(0, 40))):
        world.tell(data.draw(events_of(world.machine.next_batch_id)))
    machine = world.machine
    kept = set().union(*world.stored.values()) if world.stored else set()
    if machine.state is EpochState.FAILED and machine.last_epoch_id == max(world.stored, default=None):
        assert world.acknowledged - world.discarded <= kept, "what was acknowledged is stored or discarded"
    if machine.last is not None:
        assert machine.last.checkpoint_id in world.stored
        assert kept_of(world, machine.last.checkpoint_id).isdisjoint(world.discarded)
    assert world.committed == sorted(world.committed)


def kept_of(world: World, checkpoint_id: int) -> set[str]:
    return world.stored[checkpoint_id]


@given(st.integers(1, 5))
def test_a_run_without_faults_stores_and_commits_each_batch_once_and_replays_none(batches: int) -> None:
    world = World()
    for batch_id in range(batches):
        for event in undisturbed(batch_id):
            world.tell(event)
        world.tell(BatchArrived(batch_id, b"%d" % batch_id))
        world.tell(Committed())
    assert world.opened == world.committed == list(world.stored) == list(range(batches))


def undisturbed(batch_id: int) -> tuple[object, ...]:
    make: Callable[[int], Acknowledged] = lambda index: acknowledgement(batch_id, index)  # noqa: E731
    return (
        *(BatchArrived(batch_id, b"%d" % batch_id), Triggered(TASKS, 0), make(0), ActionReturned()),
        *(make(1), AllIn(1), Stored(), Committed()),
    )


def test_a_no_data_epoch_belongs_to_the_batch_before_it_whose_replay_commits_the_last_output() -> None:
    machine = epochs(OWN)
    [opening] = machine.handle(TimePassed(5))
    assert opening == Open(Epoch(4, 3, OFFSETS, TimePassed(5)))
    for event in (Triggered(TASKS, 0), ActionReturned(), acknowledgement(4, 0), acknowledgement(4, 1), AllIn(1)):
        machine.handle(event)
    machine.handle(Stored())
    machine.handle(Committed())
    assert machine.last == DurableEpoch(4, 3, OFFSETS, is_own=True)
    assert machine.handle(BatchArrived(3, OFFSETS)) == (CommitAgain(4),)
    assert machine.open_epoch_id is None
    machine.handle(Committed())
    assert machine.handle(BatchArrived(4, b"x")) == (Open(Epoch(5, 4, b"x")),)
    assert machine.open_epoch_id == 5
    machine.handle(Failed("as it must"))
    assert machine.open_epoch_id is None


def test_there_is_no_no_data_epoch_before_the_first_batch() -> None:
    machine = epochs()
    with pytest.raises(IllegalTransitionError, match="there was no batch before"):
        machine.handle(TimePassed(5))
    assert machine.state is EpochState.IDLE
