"""The barriers that the channels of a subtask deliver: which channels stand still, and when the snapshot is taken.

What is decided comes from `checkpointing.barriers`, and is carried out on the channels here. They are aligned: nothing
behind a barrier gets into its checkpoint. A channel that has ended is waited for like any other, since it still carries
barriers. One checkpoint is under way at a time, so a barrier that ends another one is an error of the runtime.

The network has no clock: how long barriers take is not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from checkpointing.barriers.barrier_elements import Abort, BarrierArrived, Block, CheckpointBarrier, Resume, Trigger
from checkpointing.barriers.exactly_once_handler import ExactlyOnceHandler, always_aligned
from checkpointing.errors import IllegalTransitionError
from streamjobs.inprocess.network.channel import Channel

__all__ = ["ChannelBarriers"]


class ChannelBarriers:
    """See the module."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = tuple(channels)
        self._places = {channel: place for place, channel in enumerate(channels)}
        self._handler = ExactlyOnceHandler(len(channels), always_aligned)

    def take(
        self, channel: Channel, barrier: CheckpointBarrier, on_trigger: Callable[[CheckpointBarrier], None]
    ) -> None:
        """A barrier has come on a channel; ``on_trigger`` is called if it was the last one, before channels go on.

        Raises `IllegalTransitionError` for a barrier that does not belong there, and what ``on_trigger`` raises.
        """
        arrived = BarrierArrived(self._places[channel], barrier, barrier.created_ms)
        for action in self._handler.handle(arrived):
            _CARRY_OUT[type(action)](self, action, on_trigger)

    def _block(self, action: Block, on_trigger: Callable[[CheckpointBarrier], None]) -> None:
        self._channels[action.channel].is_blocked = True

    def _resume(self, action: Resume, on_trigger: Callable[[CheckpointBarrier], None]) -> None:
        for place in action.channels:
            self._channels[place].is_blocked = False

    def _trigger(self, action: Trigger, on_trigger: Callable[[CheckpointBarrier], None]) -> None:
        on_trigger(action.barrier)

    def _abort(self, action: Abort, on_trigger: Callable[[CheckpointBarrier], None]) -> None:
        raise IllegalTransitionError(
            "BARRIER", f"checkpoint {action.checkpoint_id} under way", f"another one came: {action.reason.value}"
        )


_CARRY_OUT: Final[Mapping[type, Callable[[ChannelBarriers, Any, Callable[[CheckpointBarrier], None]], None]]] = {
    Block: ChannelBarriers._block,
    Resume: ChannelBarriers._resume,
    Trigger: ChannelBarriers._trigger,
    Abort: ChannelBarriers._abort,
}
