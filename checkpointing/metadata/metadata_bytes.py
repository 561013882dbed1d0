"""The bytes of a `_metadata` file: the whole truth about one checkpoint or savepoint.

It is an Avro object container file with one record, so any Avro tool reads it. Its header carries two more keys:
`statebackend.format_version`, which selects the frozen schema, and `statebackend.checksum`, the checksum of the whole
file with the 32 digits of that very value replaced by zeros. Every byte is thereby covered, and any single flipped bit
is found. The meaning of the checksum is the same in all versions, so that a newer file can be told from a damaged one.

Reading trusts nothing: size, decompressed size and the number of items are bounded, the file is only decoded with the
schema this package holds for its version, and all invariants are checked. The same invariants are checked before
writing. One version is written, the newest; every one before it is read.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import fastavro
import fastavro.schema
import xxhash

from checkpointing.errors import CorruptMetadataError, InvariantViolationError, UnsupportedMetadataVersionError
from checkpointing.handles.checksum import checksum_of_bytes, is_checksum
from checkpointing.handles.invariants import require
from checkpointing.handles.record_bounds import item_count_check
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.metadata.former_records import (
    metadata_of_former_record,
    record_of_version_3,
    record_of_version_4,
    record_of_version_5,
)
from checkpointing.metadata.metadata_record import encode_metadata_record, metadata_of_record
from checkpointing.metadata.metadata_schema import BLOCK_SCHEMA, FORMAT_VERSION, HEADER_SCHEMA, METADATA_SCHEMAS
from snapshots.value_text import cut, shown

__all__ = ["MAX_METADATA_BYTES", "check_metadata_size", "decode_metadata", "encode_metadata"]

MAX_METADATA_BYTES = 256 << 20
"""Largest `_metadata` file, and largest record in it after decompression."""

_LARGE_RECORD_BYTES = 1 << 20
"""From here on a record is compressed for speed: names and checksums fill it, which do not get much smaller."""

_MAX_HEADER_BYTES = 1 << 20

_SMALL_RECORD_BYTES = 1 << 20
_MAX_COMPRESSION_RATIO = 256
"""A record that is not small takes at most so many times the bytes of its compressed block."""

_MANY_SMALL_ITEMS = 1 << 16

_MAGIC = b"Obj\x01"
_VERSION_KEY = "statebackend.format_version"
_CHECKSUM_KEY = "statebackend.checksum"
_NO_CHECKSUM = "xxh3:" + "0" * 32

_HEADER = fastavro.parse_schema(HEADER_SCHEMA)
_BLOCK = fastavro.parse_schema(BLOCK_SCHEMA)
_RECORDS = {version: fastavro.parse_schema(schema) for version, schema in METADATA_SCHEMAS.items()}
_CANONICAL_FORMS = {
    version: fastavro.schema.to_parsing_canonical_form(schema) for version, schema in METADATA_SCHEMAS.items()
}
_ITEM_COUNT_CHECKS = {version: item_count_check(schema) for version, schema in METADATA_SCHEMAS.items()}
_READERS: Mapping[int, Callable[[Mapping[str, Any]], CheckpointMetadata]] = {
    1: metadata_of_former_record,
    2: metadata_of_former_record,
    3: lambda record: metadata_of_record(record_of_version_5(record_of_version_4(record_of_version_3(record)))),
    4: lambda record: metadata_of_record(record_of_version_5(record_of_version_4(record))),
    5: lambda record: metadata_of_record(record_of_version_5(record)),
    6: metadata_of_record,
}


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The bytes of the file.

    Raises `InvariantViolationError` for a part without a place, and for more bytes or items than can be read.
    """
    content = encode_metadata_record(metadata)
    require(
        len(content) <= MAX_METADATA_BYTES,
        f"the metadata of checkpoint {metadata.checkpoint_id} takes {len(content)} bytes, the limit is "
        f"{MAX_METADATA_BYTES}; state belongs in files, not in meta",
    )
    if _small_items(metadata) > _MANY_SMALL_ITEMS:
        _ITEM_COUNT_CHECKS[FORMAT_VERSION](content)
    sync_marker = xxhash.xxh3_128_digest(content)
    output = io.BytesIO()
    # The header alone: the record is encoded already, and to encode it takes longer than all else.
    fastavro.writer(
        output,
        METADATA_SCHEMAS[FORMAT_VERSION],
        [],
        codec="deflate",
        sync_marker=sync_marker,
        metadata={_VERSION_KEY: str(FORMAT_VERSION), _CHECKSUM_KEY: _NO_CHECKSUM},
    )
    level = zlib.Z_DEFAULT_COMPRESSION if len(content) < _LARGE_RECORD_BYTES else zlib.Z_BEST_SPEED
    # As fastavro does it: without the header of zlib, and with all but the last byte of its trailer.
    compressed = zlib.compress(content, level)[2:-1]
    if len(content) > _max_record_bytes(compressed):
        compressed = zlib.compress(content, zlib.Z_NO_COMPRESSION)[2:-1]
    block = {"count": 1, "data": compressed, "sync": sync_marker}
    fastavro.schemaless_writer(output, _BLOCK, block)
    data = output.getvalue()
    # The first occurrence is the one in the header: only the version comes before it.
    return data.replace(_NO_CHECKSUM.encode(), checksum_of_bytes(data).encode(), 1)


def _small_items(metadata: CheckpointMetadata) -> int:
    """How many parts may be small: the walk over a record with files alone would find nothing."""
    watermarks = metadata.watermarks
    return (
        sum(operator.parallelism for operator in metadata.operators)
        + (len(watermarks.channels) + len(watermarks.nodes) if watermarks is not None else 0)
        + len(metadata.timers_due)
        + len(metadata.sink_committables)
        + len(metadata.properties)
    )


def _max_record_bytes(compressed: bytes) -> int:
    return min(MAX_METADATA_BYTES, max(_SMALL_RECORD_BYTES, _MAX_COMPRESSION_RATIO * len(compressed)))


def check_metadata_size(metadata: CheckpointMetadata) -> None:
    """Raise `InvariantViolationError` if the metadata is too large to be written."""
    encode_metadata(metadata)


def decode_metadata(data: bytes, location: str) -> CheckpointMetadata:
    """What the bytes of a file say; `location` is the file, for messages.

    Raises `CorruptMetadataError` or its subclass `UnsupportedMetadataVersionError`, each saying what to do.
    """
    if len(data) > MAX_METADATA_BYTES:
        _corrupt(location, f"{len(data)} bytes is more than the limit of {MAX_METADATA_BYTES}")
    source = io.BytesIO(data[:_MAX_HEADER_BYTES])
    try:
        header: Any = fastavro.schemaless_reader(source, _HEADER, None)
    except Exception as error:
        _corrupt(location, f"it has no Avro file header ({error!r})", error)
    keys: dict[str, bytes] = header["meta"]
    if header["magic"] != _MAGIC or not {_VERSION_KEY, _CHECKSUM_KEY} <= keys.keys():
        _corrupt(location, "it is not a metadata file of this package")
    header_bytes = source.tell()
    _check_checksum(data, keys[_CHECKSUM_KEY], header_bytes, location)
    version = _check_version(keys[_VERSION_KEY], location)
    _check_schema(keys.get("avro.schema", b""), version, location)
    body = _read_block(io.BytesIO(data[header_bytes:]), header, location)
    try:
        _ITEM_COUNT_CHECKS[version](body.getvalue())
        record: Any = fastavro.schemaless_reader(body, _RECORDS[version], None)
        metadata = _READERS[version](record)
    except InvariantViolationError as error:
        _corrupt(location, f"it breaks an invariant: {error}", error)
    except Exception as error:
        _corrupt(location, f"its record cannot be decoded ({error!r})", error)
    if body.read(1):
        _corrupt(location, "there are bytes after its record")
    return metadata


def _check_checksum(data: bytes, found: bytes, header_bytes: int, location: str) -> None:
    start = data.find(found, 0, header_bytes)
    text = found.decode("ascii", errors="replace")
    if not is_checksum(text) or start < 0:
        _corrupt(location, f"its checksum reads {shown(text)}")
    computed = checksum_of_bytes(data[:start] + _NO_CHECKSUM.encode() + data[start + len(found) :])
    if computed != text:
        _corrupt(location, f"it is truncated or altered: its checksum is {computed}, it says {text}")


def _check_version(text: bytes, location: str) -> int:
    try:
        version = int(text.decode("ascii"))
    except ValueError as error:
        _corrupt(location, f"its format version reads {shown(text)}", error)
    if version > FORMAT_VERSION:
        raise UnsupportedMetadataVersionError(
            f"{location} has format version {version}; this release reads versions up to {FORMAT_VERSION}. "
            "Open it with the release that wrote it, or a newer one."
        )
    if version not in _RECORDS:
        _corrupt(location, f"there never was a format version {version}")
    return version


def _check_schema(text: bytes, version: int, location: str) -> None:
    """Refuse any schema but ours: a foreign one could make a small file expand without bound."""
    try:
        canonical = fastavro.schema.to_parsing_canonical_form(json.loads(text))
    except Exception as error:
        _corrupt(location, f"its schema cannot be read ({cut(repr(error), 200)})", error)
    if canonical != _CANONICAL_FORMS[version]:
        _corrupt(location, f"its schema is not that of format version {version}")


def _read_block(source: io.BytesIO, header: Mapping[str, Any], location: str) -> io.BytesIO:
    try:
        block: Any = fastavro.schemaless_reader(source, _BLOCK, None)
    except Exception as error:
        _corrupt(location, f"its data block cannot be read ({error!r})", error)
    if block["count"] != 1 or block["sync"] != header["sync"] or source.read(1):
        _corrupt(location, "it must hold exactly one record in one block")
    if header["meta"].get("avro.codec") != b"deflate":
        _corrupt(location, "it is not compressed with deflate")
    inflater = zlib.decompressobj(-15)
    limit = _max_record_bytes(block["data"])
    try:
        body = inflater.decompress(block["data"], limit + 1)
    except zlib.error as error:
        _corrupt(location, f"its data block cannot be decompressed ({error})", error)
    if len(body) > limit:
        _corrupt(
            location,
            f"its record takes more than the limit of {limit} bytes for {len(block['data'])} compressed bytes",
        )
    # fastavro leaves a part of zlib's trailer after the deflate stream, so what follows it is not judged.
    if not inflater.eof:
        _corrupt(location, "its data block is not one whole deflate stream")
    return io.BytesIO(body)


def _corrupt(location: str, what: str, cause: BaseException | None = None) -> NoReturn:
    raise CorruptMetadataError(
        f"{location} is not usable: {what}. Restore from another checkpoint or savepoint, or bring back "
        "the original file from a backup."
    ) from cause
