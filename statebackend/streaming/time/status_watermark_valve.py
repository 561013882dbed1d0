"""The valve that combines the watermarks of the channels of an input (Flink's ``StatusWatermarkValve``).

It sends the minimum over the aligned channels. A channel is aligned if it is active and its watermark is not smaller
than the watermark of the valve. A channel that returns from idleness with a smaller watermark is not waited for until
it has caught up. The state of a channel follows from its status, its watermark W and the watermark of the valve V:

| state of the channel  | watermark T        | idle                 | active                               |
|-----------------------|--------------------|----------------------|--------------------------------------|
| aligned: active, W>=V | W = max(W, T) (1)  | idle (1) (2)         | nothing                              |
| lagging: active, W<V  | W = max(W, T) (1)  | idle (2)             | nothing                              |
| idle                  | dropped            | nothing              | aligned if W>=V (1), else lagging (3)|

1. The valve advances to the smallest watermark of aligned channels if that is larger than V, and sends it. This happens
   when there are aligned channels and none of them *holds* the valve (W = V). Two counters are enough to check it.
2. When the last active channel becomes idle and held the valve, the valve sends the largest watermark of all channels.
   In any case it then sends that it is idle.
3. When the first channel becomes active, the valve sends that it is active, before any watermark.

Invariants: watermarks only increase. No watermark is sent while the valve is idle. If there are aligned channels, at
least one of them holds the valve.

A channel that is added while the valve runs is active. Removing a channel has the effect of its idleness.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from attrs import frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import (
    Watermark,
    WatermarkElement,
    WatermarkStatus,
    check_timestamp,
)

__all__ = ["StatusWatermarkValve", "ValveChannel", "ValveState"]

C = TypeVar("C", bound=Hashable)


@frozen
class ValveChannel(Generic[C]):
    """The state of one channel: its watermark, or the smallest time, and whether it is idle."""

    channel: C
    watermark_ms: int
    is_idle: bool

    def __attrs_post_init__(self) -> None:
        check_timestamp("the watermark of a channel", self.watermark_ms)


@frozen
class ValveState(Generic[C]):
    """The state of a valve as plain data: its last watermark and its channels. Raises `ValueError` if invalid."""

    watermark_ms: int
    channels: tuple[ValveChannel[C], ...]

    def __attrs_post_init__(self) -> None:
        check_timestamp("the watermark of a valve", self.watermark_ms)
        if len({one.channel for one in self.channels}) != len(self.channels) or not self.channels:
            raise ValueError("a valve needs at least one channel, and no channel twice")


class _Channel:
    __slots__ = ("is_idle", "watermark_ms")

    def __init__(self, watermark_ms: int, is_idle: bool) -> None:
        self.watermark_ms = watermark_ms
        self.is_idle = is_idle


class StatusWatermarkValve(Generic[C]):
    """Combines the watermarks of channels, which have any hashable names.

    Each event returns the elements to send, in order. Impossible events raise `IllegalTransitionError` and change
    nothing.
    """

    __slots__ = ("_active", "_aligned", "_channels", "_holding", "_watermark_ms")

    def __init__(self, channels: Iterable[C]) -> None:
        """Create a valve of active channels without watermarks. Raises `ValueError` for no or duplicate channels."""
        state = ValveState(MIN_TIMESTAMP, tuple(ValveChannel(name, MIN_TIMESTAMP, False) for name in channels))
        self._watermark_ms = state.watermark_ms
        self._channels = {one.channel: _Channel(one.watermark_ms, one.is_idle) for one in state.channels}
        self._active = self._aligned = self._holding = len(self._channels)

    @classmethod
    def restored(cls, state: ValveState[C]) -> StatusWatermarkValve[C]:
        """Create a valve from a snapshot."""
        valve = cls(one.channel for one in state.channels)
        valve._watermark_ms = state.watermark_ms
        for one in state.channels:
            valve._channels[one.channel] = _Channel(one.watermark_ms, one.is_idle)
        active = [one for one in state.channels if not one.is_idle]
        valve._active = len(active)
        valve._aligned = sum(one.watermark_ms >= state.watermark_ms for one in active)
        valve._holding = sum(one.watermark_ms == state.watermark_ms for one in active)
        return valve

    def copied(self) -> StatusWatermarkValve[C]:
        """Return an independent copy."""
        other = copy.copy(self)
        other._channels = {name: _Channel(one.watermark_ms, one.is_idle) for name, one in self._channels.items()}
        return other

    def snapshot(self) -> ValveState[C]:
        """The state as plain data."""
        return ValveState(
            self._watermark_ms,
            tuple(ValveChannel(name, one.watermark_ms, one.is_idle) for name, one in self._channels.items()),
        )

    @property
    def watermark_ms(self) -> int:
        """The last watermark sent, or the smallest time."""
        return self._watermark_ms

    @property
    def status(self) -> WatermarkStatus:
        """Idle if all its channels are idle."""
        return WatermarkStatus.ACTIVE if self._active else WatermarkStatus.IDLE

    @property
    def channels(self) -> tuple[C, ...]:
        """The names of its channels."""
        return tuple(self._channels)

    def take(self, channel: C, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """Process a watermark or a status of a channel."""
        if isinstance(element, Watermark):
            return self.input_watermark(channel, element.timestamp_ms)
        return self.input_status(channel, element)

    def input_watermark(self, channel: C, timestamp_ms: int) -> tuple[WatermarkElement, ...]:
        """Process a watermark of a channel. Raises `ValueError` for an invalid timestamp."""
        return self.input_watermarks({channel: timestamp_ms})

    def input_watermarks(self, timestamps_ms: Mapping[C, int]) -> tuple[WatermarkElement, ...]:
        """Process watermarks of several channels at once, so that their order does not matter."""
        raised = [(self._channel(channel, "WATERMARK"), time_ms) for channel, time_ms in timestamps_ms.items()]
        for _, time_ms in raised:
            check_timestamp("a watermark", time_ms)
        for one, time_ms in raised:
            if not one.is_idle and time_ms > one.watermark_ms:
                self._count(one, -1)
                one.watermark_ms = time_ms
                self._count(one, 1)
        return self._advance()

    def input_status(self, channel: C, status: WatermarkStatus) -> tuple[WatermarkElement, ...]:
        """Process a status of a channel. An unchanged status has no effect."""
        one = self._channel(channel, status.name)
        if one.is_idle is status.is_idle:
            return ()
        return self._become_idle(one) if status.is_idle else self._become_active(one)

    def add_channel(self, channel: C) -> tuple[WatermarkElement, ...]:
        """Add a channel, active and without a watermark. It is not waited for if the valve has a watermark."""
        if channel in self._channels:
            raise IllegalTransitionError(
                "ADD_CHANNEL", self.status.name, f"channel {format_value(channel)} exists already"
            )
        one = self._channels[channel] = _Channel(MIN_TIMESTAMP, is_idle=True)
        return self._become_active(one)

    def remove_channel(self, channel: C) -> tuple[WatermarkElement, ...]:
        """Remove a channel. Raises `IllegalTransitionError` for the only channel."""
        one = self._channel(channel, "REMOVE_CHANNEL")
        if len(self._channels) == 1:
            raise IllegalTransitionError(
                "REMOVE_CHANNEL", self.status.name, f"{format_value(channel)} is the only channel"
            )
        sent = () if one.is_idle else self._become_idle(one)
        del self._channels[channel]
        return sent

    def _become_idle(self, one: _Channel) -> tuple[WatermarkElement, ...]:
        held = one.watermark_ms == self._watermark_ms
        self._count(one, -1)
        self._active -= 1
        one.is_idle = True
        if self._active:
            return self._advance()
        largest_ms = max(channel.watermark_ms for channel in self._channels.values())
        if not held or largest_ms <= self._watermark_ms:
            return (WatermarkStatus.IDLE,)
        self._watermark_ms = largest_ms
        return (Watermark(largest_ms), WatermarkStatus.IDLE)

    def _become_active(self, one: _Channel) -> tuple[WatermarkElement, ...]:
        one.is_idle = False
        self._active += 1
        self._count(one, 1)
        first = (WatermarkStatus.ACTIVE,) if self._active == 1 else ()
        return (*first, *self._advance())

    def _count(self, one: _Channel, by: int) -> None:
        """Add an active channel to the counters, or remove it."""
        self._aligned += by * (one.watermark_ms >= self._watermark_ms)
        self._holding += by * (one.watermark_ms == self._watermark_ms)

    def _advance(self) -> tuple[WatermarkElement, ...]:
        if self._holding or not self._aligned:
            return ()
        aligned = [
            one.watermark_ms
            for one in self._channels.values()
            if not one.is_idle and one.watermark_ms > self._watermark_ms
        ]
        self._watermark_ms = min(aligned)
        self._holding = aligned.count(self._watermark_ms)
        return (Watermark(self._watermark_ms),)

    def _channel(self, channel: C, event: str) -> _Channel:
        one = self._channels.get(channel)
        if one is None:
            raise IllegalTransitionError(event, self.status.name, f"there is no channel {format_value(channel)}")
        return one
