"""Barriers, the events that a barrier handler receives, and its answers.

A channel is blocked after each barrier that it delivers. A handler answers every barrier with `Block` or with `Resume`
for its channel. Times are milliseconds of one clock of the caller.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from statebackend.checkpoint.errors import InvariantViolationError


@frozen(kw_only=True)
class CheckpointBarrier:
    """A barrier of a checkpoint or savepoint.

    An unaligned barrier overtakes records. Any other may become unaligned ``alignment_timeout_ms`` after
    ``created_ms`` (None: never). A savepoint is never unaligned, because it has no in-flight records.
    """

    checkpoint_id: int
    created_ms: int = 0
    is_savepoint: bool = False
    is_unaligned: bool = False
    alignment_timeout_ms: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.is_savepoint and self.is_unaligned:
            raise InvariantViolationError(
                f"savepoint {self.checkpoint_id} cannot be unaligned: it contains no records in flight"
            )
        if self.alignment_timeout_ms is not None and self.alignment_timeout_ms < 0:
            raise InvariantViolationError(f"an alignment cannot time out after {self.alignment_timeout_ms} ms")

    @property
    def overtakes_from_ms(self) -> int | None:
        """The time from which it overtakes records, None if it never times out."""
        if self.is_savepoint or self.alignment_timeout_ms is None:
            return None
        return self.created_ms + self.alignment_timeout_ms


class EndOfChannel(enum.Enum):
    """The effect of a channel's end on a checkpoint that waits for its barrier."""

    ABORTS = "the checkpoint is aborted"
    IS_ALIGNED = "the channel counts as aligned"


class AbortReason(enum.Enum):
    """Why a checkpoint was aborted."""

    CANCELLED = "an upstream task cancelled it"
    SUBSUMED = "a newer checkpoint arrived before it was complete"
    END_OF_CHANNEL = "a channel ended before its barrier"
    TOO_MANY_PENDING = "too many newer checkpoints have started"


@frozen
class BarrierArrived:
    """A channel has delivered a barrier."""

    channel: int
    barrier: CheckpointBarrier
    now_ms: int


@frozen
class BarrierAnnounced:
    """A barrier is in a channel, after records that the channel has not delivered yet."""

    channel: int
    barrier: CheckpointBarrier
    now_ms: int


@frozen
class CancellationArrived:
    """A channel has delivered the cancellation of a checkpoint."""

    channel: int
    checkpoint_id: int
    now_ms: int


@frozen
class ChannelEnded:
    """A channel delivers no more elements."""

    channel: int
    now_ms: int


@frozen
class AlignmentTimedOut:
    """The time of `StartTimer` was reached."""

    checkpoint_id: int
    now_ms: int


@frozen
class DataPassed:
    """A channel has delivered records of this size in bytes."""

    channel: int
    byte_count: int


BarrierEvent = BarrierArrived | BarrierAnnounced | CancellationArrived | ChannelEnded | AlignmentTimedOut | DataPassed


@frozen
class Trigger:
    """The task takes its snapshot now, and forwards the barrier.

    ``start_delay_ms`` is the time from the creation of the barrier to its first arrival. ``alignment_ms`` is the time
    from the first arrival until now, in which other channels delivered ``alignment_bytes``.
    """

    barrier: CheckpointBarrier
    start_delay_ms: int
    alignment_ms: int
    alignment_bytes: int


@frozen
class Abort:
    """The task aborts a checkpoint, and forwards the cancellation."""

    checkpoint_id: int
    reason: AbortReason


@frozen
class Block:
    """The channel is blocked after its barrier."""

    channel: int


@frozen
class Resume:
    """The channels deliver elements again."""

    channels: tuple[int, ...]


@frozen
class Overtake:
    """The channel delivers the announced barrier next; the records that it overtakes belong to the checkpoint."""

    channel: int


@frozen
class StartCapture:
    """From now on, elements of the channels also belong to the checkpoint."""

    checkpoint_id: int
    channels: tuple[int, ...]


@frozen
class StopCapture:
    """From now on, elements of the channels do not belong to the checkpoint."""

    checkpoint_id: int
    channels: tuple[int, ...]


@frozen
class CaptureComplete:
    """The checkpoint has all its in-flight elements; holds the duration, and the bytes delivered meanwhile."""

    checkpoint_id: int
    capture_ms: int
    captured_bytes: int


@frozen
class StartTimer:
    """Send `AlignmentTimedOut` at that time."""

    checkpoint_id: int
    at_ms: int


@frozen
class StopTimer:
    """Do not send `AlignmentTimedOut`."""

    checkpoint_id: int


BarrierAction = (
    Trigger | Abort | Block | Resume | Overtake | StartCapture | StopCapture | CaptureComplete | StartTimer | StopTimer
)


class BarrierHandler(Protocol):
    """One task's handler; belongs to one thread."""

    @property
    def open_channels(self) -> frozenset[int]:
        """The channels that have not ended."""

    @property
    def blocked_channels(self) -> frozenset[int]:
        """The channels that are blocked after a barrier."""

    @property
    def captured_channels(self) -> frozenset[int]:
        """The channels whose elements also belong to a checkpoint."""

    @property
    def pending_checkpoint_ids(self) -> tuple[int, ...]:
        """The checkpoints that wait for barriers, oldest first."""

    def handle(self, event: BarrierEvent) -> Sequence[BarrierAction]:
        """Handle an event; return the actions in order.

        Raises `BarrierProtocolError`, changing nothing, for an element that a channel cannot deliver at this point.
        """
