"""The file of an open no-data epoch: valid content only, and the checkpoint to which it belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from checkpoint_builders import metadata_of

from statebackend.checkpoint.errors import CorruptJobIdentityError, InvariantViolationError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.store.job_files import (
    NO_DATA_EPOCH_FILE_NAME,
    OpenNoDataEpoch,
    end_no_data_epoch,
    read_no_data_epoch,
    write_no_data_epoch,
)

PARENT = checksum_of_bytes(b"the checkpoint before")
OPEN = OpenNoDataEpoch(checkpoint_id=7, parent_digest=PARENT, processing_time_ms=5, is_drain=False)


def test_an_epoch_is_stored_from_its_start_to_its_end(tmp_path: Path) -> None:
    files = CheckpointFileSystem.from_uri(tmp_path)
    end_no_data_epoch(files)
    assert read_no_data_epoch(files) is None
    for epoch in (OPEN, attrs.evolve(OPEN, parent_digest=None, processing_time_ms=0, is_drain=True)):
        write_no_data_epoch(files, epoch)
        assert read_no_data_epoch(files) == epoch
    end_no_data_epoch(files)
    assert read_no_data_epoch(files) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint_id": -1},
        {"checkpoint_id": True},
        {"processing_time_ms": -1},
        {"processing_time_ms": 1 << 63},
        {"processing_time_ms": 5.0},
        {"parent_digest": "5"},
        {"parent_digest": 5},
        {"is_drain": 1},
    ],
)
def test_an_invalid_epoch_is_rejected(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvariantViolationError):
        attrs.evolve(OPEN, **wrong)
    files = CheckpointFileSystem.from_uri(tmp_path)
    files.write_file(NO_DATA_EPOCH_FILE_NAME, checksummed_json({**attrs.asdict(OPEN), **wrong}, 1))
    with pytest.raises(CorruptJobIdentityError, match=r"no-data-epoch\.json is not valid"):
        read_no_data_epoch(files)


def test_an_epoch_belongs_to_a_checkpoint_by_id_and_parent_and_follows_the_one_it_was_opened_after() -> None:
    own = attrs.evolve(metadata_of(7, ()), parent_checkpoint_id=6, parent_digest=PARENT)
    assert OPEN.is_epoch_of(own)
    assert not OPEN.is_epoch_of(attrs.evolve(own, parent_digest=checksum_of_bytes(b"another")))
    assert not attrs.evolve(OPEN, checkpoint_id=8).is_epoch_of(own)
    assert OPEN.follows(PARENT)
    assert not OPEN.follows(None)
    # No epoch follows after a drain.
    assert not attrs.evolve(OPEN, is_drain=True).follows(PARENT)
