"""Watermarks of a run: input of an epoch counts for the next one, and is in its checkpoint."""

from __future__ import annotations

import copy

from statebackend import OutputTag, TumblingEventTimeWindows, WatermarkStrategy
from statebackend.checkpoint.metadata import ChannelTimestamp, TimersDue
from statebackend.spark.epochs import EpochWatermarks
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.runtime.event_time import EventTime
from statebackend.streaming.stream_graph import SourceNode, StreamGraph
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

SCHEMA = "k string"
DUE_AT_9, DUE_AT_27 = ([TimersDue("windows", event_time_ms=time_ms)] for time_ms in (9, 27))


def event_time(sources: int = 1) -> EventTime:
    """Windows over this many sources, which become idle after 100 ms."""
    graph = StreamGraph()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(2).with_timestamps("at").with_idleness(100)
    streams = [DataStream(graph, graph.add(SourceNode(index, f"source-{index}"))) for index in range(sources)]
    timed = [stream.assign_timestamps_and_watermarks(strategy) for stream in streams]
    united = timed[0].union(*timed[1:]) if sources > 1 else timed[0]
    windows = united.key_by("k").window(TumblingEventTimeWindows.of(10))
    late = OutputTag[object]("late", schema=SCHEMA)
    windows.side_output_late_data(late).reduce(max, uid="windows", schema=SCHEMA).sink_to([])
    found = EventTime.of(graph.job())
    assert found is not None
    return found


def seen(timestamp_ms: int, source: int = 0) -> list[ChannelTimestamp]:
    return [ChannelTimestamp(f"source-{source}", "", timestamp_ms)]


def times(watermarks: EpochWatermarks) -> tuple[int, int]:
    return watermarks.before_of("windows"), watermarks.of("windows")


def test_an_epoch_has_the_watermark_of_earlier_epochs() -> None:
    first = EpochWatermarks(event_time(), None)
    second = first.after(seen(12), 1000)
    third = second.after(seen(30), 2000)
    assert [times(one) for one in (first, second, third)] == [
        (MIN_TIMESTAMP, MIN_TIMESTAMP),
        (MIN_TIMESTAMP, 9),
        (9, 27),
    ]
    assert times(second.after(seen(20), 2000)) == (9, 17), "an epoch that was not stored has moved nothing"


def test_a_run_continues_at_the_watermarks_of_the_checkpoint_and_of_its_epoch() -> None:
    stored = EpochWatermarks(event_time(), None).after(seen(12), 1000).after(seen(30), 2000)
    restored = EpochWatermarks(event_time(), stored.state())
    assert times(restored) == times(stored) == (9, 27)
    assert times(restored.after(seen(29), 2000)) == (27, 27)
    assert restored.after(seen(31), 3000).state() == stored.after(seen(31), 3000).state()


def test_a_run_does_not_continue_at_the_end_of_time() -> None:
    open_epoch = EpochWatermarks(event_time(), None).after(seen(12), 1000)
    drained = open_epoch.at_the_end()
    assert (times(open_epoch), times(drained)) == ((MIN_TIMESTAMP, 9), (MIN_TIMESTAMP, MAX_TIMESTAMP))
    assert times(EpochWatermarks(event_time(), drained.after([], 2000).state())) == (MIN_TIMESTAMP, MIN_TIMESTAMP)


def test_timers_are_due_at_the_watermark_of_their_operator() -> None:
    now = EpochWatermarks(event_time(), None).after(seen(12), 1000)
    assert now.are_due(DUE_AT_9)
    assert not now.are_due(DUE_AT_27)
    assert not now.are_due([TimersDue("windows", processing_time_ms=0)])
    assert now.next_epoch_ms(DUE_AT_9) == MIN_TIMESTAMP
    assert now.next_epoch_ms([TimersDue("windows", 10, 500), TimersDue("windows", 11, 400)]) == 400
    assert now.next_epoch_ms(DUE_AT_27) is None


def test_a_timer_that_was_due_at_registration_waits_for_the_watermark_to_advance() -> None:
    now = EpochWatermarks(event_time(), None).after(seen(12), 1000).after(seen(12), 1000)
    assert times(now) == (9, 9)
    assert not now.are_due(DUE_AT_9)
    assert now.after(seen(13), 1000).are_due(DUE_AT_9)


def test_idleness_of_a_source_is_due_when_timers_depend_on_it_and_not_before() -> None:
    now = EpochWatermarks(event_time(sources=3), None, now_ms=1000)
    assert now.next_epoch_ms([TimersDue("windows", processing_time_ms=5)]) == 5
    now = now.after([*seen(12), *seen(50, 1)], 1050)
    # The third source, without a record since the start, becomes idle first. The first source follows.
    assert now.of("windows") == MIN_TIMESTAMP
    assert now.next_epoch_ms(DUE_AT_9) == 1101
    assert now.after([], 1101).are_due(DUE_AT_9)
    assert now.next_epoch_ms(DUE_AT_27) == 1151
    assert now.next_epoch_ms([TimersDue("windows", event_time_ms=48)]) is None
    assert times(now) == (MIN_TIMESTAMP, MIN_TIMESTAMP), "to ask changes nothing"


def test_a_job_without_event_time_has_no_watermarks() -> None:
    none = EpochWatermarks(None, None, now_ms=5)
    for one in (none, none.after([], 1000), copy.copy(none)):
        assert one.state() is None
        assert times(one) == (MIN_TIMESTAMP, MIN_TIMESTAMP)
        assert one.next_epoch_ms(DUE_AT_9) is None
    # For operators, a drain is the end of time. The job waits for their requests in flight.
    assert times(none.at_the_end()) == (MIN_TIMESTAMP, MAX_TIMESTAMP)
    assert none.at_the_end().state() is None


def test_at_the_end_of_time_no_operator_waits_for_a_source_without_event_time() -> None:
    graph = StreamGraph()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(2).with_timestamps("at")
    timed = DataStream(graph, graph.add(SourceNode(0, "source-0"))).assign_timestamps_and_watermarks(strategy)
    untimed = DataStream(graph, graph.add(SourceNode(1, "source-1")))
    timed.union(untimed).key_by("k").count_window(2).reduce(max, uid="windows", schema=SCHEMA).sink_to([])
    held = EpochWatermarks(EventTime.of(graph.job()), None).after(seen(12), 1000)
    assert times(held) == (MIN_TIMESTAMP, MIN_TIMESTAMP)
    assert times(held.at_the_end()) == (MIN_TIMESTAMP, MAX_TIMESTAMP)


def test_a_spark_processor_needs_an_epoch_whenever_its_watermark_has_advanced() -> None:
    class Silent:
        init = handleInputRows = handleExpiredTimer = close = lambda self, *_: None  # noqa: N815

    graph = StreamGraph()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(2).with_timestamps("at")
    timed = DataStream(graph, graph.add(SourceNode(0, "source-0"))).assign_timestamps_and_watermarks(strategy)
    processed = timed.group_by("k").transform_with_state(Silent(), SCHEMA, "update", "eventTime", uid="processor")
    processed.sink_to([])
    first = EpochWatermarks(EventTime.of(graph.job()), None)
    moved = first.after(seen(12), 1000)
    assert [one.next_epoch_ms([]) for one in (first, moved, moved.after([], 1000))] == [None, MIN_TIMESTAMP, None]
    assert moved.after(seen(12), 2000).next_epoch_ms([]) is None
    # Other operators need no further epoch.
    assert EpochWatermarks(event_time(), None).after(seen(12), 1000).next_epoch_ms([]) is None
