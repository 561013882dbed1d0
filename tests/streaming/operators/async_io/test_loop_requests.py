"""Requests in the event loop of the process, which runs in its own thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from statebackend.streaming.operators import async_requests as requests_module
from statebackend.streaming.operators.async_requests import (
    LoopRequests,
    RequestOutcome,
    WorkerLoop,
    abandon,
    worker_loop,
)

LONG_S = 600.0


@pytest.fixture
def requests() -> Iterator[LoopRequests]:
    made = LoopRequests(answer_s=LONG_S, end_s=LONG_S)
    yield made
    made.close()


def next_of(requests: LoopRequests) -> RequestOutcome:
    [outcome] = requests.outcomes(LONG_S)
    return outcome


async def giving(*results: Any) -> Any:
    await asyncio.sleep(0)
    return results


def test_coroutines_run_in_another_thread_and_outcomes_are_taken_in_this_one(requests: LoopRequests) -> None:
    async def thread() -> Any:
        return [threading.current_thread().name]

    requests.start(3, thread)
    outcome = next_of(requests)
    assert (outcome.number, outcome.error) == (3, None)
    assert outcome.results == ["statebackend-async-io"]
    assert outcome.finished_at_s <= requests.now_s()
    assert requests.outcomes(0) == []


def test_requests_of_one_process_share_a_loop_that_outlives_them() -> None:
    first = LoopRequests(answer_s=LONG_S, end_s=LONG_S)
    lock = first.run(made_in_the_loop())
    first.close()
    second = LoopRequests(answer_s=LONG_S, end_s=LONG_S)

    async def locked() -> Any:
        async with lock:
            return [asyncio.get_running_loop() is lock.loop]

    second.start(0, locked)
    assert next_of(second).results == [True]
    second.close()


class LoopLock(asyncio.Lock):
    loop: Any


async def made_in_the_loop() -> LoopLock:
    lock = LoopLock()
    lock.loop = asyncio.get_running_loop()
    return lock


def test_an_empty_poll_returns_nothing_after_the_wait(requests: LoopRequests) -> None:
    assert requests.outcomes(0.001) == []


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), KeyboardInterrupt()])
def test_an_exception_of_a_coroutine_is_reported_and_the_loop_continues(
    requests: LoopRequests, error: BaseException
) -> None:
    async def failing() -> Any:
        raise error

    requests.start(0, failing)
    assert next_of(requests).error is error
    requests.start(1, lambda: giving(1))
    assert next_of(requests).results == (1,)


def test_a_future_completed_by_another_thread_is_noticed(requests: LoopRequests) -> None:
    """The thread does not wake the loop when it completes the future. asyncio forbids this, but programs do it."""
    futures: concurrent.futures.Future[asyncio.Future[Any]] = concurrent.futures.Future()

    async def waiting() -> Any:
        future = asyncio.get_running_loop().create_future()
        futures.set_result(future)
        return await future

    requests.start(0, waiting)
    threading.Thread(target=lambda: futures.result().set_result([7])).start()
    assert next_of(requests).results == [7]


def test_blocking_work_runs_in_threads(requests: LoopRequests) -> None:
    released = threading.Event()

    async def waiting() -> Any:
        return [await asyncio.to_thread(released.wait, LONG_S)]

    requests.start(0, waiting)
    requests.start(1, lambda: giving(1))
    assert next_of(requests).number == 1
    released.set()
    assert next_of(requests).results == [True]


def test_cancelled_requests_are_reported_and_their_coroutines_have_ended(requests: LoopRequests) -> None:
    started, ended = threading.Event(), threading.Event()

    async def waiting() -> Any:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    requests.start(0, waiting)
    assert started.wait(LONG_S)
    requests.cancel(0)
    requests.cancel(5)
    assert isinstance(next_of(requests).error, asyncio.CancelledError)
    assert ended.is_set()


def test_closing_ends_all_requests_and_accepts_no_more() -> None:
    requests = LoopRequests(answer_s=LONG_S, end_s=LONG_S)
    ended: list[int] = []

    async def waiting(number: int) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    def begin(number: int) -> None:
        requests.start(number, lambda: waiting(number))

    for number in range(20):
        begin(number)
    requests.run(giving())
    requests.close()
    assert sorted(ended) == list(range(20))
    begin(20)
    LoopRequests().run(giving())
    assert len(ended) == 20


def test_a_coroutine_that_swallows_its_cancellation_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    requests = LoopRequests(answer_s=LONG_S, end_s=0)
    started, released = threading.Event(), asyncio.Event()

    async def stubborn() -> Any:
        started.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return []

    loop = worker_loop()
    requests.start(0, stubborn)
    assert started.wait(LONG_S)
    requests.close()
    loop.run(giving())
    # Other threads and the garbage collector may log other messages meanwhile.
    reported = [
        one.getMessage() for one in caplog.records if one.name == "statebackend.streaming.operators.async_requests"
    ]
    assert reported == ["1 coroutines go on, though they were cancelled; they are abandoned"]
    assert worker_loop() is loop
    loop.call(released.set)
    another = LoopRequests(answer_s=LONG_S, end_s=LONG_S)
    another.start(0, lambda: giving(1))
    assert next_of(another).results == (1,)
    another.close()


def test_a_blocked_loop_is_abandoned_and_the_next_operator_gets_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = WorkerLoop()
    requests = LoopRequests(own, answer_s=0)
    started, released = threading.Event(), threading.Event()

    async def blocking() -> Any:
        started.set()
        released.wait(LONG_S)

    requests.start(0, blocking)
    assert started.wait(LONG_S)
    assert requests.outcomes(0.001) == []
    requests.close()
    assert "a coroutine blocks the event loop" in caplog.text
    closing = giving()
    with pytest.raises(RuntimeError, match="a coroutine blocks the event loop"):
        requests.run(closing)
    closing.close()
    released.set()
    own.run(giving())
    own.call(own.loop.stop)


class StoodStill(threading.Event):
    """An event whose first wait times out, as if the process had been paused."""

    has_stood_still = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self.has_stood_still:
            self.has_stood_still = True
            return False
        return super().wait(timeout)


def test_a_loop_that_answers_after_a_pause_of_the_process_is_not_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = worker_loop()
    monkeypatch.setattr(requests_module, "threading", SimpleNamespace(Event=StoodStill))
    requests = LoopRequests(answer_s=LONG_S, end_s=LONG_S)
    requests.start(0, asyncio.Event().wait)  # type: ignore[arg-type]
    requests.close()
    assert worker_loop() is loop
    assert not [one for one in caplog.records if one.name == requests_module.__name__]


def test_an_abandoned_loop_is_not_reused() -> None:
    loop = worker_loop()
    assert worker_loop() is loop
    abandon(WorkerLoop())
    assert worker_loop() is loop
    abandon(loop)
    assert worker_loop() is not loop
    loop.call(loop.loop.stop)


def test_an_operator_may_be_called_from_a_running_loop(requests: LoopRequests) -> None:
    async def program() -> Any:
        requests.start(0, lambda: giving(1))
        return next_of(requests).results, requests.run(giving(2))

    assert asyncio.run(program()) == ((1,), (2,))


def test_a_forked_process_has_its_own_loop() -> None:
    worker_loop()
    reader, writer = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        try:
            requests = LoopRequests()
            requests.start(0, lambda: giving(os.getpid()))
            os.write(writer, repr(next_of(requests).results == (os.getpid(),)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as reported:
        assert reported.read() == "True"
    os.waitpid(process_id, 0)
