"""The tracker is at least once: it never blocks a channel."""

from __future__ import annotations

import pytest

from statebackend.checkpoint.barriers.elements import Resume, Trigger
from statebackend.checkpoint.barriers.tracker import MAX_TRACKED_CHECKPOINTS, BarrierTracker
from statebackend.checkpoint.errors import IllegalTransitionError
from tests.checkpoint.barriers.barrier_notation import BUFFER_BYTES, Played

# Cases of Flink's CheckpointBarrierTrackerTest, by name: the result, and the checkpoints that are pending after it.
CASES = {
    "single_channel_no_barriers": (1, "b b b", "", ()),
    "multi_channel_no_barriers": (4, "b2 b2 b0 b1 b0 b3 b1 b1 b2", "", ()),
    "single_channel_with_barriers": (
        1,
        "b0x3 B1@0 b0x4 B2@0 B3@0 b0x2 B4@0 B5@0 B6@0 b0",
        "T1 T2 T3 T4 T5 T6",
        (),
    ),
    "single_channel_with_skipped_barriers": (
        1,
        "b B1 b b B3 b B4 B6 b B7 b B10 b",
        "T1 T3 T4 T6 T7 T10",
        (),
    ),
    "multi_channel_with_barriers": (
        3,
        "b0 b2 b0 B1@1 B1@2 b2 b1 B1@0 | b0 b0 b1 b1 b2 B2@0 B2@1 B2@2 | b2 b2 B3@2 b2 b2 B3@0 B3@1 | "
        "B4@1 B4@2 B4@0 | b0",
        "T1 T2 T3 T4",
        (),
    ),
    "multi_channel_skipping_checkpoints": (
        3,
        "b0 b2 b0 B1@1 B1@2 b2 b1 B1@0 | b0 b0 b1 b1 b2 B2@0 B2@1 B2@2 | "
        "b2 b2 B3@2 b2 b2 B4@0 b0 b1 b2 B4@1 b1 B4@2 b0",
        "T1 T2 T4",
        (),
    ),
    "single_channel_abort_checkpoint": (1, "b B1 b B2 C4 B5 b C6 b", "T1 T2 A4 T5 A6", ()),
    "multi_channel_abort_checkpoint": (
        3,
        "b0 b2 b0 B1@1 B1@2 B1@0 | B2@0 B2@2 C2@1 | B3@1 B3@2 B3@0 | C4@1 B4@2 B4@0 | B5@2 B5@1 B5@0 | C6@1 C6@2 B6@0",
        "T1 A2 T3 A4 T5 A6",
        (),
    ),
    "interleaved_cancellation_barriers": (3, "B1@0 C2@0 C1@1 C2@1 C1@2 C2@2 b0", "As1 A2", ()),
    "trigger_checkpoints_with_end_of_partition": (3, "B1@0 B2@0 B2@1 B3@0 B4@0 B4@1 B5@1 E2", "T4", (5,)),
    "deduplicate_channels_with_both_barrier_and_end_of_partition": (3, "B2@0 B2@1 E1", "", (2,)),
    "deduplicated_channels_and_the_last_barrier": (3, "B2@0 B2@1 E1 B2@2", "T2", ()),
    "trigger_checkpoints_after_received_end_of_partition": (3, "E2 B5@0 B6@0 B6@1 E1 B7@0", "T6 T7", ()),
    "no_fast_path_with_channel_finished_during_checkpoints": (2, "B1@0 E0 B1@1", "T1", ()),
    "complete_and_remove_aborted_checkpoint_with_end_of_partition": (3, "C4@0 B4@1 B5@1 E2", "A4", (5,)),
    "abort_checkpoints_after_end_of_partition_received": (3, "E2 B5@0 B6@0 C6@1 E1 C7@0", "As5 A6 A7", ()),
    "no_fast_path_with_channel_finished_during_cancellation": (2, "B1@0 E0 C1@1", "A1", ()),
}


def tracker(channel_count: int) -> Played:
    return Played(BarrierTracker(channel_count))


@pytest.mark.parametrize("name", CASES)
def test_a_script_causes_the_listed_snapshots_and_aborts(name: str) -> None:
    channel_count, script, expected, pending = CASES[name]
    played = tracker(channel_count).play(script)
    assert played.checkpoints == expected
    assert played.handler.pending_checkpoint_ids == pending


@pytest.mark.parametrize(
    ("channel_count", "script", "expected", "pending"),
    [
        (2, "B2@0 B1@1 B2@1", "T2", ()),
        (2, "C2@0 B2@1 B2@0 B3@0 B3@1", "A2 T3", ()),
        (2, "B1@0 B2@0 C1@1 B2@1", "A1 T2", ()),
        (2, "C1@0 C1@0 B1@1 C1@1 B1@0", "A1", ()),
        (2, "C1@0 E1 B2@0", "A1 T2", ()),
        (3, "B1@0 B2@0 B1@1 E2 B2@1", "T1 T2", ()),
    ],
)
def test_each_checkpoint_is_counted_separately(
    channel_count: int, script: str, expected: str, pending: tuple[int, ...]
) -> None:
    played = tracker(channel_count).play(script)
    assert played.checkpoints == expected
    assert played.handler.pending_checkpoint_ids == pending


def test_a_channel_is_not_blocked_after_a_barrier() -> None:
    played = tracker(2).play("B1@0 B0@1 B1@1")
    assert played.of(Resume) == [Resume((0,)), Resume((1,)), Resume((1,))]
    assert not played.handler.blocked_channels
    assert not played.handler.captured_channels


def test_each_checkpoint_is_measured_from_its_own_first_barrier() -> None:
    triggers = tracker(2).play("B1@1 +1000 B2@1 +1000 B1@0 +1000 B2@0").of(Trigger)
    assert [(one.barrier.checkpoint_id, one.alignment_ms) for one in triggers] == [(1, 2000), (2, 2000)]


def test_records_between_the_first_barrier_and_the_last_are_counted() -> None:
    played = tracker(2)
    played.created_ms = {1: 10, 2: 10}
    triggers = played.play("b0 +15 B1@0 b0 b1x2 B1@1 b1 | B2@1 B2@0").of(Trigger)
    assert [(one.start_delay_ms, one.alignment_bytes) for one in triggers] == [(5, 3 * BUFFER_BYTES), (5, 0)]


def test_a_single_channel_needs_no_alignment() -> None:
    played = tracker(1)
    played.created_ms = {1: 10, 2: 60}
    triggers = played.play("b +30 B1 b b +40 B2").of(Trigger)
    assert [(one.start_delay_ms, one.alignment_ms, one.alignment_bytes) for one in triggers] == [(20, 0, 0), (10, 0, 0)]


def test_ended_channels_are_not_open() -> None:
    played = tracker(3).play("B1@0 B2@0 B2@1 B3@0 B4@0 B4@1 B5@1 E2")
    assert played.handler.open_channels == {0, 1}
    assert played.play("E0 E1").handler.open_channels == set()


@pytest.mark.parametrize("behind_the_end", ["b1", "B1@1", "C1@1", "E1"])
def test_an_ended_channel_delivers_nothing(behind_the_end: str) -> None:
    played = tracker(2).play("E1")
    with pytest.raises(IllegalTransitionError, match="channel 1 has ended, or there is none"):
        played.play(behind_the_end)


def test_the_oldest_checkpoint_is_aborted_if_too_many_are_pending() -> None:
    played = tracker(2).play(" ".join(f"B{one}@0" for one in range(1, MAX_TRACKED_CHECKPOINTS + 2)))
    assert played.checkpoints == "Am1"
    assert played.handler.pending_checkpoint_ids == tuple(range(2, MAX_TRACKED_CHECKPOINTS + 2))
    assert played.play("B1@1").checkpoints == "Am1"
    assert played.play("B2@1").checkpoints == "Am1 T2"


def test_a_thousand_checkpoints_leave_no_state() -> None:
    played = tracker(2)
    for one in range(1, 1001):
        played.play(f"B{one}@0 {'C' if one % 3 == 0 else 'B'}{one}@1")
    assert played.handler.pending_checkpoint_ids == ()
    assert len(played.of(Trigger)) == 667
