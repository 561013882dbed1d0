"""The triggers that come with us; what each does is Flink's.

The two continuous ones fire at whole multiples of their interval, counted from 1970 and not from the start of the
window. The next time of firing is in state; of windows that merge the earliest counts.

When a window fires: what a trigger is, and what it is given.

A trigger is asked at every record of a window and at every timer that it has registered. It answers whether the window
is to *fire* (what it holds is given to the function) and whether it is to be *purged* (what it holds is thrown away;
the window and what the trigger keeps stay).

One trigger object serves all windows of all keys: what it has to remember of one it keeps in state, which belongs to
the current key and window and is named in `Trigger.state_descriptors`. Timers belong to both too. When a window is
given up, `Trigger.clear` takes away all of that.

Where windows merge, a trigger says what is to become of the timers and the state of those that have merged; one that
cannot is rejected when the job is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from attrs import field, frozen

from statebackend.state.folding_states import ReducingStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.errors import JobDefinitionError, format_value
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, Duration, clamped, duration_ms
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer

__all__ = [
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "DeltaTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "OnMergeContext",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
]


T = TypeVar("T")
W = TypeVar("W")


class TriggerResult(Enum):
    """What is to be done with a window: whether to fire, and whether to purge."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def __init__(self, fires: bool, purges: bool) -> None:
        self.fires = fires
        """Whether the function is given what the window holds."""
        self.purges = purges
        """Whether what the window holds is thrown away, after it has fired if it fires."""


class TriggerContext(ABC):
    """What a trigger is given: time, and the timers and state of the current key and window."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark of the operator, in milliseconds; `MIN_TIMESTAMP` before the first."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""

    @abstractmethod
    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Has `Trigger.on_event_time` called when the watermark has reached that time. Registering twice is once."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Has `Trigger.on_processing_time` called at that time. Registering twice is once."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Takes a timer away; one that is not there is ignored."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Takes a timer away; one that is not there is ignored."""

    @abstractmethod
    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        """The state of the current key and window, of the descriptor's kind.

        Raises `StateRegistrationError` for a descriptor that `Trigger.state_descriptors` does not have.
        """


class OnMergeContext(TriggerContext):
    """What a trigger is given when windows have merged; the current window is the merged one."""

    @abstractmethod
    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        """Merges the state of the windows that have merged into that of the merged window.

        Raises `StateRegistrationError` for one that cannot be merged: list, reducing and aggregating state can.
        """


class Trigger(ABC, Generic[T, W]):
    """See the module. Instances travel to the subtasks by pickling, and hold configuration only."""

    @property
    def state_descriptors(self) -> Sequence[StateDescriptor]:
        """What the trigger keeps per key and window. It is registered before the first record."""
        return ()

    @abstractmethod
    def on_element(self, element: T, timestamp_ms: int | None, window: W, context: TriggerContext) -> TriggerResult:
        """Called for every record, after it was added to the window; ``timestamp_ms`` is None if it has none."""

    @abstractmethod
    def on_event_time(self, timestamp_ms: int, window: W, context: TriggerContext) -> TriggerResult:
        """Called when a timer is due by the watermark. It may be one that somebody else registered for the window."""

    @abstractmethod
    def on_processing_time(self, timestamp_ms: int, window: W, context: TriggerContext) -> TriggerResult:
        """Called when a timer is due by the clock. It may be one that somebody else registered for the window."""

    def can_merge(self) -> bool:
        """Whether the trigger knows what to do when windows merge."""
        return False

    def on_merge(self, window: W, context: OnMergeContext) -> None:
        """Called when windows have merged into ``window``; those are cleared afterwards.

        It moves state with `OnMergeContext.merge_partitioned_state`, and registers the timers of the merged window.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot merge windows")

    @abstractmethod
    def clear(self, window: W, context: TriggerContext) -> None:
        """Called when a window is given up: takes away all timers and state that the trigger may have for it."""


_CONTINUE: Final = TriggerResult.CONTINUE
_FIRE: Final = TriggerResult.FIRE


def _sum(left: int, right: int) -> int:
    return left + right


def _earlier(left: int, right: int) -> int:
    return min(left, right)


_COUNT: Final[ReducingStateDescriptor[int]] = ReducingStateDescriptor("count", _sum, LongSerializer())
_FIRE_TIME: Final[ReducingStateDescriptor[int]] = ReducingStateDescriptor("fire-time", _earlier, LongSerializer())


@frozen
class EventTimeTrigger(Trigger[Any, Any]):
    """Fires when the watermark has passed the end of the window, and at every record that comes after."""

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        if window.max_timestamp <= context.current_watermark():
            return _FIRE
        context.register_event_time_timer(window.max_timestamp)
        return _CONTINUE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _FIRE if timestamp_ms == window.max_timestamp else _CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        # A window that is over fires with the record that has it merge.
        if window.max_timestamp > context.current_watermark():
            context.register_event_time_timer(window.max_timestamp)

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.max_timestamp)


@frozen
class ProcessingTimeTrigger(Trigger[Any, Any]):
    """Fires when the clock has passed the end of the window."""

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        context.register_processing_time_timer(window.max_timestamp)
        return _CONTINUE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
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
    """Never fires: that of the global window, as long as it has no other."""

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
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
            f"CountTrigger.of() takes a number of records from 1 on, not {format_value(count, 40)}"
        )


@frozen
class CountTrigger(Trigger[Any, Any]):
    """Fires at every n-th record of a window."""

    max_count: int = field(validator=_check_count)

    @classmethod
    def of(cls, max_count: int) -> CountTrigger:
        """Fires at every ``max_count``-th record; `JobDefinitionError` for less than 1."""
        return cls(max_count)

    @property
    def state_descriptors(self) -> Sequence[StateDescriptor]:
        return (_COUNT,)

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        count = context.get_partitioned_state(_COUNT)
        count.add(1)
        if count.get() < self.max_count:
            return _CONTINUE
        count.clear()
        return _FIRE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        context.merge_partitioned_state(_COUNT)

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.get_partitioned_state(_COUNT).clear()


@frozen
class PurgingTrigger(Trigger[Any, Any]):
    """Does as another trigger says, and purges the window whenever that fires."""

    nested: Trigger[Any, Any]

    @classmethod
    def of(cls, nested: Trigger[Any, Any]) -> PurgingTrigger:
        """Purges when ``nested`` fires; `JobDefinitionError` for what is no trigger."""
        if not isinstance(nested, Trigger):
            raise JobDefinitionError(f"PurgingTrigger.of() takes a trigger, not {format_value(nested, 80)}")
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
    """The multiple of the interval next to the time, towards 1970."""
    return (
        timestamp_ms - timestamp_ms % interval_ms if timestamp_ms >= 0 else timestamp_ms + -timestamp_ms % interval_ms
    )


@frozen
class ContinuousEventTimeTrigger(Trigger[Any, Any]):
    """Fires whenever the watermark has passed a multiple of an interval, and at the end of the window."""

    interval_ms: int

    @classmethod
    def of(cls, interval: Duration) -> ContinuousEventTimeTrigger:
        """Fires at multiples of ``interval``; `JobDefinitionError` for one below a millisecond."""
        return cls(duration_ms(interval, f"{cls.__name__}: the interval", at_least_ms=1))

    @property
    def state_descriptors(self) -> Sequence[StateDescriptor]:
        return (_FIRE_TIME,)

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
        # A window without an end would fire for ever when time is at its end.
        if context.current_watermark() < MAX_TIMESTAMP or window.max_timestamp < MAX_TIMESTAMP:
            self._register_next(timestamp_ms, window.max_timestamp, context)
        return _FIRE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        next_fire_ms = _merged_fire_time(context)
        if next_fire_ms is not None:
            context.register_event_time_timer(next_fire_ms)

    def clear(self, window: Any, context: TriggerContext) -> None:
        # The timer at the end of the window is due before it is given up, or was never more than one of a window that
        # merged, which nobody hears any more.
        next_fire_ms = context.get_partitioned_state(_FIRE_TIME).get()
        if next_fire_ms is not None and _takes_fire_time(next_fire_ms, context):
            context.delete_event_time_timer(next_fire_ms)

    def _register_next(self, timestamp_ms: int, latest_ms: int, context: TriggerContext) -> None:
        context.register_event_time_timer(_next_fire_time(timestamp_ms, self.interval_ms, latest_ms, context))


@frozen
class ContinuousProcessingTimeTrigger(Trigger[Any, Any]):
    """Fires whenever the clock has passed a multiple of an interval, if the window has had a record."""

    interval_ms: int

    @classmethod
    def of(cls, interval: Duration) -> ContinuousProcessingTimeTrigger:
        """Fires at multiples of ``interval``; `JobDefinitionError` for one below a millisecond."""
        return cls(duration_ms(interval, f"{cls.__name__}: the interval", at_least_ms=1))

    @property
    def state_descriptors(self) -> Sequence[StateDescriptor]:
        return (_FIRE_TIME,)

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        if context.get_partitioned_state(_FIRE_TIME).get() is None:
            now_ms = context.current_processing_time()
            self._register_next(_interval_start(now_ms, self.interval_ms), window.max_timestamp, context)
        return _CONTINUE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        if not _takes_fire_time(timestamp_ms, context):
            return _CONTINUE
        if timestamp_ms < window.max_timestamp:
            self._register_next(timestamp_ms, window.max_timestamp, context)
        else:
            # One of processing time is given up now. One of event time goes on, and has no end that the clock knows: to
            # fire then would be to fire again at once, and for ever.
            now_ms = context.current_processing_time()
            self._register_next(_interval_start(now_ms, self.interval_ms), MAX_TIMESTAMP, context)
        return _FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        next_fire_ms = _merged_fire_time(context)
        if next_fire_ms is not None:
            context.register_processing_time_timer(next_fire_ms)

    def clear(self, window: Any, context: TriggerContext) -> None:
        next_fire_ms = context.get_partitioned_state(_FIRE_TIME).get()
        if next_fire_ms is not None and _takes_fire_time(next_fire_ms, context):
            context.delete_processing_time_timer(next_fire_ms)

    def _register_next(self, timestamp_ms: int, latest_ms: int, context: TriggerContext) -> None:
        context.register_processing_time_timer(_next_fire_time(timestamp_ms, self.interval_ms, latest_ms, context))


def _next_fire_time(timestamp_ms: int, interval_ms: int, latest_ms: int, context: TriggerContext) -> int:
    """When the window fires next, which is remembered: an interval later, but not behind ``latest_ms``."""
    next_fire_ms = min(clamped(timestamp_ms + interval_ms), latest_ms)
    context.get_partitioned_state(_FIRE_TIME).add(next_fire_ms)
    return int(next_fire_ms)


def _takes_fire_time(timestamp_ms: int, context: TriggerContext) -> bool:
    """Whether this is when the window was to fire next, which is forgotten then."""
    fire_time = context.get_partitioned_state(_FIRE_TIME)
    if fire_time.get() != timestamp_ms:
        return False
    fire_time.clear()
    return True


def _merged_fire_time(context: OnMergeContext) -> int | None:
    """The first of the times at which the windows that have merged were to fire."""
    context.merge_partitioned_state(_FIRE_TIME)
    next_fire_ms: int | None = context.get_partitioned_state(_FIRE_TIME).get()
    return next_fire_ms


@frozen
class DeltaTrigger(Trigger[Any, Any]):
    """Fires when a record differs from the one of the last firing by more than a threshold."""

    threshold: float
    delta_function: Callable[[Any, Any], float]
    descriptor: ValueStateDescriptor[Any]

    @classmethod
    def of(
        cls, threshold: float, delta_function: Callable[[Any, Any], float], element_type: TypeSerializer[Any] | Any
    ) -> DeltaTrigger:
        """Fires when ``delta_function(last, record)`` is above ``threshold``.

        ``last`` is the record that fired last, at first that which came first. It is kept, so ``element_type`` says
        what it is: a serializer or a type hint.
        """
        if not callable(delta_function):
            raise JobDefinitionError(
                f"DeltaTrigger.of() takes a function of two records, not {format_value(delta_function, 80)}"
            )
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

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return _CONTINUE

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.get_partitioned_state(self.descriptor).clear()
