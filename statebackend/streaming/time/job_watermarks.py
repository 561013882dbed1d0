"""The watermarks of a whole job whose tasks report, once per epoch, the largest timestamps of channels.

    largest timestamps  ->  channels of sources (`channel_watermarks`)  ->  operators (`graph_watermarks`)

What comes of an epoch holds for the next one. All of it is in the section `WatermarkState` of a checkpoint, so a replay
has the watermarks that it had.

The watermarks of all operators of a job: what sources send, carried through the graph (pure; any runtime).

Nodes are known by ids that stay the same from one start of a job to the next: the uid of an operator, the name of a
source. A node without inputs is a source. One that is *transparent*, such as a union or a step without state, has no
watermark of its own: to its readers, whatever sends to it is a channel of theirs. That is Flink's, and not the same as
a valve in every union: of two sources that are united twice over, the first to be idle flushes nothing.

What a source sends goes through the operators as `statebackend.streaming.time.operator_watermarks` says, each element
to the end of the graph before the next, readers in the order of the nodes. An operator sends on what it has done,
unless it holds watermarks: then it says itself what it sends, as a source does. Nobody sends a watermark while it is
idle.

A checkpoint keeps all of it (`NodeWatermark`), so that no operator goes back behind a watermark that it has seen, and
an input that is idle is not waited for again. After a restore the graph may be another one: channels that are gone are
not waited for, and one that was not there learns first what its sender has sent before.

The end of an input is no time that is kept: a job that is started again reads on, and with records that are all before
the end of time none could be on time. Who was at it begins without a watermark.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import frozen

from snapshots.errors import shown
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
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkElement, WatermarkStatus

__all__ = ["GraphWatermarks", "JobWatermarks", "NodeReaction", "WatermarkNode", "known_time", "watermark_state"]


@frozen(kw_only=True)
class WatermarkNode:
    """A node of the graph, with the ids of what each of its inputs reads.

    Several ids in one input are its channels, as if they were united there.
    """

    id: str
    inputs: tuple[tuple[str, ...], ...] = ()
    is_transparent: bool = False
    holds_watermarks: bool = False


@frozen
class NodeReaction:
    """What a node does: it advances to a watermark, or becomes idle or active; and whether its readers learn of it."""

    node: str
    element: WatermarkElement
    is_forwarded: bool


class _Sender:
    """What a node has sent, and who reads it: nodes with the index of the input."""

    def __init__(self) -> None:
        self.outlet = WatermarkOutlet()
        self.watermark_ms = MIN_TIMESTAMP
        self.readers: list[tuple[str, int]] = []

    def passes(self, element: WatermarkElement) -> bool:
        passes = self.outlet.passes(element)
        if passes and isinstance(element, Watermark):
            self.watermark_ms = element.timestamp_ms
        return passes

    def sent_before(self) -> list[WatermarkElement]:
        sent: list[WatermarkElement] = [] if self.watermark_ms == MIN_TIMESTAMP else [Watermark(self.watermark_ms)]
        return [*sent, self.outlet.status] if self.outlet.status.is_idle else sent


_Delivery = tuple[str, int, str, WatermarkElement]


class GraphWatermarks:
    """The watermarks of a graph. What does not belong here raises `IllegalTransitionError` and changes nothing."""

    def __init__(self, nodes: Sequence[WatermarkNode]) -> None:
        """Nodes in topological order: each behind those that it reads. Raises `ValueError` for any other list."""
        self._nodes: dict[str, WatermarkNode] = {}
        self._positions: dict[str, int] = {}
        self._senders: dict[str, _Sender] = {}
        self._operators: dict[str, OperatorWatermarks[str]] = {}
        self._channels: dict[str, tuple[tuple[str, ...], ...]] = {}
        for node in nodes:
            self._add(node)

    def take(self, node: str, element: WatermarkElement) -> tuple[NodeReaction, ...]:
        """What a source, or an operator that holds watermarks, sends; the end of an input is `END_OF_TIME`.

        Returns what the nodes behind it do: in topological order, of each node in the order in which it is done.
        """
        known = self._nodes.get(node)
        name = "WATERMARK" if isinstance(element, Watermark) else element.name
        if known is None:
            raise IllegalTransitionError(name, "RUNNING", f"there is no node {shown(node)}")
        if known.inputs and not known.holds_watermarks:
            raise IllegalTransitionError(name, "RUNNING", f"node {shown(node)} sends what its inputs say, not this")
        sender = self._senders[node]
        return self._delivered(self._from(node, element) if sender.passes(element) else [])

    def watermark_of(self, node: str) -> int:
        """What an operator is at, or a source has sent last; the smallest time if nothing."""
        operator = self._operators.get(node)
        return self._senders[node].watermark_ms if operator is None else operator.watermark_ms

    def status_of(self, node: str) -> WatermarkStatus:
        """What a node has said last of itself."""
        return self._senders[node].outlet.status

    def snapshot(self) -> tuple[NodeWatermark, ...]:
        """All that is known of all nodes, for a checkpoint."""
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
        """Goes on from a checkpoint, on a fresh graph; returns what the nodes do if it was another graph.

        What was kept of nodes that are no more is left out, and of a source that is an operator now, or was one.
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
        deliveries = [told for name in self._operators for told in self._told(name, former.get(name))]
        reactions = [self._reaction(name, element) for name, element in done]
        deliveries += [told for one in reactions if one.is_forwarded for told in self._from(one.node, one.element)]
        return self._in_order([*reactions, *self._delivered(deliveries)])

    def _add(self, node: WatermarkNode) -> None:
        if node.id in self._nodes:
            raise ValueError(f"two nodes are called {shown(node.id)}")
        for one in (one for ids in node.inputs for one in ids):
            if one not in self._nodes:
                raise ValueError(f"node {shown(node.id)} reads {shown(one)}, which does not come before it")
        if node.is_transparent and not node.inputs:
            raise ValueError(f"node {shown(node.id)} is transparent and reads nothing")
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
        """What sends to an input, each sender once: transparent nodes are looked through."""
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

    def _told(self, name: str, former: NodeWatermark | None) -> list[_Delivery]:
        """What the channels of an operator that were not there before have sent before."""
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
            for done in self._operators[reader].take(index, channel, element):
                reaction = self._reaction(reader, done)
                reactions.append(reaction)
                following += self._from(reader, done) if reaction.is_forwarded else []
            pending += following[::-1]
        return self._in_order(reactions)

    def _reaction(self, node: str, element: WatermarkElement) -> NodeReaction:
        forwards = not self._nodes[node].holds_watermarks and self._senders[node].passes(element)
        return NodeReaction(node, element, forwards)

    def _in_order(self, reactions: Iterable[NodeReaction]) -> tuple[NodeReaction, ...]:
        return tuple(sorted(reactions, key=lambda one: self._positions[one.node]))


def known_time(time_ms: int) -> int | None:
    """A watermark as a checkpoint has it: None for none yet."""
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
    """Channels, sources and operators of one job; the sources are nodes of the graph, by the same names."""

    def __init__(self, nodes: Sequence[WatermarkNode], sources: Mapping[str, SourceTime]) -> None:
        """Raises `ValueError` for nodes that are no graph, and for a source that is no node of it."""
        known = {node.id for node in nodes if not node.inputs}
        if not sources.keys() <= known:
            raise ValueError(f"there are no nodes for the sources {sorted(sources.keys() - known)}")
        self._sources = tuple(sources)
        self._graph = GraphWatermarks(nodes)
        self._channels = ChannelWatermarks(sources)

    def copied(self) -> JobWatermarks:
        """Others that stand where these do."""
        other = copy.copy(self)
        other._graph, other._channels = copy.deepcopy(self._graph), self._channels.copied()
        return other

    def end_epoch(self, largest: Iterable[ChannelTimestamp], processing_time_ms: int) -> tuple[NodeReaction, ...]:
        """What the operators do at the begin of the next epoch, when this one had records of these channels.

        Raises as `ChannelWatermarks.end_epoch` does, and has changed nothing then.
        """
        return self._taken(self._channels.end_epoch(largest, processing_time_ms))

    def end_source(self, source: str) -> tuple[NodeReaction, ...]:
        """What the operators do when no record of a source follows."""
        return self._taken(self._channels.end_source(source))

    def watermark_of(self, node: str) -> int:
        """What an operator is at, or a source has sent last; the smallest time if nothing."""
        return self._graph.watermark_of(node)

    def await_from(self, now_ms: int) -> None:
        """Counts idleness from this processing time on for channels that nothing is known of since the start."""
        self._channels.await_from(now_ms)

    def idleness_times_ms(self) -> Sequence[int]:
        """The processing times at which channels become idle if no record comes, in order."""
        return self._channels.idleness_times_ms()

    def snapshot(self) -> WatermarkState:
        """All that is known, for a checkpoint."""
        return watermark_state(self._sources, self._channels.snapshot(), self._graph.snapshot())

    def restore(self, state: WatermarkState) -> tuple[NodeReaction, ...]:
        """Goes on from a checkpoint, on a fresh object; returns what the operators do if the job was another one."""
        reactions = self._graph.restore(state.nodes)
        self._channels.restore(state.channels, {name: self._graph.watermark_of(name) for name in self._sources})
        # Of a source without channels in the checkpoint the graph may know what the channels do not.
        statuses = [SourceElement(name, self._channels.status_of(name)) for name in self._sources]
        return (*reactions, *self._taken(statuses))

    def _taken(self, elements: Iterable[SourceElement]) -> tuple[NodeReaction, ...]:
        return tuple(done for one in elements for done in self._graph.take(one.source, one.element))


def watermark_state(
    sources: Collection[str], channels: tuple[ChannelWatermark, ...], nodes: tuple[NodeWatermark, ...]
) -> WatermarkState:
    """What a checkpoint says of these channels and nodes, of which some are the sources that make watermarks."""
    known = [one for one in nodes if one.node in sources]
    running = [one for one in known if one.watermark_ms != MAX_TIMESTAMP] or known
    times = [MIN_TIMESTAMP if one.watermark_ms is None else one.watermark_ms for one in running if not one.is_idle]
    return WatermarkState(known_time(min(times, default=MIN_TIMESTAMP)), channels, nodes)
