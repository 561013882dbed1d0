"""What is asked for one record: the attempts at it, as one coroutine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from attrs import define

from streamjobs.api.async_functions import AsyncContext, AsyncRetryStrategy
from streamjobs.operators.function_results import check_results
from streamjobs.rows.record_copies import copied
from streamjobs.user_errors import cited, told

__all__ = ["RecordRequest"]

_METHOD = "async_invoke"


@define(eq=False)
class RecordRequest:
    """The attempts at a record; `run` is the coroutine, and everything else may be read meanwhile."""

    invoke: Callable[[Any, AsyncContext], Any]
    retry: AsyncRetryStrategy | None
    value: Any
    timestamp: int | None
    is_over: bool = False
    """Set by whoever waits for it no more. A coroutine that does not heed its cancellation then makes no further
    attempt."""
    attempt: int = 0
    """How many attempts were begun."""
    failures: str = ""
    """What became of the last attempt that was not good enough, in words; empty if there was none."""

    @property
    def context(self) -> AsyncContext:
        """What the function is told of the attempt that was begun last."""
        return AsyncContext(self.timestamp, max(self.attempt, 1))

    async def run(self) -> list[Any]:
        """The results of the first attempt that the strategy is content with; raises what the last one did."""
        retry = self.retry
        while True:
            self.attempt += 1
            try:
                results = await self._invoked()
            except Exception as error:
                delay_ms = None if retry is None else retry.delay_after_error(self.attempt, error)
                if delay_ms is None or self.is_over:
                    raise
                self.failures = told(error)
            else:
                delay_ms = None if retry is None else retry.delay_after_results(self.attempt, results)
                if delay_ms is None or self.is_over:
                    return results
                self.failures = f"it gave {cited(results, 80)}"
            await asyncio.sleep(delay_ms / 1000)

    async def _invoked(self) -> list[Any]:
        """The results of one attempt, copied: the function may change them while they wait for those before them."""
        made = self.invoke(self.value, self.context)
        if hasattr(made, "__aiter__"):
            return [copied(result) async for result in made]
        if not inspect.isawaitable(made):
            raise TypeError(f"{_METHOD} returned {cited(made, 80)} at once; write it as async def")
        results = await made
        if results is None:
            return []
        check_results(results, _METHOD)
        return list(map(copied, results))
