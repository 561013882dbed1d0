"""Graphs with event time, and graphs that are rejected because their watermarks are undefined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statebackend import (
    KeyedProcessFunction,
    OutputTag,
    ProcessJoinFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.runtime.event_time import EventTime, check_follows_from_epochs
from statebackend.streaming.stream_graph import SourceNode, StreamGraph
from statebackend.streaming.time.watermark_generators import WatermarkGenerator

SCHEMA = "k string"
STRATEGY: Any = WatermarkStrategy.for_bounded_out_of_orderness(2).with_timestamps("at")
Build = Callable[[list[DataStream]], Any]


class Nothing(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> None:
        return None


class Pair(ProcessJoinFunction[Any, Any, Any, Any]):
    def process_element(self, left: Any, right: Any, context: Any) -> None:
        return None


def graph_of(build: Build, sources: int = 2) -> Any:
    """A job over this many sources; the streams that ``build`` returns go to sinks."""
    graph = StreamGraph()
    built = build([DataStream(graph, graph.add(SourceNode(index, f"source-{index}"))) for index in range(sources)])
    # Every job needs an operator with state. This one has no event time.
    beside = DataStream(graph, graph.add(SourceNode(sources, f"source-{sources}"))).key_by("k")
    beside.process(Nothing(), uid="nothing", schema=SCHEMA).sink_to([], uid="beside")
    for place, stream in enumerate(built if isinstance(built, list) else [built]):
        stream.sink_to([], uid=f"sink-{place}")
    return graph.job()


def windows(stream: Any) -> Any:
    return stream.key_by("k").window(TumblingEventTimeWindows.of(10)).reduce(max, uid="windows", schema=SCHEMA)


def timed(stream: Any, strategy: Any = STRATEGY) -> Any:
    return stream.assign_timestamps_and_watermarks(strategy)


def test_a_job_whose_streams_have_no_timestamps_has_no_event_time() -> None:
    assert EventTime.of(graph_of(lambda streams: streams)) is None
    assert EventTime.of_sources(graph_of(lambda streams: streams)).nodes == {}


def test_sources_with_timestamps_are_found_by_name() -> None:
    found = EventTime.of(graph_of(lambda streams: [windows(timed(streams[1])), streams[0]]))
    assert found is not None
    assert found.source_names == ("source-0", "source-1", "source-2")
    assert list(found.nodes) == ["source-1"]
    assert found.name_of(found.nodes["source-1"]) == "source-1"
    assert found.names == ("source-1", "windows", "nothing")


def test_a_source_gets_its_timestamps_once() -> None:
    with pytest.raises(JobDefinitionError, match=r"used twice for one source; use the stream that it returns"):
        EventTime.of(graph_of(lambda streams: [timed(streams[0]), timed(streams[0]), streams[1]]))
    both = EventTime.of(graph_of(lambda streams: [timed(stream) for stream in streams]))
    assert both is not None
    assert list(both.nodes) == ["source-0", "source-1"]

    def read_twice(streams: list[DataStream]) -> Any:
        one = timed(streams[0])
        return [windows(one), one, streams[1]]

    assert EventTime.of(graph_of(read_twice)) is not None


@pytest.mark.parametrize("is_first", [True, False])
def test_event_time_windows_need_timestamps_in_all_records(is_first: bool) -> None:
    with pytest.raises(JobDefinitionError, match=r"operator 'windows': .*works in event time"):
        EventTime.of(graph_of(lambda streams: windows(streams[0]), 1))

    def joined(streams: list[DataStream]) -> Any:
        one, other = (timed(streams[0]), streams[1]) if is_first else (streams[0], timed(streams[1]))
        pair = one.key_by("k").interval_join(other.key_by("k")).between(0, 1)
        return pair.process(Pair(), uid="join", schema=SCHEMA)

    with pytest.raises(JobDefinitionError, match=r"operator 'join': .*works in event time"):
        EventTime.of(graph_of(joined))


def test_an_operator_after_one_with_timestamps_has_them_too() -> None:
    behind = EventTime.of(
        graph_of(
            lambda streams: (
                timed(streams[0])
                .key_by("k")
                .window(TumblingEventTimeWindows.of(10))
                .reduce(max, uid="first", schema=SCHEMA)
                .key_by("k")
                .window(TumblingEventTimeWindows.of(100))
                .reduce(max, uid="second", schema=SCHEMA)
            ),
            1,
        )
    )
    assert behind is not None
    assert behind.names == ("source-0", "first", "second", "nothing")


def test_only_existing_side_outputs_are_read() -> None:
    there, other = (OutputTag[Any](name, schema=SCHEMA) for name in ("far", "other"))

    def reading(tag: Any, strategy: Any) -> Build:
        def build(streams: list[DataStream]) -> Any:
            stream = timed(streams[0], strategy)
            return [stream, stream.get_side_output(tag)]

        return build

    limited = STRATEGY.with_future_limit(1000, there)
    assert EventTime.of(graph_of(reading(there, limited), 1)) is not None
    with pytest.raises(JobDefinitionError, match=r"side output 'other' .* nothing goes there: .* to 'far'"):
        EventTime.of(graph_of(reading(other, limited), 1))
    with pytest.raises(JobDefinitionError, match=r"side output 'far' .* nothing goes there: .* to its tag"):
        EventTime.of(graph_of(reading(there, STRATEGY), 1))


class Generator(WatermarkGenerator[Any]):
    def on_event(self, event: Any, timestamp_ms: int, output: Any) -> None: ...

    def on_periodic_emit(self, output: Any) -> None: ...


def of_strategy(strategy: Any) -> EventTime | None:
    return EventTime.of(graph_of(lambda streams: timed(streams[0], strategy), 1))


def test_watermarks_of_epochs_depend_on_the_largest_timestamps() -> None:
    for right in (
        STRATEGY,
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at"),
        WatermarkStrategy.no_watermarks().with_timestamps("at"),
    ):
        check_follows_from_epochs(of_strategy(right))
    check_follows_from_epochs(None)
    own: Any = WatermarkStrategy.for_generator(lambda: Generator()).with_timestamps("at")
    with pytest.raises(JobDefinitionError, match="for_generator is not supported by this runtime"):
        check_follows_from_epochs(of_strategy(own))
    aligned = STRATEGY.with_watermark_alignment("group", 1000)
    with pytest.raises(JobDefinitionError, match="with_watermark_alignment is not supported by this runtime"):
        check_follows_from_epochs(of_strategy(aligned))
