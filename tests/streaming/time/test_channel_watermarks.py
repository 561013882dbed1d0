from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import ChannelTimestamp, ChannelWatermark, IllegalTransitionError
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.time.channel_watermarks import ChannelWatermarks, SourceElement, SourceTime
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkStatus

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE


class One:
    """A job with one source, in short form."""

    def __init__(
        self, bound_ms: int | None = 0, idleness_ms: int | None = None, *, has_channels: bool = True, most: int = 100
    ) -> None:
        self.time = SourceTime(
            out_of_orderness_ms=bound_ms, idleness_ms=idleness_ms, has_channels=has_channels, max_channels=most
        )
        self.channels = ChannelWatermarks({"s": self.time})

    def epoch(self, now_ms: int = 0, /, **largest_ms: int) -> list[int | str]:
        """``epoch(now, a=5)``: watermarks as numbers, statuses as texts."""
        reported = [ChannelTimestamp("s", "" if name == "_" else name, time) for name, time in largest_ms.items()]
        return shown(self.channels.end_epoch(reported, now_ms))

    def restored(self, time: SourceTime | None = None) -> One:
        other = One()
        other.channels = ChannelWatermarks({"s": time or self.time})
        other.channels.restore(self.channels.snapshot(), {"s": self.channels.watermark_of("s")})
        return other

    @property
    def names(self) -> list[str]:
        return [one.channel for one in self.channels.snapshot()]


def shown(elements: Sequence[SourceElement]) -> list[int | str]:
    return [one.element.timestamp_ms if isinstance(one.element, Watermark) else one.element.value for one in elements]


def test_an_epoch_determines_the_watermark_of_the_next_one() -> None:
    source = One(5, has_channels=False)
    assert source.epoch(_=100) == [94]
    assert source.epoch(_=90) == []
    assert source.epoch() == []
    assert source.epoch(_=101) == [95]


def test_the_slowest_channel_determines_the_watermark_of_the_source() -> None:
    source = One()
    assert source.epoch(a=100, b=51) == [50]
    assert source.epoch(b=61) == [60]
    assert source.epoch(a=200) == []
    assert source.epoch(b=301) == [199]


def test_a_channel_may_be_reported_by_several_tasks() -> None:
    channels = ChannelWatermarks({"s": SourceTime(out_of_orderness_ms=0)})
    reported = [ChannelTimestamp("s", "", time) for time in (5, 9, 7)]
    assert shown(channels.end_epoch(reported, 0)) == [8]


def test_sources_have_separate_watermarks_and_bounds() -> None:
    channels = ChannelWatermarks({"s": SourceTime(out_of_orderness_ms=0), "t": SourceTime(out_of_orderness_ms=10)})
    sent = channels.end_epoch([ChannelTimestamp("t", "", 50), ChannelTimestamp("s", "", 50)], 0)
    assert sent == (SourceElement("s", Watermark(49)), SourceElement("t", Watermark(39)))


def test_a_channel_that_becomes_active_is_reported_before_another_becomes_idle() -> None:
    time = SourceTime(out_of_orderness_ms=0, idleness_ms=10)
    channels = ChannelWatermarks({"s": time, "t": time})
    channels.end_epoch([ChannelTimestamp("t", "", 5)], 0)
    channels.end_epoch([ChannelTimestamp("s", "", 9)], 11)
    sent = channels.end_epoch([ChannelTimestamp("t", "", 7)], 22)
    assert sent == (SourceElement("t", ACTIVE), SourceElement("t", Watermark(6)), SourceElement("s", IDLE))


def test_a_channel_without_records_longer_than_the_timeout_is_ignored() -> None:
    source = One(idleness_ms=100)
    assert source.epoch(0, a=11, b=6) == [5]
    assert source.channels.idleness_times_ms() == [101]
    assert source.epoch(100, a=21) == []
    assert source.epoch(101) == [20]
    assert source.epoch(200) == []
    assert source.epoch(201) == ["idle"]
    assert source.channels.idleness_times_ms() == []
    assert source.epoch(300, b=31) == ["active", 30]


def test_channels_that_become_idle_together_emit_the_largest_watermark_first() -> None:
    source = One(idleness_ms=100)
    source.epoch(0, a=11, b=6, c=31)
    assert source.epoch(101) == [30, "idle"]


def test_a_source_that_never_had_a_record_becomes_idle_too() -> None:
    source = One(idleness_ms=100)
    assert source.epoch(1_000) == []
    assert source.epoch(1_100) == []
    assert source.epoch(1_101) == ["idle"]
    assert source.epoch(1_200, a=5) == ["active", 4]
    assert source.names == ["a"]


def test_idleness_can_count_from_the_start_instead_of_the_first_epoch() -> None:
    source = One(idleness_ms=100)
    source.channels.await_from(1_000)
    source.channels.await_from(2_000)
    assert source.channels.idleness_times_ms() == [1_101]
    assert source.epoch(1_101) == ["idle"]
    source.channels.await_from(3_000)
    assert source.channels.idleness_times_ms() == [], "who is idle is not awaited"


def test_a_channel_that_returns_late_is_ignored_until_it_has_caught_up() -> None:
    source = One(idleness_ms=100)
    source.epoch(0, a=11, b=6)
    source.epoch(90, a=21)
    assert source.epoch(101, a=22) == [21]
    assert source.epoch(110, a=31, b=11) == [30]
    assert source.epoch(120, b=31, a=41) == []
    assert source.epoch(130, b=36) == [35]


def test_a_returning_channel_is_not_overtaken_by_another_of_the_same_epoch() -> None:
    source = One(idleness_ms=100)
    source.epoch(0, a=11, b=6)
    assert source.epoch(101, a=22) == [21]
    assert source.epoch(110, a=101, b=31, new=41) == [30]


def test_a_clock_that_goes_back_makes_no_channel_idle() -> None:
    source = One(idleness_ms=10)
    source.epoch(1_000, a=5, b=3)
    assert source.epoch(0) == []
    assert source.epoch(1_011) == [4, "idle"]


def test_a_source_without_watermarks_becomes_idle_and_stays_so_whatever_it_reads() -> None:
    source = One(None, 10)
    assert source.epoch(0, a=5) == []
    assert source.epoch(11, a=5) == ["idle"]
    assert source.epoch(12, a=5) == []
    assert source.restored().epoch(13, a=5) == []
    assert One(None).epoch(1_000_000, a=5) == []


def test_a_source_that_ends_is_at_the_end_of_time_even_if_it_was_idle() -> None:
    source = One(idleness_ms=10)
    source.epoch(0, a=11, b=6)
    source.epoch(11)
    assert shown(source.channels.end_source("s")) == ["active", MAX_TIMESTAMP]
    assert shown(source.channels.end_source("s")) == []
    assert source.epoch(1_000) == []
    assert source.epoch(1_000, a=7, new=8) == []


def test_times_at_the_ends_of_the_range_stay_within_it() -> None:
    source = One(MAX_TIMESTAMP, has_channels=False)
    assert source.epoch(_=MIN_TIMESTAMP) == []
    assert source.epoch(_=-5) == []
    assert source.epoch(_=MAX_TIMESTAMP) == [-1]
    assert One().epoch(a=MAX_TIMESTAMP) == [MAX_TIMESTAMP - 1]
    late = One(idleness_ms=MAX_TIMESTAMP)
    late.epoch(MAX_TIMESTAMP, a=1)
    assert late.epoch(MAX_TIMESTAMP) == []


def test_an_unknown_source_is_rejected_and_changes_nothing() -> None:
    source = One()
    with pytest.raises(IllegalTransitionError, match="no source 'x'; there are 's'"):
        source.channels.end_epoch([ChannelTimestamp("s", "a", 5), ChannelTimestamp("x", "", 1)], 0)
    with pytest.raises(IllegalTransitionError, match=r"END_SOURCE.*no source 'x'"):
        source.channels.end_source("x")
    assert source.names == [""]


def test_beyond_the_limit_the_longest_idle_channels_are_dropped() -> None:
    source = One(idleness_ms=100, most=3)
    source.epoch(0, a=11, b=21, c=31)
    source.epoch(50, b=22, c=32)
    source.epoch(151, c=33)
    assert [one.is_idle for one in source.channels.snapshot()] == [True, True, False]
    assert source.epoch(160, d=41, c=34) == [33]
    assert source.names == ["b", "c", "d"]


@pytest.mark.parametrize("most", [3, 4, 5])
def test_below_the_limit_no_idle_channel_is_dropped(most: int) -> None:
    source = One(idleness_ms=100, most=most)
    source.epoch(0, a=11, b=21, c=31)
    source.epoch(1)
    source.epoch(200)
    assert [one.is_idle for one in source.channels.snapshot()] == [True, True, True]
    assert source.epoch(250, c=41) == [WatermarkStatus.ACTIVE.value, 40]
    assert source.names == ["a", "b", "c"]


def test_an_active_channel_is_never_dropped() -> None:
    source = One(idleness_ms=100, most=2)
    source.epoch(0, a=11, b=21)
    source.epoch(150, a=12)
    assert [one.is_idle for one in source.channels.snapshot()] == [False, True]
    # After a restore, the last activity of the active channel is unknown.
    for following in (source.restored(), source):
        following.epoch(160, c=31)
        assert following.names == ["a", "c"]


def test_more_active_channels_than_the_limit_are_rejected_without_changes() -> None:
    source = One(idleness_ms=100, most=2)
    source.epoch(0, a=11, b=21)
    before = source.channels.snapshot()
    with pytest.raises(StreamJobError, match="source 's' has more than 2 channels that are not idle; a channel is for"):
        source.epoch(200, a=12, c=31, b=1)
    with pytest.raises(StreamJobError, match="more than 2 channels"):
        source.epoch(200, c=1, d=2, e=3)
    assert source.channels.snapshot() == before
    # Both channels are idle after this epoch, and may be dropped for others.
    source.epoch(200)
    source.epoch(300, c=31, d=41)
    assert source.names == ["c", "d"]


def test_a_snapshot_has_the_state_of_each_channel() -> None:
    source = One(idleness_ms=100)
    source.epoch(0, a=11, b=6)
    source.epoch(150, a=12)
    assert source.channels.snapshot() == (
        ChannelWatermark(source="s", channel="a", largest_timestamp_ms=12, watermark_ms=11, last_active_ms=150),
        ChannelWatermark(
            source="s", channel="b", largest_timestamp_ms=6, watermark_ms=5, last_active_ms=0, is_idle=True
        ),
    )
    assert One().channels.snapshot() == (ChannelWatermark(source="s"),)


def test_a_restored_source_continues_and_counts_idleness_from_its_first_epoch() -> None:
    source = One(idleness_ms=100)
    source.epoch(0, a=11, b=6)
    again = source.restored()
    assert again.epoch(10_000, a=21) == []
    assert again.epoch(10_100, a=22) == []
    assert again.epoch(10_101, a=23) == [22]


def test_a_source_that_loses_or_gains_channels_starts_again_and_never_goes_back() -> None:
    source = One()
    source.epoch(a=100, b=51)
    single = source.restored(SourceTime(out_of_orderness_ms=0))
    assert single.names == [""]
    assert single.epoch(_=40) == []
    assert single.epoch(_=61) == [60]
    several = single.restored(SourceTime(out_of_orderness_ms=0, has_channels=True))
    assert several.epoch(a=50) == []
    assert several.names == ["a"]
    assert several.epoch(a=71) == [70]


def test_a_channel_without_a_name_continues_after_a_restore_if_it_is_the_only_one() -> None:
    source = One()
    source.epoch(_=101)
    again = source.restored()
    assert again.epoch(_=50, a=301) == []
    assert again.names == ["", "a"]
    assert again.epoch(_=201) == [200]


def test_a_larger_bound_after_a_restore_does_not_decrease_the_watermark() -> None:
    source = One()
    source.epoch(a=100)
    slower = source.restored(SourceTime(out_of_orderness_ms=50, has_channels=True))
    assert slower.epoch(a=120) == []
    assert slower.epoch(a=200) == [149]


def test_channels_of_a_removed_source_are_dropped_and_a_new_one_starts() -> None:
    channels = ChannelWatermarks({"new": SourceTime(out_of_orderness_ms=0)})
    channels.restore([ChannelWatermark(source="gone", watermark_ms=5)], {"gone": 5})
    assert channels.snapshot() == (ChannelWatermark(source="new"),)


def test_thousands_of_channels_are_supported() -> None:
    source = One(idleness_ms=10, most=5_000)
    for now in range(3):
        source.epoch(now, **{f"c{at}": 10 * now + at for at in range(5_000)})
    assert source.channels.watermark_of("s") == 19
    assert source.epoch(100) == [5_018, "idle"]


def test_the_channel_before_the_first_record_frees_no_space_when_idle() -> None:
    source = One(idleness_ms=1, most=2)
    source.epoch(0)
    assert source.epoch(5) == ["idle"]
    with pytest.raises(StreamJobError, match="more than 2 channels"):
        source.epoch(6, a=1, b=2, c=3)
    assert source.names == [""]
    source.epoch(6, a=1, b=2)
    assert source.names == ["a", "b"]


times = st.integers(-5, 40) | st.sampled_from([MIN_TIMESTAMP, MAX_TIMESTAMP])
epochs = st.lists(
    st.tuples(st.integers(0, 30), st.dictionaries(st.sampled_from(["_", "a", "b", "c"]), times)), max_size=20
)


@given(epochs, st.sampled_from([None, 1, 20]), st.integers(0, 5), st.sampled_from([2, 3, 100]))
def test_no_order_of_epochs_decreases_a_source(
    epochs: Sequence[tuple[int, Mapping[str, int]]], idleness_ms: int | None, bound_ms: int, most: int
) -> None:
    source, now = One(bound_ms, idleness_ms, most=most), 0
    sent: list[int | str] = []
    for step, largest in epochs:
        now += step
        before = source.channels.snapshot()
        try:
            sent += source.epoch(now, **largest)
        except StreamJobError:
            assert source.channels.snapshot() == before
        assert len(source.names) <= most
    watermarks = [one for one in sent if isinstance(one, int)]
    assert watermarks == sorted(set(watermarks))
    statuses = [one for one in sent if isinstance(one, str)]
    assert statuses == [("idle", "active")[at % 2] for at in range(len(statuses))]


# After a restore, it is not known at once whether a channel "" is one of several. So all channels have names here.
epochs_of_named = st.lists(st.tuples(st.just(0), st.dictionaries(st.sampled_from("abc"), times)), max_size=20)


@given(epochs_of_named, st.integers(0, 20), st.integers(0, 5))
def test_a_snapshot_between_any_two_epochs_changes_only_idleness(
    epochs: Sequence[tuple[int, Mapping[str, int]]], point: int, bound_ms: int
) -> None:
    source = One(bound_ms)
    for _, largest in epochs[:point]:
        source.epoch(0, **largest)
    restored = source.restored()
    for _, largest in epochs[point:]:
        assert restored.epoch(0, **largest) == source.epoch(0, **largest)
    assert restored.channels.watermark_of("s") == source.channels.watermark_of("s")


def test_an_overflow_of_one_source_changes_no_other_source() -> None:
    time = SourceTime(out_of_orderness_ms=0, has_channels=True, max_channels=1)
    channels = ChannelWatermarks({"s": time, "t": time})
    before = channels.snapshot()
    reported = [ChannelTimestamp(source, channel, 5) for source, channel in (("s", "a"), ("t", "a"), ("t", "b"))]
    with pytest.raises(StreamJobError, match="source 't' has more than 1 channels"):
        channels.end_epoch(reported, 0)
    assert channels.snapshot() == before
    assert channels.watermark_of("s") == MIN_TIMESTAMP


def known(
    channel: str, watermark_ms: int | None, *, is_idle: bool = False, last_ms: int | None = None
) -> ChannelWatermark:
    return ChannelWatermark(
        source="s",
        channel=channel,
        largest_timestamp_ms=None if watermark_ms is None else watermark_ms + 1,
        watermark_ms=watermark_ms,
        last_active_ms=last_ms,
        is_idle=is_idle,
    )


def test_when_all_become_idle_the_source_advances_to_the_furthest_channel() -> None:
    source = One(0, 10)
    source.channels.restore(
        [known("furthest", 30, is_idle=True, last_ms=0), known("holds", 10), known("behind", 5)], {"s": 10}
    )
    assert source.epoch(0) == []
    assert source.epoch(11) == [30, "idle"]


def test_a_channel_with_unknown_idle_time_is_dropped_first() -> None:
    source = One(0, 1_000, most=2)
    source.channels.restore([known("lately", 10, is_idle=True, last_ms=50), known("once", 10, is_idle=True)], {"s": 10})
    source.channels.await_from(1_000)
    source.epoch(1_000, new=5)
    assert source.names == ["lately", "new"]


def test_a_source_without_channels_is_idle_only_if_all_were() -> None:
    for others_are_idle, status in ((True, IDLE), (False, ACTIVE)):
        single = One(has_channels=False)
        single.channels.restore(
            [known("a", 10, is_idle=True, last_ms=0), known("b", 10, is_idle=others_are_idle)], {"s": 10}
        )
        assert single.channels.status_of("s") is status


def test_a_finished_source_never_becomes_idle() -> None:
    source = One(0, 10)
    source.epoch(0, a=5)
    assert source.channels.idleness_times_ms() == [11]
    source.channels.end_source("s")
    assert source.channels.idleness_times_ms() == []
