"""The frozen Avro schemas of `_metadata` files, one for each format version.

A schema that was ever released is never edited, except for the text of its `doc` attributes. A change of
the format is a new schema under the next version, and a function that turns the old record into the new.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from checkpointing.handles.handle_records import STATE_HANDLE_SCHEMA

__all__ = ["BLOCK_SCHEMA", "FORMAT_VERSION", "HEADER_SCHEMA", "METADATA_SCHEMAS", "OPERATOR_STATE_SCHEMA"]

FORMAT_VERSION = 2

_SUBTASK_STATE = {
    "type": "record",
    "name": "statebackend.SubtaskState",
    "doc": "The state that one subtask acknowledged with.",
    "fields": [
        {"name": "subtask_index", "type": "int", "doc": "0 to parallelism - 1."},
        {"name": "handle", "type": STATE_HANDLE_SCHEMA, "doc": "Where the state is."},
    ],
}

OPERATOR_STATE_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.OperatorState",
    "doc": "All state of one operator.",
    "fields": [
        {"name": "uid", "type": "string", "doc": "The operator's identity across versions of the job."},
        {"name": "name", "type": "string", "doc": "For people."},
        {"name": "parallelism", "type": "int", "doc": "Number of subtasks."},
        {"name": "max_parallelism", "type": "int", "doc": "Number of key groups."},
        {
            "name": "subtasks",
            "type": {"type": "array", "items": _SUBTASK_STATE},
            "doc": "By subtask index; their key groups cover 0 to max_parallelism - 1 once.",
        },
    ],
}

_METADATA_1: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.CheckpointMetadata",
    "doc": "One completed checkpoint or savepoint. A file holds exactly one.",
    "fields": [
        {"name": "checkpoint_id", "type": "long", "doc": "Strictly increasing within a job directory."},
        {
            "name": "kind",
            "type": {
                "type": "enum",
                "name": "statebackend.CheckpointKind",
                "symbols": ["CHECKPOINT", "SAVEPOINT"],
            },
            "doc": "CHECKPOINT: paths are relative to the job directory. SAVEPOINT: to this directory.",
        },
        {"name": "job_id", "type": "string", "doc": "Identity of the job directory it was taken in."},
        {"name": "job_name", "type": "string", "doc": "Name of the job."},
        {"name": "timestamp_ms", "type": "long", "doc": "When it completed, in ms since the Unix epoch."},
        {
            "name": "parent_checkpoint_id",
            "type": ["null", "long"],
            "doc": "The checkpoint it continues from, null for a first one.",
        },
        {
            "name": "parent_digest",
            "type": ["null", "string"],
            "doc": "Checksum of the parent's whole _metadata file: the links of a hash chain.",
        },
        {"name": "max_parallelism", "type": "int", "doc": "Number of key groups of the job."},
        {
            "name": "operators",
            "type": {"type": "array", "items": OPERATOR_STATE_SCHEMA},
            "doc": "State of every operator.",
        },
        {
            "name": "source_progress",
            "type": {"type": "map", "values": "bytes"},
            "doc": "Spark's source log at this epoch: relative file name to content.",
        },
        {"name": "source_offsets", "type": "bytes", "doc": "The source offsets of exactly this epoch."},
        {
            "name": "sink_committables",
            "type": {"type": "map", "values": "bytes"},
            "doc": "What sinks still have to commit, by sink.",
        },
        {
            "name": "properties",
            "type": {"type": "map", "values": "string"},
            "doc": "Anything else the runtime wants to keep, such as watermarks.",
        },
    ],
}

_METADATA_2 = {
    **_METADATA_1,
    "fields": [
        *_METADATA_1["fields"],
        {
            "name": "source_progress_files",
            "type": {"type": "array", "items": "statebackend.FileHandle"},
            "doc": "The same as source_progress, as files of the savepoint below source-progress/.",
        },
    ],
}

METADATA_SCHEMAS: Mapping[int, dict[str, Any]] = MappingProxyType({1: _METADATA_1, 2: _METADATA_2})

HEADER_SCHEMA = {
    "type": "record",
    "name": "org.apache.avro.file.Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}
"""Header of an Avro object container file, as its specification gives it."""

BLOCK_SCHEMA = {
    "type": "record",
    "name": "statebackend.Block",
    "fields": [
        {"name": "count", "type": "long"},
        {"name": "data", "type": "bytes"},
        {"name": "sync", "type": {"type": "fixed", "name": "BlockSync", "size": 16}},
    ],
}
"""One block of an Avro object container file: its layout is that of this record."""
