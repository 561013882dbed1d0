"""Sections of metadata: the values that they reject, and how two sections are merged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statebackend.checkpoint import InvariantViolationError
from statebackend.checkpoint.metadata import (
    ChannelTimestamp,
    ChannelWatermark,
    NodeWatermark,
    TimersDue,
    WatermarkState,
    check_distinct_channels,
)


def test_merging_keeps_the_earlier_timer_of_each_kind() -> None:
    one, other = TimersDue("a", 5, 70), TimersDue("a", 6, 60)
    assert one.earliest(other) == other.earliest(one) == TimersDue("a", 5, 60)
    assert TimersDue("a").earliest(TimersDue("a", None, 60)) == TimersDue("a", None, 60)
    assert TimersDue("a", 5).earliest(TimersDue("a", None, 60)) == TimersDue("a", 5, 60)
    assert TimersDue("a").earliest(TimersDue("a")) == TimersDue("a")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WatermarkState(nodes=(NodeWatermark(node="a"), NodeWatermark(node="a"))), "a node appears twice"),
        (
            lambda: WatermarkState(channels=(ChannelWatermark(source="a"), ChannelWatermark(source="a"))),
            "a channel appears twice",
        ),
        (
            lambda: check_distinct_channels([ChannelTimestamp("a", "x", time_ms) for time_ms in (1, 2)]),
            "a channel appears twice",
        ),
    ],
)
def test_duplicates_in_a_section_are_rejected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(InvariantViolationError, match=message):
        build()


def test_channels_of_one_name_belong_to_their_sources() -> None:
    check_distinct_channels([ChannelTimestamp(source, "x", 1) for source in ("a", "b")])
