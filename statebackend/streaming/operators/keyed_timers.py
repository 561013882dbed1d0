"""Timers of functions over keyed streams.

Only a function that overrides ``on_timer`` has timer queues in its state. Adding ``on_timer`` starts with empty queues.
Removing it leaves restored timers that no function would fire, so a start rejects them like any unregistered state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol, TypeVar

from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.functions import KeyedFunction, TimerService
from statebackend.streaming.time.internal_timer_service import InternalTimerService
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
    """The timers of the current key, without a namespace."""

    def __init__(self, timers: InternalTimerService[Any]) -> None:
        self._timers = timers

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        self._timers.register_event_time_timer(VOID_NAMESPACE, timestamp_ms)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        self._timers.delete_event_time_timer(VOID_NAMESPACE, timestamp_ms)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        self._timers.register_processing_time_timer(VOID_NAMESPACE, timestamp_ms)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        self._timers.delete_processing_time_timer(VOID_NAMESPACE, timestamp_ms)


class NoTimers(TimerService):
    """Time for a function without timers: deleting is a no-op, registering is rejected."""

    def __init__(self, uid: str, function_name: str, clock: Callable[[], int], watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms
        """The watermark, which the operator updates."""
        self._uid = uid
        self._function_name = function_name
        self._clock = clock

    def current_watermark(self) -> int:
        return self.watermark_ms

    def current_processing_time(self) -> int:
        return self._clock()

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        self._reject()

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        pass

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        self._reject()

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        pass

    def _reject(self) -> NoReturn:
        raise JobDefinitionError(
            f"operator {self._uid!r}: {self._function_name} registers a timer but does not override "
            f"on_timer(self, timestamp, context)"
        )
