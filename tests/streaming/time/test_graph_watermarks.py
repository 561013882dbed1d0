from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from golden_time_traces import as_recorded, element_of, scenarios
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import IllegalTransitionError, NodeWatermark
from statebackend.checkpoint.metadata import InputChannel, InputWatermark
from statebackend.streaming.time.job_watermarks import GraphWatermarks, NodeReaction, WatermarkNode
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE
TRACES = scenarios("two_inputs")


def node(name: str, *inputs: str | tuple[str, ...], **options: bool) -> WatermarkNode:
    """``node("join", "left", ("right", "more"))``: two inputs, the second of two channels."""
    return WatermarkNode(id=name, inputs=tuple((one,) if isinstance(one, str) else one for one in inputs), **options)


def reported(reactions: Sequence[NodeReaction]) -> list[str]:
    """``a=5`` for a node that advances, ``a idle`` for a status; in parentheses if it is not forwarded."""
    texts = [
        f"{one.node}={one.element.timestamp_ms}"
        if isinstance(one.element, Watermark)
        else f"{one.node} {one.element.value}"
        for one in reactions
    ]
    return [text if one.is_forwarded else f"({text})" for one, text in zip(reactions, texts, strict=True)]


@pytest.mark.parametrize("scenario", TRACES, ids=[one["name"] for one in TRACES])
def test_a_graph_of_several_sources_equals_flink_jobs(scenario: dict[str, Any]) -> None:
    operator = scenario["operator"]
    united = operator["type"] == "union_keyed_process"
    sources = [str(index) for index in range(operator["inputs"] if united else 2)]
    last = (
        [node("union", tuple(sources), is_transparent=True), node("last", "union")]
        if united
        else [node("last", *sources)]
    )
    graph = GraphWatermarks([*map(node, sources), *last])
    sent = []
    for at, event in enumerate(scenario["input"]):
        if "record" not in event:
            done = graph.take(str(event["input"]), element_of(event))
            sent += as_recorded(at, [one.element for one in done if one.is_forwarded])
    assert sent == [one for one in scenario["expected"] if "watermark" in one or "status" in one]


def test_a_watermark_passes_a_diamond_once_in_topological_order() -> None:
    graph = GraphWatermarks([node("s"), node("a", "s"), node("b", "s"), node("c", ("a", "b")), node("d", "c")])
    assert reported(graph.take("s", Watermark(5))) == ["a=5", "b=5", "c=5", "d=5"]
    assert reported(graph.take("s", Watermark(5))) == []
    assert reported(graph.take("s", IDLE)) == ["a idle", "b idle", "c idle", "d idle"]
    assert reported(graph.take("s", Watermark(9))) == []
    assert reported(graph.take("s", ACTIVE)) == ["a active", "b active", "c active", "d active"]
    assert graph.watermark_of("d") == graph.watermark_of("s") == 5


def test_a_self_join_waits_for_its_stream_once() -> None:
    graph = GraphWatermarks([node("s"), node("join", "s", "s"), node("twice", ("s", "s"))])
    assert reported(graph.take("s", Watermark(5))) == ["join=5", "twice=5"]


def test_nested_unions_are_channels_of_their_readers() -> None:
    graph = GraphWatermarks(
        [
            *map(node, "xyz"),
            node("inner", ("x", "y"), is_transparent=True),
            node("step", "inner", is_transparent=True),
            node("outer", ("step", "z"), is_transparent=True),
            node("last", "outer"),
        ]
    )
    for source, time in [("x", 10), ("y", 5), ("z", 3)]:
        graph.take(source, Watermark(time))
    assert graph.watermark_of("last") == 3
    # A valve in the inner union would emit 10 here and become idle.
    assert reported([*graph.take("x", IDLE), *graph.take("y", IDLE)]) == []
    assert reported(graph.take("z", IDLE)) == ["last=10", "last idle"]


def test_an_operator_that_holds_watermarks_reports_what_it_sends() -> None:
    graph = GraphWatermarks([node("s"), node("async", "s", holds_watermarks=True), node("last", "async")])
    assert reported(graph.take("s", Watermark(5))) == ["(async=5)"]
    assert reported(graph.take("async", Watermark(3))) == ["last=3"]
    assert (graph.watermark_of("async"), graph.watermark_of("last")) == (5, 3)
    assert reported(graph.take("s", IDLE)) == ["(async idle)"]
    assert reported(graph.take("async", IDLE)) == ["last idle"]
    assert graph.status_of("last") is IDLE


def test_foreign_events_are_rejected_and_change_nothing() -> None:
    graph = GraphWatermarks([node("s"), node("a", "s"), node("u", "a", is_transparent=True)])
    graph.take("s", Watermark(1))
    before = graph.snapshot()
    with pytest.raises(IllegalTransitionError, match="no node 'x'"):
        graph.take("x", Watermark(1))
    for other in "au":
        with pytest.raises(IllegalTransitionError, match="only forwards the times of its inputs"):
            graph.take(other, IDLE)
    assert graph.snapshot() == before


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("a"), node("a")], "two nodes are called 'a'"),
        ([node("a", "b"), node("b")], "'a' reads 'b', which does not come before it"),
        ([node("a", "a")], "does not come before it"),
        ([node("a", is_transparent=True)], "transparent and reads nothing"),
        ([node("a", ())], "a valve needs at least one channel"),
    ],
)
def test_an_unordered_graph_is_rejected(nodes: list[WatermarkNode], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphWatermarks(nodes)


def diamond(*, more: str = "") -> list[WatermarkNode]:
    return [*map(node, "st" + more), node("a", ("s", "t", *more)), node("b", "s", "t"), node("c", "a", "b")]


def test_stored_state_of_removed_nodes_holds_no_node_after_a_restore() -> None:
    graph = GraphWatermarks(diamond())
    graph.take("s", Watermark(20))
    graph.take("t", Watermark(10))
    smaller = GraphWatermarks([node("s"), node("a", "s"), node("b", "s"), node("c", "a", "b")])
    assert reported(smaller.restore(graph.snapshot())) == ["a=20", "b=20", "c=20"]


def test_a_source_added_at_a_restore_decreases_no_node_and_holds_no_union() -> None:
    graph = GraphWatermarks(diamond())
    for source in "st":
        graph.take(source, Watermark(20))
    larger = GraphWatermarks(diamond(more="n"))
    assert reported(larger.restore(graph.snapshot())) == []
    assert reported(larger.take("n", Watermark(10))) == []
    larger.take("s", Watermark(30))
    assert reported(larger.take("t", Watermark(30))) == ["a=30", "b=30", "c=30"]


def test_a_node_added_at_a_restore_gets_the_earlier_output_of_its_senders() -> None:
    graph = GraphWatermarks(diamond())
    graph.take("s", Watermark(20))
    graph.take("t", IDLE)
    more = GraphWatermarks([*diamond(), node("d", ("t", "s")), node("e", "a", "t"), node("f", "d")])
    assert reported(more.restore(graph.snapshot())) == ["d=20", "e=20", "f=20"]
    assert reported(more.take("s", IDLE)) == [f"{name} idle" for name in "abcdef"]


def test_a_graph_with_finished_sources_continues_with_new_input() -> None:
    graph = GraphWatermarks(diamond())
    graph.take("s", Watermark(20))
    for source in "ts":
        graph.take(source, END_OF_TIME)
    assert graph.watermark_of("c") == MAX_TIMESTAMP
    again = GraphWatermarks(diamond())
    assert reported(again.restore(graph.snapshot())) == []
    assert {again.watermark_of(name) for name in "stabc"} == {MIN_TIMESTAMP}
    again.take("s", Watermark(5))
    assert reported(again.take("t", Watermark(7))) == ["a=5", "b=5", "c=5"]
    assert again.watermark_of("c") == 5


def test_one_finished_source_of_several_holds_no_union_after_a_restore() -> None:
    graph = GraphWatermarks([*map(node, "st"), node("a", ("s", "t"))])
    graph.take("s", Watermark(20))
    assert reported(graph.take("t", END_OF_TIME)) == ["a=20"]
    again = GraphWatermarks([*map(node, "st"), node("a", ("s", "t"))])
    assert reported(again.restore(graph.snapshot())) == []
    assert reported(again.take("s", Watermark(30))) == ["a=30"]


def test_an_operator_that_ends_while_idle_counts_as_ended_for_its_readers() -> None:
    graph = GraphWatermarks([*map(node, "st"), node("a", "s"), node("b", "t"), node("c", ("a", "b")), node("d", "c")])
    assert reported(graph.take("s", IDLE)) == ["a idle"]
    assert reported(graph.take("s", END_OF_TIME)) == []
    assert graph.watermark_of("s") == graph.watermark_of("a") == MIN_TIMESTAMP
    assert reported(graph.take("t", END_OF_TIME)) == [f"{name}={MAX_TIMESTAMP}" for name in "bcd"]


def test_a_source_that_became_an_operator_starts_again() -> None:
    graph = GraphWatermarks([node("s"), node("a"), node("b", "s", "a")])
    graph.take("a", Watermark(9))
    graph.take("a", IDLE)
    other = GraphWatermarks([node("s"), node("a", "s"), node("b", "s", "a")])
    other.restore(graph.snapshot())
    assert other.status_of("a") is ACTIVE
    assert reported(other.take("s", Watermark(5)))[:1] == ["a=5"]


def test_a_new_graph_has_no_times() -> None:
    graph = GraphWatermarks(diamond())
    assert graph.snapshot()[0] == NodeWatermark(node="s")
    assert graph.watermark_of("c") == MIN_TIMESTAMP


# All times except the end of time, which is not stored.
times = st.integers(0, 12) | st.sampled_from([MIN_TIMESTAMP, MIN_TIMESTAMP + 1, MAX_TIMESTAMP - 1])
elements = st.builds(Watermark, times) | st.sampled_from([IDLE, ACTIVE])
events = st.lists(st.tuples(st.sampled_from("stuv"), elements), max_size=40)
NODES = [
    *map(node, "stuv"),
    node("union", ("s", "t"), is_transparent=True),
    node("a", "union"),
    node("b", "a", ("u", "s")),
    node("c", ("a", "b", "v")),
    node("d", "c", "b", "union"),
]


@given(events, st.integers(0, 40))
def test_no_node_decreases_and_a_snapshot_at_any_point_changes_nothing(
    events: Sequence[tuple[str, WatermarkElement]], point: int
) -> None:
    graph, restored = GraphWatermarks(NODES), GraphWatermarks(NODES)
    before = dict.fromkeys("stuvabcd", MIN_TIMESTAMP)
    for at, event in enumerate(events):
        if at == point:
            assert restored.restore(graph.snapshot()) == ()
        done = graph.take(*event)
        if at >= point:
            assert restored.take(*event) == done
        for one in done:
            if isinstance(one.element, Watermark):
                assert one.element.timestamp_ms > before[one.node]
                before[one.node] = one.element.timestamp_ms
        assert all(graph.watermark_of(name) == before[name] for name in "abcd")
    if len(events) > point:
        assert restored.snapshot() == graph.snapshot()


def test_a_long_chain_is_supported() -> None:
    chain = [node("0"), *(node(str(at), str(at - 1)) for at in range(1, 3000))]
    graph = GraphWatermarks(chain)
    assert len(graph.take("0", Watermark(1))) == 2999


@st.composite
def graphs(draw: st.DrawFn) -> list[WatermarkNode]:
    """Sources, operators and unions; each one reads some of those before it."""
    names = draw(st.lists(st.sampled_from("stu"), min_size=1, unique=True))
    made = [node(name) for name in names]
    for name in draw(st.lists(st.sampled_from("abcdef"), unique=True)):
        inputs = draw(st.lists(st.lists(st.sampled_from(names), min_size=1, max_size=3), min_size=1, max_size=2))
        made.append(node(name, *map(tuple, inputs), is_transparent=name in "ef"))
        names.append(name)
    return made


@given(graphs(), events, graphs())
def test_no_node_of_any_graph_decreases_and_all_source_watermarks_arrive(
    nodes: list[WatermarkNode], events: Sequence[tuple[str, WatermarkElement]], nodes_then: list[WatermarkNode]
) -> None:
    graph, then = GraphWatermarks(nodes), GraphWatermarks(nodes_then)
    sources = {one.id for one in nodes if not one.inputs}
    for source, element in events:
        if source in sources:
            graph.take(source, element)
    then.restore(graph.snapshot())
    operators = {one.id for one in nodes_then if one.inputs and not one.is_transparent}
    for name in operators & {one.id for one in nodes if not one.is_transparent}:
        assert then.watermark_of(name) >= graph.watermark_of(name)
    for source in (one.id for one in nodes_then if not one.inputs):
        then.take(source, ACTIVE)
        then.take(source, END_OF_TIME)
    assert {then.watermark_of(name) for name in operators} <= {MAX_TIMESTAMP}
    assert {then.status_of(name) for name in operators} <= {ACTIVE}


def state_of(name: str, *channels: InputChannel, watermark_ms: int | None = None) -> NodeWatermark:
    """An operator with one input, at the watermark of its valve."""
    return NodeWatermark(
        node=name,
        watermark_ms=watermark_ms,
        sent_watermark_ms=watermark_ms,
        inputs=(InputWatermark(watermark_ms, channels),),
    )


def test_readers_get_the_watermark_of_an_operator_before_its_idle_status() -> None:
    graph = GraphWatermarks([node("s"), node("t"), node("first", ("s", "t")), node("second", "first")])
    graph.take("t", Watermark(30))
    graph.take("t", IDLE)
    graph.take("s", Watermark(10))
    assert reported(graph.take("s", IDLE)) == ["first=30", "first idle", "second=30", "second idle"]


def test_a_restored_operator_gets_the_watermark_of_a_newly_read_source() -> None:
    former = GraphWatermarks([node("s"), node("t"), node("reads", "s"), node("other", "t")])
    for element in (Watermark(50), IDLE):
        former.take("t", element)
    graph = GraphWatermarks([node("s"), node("t"), node("reads", ("s", "t")), node("other", "t")])
    graph.restore(former.snapshot())
    [reads] = [one for one in graph.snapshot() if one.node == "reads"]
    assert reads.inputs[0].channels == (InputChannel("s"), InputChannel("t", 50, True))
    assert reported(graph.take("s", IDLE)) == ["reads=50", "reads idle"]


def test_readers_of_a_source_get_it_in_node_order() -> None:
    graph = GraphWatermarks([node("s"), node("z"), node("x", "s"), node("y", "s"), node("last", ("x", "y", "z"))])
    graph.restore(
        [
            NodeWatermark(node="s", watermark_ms=20, sent_watermark_ms=20),
            NodeWatermark(node="z", watermark_ms=30, sent_watermark_ms=30, is_idle=True),
            state_of("x", InputChannel("s", 10), watermark_ms=10),
            state_of("y", InputChannel("s", 20), watermark_ms=20),
            state_of(
                "last", InputChannel("x", 10), InputChannel("y", 20), InputChannel("z", 30, True), watermark_ms=10
            ),
        ]
    )
    assert reported(graph.take("s", IDLE)) == ["x idle", "y idle", "last=20", "last=30", "last idle"]


def test_restored_nodes_report_in_topological_order_for_any_order_of_the_checkpoint() -> None:
    nodes = [node("s"), node("gone"), node("first", ("s", "gone")), node("second", ("s", "gone"))]
    former = GraphWatermarks(nodes)
    former.take("s", Watermark(5))
    graph = GraphWatermarks([node("s"), node("first", "s"), node("second", "s")])
    assert reported(graph.restore(former.snapshot()[::-1])) == ["first=5", "second=5"]
