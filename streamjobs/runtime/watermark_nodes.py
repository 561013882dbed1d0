"""The graph of a job as watermarks go through it: sources, operators, and what is transparent to them.

Sinks take no part. A union and a step without state are looked through, so that whoever sends through them is a channel
of the operator behind. Operators go by their uid and sources by a name that the runtime gives them, which are what a
checkpoint knows them by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamjobs.api.stream_graph import JobGraph, Node, NodeKind, OperatorNode
from streamjobs.time.graph_watermarks import WatermarkNode

__all__ = ["watermark_nodes"]


def watermark_nodes(
    graph: JobGraph, source_names: Sequence[str], holds_watermarks: Callable[[OperatorNode], bool]
) -> tuple[WatermarkNode, ...]:
    """The nodes of a graph, in its order; ``source_names`` are those of its sources, in theirs.

    ``holds_watermarks`` says of an operator whether it says itself which watermarks it sends on.
    """
    names: dict[Node, str] = dict(zip(graph.sources, source_names, strict=True))
    # No uid has such a character, and these names are not kept.
    names.update({node: f"\0{index}" for index, node in enumerate(graph.nodes) if node.kind is NodeKind.STEP})
    names.update({node: node.uid for node in graph.operators})
    operators = set(graph.operators)
    return tuple(
        WatermarkNode(
            id=name,
            inputs=tuple((names[edge.node],) for edge in node.inputs),
            is_transparent=node.kind is NodeKind.STEP,
            holds_watermarks=node in operators and holds_watermarks(node),
        )
        for node in graph.nodes
        if (name := names.get(node)) is not None
    )
