"""The watermarks of a whole job, computed from the largest timestamp of each channel in an epoch.

    largest timestamps  ->  channels of sources (`channel_watermarks`)  ->  operators (`GraphWatermarks`)

The result of an epoch applies to the next one. A checkpoint stores it (`WatermarkState`), so a replay has the same
watermarks.

`GraphWatermarks` sends the elements of sources through the operators of a job. Nodes have ids that are stable between
runs: the uid of an operator, the name of a source. A node without inputs is a source. A *transparent* node, such as a
union or a stateless step, has no watermark: its senders are channels of its readers (as in Flink). An element passes
through the whole graph before the next one starts. Readers receive it in the order of the nodes. An operator forwards
elements that it has processed. An operator that holds watermarks forwards nothing and sends elements as a source does.
An idle sender sends no watermark except `END_OF_TIME`, which then only means that no more elements follow.

A checkpoint stores the state of each node (`NodeWatermark`). After a restore no watermark decreases, and idle inputs
stay idle. The graph may change at a restore: removed channels are not waited for, and a new channel first receives the
last elements of its sender. The end of an input is not stored: a restarted job continues to read, so its sender starts
without a watermark.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.checkpoint.metadata import (
    ChannelTimestamp,
    ChannelWatermark,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    WatermarkState,
)
from statebackend.streaming.time.channel_watermarks import ChannelWatermarks, SourceElement, SourceTime
from statebackend.streaming.time.operator_watermarks import OperatorWatermarks, OperatorWatermarkState, WatermarkOutlet
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus


@frozen(kw_only=True)
class WatermarkNode:
    """A node of the graph, with the ids that each of its inputs reads. Several ids are channels of the input."""

    id: str
    inputs: tuple[tuple[str, ...], ...] = ()
    is_transparent: bool = False
    holds_watermarks: bool = False


@frozen
class NodeReaction:
    """The reaction of a node: a new watermark or status, and whether its readers receive it."""

    node: str
    element: WatermarkElement
    is_forwarded: bool


class _Sender:
    """The last elements of a node, and its readers with the index of the input."""

    def __init__(self) -> None:
        self.outlet = WatermarkOutlet()
        self.watermark_ms = MIN_TIMESTAMP
        self.readers: list[tuple[str, int]] = []

    def passes(self, element: WatermarkElement) -> bool:
        passes = self.outlet.passes(element)
        if passes and isinstance(element, Watermark) and not self.outlet.status.is_idle:
            self.watermark_ms = element.timestamp_ms
        return passes

    def sent_before(self) -> list[WatermarkElement]:
        sent: list[WatermarkElement] = [] if self.watermark_ms == MIN_TIMESTAMP else [Watermark(self.watermark_ms)]
        return [*sent, self.outlet.status] if self.outlet.status.is_idle else sent


_Delivery = tuple[str, int, str, WatermarkElement]


class GraphWatermarks:
    """The watermarks of a graph. Impossible events raise `IllegalTransitionError` and change nothing."""

    def __init__(self, nodes: Sequence[WatermarkNode]) -> None:
        """Create it from nodes in topological order. Raises `ValueError` for any other order."""
        self._nodes: dict[str, WatermarkNode] = {}
        self._positions: dict[str, int] = {}
        self._senders: dict[str, _Sender] = {}
        self._operators: dict[str, OperatorWatermarks[str]] = {}
        self._channels: dict[str, tuple[tuple[str, ...], ...]] = {}
        for node in nodes:
            self._add(node)

    def take(self, node: str, element: WatermarkElement) -> tuple[NodeReaction, ...]:
        """Process an element of a source or an operator that holds watermarks. The end of an input is `END_OF_TIME`.

        Returns the reactions of the nodes after it in topological order.
        """
        known = self._nodes.get(node)
        name = "WATERMARK" if isinstance(element, Watermark) else element.name
        if known is None:
            raise IllegalTransitionError(name, "RUNNING", f"there is no node {format_value(node)}")
        if known.inputs and not known.holds_watermarks:
            raise IllegalTransitionError(
                name, "RUNNING", f"node {format_value(node)} only forwards the times of its inputs"
            )
        sender = self._senders[node]
        return self._delivered(self._from(node, element) if sender.passes(element) else [])

    def watermark_of(self, node: str) -> int:
        """The watermark of an operator, or the last one of a source; the smallest time if none."""
        operator = self._operators.get(node)
        return self._senders[node].watermark_ms if operator is None else operator.watermark_ms

    def status_of(self, node: str) -> WatermarkStatus:
        """The last status of a node."""
        return self._senders[node].outlet.status

    def snapshot(self) -> tuple[NodeWatermark, ...]:
        """The state of all nodes, for a checkpoint."""
        return tuple(
            NodeWatermark(
                node=name,
                watermark_ms=known_time(self.watermark_of(name)),
                sent_watermark_ms=known_time(sender.watermark_ms),
                is_idle=sender.outlet.status.is_idle,
                inputs=_inputs_of(self._operators[name].snapshot()) if name in self._operators else (),
            )
            for name, sender in self._senders.items()
        )

    def restore(self, nodes: Iterable[NodeWatermark]) -> tuple[NodeReaction, ...]:
        """Restore a checkpoint into a new graph; returns the reactions of nodes if the graph has changed.

        State of removed nodes is ignored, and so is state of a source that became an operator or the reverse.
        """
        former = {
            one.node: one
            for one in nodes
            if one.node in self._senders and bool(one.inputs) is (one.node in self._operators)
        }
        done: list[tuple[str, WatermarkElement]] = []
        for name, one in former.items():
            sender = self._senders[name]
            sender.watermark_ms = _time_of(one.sent_watermark_ms)
            sender.outlet = WatermarkOutlet(WatermarkStatus.IDLE if one.is_idle else WatermarkStatus.ACTIVE)
            if name in self._operators:
                done += [
                    (name, element) for element in self._operators[name].restore(_state_of(one), sender.outlet.status)
                ]
        deliveries = [one for name in self._operators for one in self._sent_before(name, former.get(name))]
        reactions = [self._reaction(name, element) for name, element in done]
        deliveries += [sent for one in reactions if one.is_forwarded for sent in self._from(one.node, one.element)]
        return self._in_order([*reactions, *self._delivered(deliveries)])

    def _add(self, node: WatermarkNode) -> None:
        if node.id in self._nodes:
            raise ValueError(f"two nodes are called {format_value(node.id)}")
        for one in (one for ids in node.inputs for one in ids):
            if one not in self._nodes:
                raise ValueError(
                    f"node {format_value(node.id)} reads {format_value(one)}, which does not come before it"
                )
        if node.is_transparent and not node.inputs:
            raise ValueError(f"node {format_value(node.id)} is transparent and reads nothing")
        self._positions[node.id] = len(self._nodes)
        self._nodes[node.id] = node
        if node.is_transparent:
            return
        self._senders[node.id] = _Sender()
        if not node.inputs:
            return
        channels = tuple(self._leaves(ids) for ids in node.inputs)
        self._channels[node.id] = channels
        self._operators[node.id] = OperatorWatermarks(channels)
        for index, names in enumerate(channels):
            for name in names:
                self._senders[name].readers.append((node.id, index))

    def _leaves(self, ids: Iterable[str]) -> tuple[str, ...]:
        """The senders of an input, through transparent nodes, once each."""
        found: dict[str, None] = {}
        pending = list(reversed(list(ids)))
        while pending:
            name = pending.pop()
            node = self._nodes[name]
            if node.is_transparent:
                pending += [one for inputs in reversed(node.inputs) for one in reversed(inputs)]
            else:
                found[name] = None
        return tuple(found)

    def _from(self, sender: str, element: WatermarkElement) -> list[_Delivery]:
        return [(reader, index, sender, element) for reader, index in self._senders[sender].readers]

    def _sent_before(self, name: str, former: NodeWatermark | None) -> list[_Delivery]:
        """Return the last elements of senders that are new channels of an operator."""
        known = [{channel.channel for channel in one.channels} for one in (former.inputs if former else ())]
        return [
            (name, index, channel, element)
            for index, channels in enumerate(self._channels[name])
            for channel in channels
            if index >= len(known) or channel not in known[index]
            for element in self._senders[channel].sent_before()
        ]

    def _delivered(self, deliveries: list[_Delivery]) -> tuple[NodeReaction, ...]:
        reactions = []
        pending = deliveries[::-1]
        while pending:
            reader, index, channel, element = pending.pop()
            following: list[_Delivery] = []
            operator = self._operators[reader]
            had_ended = operator.has_ended
            for done in operator.take(index, channel, element):
                reaction = self._reaction(reader, done)
                reactions.append(reaction)
                following += self._from(reader, done) if reaction.is_forwarded else []
            if operator.has_ended and not had_ended and self._ends_idle(reader):
                following += self._from(reader, END_OF_TIME)
            pending += following[::-1]
        return self._in_order(reactions)

    def _ends_idle(self, node: str) -> bool:
        """Whether an operator with only ended channels is idle. Its readers then receive no watermark of it."""
        return self._senders[node].outlet.status.is_idle and not self._nodes[node].holds_watermarks

    def _reaction(self, node: str, element: WatermarkElement) -> NodeReaction:
        forwards = not self._nodes[node].holds_watermarks and self._senders[node].passes(element)
        return NodeReaction(node, element, forwards)

    def _in_order(self, reactions: Iterable[NodeReaction]) -> tuple[NodeReaction, ...]:
        return tuple(sorted(reactions, key=lambda one: self._positions[one.node]))


def known_time(time_ms: int) -> int | None:
    """A watermark as stored in checkpoints: None for no watermark."""
    return None if time_ms == MIN_TIMESTAMP else time_ms


def _time_of(time_ms: int | None) -> int:
    return MIN_TIMESTAMP if time_ms is None or time_ms == MAX_TIMESTAMP else time_ms


def _inputs_of(state: OperatorWatermarkState[str]) -> tuple[InputWatermark, ...]:
    return tuple(
        InputWatermark(
            known_time(valve.watermark_ms),
            tuple(InputChannel(one.channel, known_time(one.watermark_ms), one.is_idle) for one in valve.channels),
        )
        for valve in state.inputs
    )


def _state_of(node: NodeWatermark) -> OperatorWatermarkState[str]:
    valves = (
        ValveState(
            _time_of(one.watermark_ms),
            tuple(
                ValveChannel(channel.channel, _time_of(channel.watermark_ms), channel.is_idle)
                for channel in one.channels
            ),
        )
        for one in node.inputs
    )
    return OperatorWatermarkState(_time_of(node.watermark_ms), tuple(valves))


class JobWatermarks:
    """Channels, sources and operators of one job. The sources are nodes of the graph with the same names."""

    def __init__(self, nodes: Sequence[WatermarkNode], sources: Mapping[str, SourceTime]) -> None:
        """Create it. Raises `ValueError` for an invalid graph, or a source that is not a node of it."""
        known = {node.id for node in nodes if not node.inputs}
        if not sources.keys() <= known:
            raise ValueError(f"there are no nodes for the sources {sorted(sources.keys() - known)}")
        self._sources = tuple(sources)
        self._graph = GraphWatermarks(nodes)
        self._channels = ChannelWatermarks(sources)

    def copied(self) -> JobWatermarks:
        """Return an independent copy."""
        other = copy.copy(self)
        other._graph, other._channels = copy.deepcopy(self._graph), self._channels.copied()
        return other

    def end_epoch(self, largest: Iterable[ChannelTimestamp], processing_time_ms: int) -> tuple[NodeReaction, ...]:
        """Return the reactions of operators at the start of the next epoch, from the reports of this one.

        Raises as `ChannelWatermarks.end_epoch`, without changes.
        """
        return self._taken(self._channels.end_epoch(largest, processing_time_ms))

    def end_source(self, source: str) -> tuple[NodeReaction, ...]:
        """Return the reactions of operators to the end of a source."""
        return self._taken(self._channels.end_source(source))

    def watermark_of(self, node: str) -> int:
        """The watermark of an operator, or the last one of a source; the smallest time if none."""
        return self._graph.watermark_of(node)

    def is_idle(self, node: str) -> bool:
        """Whether the last status of an operator or a source is idle."""
        return self._graph.status_of(node).is_idle

    def await_from(self, now_ms: int) -> None:
        """Count idleness from this processing time on for channels without reports since the start."""
        self._channels.await_from(now_ms)

    def idleness_times_ms(self) -> Sequence[int]:
        """The sorted processing times at which channels without records become idle."""
        return self._channels.idleness_times_ms()

    def snapshot(self) -> WatermarkState:
        """The whole state, for a checkpoint."""
        return watermark_state(self._sources, self._channels.snapshot(), self._graph.snapshot())

    def restore(self, state: WatermarkState) -> tuple[NodeReaction, ...]:
        """Restore a checkpoint into a new object; returns the reactions of operators if the job has changed."""
        reactions = self._graph.restore(state.nodes)
        self._channels.restore(state.channels, {name: self._graph.watermark_of(name) for name in self._sources})
        # The graph may have the status of a source that has no channels in the checkpoint.
        statuses = [SourceElement(name, self._channels.status_of(name)) for name in self._sources]
        return (*reactions, *self._taken(statuses))

    def _taken(self, elements: Iterable[SourceElement]) -> tuple[NodeReaction, ...]:
        return tuple(done for one in elements for done in self._graph.take(one.source, one.element))


def watermark_state(
    sources: Collection[str], channels: tuple[ChannelWatermark, ...], nodes: tuple[NodeWatermark, ...]
) -> WatermarkState:
    """The section of a checkpoint for these channels and nodes."""
    known = [one for one in nodes if one.node in sources]
    running = [one for one in known if one.watermark_ms != MAX_TIMESTAMP] or known
    times = [MIN_TIMESTAMP if one.watermark_ms is None else one.watermark_ms for one in running if not one.is_idle]
    return WatermarkState(known_time(min(times, default=MIN_TIMESTAMP)), channels, nodes)
