"""Timers of a function over keyed streams: in the subtask's state, or none for a function that could not be called.

Only a function that overrides ``on_timer`` has queues of timers in its state. Adding ``on_timer`` to a function begins
with empty ones; removing it leaves timers in restored state that nobody would fire, which a start rejects as any state
that nobody registers.
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
    """A context that an operator is opened with."""

    def internal_timer_service(self, name: str, namespace_serializer: TypeSerializer[N]) -> InternalTimerService[N]:
        """Timers by key and namespace under a name."""


def overrides_on_timer(function: object) -> bool:
    """Whether an object is a function that may register timers."""
    return isinstance(function, KeyedFunction) and type(function).on_timer is not KeyedFunction.on_timer


def register_timers(function: KeyedFunction[Any, Any], context: RegistersTimers) -> InternalTimerService[Any] | None:
    """Registers the timers of a function that overrides ``on_timer``; None for one that does not."""
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
    """The time, for a function that has no timers: there is none to delete, and registering one is rejected."""

    def __init__(self, uid: str, function_name: str, clock: Callable[[], int], watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms
        """The watermark; whoever is told a new one says it here."""
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
            f"operator {self._uid!r}: {self._function_name} registers a timer, and has no method that is called when "
            f"it is due; override on_timer(self, timestamp, context)"
        )
