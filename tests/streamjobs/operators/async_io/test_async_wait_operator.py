"""An operator of async I/O, record by record, with coroutines that the test completes and a clock that it sets.

The cases are those of Flink's AsyncWaitOperatorTest, and what else may come from a function.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from manual_requests import Answering, Asking, Context, WaitsForEverError

from statebackend import StateRegistrationError, ValueStateDescriptor
from streamjobs.api.async_definition import EmissionOrder
from streamjobs.api.async_functions import AsyncContext, AsyncFunction, AsyncRetryStrategy
from streamjobs.errors import AsyncTimeoutError, JobDefinitionError, UserFunctionError
from streamjobs.operators.async_io.in_flight_records import snapshot_of_records
from streamjobs.operators.async_io.requests import LoopRequests
from streamjobs.operators.async_io.worker_loop import WorkerLoop
from streamjobs.rows.declared_schema import Column, DeclaredSchema
from streamjobs.time.timestamps import MAX_TIMESTAMP

ORDERED, UNORDERED = EmissionOrder.ORDERED, EmissionOrder.UNORDERED
BOTH = pytest.mark.parametrize("order", EmissionOrder)


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


@BOTH
def test_more_records_than_there_is_room_for_all_come_out(order: EmissionOrder) -> None:
    function = Answering()
    with Asking(function, order, capacity=6).closed() as asking:
        answers = [partial(lambda value: function.answer(value, value * 2), value) for value in (6, 5, 4, 3, 2, 1)]
        asking.meanwhile(*answers)
        asking.records(*range(1, 9))
        asking.meanwhile(lambda: function.answer(8, 16), lambda: function.answer(7, 14))
        asking.operator.prepare_snapshot()
        assert sorted(asking.output) == [2, 4, 6, 8, 10, 12, 14, 16]
        assert (asking.output == sorted(asking.output)) == (order is ORDERED)


@BOTH
def test_no_more_is_asked_for_than_there_is_room_for(order: EmissionOrder) -> None:
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


@BOTH
def test_a_barrier_waits_until_nothing_is_in_flight(order: EmissionOrder) -> None:
    function = Answering()
    with Asking(function, order, schema="v int").closed() as asking:
        asking.records((1,), (2,))
        asking.meanwhile(lambda: function.answer((2,), 4), lambda: function.answer((1,), 2))
        asking.operator.prepare_snapshot()
        assert sorted(asking.output) == [2, 4]
        assert asking.stored == []


@BOTH
def test_what_is_in_flight_is_in_the_snapshot_and_is_asked_for_first_and_in_order(order: EmissionOrder) -> None:
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


@BOTH
def test_a_full_queue_is_restored_into_a_smaller_one_and_nothing_waits_for_ever(order: EmissionOrder) -> None:
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


def test_a_snapshot_holds_no_watermark_and_what_is_before_one_is_not_carried() -> None:
    function = Answering()
    with Asking(function, carries=True, schema="v int").closed() as asking:
        asking.records((1,))
        asking.operator.on_watermark(5)
        asking.records((2,))
        asking.meanwhile(lambda: function.answer((1,), 1))
        asking.operator.prepare_snapshot()
        assert asking.output == [1, ("W", 5)]
        assert len(asking.stored) == 1


@BOTH
@pytest.mark.parametrize("carries", [False, True])
def test_what_is_before_a_watermark_is_waited_for_when_that_has_to_come_out(
    order: EmissionOrder, carries: bool
) -> None:
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


def test_the_end_of_time_waits_for_everything() -> None:
    function = Answering()
    with Asking(function, carries=True, schema="v int").closed() as asking:
        asking.records((1,), (2,))
        asking.meanwhile(lambda: function.answer((2,), 2), lambda: function.answer((1,), 1))
        asking.operator.on_watermark(MAX_TIMESTAMP)
        assert asking.output == [1, 2, ("W", MAX_TIMESTAMP)]


@BOTH
@pytest.mark.parametrize("retry", [None, AsyncRetryStrategy.fixed_delay(3, 10)])
def test_what_is_completed_behind_the_snapshot_is_not_emitted_when_the_operator_is_closed(
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


def test_records_without_a_schema_cannot_be_carried() -> None:
    with pytest.raises(JobDefinitionError, match="operator 'ask': carry_in_flight puts records into checkpoints"):
        Asking(Answering(), carries=True)


class Late(Answering):
    """Gives three times the record if it takes too long."""

    def timeout(self, value: Any, context: AsyncContext) -> Any:
        self.timed_out = (value, context.attempt, context.timestamp)
        return [value * 3]


@BOTH
def test_a_request_that_takes_too_long_fails_with_operator_key_and_record_and_others_are_emitted(
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


@BOTH
def test_timeout_may_give_results_instead_and_the_request_is_cancelled(order: EmissionOrder) -> None:
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


def test_an_operator_that_waits_is_woken_by_the_time() -> None:
    function = Late()
    with Asking(function, capacity=1).closed() as asking:
        asking.records(1)
        asking.meanwhile(lambda: asking.requests.pass_time(1))
        asking.records(2)
        assert asking.output == [3]


def test_a_result_that_came_after_its_time_is_none_although_nobody_looked() -> None:
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


@BOTH
def test_what_a_function_raises_fails_with_operator_key_and_record_and_others_are_emitted(
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


@pytest.mark.parametrize("by_exception", [True, False])
@BOTH
def test_retries_come_after_their_delays_until_one_is_good(order: EmissionOrder, by_exception: bool) -> None:
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


def test_the_last_attempt_counts_whatever_it_gives() -> None:
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


def test_what_is_not_worth_a_retry_fails_at_once() -> None:
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


@BOTH
def test_the_time_is_over_all_attempts_and_may_end_between_two(order: EmissionOrder) -> None:
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


@BOTH
def test_timeout_gives_results_between_two_attempts(order: EmissionOrder) -> None:
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
    ("result", "told"),
    [
        (KeyError("gone"), "timeout raised KeyError"),
        (5, "timeout returned 5, which is not an iterable of records"),
        ({"a": 1}, "timeout returned {'a': 1}, which is one record"),
    ],
)
def test_what_timeout_does_wrong_names_the_record(result: Any, told: str) -> None:
    with Asking(BadTimeout(result)).closed() as asking:
        asking.records("r")
        asking.requests.pass_time(1)
        with pytest.raises(UserFunctionError, match=f"operator 'ask', record 'r': no results.*{told}") as raised:
            asking.turn()
        assert not isinstance(raised.value, TimeoutError)


def test_timeout_may_give_nothing() -> None:
    with Asking(BadTimeout(None)).closed() as asking:
        asking.records("r")
        asking.requests.pass_time(1)
        asking.turn()
        assert asking.output == []


class Giving(AsyncFunction[Any, Any]):
    """Gives what it was made with."""

    def __init__(self, result: Any) -> None:
        self.result = result

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (5, "async_invoke returned 5, which is not an iterable of records"),
        ("text", "which is one record and not an iterable"),
        ({"a": 1}, "which is one record and not an iterable"),
    ],
)
def test_results_that_are_no_iterable_of_records_are_refused(result: Any, told: str) -> None:
    with (
        Asking(Giving(result)).closed() as asking,
        pytest.raises(UserFunctionError, match=f"record 'r': async_invoke raised TypeError: .*{told}"),
    ):
        asking.records("r")


@pytest.mark.parametrize(("result", "expected"), [(None, []), ((), []), ((1, 2), [1, 2]), (range(2), [0, 1])])
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


def test_a_function_that_is_not_async_is_told_to_be() -> None:
    with (
        Asking(NotAsync()).closed() as asking,
        pytest.raises(UserFunctionError, match=r"async_invoke returned \[3\] at once; write it as async def"),
    ):
        asking.records(3)


class Stubborn(Late):
    """Does not let itself be cancelled, and asks for another attempt each time."""

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


class Exiting(AsyncFunction[Any, Any]):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_coroutine_that_ends_itself_fails_its_record(error: BaseException) -> None:
    with (
        Asking(Exiting(error)).closed() as asking,
        pytest.raises(UserFunctionError, match=f"record 'r': async_invoke raised {type(error).__name__}"),
    ):
        asking.records("r")


def test_ten_thousand_records_pass_a_queue_of_one() -> None:
    with Asking(Giving(["x"]), UNORDERED, capacity=1).closed() as asking:
        asking.requests.outcomes = immediate(asking)  # type: ignore[method-assign]
        asking.records(*range(10_000))
        asking.operator.prepare_snapshot()
        assert asking.output == ["x"] * 10_000


def immediate(asking: Asking) -> Any:
    """Turns the loop as little as such a coroutine needs."""
    requests = asking.requests

    def outcomes(wait_s: float) -> Any:
        requests.loop.call_soon(requests.loop.stop)
        requests.loop.run_forever()
        requests.loop.call_soon(requests.loop.stop)
        requests.loop.run_forever()
        requests.collect()
        told, requests.told = requests.told, []
        return told

    return outcomes


class WithLife(Answering):
    """Opens and closes in the loop, and tells of it."""

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


def test_open_and_close_may_be_coroutines_and_requests_have_ended_before_close() -> None:
    function = WithLife()
    with Asking(function).closed() as asking:
        asking.records(1)
        asking.requests.turn()
    assert function.life == ["open", "close"]
    assert function.cancelled == [1]


def test_what_open_raises_names_the_operator() -> None:
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


class Counting(AsyncFunction[Any, Any]):
    """Yields to the loop a few times, more for some records than for others."""

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        for _ in range(value % 7):
            await asyncio.sleep(0)
        return [value]


@BOTH
@pytest.mark.parametrize("capacity", [1, 16])
def test_in_the_loop_of_the_process_everything_comes_out_once(order: EmissionOrder, capacity: int) -> None:
    with Asking(Counting(), order, capacity=capacity, timeout_ms=600_000, requests=LoopRequests()).closed() as asking:
        for start in range(0, 400, 100):
            asking.records(*range(start, start + 100))
            asking.operator.on_watermark(start)
        asking.operator.prepare_snapshot()
        results = [one for one in asking.output if not isinstance(one, tuple)]
        assert (results if order is ORDERED else sorted(results)) == list(range(400))
        for start in range(0, 400, 100):
            assert set(asking.output[: asking.output.index(("W", start))]) >= set(range(start + 100))


class Blocking(Late):
    """Blocks the loop, which a coroutine must not do."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        self.released.wait()
        return [value]


def test_a_coroutine_that_blocks_the_loop_is_out_of_time_like_any_other() -> None:
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


@BOTH
@pytest.mark.parametrize("what", ["a watermark", "a snapshot", "a watermark that has to come out"])
def test_what_was_restored_and_waits_for_room_is_passed_by_nothing(order: EmissionOrder, what: str) -> None:
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
        # What has not come out goes into the next snapshot, and nothing is left out.
        records = [one for one in asking.output if one != ("W", 9)]
        assert records == list(range(5 - len(asking.stored)))


def test_records_with_a_column_that_no_state_can_hold_cannot_be_carried() -> None:
    interval = DeclaredSchema((Column("v", "interval day to second", pa.duration("us")),))
    context = Context([], None)
    assert snapshot_of_records(context, interval, needed=False).restored() == []
    with pytest.raises(JobDefinitionError, match=r"operator 'ask': v is a duration\[us\], which no state can hold"):
        snapshot_of_records(context, interval, needed=True)


@BOTH
def test_of_several_requests_that_fail_at_once_the_first_is_told(order: EmissionOrder) -> None:
    function = Answering()
    with Asking(function, order).closed() as asking:
        asking.records(1, 2)
        for value in (1, 2):
            function.fail(value, ArithmeticError(f"boom {value}"))
        with pytest.raises(UserFunctionError, match="record 1: async_invoke raised ArithmeticError: boom 1"):
            asking.turn()


@BOTH
def test_what_was_carried_comes_out_before_the_first_snapshot_of_a_program_that_carries_nothing(
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
