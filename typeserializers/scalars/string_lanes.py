"""Flink's string encoding of text that is not ASCII, many characters at a time.

A loop in Python over the characters takes half a microsecond for each of them. Here a block of characters is one large
integer, one lane per character, and a few operations on the integer work on all lanes at once ("SIMD within a
register", Lamport 1975). What makes it possible is that the bytes of a character that are not there are zero in its
lane, and ``bytes.translate`` deletes zeros at the speed of C. So a NUL cannot be among the characters: whoever calls
keeps such text out, and all else that a block cannot hold (numbers with needless bytes, or beyond 16 bits).
"""

from __future__ import annotations

import array
import functools
import sys
from typing import Final

BLOCK_UNITS: Final = 256
BLOCK_BYTES: Final = 3 * BLOCK_UNITS

HIGH_BYTES: Final = bytes(range(0x80, 0x100))
"""The bytes of a number of variable length that are not its last one."""


def _lanes(lane: str, count: int = BLOCK_BYTES) -> int:
    """An integer of equal lanes, the lane written in hexadecimal digits with the highest byte first."""
    return int.from_bytes(bytes.fromhex(lane)[::-1] * count, "little")


_ABOVE_7_BITS: Final = _lanes("0000ff80")
_ABOVE_14_BITS: Final = _lanes("0000c000")
_MIDDLE_AND_LAST: Final = _lanes("00808000")
_FIRST: Final = _lanes("00000080")
_NARROW_ABOVE_7_BITS: Final = _lanes("ff80")
_NARROW_ABOVE_14_BITS: Final = _lanes("c000")
_NARROW_LAST: Final = _lanes("8000")

_HIGH_BIT: Final = _lanes("0080")
_LOW_BITS: Final = _lanes("007f")
_NINE_BITS: Final = _lanes("01ff")
_ABOVE_9_BITS: Final = _lanes("fe00")

_BYTE_HIGH_BIT: Final = _lanes("80")
_BYTE_LOW_BITS: Final = _lanes("7f")
_BYTE_SIX_BITS: Final = _lanes("3f")
_BYTE_ABOVE_2_BITS: Final = _lanes("fc")


@functools.lru_cache(maxsize=BLOCK_UNITS)
def _not_zero(lane: str, count: int) -> int:
    """What carries into the highest bit of a byte that is not zero, when it is added."""
    return _lanes(lane, count)


def encode_block(text: str) -> bytes:
    """The encoding of at most `BLOCK_UNITS` code units without NUL."""
    raw = text.encode("utf-16-le", "surrogatepass")
    units = int.from_bytes(raw, "little")
    if not units & _NARROW_ABOVE_14_BITS:
        # At most two bytes each: a lane is as wide as a unit, and bits 7 to 13 move up by one.
        size = len(raw)
        spread = units + (units & _NARROW_ABOVE_7_BITS)
        flags = (spread + _not_zero("7f00", size >> 1) & _NARROW_LAST) >> 8
        return (spread | flags).to_bytes(size, "little").translate(None, b"\0")
    size = 2 * len(raw)
    if len(raw) == 2 * len(text):
        wide = text.encode("utf-32-le", "surrogatepass")
    else:
        lanes = bytearray(size)
        lanes[::4], lanes[1::4] = raw[::2], raw[1::2]
        wide = bytes(lanes)
    units = int.from_bytes(wide, "little")
    # Bits 7 to 13 move up by one, bits 14 and 15 by two.
    spread = units + (units & _ABOVE_7_BITS) + ((units & _ABOVE_14_BITS) << 1)
    flags = (spread + _not_zero("007f7f00", size >> 2) & _MIDDLE_AND_LAST) >> 8
    return (spread | flags | flags >> 8 & _FIRST).to_bytes(size, "little").translate(None, b"\0")


def decode_block(data: bytes, count: int) -> str | None:
    """The text of ``count`` code units that fill the data, at most `BLOCK_BYTES`; None if it is not for a block.

    ``data`` must have exactly ``count`` bytes below 0x80, none of them zero, the last byte being one.
    """
    if len(data) == 3 * count and data[2::3].isascii():
        return _decode_triples(data, count)
    size = len(data)
    wide = int.from_bytes(data.decode("latin-1").encode("utf-16-le"), "little")
    # All bits of a lane are set where its byte is not the last one of its number.
    goes_on = ((wide & _HIGH_BIT) >> 7) * 0xFFFF
    low = wide & _LOW_BITS
    # Of each byte the number that begins there, if it has one byte or two; then if it has up to three.
    units = low | low >> 9 & goes_on
    behind = units >> 16 & goes_on
    if behind & _ABOVE_9_BITS or goes_on >> 16 & goes_on & goes_on >> 32:
        return None
    units = low | (behind & _NINE_BITS) << 7
    # A number that begins in the middle of another is none.
    inside = goes_on << 16
    lanes = (units & ~inside).to_bytes(2 * size, "little")
    try:
        return lanes.decode("utf-16-le").encode().translate(None, b"\0").decode()
    except UnicodeError:
        kept = array.array("H", lanes)
        if sys.byteorder == "big":
            kept.byteswap()
        kept = array.array("H", filter(None, kept))
        if sys.byteorder == "big":
            kept.byteswap()
        return kept.tobytes().decode("utf-16-le", "surrogatepass")


def _decode_triples(data: bytes, count: int) -> str | None:
    """The text of units that take three bytes each, as all of Chinese, Korean and Emoji do."""
    first = int.from_bytes(data[::3], "little")
    middle = int.from_bytes(data[1::3], "little")
    last = int.from_bytes(data[2::3], "little")
    if last & _BYTE_ABOVE_2_BITS:
        return None
    units = bytearray(2 * count)
    units[::2] = (first & _BYTE_LOW_BITS | middle << 7 & _BYTE_HIGH_BIT).to_bytes(count, "little")
    units[1::2] = (middle >> 1 & _BYTE_SIX_BITS | last << 6).to_bytes(count, "little")
    return units.decode("utf-16-le", "surrogatepass")
