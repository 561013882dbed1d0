"""The records of a stream in one epoch, with what is known of their time.

A record that an operator emits before it lets the watermark of the epoch pass is *early*: whoever reads it takes it
before that watermark too. Early ones lie in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import define, field

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp

__all__ = ["Channel", "LocalStream", "largest_timestamps"]

Channel = tuple[str, str]
"""A source and a channel of it."""


@define
class LocalStream:
    """Records, and lists of the same length beside them: of timestamps, and of the channels of sources.

    Both are None in a job without event time; a record may be without either.
    """

    records: list[Any] = field(factory=list)
    timestamps: list[int | None] | None = None
    channels: list[Channel | None] | None = None
    early: int = 0
    """How many of the records are early."""

    @classmethod
    def empty(cls, *, has_time: bool) -> LocalStream:
        """A stream without records."""
        return cls([], [], []) if has_time else cls()

    def append(self, records: Sequence[Any], timestamps: Sequence[int | None] | None = None) -> None:
        """Puts what an operator has emitted behind the others."""
        self.records += records
        if self.timestamps is not None and self.channels is not None:
            self.timestamps += [None] * len(records) if timestamps is None else timestamps
            self.channels += [None] * len(records)

    def flat_mapped(self, function: Callable[[Any], Iterable[Any]]) -> LocalStream:
        """What a function makes of each record; it has the time of that."""
        results = [list(function(record)) for record in self.records]
        sources = [index for index, made in enumerate(results) for _ in made]
        return self._picked([one for made in results for one in made], sources)

    def recast(self, function: Callable[[Sequence[Any]], list[Any]]) -> LocalStream:
        """The records in another form, one for one."""
        return LocalStream(function(self.records), self.timestamps, self.channels, self.early)

    def of(self, indices: Sequence[int]) -> LocalStream:
        """The records at these places, in this order."""
        return self._picked([self.records[index] for index in indices], indices)

    @classmethod
    def united(cls, streams: Sequence[LocalStream]) -> LocalStream:
        """All records, those of the first stream first; but the early ones of all in front."""
        has_time = any(one.timestamps is not None for one in streams)
        united = cls.empty(has_time=has_time)
        for is_early in (True, False):
            for one in streams:
                part = slice(0, one.early) if is_early else slice(one.early, None)
                united.records += one.records[part]
                if united.timestamps is not None and united.channels is not None:
                    united.timestamps += one.timestamps[part] if one.timestamps is not None else []
                    united.channels += one.channels[part] if one.channels is not None else []
            if is_early:
                united.early = len(united.records)
        return united

    def _picked(self, records: list[Any], indices: Sequence[int]) -> LocalStream:
        return LocalStream(
            records,
            None if self.timestamps is None else [self.timestamps[index] for index in indices],
            None if self.channels is None else [self.channels[index] for index in indices],
            sum(index < self.early for index in indices) if self.early else 0,
        )


def largest_timestamps(stream: LocalStream) -> tuple[ChannelTimestamp, ...]:
    """The largest timestamp of each channel."""
    largest: dict[Channel, int] = {}
    for timestamp_ms, channel in zip(stream.timestamps or (), stream.channels or (), strict=True):
        if timestamp_ms is not None and channel is not None:
            largest[channel] = max(timestamp_ms, largest.get(channel, timestamp_ms))
    return tuple(ChannelTimestamp(source, channel, time_ms) for (source, channel), time_ms in largest.items())
