"""Functions that ask other systems, and wait for many answers at a time: asyncio in an operator.

    class AirlineName(AsyncFunction[Row, dict]):
        async def setup(self):
            self.client = connect(...)

        async def async_invoke(self, value, context):
            return [{"carrier": value.carrier, "name": await self.client.name_of(value.carrier)}]

Coroutines run in the one event loop of the worker process, which has a thread of its own; `timeout`, `open` and `close`
are called in the operator's. What blocks in a coroutine blocks all others: hand it to `asyncio.to_thread`.

What a node of the graph holds for an operator of async I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from attrs import Attribute, field, frozen

from statebackend.streaming.errors import JobDefinitionError, format_value
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
"""Most records of a subtask that are under way at a time, unless a program says otherwise."""


@frozen
class AsyncContext:
    """What `async_invoke` and `timeout` are told beside the record."""

    timestamp: int | None
    """The event time of the record in milliseconds since 1970; None if it has none."""
    attempt: int
    """Which attempt at this record it is, from 1; in `timeout`, the last one that was begun."""


class AsyncFunction(WorkerLifecycle, ABC, Generic[I, O]):
    """Asks something for each record, without holding up those behind it.

    It has no state and no timers. Instances travel to the subtasks by pickling. Clients and connections are made in
    `setup`, once per worker process; all its methods but `timeout` may be ``async def``, and run in the event loop
    then.
    """

    def open(self, context: RuntimeContext) -> Awaitable[None] | None:
        """Called in a subtask before the first record of an epoch, if it has one; state cannot be registered."""
        return None

    @abstractmethod
    def async_invoke(self, value: I, context: AsyncContext) -> Awaitable[Iterable[O] | None] | AsyncIterable[O]:
        """The records to emit for a record, or None for none: an ``async def`` that returns or yields them.

        It may be cancelled at any ``await``: when the time is over, or when the epoch ends by a failure.
        """

    def timeout(self, value: I, context: AsyncContext) -> Iterable[O] | None:
        """The records to emit for a record whose results were not there in time, all attempts included.

        Raises `TimeoutError`, which fails the epoch, unless a function says otherwise.
        """
        raise TimeoutError("there was no result in time")

    def close(self) -> Awaitable[None] | None:
        """Called behind the last record of an epoch, also after a failure, if `open` was."""
        return None


def _check_attempts(strategy: AsyncRetryStrategy, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise JobDefinitionError(
            f"max_attempts of an AsyncRetryStrategy is {format_value(value, 40)}; "
            f"it is a number of 1 or more, which counts "
            f"the first attempt"
        )


def _check_multiplier(strategy: AsyncRetryStrategy, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < float("inf"):
        raise JobDefinitionError(
            f"multiplier of an AsyncRetryStrategy is {format_value(value, 40)}; it is a number of 1 or more"
        )


_Exceptions = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


@frozen(kw_only=True)
class AsyncRetryStrategy:
    """When a request is made again, and after which delay. The operator's time-out is over all attempts together.

    Made by `fixed_delay` or `exponential_backoff`.
    """

    max_attempts: int = field(validator=_check_attempts)
    """The most attempts at a record, the first one included."""
    delay_ms: int
    """From the first failure to the second attempt."""
    multiplier: float = field(default=1.0, validator=_check_multiplier)
    """How many times the one before each further delay is."""
    max_delay_ms: int | None = None
    """The longest delay; None for no bound."""
    retry_on_exception: _Exceptions = Exception
    """Which exceptions are worth another attempt: classes, or a function of the exception."""
    retry_on_result: Callable[[Sequence[Any]], bool] | None = None
    """Whether results, as a list, are worth another attempt; those of the last one are taken as they are."""

    @classmethod
    def fixed_delay(
        cls,
        max_attempts: int,
        delay: Duration,
        *,
        retry_on_exception: _Exceptions = Exception,
        retry_on_result: Callable[[Sequence[Any]], bool] | None = None,
    ) -> AsyncRetryStrategy:
        """The same delay before each further attempt; raises `JobDefinitionError` for what is no strategy."""
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
        """Delays that grow up to the longest; raises `JobDefinitionError` for what is no strategy."""
        return cls(
            max_attempts=max_attempts,
            delay_ms=duration_ms(initial_delay, "initial_delay of an AsyncRetryStrategy", at_least_ms=0),
            multiplier=multiplier,
            max_delay_ms=duration_ms(max_delay, "max_delay of an AsyncRetryStrategy", at_least_ms=0),
            retry_on_exception=retry_on_exception,
            retry_on_result=retry_on_result,
        )

    def delay_after_error(self, attempt: int, error: Exception) -> float | None:
        """How long to wait, in milliseconds, before the next attempt; None if there is to be none."""
        if attempt >= self.max_attempts or not self._accepts(error):
            return None
        return self._delay_after(attempt)

    def delay_after_results(self, attempt: int, results: Sequence[Any]) -> float | None:
        """As `delay_after_error`, after an attempt that gave these results."""
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
    """In which order results are emitted, between two watermarks."""

    ORDERED = "ordered"
    """That of the records they belong to."""
    UNORDERED = "unordered"
    """That in which they are there."""


@frozen(kw_only=True)
class AsyncWaitDefinition:
    """What a node of the graph holds for an operator of async I/O; picklable."""

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
