"""A source in the network: what it is given to read waits here, and is read one piece per move.

A source of an alignment group that is too far ahead of the slowest reads no further until that has come closer; it
still sends barriers, which do not wait for what is not read. Whether a source has more to read is said from outside:
one that has not, and has read all, is waited for by nobody. Behind the barrier that its job stops with, nothing is read
any more; if the job is drained the end of time is in front of it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from checkpointing.barriers.barrier_elements import CheckpointBarrier
from checkpointing.errors import IllegalTransitionError
from checkpointing.metadata.checkpoint_sections import ChannelWatermark
from streamjobs.inprocess.network.channel import SubtaskOutput
from streamjobs.inprocess.network.elements import SubtaskId
from streamjobs.time.timestamps import MIN_TIMESTAMP
from streamjobs.time.watermark_alignment import AlignmentGroup
from streamjobs.time.watermark_elements import WatermarkStatus

__all__ = ["LastBarrier", "SourceSubtask", "SourceWork"]


class LastBarrier(enum.Enum):
    """How a job stops behind a barrier."""

    SUSPENDED = "where it is: it is to go on from there"
    DRAINED = "at the end of time: it is not to go on"


class SourceWork(Protocol):
    """What a source does with what it reads; it sends into the output of its subtask."""

    @property
    def watermark_ms(self) -> int:
        """How far the source is, for its alignment group; the smallest time if it does not know yet."""

    @property
    def is_idle(self) -> bool:
        """Whether its group does not wait for it."""

    def end_of_input(self) -> None:
        """Sends what an input sends that ends."""

    def channels(self) -> Sequence[ChannelWatermark]:
        """What is known of its channels, for a checkpoint."""

    def restore(self, watermark_ms: int, status: WatermarkStatus, channels: Sequence[ChannelWatermark]) -> None:
        """Goes on from what was sent and what was known of its channels."""


W = TypeVar("W", bound=SourceWork)


class SourceSubtask(Generic[W]):
    """See the module. ``group`` is that of the source, which has joined it under its id.

    ``on_barrier`` is called with the id of a checkpoint before the barrier of it is sent.
    """

    def __init__(
        self,
        subtask_id: SubtaskId,
        work: W,
        output: SubtaskOutput,
        group: AlignmentGroup[SubtaskId] | None = None,
        on_barrier: Callable[[int], None] | None = None,
    ) -> None:
        self.subtask_id = subtask_id
        self.work = work
        self.output = output
        self.has_ended = False
        """Whether it has been given its end; nothing can be fed behind that."""
        self._group = group
        self._unread: deque[Callable[[W], None]] = deque()
        self._barriers: deque[tuple[CheckpointBarrier, LastBarrier | None]] = deque()
        self._reads_on = True
        self._has_stopped = False
        self._has_sent_end = False
        self._on_barrier = on_barrier
        self._last_barrier_id = -1

    @property
    def unread(self) -> int:
        """How many pieces it has been given and not read."""
        return len(self._unread)

    @property
    def is_aligned(self) -> bool:
        """Whether it belongs to an alignment group."""
        return self._group is not None

    @property
    def lead_ms(self) -> int:
        """How far it is, if others wait for it; the slowest reads first."""
        return MIN_TIMESTAMP if self._group is None else self.work.watermark_ms

    @property
    def is_paused(self) -> bool:
        """Whether it waits for others of its group."""
        return self._group is not None and self.subtask_id in self._group.paused()

    @property
    def can_move(self) -> bool:
        """Whether it may send a barrier, for which it needs no room, or read."""
        if self._barriers:
            return True
        return self.output.has_room and bool(self._unread) and not (self._has_stopped or self.is_paused)

    def feed(self, reading: Callable[[W], None]) -> None:
        """Something to read, which its work is told when it is; raises `IllegalTransitionError` behind the end."""
        if self.has_ended:
            raise IllegalTransitionError("FEED", "ENDED", f"the source {self.subtask_id.node!r} has ended")
        self._unread.append(reading)

    def feed_end(self) -> None:
        """The end of its input; raises `IllegalTransitionError` behind the end."""
        self.feed(lambda work: work.end_of_input())
        self.has_ended = True

    def read_on(self, reads_on: bool) -> None:
        """Says whether more will come to read."""
        self._reads_on = reads_on
        self._report()

    def trigger(self, barrier: CheckpointBarrier, last: LastBarrier | None = None) -> None:
        """Sends a barrier before anything else is read; one that is no newer than those before came twice or late.

        With ``last`` the job stops with it.
        """
        if barrier.checkpoint_id > self._last_barrier_id:
            self._last_barrier_id = barrier.checkpoint_id
            self._barriers.append((barrier, last))

    def step(self) -> None:
        """Sends a barrier, or reads a piece; raises what reading raises."""
        if self._barriers:
            barrier, last = self._barriers.popleft()
            self._has_stopped = self._has_stopped or last is not None
            if last is LastBarrier.DRAINED and not self._has_sent_end:
                self.work.end_of_input()
                self._send_end()
            if self._on_barrier is not None:
                self._on_barrier(barrier.checkpoint_id)
            self.output.send_barrier(barrier)
            return
        self._unread.popleft()(self.work)
        if self.has_ended and not self._unread:
            self._send_end()
        self._report()

    def _send_end(self) -> None:
        self._has_sent_end = True
        self.output.send_end()

    def _report(self) -> None:
        if self._group is None:
            return
        has_read_all = self.has_ended or not (self._reads_on or self._unread)
        if has_read_all or self.work.is_idle:
            self._group.idle(self.subtask_id)
        else:
            self._group.watermark(self.subtask_id, self.work.watermark_ms)
