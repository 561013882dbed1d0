"""An async operator, record by record, with coroutines and a clock controlled by the test.

It covers the cases of Flink's AsyncWaitOperatorTest, and more results and errors of functions.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from manual_requests import BOTH_ORDERS, Answering, Asking, Context, Giving, WaitsForEverError

from statebackend.streaming.async_functions import AsyncContext, AsyncFunction, AsyncRetryStrategy, EmissionOrder
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.operators.async_requests import LoopRequests
from statebackend.streaming.operators.async_wait import snapshot_of_records
from statebackend.streaming.rows.declared_schema import Column, DeclaredSchema
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP

ORDERED, UNORDERED = EmissionOrder.ORDERED, EmissionOrder.UNORDERED


def test_ordered_results_and_watermarks_keep_the_order_of_the_input() -> None:
    function = Answering()
    with Asking(function).closed() as asking:
        asking.records(1, 2)
        asking.operator.on_watermark(2)
        asking.records(3)
        for value in (3, 2):
            function.answer(value, value * 2)
            asking.turn()
        assert asking.output == []
        function.answer(1, 2)
        asking.turn()
        assert asking.output == [2, 4, ("W", 2), 6]


def test_unordered_results_do_not_pass_a_watermark() -> None:
    function = Answering()
    with Asking(function, UNORDERED).closed() as asking:
        asking.records(1, 2)
        asking.operator.on_watermark(2)
        asking.records(3)
        for value in (3, 2, 1):
            function.answer(value, value * 2)
            asking.turn()
        assert asking.output == [4, 2, ("W", 2), 6]


@BOTH_ORDERS
def test_more_records_than_the_capacity_are_all_emitted(order: EmissionOrder) -> None:
    function = Answering()
    with Asking(function, order, capacity=6).closed() as asking:
        answers = [partial(lambda value: function.answer(value, value * 2), value) for value in (6, 5, 4, 3, 2, 1)]
        asking.meanwhile(*answers)
        asking.records(*range(1, 9))
        asking.meanwhile(lambda: function.answer(8, 16), lambda: function.answer(7, 14))
        asking.operator.prepare_snapshot()
        assert sorted(asking.output) == [2, 4, 6, 8, 10, 12, 14, 16]
        assert (asking.output == sorted(asking.output)) == (order is ORDERED)


@BOTH_ORDERS
def test_no_more_requests_than_the_capacity_are_sent(order: EmissionOrder) -> None:
    function = Answering()
    with Asking(function, order, capacity=2).closed() as asking:
        asking.records("a", "b")
        asking.meanwhile(lambda: function.answer("a", "A"))
        with pytest.raises(WaitsForEverError):
            asking.records("c", "d")
        assert function.asked == ["a", "b", "c"]
        assert asking.output == ["A"]


def test_results_have_the_event_time_of_their_record() -> None:
    function = Answering()
    with Asking(function).closed() as asking:
        asking.records("a", "b", timestamps=[5, None])
        function.answer("a", 1, 2)
        function.answer("b", 3)
        asking.turn()
        assert asking.output == [1, 2, 3]
        assert asking.emitted.timestamps == [5, 5, None]


@BOTH_ORDERS
def test_a_barrier_waits_until_nothing_is_in_flight(order: EmissionOrder) -> None:
    function = Answering()
    with Asking(function, order, schema="v int").closed() as asking:
        asking.records((1,), (2,))
        asking.meanwhile(lambda: function.answer((2,), 4), lambda: function.answer((1,), 2))
        asking.operator.prepare_snapshot()
        assert sorted(asking.output) == [2, 4]
        assert asking.stored == []


def test_records_in_flight_have_a_timeout_until_they_are_awaited() -> None:
    function = Answering()
    with Asking(function, carries=True, schema="v int").closed() as asking:
        asking.records((1,), (2,))
        asking.operator.prepare_snapshot()
        assert (asking.output, asking.operator.in_flight_timeout_ms) == ([], 1000)
        asking.meanwhile(lambda: function.answer((2,), 4), lambda: function.answer((1,), 2))
        asking.operator.await_in_flight()
        asking.operator.prepare_snapshot()
        assert (asking.output, asking.operator.in_flight_timeout_ms) == ([2, 4], None)


@BOTH_ORDERS
def test_records_in_flight_are_in_the_snapshot_and_requested_first_in_order(order: EmissionOrder) -> None:
    first = Answering()
    stored: list[bytes] = []
    with Asking(first, order, carries=True, schema="v int", stored=stored).closed() as asking:
        asking.records((1,), (2,), (3,), (4,), timestamps=[11, None, 13, 14])
        asking.operator.prepare_snapshot()
        assert asking.output == []
    assert first.cancelled == [(1,), (2,), (3,), (4,)]

    second = Answering()
    with Asking(second, order, carries=True, schema="v int", stored=list(stored)).closed() as asking:
        asking.records((5,))
        assert second.asked == [(1,), (2,), (3,), (4,), (5,)]
        for value in range(1, 6):
            second.answer((value,), value * 2)
        asking.turn()
        assert asking.output == [2, 4, 6, 8, 10]
        assert asking.emitted.timestamps == [11, None, 13, 14, None]
        asking.operator.prepare_snapshot()
        assert asking.stored == []


@BOTH_ORDERS
def test_a_snapshot_waits_for_restored_records_and_stores_newer_ones(order: EmissionOrder) -> None:
    stored: list[bytes] = []
    with Asking(Answering(), order, carries=True, schema="v int", stored=stored).closed() as asking:
        asking.records((1,), (2,))
        asking.operator.prepare_snapshot()
        asking.operator.prepare_snapshot()
        assert (asking.output, len(asking.stored)) == ([], 2)

    function = Answering()
    with Asking(function, order, carries=True, schema="v int", stored=list(stored)).closed() as asking:
        asking.records((3,), (4,))
        asking.meanwhile(lambda: function.answer((2,), 2), lambda: function.answer((1,), 1))
        asking.operator.prepare_snapshot()
        assert sorted(asking.output) == [1, 2]
        assert len(asking.stored) == 2


@BOTH_ORDERS
def test_a_full_queue_is_restored_into_a_smaller_one_without_deadlock(order: EmissionOrder) -> None:
    first = Answering()
    stored: list[bytes] = []
    with Asking(first, order, capacity=5, carries=True, schema="v int", stored=stored).closed() as asking:
        asking.records(*((value,) for value in range(5)))
        asking.operator.prepare_snapshot()

    second = Answering()
    with Asking(second, order, capacity=1, carries=True, schema="v int", stored=list(stored)).closed() as asking:
        steps = [partial(lambda value: second.answer((value,), value), value) for value in range(6)]
        asking.meanwhile(*steps)
        asking.records((5,))
        asking.operator.prepare_snapshot()
        assert [*asking.output, second.asked[-1][0]] == [0, 1, 2, 3, 4, 5]
        assert second.asked == [(value,) for value in range(6)]


def test_a_snapshot_has_no_watermark_and_records_before_one_are_completed() -> None:
    function = Answering()
    with Asking(function, carries=True, schema="v int").closed() as asking:
        asking.records((1,))
        asking.operator.on_watermark(5)
        asking.records((2,))
        asking.meanwhile(lambda: function.answer((1,), 1))
        asking.operator.prepare_snapshot()
        assert asking.output == [1, ("W", 5)]
        assert len(asking.stored) == 1


@BOTH_ORDERS
@pytest.mark.parametrize("carries", [False, True])
def test_a_watermark_waits_for_the_records_before_it(order: EmissionOrder, carries: bool) -> None:
    function = Answering()
    with Asking(function, order, carries=carries, schema="v int").closed() as asking:
        asking.records((1,))
        asking.operator.on_watermark(5)
        asking.records((2,))
        asking.meanwhile(lambda: function.answer((1,), 1))
        asking.operator.let_watermarks_out()
        assert asking.output == [1, ("W", 5)]
        asking.operator.let_watermarks_out()
        function.answer((2,), 2)


def test_the_end_of_time_waits_for_all_requests() -> None:
    function = Answering()
    with Asking(function, carries=True, schema="v int").closed() as asking:
        asking.records((1,), (2,))
        asking.meanwhile(lambda: function.answer((2,), 2), lambda: function.answer((1,), 1))
        asking.operator.on_watermark(MAX_TIMESTAMP)
        assert asking.output == [1, 2, ("W", MAX_TIMESTAMP)]


@BOTH_ORDERS
@pytest.mark.parametrize("retry", [None, AsyncRetryStrategy.fixed_delay(3, 10)])
def test_results_after_the_snapshot_are_not_emitted_when_the_operator_is_closed(
    order: EmissionOrder, retry: AsyncRetryStrategy | None
) -> None:
    function = Answering()
    with Asking(function, order, carries=True, schema="v int", retry=retry).closed() as asking:
        asking.records((1,), (2,))
        asking.operator.prepare_snapshot()
        for value in (2, 1):
            function.answer((value,))
        asking.operator.close()
        assert asking.output == []
        assert asking.requests.tasks == {}


def test_records_without_a_schema_cannot_be_stored() -> None:
    with pytest.raises(JobDefinitionError, match="operator 'ask': carry_in_flight puts records into checkpoints"):
        Asking(Answering(), carries=True)


def test_ten_thousand_records_pass_a_queue_of_one() -> None:
    with Asking(Giving(["x"]), UNORDERED, capacity=1).closed() as asking:
        asking.requests.outcomes = immediate(asking)  # type: ignore[method-assign]
        asking.records(*range(10_000))
        asking.operator.prepare_snapshot()
        assert asking.output == ["x"] * 10_000


def immediate(asking: Asking) -> Any:
    """Step the loop twice, which is enough for a coroutine that returns immediately."""
    requests = asking.requests

    def outcomes(wait_s: float) -> Any:
        requests.loop.call_soon(requests.loop.stop)
        requests.loop.run_forever()
        requests.loop.call_soon(requests.loop.stop)
        requests.loop.run_forever()
        requests.collect()
        reported, requests.reported = requests.reported, []
        return reported

    return outcomes


class Counting(AsyncFunction[Any, Any]):
    """Yields to the loop a few times, more for some records than for others."""

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        for _ in range(value % 7):
            await asyncio.sleep(0)
        return [value]


@BOTH_ORDERS
@pytest.mark.parametrize("capacity", [1, 16])
def test_in_the_loop_of_the_process_every_record_is_emitted_once(order: EmissionOrder, capacity: int) -> None:
    with Asking(Counting(), order, capacity=capacity, timeout_ms=600_000, requests=LoopRequests()).closed() as asking:
        for start in range(0, 400, 100):
            asking.records(*range(start, start + 100))
            asking.operator.on_watermark(start)
        asking.operator.prepare_snapshot()
        results = [one for one in asking.output if not isinstance(one, tuple)]
        assert (results if order is ORDERED else sorted(results)) == list(range(400))
        for start in range(0, 400, 100):
            assert set(asking.output[: asking.output.index(("W", start))]) >= set(range(start + 100))


@BOTH_ORDERS
@pytest.mark.parametrize("what", ["a watermark", "a snapshot", "a watermark that has to come out"])
def test_restored_records_waiting_for_capacity_are_not_overtaken(order: EmissionOrder, what: str) -> None:
    stored: list[bytes] = []
    with Asking(Answering(), order, capacity=5, carries=True, schema="v int", stored=stored).closed() as asking:
        asking.records(*((value,) for value in range(5)))
        asking.operator.prepare_snapshot()

    function = Answering()
    with Asking(function, order, capacity=2, carries=True, schema="v int", stored=list(stored)).closed() as asking:
        asking.meanwhile(*(partial(lambda value: function.answer((value,), value), value) for value in range(5)))
        operator = asking.operator
        {
            "a watermark": lambda: operator.on_watermark(9),
            "a snapshot": operator.prepare_snapshot,
            "a watermark that has to come out": operator.let_watermarks_out,
        }[what]()
        if what == "a watermark":
            operator.let_watermarks_out()
            assert asking.output == [0, 1, 2, 3, 4, ("W", 9)]
        operator.prepare_snapshot()
        assert [one for one in asking.output if one != ("W", 9)] == [0, 1, 2, 3, 4]
        assert asking.stored == []


def test_records_with_an_unstorable_column_cannot_be_in_flight() -> None:
    months = DeclaredSchema((Column("v", "interval month", pa.month_day_nano_interval()),))
    context = Context([], None)
    assert snapshot_of_records(context, months, needed=False).restored() == []
    with pytest.raises(
        JobDefinitionError, match=r"operator 'ask': v is a month_day_nano_interval, which no state can hold"
    ):
        snapshot_of_records(context, months, needed=True)


@BOTH_ORDERS
def test_restored_records_are_emitted_before_the_first_snapshot_of_a_program_without_async_io(
    order: EmissionOrder,
) -> None:
    stored: list[bytes] = []
    with Asking(Answering(), order, carries=True, schema="v int", stored=stored).closed() as asking:
        asking.records((0,), (1,), (2,))
        asking.operator.prepare_snapshot()

    function = Answering()
    with Asking(function, order, capacity=2, schema="v int", stored=list(stored)).closed() as asking:
        asking.meanwhile(*(partial(lambda value: function.answer((value,), value), value) for value in range(3)))
        asking.operator.prepare_snapshot()
        assert (asking.output, asking.stored) == ([0, 1, 2], [])
