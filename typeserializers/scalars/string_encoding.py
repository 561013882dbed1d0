"""Flink's string encoding: a variable-length count, then a variable-length number per UTF-16 code unit.

    varint := 7 bits per byte, low bits first, high bit set on all but the last byte
    string := varint(code units + 1) varint(code unit)*          null := 00

An ASCII text is therefore its ASCII bytes behind its length, which is what the fast path relies on. Surrogates are
written as they are, so a lone one survives.
"""

from __future__ import annotations

import functools
from typing import Final, TypeVar

from snapshots.errors import EndOfDataError, MalformedDataError
from typeserializers.scalars.string_lanes import (
    BLOCK_BYTES,
    BLOCK_UNITS,
    HIGH_BYTES,
    count_numbers,
    decode_block,
    encode_block,
)

MAX_VARINT_BYTES: Final = 5

MAX_REPLACED_CHARACTERS: Final = 8
"""A text that is ASCII but for so many different characters has them replaced, one after the other."""

MAX_REMEMBERED_UNITS: Final = BLOCK_UNITS
MAX_REMEMBERED_TEXTS: Final = 1024
"""Short texts come again and again in a state; of those that are not ASCII so many are remembered, each way."""

_CHARACTERS_AT_A_TIME: Final = BLOCK_UNITS // 2
_MAX_KNOWN_CHARACTERS: Final = 4096
_ASCII: Final = bytes(range(0x80))
_LATIN: Final = {byte: (f"{chr(byte)}\1", chr(byte)) for byte in range(0x80, 0x100)}
"""Of each character of the upper half of Latin-1 its number, the bytes taken for characters, and itself."""

_K = TypeVar("_K")
_V = TypeVar("_V")

_encoded: dict[str, tuple[int, bytes]] = {}
_decoded: dict[bytes, tuple[int, str]] = {}

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


def _remember(known: dict[_K, _V], key: _K, value: _V) -> None:
    if len(known) >= MAX_REMEMBERED_TEXTS:
        known.clear()
    known[key] = value


@functools.lru_cache(_MAX_KNOWN_CHARACTERS)
def _forms(character: str) -> tuple[bytes, bytes, str | None]:
    """A character in UTF-8 and as it is written here, and itself if it is more than one code unit."""
    utf_8 = character.encode("utf-8", "surrogatepass")
    units, encoded = encode_block(character, utf_8)
    return utf_8, encoded, character if units > 1 else None


def _replacements(others: bytes) -> list[tuple[bytes, bytes, str | None]] | None:
    """The forms of the characters in the UTF-8, the smallest first; None if they are too many."""
    characters = set(others.decode("utf-8", "surrogatepass"))
    return (
        [_forms(character) for character in sorted(characters)] if len(characters) <= MAX_REPLACED_CHARACTERS else None
    )


_known_replacements = functools.lru_cache(_MAX_KNOWN_CHARACTERS)(_replacements)


@functools.lru_cache(_MAX_KNOWN_CHARACTERS)
def _unit(number: bytes) -> str | None:
    """The code unit of a number of two bytes or three; None unless it is well-formed."""
    return decode_block(number, 1) if number[-1] else None


def encode_units(text: str) -> tuple[int, bytes]:
    """The number of UTF-16 code units of the text and their encoding."""
    if text.isascii():
        return len(text), text.encode("ascii")
    known = _encoded.get(text)
    if known is None:
        known = _encode_new(text)
        if known[0] <= MAX_REMEMBERED_UNITS and text.__class__ is str:
            _remember(_encoded, text, known)
    return known


def _encode_new(text: str) -> tuple[int, bytes]:
    """What `encode_units` gives of a text that is not remembered.

    If it is ASCII but for a few characters, the text in UTF-8 has those replaced, the smallest first. Then what has
    been written is never taken for a character that is still to be replaced: a number of two bytes has one high byte,
    and the characters that follow the first number of three, which has two, have three high bytes at least.
    """
    units = len(text)
    encoded = text.encode("utf-8", "surrogatepass")
    more = len(encoded) - units
    few = more <= MAX_REPLACED_CHARACTERS
    if 2 * more > units or (not few and units <= BLOCK_UNITS):
        # In one block all characters together take less time than so many replacements.
        if units <= _CHARACTERS_AT_A_TIME and 0 not in encoded:
            return encode_block(text, encoded)
        return _encode_dense(text)
    others = encoded.translate(None, _ASCII)
    replacements = _known_replacements(others) if few else _replacements(others)
    if replacements is None:
        return _encode_dense(text)
    for utf_8, number, astral in replacements:
        encoded = encoded.replace(utf_8, number)
        if astral is not None:
            units += text.count(astral)
    return units, encoded


def _encode_dense(text: str) -> tuple[int, bytes]:
    """What `encode_units` gives, many characters at a time."""
    runs: list[bytes] = []
    units = -1
    for run in text.split("\0"):
        blocks: list[bytes] = []
        for start in range(0, len(run), _CHARACTERS_AT_A_TIME):
            characters = run[start : start + _CHARACTERS_AT_A_TIME]
            count, block = encode_block(characters, characters.encode("utf-8", "surrogatepass"))
            units += count
            blocks.append(block)
        runs.append(b"".join(blocks))
        units += 1
    return units, b"\0".join(runs)


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
    # The text may be the last thing there is; then where it ends need not be found out.
    rest = data[position : position + 3 * count]
    known = _decoded.get(rest)
    if known is not None and known[0] == count:
        return known[1], position + len(rest)
    decoded = _decode_new(rest, count)
    if decoded is None:
        return _decode_one_by_one(data, position, count)
    text, size = decoded
    return text, position + size


def _decode_new(data: bytes, count: int) -> tuple[str, int] | None:
    """The text of the first ``count`` numbers and how many bytes they are; None unless they are well-formed."""
    size = len(data)
    text = None
    if 3 * count < 2 * size <= 2 * BLOCK_BYTES and (size < 3 * count or data[2::3].isascii()) and 0 not in data:
        # There may be nothing behind them.
        text = decode_block(data, count)
    if text is None:
        others = data[:count].translate(None, _ASCII)
        size = count + len(others)
        if 2 * size <= 3 * count:
            tail = data[count:size]
            if not tail.isascii():
                # Each byte that goes on needs another one, in which there may be one again.
                found = [others]
                while more := tail.translate(None, _ASCII):
                    found.append(more)
                    tail = data[size : size + len(more)]
                    size += len(more)
                others = b"".join(found)
            if size > len(data):
                return None
            data = data[:size]
        else:
            numbers = _numbers(data, count, count - len(others))
            if numbers is None:
                return None
            data = numbers
            size = len(data)
        known = _decoded.get(data)
        if known is not None:
            return known[1], size
        if 2 * size <= 3 * count:
            text = _decode_sparse(data, count, others)
        if text is None:
            text = _decode_dense(data, count)
            if text is None:
                return None
    if count <= MAX_REMEMBERED_UNITS:
        _remember(_decoded, data, (count, text))
    return text, size


def _decode_sparse(numbers: bytes, count: int, high: bytes) -> str | None:
    """The text of ``count`` numbers with few high bytes; None if not so few, or not well-formed."""
    text = numbers.decode("latin-1")
    others = set(high) if numbers.count(1) >= len(high) else ()
    if len(others) <= MAX_REPLACED_CHARACTERS:
        for byte in others:
            text = text.replace(*_LATIN[byte])
        if len(text) == count:
            # As many numbers became one character as there were bytes too many: those were all.
            return text
    if len(high) > min(MAX_REPLACED_CHARACTERS, 2 + (count >> 3)):
        return None
    text = numbers.decode("latin-1")
    pieces: list[str] = []
    start = seen = 0
    surrogates = False
    while seen < len(high):
        first = numbers.index(high[seen], start)
        last = first + 1
        while numbers[last] >= 0x80:
            last += 1
        unit = _unit(numbers[first : last + 1])
        if unit is None:
            return None
        surrogates = surrogates or "\ud800" <= unit <= "\udfff"
        pieces += (text[start:first], unit)
        seen += last - first
        start = last + 1
    pieces.append(text[start:])
    return _joined("".join(pieces)) if surrogates else "".join(pieces)


def _numbers(data: bytes, count: int, found: int) -> bytes | None:
    """The first ``count`` numbers; None if there are fewer in the data. So many end in its first ``count`` bytes."""
    size = count
    while found < count:
        if size >= len(data):
            return None
        # What follows tends to have numbers as long. From behind the end is neared so that it is not missed.
        end = min(size + (count - found) * size // (found + 1) + 1, len(data))
        found += count_numbers(data[size:end])
        size = end
    while found > count:
        start = size + count - found
        found -= count_numbers(data[start:size])
        size = start
    return data[:size].rstrip(HIGH_BYTES)


def _decode_dense(numbers: bytes, count: int) -> str | None:
    """The text of ``count`` numbers, many at a time; None unless they are well-formed."""
    if len(numbers) <= BLOCK_BYTES and 0 not in numbers:
        return decode_block(numbers, count)
    runs: list[str] = []
    for run in numbers.split(b"\0"):
        if run and run[-1] >= 0x80:
            return None
        blocks: list[str] = []
        start = 0
        while start < len(run):
            block = run[start : start + BLOCK_BYTES].rstrip(HIGH_BYTES)
            decoded = decode_block(block, count_numbers(block)) if block else None
            if decoded is None:
                return None
            blocks.append(decoded)
            start += len(block)
        # A block may end between two surrogates that belong together.
        runs.append(blocks[0] if len(blocks) == 1 else _joined("".join(blocks)))
    return "\0".join(runs)


def _joined(text: str) -> str:
    """The text with each two surrogates that belong together as one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _decode_one_by_one(data: bytes, position: int, count: int) -> tuple[str, int]:
    """What `decode_units` does, for numbers written with needless bytes, and to say what is wrong."""
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
    return (SMALL_LENGTHS[count + 1] if count < 0x7F else encode_varint(count + 1)) + units


def read_text(data: bytes, position: int) -> tuple[str | None, int]:
    """The text at ``position``, or None, and the position behind it."""
    length, position = decode_varint(data, position)
    if length == 0:
        return None, position
    return decode_units(data, position, length - 1)
