"""The watermark of one operator, made of what its inputs send; and what the operator may send on.

Every input has a valve over its channels: whoever sends to it, each part of a union by itself. The watermark of an
operator with one input is that of the valve. One with several inputs takes the smallest of those that are not idle, and
the largest if all are. Other than in a valve, an input that returns behind the operator holds it until it has caught
up: that is how Flink has it, where valves belong to inputs and the operator combines what comes out of them.

Unlike in Flink, an operator reaches the end of time only when all its channels have ended, and not when one has ended
and the others are idle:

| a channel ends        | what happens                                                                             |
|-----------------------|------------------------------------------------------------------------------------------|
| while it is active    | it is removed from its valve; an input whose channels have all ended is not counted      |
| while it is idle      | it stays idle, as in Flink: its end wakes nobody                                         |
| as the last one       | the operator goes to the end of time if any channel ended while active; else nothing     |

A channel ends with `END_OF_TIME`. An idle sender sends it too: then it only says that nothing follows. An operator that
ends while it is idle sends it on without advancing.

`OperatorWatermarks.take` returns what the operator does, in order: a watermark that it advances to, a status that it
becomes. An outlet is between a sender and its readers: while the last status is idle it drops all watermarks but the
end.
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
    """The state of an operator as plain data: its watermark and the valve of each input.

    ``ended_idle`` names the channels of each input that ended while they were idle. No checkpoint stores it.
    """

    watermark_ms: int
    inputs: tuple[ValveState[C], ...]
    ended_idle: tuple[tuple[C, ...], ...] = ()

    def __attrs_post_init__(self) -> None:
        check_timestamp("the watermark of an operator", self.watermark_ms)


class _Input(Generic[C]):
    """An input with the valve of its channels, and with what the operator has taken from that valve so far.

    The valve has all channels but those that ended while they were active. When all have ended it has those too.
    """

    __slots__ = ("_ended_idle", "_removed", "_valve", "is_idle", "watermark_ms")

    def __init__(self, valve: StatusWatermarkValve[C], removed: Iterable[C] = (), ended_idle: Iterable[C] = ()) -> None:
        self._valve = valve
        self._removed = dict.fromkeys(removed)
        self._ended_idle = dict.fromkeys(ended_idle)
        self.watermark_ms = valve.watermark_ms
        self.is_idle = valve.status.is_idle

    @classmethod
    def restored(cls, former: ValveState[C], ended_idle: Collection[C], channels: Collection[C]) -> _Input[C]:
        """An input with these channels that goes on from a snapshot, which may be of others."""
        removed = [one.channel for one in former.channels if one.watermark_ms == MAX_TIMESTAMP and not one.is_idle]
        running = tuple(one for one in former.channels if one.channel not in removed)
        has_ended = former.watermark_ms == MAX_TIMESTAMP or set(channels) <= {*removed, *ended_idle}
        if has_ended or not running:
            removed, running = [], former.channels
        valve = StatusWatermarkValve.restored(ValveState(former.watermark_ms, running))
        for channel in channels:
            if channel not in valve.channels and channel not in removed:
                valve.add_channel(channel)
        for channel in valve.channels:
            if channel not in channels:
                valve.remove_channel(channel)
        return cls(valve, *([one for one in ended if one in channels] for ended in (removed, ended_idle)))

    @property
    def channels(self) -> tuple[C, ...]:
        """All its channels, ended or not."""
        return (*self._valve.channels, *self._removed)

    @property
    def ended_idle(self) -> tuple[C, ...]:
        """The channels that ended while they were idle."""
        return tuple(self._ended_idle)

    @property
    def is_at_end_of_time(self) -> bool:
        """Whether all its channels have ended, one of them at least while it was active."""
        return self._valve.watermark_ms == MAX_TIMESTAMP

    @property
    def has_ended(self) -> bool:
        """Whether all its channels have ended."""
        return self.is_at_end_of_time or all(one in self._ended_idle for one in self._valve.channels)

    def take(self, channel: C, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """Returns what comes out of the valve. After the end of time, that is all that Flink's valve lets out."""
        if self.is_at_end_of_time:
            return self._valve.take(channel, element)
        if channel in self._removed:
            return ()
        if element == END_OF_TIME and channel in self._valve.channels:
            return self._end(channel)
        if element is WatermarkStatus.ACTIVE:
            # A test or a function may send the end of time while it is idle, and go on.
            self._ended_idle.pop(channel, None)
        return self._valve.take(channel, element)

    def snapshot(self) -> ValveState[C]:
        """The channels, of which the removed ones are active and at the end of time."""
        state = self._valve.snapshot()
        removed = (ValveChannel(one, MAX_TIMESTAMP, is_idle=False) for one in self._removed)
        return ValveState(state.watermark_ms, (*state.channels, *removed))

    def _end(self, channel: C) -> tuple[WatermarkElement, ...]:
        ended_active = [*self._removed]
        if any(one.channel == channel and one.is_idle for one in self._valve.snapshot().channels):
            self._ended_idle[channel] = None
        else:
            ended_active.append(channel)
        if not all(one in self._ended_idle or one in ended_active for one in self._valve.channels):
            if channel not in ended_active:
                return ()
            self._removed[channel] = None
            return self._valve.remove_channel(channel)
        sent = tuple(status for one in self._removed for status in self._valve.add_channel(one))
        self._removed.clear()
        return (*sent, *self._valve.input_watermarks(dict.fromkeys(ended_active, MAX_TIMESTAMP)))


class OperatorWatermarks(Generic[C]):
    """The watermark of an operator, for the channels of each of its inputs.

    What does not belong here raises `IllegalTransitionError` and changes nothing.
    """

    __slots__ = ("_inputs", "_status", "_watermark_ms")

    def __init__(self, inputs: Sequence[Iterable[C]]) -> None:
        """Raises `ValueError` for an operator without inputs, and for an input without channels or with one twice."""
        if not inputs:
            raise ValueError("an operator has inputs")
        self._inputs = [_Input(StatusWatermarkValve(channels)) for channels in inputs]
        self._watermark_ms = MIN_TIMESTAMP
        self._status = WatermarkStatus.ACTIVE

    @property
    def watermark_ms(self) -> int:
        """The current watermark; the smallest time if there is none yet."""
        return self._watermark_ms

    @property
    def status(self) -> WatermarkStatus:
        """Idle if all its inputs are, apart from those at the end of time while others have not ended."""
        return self._status

    @property
    def has_ended(self) -> bool:
        """Whether all channels of all inputs have ended; if all were idle then, it is not at the end of time."""
        return all(one.has_ended for one in self._inputs)

    def take(self, input_index: int, channel: C, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """Takes what a channel of an input sends; returns what the operator does, in order."""
        if not 0 <= input_index < len(self._inputs):
            name = "WATERMARK" if isinstance(element, Watermark) else element.name
            raise IllegalTransitionError(name, self.status.name, f"there is no input {input_index}")
        one = self._inputs[input_index]
        done: tuple[WatermarkElement, ...] = ()
        for sent in one.take(channel, element):
            if isinstance(sent, Watermark):
                one.watermark_ms = sent.timestamp_ms
            else:
                one.is_idle = sent.is_idle
            done += self._combined()
        # Nothing comes out of the valve of an idle channel that ends, but it may be the last one.
        return done + self._combined() if element == END_OF_TIME else done

    def snapshot(self) -> OperatorWatermarkState[C]:
        """Its state as plain data."""
        return OperatorWatermarkState(
            self._watermark_ms,
            tuple(one.snapshot() for one in self._inputs),
            tuple(one.ended_idle for one in self._inputs),
        )

    def restore(self, state: OperatorWatermarkState[C], sent: WatermarkStatus) -> tuple[WatermarkElement, ...]:
        """Goes on from a snapshot, whose inputs may have been others; returns what the operator does then.

        ``sent`` is the status that it had sent last. A channel that is gone is not waited for. A new channel is active
        and behind, so it is not waited for until it has caught up. A new input holds the operator.
        """
        self._watermark_ms, self._status = state.watermark_ms, sent
        for index, former in enumerate(state.inputs[: len(self._inputs)]):
            ended_idle = state.ended_idle[index] if state.ended_idle else ()
            self._inputs[index] = _Input.restored(former, ended_idle, self._inputs[index].channels)
        return self._combined()

    def _combined(self) -> tuple[WatermarkElement, ...]:
        """Combines the inputs; returns what changes. A watermark comes while the operator is active."""
        inputs = self._inputs if self.has_ended else [one for one in self._inputs if not one.is_at_end_of_time]
        awaited = [one.watermark_ms for one in inputs if not one.is_idle]
        combined_ms = min(awaited) if awaited else max(one.watermark_ms for one in inputs)
        advanced: tuple[WatermarkElement, ...] = ()
        if combined_ms > self._watermark_ms:
            self._watermark_ms = combined_ms
            advanced = (Watermark(combined_ms),)
        status = WatermarkStatus.ACTIVE if awaited else WatermarkStatus.IDLE
        if status is self._status:
            return advanced
        self._status = status
        return (*advanced, status) if status.is_idle else (status, *advanced)


class WatermarkOutlet:
    """Decides what a sender sends: while it is idle no watermark but the end, and no status twice.

    It is active at first.
    """

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
            return element == END_OF_TIME or not self._status.is_idle
        changed, self._status = self._status is not element, element
        return changed
