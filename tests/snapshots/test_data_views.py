"""The views: Java's number formats and names, bounded reading, and nothing left behind by a failed write."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots import DataInputView, DataOutputView, EndOfDataError, MalformedDataError, StateFormatError
from snapshots.data_views import decode_modified_utf8, encode_modified_utf8

TEXTS = st.text(st.characters(categories=None)).map(
    lambda text: text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
)


@given(TEXTS)
def test_names_survive_in_modified_utf8(text: str) -> None:
    encoded = encode_modified_utf8(text)
    assert 0 not in encoded
    assert decode_modified_utf8(encoded) == text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [("", ""), ("a", "61"), ("\0", "c080"), ("é", "c3a9"), ("日", "e697a5"), ("\U0001f600", "eda0bdedb880")],
)
def test_modified_utf8_is_javas(text: str, encoded: str) -> None:
    assert encode_modified_utf8(text).hex() == encoded
    out = DataOutputView()
    out.write_utf(text)
    assert out.to_bytes().hex() == f"{len(encoded) // 2:04x}{encoded}"


@given(st.binary(max_size=12))
def test_bytes_that_are_not_modified_utf8_are_refused(data: bytes) -> None:
    try:
        text = decode_modified_utf8(data)
    except MalformedDataError:
        return
    assert encode_modified_utf8(text) == data


def test_a_name_that_is_too_long_is_refused() -> None:
    out = DataOutputView()
    with pytest.raises(MalformedDataError, match="65536"):
        out.write_utf("x" * 65536)
    assert out.position == 0


NUMBERS = [
    ("boolean", True, "01"),
    ("byte", -2, "fe"),
    ("unsigned_byte", 254, "fe"),
    ("short", -2, "fffe"),
    ("unsigned_short", 65534, "fffe"),
    ("int", -2, "fffffffe"),
    ("long", -2, "fffffffffffffffe"),
    ("float", 1.5, "3fc00000"),
    ("double", -0.0, "8000000000000000"),
    ("utf", "ab", "00026162"),
    ("sized_bytes", b"\x07", "0000000107"),
]


@pytest.mark.parametrize(("kind", "value", "data"), NUMBERS)
def test_values_are_written_and_read_as_java_does(kind: str, value: object, data: str) -> None:
    out = DataOutputView()
    getattr(out, f"write_{kind}")(value)
    assert out.to_bytes().hex() == data
    source = DataInputView(bytes.fromhex(data))
    assert getattr(source, f"read_{kind}")() == value
    assert source.remaining == 0
    for length in range(len(data) // 2):
        with pytest.raises(StateFormatError):
            getattr(DataInputView(bytes.fromhex(data)[:length]), f"read_{kind}")()


def test_every_nan_is_the_canonical_one() -> None:
    out = DataOutputView()
    payload = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    assert math.isnan(payload)
    out.write_double(payload)
    out.write_float(payload)
    assert out.to_bytes().hex() == "7ff8000000000000" + "7fc00000"


def test_reading_is_bounded_by_what_is_there() -> None:
    source = DataInputView(bytes.fromhex("7fffffff"))
    with pytest.raises(MalformedDataError, match="2147483647"):
        source.read_count()
    with pytest.raises(MalformedDataError, match="negative"):
        DataInputView(bytes.fromhex("ffffffff")).read_sized_bytes()
    with pytest.raises(EndOfDataError, match="3 bytes wanted at byte 1"):
        DataInputView(b"abc", 1).read(3)
    assert DataInputView(bytes.fromhex("00000002") + bytes(8)).read_count(4) == 2


def test_a_write_can_be_taken_back() -> None:
    out = DataOutputView()
    out.write_int(1)
    position = out.position
    out.write_long(2)
    out.truncate(position)
    assert out.to_bytes() == bytes.fromhex("00000001")
