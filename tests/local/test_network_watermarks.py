"""Event time of a network in checkpoints: stored by node, read by an epoch runtime, and read from one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from statebackend import TumblingEventTimeWindows, WatermarkStrategy
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.metadata import ChannelTimestamp, InputChannel, WatermarkState
from statebackend.checkpoint.store.checkpoint_directories import write_metadata
from statebackend.checkpoint.store.savepoint_directory import read_savepoint
from statebackend.local import LocalStreamEnvironment
from statebackend.local.network.channel_barriers import SubtaskTime
from statebackend.local.network_watermarks import BarrierTimes
from statebackend.spark.epochs import EpochWatermarks
from statebackend.streaming.runtime.event_time import EventTime
from statebackend.streaming.stream_graph import JobGraph
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.watermark_generators import WatermarkStatus
from statebackend.testing.jobs import Emitted, HarnessJob, JobTestHarness

RECORD = "k string, t bigint, v bigint"
SOURCES = ("first", "second")


def added(left: Any, right: Any) -> Any:
    return left.k, max(left.t, right.t), left.v + right.v


def build(job: HarnessJob, *, channel: str | None = None, sources: tuple[str, ...] = SOURCES) -> None:
    """Chained windows over sources with an out-of-orderness of 5."""
    strategy: WatermarkStrategy[Any] = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamps("t")
    if channel is not None:
        strategy = strategy.with_channel(channel)
    first, *others = [job.source(name, RECORD).assign_timestamps_and_watermarks(strategy) for name in sources]
    stream = first.union(*others) if others else first
    small = stream.key_by("k").window(TumblingEventTimeWindows.of(10)).reduce(added, uid="small", schema=RECORD)
    large = small.key_by("k").window(TumblingEventTimeWindows.of(20)).reduce(added, uid="large", schema=RECORD)
    job.output("small", small)
    job.output("large", large)


def graph(**given: Any) -> JobGraph:
    job = HarnessJob(LocalStreamEnvironment())
    build(job, **given)
    # A source that nothing reads is not part of the job.
    return job.source("unread").graph.job()


def epoch_watermarks(state: WatermarkState, **given: Any) -> EpochWatermarks:
    """An epoch runtime restored with the watermarks of a checkpoint."""
    return EpochWatermarks(EventTime.of(graph(**given)), state)


def snapshot(path: Path, *records: tuple[str, str, int], parallelism: int = 2, **given: Any) -> str:
    """A savepoint taken after records (source, key, timestamp) and after the watermark of each source."""
    with JobTestHarness(lambda job: build(job, **given), parallelism=parallelism) as harness:
        for source, key, time_ms in records:
            harness.source(source).send((key, time_ms, 1))
        harness.advance_processing_time(1)
        return harness.snapshot(path)


def of_operators(watermarks: Mapping[str, int]) -> dict[str, int]:
    return {uid: watermarks[uid] for uid in ("small", "large") if uid in watermarks}


def state_of(path: str) -> WatermarkState:
    state = read_savepoint(path)[1].watermarks
    assert state is not None
    return state


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_epoch_runtime_continues_from_the_watermarks_of_a_network(tmp_path: Path, parallelism: int) -> None:
    path = snapshot(tmp_path / "one", ("first", "a", 40), ("second", "b", 26), parallelism=parallelism)
    state = state_of(path)
    assert state.watermark_ms == 20
    assert sorted(one.node for one in state.nodes) == ["first", "large", "second", "small"]
    watermarks = epoch_watermarks(state)
    assert of_operators(watermarks.known()) == {"small": 20, "large": 20}
    # The restored timestamp of the source ahead still counts.
    watermarks = watermarks.after([ChannelTimestamp("second", "", 100)], 2)
    assert of_operators(watermarks.known()) == {"small": 34, "large": 34}


def test_channels_are_kept_by_other_runtimes_and_restored(tmp_path: Path) -> None:
    records = ("first", "fast", 90), ("first", "slow", 26)
    given: Any = {"channel": "k", "sources": ("first",)}
    path = snapshot(tmp_path / "one", *records, **given)
    watermarks = epoch_watermarks(state_of(path), **given).after([ChannelTimestamp("first", "fast", 95)], 2)
    assert of_operators(watermarks.known()) == {"small": 20, "large": 20}
    with JobTestHarness(lambda job: build(job, **given), from_snapshot=path) as harness:
        harness.source("first").send(("fast", 99, 1))
        harness.advance_processing_time(2)
        # The watermark still waits for the slow channel, which has sent nothing since the restore.
        assert of_operators(harness.watermarks()) == {"small": 20, "large": 20}
        harness.source("first").send(("slow", 50, 1))
        harness.advance_processing_time(3)
        assert of_operators(harness.watermarks()) == {"small": 44, "large": 44}


@pytest.mark.parametrize(("backend", "parallelism"), [("heap", 1), ("heap", 3), ("rocksdb", 2)])
def test_timers_that_an_epoch_runtime_made_due_fire_first_and_in_time(
    tmp_path: Path, backend: str, parallelism: int
) -> None:
    path = snapshot(tmp_path / "one", *(("first", key, 12) for key in "abcd"), ("second", "a", 3))
    file_system, metadata = read_savepoint(path)
    # The checkpoint of an epoch runtime has the watermarks at which the next epoch starts. Nothing has fired for them
    # yet.
    ahead = epoch_watermarks(state_of(path)).after([ChannelTimestamp(uid, "", 50) for uid in ("first", "second")], 1)
    file_system.delete("_metadata")
    write_metadata(file_system, "", evolve(metadata, watermarks=ahead.state()))
    with JobTestHarness(build, from_snapshot=path, parallelism=parallelism, backend=backend) as harness:
        seen = harness.taken()
        rows = sorted((one.output, *one.record) for one in seen if isinstance(one, Emitted))
        assert rows == [
            *(("large", key, 12, 2 if key == "a" else 1) for key in "abcd"),
            ("small", "a", 3, 1),
            *(("small", key, 12, 1) for key in "abcd"),
        ]
        assert of_operators(harness.watermarks()) == {"small": 44, "large": 44}


def test_a_record_before_a_watermark_is_late_by_the_previous_watermark(tmp_path: Path) -> None:
    # The small windows of 12 are open, so their results are sent before the next watermark.
    path = snapshot(tmp_path / "one", ("first", "a", 12), ("second", "a", 12))
    file_system, metadata = read_savepoint(path)
    state = metadata.watermarks
    assert state is not None
    assert all(one.epoch_watermark_ms == one.watermark_ms for one in state.nodes if one.inputs)
    ahead = epoch_watermarks(state).after([ChannelTimestamp(uid, "", 50) for uid in ("first", "second")], 1).state()
    assert ahead is not None
    # In its epoch the runtime had watermark 25 at the large windows, which is after the windows of 12.
    nodes = [evolve(one, epoch_watermark_ms=25 if one.node == "large" else None) for one in ahead.nodes]
    file_system.delete("_metadata")
    write_metadata(file_system, "", evolve(metadata, watermarks=evolve(ahead, nodes=tuple(nodes))))
    with JobTestHarness(build, from_snapshot=path) as harness:
        assert [one.output for one in harness.taken() if isinstance(one, Emitted)] == ["small"]


def test_another_graph_continues_without_removed_nodes_and_is_not_rolled_back(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "one", ("first", "a", 40), ("second", "b", 26))
    with JobTestHarness(lambda job: build(job, sources=("first",)), from_snapshot=path) as harness:
        # The source that held back the watermark was removed from the graph.
        assert of_operators(harness.watermarks()) == {"small": 34, "large": 34}
        harness.source("first").send(("a", 30, 1))
        harness.advance_processing_time(5)
        assert of_operators(harness.watermarks()) == {"small": 34, "large": 34}


def test_the_end_of_time_is_not_stored(tmp_path: Path) -> None:
    with JobTestHarness(build, parallelism=2) as harness:
        for name in SOURCES:
            harness.source(name).send(("a", 5, 1))
            harness.source(name).end()
        path = harness.snapshot(tmp_path / "one")
    with JobTestHarness(build, from_snapshot=path) as harness:
        assert harness.watermarks() == {}
        harness.source("first").send(("a", 50, 1))
        harness.source("second").send(("a", 60, 1))
        harness.advance_processing_time(1)
        assert of_operators(harness.watermarks()) == {"small": 44, "large": 44}


@pytest.mark.parametrize("seed", range(4))
def test_sources_keep_program_order_in_any_order_of_barriers(tmp_path: Path, seed: int) -> None:
    with JobTestHarness(build, seed=seed) as harness:
        harness.source("second").send(("a", 7, 1))
        harness.advance_processing_time(1)
        state = state_of(harness.snapshot(tmp_path / "snapshot"))
    assert [one.node for one in state.nodes if not one.inputs] == ["first", "second"]
    assert [one.source for one in state.channels] == ["first", "second"]


def test_a_sender_is_idle_for_its_readers_only_when_all_subtasks_are() -> None:
    def reported(*are_idle: bool) -> InputChannel:
        times = BarrierTimes([])
        channels = tuple(ValveChannel(TaskId("sender", index), 5, idle) for index, idle in enumerate(are_idle))
        own = OperatorWatermarkState(5, (ValveState(5, channels),))
        times.note_operator(TaskId("reader", 0), SubtaskTime(own, 5, WatermarkStatus.ACTIVE))
        [node] = times.nodes()
        [channel] = node.inputs[0].channels
        return channel

    assert [reported(*idle).is_idle for idle in ((True, True), (True, False), (False, False))] == [True, False, False]
