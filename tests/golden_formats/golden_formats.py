"""The content of the golden files of single formats, and functions that write and read each file.

`tests/golden/formats/write_formats.py` wrote the files once. `test_golden_formats.py` reads them and compares the
content. If a format has only one encoding of a content, the test also writes the content and compares the bytes.
"""

from __future__ import annotations

import io
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import fastavro
from attrs import asdict, frozen

from statebackend.checkpoint import (
    Acknowledgement,
    ChannelTimestamp,
    ChannelWatermark,
    CheckpointFileSystem,
    CheckpointKind,
    InputChannel,
    InputWatermark,
    JobDirectory,
    JobIdentity,
    JobOrigin,
    NodeWatermark,
    OpaqueStateHandle,
    OperatorState,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    SubtaskState,
    TimersDue,
    WatermarkState,
)
from statebackend.checkpoint.fs.checksummed_json import checksummed_json
from statebackend.checkpoint.ha.object_store import CompletedRecord
from statebackend.checkpoint.ha.zookeeper import (
    JobNode,
    decode_pointer,
    decode_text,
    encode_pointer,
    encode_text,
)
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.metadata_bytes import decode_metadata, encode_metadata
from statebackend.checkpoint.metadata_schema import BLOCK_SCHEMA, HEADER_SCHEMA
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.checkpoint.store.checkpoint_directories import CheckpointPointer
from statebackend.checkpoint.store.driver_lease import LeaseRecord
from statebackend.checkpoint.store.job_directory import read_origin, write_origin
from statebackend.checkpoint.store.job_files import (
    OpenNoDataEpoch,
    Rollback,
    read_no_data_epoch,
    read_roll_back,
    read_stored_in,
    write_no_data_epoch,
    write_roll_back,
    write_stored_in,
)
from statebackend.connectors.epoch_files import EpochMark, parse_mark
from statebackend.local.channel_state import decode_elements, decode_meta, encode_part
from statebackend.savepoint.lockfile import LockedOperator, StateLock, lock_from_bytes, lock_to_bytes
from statebackend.spark.sources.progress import SourceOrder, read_source_order, source_order
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_descriptors import SplitListStateDescriptor
from statebackend.state.operator_state_handles import OperatorStateMeta, StatePart, envelopes_of
from statebackend.state.state_meta import KeyedStateMeta, first_meta_of
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.runtime.job_sinks import StagedEpoch, decode_committables, encode_committables
from tests.checkpoint.checkpoint_builders import acknowledgement, file_handle, metadata_of, operator_state
from tests.local.channel_state.channel_states import FORMS, in_flight, time
from typeserializers import serializer_for

GOLDEN: Final = Path(__file__).parent.parent / "golden" / "formats"

SOURCES = (ReadSource("FileSource[/data/in]", "flights", "0"), ReadSource("rate", "source-0", "1"))

METADATA = metadata_of(
    7,
    parent_checkpoint_id=6,
    parent_digest=checksum_of_bytes(b"parent"),
    processing_time_ms=1_700_000_000_123,
    source_positions=SourcePositions(
        batch_id=5,
        offsets=b'{"logOffset":1}',
        sources=SOURCES,
    ),
    watermarks=WatermarkState(
        42,
        (
            ChannelWatermark(
                source="FileSource[/data/in]",
                largest_timestamp_ms=52,
                watermark_ms=42,
                last_active_ms=1_700_000_000_123,
            ),
            ChannelWatermark(source="rate", channel="partition 3", is_idle=True),
        ),
        (
            NodeWatermark(node="rate", is_idle=True),
            NodeWatermark(
                node="counter",
                watermark_ms=42,
                sent_watermark_ms=-7,
                epoch_watermark_ms=-8,
                inputs=(
                    InputWatermark(42, (InputChannel("FileSource[/data/in]", 42), InputChannel("rate", None, True))),
                    InputWatermark(None, (InputChannel("FileSource[/data/in]"),)),
                ),
            ),
        ),
    ),
    timers_due=(TimersDue("counter", event_time_ms=50), TimersDue("rules", -5, 1_700_000_060_000)),
    restored_from=SavepointIdentity("other job", 3, 1_600_000_000_000),
    sink_identities={"sink": "ParquetSink(/data/out)"},
    properties={"team": "flights"},
    operators=(
        operator_state(files=(file_handle("shared/a"),)),
        OperatorState(
            "rules",
            "Rules",
            4,
            (
                SubtaskState(
                    operator=OpaqueStateHandle("operator_state", b"meta", (file_handle("shared/b"),)),
                    input_channels=OpaqueStateHandle("records", b"in"),
                    output_channels=OpaqueStateHandle("records", b"out", (file_handle("shared/c"),)),
                ),
                SubtaskState(),
            ),
        ),
    ),
)

SAVEPOINT = metadata_of(
    7,
    (file_handle("operators/a"),),
    kind=CheckpointKind.SAVEPOINT,
    source_progress_files=(file_handle("source-progress/metadata"), file_handle("source-progress/offsets/7")),
    sink_committables={},
)

ACKNOWLEDGEMENT = acknowledgement(
    7,
    1,
    files=(file_handle("shared/a"),),
    report={"idle": False, "source": "flights", "none": None},
    metrics={"seconds": 0.5},
    channel_timestamps=(ChannelTimestamp("rate", "partition 3", 52),),
    event_time_timer_ms=50,
)

CHECKSUM: Final = "xxh3:0000000000000000000000000000000a"
POINTERS: Final = tuple(
    CheckpointPointer(number, file_handle(f"checkpoints/chk-{number:012d}-{str(digit) * 32}/_metadata"))
    for number, digit in ((7, 1), (8, 2), (9, 3))
)


def locked(uid: str, *states: str) -> LockedOperator:
    """An operator with value states of integers, and text as keys."""
    metas = [first_meta_of(ValueStateDescriptor(name, int), VOID_NAMESPACE_SERIALIZER) for name in states]
    return LockedOperator(uid, KeyedStateMeta(serializer_for(str).snapshot_configuration(), 0, tuple(metas)))


def schema_lock() -> StateLock:
    """A lockfile with keyed and operator state, and with names that need escapes."""
    keyed = locked("aircraft", "legs \N{BULLET} 2", 'quoted "so"')
    handled: SplitListStateDescriptor[int] = SplitListStateDescriptor("handled", int)
    meta = OperatorStateMeta(handled.name, handled.mode, (StatePart(envelopes_of(handled.serializers)),))
    return StateLock(128, (LockedOperator(keyed.uid, keyed.keyed, (meta,)), locked("weather", "hours")), "state.lock")


@frozen
class Golden:
    """A golden file. ``encode`` writes the content, ``decode`` reads it, and files are compared by ``comparable``."""

    name: str
    content: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    comparable: Callable[[bytes], bytes] = bytes


def _in_directory(
    name: str,
    content: Any,
    write: Callable[[CheckpointFileSystem, Any], Any],
    read: Callable[[CheckpointFileSystem], Any],
) -> Golden:
    def encode(content: Any) -> bytes:
        with tempfile.TemporaryDirectory() as directory:
            write(CheckpointFileSystem.from_uri(directory), content)
            return (Path(directory) / name).read_bytes()

    def decode(data: bytes) -> Any:
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / name).write_bytes(data)
            return read(CheckpointFileSystem.from_uri(directory))

    return Golden(name, content, encode, decode)


def record_of(data: bytes) -> bytes:
    """The record of `_metadata` before compression. The compression ratio of a library is not part of the format."""
    source = io.BytesIO(data)
    fastavro.schemaless_reader(source, fastavro.parse_schema(HEADER_SCHEMA), None)
    block: Any = fastavro.schemaless_reader(source, fastavro.parse_schema(BLOCK_SCHEMA), None)
    return zlib.decompressobj(-15).decompress(block["data"])


def _channel_state() -> tuple[bytes, bytes]:
    return encode_part(time(), in_flight(), lambda end: "join", FORMS)


def _decode_channel_state(data: bytes) -> Any:
    elements = (GOLDEN / "channel-state-1.elements").read_bytes()
    meta = decode_meta(data)
    return meta.time, decode_elements(meta, elements, lambda end: "join", FORMS)


def _metadata(name: str, content: Any) -> Golden:
    return Golden(name, content, encode_metadata, lambda data: decode_metadata(data, name), record_of)


FILES: Final = (
    _metadata("metadata-1", METADATA),
    _metadata("savepoint-1", SAVEPOINT),
    Golden("acknowledgement-1.bin", ACKNOWLEDGEMENT, Acknowledgement.encode, Acknowledgement.decode),
    _in_directory(
        "job.json",
        JobIdentity("123e4567-e89b-12d3-a456-426614174000", "flights", 128, 1_700_000_000_000),
        lambda files, content: files.write_file("job.json", checksummed_json(asdict(content), 1)),
        lambda files: JobDirectory.inspect(files.uri),
    ),
    _in_directory(
        "origin.json",
        JobOrigin(
            savepoint_uri="/savepoints/flights-1",
            savepoint_job_id="job",
            savepoint_id=7,
            savepoint_timestamp_ms=1_700_000_000_007,
            with_source_progress=True,
            restarted_sources=("flights", "rates"),
        ),
        write_origin,
        read_origin,
    ),
    _in_directory(
        "rollback.json", Rollback(checkpoint_id=3, newest_id=5, source_log="spark-1"), write_roll_back, read_roll_back
    ),
    _in_directory(
        "no-data-epoch.json",
        OpenNoDataEpoch(checkpoint_id=8, parent_digest=CHECKSUM, processing_time_ms=1_700_000_000_123, is_drain=False),
        write_no_data_epoch,
        read_no_data_epoch,
    ),
    _in_directory("high-availability.json", "zookeeper:/statebackend/flights", write_stored_in, read_stored_in),
    _in_directory(
        "source-order.json",
        SourceOrder(SOURCES, ({"type": "struct", "fields": []}, None)),
        lambda files, content: files.write_file("source-order.json", source_order(content.sources, content.schemas)),
        read_source_order,
    ),
    Golden(
        "driver-lease.json",
        LeaseRecord(
            token="0" * 32,
            renewal=3,
            lease_ms=30_000,
            is_released=False,
            holder="process 4711 on host driver-1, since 2025-01-31T12:00:00Z",
        ),
        LeaseRecord.to_bytes,
        lambda data: LeaseRecord.from_bytes(data, "driver-lease.json"),
    ),
    Golden(
        "completed-checkpoints.json",
        CompletedRecord(
            job_id="5c4ba0b8-6a39-4d3a-8a29-1e8f9dd0ac11",
            leader="0" * 32,
            revision=7,
            greatest_id=9,
            completed=POINTERS[:2],
            set_aside=POINTERS[2:],
            driver_files="drivers/" + "0" * 32,
        ),
        CompletedRecord.to_bytes,
        lambda data: CompletedRecord.from_bytes(data, "completed-checkpoints.json"),
    ),
    Golden(
        "zookeeper-job.json",
        JobNode("5c4ba0b8-6a39-4d3a-8a29-1e8f9dd0ac11", "/jobs/flights"),
        JobNode.encode,
        lambda data: JobNode.decode(data, "zookeeper-job.json"),
    ),
    Golden(
        "zookeeper-checkpoint.json",
        CheckpointPointer(42, FileHandle("checkpoints/chk-000000000042-" + "0" * 32 + "/_metadata", 5120, CHECKSUM)),
        encode_pointer,
        lambda data: decode_pointer(data, 42, "zookeeper-checkpoint.json"),
    ),
    Golden("zookeeper-last-id.json", 42, encode_text, lambda data: decode_text(data, "zookeeper-last-id.json", int)),
    Golden("channel-state-1.meta", (time(), in_flight()), lambda _: _channel_state()[0], _decode_channel_state),
    Golden("channel-state-1.elements", _channel_state()[1], lambda _: _channel_state()[1], bytes),
    Golden(
        "staged-epochs-1.bin",
        [StagedEpoch(6, "q", []), StagedEpoch(7, "r", [b"ok", b""])],
        encode_committables,
        decode_committables,
    ),
    Golden(
        "epoch-mark-1.json",
        EpochMark(7, "job.run", [file_handle("part-0.parquet"), file_handle("day=2024-05-01/part-1.parquet")]),
        EpochMark.encode,
        lambda data: parse_mark(data, 7),
    ),
    Golden("state-1.lock", schema_lock(), lock_to_bytes, lambda data: lock_from_bytes(data, "state.lock")),
)
