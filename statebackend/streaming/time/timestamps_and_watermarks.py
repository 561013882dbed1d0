"""Assigns timestamps to the records of a source and produces its watermarks.

| event                          | output                                                                              |
|--------------------------------|-------------------------------------------------------------------------------------|
| record                         | its timestamp, and if it is too far in the future; then the generator's watermarks  |
| periodic emit                  | the generators' watermarks                                                          |
| watermark, status of upstream  | nothing, except that the end of time is forwarded                                   |
| end of input                   | active, if idle; then the end of time, without a last periodic emit                 |

A filter drops watermarks that are not larger than the last one. A larger one first makes the source active. A status
is sent when it changes. With channels, each has its own generator and idleness. A record beyond the future limit does
not reach a generator and does not make the source active, because one wrong clock would make all other records late. A
generator receives a record without a timestamp with the smallest time.

`WatermarkOutputMultiplexer` (as in Flink) combines several outputs, such as splits. It sends the minimum over the
outputs that are not idle, or the maximum if all are idle, if that is larger than before. So an output that returns from
idleness holds back the others until it has caught up, unlike a channel of a valve.

| event of an output        | effect                                      | then                                       |
|---------------------------|---------------------------------------------|--------------------------------------------|
| watermark T, immediate    | active; its watermark is the larger of both | an update, if T is larger than before      |
| watermark T, deferred     | the same                                    | nothing until the next periodic emit       |
| idle, active              | is idle, is active                          | an update, if immediate                    |
| periodic emit             |                                             | an update                                  |
| unregister                | it is removed                               | nothing until the next update              |

An update sends the watermark if it is larger. Otherwise it sends the status idle if all outputs are idle. Without
registered outputs the last status stays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from attrs import frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP, timestamp_of
from statebackend.streaming.time.watermark_generators import (
    END_OF_TIME,
    NoWatermarks,
    Watermark,
    WatermarkElement,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStatus,
    WatermarksWithIdleness,
    check_timestamp,
    needs_only_largest,
)

__all__ = ["MAX_CHANNELS", "TimedChannel", "TimestampedRecord", "TimestampsAndWatermarks", "WatermarkOutputMultiplexer"]


C = TypeVar("C", bound=Hashable)


class _Output:
    __slots__ = ("is_idle", "watermark_ms")

    def __init__(self) -> None:
        self.watermark_ms = MIN_TIMESTAMP
        self.is_idle = False


class WatermarkOutputMultiplexer(Generic[C]):
    """Combines the watermarks of several outputs, identified by any hashable ids.

    Each event returns the elements to send, in order. Impossible events raise `IllegalTransitionError` and change
    nothing.
    """

    __slots__ = ("_is_idle", "_outputs", "_watermark_ms")

    def __init__(self) -> None:
        self._outputs: dict[C, _Output] = {}
        self._watermark_ms = MIN_TIMESTAMP
        self._is_idle = False

    @property
    def watermark_ms(self) -> int:
        """The largest watermark sent, or the smallest time."""
        return self._watermark_ms

    def __contains__(self, output: object) -> bool:
        return output in self._outputs

    def watermark_of(self, output: C) -> int:
        """The largest watermark of an output, or the smallest time."""
        return self._output(output, "WATERMARK_OF").watermark_ms

    def is_idle(self, output: C) -> bool:
        return self._output(output, "IS_IDLE").is_idle

    def register(self, output: C) -> None:
        """Add an output, active and without a watermark."""
        if output in self._outputs:
            raise IllegalTransitionError("REGISTER", self._state, f"output {format_value(output)} exists already")
        self._outputs[output] = _Output()

    def unregister(self, output: C) -> bool:
        """Remove an output; returns whether it existed. The next update no longer waits for it."""
        return self._outputs.pop(output, None) is not None

    def take(self, output: C, element: WatermarkElement, *, deferred: bool) -> tuple[WatermarkElement, ...]:
        """Apply a watermark or status of an output; ``deferred`` until the next periodic emit."""
        one = self._output(output, type(element).__name__)
        if not isinstance(element, Watermark):
            one.is_idle = element.is_idle
        else:
            one.is_idle = False
            former_ms, one.watermark_ms = one.watermark_ms, max(one.watermark_ms, element.timestamp_ms)
            if element.timestamp_ms <= max(former_ms, self._watermark_ms):
                return ()
        return () if deferred else self.on_periodic_emit()

    def on_periodic_emit(self) -> tuple[WatermarkElement, ...]:
        """Combine the outputs and return new elements. Call it at regular intervals."""
        if self._outputs:
            awaited = [one.watermark_ms for one in self._outputs.values() if not one.is_idle]
            self._is_idle = not awaited
            combined_ms = min(awaited) if awaited else max(one.watermark_ms for one in self._outputs.values())
            if combined_ms > self._watermark_ms:
                self._watermark_ms = combined_ms
                return (Watermark(combined_ms),)
        return (WatermarkStatus.IDLE,) if self._is_idle else ()

    def _output(self, output: C, event: str) -> _Output:
        one = self._outputs.get(output)
        if one is None:
            raise IllegalTransitionError(event, self._state, f"there is no output {format_value(output)}")
        return one

    @property
    def _state(self) -> str:
        return "IDLE" if self._is_idle else "ACTIVE"


T = TypeVar("T")

MAX_CHANNELS: Final = 10_000
"""The maximum number of channels of a source."""


class TimestampedRecord(NamedTuple):
    """The result for a record: its timestamp in ms since 1970 or None, and whether it goes to the side output.

    ``elements`` follow the record.
    """

    timestamp_ms: int | None
    is_beyond_limit: bool
    elements: tuple[WatermarkElement, ...]


@frozen
class TimedChannel:
    """A channel: its watermark, or the smallest time, and whether it is idle."""

    watermark_ms: int
    is_idle: bool


NO_CHANNELS: Final[Mapping[Hashable, TimedChannel]] = MappingProxyType({})


class _Collected(WatermarkOutput):
    """Collects the elements that a generator emits in one call."""

    def __init__(self) -> None:
        self._elements: list[WatermarkElement] = []

    def emit_watermark(self, timestamp_ms: int) -> None:
        self._elements.append(Watermark(timestamp_ms))

    def mark_idle(self) -> None:
        self._elements.append(WatermarkStatus.IDLE)

    def mark_active(self) -> None:
        self._elements.append(WatermarkStatus.ACTIVE)

    def taken(self) -> tuple[WatermarkElement, ...]:
        taken, self._elements = self._elements, []
        return tuple(taken)


class _Filter:
    """Drops watermarks and statuses that change nothing."""

    def __init__(self) -> None:
        self.watermark_ms = MIN_TIMESTAMP
        self.status = WatermarkStatus.ACTIVE

    def passed(self, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        if isinstance(element, WatermarkStatus):
            changed, self.status = self.status is not element, element
            return (element,) if changed else ()
        if element.timestamp_ms <= self.watermark_ms:
            return ()
        self.watermark_ms = element.timestamp_ms
        return (*self.passed(WatermarkStatus.ACTIVE), element)


class _StaysIdle(WatermarksWithIdleness[Any]):
    """The idleness of a source without watermarks: nothing waits for it, however many records it has."""

    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        pass


class TimestampsAndWatermarks(Generic[T]):
    """The timestamps and watermarks of one source.

    ``timestamp_of_record`` returns milliseconds since 1970, a datetime or None; without it a record keeps its
    timestamp. ``channel_of_record`` returns the channel; without it there is only one. ``idleness_ms`` and
    ``future_limit_ms`` may be None. The caller passes processing times.
    """

    def __init__(
        self,
        create_generator: Callable[[], WatermarkGenerator[T]],
        *,
        timestamp_of_record: Callable[[T], object] | None = None,
        channel_of_record: Callable[[T], Hashable] | None = None,
        idleness_ms: int | None = None,
        future_limit_ms: int | None = None,
    ) -> None:
        self._create_generator = create_generator
        self._timestamp_of_record = timestamp_of_record
        self._channel_of_record = channel_of_record
        self._idleness_ms = idleness_ms
        self._future_limit_ms = future_limit_ms
        self._processing_time_ms = 0
        self._output = _Collected()
        self._filter = _Filter()
        self._multiplexer: WatermarkOutputMultiplexer[Hashable] = WatermarkOutputMultiplexer()
        self._generators: dict[Hashable, WatermarkGenerator[T]] = {}
        if channel_of_record is None:
            self._generators[None] = self._new_generator()

    @property
    def watermark_ms(self) -> int:
        """The last watermark sent, or the smallest time."""
        return self._filter.watermark_ms

    @property
    def status(self) -> WatermarkStatus:
        """The last status sent."""
        return self._filter.status

    def restore(
        self, watermark_ms: int, status: WatermarkStatus, channels: Mapping[Hashable, TimedChannel] = NO_CHANNELS
    ) -> None:
        """Restore the last watermark. Generators start new, and only larger watermarks are sent.

        The channels are waited for as before; a strategy without channels ignores them. Raises `ValueError` for an
        invalid time.
        """
        check_timestamp("a watermark", watermark_ms)
        self._filter.watermark_ms, self._filter.status = watermark_ms, status
        for channel, known in channels.items() if self._channel_of_record is not None else ():
            self._generator_of(channel)
            self._multiplexer.take(channel, Watermark(known.watermark_ms), deferred=True)
            if known.is_idle:
                self._multiplexer.take(channel, WatermarkStatus.IDLE, deferred=True)

    def on_record(self, record: T, timestamp_ms: int | None, processing_time_ms: int) -> TimestampedRecord:
        """Process a record with its previous timestamp, if any.

        Raises `ValueError` for an invalid timestamp and `StreamJobError` for too many channels; nothing changes then.
        """
        if self._timestamp_of_record is not None:
            timestamp_ms = timestamp_of(self._timestamp_of_record(record))
        if self._is_beyond_limit(timestamp_ms, processing_time_ms):
            return TimestampedRecord(timestamp_ms, True, ())
        channel = None if self._channel_of_record is None else self._channel_of_record(record)
        generator = self._generator_of(channel)
        self._processing_time_ms = processing_time_ms
        generator.on_event(record, MIN_TIMESTAMP if timestamp_ms is None else timestamp_ms, self._output)
        return TimestampedRecord(timestamp_ms, False, self._emitted(channel, deferred=False))

    def on_timestamps(self, timestamps: Sequence[int | None], processing_time_ms: int) -> bool:
        """Process records of which only the timestamps matter.

        Returns False and changes nothing if records must be processed one by one, by `on_record`.
        """
        if self._channel_of_record is not None or self._timestamp_of_record is not None:
            return False
        generator = self._generators[None]
        if not needs_only_largest(generator):
            return False
        known = [time for time in timestamps if time is not None]
        largest_ms = max(known, default=MIN_TIMESTAMP)
        if self._is_beyond_limit(largest_ms, processing_time_ms):
            return False
        if timestamps:
            self._processing_time_ms = processing_time_ms
            generator.on_event(cast(T, None), largest_ms, self._output)
        return True

    def on_periodic_emit(self, processing_time_ms: int) -> tuple[WatermarkElement, ...]:
        """Call the generators and return new elements. Call it at regular intervals."""
        self._processing_time_ms = processing_time_ms
        sent: tuple[WatermarkElement, ...] = ()
        for channel, generator in self._generators.items():
            generator.on_periodic_emit(self._output)
            sent += self._emitted(channel, deferred=True)
        if self._channel_of_record is None:
            return sent
        return sent + self._passed(self._multiplexer.on_periodic_emit())

    def on_upstream(self, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """Process a watermark or status from upstream."""
        return self.on_end_of_input() if element == END_OF_TIME else ()

    def on_given(self, element: WatermarkElement) -> tuple[WatermarkElement, ...]:
        """Process a watermark or status from a test as if the generator had emitted it. Time never decreases."""
        return self._filter.passed(element)

    def on_end_of_input(self) -> tuple[WatermarkElement, ...]:
        """Process the end of the source."""
        return self._filter.passed(END_OF_TIME)

    def channels(self) -> dict[Hashable, TimedChannel]:
        """The state of each channel; empty without channels."""
        if self._channel_of_record is None:
            return {}
        known = self._multiplexer
        return {one: TimedChannel(known.watermark_of(one), known.is_idle(one)) for one in self._generators}

    def _is_beyond_limit(self, timestamp_ms: int | None, processing_time_ms: int) -> bool:
        if timestamp_ms is None or self._future_limit_ms is None:
            return False
        return timestamp_ms > processing_time_ms + self._future_limit_ms

    def _generator_of(self, channel: Hashable) -> WatermarkGenerator[T]:
        generator = self._generators.get(channel)
        if generator is None:
            if len(self._generators) >= MAX_CHANNELS:
                raise StreamJobError(
                    f"channel {format_value(channel)} is one more than the {MAX_CHANNELS} channels that a source may "
                    "have; with_channel is for what has few values, such as a partition, and not for keys"
                )
            generator = self._new_generator()
            self._multiplexer.register(channel)
            self._generators[channel] = generator
        return generator

    def _new_generator(self) -> WatermarkGenerator[T]:
        generator = self._create_generator()
        if self._idleness_ms is None:
            return generator
        kind = _StaysIdle if type(generator) is NoWatermarks else WatermarksWithIdleness
        return kind(generator, self._idleness_ms, lambda: self._processing_time_ms)

    def _emitted(self, channel: Hashable, *, deferred: bool) -> tuple[WatermarkElement, ...]:
        emitted = self._output.taken()
        if not emitted:
            return ()
        if self._channel_of_record is not None:
            emitted = tuple(one for each in emitted for one in self._multiplexer.take(channel, each, deferred=deferred))
        return self._passed(emitted)

    def _passed(self, elements: tuple[Any, ...]) -> tuple[WatermarkElement, ...]:
        return tuple(one for element in elements for one in self._filter.passed(element))
