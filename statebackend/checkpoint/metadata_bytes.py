"""Encodes and decodes `_metadata` files: the complete record of one checkpoint or savepoint.

A file is an Avro object container file with one record, so any Avro tool reads it. Its header has two more keys:
`statebackend.metadata_version` and `statebackend.checksum`. The checksum covers the whole file, with its own 32 digits
replaced by zeros, so any flipped bit is detected. It is checked before the version: a file of another version is not
mistaken for a damaged one.

A reader trusts nothing. It bounds the size, the decompressed size and the number of items, decodes with the schema of
this package only, and checks all invariants. A writer checks the same invariants. One format version is read and
written; `docs/formats-checkpoint.md` describes it byte by byte.

The encoder joins parts that are encoded already. The state of a subtask keeps the bytes of its acknowledgement, so a
checkpoint of a thousand subtasks is a matter of joining them. The result equals the encoding of the whole record.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import fastavro
import fastavro.schema
import xxhash
from attrs import asdict

from snapshots.errors import cut, format_value
from snapshots.format_versions import newer_version, pre_release
from statebackend.checkpoint.errors import (
    CorruptMetadataError,
    InvariantViolationError,
    UnsupportedMetadataVersionError,
)
from statebackend.checkpoint.handle_records import (
    encode_subtask_state,
    file_handle_to_record,
    subtask_state_from_record,
)
from statebackend.checkpoint.invariants import checksum_of_bytes, is_checksum, require
from statebackend.checkpoint.metadata import (
    ChannelWatermark,
    CheckpointKind,
    CheckpointMetadata,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    TimersDue,
    WatermarkState,
)
from statebackend.checkpoint.metadata_schema import (
    BLOCK_SCHEMA,
    FORMAT_VERSION,
    HEADER_SCHEMA,
    METADATA_SCHEMA,
    OPERATOR_STATE_SCHEMA,
)
from statebackend.checkpoint.record_bounds import item_count_check
from statebackend.checkpoint.state_handles import FileHandle, OperatorState

__all__ = [
    "MAX_METADATA_BYTES",
    "check_metadata_size",
    "decode_metadata",
    "encode_metadata",
    "encode_metadata_record",
    "metadata_of_record",
]


_OPERATORS: Final = "operators"
_EMPTY_ARRAY: Final = b"\0"
"""An array without items, and the end of any other array."""

_AT: Final = [field["name"] for field in METADATA_SCHEMA["fields"]].index(_OPERATORS)
_BEFORE_FIELDS: Final = METADATA_SCHEMA["fields"][:_AT]

_PLAIN: Final = (
    "checkpoint_id",
    "job_id",
    "job_name",
    "timestamp_ms",
    "parent_checkpoint_id",
    "parent_digest",
    "max_parallelism",
    "processing_time_ms",
    "properties",
)
"""Fields of the record that equal the attribute of the object."""

_RECORD: Final = fastavro.parse_schema(METADATA_SCHEMA)
_BEFORE: Final = fastavro.parse_schema(
    {**METADATA_SCHEMA, "name": "statebackend.BeforeOperators", "fields": _BEFORE_FIELDS}
)
_OPERATOR: Final = fastavro.parse_schema(OPERATOR_STATE_SCHEMA)
_LONG: Final = fastavro.parse_schema({"type": "long"})


def encode_metadata_record(metadata: CheckpointMetadata) -> bytes:
    """The Avro binary encoding of the record."""
    others = _other_fields(metadata)
    before = _encoded(_BEFORE, {field["name"]: others[field["name"]] for field in _BEFORE_FIELDS})
    after = _encoded(_RECORD, {**others, _OPERATORS: []})[len(before) + len(_EMPTY_ARRAY) :]
    return b"".join((before, *_array([b"".join(_operator(one)) for one in metadata.operators]), after))


def metadata_of_record(record: Mapping[str, Any]) -> CheckpointMetadata:
    """The metadata of a decoded record. Raises `InvariantViolationError`."""
    sinks = record["sinks"]
    names = {sink["name"] for sink in sinks}
    require(len(names) == len(sinks), "two sinks have the same name")
    positions, watermarks, origin = record["source_positions"], record["watermarks"], record["restored_from"]
    return CheckpointMetadata(
        **{
            **{field["name"]: record[field["name"]] for field in _BEFORE_FIELDS if field["name"] != "sinks"},
            "kind": CheckpointKind(record["kind"]),
            "operators": tuple(_operator_state(one) for one in record[_OPERATORS]),
            "source_positions": None if positions is None else _source_positions(positions),
            "watermarks": None if watermarks is None else _watermark_state(watermarks),
            "timers_due": tuple(TimersDue(**one) for one in record["timers_due"]),
            "restored_from": None if origin is None else SavepointIdentity(**origin),
            "sink_committables": {sink["name"]: sink["committable"] for sink in sinks},
            "sink_identities": {sink["name"]: sink["identity"] for sink in sinks if sink["identity"] is not None},
            "source_progress_files": tuple(FileHandle(**file) for file in record["source_progress_files"]),
        }
    )


def _other_fields(metadata: CheckpointMetadata) -> dict[str, Any]:
    positions, watermarks, origin = metadata.source_positions, metadata.watermarks, metadata.restored_from
    return {
        **{name: getattr(metadata, name) for name in _PLAIN},
        "kind": metadata.kind.value,
        "source_positions": None if positions is None else _positions_record(positions),
        "watermarks": None if watermarks is None else asdict(watermarks),
        "timers_due": [asdict(one) for one in metadata.timers_due],
        "restored_from": None if origin is None else asdict(origin),
        "sinks": [
            {"name": name, "identity": metadata.sink_identities.get(name), "committable": committable}
            for name, committable in metadata.sink_committables.items()
        ],
        "source_progress_files": [file_handle_to_record(file) for file in metadata.source_progress_files],
    }


def _positions_record(positions: SourcePositions) -> dict[str, Any]:
    # A list: the encoder reads a tuple in a union as (type, value).
    sources = None if positions.sources is None else [asdict(one) for one in positions.sources]
    return {**asdict(positions), "sources": sources}


def _source_positions(record: Mapping[str, Any]) -> SourcePositions:
    sources = record["sources"]
    known = None if sources is None else tuple(ReadSource(**one) for one in sources)
    return SourcePositions(**{**record, "sources": known})


def _watermark_state(record: Mapping[str, Any]) -> WatermarkState:
    return WatermarkState(
        record["watermark_ms"],
        tuple(ChannelWatermark(**one) for one in record["channels"]),
        tuple(_node_watermark(one) for one in record["nodes"]),
    )


def _node_watermark(record: Mapping[str, Any]) -> NodeWatermark:
    inputs = (
        InputWatermark(one["watermark_ms"], tuple(InputChannel(**channel) for channel in one["channels"]))
        for one in record["inputs"]
    )
    return NodeWatermark(**{**record, "inputs": tuple(inputs)})


def _operator_state(record: Mapping[str, Any]) -> OperatorState:
    return OperatorState(**{**record, "subtasks": tuple(map(subtask_state_from_record, record["subtasks"]))})


def _operator(operator: OperatorState) -> Iterator[bytes]:
    plain = {
        "uid": operator.uid,
        "name": operator.name,
        "max_parallelism": operator.max_parallelism,
        "subtasks": [],
    }
    # `subtasks` is the last field, so its empty array is the last byte.
    yield _encoded(_OPERATOR, plain)[: -len(_EMPTY_ARRAY)]
    yield from _array([encode_subtask_state(one) for one in operator.subtasks])


def _array(items: Sequence[bytes]) -> Iterator[bytes]:
    if items:
        yield _encoded(_LONG, len(items))
        yield from items
    yield _EMPTY_ARRAY


def _encoded(schema: Any, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value, strict=True)
    return out.getvalue()


MAX_METADATA_BYTES = 256 << 20
"""Maximum size of a `_metadata` file, and of its record after decompression."""

_LARGE_RECORD_BYTES = 1 << 20
"""Larger records are compressed for speed: they consist of names and checksums, which do not compress well."""

_MAX_HEADER_BYTES = 1 << 20

_SMALL_RECORD_BYTES = 1 << 20
_MAX_COMPRESSION_RATIO = 256
"""Maximum ratio of the size of a record that is not small to the size of its compressed block."""

_MANY_SMALL_ITEMS = 1 << 16

_MAGIC = b"Obj\x01"
_VERSION_KEY = "statebackend.metadata_version"
_PRE_RELEASE_KEY = "statebackend.format_version"
_CHECKSUM_KEY = "statebackend.checksum"
_NO_CHECKSUM = "xxh3:" + "0" * 32

_HEADER = fastavro.parse_schema(HEADER_SCHEMA)
_BLOCK = fastavro.parse_schema(BLOCK_SCHEMA)
_CANONICAL_FORM = fastavro.schema.to_parsing_canonical_form(METADATA_SCHEMA)
_check_item_count = item_count_check(METADATA_SCHEMA)


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The bytes of the file. Raises `InvariantViolationError` for more bytes or items than a reader accepts."""
    content = encode_metadata_record(metadata)
    require(
        len(content) <= MAX_METADATA_BYTES,
        f"the metadata of checkpoint {metadata.checkpoint_id} takes {len(content)} bytes, the limit is "
        f"{MAX_METADATA_BYTES}; state belongs in files, not in meta",
    )
    if _small_items(metadata) > _MANY_SMALL_ITEMS:
        _check_item_count(content)
    sync_marker = xxhash.xxh3_128_digest(content)
    output = io.BytesIO()
    # Only the header: the record is encoded already, and encoding it again would take longer than everything else.
    fastavro.writer(
        output,
        METADATA_SCHEMA,
        [],
        codec="deflate",
        sync_marker=sync_marker,
        metadata={_VERSION_KEY: str(FORMAT_VERSION), _CHECKSUM_KEY: _NO_CHECKSUM},
    )
    level = zlib.Z_DEFAULT_COMPRESSION if len(content) < _LARGE_RECORD_BYTES else zlib.Z_BEST_SPEED
    # As fastavro does: without the header of zlib, and with its trailer except for the last byte.
    compressed = zlib.compress(content, level)[2:-1]
    if len(content) > _max_record_bytes(compressed):
        compressed = zlib.compress(content, zlib.Z_NO_COMPRESSION)[2:-1]
    block = {"count": 1, "data": compressed, "sync": sync_marker}
    fastavro.schemaless_writer(output, _BLOCK, block)
    data = output.getvalue()
    # The first occurrence is in the header: only the version comes before it.
    return data.replace(_NO_CHECKSUM.encode(), checksum_of_bytes(data).encode(), 1)


def _small_items(metadata: CheckpointMetadata) -> int:
    """Number of items that may be small. Files are large, so a record of files passes the check anyway."""
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
    """Decode the bytes of a file; `location` names the file in messages.

    Raises:
        UnsupportedMetadataVersionError: The file has another format version.
        CorruptMetadataError: The file is damaged or not a metadata file.
    """
    if len(data) > MAX_METADATA_BYTES:
        _corrupt(location, f"{len(data)} bytes are more than the limit of {MAX_METADATA_BYTES}")
    source = io.BytesIO(data[:_MAX_HEADER_BYTES])
    try:
        header: Any = fastavro.schemaless_reader(source, _HEADER, None)
    except Exception as error:
        _corrupt(location, f"it has no Avro file header ({error!r})", error)
    keys: dict[str, bytes] = header["meta"]
    is_versioned = _VERSION_KEY in keys or _PRE_RELEASE_KEY in keys
    if header["magic"] != _MAGIC or not is_versioned or _CHECKSUM_KEY not in keys:
        _corrupt(location, "it is not a metadata file of this package")
    header_bytes = source.tell()
    _check_checksum(data, keys[_CHECKSUM_KEY], header_bytes, location)
    if _VERSION_KEY not in keys:
        advice = "Use a checkpoint or savepoint of a released version, or start the job without state."
        raise UnsupportedMetadataVersionError(pre_release(location, advice))
    _check_version(keys[_VERSION_KEY], location)
    _check_schema(keys.get("avro.schema", b""), location)
    body = _read_block(io.BytesIO(data[header_bytes:]), header, location)
    try:
        _check_item_count(body.getvalue())
        record: Any = fastavro.schemaless_reader(body, _RECORD, None)
        metadata = metadata_of_record(record)
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
        _corrupt(location, f"{format_value(text)} is not a checksum")
    computed = checksum_of_bytes(data[:start] + _NO_CHECKSUM.encode() + data[start + len(found) :])
    if computed != text:
        _corrupt(location, f"it is truncated or altered: its checksum is {computed}, the header has {text}")


def _check_version(text: bytes, location: str) -> None:
    try:
        version = int(text.decode("ascii"))
    except ValueError as error:
        _corrupt(location, f"its format version {format_value(text)} is not a number", error)
    if version > FORMAT_VERSION:
        raise UnsupportedMetadataVersionError(newer_version(location, version, FORMAT_VERSION))
    if version < 1:
        _corrupt(location, f"there is no format version {version}")


def _check_schema(text: bytes, location: str) -> None:
    """Reject any other schema: it could make a small file expand without bound."""
    try:
        canonical = fastavro.schema.to_parsing_canonical_form(json.loads(text))
    except Exception as error:
        _corrupt(location, f"its schema cannot be read ({cut(repr(error), 200)})", error)
    if canonical != _CANONICAL_FORM:
        _corrupt(location, f"its schema is not that of format version {FORMAT_VERSION}")


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
    # fastavro leaves a part of zlib's trailer after the deflate stream, so bytes after it are not checked.
    if not inflater.eof:
        _corrupt(location, "its data block is not one complete deflate stream")
    return io.BytesIO(body)


def _corrupt(location: str, what: str, cause: BaseException | None = None) -> NoReturn:
    raise CorruptMetadataError(
        f"{location} is not usable: {what}. Restore from another checkpoint or savepoint, or bring back "
        "the original file from a backup."
    ) from cause
