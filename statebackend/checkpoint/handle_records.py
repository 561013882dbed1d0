"""The Avro form of the state of a subtask, shared by acknowledgements and metadata files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import fastavro

from snapshots.errors import format_value
from statebackend.checkpoint.errors import InvariantViolationError
from statebackend.checkpoint.record_bounds import item_count_check
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle, OpaqueStateHandle, SubtaskState


def record_schema(name: str, doc: str, *fields: tuple[str, Any, str] | dict[str, Any]) -> dict[str, Any]:
    """An Avro record. A field is its name, its type and its description, or all its attributes.

    The order of attributes is part of the bytes of metadata files.
    """
    return {
        "type": "record",
        "name": f"statebackend.{name}",
        "doc": doc,
        "fields": [
            one if isinstance(one, dict) else dict(zip(("name", "type", "doc"), one, strict=True)) for one in fields
        ],
    }


def array_of(items: Any) -> dict[str, Any]:
    """An Avro array."""
    return {"type": "array", "items": items}


FILE_HANDLE_SCHEMA: Final[dict[str, Any]] = record_schema(
    "FileHandle",
    "One file and the proof of its bytes.",
    ("path", "string", "Relative to the root directory."),
    ("size_bytes", "long", "Exact size."),
    ("checksum", "string", "'xxh3:' and 32 hex digits."),
)

_KEYED_STATE_HANDLE_SCHEMA: Final[dict[str, Any]] = record_schema(
    "KeyedStateHandle",
    "State by key, of a range of key groups.",
    ("state_id", "string", "Unique for each snapshot ever taken."),
    ("backend", "string", "Format of meta and files."),
    ("key_group_start", "int", "First key group."),
    ("key_group_end", "int", "Last key group, inclusive."),
    ("meta", "bytes", "Opaque to all but the backend."),
    ("files", array_of(FILE_HANDLE_SCHEMA), "Files that hold the state."),
)

_OPAQUE_STATE_HANDLE_SCHEMA: Final[dict[str, Any]] = record_schema(
    "OpaqueStateHandle",
    "State without key groups.",
    ("format", "string", "Who can read meta and files."),
    ("meta", "bytes", "Opaque to all others."),
    ("files", array_of("statebackend.FileHandle"), "Files that hold the state."),
)

SUBTASK_STATE_SCHEMA: Final[dict[str, Any]] = record_schema(
    "SubtaskState",
    "All state of one subtask at one barrier, in parts. A part that is null is not there.",
    ("keyed", ["null", _KEYED_STATE_HANDLE_SCHEMA], "State by key."),
    ("operator", ["null", _OPAQUE_STATE_HANDLE_SCHEMA], "State of the subtask itself."),
    ("input_channels", ["null", "statebackend.OpaqueStateHandle"], "Records on their way into the subtask."),
    ("output_channels", ["null", "statebackend.OpaqueStateHandle"], "Records on their way out of the subtask."),
)

_KEYED_NAME: Final = "statebackend.KeyedStateHandle"
_OPAQUE_NAME: Final = "statebackend.OpaqueStateHandle"

_SUBTASK_STATE = fastavro.parse_schema(SUBTASK_STATE_SCHEMA)
_KEYED_STATE_HANDLE = fastavro.parse_schema(_KEYED_STATE_HANDLE_SCHEMA)
_check_subtask_state = item_count_check(SUBTASK_STATE_SCHEMA)
_check_keyed_state_handle = item_count_check(_KEYED_STATE_HANDLE_SCHEMA)

KnownFiles = Mapping[str, FileHandle]
"""Checked files by path. Equal descriptions are replaced by these objects.

Most files of an increment are those of the previous one. Each then costs one look-up, and no memory.
"""

NO_FILES: Final[KnownFiles] = MappingProxyType({})


def file_handle_to_record(file: FileHandle) -> dict[str, Any]:
    """`file` as a record of `FILE_HANDLE_SCHEMA`."""
    return {"path": file.path, "size_bytes": file.size_bytes, "checksum": file.checksum}


def keyed_state_handle_to_record(handle: KeyedStateHandle) -> dict[str, Any]:
    """`handle` as an Avro record."""
    return {
        "state_id": handle.state_id,
        "backend": handle.backend,
        "key_group_start": handle.key_group_start,
        "key_group_end": handle.key_group_end,
        "meta": handle.meta,
        "files": [file_handle_to_record(file) for file in handle.files],
    }


def subtask_state_to_record(state: SubtaskState) -> dict[str, Any]:
    """`state` as a record of `SUBTASK_STATE_SCHEMA`."""
    return {
        # With the name of its type, the encoder need not search the branch of the union.
        "keyed": None if state.keyed is None else (_KEYED_NAME, keyed_state_handle_to_record(state.keyed)),
        "operator": _opaque_to_record(state.operator),
        "input_channels": _opaque_to_record(state.input_channels),
        "output_channels": _opaque_to_record(state.output_channels),
    }


def keyed_state_handle_from_record(record: Mapping[str, Any], known_files: KnownFiles = NO_FILES) -> KeyedStateHandle:
    """Read a handle from a record, and check all its invariants."""
    return KeyedStateHandle(**{**record, "files": _files(record["files"], known_files)})


def subtask_state_from_record(record: Mapping[str, Any], known_files: KnownFiles = NO_FILES) -> SubtaskState:
    """Read a state from a record of `SUBTASK_STATE_SCHEMA`, and check all its invariants."""
    keyed = record["keyed"]
    return SubtaskState(
        keyed=None if keyed is None else keyed_state_handle_from_record(keyed, known_files),
        operator=_opaque_from_record(record["operator"], known_files),
        input_channels=_opaque_from_record(record["input_channels"], known_files),
        output_channels=_opaque_from_record(record["output_channels"], known_files),
    )


def encode_subtask_state(state: SubtaskState) -> bytes:
    """Encode `state` in Avro binary, or return the encoding from which it was decoded, if it was kept."""
    if state.encoding is not None:
        return state.encoding
    return _encoded(_SUBTASK_STATE, subtask_state_to_record(state))


def read_subtask_state(source: io.BytesIO, known_files: KnownFiles = NO_FILES) -> SubtaskState:
    """Read a state at the position of `source`, which then is after the state. The state keeps its encoding.

    Raises the decoder's errors for invalid bytes, and `InvariantViolationError`, `UnsafePathError` or `TypeError` for a
    state that breaks an invariant.
    """
    start = source.tell()
    record: Any = fastavro.schemaless_reader(source, _SUBTASK_STATE, None)
    state = subtask_state_from_record(record, known_files)
    state.keep_encoding(bytes(source.getbuffer()[start : source.tell()]))
    return state


def decode_subtask_state(data: bytes) -> SubtaskState:
    """Decode `encode_subtask_state`, and check all invariants.

    Raises `InvariantViolationError` for invalid bytes.
    """
    _check_subtask_state(data)
    return subtask_state_from_record(_decoded(_SUBTASK_STATE, data, "the state of a subtask"))


def encode_keyed_state_handle(handle: KeyedStateHandle) -> bytes:
    """The Avro binary encoding of `handle`."""
    return _encoded(_KEYED_STATE_HANDLE, keyed_state_handle_to_record(handle))


def decode_keyed_state_handle(data: bytes) -> KeyedStateHandle:
    """Decode `encode_keyed_state_handle`, and check all invariants.

    Raises `InvariantViolationError` for invalid bytes.
    """
    _check_keyed_state_handle(data)
    return keyed_state_handle_from_record(_decoded(_KEYED_STATE_HANDLE, data, "a state handle"))


def _files(records: list[dict[str, Any]], known_files: KnownFiles) -> tuple[FileHandle, ...]:
    find = known_files.get
    files = []
    for file in records:
        known = find(file["path"])
        if known is None or known.checksum != file["checksum"] or known.size_bytes != file["size_bytes"]:
            known = FileHandle(**file)
        files.append(known)
    return tuple(files)


def _opaque_to_record(handle: OpaqueStateHandle | None) -> tuple[str, dict[str, Any]] | None:
    if handle is None:
        return None
    record = {
        "format": handle.format,
        "meta": handle.meta,
        "files": [file_handle_to_record(file) for file in handle.files],
    }
    return _OPAQUE_NAME, record


def _opaque_from_record(record: Mapping[str, Any] | None, known_files: KnownFiles) -> OpaqueStateHandle | None:
    if record is None:
        return None
    return OpaqueStateHandle(record["format"], record["meta"], _files(record["files"], known_files))


def _encoded(schema: Any, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record, strict=True)
    return out.getvalue()


def _decoded(schema: Any, data: bytes, what: str) -> Any:
    source = io.BytesIO(data)
    try:
        record = fastavro.schemaless_reader(source, schema, None)
    except Exception as error:
        raise InvariantViolationError(f"these {len(data)} bytes are not {what}: {format_value(error)}") from error
    if source.tell() != len(data):
        raise InvariantViolationError(f"{len(data) - source.tell()} bytes follow {what}")
    return record
