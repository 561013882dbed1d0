"""The watermarks of a whole job whose tasks report, once per epoch, the largest timestamps of channels.

    largest timestamps  ->  channels of sources (`channel_watermarks`)  ->  operators (`graph_watermarks`)

What comes of an epoch holds for the next one. All of it is in the section `WatermarkState` of a checkpoint, so a replay
has the watermarks that it had.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp, ChannelWatermark, NodeWatermark, WatermarkState
from streamjobs.time.channel_watermarks import ChannelWatermarks, SourceElement, SourceTime
from streamjobs.time.graph_watermarks import GraphWatermarks, NodeReaction, WatermarkNode, known_time
from streamjobs.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["JobWatermarks", "watermark_state"]


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
