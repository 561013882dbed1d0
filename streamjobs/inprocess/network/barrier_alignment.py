"""Where barriers meet: a subtask with several channels waits until the barrier has come on each of them.

Until it has, a channel on which it came is blocked, so that nothing behind the barrier gets into the checkpoint. A
channel that has ended is waited for like any other: it still carries barriers. One checkpoint is under way at a time.

This is the place of the barrier handlers: whoever lets barriers overtake, or counts without blocking, takes the place
of `BarrierAlignment`, and answers `take` with what is to be done.
"""

from __future__ import annotations

from collections.abc import Sequence

from checkpointing.errors import IllegalTransitionError
from streamjobs.inprocess.network.channel import Channel
from streamjobs.inprocess.network.elements import Barrier

__all__ = ["BarrierAlignment"]


class BarrierAlignment:
    """Aligns the barriers of some channels; what does not belong here raises `IllegalTransitionError`."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self._barrier: Barrier | None = None

    def take(self, channel: Channel, barrier: Barrier) -> bool:
        """A barrier has come on a channel; returns whether it was the last one, and nothing is blocked any more."""
        if self._barrier not in (None, barrier) or channel.is_blocked:
            under_way = "none" if self._barrier is None else self._barrier.checkpoint_id
            raise IllegalTransitionError("BARRIER", f"checkpoint {under_way}", f"that of {barrier.checkpoint_id} came")
        self._barrier = barrier
        channel.is_blocked = True
        if not all(one.is_blocked for one in self._channels):
            return False
        for one in self._channels:
            one.is_blocked = False
        self._barrier = None
        return True
