"""From the graph of a job to its network: subtasks, channels, and the stateless steps between them.

A source is one subtask, an operator as many as the parallelism, and all sinks together are one (the output). Two
subtasks have one channel between them, however many ways lead there, so what one sends to the other has one order. The
sender carries out stateless steps, each once: records of an output go to its readers in the order of the program,
through all steps. Each reader has its own records, which it may change.

If several sources have something to read, those whose records are broadcast come first, as in an epoch on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.local.checkpoints import RunCheckpoints
from statebackend.local.graph import LocalStream
from statebackend.local.job_parts import LocalProgram
from statebackend.local.network.channel import Channel, RecordBatch, SubtaskOutput
from statebackend.local.network.network import Network
from statebackend.local.network.subtasks import OperatorSubtask, OutputListener, OutputSubtask, SourceSubtask
from statebackend.local.source import LocalSource
from statebackend.local.subtask import LocalSubtask, RunOperators
from statebackend.streaming.stream_graph import (
    BroadcastInput,
    JobGraph,
    Node,
    NodeKind,
    OperatorNode,
    RecordsNode,
    RecordStepNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    TimestampsNode,
    UnionNode,
    upstream_of,
)
from statebackend.streaming.time.watermark_alignment import AlignmentGroup

_OUTPUT: Final = TaskId("\0output", 0)

_Following = Sequence[tuple[Any, int, LocalStream]]
"""The next readers: nodes with their inputs and records."""


class Chain:
    """The stateless steps after one subtask, to the channels of its readers."""

    def __init__(self, network: JobNetwork, output: SubtaskOutput, work: LocalSource | LocalSubtask) -> None:
        self.output = output
        self.channels: dict[tuple[str, int], Channel] = {}
        """The channels to its readers, by uid and index."""
        self._network = network
        self._work = work

    def send(self, edge: StreamEdge, stream: LocalStream) -> None:
        """Send records of an output to all of its readers."""
        pending = self._read(edge, stream)
        while pending:
            node, index, given = pending.pop()
            pending += _STEPS[type(node)](self, node, index, given)

    def _read(self, edge: StreamEdge, stream: LocalStream) -> list[tuple[Any, int, LocalStream]]:
        """The readers of an output with their records, the first reader last."""
        if not stream.records:
            return []
        readers = self._network.readers.get(edge, ())
        streams = [stream, *(stream.copied() for _ in readers[1:])]
        return [(node, index, given) for (node, index), given in reversed(list(zip(readers, streams, strict=False)))]

    def _step(self, node: Node, index: int, stream: LocalStream) -> _Following:
        return self._read(StreamEdge(node), self._network.program.prepared.steps[node][index](stream))

    def _timestamps(self, node: TimestampsNode, index: int, stream: LocalStream) -> _Following:
        assert isinstance(self._work, LocalSource), "timestamps are assigned to the records of a source"
        self._work.assign_timestamps(stream)
        return ()

    def _operator(self, node: OperatorNode, index: int, stream: LocalStream) -> _Following:
        operator = self._network.program.prepared.operators[node.uid]
        self._network.operators.learn_keys(operator, index, stream.records)
        watermark_ms = self._work.watermark_ms
        for subtask, share in enumerate(operator.partitioned(index, stream, self._network.program.parallelism)):
            if share.records:
                batch = RecordBatch(index, share.records, share.timestamps, share.keys, share.key_groups, watermark_ms)
                self.channels[node.uid, subtask].put(batch)
        return ()

    def _sink(self, node: SinkNode, index: int, stream: LocalStream) -> _Following:
        sink_index, watermark_ms = self._network.sinks[node], self._work.watermark_ms
        batch = RecordBatch(sink_index, stream.records, stream.timestamps, sender_watermark_ms=watermark_ms)
        self.channels[_OUTPUT.operator_uid, _OUTPUT.subtask_index].put(batch)
        return ()


_STEPS: Final[Mapping[type, Callable[[Chain, Any, int, LocalStream], _Following]]] = {
    RecordStepNode: Chain._step,
    RecordsNode: Chain._step,
    UnionNode: Chain._step,
    TimestampsNode: Chain._timestamps,
    OperatorNode: Chain._operator,
    SinkNode: Chain._sink,
}


class JobNetwork:
    """The network of a job, built but not started."""

    def __init__(
        self, program: LocalProgram, operators: RunOperators, checkpoints: RunCheckpoints, listener: OutputListener
    ) -> None:
        graph = program.graph
        self.program = program
        self.operators = operators
        self.readers = _readers_of_edges(graph)
        self.sinks: Mapping[Node, int] = {node: index for index, node in enumerate(graph.sinks)}
        self.subtasks: list[LocalSubtask] = []
        self._checkpoints = checkpoints
        self._names: dict[Node, str] = dict(zip(graph.sources, graph.source_uids, strict=True))
        self._names.update({node: node.uid for node in graph.operators})
        self._chains: dict[TaskId, Chain] = {}
        self._groups: dict[str, AlignmentGroup[TaskId]] = {}
        self.sources: Mapping[SourceNode, SourceSubtask[LocalSource]] = {
            node: self._source(node) for node in graph.sources
        }
        of_operators = [self._operator(node, index) for node in graph.operators for index in range(program.parallelism)]
        edges = [edge for node in graph.sinks for edge in node.inputs]
        output = OutputSubtask(
            _OUTPUT,
            self._channels_to(_OUTPUT, edges),
            len(edges),
            listener,
            program.checkpoints.mode,
            partial(checkpoints.barrier_at_output, _OUTPUT),
            partial(checkpoints.aborted, _OUTPUT),
        )
        inputs = (one for node in graph.operators for one in node.operator_inputs)
        broadcast = upstream_of(one.edge for one in inputs if isinstance(one, BroadcastInput))
        read_first = {one.task for node, one in self.sources.items() if node in broadcast}
        self.network = Network(list(self.sources.values()), of_operators, output, program.scheduler, read_first)

    def _source(self, node: SourceNode) -> SourceSubtask[LocalSource]:
        name = self._names[node]
        task, output, event_time = TaskId(name, 0), SubtaskOutput(), self.program.event_time
        timestamps = None if event_time is None else event_time.nodes.get(name)
        clock = self.operators.epoch.clock
        work = LocalSource(node, name, timestamps, output, clock, has_time=event_time is not None)
        self._add_chain(task, output, work)
        on_barrier = partial(self._checkpoints.barrier_at_source, task)
        alignment = None if timestamps is None else timestamps.strategy.alignment
        group: AlignmentGroup[TaskId] | None = None
        if alignment is not None:
            group = self._groups.setdefault(alignment.group, AlignmentGroup())
            group.join(task, alignment.max_drift_ms)
        return SourceSubtask(task, work, output, group, on_barrier)

    def _operator(self, node: OperatorNode, index: int) -> OperatorSubtask:
        task, output, settings = TaskId(node.uid, index), SubtaskOutput(), self.program.checkpoints
        work = LocalSubtask(
            operator=self.program.prepared.operators[node.uid],
            index=index,
            output=output,
            operators=self.operators,
            on_snapshot=self._checkpoints.barrier_at_operator,
            on_aborted=self._checkpoints.aborted,
        )
        channels = self._channels_to(task, node.inputs)
        self._add_chain(task, output, work)
        self.subtasks.append(work)
        return OperatorSubtask(task, channels, len(node.inputs), work, output, settings.mode, settings.now_ms)

    def _add_chain(self, task: TaskId, output: SubtaskOutput, work: LocalSource | LocalSubtask) -> None:
        chain = self._chains[task] = Chain(self, output, work)
        work.send = chain.send

    def _channels_to(self, reader: TaskId, inputs: Sequence[StreamEdge]) -> list[Channel]:
        """The channels of a reader, from each subtask that sends to any of its inputs."""
        fed: dict[TaskId, list[int]] = {}
        for index, edge in enumerate(inputs):
            for sender in _senders_of(edge):
                for subtask in range(self.program.parallelism if sender.kind is NodeKind.OPERATOR else 1):
                    fed.setdefault(TaskId(self._names[sender], subtask), []).append(index)
        channels = []
        for sender_id, indices in fed.items():
            # Overtaken records are written, so their input needs a form.
            may_be_overtaken = all((reader.operator_uid, index) in self._checkpoints.forms for index in indices)
            channel = Channel(
                sender_id, reader, tuple(indices), self.program.capacity, may_be_overtaken=may_be_overtaken
            )
            chain = self._chains[sender_id]
            chain.channels[reader.operator_uid, reader.subtask_index] = channel
            chain.output.channels.append(channel)
            channels.append(channel)
        return channels


def _readers_of_edges(graph: JobGraph) -> Mapping[StreamEdge, Sequence[tuple[Node, int]]]:
    """The readers of each output, with the input that they read it by."""
    readers: dict[StreamEdge, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for index, edge in enumerate(node.inputs):
            readers.setdefault(edge, []).append((node, index))
    return readers


def _senders_of(edge: StreamEdge) -> tuple[Node, ...]:
    """The sources and operators whose records come over an edge, through any steps; each once."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    pending = [edge.node]
    while pending:
        node = pending.pop()
        if node.kind is not NodeKind.STEP:
            found[node] = None
        elif node not in seen:
            seen.add(node)
            pending += [one.node for one in reversed(node.inputs)]
    return tuple(found)
