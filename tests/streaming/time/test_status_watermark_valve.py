from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from golden_time_traces import as_recorded, element_of, scenarios
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.status_watermark_valve import StatusWatermarkValve, ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkElement, WatermarkStatus

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE
TRACES = scenarios("status_watermark_valve")


@pytest.mark.parametrize("scenario", TRACES, ids=[one["name"] for one in TRACES])
def test_it_sends_the_output_of_the_flink_valve(scenario: dict[str, Any]) -> None:
    valve = StatusWatermarkValve(range(scenario["operator"]["channels"]))
    sent = [
        entry
        for at, event in enumerate(scenario["input"])
        for entry in as_recorded(at, valve.take(event["channel"], element_of(event)))
    ]
    assert sent == scenario["expected"]


def played(valve: StatusWatermarkValve[int], script: str) -> str:
    """``12@0 idle1 active1`` for events, each after a bar with its output."""
    steps = []
    for word in script.split():
        if "@" in word:
            timestamp, channel = word.split("@")
            sent = valve.input_watermark(int(channel), int(timestamp))
        else:
            sent = valve.input_status(int(word[-1]), WatermarkStatus(word[:-1]))
        texts = [str(one.timestamp_ms) if isinstance(one, Watermark) else one.name for one in sent]
        steps.append(",".join(texts) or "-")
    return " ".join(steps)


FLINKS_TESTS = [
    # (the case of Flink's StatusWatermarkValveTest, channels, events, what each of them sends)
    ("SingleInputIncreasingWatermarks", 1, "0@0 25@0", "0 25"),
    ("SingleInputDecreasingWatermarks", 1, "25@0 18@0 42@0", "25 - 42"),
    ("SingleInputStatusToggling", 1, "active0 idle0 idle0 active0 active0", "- IDLE - ACTIVE -"),
    ("SingleInputWatermarksIntactDuringIdleness", 1, "25@0 idle0 50@0 active0 50@0", "25 IDLE - ACTIVE 50"),
    ("MultipleInputYieldsOnlyWhenAllChannelsReceived", 3, "0@0 0@1 0@2", "- - 0"),
    (
        "MultipleInputIncreasingWatermarks",
        3,
        "0@0 0@1 0@2 12@0 8@2 10@2 15@1 17@2 20@0",
        "- - 0 - - - 10 12 15",
    ),
    ("MultipleInputDecreasingWatermarks", 3, "25@0 10@1 17@2 12@0 8@1 15@2", "- - 10 - - -"),
    ("MultipleInputStatusToggling", 2, "idle0 idle1 active1 active0", "- IDLE ACTIVE -"),
    ("AdvancingWithPartiallyIdleChannels", 3, "15@0 10@1 idle2 18@1 20@0", "- - 10 15 18"),
    ("AdvancingAsChannelsIndividuallyBecomeIdle", 3, "25@0 10@1 17@2 idle1 idle2", "- - 10 17 25"),
    ("FlushMaxWatermarkAndStatusOnceAllIdle", 3, "10@0 5@1 3@2 idle0 idle1 idle2", "- - 3 - - 10,IDLE"),
    (
        "RealignmentAfterResumeActive",
        3,
        "10@0 7@1 3@2 idle2 active2 5@2 9@2 12@1",
        "- - 3 7 - - - 9",
    ),
    (
        "NoOutputWhenAllActiveChannelsAreUnaligned",
        3,
        "10@0 7@1 idle2 idle1 active1 idle0 active2",
        "- - 7 10 - - -",
    ),
    (
        "UnalignedActiveChannelBecomesIdle",
        2,
        "10@0 7@1 idle1 active1 8@1 idle1",
        "- 7 10 - - -",
    ),
    (
        "WatermarkAdvancesWhenReactivatedChannelBecomesOnlyAlignedChannel",
        3,
        "10@0 7@1 3@2 idle0 idle2 active2 idle1 active0",
        "- - 3 - 7 - - 10",
    ),
]


@pytest.mark.parametrize(
    ("channels", "events", "sent"), [case[1:] for case in FLINKS_TESTS], ids=[c[0] for c in FLINKS_TESTS]
)
def test_it_passes_the_test_cases_of_flink(channels: int, events: str, sent: str) -> None:
    assert played(StatusWatermarkValve(range(channels)), events) == sent


def test_a_valve_that_becomes_active_sends_its_status_before_a_watermark() -> None:
    valve = StatusWatermarkValve(range(3))
    events = "22@0 20@1 5@2 idle2 12@2 active2 idle0 idle1 idle2 active0"
    assert played(valve, events) == "- - 5 20 - - - - IDLE ACTIVE,22"


def test_an_added_channel_is_ignored_until_it_has_caught_up() -> None:
    valve = StatusWatermarkValve([0])
    assert played(valve, "10@0") == "10"
    assert valve.add_channel(1) == ()
    assert played(valve, "20@0 15@1 20@1 30@0 25@1") == "20 - - - 25"


def test_a_removed_channel_holds_nothing() -> None:
    valve = StatusWatermarkValve([0, 1])
    assert played(valve, "10@0 5@1") == "- 5"
    assert valve.remove_channel(1) == (Watermark(10),)
    assert valve.channels == (0,)


def test_the_end_of_time_of_all_channels_passes_and_nothing_after_it() -> None:
    valve = StatusWatermarkValve([0, 1])
    assert valve.input_watermark(0, MAX_TIMESTAMP) == ()
    assert valve.input_watermark(1, MAX_TIMESTAMP) == (Watermark(MAX_TIMESTAMP),)
    assert valve.input_watermark(1, MAX_TIMESTAMP) == ()
    assert valve.input_watermark(0, MIN_TIMESTAMP) == ()


def test_foreign_events_are_rejected_and_change_nothing() -> None:
    valve = StatusWatermarkValve([0])
    valve.input_watermark(0, 7)
    before = valve.snapshot()
    with pytest.raises(IllegalTransitionError, match=r"WATERMARK.*ACTIVE.*no channel 3"):
        valve.input_watermark(3, 8)
    with pytest.raises(IllegalTransitionError, match=r"IDLE.*no channel 3"):
        valve.input_status(3, IDLE)
    with pytest.raises(IllegalTransitionError, match="channel 0 exists already"):
        valve.add_channel(0)
    with pytest.raises(IllegalTransitionError, match="only channel"):
        valve.remove_channel(0)
    for no_time in (1.5, MAX_TIMESTAMP + 1, True, None):
        with pytest.raises(ValueError, match="whole number of 64 bits"):
            valve.input_watermark(0, no_time)  # type: ignore[arg-type]
    assert valve.snapshot() == before


@pytest.mark.parametrize("channels", [(), (1, 1)])
def test_a_valve_without_channels_or_with_a_duplicate_is_rejected(channels: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="needs at least one channel"):
        StatusWatermarkValve(channels)


class NaiveValve:
    """The rules of Flink's valve literally: stored alignment, and a linear search for each minimum."""

    def __init__(self, channels: int) -> None:
        self.watermarks = [MIN_TIMESTAMP] * channels
        self.idle = [False] * channels
        self.aligned = [True] * channels
        self.last = MIN_TIMESTAMP

    def take(self, channel: int, element: WatermarkElement) -> list[WatermarkElement]:
        if isinstance(element, Watermark):
            if self.idle[channel] or element.timestamp_ms <= self.watermarks[channel]:
                return []
            self.watermarks[channel] = element.timestamp_ms
            if element.timestamp_ms >= self.last:
                self.aligned[channel] = True
            return self.smallest_aligned()
        if self.idle[channel] == element.is_idle:
            return []
        if element.is_idle:
            self.idle[channel], self.aligned[channel] = True, False
            held = self.watermarks[channel] == self.last
            if not all(self.idle):
                return self.smallest_aligned() if held else []
            return [*(self.up_to(max(self.watermarks)) if held else []), IDLE]
        woken = all(self.idle)
        self.idle[channel] = False
        self.aligned[channel] = self.watermarks[channel] >= self.last
        return [*([ACTIVE] if woken else []), *self.smallest_aligned()]

    def smallest_aligned(self) -> list[WatermarkElement]:
        found = [one for one, aligned in zip(self.watermarks, self.aligned, strict=True) if aligned]
        return self.up_to(min(found)) if found else []

    def up_to(self, watermark_ms: int) -> list[WatermarkElement]:
        if watermark_ms <= self.last:
            return []
        self.last = watermark_ms
        return [Watermark(watermark_ms)]


times = st.one_of(
    st.integers(0, 12), st.sampled_from([MIN_TIMESTAMP, MIN_TIMESTAMP + 1, MAX_TIMESTAMP - 1, MAX_TIMESTAMP])
)
elements = st.one_of(st.builds(Watermark, times), st.sampled_from(list(WatermarkStatus)))
events = st.lists(st.tuples(st.integers(0, 3), elements), max_size=40)


@given(events)
def test_it_follows_the_rules_and_never_goes_back(events: Sequence[tuple[int, WatermarkElement]]) -> None:
    valve, naive = StatusWatermarkValve(range(4)), NaiveValve(4)
    sent: list[WatermarkElement] = []
    for channel, element in events:
        now = valve.take(channel, element)
        assert list(now) == naive.take(channel, element)
        sent += now
    watermarks = [one.timestamp_ms for one in sent if isinstance(one, Watermark)]
    assert watermarks == sorted(set(watermarks))
    assert MIN_TIMESTAMP not in watermarks
    statuses = [one for one in sent if isinstance(one, WatermarkStatus)]
    assert statuses == [(IDLE, ACTIVE)[at % 2] for at in range(len(statuses))]
    for before, after in itertools.pairwise(sent):
        assert before is not IDLE or after is ACTIVE, "a watermark was sent while idle"


@given(events, st.integers(0, 40))
def test_a_snapshot_at_any_point_continues_like_the_valve_itself(
    events: Sequence[tuple[int, WatermarkElement]], point: int
) -> None:
    valve = StatusWatermarkValve(range(4))
    for channel, element in events[:point]:
        valve.take(channel, element)
    restored = StatusWatermarkValve.restored(valve.snapshot())
    for channel, element in events[point:]:
        assert restored.take(channel, element) == valve.take(channel, element)
    assert restored.snapshot() == valve.snapshot()


@given(events, st.dictionaries(st.integers(0, 3), times))
def test_simultaneous_watermarks_equal_those_in_rising_order(
    events: Sequence[tuple[int, WatermarkElement]], at_once: dict[int, int]
) -> None:
    valve = StatusWatermarkValve(range(4))
    for channel, element in events:
        valve.take(channel, element)
    in_order = StatusWatermarkValve.restored(valve.snapshot())
    for channel in sorted(at_once, key=at_once.__getitem__):
        in_order.input_watermark(channel, at_once[channel])
    assert len(valve.input_watermarks(at_once)) <= 1
    assert valve.snapshot() == in_order.snapshot()


def test_a_snapshot_has_plain_values() -> None:
    valve = StatusWatermarkValve(["a", "b"])
    valve.input_watermark("a", 5)
    valve.input_status("b", IDLE)
    assert valve.snapshot() == ValveState(5, (ValveChannel("a", 5, False), ValveChannel("b", MIN_TIMESTAMP, True)))


def test_a_thousand_channels_in_step_emit_every_step_once() -> None:
    valve = StatusWatermarkValve(range(1000))
    sent = [one for step in range(1, 6) for channel in range(1000) for one in valve.input_watermark(channel, step)]
    assert sent == [Watermark(step) for step in range(1, 6)]


def test_a_null_among_watermarks_is_rejected_without_changes() -> None:
    valve = StatusWatermarkValve(["a", "b"])
    with pytest.raises(ValueError, match="whole number of 64 bits"):
        valve.input_watermarks({"a": 5, "b": MAX_TIMESTAMP + 1})
    assert valve.snapshot() == StatusWatermarkValve(["a", "b"]).snapshot()
    assert valve.input_watermark("b", 3) == ()
