"""The unaligner takes the snapshot at the first barrier, and captures the records before the other barriers."""

from __future__ import annotations

import pytest

from statebackend.checkpoint.barriers.elements import CaptureComplete, EndOfChannel, StartCapture, StopCapture, Trigger
from statebackend.checkpoint.barriers.exactly_once import ExactlyOnceHandler, always_unaligned
from tests.checkpoint.barriers.barrier_notation import BUFFER_BYTES, Played

# Cases of Flink's CheckpointBarrierUnalignerTest, by name. A star marks records that must be captured.
CASES = {
    "single_channel_no_barriers": (1, "b0 b0 b0 E0", ""),
    "multi_channel_no_barriers": (4, "b2 b2 b0 b1 b0 E0 b3 b1 E3 b1 E1 b2 E2", ""),
    "single_channel_with_barriers": (
        1,
        "b0x3 B1@0 b0x4 B2@0 B3@0 b0x2 B4@0 B5@0 B6@0 b0 E0",
        "U1 U2 U3 U4 U5 U6",
    ),
    "multi_channel_with_barriers": (
        3,
        "b0 b2 b0 B1@1 B1@2 b2 b1 b0* B1@0 | b0 b0 b1 b1 b2 B2@0 B2@1 B2@2 | b2 b2 B3@2 b2 b2 B3@0 B3@1 | "
        "B4@1 B4@2 B4@0 | b0 b2 b0 B5@1 b2* b0* b2* b1 B5@2 b1 b0* b2 b1 B5@0 | b0 E0 E1 E2",
        "U1 U2 U3 U4 U5",
    ),
    "multi_channel_trailing_inflight_data": (
        3,
        "b0 b1 b2 B1@1 B1@2 B1@0 | b2 b1 b0 B2@1 b1 b1 E1 b0* b2* B2@2 b2 E2 b0* E0",
        "U1 U2 Ae2",
    ),
    "missing_cancellation_barriers": (2, "B1@0 C2@0 C3@0 C3@1 b0 E0 E1", "U1 As1 A2 A3"),
    "start_alignment_with_closed_channels": (
        4,
        "E2 E1 b0 b0 b3 B2@3 B2@0 | b3 b0 B3@3 b3 b0* B3@0 | B4@0 B4@3 | b0 b0 b3 E0 | b3 B5@3 b3 E3",
        "U2 U3 U4 U5",
    ),
    "single_channel_abort_checkpoint": (1, "b B1 b B2 C4 | B5 b C6 b E", "U1 U2 A4 U5 A6"),
    "multi_channel_abort_checkpoint": (
        3,
        "B1@0 B1@1 B1@2 | B2@0 B2@2 b0 b2 C2@1 | B3@0 B3@1 B3@2 | C4@1 B4@2 b0 B4@0 | B5@0 B5@1 B5@2 | "
        "C6@1 C6@2 B6@0 E0 E1 E2",
        "U1 U2 A2 U3 A4 U5 A6",
    ),
    "process_cancellation_barrier_after_process_barrier": (2, "B0@0 C0@0 C1@0", "U0 A0 A1"),
    "process_cancellation_barrier_after_barrier_of_another": (2, "B0@0 C1@0 C2@0", "U0 As0 A1 A2"),
    "process_cancellation_barrier_before_barrier": (2, "C0@0 B0@0 B0@1", "A0"),
    "end_of_stream_with_pending_checkpoint": (2, "B0@0 E1", "U0 Ae0"),
}

# Cases of Flink's CheckpointBarrierUnalignerCancellationTest: whether a snapshot is taken, and whether one is aborted.
CANCELLATIONS = [
    ("C10@0 C20@0", 2, False, True),
    ("C20@0 C10@0", 2, False, True),
    ("C10@0 B10@1", 2, False, True),
    ("C10@0 B20@1", 2, True, True),
    ("B20@0 B10@1", 2, True, False),
    ("B10@0 C10@0", 1, True, False),
    ("B10@0 C10@1", 2, True, True),
    ("B10@0 C20@0", 1, True, True),
    ("B20@0 C10@1", 2, True, False),
]


def unaligner(channel_count: int, end_of_channel: EndOfChannel = EndOfChannel.ABORTS) -> Played:
    return Played(ExactlyOnceHandler(channel_count, always_unaligned, end_of_channel))


@pytest.mark.parametrize("name", CASES)
def test_a_script_causes_the_listed_snapshots_and_aborts(name: str) -> None:
    channel_count, script, expected = CASES[name]
    assert unaligner(channel_count).play(script).checkpoints == expected


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "*" in case[1]])
def test_records_before_missing_barriers_are_captured(name: str) -> None:
    channel_count, script, _ = CASES[name]
    played = unaligner(channel_count)
    for group in script.split("|"):
        played.play(group)
        if played.results[-1].startswith("Ae"):
            # The records captured for an aborted checkpoint are discarded.
            return
        assert played.captured == played.starred
    assert not played.handler.captured_channels


@pytest.mark.parametrize(("script", "channel_count", "is_triggered", "is_aborted"), CANCELLATIONS)
def test_cancellations_and_barriers_in_every_order(
    script: str, channel_count: int, is_triggered: bool, is_aborted: bool
) -> None:
    checkpoints = unaligner(channel_count).play(script).checkpoints
    assert ("U" in checkpoints, "A" in checkpoints) == (is_triggered, is_aborted)


def test_the_other_channels_stay_open_after_one_has_ended() -> None:
    played = unaligner(2).play("B0@0 E1")
    assert played.handler.open_channels == {0}
    assert played.handler.pending_checkpoint_ids == ()
    assert not played.handler.captured_channels


def test_no_channel_is_blocked() -> None:
    played = unaligner(3).play("B1@0 b0 B1@2 b2 b0")
    assert not played.handler.blocked_channels
    assert played.handler.captured_channels == {1}
    assert played.handler.pending_checkpoint_ids == (1,)


def test_the_end_of_a_channel_ends_its_capture() -> None:
    played = unaligner(3, EndOfChannel.IS_ALIGNED).play("B1@0 b1* E1 b2* B1@2 b2")
    assert played.captured == played.starred
    assert played.text == "U1 R{0} D1 R{2}"
    assert unaligner(2, EndOfChannel.IS_ALIGNED).play("B1@0 E1").text == "U1 R{0} D1"


def test_each_capture_is_stopped_once() -> None:
    played = unaligner(3).play("B1@0 B1@2 B1@1")
    assert played.of(StartCapture) == [StartCapture(1, (1, 2))]
    assert played.of(StopCapture) == [StopCapture(1, (2,)), StopCapture(1, (1,))]
    assert len(played.of(CaptureComplete)) == 1


@pytest.mark.parametrize("end", ["C1@1", "B2@1", "E1"])
def test_captures_end_with_their_checkpoint(end: str) -> None:
    played = unaligner(3).play(f"B1@0 {end}")
    assert played.of(StopCapture)[0] == StopCapture(1, (1, 2))


def test_unaligned_checkpoint_metrics() -> None:
    played = unaligner(2)
    played.created_ms = {1: 5}
    played.play("+20 b1 B1@0 +30 b1x3 b0 +10 B1@1")
    (trigger,) = played.of(Trigger)
    assert (trigger.start_delay_ms, trigger.alignment_ms, trigger.alignment_bytes) == (15, 0, 0)
    assert played.of(CaptureComplete) == [CaptureComplete(1, 40, 3 * BUFFER_BYTES)]


def test_a_savepoint_is_aligned() -> None:
    assert unaligner(2).play("S1@0 S1@1").text == "T1 R{0,1}"
