"""Watermarks of the channels of each source, computed from one report per epoch.

A channel is a whole source, or one value of the channel column of a source. Each channel has its own watermark. At the
end of an epoch, tasks report the largest timestamp of each channel. The reports determine the watermark of the *next*
epoch, because an epoch is a watermark followed by records.

| event                                   | effect on the channel                                                   |
|-----------------------------------------|-------------------------------------------------------------------------|
| the epoch had records of it             | active; its watermark is its largest timestamp, minus the bound, minus 1 |
| no records for longer than the idleness | idle                                                                    |
| a new channel exceeds the limit         | the longest idle channels are removed; without idle ones, an error      |
| the source ends                         | active, with the watermark at the end of time                           |

Records of a source without watermarks have no effect: it becomes idle after its idleness and stays so.

A valve combines the channels of a source. All reports of an epoch take effect together, in this order:

1. Channels with records become active.
2. Watermarks advance.
3. Idleness is checked.

So a channel that returns is not overtaken within the same epoch.

Before its first record a source has one channel, called "", which can also become idle. It is removed when another
channel appears, also after a restore if it was the only one. Idleness counts from the last epoch with records. After a
restore it counts from the first epoch or from the start of the job, because sources may have had records meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.checkpoint.metadata import ChannelTimestamp, ChannelWatermark
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.time.status_watermark_valve import StatusWatermarkValve, ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import (
    Watermark,
    WatermarkElement,
    WatermarkStatus,
    bounded_watermark,
)

MAX_CHANNELS: Final = 10_000
"""The maximum number of channels per source."""

_ONLY_CHANNEL: Final = ""


@frozen(kw_only=True)
class SourceTime:
    """The event-time settings of a source.

    ``out_of_orderness_ms`` is None for a source without watermarks, ``idleness_ms`` for one without idleness. Without
    ``has_channels`` all reports belong to the channel "".
    """

    out_of_orderness_ms: int | None
    idleness_ms: int | None = None
    has_channels: bool = False
    max_channels: int = MAX_CHANNELS


@frozen
class SourceElement:
    """An element that a source sends before the next epoch."""

    source: str
    element: WatermarkElement


def _place(sent: SourceElement) -> int:
    if isinstance(sent.element, Watermark):
        return 1
    return 2 if sent.element.is_idle else 0


class _Channel:
    __slots__ = ("largest_ms", "last_active_ms")

    def __init__(self, largest_ms: int | None, last_active_ms: int | None) -> None:
        self.largest_ms = largest_ms
        self.last_active_ms = last_active_ms


class ChannelWatermarks:
    """The channels of all sources of a job. A rejected call changes nothing."""

    def __init__(self, sources: Mapping[str, SourceTime]) -> None:
        self._sources = {name: _Source(name, time) for name, time in sources.items()}

    def copied(self) -> ChannelWatermarks:
        """Return an independent copy, which copies only what may change: there may be thousands of channels."""
        other = copy.copy(self)
        other._sources = {name: one.copied() for name, one in self._sources.items()}
        return other

    def end_epoch(self, largest: Iterable[ChannelTimestamp], processing_time_ms: int) -> tuple[SourceElement, ...]:
        """Return what the sources send before the next epoch, from the reports of this epoch.

        A channel may be reported several times; an epoch without records reports none. Raises `IllegalTransitionError`
        for an unknown source and `StreamJobError` for too many channels.
        """
        reported: dict[str, dict[str, int]] = {name: {} for name in self._sources}
        for one in largest:
            channels = reported.get(one.source)
            if channels is None:
                raise self._unknown("END_EPOCH", one.source)
            channels[one.channel] = max(one.timestamp_ms, channels.get(one.channel, MIN_TIMESTAMP))
        for name, channels in reported.items():
            self._sources[name].check_room(channels)
        sent = [
            SourceElement(name, element)
            for name, channels in reported.items()
            for element in self._sources[name].end_epoch(channels, processing_time_ms)
        ]
        return tuple(sorted(sent, key=_place))

    def end_source(self, source: str) -> tuple[SourceElement, ...]:
        """Return what a source sends at its end. Raises `IllegalTransitionError` for an unknown source."""
        one = self._sources.get(source)
        if one is None:
            raise self._unknown("END_SOURCE", source)
        return tuple(SourceElement(source, element) for element in one.end())

    def watermark_of(self, source: str) -> int:
        """The last watermark of a source, or the smallest time."""
        return self._sources[source].watermark_ms

    def status_of(self, source: str) -> WatermarkStatus:
        """The last status of a source."""
        return self._sources[source].status

    def await_from(self, now_ms: int) -> None:
        """Count idleness from this processing time on for channels without reports since the start."""
        for one in self._sources.values():
            one.await_from(now_ms)

    def idleness_times_ms(self) -> Sequence[int]:
        """The sorted processing times at which channels without records become idle."""
        return sorted({time_ms for one in self._sources.values() for time_ms in one.idleness_times_ms()})

    def snapshot(self) -> tuple[ChannelWatermark, ...]:
        """All channels, for a checkpoint. The last watermarks of the sources are stored with it."""
        return tuple(channel for one in self._sources.values() for channel in one.snapshot())

    def restore(self, channels: Iterable[ChannelWatermark], watermarks_ms: Mapping[str, int]) -> None:
        """Restore a checkpoint, with the last watermark of each source.

        Removed sources are ignored. A source without channels in the checkpoint starts at its last watermark.
        """
        by_source: dict[str, list[ChannelWatermark]] = {}
        for channel in channels:
            by_source.setdefault(channel.source, []).append(channel)
        for name, one in self._sources.items():
            one.restore(by_source.get(name, []), watermarks_ms.get(name, MIN_TIMESTAMP))

    def _unknown(self, event: str, source: str) -> IllegalTransitionError:
        names = ", ".join(map(repr, self._sources)) or "none"
        return IllegalTransitionError(event, "RUNNING", f"there is no source {format_value(source)}; there are {names}")


class _Source:
    """The channels of one source."""

    def __init__(self, name: str, time: SourceTime) -> None:
        self._name = name
        self._time = time
        self._valve = StatusWatermarkValve([_ONLY_CHANNEL])
        self._channels = {_ONLY_CHANNEL: _Channel(None, None)}
        self._has_placeholder = True

    def copied(self) -> _Source:
        other = copy.copy(self)
        other._valve = self._valve.copied()
        other._channels = {name: _Channel(one.largest_ms, one.last_active_ms) for name, one in self._channels.items()}
        return other

    @property
    def watermark_ms(self) -> int:
        return self._valve.watermark_ms

    @property
    def status(self) -> WatermarkStatus:
        return self._valve.status

    def check_room(self, reported: Mapping[str, int]) -> None:
        # The channel "" is removed in any case, so it does not count as an idle channel that can be removed.
        kept = {*reported, _ONLY_CHANNEL} if self._replaces_placeholder(reported) else reported
        idle = sum(channel.is_idle and channel.channel not in kept for channel in self._valve.snapshot().channels)
        if self._excess(reported) > idle:
            raise StreamJobError(
                f"source {self._name!r} has more than {self._time.max_channels} channels that are not idle; a channel "
                f"is for what has few values, such as a partition, and not for keys"
            )

    def end_epoch(self, reported: Mapping[str, int], now_ms: int) -> tuple[WatermarkElement, ...]:
        before_ms, before = self._valve.watermark_ms, self._valve.status
        if self._time.out_of_orderness_ms is None:
            # Nothing waits for a source without watermarks once it is idle, however many records it has.
            reported = {}
        excess = self._excess(reported)
        for name, largest_ms in reported.items():
            channel = self._awake(name)
            channel.largest_ms = largest_ms if channel.largest_ms is None else max(channel.largest_ms, largest_ms)
            channel.last_active_ms = now_ms
        if self._replaces_placeholder(reported):
            self._remove(_ONLY_CHANNEL)
        if reported:
            self._has_placeholder = False
        self._forget(excess, reported)
        self._valve.input_watermarks({name: self._channel_watermark(name) for name in reported})
        self._check_idleness(reported, now_ms)
        return self._sent_since(before_ms, before)

    def end(self) -> tuple[WatermarkElement, ...]:
        before_ms, before = self._valve.watermark_ms, self._valve.status
        for name in self._channels:
            self._valve.input_status(name, WatermarkStatus.ACTIVE)
        self._valve.input_watermarks(dict.fromkeys(self._channels, MAX_TIMESTAMP))
        return self._sent_since(before_ms, before)

    def await_from(self, now_ms: int) -> None:
        for one in self._valve.snapshot().channels:
            channel = self._channels[one.channel]
            if not one.is_idle and channel.last_active_ms is None:
                channel.last_active_ms = now_ms

    def idleness_times_ms(self) -> set[int]:
        if self._time.idleness_ms is None:
            return set()
        since = (
            self._channels[one.channel].last_active_ms
            for one in self._valve.snapshot().channels
            if not one.is_idle and one.watermark_ms != MAX_TIMESTAMP
        )
        return {time_ms + self._time.idleness_ms + 1 for time_ms in since if time_ms is not None}

    def snapshot(self) -> list[ChannelWatermark]:
        return [
            ChannelWatermark(
                source=self._name,
                channel=one.channel,
                largest_timestamp_ms=self._channels[one.channel].largest_ms,
                watermark_ms=None if one.watermark_ms == MIN_TIMESTAMP else one.watermark_ms,
                last_active_ms=self._channels[one.channel].last_active_ms,
                is_idle=one.is_idle,
            )
            for one in self._valve.snapshot().channels
        ]

    def restore(self, channels: list[ChannelWatermark], watermark_ms: int) -> None:
        known = self._current_channels(channels)
        # "" may be a real channel or the placeholder of a source without records. The next records decide.
        self._has_placeholder = [one.channel for one in known] == [_ONLY_CHANNEL]
        # A channel at the end of time restarts without a watermark: the restored source has more records.
        states = (
            ValveChannel(
                one.channel,
                MIN_TIMESTAMP if one.watermark_ms is None or one.watermark_ms == MAX_TIMESTAMP else one.watermark_ms,
                one.is_idle,
            )
            for one in known
        )
        self._valve = StatusWatermarkValve.restored(ValveState(watermark_ms, tuple(states)))
        # Active channels count idleness from now on: the job may have been stopped for long.
        self._channels = {
            one.channel: _Channel(one.largest_timestamp_ms, one.last_active_ms if one.is_idle else None)
            for one in known
        }

    def _current_channels(self, channels: list[ChannelWatermark]) -> list[ChannelWatermark]:
        """Return the restored channels, or only "" if the source has no channels now."""
        names = {one.channel for one in channels}
        if not names or (not self._time.has_channels and names != {_ONLY_CHANNEL}):
            idle = bool(channels) and all(one.is_idle for one in channels)
            return [ChannelWatermark(source=self._name, is_idle=idle)]
        return channels

    def _excess(self, reported: Mapping[str, int]) -> int:
        """The number of channels above the limit."""
        names = self._channels.keys() | reported.keys()
        return len(names) - self._replaces_placeholder(reported) - self._time.max_channels

    def _replaces_placeholder(self, reported: Collection[str]) -> bool:
        """Whether the channel "" exists and is now replaced by others."""
        return self._has_placeholder and bool(reported) and _ONLY_CHANNEL not in reported

    def _forget(self, excess: int, reported: Mapping[str, int]) -> None:
        if excess <= 0:
            return
        idle = [one.channel for one in self._valve.snapshot().channels if one.is_idle and one.channel not in reported]
        for name in sorted(idle, key=lambda one: self._channels[one].last_active_ms or 0)[:excess]:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._valve.remove_channel(name)
        del self._channels[name]

    def _awake(self, name: str) -> _Channel:
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = _Channel(None, None)
            self._valve.add_channel(name)
        else:
            self._valve.input_status(name, WatermarkStatus.ACTIVE)
        return channel

    def _channel_watermark(self, name: str) -> int:
        largest_ms, bound_ms = self._channels[name].largest_ms, self._time.out_of_orderness_ms
        return MIN_TIMESTAMP if largest_ms is None or bound_ms is None else bounded_watermark(largest_ms, bound_ms)

    def _check_idleness(self, reported: Mapping[str, int], now_ms: int) -> None:
        silent = [one for one in self._valve.snapshot().channels if not one.is_idle and one.channel not in reported]
        idle = []
        for one in silent:
            channel = self._channels[one.channel]
            if channel.last_active_ms is None:
                channel.last_active_ms = now_ms
            elif one.watermark_ms != MAX_TIMESTAMP and self._is_over(now_ms - channel.last_active_ms):
                idle.append(one)
        # Channels that hold the valve come last, so the valve searches all channels only once.
        for one in sorted(idle, key=lambda one: (one.watermark_ms >= self._valve.watermark_ms, -one.watermark_ms)):
            self._valve.input_status(one.channel, WatermarkStatus.IDLE)

    def _is_over(self, silence_ms: int) -> bool:
        return self._time.idleness_ms is not None and silence_ms > self._time.idleness_ms

    def _sent_since(self, before_ms: int, before: WatermarkStatus) -> tuple[WatermarkElement, ...]:
        after_ms, after = self._valve.watermark_ms, self._valve.status
        advanced = (Watermark(after_ms),) if after_ms > before_ms else ()
        woke = (WatermarkStatus.ACTIVE,) if before.is_idle and (advanced or not after.is_idle) else ()
        slept = (WatermarkStatus.IDLE,) if after.is_idle and (woke or not before.is_idle) else ()
        return (*woke, *advanced, *slept)
