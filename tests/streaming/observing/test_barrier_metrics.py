"""The duration of barriers: in acknowledgements, and in the metrics of a run."""

from __future__ import annotations

from typing import Any

import pytest

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.streaming.metrics import OperatorBarriers, RunBarriers, SubtaskBarriers


def barriers(is_unaligned: bool, delay_ms: int, size: int) -> SubtaskBarriers:
    return SubtaskBarriers(
        is_unaligned=is_unaligned, start_delay_ms=delay_ms, alignment_ms=2, capture_ms=3, in_flight_bytes=size
    )


def acknowledgement(uid: str, index: int, metrics: Any) -> Acknowledgement:
    return Acknowledgement("job", "run", 1, uid, index, "0", "digest", SubtaskState(), metrics=metrics)


def test_reported_barrier_metrics_are_read() -> None:
    assert SubtaskBarriers.of(barriers(True, 1, 4).to_metrics()) == barriers(True, 1, 4)


@pytest.mark.parametrize("bad", [None, "x", -1, 1.5])
def test_unreadable_barrier_metrics_are_ignored(bad: Any) -> None:
    assert SubtaskBarriers.of({**barriers(True, 1, 4).to_metrics(), "barrier_alignment_ms": bad}) is None
    totals = RunBarriers()
    totals.add([acknowledgement("a", 0, {})])
    assert (totals.operators, totals.newest) == ({}, {})


def test_a_run_has_its_newest_checkpoint_and_sums_of_all() -> None:
    totals = RunBarriers()
    totals.add([acknowledgement("a", index, barriers(True, index, 10).to_metrics()) for index in range(2)])
    totals.add([acknowledgement("a", 0, barriers(False, 7, 0).to_metrics())])
    assert totals.newest == {("a", 0): barriers(False, 7, 0)}
    assert totals.operators == {
        "a": OperatorBarriers(
            snapshots=3,
            unaligned_snapshots=2,
            longest_start_delay_ms=7,
            longest_alignment_ms=2,
            longest_capture_ms=3,
            in_flight_bytes=20,
        )
    }
