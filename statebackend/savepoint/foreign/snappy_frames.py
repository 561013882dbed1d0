"""Decompresses Snappy's framing format, in which Flink writes compressed state.

    stream := chunk*          chunk := u8(type) u24(length, little-endian) body
    0xff     the stream identifier ``sNaPpY``; streams may follow each other
    0x00     u32(masked CRC-32C of the data, little-endian) compressed block of at most 65,536 bytes
    0x01     u32(masked CRC-32C of the data, little-endian) data
    0x80 to 0xfe     padding and skippable chunks; every other type is an error

The package `google_crc32c` computes the checksums, if it is installed. Otherwise Python does, at some 10 MB/s.
"""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa

from snapshots.errors import MalformedDataError

__all__ = ["STREAM_START", "crc32c", "decompress_frames", "python_crc32c", "stream_starts", "uncompressed_size"]

_IDENTIFIER: Final = b"sNaPpY"
STREAM_START: Final = b"\xff\x06\x00\x00" + _IDENTIFIER
"""The chunk at the start of a stream."""

_MAX_BLOCK_BYTES: Final = 1 << 16
_POLYNOMIAL: Final = 0x82F63B78


def decompress_frames(data: bytes, *, is_whole: bool = True) -> bytes:
    """Return the content of one or more framed streams, or of chunks inside a stream (``is_whole`` is false).

    Raises:
        MalformedDataError: A chunk is invalid, or its checksum is wrong. The message has the position in ``data``.
    """
    codec = pa.Codec("snappy")
    parts: list[bytes] = []
    position = 0
    while position < len(data):
        start = position
        kind, length = data[position], int.from_bytes(data[position + 1 : position + 4], "little")
        body = data[position + 4 : position + 4 + length]
        position += 4 + length
        if position > len(data):
            raise MalformedDataError(f"the compressed chunk at byte {start} is truncated")
        if is_whole and start == 0 and kind != 0xFF:
            raise MalformedDataError("the compressed data does not begin with Snappy's stream identifier")
        if kind == 0xFF:
            if body != _IDENTIFIER:
                raise MalformedDataError(f"the chunk at byte {start} is not a stream identifier of Snappy")
        elif kind in (0, 1):
            parts.append(_block(codec, body, start, is_compressed=kind == 0))
        elif kind < 0x80:
            raise MalformedDataError(f"the compressed chunk at byte {start} is of the unknown type {kind}")
    return b"".join(parts)


def stream_starts(data: bytes) -> list[int]:
    """Return the positions of the stream identifiers in concatenated streams, without decompressing them."""
    starts: list[int] = []
    position = 0
    while position < len(data):
        if data[position] == 0xFF:
            starts.append(position)
        position += 4 + int.from_bytes(data[position + 1 : position + 4], "little")
    return starts


def _block(codec: pa.Codec, body: bytes, start: int, *, is_compressed: bool) -> bytes:
    content = body[4:]
    size = uncompressed_size(content, start) if is_compressed else len(content)
    if len(body) < 4 or size > _MAX_BLOCK_BYTES:
        raise MalformedDataError(f"the compressed chunk at byte {start} has {size} bytes of data")
    if is_compressed:
        try:
            content = codec.decompress(content, size, asbytes=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise MalformedDataError(f"the compressed chunk at byte {start} cannot be decompressed: {error}") from error
    crc = crc32c(content)
    if int.from_bytes(body[:4], "little") != ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF:
        raise MalformedDataError(f"the compressed chunk at byte {start} does not match its checksum")
    return content


def uncompressed_size(block: bytes, start: int) -> int:
    """Return the size in the first bytes of a compressed block. ``start`` is its position for errors."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return size
    raise MalformedDataError(f"the compressed chunk at byte {start} does not begin with its size")


@functools.cache
def _table() -> tuple[int, ...]:
    """Return the CRC of each byte."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def python_crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of the bytes."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[crc & 0xFF ^ byte] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


try:
    from google_crc32c import value as crc32c
except ModuleNotFoundError:
    crc32c = python_crc32c
