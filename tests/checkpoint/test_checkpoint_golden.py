"""Files of the current format versions are read and written byte for byte. They are never regenerated."""

from __future__ import annotations

import io
import pathlib
import zlib

import fastavro
import pytest
from checkpoint_builders import acknowledgement, file_handle, metadata_of, operator_state

from statebackend.checkpoint import (
    Acknowledgement,
    ChannelTimestamp,
    ChannelWatermark,
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    CorruptJobIdentityError,
    InputChannel,
    InputWatermark,
    JobDirectory,
    JobIdentity,
    JobOrigin,
    MalformedAcknowledgementError,
    NodeWatermark,
    OpaqueStateHandle,
    OperatorState,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    SubtaskState,
    TimersDue,
    UnsupportedMetadataVersionError,
    WatermarkState,
    read_metadata,
)
from statebackend.checkpoint.fs.checksummed_json import checksummed_json
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.metadata_bytes import decode_metadata, encode_metadata_record
from statebackend.checkpoint.metadata_schema import BLOCK_SCHEMA, FORMAT_VERSION, HEADER_SCHEMA
from statebackend.checkpoint.store.job_directory import read_origin, write_origin

GOLDEN = pathlib.Path(__file__).parent / "golden"

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
    properties={"kept": "as it is"},
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


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION))
def test_metadata_of_a_pre_release_is_rejected(version: int) -> None:
    data = (GOLDEN / "metadata-6" / "_metadata").read_bytes()
    source = io.BytesIO(data)
    schema = fastavro.parse_schema(HEADER_SCHEMA)
    header = fastavro.schemaless_reader(source, schema, None)
    header["meta"]["statebackend.format_version"] = str(version).encode()
    header["meta"]["statebackend.checksum"] = b"xxh3:" + b"0" * 32
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, header)
    unsigned = written.getvalue() + data[source.tell() :]
    signed = unsigned.replace(b"xxh3:" + b"0" * 32, checksum_of_bytes(unsigned).encode(), 1)
    expected = f"here was written by a pre-release: it has format version {version}, this release reads version 6"
    with pytest.raises(UnsupportedMetadataVersionError, match=expected):
        decode_metadata(signed, "here")


@pytest.mark.parametrize(("name", "metadata"), [("metadata-6", METADATA), ("savepoint-6", SAVEPOINT)])
def test_metadata_of_version_6_is_read_and_written_byte_for_byte(name: str, metadata: CheckpointMetadata) -> None:
    data = (GOLDEN / name / "_metadata").read_bytes()
    assert read_metadata(CheckpointFileSystem.from_uri(GOLDEN), name) == metadata
    assert encode_metadata_record(metadata) == record_in(data)


def record_in(data: bytes) -> bytes:
    """The decompressed record: compression is not part of the format."""
    source = io.BytesIO(data)
    fastavro.schemaless_reader(source, fastavro.parse_schema(HEADER_SCHEMA), None)
    block = fastavro.schemaless_reader(source, fastavro.parse_schema(BLOCK_SCHEMA), None)
    return zlib.decompressobj(-15).decompress(block["data"])


def test_an_acknowledgement_of_this_version_is_read_and_written_byte_for_byte() -> None:
    data = (GOLDEN / "acknowledgement-2.bin").read_bytes()
    assert Acknowledgement.decode(data) == ACKNOWLEDGEMENT
    assert ACKNOWLEDGEMENT.encode() == data


def test_an_acknowledgement_of_another_version_is_rejected() -> None:
    data = bytearray((GOLDEN / "acknowledgement-2.bin").read_bytes())
    data[4] = 1
    with pytest.raises(MalformedAcknowledgementError, match="has version 1, this release reads 2; run"):
        Acknowledgement.decode(bytes(data))


def test_a_job_identity_of_version_1_is_read() -> None:
    assert JobDirectory.inspect(str(GOLDEN / "job-1")) == JobIdentity(
        "123e4567-e89b-12d3-a456-426614174000", "flights", 128, 1_700_000_000_000
    )


def test_an_origin_of_version_2_is_read_and_written_byte_for_byte(tmp_path) -> None:
    origin = JobOrigin(
        savepoint_uri="/savepoints/flights-1",
        savepoint_job_id="job",
        savepoint_id=7,
        savepoint_timestamp_ms=1_700_000_000_007,
        with_source_progress=True,
        begun_anew=("flights", "rates"),
    )
    assert read_origin(CheckpointFileSystem.from_uri(GOLDEN / "job-2")) == origin
    write_origin(CheckpointFileSystem.from_uri(tmp_path), origin)
    assert (tmp_path / "origin.json").read_bytes() == (GOLDEN / "job-2" / "origin.json").read_bytes()
    (tmp_path / "origin.json").write_bytes(checksummed_json({"savepoint_uri": "/savepoints/flights-1"}, 1))
    with pytest.raises(CorruptJobIdentityError, match=r"origin\.json was written by a pre-release"):
        read_origin(CheckpointFileSystem.from_uri(tmp_path))
