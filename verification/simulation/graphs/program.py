"""Writes the program of a plan into an environment, as a user would."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from statebackend import (
    AsyncDataStream,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    KeyedStream,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from verification.simulation.graphs.functions import (
    LATE_RIGHT_TAG,
    RULES,
    SCHEMA,
    SIDE_TAG,
    Asked,
    Collect,
    Connected,
    Element,
    Pair,
    Ruled,
    Running,
    Several,
    ShowWindow,
    Totals,
    co_grouped,
    joined,
    mapped,
    reduced_rows,
)
from verification.simulation.graphs.plan import MAIN, SIDE, GraphPlan, Node, Stream, consumed, orders

__all__ = ["outputs", "write_program"]


def outputs(plan: GraphPlan) -> list[Stream]:
    """Return the operators' streams that have a sink: those without readers, and every third one of the others."""
    read, known = consumed(plan.nodes), orders(plan.nodes, is_batched=plan.is_batched)
    streams = []
    for index, node in enumerate(plan.nodes):
        if not known[index, MAIN].has_operator:
            continue
        if (index, MAIN) not in read or index % 3 == 0:
            streams.append((index, MAIN))
        if node.has_side:
            streams.append((index, SIDE))
    return streams


def write_program(
    plan: GraphPlan, source: Callable[[int], DataStream], output: Callable[[Stream, DataStream], None]
) -> None:
    """Build the graph of a plan on its sources, and add its sinks."""
    streams: dict[Stream, DataStream] = {}
    for index, node in enumerate(plan.nodes):
        if node.kind == "source":
            streams[index, MAIN] = source(index)
            continue
        read = [streams[stream] for stream in node.inputs]
        made = _WRITE[node.kind](node, read, {"uid": f"node-{index}", "schema": SCHEMA})
        streams[index, MAIN] = made
        if node.has_side:
            side = made.get_side_output(SIDE_TAG)
            streams[index, SIDE] = side if node.kind != "interval" else side.union(made.get_side_output(LATE_RIGHT_TAG))
    for stream in outputs(plan):
        output(stream, streams[stream])


def _window(node: Node, read: Sequence[DataStream], named: Mapping[str, Any]) -> DataStream:
    windows = read[0].key_by(*node.key_names).window(_assigner(node))
    trigger: Any = None
    if node["count"]:
        trigger = CountTrigger.of(node["count"])
    elif node["continuous"]:
        trigger = ContinuousEventTimeTrigger.of(node["continuous"])
    if node["purging"]:
        trigger = PurgingTrigger.of(trigger or EventTimeTrigger())
    if trigger is not None:
        windows = windows.trigger(trigger)
    if node["evictor"]:
        windows = windows.evictor(CountEvictor.of(node["evictor"]))
    if node["lateness"]:
        windows = windows.allowed_lateness(node["lateness"])
    if node["side"]:
        windows = windows.side_output_late_data(SIDE_TAG)
    if node["function"] == "reduce":
        return windows.reduce(reduced_rows, **named)
    if node["function"] == "aggregate":
        return windows.aggregate(Totals(), ShowWindow(node), **named)
    return windows.process(ShowWindow(node), **named)


def _assigner(node: Node) -> Any:
    shape = node["shape"]
    if shape == "global":
        return GlobalWindows.create()
    if shape == "clock":
        return TumblingProcessingTimeWindows.of(node["size"])
    if shape == "session":
        gap = node["gap"]
        if node["dynamic"]:
            return EventTimeSessionWindows.with_dynamic_gap(lambda row: gap + row.v)
        return EventTimeSessionWindows.with_gap(gap)
    if shape == "sliding":
        offset = node["offset"] if node["offset"] < node["slide"] else 0
        return SlidingEventTimeWindows.of(node["size"], node["slide"], offset)
    return TumblingEventTimeWindows.of(node["size"], node["offset"])


def _multi(node: Node, read: Sequence[DataStream], named: Mapping[str, Any]) -> DataStream:
    first, *others = (stream.key_by(*node.key_names) for stream in read)
    if len(others) == 1:
        return first.connect(others[0]).process(Connected(node), **named)
    return first.connect_all(*others).process(Several(node), **named)


def _interval(node: Node, read: Sequence[DataStream], named: Mapping[str, Any]) -> DataStream:
    left, right = (stream.key_by(*node.key_names) for stream in read)
    join = left.interval_join(right).between(node["lower"], node["upper"])
    if node["side"]:
        join = join.side_output_left_late_data(SIDE_TAG).side_output_right_late_data(LATE_RIGHT_TAG)
    return join.process(Pair(node), **named)


def _cogroup(node: Node, read: Sequence[DataStream], named: Mapping[str, Any]) -> DataStream:
    left, right = read
    both = left.join(right) if node["pairs"] else left.co_group(right)
    windows = both.where(*node.key_names).equal_to(*node.key).window(TumblingEventTimeWindows.of(node["size"]))
    return windows.apply((joined if node["pairs"] else co_grouped)(node), **named)


def _map(node: Node, read: Sequence[DataStream], named: Mapping[str, Any]) -> DataStream:
    """The same step in three forms, by its factor."""
    if node["factor"] == 1:
        return read[0].filter(lambda row: row.v != 3).map(copy.deepcopy, schema=SCHEMA)
    if node["factor"] == 2:
        return read[0].as_records(Element).flat_map(mapped(node), schema=SCHEMA)
    return read[0].flat_map(mapped(node))


def _keyed(stream: DataStream, node: Node) -> KeyedStream:
    """The stream by its key: by a function of the record if it is one column."""
    if len(node.key) != 1:
        return stream.key_by(*node.key_names)
    return stream.key_by(attrgetter(*node.key), key_type=int)


def _broadcast(node: Node, read: Sequence[DataStream], named: Mapping[str, Any]) -> DataStream:
    data, rules = read
    return _keyed(data, node).connect(rules.broadcast(RULES)).process(Ruled(node), **named)


def _async(node: Node, read: Sequence[DataStream], named: Mapping[str, Any]) -> DataStream:
    wait = AsyncDataStream.ordered_wait if node["ordered"] else AsyncDataStream.unordered_wait
    return wait(_keyed(read[0], node), Asked(node), "60 seconds", **named)


_WRITE: Final[Mapping[str, Callable[[Node, Sequence[DataStream], Mapping[str, Any]], Any]]] = {
    "running": lambda node, read, named: read[0].key_by(*node.key_names).process(Running(node), **named),
    "collect": lambda node, read, named: read[0].key_by(*node.key_names).process(Collect(node), **named),
    "window": _window,
    "multi": _multi,
    "interval": _interval,
    "cogroup": _cogroup,
    "union": lambda node, read, named: read[0].union(*read[1:]),
    "broadcast": _broadcast,
    "map": _map,
    "async": _async,
}
