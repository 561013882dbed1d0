"""The barrier tables: an event that is not listed raises an error and changes nothing. The docs show these tables."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import pytest

from statebackend.checkpoint.barriers.elements import BarrierHandler, CheckpointBarrier
from statebackend.checkpoint.barriers.exactly_once import (
    EXACTLY_ONCE_TRANSITIONS,
    AlignmentEvent,
    AlignmentPhase,
    AlignmentStep,
    ExactlyOnceHandler,
    exactly_once_as_text,
)
from statebackend.checkpoint.barriers.tracker import (
    AT_LEAST_ONCE_TRANSITIONS,
    BarrierTracker,
    TrackedPhase,
    TrackingEvent,
    TrackingStep,
    at_least_once_as_text,
)
from statebackend.checkpoint.errors import IllegalTransitionError, InvariantViolationError
from tests.checkpoint.barriers.barrier_notation import Played

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "barrier-tables.md"

# Events that no channel can cause in this phase, because nothing is pending or the pending part does not exist yet.
NOT_LISTED = {
    AlignmentPhase.IDLE: {
        AlignmentEvent.LAST_CHANNEL_ENDED,
        AlignmentEvent.BARRIER_LOST,
        AlignmentEvent.TIMED_OUT,
        AlignmentEvent.SUPERSEDED,
    },
    AlignmentPhase.ANNOUNCED: {AlignmentEvent.LAST_CHANNEL_ENDED},
    AlignmentPhase.OVERTAKING: {
        AlignmentEvent.LAST_CHANNEL_ENDED,
        AlignmentEvent.ALIGNED_BARRIER,
        AlignmentEvent.LAST_ALIGNED_BARRIER,
        AlignmentEvent.TIMED_OUT,
    },
    AlignmentPhase.ALIGNING: set(),
    AlignmentPhase.CAPTURING: {
        AlignmentEvent.ALIGNED_BARRIER,
        AlignmentEvent.LAST_ALIGNED_BARRIER,
        AlignmentEvent.TIMED_OUT,
    },
}


def test_every_pair_of_phase_and_event_is_listed_or_impossible() -> None:
    for phase, seen in itertools.product(AlignmentPhase, AlignmentEvent):
        assert ((phase, seen) in EXACTLY_ONCE_TRANSITIONS) != (seen in NOT_LISTED[phase]), (phase, seen)
    for tracked, heard in itertools.product(TrackedPhase, TrackingEvent):
        is_end_of_unknown = tracked is TrackedPhase.UNKNOWN and heard in (
            TrackingEvent.CHANNEL_ENDED,
            TrackingEvent.LAST_CHANNEL_ENDED,
        )
        assert ((tracked, heard) in AT_LEAST_ONCE_TRANSITIONS) != is_end_of_unknown, (tracked, heard)


def test_every_transition_is_in_a_table() -> None:
    assert {step for _, steps in EXACTLY_ONCE_TRANSITIONS.values() for step in steps} == set(AlignmentStep)
    assert {step for _, steps in AT_LEAST_ONCE_TRANSITIONS.values() for step in steps} == set(TrackingStep)


def test_a_snapshot_is_taken_once_per_checkpoint_and_only_if_barriers_are_expected() -> None:
    triggers = {AlignmentStep.TRIGGER, AlignmentStep.TRIGGER_UNALIGNED}
    for (phase, _), (following, steps) in EXACTLY_ONCE_TRANSITIONS.items():
        count = len(triggers.intersection(steps))
        if phase is AlignmentPhase.CAPTURING:
            assert count == 0
        assert count == (1 if count else 0)
        if following is AlignmentPhase.CAPTURING and phase is not AlignmentPhase.CAPTURING:
            assert AlignmentStep.TRIGGER_UNALIGNED in steps


def test_the_document_shows_the_tables() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert exactly_once_as_text() in text
    assert at_least_once_as_text() in text


@pytest.mark.parametrize(
    ("before", "event", "message"),
    [
        ("E0", "b0", "channel 0 has ended"),
        ("E0", "B1@0", "channel 0 has ended"),
        ("E0", "E0", "channel 0 has ended"),
        ("E0", "C1@0", "channel 0 has ended"),
        ("E0", "N1@0", "channel 0 has ended"),
        ("b0", "B1@7", "there is none"),
        ("B1@0", "b0", "channel 0 is blocked after barrier 1"),
        ("B1@0", "B1@0", "channel 0 is blocked after barrier 1"),
        ("B1@0", "B2@0", "channel 0 is blocked after barrier 1"),
        ("B1@0", "C1@0", "channel 0 is blocked after barrier 1"),
        ("B1@0", "E0", "channel 0 is blocked after barrier 1"),
        ("U1@0", "U1@0", "channel 0 has delivered it already"),
        ("N1@0", "N1@0", "channel 0 has announced or delivered it already"),
        ("U1@0", "N1@0", "channel 0 has announced or delivered it already"),
        ("N1@0", "E0", "channel 0 has announced a barrier"),
    ],
)
def test_an_impossible_delivery_is_an_error_that_changes_nothing(before: str, event: str, message: str) -> None:
    played = Played(ExactlyOnceHandler(2)).play(before)
    _rejected(played, event, message)


@pytest.mark.parametrize(
    ("before", "event", "message"),
    [
        ("E0", "b0", "channel 0 has ended"),
        ("E0", "B1@0", "channel 0 has ended"),
        ("E0", "E0", "channel 0 has ended"),
        ("B1@0", "B1@0", "channel 0 has delivered it already"),
        ("B1@0", "B1@2", "there is none"),
    ],
)
def test_the_tracker_rejects_an_impossible_delivery(before: str, event: str, message: str) -> None:
    played = Played(BarrierTracker(2)).play(before)
    _rejected(played, event, message)


@pytest.mark.parametrize("handler", [ExactlyOnceHandler, BarrierTracker])
def test_a_task_without_channels_expects_no_barriers(handler: type) -> None:
    with pytest.raises(InvariantViolationError, match="at least one channel"):
        handler(0)


def test_a_savepoint_is_never_unaligned() -> None:
    with pytest.raises(InvariantViolationError, match="savepoint 3 cannot be unaligned"):
        CheckpointBarrier(checkpoint_id=3, is_savepoint=True, is_unaligned=True)
    with pytest.raises(InvariantViolationError, match="after -1 ms"):
        CheckpointBarrier(checkpoint_id=3, alignment_timeout_ms=-1)


def _rejected(played: Played, event: str, message: str) -> None:
    before = _pickled(played.handler)
    with pytest.raises(IllegalTransitionError, match=message):
        played.play(event)
    assert _pickled(played.handler) == before


def _pickled(handler: BarrierHandler) -> bytes:
    # The complete internal state of the handler.
    return pickle.dumps(handler)
