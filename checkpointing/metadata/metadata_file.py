"""The `_metadata` file: the whole truth about one checkpoint or savepoint.

It is an Avro object container file with one record, so any Avro tool reads it. Its header carries two
more keys: `statebackend.format_version`, which selects the frozen schema, and `statebackend.checksum`,
the checksum of the whole file with the 32 digits of that very value replaced by zeros. Every byte is
thereby covered, and any single flipped bit is found. The meaning of the checksum is the same in all
versions, so that a newer file can be told from a damaged one.

Reading trusts nothing: size and decompressed size are bounded, the file is only decoded with the schema
this package holds for its version, and all invariants are checked. The same invariants are checked before
writing. The checksum of a whole file, as its `FileHandle` gives it, is what a child names as its
`parent_digest`: history is a hash chain (TigerBeetle's superblock is the example).
"""

from __future__ import annotations

import enum
import io
import json
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

import fastavro
import fastavro.schema
import xxhash
from attrs import asdict, field, frozen

from checkpointing.errors import CorruptMetadataError, InvariantViolationError, UnsupportedMetadataVersionError
from checkpointing.handles.checksum import checksum_of_bytes, is_checksum
from checkpointing.handles.handle_records import file_handle_to_record, state_handle_from_record
from checkpointing.handles.relative_path import checked_relative_path
from checkpointing.handles.state_handles import (
    MAX_MAX_PARALLELISM,
    FileHandle,
    OperatorState,
    SubtaskState,
    check_encodable,
    check_identifier,
    check_integer,
    check_operator_states,
    files_of_operators,
    require,
)
from checkpointing.metadata.metadata_record import encode_metadata_record
from checkpointing.metadata.metadata_schema import BLOCK_SCHEMA, FORMAT_VERSION, HEADER_SCHEMA, METADATA_SCHEMAS
from checkpointing.storage.file_system import CheckpointFileSystem

__all__ = [
    "FORMAT_VERSION",
    "MAX_METADATA_BYTES",
    "METADATA_FILE_NAME",
    "SOURCE_PROGRESS_DIRECTORY",
    "CheckpointKind",
    "CheckpointMetadata",
    "check_metadata_size",
    "read_metadata",
    "read_metadata_with_handle",
    "write_metadata",
]

METADATA_FILE_NAME = "_metadata"

SOURCE_PROGRESS_DIRECTORY = "source-progress"
"""Where the files of a savepoint's source progress lie in it."""

MAX_METADATA_BYTES = 256 << 20
"""Largest `_metadata` file, and largest record in it after decompression."""

_LARGE_RECORD_BYTES = 1 << 20
"""From here on a record is compressed for speed: names and checksums fill it, which do not get much smaller."""

_MAX_ID = (1 << 63) - 1
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


class CheckpointKind(enum.Enum):
    """Who owns it: the job deletes checkpoints it no longer needs, savepoints belong to the user."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"


@frozen(kw_only=True)
class CheckpointMetadata:
    """Everything about one completed checkpoint or savepoint. Raises `InvariantViolationError`.

    `source_progress` maps relative file names to their content; in a savepoint it may be files instead,
    `source_progress_files`, whose paths are `source-progress/` and the name. `source_offsets` are the offsets of
    exactly this epoch, `sink_committables` maps sinks to what they still have to commit; all three are
    opaque here. File paths are relative to the job directory for a checkpoint and to the savepoint's own
    directory for a savepoint. A parent is named by id and by the digest of its `_metadata` file, or not
    at all.
    """

    checkpoint_id: int
    kind: CheckpointKind
    job_id: str
    job_name: str
    timestamp_ms: int
    max_parallelism: int
    operators: tuple[OperatorState, ...]
    parent_checkpoint_id: int | None = None
    parent_digest: str | None = None
    source_progress: Mapping[str, bytes] = field(factory=dict, repr=lambda files: repr(sorted(files)))
    source_progress_files: tuple[FileHandle, ...] = ()
    source_offsets: bytes = b""
    sink_committables: Mapping[str, bytes] = field(factory=dict, repr=lambda sinks: repr(sorted(sinks)))
    properties: Mapping[str, str] = field(factory=dict)
    format_version: int = FORMAT_VERSION

    def __attrs_post_init__(self) -> None:
        check_integer("format_version", self.format_version, 1, FORMAT_VERSION)
        check_integer("checkpoint_id", self.checkpoint_id, 0, _MAX_ID)
        require(type(self.kind) is CheckpointKind, "kind must be a CheckpointKind")
        check_identifier("job_id", self.job_id)
        check_identifier("job_name", self.job_name)
        check_integer("timestamp_ms", self.timestamp_ms, 0, _MAX_ID)
        check_integer("max_parallelism", self.max_parallelism, 1, MAX_MAX_PARALLELISM)
        self._check_parent()
        require(
            type(self.operators) is tuple and all(type(one) is OperatorState for one in self.operators),
            "operators must be a tuple of OperatorState objects",
        )
        check_operator_states(self.operators)
        for path in self.source_progress:
            checked_relative_path(path)
        self._check_source_progress_files()
        require(type(self.source_offsets) is bytes, "source_offsets must be bytes")
        for what, mapping in (
            ("source_progress", self.source_progress),
            ("sink_committables", self.sink_committables),
        ):
            for name, content in mapping.items():
                check_identifier(f"a name in {what}", name)
                require(type(content) is bytes, f"{what}[{name!r}] must be bytes")
        for name, text in self.properties.items():
            check_identifier("a name in properties", name)
            require(type(text) is str, f"properties[{name!r}] must be a str")
            check_encodable(f"properties[{name!r}]", text)

    def _check_source_progress_files(self) -> None:
        files = self.source_progress_files
        require(
            type(files) is tuple and all(type(file) is FileHandle for file in files),
            "source_progress_files must be a tuple of FileHandle objects",
        )
        if not files:
            return
        require(self.kind is CheckpointKind.SAVEPOINT, "only a savepoint has source_progress_files")
        require(not self.source_progress, "source progress is either in the metadata or in files")
        require(len({file.path for file in files}) == len(files), "source_progress_files must be distinct")
        for file in files:
            prefix, _, name = file.path.partition("/")
            require(
                prefix == SOURCE_PROGRESS_DIRECTORY and name != "",
                f"{file.path!r} is not a file of source progress: it must lie below {SOURCE_PROGRESS_DIRECTORY}/",
            )

    def _check_parent(self) -> None:
        if self.parent_checkpoint_id is None and self.parent_digest is None:
            return
        check_integer("parent_checkpoint_id", self.parent_checkpoint_id, 0, self.checkpoint_id)
        require(
            self.kind is CheckpointKind.SAVEPOINT or self.parent_checkpoint_id != self.checkpoint_id,
            f"checkpoint {self.checkpoint_id} cannot be its own parent",
        )
        require(
            is_checksum(self.parent_digest),
            f"parent_digest must be the checksum of the parent's metadata file, not {self.parent_digest!r}",
        )

    @property
    def files(self) -> tuple[FileHandle, ...]:
        """Every distinct file the checkpoint needs."""
        return (*files_of_operators(self.operators), *self.source_progress_files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all state: files and opaque metas."""
        metas = sum(len(subtask.handle.meta) for one in self.operators for subtask in one.subtasks)
        return metas + sum(file.size_bytes for file in self.files)


def write_metadata(fs: CheckpointFileSystem, directory: str, metadata: CheckpointMetadata) -> FileHandle:
    """Write `directory/_metadata`, durably; `directory` may be "" for the root.

    The checksum of the returned handle is the digest that children name as `parent_digest`. Raises
    `InvariantViolationError` when the metadata is too large, `StorageError` when the store fails.
    """
    return fs.write_file(_path_in(directory), _encode(metadata))


def check_metadata_size(metadata: CheckpointMetadata) -> None:
    """Raise `InvariantViolationError` if the metadata is too large to be written."""
    _encode(metadata)


def read_metadata(fs: CheckpointFileSystem, directory: str) -> CheckpointMetadata:
    """Read `directory/_metadata`. Raises `MissingFileError`, `CorruptMetadataError` or its subclass
    `UnsupportedMetadataVersionError`, each naming the file and what to do.
    """
    return read_metadata_with_handle(fs, directory)[0]


def read_metadata_with_handle(fs: CheckpointFileSystem, directory: str) -> tuple[CheckpointMetadata, FileHandle]:
    """Like `read_metadata`, also giving the handle of the file, whose checksum children refer to."""
    path = _path_in(directory)
    size_bytes = fs.size(path)
    location = fs.location(path)
    if size_bytes > MAX_METADATA_BYTES:
        _corrupt(location, f"{size_bytes} bytes is more than the limit of {MAX_METADATA_BYTES}")
    data = fs.read_file(path)
    return _decode(data, location), FileHandle(path, len(data), checksum_of_bytes(data))


def _path_in(directory: str) -> str:
    return f"{directory}/{METADATA_FILE_NAME}" if directory else METADATA_FILE_NAME


def _encode(metadata: CheckpointMetadata) -> bytes:
    require(
        metadata.format_version == FORMAT_VERSION,
        f"metadata is always written for format version {FORMAT_VERSION}, not {metadata.format_version}",
    )
    # The oldest version that can tell it all, so that older releases read what they could read before.
    version = 2 if metadata.source_progress_files else 1
    content = _encode_record(metadata, version)
    require(
        len(content) <= MAX_METADATA_BYTES,
        f"the metadata of checkpoint {metadata.checkpoint_id} takes {len(content)} bytes, the limit is "
        f"{MAX_METADATA_BYTES}; state belongs in files, not in meta",
    )
    sync_marker = xxhash.xxh3_128_digest(content)
    output = io.BytesIO()
    # The header alone: the record is encoded already, and to encode it takes longer than all else.
    fastavro.writer(
        output,
        METADATA_SCHEMAS[version],
        [],
        codec="deflate",
        sync_marker=sync_marker,
        metadata={_VERSION_KEY: str(version), _CHECKSUM_KEY: _NO_CHECKSUM},
    )
    level = zlib.Z_DEFAULT_COMPRESSION if len(content) < _LARGE_RECORD_BYTES else zlib.Z_BEST_SPEED
    # As fastavro does it: without the header of zlib, and with all but the last byte of its trailer.
    block = {"count": 1, "data": zlib.compress(content, level)[2:-1], "sync": sync_marker}
    fastavro.schemaless_writer(output, _BLOCK, block)
    data = output.getvalue()
    # The first occurrence is the one in the header: only the version comes before it.
    return data.replace(_NO_CHECKSUM.encode(), checksum_of_bytes(data).encode(), 1)


def _decode(data: bytes, location: str) -> CheckpointMetadata:
    source = io.BytesIO(data)
    try:
        header: Any = fastavro.schemaless_reader(source, _HEADER, None)
    except Exception as error:
        _corrupt(location, f"it has no Avro file header ({error!r})", error)
    keys: dict[str, bytes] = header["meta"]
    if header["magic"] != _MAGIC or not {_VERSION_KEY, _CHECKSUM_KEY} <= keys.keys():
        _corrupt(location, "it is not a metadata file of this package")
    _check_checksum(data, keys[_CHECKSUM_KEY], source.tell(), location)
    version = _check_version(keys[_VERSION_KEY], location)
    _check_schema(keys.get("avro.schema", b""), version, location)
    body = _read_block(source, header, location)
    try:
        record: Any = fastavro.schemaless_reader(body, _RECORDS[version], None)
        metadata = _from_record(record)
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
        _corrupt(location, f"its checksum reads {text!r:.60}")
    computed = checksum_of_bytes(data[:start] + _NO_CHECKSUM.encode() + data[start + len(found) :])
    if computed != text:
        _corrupt(location, f"it is truncated or altered: its checksum is {computed}, it says {text}")


def _check_version(text: bytes, location: str) -> int:
    try:
        version = int(text.decode("ascii"))
    except ValueError as error:
        _corrupt(location, f"its format version reads {text!r:.40}", error)
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
        _corrupt(location, f"its schema cannot be read ({error!r:.200})", error)
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
    try:
        body = inflater.decompress(block["data"], MAX_METADATA_BYTES + 1)
    except zlib.error as error:
        _corrupt(location, f"its data block cannot be decompressed ({error})", error)
    if len(body) > MAX_METADATA_BYTES:
        _corrupt(location, f"its record takes more than the limit of {MAX_METADATA_BYTES} bytes")
    # fastavro leaves a part of zlib's trailer after the deflate stream, so what follows it is not judged.
    if not inflater.eof:
        _corrupt(location, "its data block is not one whole deflate stream")
    return io.BytesIO(body)


def _encode_record(metadata: CheckpointMetadata, version: int) -> bytes:
    others = asdict(metadata, recurse=False)
    del others["format_version"], others["operators"]
    if version == 1:
        del others["source_progress_files"]
    else:
        others["source_progress_files"] = [file_handle_to_record(file) for file in metadata.source_progress_files]
    others["kind"] = metadata.kind.value
    return encode_metadata_record(version, others, metadata.operators)


def _from_record(record: dict[str, Any]) -> CheckpointMetadata:
    operators = tuple(
        OperatorState(
            **{
                **one,
                "subtasks": tuple(
                    SubtaskState(subtask["subtask_index"], state_handle_from_record(subtask["handle"]))
                    for subtask in one["subtasks"]
                ),
            }
        )
        for one in record["operators"]
    )
    return CheckpointMetadata(
        **{
            **record,
            "kind": CheckpointKind(record["kind"]),
            "operators": operators,
            "source_progress_files": tuple(FileHandle(**file) for file in record.get("source_progress_files", ())),
        }
    )


def _corrupt(location: str, what: str, cause: BaseException | None = None) -> NoReturn:
    raise CorruptMetadataError(
        f"{location} is not usable: {what}. Restore from another checkpoint or savepoint, or bring back "
        "the original file from a backup."
    ) from cause
