"""The epoch as a transition table: one micro-batch from its arrival to its committed output.

    a batch arrives
      the next batch       -> open the epoch, trigger its checkpoint, run the action: tasks process and acknowledge;
                              when all have acknowledged, store the checkpoint, then commit the sinks
      the last batch again -> replayed after a crash: commit the sinks again, process nothing
      any other batch      -> reject it: the state log and the source log do not belong together

The file has no I/O, clock or thread. A runtime passes events to `Epochs.handle` and carries out the actions that it
returns (`statebackend.spark.epoch_driver`). `Epochs` first classifies an event: a batch is the next one, a replay or a
foreign one; an acknowledgement is new, repeated or rejected. Then it looks up state and event in `EPOCH_TRANSITIONS`.
An event that the table does not list raises `IllegalTransitionError` and changes nothing.

Storing the checkpoint makes an epoch durable. After a crash before it, the replay starts from the checkpoint before;
after a crash later, the replay only repeats the commit. So each record changes state and output once.

Invariants:

1. No epoch is committed before its checkpoint is stored.
2. Acknowledged state is stored, or discarded when the epoch fails.
3. Checkpoint ids strictly increase. An id is the batch id if that is larger than all ids before, else the next free id.
   So an epoch that is processed again has the same id, and sinks overwrite what they wrote under it.
4. A replayed batch runs nothing.
5. A no-data epoch belongs to the batch before it. A replay of that batch runs neither.

`docs/epochs.md` is generated from the table.
"""

from __future__ import annotations

import copy
import enum
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from attrs import evolve, frozen

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.checkpoint_coordinator import AcknowledgementOutcome, CheckpointCoordinator
from statebackend.checkpoint.coordinator.pending_checkpoint import CompletedCheckpoint
from statebackend.checkpoint.errors import IllegalTransitionError, IncompleteCheckpointError
from statebackend.checkpoint.metadata import ChannelTimestamp, CheckpointMetadata, TimersDue, WatermarkState
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.checkpoint.transition_tables import table_as_text
from statebackend.streaming.errors import EpochError, EpochTimeoutError, SourceProgressMismatchError
from statebackend.streaming.runtime.checkpoint_writing import batch_of
from statebackend.streaming.runtime.event_time import EventTime
from statebackend.streaming.time.job_watermarks import JobWatermarks
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = [
    "EPOCH_TRANSITIONS",
    "REPEATABLE_ADVICE",
    "AbortSink",
    "Acknowledged",
    "ActionReturned",
    "AllIn",
    "BatchArrived",
    "Commit",
    "CommitAgain",
    "Committed",
    "Discard",
    "DurableEpoch",
    "Epoch",
    "EpochAction",
    "EpochEvent",
    "EpochState",
    "EpochWatermarks",
    "Epochs",
    "Failed",
    "Open",
    "Reject",
    "RunAction",
    "Store",
    "Stored",
    "TimePassed",
    "Triggered",
    "too_late",
    "transitions_as_text",
]


@frozen
class TimePassed:
    """A no-data epoch is due: timers fire at this processing time, without records.

    ``is_drain`` marks the epoch at the end of event time.
    """

    processing_time_ms: int
    is_drain: bool = False


@frozen
class Epoch:
    """An epoch: the id of its checkpoint, which users see, and the batch of its records.

    A no-data epoch has the batch before it, and ``time_passed``.
    """

    checkpoint_id: int
    batch_id: int
    offsets: bytes = b""
    time_passed: TimePassed | None = None


@frozen
class DurableEpoch:
    """The last epoch whose effects are durable.

    ``offsets`` are empty if unknown. ``is_own`` is True for a checkpoint of this job directory, False for the savepoint
    that the job started from.
    """

    checkpoint_id: int
    batch_id: int
    offsets: bytes
    is_own: bool

    @classmethod
    def of(cls, metadata: CheckpointMetadata, *, is_own: bool) -> DurableEpoch:
        """The epoch that a checkpoint of the job directory (``is_own``) or a savepoint was taken at."""
        return cls(metadata.checkpoint_id, batch_of(metadata), metadata.source_offsets, is_own)


@frozen
class BatchArrived:
    """Spark delivers a batch. ``offsets`` are the source positions at its end, empty without an offset log."""

    batch_id: int
    offsets: bytes = b""


@frozen
class Triggered:
    """The tasks of the epoch are known; none in a job without state."""

    tasks: Collection[TaskId]
    now_ms: int


@frozen
class Acknowledged:
    """A task has acknowledged."""

    acknowledgement: Acknowledgement


@frozen
class ActionReturned:
    """The action returned: all tasks have ended."""


@frozen
class AllIn:
    """All acknowledgements have arrived. ``now_ms`` is a monotonic time."""

    now_ms: int


@frozen
class Stored:
    """The checkpoint is stored."""


@frozen
class Committed:
    """The sink has committed."""


@frozen
class Failed:
    """A step outside of this table failed."""

    reason: str


@frozen
class Open:
    """Open the epoch; answer with `Triggered`."""

    epoch: Epoch


@frozen
class RunAction:
    """Run the action; the tasks acknowledge."""

    epoch: Epoch


@frozen
class Discard:
    """Delete the files of this state that no checkpoint needs, but none that is in use."""

    states: tuple[SubtaskState, ...]
    in_use: frozenset[str]


@frozen
class Store:
    """Store the checkpoint."""

    epoch: Epoch
    completed: CompletedCheckpoint


@frozen
class Commit:
    """Commit the sink."""

    epoch: Epoch


@frozen
class CommitAgain:
    """Commit the output of an earlier epoch again."""

    checkpoint_id: int


@frozen
class AbortSink:
    """Let the sinks remove what they staged."""

    epoch: Epoch


@frozen
class Reject:
    """Raise this."""

    error: Exception


class EpochState(enum.Enum):
    """The state of a run."""

    IDLE = "no epoch is open"
    OPENED = "the epoch is open, its checkpoint is not triggered"
    TRIGGERED = "the action runs, tasks process and acknowledge"
    RETURNED = "the action has returned, its acknowledgements are processed"
    STORING = "all tasks have acknowledged, the checkpoint is being stored"
    COMMITTING = "the checkpoint is stored, the sink commits"
    RECOMMITTING = "the sink commits an earlier epoch again"
    FAILED = "the run has failed"
    STOPPED = "the run is stopping and has rejected a batch"


class EpochEvent(enum.Enum):
    """An event after its classification."""

    NEXT_BATCH = "the batch after the last one arrived"
    REPLAYED_BATCH = "the batch of the last epoch of this job directory arrived again"
    RESTORED_BATCH = "the batch that the savepoint was taken at arrived again"
    OTHER_OFFSETS = "the last batch arrived again, with other offsets"
    FOREIGN_BATCH = "a batch arrived that is neither the last nor the next"
    BATCH_WHEN_STOPPING = "a batch arrived while the job is stopping"
    TIME_PASSED = "a no-data epoch is due"
    TRIGGERED = "the tasks are known"
    ACKNOWLEDGED = "a task acknowledged"
    REPEATED = "a task acknowledged the same once more"
    REJECTED = "an acknowledgement does not belong here, or contradicts another"
    ACTION_RETURNED = "the action returned"
    ALL_ACKNOWLEDGED = "all acknowledgements have arrived, and none is missing"
    NOT_ALL_ACKNOWLEDGED = "all acknowledgements have arrived, and some are missing"
    TIMED_OUT = "the epoch exceeded its timeout"
    STORED = "the checkpoint is stored"
    COMMITTED = "the sink has committed"
    FAILED = "a step failed"


class EpochAction(enum.Enum):
    """An action of the runtime."""

    OPEN = "open the epoch and report its tasks"
    RUN_ACTION = "run the action"
    DISCARD = "discard acknowledged state"
    STORE = "store the checkpoint"
    COMMIT = "commit the sink"
    COMMIT_AGAIN = "commit the last epoch's sink again"
    ABORT_SINK = "let the sink remove what it staged"
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
            # The checkpoint may exist after all, so the next start cleans up the staged output.
            (_S.STORING, _E.FAILED): (_S.FAILED, (_A.DISCARD,)),
            (_S.COMMITTING, _E.COMMITTED): (_S.IDLE, ()),
            # The checkpoint is durable; the next start commits again.
            (_S.COMMITTING, _E.FAILED): (_S.FAILED, ()),
            (_S.RECOMMITTING, _E.COMMITTED): (_S.IDLE, ()),
            (_S.RECOMMITTING, _E.FAILED): (_S.FAILED, ()),
            (_S.STOPPED, _E.BATCH_WHEN_STOPPING): (_S.STOPPED, (_A.REJECT,)),
            # A drain may follow a batch that arrived after the stop.
            (_S.STOPPED, _E.TIME_PASSED): (_S.OPENED, (_A.OPEN,)),
        }
    )
)
"""(state, event) -> (next state, actions). Every other pair is illegal."""


def transitions_as_text() -> str:
    """Return the table as Markdown, for the documentation."""
    return table_as_text(EPOCH_TRANSITIONS, (EpochState, EpochEvent, EpochAction), "actions")


REPEATABLE_ADVICE: Final = (
    "Give the operator an order_by that decides the order of the records of a key, and let process_element use no "
    "clock, random number or outside service"
)
"""How to make a repeated task produce the same state."""


class Epochs:
    """The epochs of one run, one at a time. One thread passes events; any thread may call `request_stop`.

    Error messages contain ``source_log`` and ``state_log``, the places of the two logs, and ``limit``, the longest
    duration of an epoch.
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
        """The last durable epoch, of this run or of the state that it started from."""
        self.is_stopping = False
        self._coordinator = coordinator
        # Ids continue after that of a savepoint, too: sinks recognise a committed epoch by its id.
        self._last_checkpoint_id = None if last is None else last.checkpoint_id
        self._source_log, self._state_log, self._limit = source_log, state_log, limit
        self._epoch: Epoch | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run accepts no further batch."""
        return self.state in (EpochState.FAILED, EpochState.STOPPED)

    @property
    def last_epoch_id(self) -> int | None:
        """The id of the last durable epoch."""
        return None if self.last is None else self.last.checkpoint_id

    @property
    def open_epoch_id(self) -> int | None:
        """The id of the open epoch; None without one, and while a batch is only committed again."""
        return None if self._epoch is None or self.is_over else self._epoch.checkpoint_id

    @property
    def unstored_epoch_id(self) -> int | None:
        """The id of the epoch that is open, or was open when the run failed; None if its checkpoint is stored."""
        epoch = self._epoch
        return None if epoch is None or epoch.checkpoint_id == self._last_checkpoint_id else epoch.checkpoint_id

    def request_stop(self) -> None:
        """Let no further epoch start; the open one continues."""
        self.is_stopping = True

    def forget_source_progress(self) -> None:
        """Expect batch 0 next: the job restores the state of a savepoint, but reads another source."""
        if self.state is not EpochState.IDLE:
            raise IllegalTransitionError("FORGET_SOURCE_PROGRESS", self.state.name, "an epoch is open")
        self.last = None
        self._last_checkpoint_id = None

    def acknowledgements(self, epoch: Epoch) -> Mapping[TaskId, Acknowledgement]:
        return self._coordinator.acknowledgements(epoch.checkpoint_id)

    def files_in_use(self) -> frozenset[str]:
        """Return the paths of all files in acknowledgements of the open epoch."""
        return self._coordinator.files_in_use()

    def handle(self, event: object) -> tuple[Any, ...]:
        """Process an event; return the actions to carry out, in this order.

        Raises:
            IllegalTransitionError: The table does not list the event in this state. Nothing changes.
            InvariantViolationError: The acknowledgements contradict each other. Nothing changes.
        """
        return self._HANDLERS[type(event)](self, event)

    def _batch_arrived(self, event: BatchArrived) -> tuple[Any, ...]:
        kind = self._classified(event)
        self._check(kind, f"batch {event.batch_id}")
        if kind is EpochEvent.NEXT_BATCH:
            epoch = self._epoch = Epoch(self._free_id(event.batch_id), event.batch_id, event.offsets)
            return self._advance(kind, {EpochAction.OPEN: Open(epoch)})
        if kind is EpochEvent.REPLAYED_BATCH and self.last is not None:
            return self._advance(kind, {EpochAction.COMMIT_AGAIN: CommitAgain(self.last.checkpoint_id)})
        if kind is EpochEvent.RESTORED_BATCH:
            return self._advance(kind, {})
        return self._advance(kind, {EpochAction.REJECT: Reject(self._objection(kind, event))})

    def _time_passed(self, event: TimePassed) -> tuple[Any, ...]:
        self._check(EpochEvent.TIME_PASSED, "time has passed a timer")
        last = self.last
        if last is None:
            raise IllegalTransitionError(EpochEvent.TIME_PASSED.name, self.state.name, "there was no batch before")
        # The batch stays the last one, so its replay is recognised.
        epoch = self._epoch = Epoch(self._free_id(last.checkpoint_id + 1), last.batch_id, last.offsets, event)
        return self._advance(EpochEvent.TIME_PASSED, {EpochAction.OPEN: Open(epoch)})

    def _classified(self, event: BatchArrived) -> EpochEvent:
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
        """The id of the batch that must arrive next."""
        return 0 if self.last is None else self.last.batch_id + 1

    @property
    def next_checkpoint_id(self) -> int:
        """The checkpoint id of the epoch of that batch."""
        return self._free_id(self.next_batch_id)

    def _free_id(self, batch_id: int) -> int:
        return batch_id if self._last_checkpoint_id is None else max(batch_id, self._last_checkpoint_id + 1)

    def _triggered(self, event: Triggered) -> tuple[Any, ...]:
        epoch = self._open_epoch(EpochEvent.TRIGGERED)
        self._coordinator.trigger(epoch.checkpoint_id, event.tasks, event.now_ms)
        return self._advance(EpochEvent.TRIGGERED, {EpochAction.RUN_ACTION: RunAction(epoch)})

    def _acknowledged(self, event: Acknowledged) -> tuple[Any, ...]:
        # Check the state first: the coordinator records every acknowledgement.
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
        return self._advance(EpochEvent.STORED, {EpochAction.COMMIT: Commit(epoch)})

    def _committed(self, event: Committed) -> tuple[Any, ...]:
        self._check(EpochEvent.COMMITTED, "nothing is being committed")
        epoch = self._epoch
        if epoch is not None:
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

    def _objection(self, kind: EpochEvent, event: BatchArrived) -> Exception:
        batch_id, last = event.batch_id, self.last
        if kind is EpochEvent.BATCH_WHEN_STOPPING:
            return EpochError(f"epoch {batch_id} was not started: the job is stopping")
        if kind is EpochEvent.OTHER_OFFSETS and last is not None:
            return SourceProgressMismatchError(
                f"epoch {last.checkpoint_id} was completed for other source offsets than Spark replays now: the state "
                f"log has {last.offsets.decode(errors='replace')!r}, Spark's offset log has "
                f"{event.offsets.decode(errors='replace')!r}. Spark's checkpoint directory was replaced. Restore the "
                f"right one, or start from a savepoint"
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


class EpochWatermarks:
    """The watermarks of one epoch: an immutable value, from which `after` computes those of the next one."""

    def __init__(
        self, event_time: EventTime | None, restored: WatermarkState | None, now_ms: int | None = None
    ) -> None:
        """Create the watermarks of the first epoch of a run, from those of its checkpoint, ``restored``.

        With ``now_ms``, sources without records become idle by the clock from then on; without, from the first epoch.
        """
        self._event_time = event_time
        self._watermarks: JobWatermarks | None = None if event_time is None else event_time.watermarks()
        self._uids = () if event_time is None else tuple(node.uid for node in event_time.graph.operators)
        self._followers = () if event_time is None else event_time.followers
        self.names = () if event_time is None else event_time.names
        """Of the sources with event time, and the uids of all operators."""
        self._is_at_the_end = False
        self._before: Mapping[str, int] = {}
        if self._watermarks is not None and event_time is not None and restored is not None:
            self._watermarks.restore(restored)
            self._before = {
                node.node: node.epoch_watermark_ms
                for node in restored.nodes
                # A job that is started again has not ended.
                if node.epoch_watermark_ms is not None and node.epoch_watermark_ms != MAX_TIMESTAMP
            }
        if self._watermarks is not None and now_ms is not None:
            self._watermarks.await_from(now_ms)

    def of(self, uid: str) -> int:
        """Return the watermark of an operator in this epoch, in milliseconds; `MIN_TIMESTAMP` without one."""
        if self._is_at_the_end:
            return MAX_TIMESTAMP
        return MIN_TIMESTAMP if self._watermarks is None else self._watermarks.watermark_of(uid)

    def is_idle(self, uid: str) -> bool:
        """Return whether the inputs of an operator are idle in this epoch."""
        return self._watermarks is not None and self._watermarks.is_idle(uid)

    def before_of(self, uid: str) -> int:
        """Return its watermark in the epoch before; `MIN_TIMESTAMP` if unknown."""
        return self._before.get(uid, MIN_TIMESTAMP)

    def known(self) -> Mapping[str, int]:
        """Return the watermarks of sources and operators that have one, in milliseconds."""
        return {name: time_ms for name in self.names if (time_ms := self.of(name)) > MIN_TIMESTAMP}

    def after(self, largest: Iterable[ChannelTimestamp], processing_time_ms: int) -> EpochWatermarks:
        """Return the watermarks of the next epoch, from the largest timestamps that the tasks of this one saw.

        Raises:
            StreamJobError: There are too many channels.
        """
        if self._watermarks is None:
            return self
        watermarks = self._watermarks.copied()
        watermarks.end_epoch(largest, processing_time_ms)
        return self._followed_by(watermarks)

    def at_the_end(self) -> EpochWatermarks:
        """Return the watermarks of an epoch at the end of event time, also for operators without event time."""
        ended = copy.copy(self)
        ended._is_at_the_end = True
        if self._watermarks is None or self._event_time is None:
            return ended
        ended._watermarks = self._watermarks.copied()
        for source in self._event_time.nodes:
            ended._watermarks.end_source(source)
        return ended

    def state(self) -> WatermarkState | None:
        """Return the watermarks as the checkpoint of the epoch before stores them."""
        if self._watermarks is None:
            return None
        state = self._watermarks.snapshot()
        nodes = (evolve(node, epoch_watermark_ms=self._before.get(node.node)) for node in state.nodes)
        return evolve(state, nodes=tuple(nodes))

    def are_due(self, timers: Iterable[TimersDue]) -> bool:
        """Whether an event-time timer fires at the watermark of its operator.

        A timer that was due when it was registered fires when the watermark next advances.
        """
        return any(
            one.event_time_ms is not None
            and one.event_time_ms <= (now_ms := self.of(one.operator_uid))
            and now_ms > self.before_of(one.operator_uid)
            for one in timers
        )

    def next_epoch_ms(self, timers: Sequence[TimersDue]) -> int | None:
        """Return the processing time from which a no-data epoch has something to do; None if there is none."""
        if self.are_due(timers) or any(self.of(uid) > self.before_of(uid) for uid in self._followers):
            return MIN_TIMESTAMP
        times = [one.processing_time_ms for one in timers]
        return min(
            (time_ms for time_ms in (*times, self._idleness_due_ms(timers)) if time_ms is not None), default=None
        )

    def _idleness_due_ms(self, timers: Sequence[TimersDue]) -> int | None:
        """Return the first processing time at which an idle source lets one of these timers fire.

        None if no timer would fire: idleness alone needs no epoch.
        """
        if self._watermarks is None or all(one.event_time_ms is None for one in timers):
            return None
        times = self._watermarks.idleness_times_ms()
        # Binary search: over time more sources become idle, and watermarks never go back.
        first = bisect_left(times, True, key=lambda time_ms: self.after((), time_ms).are_due(timers))
        return times[first] if first < len(times) else None

    def _followed_by(self, watermarks: JobWatermarks) -> EpochWatermarks:
        following = copy.copy(self)
        following._watermarks = watermarks
        following._before = {uid: time_ms for uid in self._uids if (time_ms := self.of(uid)) > MIN_TIMESTAMP}
        return following


_ADVICE: Final = {
    AcknowledgementOutcome.CONFLICT: f"its task ran again and made other state than before. {REPEATABLE_ADVICE}. "
}


def too_late(epoch_id: int, limit: str) -> str:
    """Return the error message of an epoch that exceeded its timeout."""
    return (
        f"epoch {epoch_id} did not end within {limit} (epoch_timeout_s) and was aborted. The next start of the job "
        f"processes it again. Look for a function that never returns, or increase epoch_timeout_s"
    )


if __name__ == "__main__":
    print(transitions_as_text(), end="")  # noqa: T201
