"""The nodes of a graph that a no-data epoch does not plan."""

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


def test_nodes_read_only_by_operators_without_input_are_not_planned() -> None:
    left, right = SourceNode(None), SourceNode(None)
    times, union = timed(left), UnionNode((StreamEdge(left), StreamEdge(right)))
    first, second = operator("first", times, union), operator("second", union)
    nodes = (left, right, times, union, first, second, sink(first), sink(second))
    assert inactive_nodes(JobGraph(nodes)) == InactiveNodes(frozenset({"first", "second"}), frozenset(nodes[:4]))


def test_operators_and_steps_may_add_their_own_rows() -> None:
    source = SourceNode(None)
    step = DataFrameNode((StreamEdge(source),), str)
    first, counted = operator("first", source), operator("counted", step)
    chained, late = operator("chained", first), operator("late", StreamEdge(first, AHEAD), source)
    nodes = (source, step, first, counted, chained, late, sink(chained), sink(counted), sink(late))
    assert inactive_nodes(JobGraph(nodes)) == InactiveNodes(frozenset({"first"}), frozenset())


def test_the_input_of_a_sink_is_planned_even_without_rows() -> None:
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
