"""Files written by released format versions, which every later release must read.

They are never regenerated: a new version gets new files next to the old ones.
"""

from __future__ import annotations

import pathlib

from checkpoint_builders import acknowledgement, file_handle, metadata_of

from checkpointing import (
    Acknowledgement,
    CheckpointFileSystem,
    CheckpointKind,
    JobDirectory,
    JobIdentity,
    JobOrigin,
    read_metadata,
    read_origin,
    write_origin,
)
from checkpointing.handles.checksum import checksum_of_bytes

GOLDEN = pathlib.Path(__file__).parent / "golden"

ACKNOWLEDGEMENT = acknowledgement(
    7,
    1,
    files=(file_handle("shared/a"),),
    report={"watermark_ms": -5, "idle": False, "source": "flights", "none": None},
    metrics={"seconds": 0.5},
)


def test_metadata_of_version_1_is_read() -> None:
    expected = metadata_of(
        7, (file_handle("shared/a"),), parent_checkpoint_id=6, parent_digest=checksum_of_bytes(b"parent")
    )
    assert read_metadata(CheckpointFileSystem.from_uri(GOLDEN), "metadata-1") == expected


def test_metadata_of_version_2_is_read() -> None:
    expected = metadata_of(
        7,
        (file_handle("operators/a"),),
        kind=CheckpointKind.SAVEPOINT,
        source_progress={},
        source_progress_files=(file_handle("source-progress/metadata"), file_handle("source-progress/offsets/7")),
        sink_committables={},
    )
    assert read_metadata(CheckpointFileSystem.from_uri(GOLDEN), "metadata-2") == expected


def test_an_acknowledgement_of_version_1_is_read_and_written_byte_for_byte() -> None:
    data = (GOLDEN / "acknowledgement-1.bin").read_bytes()
    assert Acknowledgement.decode(data) == ACKNOWLEDGEMENT
    assert ACKNOWLEDGEMENT.encode() == data


def test_a_job_identity_of_version_1_is_read() -> None:
    assert JobDirectory.inspect(str(GOLDEN / "job-1")) == JobIdentity("job", "flights", 128, 1_700_000_000_000)


def test_an_origin_of_version_1_is_read_and_written_byte_for_byte(tmp_path) -> None:
    origin = JobOrigin(
        savepoint_uri="/savepoints/flights-1",
        savepoint_job_id="job",
        savepoint_id=7,
        savepoint_timestamp_ms=1_700_000_000_007,
        with_source_progress=True,
    )
    assert read_origin(CheckpointFileSystem.from_uri(GOLDEN / "job-1")) == origin
    write_origin(CheckpointFileSystem.from_uri(tmp_path), origin)
    assert (tmp_path / "origin.json").read_bytes() == (GOLDEN / "job-1" / "origin.json").read_bytes()
