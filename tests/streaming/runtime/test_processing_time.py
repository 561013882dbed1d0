"""The processing time of an epoch is that of Spark's batch, is equal in a replay, and never goes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.errors import JobDefinitionError, SourceProgressMismatchError
from statebackend.streaming.runtime.event_time import not_before

OFFSETS = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000123,"conf":{}}\n{"logOffset":3}'


@pytest.mark.parametrize(
    ("previous", "expected"),
    [(None, 5), (4, 5), (5, 5), (6, 6)],
)
def test_time_never_goes_back(previous: int | None, expected: int) -> None:
    assert not_before(5, previous) == expected


@pytest.mark.parametrize("given", [1.5e12, None, True, -1, 1 << 63, "now"])
def test_a_clock_without_integer_milliseconds_is_reported(given: Any) -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment(clock=lambda: given)
    rows = environment.from_elements([("a", 1)], "k string, v bigint").key_by("k")
    rows.count_window(1).reduce(max, uid="windows", schema="k string, v bigint").sink_to(results)
    with pytest.raises(JobDefinitionError, match=r"the clock returned .*milliseconds since 1970 as an integer"):
        environment.execute()
    assert results == []


def test_the_time_of_an_epoch_equals_that_of_its_batch() -> None:
    from statebackend.spark.epoch_driver import processing_time_of_epoch_ms

    assert processing_time_of_epoch_ms(OFFSETS, None) == 1700000000123
    assert processing_time_of_epoch_ms(OFFSETS, 1700000000122) == 1700000000123
    assert processing_time_of_epoch_ms(OFFSETS, 1700000000124) == 1700000000124


@pytest.mark.parametrize(
    "offsets",
    [b"", b"v1", b"v1\n", b"v1\n[]", b"v1\n{}", b'v1\n{"batchTimestampMs":"1"}', b'v1\n{"batchTimestampMs":true}'],
)
def test_offsets_without_a_time_are_rejected(offsets: bytes) -> None:
    from statebackend.spark.epoch_driver import processing_time_of_epoch_ms

    with pytest.raises(SourceProgressMismatchError, match="contain no time of the batch"):
        processing_time_of_epoch_ms(offsets, None)


def test_offsets_file_and_its_directory_entry_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statebackend.spark.epoch_driver import make_offsets_durable

    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_bytes(OFFSETS)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    make_offsets_durable(str(tmp_path), 7)
    assert synced == [str(tmp_path / "offsets" / "7"), str(tmp_path / "offsets")]
