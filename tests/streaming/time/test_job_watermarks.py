from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import ChannelTimestamp, NodeWatermark, WatermarkState
from statebackend.streaming.time.channel_watermarks import SourceTime
from statebackend.streaming.time.job_watermarks import JobWatermarks, WatermarkNode, watermark_state
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark

NODES = [
    WatermarkNode(id="left"),
    WatermarkNode(id="right"),
    WatermarkNode(id="both", inputs=(("left", "right"),), is_transparent=True),
    WatermarkNode(id="count", inputs=(("both",),)),
    WatermarkNode(id="join", inputs=(("count",), ("right",))),
]
SOURCES = {
    "left": SourceTime(out_of_orderness_ms=0, idleness_ms=100, has_channels=True),
    "right": SourceTime(out_of_orderness_ms=10),
}


def seen(**largest_ms: int) -> list[ChannelTimestamp]:
    """``seen(right=5, p1=7)``: names that begin with p are channels of the left source."""
    return [
        ChannelTimestamp("right", "", time) if name == "right" else ChannelTimestamp("left", name, time)
        for name, time in largest_ms.items()
    ]


def watermarks_of(job: JobWatermarks) -> dict[str, int]:
    return {name: job.watermark_of(name) for name in ("left", "right", "count", "join")}


def test_task_timestamps_of_an_epoch_advance_the_operators_in_the_next() -> None:
    job = JobWatermarks(NODES, SOURCES)
    assert job.end_epoch(seen(p1=101, p2=51), 0) == ()
    done = job.end_epoch(seen(right=71), 1)
    assert [(one.node, one.element) for one in done] == [("count", Watermark(50)), ("join", Watermark(50))]
    assert watermarks_of(job) == {"left": 50, "right": 60, "count": 50, "join": 50}
    job.end_epoch([], 200)
    assert watermarks_of(job) == {"left": 100, "right": 60, "count": 60, "join": 60}


def test_a_job_with_only_finished_sources_is_at_the_end_of_time() -> None:
    job = JobWatermarks(NODES, SOURCES)
    job.end_epoch(seen(p1=101, right=5), 0)
    for source in SOURCES:
        job.end_source(source)
    assert set(watermarks_of(job).values()) == {MAX_TIMESTAMP}


def test_a_job_with_finished_sources_reads_on_after_a_restore() -> None:
    job = JobWatermarks(NODES, SOURCES)
    job.end_epoch(seen(p1=101, right=71), 0)
    for source in SOURCES:
        job.end_source(source)
    again = JobWatermarks(NODES, SOURCES)
    assert again.restore(job.snapshot()) == ()
    again.end_epoch(seen(p1=90, right=75), 0)
    assert watermarks_of(again) == {"left": 100, "right": 64, "count": 64, "join": 64}


def test_a_checkpoint_has_all_watermarks() -> None:
    job = JobWatermarks(NODES, SOURCES)
    job.end_epoch(seen(p1=101, p2=51, right=71), 0)
    state = job.snapshot()
    assert state.watermark_ms == 50
    assert [(one.source, one.channel) for one in state.channels] == [("left", "p1"), ("left", "p2"), ("right", "")]
    assert [one.node for one in state.nodes] == ["left", "right", "count", "join"]


def test_a_job_continues_from_a_checkpoint_with_channels_only() -> None:
    job = JobWatermarks(NODES, SOURCES)
    job.end_epoch(seen(p1=101, right=71), 0)
    again = JobWatermarks(NODES, SOURCES)
    assert again.restore(WatermarkState(60, job.snapshot().channels)) == ()
    again.end_epoch([], 0)
    assert watermarks_of(again) == watermarks_of(job)


@pytest.mark.parametrize("keeps_channels", [True, False])
def test_an_idle_source_without_records_holds_the_watermark_after_a_restore_once_it_has_one(
    keeps_channels: bool,
) -> None:
    job = JobWatermarks(NODES, SOURCES)
    job.end_epoch(seen(right=71), 0)
    job.end_epoch([], 0)
    job.end_epoch([], 101)
    assert watermarks_of(job)["count"] == 60
    state = job.snapshot()
    again = JobWatermarks(NODES, SOURCES)
    again.restore(state if keeps_channels else WatermarkState(state.watermark_ms, (), state.nodes))
    again.end_epoch(seen(p1=101, right=91), 200)
    assert watermarks_of(again) == {"left": 100, "right": 80, "count": 80, "join": 80}


def test_a_source_must_be_a_node_of_the_graph() -> None:
    with pytest.raises(ValueError, match=r"no nodes for the sources \['count', 'other'\]"):
        JobWatermarks(NODES, {**SOURCES, "other": SOURCES["left"], "count": SOURCES["left"]})


epochs = st.lists(st.dictionaries(st.sampled_from(["right", "p1", "p2"]), st.integers(0, 50)), min_size=1, max_size=15)


@given(epochs, st.integers(0, 15))
def test_a_job_restored_between_any_two_epochs_has_the_same_watermarks(
    epochs: Sequence[dict[str, int]], point: int
) -> None:
    job = restored = JobWatermarks(NODES, SOURCES)
    for at, largest in enumerate(epochs):
        if at == point:
            restored = JobWatermarks(NODES, SOURCES)
            assert restored.restore(job.snapshot()) == ()
        before = watermarks_of(job)
        done = job.end_epoch(seen(**largest), 0)
        if restored is not job:
            assert restored.end_epoch(seen(**largest), 0) == done
            assert watermarks_of(restored) == watermarks_of(job)
        assert all(time >= before[name] for name, time in watermarks_of(job).items())


lives = st.lists(
    st.one_of(
        st.just("restart"),
        st.tuples(
            st.integers(0, 150), st.dictionaries(st.sampled_from(["right", "p1", "p2"]), st.integers(0, 50), max_size=3)
        ),
    ),
    max_size=25,
)


@given(lives)
def test_repeated_restarts_keep_the_source_watermarks_of_all_nodes(lives: Any) -> None:
    job, now_ms = JobWatermarks(NODES, SOURCES), 0
    before = watermarks_of(job)
    for step in lives:
        if step == "restart":
            state = job.snapshot()
            job = JobWatermarks(NODES, SOURCES)
            assert job.restore(state) == ()
        else:
            now_ms += step[0]
            job.end_epoch(seen(**step[1]), now_ms)
        state = job.snapshot()
        idle = {one.node: one.is_idle for one in state.nodes}
        for source in SOURCES:
            assert idle[source] == all(one.is_idle for one in state.channels if one.source == source)
        assert all(time >= before[name] for name, time in watermarks_of(job).items())
        before = watermarks_of(job)


def test_a_checkpoint_has_the_watermarks_of_active_sources() -> None:
    nodes = (
        NodeWatermark(node="behind", watermark_ms=10, is_idle=True),
        NodeWatermark(node="slow", watermark_ms=20),
        NodeWatermark(node="fast", watermark_ms=30),
        NodeWatermark(node="makes none"),
    )
    assert watermark_state(["behind", "slow", "fast"], (), nodes).watermark_ms == 20
    assert watermark_state(["behind"], (), nodes).watermark_ms is None
