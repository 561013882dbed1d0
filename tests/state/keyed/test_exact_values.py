"""A backend stores exactly what the bytes of a value contain, and keeps an exact value itself."""

import datetime as dt
import enum
import math
import uuid
import zoneinfo
from decimal import Decimal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.errors import SerializationError
from statebackend.state.value_forms import compile_exact
from typeserializers import (
    AttrsSerializer,
    BigDecSerializer,
    BigIntSerializer,
    BooleanSerializer,
    ByteSerializer,
    BytesSerializer,
    DoubleSerializer,
    EnumSerializer,
    FloatSerializer,
    InstantSerializer,
    IntSerializer,
    LiteralSerializer,
    LocalDateSerializer,
    LongSerializer,
    NullableSerializer,
    PythonDateSerializer,
    PythonDateTimeSerializer,
    PythonTimeSerializer,
    ShortSerializer,
    StringSerializer,
    TimedeltaSerializer,
    TupleSerializer,
    UuidSerializer,
)
from typeserializers.times.calendar_values import LocalDate
from typeserializers.times.moments import Instant


@attrs.frozen
class Point:
    x: int
    label: str
    weight: float | None = None


class Text(str):
    """A text subclass that is read back as plain text."""


class Color(enum.Enum):
    RED = 1
    CRIMSON = RED
    BLUE = 2


@attrs.frozen
class Reading:
    at: dt.datetime
    amount: Decimal
    point: Point | None


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
ZONES = [None, dt.timezone.utc, dt.timezone(dt.timedelta(0), "Z"), BERLIN, zoneinfo.ZoneInfo.no_cache("Europe/Berlin")]

TIMES = st.one_of(
    st.builds(dt.datetime.replace, st.datetimes(), tzinfo=st.sampled_from(ZONES), fold=st.integers(0, 1)),
    st.dates(),
    st.builds(dt.time.replace, st.times(), tzinfo=st.sampled_from(ZONES[:3]), fold=st.integers(0, 1)),
    st.timedeltas(),
    st.builds(LocalDate, st.integers(1, 9999) | st.just(True), st.integers(1, 12), st.integers(1, 28)),
    st.builds(Instant, st.integers(-9, 9) | st.just(1.5)),
)
ANYTHING = st.one_of(
    TIMES,
    st.decimals(),
    st.sampled_from([Decimal("-0.00"), Decimal("1E+2000000"), Decimal("1E-3000000000"), Decimal("1." + "1" * 200)]),
    st.sampled_from([Decimal("sNaN"), Color.RED, Color.BLUE, Text("a"), "a", 1, True]),
    st.builds(uuid.UUID, int=st.integers(0, 9), is_safe=st.sampled_from(uuid.SafeUUID)),
    st.builds(
        Reading,
        TIMES,
        st.decimals() | st.integers(),
        st.none() | st.builds(Point, st.integers(-9, 9), st.builds(Text, st.text()) | st.text(), st.floats()),
    ),
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.text(st.characters()),
    st.text(st.characters(categories=["Cs"]), max_size=2),
    st.binary(),
    st.lists(st.integers(), max_size=2),
    st.tuples(st.integers(), st.text()),
    st.builds(Point, st.one_of(st.integers(), st.booleans()), st.one_of(st.text(), st.none()), st.floats() | st.none()),
)
SERIALIZERS = [
    BooleanSerializer(),
    ByteSerializer(),
    ShortSerializer(),
    IntSerializer(),
    LongSerializer(),
    FloatSerializer(),
    DoubleSerializer(),
    StringSerializer(),
    BytesSerializer(),
    NullableSerializer(LongSerializer()),
    NullableSerializer(DoubleSerializer()),
    TupleSerializer([LongSerializer(), StringSerializer()]),
    AttrsSerializer(Point),
    NullableSerializer(AttrsSerializer(Point)),
    BigDecSerializer(),
    BigIntSerializer(),
    PythonDateSerializer(),
    PythonDateTimeSerializer(),
    PythonDateTimeSerializer(in_utc=True),
    PythonTimeSerializer(),
    TimedeltaSerializer(),
    LocalDateSerializer(),
    InstantSerializer(),
    UuidSerializer(),
    EnumSerializer(Color),
    LiteralSerializer(StringSerializer(), ["a", "b"]),
    NullableSerializer(BigDecSerializer()),
    AttrsSerializer(Reading),
    TupleSerializer([AttrsSerializer(Reading), FloatSerializer()]),
]


def same(left, right):
    """Equal, of one class, and NaN equals itself."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if attrs.has(type(left)) and type(left) is type(right):
        return same(attrs.astuple(left, recurse=False), attrs.astuple(right, recurse=False))
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, dt.datetime) and isinstance(right, dt.datetime):
        return left == right and left.fold == right.fold and repr(left.tzinfo) == repr(right.tzinfo)
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=repr)
@given(value=ANYTHING)
def test_it_equals_a_round_trip_or_is_rejected_like_a_write(serializer, value):
    exact = compile_exact(serializer, lambda: "state 'x'")
    try:
        expected = serializer.from_bytes(serializer.to_bytes(value))
    except SerializationError:
        with pytest.raises(SerializationError, match="state 'x'"):
            exact(value)
    else:
        assert same(exact(value), expected)


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (LongSerializer(), 2**60),
        (DoubleSerializer(), 0.1),
        (StringSerializer(), "a plain text of some length"),
        (StringSerializer(), "un café, s'il vous plaît"),
        (BytesSerializer(), b"some bytes of some length"),
        (TupleSerializer([LongSerializer(), StringSerializer()]), (2**40, "x")),
        (AttrsSerializer(Point), Point(2**40, "x", 0.5)),
        (BigDecSerializer(), Decimal("12345.67")),
        (BigIntSerializer(), 2**200),
        (PythonDateSerializer(), dt.date(2026, 3, 1)),
        (PythonDateTimeSerializer(), dt.datetime(2026, 3, 1, tzinfo=BERLIN)),
        (PythonTimeSerializer(), dt.time(12, 30)),
        (TimedeltaSerializer(), dt.timedelta(hours=3)),
        (InstantSerializer(), Instant(2**40)),
        (UuidSerializer(), uuid.UUID(int=2**100)),
        (EnumSerializer(Color), Color.BLUE),
        (LiteralSerializer(LongSerializer(), [2**40]), 2**40),
        (AttrsSerializer(Reading), Reading(dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc), Decimal("1.5"), None)),
    ],
    ids=repr,
)
def test_an_exact_value_is_kept_unchanged(serializer, value):
    # A time zone is registered when it is written.
    serializer.to_bytes(value)
    assert compile_exact(serializer, lambda: "")(value) is value


class Counted(StringSerializer):
    """A serializer without condition, which counts writes."""

    written = 0

    def to_bytes(self, value):
        Counted.written += 1
        return super().to_bytes(value)

    def emit_is_exact(self, first, again, function):
        return None


def test_only_the_field_without_condition_is_written_and_only_once():
    serializer = AttrsSerializer(Point, field_serializers={"label": Counted()})
    point = Point(2**40, Text("x"), 2.5)
    Counted.written = 0
    kept = compile_exact(TupleSerializer([serializer, StringSerializer()]), lambda: "")((point, "y"))
    assert Counted.written == 1
    assert kept == ((Point(2**40, "x", 2.5)), "y")
    assert (type(kept[0].label), kept[0].weight is point.weight) == (str, True)


def test_a_text_subclass_becomes_plain_text_and_other_fields_are_kept():
    reading = Reading(dt.datetime(2026, 3, 1), Decimal("1.50"), Point(1, Text("x")))
    kept = compile_exact(AttrsSerializer(Reading), lambda: "")(reading)
    assert (type(kept.point.label), kept.at is reading.at, kept.amount is reading.amount) == (str, True, True)


def test_none_is_rejected_even_if_the_serializer_would_write_it():
    exact = compile_exact(StringSerializer(), lambda: "state 'x'", reject_none=True)
    assert exact("a") == "a"
    with pytest.raises(SerializationError, match="None"):
        exact(None)
