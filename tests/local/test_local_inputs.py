"""The records of a stream that each subtask receives."""

from __future__ import annotations

from collections import namedtuple
from datetime import datetime, timezone, tzinfo
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from statebackend import JobDefinitionError
from statebackend.local.graph import KnownStream, LocalStream, column_getter, field_getter, local_inputs
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.rows.row_reader import row_class
from statebackend.streaming.stream_graph import KeyedInput, OperatorNode, SourceNode, SpreadInput, StreamEdge


def test_records_without_a_key_are_distributed_round_robin_for_any_cut() -> None:
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


class Named(namedtuple("Named", ["count", "b"])):
    """A subclass without accessors of its own."""


ROW: Any = tuple.__new__(row_class(("count", "b")), (1, 2))
OBJECT = SimpleNamespace(count=1, b=2)


@pytest.mark.parametrize("name", ["count", "b"])
@pytest.mark.parametrize(
    "records",
    [[], [ROW, ROW], [OBJECT], [ROW, OBJECT], [{"count": 1, "b": 2}] * 2],
)
def test_a_column_is_the_field_of_each_record(name: str, records: list[Any]) -> None:
    expected = {"count": 1, "b": 2}[name]
    get = field_getter(name, "here", "key_by")
    assert column_getter(name, "here", "key_by")(records) == [get(one) for one in records] == [expected] * len(records)


def test_a_path_is_read_from_each_record() -> None:
    records = [{"a": {"b": 1}}, {"a.b": 2}]
    assert column_getter("a.b", "here", "key_by")(records) == [1, 2]


def test_fields_named_as_methods_of_tuples_are_read() -> None:
    assert column_getter("count", "here", "key_by")([Named(1, 2), Named(3, 4)]) == [1, 3]


def test_a_record_without_the_field_is_named() -> None:
    with pytest.raises(JobDefinitionError, match=r"here: key_by\('c'\).*no field of that name: Named\(count=5, b=6\)"):
        column_getter("c", "here", "key_by")([Named(5, 6)])


@pytest.mark.parametrize("zone", [None, timezone.utc, ZoneInfo("UTC"), ZoneInfo("Europe/Berlin")])
def test_timestamps_keep_their_order_in_a_repeated_hour(zone: tzinfo | None) -> None:
    # In Berlin, 2:30 with fold=1 is after 2:45 with fold=0.
    moments = [datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zone), datetime(2026, 10, 25, 2, 45, tzinfo=zone)]
    keyed = KeyedInput(StreamEdge(SourceNode([])), ("k",), ("at",))
    [ordered] = local_inputs(OperatorNode((keyed,), "uid", "name", None, None), [KnownStream(None, False)])
    records = [{"k": 1, "at": moment} for moment in moments]
    made = ordered.in_order(ObjectBatch(records, [1, 1], [0, 0], None))
    repeats = zone is not None and zone.utcoffset(None) is None
    assert [one["at"] for one in made.records] == (moments[::-1] if repeats else moments)
