"""Timestamps and timedeltas of pandas: accepted without loss, and rejected with value and path otherwise.

The classes here behave like those of pandas, so pandas itself is not needed.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any

import pytest

from snapshots import SerializationError
from statebackend import KeyedProcessFunction, StreamJobError
from statebackend.local import LocalStreamEnvironment
from typeserializers import Date, Instant, LocalDateTime, SqlTimestamp, serializer_for

UTC = datetime.timezone.utc


class Timestamp(datetime.datetime):
    """A datetime with nanoseconds, as ``pandas.Timestamp`` is."""

    nanosecond = 0


class PreciseTimestamp(Timestamp):
    nanosecond = 5


class Timedelta(datetime.timedelta):
    """A timedelta with nanoseconds, as ``pandas.Timedelta`` is."""

    nanoseconds = 0


class PreciseTimedelta(Timedelta):
    nanoseconds = 5


class NotATime(datetime.datetime):
    """The class of ``pandas.NaT``: a datetime whose fields are NaN."""

    year = math.nan  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "NaT"


NAT = NotATime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("hint", "value", "plain"),
    [
        (datetime.datetime, Timestamp(2024, 2, 29, 1, 2, 3, 4), datetime.datetime(2024, 2, 29, 1, 2, 3, 4)),
        (datetime.datetime, Timestamp(2024, 2, 29, 1, tzinfo=UTC), datetime.datetime(2024, 2, 29, 1, tzinfo=UTC)),
        (datetime.datetime, Timestamp(2024, 10, 27, 2, fold=1), datetime.datetime(2024, 10, 27, 2, fold=1)),
        (datetime.timedelta, Timedelta(-1, 2, 3), datetime.timedelta(-1, 2, 3)),
        (Instant, Timestamp(1970, 1, 1, 0, 0, 1, 2, UTC), Instant(1, 2000)),
        (LocalDateTime, Timestamp(2024, 2, 29, 1, 2, 3, 4), LocalDateTime(2024, 2, 29, 1, 2, 3, 4000)),
    ],
)
def test_a_time_without_nanoseconds_is_read_back_as_a_plain_one(hint: Any, value: Any, plain: Any) -> None:
    serializer = serializer_for(hint)
    read = serializer.from_bytes(serializer.to_bytes(value))
    assert (type(read), read) == (type(plain), plain)
    assert getattr(read, "fold", 0) == getattr(plain, "fold", 0)


@pytest.mark.parametrize("hint", [datetime.datetime, Instant, LocalDateTime, Date, SqlTimestamp])
@pytest.mark.parametrize("value", [PreciseTimestamp(2024, 1, 1), PreciseTimestamp(2024, 1, 1, tzinfo=UTC)])
def test_nanoseconds_of_a_timestamp_are_rejected_with_value_and_path(hint: Any, value: Any) -> None:
    serializer = serializer_for(dict[str, list[hint]])
    with pytest.raises(SerializationError, match=r"\{'a'\}\[0\]: PreciseTimestamp.* 5 nanoseconds"):
        serializer.to_bytes({"a": [value]})


def test_nanoseconds_of_a_timedelta_are_rejected_with_value_and_path() -> None:
    serializer = serializer_for(list[datetime.timedelta])
    with pytest.raises(SerializationError, match=r"\[0\]: PreciseTimedelta.* 5 nanoseconds"):
        serializer.to_bytes([PreciseTimedelta(1)])


@pytest.mark.parametrize("hint", [datetime.datetime, datetime.timedelta, Instant, LocalDateTime, Date, SqlTimestamp])
def test_nat_is_rejected_with_value_and_path(hint: Any) -> None:
    serializer = serializer_for(list[hint | None])
    with pytest.raises(SerializationError, match=r"\[0\]: NaT is not a time; use None"):
        serializer.to_bytes([NAT])


class Emitting(KeyedProcessFunction[Any, Any, Any]):
    def __init__(self, value: Any) -> None:
        self.value = value

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value[0], self.value


@pytest.mark.parametrize(
    ("column_type", "value", "reason"),
    [
        ("timestamp_ntz", PreciseTimestamp(2024, 1, 1), "has 5 nanoseconds"),
        ("timestamp", PreciseTimestamp(2024, 1, 1, tzinfo=UTC), "has 5 nanoseconds"),
        ("timestamp_ntz", NotATime(2024, 1, 1), "is not a time"),
    ],
)
def test_an_emitted_time_is_rejected_and_not_rounded(column_type: str, value: Any, reason: str) -> None:
    emitted: list[Any] = []
    environment = LocalStreamEnvironment()
    elements = environment.from_elements([(1,)], "k bigint")
    elements.key_by("k").process(Emitting(value), uid="emits", schema=f"k bigint, t {column_type}").sink_to(emitted)
    with pytest.raises(StreamJobError, match=f"column 't'.*{reason}"):
        environment.execute()
    assert emitted == []
