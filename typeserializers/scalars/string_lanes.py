"""Flink's string encoding of text that is not ASCII, many characters at a time.

A loop in Python over the characters takes half a microsecond for each of them. Here a block of characters is one large
integer, one lane per character, and a few operations on the integer work on all lanes at once ("SIMD within a
register", Lamport 1975). What makes it possible is that the bytes of a character that are not there are zero in its
lane, and ``bytes.translate`` deletes zeros at the speed of C. So a NUL cannot be among the characters: whoever calls
keeps such text out, and all else that a block cannot hold (numbers with needless bytes, or beyond 16 bits).

Lanes come from, and go to, the form of Unicode that is nearest to the numbers:

    to write    UTF-8    each character has three bytes there, as in Chinese, Japanese and Korean: 24 bits a lane
                UTF-16   no number has three bytes, as in European languages and many more: 16 bits
                UTF-32   anything else, with the halves of what is beyond 16 bits as characters: 32 bits
    to read     UTF-8    each number has three bytes: 24 bits
                UTF-16   each has two or three: without the third bytes they are pairs, of 16 bits; the third ones are
                         found again among the last bytes of all numbers
                both     anything else: each byte has 16 bits; a number is put together in the lane of its first byte,
                         the others become zero, and in UTF-8, where no byte of a character is, zeros are deleted

The operations are cheap beside what they are surrounded by. A pass that deletes bytes takes twice as long where the
processor cannot foretell which: so there is at most one, or two, and numbers are counted as bits. The codecs are called
by themselves: ``str.encode`` and ``bytes.decode`` look them up by name and run Python for UTF-16, at twice its cost.
"""

from __future__ import annotations

import array
import functools
import sys
from codecs import utf_16_le_decode, utf_16_le_encode, utf_32_le_encode
from typing import Final

BLOCK_UNITS: Final = 256
BLOCK_BYTES: Final = 3 * BLOCK_UNITS

HIGH_BYTES: Final = bytes(range(0x80, 0x100))
"""The bytes of a number of variable length that are not its last one."""


def _lanes(lane: str, count: int = BLOCK_BYTES) -> int:
    """An integer of equal lanes, the lane written in hexadecimal digits with the highest byte first."""
    return int.from_bytes(bytes.fromhex(lane)[::-1] * count, "little")


_LEADS: Final = _lanes("0000f0")
_BITS_0_TO_5_AND_FLAG: Final = _lanes("0000bf")
_BIT_6: Final = _lanes("000040")
_BITS_7_TO_11: Final = _lanes("001f00")
_BITS_12_TO_13_AND_FLAG: Final = _lanes("00e000")
_MIDDLE_FLAG: Final = _lanes("008000")
_BITS_14_TO_15: Final = _lanes("030000")

_TRIPLE: Final = _lanes("fc8080")
_BITS_0_TO_5_BEHIND: Final = _lanes("3f0000")
_BIT_6_BEHIND: Final = _lanes("000100")
_BITS_7_TO_11_BEHIND: Final = _lanes("003e00")
_BITS_12_TO_13_BEFORE: Final = _lanes("000003")
_BITS_14_TO_15_BEFORE: Final = _lanes("00000c")

_ABOVE_7_BITS: Final = _lanes("0000ff80")
_ABOVE_14_BITS_MOVED: Final = _lanes("00018000")
_ABOVE_16_BITS: Final = _lanes("001f0000")
_MIDDLE_AND_LAST: Final = _lanes("00808000")
_FIRST: Final = _lanes("00000080")
_NARROW_ABOVE_7_BITS: Final = _lanes("ff80")
_NARROW_ABOVE_14_BITS: Final = _lanes("c000")
_NARROW_LAST: Final = _lanes("8000")

_HIGH_BIT: Final = _lanes("0080")
_LOW_BITS: Final = _lanes("007f")
_MIDDLE_BITS: Final = _lanes("3f80")
_NARROW_HIGH: Final = _lanes("8000")
_NO_THIRD_BYTE: Final = _lanes("00fc")

_BYTE_HIGH_BIT: Final = _lanes("80")


@functools.lru_cache(maxsize=5 * BLOCK_UNITS)
def _exactly(lane: str, count: int) -> int:
    """So many lanes and no more: to add, or to compare with."""
    return _lanes(lane, count)


def encode_block(text: str, utf_8: bytes) -> tuple[int, bytes]:
    """The number of code units of a text and their encoding; it is in UTF-8, surrogates too, beside itself.

    The text must not be empty, have more than `BLOCK_UNITS` code units, or NUL among them.
    """
    size = len(utf_8)
    count = len(text)
    if size == 3 * count:
        units = int.from_bytes(utf_8, "little")
        if units & _LEADS == _exactly("0000e0", count):
            # None has four bytes in UTF-8, and another fewer: 4, 6 and 6 bits, the highest ones first. What has a
            # byte of its own here, flags the one before it.
            units = (
                units >> 16 & _BITS_0_TO_5_AND_FLAG
                | units >> 2 & _BIT_6
                | units >> 1 & _BITS_7_TO_11
                | units << 13 & _BITS_12_TO_13_AND_FLAG
                | units << 12 & _MIDDLE_FLAG
                | units << 14 & _BITS_14_TO_15
            )
            return count, units.to_bytes(size, "little").translate(None, b"\0")
    elif size <= 2 * count:
        narrow = utf_16_le_encode(text, "surrogatepass")[0]
        units = int.from_bytes(narrow, "little")
        if not units & _NARROW_ABOVE_14_BITS:
            # At most two bytes each: bits 7 to 13 move up by one.
            units += units & _NARROW_ABOVE_7_BITS
            count = len(narrow) >> 1
            flags = (units + _exactly("7f00", count) & _NARROW_LAST) >> 8
            return count, (units | flags).to_bytes(2 * count, "little").translate(None, b"\0")
    wide = utf_32_le_encode(text, "surrogatepass")[0]
    units = int.from_bytes(wide, "little")
    if units & _ABOVE_16_BITS:
        narrow = utf_16_le_encode(text, "surrogatepass")[0]
        count = len(narrow) >> 1
        lanes = bytearray(4 * count)
        lanes[::4], lanes[1::4] = narrow[::2], narrow[1::2]
        units = int.from_bytes(lanes, "little")
    # Bits 7 to 13 move up by one, bits 14 and 15 by two.
    units += units & _ABOVE_7_BITS
    units += units & _ABOVE_14_BITS_MOVED
    flags = (units + _exactly("007f7f00", count) & _MIDDLE_AND_LAST) >> 8
    return count, (units | flags | flags >> 8 & _FIRST).to_bytes(4 * count, "little").translate(None, b"\0")


def count_numbers(data: bytes) -> int:
    """How many numbers end in the data."""
    if not 32 < len(data) <= BLOCK_BYTES:
        return len(data.translate(None, HIGH_BYTES))
    return len(data) - (int.from_bytes(data, "little") & _BYTE_HIGH_BIT).bit_count()


def decode_block(data: bytes, count: int) -> str | None:
    """The text of the data, which have at most `BLOCK_BYTES` and no zero; None unless ``count`` numbers fill them."""
    size = len(data)
    units = int.from_bytes(data, "little")
    high = units & _BYTE_HIGH_BIT
    if size - high.bit_count() != count or data[-1] >= 0x80:
        return None
    if size == 3 * count and units & _TRIPLE == _exactly("008080", count):
        # Three bytes each, as the character has in UTF-8, unless it is half of one.
        utf_8 = (
            units << 16 & _BITS_0_TO_5_BEHIND
            | units << 2 & _BIT_6_BEHIND
            | units << 1 & _BITS_7_TO_11_BEHIND
            | units >> 13 & _BITS_12_TO_13_BEFORE
            | units >> 14 & _BITS_14_TO_15_BEFORE
            | _exactly("8080e0", count)
        )
        try:
            return utf_8.to_bytes(size, "little").decode()
        except UnicodeDecodeError:
            pass
    behind = high << 8
    if (high | behind).bit_count() != size:
        # A byte is neither one that is not the last of its number, nor behind such a one.
        return _decode_mixed(data)
    # Two bytes each, or three: without the third ones, if there is no more in them than two bits, they are pairs.
    third = (high & behind) << 8
    pairs = (
        (units ^ units & (third >> 7 | third >> 6)).to_bytes(size, "little").translate(None, b"\0") if third else data
    )
    if len(pairs) != 2 * count:
        return None
    units = int.from_bytes(pairs, "little")
    goes_on = units & _NARROW_HIGH
    units = units & _LOW_BITS | units >> 1 & _MIDDLE_BITS
    if third:
        lasts = int.from_bytes(utf_16_le_encode(data.translate(None, HIGH_BYTES).decode("latin-1"))[0], "little")
        units |= lasts << 14 & (goes_on | goes_on >> 1)
    return utf_16_le_decode(units.to_bytes(2 * count, "little"), "surrogatepass", True)[0]


def _decode_mixed(data: bytes) -> str | None:
    """What `decode_block` gives, for numbers of one, two and three bytes."""
    wide = int.from_bytes(utf_16_le_encode(data.decode("latin-1"))[0], "little")
    high = wide & _HIGH_BIT
    # All bits of a lane are set where its byte is not the last one of its number.
    goes_on = (high >> 7) * 0xFFFF
    low = wide ^ high
    # Of each byte the number that begins there, if it has one byte or two; then if it has three.
    units = low | low >> 9 & goes_on
    three = goes_on >> 16 & goes_on
    if three:
        last = wide >> 32 & three
        if last & _NO_THIRD_BYTE:
            return None
        units |= last << 14
    # A number that begins in the middle of another is none.
    units ^= units & goes_on << 16
    lanes = units.to_bytes(2 * len(data), "little")
    try:
        return utf_16_le_decode(lanes, "strict", True)[0].encode().translate(None, b"\0").decode()
    except UnicodeDecodeError:
        # Two surrogates that belong together have zeros between them.
        kept = array.array("H", lanes)
        if sys.byteorder == "big":
            kept.byteswap()
        kept = array.array("H", filter(None, kept))
        if sys.byteorder == "big":
            kept.byteswap()
        return utf_16_le_decode(kept, "surrogatepass", True)[0]
