"""Alternating: savepoints are aligned; a checkpoint is aligned until its alignment times out."""

from __future__ import annotations

import pytest

from statebackend.checkpoint.barriers.elements import CaptureComplete, EndOfChannel, StartTimer, StopTimer, Trigger
from statebackend.checkpoint.barriers.exactly_once import ExactlyOnceHandler
from tests.checkpoint.barriers.barrier_notation import BUFFER_BYTES, TIMEOUT_MS, Played

OVER = f"+{TIMEOUT_MS}"

# Cases of Flink's AlternatingCheckpointsTest, by name. Barriers N and O have an alignment timeout.
CASES = {
    "checkpoint_handling": (2, "U1@0 b1* U1@1", "U1 R{0} D1 R{1}"),
    "savepoint_handling": (2, "S1@0 b1 S1@1", "T1 R{0,1}"),
    "channel_state_of_an_unaligned_barrier_that_meets_a_savepoint": (
        2,
        "S1@0 U2@1 b0* U2@0",
        "As1 R{0} U2 R{1} D2 R{0}",
    ),
    "switch_to_unaligned_by_upstream": (2, "N1@0 U1@1 b0* O1@0", "U1 R{1} V{0} D1 R{0}"),
    "switch_to_unaligned_by_upstream_while_aligning": (3, "O1@0 U1@1 b2* O1@2", "U1 R{1} R{0} D1 R{2}"),
    "aligned_never_timeoutable_checkpoint": (2, f"B1@0 {OVER} b1 B1@1", "T1 R{0,1}"),
    "aligned_never_timeoutable_savepoint": (2, f"S1@0 {OVER} b1 S1@1", "T1 R{0,1}"),
    "timeout_alignment": (2, f"O1@0 N1@1 {OVER} !1 O1@1", "U1 R{0} V{1} D1 R{1}"),
    "timeout_alignment_after_processing_barrier": (3, f"O1@0 {OVER} O1@1 b2* O1@2", "U1 R{1} R{0} D1 R{2}"),
    "timeout_alignment_on_first_barrier": (2, f"N1@0 N1@1 {OVER} O1@1 O1@0", "U1 R{1} V{0} D1 R{0}"),
    "timeout_alignment_before_first_barrier": (2, f"{OVER} O1@0 b1* O1@1", "U1 R{0} D1 R{1}"),
    "active_timeout_after_local_barrier_passive_timeout": (
        3,
        f"O1@0 N1@1 {OVER} N1@2 !1 O1@1 O1@2",
        "U1 R{0} V{1} V{2} R{1} D1 R{2}",
    ),
    "timeout_alignment_when_local_barrier_first": (
        3,
        f"O1@0 N1@1 {OVER} O1@1 b2* O1@2",
        "U1 R{1} R{0} D1 R{2}",
    ),
    "active_timeout_before_first_announcement_passive_timeout": (
        3,
        f"N1@0 {OVER} N1@1 O1@1 O1@0 b2* O1@2",
        "V{0} V{1} U1 R{1} R{0} D1 R{2}",
    ),
    "timeout_alignment_on_announcement_for_second_checkpoint": (
        2,
        f"O1@0 O1@1 N2@0 {OVER} N2@1 O2@0 O2@1",
        "T1 R{0,1} V{0} V{1} U2 R{0} D2 R{1}",
    ),
    "passive_timeout_alignment_on_announcement": (2, f"{OVER} N1@0 O1@0 O1@1", "V{0} U1 R{0} D1 R{1}"),
    "active_timeout_alignment_on_first_barrier": (2, f"N1@0 O1@0 {OVER} !1 b1* O1@1", "U1 R{0} D1 R{1}"),
    "all_channels_unblocked_after_timeout": (3, f"O1@0 O1@1 {OVER} !1", "U1 R{0,1}"),
    "active_timeout_alignment_on_announcement": (2, f"N1@0 {OVER} !1 O1@0 O1@1", "V{0} U1 R{0} D1 R{1}"),
    "active_timeout_after_announcement_passive_timeout": (
        2,
        f"N1@0 {OVER} N1@1 !1 O1@0 O1@1",
        "V{0} V{1} U1 R{0} D1 R{1}",
    ),
    "active_timeout_after_barrier_passive_timeout": (2, f"N1@0 {OVER} O1@0 !1 O1@1", "U1 R{0} D1 R{1}"),
    "timeout_alignment_on_unaligned_checkpoint": (2, f"U1@0 b1x2* {OVER} !1 U1@1", "U1 R{0} D1 R{1}"),
    "timeout_alignment_after_received_end_of_partition": (3, f"E0 N1@1 {OVER} !1 O1@1 O1@2", "V{1} U1 R{1} D1 R{2}"),
    "start_new_checkpoint_via_announcement": (2, "N1@0 O1@0 N2@1 O2@1 O2@0", "As1 R{0} T2 R{0,1}"),
    "previous_handler_reset": (2, "U0@0 S1@1 U2@0 S3@1 S3@0", "U0 R{0} As0 As1 R{1} U2 R{0} As2 T3 R{0,1}"),
    "out_of_order_barrier": (2, "B10@0 S5@1 B10@1", "R{1} T10 R{0,1}"),
    "the_last_barrier_is_late_and_aligned": (2, f"O1@0 {OVER} O1@1", "T1 R{0,1}"),
    "the_last_barrier_overtook": (2, "O1@0 U1@1", "U1 D1 R{1} R{0}"),
    "the_end_of_a_channel_completes_an_alignment": (2, "O1@0 E1", "T1 R{0}"),
    "one_channel_overtakes": (1, "U1@0", "U1 D1 R{0}"),
    "one_channel_announced": (1, "N1@0 O1@0", "T1 R{0}"),
    "one_channel_announced_and_overtakes": (1, "N1@0 U1@0", "U1 D1 R{0}"),
    "one_channel_timed_out": (1, f"N1@0 {OVER} !1 O1@0", "V{0} U1 D1 R{0}"),
    "cancelled_while_announced": (2, "N1@0 C1@1 O1@0", "A1 R{0}"),
    "cancelled_while_overtaking": (2, f"N1@0 {OVER} !1 C1@1 O1@0", "V{0} A1 R{0}"),
    "superseded_while_announced": (2, "N1@0 N2@1 O1@0 O2@1 O2@0", "As1 R{0} T2 R{0,1}"),
}


def alternating(channel_count: int, end_of_channel: EndOfChannel = EndOfChannel.IS_ALIGNED) -> Played:
    return Played(ExactlyOnceHandler(channel_count, end_of_channel=end_of_channel))


@pytest.mark.parametrize("name", CASES)
def test_a_script_causes_the_listed_actions(name: str) -> None:
    channel_count, script, expected = CASES[name]
    played = alternating(channel_count).play(script)
    assert played.text == expected
    assert played.captured == played.starred


@pytest.mark.parametrize("name", [name for name in CASES if name != "all_channels_unblocked_after_timeout"])
def test_nothing_is_blocked_captured_or_timed_after_a_checkpoint(name: str) -> None:
    channel_count, script, _ = CASES[name]
    played = alternating(channel_count).play(script)
    assert played.handler.pending_checkpoint_ids == ()
    assert not played.handler.blocked_channels
    assert not played.handler.captured_channels
    gone_off = {int(token[1:]) for token in script.split() if token[0] == "!"}
    assert played.timers.keys() <= gone_off


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("+300 N1@0", TIMEOUT_MS),
        ("+300 O1@0", TIMEOUT_MS),
        ("+300 S1@0", None),
        ("+300 B1@0", None),
        ("+300 U1@0", None),
    ],
)
def test_the_timer_counts_from_the_creation_of_the_barrier(script: str, expected: int | None) -> None:
    assert alternating(2).play(script).timers.get(1) == expected


@pytest.mark.parametrize("script", ["O1@0 O1@1", "O1@0 C1@1", "O1@0 N2@1", "N1@0 U1@1", "O1@0 E1"])
def test_the_timer_does_nothing_after_the_checkpoint(script: str) -> None:
    played = alternating(2).play(script)
    assert 1 not in played.timers
    assert played.play("!1").text == alternating(2).play(script).text
    assert StopTimer(1) in played.actions


def test_the_checkpoint_after_a_timed_out_one_is_aligned_again() -> None:
    played = alternating(2)
    played.created_ms = {2: TIMEOUT_MS}
    played.play(f"N1@0 {OVER} !1 O1@0 O1@1 N2@0 N2@1 O2@0 O2@1")
    assert played.text == "V{0} U1 R{0} D1 R{1} T2 R{0,1}"


def test_a_timer_is_registered_once() -> None:
    played = alternating(3).play("N1@0 N1@1 O1@0 O1@1 N1@2")
    assert played.of(StartTimer) == [StartTimer(1, TIMEOUT_MS)]


@pytest.mark.parametrize("script", ["N1@0 +70 O1@0", "N1@0 +70 U1@0", f"N1@0 {OVER} !1 O1@0"])
def test_alignment_of_an_announced_checkpoint_starts_at_the_first_barrier(script: str) -> None:
    (trigger,) = alternating(1).play(script).of(Trigger)
    assert trigger.alignment_ms == 0
    assert trigger.start_delay_ms in (70, TIMEOUT_MS)


def test_alignments_of_both_kinds_have_metrics() -> None:
    triggers = alternating(2).play("S1@0 +70 S1@1 U2@0 +70 U2@1").of(Trigger)
    assert [one.alignment_ms for one in triggers] == [70, 0]


def test_a_hundred_alternating_checkpoints_are_each_triggered_once() -> None:
    channels = 123
    played = alternating(channels)
    for checkpoint_id in range(channels):
        kind = "US"[checkpoint_id % 2]
        order = [(checkpoint_id + one) % channels for one in range(channels)]
        played.play(" ".join(f"{kind}{checkpoint_id}@{channel}" for channel in order))
    assert [one.barrier.checkpoint_id for one in played.of(Trigger)] == list(range(channels))


def test_records_processed_during_alignment_are_not_counted_as_captured() -> None:
    played = alternating(2).play(f"O1@0 b1 b1 {OVER} !1 b1* O1@1")
    (trigger,), (complete,) = played.of(Trigger), played.of(CaptureComplete)
    assert (trigger.alignment_bytes, complete.captured_bytes) == (2 * BUFFER_BYTES, BUFFER_BYTES)


def test_a_fired_timer_is_not_cancelled() -> None:
    assert StopTimer(1) not in alternating(2).play(f"O1@0 {OVER} !1 b1* O1@1").actions
