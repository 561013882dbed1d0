from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, duration_ms


@pytest.mark.parametrize(
    ("duration", "expected_ms"),
    [
        ("10 minutes", 600_000),
        ("1 hour 30 seconds", 3_630_000),
        ("interval 5 days", 432_000_000),
        ("INTERVAL 1 Week", 604_800_000),
        ("  2   seconds ", 2_000),
        ("-90 seconds", -90_000),
        ("1 hour -1 minute", 3_540_000),
        ("+5 milliseconds", 5),
        ("5 ms", 5),
        ("1.5 seconds", 1_500),
        ("0.001 second", 1),
        ("1000 microseconds", 1),
        ("500 microseconds 0.5 milliseconds", 1),
        ("0 seconds", 0),
        (timedelta(minutes=2), 120_000),
        (timedelta(microseconds=-1000), -1),
        (timedelta.max - timedelta(microseconds=999), 86_399_999_999_999_999),
        (0, 0),
        (-7, -7),
        (MAX_TIMESTAMP, MAX_TIMESTAMP),
        (MIN_TIMESTAMP, MIN_TIMESTAMP),
    ],
)
def test_a_duration_has_its_milliseconds(duration: Any, expected_ms: int) -> None:
    assert duration_ms(duration) == expected_ms


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        ("", "not a duration"),
        ("interval", "not a duration"),
        ("10", "number with its unit"),
        ("10minutes", "number with its unit"),
        ("10 minutes 5", "number with its unit"),
        ("ten minutes", "'ten' is not a number"),
        ("1e3 seconds", "'1e3' is not a number"),
        ("٣ seconds", "is not a number"),
        ("5 parsecs", "'parsecs' is not a unit of time; there are microsecond"),
        ("1 month", "months and years differ in length"),
        ("2 years", "months and years differ in length"),
        ("1.5 hours", "only seconds and milliseconds"),
        ("1 microsecond", "not a whole number of milliseconds"),
        (timedelta(microseconds=1), "not a whole number of milliseconds"),
        ("9999999999999999999 weeks", "64 bits"),
        (MAX_TIMESTAMP + 1, "64 bits"),
        ("1 day " * 100, "too long"),
        (1.5, "which is not a duration: give a text"),
        (True, "which is not a duration"),
        (None, "which is not a duration"),
        (int, "which is not a duration"),
    ],
)
def test_an_invalid_duration_is_rejected_with_the_reason(duration: Any, message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message) as caught:
        duration_ms(duration, "the gap of a session")
    assert str(caught.value).startswith("the gap of a session is ")


def test_less_than_the_minimum_is_rejected() -> None:
    assert duration_ms("1 second", at_least_ms=1_000) == 1_000
    with pytest.raises(JobDefinitionError, match="'1 second'; it must be at least 1001 ms"):
        duration_ms("1 second", at_least_ms=1_001)


@given(st.integers(-(10**14), 10**14))
def test_text_timedelta_and_number_of_one_length_are_equal(length_ms: int) -> None:
    assert duration_ms(f"{length_ms} milliseconds") == duration_ms(timedelta(milliseconds=length_ms)) == length_ms
