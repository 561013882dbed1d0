"""Window assigners: which windows a record belongs to.

- *Aligned* windows start at ``offset + n * slide`` and have a fixed size. With ``slide == size`` they tumble. A smaller
  slide makes them overlap, so a record is in several windows. A larger slide leaves gaps; records in gaps are in no
  window.
- *Session* windows start with a record and last for a gap. Sessions of a key that overlap or touch *merge*.
- The *global* window holds all records of a key.

Windows are clamped to the range of timestamps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from attrs import frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError
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

W = TypeVar("W", TimeWindow, GlobalWindow)


class WindowAssigner(ABC, Generic[W]):
    """Assigns the records of a key to windows."""

    is_event_time: ClassVar[bool] = True
    """Whether windows are in event time, so that a record may be late."""

    merges_windows: ClassVar[bool] = False
    """Whether windows of a key that overlap or touch merge."""

    @abstractmethod
    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[W]:
        """Return the windows of a record, the newest first. Without event time, pass the processing time."""

    @abstractmethod
    def default_trigger(self) -> Trigger[Any, Any]:
        """The trigger that is used if the job sets none."""

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
        """The definition of the windows, if they are aligned."""
        return None


@frozen
class AlignedWindows:
    """Windows that start at ``offset_ms + n * slide_ms`` and are ``size_ms`` long."""

    size_ms: int
    slide_ms: int
    offset_ms: int

    def starts(self, timestamp_ms: int) -> range:
        """The starts of the windows of a time, the newest first. Some may be below the range of timestamps."""
        last = timestamp_ms - (timestamp_ms - self.offset_ms) % self.slide_ms
        return range(last, timestamp_ms - self.size_ms, -self.slide_ms)

    def window(self, start_ms: int) -> TimeWindow:
        """The window that starts at this time."""
        return TimeWindow(clamped(start_ms), clamped(start_ms + self.size_ms))


class _TimeWindows(WindowAssigner[TimeWindow]):
    """The base of assigners of time windows."""

    @property
    def window_serializer(self) -> TypeSerializer[TimeWindow]:
        return TimeWindowSerializer()

    def default_trigger(self) -> Trigger[Any, Any]:
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()


def _check_given(given: tuple[Any, ...], kinds: type | tuple[type, ...], assigner: str, method: str) -> None:
    if len(given) != 1 or not isinstance(given[0], kinds):
        raise JobDefinitionError(f"{assigner}: create it with {assigner}.{method}, not by a call of the class")


@frozen(init=False)
class _AlignedTimeWindows(_TimeWindows):
    """The base of assigners of aligned windows."""

    _windows: AlignedWindows

    def __init__(self, *windows: Any) -> None:
        _check_given(windows, AlignedWindows, type(self).__name__, "of()")
        self.__attrs_init__(*windows)

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
            f"{assigner}: the offset {format_value(offset, 40)} is not less than the distance of two windows, "
            f"{slide_ms} ms; subtract whole distances, which change nothing"
        )
    return AlignedWindows(size_ms, slide_ms, offset_ms)


class TumblingEventTimeWindows(_AlignedTimeWindows):
    """Consecutive windows of event time."""

    @classmethod
    def of(cls, size: Duration, offset: Duration = 0) -> TumblingEventTimeWindows:
        """Create windows of this size. With an offset of 15 minutes, windows of an hour start at a quarter past.

        Raises:
            JobDefinitionError: The size is below a millisecond, or the offset is not less than the size.
        """
        return cls(_aligned(cls.__name__, size, None, offset))


class TumblingProcessingTimeWindows(_AlignedTimeWindows):
    """Consecutive windows of processing time."""

    is_event_time = False

    @classmethod
    def of(cls, size: Duration, offset: Duration = 0) -> TumblingProcessingTimeWindows:
        """As `TumblingEventTimeWindows.of`."""
        return cls(_aligned(cls.__name__, size, None, offset))


class SlidingEventTimeWindows(_AlignedTimeWindows):
    """Windows of event time that overlap or have gaps."""

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> SlidingEventTimeWindows:
        """Create windows of this size, one every ``slide``.

        Raises:
            JobDefinitionError: Size or slide is below a millisecond, or the offset is not less than the slide.
        """
        return cls(_aligned(cls.__name__, size, slide, offset))


class SlidingProcessingTimeWindows(_AlignedTimeWindows):
    """Windows of processing time that overlap or have gaps."""

    is_event_time = False

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> SlidingProcessingTimeWindows:
        """As `SlidingEventTimeWindows.of`."""
        return cls(_aligned(cls.__name__, size, slide, offset))


@frozen
class _FixedGap:
    """The same gap after every record."""

    gap_ms: int

    def __call__(self, element: Any) -> int:
        return self.gap_ms


@frozen
class _DynamicGap:
    """A gap that a user function derives from the record."""

    function: Callable[[Any], Duration]

    def __call__(self, element: Any) -> int:
        gap = self.function(element)
        try:
            return duration_ms(gap, "the dynamic gap of a session", at_least_ms=1)
        except JobDefinitionError as error:
            # The record is wrong, not the job definition. The caller adds the record to the message.
            raise ValueError(str(error)) from error


@frozen(init=False)
class _SessionWindows(_TimeWindows):
    """The base of assigners of sessions. The gap is a function of the record."""

    merges_windows = True

    _gap_ms_of: Callable[[Any], int]

    def __init__(self, *gap: Any) -> None:
        _check_given(gap, (_FixedGap, _DynamicGap), type(self).__name__, "with_gap()")
        self.__attrs_init__(*gap)

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
        """End sessions after this time without records. Raises `JobDefinitionError` for a gap below a millisecond."""
        return cls(_fixed_gap(cls.__name__, gap))

    @classmethod
    def with_dynamic_gap(cls, function: Callable[[Any], Duration]) -> EventTimeSessionWindows:
        """Derive the gap from each record. A gap below a millisecond fails the job when it occurs."""
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
    """One window for all records of a key. It fires only with an explicit trigger and is never disposed."""

    is_event_time = False

    @classmethod
    def create(cls) -> GlobalWindows:
        """Return the assigner."""
        return cls()

    def assign_windows(self, element: Any, timestamp_ms: int) -> Sequence[GlobalWindow]:
        return (GLOBAL_WINDOW,)

    def default_trigger(self) -> Trigger[Any, Any]:
        return NeverTrigger()

    @property
    def window_serializer(self) -> TypeSerializer[GlobalWindow]:
        return GlobalWindowSerializer()
