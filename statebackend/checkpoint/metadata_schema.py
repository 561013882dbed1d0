"""The frozen Avro schemas of `_metadata` files, one for each format version.

A schema that was ever released is never edited, except for the text of its `doc` attributes. A change of the format is
a new schema under the next version, and a function in `former_records` that makes of the old record what is read of the
new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from statebackend.checkpoint.handle_records import FILE_HANDLE_SCHEMA, SUBTASK_STATE_SCHEMA

__all__ = ["BLOCK_SCHEMA", "FORMAT_VERSION", "HEADER_SCHEMA", "METADATA_SCHEMAS", "OPERATOR_STATE_SCHEMA"]

FORMAT_VERSION = 6
"""The version that is written; all before it are read."""

_STATE_HANDLE_1: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.StateHandle",
    "doc": "The state of one subtask at one barrier.",
    "fields": [
        {"name": "state_id", "type": "string", "doc": "Unique for each snapshot ever taken."},
        {"name": "backend", "type": "string", "doc": "Format of meta and files."},
        {"name": "key_group_start", "type": "int", "doc": "First key group."},
        {"name": "key_group_end", "type": "int", "doc": "Last key group, inclusive."},
        {"name": "meta", "type": "bytes", "doc": "Opaque to all but the backend."},
        {"name": "files", "type": {"type": "array", "items": FILE_HANDLE_SCHEMA}, "doc": "Files that hold the state."},
    ],
}

_SUBTASK_STATE_1 = {
    "type": "record",
    "name": "statebackend.SubtaskState",
    "doc": "The state that one subtask acknowledged with.",
    "fields": [
        {"name": "subtask_index", "type": "int", "doc": "0 to parallelism - 1."},
        {"name": "handle", "type": _STATE_HANDLE_1, "doc": "Where the state is."},
    ],
}

_OPERATOR_STATE_1: dict[str, Any] = {
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
            "type": {"type": "array", "items": _SUBTASK_STATE_1},
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
            "type": {"type": "array", "items": _OPERATOR_STATE_1},
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

_NULLABLE_LONG = ["null", "long"]

OPERATOR_STATE_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.OperatorState",
    "doc": "All state of one operator.",
    "fields": [
        {"name": "uid", "type": "string", "doc": "The operator's identity across versions of the job."},
        {"name": "name", "type": "string", "doc": "For people."},
        {"name": "max_parallelism", "type": "int", "doc": "Number of key groups."},
        {
            "name": "subtasks",
            "type": {"type": "array", "items": SUBTASK_STATE_SCHEMA},
            "doc": "In order; where there is keyed state, its key groups cover 0 to max_parallelism - 1 once.",
        },
    ],
}
"""The state of an operator since version 3."""

_SOURCE_POSITIONS: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.SourcePositions",
    "doc": "How far the sources are read.",
    "fields": [
        {"name": "batch_id", "type": "long", "doc": "The engine's number of the last batch that is in the state."},
        {"name": "sources", "type": ["null", {"type": "array", "items": "string"}], "doc": "What is read, in order."},
        {"name": "offsets", "type": "bytes", "doc": "The engine's own record of the positions."},
    ],
}

_WATERMARK_STATE: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.WatermarkState",
    "doc": "The watermark valve of the job.",
    "fields": [
        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "What it let through last."},
        {
            "name": "channels",
            "doc": "What has a watermark of its own.",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "statebackend.ChannelWatermark",
                    "doc": "A source, or one value of its channel column.",
                    "fields": [
                        {"name": "source", "type": "string", "doc": "The source."},
                        {"name": "channel", "type": "string", "doc": "Empty for a source that has one channel."},
                        {"name": "largest_timestamp_ms", "type": _NULLABLE_LONG, "doc": "Largest event time seen."},
                        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "Its own watermark."},
                        {
                            "name": "last_active_ms",
                            "type": _NULLABLE_LONG,
                            "doc": "Processing time of the last epoch that had records of it.",
                        },
                        {"name": "is_idle", "type": "boolean", "doc": "Whether nobody waits for it."},
                    ],
                },
            },
        },
    ],
}

_TIMERS_DUE = {
    "type": "record",
    "name": "statebackend.TimersDue",
    "doc": "The earliest pending timers of an operator.",
    "fields": [
        {"name": "operator_uid", "type": "string", "doc": "The operator."},
        {"name": "event_time_ms", "type": _NULLABLE_LONG, "doc": "Null if there is none."},
        {"name": "processing_time_ms", "type": _NULLABLE_LONG, "doc": "Null if there is none."},
    ],
}

_SAVEPOINT_IDENTITY = {
    "type": "record",
    "name": "statebackend.SavepointIdentity",
    "doc": "What tells a savepoint from all others: fields of its own metadata.",
    "fields": [
        {"name": "job_id", "type": "string", "doc": "Its job directory."},
        {"name": "checkpoint_id", "type": "long", "doc": "Its id."},
        {"name": "timestamp_ms", "type": "long", "doc": "When it completed."},
    ],
}

_SINK_COMMITTABLE = {
    "type": "record",
    "name": "statebackend.SinkCommittable",
    "doc": "What a sink still has to commit.",
    "fields": [
        {"name": "name", "type": "string", "doc": "Of the sink in the job."},
        {"name": "identity", "type": ["null", "string"], "doc": "The sink that staged it."},
        {"name": "committable", "type": "bytes", "doc": "Opaque to all but the sink."},
    ],
}

_UNCHANGED = {"checkpoint_id", "kind", "job_id", "job_name", "timestamp_ms", "parent_checkpoint_id", "parent_digest"}

_METADATA_3: dict[str, Any] = {
    **_METADATA_1,
    "fields": [
        *[one for one in _METADATA_1["fields"] if one["name"] in _UNCHANGED],
        {"name": "max_parallelism", "type": "int", "doc": "Number of key groups of the job."},
        {"name": "processing_time_ms", "type": _NULLABLE_LONG, "doc": "Of the epoch, in ms since the Unix epoch."},
        {"name": "source_positions", "type": ["null", _SOURCE_POSITIONS], "doc": "Null without such sources."},
        {"name": "watermarks", "type": ["null", _WATERMARK_STATE], "doc": "Null without event time."},
        {"name": "timers_due", "type": {"type": "array", "items": _TIMERS_DUE}, "doc": "By operator, if it has any."},
        {"name": "restored_from", "type": ["null", _SAVEPOINT_IDENTITY], "doc": "The savepoint the job began from."},
        {"name": "sinks", "type": {"type": "array", "items": _SINK_COMMITTABLE}, "doc": "What sinks have to commit."},
        {"name": "properties", "type": {"type": "map", "values": "string"}, "doc": "The caller's own."},
        {
            "name": "operators",
            "type": {"type": "array", "items": OPERATOR_STATE_SCHEMA},
            "doc": "State of every operator.",
        },
        {
            "name": "source_progress_files",
            "type": {"type": "array", "items": "statebackend.FileHandle"},
            "doc": "The engine's source log at this epoch, as files of the savepoint below source-progress/.",
        },
    ],
}

_NODE_WATERMARK = {
    "type": "record",
    "name": "statebackend.NodeWatermark",
    "doc": "What a source or an operator knows of event time.",
    "fields": [
        {"name": "node", "type": "string", "doc": "Its uid or name."},
        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "What it is at."},
        {"name": "sent_watermark_ms", "type": _NULLABLE_LONG, "doc": "What it has sent last."},
        {"name": "is_idle", "type": "boolean", "doc": "The status it has sent last."},
        {
            "name": "inputs",
            "doc": "The watermark valves of its inputs, in order.",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "statebackend.InputWatermark",
                    "doc": "The watermark valve of one input.",
                    "fields": [
                        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "What it let through last."},
                        {
                            "name": "channels",
                            "doc": "Who sends to it.",
                            "type": {
                                "type": "array",
                                "items": {
                                    "type": "record",
                                    "name": "statebackend.InputChannel",
                                    "doc": "A node that sends to the input.",
                                    "fields": [
                                        {"name": "channel", "type": "string", "doc": "The node."},
                                        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "Its own watermark."},
                                        {"name": "is_idle", "type": "boolean", "doc": "Whether nobody waits for it."},
                                    ],
                                },
                            },
                        },
                    ],
                },
            },
        },
    ],
}

_WATERMARK_STATE_4 = {
    **_WATERMARK_STATE,
    "doc": "The watermarks of the job.",
    "fields": [
        *_WATERMARK_STATE["fields"],
        {"name": "nodes", "type": {"type": "array", "items": _NODE_WATERMARK}, "doc": "Of sources and operators."},
    ],
}

_NODE_WATERMARK_5 = {
    **_NODE_WATERMARK,
    "fields": [
        *_NODE_WATERMARK["fields"],
        {"name": "epoch_watermark_ms", "type": _NULLABLE_LONG, "doc": "What it was at in the epoch."},
    ],
}

_WATERMARK_STATE_5 = {
    **_WATERMARK_STATE_4,
    "fields": [
        *_WATERMARK_STATE["fields"],
        {"name": "nodes", "type": {"type": "array", "items": _NODE_WATERMARK_5}, "doc": "Of sources and operators."},
    ],
}


def _with_watermarks(schema: dict[str, Any], watermarks: dict[str, Any]) -> dict[str, Any]:
    fields = [{**one, "type": ["null", watermarks]} if one["name"] == "watermarks" else one for one in schema["fields"]]
    return {**schema, "fields": fields}


_METADATA_4 = _with_watermarks(_METADATA_3, _WATERMARK_STATE_4)
_METADATA_5 = _with_watermarks(_METADATA_3, _WATERMARK_STATE_5)

_READ_SOURCE = {
    "type": "record",
    "name": "statebackend.ReadSource",
    "doc": "What one of the positions is of.",
    "fields": [
        {"name": "name", "type": "string", "doc": "The engine's own, for what is read."},
        {"name": "uid", "type": ["null", "string"], "doc": "Of the source of the program, which may read several."},
        {"name": "log", "type": ["null", "string"], "doc": "Under which the engine keeps what else it needs of it."},
    ],
}

_SOURCE_POSITIONS_6: dict[str, Any] = {
    **_SOURCE_POSITIONS,
    "fields": [
        {**one, "type": ["null", {"type": "array", "items": _READ_SOURCE}]} if one["name"] == "sources" else one
        for one in _SOURCE_POSITIONS["fields"]
    ],
}

_METADATA_6: dict[str, Any] = {
    **_METADATA_5,
    "fields": [
        {**one, "type": ["null", _SOURCE_POSITIONS_6]} if one["name"] == "source_positions" else one
        for one in _METADATA_5["fields"]
    ],
}

METADATA_SCHEMAS: Mapping[int, dict[str, Any]] = MappingProxyType(
    {1: _METADATA_1, 2: _METADATA_2, 3: _METADATA_3, 4: _METADATA_4, 5: _METADATA_5, 6: _METADATA_6}
)

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
