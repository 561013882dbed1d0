"""Flink's string encoding: a variable-length count, then a variable-length number per UTF-16 code unit.

    varint := 7 bits per byte, low bits first, high bit set on all but the last byte
    string := varint(code units + 1) varint(code unit)*          null := 00

An ASCII text is therefore its ASCII bytes behind its length, which is what the fast path relies on. Surrogates are
written as they are, so a lone one survives.
"""

from __future__ import annotations

import struct
from typing import Final

from snapshots.errors import EndOfDataError, MalformedDataError

MAX_VARINT_BYTES: Final = 5

SMALL_LENGTHS: Final = tuple(bytes((length,)) for length in range(0x80))
"""The one-byte varints, as a table: indexing it is the cheapest way to write a short length."""


def encode_varint(number: int) -> bytes:
    """The bytes of a non-negative number."""
    if number < 0x80:
        return SMALL_LENGTHS[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at ``position`` and the position behind it."""
    number = shift = 0
    start = position
    while True:
        if position >= len(data):
            raise EndOfDataError(f"a number of variable length at byte {start} is cut off: the data is truncated")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if position - start >= MAX_VARINT_BYTES:
            raise MalformedDataError(f"a number of variable length at byte {start} does not end")


def encode_units(text: str) -> tuple[int, bytes]:
    """The number of UTF-16 code units of the text and their encoding."""
    if text.isascii():
        return len(text), text.encode("ascii")
    raw = text.encode("utf-16-be", "surrogatepass")
    encoded = bytearray()
    for (unit,) in struct.iter_unpack(">H", raw):
        if unit < 0x80:
            encoded.append(unit)
        elif unit < 0x4000:
            encoded += bytes((unit & 0x7F | 0x80, unit >> 7))
        else:
            encoded += bytes((unit & 0x7F | 0x80, unit >> 7 & 0x7F | 0x80, unit >> 14))
    return len(raw) // 2, bytes(encoded)


def decode_units(data: bytes, position: int, count: int) -> tuple[str, int]:
    """The text of ``count`` code units at ``position`` and the position behind it."""
    end = position + count
    chunk = data[position:end]
    if len(chunk) < count:
        raise EndOfDataError(
            f"a string of {count} characters at byte {position} needs as many bytes, "
            f"only {len(data) - position} are left: the data is truncated"
        )
    if chunk.isascii():
        return chunk.decode("ascii"), end
    units = bytearray()
    for _ in range(count):
        unit, position = decode_varint(data, position)
        if unit > 0xFFFF:
            raise MalformedDataError(f"{unit:#x} before byte {position} is not a UTF-16 code unit")
        units += unit.to_bytes(2, "big")
    return units.decode("utf-16-be", "surrogatepass"), position


def write_text(text: str | None) -> bytes:
    """The encoding of a text or None; raises `TypeError` for anything else."""
    if text is None:
        return b"\x00"
    if not isinstance(text, str):
        raise TypeError(f"a str is needed, not {type(text).__name__}")
    count, units = encode_units(text)
    return encode_varint(count + 1) + units


def read_text(data: bytes, position: int) -> tuple[str | None, int]:
    """The text at ``position``, or None, and the position behind it."""
    length, position = decode_varint(data, position)
    if length == 0:
        return None, position
    return decode_units(data, position, length - 1)
