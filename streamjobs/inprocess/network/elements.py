"""What travels on a channel beside watermarks and statuses: batches of records, barriers, the end of input.

What is *in flight* belongs to a checkpoint whose barrier overtakes it: records, watermarks and statuses, in their
order, since each is what it is by what was before it (a record is late behind a watermark). The rest tells of the run
and not of the stream: barriers, and the end of input with the end of time before it, which a source says again after a
restore.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from typing import Any, TypeAlias

from attrs import evolve, frozen

from checkpointing.barriers.barrier_elements import CheckpointBarrier
from streamjobs.time.timestamps import MIN_TIMESTAMP
from streamjobs.time.watermark_elements import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus

__all__ = [
    "CancelledCheckpoint",
    "ChannelElement",
    "EndOfInput",
    "InFlight",
    "OvertakingBarrier",
    "RecordBatch",
    "SubtaskId",
    "is_in_flight",
    "kept",
]


@frozen(order=True)
class SubtaskId:
    """A subtask of a node: operators go by their uid, sources by the name that checkpoints know them by."""

    node: str
    index: int


@frozen
class RecordBatch:
    """Records for one input of a subtask, in order; keys and key groups beside them if the input is keyed.

    ``timestamps`` are None in a job without event time. ``sender_watermark_ms`` is the watermark that the sender was at
    when it sent them, for whoever watches.
    """

    input_index: int
    records: Sequence[Any]
    timestamps: Sequence[int | None] | None = None
    keys: Sequence[Any] = ()
    key_groups: Sequence[int] = ()
    sender_watermark_ms: int = MIN_TIMESTAMP


class EndOfInput(enum.Enum):
    """What follows no more on a channel."""

    END = "neither a record nor time, but barriers may: who has ended has state still"
    CLOSED = "nothing: who has closed takes part in no further checkpoint"


@frozen
class CancelledCheckpoint:
    """A checkpoint is given up by who sends this; no barrier of it need follow."""

    checkpoint_id: int


@frozen
class OvertakingBarrier:
    """A barrier as it comes out in front of what was sent before it, and of that what is in flight."""

    barrier: CheckpointBarrier
    overtaken: Sequence[InFlight]


InFlight: TypeAlias = RecordBatch | WatermarkElement

ChannelElement: TypeAlias = InFlight | CheckpointBarrier | CancelledCheckpoint | EndOfInput


def kept(element: InFlight) -> InFlight:
    """The element for a checkpoint that is written later: what a function makes of its records does not reach it."""
    return evolve(element, records=copy.deepcopy(element.records)) if isinstance(element, RecordBatch) else element


def is_in_flight(element: ChannelElement) -> bool:
    """Whether it belongs to a checkpoint whose barrier overtakes it; an `InFlight` then."""
    return isinstance(element, RecordBatch | Watermark | WatermarkStatus) and element != END_OF_TIME
