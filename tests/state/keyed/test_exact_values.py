"""A backend keeps exactly what the bytes of a value contain, and keeps a value itself if it is exact."""

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.errors import SerializationError
from statebackend.state.value_forms import compile_exact
from typeserializers import (
    AttrsSerializer,
    BooleanSerializer,
    ByteSerializer,
    BytesSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    NullableSerializer,
    ShortSerializer,
    StringSerializer,
    TupleSerializer,
)


@attrs.frozen
class Point:
    x: int
    label: str
    weight: float | None = None


ANYTHING = st.one_of(
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
]


def same(left, right):
    """Equal, of one class, and NaN is itself."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Point) and isinstance(right, Point):
        return same(attrs.astuple(left), attrs.astuple(right))
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=repr)
@given(value=ANYTHING)
def test_it_is_what_a_round_trip_gives_or_is_rejected_as_writing_rejects(serializer, value):
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
    ],
    ids=repr,
)
def test_a_value_that_is_exact_is_kept_as_it_is(serializer, value):
    assert compile_exact(serializer, lambda: "")(value) is value


def test_none_can_be_rejected_where_the_serializer_would_write_it():
    exact = compile_exact(StringSerializer(), lambda: "state 'x'", reject_none=True)
    assert exact("a") == "a"
    with pytest.raises(SerializationError, match="None"):
        exact(None)
