"""Which windows a record belongs to.

*Aligned* windows have fixed places on the axis of time: they begin at ``offset + n * slide`` and are ``size`` long. If
``slide`` is the size they tumble; if it is less they overlap, and a record is in several; if it is more there are gaps,
and a record in one of them is in no window.

*Session* windows begin with a record and last for a gap. Those that overlap or touch are one session, so they *merge*.

The *global* window takes all records of a key.

Windows lie within the range of timestamps: what would end beyond it ends with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from attrs import frozen

from statebackend.streaming.errors import JobDefinitionError, format_value
from statebackend.streaming.time.timestamps import Duration, clamped, duration_ms
from statebackend.streaming.windows.triggers import EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger, Trigger
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.timers import (
    GLOBAL_WINDOW,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
)

__all__ = [
    "AlignedWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "ProcessingTimeSessionWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
]

W = TypeVar("W", TimeWindow, GlobalWindow)


class WindowAssigner(ABC, Generic[W]):
    """See the module."""

    is_event_time: ClassVar[bool] = True
    """Whether the windows are places in event time, so that a record may be late for them."""

    merges_windows: ClassVar[bool] = False
    """Whether windows of a key that overlap or touch become one."""

    @abstractmethod
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[W]:
        """The windows of a record, the newest first; the time is its own or, but for event time, the clock's."""

    @abstractmethod
    def default_trigger(self) -> Trigger[Any, Any]:
        """When windows fire if nothing else is said."""

    @property
    @abstractmethod
    def window_serializer(self) -> TypeSerializer[W]:
        """The serializer of the windows."""

    @property
    def needs_timestamps(self) -> bool:
        """Whether a record without a timestamp is rejected."""
        return self.is_event_time

    @property
    def aligned(self) -> AlignedWindows | None:
        """The windows as places in time, if that is what they are."""
        return None


@frozen
class AlignedWindows:
    """Windows that begin at ``offset_ms + n * slide_ms``, each ``size_ms`` long."""

    size_ms: int
    slide_ms: int
    offset_ms: int

    def starts(self, timestamp_ms: int) -> range:
        """Where the windows begin that a time is in, the newest first; some may lie before the range of timestamps."""
        last = timestamp_ms - (timestamp_ms - self.offset_ms) % self.slide_ms
        return range(last, timestamp_ms - self.size_ms, -self.slide_ms)

    def window(self, start_ms: int) -> TimeWindow:
        """The window that begins there."""
        return TimeWindow(clamped(start_ms), clamped(start_ms + self.size_ms))


class _TimeWindows(WindowAssigner[TimeWindow]):
    """What assigners of windows of time share."""

    @property
    def window_serializer(self) -> TypeSerializer[TimeWindow]:
        return TimeWindowSerializer()

    def default_trigger(self) -> Trigger[Any, Any]:
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()


@frozen
class _AlignedTimeWindows(_TimeWindows):
    """Windows with fixed places in time."""

    _windows: AlignedWindows

    @property
    def aligned(self) -> AlignedWindows | None:
        return self._windows

    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        return [self._windows.window(start) for start in self._windows.starts(timestamp_ms)]


def _aligned(assigner: str, size: Duration, slide: Duration | None, offset: Duration) -> AlignedWindows:
    size_ms = duration_ms(size, f"{assigner}: the size", at_least_ms=1)
    slide_ms = size_ms if slide is None else duration_ms(slide, f"{assigner}: the slide", at_least_ms=1)
    offset_ms = duration_ms(offset, f"{assigner}: the offset")
    if abs(offset_ms) >= slide_ms:
        raise JobDefinitionError(
            f"{assigner}: the offset {format_value(offset, 40)} is not less "
            f"than the distance of two windows, {slide_ms} ms; "
            f"leave out whole distances, which change nothing"
        )
    return AlignedWindows(size_ms, slide_ms, offset_ms)


class TumblingEventTimeWindows(_AlignedTimeWindows):
    """Windows of event time, one behind the other."""

    @classmethod
    def of(cls, size: Duration, offset: Duration = 0) -> TumblingEventTimeWindows:
        """Windows of that size; with an offset of 15 minutes those of an hour begin at a quarter past.

        Raises `JobDefinitionError` for a size below a millisecond, or an offset that is not less than the size.
        """
        return cls(_aligned(cls.__name__, size, None, offset))


class TumblingProcessingTimeWindows(_AlignedTimeWindows):
    """Windows of processing time, one behind the other."""

    is_event_time = False

    @classmethod
    def of(cls, size: Duration, offset: Duration = 0) -> TumblingProcessingTimeWindows:
        """As `TumblingEventTimeWindows.of`."""
        return cls(_aligned(cls.__name__, size, None, offset))


class SlidingEventTimeWindows(_AlignedTimeWindows):
    """Windows of event time that overlap, or with gaps between them."""

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> SlidingEventTimeWindows:
        """Windows of that size, one beginning every ``slide``.

        Raises `JobDefinitionError` for a size or slide below a millisecond, or an offset that is not less than the
        slide.
        """
        return cls(_aligned(cls.__name__, size, slide, offset))


class SlidingProcessingTimeWindows(_AlignedTimeWindows):
    """Windows of processing time that overlap, or with gaps between them."""

    is_event_time = False

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> SlidingProcessingTimeWindows:
        """As `SlidingEventTimeWindows.of`."""
        return cls(_aligned(cls.__name__, size, slide, offset))


@frozen
class _FixedGap:
    """The same gap behind every record."""

    gap_ms: int

    def __call__(self, element: Any) -> int:
        return self.gap_ms


@frozen
class _DynamicGap:
    """A gap that a user's function takes from the record."""

    function: Callable[[Any], Duration]

    def __call__(self, element: Any) -> int:
        gap = self.function(element)
        try:
            return duration_ms(gap, "the dynamic gap of a session", at_least_ms=1)
        except JobDefinitionError as error:
            # It is what a record says, and no definition: whoever catches it names the record.
            raise ValueError(str(error)) from error


@frozen
class _SessionWindows(_TimeWindows):
    """Sessions, whose gap is a function of the record that opens or prolongs them."""

    merges_windows = True

    _gap_ms_of: Callable[[Any], int]

    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[TimeWindow]:
        return (TimeWindow(timestamp_ms, clamped(timestamp_ms + self._gap_ms_of(element))),)


def _fixed_gap(assigner: str, gap: Duration) -> _FixedGap:
    return _FixedGap(duration_ms(gap, f"{assigner}: the gap", at_least_ms=1))


def _dynamic_gap(assigner: str, function: Callable[[Any], Duration]) -> _DynamicGap:
    if not callable(function):
        raise JobDefinitionError(
            f"{assigner}: with_dynamic_gap() takes a function of a record, not {format_value(function, 80)}"
        )
    return _DynamicGap(function)


class EventTimeSessionWindows(_SessionWindows):
    """Sessions in event time."""

    @classmethod
    def with_gap(cls, gap: Duration) -> EventTimeSessionWindows:
        """Sessions that end when no record came for that long; `JobDefinitionError` for a gap below a millisecond."""
        return cls(_fixed_gap(cls.__name__, gap))

    @classmethod
    def with_dynamic_gap(cls, function: Callable[[Any], Duration]) -> EventTimeSessionWindows:
        """Sessions whose gap is taken from each record; one below a millisecond fails the job when it occurs."""
        return cls(_dynamic_gap(cls.__name__, function))


class ProcessingTimeSessionWindows(_SessionWindows):
    """Sessions in processing time."""

    is_event_time = False

    @classmethod
    def with_gap(cls, gap: Duration) -> ProcessingTimeSessionWindows:
        """As `EventTimeSessionWindows.with_gap`."""
        return cls(_fixed_gap(cls.__name__, gap))

    @classmethod
    def with_dynamic_gap(cls, function: Callable[[Any], Duration]) -> ProcessingTimeSessionWindows:
        """As `EventTimeSessionWindows.with_dynamic_gap`."""
        return cls(_dynamic_gap(cls.__name__, function))


@frozen
class GlobalWindows(WindowAssigner[GlobalWindow]):
    """One window for all records of a key, which fires only by a trigger of one's own and is never cleaned up."""

    is_event_time = False

    @classmethod
    def create(cls) -> GlobalWindows:
        """The assigner."""
        return cls()

    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[GlobalWindow]:
        return (GLOBAL_WINDOW,)

    def default_trigger(self) -> Trigger[Any, Any]:
        return NeverTrigger()

    @property
    def window_serializer(self) -> TypeSerializer[GlobalWindow]:
        return GlobalWindowSerializer()
