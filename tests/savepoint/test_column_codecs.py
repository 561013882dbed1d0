"""The vectorised codecs of columns write and read the bytes of the serializers."""

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
from statebackend.savepoint.column_codecs import CodecMissError, ColumnCodec, column_codec, key_rows, window_timers
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.state.value_state import ValueStateDescriptor
from typeserializers.times.timers import Timer, TimerSerializer, TimeWindow, TimeWindowSerializer

pytestmark = pytest.mark.slow

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
    "list[str]": (list[str], st.lists(TEXT, max_size=4)),
    "list[list[int]]": (list[list[int]], st.lists(st.lists(LONG, max_size=3), max_size=3)),
    "list of records": (list[Mixed], st.lists(MIXED, max_size=3)),
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
    """Whether columns are equal, where NaN equals itself."""
    return repr(left.to_pylist()) == repr(right.to_pylist()) and left.type == right.type


@pytest.mark.extended_after(3)
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
    "hint",
    [Checked, dict[str, int], datetime.datetime, int | str, list[int | None], tuple[datetime.datetime, datetime.date]],
)
def test_other_types_have_no_codec(hint: Any) -> None:
    assert column_codec(ValueStateDescriptor("state", hint).serializer) is None


KEYS: dict[str, tuple[Any, Any, list[pa.DataType]]] = {
    "int": (ts.LongSerializer(), LONG, [pa.int64()]),
    "int32": (ts.IntSerializer(), st.integers(-(1 << 31), (1 << 31) - 1), [pa.int32()]),
    "bool": (ts.BooleanSerializer(), st.booleans(), [pa.bool_()]),
    "str": (ts.StringSerializer(), TEXT, [pa.string()]),
    "bytes": (ts.BytesSerializer(), st.binary(max_size=5), [pa.binary()]),
    "several": (
        ts.TupleSerializer((ts.LongSerializer(), ts.StringSerializer())),
        st.tuples(LONG, TEXT),
        [pa.int64(), pa.string()],
    ),
}


def columns_of(keys: list[Any], types: list[pa.DataType]) -> list[pa.Array]:
    """The key columns of a batch with these keys."""
    if len(types) == 1:
        return [pa.array(keys, types[0])]
    return [pa.array([key[index] for key in keys], one) for index, one in enumerate(types)]


@pytest.mark.parametrize("name", KEYS)
@given(data=st.data())
def test_rows_of_keys_are_key_groups_and_the_bytes_of_the_serializer(name: str, data: st.DataObject) -> None:
    serializer, keys_of, types = KEYS[name]
    pairs = data.draw(st.lists(st.tuples(keys_of, st.integers(0, 32_767)), max_size=6))
    groups = pa.array([group for _, group in pairs], pa.int32())
    rows = key_rows(serializer, columns_of([key for key, _ in pairs], types), groups)
    assert rows == [group.to_bytes(2, "big") + serializer.to_bytes(key) for key, group in pairs]


def test_keys_without_a_codec_or_of_another_type_are_encoded_one_by_one() -> None:
    groups = pa.array([1], pa.int32())
    assert key_rows(ts.LongSerializer(), [pa.array([1], pa.int32())], groups) is None
    assert key_rows(ts.DoubleSerializer(), [pa.array([1.0])], groups) is None
    assert key_rows(ts.DateSerializer(), [pa.array([datetime.date(2024, 1, 1)])], groups) is None


@pytest.mark.parametrize("name", KEYS)
@given(data=st.data())
def test_timers_of_windows_are_read_as_columns(name: str, data: st.DataObject) -> None:
    serializer, keys_of, types = KEYS[name]
    window = st.builds(TimeWindow, st.sampled_from([-(1 << 63), -5, 0]), st.sampled_from([0, 7, (1 << 63) - 1]))
    due = st.tuples(st.sampled_from([-(1 << 63), -1, 0, 6]), keys_of, window, st.integers(0, 32_767))
    timers = data.draw(st.lists(due, min_size=1, max_size=6))
    of_timer: Any = TimerSerializer(serializer, TimeWindowSerializer())
    read = window_timers(
        serializer,
        [of_timer.to_bytes(Timer(time, key, one)) + group.to_bytes(2, "big") for time, key, one, group in timers],
    )
    assert read is not None
    assert read.key_groups.to_pylist() == [group for *_, group in timers]
    rows = [group.to_bytes(2, "big") + serializer.to_bytes(key) for _, key, _, group in timers]
    assert read.rows(range(len(rows))) == rows
    assert read.rows([0, len(rows) - 1]) == [rows[0], rows[-1]]
    columns = read.keys.flatten() if len(types) > 1 else [read.keys]
    assert columns == columns_of([key for _, key, _, _ in timers], types)
    assert [run[:3] for run in read.runs for _ in range(run[3])] == [(time, *one) for time, _, one, _ in timers]
