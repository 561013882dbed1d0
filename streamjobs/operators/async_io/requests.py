"""The requests of one operator: coroutines in an event loop, whose outcomes are taken in the operator's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from attrs import frozen

from snapshots.loggers import logger_of
from streamjobs.operators.async_io.worker_loop import WorkerLoop, abandon, worker_loop

__all__ = ["LoopRequests", "Request", "RequestOutcome", "Requests", "coroutine_outcome"]

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
