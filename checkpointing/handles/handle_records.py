"""The Avro form of a state handle, shared by acknowledgements and metadata files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import fastavro

from checkpointing.errors import InvariantViolationError
from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle

__all__ = [
    "STATE_HANDLE_SCHEMA",
    "KnownFiles",
    "decode_state_handle",
    "encode_state_handle",
    "file_handle_to_record",
    "read_state_handle",
    "state_handle_from_record",
    "state_handle_to_record",
]

STATE_HANDLE_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.StateHandle",
    "doc": "The state of one subtask at one barrier.",
    "fields": [
        {"name": "state_id", "type": "string", "doc": "Unique for each snapshot ever taken."},
        {"name": "backend", "type": "string", "doc": "Format of meta and files."},
        {"name": "key_group_start", "type": "int", "doc": "First key group."},
        {"name": "key_group_end", "type": "int", "doc": "Last key group, inclusive."},
        {"name": "meta", "type": "bytes", "doc": "Opaque to all but the backend."},
        {
            "name": "files",
            "doc": "Files that hold the state.",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "statebackend.FileHandle",
                    "doc": "One file and the proof of its bytes.",
                    "fields": [
                        {"name": "path", "type": "string", "doc": "Relative to the root directory."},
                        {"name": "size_bytes", "type": "long", "doc": "Exact size."},
                        {"name": "checksum", "type": "string", "doc": "'xxh3:' and 32 hex digits."},
                    ],
                },
            },
        },
    ],
}

_PARSED = fastavro.parse_schema(STATE_HANDLE_SCHEMA)

KnownFiles = Mapping[str, FileHandle]
"""Files by path that were checked before; those that are described alike again are taken from here.

Most files of an increment are those of the one before. A file costs a look-up then, and no memory.
"""

_NO_FILES: Final[KnownFiles] = MappingProxyType({})


def state_handle_to_record(handle: KeyedStateHandle) -> dict[str, Any]:
    """`handle` as a record of `STATE_HANDLE_SCHEMA`."""
    return {
        "state_id": handle.state_id,
        "backend": handle.backend,
        "key_group_start": handle.key_group_start,
        "key_group_end": handle.key_group_end,
        "meta": handle.meta,
        "files": [file_handle_to_record(file) for file in handle.files],
    }


def file_handle_to_record(file: FileHandle) -> dict[str, Any]:
    """`file` as a record of the schema `statebackend.FileHandle`."""
    return {"path": file.path, "size_bytes": file.size_bytes, "checksum": file.checksum}


def state_handle_from_record(record: Mapping[str, Any], known_files: KnownFiles = _NO_FILES) -> KeyedStateHandle:
    """The handle in a record of `STATE_HANDLE_SCHEMA`, with all its invariants checked."""
    find = known_files.get
    files = []
    for file in record["files"]:
        known = find(file["path"])
        if known is None or known.checksum != file["checksum"] or known.size_bytes != file["size_bytes"]:
            known = FileHandle(**file)
        files.append(known)
    return KeyedStateHandle(**{**record, "files": tuple(files)})


def encode_state_handle(handle: KeyedStateHandle) -> bytes:
    """The Avro binary encoding of `handle`: the one that it was decoded from, if it has kept it."""
    if handle.encoding is not None:
        return handle.encoding
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED, state_handle_to_record(handle), strict=True)
    return out.getvalue()


def read_state_handle(source: io.BytesIO, known_files: KnownFiles = _NO_FILES) -> KeyedStateHandle:
    """The handle at the position of `source`, which keeps its encoding; leaves the position behind it.

    Raises what the decoder does for bytes that are not one, and `InvariantViolationError`, `UnsafePathError` or
    `TypeError` for one that breaks an invariant.
    """
    start = source.tell()
    record: Any = fastavro.schemaless_reader(source, _PARSED, None)
    handle = state_handle_from_record(record, known_files)
    handle.keep_encoding(bytes(source.getbuffer()[start : source.tell()]))
    return handle


def decode_state_handle(data: bytes) -> KeyedStateHandle:
    """The handle of `encode_state_handle`, with all its invariants checked.

    Raises `InvariantViolationError` for bytes that are not one.
    """
    source = io.BytesIO(data)
    try:
        record: Any = fastavro.schemaless_reader(source, _PARSED, None)
        handle = state_handle_from_record(record)
    except InvariantViolationError:
        raise
    except Exception as error:
        raise InvariantViolationError(f"these {len(data)} bytes are not a state handle: {error!r:.300}") from error
    if source.tell() != len(data):
        raise InvariantViolationError(f"{len(data) - source.tell()} bytes follow a state handle")
    return handle
