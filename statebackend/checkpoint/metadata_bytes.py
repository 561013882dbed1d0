"""The bytes of a `_metadata` file: the whole truth about one checkpoint or savepoint.

It is an Avro object container file with one record, so any Avro tool reads it. Its header carries two more keys:
`statebackend.format_version`, which selects the frozen schema, and `statebackend.checksum`, the checksum of the whole
file with the 32 digits of that very value replaced by zeros. Every byte is thereby covered, and any single flipped bit
is found. The meaning of the checksum is the same in all versions, so that a newer file can be told from a damaged one.

Reading trusts nothing: size, decompressed size and the number of items are bounded, the file is only decoded with the
schema this package holds for its version, and all invariants are checked. The same invariants are checked before
writing. One version is written, the newest; every one before it is read.

Records of format versions that are not written any more, as what is read of the version that is.

    versions 1, 2                                       read as
    --------------------------------------------------  -------------------------------------------------------------
    subtasks[i].handle                                  the keyed part of subtask i; what its meta held of operator
                                                        state is the operator part
    source_offsets, properties["sources"]               source_positions; its batch_id is checkpoint_id, since ids were
                                                        those of Spark's batches
    sink_committables, properties["sink"]               sink_committables, sink_identities
    properties["processing_time_ms"]                    processing_time_ms
    properties["restored_from_savepoint"]               restored_from
    source_progress (version 1)                         source_progress, which a later version has in files only
    all other properties                                properties

    version 3                                           read as
    --------------------------------------------------  -------------------------------------------------------------
    watermarks                                          the same, with no node

    version 4                                           read as
    --------------------------------------------------  -------------------------------------------------------------
    watermarks.nodes[i]                                 the same, with no watermark in the epoch

    versions 3 to 5                                     read as
    --------------------------------------------------  -------------------------------------------------------------
    source_positions.sources, names                     the same names, without uids and logs

A property that does not read as it should stays one. Until version 2 a subtask with operator state had one handle for
both: its files were those of the keyed state followed by those of the operator state, and its meta was

    meta := i32("SBO1") i32(version 1) i32(keyed files) i32(n) keyed-meta rest

The rest belongs to the operator state. It counts files from the first of the whole handle, so this number goes in front
of it: `meta := i32("SBO2") i32(version 1) i32(keyed files) rest`. What the rest says is not looked at here.

The record of a `_metadata` file in the version that is written: from the object to its Avro encoding, and back.

The encoding is put together from parts that are encoded already. The state of a subtask that arrived with an
acknowledgement has kept its bytes, and the record of a thousand subtasks is then a matter of joining them: to make a
record of each of their files and to encode it would take longer than all else in an epoch. What comes out is what the
encoder makes of the whole record.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import fastavro
import fastavro.schema
import xxhash
from attrs import asdict, evolve

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import StateFormatError, cut, shown
from statebackend.checkpoint.errors import (
    CorruptMetadataError,
    InvariantViolationError,
    UnsupportedMetadataVersionError,
)
from statebackend.checkpoint.handle_records import (
    encode_subtask_state,
    file_handle_to_record,
    keyed_state_handle_from_record,
    subtask_state_from_record,
)
from statebackend.checkpoint.invariants import MAX_ID, checksum_of_bytes, is_checksum, require
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
    METADATA_SCHEMAS,
    OPERATOR_STATE_SCHEMA,
)
from statebackend.checkpoint.record_bounds import item_count_check
from statebackend.checkpoint.state_handles import (
    FileHandle,
    KeyedStateHandle,
    OpaqueStateHandle,
    OperatorState,
    SubtaskState,
)

__all__ = [
    "MAX_METADATA_BYTES",
    "check_metadata_size",
    "decode_metadata",
    "encode_metadata",
    "encode_metadata_record",
    "metadata_of_former_record",
    "metadata_of_record",
    "record_of_version_3",
    "record_of_version_4",
    "record_of_version_5",
    "separated_handle",
]


_JOINED: Final = 0x53424F31
_JOINED_VERSION: Final = 1
_SEPARATE: Final = 0x53424F32

_NUMBER = re.compile("[0-9]{1,19}")


def metadata_of_former_record(record: Mapping[str, Any]) -> CheckpointMetadata:
    """What a record of version 1 or 2 says. Raises `InvariantViolationError` for one that breaks an invariant."""
    properties: dict[str, str] = dict(record["properties"])
    committables = record["sink_committables"]
    # Of a property without a committable it is not asked which sink it was.
    identities = {name: properties.pop(key) for name in committables if (key := _sink_property(name)) in properties}
    return CheckpointMetadata(
        checkpoint_id=record["checkpoint_id"],
        kind=CheckpointKind(record["kind"]),
        job_id=record["job_id"],
        job_name=record["job_name"],
        timestamp_ms=record["timestamp_ms"],
        max_parallelism=record["max_parallelism"],
        operators=tuple(_former_operator(one) for one in record["operators"]),
        parent_checkpoint_id=record["parent_checkpoint_id"],
        parent_digest=record["parent_digest"],
        processing_time_ms=_taken_time(properties),
        source_positions=_taken_positions(properties, record["checkpoint_id"], record["source_offsets"]),
        restored_from=_taken_origin(properties),
        sink_committables=committables,
        sink_identities=identities,
        properties=properties,
        source_progress=record["source_progress"],
        source_progress_files=tuple(FileHandle(**file) for file in record.get("source_progress_files", ())),
    )


def record_of_version_3(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a record of version 3 says, as one of version 4."""
    watermarks = record["watermarks"]
    return {**record, "watermarks": None if watermarks is None else {**watermarks, "nodes": []}}


def record_of_version_4(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a record of version 4 says, as one of version 5."""
    watermarks = record["watermarks"]
    if watermarks is None:
        return record
    nodes = [{**one, "epoch_watermark_ms": None} for one in watermarks["nodes"]]
    return {**record, "watermarks": {**watermarks, "nodes": nodes}}


def record_of_version_5(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a record of version 5 says, as one of version 6."""
    positions = record["source_positions"]
    if positions is None or positions["sources"] is None:
        return record
    sources = [{"name": name, "uid": None, "log": None} for name in positions["sources"]]
    return {**record, "source_positions": {**positions, "sources": sources}}


def separated_handle(handle: KeyedStateHandle) -> SubtaskState:
    """The parts of a subtask's state that came in one handle. Raises `InvariantViolationError`."""
    if not handle.meta.startswith(_JOINED.to_bytes(4, "big")):
        return SubtaskState(handle)
    try:
        source = DataInputView(handle.meta, 4)
        version, keyed_files, keyed_meta = source.read_int(), source.read_int(), source.read_sized_bytes()
        rest = source.read(source.remaining)
    except StateFormatError as error:
        raise InvariantViolationError(
            f"the operator state in the meta of state {handle.state_id!r} cannot be read: {error}"
        ) from error
    require(version == _JOINED_VERSION, f"state {handle.state_id!r} has operator state of version {version}")
    require(
        0 <= keyed_files <= len(handle.files),
        f"state {handle.state_id!r} has {len(handle.files)} files, and {keyed_files} of keyed state",
    )
    require(
        not keyed_meta.startswith(_JOINED.to_bytes(4, "big")),
        f"state {handle.state_id!r} has operator state within its keyed state",
    )
    out = DataOutputView()
    out.write_int(_SEPARATE)
    out.write_int(version)
    out.write_int(keyed_files)
    out.write(rest)
    return SubtaskState(
        evolve(handle, meta=keyed_meta, files=handle.files[:keyed_files]),
        OpaqueStateHandle(handle.backend, out.to_bytes(), handle.files[keyed_files:]),
    )


def _former_operator(record: Mapping[str, Any]) -> OperatorState:
    indexes = [subtask["subtask_index"] for subtask in record["subtasks"]]
    require(
        indexes == list(range(record["parallelism"])),
        f"operator {record['uid']!r} has parallelism {record['parallelism']}, so its subtasks must be "
        f"0 to {record['parallelism'] - 1} in order, not {_abbreviated(indexes)}",
    )
    return OperatorState(
        uid=record["uid"],
        name=record["name"],
        max_parallelism=record["max_parallelism"],
        subtasks=tuple(
            separated_handle(keyed_state_handle_from_record(subtask["handle"])) for subtask in record["subtasks"]
        ),
    )


def _sink_property(name: str) -> str:
    return "sink" if name == "sink" else f"sink:{name}"


def _taken_time(properties: dict[str, str]) -> int | None:
    text = properties.get("processing_time_ms", "")
    if not _NUMBER.fullmatch(text) or int(text) > MAX_ID:
        return None
    del properties["processing_time_ms"]
    return int(text)


def _taken_positions(properties: dict[str, str], checkpoint_id: int, offsets: bytes) -> SourcePositions | None:
    sources = None
    try:
        names = json.loads(properties.get("sources", "null"))
    except (ValueError, RecursionError):
        names = None
    if isinstance(names, list) and all(type(name) is str for name in names):
        sources = tuple(map(ReadSource, names))
        del properties["sources"]
    if not offsets and sources is None:
        return None
    return SourcePositions(batch_id=checkpoint_id, offsets=offsets, sources=sources)


def _taken_origin(properties: dict[str, str]) -> SavepointIdentity | None:
    fields = properties.get("restored_from_savepoint", "").rsplit("/", 2)
    if len(fields) != 3 or not all(map(_NUMBER.fullmatch, fields[1:])):
        return None
    try:
        origin = SavepointIdentity(fields[0], int(fields[1]), int(fields[2]))
    except InvariantViolationError:
        return None
    del properties["restored_from_savepoint"]
    return origin


def _abbreviated(values: list[int]) -> str:
    listed = ", ".join(str(value) for value in values[:8])
    return f"[{listed}, ...] ({len(values)} in all)" if len(values) > 8 else f"[{listed}]"


_SCHEMA: Final = METADATA_SCHEMAS[FORMAT_VERSION]
_OPERATORS: Final = "operators"
_EMPTY_ARRAY: Final = b"\0"
"""An array without items; also what ends every other."""

_AT: Final = [field["name"] for field in _SCHEMA["fields"]].index(_OPERATORS)
_BEFORE_FIELDS: Final = _SCHEMA["fields"][:_AT]

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
"""The fields whose values are those of the object."""

_RECORD: Final = fastavro.parse_schema(_SCHEMA)
_BEFORE: Final = fastavro.parse_schema({**_SCHEMA, "name": "statebackend.BeforeOperators", "fields": _BEFORE_FIELDS})
_OPERATOR: Final = fastavro.parse_schema(OPERATOR_STATE_SCHEMA)
_LONG: Final = fastavro.parse_schema({"type": "long"})


def encode_metadata_record(metadata: CheckpointMetadata) -> bytes:
    """The Avro binary encoding of the record. Raises `InvariantViolationError` for what has no place in it."""
    require(
        not metadata.source_progress,
        "source progress is written to files of a savepoint, and no longer into its metadata",
    )
    others = _other_fields(metadata)
    before = _encoded(_BEFORE, {field["name"]: others[field["name"]] for field in _BEFORE_FIELDS})
    behind = _encoded(_RECORD, {**others, _OPERATORS: []})[len(before) + len(_EMPTY_ARRAY) :]
    return b"".join((before, *_array([b"".join(_operator(one)) for one in metadata.operators]), behind))


def metadata_of_record(record: Mapping[str, Any]) -> CheckpointMetadata:
    """What a decoded record says. Raises `InvariantViolationError` for one that breaks an invariant."""
    sinks = record["sinks"]
    names = {sink["name"] for sink in sinks}
    require(len(names) == len(sinks), "two sinks have one name")
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
    # In a union the encoder takes a tuple for a type and its value.
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
    # The subtasks are the last field.
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
    """Reject any schema but ours: a foreign one could make a small file expand without bound."""
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
