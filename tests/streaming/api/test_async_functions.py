"""When a request is retried, and which strategies are invalid."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from statebackend import JobDefinitionError
from statebackend.streaming.async_functions import AsyncFunction, AsyncRetryStrategy


def delays(strategy: AsyncRetryStrategy, error: Exception) -> list[float | None]:
    return [strategy.delay_after_error(attempt, error) for attempt in range(1, 6)]


def test_a_fixed_delay_precedes_each_further_attempt() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(4, "2 seconds")
    assert delays(strategy, OSError()) == [2000, 2000, 2000, None, None]
    assert strategy.delay_after_results(1, []) is None


def test_delays_grow_up_to_the_maximum() -> None:
    strategy = AsyncRetryStrategy.exponential_backoff(6, timedelta(milliseconds=100), 500, multiplier=2)
    assert delays(strategy, OSError()) == [100, 200, 400, 500, 500]


def test_delays_beyond_float_are_the_maximum() -> None:
    strategy = AsyncRetryStrategy.exponential_backoff(10_000, 1, "1 hour", multiplier=1e30)
    assert strategy.delay_after_error(9_999, OSError()) == 3_600_000


@pytest.mark.parametrize(
    ("which", "worth", "not_worth"),
    [
        (Exception, [OSError(), ValueError()], []),
        (OSError, [OSError(), ConnectionError()], [ValueError()]),
        ((KeyError, ValueError), [KeyError(), ValueError()], [OSError()]),
        (lambda error: str(error) == "again", [OSError("again")], [OSError("never")]),
    ],
)
def test_exceptions_are_chosen_by_class_or_by_function(
    which: Any, worth: list[Exception], not_worth: list[Exception]
) -> None:
    strategy = AsyncRetryStrategy.fixed_delay(2, 7, retry_on_exception=which)
    assert [strategy.delay_after_error(1, error) for error in worth] == [7] * len(worth)
    assert [strategy.delay_after_error(1, error) for error in not_worth] == [None] * len(not_worth)


def test_results_are_chosen_by_a_function_until_the_last_attempt() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(3, 7, retry_on_result=is_empty)
    assert [strategy.delay_after_results(attempt, []) for attempt in (1, 2, 3)] == [7, 7, None]
    assert strategy.delay_after_results(1, ["x"]) is None
    assert pickle.loads(pickle.dumps(strategy)) == strategy


def is_empty(results: Any) -> bool:
    return not results


@pytest.mark.parametrize(
    ("make", "reported"),
    [
        (lambda: AsyncRetryStrategy.fixed_delay(0, 1), "max_attempts of an AsyncRetryStrategy is 0"),
        (lambda: AsyncRetryStrategy.fixed_delay(True, 1), "max_attempts of an AsyncRetryStrategy is True"),
        (lambda: AsyncRetryStrategy.fixed_delay(2, -1), "delay of an AsyncRetryStrategy is -1"),
        (lambda: AsyncRetryStrategy.fixed_delay(2, "soon"), "delay of an AsyncRetryStrategy is 'soon'"),
        (lambda: AsyncRetryStrategy.exponential_backoff(2, 1, -1), "max_delay of an AsyncRetryStrategy is -1"),
        (
            lambda: AsyncRetryStrategy.exponential_backoff(2, 1, 5, multiplier=0.5),
            "multiplier of an AsyncRetryStrategy is 0.5",
        ),
        (
            lambda: AsyncRetryStrategy.exponential_backoff(2, 1, 5, multiplier=float("nan")),
            "multiplier of an AsyncRetryStrategy is nan",
        ),
    ],
)
def test_an_invalid_strategy_is_rejected(make: Any, reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=reported):
        make()


def test_a_function_without_async_invoke_is_rejected() -> None:
    class Nothing(AsyncFunction[Any, Any]):
        pass

    with pytest.raises(TypeError, match="async_invoke"):
        Nothing()  # type: ignore[abstract]
