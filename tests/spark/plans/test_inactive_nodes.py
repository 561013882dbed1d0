"""What of a graph is not planned in an epoch without records."""

from __future__ import annotations

from typing import Any

from statebackend import OutputTag, WatermarkStrategy
from statebackend.spark.plans.pipeline import InactiveNodes, inactive_nodes
from statebackend.streaming.stream_graph import (
    DataFrameNode,
    JobGraph,
    KeyedInput,
    OperatorNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    TimestampsNode,
    UnionNode,
)

AHEAD: OutputTag[Any] = OutputTag("ahead", "key bigint")
STRATEGY: WatermarkStrategy[Any] = WatermarkStrategy.for_monotonous_timestamps()


def timed(node: Any) -> TimestampsNode:
    return TimestampsNode((StreamEdge(node),), STRATEGY)


def operator(uid: str, *inputs: Any) -> OperatorNode:
    edges = [one if isinstance(one, StreamEdge) else StreamEdge(one) for one in inputs]
    return OperatorNode(tuple(KeyedInput(edge, ("key",), ()) for edge in edges), uid, uid, None, "key bigint")


def sink(node: Any) -> SinkNode:
    return SinkNode((node if isinstance(node, StreamEdge) else StreamEdge(node),), "sink", None)


def test_what_only_operators_read_that_are_fed_by_nothing_is_left_out() -> None:
    left, right = SourceNode(None), SourceNode(None)
    times, union = timed(left), UnionNode((StreamEdge(left), StreamEdge(right)))
    first, second = operator("first", times, union), operator("second", union)
    nodes = (left, right, times, union, first, second, sink(first), sink(second))
    assert inactive_nodes(JobGraph(nodes)) == InactiveNodes(frozenset({"first", "second"}), frozenset(nodes[:4]))


def test_operators_and_steps_may_bring_rows_of_their_own() -> None:
    source = SourceNode(None)
    step = DataFrameNode((StreamEdge(source),), str)
    first, counted = operator("first", source), operator("counted", step)
    chained, late = operator("chained", first), operator("late", StreamEdge(first, AHEAD), source)
    nodes = (source, step, first, counted, chained, late, sink(chained), sink(counted), sink(late))
    assert inactive_nodes(JobGraph(nodes)) == InactiveNodes(frozenset({"first"}), frozenset())


def test_what_a_sink_reads_is_planned_though_it_brings_nothing() -> None:
    source, other = SourceNode(None), SourceNode(None)
    times, other_times = timed(source), timed(other)
    first, second = operator("first", times), operator("second", other_times)
    nodes = (
        source,
        other,
        times,
        other_times,
        first,
        second,
        sink(first),
        sink(second),
        sink(StreamEdge(times, AHEAD)),
    )
    assert inactive_nodes(JobGraph(nodes)) == InactiveNodes(
        frozenset({"first", "second"}), frozenset({other, other_times})
    )
