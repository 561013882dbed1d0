"""Graphs with several sources, sinks, readers and side outputs: their order, and rejected graphs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend import JobDefinitionError, KeyedProcessFunction, OutputTag, ProcessContext
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.stream_graph import JobGraph, SourceNode, StreamEdge, StreamGraph


class Nothing(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[Any]) -> None:
        return None


LATE = OutputTag[Any]("late", schema="a int")


def source(graph: StreamGraph, uid: str | None = None) -> DataStream:
    return DataStream(graph, graph.add_source(SourceNode(None, uid)))


def is_topological(job: JobGraph) -> bool:
    places = {node: place for place, node in enumerate(job.nodes)}
    return all(places[edge.node] < places[node] for node in job.nodes for edge in node.inputs)


def test_a_graph_forks_and_joins_in_topological_order() -> None:
    graph = StreamGraph()
    left, right = source(graph, "left"), source(graph, "right")
    first = left.key_by("k").process(Nothing(), uid="first")
    both = first.get_side_output(LATE).union(right, left.flat_map(list))
    both.key_by("k").process(Nothing(), uid="second").sink_to([], uid="b")
    first.sink_to([], uid="a")
    job = graph.job()
    assert is_topological(job)
    assert len(job.nodes) == 8
    assert [node.uid for node in job.operators] == ["first", "second"]
    assert [node.uid for node in job.sinks] == ["b", "a"]
    assert len(job.sources) == 2
    operator = job.operators[0]
    assert sorted(str(edge.tag and edge.tag.name) for edge in job.edges_from(operator)) == ["None", "late"]
    assert job.side_outputs(operator) == (LATE,)
    assert job.side_outputs(job.sources[0]) == ()


@given(st.data())
def test_any_graph_is_in_topological_order(data: st.DataObject) -> None:
    graph = StreamGraph()
    streams = [source(graph, "first")]
    for number in range(data.draw(st.integers(1, 12))):
        stream = data.draw(st.sampled_from(streams))
        step = data.draw(st.sampled_from(["source", "transform", "union", "process", "side", "sink"]))
        if step == "source":
            streams.append(source(graph, f"source-{len(streams)}"))
        elif step == "transform":
            streams.append(stream.flat_map(list))
        elif step == "union":
            streams.append(stream.union(*data.draw(st.lists(st.sampled_from(streams), min_size=1, max_size=3))))
        elif step == "sink":
            stream.sink_to([], uid=f"sink {number}")
        else:
            processed = stream.key_by("k").process(Nothing(), uid=str(number))
            streams.append(processed.get_side_output(LATE) if step == "side" else processed)
    for number, stream in enumerate(streams):
        stream.sink_to([], uid=f"last {number}")
    job = graph.job()
    assert is_topological(job)
    assert len(set(job.nodes)) == len(job.nodes)
    assert set(job.operators) == set(graph.operators)


def test_streams_without_a_sink_are_not_part_of_the_job() -> None:
    graph = StreamGraph()
    used, unused = source(graph), source(graph)
    unused.flat_map(list)
    used.key_by("k").process(Nothing(), uid="u").sink_to([])
    assert [edge for node in graph.job().nodes for edge in node.inputs if edge.node is unused.edge.node] == []
    assert len(graph.job().sources) == 1


def test_only_sources_of_the_job_need_uids_and_a_lone_one_has_a_default() -> None:
    graph = StreamGraph()
    streams = [source(graph, uid) for uid in ("flights", "weather")]
    source(graph).flat_map(list)
    streams[0].union(streams[1]).key_by("k").process(Nothing(), uid="count").sink_to([])
    assert graph.job().source_uids == ("flights", "weather")
    alone = StreamGraph()
    source(alone).key_by("k").process(Nothing(), uid="count").sink_to([])
    assert alone.job().source_uids == ("source",)


@pytest.mark.parametrize(
    ("uids", "message"),
    [
        (("flights", "flights"), "two sources have the uid 'flights'"),
        (("flights", None), r"2 sources, and source 2 has no uid\. Pass .* only source .* is 'source'"),
        ((None, None, "source"), "3 sources, and source 1 has no uid"),
        (("count",), "a source and the operator Nothing have the uid 'count'"),
        ((" ",), "the source has no uid: pass from_dataframe or from_elements"),
        (("a\nb",), "has the control character U\\+000A"),
        (("a" * 201,), "has 201 characters"),
        ((7,), "the source has no uid"),
    ],
)
def test_ambiguous_source_uids_are_rejected(uids: tuple[Any, ...], message: str) -> None:
    def build() -> None:
        graph = StreamGraph()
        first, *others = [source(graph, uid) for uid in uids]
        (first.union(*others) if others else first).key_by("k").process(Nothing(), uid="count").sink_to([])
        graph.job()

    with pytest.raises(JobDefinitionError, match=message):
        build()


def test_an_operator_is_part_of_the_job_if_only_its_side_output_is_read() -> None:
    graph = StreamGraph()
    source(graph).key_by("k").process(Nothing(), uid="u").get_side_output(LATE).sink_to([])
    assert [node.uid for node in graph.job().operators] == ["u"]


def test_streams_of_two_environments_are_not_joined() -> None:
    graph, another = StreamGraph(), StreamGraph()
    stream, foreign = source(graph), source(another)
    for read in (
        lambda: stream.union(foreign),
        lambda: DataStream(graph, foreign.edge).flat_map(list),
        lambda: DataStream(graph, StreamEdge(SourceNode(None))).sink_to([]),
    ):
        with pytest.raises(JobDefinitionError, match="a stream of another environment cannot be read here"):
            read()


def test_union_accepts_other_streams() -> None:
    stream = source(StreamGraph())
    with pytest.raises(JobDefinitionError, match="at least one other stream"):
        stream.union()
    with pytest.raises(JobDefinitionError, match=r"union\(\) takes streams, not \[\]"):
        stream.union([])  # type: ignore[arg-type]


def test_a_tag_has_one_schema_per_operator_and_a_printable_name() -> None:
    graph = StreamGraph()
    first = source(graph, "one").key_by("k").process(Nothing(), uid="first")
    second = source(graph, "two").key_by("k").process(Nothing(), uid="second")
    for processed, schema in ((first, "a int"), (second, "a int"), (second, "a bigint")):
        processed.get_side_output(OutputTag("late", schema=schema)).sink_to(
            [], uid=f"{processed.edge.node} {schema}"[-99:]
        )
    job = graph.job()
    assert job.side_outputs(job.operators[0])[0].schema == "a int"
    with pytest.raises(JobDefinitionError, match="'late' is read with the schema 'a int' and with 'a bigint'"):
        job.side_outputs(job.operators[1])
    for name in ("", "  ", "a\nb", "t" * 201, 7):
        with pytest.raises(JobDefinitionError, match="the name of an OutputTag is"):
            OutputTag(name)  # type: ignore[arg-type]
    assert OutputTag("t" * 200) == OutputTag("t" * 200, schema="a int")
    with pytest.raises(JobDefinitionError, match=r"get_side_output\(\) takes an OutputTag, not 'late'"):
        first.get_side_output("late")  # type: ignore[arg-type]
