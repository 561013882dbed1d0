"""Results and exceptions of an async function, and its lifecycle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from manual_requests import BOTH_ORDERS, Answering, Asking, Giving

from statebackend import StateRegistrationError, ValueStateDescriptor
from statebackend.streaming.async_functions import AsyncContext, AsyncFunction, EmissionOrder
from statebackend.streaming.errors import UserFunctionError


@BOTH_ORDERS
def test_an_exception_names_operator_key_and_record_and_other_results_are_emitted(
    order: EmissionOrder,
) -> None:
    function = Answering()
    with Asking(function, order, keyed=True).closed() as asking:
        asking.records(1, 2, keys=[("k", 1), ("l", 2)])
        function.answer(2, 4)
        function.fail(1, ValueError("no such thing"))
        with pytest.raises(
            UserFunctionError,
            match=r"operator 'ask', key \('k', 1\), record 1: async_invoke raised ValueError: no such",
        ) as raised:
            asking.turn()
        assert isinstance(raised.value.__cause__, ValueError)
        assert asking.output == [4]


@pytest.mark.parametrize(
    ("result", "reported"),
    [
        (5, "async_invoke returned 5, which is not an iterable of records"),
        ("text", "which is one record and not an iterable"),
        ({"a": 1}, "which is one record and not an iterable"),
        ((1, 2), "which is one record and not an iterable"),
    ],
)
def test_results_that_are_no_iterable_of_records_are_rejected(result: Any, reported: str) -> None:
    with (
        Asking(Giving(result)).closed() as asking,
        pytest.raises(UserFunctionError, match=f"record 'r': async_invoke raised TypeError: .*{reported}"),
    ):
        asking.records("r")


@pytest.mark.parametrize(("result", "expected"), [(None, []), ((), []), ([1, 2], [1, 2]), (range(2), [0, 1])])
def test_any_iterable_of_records_is_emitted(result: Any, expected: list[Any]) -> None:
    with Asking(Giving(result)).closed() as asking:
        asking.records("r")
        asking.turn()
        assert asking.output == expected


class Yielding(AsyncFunction[Any, Any]):
    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        for index in range(value):
            await asyncio.sleep(0)
            yield index


class NotAsync(AsyncFunction[Any, Any]):
    def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        return [value]


def test_a_function_may_yield_its_results() -> None:
    with Asking(Yielding()).closed() as asking:
        asking.records(3)
        asking.turn()
        assert asking.output == [0, 1, 2]


def test_a_function_that_is_not_async_is_rejected() -> None:
    with (
        Asking(NotAsync()).closed() as asking,
        pytest.raises(
            UserFunctionError, match=r"async_invoke returned \[3\] instead of a coroutine; define it with async def"
        ),
    ):
        asking.records(3)


class Exiting(AsyncFunction[Any, Any]):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_coroutine_that_cancels_itself_fails_its_record(error: BaseException) -> None:
    with (
        Asking(Exiting(error)).closed() as asking,
        pytest.raises(UserFunctionError, match=f"record 'r': async_invoke raised {type(error).__name__}"),
    ):
        asking.records("r")


class WithLife(Answering):
    """Opens and closes in the loop, and records both."""

    def __init__(self, failing: str = "") -> None:
        super().__init__()
        self.failing = failing
        self.life: list[str] = []

    async def open(self, context: Any) -> None:
        await asyncio.sleep(0)
        self.life.append("open")
        self._fail_in("open")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.life.append("close")
        self._fail_in("close")

    def _fail_in(self, method: str) -> None:
        if self.failing == method:
            raise OSError("no")


def test_open_and_close_may_be_coroutines_and_close_follows_all_requests() -> None:
    function = WithLife()
    with Asking(function).closed() as asking:
        asking.records(1)
        asking.requests.turn()
    assert function.life == ["open", "close"]
    assert function.cancelled == [1]


def test_an_exception_of_open_names_the_operator() -> None:
    function = WithLife("open")
    with Asking(function).closed() as asking:
        assert function.life == []
        with pytest.raises(UserFunctionError, match="operator 'ask': open raised OSError: no"):
            asking.records(1)
    assert function.life == ["open", "close"]


def test_a_subtask_without_records_opens_nothing() -> None:
    function = WithLife()
    with Asking(function).closed() as asking:
        asking.operator.on_watermark(5)
        asking.operator.prepare_snapshot()
        assert asking.output == [("W", 5)]
    assert function.life == []


def test_state_cannot_be_registered_by_an_async_function() -> None:
    class Registering(Answering):
        def open(self, context: Any) -> None:
            context.get_state(ValueStateDescriptor("count", int))

    with (
        Asking(Registering()).closed() as asking,
        pytest.raises(StateRegistrationError, match="operator 'ask': an AsyncFunction has no state"),
    ):
        asking.records(1)


@BOTH_ORDERS
def test_the_first_of_several_failed_requests_is_reported(order: EmissionOrder) -> None:
    function = Answering()
    with Asking(function, order).closed() as asking:
        asking.records(1, 2)
        for value in (1, 2):
            function.fail(value, ArithmeticError(f"boom {value}"))
        with pytest.raises(UserFunctionError, match="record 1: async_invoke raised ArithmeticError: boom 1"):
            asking.turn()
