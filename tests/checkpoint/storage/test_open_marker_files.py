"""Marker files of roll backs and no-data epochs in progress: their content and meaning."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from checkpoint_builders import metadata_of

from statebackend.checkpoint import CheckpointFileSystem, CorruptJobIdentityError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json
from statebackend.checkpoint.store.job_files import (
    OpenNoDataEpoch,
    Rollback,
    end_no_data_epoch,
    end_roll_back,
    read_no_data_epoch,
    read_roll_back,
    write_no_data_epoch,
    write_roll_back,
)

DIGEST, OTHER = ("xxh3:" + "0" * 31 + last for last in "ab")
ROLL_BACK = Rollback(checkpoint_id=3, newest_id=5, source_log="spark-1")
NO_DATA_EPOCH = OpenNoDataEpoch(
    checkpoint_id=8, parent_digest=DIGEST, processing_time_ms=1_700_000_000_123, is_drain=False
)
WRONG_FALL_BACKS: list[Mapping[str, Any]] = [
    {"checkpoint_id": -1},
    {"newest_id": 2},
    {"source_log": ""},
    {"source_log": "../x"},
    {"source_log": 7},
    {"another": 1},
]
WRONG_TIME_EPOCHS: list[Mapping[str, Any]] = [
    {"checkpoint_id": -1},
    {"parent_digest": "x"},
    {"processing_time_ms": None},
    {"is_drain": 1},
    {"another": 1},
]


@pytest.mark.parametrize(
    ("name", "opened", "write", "read", "end", "wrong"),
    [
        ("rollback.json", ROLL_BACK, write_roll_back, read_roll_back, end_roll_back, WRONG_FALL_BACKS),
        (
            "no-data-epoch.json",
            NO_DATA_EPOCH,
            write_no_data_epoch,
            read_no_data_epoch,
            end_no_data_epoch,
            WRONG_TIME_EPOCHS,
        ),
    ],
)
def test_an_open_operation_is_known_until_it_ends(
    tmp_path: pathlib.Path, name: str, opened: Any, write: Any, read: Any, end: Any, wrong: list[Mapping[str, Any]]
) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    assert read(fs) is None
    write(fs, opened)
    assert read(fs) == opened
    path = tmp_path / name
    good = path.read_bytes()
    for changes in wrong:
        path.write_bytes(checksummed_json({**attrs.asdict(opened), **changes}, 1))
        with pytest.raises(CorruptJobIdentityError, match=f"{name} is not valid"):
            read(fs)
    path.write_bytes(good[:-9])
    with pytest.raises(CorruptJobIdentityError, match=f"{name} cannot be read"):
        read(fs)
    end(fs)
    assert read(fs) is None
    end(fs)


def test_the_newest_checkpoint_decides_what_an_open_no_data_epoch_means() -> None:
    assert [NO_DATA_EPOCH.follows(one) for one in (DIGEST, OTHER, None)] == [True, False, False]
    assert not attrs.evolve(NO_DATA_EPOCH, is_drain=True).follows(DIGEST), "who starts a job again goes on"
    assert attrs.evolve(NO_DATA_EPOCH, parent_digest=None).follows(None)
    own = metadata_of(8, parent_checkpoint_id=7, parent_digest=DIGEST)
    assert NO_DATA_EPOCH.is_epoch_of(own)
    assert not NO_DATA_EPOCH.is_epoch_of(attrs.evolve(own, parent_digest=OTHER))
    assert not NO_DATA_EPOCH.is_epoch_of(attrs.evolve(own, checkpoint_id=9))
