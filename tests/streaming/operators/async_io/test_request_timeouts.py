"""Requests that time out: their result, their record, and those after them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from manual_requests import BOTH_ORDERS, Answering, Asking, Late

from statebackend.streaming.async_functions import AsyncContext, AsyncRetryStrategy, EmissionOrder
from statebackend.streaming.errors import AsyncTimeoutError, UserFunctionError
from statebackend.streaming.operators.async_requests import LoopRequests, WorkerLoop


@BOTH_ORDERS
def test_a_timeout_fails_with_operator_key_and_record_and_other_results_are_emitted(
    order: EmissionOrder,
) -> None:
    function = Answering()
    with Asking(function, order, keyed=True).closed() as asking:
        asking.records(1, 2, keys=["k", "l"])
        function.answer(2, 4)
        asking.requests.pass_time(0.999)
        asking.turn()
        asking.requests.pass_time(0.001)
        with pytest.raises(
            AsyncTimeoutError,
            match=r"operator 'ask', key 'k', record 1: no results within 1000 ms$",
        ) as raised:
            asking.turn()
        assert isinstance(raised.value, TimeoutError)
        assert isinstance(raised.value, UserFunctionError)
        assert asking.output == [4]
        asking.requests.turn()
        assert function.cancelled == [1]


@BOTH_ORDERS
def test_timeout_may_return_results_instead_and_the_request_is_cancelled(order: EmissionOrder) -> None:
    function = Late()
    with Asking(function, order).closed() as asking:
        asking.records(1, 2, timestamps=[7, 8])
        function.answer(2, 4)
        asking.turn()
        asking.requests.pass_time(1)
        asking.turn()
        assert sorted(asking.output) == [3, 4]
        assert function.timed_out == (1, 1, 7)
        asking.turn()
        assert function.cancelled == [1]


def test_a_waiting_operator_is_woken_by_the_timeout() -> None:
    function = Late()
    with Asking(function, capacity=1).closed() as asking:
        asking.records(1)
        asking.meanwhile(lambda: asking.requests.pass_time(1))
        asking.records(2)
        assert asking.output == [3]


def test_a_result_after_its_timeout_is_dropped_even_without_a_poll() -> None:
    function = Late()
    with Asking(function).closed() as asking:
        asking.records(1, 2)
        asking.requests.pass_time(1)
        function.answer(2, "just in time")
        asking.requests.turn()
        asking.requests.pass_time(0.5)
        function.answer(1, "late")
        asking.turn()
        assert asking.output == [3, "just in time"]


def test_nothing_is_left_of_a_request_that_was_in_time() -> None:
    function = Answering()
    with Asking(function).closed() as asking:
        asking.records(1)
        function.answer(1, 2)
        asking.turn()
        asking.requests.pass_time(100)
        asking.turn()
        assert asking.output == [2]
        assert asking.requests.tasks == {}
        assert function.cancelled == []


@pytest.mark.parametrize("by_exception", [True, False])
@BOTH_ORDERS
def test_retries_follow_their_delays_until_one_succeeds(order: EmissionOrder, by_exception: bool) -> None:
    retry = AsyncRetryStrategy.exponential_backoff(
        4, 100, 250, retry_on_exception=ConnectionError, retry_on_result=lambda results: results == ["busy"]
    )
    function = Answering()
    with Asking(function, order, retry=retry, timeout_ms=10_000).closed() as asking:
        asking.records(1)
        for delay_ms in (100, 200, 250):
            asking.turn()
            if by_exception:
                function.fail(1, ConnectionError("gone"))
            else:
                function.answer(1, "busy")
            asking.turn()
            before = len(function.attempts)
            asking.requests.pass_time(delay_ms / 1000 - 0.001)
            assert len(function.attempts) == before
            asking.requests.pass_time(0.0011)
            assert len(function.attempts) == before + 1
        function.answer(1, "good")
        asking.turn()
        assert asking.output == ["good"]
        assert function.attempts == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_the_last_attempt_counts_with_any_result() -> None:
    retry = AsyncRetryStrategy.fixed_delay(2, 0, retry_on_result=lambda results: True)
    function = Answering()
    with Asking(function, retry=retry).closed() as asking:
        asking.records(1, 2)
        asking.turn()
        for value in (1, 2):
            function.answer(value, "first")
        asking.turn()
        function.answer(1, "second")
        function.fail(2, ConnectionError("gone"))
        with pytest.raises(
            UserFunctionError, match=r"record 2: async_invoke raised ConnectionError: gone .* attempt 2"
        ):
            asking.turn()
        assert asking.output == ["second"]


def test_an_error_without_retry_fails_at_once() -> None:
    retry = AsyncRetryStrategy.fixed_delay(5, 0, retry_on_exception=lambda error: "again" in str(error))
    function = Answering()
    with Asking(function, retry=retry).closed() as asking:
        asking.records(1)
        asking.turn()
        function.fail(1, ValueError("again"))
        asking.turn()
        function.fail(1, ValueError("never"))
        with pytest.raises(UserFunctionError, match="never"):
            asking.turn()
        assert len(function.attempts) == 2


@BOTH_ORDERS
def test_the_timeout_covers_all_attempts_and_may_fire_between_two(order: EmissionOrder) -> None:
    retry = AsyncRetryStrategy.fixed_delay(10, 600)
    function = Answering()
    with Asking(function, order, retry=retry).closed() as asking:
        asking.records(1)
        asking.turn()
        function.fail(1, ConnectionError("gone"))
        asking.turn()
        asking.requests.pass_time(0.6)
        function.fail(1, ConnectionError("gone again"))
        asking.turn()
        asking.requests.pass_time(0.4)
        with pytest.raises(
            AsyncTimeoutError, match=r"no results within 1000 ms; attempt 2.*ConnectionError: gone again"
        ):
            asking.turn()
        asking.requests.pass_time(100)
        assert len(function.attempts) == 2


@BOTH_ORDERS
def test_timeout_returns_results_between_two_attempts(order: EmissionOrder) -> None:
    function = Late()
    with Asking(function, order, retry=AsyncRetryStrategy.fixed_delay(10, 5000)).closed() as asking:
        asking.records(1)
        asking.turn()
        function.fail(1, ConnectionError("gone"))
        asking.turn()
        asking.requests.pass_time(1)
        asking.turn()
        assert asking.output == [3]


class BadTimeout(Answering):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def timeout(self, value: Any, context: AsyncContext) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "reported"),
    [
        (KeyError("gone"), "timeout raised KeyError"),
        (5, "timeout returned 5, which is not an iterable of records"),
        ({"a": 1}, "timeout returned {'a': 1}, which is one record"),
    ],
)
def test_an_error_of_timeout_names_the_record(result: Any, reported: str) -> None:
    with Asking(BadTimeout(result)).closed() as asking:
        asking.records("r")
        asking.requests.pass_time(1)
        with pytest.raises(UserFunctionError, match=f"operator 'ask', record 'r': no results.*{reported}") as raised:
            asking.turn()
        assert not isinstance(raised.value, TimeoutError)


def test_timeout_may_return_nothing() -> None:
    with Asking(BadTimeout(None)).closed() as asking:
        asking.records("r")
        asking.requests.pass_time(1)
        asking.turn()
        assert asking.output == []


class Stubborn(Late):
    """Ignores its cancellation, and asks for another attempt each time."""

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        self.asked.append(value)
        while True:
            self.answers[value] = asyncio.get_running_loop().create_future()
            try:
                return await self.answers[value]
            except asyncio.CancelledError:
                self.cancelled.append(value)


def test_a_coroutine_that_swallows_its_cancellation_changes_nothing() -> None:
    function = Stubborn()
    retry = AsyncRetryStrategy.fixed_delay(100, 0, retry_on_result=lambda results: True)
    with Asking(function, retry=retry).closed() as asking:
        asking.records(1)
        asking.requests.pass_time(1)
        asking.turn()
        asking.turn()
        assert function.cancelled == [1]
        assert asking.output == [3]
        function.answer(1, "late")
        asking.turn()
        asking.requests.pass_time(50)
        assert asking.output == [3]
        assert function.asked == [1]
        assert asking.requests.tasks == {}


class Blocking(Late):
    """Blocks the loop, which a coroutine must not do."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        self.released.wait()
        return [value]


def test_a_coroutine_that_blocks_the_loop_times_out_too() -> None:
    own, blocking = WorkerLoop(), Blocking()
    requests = LoopRequests(own, answer_s=0)
    try:
        with Asking(blocking, capacity=1, timeout_ms=1, requests=requests).closed() as asking:
            asking.records(1, 2)
            asking.operator.prepare_snapshot()
            assert asking.output == [3, 6]
    finally:
        blocking.released.set()
        own.run(asyncio.sleep(0))
        own.call(own.loop.stop)
