"""The event time of a network in a checkpoint: by node, not by subtask.

A checkpoint may be restored with another parallelism, so it has one entry for all subtasks of a node: the earliest
watermark, and idle if all subtasks are. At an aligned barrier they have seen the same watermarks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.metadata import (
    ChannelWatermark,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    WatermarkState,
)
from statebackend.local.network.channel import SubtaskOutput
from statebackend.local.network.channel_barriers import SubtaskTime
from statebackend.local.network.network import Network
from statebackend.local.network.subtasks import SourceSubtask
from statebackend.streaming.time.job_watermarks import GraphWatermarks, WatermarkNode, known_time
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import WatermarkStatus


def operator_watermarks(network: Network) -> Mapping[str, int]:
    """The watermark of each operator by uid, in milliseconds; `MIN_TIMESTAMP` without one."""
    watermarks: dict[str, int] = {}
    for subtask in network.operators:
        here_ms = subtask.watermarks.watermark_ms
        watermarks[subtask.task.operator_uid] = min(here_ms, watermarks.get(subtask.task.operator_uid, here_ms))
    return watermarks


class BarrierTimes:
    """The event time at the barrier of one checkpoint, noted when the barrier reaches each subtask.

    ``source_order`` is that of the program.
    """

    def __init__(self, source_order: Sequence[TaskId]) -> None:
        self._source_order = tuple(source_order)
        self._sources: dict[TaskId, tuple[NodeWatermark, tuple[ChannelWatermark, ...]]] = {}
        self._operators: dict[TaskId, SubtaskTime] = {}

    def note_source(self, source: SourceSubtask[Any]) -> None:
        sent_ms = known_time(source.output.watermark_ms)
        node = NodeWatermark(
            node=source.task.operator_uid,
            watermark_ms=sent_ms,
            sent_watermark_ms=sent_ms,
            is_idle=source.output.status.is_idle,
        )
        self._sources[source.task] = node, tuple(source.work.channels())

    def note_operator(self, task: TaskId, time: SubtaskTime) -> None:
        self._operators[task] = time

    def nodes(self) -> tuple[NodeWatermark, ...]:
        """The event time of all sources and operators."""
        subtasks: dict[str, list[SubtaskTime]] = {}
        for task, one in sorted(self._operators.items()):
            subtasks.setdefault(task.operator_uid, []).append(one)
        sources = (node for node, _ in self._noted_sources())
        return (*sources, *(_of_operator(name, several) for name, several in subtasks.items()))

    def channels(self) -> tuple[ChannelWatermark, ...]:
        """The state of the channels of all sources."""
        return tuple(channel for _, channels in self._noted_sources() for channel in channels)

    def _noted_sources(self) -> Iterator[tuple[NodeWatermark, tuple[ChannelWatermark, ...]]]:
        return (self._sources[one] for one in self._source_order if one in self._sources)


def restore_network(network: Network, nodes: Sequence[WatermarkNode], state: WatermarkState) -> None:
    """Restore the event time of a new network from a checkpoint, possibly of another graph."""
    graph = GraphWatermarks(nodes)
    graph.restore(state.nodes)
    known = {one.node: one for one in graph.snapshot()}
    processed = {one.node: one.epoch_watermark_ms for one in state.nodes}
    outputs: dict[TaskId, SubtaskOutput] = {}
    for source in network.sources:
        name = source.task.operator_uid
        source.work.restore(*_sent(known[name]), [one for one in state.channels if one.source == name])
        outputs[source.task] = source.output
    for subtask in network.operators:
        node = known[subtask.task.operator_uid]
        outputs[subtask.task] = subtask.output
        # The end of time is not stored, as in the valves.
        subtask.work.watermark_ms = min(_time(processed.get(node.node)), _time(node.watermark_ms))
        sent_ms, status = _sent(node)
        subtask.watermarks.restore(_state_of(node, outputs), status)
        subtask.output.restore(sent_ms, status)
    network.output.restore(outputs)


def _of_operator(name: str, subtasks: Sequence[SubtaskTime]) -> NodeWatermark:
    states = [one.own for one in subtasks]
    watermark_ms = known_time(min(one.watermark_ms for one in states))
    return NodeWatermark(
        node=name,
        watermark_ms=watermark_ms,
        # No early records precede a watermark that the operator has processed.
        epoch_watermark_ms=watermark_ms,
        sent_watermark_ms=known_time(min(one.sent_watermark_ms for one in subtasks)),
        is_idle=all(one.sent_status.is_idle for one in subtasks),
        inputs=tuple(_of_valves(valves) for valves in zip(*(one.inputs for one in states), strict=True)),
    )


def _of_valves(valves: Sequence[ValveState[TaskId]]) -> InputWatermark:
    by_node: dict[str, list[ValveChannel[TaskId]]] = {}
    for channel in (channel for valve in valves for channel in valve.channels):
        by_node.setdefault(channel.channel.operator_uid, []).append(channel)
    channels = (
        InputChannel(node, known_time(min(one.watermark_ms for one in several)), all(one.is_idle for one in several))
        for node, several in by_node.items()
    )
    return InputWatermark(known_time(min(one.watermark_ms for one in valves)), tuple(channels))


def _state_of(node: NodeWatermark, subtasks: Iterable[TaskId]) -> OperatorWatermarkState[TaskId]:
    of_node: dict[str, list[TaskId]] = {}
    for one in subtasks:
        of_node.setdefault(one.operator_uid, []).append(one)
    valves = []
    for given in node.inputs:
        channels = (
            ValveChannel(subtask, _time(channel.watermark_ms), channel.is_idle)
            for channel in given.channels
            for subtask in of_node[channel.channel]
        )
        valves.append(ValveState(_time(given.watermark_ms), tuple(channels)))
    return OperatorWatermarkState(_time(node.watermark_ms), tuple(valves))


def _sent(node: NodeWatermark) -> tuple[int, WatermarkStatus]:
    return _time(node.sent_watermark_ms), WatermarkStatus.IDLE if node.is_idle else WatermarkStatus.ACTIVE


def _time(time_ms: int | None) -> int:
    return MIN_TIMESTAMP if time_ms is None else time_ms
