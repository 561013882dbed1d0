"""The checkpointing mode of a job: which barriers it sends, and which table handles them."""

from __future__ import annotations

import pytest

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.barriers.elements import BarrierArrived, CheckpointBarrier, Trigger
from statebackend.checkpoint.barriers.tracker import BarrierTracker
from statebackend.checkpoint.errors import InvariantViolationError

MODES = {
    "at least once": CheckpointingMode.AT_LEAST_ONCE,
    "aligned": CheckpointingMode.ALIGNED,
    "unaligned": CheckpointingMode.UNALIGNED,
    "after 5 ms": CheckpointingMode.unaligned_after(5),
}


@pytest.mark.parametrize(
    ("name", "is_unaligned", "overtakes_from_ms"),
    [("at least once", False, None), ("aligned", False, None), ("unaligned", True, None), ("after 5 ms", False, 105)],
)
def test_the_mode_decides_the_barriers_of_a_checkpoint(
    name: str, is_unaligned: bool, overtakes_from_ms: int | None
) -> None:
    barrier = MODES[name].barrier(7, 100)
    assert (barrier.checkpoint_id, barrier.created_ms) == (7, 100)
    assert (barrier.is_unaligned, barrier.overtakes_from_ms) == (is_unaligned, overtakes_from_ms)
    assert MODES[name].may_be_unaligned is (name in ("unaligned", "after 5 ms"))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_savepoint_is_aligned_in_every_mode(mode: CheckpointingMode) -> None:
    barrier = mode.barrier(7, 100, is_savepoint=True)
    assert barrier == CheckpointBarrier(checkpoint_id=7, created_ms=100, is_savepoint=True)


def test_barriers_are_aligned_where_none_may_overtake_and_counted_where_none_waits() -> None:
    unaligned = CheckpointingMode.UNALIGNED
    arrived = BarrierArrived(0, unaligned.barrier(1, 0), 0)
    assert any(isinstance(one, Trigger) for one in unaligned.handler(2).handle(arrived))
    assert not any(isinstance(one, Trigger) for one in unaligned.handler(2, may_overtake=False).handle(arrived))
    assert isinstance(CheckpointingMode.AT_LEAST_ONCE.handler(2), BarrierTracker)


def test_at_least_once_has_no_overtaking_barriers_and_negative_timeouts_are_rejected() -> None:
    with pytest.raises(InvariantViolationError, match="Leave one of the two out"):
        CheckpointingMode(is_exactly_once=False, is_unaligned=True)
    with pytest.raises(InvariantViolationError, match="Leave one of the two out"):
        CheckpointingMode(is_exactly_once=False, alignment_timeout_ms=1)
    with pytest.raises(InvariantViolationError, match="after -1 ms"):
        CheckpointingMode.unaligned_after(-1)
