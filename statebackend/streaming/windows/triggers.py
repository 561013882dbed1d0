"""Triggers: when a window fires. The built-in triggers behave as in Flink.

A trigger is called for every record of a window and for every timer that it registered. It returns whether the window
*fires* (its function receives the contents) and whether it is *purged* (the contents are dropped; the window and the
trigger's state stay).

One trigger object serves all windows of all keys. So it stores data only in state of the current key and window, which
`Trigger.state_descriptors` lists. Its timers also belong to a key and window. When a window is disposed,
`Trigger.clear` removes state and timers. When windows merge, `Trigger.on_merge` merges them; a trigger that cannot
merge is rejected when the job is built.

The two continuous triggers fire at multiples of their interval, counted from 1970 and not from the start of the window.
The next firing time is in state; merged windows use the earliest.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from numbers import Real
from typing import Any, Final, Generic, TypeVar

from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.state.folding_states import ReducingStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, Duration, Time, clamped, duration_ms
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer

T = TypeVar("T")
W = TypeVar("W")


class TriggerResult(Enum):
    """Whether a window fires, and whether it is purged."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def __init__(self, fires: bool, purges: bool) -> None:
        self.fires = fires
        """Whether the function receives the contents of the window."""
        self.purges = purges
        """Whether the contents are dropped, after firing if the window fires."""


class TriggerContext(ABC):
    """The argument of a trigger: time, and the timers and state of the current key and window.

    The time of a timer is a number of milliseconds since 1970 or a datetime with a time zone.
    """

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark of the operator in milliseconds, or `MIN_TIMESTAMP` before the first one."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""

    @abstractmethod
    def register_event_time_timer(self, time: Time) -> None:
        """Call `Trigger.on_event_time` when the watermark reaches this time. Idempotent."""

    @abstractmethod
    def register_processing_time_timer(self, time: Time) -> None:
        """Call `Trigger.on_processing_time` at this time. Idempotent."""

    @abstractmethod
    def delete_event_time_timer(self, time: Time) -> None:
        """Delete a timer, if it exists."""

    @abstractmethod
    def delete_processing_time_timer(self, time: Time) -> None:
        """Delete a timer, if it exists."""

    @abstractmethod
    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        """Return the state of the current key and window.

        Raises:
            StateRegistrationError: `Trigger.state_descriptors` does not contain the descriptor.
        """


class OnMergeContext(TriggerContext):
    """The argument of a trigger when windows have merged. The current window is the merged one."""

    @abstractmethod
    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        """Merge the state of the old windows into the state of the new window.

        Raises:
            StateRegistrationError: The state is not list, reducing or aggregating state.
        """


class Trigger(ABC, Generic[T, W]):
    """Decides when windows fire. Instances travel by pickling and hold configuration only."""

    @property
    def state_descriptors(self) -> Sequence[StateDescriptor]:
        """The state per key and window, registered before the first record."""
        return ()

    @abstractmethod
    def on_element(self, element: T, timestamp_ms: int | None, window: W, context: TriggerContext) -> TriggerResult:
        """Called for every record that was added to the window. ``timestamp_ms`` may be None."""

    def on_event_time(self, timestamp_ms: int, window: W, context: TriggerContext) -> TriggerResult:
        """Called when the watermark reaches a timer of the window. Other code may have registered the timer."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: W, context: TriggerContext) -> TriggerResult:
        """Called when the clock reaches a timer of the window. Other code may have registered the timer."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Whether the trigger supports windows that merge."""
        return False

    def on_merge(self, window: W, context: OnMergeContext) -> None:
        """Called when windows have merged into ``window``; the old windows are cleared afterwards.

        Move state with `OnMergeContext.merge_partitioned_state`, and register the timers of the merged window.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot merge windows")

    @abstractmethod
    def clear(self, window: W, context: TriggerContext) -> None:
        """Delete all timers and state of a window. Called when the window is disposed."""


_CONTINUE: Final = TriggerResult.CONTINUE
_FIRE: Final = TriggerResult.FIRE


_COUNT: Final[ReducingStateDescriptor[int]] = ReducingStateDescriptor("count", operator.add, LongSerializer())
_FIRE_TIME: Final[ReducingStateDescriptor[int]] = ReducingStateDescriptor("fire-time", min, LongSerializer())


@frozen
class EventTimeTrigger(Trigger[Any, Any]):
    """Fires when the watermark passes the end of the window, and at every later record."""

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        if window.max_timestamp <= context.current_watermark():
            return _FIRE
        context.register_event_time_timer(window.max_timestamp)
        return _CONTINUE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _FIRE if timestamp_ms == window.max_timestamp else _CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        # If the end of the window has passed, the record that merges it fires the window.
        if window.max_timestamp > context.current_watermark():
            context.register_event_time_timer(window.max_timestamp)

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.max_timestamp)


@frozen
class ProcessingTimeTrigger(Trigger[Any, Any]):
    """Fires when the clock passes the end of the window."""

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        context.register_processing_time_timer(window.max_timestamp)
        return _CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        if window.max_timestamp > context.current_processing_time():
            context.register_processing_time_timer(window.max_timestamp)

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.delete_processing_time_timer(window.max_timestamp)


@frozen
class NeverTrigger(Trigger[Any, Any]):
    """Never fires; the default of the global window."""

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        pass

    def clear(self, window: Any, context: TriggerContext) -> None:
        pass


def _check_count(trigger: Any, attribute: Any, count: Any) -> None:
    if type(count) is not int or count < 1:
        raise JobDefinitionError(
            f"CountTrigger.of() takes a number of records of 1 or more, not {format_value(count, 40)}"
        )


@frozen
class CountTrigger(Trigger[Any, Any]):
    """Fires at every n-th record of a window."""

    max_count: int = field(validator=_check_count)
    state_descriptors = (_COUNT,)

    @classmethod
    def of(cls, max_count: int) -> CountTrigger:
        """Fire at every ``max_count``-th record. Raises `JobDefinitionError` for less than 1."""
        return cls(max_count)

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        count = context.get_partitioned_state(_COUNT)
        count.add(1)
        if count.get() < self.max_count:
            return _CONTINUE
        count.clear()
        return _FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        context.merge_partitioned_state(_COUNT)

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.get_partitioned_state(_COUNT).clear()


def _check_nested(trigger: Any, attribute: Any, nested: Any) -> None:
    if not isinstance(nested, Trigger):
        raise JobDefinitionError(f"PurgingTrigger.of() takes a trigger, not {format_value(nested, 80)}")


@frozen
class PurgingTrigger(Trigger[Any, Any]):
    """Wraps a trigger and purges the window whenever it fires."""

    nested: Trigger[Any, Any] = field(validator=_check_nested)

    @classmethod
    def of(cls, nested: Trigger[Any, Any]) -> PurgingTrigger:
        """Purge when ``nested`` fires. Raises `JobDefinitionError` if it is not a trigger."""
        return cls(nested)

    @property
    def state_descriptors(self) -> Sequence[StateDescriptor]:
        return self.nested.state_descriptors

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_element(element, timestamp_ms, window, context))

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_event_time(timestamp_ms, window, context))

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_processing_time(timestamp_ms, window, context))

    def can_merge(self) -> bool:
        return self.nested.can_merge()

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        self.nested.on_merge(window, context)

    def clear(self, window: Any, context: TriggerContext) -> None:
        self.nested.clear(window, context)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.fires else result


def _interval_start(timestamp_ms: int, interval_ms: int) -> int:
    """Round a time to a multiple of the interval, towards 1970."""
    return (
        timestamp_ms - timestamp_ms % interval_ms if timestamp_ms >= 0 else timestamp_ms + -timestamp_ms % interval_ms
    )


_MOST_FIRINGS: Final = 1_000
"""The most firings of a window at one watermark or time of the clock."""


def _check_interval(trigger: Any, attribute: Any, interval_ms: Any) -> None:
    if type(interval_ms) is not int or interval_ms < 1:
        name = type(trigger).__name__
        raise JobDefinitionError(f"{name}: interval_ms is {format_value(interval_ms, 40)}; use {name}.of('1 minute')")


@frozen
class _ContinuousTrigger(Trigger[Any, Any]):
    """The base of triggers that fire at multiples of an interval."""

    interval_ms: int = field(validator=_check_interval)
    state_descriptors = (_FIRE_TIME,)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        context.merge_partitioned_state(_FIRE_TIME)
        # The earliest firing time of the windows that merged.
        next_fire_ms = context.get_partitioned_state(_FIRE_TIME).get()
        if next_fire_ms is not None:
            self._register(next_fire_ms, context)

    def clear(self, window: Any, context: TriggerContext) -> None:
        # The timer at the end of an event-time window has fired. After a merge, timers of the old windows are ignored.
        next_fire_ms = context.get_partitioned_state(_FIRE_TIME).get()
        if next_fire_ms is not None and _takes_fire_time(next_fire_ms, context):
            self._delete(next_fire_ms, context)

    @abstractmethod
    def _register(self, timestamp_ms: int, context: TriggerContext) -> None:
        """Register a timer."""

    @abstractmethod
    def _delete(self, timestamp_ms: int, context: TriggerContext) -> None:
        """Delete a timer."""

    def _register_next(self, timestamp_ms: int, latest_ms: int, context: TriggerContext) -> None:
        """Store and register the next firing time: an interval later, but not after ``latest_ms``."""
        next_fire_ms = min(clamped(timestamp_ms + self.interval_ms), latest_ms)
        context.get_partitioned_state(_FIRE_TIME).add(next_fire_ms)
        self._register(next_fire_ms, context)

    def _bounded(self, timestamp_ms: int, due_ms: int) -> int:
        """The firing time after which at most `_MOST_FIRINGS` multiples of the interval are due."""
        skipped = (due_ms - timestamp_ms) // self.interval_ms - _MOST_FIRINGS + 1
        return timestamp_ms + max(skipped, 0) * self.interval_ms


@frozen
class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires whenever the watermark passes a multiple of an interval, and at the end of the window.

    One watermark fires a window at most 1,000 times, for the last intervals that it passes.
    """

    @classmethod
    def of(cls, interval: Duration) -> ContinuousEventTimeTrigger:
        """Fire at multiples of ``interval``. Raises `JobDefinitionError` for less than a millisecond."""
        return cls(duration_ms(interval, f"{cls.__name__}: the interval", at_least_ms=1))

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        if window.max_timestamp <= context.current_watermark():
            return _FIRE
        context.register_event_time_timer(window.max_timestamp)
        if context.get_partitioned_state(_FIRE_TIME).get() is None:
            if timestamp_ms is None:
                raise ValueError("ContinuousEventTimeTrigger needs a timestamp, and the record has none")
            self._register_next(_interval_start(timestamp_ms, self.interval_ms), window.max_timestamp, context)
        return _CONTINUE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        if timestamp_ms == window.max_timestamp:
            return _FIRE
        if not _takes_fire_time(timestamp_ms, context):
            return _CONTINUE
        # At the maximum watermark a window without an end would fire forever.
        if context.current_watermark() < MAX_TIMESTAMP or window.max_timestamp < MAX_TIMESTAMP:
            due_ms = min(context.current_watermark(), window.max_timestamp)
            self._register_next(self._bounded(timestamp_ms, due_ms), window.max_timestamp, context)
        return _FIRE

    def _register(self, timestamp_ms: int, context: TriggerContext) -> None:
        context.register_event_time_timer(timestamp_ms)

    def _delete(self, timestamp_ms: int, context: TriggerContext) -> None:
        context.delete_event_time_timer(timestamp_ms)


@frozen
class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires whenever the clock passes a multiple of an interval, if the window has received a record.

    One time of the clock fires a window at most 1,000 times, for the last intervals that it passes.
    """

    @classmethod
    def of(cls, interval: Duration) -> ContinuousProcessingTimeTrigger:
        """Fire at multiples of ``interval``. Raises `JobDefinitionError` for less than a millisecond."""
        return cls(duration_ms(interval, f"{cls.__name__}: the interval", at_least_ms=1))

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        if context.get_partitioned_state(_FIRE_TIME).get() is None:
            now_ms = context.current_processing_time()
            self._register_next(_interval_start(now_ms, self.interval_ms), window.max_timestamp, context)
        return _CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        if not _takes_fire_time(timestamp_ms, context):
            return _CONTINUE
        if timestamp_ms < window.max_timestamp:
            due_ms = min(context.current_processing_time(), window.max_timestamp)
            self._register_next(self._bounded(timestamp_ms, due_ms), window.max_timestamp, context)
        else:
            # A processing-time window is disposed now. For an event-time window a timer at its end would fire again
            # and again, because that time has passed on the clock.
            now_ms = context.current_processing_time()
            self._register_next(_interval_start(now_ms, self.interval_ms), MAX_TIMESTAMP, context)
        return _FIRE

    def _register(self, timestamp_ms: int, context: TriggerContext) -> None:
        context.register_processing_time_timer(timestamp_ms)

    def _delete(self, timestamp_ms: int, context: TriggerContext) -> None:
        context.delete_processing_time_timer(timestamp_ms)


def _takes_fire_time(timestamp_ms: int, context: TriggerContext) -> bool:
    """Whether this is the stored firing time; if so, clear it."""
    fire_time = context.get_partitioned_state(_FIRE_TIME)
    if fire_time.get() != timestamp_ms:
        return False
    fire_time.clear()
    return True


def check_threshold(given: Any, attribute: Any, threshold: Any) -> None:
    """Raise `JobDefinitionError` if the threshold of a trigger or evictor is not a number."""
    is_number = isinstance(threshold, (Real, Decimal, timedelta)) and not isinstance(threshold, bool)
    if not is_number or threshold != threshold:
        raise JobDefinitionError(
            f"{type(given).__name__}.of() takes a number as threshold, not {format_value(threshold, 40)}"
        )


def check_delta_function(given: Any, attribute: Any, function: Any) -> None:
    """Raise `JobDefinitionError` if the delta function of a trigger or evictor is not a function."""
    if not callable(function):
        raise JobDefinitionError(
            f"{type(given).__name__}.of() takes a function of two records, not {format_value(function, 80)}"
        )


@frozen
class DeltaTrigger(Trigger[Any, Any]):
    """Fires when a record differs from the record of the last firing by more than a threshold."""

    threshold: float = field(validator=check_threshold)
    delta_function: Callable[[Any, Any], float] = field(validator=check_delta_function)
    descriptor: ValueStateDescriptor[Any]

    @classmethod
    def of(
        cls, threshold: float, delta_function: Callable[[Any, Any], float], element_type: TypeSerializer[Any] | Any
    ) -> DeltaTrigger:
        """Fire when ``delta_function(last, record)`` is above ``threshold``.

        ``last`` is the record of the last firing, or the first record. ``element_type`` is the serializer or type hint
        that stores it.
        """
        return cls(threshold, delta_function, ValueStateDescriptor("last-fired", element_type))

    @property
    def state_descriptors(self) -> Sequence[StateDescriptor]:
        return (self.descriptor,)

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        state = context.get_partitioned_state(self.descriptor)
        last = state.value()
        if last is None:
            state.update(element)
            return _CONTINUE
        if self.delta_function(last, element) <= self.threshold:
            return _CONTINUE
        state.update(element)
        return _FIRE

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.get_partitioned_state(self.descriptor).clear()
