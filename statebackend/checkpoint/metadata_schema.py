"""The Avro schema of `_metadata` files.

A reader accepts only this schema: `metadata_bytes` compares its Parsing Canonical Form with that in the file. The texts
of `doc` attributes are not part of that form and may change. Any other change of the schema needs a new
`FORMAT_VERSION`.
"""

from __future__ import annotations

from statebackend.checkpoint.handle_records import SUBTASK_STATE_SCHEMA, array_of, record_schema

FORMAT_VERSION = 1
"""The only version that is written and read."""

_NULLABLE_LONG = ["null", "long"]

OPERATOR_STATE_SCHEMA = record_schema(
    "OperatorState",
    "All state of one operator.",
    ("uid", "string", "The operator's identity across versions of the job."),
    ("name", "string", "For people."),
    ("max_parallelism", "int", "Number of key groups."),
    (
        "subtasks",
        array_of(SUBTASK_STATE_SCHEMA),
        "In order. Key groups of keyed state cover 0 to max_parallelism - 1 without overlap.",
    ),
)

_READ_SOURCE = record_schema(
    "ReadSource",
    "The source of one of the positions.",
    ("name", "string", "Name of the source in the engine."),
    ("uid", ["null", "string"], "Uid of the source in the program."),
    ("log", ["null", "string"], "Name of the engine's log of this source."),
)

_SOURCE_POSITIONS = record_schema(
    "SourcePositions",
    "Positions of the sources.",
    ("batch_id", "long", "The engine's number of the last batch that is in the state."),
    ("sources", ["null", array_of(_READ_SOURCE)], "The sources, in the order of their positions."),
    ("offsets", "bytes", "The engine's own record of the positions."),
)

_INPUT_CHANNEL = record_schema(
    "InputChannel",
    "A node that sends to the input.",
    ("channel", "string", "The node."),
    ("watermark_ms", _NULLABLE_LONG, "Its own watermark."),
    ("is_idle", "boolean", "Whether it is idle."),
)

_INPUT_WATERMARK = record_schema(
    "InputWatermark",
    "The watermark valve of one input.",
    ("watermark_ms", _NULLABLE_LONG, "Last watermark emitted."),
    {"name": "channels", "doc": "The nodes that send to it.", "type": array_of(_INPUT_CHANNEL)},
)

_NODE_WATERMARK = record_schema(
    "NodeWatermark",
    "Event time of a source or an operator.",
    ("node", "string", "Its uid or name."),
    ("watermark_ms", _NULLABLE_LONG, "Current watermark."),
    ("sent_watermark_ms", _NULLABLE_LONG, "Last watermark sent."),
    ("is_idle", "boolean", "Last status sent."),
    {"name": "inputs", "doc": "The watermark valves of its inputs, in order.", "type": array_of(_INPUT_WATERMARK)},
    ("epoch_watermark_ms", _NULLABLE_LONG, "Its watermark during the epoch."),
)

_CHANNEL_WATERMARK = record_schema(
    "ChannelWatermark",
    "A source, or one value of its channel column.",
    ("source", "string", "The source."),
    ("channel", "string", "Empty for a source that has one channel."),
    ("largest_timestamp_ms", _NULLABLE_LONG, "Largest event time seen."),
    ("watermark_ms", _NULLABLE_LONG, "Its own watermark."),
    ("last_active_ms", _NULLABLE_LONG, "Processing time of the last epoch with its records."),
    ("is_idle", "boolean", "Whether it is idle."),
)

_WATERMARK_STATE = record_schema(
    "WatermarkState",
    "The watermarks of the job.",
    ("watermark_ms", _NULLABLE_LONG, "Last watermark emitted."),
    {"name": "channels", "doc": "Channels with their own watermarks.", "type": array_of(_CHANNEL_WATERMARK)},
    ("nodes", array_of(_NODE_WATERMARK), "Sources and operators."),
)

_TIMERS_DUE = record_schema(
    "TimersDue",
    "The earliest pending timers of an operator.",
    ("operator_uid", "string", "The operator."),
    ("event_time_ms", _NULLABLE_LONG, "Null if there is none."),
    ("processing_time_ms", _NULLABLE_LONG, "Null if there is none."),
)

_SAVEPOINT_IDENTITY = record_schema(
    "SavepointIdentity",
    "Identity of a savepoint: fields of its metadata.",
    ("job_id", "string", "Its job directory."),
    ("checkpoint_id", "long", "Its id."),
    ("timestamp_ms", "long", "When it completed."),
)

_SINK_COMMITTABLE = record_schema(
    "SinkCommittable",
    "Output that a sink has not committed.",
    ("name", "string", "Name of the sink in the job."),
    ("identity", ["null", "string"], "The sink that staged it."),
    ("committable", "bytes", "Opaque to all but the sink."),
)

METADATA_SCHEMA = record_schema(
    "CheckpointMetadata",
    "One completed checkpoint or savepoint. A file holds exactly one.",
    ("checkpoint_id", "long", "Strictly increasing within a job directory."),
    (
        "kind",
        {"type": "enum", "name": "statebackend.CheckpointKind", "symbols": ["CHECKPOINT", "SAVEPOINT"]},
        "CHECKPOINT: paths are relative to the job directory. SAVEPOINT: to this directory.",
    ),
    ("job_id", "string", "Identity of the job directory it was taken in."),
    ("job_name", "string", "Name of the job."),
    ("timestamp_ms", "long", "When it completed, in ms since the Unix epoch."),
    ("parent_checkpoint_id", ["null", "long"], "The checkpoint it continues from, null for a first one."),
    ("parent_digest", ["null", "string"], "Checksum of the parent's whole _metadata file: the links of a hash chain."),
    ("max_parallelism", "int", "Number of key groups of the job."),
    ("processing_time_ms", _NULLABLE_LONG, "Of the epoch, in ms since the Unix epoch."),
    ("source_positions", ["null", _SOURCE_POSITIONS], "Null without such sources."),
    ("watermarks", ["null", _WATERMARK_STATE], "Null without event time."),
    ("timers_due", array_of(_TIMERS_DUE), "By operator, if it has any."),
    ("restored_from", ["null", _SAVEPOINT_IDENTITY], "The savepoint the job began from."),
    ("sinks", array_of(_SINK_COMMITTABLE), "What sinks have to commit."),
    ("properties", {"type": "map", "values": "string"}, "The caller's own."),
    ("operators", array_of(OPERATOR_STATE_SCHEMA), "State of every operator."),
    (
        "source_progress_files",
        array_of("statebackend.FileHandle"),
        "The engine's source log at this epoch, as files of the savepoint below source-progress/.",
    ),
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
