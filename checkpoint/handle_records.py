"""The Avro form of a state handle, shared by acknowledgements and metadata files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import fastavro

from checkpoint.errors import InvariantViolationError
from checkpoint.handles import FileHandle, StateHandle

__all__ = [
    "STATE_HANDLE_SCHEMA",
    "decode_state_handle",
    "encode_state_handle",
    "file_handle_to_record",
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


def state_handle_to_record(handle: StateHandle) -> dict[str, Any]:
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


def state_handle_from_record(record: Mapping[str, Any]) -> StateHandle:
    """The handle in a record of `STATE_HANDLE_SCHEMA`, with all its invariants checked."""
    return StateHandle(**{**record, "files": tuple(FileHandle(**file) for file in record["files"])})


def encode_state_handle(handle: StateHandle) -> bytes:
    """The Avro binary encoding of `handle`."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED, state_handle_to_record(handle), strict=True)
    return out.getvalue()


def decode_state_handle(data: bytes) -> StateHandle:
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
