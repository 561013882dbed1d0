"""Cases of FLIP-182: a source that is ahead waits for the others of its group."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import IllegalTransitionError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_alignment import AlignmentGroup


def group(drift_ms: int, **watermarks_ms: int) -> AlignmentGroup[str]:
    made: AlignmentGroup[str] = AlignmentGroup()
    for member, watermark_ms in watermarks_ms.items():
        made.join(member, drift_ms)
        made.watermark(member, watermark_ms)
    return made


def test_a_source_further_ahead_than_the_drift_pauses_until_the_slowest_has_caught_up() -> None:
    sources = group(10, slow=0, near=10, fast=11)
    assert sources.paused() == {"fast"}
    sources.watermark("slow", 1)
    assert sources.paused() == frozenset()


def test_a_group_without_drift_stays_together() -> None:
    assert group(0, a=5, b=5, c=6).paused() == {"c"}


def test_an_idle_member_holds_no_other_and_does_not_pause() -> None:
    sources = group(10, slow=0, fast=20)
    assert sources.paused() == {"fast"}
    sources.idle("slow")
    assert sources.paused() == frozenset()
    sources.idle("fast")
    assert sources.paused() == frozenset()
    sources.watermark("slow", 50)
    sources.watermark("fast", 60)
    assert sources.paused() == frozenset()
    sources.watermark("fast", 61)
    assert sources.paused() == {"fast"}


def test_a_member_without_report_or_that_has_left_holds_no_other() -> None:
    sources = group(10, new=MIN_TIMESTAMP, slow=0, fast=100)
    assert sources.paused() == {"fast"}
    sources.leave("slow")
    assert sources.paused() == frozenset()
    with pytest.raises(IllegalTransitionError, match="'slow' is not a member"):
        sources.leave("slow")


def test_a_watermark_of_a_member_never_goes_back() -> None:
    sources = group(10, a=100, b=110)
    sources.watermark("a", 50)
    assert sources.paused() == frozenset()
    sources.idle("a")
    sources.watermark("a", 50)
    assert sources.paused() == frozenset()


def test_times_at_the_ends_of_the_range_stay_within_it() -> None:
    assert group(MAX_TIMESTAMP, a=MAX_TIMESTAMP - 1, b=MAX_TIMESTAMP).paused() == frozenset()
    assert group(10, a=MIN_TIMESTAMP + 1, b=MAX_TIMESTAMP).paused() == {"b"}


def test_each_member_has_its_own_drift() -> None:
    sources = group(10, slow=0, near=50)
    sources.join("far", 100)
    sources.watermark("far", 50)
    assert sources.paused() == {"near"}


def test_foreign_members_are_rejected() -> None:
    sources = group(10, a=1)
    with pytest.raises(IllegalTransitionError, match="'a' is a member of the group already"):
        sources.join("a", 5)
    for event in (lambda: sources.watermark("b", 1), lambda: sources.idle("b")):
        with pytest.raises(IllegalTransitionError, match="'b' is not a member"):
            event()
    for drift_ms in (-1, 1.5, 1 << 63):
        with pytest.raises(ValueError, match="the drift of"):
            sources.join("b", drift_ms)  # type: ignore[arg-type]
    assert sources.paused() == frozenset()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 40) | st.none())), st.integers(0, 20))
def test_one_member_can_always_continue(events: Sequence[tuple[str, int | None]], drift_ms: int) -> None:
    sources = group(drift_ms, a=MIN_TIMESTAMP, b=MIN_TIMESTAMP, c=MIN_TIMESTAMP)
    for member, time in events:
        if time is None:
            sources.idle(member)
        else:
            sources.watermark(member, time)
        assert sources.paused() < {"a", "b", "c"}
