"""A source of a job in this process, as the work of its subtask in the network: records in, records and time out.

Where the program gives its records their timestamps, watermarks come from the strategy, and what the source itself says
of time counts no more, but for the end. Otherwise that goes on, as a test's source has it.

What stands between the output of a subtask and those who read it: the stateless steps, which are carried out there.

The records of an output go to its readers in the order of the program, through all steps to the end of each, so that
what two readers are sent has one order. A step of two readers is carried out once. Each reader has records of its own,
which it may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from attrs import frozen

from statebackend.checkpoint.metadata import ChannelWatermark
from statebackend.local.inputs import LocalStream, field_getter
from statebackend.local.network.channel import SubtaskOutput
from statebackend.local.operator import Step
from statebackend.streaming.errors import StreamJobError, UserFunctionError, describe_exception, format_value
from statebackend.streaming.stream_graph import (
    JobGraph,
    Node,
    NodeKind,
    RecordsNode,
    RecordStepNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    TimestampsNode,
    UnionNode,
)
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, timestamp_of
from statebackend.streaming.time.timestamps_and_watermarks import TimedChannel, TimestampsAndWatermarks
from statebackend.streaming.time.watermark_generators import END_OF_TIME, WatermarkElement, WatermarkStatus
from statebackend.streaming.watermark_strategy import WatermarkStrategy

__all__ = ["Chain", "ChainEnds", "LocalSource", "readers_of_edges", "senders_of"]


Readers = Mapping[StreamEdge, Sequence[tuple[Node, int]]]
"""Who reads an output, and with which of its inputs."""


class ChainEnds(Protocol):
    """Where the records of a chain go."""

    def to_operator(self, node: Any, input_index: int, stream: LocalStream) -> None:
        """Records for an input of an operator."""

    def to_sink(self, node: SinkNode, stream: LocalStream) -> None:
        """Records for a sink."""

    def to_timestamps(self, node: TimestampsNode, stream: LocalStream) -> None:
        """Records of a source that get their timestamps; what follows is sent on by `Chain.send`."""


def readers_of_edges(graph: JobGraph) -> Readers:
    """Who reads each output of a graph."""
    readers: dict[StreamEdge, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for index, edge in enumerate(node.inputs):
            readers.setdefault(edge, []).append((node, index))
    return readers


class Chain:
    """See the module; ``steps`` say what each stateless step does to each of its inputs."""

    def __init__(self, readers: Readers, steps: Mapping[Node, Sequence[Step]], ends: ChainEnds) -> None:
        self._readers = readers
        self._steps = steps
        self._ends = ends

    def send(self, edge: StreamEdge, stream: LocalStream) -> None:
        """Sends records of an output to all that read it; however long the chain is."""
        pending = self._read(edge, stream)
        while pending:
            node, index, given = pending.pop()
            step = _STEPS.get(type(node))
            if step is None:
                self._ends.to_operator(node, index, given)
            else:
                pending += step(self, node, index, given)

    def _read(self, edge: StreamEdge, stream: LocalStream) -> list[tuple[Any, int, LocalStream]]:
        """The readers of an output with what they are sent, the first of them last; no two get the same objects."""
        if not stream.records:
            return []
        readers = self._readers.get(edge, ())
        streams = [stream, *(stream.copied() for _ in readers[1:])]
        return [(node, index, given) for (node, index), given in reversed(list(zip(readers, streams, strict=False)))]

    def _step(self, node: Node, index: int, stream: LocalStream) -> _Following:
        return self._read(StreamEdge(node), self._steps[node][index](stream))

    def _timestamps(self, node: TimestampsNode, index: int, stream: LocalStream) -> _Following:
        self._ends.to_timestamps(node, stream)
        return ()

    def _sink(self, node: SinkNode, index: int, stream: LocalStream) -> _Following:
        self._ends.to_sink(node, stream)
        return ()


_Following = Sequence[tuple[Any, int, LocalStream]]
"""What is to be read next: nodes, with their inputs and what they are sent."""

_STEPS: Final[Mapping[type, Callable[[Chain, Any, int, LocalStream], _Following]]] = {
    RecordStepNode: Chain._step,
    RecordsNode: Chain._step,
    UnionNode: Chain._step,
    TimestampsNode: Chain._timestamps,
    SinkNode: Chain._sink,
}


def senders_of(edge: StreamEdge) -> tuple[Node, ...]:
    """The sources and operators whose records come by an output, through any steps; each once."""
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


@frozen
class _Timestamps:
    """How the records of a source get their timestamps."""

    node: TimestampsNode
    timestamp_of_record: Callable[[Any], Any]
    channel_of_record: Callable[[Any], str] | None
    time: TimestampsAndWatermarks[Any]


class LocalSource:
    """See the module. ``name`` is what checkpoints know the source by, ``clock`` the processing time in ms."""

    def __init__(
        self,
        node: SourceNode,
        name: str,
        timestamps_node: TimestampsNode | None,
        output: SubtaskOutput,
        clock: Callable[[], int],
        *,
        has_time: bool,
    ) -> None:
        self.chain: Chain
        """What stands behind the source; it is set by whoever builds the network."""
        self._edge = StreamEdge(node)
        self._name = name
        self._output = output
        self._clock = clock
        self._has_time = has_time
        self._largest: dict[str, int] = {}
        self._timestamps = None if timestamps_node is None else self._timestamps_of(timestamps_node)

    @property
    def watermark_ms(self) -> int:
        """How far the source is; the smallest time if it does not know yet."""
        return self._output.watermark_ms

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for it."""
        return self._output.status.is_idle

    def read(self, records: Sequence[Any], timestamps: Sequence[int | None] | None = None) -> None:
        """Sends records, with the timestamps that they came with, if any.

        Raises `StreamJobError`, naming the record, for a timestamp that is none, and for too many channels;
        `UserFunctionError` for what a generator, or a function of the strategy, raises.
        """
        if self._has_time and timestamps is None:
            timestamps = [None] * len(records)
        self.chain.send(self._edge, LocalStream(records, timestamps))

    def read_time(self, element: WatermarkElement) -> None:
        """What the source itself says of time."""
        self._send(self._timestamps.time.on_upstream(element) if self._timestamps is not None else (element,))

    def read_given_time(self, element: WatermarkElement) -> None:
        """Sends on what a test says of time, also where the records get their timestamps from a strategy."""
        self._send(self._timestamps.time.on_given(element) if self._timestamps is not None else (element,))

    def emit_periodically(self) -> None:
        """Sends what is due by the strategy; to be called whenever processing time has moved on."""
        if self._timestamps is None:
            return
        try:
            elements = self._timestamps.time.on_periodic_emit(self._clock())
        except Exception as error:
            raise UserFunctionError(
                f"source {self._name!r}: its watermark generator raised {describe_exception(error)}"
            ) from error
        self._send(elements)

    def end_of_input(self) -> None:
        """Sends the end of time. An idle source stays idle, as in Flink; a strategy makes it active."""
        self.read_time(END_OF_TIME)

    def assign_timestamps(self, stream: LocalStream) -> None:
        """Gives records their timestamps and sends them on, watermarks behind the record that they were emitted at."""
        given = self._timestamps
        assert given is not None
        on_time: list[int] = []
        future: list[int] = []
        times: list[int | None] = [None] * len(stream.records)
        for index, record in enumerate(stream.records):
            times[index], is_beyond_limit, elements = self._timed(given, record)
            (future if is_beyond_limit else on_time).append(index)
            if elements:
                self._send_on(given.node, stream, times, on_time, future)
                on_time, future = [], []
                self._send(elements)
        self._send_on(given.node, stream, times, on_time, future)

    def channels(self) -> list[ChannelWatermark]:
        """What is known of its channels, for a checkpoint."""
        if self._timestamps is None:
            return []
        now_ms, time = self._clock(), self._timestamps.time
        known = time.channels() or {"": TimedChannel(time.watermark_ms, time.status.is_idle)}
        return [
            ChannelWatermark(
                source=self._name,
                channel=str(channel),
                largest_timestamp_ms=self._largest.get(str(channel)),
                watermark_ms=None if one.watermark_ms == MIN_TIMESTAMP else one.watermark_ms,
                last_active_ms=now_ms,
                is_idle=one.is_idle,
            )
            for channel, one in known.items()
        ]

    def restore(self, watermark_ms: int, status: WatermarkStatus, channels: Sequence[ChannelWatermark]) -> None:
        """Goes on from a checkpoint: what was sent, and the channels of this source."""
        self._output.restore(watermark_ms, status)
        if self._timestamps is None:
            return
        self._largest = {
            one.channel: one.largest_timestamp_ms for one in channels if one.largest_timestamp_ms is not None
        }
        ended = (None, MAX_TIMESTAMP)
        self._timestamps.time.restore(
            watermark_ms,
            status,
            {
                one.channel: TimedChannel(
                    MIN_TIMESTAMP if one.watermark_ms in ended else one.watermark_ms or 0, one.is_idle
                )
                for one in channels
                if one.channel != ""
            },
        )

    def _timestamps_of(self, node: TimestampsNode) -> _Timestamps:
        strategy: WatermarkStrategy[Any] = node.strategy
        get_timestamp = self._getter(strategy.timestamps, "with_timestamps")
        channel_of_record = None
        if strategy.channel is not None:
            get_channel = self._getter(strategy.channel, "with_channel")

            def channel_of_record(record: Any) -> str:
                return str(get_channel(record))

        try:
            time = strategy.timestamps_and_watermarks(None, channel_of_record)
        except StreamJobError:
            raise
        except Exception as error:
            what = f"source {self._name!r}: its watermark generator cannot be made: {describe_exception(error)}"
            raise UserFunctionError(what) from error
        return _Timestamps(node, get_timestamp, channel_of_record, time)

    def _getter(self, column: Any, given_to: str) -> Callable[[Any], Any]:
        get = field_getter(column, f"source {self._name!r}", given_to)
        return self._naming_records(get, given_to) if callable(column) else get

    def _naming_records(self, function: Callable[[Any], Any], given_to: str) -> Callable[[Any], Any]:
        """The user's function, whose failures name the record."""

        def get(record: Any) -> Any:
            try:
                return function(record)
            except Exception as error:
                what = f"source {self._name!r}, record {format_value(record, 200)}: the function of {given_to} raised"
                raise UserFunctionError(f"{what} {describe_exception(error)}") from error

        return get

    def _timed(self, given: _Timestamps, record: Any) -> tuple[int | None, bool, Sequence[WatermarkElement]]:
        try:
            time_ms = timestamp_of(given.timestamp_of_record(record))
        except (TypeError, ValueError) as error:
            raise StreamJobError(f"source {self._name!r}, record {format_value(record, 200)}: {error}") from error
        try:
            made = given.time.on_record(record, time_ms, self._clock())
        except StreamJobError:
            raise
        except Exception as error:
            what = (
                f"source {self._name!r}, record {format_value(record, 200)}: "
                f"its watermark generator raised {describe_exception(error)}"
            )
            raise UserFunctionError(what) from error
        if time_ms is not None and not made.is_beyond_limit:
            channel = "" if given.channel_of_record is None else given.channel_of_record(record)
            self._largest[channel] = max(time_ms, self._largest.get(channel, time_ms))
        return time_ms, made.is_beyond_limit, made.elements

    def _send_on(
        self,
        node: TimestampsNode,
        stream: LocalStream,
        times: list[int | None],
        on_time: Sequence[int],
        future: Sequence[int],
    ) -> None:
        timed = LocalStream(stream.records, times)
        self.chain.send(StreamEdge(node), timed.of(on_time))
        self.chain.send(StreamEdge(node, node.strategy.future_tag), timed.of(future))

    def _send(self, elements: Sequence[WatermarkElement]) -> None:
        for element in elements:
            self._output.send_time(element)
