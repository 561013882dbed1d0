"""Checks the lengths in Spark's files of state before Spark reads them.

Spark reserves memory for a length before it reads so many bytes. One wrong length can end the process.

    delta, snapshot := record* i32(-1)                                            of the HDFS provider
    changelog       := record* i32(-1)                                            of RocksDB, version 1
                     | UTF("v3") UTF(lineage) record* i32(-1)
                     | UTF("v2") typed* u8(0) | UTF("v4") UTF(lineage) typed* u8(0)
    typed           := u8(1: put, 16: delete, 17: merge) record
    record          := i32(length) key i32(length, or -1: deleted) value

Files are compressed by LZ4, Zstandard or Snappy:

    lz4    := (``LZ4Block`` u4(method) u4(level) u32(stored) u32(original) u32(checksum) bytes)*    little-endian
    snappy := ``\\x82SNAPPY\\0`` i32 i32 (i32(length) block)*                                 big-endian
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import xxhash

from snapshots.data_views import DataInputView
from snapshots.errors import EndOfDataError, MalformedDataError, StateFormatError
from statebackend.savepoint.errors import ForeignFormatError
from statebackend.savepoint.foreign.snappy_frames import uncompressed_size

RECORD_FILE: Final = re.compile(r"\d+(?:_[-0-9a-f]+)*\.(delta|snapshot|changelog)")
"""The names of files with records."""

_LZ4: Final = b"LZ4Block"
_LZ4_HEADER_BYTES: Final = 21
_LZ4_RAW: Final = 1
_LZ4_METHODS: Final = (_LZ4_RAW, 2)
_LZ4_LEVEL_BASE: Final = 10
"""A block of level n has up to 2 ** (10 + n) bytes. Spark rejects larger ones."""

_LZ4_SEED: Final = 0x9747B28C
_LZ4_CHECKSUM_BITS: Final = 0x0FFFFFFF
_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"
_SNAPPY: Final = b"\x82SNAPPY\0"
_MAX_BLOCK_BYTES: Final = 64 << 20
_MAX_EXPANSION: Final = 100
"""How many times larger than a file its content may be. Rows of state shrink some ten times."""

_CHUNK_BYTES: Final = 1 << 20
_VERSIONS: Final = {b"\0\2v2": 2, b"\0\2v3": 3, b"\0\2v4": 4}
_RECORD_TYPES: Final = (1, 16, 17)


def check_records(data: bytes, location: str, kind: str) -> None:
    """Check a file of ``kind`` delta, snapshot or changelog. ``location`` names it in errors.

    Raises:
        ForeignFormatError: A length is wrong, the file is truncated, or its content is much larger than the file.
    """
    content = _Content(_decompressed(data), max(_MAX_BLOCK_BYTES, _MAX_EXPANSION * len(data)))
    try:
        _check(content, kind)
        if content.peek(1):
            raise MalformedDataError("bytes follow the last record")
    except (StateFormatError, pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise ForeignFormatError(
            f"{location} is damaged: byte {content.position} of its content: {reason}. Restore it from a backup"
        ) from error


def _check(content: _Content, kind: str) -> None:
    version = 1
    if kind == "changelog":
        version = _VERSIONS.get(content.peek(4), 1)
        if version > 1:
            content.skip(4)
        if version > 2:
            content.skip(int.from_bytes(content.read(2), "big"))
    while True:
        if version in (2, 4):
            [record_type] = content.read(1)
            if not record_type:
                return
            if record_type not in _RECORD_TYPES:
                raise MalformedDataError(f"a record of the unknown type {record_type}")
        key_bytes = int.from_bytes(content.read(4), "big", signed=True)
        if key_bytes == -1 and version in (1, 3):
            return
        if key_bytes < 0:
            raise MalformedDataError(f"a key has {key_bytes} bytes")
        content.skip(key_bytes)
        value_bytes = int.from_bytes(content.read(4), "big", signed=True)
        if value_bytes < (0 if kind == "snapshot" else -1):
            raise MalformedDataError(f"a value has {value_bytes} bytes")
        content.skip(max(0, value_bytes))


class _Content:
    """The decompressed content, of which one chunk is in memory."""

    def __init__(self, chunks: Iterator[bytes], most_bytes: int) -> None:
        self._chunks = chunks
        self._most_bytes = most_bytes
        self._chunk = b""
        self._start = 0
        self.position = 0

    def peek(self, size: int) -> bytes:
        """Return up to so many bytes without moving."""
        while self.position - self._start + size > len(self._chunk) and self._load(keep=True):
            pass
        return self._chunk[self.position - self._start :][:size]

    def read(self, size: int) -> bytes:
        first = self.position - self._start
        found = self._chunk[first : first + size]
        if len(found) < size:
            found = self.peek(size)
            if len(found) < size:
                raise EndOfDataError("the content is truncated")
        self.position += size
        return found

    def skip(self, size: int) -> None:
        """Move forward."""
        end = self.position + size
        while end > self._start + len(self._chunk):
            if not self._load(keep=False):
                raise EndOfDataError(f"{size} bytes are announced, which the content does not have")
        self.position = end

    def _load(self, *, keep: bool) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        if keep:
            chunk = self._chunk[self.position - self._start :] + chunk
            self._start = self.position
        else:
            self._start += len(self._chunk)
        self._chunk = chunk
        if self._start + len(chunk) > self._most_bytes:
            raise MalformedDataError(f"the content is more than {_MAX_EXPANSION} times larger than the file")
        return True


def _decompressed(data: bytes) -> Iterator[bytes]:
    if data.startswith(_LZ4):
        yield from _lz4_blocks(data)
    elif data.startswith(_ZSTANDARD):
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
    elif data.startswith(_SNAPPY):
        yield from _snappy_blocks(data)
    else:
        raise MalformedDataError("it is not compressed by LZ4, Zstandard or Snappy")


def _lz4_blocks(data: bytes) -> Iterator[bytes]:
    codec, position = pa.Codec("lz4_raw"), 0
    while position < len(data):
        header, start = data[position : position + _LZ4_HEADER_BYTES], position + _LZ4_HEADER_BYTES
        if len(header) < _LZ4_HEADER_BYTES or not header.startswith(_LZ4):
            raise MalformedDataError(f"there is no block of LZ4 at byte {position} of the file")
        method, level = divmod(header[8], 16)
        stored, original = int.from_bytes(header[9:13], "little"), int.from_bytes(header[13:17], "little")
        position = start + stored
        if method not in _LZ4_METHODS:
            raise MalformedDataError(f"the block of LZ4 at byte {start} of the file has the unknown method {method}")
        is_raw = method == _LZ4_RAW
        if original > 1 << _LZ4_LEVEL_BASE + level or position > len(data) or (is_raw and stored != original):
            raise MalformedDataError(f"a block of LZ4 has {stored} bytes, and {original} when decompressed")
        if original:
            block = data[start:position]
            content = block if is_raw else codec.decompress(block, original, asbytes=True)
            checksum = xxhash.xxh32_intdigest(content, _LZ4_SEED) & _LZ4_CHECKSUM_BITS
            if checksum != int.from_bytes(header[17:21], "little"):
                raise MalformedDataError(f"the checksum of the block of LZ4 at byte {start} of the file is wrong")
            yield content


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    codec, source = pa.Codec("snappy"), DataInputView(data, len(_SNAPPY) + 8)
    while source.remaining:
        block = source.read_sized_bytes()
        size = uncompressed_size(block, source.position - len(block))
        if size > _MAX_BLOCK_BYTES:
            raise MalformedDataError(f"a block of Snappy has {size} bytes when decompressed")
        yield codec.decompress(block, size, asbytes=True)
