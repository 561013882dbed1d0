"""The watermark of one operator, made of what its inputs send; and what the operator may send on.

Every input has a valve over its channels: whoever sends to it, each part of a union by itself. The watermark of an
operator with one input is that of the valve. One with several inputs takes the smallest of those that are not idle, and
the largest if all are. Other than in a valve, an input that returns behind the operator holds it until it has caught
up: that is how Flink has it, where valves belong to inputs and the operator combines what comes out of them.

Other than in Flink, a channel that has ended, at `END_OF_TIME`, is removed from its valve, and an input all of whose
channels have ended is not counted. So an operator reaches the end of time when all its channels have ended, and not
when one has and the others are idle.

What comes out for an event is what the operator does in turn: a watermark that it advances to, a status that it
becomes. An outlet stands between a sender and its readers: it drops watermarks while the last status was idle.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from attrs import frozen

from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.status_watermark_valve import StatusWatermarkValve, ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import (
    END_OF_TIME,
    Watermark,
    WatermarkElement,
    WatermarkStatus,
    check_timestamp,
)

__all__ = ["OperatorWatermarkState", "OperatorWatermarks", "WatermarkOutlet"]

C = TypeVar("C", bound=Hashable)


@frozen
class OperatorWatermarkState(Generic[C]):
    """All that is known of an operator, as plain data: the watermark it is at, and the valve of each input."""

    watermark_ms: int
    inputs: tuple[ValveState[C], ...]

    def __attrs_post_init__(self) -> None:
        check_timestamp("the watermark of an operator", self.watermark_ms)


class _Input(Generic[C]):
    """What came out of the valve of an input; that several things may come out at once is why it is kept beside it.

    The valve has the channels that have not ended. Of an input that has ended it has the last one.
    """

    __slots__ = ("_ended", "_valve", "is_idle", "watermark_ms")

    def __init__(self, valve: StatusWatermarkValve[C], ended: Iterable[C] = ()) -> None:
        self._valve = valve
        self._ended = dict.fromkeys(ended)
        self.watermark_ms = valve.watermark_ms
        self.is_idle = valve.status.is_idle

    @classmethod
    def restored(cls, former: ValveState[C], channels: Collection[C]) -> _Input[C]:
        """An input of these channels that goes on from a snapshot, which may be of others."""
        ended = [one.channel for one in former.channels if one.watermark_ms == MAX_TIMESTAMP and not one.is_idle]
        running = tuple(one for one in former.channels if one.channel not in ended)
        if not running or set(channels) <= set(ended):
            ended, running = [], former.channels
        valve = StatusWatermarkValve.restored(ValveState(former.watermark_ms, running))
        for channel in channels:
            if channel not in valve.channels and channel not in ended:
                valve.add_channel(channel)
        for channel in valve.channels:
            if channel not in channels:
                valve.remove_channel(channel)
        return cls(valve, [one for one in ended if one in channels])

    @property
    def channels(self) -> tuple[C, ...]:
        """The channels that it has, ended or not."""
        return (*self._valve.channels, *self._ended)

    @property
    def has_ended(self) -> bool:
        """Whether all its channels have ended."""
        return self.watermark_ms == MAX_TIMESTAMP

    def take(self, channel: C, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """What comes out of the valve; a channel that has ended says nothing more."""
        if channel in self._ended:
            return ()
        if element == END_OF_TIME and len(self._valve.channels) > 1 and self._is_active(channel):
            sent = self._valve.remove_channel(channel)
            self._ended[channel] = None
            return sent
        return self._valve.take(channel, element)

    def snapshot(self) -> ValveState[C]:
        """All that is known; the channels that have ended are active in it, and at the end of time."""
        state = self._valve.snapshot()
        ended = (ValveChannel(one, MAX_TIMESTAMP, is_idle=False) for one in self._ended)
        return ValveState(state.watermark_ms, (*state.channels, *ended))

    def _is_active(self, channel: C) -> bool:
        return any(one.channel == channel and not one.is_idle for one in self._valve.snapshot().channels)


class OperatorWatermarks(Generic[C]):
    """The watermark of an operator, for the channels of each of its inputs.

    What does not belong here raises `IllegalTransitionError` and changes nothing.
    """

    __slots__ = ("_inputs", "_watermark_ms")

    def __init__(self, inputs: Sequence[Iterable[C]]) -> None:
        """Raises `ValueError` for an operator without inputs, and for an input without channels or with one twice."""
        if not inputs:
            raise ValueError("an operator has inputs")
        self._inputs = [_Input(StatusWatermarkValve(channels)) for channels in inputs]
        self._watermark_ms = MIN_TIMESTAMP

    @property
    def watermark_ms(self) -> int:
        """What the operator is at; the smallest time if it has no watermark yet."""
        return self._watermark_ms

    @property
    def status(self) -> WatermarkStatus:
        """Idle if all its inputs are that have not ended."""
        return WatermarkStatus.IDLE if all(one.is_idle for one in self._running()) else WatermarkStatus.ACTIVE

    def take(self, input_index: int, channel: C, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """What the operator does, in this order, when a channel of an input sends this."""
        if not 0 <= input_index < len(self._inputs):
            name = "WATERMARK" if isinstance(element, Watermark) else element.name
            raise IllegalTransitionError(name, self.status.name, f"there is no input {input_index}")
        one = self._inputs[input_index]
        return tuple(done for sent in one.take(channel, element) for done in self._take(one, sent))

    def snapshot(self) -> OperatorWatermarkState[C]:
        """All that is known."""
        return OperatorWatermarkState(self._watermark_ms, tuple(one.snapshot() for one in self._inputs))

    def restore(self, state: OperatorWatermarkState[C], sent: WatermarkStatus) -> tuple[WatermarkElement, ...]:
        """Goes on from a snapshot, whose inputs may have been others; returns what the operator does then.

        ``sent`` is the status that it had sent last. A channel that is no more is not waited for. One that was not
        there is active and behind, so that it is not waited for until it has caught up. An input that was not there
        holds the operator.
        """
        self._watermark_ms = state.watermark_ms
        for index, former in enumerate(state.inputs[: len(self._inputs)]):
            self._inputs[index] = _Input.restored(former, self._inputs[index].channels)
        status = () if self.status is sent else (self.status,)
        return (*self._advance(), *status) if self.status.is_idle else (*status, *self._advance())

    def _take(self, one: _Input[C], element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        was = self.status
        if isinstance(element, Watermark):
            one.watermark_ms = element.timestamp_ms
        else:
            one.is_idle = element.is_idle
        return (*self._advance(), *(() if self.status is was else (self.status,)))

    def _running(self) -> Sequence[_Input[C]]:
        """The inputs that have not ended; all of them if all have."""
        return [one for one in self._inputs if not one.has_ended] or self._inputs

    def _advance(self) -> tuple[WatermarkElement, ...]:
        running = self._running()
        awaited = [one.watermark_ms for one in running if not one.is_idle]
        combined_ms = min(awaited) if awaited else max(one.watermark_ms for one in running)
        if combined_ms <= self._watermark_ms:
            return ()
        self._watermark_ms = combined_ms
        return (Watermark(combined_ms),)


class WatermarkOutlet:
    """What a sender may send on: no watermark while it is idle, and no status twice. It is active at first."""

    __slots__ = ("_status",)

    def __init__(self, status: WatermarkStatus = WatermarkStatus.ACTIVE) -> None:
        self._status = status

    @property
    def status(self) -> WatermarkStatus:
        """What it said last."""
        return self._status

    def passes(self, element: WatermarkElement) -> bool:
        """Whether this is to be sent on; a status that is, is the one from now on."""
        if isinstance(element, Watermark):
            return not self._status.is_idle
        changed, self._status = self._status is not element, element
        return changed
