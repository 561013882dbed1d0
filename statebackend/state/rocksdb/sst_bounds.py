"""Checks a downloaded SST file before RocksDB reads it: no block may decompress to far more than its size.

RocksDB trusts a file. A block of 30 KB that is compressed with zstd can hold a value of 1 GB. So a file must be as this
backend writes it: LZ4 blocks or uncompressed ones, a partitioned index, and data blocks that do not overlap. The check
follows the index as RocksDB does. It decompresses the index, and reads only the headers of data blocks.

    file      := data and filter blocks, index partitions, filter index, index, properties, metaindex, footer
    block     := content  u8 compression  u32 checksum       an LZ4 block begins with its decompressed size
    entry     := varint shared  varint own  varint value length?  key bytes  value      no value length in the index
    footer    := u8  "3e007a00"  u32  u32  u32 size of the metaindex  24 bytes  u32 version  u64 magic number
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from statebackend.state.errors import StateRestoreError

__all__ = ["TABLE_FORMAT_VERSION", "check_sst_file"]

TABLE_FORMAT_VERSION: Final = 6
"""The version of RocksDB's table format that this backend writes. It does not depend on RocksDB's default."""

_MAGIC: Final = bytes.fromhex("f7cff485b741e288")
_FOOTER_BYTES: Final = 53
_TRAILER_BYTES: Final = 5
_UNCOMPRESSED, _LZ4 = 0, 4
_MAX_RATIO: Final = 256
"""The limit of decompressed bytes per byte of an LZ4 block; LZ4 itself has a smaller limit."""

_FILTER: Final = b"partitionedfilter.rocksdb.BuiltinBloomFilter"
_INDEX, _PROPERTIES = b"rocksdb.index", b"rocksdb.properties"
_FORM: Final = {
    b"rocksdb.block.based.table.index.type": struct.pack("<I", 2),
    b"rocksdb.index.value.is.delta.encoded": b"\x01",
}
"""The properties that decide how RocksDB reads the index."""

Handle = tuple[int, int]
"""The offset and the size of a block."""


def check_sst_file(path: str) -> None:
    """Check a downloaded file.

    Raises:
        StateRestoreError: A block claims more bytes than LZ4 can store in it, or the file has another form.
    """
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _check(data)
        except (_FormError, ValueError, IndexError, OSError, struct.error, pa.ArrowException) as error:
            raise StateRestoreError(
                f"the SST file {path} is not one that this backend writes: {error}. It is damaged or forged: restore "
                f"another checkpoint"
            ) from error


class _FormError(Exception):
    """The file does not have the form that this backend writes. The caller adds the path."""


def _check(data: Any) -> None:
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or footer[-8:] != _MAGIC:
        raise _FormError("its last bytes are not a footer")
    version, size = struct.unpack_from("<I", footer, _FOOTER_BYTES - 12)[0], struct.unpack_from("<I", footer, 13)[0]
    if version != TABLE_FORMAT_VERSION:
        raise _FormError(f"its table format is {version}, not {TABLE_FORMAT_VERSION}")
    blocks = dict(_entries(_content(data, (len(data) - _FOOTER_BYTES - _TRAILER_BYTES - size, size))))
    if not {_INDEX, _PROPERTIES} <= blocks.keys() <= {_FILTER, _INDEX, _PROPERTIES}:
        raise _FormError(f"it has the blocks {sorted(blocks)}")
    handles = {name: _handle(value, 0) for name, value in blocks.items()}
    properties = dict(_entries(_content(data, handles[_PROPERTIES])))
    for name, value in _FORM.items():
        if properties.get(name) != value:
            raise _FormError(f"its property {name.decode()} is {properties.get(name)!r}, not {value!r}")
    if _FILTER in handles:
        for part in _index_entries(_content(data, handles[_FILTER])):
            _check_block(data, part)
    end = 0
    for part in _index_entries(_content(data, handles[_INDEX])):
        for offset, size in _index_entries(_content(data, part)):
            if offset < end:
                raise _FormError(f"the block at {offset} overlaps the one before it")
            _check_block(data, (offset, size))
            end = offset + size


def _check_block(data: Any, handle: Handle) -> tuple[int, int]:
    """Return the position of the content of a block, and its decompressed size; 0 if it is not compressed."""
    offset, size = handle
    if not 0 <= offset <= offset + size <= len(data) - _TRAILER_BYTES:
        raise _FormError(f"it has no block of {size} bytes at {offset}")
    kind = data[offset + size]
    if kind == _UNCOMPRESSED:
        return offset, 0
    if kind != _LZ4:
        raise _FormError(f"the block at {offset} has the compression {kind}")
    claimed, place = _varint(data, offset)
    if not 0 < claimed <= _MAX_RATIO * size:
        raise _FormError(f"the block of {size} bytes at {offset} claims to hold {claimed} bytes")
    return place, claimed


def _content(data: Any, handle: Handle) -> bytes:
    place, claimed = _check_block(data, handle)
    stored: bytes = data[place : sum(handle)]
    if not claimed:
        return stored
    content: bytes = pa.Codec("lz4_raw").decompress(stored, decompressed_size=claimed, asbytes=True)
    return content


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block of names. Raises `_FormError` if the names do not ascend."""
    key, place, end = b"", 0, _end_of_entries(block)
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        size, place = _varint(block, place)
        following = key[:shared] + block[place : place + own]
        if following <= key:
            raise _FormError(f"its name {following!r} follows {key!r}")
        key, place = following, place + own + size
        yield key, block[place - size : place]


def _index_entries(block: bytes) -> Iterator[Handle]:
    """Yield the blocks that a block of the index names. Raises `_FormError` if RocksDB could find other ones."""
    end = _end_of_entries(block)
    place = 0
    for (restart,) in struct.iter_unpack("<I", block[end:-4]):
        if restart != place:
            break
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        offset, place = _varint(block, place + own)
        size, place = _varint(block, place)
        if shared:
            break
        yield offset, size
    else:
        if place == end:
            return
    raise _FormError("entries of its index depend on others")


def _end_of_entries(block: bytes) -> int:
    end = len(block) - 4 - 4 * int(struct.unpack_from("<I", block, len(block) - 4)[0])
    if end < 0:
        raise _FormError("a block has fewer bytes than it claims")
    return end


def _handle(value: bytes, place: int) -> Handle:
    offset, place = _varint(value, place)
    return offset, _varint(value, place)[0]


def _varint(data: Any, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise _FormError("a number has too many bytes")
