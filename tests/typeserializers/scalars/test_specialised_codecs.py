"""The specialised codecs of numbers, times and maps write the bytes of their definitions, and read them."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
import zoneinfo
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import typeserializers as ts
from snapshots import DataInputView, DataOutputView
from snapshots.errors import MalformedDataError, SerializationError, StateFormatError

ZONES = [None, dt.timezone.utc, dt.timezone(dt.timedelta(hours=3)), dt.timezone(dt.timedelta(0), "Z")]
ZONES += [zoneinfo.ZoneInfo("Europe/Berlin"), zoneinfo.ZoneInfo.no_cache("Asia/Tokyo"), zoneinfo.ZoneInfo("UTC")]


def integer_bytes(number: int) -> bytes:
    """Integers as defined in the module."""
    if number in (0, 1, 10):
        return {0: 1, 1: 2, 10: 3}[number].to_bytes(4, "big")
    size = 1
    while not -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1:
        size += 1
    return (size + 4).to_bytes(4, "big") + number.to_bytes(size, "big", signed=True)


def viewed(serializer: ts.TypeSerializer[Any], value: Any) -> bytes:
    out = DataOutputView()
    serializer.serialize(value, out)
    return out.to_bytes()


@given(st.integers() | st.integers(-(2**140), 2**140) | st.sampled_from([0, 1, 10, -1, 127, 128, -128, -129]))
def test_integers_have_the_bytes_of_their_definition(number: int) -> None:
    serializer = ts.BigIntSerializer()
    assert serializer.to_bytes(number) == viewed(serializer, number) == integer_bytes(number)
    assert serializer.from_bytes(integer_bytes(number)) == number


@given(
    st.decimals(allow_nan=False, allow_infinity=False)
    | st.decimals(allow_nan=False, allow_infinity=False, places=2)
    | st.builds(
        lambda number, scale: Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)),
        st.integers(),
        st.integers(-50, 50),
    )
)
def test_decimals_have_the_bytes_of_their_definition(value: Decimal) -> None:
    serializer = ts.BigDecSerializer()
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if sign and not value:
        with pytest.raises(SerializationError, match="negative zero"):
            serializer.to_bytes(value)
        return
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    expected = integer_bytes(unscaled) + (-exponent).to_bytes(4, "big", signed=True)
    assert serializer.to_bytes(value) == viewed(serializer, value) == expected
    for context in (decimal.Context(prec=2), decimal.getcontext()):
        with decimal.localcontext(context):
            assert serializer.from_bytes(expected).as_tuple() == value.as_tuple()  # type: ignore[union-attr]


@given(st.datetimes(), st.sampled_from(ZONES), st.integers(0, 1), st.booleans())
def test_datetimes_have_the_bytes_of_their_definition(
    local: dt.datetime, zone: dt.tzinfo | None, fold: int, in_utc: bool
) -> None:
    value = local.replace(tzinfo=zone, fold=fold)
    serializer = ts.PythonDateTimeSerializer(in_utc=in_utc)
    try:
        written = value.astimezone(dt.timezone.utc).replace(fold=0) if in_utc and zone else value
    except OverflowError:
        return
    out = DataOutputView()
    out.write_int(written.year)
    for number in (written.month, written.day, written.hour, written.minute, written.second):
        out.write_unsigned_byte(number)
    out.write_int(written.microsecond * 1000)
    kind = 1 if in_utc and zone else next(place for place, one in enumerate(ZONES) if one is zone)
    out.write_unsigned_byte(min(kind, 4) + 128 * written.fold)
    if kind in (2, 3):
        out.write_long(zone.utcoffset(None) // dt.timedelta(microseconds=1))  # type: ignore[union-attr, operator]
    if kind == 3:
        out.write_utf("Z")
    if kind > 3:
        out.write_utf(zone.key)  # type: ignore[union-attr]
    assert serializer.to_bytes(value) == viewed(serializer, value) == out.to_bytes()
    read = serializer.from_bytes(out.to_bytes())
    assert (read.replace(tzinfo=None), read.fold) == (written.replace(tzinfo=None), written.fold)
    assert repr(read.tzinfo) == repr(written.tzinfo)
    assert serializer.deserialize(DataInputView(out.to_bytes())).tzinfo == read.tzinfo


def test_a_datetime_with_lost_nanoseconds_or_an_unknown_zone_is_malformed() -> None:
    encoded = ts.PythonDateTimeSerializer().to_bytes(dt.datetime(2026, 3, 1))
    with pytest.raises(MalformedDataError, match="nanoseconds"):
        ts.PythonDateTimeSerializer().from_bytes(encoded[:-5] + b"\0\0\0\1\0")
    with pytest.raises(MalformedDataError, match="not known"):
        ts.PythonDateTimeSerializer().from_bytes(encoded[:-1] + b"\4\0\1?")


@given(st.dictionaries(st.text(max_size=5) | st.text("abc\0é", max_size=200), st.none() | st.integers(-9, 2**63 - 1)))
def test_maps_of_integers_have_the_bytes_of_their_definition(value: dict[str, int | None]) -> None:
    serializer: Any = ts.MapSerializer(ts.StringSerializer(), ts.LongSerializer())
    encoded = serializer.to_bytes(value)
    assert encoded == viewed(serializer, value)
    read = serializer.from_bytes(encoded)
    assert list(read.items()) == list(value.items()) == list(serializer.deserialize(DataInputView(encoded)).items())
    for end in range(len(encoded)):
        with pytest.raises(Exception, match=r"."):
            serializer.from_bytes(encoded[:end])


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 253, 254, 255, 256, 300])
@pytest.mark.parametrize("count", [1, 2, 1500])
def test_maps_with_keys_of_any_length_have_the_bytes_of_their_definition(length: int, count: int) -> None:
    serializer: Any = ts.MapSerializer(ts.StringSerializer(), ts.IntSerializer())
    value = {"a" * length: -1} | {str(key): key for key in range(1, count)}
    encoded = serializer.to_bytes(value)
    assert encoded == viewed(serializer, value)
    assert serializer.from_bytes(encoded) == value


@given(st.lists(st.text("a\0", max_size=3), min_size=1, max_size=3, unique=True), st.data())
def test_maps_with_other_bytes_are_read_as_their_definition_says(keys: list[str], data: st.DataObject) -> None:
    serializer: Any = ts.MapSerializer(ts.StringSerializer(), ts.ByteSerializer())
    encoded = bytearray(serializer.to_bytes(dict.fromkeys(keys, 0)))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(4, len(encoded) - 1))] = data.draw(st.sampled_from((0, 1, 2, 3, 0x61, 0x80)))
    source = DataInputView(bytes(encoded))
    try:
        expected = serializer.read_from(source)
    except StateFormatError:
        expected = None
    if expected is None or source.remaining:
        with pytest.raises(StateFormatError):
            serializer.from_bytes(bytes(encoded))
    else:
        assert serializer.from_bytes(bytes(encoded)) == expected


def test_invalid_maps_are_rejected() -> None:
    serializer: Any = ts.MapSerializer(ts.StringSerializer(), ts.ByteSerializer())
    with pytest.raises(SerializationError, match=r"\{'a'\}"):
        serializer.to_bytes({"a": 128})
    with pytest.raises(SerializationError, match="is not a str"):
        serializer.to_bytes({1: 1})
    assert serializer.from_bytes(serializer.to_bytes({None: 1, "b": True})) == {None: 1, "b": 1}


def test_a_uuid_equals_that_of_its_constructor() -> None:
    value = uuid.uuid4()
    read = ts.UuidSerializer().from_bytes(ts.UuidSerializer().to_bytes(value))
    assert (read, read.is_safe, hash(read), str(read)) == (value, value.is_safe, hash(value), str(value))
