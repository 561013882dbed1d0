"""Timestamps and channels of the records of a source in this process, as its strategy says."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from streamjobs.api.watermark_strategy import WatermarkStrategy
from streamjobs.errors import StreamJobError
from streamjobs.inprocess.keys import field_getter
from streamjobs.inprocess.local_stream import LocalStream
from streamjobs.time.timestamps import timestamp_of
from streamjobs.user_errors import shown

__all__ = ["timestamped"]


def timestamped(
    stream: LocalStream, strategy: WatermarkStrategy[Any], source: str, processing_time_ms: int
) -> tuple[LocalStream, LocalStream]:
    """The records with their timestamps; and those that are too far in the future, which make no watermarks.

    Raises `StreamJobError`, naming the record, for a timestamp that is none.
    """
    get_timestamp = field_getter(strategy.timestamps, source, "with_timestamps")
    get_channel = None if strategy.channel is None else field_getter(strategy.channel, source, "with_channel")
    timestamps: list[int | None] = []
    record: Any = None
    try:
        for record in stream.records:
            timestamps.append(timestamp_of(get_timestamp(record)))
    except (TypeError, ValueError) as error:
        raise StreamJobError(f"{source}, record {shown(record, 200)}: {error}") from error
    channels = [(source, "" if get_channel is None else str(get_channel(record))) for record in stream.records]
    timed = LocalStream(stream.records, timestamps, list(channels))
    if strategy.future_limit_ms is None:
        return timed, LocalStream([], [], [])
    latest_ms = processing_time_ms + strategy.future_limit_ms
    is_future = [timestamp_ms is not None and timestamp_ms > latest_ms for timestamp_ms in timestamps]
    set_aside = timed.of([index for index, future in enumerate(is_future) if future])
    on_time = timed.of([index for index, future in enumerate(is_future) if not future])
    return on_time, evolve(set_aside, channels=[None] * len(set_aside.records))
