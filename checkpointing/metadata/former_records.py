"""Records of format versions that are not written any more, as what is read of the version that is.

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
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from checkpointing.errors import InvariantViolationError
from checkpointing.handles.handle_records import keyed_state_handle_from_record
from checkpointing.handles.invariants import MAX_ID, require
from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle, OpaqueStateHandle, SubtaskState
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.metadata.checkpoint_sections import ReadSource, SavepointIdentity, SourcePositions
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import StateFormatError

__all__ = [
    "metadata_of_former_record",
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
        operators=tuple(_operator(one) for one in record["operators"]),
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


def _operator(record: Mapping[str, Any]) -> OperatorState:
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
