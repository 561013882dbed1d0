"""Requests of async operators: coroutines in the event loop of the process.

All coroutines of users run in one event loop, in its own thread, until the process ends. There is one loop for all
tasks, because clients that `setup()` creates belong to the loop in which they were created. The loop has its own thread
for three reasons: connections must be served while the operator waits for records; the operator may itself run inside a
loop, as in a notebook; and a blocking coroutine must not prevent timeouts. Each request and its outcome are passed
between the two threads.

A forked process starts without the loop of its parent. A loop that a coroutine blocks is replaced (`abandon`): the next
caller gets a new one.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, NoReturn, Protocol

from attrs import define, frozen

from snapshots.errors import format_value
from snapshots.loggers import logger_of
from statebackend.state.errors import StateRegistrationError
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.streaming.async_functions import AsyncContext, AsyncRetryStrategy
from statebackend.streaming.errors import describe_exception
from statebackend.streaming.functions import DelegatingContext
from statebackend.streaming.operators.function_calls import check_results
from statebackend.streaming.rows.record_copies import copied

__all__ = [
    "LoopRequests",
    "RecordRequest",
    "Request",
    "RequestOutcome",
    "Requests",
    "StatelessContext",
    "WorkerLoop",
    "abandon",
    "coroutine_outcome",
    "worker_loop",
]


class StatelessContext(DelegatingContext):
    """The runtime context of an operator with a stateless function."""

    def register(self, descriptor: StateDescriptor) -> NoReturn:
        raise self._rejection()

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> NoReturn:
        raise self._rejection()

    def _rejection(self) -> StateRegistrationError:
        return StateRegistrationError(
            f"operator {self.operator_uid!r}: an AsyncFunction has no state: its results arrive in no fixed order; "
            f"keep state in a KeyedProcessFunction before or after it"
        )


_METHOD = "async_invoke"


@define(eq=False)
class RecordRequest:
    """The attempts to process a record. `run` is the coroutine; other attributes may be read while it runs."""

    invoke: Callable[[Any, AsyncContext], Any]
    retry: AsyncRetryStrategy | None
    value: Any
    timestamp: int | None
    is_over: bool = False
    """Set when the result is no longer needed. A coroutine that ignores its cancellation then makes no further
    attempt."""
    attempt: int = 0
    """The number of attempts started."""
    failures: str = ""
    """Describes the last attempt that failed or was retried; empty if there was none."""

    @property
    def context(self) -> AsyncContext:
        """The context of the last attempt that was started."""
        return AsyncContext(self.timestamp, max(self.attempt, 1))

    async def run(self) -> list[Any]:
        """Return the results of the first attempt that is not retried. Raises the error of the last attempt."""
        retry = self.retry
        while True:
            self.attempt += 1
            try:
                results = await self._invoked()
            except Exception as error:
                delay_ms = None if retry is None else retry.delay_after_error(self.attempt, error)
                if delay_ms is None or self.is_over:
                    raise
                self.failures = describe_exception(error)
            else:
                delay_ms = None if retry is None else retry.delay_after_results(self.attempt, results)
                if delay_ms is None or self.is_over:
                    return results
                self.failures = f"it gave {format_value(results, 80)}"
            await asyncio.sleep(delay_ms / 1000)

    async def _invoked(self) -> list[Any]:
        """Return the results of one attempt, copied because the function may change them before they are emitted."""
        made = self.invoke(self.value, self.context)
        if hasattr(made, "__aiter__"):
            return [copied(result) async for result in made]
        if not inspect.isawaitable(made):
            raise TypeError(
                f"{_METHOD} returned {format_value(made, 80)} instead of a coroutine; define it with async def"
            )
        results = await made
        if results is None:
            return []
        check_results(results, _METHOD)
        return list(map(copied, results))


class WorkerLoop:
    """An event loop in a daemon thread that runs until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        """The loop. Other threads may only call its thread-safe methods."""
        self._thread = threading.Thread(target=self._run, name="statebackend-async-io", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop. For other threads."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Run an awaitable in the loop and return its result. For other threads."""

        async def awaited() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result()


class _Process:
    """Per-process state."""

    lock: threading.Lock
    loop: WorkerLoop | None

    def begin(self) -> None:
        """Initialise the state, also after a fork, when another thread of the parent may have held the lock."""
        self.lock = threading.Lock()
        self.loop = None


_process = _Process()
_process.begin()
os.register_at_fork(after_in_child=_process.begin)


def worker_loop() -> WorkerLoop:
    """Return the loop of this process."""
    with _process.lock:
        if _process.loop is None:
            _process.loop = WorkerLoop()
        return _process.loop


def abandon(loop: WorkerLoop) -> None:
    """Stop using a loop that does not answer."""
    with _process.lock:
        if _process.loop is loop:
            _process.loop = None


Request = Callable[[], Coroutine[Any, Any, Sequence[Any]]]

_GRACE_S: Final = 5.0
"""Seconds to wait for an answer of the loop, and then for cancelled coroutines to end."""

_ROUNDS: Final = 20
"""The number of parts of that wait. A suspension of the process uses up only one part."""

_NUDGE_S: Final = 0.05
"""Seconds between two wake-ups of the loop while the operator waits for it."""

_logger = logger_of(__name__)


@frozen
class RequestOutcome:
    """The outcome of a request: results, or an error."""

    number: int
    results: Sequence[Any]
    error: BaseException | None
    finished_at_s: float
    """On the clock of `Requests.now_s`."""


class Requests(Protocol):
    """The requests of an operator, used in its thread only."""

    def now_s(self) -> float:
        """Seconds on a monotonic clock."""

    def start(self, number: int, request: Request) -> None:
        """Start a request. Its outcome is reported once under that number."""

    def cancel(self, number: int) -> None:
        """Cancel a running request. Its outcome is still reported."""

    def outcomes(self, wait_s: float) -> list[RequestOutcome]:
        """Return new outcomes in order of arrival, waiting up to this time for the first one."""

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Run an awaitable in the loop and return its result. Raises `RuntimeError` if the loop was abandoned."""

    def close(self) -> None:
        """Cancel all requests and wait, for a limited time, for them to end. No more outcomes are reported."""


async def coroutine_outcome(request: Request) -> tuple[Sequence[Any], BaseException | None]:
    """Run a request and return its outcome.

    SystemExit and KeyboardInterrupt are outcomes like other errors, because they would stop the loop.
    """
    try:
        return await request(), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return (), error


class LoopRequests:
    """The requests of an operator in the loop of the process.

    On close, the loop has ``answer_s`` seconds to answer, and coroutines have ``end_s`` seconds to end.
    """

    def __init__(self, loop: WorkerLoop | None = None, *, answer_s: float = _GRACE_S, end_s: float = _GRACE_S) -> None:
        self._loop = loop or worker_loop()
        self._answer_s = answer_s
        self._end_s = end_s
        self._is_left_behind = False
        self._outcomes: SimpleQueue[RequestOutcome] = SimpleQueue()
        self._to_start: deque[tuple[int, Request]] = deque()
        self._start_is_scheduled = False
        # The next two belong to the loop's thread.
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._is_closed = False
        self._answered = threading.Event()
        self._ended = threading.Event()

    def now_s(self) -> float:
        return time.monotonic()

    def start(self, number: int, request: Request) -> None:
        self._to_start.append((number, request))
        # One wake-up serves all requests that arrive before the loop runs.
        if not self._start_is_scheduled:
            self._start_is_scheduled = True
            self._loop.call(self._start_all)

    def cancel(self, number: int) -> None:
        self._loop.call(self._cancel, number)

    def outcomes(self, wait_s: float) -> list[RequestOutcome]:
        end_s = self.now_s() + wait_s
        found: list[RequestOutcome] = []
        while not self._take_one(found, end_s - self.now_s()) and self.now_s() < end_s:
            # A future that another thread completes does not wake the loop, so wake it.
            self._loop.call(_nothing)
        while self._take_one(found, 0):
            pass
        return found

    def _take_one(self, found: list[RequestOutcome], wait_s: float) -> bool:
        wait_s = min(wait_s, _NUDGE_S)
        try:
            found.append(self._outcomes.get(wait_s > 0, wait_s if wait_s > 0 else None))
        except Empty:
            return False
        return True

    def run(self, awaitable: Awaitable[Any]) -> Any:
        if self._is_left_behind:
            raise RuntimeError("a coroutine blocks the event loop, so that nothing else can run in it")
        return self._loop.run(awaitable)

    def close(self) -> None:
        self._loop.call(self._close)
        if not _waited(self._answered, self._answer_s):
            _logger.warning("a coroutine blocks the event loop, which is abandoned; use asyncio.to_thread there")
            self._is_left_behind = True
            abandon(self._loop)
        elif not _waited(self._ended, self._end_s):
            _logger.warning("%s coroutines go on, though they were cancelled; they are abandoned", len(self._tasks))

    def _start_all(self) -> None:
        # Reset before the requests are taken, so that later requests signal again.
        self._start_is_scheduled = False
        while self._to_start:
            self._start(*self._to_start.popleft())

    def _start(self, number: int, request: Request) -> None:
        if not self._is_closed:
            task = self._tasks[number] = self._loop.loop.create_task(coroutine_outcome(request))
            task.add_done_callback(partial(self._end, number))

    def _end(self, number: int, task: asyncio.Task[Any]) -> None:
        del self._tasks[number]
        results, error = ((), asyncio.CancelledError()) if task.cancelled() else task.result()
        self._outcomes.put(RequestOutcome(number, results, error, self.now_s()))
        if self._is_closed and not self._tasks:
            self._ended.set()

    def _cancel(self, number: int) -> None:
        if number in self._tasks:
            self._tasks[number].cancel()

    def _close(self) -> None:
        self._is_closed = True
        self._answered.set()
        for task in self._tasks.values():
            task.cancel()
        if not self._tasks:
            self._ended.set()


def _waited(event: threading.Event, time_s: float) -> bool:
    """Return whether the event is set within this time. Time in which the process is suspended does not count."""
    return any(event.wait(time_s / _ROUNDS) for _ in range(_ROUNDS))


def _nothing() -> None:
    pass
