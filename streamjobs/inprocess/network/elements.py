"""What travels on a channel beside watermarks and statuses: batches of records, barriers, the end of input."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, TypeAlias

from attrs import frozen

from checkpointing.barriers.barrier_elements import CheckpointBarrier
from streamjobs.time.timestamps import MIN_TIMESTAMP
from streamjobs.time.watermark_elements import WatermarkElement

__all__ = ["ChannelElement", "EndOfInput", "RecordBatch", "SubtaskId"]


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
    """Neither a record nor time follows on a channel. Barriers may: who has ended has state still."""

    END = "end"


ChannelElement: TypeAlias = RecordBatch | WatermarkElement | CheckpointBarrier | EndOfInput
