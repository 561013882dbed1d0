"""numpy scalars as values, keys and in rows: the Python value if exact, an error otherwise.

numpy is not needed, because stand-ins behave like its scalars. If it is installed, its own scalars are tested too.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from snapshots import SerializationError
from statebackend import KeyedProcessFunction, MapStateDescriptor, TumblingEventTimeWindows, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment
from statebackend.state.key_groups import KeyHashError
from statebackend.streaming.time.timestamps import duration_ms
from typeserializers import serializer_for

EPOCH = datetime.datetime(1970, 1, 1)
NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "D": 86_400_000_000_000}


class Int64:
    """An integer that is rounded when compared with a float."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __float__(self) -> float:
        return float(self.value)

    def __eq__(self, other: object) -> bool:
        return float(self.value) == other if isinstance(other, float) else self.value == other

    def __hash__(self) -> int:
        return hash(self.value)

    def tolist(self) -> int:
        return self.value


class Datetime64:
    """A number of units since 1970, and a time without a zone."""

    dtype = SimpleNamespace(kind="M")

    def __init__(self, count: int, unit: str) -> None:
        self.count, self.unit = count, unit

    def _nanoseconds(self) -> int:
        return self.count * NANOSECONDS[self.unit]

    def astype(self, unit: str) -> Datetime64:
        short = unit[3:-1]
        return type(self)(self._nanoseconds() // NANOSECONDS[short], short)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Datetime64) and self._nanoseconds() == other._nanoseconds()

    def __hash__(self) -> int:
        return hash(self._nanoseconds())

    def item(self) -> Any:
        time = EPOCH + datetime.timedelta(microseconds=Fraction(self._nanoseconds(), 1000).__floor__())
        return time.date() if self.unit == "D" else time


class Timedelta64(Datetime64):
    dtype = SimpleNamespace(kind="m")

    def item(self) -> Any:
        return super().item() - EPOCH


for stand_in in (Int64, Datetime64, Timedelta64):
    stand_in.__module__ = "numpy"


class StandIns:
    int64, datetime64, timedelta64 = Int64, Datetime64, Timedelta64


@pytest.fixture(params=["stand-ins", "numpy"])
def numpy(request: pytest.FixtureRequest) -> Any:
    return StandIns if request.param == "stand-ins" else pytest.importorskip("numpy")


def written(hint: Any, value: Any) -> Any:
    serializer = serializer_for(hint)
    return serializer.from_bytes(serializer.to_bytes(value))


def test_exact_scalars_are_stored_as_python_values(numpy: Any) -> None:
    three = numpy.int64(3)
    for hint, value, expected in (
        (int, three, 3),
        (float, three, 3.0),
        (float, numpy.int64(1 << 53), float(1 << 53)),
        (int | str, three, 3),
        (list[int], [three], [3]),
        (dict[int, str], {three: "x"}, {3: "x"}),
        (datetime.datetime, numpy.datetime64(1, "ms"), EPOCH + datetime.timedelta(milliseconds=1)),
        (datetime.datetime, numpy.datetime64(1_000, "ns"), EPOCH + datetime.timedelta(microseconds=1)),
        (datetime.date, numpy.datetime64(2, "D"), datetime.date(1970, 1, 3)),
        (datetime.date, numpy.datetime64(86_400_000, "ms"), datetime.date(1970, 1, 2)),
        (datetime.timedelta, numpy.timedelta64(5, "ms"), datetime.timedelta(milliseconds=5)),
    ):
        read = written(hint, value)
        assert (read, type(read)) == (expected, type(expected))


def test_scalars_that_would_change_are_rejected(numpy: Any) -> None:
    for hint, value, reason in (
        (float, numpy.int64((1 << 53) + 1), "cannot be stored as a float: it would become 9007199254740992.0"),
        (str, numpy.int64(3), r"StringSerializer\(\) cannot write"),
        (str | bytes, numpy.int64(3), "is not one of bytes, str"),
        (datetime.datetime, numpy.datetime64(1, "ns"), "would be rounded; round it to the unit 'us'"),
        (datetime.date, numpy.datetime64(1, "ms"), "would be rounded; round it to the unit 'D'"),
        (datetime.timedelta, numpy.timedelta64(1, "ns"), "would be rounded"),
        (datetime.datetime, numpy.timedelta64(1, "ms"), "is not a datetime.datetime"),
    ):
        with pytest.raises(SerializationError, match=reason):
            written(hint, value)


def test_nat_is_rejected() -> None:
    np = pytest.importorskip("numpy")
    for hint, value in ((datetime.datetime, np.datetime64("NaT")), (datetime.timedelta, np.timedelta64("NaT"))):
        with pytest.raises(SerializationError, match="use None in an optional field instead of NaT"):
            written(hint, value)


class Counts(KeyedProcessFunction[Any, Any, Any]):
    count = ValueStateDescriptor("count", int, default=0)
    seen = MapStateDescriptor("seen", int, float)

    def __init__(self, number: Any) -> None:
        self.number = number

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update(self.number(self.count.value() + 1))
        self.seen.put(self.number(1), self.number(2))
        assert [type(item) for pair in self.seen.items() for item in pair] == [int, float]
        yield type(context.current_key).__name__, self.number(self.count.value())


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_scalars_are_keys_state_and_values_of_rows(numpy: Any, backend: str) -> None:
    out: list[Any] = []
    env = LocalStreamEnvironment(backend=backend)
    stream = env.from_elements([{"k": numpy.int64(7)}, {"k": 7}, {"k": numpy.int64(8)}]).key_by("k")
    stream.process(Counts(numpy.int64), uid="op", schema="key string, count bigint").sink_to(out)
    env.execute()
    assert sorted(tuple(row) for row in out) == [("int", 1), ("int", 1), ("int", 2)]


def test_whole_numbers_are_durations(numpy: Any) -> None:
    assert duration_ms(numpy.int64(500)) == 500
    assert TumblingEventTimeWindows.of(numpy.int64(500)) == TumblingEventTimeWindows.of("500 ms")


class Timestamp(datetime.datetime):
    """A time with nanoseconds, like that of pandas."""

    nanosecond = 0


class LateTimestamp(Timestamp):
    nanosecond = 1


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_times_of_pandas_are_keys(backend: str) -> None:
    out: list[Any] = []
    moment = Timestamp(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    env = LocalStreamEnvironment(backend=backend)
    keyed = env.from_elements([1, 2]).key_by(lambda record: moment, key_type=datetime.datetime)
    keyed.process(Counts(int), uid="op", schema="key string, count bigint").sink_to(out)
    env.execute()
    assert [tuple(row) for row in out] == [("datetime", 1), ("datetime", 2)]
    late = LateTimestamp(2024, 1, 1, tzinfo=datetime.timezone.utc)
    env = LocalStreamEnvironment(backend=backend)
    keyed = env.from_elements([1]).key_by(lambda record: late, key_type=datetime.datetime)
    keyed.process(Counts(int), uid="op", schema="key string, count bigint").sink_to(out)
    with pytest.raises(KeyHashError, match=r"operator 'op': a key of column 0 \(timestamp\) has 1 nanoseconds"):
        env.execute()
