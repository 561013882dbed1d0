from __future__ import annotations

from typing import Any

from attrs import frozen

from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.runtime.event_time import watermark_nodes
from statebackend.streaming.stream_graph import (
    DataFrameNode,
    JobGraph,
    NodeKind,
    SinkNode,
    SourceNode,
    StreamEdge,
    UnionNode,
)
from statebackend.streaming.time.job_watermarks import GraphWatermarks
from statebackend.streaming.time.watermark_generators import Watermark


@frozen(eq=False)
class Operator:
    """The operator members that these tests need."""

    kind = NodeKind.OPERATOR

    uid: str
    inputs: tuple[StreamEdge, ...]


def edges(*nodes: Any) -> Any:
    return tuple(StreamEdge(node) for node in nodes)


def test_watermarks_go_from_sources_through_steps_to_operators_and_to_no_sink() -> None:
    left, right = SourceNode("left"), SourceNode("right")
    union = UnionNode(edges(left, right))
    step = DataFrameNode(edges(union), str)
    count: Any = Operator("count", edges(step))
    side = StreamEdge(count, OutputTag("late"))
    join: Any = Operator("join", (side, *edges(right)))
    sink = SinkNode(edges(join), "sink", None)
    nodes = watermark_nodes(
        JobGraph((left, right, union, step, count, join, sink)), ["l", "r"], lambda node: node.uid == "count"
    )
    assert [node.id for node in nodes if not node.is_transparent] == ["l", "r", "count", "join"]
    assert [node.id for node in nodes if node.holds_watermarks] == ["count"]
    graph = GraphWatermarks(nodes)
    assert graph.take("l", Watermark(5)) == ()
    assert [one.node for one in graph.take("r", Watermark(7))] == ["count"]
    assert [one.node for one in graph.take("count", Watermark(4))] == ["join"]
    assert [(one.node, one.watermark_ms) for one in graph.snapshot()] == [("l", 5), ("r", 7), ("count", 5), ("join", 4)]
