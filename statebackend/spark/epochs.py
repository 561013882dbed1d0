"""The epoch: one micro-batch from its arrival to its committed output, as one table without Spark, clock or thread.

    a batch arrives
      it is the next one       -> open the epoch, trigger its checkpoint, run the action: tasks process and acknowledge
                                  all acknowledged -> store the checkpoint -> commit the sink
      it is the last one again -> replayed after a crash: commit the sink again, process nothing
      anything else            -> rejected: the state log and the source log do not belong together

The moment that counts is the storing of the checkpoint. Before it, a crash leaves files that nobody refers to, and the
replay starts from the checkpoint before. After it, the replay finds the epoch done. The sink follows the same moment:
what it staged is made visible by a commit that is repeated after a crash. So each record has its effect on state and
output once.

Events come in through `Epochs.handle`, decisions go out as actions, which a runtime carries out (`epoch_runner`). What
an event means is judged first (a batch that arrives is the next one or a replay; an acknowledgement is one more, or a
repetition, or does not belong here), then the table is asked. What the table does not list raises
`IllegalTransitionError`, which names event and state, and changes nothing.

Invariants:
1. No epoch is committed before its checkpoint is stored, except one that no task took part in: it has no state.
2. What was acknowledged is stored, or discarded when the epoch fails.
3. Checkpoint ids strictly increase from the checkpoint that a run goes on from. A checkpoint id is not the id of a
   batch: it is that of its batch as long as that is greater than the ids before, and the next free one otherwise. An
   epoch that is processed again, after a crash or after going back, so has the id that it had: sinks write over what
   they wrote under it.
4. A replayed batch runs nothing.
5. An epoch without records is one of the batch before it, which is replayed no more than the last epoch of that is.

The table of an epoch: every state, every event that it admits, what follows and what is to be done.

It is documented in `docs/epochs.md`, which is generated from it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.checkpoint_coordinator import AcknowledgementOutcome, CheckpointCoordinator
from statebackend.checkpoint.errors import IllegalTransitionError, IncompleteCheckpointError
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.checkpoint.transition_tables import table_as_text
from statebackend.streaming.errors import EpochError, EpochTimeoutError, SourceProgressMismatchError
from statebackend.streaming.runtime.epoch_events import (
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
    Failed,
    Open,
    Reject,
    RunAction,
    Store,
    Stored,
    TimePassed,
    Triggered,
)

__all__ = [
    "EPOCH_TRANSITIONS",
    "REPEATABLE_ADVICE",
    "EpochAction",
    "EpochEvent",
    "EpochState",
    "Epochs",
    "too_late",
    "transitions_as_text",
]


class EpochState(enum.Enum):
    """Where a run stands with its epoch."""

    IDLE = "no epoch is open"
    OPENED = "the epoch is open, its checkpoint is not triggered"
    TRIGGERED = "the action runs, tasks process and acknowledge"
    RETURNED = "the action has returned, acknowledgements are taken in"
    STORING = "all tasks have acknowledged, the checkpoint is being stored"
    COMMITTING = "the checkpoint is stored, the sink commits"
    COMMITTING_STATELESS = "there is no state and no checkpoint, the sink commits"
    RECOMMITTING = "the sink commits an epoch of before once more"
    FAILED = "the run has failed"
    STOPPED = "the run has rejected a batch, since it is stopping"


class EpochEvent(enum.Enum):
    """What can happen, as it was judged."""

    NEXT_BATCH = "the batch behind the last one arrived"
    REPLAYED_BATCH = "the batch of the last epoch of this job directory arrived again"
    RESTORED_BATCH = "the batch that the savepoint was taken at arrived again"
    OTHER_OFFSETS = "the last batch arrived again, with other offsets"
    FOREIGN_BATCH = "a batch arrived that is neither the last nor the next"
    BATCH_WHEN_STOPPING = "a batch arrived while the job is stopping"
    TIME_PASSED = "time has something to do, and there is no batch"
    TRIGGERED = "the tasks are known"
    NO_TASKS = "no task takes part"
    ACKNOWLEDGED = "a task acknowledged"
    REPEATED = "a task acknowledged the same once more"
    REJECTED = "an acknowledgement does not belong here, or contradicts another"
    ACTION_RETURNED = "the action returned"
    ALL_ACKNOWLEDGED = "no acknowledgement comes any more, and none is missing"
    NOT_ALL_ACKNOWLEDGED = "no acknowledgement comes any more, and some are missing"
    TIMED_OUT = "the time of the epoch is over"
    STORED = "the checkpoint is stored"
    COMMITTED = "the sink has committed"
    FAILED = "something went wrong"


class EpochAction(enum.Enum):
    """What is to be done."""

    OPEN = "open the epoch and say which tasks take part"
    RUN_ACTION = "run the action"
    DISCARD = "discard acknowledged state"
    STORE = "store the checkpoint"
    COMMIT = "commit the sink"
    COMMIT_AGAIN = "commit the last epoch's sink again"
    ABORT_SINK = "let the sink forget what it staged"
    REJECT = "raise, with the reason"


_S, _E, _A = EpochState, EpochEvent, EpochAction
_CLEAR: Final = (_A.DISCARD, _A.ABORT_SINK)

EPOCH_TRANSITIONS: Final[Mapping[tuple[EpochState, EpochEvent], tuple[EpochState, tuple[EpochAction, ...]]]] = (
    MappingProxyType(
        {
            (_S.IDLE, _E.NEXT_BATCH): (_S.OPENED, (_A.OPEN,)),
            (_S.IDLE, _E.REPLAYED_BATCH): (_S.RECOMMITTING, (_A.COMMIT_AGAIN,)),
            (_S.IDLE, _E.RESTORED_BATCH): (_S.IDLE, ()),
            (_S.IDLE, _E.OTHER_OFFSETS): (_S.FAILED, (_A.REJECT,)),
            (_S.IDLE, _E.FOREIGN_BATCH): (_S.FAILED, (_A.REJECT,)),
            (_S.IDLE, _E.BATCH_WHEN_STOPPING): (_S.STOPPED, (_A.REJECT,)),
            (_S.IDLE, _E.TIME_PASSED): (_S.OPENED, (_A.OPEN,)),
            (_S.IDLE, _E.FAILED): (_S.FAILED, ()),
            (_S.OPENED, _E.TRIGGERED): (_S.TRIGGERED, (_A.RUN_ACTION,)),
            (_S.OPENED, _E.NO_TASKS): (_S.COMMITTING_STATELESS, (_A.COMMIT,)),
            (_S.OPENED, _E.FAILED): (_S.FAILED, (_A.ABORT_SINK,)),
            (_S.TRIGGERED, _E.ACKNOWLEDGED): (_S.TRIGGERED, ()),
            (_S.TRIGGERED, _E.REPEATED): (_S.TRIGGERED, (_A.DISCARD,)),
            (_S.TRIGGERED, _E.REJECTED): (_S.FAILED, (*_CLEAR, _A.REJECT)),
            (_S.TRIGGERED, _E.ACTION_RETURNED): (_S.RETURNED, ()),
            (_S.TRIGGERED, _E.FAILED): (_S.FAILED, _CLEAR),
            (_S.RETURNED, _E.ACKNOWLEDGED): (_S.RETURNED, ()),
            (_S.RETURNED, _E.REPEATED): (_S.RETURNED, (_A.DISCARD,)),
            (_S.RETURNED, _E.REJECTED): (_S.FAILED, (*_CLEAR, _A.REJECT)),
            (_S.RETURNED, _E.ALL_ACKNOWLEDGED): (_S.STORING, (_A.STORE,)),
            (_S.RETURNED, _E.NOT_ALL_ACKNOWLEDGED): (_S.FAILED, (*_CLEAR, _A.REJECT)),
            (_S.RETURNED, _E.TIMED_OUT): (_S.FAILED, (*_CLEAR, _A.REJECT)),
            (_S.RETURNED, _E.FAILED): (_S.FAILED, _CLEAR),
            (_S.STORING, _E.STORED): (_S.COMMITTING, (_A.COMMIT,)),
            # Whether the checkpoint is there after all is not known: what is staged is for the next start to clear up.
            (_S.STORING, _E.FAILED): (_S.FAILED, (_A.DISCARD,)),
            (_S.COMMITTING, _E.COMMITTED): (_S.IDLE, ()),
            # The checkpoint stands, and the next start commits again.
            (_S.COMMITTING, _E.FAILED): (_S.FAILED, ()),
            (_S.COMMITTING_STATELESS, _E.COMMITTED): (_S.IDLE, ()),
            # No checkpoint says that it is to be committed: the next start processes the batch again.
            (_S.COMMITTING_STATELESS, _E.FAILED): (_S.FAILED, (_A.ABORT_SINK,)),
            (_S.RECOMMITTING, _E.COMMITTED): (_S.IDLE, ()),
            (_S.RECOMMITTING, _E.FAILED): (_S.FAILED, ()),
            (_S.STOPPED, _E.BATCH_WHEN_STOPPING): (_S.STOPPED, (_A.REJECT,)),
            # A drain, which may come behind a batch that came too late for it.
            (_S.STOPPED, _E.TIME_PASSED): (_S.OPENED, (_A.OPEN,)),
        }
    )
)
"""(state, event) -> (next state, actions); everything else is illegal."""


def transitions_as_text() -> str:
    """The table as Markdown, for the documentation."""
    return table_as_text(EPOCH_TRANSITIONS, (EpochState, EpochEvent, EpochAction), "actions")


REPEATABLE_ADVICE: Final = (
    "Give the operator an order_by that decides the order of the records of a key, and let process_element use no "
    "clock, random number or outside service"
)
"""What makes a task that runs again do the same again."""


class Epochs:
    """The epochs of one run, one at a time. One thread feeds it; `request_stop` may be called from any.

    ``source_log`` and ``state_log`` say in messages where the two logs are. ``limit`` says how long an epoch may take.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        last: DurableEpoch | None,
        *,
        source_log: str = "",
        state_log: str = "",
        limit: str = "",
    ) -> None:
        self.state = EpochState.IDLE
        self.last = last
        """The last epoch whose effects are durable: of this run, or of what it continues from."""
        self.is_stopping = False
        self._coordinator = coordinator
        # Beyond that of a savepoint, too: a sink knows by the id of an epoch whether it has that already.
        self._last_checkpoint_id = None if last is None else last.checkpoint_id
        self._source_log, self._state_log, self._limit = source_log, state_log, limit
        self._epoch: Epoch | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run takes no batch any more."""
        return self.state in (EpochState.FAILED, EpochState.STOPPED)

    @property
    def last_epoch_id(self) -> int | None:
        """The id of the last epoch whose effects are durable."""
        return None if self.last is None else self.last.checkpoint_id

    @property
    def open_epoch_id(self) -> int | None:
        """The id of the epoch that is open; None if none is, and while a batch is only committed again."""
        return None if self._epoch is None or self.is_over else self._epoch.checkpoint_id

    @property
    def unstored_epoch_id(self) -> int | None:
        """The id of the epoch that is open, or was when the run failed, unless its checkpoint is stored."""
        epoch = self._epoch
        return None if epoch is None or epoch.checkpoint_id == self._last_checkpoint_id else epoch.checkpoint_id

    def request_stop(self) -> None:
        """Lets no further epoch begin; the one that is open goes on."""
        self.is_stopping = True

    def forget_source_progress(self) -> None:
        """Lets batches count from 0 again, for a job that takes the state of a savepoint but another source."""
        if self.state is not EpochState.IDLE:
            raise IllegalTransitionError("FORGET_SOURCE_PROGRESS", self.state.name, "an epoch is open")
        self.last = None
        self._last_checkpoint_id = None

    def acknowledgements(self, epoch: Epoch) -> Mapping[TaskId, Acknowledgement]:
        """What the tasks of an epoch have acknowledged."""
        return self._coordinator.acknowledgements(epoch.checkpoint_id)

    def files_in_use(self) -> frozenset[str]:
        """Paths of the files that the open epoch has been told of."""
        return self._coordinator.files_in_use()

    def handle(self, event: object) -> tuple[Any, ...]:
        """Takes an event in; returns the actions to carry out, in this order.

        Raises `IllegalTransitionError` for an event that the table does not list, `InvariantViolationError` if what
        was acknowledged makes no whole; both change nothing.
        """
        return self._HANDLERS[type(event)](self, event)

    def _batch_arrived(self, event: BatchArrived) -> tuple[Any, ...]:
        judged = self._judged(event)
        self._check(judged, f"batch {event.batch_id}")
        if judged is EpochEvent.NEXT_BATCH:
            epoch = self._epoch = Epoch(self._free_id(event.batch_id), event.batch_id, event.offsets)
            return self._advance(judged, {EpochAction.OPEN: Open(epoch)})
        if judged is EpochEvent.REPLAYED_BATCH and self.last is not None:
            return self._advance(judged, {EpochAction.COMMIT_AGAIN: CommitAgain(self.last.checkpoint_id)})
        if judged is EpochEvent.RESTORED_BATCH:
            return self._advance(judged, {})
        return self._advance(judged, {EpochAction.REJECT: Reject(self._objection(judged, event))})

    def _time_passed(self, event: TimePassed) -> tuple[Any, ...]:
        self._check(EpochEvent.TIME_PASSED, "time has passed a timer")
        last = self.last
        if last is None:
            raise IllegalTransitionError(EpochEvent.TIME_PASSED.name, self.state.name, "there was no batch before")
        # Behind it the batch is the last one still: its replay finds it done.
        epoch = self._epoch = Epoch(self._free_id(last.checkpoint_id + 1), last.batch_id, last.offsets, event)
        return self._advance(EpochEvent.TIME_PASSED, {EpochAction.OPEN: Open(epoch)})

    def _judged(self, event: BatchArrived) -> EpochEvent:
        last = self.last
        if self.is_stopping:
            return EpochEvent.BATCH_WHEN_STOPPING
        if last is not None and event.batch_id == last.batch_id:
            if last.offsets and last.offsets != event.offsets:
                return EpochEvent.OTHER_OFFSETS
            return EpochEvent.REPLAYED_BATCH if last.is_own else EpochEvent.RESTORED_BATCH
        return EpochEvent.NEXT_BATCH if event.batch_id == self.next_batch_id else EpochEvent.FOREIGN_BATCH

    @property
    def next_batch_id(self) -> int:
        """The batch that is to arrive next."""
        return 0 if self.last is None else self.last.batch_id + 1

    @property
    def next_checkpoint_id(self) -> int:
        """The checkpoint that the epoch of that batch has."""
        return self._free_id(self.next_batch_id)

    def _free_id(self, batch_id: int) -> int:
        return batch_id if self._last_checkpoint_id is None else max(batch_id, self._last_checkpoint_id + 1)

    def _triggered(self, event: Triggered) -> tuple[Any, ...]:
        judged = EpochEvent.TRIGGERED if event.tasks else EpochEvent.NO_TASKS
        epoch = self._open_epoch(judged)
        if judged is EpochEvent.NO_TASKS:
            return self._advance(judged, {EpochAction.COMMIT: Commit(epoch, is_stored=False)})
        self._coordinator.trigger(epoch.checkpoint_id, event.tasks, event.now_ms)
        return self._advance(judged, {EpochAction.RUN_ACTION: RunAction(epoch)})

    def _acknowledged(self, event: Acknowledged) -> tuple[Any, ...]:
        # The coordinator takes in what it is given, so the state is asked first.
        epoch = self._open_epoch(EpochEvent.ACKNOWLEDGED)
        result = self._coordinator.acknowledge(event.acknowledgement)
        if result.outcome is AcknowledgementOutcome.SUCCESS:
            return self._advance(EpochEvent.ACKNOWLEDGED, {})
        if result.outcome is AcknowledgementOutcome.DUPLICATE:
            return self._advance(EpochEvent.REPEATED, {EpochAction.DISCARD: self._discard(result.states_to_discard)})
        error = EpochError(
            f"epoch {event.acknowledgement.checkpoint_id}: {result.outcome.name.lower()} acknowledgement of "
            f"{event.acknowledgement.task}: {_ADVICE.get(result.outcome, '')}{result.detail}"
        )
        return self._abandoned(EpochEvent.REJECTED, epoch, error, result.states_to_discard)

    def _action_returned(self, event: ActionReturned) -> tuple[Any, ...]:
        self._open_epoch(EpochEvent.ACTION_RETURNED)
        return self._advance(EpochEvent.ACTION_RETURNED, {})

    def _all_in(self, event: AllIn) -> tuple[Any, ...]:
        epoch = self._open_epoch(EpochEvent.ALL_ACKNOWLEDGED)
        for expired in self._coordinator.expire(event.now_ms):
            error = EpochTimeoutError(too_late(epoch.checkpoint_id, self._limit))
            return self._abandoned(EpochEvent.TIMED_OUT, epoch, error, expired.states_to_discard)
        try:
            completed = self._coordinator.complete(epoch.checkpoint_id)
        except IncompleteCheckpointError as error:
            return self._abandoned(EpochEvent.NOT_ALL_ACKNOWLEDGED, epoch, error, ())
        return self._advance(EpochEvent.ALL_ACKNOWLEDGED, {EpochAction.STORE: Store(epoch, completed)})

    def _stored(self, event: Stored) -> tuple[Any, ...]:
        epoch = self._open_epoch(EpochEvent.STORED)
        self._last_checkpoint_id = epoch.checkpoint_id
        return self._advance(EpochEvent.STORED, {EpochAction.COMMIT: Commit(epoch, is_stored=True)})

    def _committed(self, event: Committed) -> tuple[Any, ...]:
        self._check(EpochEvent.COMMITTED, "nothing is being committed")
        if self._epoch is not None and self.state is EpochState.COMMITTING:
            epoch = self._epoch
            self.last = DurableEpoch(epoch.checkpoint_id, epoch.batch_id, epoch.offsets, is_own=True)
        self._epoch = None
        return self._advance(EpochEvent.COMMITTED, {})

    def _failed(self, event: Failed) -> tuple[Any, ...]:
        self._check(EpochEvent.FAILED, event.reason)
        epoch = self._epoch
        if epoch is None:
            return self._advance(EpochEvent.FAILED, {})
        states: tuple[SubtaskState, ...] = ()
        if self.state is EpochState.STORING:
            states = self._coordinator.storing_failed(epoch.checkpoint_id, event.reason).states_to_discard
        elif epoch.checkpoint_id in self._coordinator.pending_ids:
            states = self._coordinator.abort(epoch.checkpoint_id, event.reason).states_to_discard
        return self._advance(
            EpochEvent.FAILED,
            {EpochAction.DISCARD: self._discard(states), EpochAction.ABORT_SINK: AbortSink(epoch)},
        )

    def _abandoned(
        self, event: EpochEvent, epoch: Epoch, error: Exception, surplus: tuple[SubtaskState, ...]
    ) -> tuple[Any, ...]:
        states = surplus
        if epoch.checkpoint_id in self._coordinator.pending_ids:
            states += self._coordinator.abort(epoch.checkpoint_id, str(error)).states_to_discard
        return self._advance(
            event,
            {
                EpochAction.DISCARD: self._discard(states),
                EpochAction.ABORT_SINK: AbortSink(epoch),
                EpochAction.REJECT: Reject(error),
            },
        )

    def _discard(self, states: tuple[SubtaskState, ...]) -> Discard:
        return Discard(states, self._coordinator.files_in_use())

    def _objection(self, judged: EpochEvent, event: BatchArrived) -> Exception:
        batch_id, last = event.batch_id, self.last
        if judged is EpochEvent.BATCH_WHEN_STOPPING:
            return EpochError(f"epoch {batch_id} was not begun: the job is stopping")
        if judged is EpochEvent.OTHER_OFFSETS and last is not None:
            return SourceProgressMismatchError(
                f"epoch {last.checkpoint_id} was completed for other source offsets than Spark replays now: the state "
                f"log says {last.offsets.decode(errors='replace')!r}, Spark's log "
                f"{event.offsets.decode(errors='replace')!r}. "
                f"Spark's checkpoint directory was exchanged; put the right one back, or start from a savepoint"
            )
        return SourceProgressMismatchError(
            f"Spark's source log is at batch {batch_id}, the state log at epoch "
            f"{'none' if last is None else last.batch_id}: the next batch must be {self.next_batch_id}. "
            f"The directories {self._source_log} and {self._state_log} do not belong together; restore both, or start "
            f"from a savepoint in a new job directory"
        )

    def _open_epoch(self, event: EpochEvent) -> Epoch:
        self._check(event, "no epoch is open" if self._epoch is None else f"epoch {self._epoch.checkpoint_id}")
        assert self._epoch is not None
        return self._epoch

    def _check(self, event: EpochEvent, detail: str) -> None:
        if (self.state, event) not in EPOCH_TRANSITIONS:
            raise IllegalTransitionError(event.name, self.state.name, detail)

    def _advance(self, event: EpochEvent, actions: Mapping[EpochAction, Any]) -> tuple[Any, ...]:
        self.state, listed = EPOCH_TRANSITIONS[self.state, event]
        return tuple(actions[action] for action in listed)

    _HANDLERS: Final[Mapping[type, Callable[[Epochs, Any], tuple[Any, ...]]]] = MappingProxyType(
        {
            BatchArrived: _batch_arrived,
            TimePassed: _time_passed,
            Triggered: _triggered,
            Acknowledged: _acknowledged,
            ActionReturned: _action_returned,
            AllIn: _all_in,
            Stored: _stored,
            Committed: _committed,
            Failed: _failed,
        }
    )


_ADVICE: Final = {
    AcknowledgementOutcome.CONFLICT: f"its task ran again and made other state than before. {REPEATABLE_ADVICE}. "
}


def too_late(epoch_id: int, limit: str) -> str:
    """What is told of an epoch that took longer than it may."""
    return (
        f"epoch {epoch_id} did not end within {limit} (epoch_timeout_s) and was given up. It is processed again when "
        f"the job is started again: look for a function that waits for ever, or give it more time"
    )


if __name__ == "__main__":
    print(transitions_as_text(), end="")  # noqa: T201
