"""From the graph of a job to its network: which subtasks there are, which channels, and what lies between them.

A source is one subtask, an operator as many as the parallelism of the job says, and all sinks are one. Two subtasks
have one channel between them whatever number of ways lead there, so that what one sends the other has one order.
Stateless steps are carried out by who sends.

Of sources that have something to read, those whose records are broadcast come first, as in an epoch on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, field, frozen

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.barriers.elements import AbortReason
from statebackend.local.channel_state import RecordForms
from statebackend.local.inputs import LocalStream
from statebackend.local.network.channel import DEFAULT_CAPACITY, Channel, RecordBatch, SubtaskId, SubtaskOutput
from statebackend.local.network.channel_barriers import no_clock
from statebackend.local.network.network import Network, Scheduler
from statebackend.local.network.subtasks import OperatorSubtask, OutputListener, OutputSubtask, SourceSubtask
from statebackend.local.operator import LocalOperator, Step
from statebackend.local.source import Chain, LocalSource, readers_of_edges, senders_of
from statebackend.local.subtask import LocalSubtask
from statebackend.streaming.runtime.event_time import EventTime
from statebackend.streaming.stream_graph import (
    BroadcastInput,
    JobGraph,
    Node,
    NodeKind,
    OperatorNode,
    SinkNode,
    SourceNode,
    TimestampsNode,
    upstream_of,
)
from statebackend.streaming.time.watermark_alignment import AlignmentGroup

__all__ = ["JobNetwork", "NetworkParts", "build_network"]

_OUTPUT: Final = SubtaskId("\0output", 0)


@frozen(kw_only=True)
class NetworkParts:
    """What a network is built of.

    ``mode`` says how barriers travel, whose clock is ``barrier_now_ms``, in milliseconds; only records of inputs that
    have ``forms`` may be overtaken. ``make_subtask`` makes the work of a subtask that sends into an output,
    ``learn_keys`` sees to it that the types of an operator's keys are known, as far as records of that input tell them.
    ``on_source_barrier`` and ``on_output_barrier`` are told of the barriers that a source sends, and that have come to
    the end of the network, ``on_output_abort`` of what is given up there.
    """

    graph: JobGraph
    operators: Mapping[str, LocalOperator]
    steps: Mapping[Node, Sequence[Step]]
    event_time: EventTime | None
    parallelism: int
    now_ms: Callable[[], int]
    make_subtask: Callable[[LocalOperator, int, SubtaskOutput], LocalSubtask]
    learn_keys: Callable[[LocalOperator, int, Sequence[Any]], None]
    on_source_barrier: Callable[[SubtaskId, int], None]
    on_output_barrier: Callable[[SubtaskId, int], None]
    on_output_abort: Callable[[SubtaskId, int, AbortReason], None]
    listener: OutputListener
    scheduler: Scheduler
    capacity: int = DEFAULT_CAPACITY
    mode: CheckpointingMode = CheckpointingMode.ALIGNED
    barrier_now_ms: Callable[[], int] = no_clock
    forms: RecordForms = field(factory=dict)


@frozen
class JobNetwork:
    """The network of a job, with the parts that its runtime goes on talking to."""

    network: Network
    sources: Mapping[SourceNode, SourceSubtask[LocalSource]]
    subtasks: Sequence[LocalSubtask]


@define(eq=False)
class _Ends:
    """Where the chain of one subtask ends: a `ChainEnds`."""

    parts: NetworkParts
    output: SubtaskOutput
    watermark_ms: Callable[[], int]
    source: LocalSource | None = None
    channels: dict[SubtaskId, Channel] = field(factory=dict)
    sinks: Mapping[Node, int] = field(factory=dict)

    def to_operator(self, node: OperatorNode, input_index: int, stream: LocalStream) -> None:
        """Sends each subtask the records of its key groups."""
        parts = self.parts
        operator = parts.operators[node.uid]
        parts.learn_keys(operator, input_index, stream.records)
        for index, share in enumerate(operator.partitioned(input_index, stream, parts.parallelism)):
            if share.records:
                batch = RecordBatch(
                    input_index, share.records, share.timestamps, share.keys, share.key_groups, self.watermark_ms()
                )
                self.channels[SubtaskId(node.uid, index)].put(batch)

    def to_sink(self, node: SinkNode, stream: LocalStream) -> None:
        """Sends records to the end of the network."""
        batch = RecordBatch(
            self.sinks[node], stream.records, stream.timestamps, sender_watermark_ms=self.watermark_ms()
        )
        self.channels[_OUTPUT].put(batch)

    def to_timestamps(self, node: TimestampsNode, stream: LocalStream) -> None:
        """Lets the source give records their timestamps: only behind a source is there such a node."""
        assert self.source is not None
        self.source.assign_timestamps(stream)


def build_network(parts: NetworkParts) -> JobNetwork:
    """The network of a job, in which nothing has happened yet."""
    return _Building(parts).done()


class _Building:
    """The subtasks so far, and the channels between them."""

    def __init__(self, parts: NetworkParts) -> None:
        self._parts = parts
        self._readers = readers_of_edges(parts.graph)
        self._names: dict[Node, str] = dict(zip(parts.graph.sources, parts.graph.source_uids, strict=True))
        self._names.update({node: node.uid for node in parts.graph.operators})
        self._sinks: dict[Node, int] = {node: index for index, node in enumerate(parts.graph.sinks)}
        self._ends: dict[SubtaskId, _Ends] = {}
        self._groups: dict[str, AlignmentGroup[SubtaskId]] = {}

    def done(self) -> JobNetwork:
        sources = {node: self._source(node) for node in self._parts.graph.sources}
        subtasks: list[LocalSubtask] = []
        operators: list[OperatorSubtask] = []
        for node in self._parts.graph.operators:
            for index in range(self._parts.parallelism):
                output = SubtaskOutput()
                work = self._parts.make_subtask(self._parts.operators[node.uid], index, output)
                subtask_id = SubtaskId(node.uid, index)
                channels = self._channels_to(subtask_id, node.inputs)
                mode, now_ms = self._parts.mode, self._parts.barrier_now_ms
                operators.append(OperatorSubtask(subtask_id, channels, len(node.inputs), work, output, mode, now_ms))
                work.chain = self._chain(subtask_id, _Ends(self._parts, output, partial(getattr, work, "watermark_ms")))
                subtasks.append(work)
        inputs = [edge for node in self._parts.graph.sinks for edge in node.inputs]
        output_channels = self._channels_to(_OUTPUT, inputs)
        end = OutputSubtask(
            _OUTPUT,
            output_channels,
            len(inputs),
            self._parts.listener,
            self._parts.mode,
            partial(self._parts.on_output_barrier, _OUTPUT),
            partial(self._parts.on_output_abort, _OUTPUT),
        )
        inputs_of_all = (one for node in self._parts.graph.operators for one in node.operator_inputs)
        broadcast = upstream_of(one.edge for one in inputs_of_all if isinstance(one, BroadcastInput))
        read_first = {one.subtask_id for node, one in sources.items() if node in broadcast}
        network = Network(list(sources.values()), operators, end, self._parts.scheduler, read_first)
        return JobNetwork(network, sources, subtasks)

    def _source(self, node: SourceNode) -> SourceSubtask[LocalSource]:
        name = self._names[node]
        subtask_id, output = SubtaskId(name, 0), SubtaskOutput()
        event_time = self._parts.event_time
        timestamps = None if event_time is None else event_time.nodes.get(name)
        work = LocalSource(node, name, timestamps, output, self._parts.now_ms, has_time=event_time is not None)
        work.chain = self._chain(subtask_id, _Ends(self._parts, output, lambda: output.watermark_ms, work))
        on_barrier = partial(self._parts.on_source_barrier, subtask_id)
        alignment = None if timestamps is None else timestamps.strategy.alignment
        if alignment is None:
            return SourceSubtask(subtask_id, work, output, on_barrier=on_barrier)
        group = self._groups.setdefault(alignment.group, AlignmentGroup())
        group.join(subtask_id, alignment.max_drift_ms)
        return SourceSubtask(subtask_id, work, output, group, on_barrier)

    def _chain(self, subtask_id: SubtaskId, ends: _Ends) -> Chain:
        ends.sinks = self._sinks
        self._ends[subtask_id] = ends
        return Chain(self._readers, self._parts.steps, ends)

    def _channels_to(self, reader: SubtaskId, inputs: Sequence[Any]) -> list[Channel]:
        """The channels of a reader, from each subtask that sends to any of its inputs."""
        fed: dict[SubtaskId, list[int]] = {}
        for index, edge in enumerate(inputs):
            for sender in senders_of(edge):
                for subtask in range(self._parts.parallelism if sender.kind is NodeKind.OPERATOR else 1):
                    fed.setdefault(SubtaskId(self._names[sender], subtask), []).append(index)
        channels = []
        for sender_id, indices in fed.items():
            channel = Channel(
                sender_id,
                reader,
                tuple(indices),
                self._parts.capacity,
                may_be_overtaken=all((reader.node, index) in self._parts.forms for index in indices),
            )
            ends = self._ends[sender_id]
            ends.channels[reader] = channel
            ends.output.channels.append(channel)
            channels.append(channel)
        return channels
