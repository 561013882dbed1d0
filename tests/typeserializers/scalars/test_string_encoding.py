"""Flink's string encoding: the vectorised form equals a loop over the characters."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import typeserializers.scalars.strings as string_encoding
from snapshots import EndOfDataError, MalformedDataError
from typeserializers import StringSerializer
from typeserializers.scalars.strings import decode_units, decode_varint, encode_units, encode_varint

KINDS = {
    "nul": (0, 0),
    "ascii": (0, 0x7F),
    "latin": (0x80, 0xFF),
    "two bytes": (0x100, 0x3FFF),
    "their ends": (0x7E, 0x81),
    "ends in UTF-8": (0x7FE, 0x801),
    "ends of two bytes": (0x3FFE, 0x4001),
    "three bytes": (0x4000, 0xD7FF),
    "surrogates": (0xD800, 0xDFFF),
    "the last ones": (0xE000, 0xFFFF),
    "astral": (0x10000, 0x10FFFF),
}


def joined(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def encoded_one_by_one(text: str) -> tuple[int, bytes]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return len(raw) // 2, b"".join(encode_varint(unit) for (unit,) in struct.iter_unpack(">H", raw))


def decoded_one_by_one(data: bytes, position: int, count: int) -> tuple[str, int]:
    units = bytearray()
    if len(data) - position < count:
        raise EndOfDataError
    for _ in range(count):
        unit, position = decode_varint(data, position)
        if unit > 0xFFFF:
            raise MalformedDataError
        units += unit.to_bytes(2, "big")
    return units.decode("utf-16-be", "surrogatepass"), position


def outcome(decode: Callable[[bytes, int, int], tuple[str, int]], data: bytes, count: int) -> object:
    try:
        return decode(data, 0, count)
    except (EndOfDataError, MalformedDataError) as error:
        return type(error)


CHARACTERS = st.one_of(
    [st.characters(min_codepoint=low, max_codepoint=high, categories=None) for low, high in KINDS.values()]
)
TEXTS = st.text(CHARACTERS).map(joined)
FEW_AMONG_ASCII = st.builds(
    lambda ascii_text, others, places: joined(
        "".join(
            piece + others[place % len(others)] if place is not None else piece
            for piece, place in zip(ascii_text, places, strict=False)
        )
    ),
    st.lists(st.text(st.characters(max_codepoint=0x7F), min_size=2, max_size=9), min_size=1, max_size=12),
    st.lists(
        st.one_of(
            [st.characters(min_codepoint=low, max_codepoint=high, categories=None) for low, high in KINDS.values()]
        ),
        min_size=1,
        max_size=9,
    ),
    st.lists(st.none() | st.integers(0, 8), min_size=12, max_size=12),
)


def test_every_code_unit_is_written_and_read_as_its_number() -> None:
    for start in range(0, 0x10000, 64):
        text = joined("".join(map(chr, range(start, start + 64))))
        count, encoded = encoded_one_by_one(text)
        assert encode_units(text) == (count, encoded)
        assert decode_units(encoded, 0, count) == (text, len(encoded))


@given(TEXTS, st.binary(max_size=8), st.binary(max_size=40))
def test_a_text_is_read_among_other_bytes(text: str, before: bytes, behind: bytes) -> None:
    count, encoded = encoded_one_by_one(text)
    for _ in range(2):
        assert encode_units(text) == (count, encoded)
        assert decode_units(before + encoded + behind, len(before), count) == (text, len(before) + len(encoded))


@given(FEW_AMONG_ASCII, st.binary(max_size=8), st.binary(max_size=40))
def test_a_few_characters_among_ascii_are_written_and_read_as_numbers(text: str, before: bytes, behind: bytes) -> None:
    count, encoded = encoded_one_by_one(text)
    assert encode_units(text) == (count, encoded)
    assert decode_units(before + encoded + behind, len(before), count) == (text, len(before) + len(encoded))


@pytest.mark.parametrize("kind", ["é", "éüñ", "–", "é–", "蟾", "\ue000", "😀", "é😀", "ÀÁÂÃÄÅÆ"])
def test_long_ascii_with_a_few_others_round_trips(kind: str) -> None:
    text = "".join(f"{number}{kind[number % len(kind)]} and so on\1\0 \2" for number in range(400))
    count, encoded = encoded_one_by_one(text)
    assert encode_units(text) == (count, encoded)
    assert decode_units(encoded + b"\x80\x01", 0, count) == (text, len(encoded))


def test_a_written_character_is_not_mistaken_for_another() -> None:
    # Each number of three bytes begins with the UTF-8 bytes of the character beside it.
    texts = [
        "".join(f"plain text {chr(0x4000 | (low & 0x7F) << 7 | lead & 0x7F)} and {bytes((lead, low)).decode()} ")
        for lead in range(0xC2, 0xE0)
        for low in (0x80, 0xA9, 0xBF)
    ]
    for start in range(0, len(texts), 4):
        text = "".join(texts[start : start + 4])
        assert encode_units(text) == encoded_one_by_one(text)


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_long_text_of_two_kinds_round_trips(first: str, second: str) -> None:
    draw = random.Random(f"{first} {second}")
    text = joined("".join(chr(draw.randint(*KINDS[draw.choice((first, second))])) for _ in range(1500)))
    count, encoded = encoded_one_by_one(text)
    assert encode_units(text) == (count, encoded)
    assert decode_units(encoded + text.encode("utf-8", "replace"), 0, count) == (text, len(encoded))


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_short_text_of_two_kinds_round_trips(first: str, second: str) -> None:
    draw = random.Random(f"{first} {second}, short")
    for size in (*range(1, 12), 20, 100):
        text = joined("".join(chr(draw.randint(*KINDS[draw.choice((first, second))])) for _ in range(size)))
        count, encoded = encoded_one_by_one(text)
        assert encode_units(text) == (count, encoded)
        for behind in (b"", b"a", b"\x81", b"\xe9\x01" * size, b"\xe9\x81\x01" * 2 * size):
            assert decode_units(encoded + behind, 0, count) == (text, len(encoded))


@pytest.mark.parametrize("text", ["é😀" * 40, "é😀漢" * 30, "aa😀" * 40, "漢" * 99 + "a😀é"])
def test_a_text_with_a_mean_of_three_bytes_per_character_is_decoded(text: str) -> None:
    count, encoded = encoded_one_by_one(text)
    assert encode_units(text) == (count, encoded)
    assert decode_units(encoded, 0, count) == (text, len(encoded))


def test_any_short_bytes_are_decoded_like_a_loop() -> None:
    for size in range(1, 6):
        for some in itertools.product(b"\0\1\4a\x80\xe9", repeat=size):
            for count in range(1, size + 1):
                assert outcome(decode_units, bytes(some), count) == outcome(decoded_one_by_one, bytes(some), count)


@given(st.data())
def test_foreign_bytes_are_decoded_like_a_loop(data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    damaged = bytearray(encoded_one_by_one(text)[1] + data.draw(st.binary(max_size=12)))
    for _ in range(data.draw(st.integers(0, 3)) if damaged else 0):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from([0, 1, 3, 4, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    count = data.draw(st.integers(0, len(damaged) + 2))
    assert outcome(decode_units, bytes(damaged), count) == outcome(decoded_one_by_one, bytes(damaged), count)


def test_numbers_with_redundant_bytes_are_read() -> None:
    assert decode_units(b"\xe9\x81\x00", 0, 1) == ("é", 3)
    assert decode_units(b"a\x80\x00\xe9\x01", 0, 3) == ("a\0é", 5)
    # The zero byte belongs to the number before it.
    assert decode_units(b"\xe9\x01" * 3 + b"\xe9\x00", 0, 4) == ("éééi", 8)
    assert decode_units(b"\xe9\x01" * 3 + b"\xe9\x00" + b"\xe9\x01" * 3, 0, 7) == ("éééiééé", 14)


def test_a_unit_beyond_sixteen_bits_is_rejected() -> None:
    for data in (b"\x80\x80\x04", b"\x80\x80\x04" * 300, b"a" * 200 + b"\x80\x80\x04"):
        with pytest.raises(MalformedDataError, match="not a UTF-16 code unit"):
            decode_units(data, 0, len(data.replace(b"\x80", b"")))


def test_the_text_cache_is_bounded() -> None:
    serializer = StringSerializer()
    for number in range(2 * string_encoding.MAX_REMEMBERED_TEXTS):
        text = f"città {number}"
        assert serializer.from_bytes(serializer.to_bytes(text)) == text
    long = "é" * (string_encoding.MAX_REMEMBERED_UNITS + 1)
    assert serializer.from_bytes(serializer.to_bytes(long)) == long
    for remembered in (string_encoding._encoded, string_encoding._decoded):
        assert 0 < len(remembered) <= string_encoding.MAX_REMEMBERED_TEXTS
    assert long not in string_encoding._encoded
    assert long not in {text for _, text in string_encoding._decoded.values()}


def test_other_classes_are_not_cached_and_not_written() -> None:
    class Text(str):
        __slots__ = ()

    for _ in range(2):
        assert encode_units(Text("città di un altro")) == encoded_one_by_one("città di un altro")
    assert {type(text) for text in string_encoding._encoded} <= {str}
    for misfit in (b"a", 5, ["a"]):
        with pytest.raises(TypeError, match="a str is needed, not"):
            string_encoding.write_text(misfit)  # type: ignore[arg-type]


def test_fewer_characters_of_the_same_bytes_are_fewer() -> None:
    encoded = encoded_one_by_one("é, remembered")[1]
    for count in (13, 12, 13, 1):
        text = "é, remembered"[:count]
        assert decode_units(encoded, 0, count) == (text, len(text.encode()))


def test_a_number_has_at_most_five_bytes() -> None:
    assert decode_varint(b"\x80\x80\x80\x80\x01", 0) == (1 << 28, 5)
    for data in (b"\x80" * 5 + b"\x01", b"\xff" * 6):
        with pytest.raises(MalformedDataError, match="at byte 0 does not end"):
            decode_varint(data, 0)
    for data in (b"", b"\x80", b"\x80" * 4):
        with pytest.raises(EndOfDataError, match="is cut off"):
            decode_varint(data, 0)
