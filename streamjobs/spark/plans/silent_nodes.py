"""What of a graph brings nothing in an epoch without records, and what then has not to be planned.

A source brings no record then; nor does a step that gives out timestamps, or a union, if nothing comes to it. A user's
step may make rows of none, as a count does, and an operator may fire timers. So an operator is *fed by nothing* if all
its inputs are silent: its tasks have no rows to be led to them, and need no shuffle. Nodes that only such operators
read are left out of the plan.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from streamjobs.api.stream_graph import JobGraph, Node, OperatorNode, SinkNode, SourceNode, TimestampsNode, UnionNode

__all__ = ["SilentNodes", "silent_nodes"]

_PASSING_ON: Final = (TimestampsNode, UnionNode)


@frozen
class SilentNodes:
    """``operators`` are the uids of those that are fed by nothing, ``left_out`` what nobody else reads."""

    operators: frozenset[str] = frozenset()
    left_out: frozenset[Node] = frozenset()


def silent_nodes(graph: JobGraph) -> SilentNodes:
    """Those of a graph in an epoch without records; takes time in proportion to its edges."""
    silent: set[Node] = set()
    fed_by_nothing: set[Node] = set()
    for node in graph.nodes:
        has_silent_inputs = all(edge.node in silent for edge in node.inputs)
        if isinstance(node, SourceNode) or (isinstance(node, _PASSING_ON) and has_silent_inputs):
            silent.add(node)
        elif isinstance(node, OperatorNode) and has_silent_inputs:
            fed_by_nothing.add(node)
    planned: set[Node] = set()
    for node in reversed(graph.nodes):
        if isinstance(node, (OperatorNode, SinkNode)):
            planned.add(node)
        if node in planned and node not in fed_by_nothing:
            planned.update(edge.node for edge in node.inputs)
    uids = frozenset(node.uid for node in graph.operators if node in fed_by_nothing)
    return SilentNodes(uids, frozenset(graph.nodes) - planned)
