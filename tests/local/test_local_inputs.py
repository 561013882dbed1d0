"""Which records of a stream each subtask is given."""

from __future__ import annotations

from typing import Any

from statebackend.local.graph import KnownStream, LocalStream, local_inputs
from statebackend.streaming.stream_graph import OperatorNode, SourceNode, SpreadInput, StreamEdge


def test_records_without_a_key_are_dealt_out_in_turn_however_they_are_cut() -> None:
    node = OperatorNode((SpreadInput(StreamEdge(SourceNode([]))),), "uid", "name", None, None)
    [spread] = local_inputs(node, [KnownStream(None, False)])
    dealt: list[list[Any]] = [[] for _ in range(3)]
    begin = 0
    for size in (1, 2, 0, 4, 3, 2):
        stream = LocalStream(list(range(begin, begin + size)), list(range(begin, begin + size)))
        for subtask, share in enumerate(spread.shares(stream, None, 3)):
            dealt[subtask] += share.records
            assert share.timestamps == share.records
        begin += size
    assert dealt == [list(range(subtask, begin, 3)) for subtask in range(3)]
