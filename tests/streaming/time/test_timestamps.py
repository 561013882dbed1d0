from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, clamped, timestamp_of, timestamps_of
from statebackend.streaming.time.watermark_generators import Watermark


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        (0, 0),
        (MAX_TIMESTAMP, MAX_TIMESTAMP),
        (MAX_TIMESTAMP + 1, MAX_TIMESTAMP),
        (MIN_TIMESTAMP, MIN_TIMESTAMP),
        (MIN_TIMESTAMP - 1, MIN_TIMESTAMP),
    ],
)
def test_a_time_beyond_the_range_becomes_its_nearest_end(timestamp_ms: int, expected: int) -> None:
    assert clamped(timestamp_ms) == expected


@pytest.mark.parametrize("value", [MIN_TIMESTAMP, -1, 0, MAX_TIMESTAMP, None])
def test_a_number_of_64_bits_is_a_timestamp(value: int | None) -> None:
    assert timestamp_of(value) == value


def test_an_integer_of_numpy_is_a_timestamp() -> None:
    numpy = pytest.importorskip("numpy")
    assert timestamp_of(numpy.int64(5)) == 5
    assert type(timestamp_of(numpy.int64(5))) is int
    for value in (numpy.uint64(MAX_TIMESTAMP + 1), numpy.float64(1.0)):
        with pytest.raises(ValueError, match="is not a timestamp"):
            timestamp_of(value)


@pytest.mark.parametrize("value", [MIN_TIMESTAMP - 1, MAX_TIMESTAMP + 1, True, 1.0, "1"])
def test_other_values_are_rejected_as_timestamps(value: object) -> None:
    with pytest.raises(ValueError, match="is not a timestamp"):
        timestamp_of(value)


def test_an_instant_is_rounded_down() -> None:
    utc = datetime.timezone.utc
    assert timestamp_of(datetime.datetime(1970, 1, 1, 0, 0, 1, 999, utc)) == 1000
    assert timestamp_of(datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, utc)) == -1
    assert timestamp_of(datetime.datetime(1970, 1, 1, 0, 0, 1)) == 1000
    east = datetime.timezone(datetime.timedelta(hours=2))
    assert timestamp_of(datetime.datetime(1970, 1, 1, 2, tzinfo=east)) == 0


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as local:
        local.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_a_timestamp_without_a_zone_is_in_utc_in_any_process_zone() -> None:
    assert timestamp_of(datetime.datetime(1970, 1, 1, 0, 0, 1)) == 1000


@pytest.mark.parametrize("timestamp_ms", [MIN_TIMESTAMP - 1, MAX_TIMESTAMP + 1, True, 1.0, None])
def test_a_watermark_is_a_number_of_64_bits(timestamp_ms: Any) -> None:
    for end in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        assert Watermark(end).timestamp_ms == end
    with pytest.raises((ValueError, StreamJobError)):
        Watermark(timestamp_ms)


_IN_ZONES = st.datetimes(timezones=st.none() | st.timezones() | st.just(datetime.timezone.utc))


@given(st.lists(_IN_ZONES) | st.lists(_IN_ZONES | st.none() | st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP)))
def test_the_timestamps_of_a_batch_are_those_of_its_values(values: list[Any]) -> None:
    assert timestamps_of(values) == list(map(timestamp_of, values))


def test_a_batch_with_a_value_that_is_no_timestamp_is_rejected() -> None:
    with pytest.raises(ValueError, match="'noon' is not a timestamp"):
        timestamps_of([datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc), "noon"])
