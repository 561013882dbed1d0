"""Typing of async functions and of objects that are set up once per process.

Nothing here is run. Each class shows one thing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from statebackend import AsyncContext, AsyncFunction, AsyncRetryStrategy, KeyedProcessFunction, ProcessContext


class Returning(AsyncFunction[str, int]):
    async def async_invoke(self, value: str, context: AsyncContext) -> list[int]:
        return [len(value) + context.attempt]

    def timeout(self, value: str, context: AsyncContext) -> list[int]:
        return []


class Yielding(AsyncFunction[str, int]):
    async def async_invoke(self, value: str, context: AsyncContext) -> AsyncIterator[int]:
        yield len(value)


class OfNothing(AsyncFunction[str, int]):
    async def async_invoke(self, value: str, context: AsyncContext) -> None:
        return None


class OfTheWrongRecords(AsyncFunction[str, int]):
    async def async_invoke(self, value: str, context: AsyncContext) -> list[str]:  # type: ignore[override]
        return [value]


class NotAsync(AsyncFunction[str, int]):
    def async_invoke(self, value: str, context: AsyncContext) -> list[int]:  # type: ignore[override]
        return []


class InTheLoop(Returning):
    async def setup(self) -> None:
        self.size = 1

    async def teardown(self) -> None:
        self.size = 0


class InTheThread(KeyedProcessFunction[str, str, int]):
    def setup(self) -> None:
        self.size = 1

    def process_element(self, value: str, context: ProcessContext[str]) -> Iterable[int]:
        yield self.size


def strategies() -> list[AsyncRetryStrategy]:
    return [
        AsyncRetryStrategy.fixed_delay(3, "1 second", retry_on_exception=OSError),
        AsyncRetryStrategy.fixed_delay(
            3, 10, retry_on_exception=(OSError, ValueError), retry_on_result=lambda r: not r
        ),
        AsyncRetryStrategy.exponential_backoff(3, 10, "1 minute", retry_on_exception=lambda error: bool(str(error))),
    ]
