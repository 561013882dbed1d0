"""An async operator without threads: coroutines run when it polls, and time does not advance.

A script says what happens while the operator waits: one step each time no result is ready. An operator that waits
without a further step would wait forever, which fails the test.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from attrs import frozen

from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.streaming.async_functions import AsyncContext, AsyncFunction, AsyncWaitDefinition, EmissionOrder
from statebackend.streaming.functions import RuntimeContext
from statebackend.streaming.operators.async_requests import Request, RequestOutcome, Requests, coroutine_outcome
from statebackend.streaming.operators.async_wait import AsyncWaitOperator
from statebackend.streaming.rows.declared_schema import DeclaredSchema, parsed_schema

BOTH_ORDERS = pytest.mark.parametrize("order", EmissionOrder)

TURNS = 30


class WaitsForEverError(AssertionError):
    pass


class ManualRequests:
    """Requests in an event loop that a test steps, with a test clock."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.script: deque[Callable[[], object]] = deque()
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.reported: list[RequestOutcome] = []
        self.waited = 0
        self.is_closed = False
        self.loop = asyncio.new_event_loop()
        self.loop.time = lambda: self.time_s  # type: ignore[method-assign]

    def now_s(self) -> float:
        return self.time_s

    def start(self, number: int, request: Request) -> None:
        self.tasks[number] = self.loop.create_task(coroutine_outcome(request))

    def cancel(self, number: int) -> None:
        if number in self.tasks:
            self.tasks[number].cancel()

    def outcomes(self, wait_s: float) -> list[RequestOutcome]:
        self.turn()
        if wait_s > 0 and not self.reported:
            self.waited += 1
            if not self.script:
                raise WaitsForEverError("the operator waits, and nothing is left to happen")
            self.script.popleft()()
            self.turn()
        reported, self.reported = self.reported, []
        return reported

    def run(self, awaitable: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await awaitable

        return self.loop.run_until_complete(awaited())

    def close(self) -> None:
        self.is_closed = True
        for task in self.tasks.values():
            task.cancel()
        self.turn()

    def turn(self) -> None:
        """Run everything that can run at this time."""
        for _ in range(TURNS):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        self.collect()

    def collect(self) -> None:
        """Take the outcomes of finished requests."""
        for number, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[number]
                results, error = ((), asyncio.CancelledError()) if task.cancelled() else task.result()
                self.reported.append(RequestOutcome(number, results, error, self.time_s))

    def pass_time(self, seconds: float) -> None:
        self.time_s += seconds
        self.turn()


class Answering(AsyncFunction[Any, Any]):
    """The test sets the results: `answers` has a future for each requested record, by attempt."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.attempts: list[tuple[Any, int]] = []
        self.answers: dict[Any, asyncio.Future[Any]] = {}
        self.cancelled: list[Any] = []

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        self.asked.append(value)
        self.attempts.append((value, context.attempt))
        self.answers[value] = asyncio.get_running_loop().create_future()
        try:
            return await self.answers[value]
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise

    def answer(self, value: Any, *results: Any) -> None:
        self.answers[value].set_result(list(results))

    def fail(self, value: Any, error: Exception) -> None:
        self.answers[value].set_exception(error)


@frozen
class Batch:
    columns = None

    records: Sequence[Any]
    keys: Sequence[Any]
    timestamps: Sequence[int | None] | None

    @property
    def key_groups(self) -> Sequence[int]:
        return [0] * len(self.records)


class Emitted:
    """Output of an operator, watermarks as ``("W", time)``; an `Emitter`."""

    def __init__(self) -> None:
        self.output: list[Any] = []
        self.timestamps: list[int | None] = []
        self.side_outputs: frozenset[Any] = frozenset()

    def emit(self, tag: Any, rows: Sequence[Any], timestamps: Sequence[int | None] | None = None) -> None:
        assert tag is None
        self.output.extend(rows)
        self.timestamps.extend(timestamps or [None] * len(rows))

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.output.append(("W", timestamp_ms))


class StoredList:
    """List state that stores bytes."""

    def __init__(self, descriptor: OperatorStateDescriptor, stored: list[bytes]) -> None:
        [self.serializer] = descriptor.serializers.values()
        self.stored = stored

    def get(self) -> list[Any]:
        return [self.serializer.from_bytes(data) for data in self.stored]

    def update(self, values: Iterable[Any]) -> None:
        self.stored[:] = [self.serializer.to_bytes(value) for value in values]


class Context(RuntimeContext):
    """A context whose operator state is ``stored``."""

    operator_uid = "ask"
    subtask_index = 0
    parallelism = 1
    epoch_id = 1
    is_restored = False

    def __init__(self, stored: list[bytes], schema: str | None) -> None:
        self.stored = stored
        self.schema = schema

    def register(self, descriptor: Any) -> Any:
        raise AssertionError("no keyed state")

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> Any:
        return StoredList(descriptor, self.stored)

    @property
    def input_schemas(self) -> Sequence[DeclaredSchema | None]:
        return [None if self.schema is None else parsed_schema(self.schema, "test")]


class Asking:
    """An async operator fed by a test. Records of a stream without a schema are arbitrary."""

    def __init__(
        self,
        function: AsyncFunction[Any, Any],
        order: EmissionOrder = EmissionOrder.ORDERED,
        *,
        capacity: int = 10,
        timeout_ms: int = 1000,
        retry: Any = None,
        carries: bool = False,
        keyed: bool = False,
        schema: str | None = None,
        stored: list[bytes] | None = None,
        requests: Requests | None = None,
    ) -> None:
        self.requests = ManualRequests()
        self.emitted = Emitted()
        self.stored = [] if stored is None else stored
        self.operator = AsyncWaitOperator(
            AsyncWaitDefinition(
                function=function,
                order=order,
                timeout_ms=timeout_ms,
                capacity=capacity,
                retry=retry,
                carries_in_flight=carries,
                is_keyed=keyed,
            ),
            "ask",
            lambda: requests or self.requests,
        )
        self.operator.open(Context(self.stored, schema), self.emitted)

    @property
    def output(self) -> list[Any]:
        return self.emitted.output

    def records(self, *values: Any, keys: Sequence[Any] | None = None, timestamps: Any = None) -> None:
        self.operator.process_batch(0, Batch(values, keys or [None] * len(values), timestamps))

    def turn(self) -> None:
        """A call without records, as a runtime makes it."""
        self.records()

    def meanwhile(self, *steps: Callable[[], object]) -> None:
        """The steps that run, one by one, while the operator waits."""
        self.requests.script.extend(steps)

    @contextlib.contextmanager
    def closed(self) -> Iterator[Asking]:
        try:
            yield self
        finally:
            self.operator.close()
            self.requests.loop.close()


class Late(Answering):
    """Returns three times the record after a timeout."""

    def timeout(self, value: Any, context: AsyncContext) -> Any:
        self.timed_out = (value, context.attempt, context.timestamp)
        return [value * 3]


class Giving(AsyncFunction[Any, Any]):
    """Returns its constructor argument."""

    def __init__(self, result: Any) -> None:
        self.result = result

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        return self.result
