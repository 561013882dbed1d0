"""What stands between the output of a subtask and those who read it: the stateless steps, which are carried out there.

The records of an output go to its readers in the order of the program, through all steps to the end of each, so that
what two readers are sent has one order. A step of two readers is carried out once. Each reader has records of its own,
which it may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from streamjobs.api.stream_graph import (
    JobGraph,
    Node,
    NodeKind,
    SinkNode,
    StreamEdge,
    TimestampsNode,
    TransformNode,
    UnionNode,
)
from streamjobs.inprocess.local_operator import Recast
from streamjobs.inprocess.local_stream import LocalStream

__all__ = ["Chain", "ChainEnds", "readers_of_edges", "senders_of"]

Readers = Mapping[StreamEdge, Sequence[tuple[Node, int]]]
"""Who reads an output, and with which of its inputs."""


class ChainEnds(Protocol):
    """Where the records of a chain go."""

    def to_operator(self, node: Any, input_index: int, stream: LocalStream) -> None:
        """Records for an input of an operator."""

    def to_sink(self, node: SinkNode, stream: LocalStream) -> None:
        """Records for a sink."""

    def to_timestamps(self, node: TimestampsNode, stream: LocalStream) -> None:
        """Records of a source that get their timestamps; what follows is sent on by `Chain.send`."""


def readers_of_edges(graph: JobGraph) -> Readers:
    """Who reads each output of a graph."""
    readers: dict[StreamEdge, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for index, edge in enumerate(node.inputs):
            readers.setdefault(edge, []).append((node, index))
    return readers


class Chain:
    """See the module; ``unions`` say what is done to the records of each input of a union."""

    def __init__(self, readers: Readers, unions: Mapping[UnionNode, Sequence[Recast]], ends: ChainEnds) -> None:
        self._readers = readers
        self._unions = unions
        self._ends = ends

    def send(self, edge: StreamEdge, stream: LocalStream) -> None:
        """Sends records of an output to all that read it; however long the chain is."""
        pending = self._read(edge, stream)
        while pending:
            node, index, given = pending.pop()
            step = _STEPS.get(type(node))
            if step is None:
                self._ends.to_operator(node, index, given)
            else:
                pending += step(self, node, index, given)

    def _read(self, edge: StreamEdge, stream: LocalStream) -> list[tuple[Any, int, LocalStream]]:
        """The readers of an output with what they are sent, the first of them last; no two get the same objects."""
        if not stream.records:
            return []
        readers = self._readers.get(edge, ())
        streams = [stream, *(stream.copied() for _ in readers[1:])]
        return [(node, index, given) for (node, index), given in reversed(list(zip(readers, streams, strict=False)))]

    def _transform(self, node: TransformNode, index: int, stream: LocalStream) -> _Following:
        return self._read(StreamEdge(node), stream.flat_mapped(node.function))

    def _unite(self, node: UnionNode, index: int, stream: LocalStream) -> _Following:
        return self._read(StreamEdge(node), stream.recast(self._unions[node][index]))

    def _timestamps(self, node: TimestampsNode, index: int, stream: LocalStream) -> _Following:
        self._ends.to_timestamps(node, stream)
        return ()

    def _sink(self, node: SinkNode, index: int, stream: LocalStream) -> _Following:
        self._ends.to_sink(node, stream)
        return ()


_Following = Sequence[tuple[Any, int, LocalStream]]
"""What is to be read next: nodes, with their inputs and what they are sent."""

_STEPS: Final[Mapping[type, Callable[[Chain, Any, int, LocalStream], _Following]]] = {
    TransformNode: Chain._transform,
    UnionNode: Chain._unite,
    TimestampsNode: Chain._timestamps,
    SinkNode: Chain._sink,
}


def senders_of(edge: StreamEdge) -> tuple[Node, ...]:
    """The sources and operators whose records come by an output, through any steps; each once."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    pending = [edge.node]
    while pending:
        node = pending.pop()
        if node.kind is not NodeKind.STEP:
            found[node] = None
        elif node not in seen:
            seen.add(node)
            pending += [one.node for one in reversed(node.inputs)]
    return tuple(found)
