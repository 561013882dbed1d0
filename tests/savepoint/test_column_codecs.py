"""The vectorised codecs of columns write the bytes of the serializers, and read them."""

from __future__ import annotations

import datetime
import math
from typing import Annotated, Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import typeserializers as ts
from statebackend.savepoint.column_codecs import CodecMissError, ColumnCodec, column_codec
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.state.value_state import ValueStateDescriptor

pytest.importorskip("numpy")


@attrs.frozen
class Fixed:
    count: int
    small: Annotated[int, ts.ShortSerializer()]
    share: float
    is_new: bool


@attrs.frozen
class Mixed:
    name: str
    note: str | None
    data: bytes
    numbers: list[int]
    day: datetime.date
    fixed: Fixed
    inner: Fixed | None
    text: str = ""


@attrs.frozen
class Checked:
    name: str = attrs.field(converter=str.strip)


LONG = st.integers(-(1 << 63), (1 << 63) - 1)
BIG = (
    LONG
    | st.sampled_from([0, 1, 10, -1, 127, 128, -128, -129, (1 << 63) - 1, -(1 << 63)])
    | st.integers(-(10**38) + 1, 10**38 - 1)
)
TEXT = st.text(max_size=6) | st.text("abc", max_size=200)
FIXED = st.builds(Fixed, LONG, st.integers(-(1 << 15), (1 << 15) - 1), st.floats(), st.booleans())
MIXED = st.builds(
    Mixed, TEXT, st.none() | TEXT, st.binary(max_size=5), st.lists(LONG, max_size=4), st.dates(), FIXED,
    st.none() | FIXED, TEXT,
)  # fmt: skip

CASES: dict[str, tuple[Any, Any]] = {
    "bool": (bool, st.booleans()),
    "int8": (ts.ByteSerializer(), st.integers(-128, 127)),
    "int32": (ts.IntSerializer(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "int": (int, LONG),
    "float32": (ts.FloatSerializer(), st.floats(width=32)),
    "float": (float, st.floats()),
    "str": (str, TEXT),
    "bytes": (bytes, st.binary(max_size=6)),
    "int | None": (ts.NullableSerializer(ts.LongSerializer(), pad_null_value=True), LONG),
    "list[float]": (list[float], st.lists(st.floats(), max_size=4)),
    "big integers": (ts.BigIntSerializer(), BIG),
    "tuple": (ts.TupleSerializer((ts.BigIntSerializer(), ts.LongSerializer())), st.tuples(BIG, LONG)),
    "fixed record": (Fixed, FIXED),
    "record": (Mixed, MIXED),
}


def codec_of(hint: Any) -> tuple[ts.TypeSerializer[Any], ColumnCodec]:
    serializer = ValueStateDescriptor("state", hint).serializer
    codec = column_codec(serializer)
    assert codec is not None
    return serializer, codec


def same(left: Any, right: Any) -> bool:
    """Equality of columns in which NaN equals itself."""
    return repr(left.to_pylist()) == repr(right.to_pylist()) and left.type == right.type


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_both_paths_have_the_same_bytes(name: str, data: st.DataObject) -> None:
    hint, values_of = CASES[name]
    serializer, codec = codec_of(hint)
    values = data.draw(st.lists(st.none() | values_of, max_size=8))
    column = ColumnForms().of(serializer).array(values)
    rows = [None if value is None else serializer.to_bytes(value) for value in values]
    assert codec.encode(column) == rows
    assert same(codec.decode(rows), column)
    assert codec.encode(column.slice(1)) == rows[1:]


def test_every_nan_is_stored_as_the_canonical_one() -> None:
    serializer, codec = codec_of(float)
    column = pa.array([-math.nan, math.nan])
    assert codec.encode(column) == [serializer.to_bytes(math.nan)] * 2


@pytest.mark.parametrize("hint", [int, str, Mixed, list[int], bytes])
def test_damaged_bytes_are_left_to_the_object_path(hint: Any) -> None:
    serializer, codec = codec_of(hint)
    good = serializer.to_bytes(serializer.create_instance())
    for bad in (good + b"\0", good[:-1], b"\xff" * len(good)):
        if hint is int and bad[0] == 0xFF:
            continue
        with pytest.raises(CodecMissError):
            codec.decode([good, bad])


def test_null_in_a_field_that_is_not_optional_is_left_to_the_object_path() -> None:
    serializer, codec = codec_of(Fixed)
    form = ColumnForms().of(serializer).data_type
    with pytest.raises(CodecMissError):
        codec.encode(pa.array([{"count": 1, "small": None, "share": 1.0, "is_new": True}], form))


@pytest.mark.parametrize(
    "hint", [Checked, dict[str, int], datetime.datetime, int | str, list[str], tuple[datetime.datetime, datetime.date]]
)
def test_other_types_have_no_codec(hint: Any) -> None:
    assert column_codec(ValueStateDescriptor("state", hint).serializer) is None
