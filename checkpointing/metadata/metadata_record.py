"""The record of a `_metadata` file in the version that is written: from the object to its Avro encoding, and back.

The encoding is put together from parts that are encoded already. The state of a subtask that arrived with an
acknowledgement has kept its bytes, and the record of a thousand subtasks is then a matter of joining them: to make a
record of each of their files and to encode it would take longer than all else in an epoch. What comes out is what the
encoder makes of the whole record.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import fastavro
from attrs import asdict

from checkpointing.handles.handle_records import encode_subtask_state, file_handle_to_record, subtask_state_from_record
from checkpointing.handles.invariants import require
from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.metadata.checkpoint_sections import (
    ChannelWatermark,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    TimersDue,
    WatermarkState,
)
from checkpointing.metadata.metadata_schema import FORMAT_VERSION, METADATA_SCHEMAS, OPERATOR_STATE_SCHEMA

__all__ = ["encode_metadata_record", "metadata_of_record"]

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
