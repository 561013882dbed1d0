"""The aligner is exactly once: it blocks a channel until the last barrier has arrived."""

from __future__ import annotations

import pytest

from statebackend.checkpoint.barriers.elements import Abort, AbortReason, EndOfChannel, Trigger
from statebackend.checkpoint.barriers.exactly_once import ExactlyOnceHandler, always_aligned
from tests.checkpoint.barriers.barrier_notation import BUFFER_BYTES, Played

# Cases of Flink's CheckpointBarrierAlignerTestBase, by name. A channel that ends aborts the checkpoints that wait for
# it.
CASES = {
    "single_channel_no_barriers": (1, "b0 b0 b0 E0", ""),
    "multi_channel_no_barriers": (4, "b2 b2 b0 b1 b0 E0 b3 b1 E3 b1 E1 b2 E2", ""),
    "single_channel_with_barriers": (
        1,
        "b0x3 B1@0 b0x4 B2@0 B3@0 b0x2 B4@0 B5@0 B6@0 b0 E0",
        "T1 R{0} T2 R{0} T3 R{0} T4 R{0} T5 R{0} T6 R{0}",
    ),
    "multi_channel_with_barriers": (
        3,
        "b0 b2 b0 B1@1 B1@2 b0 B1@0 | b0 b0 b1 b1 b2 B2@0 B2@1 B2@2 | b2 b2 B3@2 b0 b0 B3@0 B3@1 | "
        "B4@1 B4@2 B4@0 | b0 E0 E1 E2",
        "T1 R{0,1,2} T2 R{0,1,2} T3 R{0,1,2} T4 R{0,1,2}",
    ),
    # Flink reports only the newer checkpoint. Here the older one is reported as aborted too.
    "missing_cancellation_barriers": (2, "B1@0 C3@1 C2@0 C3@0 b0", "As1 R{0} A3"),
    "start_alignment_with_closed_channels": (
        4,
        "E2 E1 b0 b0 b3 B2@3 B2@0 | B3@0 B3@3 | b0 b0 b3 E0 b3 B4@3 b3 E3",
        "T2 R{0,3} T3 R{0,3} T4 R{3}",
    ),
    "end_of_stream_while_checkpoint": (
        3,
        "B1@0 B1@1 B1@2 b0 b0 b2 B2@2 B2@0 b1 E1 E2 b0 E0",
        "T1 R{0,1,2} Ae2 R{0,2}",
    ),
    "single_channel_abort_checkpoint": (
        1,
        "b0 B1@0 b0 B2@0 b0 C4@0 B5@0 b0 C6@0 b0",
        "T1 R{0} T2 R{0} A4 T5 R{0} A6",
    ),
    "multi_channel_abort_checkpoint": (
        3,
        "b0 b2 b0 B1@1 B1@2 b0 B1@0 b0 b2 | B2@0 B2@2 b1 C2@1 b2 b1 | B3@1 B3@2 B3@0 b0 b1 | "
        "C4@1 B4@2 b2 B4@0 b0 b1 b2 | B5@2 B5@1 B5@0 b0 b1 | C6@1 C6@2 B6@0 b0",
        "T1 R{0,1,2} A2 R{0,2} T3 R{0,1,2} A4 R{2} R{0} T5 R{0,1,2} A6 R{0}",
    ),
    "abort_on_canceled_barriers": (
        3,
        "b1 B1@1 b2 b0 C1@0 b1 B2@1 b2 b0 B1@2 b0 b2 B2@0 B2@2 b0 b1 b2",
        "A1 R{1} R{2} T2 R{0,1,2}",
    ),
}


def aligner(channel_count: int, end_of_channel: EndOfChannel = EndOfChannel.ABORTS) -> Played:
    return Played(ExactlyOnceHandler(channel_count, always_aligned, end_of_channel))


@pytest.mark.parametrize("name", CASES)
def test_a_script_causes_the_listed_snapshots_aborts_and_resumed_channels(name: str) -> None:
    channel_count, script, expected = CASES[name]
    assert aligner(channel_count).play(script).text == expected


@pytest.mark.parametrize(
    ("channel_count", "script", "expected"),
    [
        (3, "B1@0 B1@1 B2@2 B2@0 B2@1", "As1 R{0,1} T2 R{0,1,2}"),
        (3, "B1@0 B3@1 B2@2 B1@2 B3@2 B3@0", "As1 R{0} R{2} R{2} T3 R{0,1,2}"),
        (2, "B1@0 C1@1 B1@1 B2@0 B2@1", "A1 R{0} R{1} T2 R{0,1}"),
        (2, "C2@0 B1@1 B2@1 B3@0 B3@1", "A2 R{1} R{1} T3 R{0,1}"),
        (2, "C2@0 C2@1 C1@0", "A2"),
        (2, "B1@0 C1@1 C1@0", "A1 R{0}"),
    ],
)
def test_barriers_of_older_checkpoints_change_nothing(channel_count: int, script: str, expected: str) -> None:
    assert aligner(channel_count).play(script).text == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("B1@0 E1 B1@2", "T1 R{0,2}"),
        ("B1@0 B1@2 E1", "T1 R{0,2}"),
        ("E1 B1@0 E2 B2@0", "T1 R{0} T2 R{0}"),
        ("E1 E2 B1@0 E0", "T1 R{0}"),
    ],
)
def test_an_ended_channel_counts_as_aligned(script: str, expected: str) -> None:
    assert aligner(3, EndOfChannel.IS_ALIGNED).play(script).text == expected


def test_a_channel_is_blocked_from_its_barrier_to_the_last_one() -> None:
    played = aligner(3).play("B1@2 B1@0")
    assert played.handler.blocked_channels == {0, 2}
    assert played.handler.pending_checkpoint_ids == (1,)
    played.play("B1@1")
    assert not played.handler.blocked_channels
    assert played.handler.pending_checkpoint_ids == ()


def test_alignment_metrics() -> None:
    played = aligner(2)
    played.created_ms = {1: 5}
    played.play("+20 b0 B1@0 +30 b1x3 +10 B1@1")
    (trigger,) = played.of(Trigger)
    assert (trigger.start_delay_ms, trigger.alignment_ms, trigger.alignment_bytes) == (15, 40, 3 * BUFFER_BYTES)


def test_alignment_of_one_channel_takes_no_time_and_blocks_nothing() -> None:
    (trigger,) = aligner(1).play("b0 +20 B1@0").of(Trigger)
    assert (trigger.start_delay_ms, trigger.alignment_ms, trigger.alignment_bytes) == (20, 0, 0)


def test_a_clock_that_goes_back_yields_no_negative_durations() -> None:
    played = aligner(2)
    played.created_ms = {1: 50}
    (trigger,) = played.play("+20 B1@0 +-15 B1@1").of(Trigger)
    assert (trigger.start_delay_ms, trigger.alignment_ms) == (0, 0)


def test_a_newer_barrier_supersedes_a_late_cancellation() -> None:
    (trigger,) = aligner(2).play("B1@0 B2@1 +1000 C1@0 +1000 B2@0").of(Trigger)
    assert (trigger.barrier.checkpoint_id, trigger.alignment_ms) == (2, 2000)


def test_abort_reasons_are_distinct() -> None:
    played = aligner(2).play("B1@0 B2@1 C2@0 B3@0 E1")
    assert played.of(Abort) == [
        Abort(1, AbortReason.SUBSUMED),
        Abort(2, AbortReason.CANCELLED),
        Abort(3, AbortReason.END_OF_CHANNEL),
    ]
