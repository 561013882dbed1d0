"""The watermark of one operator, combined from the watermarks of its inputs.

Every input has a valve that combines its channels. A channel is one sender; each stream of a union is its own channel.
The watermark of an operator with one input is the watermark of the valve. With several inputs it is the minimum over
the inputs that are not idle, or the maximum if all are idle. An input that returns from idleness with a smaller
watermark holds back the operator until it has caught up, unlike a channel of a valve. Flink does the same.

Unlike in Flink, an operator reaches the end of time only when all its channels have ended. In Flink one ended channel
is enough if the others are idle.

| a channel ends        | effect                                                                                   |
|-----------------------|------------------------------------------------------------------------------------------|
| while it is active    | it is removed from its valve; an input without other channels is ignored                 |
| while it is idle      | it stays idle, as in Flink                                                               |
| as the last one       | the operator is at the end of time if any channel ended while active; else nothing       |

A channel ends with `END_OF_TIME`. An idle sender sends it too; it then only means that no more elements follow. An
operator that ends while it is idle forwards it without advancing.

`OperatorWatermarks.take` returns the new watermarks and statuses of the operator, in order. An outlet filters the
elements between a sender and its readers: while the sender is idle it drops all watermarks except `END_OF_TIME`.
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
    """An input: the valve of its channels, and the last watermark and status from that valve.

    Channels that ended while active are removed from the valve. They are added again when all channels have ended.
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
        """Restore an input with these channels from a snapshot, which may have other channels."""
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
        """Whether all its channels have ended, and at least one of them while active."""
        return self._valve.watermark_ms == MAX_TIMESTAMP

    @property
    def has_ended(self) -> bool:
        """Whether all its channels have ended."""
        return self.is_at_end_of_time or all(one in self._ended_idle for one in self._valve.channels)

    def take(self, channel: C, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """Return the elements that the valve sends. After the end of time this is Flink's behaviour."""
        if self.is_at_end_of_time:
            return self._valve.take(channel, element)
        if channel in self._removed:
            return ()
        if element == END_OF_TIME and channel in self._valve.channels:
            return self._end(channel)
        if element is WatermarkStatus.ACTIVE:
            # A test or a function may send the end of time while it is idle, and later send more.
            self._ended_idle.pop(channel, None)
        return self._valve.take(channel, element)

    def snapshot(self) -> ValveState[C]:
        """All channels. Removed channels are active and at the end of time."""
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

    Impossible events raise `IllegalTransitionError` and change nothing.
    """

    __slots__ = ("_inputs", "_status", "_watermark_ms")

    def __init__(self, inputs: Sequence[Iterable[C]]) -> None:
        """Create it. Raises `ValueError` without inputs, for an input without channels, and for duplicate channels."""
        if not inputs:
            raise ValueError("an operator needs at least one input")
        self._inputs = [_Input(StatusWatermarkValve(channels)) for channels in inputs]
        self._watermark_ms = MIN_TIMESTAMP
        self._status = WatermarkStatus.ACTIVE

    @property
    def watermark_ms(self) -> int:
        """The current watermark; the smallest time if there is none yet."""
        return self._watermark_ms

    @property
    def status(self) -> WatermarkStatus:
        """Idle if all its inputs are idle. Ended inputs are ignored until all inputs have ended."""
        return self._status

    @property
    def has_ended(self) -> bool:
        """Whether all channels have ended. If all were idle, the watermark is still not at the end of time."""
        return all(one.has_ended for one in self._inputs)

    def take(self, input_index: int, channel: C, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """Process an element of a channel. Returns the new watermarks and statuses of the operator, in order."""
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
        # The valve sends nothing when an idle channel ends, but it may be the last channel of the operator.
        return done + self._combined() if element == END_OF_TIME else done

    def snapshot(self) -> OperatorWatermarkState[C]:
        """The state as plain data."""
        return OperatorWatermarkState(
            self._watermark_ms,
            tuple(one.snapshot() for one in self._inputs),
            tuple(one.ended_idle for one in self._inputs),
        )

    def restore(self, state: OperatorWatermarkState[C], sent: WatermarkStatus) -> tuple[WatermarkElement, ...]:
        """Restore a snapshot, also if the inputs have changed. Returns the new watermarks and statuses.

        ``sent`` is the last status that the operator sent. A removed channel is not waited for. A new channel is
        active without a watermark, so it is not waited for until it has caught up. A new input holds back the operator.
        """
        self._watermark_ms, self._status = state.watermark_ms, sent
        for index, former in enumerate(state.inputs[: len(self._inputs)]):
            ended_idle = state.ended_idle[index] if state.ended_idle else ()
            self._inputs[index] = _Input.restored(former, ended_idle, self._inputs[index].channels)
        return self._combined()

    def _combined(self) -> tuple[WatermarkElement, ...]:
        """Combine the inputs and return the changes. Watermarks are sent while the operator is active."""
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
    """Drops repeated statuses, and watermarks of an idle sender except `END_OF_TIME`. A new sender is active."""

    __slots__ = ("_status",)

    def __init__(self, status: WatermarkStatus = WatermarkStatus.ACTIVE) -> None:
        self._status = status

    @property
    def status(self) -> WatermarkStatus:
        """The last status sent."""
        return self._status

    def passes(self, element: WatermarkElement) -> bool:
        """Return whether to send an element, and store a status."""
        if isinstance(element, Watermark):
            return element == END_OF_TIME or not self._status.is_idle
        changed, self._status = self._status is not element, element
        return changed
