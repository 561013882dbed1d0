"""The watermarks of a run: what an epoch has read counts for the next one, and is in its checkpoint."""

from __future__ import annotations

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp
from streamjobs import OutputTag, TumblingEventTimeWindows, WatermarkStrategy
from streamjobs.api.data_stream import DataStream
from streamjobs.api.stream_graph import SourceNode, StreamGraph
from streamjobs.runtime.epoch_watermarks import EpochWatermarks
from streamjobs.runtime.event_time import EventTime
from streamjobs.time.timestamps import MIN_TIMESTAMP


def event_time() -> EventTime:
    graph = StreamGraph()
    stream = DataStream(graph, graph.add(SourceNode("source")))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(2).with_timestamps("at")
    windows = stream.assign_timestamps_and_watermarks(strategy).key_by("k").window(TumblingEventTimeWindows.of(10))
    late = OutputTag[object]("late", schema="k string")
    windows.side_output_late_data(late).reduce(max, uid="windows", schema="k string").sink_to([])
    found = EventTime.of(graph.job())
    assert found is not None
    return found


def seen(timestamp_ms: int) -> list[ChannelTimestamp]:
    return [ChannelTimestamp("source-0", "", timestamp_ms)]


def test_an_epoch_stands_at_what_the_epochs_before_it_have_read() -> None:
    run = EpochWatermarks(event_time(), None)
    assert (run.of("windows"), run.before_of("windows")) == (MIN_TIMESTAMP, MIN_TIMESTAMP)
    run.end_epoch(seen(12), 1000)
    assert (run.of("windows"), run.before_of("windows")) == (9, MIN_TIMESTAMP)
    run.end_epoch(seen(30), 2000)
    assert (run.of("windows"), run.before_of("windows")) == (27, 9)


def test_a_run_goes_on_at_the_watermarks_of_the_checkpoint() -> None:
    stored = EpochWatermarks(event_time(), None).end_epoch(seen(12), 1000)
    assert stored is not None
    restored = EpochWatermarks(event_time(), stored)
    assert (restored.of("windows"), restored.before_of("windows")) == (9, MIN_TIMESTAMP)
    restored.end_epoch(seen(11), 2000)
    assert restored.of("windows") == 9
    restored.end_epoch(seen(13), 3000)
    assert restored.of("windows") == 10


def test_a_job_without_event_time_has_no_watermarks() -> None:
    none = EpochWatermarks(None, None)
    assert none.end_epoch([], 1000) is None
    assert (none.of("windows"), none.before_of("windows")) == (MIN_TIMESTAMP, MIN_TIMESTAMP)
