"""The requests of one operator: coroutines in an event loop, whose outcomes are taken in the operator's thread.

What the open() of a function without state is given: where it runs, and no way to state.

What is asked for one record: the attempts at it, as one coroutine.

The event loop of a process, in which all its coroutines of the users' run: in a thread of its own, from the first
one to the end of the process.

One loop for the life of the process and not one for each task, because clients that setup() has made belong to the loop
that they were made in. A thread of its own and not turns of the loop while the operator is called, because connections
want answers (heartbeats, closed sockets) while the operator waits for records; because the operator may itself be
called from a loop that is running, as in a notebook; and because a coroutine that blocks must not keep the operator
from seeing that the time is over. The price is a hand-over between two threads for each request.

A forked process begins without the loop of its parent. A loop whose thread does not answer any more, since a coroutine
blocks it, is given up with `abandon`: the next one who asks gets another.
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

from snapshots.loggers import logger_of
from statebackend.state.errors import StateRegistrationError
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.streaming.async_functions import AsyncContext, AsyncRetryStrategy
from statebackend.streaming.errors import format_value, told
from statebackend.streaming.operators.function_calls import check_results
from statebackend.streaming.operators.subtask_context import DelegatingContext
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
    """The context of an operator, for a function that can have no state."""

    def register(self, descriptor: StateDescriptor) -> NoReturn:
        raise self._rejection()

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> NoReturn:
        raise self._rejection()

    def _rejection(self) -> StateRegistrationError:
        return StateRegistrationError(
            f"operator {self.operator_uid!r}: an AsyncFunction has no state: its results come whenever they come; keep "
            f"state in a KeyedProcessFunction before or behind it"
        )


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
                self.failures = f"it gave {format_value(results, 80)}"
            await asyncio.sleep(delay_ms / 1000)

    async def _invoked(self) -> list[Any]:
        """The results of one attempt, copied: the function may change them while they wait for those before them."""
        made = self.invoke(self.value, self.context)
        if hasattr(made, "__aiter__"):
            return [copied(result) async for result in made]
        if not inspect.isawaitable(made):
            raise TypeError(f"{_METHOD} returned {format_value(made, 80)} at once; write it as async def")
        results = await made
        if results is None:
            return []
        check_results(results, _METHOD)
        return list(map(copied, results))


class WorkerLoop:
    """A loop that runs in a daemon thread as long as the process does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        """The loop; only its thread-safe methods are to be called from other threads."""
        self._thread = threading.Thread(target=self._run, name="statebackend-async-io", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Has the loop call a function soon; to be called from other threads."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """What the awaitable gives or raises; waits for it, in another thread than the loop's."""

        async def awaited() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result()


class _Process:
    """What there is once in a process."""

    lock: threading.Lock
    loop: WorkerLoop | None

    def begin(self) -> None:
        """As a process begins, also one that was forked: another thread of its parent may have held the lock."""
        self.lock = threading.Lock()
        self.loop = None


_process = _Process()
_process.begin()
os.register_at_fork(after_in_child=_process.begin)


def worker_loop() -> WorkerLoop:
    """The loop of this process."""
    with _process.lock:
        if _process.loop is None:
            _process.loop = WorkerLoop()
        return _process.loop


def abandon(loop: WorkerLoop) -> None:
    """Leaves a loop that does not answer to itself: it is not given to anybody any more."""
    with _process.lock:
        if _process.loop is loop:
            _process.loop = None


Request = Callable[[], Coroutine[Any, Any, Sequence[Any]]]

_GRACE_S: Final = 5.0
"""How long a loop may take to answer, and then cancelled coroutines to end, before they are left behind."""

_ROUNDS: Final = 20
"""In how many rounds that is waited for: a process that stood still has lost one, whatever the clock says then."""

_NUDGE_S: Final = 0.05
"""How often the loop is made to turn while the operator waits for it."""

_logger = logger_of(__name__)


@frozen
class RequestOutcome:
    """How a request ended: with results, or with an error and no results."""

    number: int
    results: Sequence[Any]
    error: BaseException | None
    finished_at_s: float
    """On the clock of `Requests.now_s`."""


class Requests(Protocol):
    """What the operator needs of a loop; called in its thread only."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes back."""

    def start(self, number: int, request: Request) -> None:
        """Has the loop run a request, whose outcome is told once under that number."""

    def cancel(self, number: int) -> None:
        """Cancels a request, if it has not ended. Its outcome is told all the same, when it ends."""

    def outcomes(self, wait_s: float) -> list[RequestOutcome]:
        """Those that were not told yet, in the order in which they came; waits that long for the first one."""

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """What the awaitable gives or raises in the loop; raises `RuntimeError` if the loop was left behind."""

    def close(self) -> None:
        """Cancels what runs, and waits for it to end, but not for ever; nothing is told any more."""


async def coroutine_outcome(request: Request) -> tuple[Sequence[Any], BaseException | None]:
    """What a request gives, or its error.

    SystemExit and KeyboardInterrupt are errors as others are: a task that ended with them would end the loop.
    """
    try:
        return await request(), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return (), error


class LoopRequests:
    """The requests of an operator in the loop of the process; see `Requests`.

    When it is closed, the loop has ``answer_s`` seconds to answer, and the coroutines ``end_s`` seconds to end.
    """

    def __init__(self, loop: WorkerLoop | None = None, *, answer_s: float = _GRACE_S, end_s: float = _GRACE_S) -> None:
        self._loop = loop or worker_loop()
        self._answer_s = answer_s
        self._end_s = end_s
        self._is_left_behind = False
        self._outcomes: SimpleQueue[RequestOutcome] = SimpleQueue()
        self._to_start: deque[tuple[int, Request]] = deque()
        self._is_told_to_start = False
        # These two are the loop's: they are touched in its thread only.
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._is_closed = False
        self._answered = threading.Event()
        self._ended = threading.Event()

    def now_s(self) -> float:
        return time.monotonic()

    def start(self, number: int, request: Request) -> None:
        self._to_start.append((number, request))
        # The loop is woken once for as many as come before it turns.
        if not self._is_told_to_start:
            self._is_told_to_start = True
            self._loop.call(self._start_all)

    def cancel(self, number: int) -> None:
        self._loop.call(self._cancel, number)

    def outcomes(self, wait_s: float) -> list[RequestOutcome]:
        end_s = self.now_s() + wait_s
        found: list[RequestOutcome] = []
        while not self._take_one(found, end_s - self.now_s()) and self.now_s() < end_s:
            # A future that another thread completes does not wake the loop, which sees it when it turns.
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
            _logger.warning("a coroutine blocks the event loop, which is left behind; use asyncio.to_thread there")
            self._is_left_behind = True
            abandon(self._loop)
        elif not _waited(self._ended, self._end_s):
            _logger.warning("%s coroutines go on, though they were cancelled; they are left behind", len(self._tasks))

    def _start_all(self) -> None:
        # Before the requests are taken: what is put in from here on tells again.
        self._is_told_to_start = False
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
    """Whether it happens while this process runs for so long."""
    return any(event.wait(time_s / _ROUNDS) for _ in range(_ROUNDS))


def _nothing() -> None:
    pass
