"""Serializers of text and of single characters, in Flink's string encoding.

    varint := 7 bits per byte, low bits first, high bit set on all but the last byte
    string := varint(code units + 1) varint(code unit)*          null := 00
    char   := one UTF-16 code unit in two bytes

The encoding of an ASCII text is its length and its ASCII bytes; the fast path relies on this. Surrogates are written
unchanged, so a lone one is kept. The string serializer also writes None, as Flink's does; a record still rejects None
in a field that is not optional.

Other text is encoded many characters at a time. A loop in Python takes half a microsecond per character. Instead, a
block of characters is one large integer with one lane per character, and a few operations work on all lanes at once
("SIMD within a register", Lamport 1975). The unused bytes of a lane are zero, and ``bytes.translate`` deletes zeros at
the speed of C. So callers exclude NUL, and everything else that a block cannot hold (numbers with needless bytes, or
beyond 16 bits). Lanes come from, and go to, the Unicode form nearest to the numbers:

    to write    UTF-8    each character has three bytes, as in Chinese, Japanese and Korean: 24 bits per lane
                UTF-16   no number has three bytes, as in European and many other languages: 16 bits
                UTF-32   anything else, with surrogate halves as characters: 32 bits
    to read     UTF-8    each number has three bytes: 24 bits
                UTF-16   each has two or three: without the third bytes they are pairs of 16 bits; the third bytes are
                         found again among the last bytes of all numbers
                both     anything else: each byte has 16 bits; a number is built in the lane of its first byte, the
                         other lanes become zero and are deleted in UTF-8

Deleting bytes takes twice as long if the processor cannot predict which ones, so there is at most one such pass, or
two, and numbers are counted as bits. Codecs are called directly: ``str.encode`` and ``bytes.decode`` look them up by
name and run Python code for UTF-16, at twice the cost.
"""

from __future__ import annotations

import array
import functools
import sys
from codecs import utf_16_le_decode, utf_16_le_encode, utf_32_le_encode
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import EndOfDataError, MalformedDataError, misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import BASE, nested_snapshot
from typeserializers.kernel.value_hooks import is_plain_text

BLOCK_UNITS: Final = 256
BLOCK_BYTES: Final = 3 * BLOCK_UNITS

HIGH_BYTES: Final = bytes(range(0x80, 0x100))
"""All bytes of a varint that are not the last one."""


def _lanes(lane: str, count: int = BLOCK_BYTES) -> int:
    """Returns an integer of equal lanes; the lane is given in hexadecimal, highest byte first."""
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
    """Returns exactly that many lanes, to add or to compare."""
    return _lanes(lane, count)


def encode_block(text: str, utf_8: bytes) -> tuple[int, bytes]:
    """Returns the number of code units of a text and their encoding; the text is also passed in UTF-8.

    The text must not be empty, contain NUL, or have more than `BLOCK_UNITS` code units.
    """
    size = len(utf_8)
    count = len(text)
    if size == 3 * count:
        units = int.from_bytes(utf_8, "little")
        if units & _LEADS == _exactly("0000e0", count):
            # All characters have three bytes in UTF-8, which hold 4, 6 and 6 bits, the highest ones first. Each further
            # byte of a number sets the continuation flag of the byte before it.
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
    """Returns the number of varints that end in the data."""
    if not 32 < len(data) <= BLOCK_BYTES:
        return len(data.translate(None, HIGH_BYTES))
    return len(data) - (int.from_bytes(data, "little") & _BYTE_HIGH_BIT).bit_count()


def decode_block(data: bytes, count: int) -> str | None:
    """Decodes data of at most `BLOCK_BYTES` without zeros; None unless it consists of ``count`` numbers."""
    size = len(data)
    units = int.from_bytes(data, "little")
    high = units & _BYTE_HIGH_BIT
    if size - high.bit_count() != count or data[-1] >= 0x80:
        return None
    if size == 3 * count and units & _TRIPLE == _exactly("008080", count):
        # Each number has three bytes, and so has its character in UTF-8, unless it is a surrogate.
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
        # A byte that neither continues a number nor follows such a byte.
        return _decode_mixed(data)
    # Each number has two or three bytes. Without the third bytes, which hold two bits, all numbers are pairs of bytes.
    third = (high & behind) << 8
    pairs = (
        (units ^ units & (third >> 7 | third >> 6)).to_bytes(size, "little").translate(None, b"\0") if third else data
    )
    if len(pairs) != 2 * count:
        return None
    units = int.from_bytes(pairs, "little")
    continues = units & _NARROW_HIGH
    units = units & _LOW_BITS | units >> 1 & _MIDDLE_BITS
    if third:
        lasts = int.from_bytes(utf_16_le_encode(data.translate(None, HIGH_BYTES).decode("latin-1"))[0], "little")
        units |= lasts << 14 & (continues | continues >> 1)
    return utf_16_le_decode(units.to_bytes(2 * count, "little"), "surrogatepass", True)[0]


def _decode_mixed(data: bytes) -> str | None:
    """Decodes a block of numbers of one, two and three bytes."""
    wide = int.from_bytes(utf_16_le_encode(data.decode("latin-1"))[0], "little")
    high = wide & _HIGH_BIT
    # All bits of a lane are set where its byte is not the last one of its number.
    continues = (high >> 7) * 0xFFFF
    low = wide ^ high
    # For each byte, the number that begins there: first as a number of one or two bytes, then of three.
    units = low | low >> 9 & continues
    three = continues >> 16 & continues
    if three:
        last = wide >> 32 & three
        if last & _NO_THIRD_BYTE:
            return None
        units |= last << 14
    # A position in the middle of a number starts no number.
    units ^= units & continues << 16
    lanes = units.to_bytes(2 * len(data), "little")
    try:
        return utf_16_le_decode(lanes, "strict", True)[0].encode().translate(None, b"\0").decode()
    except UnicodeDecodeError:
        # The two surrogates of a pair have zeros between them.
        kept = array.array("H", lanes)
        if sys.byteorder == "big":
            kept.byteswap()
        kept = array.array("H", filter(None, kept))
        if sys.byteorder == "big":
            kept.byteswap()
        return utf_16_le_decode(kept, "surrogatepass", True)[0]


MAX_VARINT_BYTES: Final = 5

MAX_REPLACED_CHARACTERS: Final = 8
"""In a text with at most this many different non-ASCII characters, each is replaced separately."""

MAX_REMEMBERED_UNITS: Final = BLOCK_UNITS
MAX_REMEMBERED_TEXTS: Final = 1024
"""Short texts repeat in a state; this many non-ASCII ones are cached, each way."""

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
"""The one-byte varints; indexing this table is the cheapest way to write a short length."""


def encode_varint(number: int) -> bytes:
    """Returns the varint of a non-negative number."""
    if number < 0x80:
        return SMALL_LENGTHS[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the number at ``position`` and the position after it."""
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
    """Returns a character in UTF-8 and in this encoding, and itself if it has two code units."""
    utf_8 = character.encode("utf-8", "surrogatepass")
    units, encoded = encode_block(character, utf_8)
    return utf_8, encoded, character if units > 1 else None


def _replacements(others: bytes) -> list[tuple[bytes, bytes, str | None]] | None:
    """Returns the forms of the characters in the UTF-8 text, smallest first; None if there are too many."""
    characters = set(others.decode("utf-8", "surrogatepass"))
    return (
        [_forms(character) for character in sorted(characters)] if len(characters) <= MAX_REPLACED_CHARACTERS else None
    )


_known_replacements = functools.lru_cache(_MAX_KNOWN_CHARACTERS)(_replacements)


@functools.lru_cache(_MAX_KNOWN_CHARACTERS)
def _unit(number: bytes) -> str | None:
    """Returns the code unit of a number of two or three bytes; None if it is malformed."""
    return decode_block(number, 1) if number[-1] else None


def encode_units(text: str) -> tuple[int, bytes]:
    """Returns the number of UTF-16 code units of the text and their encoding."""
    if text.isascii():
        return len(text), text.encode("ascii")
    known = _encoded.get(text)
    if known is None:
        known = _encode_new(text)
        if known[0] <= MAX_REMEMBERED_UNITS and text.__class__ is str:
            _remember(_encoded, text, known)
    return known


def _encode_new(text: str) -> tuple[int, bytes]:
    """Encodes a text that is not cached.

    In a text with few non-ASCII characters, these are replaced in its UTF-8 form, smallest first. Replaced bytes are
    never mistaken for a character that is still to be replaced: a number of two bytes has one high byte, a number of
    three has two, and the characters after the first number of three have at least three high bytes in UTF-8.
    """
    units = len(text)
    encoded = text.encode("utf-8", "surrogatepass")
    more = len(encoded) - units
    few = more <= MAX_REPLACED_CHARACTERS
    if 2 * more > units or (not few and units <= BLOCK_UNITS):
        # Encoding the whole block is faster than that many replacements.
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
    """Encodes many characters at a time."""
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
    """Returns the text of ``count`` code units at ``position`` and the position after it."""
    end = position + count
    chunk = data[position:end]
    if len(chunk) < count:
        raise EndOfDataError(
            f"a string of {count} characters at byte {position} needs as many bytes, "
            f"only {len(data) - position} are left: the data is truncated"
        )
    if chunk.isascii():
        return chunk.decode("ascii"), end
    # If the text ends the data, its end is known.
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
    """Returns the text of the first ``count`` numbers and their size in bytes; None if they are malformed."""
    size = len(data)
    text = None
    if 3 * count < 2 * size <= 2 * BLOCK_BYTES and (size < 3 * count or data[2::3].isascii()) and 0 not in data:
        # The data may end here.
        text = decode_block(data, count)
    if text is None:
        others = data[:count].translate(None, _ASCII)
        size = count + len(others)
        if 2 * size <= 3 * count:
            tail = data[count:size]
            if not tail.isascii():
                # Each continuation byte needs another byte, which may also be a continuation byte.
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
    """Decodes ``count`` numbers with few high bytes; None if there are many, or they are malformed."""
    text = numbers.decode("latin-1")
    others = set(high) if numbers.count(1) >= len(high) else ()
    if len(others) <= MAX_REPLACED_CHARACTERS:
        for byte in others:
            text = text.replace(*_LATIN[byte])
        if len(text) == count:
            # The number of replaced characters equals the number of extra bytes, so all were replaced.
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
    """Returns the bytes of the first ``count`` numbers; None if the data has fewer."""
    size = count
    while found < count:
        if size >= len(data):
            return None
        # Later numbers tend to have similar lengths. The search approaches the end from below, so it cannot miss it.
        end = min(size + (count - found) * size // (found + 1) + 1, len(data))
        found += count_numbers(data[size:end])
        size = end
    while found > count:
        start = size + count - found
        found -= count_numbers(data[start:size])
        size = start
    return data[:size].rstrip(HIGH_BYTES)


def _decode_dense(numbers: bytes, count: int) -> str | None:
    """Decodes ``count`` numbers, many at a time; None if they are malformed."""
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
        # A block may end between the two surrogates of a pair.
        runs.append(blocks[0] if len(blocks) == 1 else _joined("".join(blocks)))
    return "\0".join(runs)


def _joined(text: str) -> str:
    """Returns the text with each surrogate pair as one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _decode_one_by_one(data: bytes, position: int, count: int) -> tuple[str, int]:
    """Decodes numbers written with needless bytes, and raises the error for malformed ones."""
    units = bytearray()
    for _ in range(count):
        unit, position = decode_varint(data, position)
        if unit > 0xFFFF:
            raise MalformedDataError(f"{unit:#x} before byte {position} is not a UTF-16 code unit")
        units += unit.to_bytes(2, "big")
    return units.decode("utf-16-be", "surrogatepass"), position


def write_text(text: str | None) -> bytes:
    """Returns the encoding of a text or None; raises `TypeError` for other values."""
    if text is None:
        return b"\x00"
    if not isinstance(text, str):
        raise TypeError(f"a str is needed, not {type(text).__name__}")
    count, units = encode_units(text)
    return (SMALL_LENGTHS[count + 1] if count < 0x7F else encode_varint(count + 1)) + units


def read_text(data: bytes, position: int) -> tuple[str | None, int]:
    """Returns the text at ``position``, or None, and the position after it."""
    length, position = decode_varint(data, position)
    if length == 0:
        return None, position
    return decode_units(data, position, length - 1)


class StringSerializer(CompiledTypeSerializer["str | None"]):
    """Text; None is written as one zero byte."""

    is_immutable_type = True
    equal_values_have_equal_bytes = True
    accepts_none = True

    def create_instance(self) -> str:
        return ""

    def copy(self, value: str | None) -> str | None:
        return value

    def write_to(self, value: str | None, out: DataOutputView) -> None:
        out.write(write_text(value))

    def read_from(self, source: DataInputView) -> str | None:
        text, source.position = read_text(source.data, source.position)
        return text

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        encoded = function.fresh("b")
        small = function.bind("small_lengths", SMALL_LENGTHS)
        varint = function.bind("encode_varint", encode_varint)
        # All values except plain ASCII strings use the call, which writes None and rejects other types.
        emitter.line(f"if {value}.__class__ is str and {value}.isascii():")
        emitter.line(f"    {encoded} = {value}.encode()")
        emitter.line(f"    n = len({encoded}) + 1")
        emitter.line(f"    {encoded} = ({small}[n] if n < 128 else {varint}(n)) + {encoded}")
        emitter.line(f"else: {encoded} = {function.bind('write_text', write_text)}({value})")
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        text = function.fresh("s")
        length = emitter.fixed("B")
        read = function.bind("read_text", read_text)
        units = function.bind("decode_units", decode_units)
        emitter.line(f"e = pos + {length} - 1; b = data[pos:e]")
        emitter.line(f"if {length} < 128 and len(b) == {length} - 1 and b.isascii(): {text} = b.decode(); pos = e")
        # A one-byte length need not be decoded again.
        emitter.line(f"elif 1 < {length} < 128: {text}, pos = {units}(data, pos, {length} - 1)")
        emitter.line(f"else: {text}, pos = {read}(data, pos - 1)")
        return text

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is not None and not isinstance(value, str):
            yield misfit(path, value, "is not a str")

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        is_plain = function.bind("is_plain_text", is_plain_text)
        return f"type({first}) is str and ({again}.isascii() or {is_plain}({again}))"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return f"{value}.__sizeof__()"

    def snapshot_configuration(self) -> StringSerializerSnapshot:
        return StringSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "StringSerializer"))
class StringSerializerSnapshot(SimpleTypeSerializerSnapshot["str | None"]):
    serializer_class = StringSerializer


def code_unit(value: Any) -> int:
    """Returns the code unit of a str with one; raises `TypeError` or `ValueError` with the reason."""
    if not isinstance(value, str) or len(value) != 1:
        raise TypeError("is not a str of one character")
    unit = ord(value)
    if unit > 0xFFFF:
        raise ValueError("is beyond U+FFFF and takes two UTF-16 code units; use StringSerializer")
    return unit


class CharSerializer(CompiledTypeSerializer[str]):
    """A str of one UTF-16 code unit. A character beyond U+FFFF does not fit; a lone surrogate does."""

    length = 2
    is_immutable_type = True
    equal_values_have_equal_bytes = True

    def create_instance(self) -> str:
        return "\0"

    def write_to(self, value: str, out: DataOutputView) -> None:
        out.write_unsigned_short(code_unit(value))

    def read_from(self, source: DataInputView) -> str:
        return chr(source.read_unsigned_short())

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.fixed("H", f"{emitter.function.bind('code_unit', code_unit)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        return f"chr({emitter.fixed('H')})"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            code_unit(value)
        except (TypeError, ValueError) as error:
            yield misfit(path, value, error)

    def snapshot_configuration(self) -> CharSerializerSnapshot:
        return CharSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "CharSerializer"))
class CharSerializerSnapshot(SimpleTypeSerializerSnapshot[str]):
    serializer_class = CharSerializer
