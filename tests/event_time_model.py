"""A model of windows and timers in event time, computed from the epochs of a stream, for jobs in any runtime.

A record is (key, event time, value). Windows are tumbling. Each record also sets a timer `DELAY` after its own time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from statebackend import (
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    ProcessWindowFunction,
    RuntimeContext,
    WatermarkStrategy,
    WindowContext,
)

SCHEMA = "k string, t bigint, v bigint"
SUMS = "k string, start bigint, total bigint"
TIMERS = "k string, fired bigint"
SIZE, BOUND, DELAY = 10, 5, 7

Record = tuple[str, int, int]


class Summed(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits key, start of the window, and the sum of its values."""

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterator[Any]:
        yield key, context.window.start, sum(row.v for row in elements)


class SetsTimers(KeyedProcessFunction[Any, Any, Any]):
    """Emits key and time of each timer."""

    def open(self, context: RuntimeContext) -> None:
        pass

    def process_element(self, value: Any, context: ProcessContext[Any]) -> None:
        context.timer_service.register_event_time_timer(value.t + DELAY)

    def on_timer(self, timestamp: int, context: OnTimerContext[Any]) -> Iterator[Any]:
        yield context.current_key, timestamp


def bounded(column: Any = "t") -> WatermarkStrategy[Any]:
    """The event time is in that column. Records are at most `BOUND` out of order."""
    return WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_timestamps(column)


def model(epochs: Sequence[Sequence[Record]]) -> tuple[list[Any], list[Any]]:
    """The sums of all fired windows, and the late records."""
    sums: dict[tuple[str, int], int] = defaultdict(int)
    late = []
    for watermark, records in zip(_watermarks(epochs), epochs, strict=False):
        for key, time_ms, value in records:
            start = time_ms // SIZE * SIZE
            if start + SIZE - 1 <= watermark:
                late.append((key, time_ms, value))
            else:
                sums[key, start] += value
    return sorted((key, start, total) for (key, start), total in sums.items()), sorted(late)


def fired_timers(epochs: Sequence[Sequence[Record]]) -> list[Any]:
    """All fired timers. A timer that is set again after its time fires at the next watermark."""
    fired: list[tuple[str, int]] = []
    pending: set[tuple[str, int]] = set()
    before = None
    for watermark, records in zip(_watermarks(epochs), [*epochs, ()], strict=True):
        if watermark != before:
            due = {timer for timer in pending if timer[1] <= watermark}
            fired += due
            pending -= due
        before = watermark
        pending |= {(key, time_ms + DELAY) for key, time_ms, _ in records}
    return sorted([*fired, *pending])


def _watermarks(epochs: Sequence[Sequence[Record]]) -> list[int]:
    """The watermark of each epoch, and the one after the last epoch."""
    watermarks = [-(1 << 63)]
    largest: int | None = None
    for records in epochs:
        times = [time_ms for _, time_ms, _ in records] + ([] if largest is None else [largest])
        largest = max(times, default=None)
        watermarks.append(watermarks[-1] if largest is None else largest - BOUND - 1)
    return watermarks
