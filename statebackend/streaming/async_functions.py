"""Functions that call other systems with asyncio and have many requests in flight.

    class AirlineName(AsyncFunction[Row, dict]):
        async def setup(self):
            self.client = connect(...)

        async def async_invoke(self, value, context):
            return [{"carrier": value.carrier, "name": await self.client.name_of(value.carrier)}]

Coroutines run in the one event loop of the worker process, which has its own thread. Plain methods run in the thread
of the operator. A blocking call in a coroutine blocks all other coroutines: run it with `asyncio.to_thread`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from attrs import Attribute, field, frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.functions import RuntimeContext, WorkerLifecycle
from statebackend.streaming.time.timestamps import Duration, duration_ms

__all__ = [
    "DEFAULT_CAPACITY",
    "AsyncContext",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "AsyncWaitDefinition",
    "EmissionOrder",
]


I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

DEFAULT_CAPACITY: Final = 100
"""The default number of records of a subtask that may be in flight."""


@frozen
class AsyncContext:
    """The second argument of `async_invoke` and `timeout`."""

    timestamp: int | None
    """The event time of the record in milliseconds since 1970; None if it has none."""
    attempt: int
    """The number of the attempt at this record, from 1. In `timeout`, the attempt that started last."""


class AsyncFunction(WorkerLifecycle, ABC, Generic[I, O]):
    """Calls another system for each record without blocking the records after it.

    It has no state and no timers. Instances travel to the subtasks by pickling; create clients and connections in
    `setup`. All methods except `timeout` may be ``async def``; then they run in the event loop.
    """

    def open(self, context: RuntimeContext) -> Awaitable[None] | None:
        """Called in a subtask before the first record of an epoch, if the epoch has one. State cannot be registered."""
        return None

    @abstractmethod
    def async_invoke(self, value: I, context: AsyncContext) -> Awaitable[Iterable[O] | None] | AsyncIterable[O]:
        """Return the records to emit for a record, or None: an ``async def`` that returns or yields them.

        It may be cancelled at any ``await``: when its time is over, or when the epoch fails.
        """

    def timeout(self, value: I, context: AsyncContext) -> Iterable[O] | None:
        """Return the records to emit if there is no result in time, all attempts included.

        Raises:
            TimeoutError: Unless overridden. It fails the epoch.
        """
        raise TimeoutError("the request timed out; override timeout() to emit other records")

    def close(self) -> Awaitable[None] | None:
        """Called after the last record of an epoch, also after a failure, if `open` was called."""
        return None


def _check_attempts(strategy: AsyncRetryStrategy, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise JobDefinitionError(
            f"max_attempts of an AsyncRetryStrategy is {format_value(value, 40)}; pass an integer of 1 or more, "
            f"which counts the first attempt"
        )


def _check_multiplier(strategy: AsyncRetryStrategy, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < float("inf"):
        raise JobDefinitionError(
            f"multiplier of an AsyncRetryStrategy is {format_value(value, 40)}; pass a number of 1 or more"
        )


_Exceptions = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


@frozen(kw_only=True)
class AsyncRetryStrategy:
    """When to retry a request, and after which delay. The operator's timeout covers all attempts together.

    Create it with `fixed_delay` or `exponential_backoff`.
    """

    max_attempts: int = field(validator=_check_attempts)
    """The maximum number of attempts at a record, including the first."""
    delay_ms: int
    """The delay from the first failure to the second attempt."""
    multiplier: float = field(default=1.0, validator=_check_multiplier)
    """The factor between one delay and the next."""
    max_delay_ms: int | None = None
    """The longest delay, or None for no bound."""
    retry_on_exception: _Exceptions = Exception
    """The exceptions to retry on: classes, or a predicate of the exception."""
    retry_on_result: Callable[[Sequence[Any]], bool] | None = None
    """A predicate of the list of results to retry on. The results of the last attempt are always emitted."""

    @classmethod
    def fixed_delay(
        cls,
        max_attempts: int,
        delay: Duration,
        *,
        retry_on_exception: _Exceptions = Exception,
        retry_on_result: Callable[[Sequence[Any]], bool] | None = None,
    ) -> AsyncRetryStrategy:
        """Use the same delay before each retry. Raises `JobDefinitionError` for invalid values."""
        return cls(
            max_attempts=max_attempts,
            delay_ms=duration_ms(delay, "delay of an AsyncRetryStrategy", at_least_ms=0),
            retry_on_exception=retry_on_exception,
            retry_on_result=retry_on_result,
        )

    @classmethod
    def exponential_backoff(
        cls,
        max_attempts: int,
        initial_delay: Duration,
        max_delay: Duration,
        *,
        multiplier: float = 2.0,
        retry_on_exception: _Exceptions = Exception,
        retry_on_result: Callable[[Sequence[Any]], bool] | None = None,
    ) -> AsyncRetryStrategy:
        """Multiply the delay after each failure, up to ``max_delay``. Raises `JobDefinitionError`."""
        return cls(
            max_attempts=max_attempts,
            delay_ms=duration_ms(initial_delay, "initial_delay of an AsyncRetryStrategy", at_least_ms=0),
            multiplier=multiplier,
            max_delay_ms=duration_ms(max_delay, "max_delay of an AsyncRetryStrategy", at_least_ms=0),
            retry_on_exception=retry_on_exception,
            retry_on_result=retry_on_result,
        )

    def delay_after_error(self, attempt: int, error: Exception) -> float | None:
        """Return the milliseconds to wait before the next attempt, or None to stop."""
        if attempt >= self.max_attempts or not self._accepts(error):
            return None
        return self._delay_after(attempt)

    def delay_after_results(self, attempt: int, results: Sequence[Any]) -> float | None:
        """As `delay_after_error`, after an attempt that returned these results."""
        if attempt >= self.max_attempts or self.retry_on_result is None or not self.retry_on_result(results):
            return None
        return self._delay_after(attempt)

    def _accepts(self, error: Exception) -> bool:
        which = self.retry_on_exception
        return isinstance(error, which) if isinstance(which, (type, tuple)) else bool(which(error))

    def _delay_after(self, attempt: int) -> float:
        longest = float("inf") if self.max_delay_ms is None else float(self.max_delay_ms)
        try:
            return min(self.delay_ms * float(self.multiplier) ** (attempt - 1), longest)
        except OverflowError:
            return longest


class EmissionOrder(Enum):
    """The order in which results are emitted between two watermarks."""

    ORDERED = "ordered"
    """The order of the input records."""
    UNORDERED = "unordered"
    """The order in which the results arrive."""


@frozen(kw_only=True)
class AsyncWaitDefinition:
    """The settings of an async I/O operator, as a graph node holds them; picklable."""

    function: AsyncFunction[Any, Any]
    order: EmissionOrder
    timeout_ms: int
    capacity: int
    retry: AsyncRetryStrategy | None
    carries_in_flight: bool
    is_keyed: bool

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The function."""
        return (self.function,)
