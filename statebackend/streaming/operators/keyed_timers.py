"""Timers of functions over keyed streams.

Only a function that overrides ``on_timer`` has timer queues in its state. A function that adds ``on_timer`` starts with
empty queues. If a function removes it, no function would process the restored timers. So a start rejects them like any
unregistered state.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NoReturn, Protocol, TypeVar

from snapshots.errors import SerializationError, format_value
from statebackend.state.durations import DurationError, duration_ms
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.functions import Delay, KeyedFunction, TimerService
from statebackend.streaming.time.internal_timer_service import InternalTimerService
from statebackend.streaming.time.timestamps import Time, time_ms
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer

__all__ = ["TIMERS_NAME", "KeyedTimers", "NoTimers", "overrides_on_timer", "register_timers"]

N = TypeVar("N")

TIMERS_NAME: Final = "user-timers"
"""The name of the timer service, as in Flink."""


class RegistersTimers(Protocol):
    """The context of `Operator.open`."""

    def internal_timer_service(self, name: str, namespace_serializer: TypeSerializer[N]) -> InternalTimerService[N]:
        """Return the timer service with this name."""


def overrides_on_timer(function: object) -> bool:
    """Whether a function may register timers."""
    return isinstance(function, KeyedFunction) and type(function).on_timer is not KeyedFunction.on_timer


def register_timers(function: KeyedFunction[Any, Any], context: RegistersTimers) -> InternalTimerService[Any] | None:
    """Register the timers of a function that overrides ``on_timer``; None for others."""
    if not overrides_on_timer(function):
        return None
    return context.internal_timer_service(TIMERS_NAME, VoidNamespaceSerializer())


class KeyedTimers(TimerService):
    """The timers of the current key, without a namespace. Calls may or may not have a timestamp."""

    def __init__(self, timers: InternalTimerService[Any], timestamp: Callable[[], int | None]) -> None:
        self._timers = timers
        self._timestamp = timestamp
        self._register = timers.register_event_time_timer
        self._delete = timers.delete_event_time_timer

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def register_event_time_timer(self, time: Time | Delay) -> None:
        if time.__class__ is not int:
            time = _registered_ms(time, self._timestamp)
        self._register(VOID_NAMESPACE, time)

    def delete_event_time_timer(self, time: Time) -> None:
        self._delete(VOID_NAMESPACE, time if time.__class__ is int else time_ms(time))

    def register_processing_time_timer(self, time: Time | Delay) -> None:
        if time.__class__ is not int:
            time = _registered_ms(time, self._timers.current_processing_time)
        self._timers.register_processing_time_timer(VOID_NAMESPACE, time)

    def delete_processing_time_timer(self, time: Time) -> None:
        self._timers.delete_processing_time_timer(VOID_NAMESPACE, time_ms(time))


def _registered_ms(time: object, now: Callable[[], int | None]) -> int:
    if not isinstance(time, (str, timedelta)):
        return time_ms(time)
    now_ms = now()
    if now_ms is None:
        raise SerializationError(
            "a timer", (f"the delay {format_value(time)} starts at a timestamp, and this call has none; pass a time",)
        )
    try:
        return now_ms + duration_ms(time, "the delay", at_least_ms=0)
    except DurationError as error:
        raise SerializationError("a timer", (str(error),)) from None


class NoTimers(TimerService):
    """Time for a function without timers: deleting is a no-op, registering is rejected."""

    def __init__(
        self,
        uid: str,
        function_name: str,
        clock: Callable[[], int],
        watermark_ms: int,
        method: str = "on_timer(self, timestamp, context)",
    ) -> None:
        self.watermark_ms = watermark_ms
        """The watermark, which the operator updates."""
        self._uid = uid
        self._function_name = function_name
        self._method = method
        self._clock = clock

    def current_watermark(self) -> int:
        return self.watermark_ms

    def current_processing_time(self) -> int:
        return self._clock()

    def register_event_time_timer(self, time: Time | Delay) -> NoReturn:
        self._reject()

    def delete_event_time_timer(self, time: Time) -> None:
        pass

    def register_processing_time_timer(self, time: Time | Delay) -> NoReturn:
        self._reject()

    def delete_processing_time_timer(self, time: Time) -> None:
        pass

    def _reject(self) -> NoReturn:
        raise JobDefinitionError(
            f"operator {self._uid!r}: {self._function_name} registers a timer but does not override {self._method}"
        )
