"""Binary input and output with a position, in the byte order and encodings of Java's ``DataOutput``.

The models are Flink's ``DataOutputView`` and ``DataInputView``: big-endian numbers and modified UTF-8 names. Snapshots
use these views, and so do values whose serializer has no compiled codec. An output view only grows, except through
``truncate``. An input view never reads past its end.
"""

from __future__ import annotations

import struct
from typing import Final

from snapshots.errors import EndOfDataError, MalformedDataError

_SHORT: Final = struct.Struct(">h")
_UNSIGNED_SHORT: Final = struct.Struct(">H")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_FLOAT: Final = struct.Struct(">f")
_DOUBLE: Final = struct.Struct(">d")
_NAN: Final = float("nan")

MAX_UTF_BYTES: Final = 0xFFFF
"""The longest encoded name that ``write_utf`` can carry, in bytes."""


def encode_modified_utf8(text: str) -> bytes:
    """Encodes as Java's modified UTF-8: NUL takes two bytes, and each UTF-16 code unit is encoded separately."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    encoded = bytearray()
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in _UNSIGNED_SHORT.iter_unpack(units):
        if 0x01 <= unit <= 0x7F:
            encoded.append(unit)
        elif unit <= 0x7FF:
            encoded += bytes((0xC0 | unit >> 6, 0x80 | unit & 0x3F))
        else:
            encoded += bytes((0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F))
    return bytes(encoded)


def decode_modified_utf8(data: bytes) -> str:
    """Decodes `encode_modified_utf8`; raises `MalformedDataError` for any other bytes."""
    if data.isascii() and 0 not in data:
        return data.decode("ascii")
    # Python's UTF-8 decoder with surrogatepass reads the three-byte surrogates; UTF-16 then joins the pairs.
    try:
        text = data.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
        joined = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    except UnicodeDecodeError as error:
        raise MalformedDataError(f"not modified UTF-8: {error}") from error
    if encode_modified_utf8(joined) != data:
        raise MalformedDataError("not modified UTF-8: the text has more than one encoding")
    return joined


class DataOutputView:
    """A growing buffer of bytes with the write methods of Java's ``DataOutput``."""

    __slots__ = ("_buffer", "nesting")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.nesting = 0

    @property
    def position(self) -> int:
        """The number of bytes written."""
        return len(self._buffer)

    def to_bytes(self) -> bytes:
        """Returns a copy of all bytes written."""
        return bytes(self._buffer)

    def truncate(self, position: int) -> None:
        """Removes all bytes after ``position``, so that an error leaves no partial value."""
        del self._buffer[position:]

    def write(self, data: bytes) -> None:
        """Writes the bytes without a length."""
        self._buffer += data

    def write_boolean(self, value: bool) -> None:
        """Writes one byte, 01 or 00."""
        self._buffer.append(1 if value else 0)

    def write_byte(self, value: int) -> None:
        """Writes one signed byte, -128 to 127."""
        self._buffer += value.to_bytes(1, "big", signed=True)

    def write_unsigned_byte(self, value: int) -> None:
        """Writes one byte, 0 to 255."""
        self._buffer.append(value)

    def write_short(self, value: int) -> None:
        """Writes a signed 16-bit number."""
        self._buffer += _SHORT.pack(value)

    def write_unsigned_short(self, value: int) -> None:
        """Writes an unsigned 16-bit number (Java's ``writeChar``)."""
        self._buffer += _UNSIGNED_SHORT.pack(value)

    def write_int(self, value: int) -> None:
        """Writes a signed 32-bit number."""
        self._buffer += _INT.pack(value)

    def write_long(self, value: int) -> None:
        """Writes a signed 64-bit number."""
        self._buffer += _LONG.pack(value)

    def write_float(self, value: float) -> None:
        """Writes IEEE binary32; every NaN becomes the canonical one, as in Java."""
        self._buffer += _FLOAT.pack(value if value == value else _NAN)

    def write_double(self, value: float) -> None:
        """Writes IEEE binary64; every NaN becomes the canonical one, as in Java."""
        self._buffer += _DOUBLE.pack(value if value == value else _NAN)

    def write_utf(self, text: str) -> None:
        """Writes a name: an unsigned 16-bit byte length, then modified UTF-8. At most 65,535 encoded bytes."""
        encoded = encode_modified_utf8(text)
        if len(encoded) > MAX_UTF_BYTES:
            raise MalformedDataError(
                f"a name has {len(encoded)} encoded bytes, and the limit is {MAX_UTF_BYTES}: use a shorter name"
            )
        self._buffer += _UNSIGNED_SHORT.pack(len(encoded))
        self._buffer += encoded

    def write_sized_bytes(self, data: bytes) -> None:
        """Writes a signed 32-bit length, then the bytes."""
        self._buffer += _INT.pack(len(data))
        self._buffer += data


class DataInputView:
    """A cursor over bytes with the read methods of Java's ``DataInput``; raises `EndOfDataError` at the end."""

    __slots__ = ("_data", "_end", "nesting", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._end = len(data)
        self.position = position
        self.nesting = 0

    @property
    def data(self) -> bytes:
        """All bytes of this view."""
        return self._data

    @property
    def remaining(self) -> int:
        """The number of unread bytes."""
        return self._end - self.position

    def read(self, size: int) -> bytes:
        """Reads exactly ``size`` bytes."""
        if size < 0:
            raise MalformedDataError(f"negative length {size} at byte {self.position}")
        end = self.position + size
        if end > self._end:
            raise EndOfDataError(
                f"{size} bytes expected at byte {self.position}, only {self.remaining} are left: the data is truncated"
            )
        chunk = self._data[self.position : end]
        self.position = end
        return chunk

    def read_boolean(self) -> bool:
        """Reads one byte; anything but zero is true, as in Java."""
        return self.read(1) != b"\x00"

    def read_byte(self) -> int:
        """Reads one signed byte."""
        return int.from_bytes(self.read(1), "big", signed=True)

    def read_unsigned_byte(self) -> int:
        """Reads one byte, 0 to 255."""
        return self.read(1)[0]

    def read_short(self) -> int:
        """Reads a signed 16-bit number."""
        return int.from_bytes(self.read(2), "big", signed=True)

    def read_unsigned_short(self) -> int:
        """Reads an unsigned 16-bit number."""
        return int.from_bytes(self.read(2), "big")

    def read_int(self) -> int:
        """Reads a signed 32-bit number."""
        return int.from_bytes(self.read(4), "big", signed=True)

    def read_long(self) -> int:
        """Reads a signed 64-bit number."""
        return int.from_bytes(self.read(8), "big", signed=True)

    def read_float(self) -> float:
        """Reads IEEE binary32."""
        value: float = _FLOAT.unpack(self.read(4))[0]
        return value

    def read_double(self) -> float:
        """Reads IEEE binary64."""
        value: float = _DOUBLE.unpack(self.read(8))[0]
        return value

    def read_utf(self) -> str:
        """Reads a name written by `DataOutputView.write_utf`."""
        return decode_modified_utf8(self.read(self.read_unsigned_short()))

    def read_sized_bytes(self) -> bytes:
        """Reads a signed 32-bit length, then that many bytes."""
        return self.read(self.read_int())

    def read_count(self, minimum_item_bytes: int = 1) -> int:
        """Reads a signed 32-bit count and rejects one that the remaining bytes cannot hold.

        Args:
            minimum_item_bytes: The smallest size of one item. It bounds the work that a hostile count can cause.
        """
        position = self.position
        count = self.read_int()
        if count < 0 or count * minimum_item_bytes > self.remaining:
            raise MalformedDataError(
                f"count {count} at byte {position} does not fit the {self.remaining} bytes that follow: data is damaged"
            )
        return count
