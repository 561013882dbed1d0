"""What an epoch is, what is told about it, and what it asks for: the data of events and actions.

Each event is judged by `statebackend.spark.epochs`, each action carried out by `statebackend.spark.epoch_driver`.
"""

from __future__ import annotations

from collections.abc import Collection

from attrs import frozen

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.pending_checkpoint import CompletedCheckpoint
from statebackend.checkpoint.state_handles import SubtaskState


@frozen
class TimePassed:
    """Time has something to do, and there is no batch: what is due at this processing time fires without records.

    ``is_drain`` says that the epoch is at the end of event time.
    """

    processing_time_ms: int
    is_drain: bool = False


@frozen
class Epoch:
    """An epoch: the id of its checkpoint, which is what users see, and the batch that its records come from.

    One without records is of the batch before; ``time_passed`` says why there is one.
    """

    checkpoint_id: int
    batch_id: int
    offsets: bytes = b""
    time_passed: TimePassed | None = None


@frozen
class DurableEpoch:
    """The last epoch whose effects are durable.

    ``offsets`` are empty where they are not known. ``is_own`` says that its checkpoint is one of this job directory,
    and not the savepoint that the job began from.
    """

    checkpoint_id: int
    batch_id: int
    offsets: bytes
    is_own: bool


@frozen
class BatchArrived:
    """The engine brings a batch; ``offsets`` say what its sources reach at its end, and are empty without a log."""

    batch_id: int
    offsets: bytes = b""


@frozen
class Triggered:
    """The tasks of the epoch are known. Without any there is no state and no checkpoint."""

    tasks: Collection[TaskId]
    now_ms: int


@frozen
class Acknowledged:
    """A task has acknowledged."""

    acknowledgement: Acknowledgement


@frozen
class ActionReturned:
    """The action has returned, so that all tasks have ended."""


@frozen
class AllIn:
    """No acknowledgement comes any more. Times are those of a monotonic clock."""

    now_ms: int


@frozen
class Stored:
    """The checkpoint is stored."""


@frozen
class Committed:
    """The sink has committed."""


@frozen
class Failed:
    """Something went wrong that this table does not know of."""

    reason: str


@frozen
class Open:
    """Open the epoch, and say with `Triggered` which tasks take part."""

    epoch: Epoch


@frozen
class RunAction:
    """Run the action; the tasks acknowledge."""

    epoch: Epoch


@frozen
class Discard:
    """Delete the files of this state that nobody else needs; those in use are not to be touched."""

    states: tuple[SubtaskState, ...]
    in_use: frozenset[str]


@frozen
class Store:
    """Store the checkpoint."""

    epoch: Epoch
    completed: CompletedCheckpoint


@frozen
class Commit:
    """Commit the sink. ``is_stored`` is False for an epoch without state."""

    epoch: Epoch
    is_stored: bool


@frozen
class CommitAgain:
    """Commit the output of an epoch of before once more."""

    checkpoint_id: int


@frozen
class AbortSink:
    """Let the sink forget what it has staged."""

    epoch: Epoch


@frozen
class Reject:
    """Raise this."""

    error: Exception
