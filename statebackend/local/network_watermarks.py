"""Where event time stands in a network, as a checkpoint has it: by node, and not by subtask.

A checkpoint outlives the number of subtasks, so all subtasks of a node are one in it: at the earliest watermark of any
of them, idle if all are. Behind an aligned barrier they have seen the same of time, if not always in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from statebackend.checkpoint.metadata import (
    ChannelWatermark,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    WatermarkState,
)
from statebackend.local.network.channel import SubtaskId, SubtaskOutput
from statebackend.local.network.channel_barriers import SubtaskTime
from statebackend.local.network.network import Network
from statebackend.local.network.subtasks import SourceSubtask
from statebackend.streaming.time.job_watermarks import GraphWatermarks, WatermarkNode, known_time
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import WatermarkStatus

__all__ = ["BarrierTimes", "node_watermarks", "operator_watermarks", "restore_network"]


def operator_watermarks(network: Network) -> Mapping[str, int]:
    """What each operator is at, by uid, in milliseconds; the smallest time if it has no watermark."""
    watermarks: dict[str, int] = {}
    for subtask in network.operators:
        here_ms = subtask.watermarks.watermark_ms
        watermarks[subtask.subtask_id.node] = min(here_ms, watermarks.get(subtask.subtask_id.node, here_ms))
    return watermarks


class BarrierTimes:
    """Where event time stood at the barrier of one checkpoint, noted as it comes to each subtask.

    ``source_order`` has the sources in the order of the program, by which those without a uid are known: in which order
    the barrier came to them says nothing.
    """

    def __init__(self, source_order: Sequence[SubtaskId]) -> None:
        self._source_order = tuple(source_order)
        self._sources: dict[SubtaskId, tuple[NodeWatermark, tuple[ChannelWatermark, ...]]] = {}
        self._operators: dict[SubtaskId, SubtaskTime] = {}

    def note_source(self, source: SourceSubtask[Any]) -> None:
        """A source is at the barrier."""
        sent_ms = known_time(source.output.watermark_ms)
        node = NodeWatermark(
            node=source.subtask_id.node,
            watermark_ms=sent_ms,
            sent_watermark_ms=sent_ms,
            is_idle=source.output.status.is_idle,
        )
        self._sources[source.subtask_id] = node, tuple(source.work.channels())

    def note_operator(self, subtask_id: SubtaskId, time: SubtaskTime) -> None:
        """A subtask of an operator was there at the barrier."""
        self._operators[subtask_id] = time

    def nodes(self) -> tuple[NodeWatermark, ...]:
        """What all sources and operators knew of event time."""
        subtasks: dict[str, list[SubtaskTime]] = {}
        for subtask_id, one in sorted(self._operators.items()):
            subtasks.setdefault(subtask_id.node, []).append(one)
        sources = (node for node, _ in self._noted_sources())
        return (*sources, *(_of_operator(name, several) for name, several in subtasks.items()))

    def channels(self) -> tuple[ChannelWatermark, ...]:
        """What sources knew of their channels."""
        return tuple(channel for _, channels in self._noted_sources() for channel in channels)

    def _noted_sources(self) -> Iterator[tuple[NodeWatermark, tuple[ChannelWatermark, ...]]]:
        return (self._sources[one] for one in self._source_order if one in self._sources)


def node_watermarks(network: Network) -> tuple[NodeWatermark, ...]:
    """What all sources and operators know of event time now."""
    times = BarrierTimes([one.subtask_id for one in network.sources])
    for source in network.sources:
        times.note_source(source)
    for subtask in network.operators:
        times.note_operator(subtask.subtask_id, subtask.time())
    return times.nodes()


def restore_network(network: Network, nodes: Sequence[WatermarkNode], state: WatermarkState) -> None:
    """Lets a network that has done nothing go on from a checkpoint, which may be one of another graph."""
    graph = GraphWatermarks(nodes)
    graph.restore(state.nodes)
    known = {one.node: one for one in graph.snapshot()}
    told = {one.node: one.epoch_watermark_ms for one in state.nodes}
    outputs: dict[SubtaskId, SubtaskOutput] = {}
    for source in network.sources:
        sent_ms, status = _sent(known[source.subtask_id.node])
        source.work.restore(sent_ms, status, [one for one in state.channels if one.source == source.subtask_id.node])
        outputs[source.subtask_id] = source.output
    for subtask in network.operators:
        outputs[subtask.subtask_id] = subtask.output
        told_ms = _time(told.get(subtask.subtask_id.node))
        # The end of time is not kept, as in the valves.
        subtask.work.begin_at(min(told_ms, _time(known[subtask.subtask_id.node].watermark_ms)))
        sent_ms, status = _sent(known[subtask.subtask_id.node])
        subtask.watermarks.restore(_state_of(known[subtask.subtask_id.node], outputs), status)
        subtask.output.restore(sent_ms, status)
    network.output.restore(outputs)


def _of_operator(name: str, subtasks: Sequence[SubtaskTime]) -> NodeWatermark:
    states = [one.own for one in subtasks]
    watermark_ms = known_time(min(one.watermark_ms for one in states))
    return NodeWatermark(
        node=name,
        watermark_ms=watermark_ms,
        # Nothing comes before a watermark that the operator has been told.
        epoch_watermark_ms=watermark_ms,
        sent_watermark_ms=known_time(min(one.sent_watermark_ms for one in subtasks)),
        is_idle=all(one.sent_status.is_idle for one in subtasks),
        inputs=tuple(_of_valves(valves) for valves in zip(*(one.inputs for one in states), strict=True)),
    )


def _of_valves(valves: Sequence[ValveState[SubtaskId]]) -> InputWatermark:
    by_node: dict[str, list[ValveChannel[SubtaskId]]] = {}
    for channel in (channel for valve in valves for channel in valve.channels):
        by_node.setdefault(channel.channel.node, []).append(channel)
    return InputWatermark(
        known_time(min(one.watermark_ms for one in valves)),
        tuple(
            InputChannel(
                node, known_time(min(one.watermark_ms for one in several)), all(one.is_idle for one in several)
            )
            for node, several in by_node.items()
        ),
    )


def _state_of(node: NodeWatermark, subtasks: Iterable[SubtaskId]) -> OperatorWatermarkState[SubtaskId]:
    of_node: dict[str, list[SubtaskId]] = {}
    for one in subtasks:
        of_node.setdefault(one.node, []).append(one)
    return OperatorWatermarkState(
        _time(node.watermark_ms),
        tuple(
            ValveState(
                _time(one.watermark_ms),
                tuple(
                    ValveChannel(subtask, _time(channel.watermark_ms), channel.is_idle)
                    for channel in one.channels
                    for subtask in of_node[channel.channel]
                ),
            )
            for one in node.inputs
        ),
    )


def _sent(node: NodeWatermark) -> tuple[int, WatermarkStatus]:
    return _time(node.sent_watermark_ms), WatermarkStatus.IDLE if node.is_idle else WatermarkStatus.ACTIVE


def _time(time_ms: int | None) -> int:
    return MIN_TIMESTAMP if time_ms is None else time_ms
