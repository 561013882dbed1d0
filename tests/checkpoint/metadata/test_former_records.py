"""What was written by versions 1 and 2 comes as the typed sections and the parts of this version."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro
import pytest
from checkpoint_builders import state_handle

from statebackend.checkpoint import (
    CheckpointMetadata,
    FileHandle,
    InvariantViolationError,
    KeyedStateHandle,
    OpaqueStateHandle,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    SubtaskState,
)
from statebackend.checkpoint.metadata_bytes import metadata_of_former_record, record_of_version_3, separated_handle
from statebackend.checkpoint.metadata_schema import METADATA_SCHEMAS

FILES = tuple(FileHandle(name, 1, "xxh3:" + "0" * 32) for name in ("a", "b", "c"))
REST = b"states that nobody opens here"


def record(**changes: Any) -> dict[str, Any]:
    handle = {
        "state_id": "s",
        "backend": "heap",
        "key_group_start": 0,
        "key_group_end": 3,
        "meta": b"",
        "files": [],
    }
    operator = {
        "uid": "counter",
        "name": "Counter",
        "parallelism": 1,
        "max_parallelism": 4,
        "subtasks": [{"subtask_index": 0, "handle": handle}],
    }
    return {
        "checkpoint_id": 7,
        "kind": "CHECKPOINT",
        "job_id": "job",
        "job_name": "flights",
        "timestamp_ms": 5,
        "parent_checkpoint_id": None,
        "parent_digest": None,
        "max_parallelism": 4,
        "operators": [operator],
        "source_progress": {},
        "source_offsets": b"offsets",
        "sink_committables": {"sink": b"rows"},
        "properties": {},
        **changes,
    }


def read(**changes: Any) -> CheckpointMetadata:
    """What comes of a record that has gone through the schema of version 1."""
    schema, data = fastavro.parse_schema(METADATA_SCHEMAS[1]), io.BytesIO()
    fastavro.schemaless_writer(data, schema, record(**changes), strict=True)
    data.seek(0)
    return metadata_of_former_record(fastavro.schemaless_reader(data, schema, None))  # type: ignore[arg-type]


def test_what_was_known_as_a_property_is_read_into_its_section() -> None:
    metadata = read(
        properties={
            "restored_from_savepoint": "a/job/3/1700000000000",
            "sink": "ParquetSink(/data)",
            "sources": '["FileSource[/in]", "rate"]',
            "processing_time_ms": "1700000000123",
            "anything": "else",
        }
    )
    assert metadata.restored_from == SavepointIdentity("a/job", 3, 1_700_000_000_000)
    assert metadata.sink_identities == {"sink": "ParquetSink(/data)"}
    assert metadata.source_positions == SourcePositions(
        batch_id=7, offsets=b"offsets", sources=(ReadSource("FileSource[/in]"), ReadSource("rate"))
    )
    assert metadata.source_offsets == b"offsets"
    assert metadata.processing_time_ms == 1_700_000_000_123
    assert metadata.properties == {"anything": "else"}
    assert (metadata.watermarks, metadata.timers_due) == (None, ())


@pytest.mark.parametrize(
    "properties",
    [{"processing_time_ms": text} for text in ("", "-7", "\u0663", "9x", "9" * 19, "9" * 400, "1.5")]
    + [{"sources": text} for text in ("", "{}", "[1]", '"rate"', "[", "[" * 100_000)]
    + [
        {"restored_from_savepoint": text}
        for text in ("", "job", "job/3", "/3/5", "job/x/5", "job/3/-5", "job/" + "9" * 30 + "/5")
    ],
)
def test_a_property_that_does_not_read_as_it_should_stays_one(properties: dict[str, str]) -> None:
    metadata = read(properties=properties)
    assert metadata.properties == properties
    assert (metadata.processing_time_ms, metadata.restored_from) == (None, None)
    assert metadata.source_positions == SourcePositions(batch_id=7, offsets=b"offsets")


def test_a_checkpoint_of_a_job_without_a_source_log_has_no_positions() -> None:
    metadata = read(source_offsets=b"", sink_committables={}, properties={"sink": "nobody asks"})
    assert (metadata.source_positions, metadata.source_offsets) == (None, b"")
    assert (metadata.sink_identities, metadata.properties) == ({}, {"sink": "nobody asks"})


def test_what_was_read_is_known_though_no_positions_are() -> None:
    metadata = read(source_offsets=b"", properties={"sources": '["rate"]'})
    assert metadata.source_positions == SourcePositions(batch_id=7, offsets=b"", sources=(ReadSource("rate"),))
    assert metadata.properties == {}


@pytest.mark.parametrize(("parallelism", "index"), [(2, 0), (1, 1)])
def test_subtasks_that_are_missing_or_misplaced_are_rejected(parallelism: int, index: int) -> None:
    [operator] = record()["operators"]
    operator = {**operator, "parallelism": parallelism}
    operator["subtasks"] = [{**operator["subtasks"][0], "subtask_index": index}]
    with pytest.raises(InvariantViolationError, match=rf"must be 0 to {parallelism - 1} in order, not \[{index}\]"):
        read(operators=[operator])


def joined(
    version: int = 1, keyed_files: int = 1, keyed_meta: bytes = b"keyed", backend: str = "heap"
) -> KeyedStateHandle:
    meta = b"SBO1" + struct.pack(">iii", version, keyed_files, len(keyed_meta)) + keyed_meta + REST
    return KeyedStateHandle("s", backend, 0, 3, meta, FILES)


def test_operator_state_that_came_within_the_keyed_handle_is_a_part_of_its_own() -> None:
    assert separated_handle(joined()) == SubtaskState(
        KeyedStateHandle("s", "heap", 0, 3, b"keyed", FILES[:1]),
        OpaqueStateHandle("heap", b"SBO2" + struct.pack(">ii", 1, 1) + REST, FILES[1:]),
    )
    assert separated_handle(joined(backend="canonical")).operator.format == "canonical"  # type: ignore[union-attr]
    all_keyed, none_keyed = separated_handle(joined(keyed_files=3)), separated_handle(joined(keyed_files=0))
    assert [len(part.files) for part in (*all_keyed.parts, *none_keyed.parts)] == [3, 0, 0, 3]
    keyed = state_handle()
    assert separated_handle(keyed) == SubtaskState(keyed)


@pytest.mark.parametrize(
    ("handle", "match"),
    [
        (joined(version=2), "operator state of version 2"),
        (joined(keyed_files=4), "has 3 files, and 4 of keyed state"),
        (joined(keyed_files=-1), "has 3 files, and -1 of keyed state"),
        (joined(keyed_meta=b"SBO1"), "operator state within its keyed state"),
        (KeyedStateHandle("s", "heap", 0, 3, b"SBO1" + bytes(7)), "cannot be read"),
        (KeyedStateHandle("s", "heap", 0, 3, b"SBO1" + struct.pack(">iii", 1, 0, 99)), "cannot be read"),
    ],
)
def test_a_malformed_joined_handle_is_rejected(handle: KeyedStateHandle, match: str) -> None:
    with pytest.raises(InvariantViolationError, match=match):
        separated_handle(handle)


def test_of_version_3_nothing_is_known_of_nodes() -> None:
    watermarks = {"watermark_ms": 42, "channels": []}
    assert record_of_version_3({"a": 1, "watermarks": watermarks}) == {
        "a": 1,
        "watermarks": {**watermarks, "nodes": []},
    }
    assert record_of_version_3({"watermarks": None}) == {"watermarks": None}
