"""The Avro schema of `_metadata` files.

A reader accepts only this schema: `metadata_bytes` compares its Parsing Canonical Form with that in the file. The texts
of `doc` attributes are not part of that form and may change. Any other change of the schema needs a new
`FORMAT_VERSION`.
"""

from __future__ import annotations

from typing import Any

from statebackend.checkpoint.handle_records import SUBTASK_STATE_SCHEMA

FORMAT_VERSION = 1
"""The only version that is written and read."""

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
            "doc": "In order. Key groups of keyed state cover 0 to max_parallelism - 1 without overlap.",
        },
    ],
}

_READ_SOURCE = {
    "type": "record",
    "name": "statebackend.ReadSource",
    "doc": "The source of one of the positions.",
    "fields": [
        {"name": "name", "type": "string", "doc": "Name of the source in the engine."},
        {"name": "uid", "type": ["null", "string"], "doc": "Uid of the source in the program."},
        {"name": "log", "type": ["null", "string"], "doc": "Name of the engine's log of this source."},
    ],
}

_SOURCE_POSITIONS: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.SourcePositions",
    "doc": "Positions of the sources.",
    "fields": [
        {"name": "batch_id", "type": "long", "doc": "The engine's number of the last batch that is in the state."},
        {
            "name": "sources",
            "type": ["null", {"type": "array", "items": _READ_SOURCE}],
            "doc": "The sources, in the order of their positions.",
        },
        {"name": "offsets", "type": "bytes", "doc": "The engine's own record of the positions."},
    ],
}

_NODE_WATERMARK = {
    "type": "record",
    "name": "statebackend.NodeWatermark",
    "doc": "Event time of a source or an operator.",
    "fields": [
        {"name": "node", "type": "string", "doc": "Its uid or name."},
        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "Current watermark."},
        {"name": "sent_watermark_ms", "type": _NULLABLE_LONG, "doc": "Last watermark sent."},
        {"name": "is_idle", "type": "boolean", "doc": "Last status sent."},
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
                        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "Last watermark emitted."},
                        {
                            "name": "channels",
                            "doc": "The nodes that send to it.",
                            "type": {
                                "type": "array",
                                "items": {
                                    "type": "record",
                                    "name": "statebackend.InputChannel",
                                    "doc": "A node that sends to the input.",
                                    "fields": [
                                        {"name": "channel", "type": "string", "doc": "The node."},
                                        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "Its own watermark."},
                                        {"name": "is_idle", "type": "boolean", "doc": "Whether it is idle."},
                                    ],
                                },
                            },
                        },
                    ],
                },
            },
        },
        {"name": "epoch_watermark_ms", "type": _NULLABLE_LONG, "doc": "Its watermark during the epoch."},
    ],
}

_WATERMARK_STATE: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.WatermarkState",
    "doc": "The watermarks of the job.",
    "fields": [
        {"name": "watermark_ms", "type": _NULLABLE_LONG, "doc": "Last watermark emitted."},
        {
            "name": "channels",
            "doc": "Channels with their own watermarks.",
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
                            "doc": "Processing time of the last epoch with its records.",
                        },
                        {"name": "is_idle", "type": "boolean", "doc": "Whether it is idle."},
                    ],
                },
            },
        },
        {"name": "nodes", "type": {"type": "array", "items": _NODE_WATERMARK}, "doc": "Sources and operators."},
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
    "doc": "Identity of a savepoint: fields of its metadata.",
    "fields": [
        {"name": "job_id", "type": "string", "doc": "Its job directory."},
        {"name": "checkpoint_id", "type": "long", "doc": "Its id."},
        {"name": "timestamp_ms", "type": "long", "doc": "When it completed."},
    ],
}

_SINK_COMMITTABLE = {
    "type": "record",
    "name": "statebackend.SinkCommittable",
    "doc": "Output that a sink has not committed.",
    "fields": [
        {"name": "name", "type": "string", "doc": "Name of the sink in the job."},
        {"name": "identity", "type": ["null", "string"], "doc": "The sink that staged it."},
        {"name": "committable", "type": "bytes", "doc": "Opaque to all but the sink."},
    ],
}

METADATA_SCHEMA: dict[str, Any] = {
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

HEADER_SCHEMA = {
    "type": "record",
    "name": "org.apache.avro.file.Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}
"""Header of an Avro object container file, from its specification."""

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
