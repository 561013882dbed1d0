"""The data views: Java's number formats and names, bounded reads, and rollback of failed writes."""

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
def test_names_round_trip_in_modified_utf8(text: str) -> None:
    encoded = encode_modified_utf8(text)
    assert 0 not in encoded
    assert decode_modified_utf8(encoded) == text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("", ""),
        ("a", "61"),
        ("\0", "c080"),
        ("\x01\x7f", "017f"),
        ("\x01\x7fé", "017fc3a9"),
        ("\x80", "c280"),
        ("\u07ff", "dfbf"),
        ("\u0800", "e0a080"),
        ("日", "e697a5"),
        ("\uffff", "efbfbf"),
        ("\U0001f600", "eda0bdedb880"),
    ],
)
def test_modified_utf8_equals_that_of_java(text: str, encoded: str) -> None:
    assert encode_modified_utf8(text).hex() == encoded
    out = DataOutputView()
    out.write_utf(text)
    assert out.to_bytes().hex() == f"{len(encoded) // 2:04x}{encoded}"


@given(st.binary(max_size=12))
def test_bytes_that_are_not_modified_utf8_are_rejected(data: bytes) -> None:
    try:
        text = decode_modified_utf8(data)
    except MalformedDataError:
        return
    assert encode_modified_utf8(text) == data


@pytest.mark.parametrize("data", ["00", "6100c3a9", "f09f9880", "c3a9f09f9880", "eda0bd", "c1bf", "e08080", "c3"])
def test_a_text_has_one_encoding(data: str) -> None:
    # A lone surrogate is valid. The other bytes are Python's UTF-8 or invalid, and Java never writes them.
    if data == "eda0bd":
        assert decode_modified_utf8(bytes.fromhex(data)) == "\ud83d"
        return
    with pytest.raises(MalformedDataError, match="not modified UTF-8"):
        decode_modified_utf8(bytes.fromhex(data))


def test_the_longest_name_is_written_and_read() -> None:
    for text in ("x" * 65535, "é" * 32767 + "x"):
        out = DataOutputView()
        out.write_utf(text)
        assert out.position == 65537
        assert DataInputView(out.to_bytes()).read_utf() == text


def test_a_name_that_is_too_long_is_rejected() -> None:
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


def test_reads_are_bounded_by_the_available_bytes() -> None:
    source = DataInputView(bytes.fromhex("7fffffff"))
    with pytest.raises(MalformedDataError, match="2147483647"):
        source.read_count()
    with pytest.raises(MalformedDataError, match="negative"):
        DataInputView(bytes.fromhex("ffffffff")).read_sized_bytes()
    with pytest.raises(EndOfDataError, match="3 bytes expected at byte 1"):
        DataInputView(b"abc", 1).read(3)
    assert DataInputView(bytes.fromhex("00000002") + bytes(8)).read_count(4) == 2
    with pytest.raises(MalformedDataError, match="count 2 at byte 0 does not fit the 7 bytes"):
        DataInputView(bytes.fromhex("00000002") + bytes(7)).read_count(4)
    with pytest.raises(MalformedDataError, match="count -1"):
        DataInputView(bytes.fromhex("ffffffff") + bytes(8)).read_count()
    assert DataInputView(bytes(4)).read_count(4) == 0
    assert DataInputView(bytes(4)).read(0) == b""
    assert DataInputView(b"abc", 1).read(2) == b"bc"


def test_a_write_can_be_rolled_back() -> None:
    out = DataOutputView()
    out.write_int(1)
    position = out.position
    out.write_long(2)
    out.truncate(position)
    assert out.to_bytes() == bytes.fromhex("00000001")
