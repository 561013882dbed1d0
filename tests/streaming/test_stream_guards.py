"""Rejected chains, graphs and sessions, at both sides of each bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from statebackend import JobDefinitionError, KeyedProcessFunction, NullKeyError, ProcessContext
from statebackend.spark.session import is_speculative, were_tasks_repeated
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.operators.operator import check_keys
from statebackend.streaming.rows.row_reader import RowReader
from statebackend.streaming.rows.row_writer import RowMismatchError, RowWriter
from statebackend.streaming.stream_graph import SourceNode, StreamGraph


class Nothing(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[Any]) -> None:
        return None


def stream() -> tuple[StreamGraph, DataStream]:
    graph = StreamGraph()
    return graph, DataStream(graph, graph.add(SourceNode(None)))


@pytest.mark.parametrize("uid", ["u", "u" * 200, " u ", "../a/b\\c", "..", "日本"])
def test_a_uid_of_up_to_200_characters_is_accepted(uid: str) -> None:
    graph, rows = stream()
    rows.key_by("k").process(Nothing(), uid=uid).sink_to([])
    assert [operator.uid for operator in graph.operators] == [uid]
    assert len(graph.job().nodes) == 3


UNUSABLE = [
    *(("the operator Nothing has no uid", uid) for uid in ("", " \t", None, 7)),
    ("has 201 characters, and 200 are the most", "u" * 201),
    *(("has the control character", uid) for uid in ("\0", "a\0b", "a\nb", "a\x85", "\x7f", "a\u2028", "a\x9b2J")),
    *(("has the bidirectional character", uid) for uid in ("a\u202eb", "\u2066a", "a\u200f", "\u061ca")),
    ("half of a surrogate pair", "a\ud800"),
]


@pytest.mark.parametrize(("reported", "uid"), UNUSABLE)
def test_a_missing_long_or_unencodable_uid_is_rejected_in_one_line(reported: str, uid: Any) -> None:
    _, rows = stream()
    with pytest.raises(JobDefinitionError, match=reported) as rejected:
        rows.key_by("k").process(Nothing(), uid=uid)
    assert len(str(rejected.value).splitlines()) == 1


def test_a_graph_has_a_sink_distinct_uids_and_no_unread_streams() -> None:
    graph, rows = stream()
    with pytest.raises(JobDefinitionError, match="no sink"):
        graph.job()
    first = rows.key_by("k").process(Nothing(), uid="first")
    with pytest.raises(JobDefinitionError, match="two operators have the uid 'first'"):
        first.key_by("k").process(Nothing(), uid="first")
    second = first.key_by("k").process(Nothing(), uid="second")
    results: list[Any] = []
    first.sink_to(results)
    with pytest.raises(JobDefinitionError, match="two sinks were given no uid: list and list;"):
        second.sink_to([])
    with pytest.raises(JobDefinitionError, match="the same list was given to sink_to twice"):
        second.sink_to(results, uid="again")
    with pytest.raises(JobDefinitionError, match="the sink list has no uid: pass sink_to"):
        second.sink_to([], uid="")
    with pytest.raises(JobDefinitionError, match="no sink receives what these operators emit: second;"):
        graph.job()
    second.sink_to([], uid="another")
    with pytest.raises(JobDefinitionError, match="two sinks have the uid 'another': list and list;"):
        second.sink_to([], uid="another")
    assert [node.uid for node in graph.job().sinks] == ["sink", "another"]


def test_key_by_accepts_one_or_more_separate_columns() -> None:
    _, rows = stream()
    rows.key_by("a")
    rows.key_by("a", "b")
    with pytest.raises(JobDefinitionError, match="at least one column"):
        rows.key_by()
    for lists in ((["a", "b"],), ("a", ("b", "c"))):
        with pytest.raises(JobDefinitionError, match="columns as arguments"):
            rows.key_by(*lists)


def test_process_needs_an_instance() -> None:
    _, rows = stream()
    for given, what in ((Nothing, "the class Nothing; make an instance"), (len, "<built-in function len>")):
        with pytest.raises(JobDefinitionError, match=what):
            rows.key_by("k").process(given, uid="u")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "is_composite"), [(["a", None], False), ([("a", 1), ("b", None)], True), ([(None, 1)], True)]
)
def test_a_null_anywhere_in_a_key_is_rejected(keys: list[Any], is_composite: bool) -> None:
    with pytest.raises(NullKeyError, match="operator 'u': a record has a null key"):
        check_keys("operator 'u'", keys, is_composite)


def test_false_and_empty_keys_are_not_null() -> None:
    check_keys("u", ["", 0, False, b""], False)
    check_keys("u", [("", 0)], True)
    check_keys("u", [], False)


def context(**stages: tuple[int, int]) -> Any:
    """A Spark context whose stages ``s<id>`` have these attempt ids and numbers of failed tasks."""
    known = {
        int(name[1:]): SimpleNamespace(
            currentAttemptId=lambda attempt=attempt: attempt, numFailedTasks=lambda failed=failed: failed
        )
        for name, (attempt, failed) in stages.items()
    }
    tracker = SimpleNamespace(getStageInfo=known.get)
    return SimpleNamespace(_jsc=SimpleNamespace(statusTracker=lambda: tracker))


def test_repeated_tasks_are_detected_in_every_form() -> None:
    attempts = ["1.0.0.10", "2.1.0.11"]
    assert not were_tasks_repeated(context(s1=(0, 0), s2=(0, 0)), attempts)
    # Spark forgets old stages.
    assert not were_tasks_repeated(context(), attempts)
    assert were_tasks_repeated(context(s1=(0, 0), s2=(0, 0)), ["1.0.0.10", "2.1.1.11"])
    assert were_tasks_repeated(context(s1=(0, 0), s2=(1, 0)), attempts)
    assert were_tasks_repeated(context(s1=(0, 1), s2=(0, 0)), attempts)
    for set_to, expected in (("TRUE", True), ("false", False)):
        assert is_speculative(SimpleNamespace(getConf=lambda given=set_to: {"spark.speculation": given})) is expected  # type: ignore[arg-type]


def test_a_reader_rejects_batches_of_other_types_and_accepts_other_names() -> None:
    reader = RowReader(pa.schema([("a", pa.int64())]))
    assert reader.rows(pa.RecordBatch.from_arrays([pa.array([1])], names=["b"])) == [(1,)]
    with pytest.raises(ValueError, match="was given to a reader of"):
        reader.rows(pa.RecordBatch.from_arrays([pa.array([1], pa.int32())], names=["a"]))


@pytest.mark.parametrize("row", [(1,), (1, 2, 3)])
def test_a_row_of_too_few_or_too_many_values_is_rejected(row: tuple[int, ...]) -> None:
    writer = RowWriter(pa.schema([("a", pa.int64()), ("b", pa.int64())]), "operator 'u'")
    assert writer.batch([(1, 2)]).num_rows == 1
    with pytest.raises(RowMismatchError, match=rf"operator 'u': a row of {len(row)} values .* for the 2 columns"):
        list(writer.batches([(1, 2), row]))
