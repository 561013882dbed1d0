"""The event time of a job, in every runtime: sources with timestamps, the graph of watermarks, and processing time.

* **Processing time** never decreases between epochs, because TTL depends on it. Checkpoints and savepoints store it.
  If the clock is set back, or the job moves to a host with a slower clock, time stops until the clock has caught up.
* **Graph of watermarks**: sources and operators, without sinks. A union or a stateless step is transparent: its senders
  are channels of the next operator. Operators are identified by uid, sources by a name that the runtime sets.
* **Epochs**: on Spark an epoch is a watermark, followed by the records of a batch. Tasks report the largest timestamp
  of each channel, and `JobWatermarks` computes the watermarks of the next epoch. A custom watermark generator needs
  every record, so `check_follows_from_epochs` rejects it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from snapshots.errors import format_value
from statebackend.state.clock import Clock
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.stream_graph import (
    JobGraph,
    Node,
    NodeKind,
    OperatorNode,
    SourceNode,
    TimestampsNode,
    source_of_timestamps,
)
from statebackend.streaming.time.job_watermarks import JobWatermarks, WatermarkNode
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from statebackend.streaming.time.watermark_generators import NoWatermarks
from statebackend.streaming.watermark_strategy import WatermarkStrategy

__all__ = ["EventTime", "check_follows_from_epochs", "not_before", "watermark_nodes", "whole_milliseconds"]


def watermark_nodes(
    graph: JobGraph, source_names: Sequence[str], holds_watermarks: Callable[[OperatorNode], bool]
) -> tuple[WatermarkNode, ...]:
    """Return the nodes of a graph in its order. ``source_names`` are the names of its sources, in program order.

    ``holds_watermarks`` returns whether an operator emits watermarks itself.
    """
    names: dict[Node, str] = dict(zip(graph.sources, source_names, strict=True))
    # No uid contains this character, and these names are not stored.
    names.update({node: f"\0{index}" for index, node in enumerate(graph.nodes) if node.kind is NodeKind.STEP})
    names.update({node: node.uid for node in graph.operators})
    operators = set(graph.operators)
    return tuple(
        WatermarkNode(
            id=name,
            inputs=tuple((names[edge.node],) for edge in node.inputs),
            is_transparent=node.kind is NodeKind.STEP,
            holds_watermarks=node in operators and holds_watermarks(node),
        )
        for node in graph.nodes
        if (name := names.get(node)) is not None
    )


@frozen
class EventTime:
    """The sources of a job that have event time, by their uids."""

    graph: JobGraph
    source_names: tuple[str, ...]
    """The names of all sources, in program order."""
    nodes: Mapping[str, TimestampsNode]
    """The node that assigns the timestamps of a source, by the name of the source."""

    @classmethod
    def of(cls, graph: JobGraph) -> EventTime | None:
        """Return the event time of a job; None if no stream has timestamps.

        Raises `JobDefinitionError` for a source with two assignments of timestamps, for an unknown side output, and
        for an operator that needs timestamps and receives none.
        """
        event_time = cls.of_sources(graph)
        _check_have_timestamps(graph)
        return event_time if event_time.nodes else None

    @classmethod
    def of_sources(cls, graph: JobGraph) -> EventTime:
        """Return the event time of a job; its sources may emit watermarks themselves. Raises as `of`."""
        by_source: dict[SourceNode, TimestampsNode] = {}
        for node in graph.nodes:
            if not isinstance(node, TimestampsNode):
                continue
            if by_source.setdefault(source_of_timestamps(node.inputs[0]), node) is not node:
                raise JobDefinitionError(
                    "assign_timestamps_and_watermarks() is used twice for one source; use the stream that it returns "
                    "in both places"
                )
            _check_side_outputs(node, graph)
        names = dict(zip(graph.sources, graph.source_uids, strict=True))
        return cls(graph, graph.source_uids, {names[source]: node for source, node in by_source.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources with event time, and the uids of all operators."""
        return (*self.nodes, *(node.uid for node in self.graph.operators))

    @property
    def followers(self) -> tuple[str, ...]:
        """The uids of the operators that need an epoch when their watermark advances, even without due timers."""
        return tuple(node.uid for node in self.graph.operators if getattr(node.function, "follows_watermarks", False))

    def name_of(self, node: TimestampsNode) -> str:
        """Return the name of the source for a node that assigns timestamps."""
        return next(name for name, one in self.nodes.items() if one is node)

    def watermark_nodes(self) -> tuple[WatermarkNode, ...]:
        """Return the graph through which watermarks flow."""
        return watermark_nodes(self.graph, self.source_names, lambda _: False)

    def watermarks(self) -> JobWatermarks:
        """Return the watermarks of a job before its first record.

        A source without timestamps has no watermark, so it blocks the operators that read it.
        """
        sources = {name: node.strategy.source_time() for name, node in self.nodes.items()}
        return JobWatermarks(self.watermark_nodes(), sources)


def _check_have_timestamps(graph: JobGraph) -> None:
    have: set[Node] = set()
    for node in graph.nodes:
        if isinstance(node, TimestampsNode) or any(edge.node in have for edge in node.inputs):
            have.add(node)
    for node in graph.operators:
        if getattr(node.function, "needs_timestamps", False) and any(edge.node not in have for edge in node.inputs):
            raise JobDefinitionError(
                f"operator {node.uid!r}: {node.name} works in event time, but its records have no "
                f"timestamps; call assign_timestamps_and_watermarks(WatermarkStrategy...) on their source"
            )


def check_follows_from_epochs(event_time: EventTime | None) -> None:
    """Raise `JobDefinitionError` if the largest timestamps of an epoch do not determine the watermarks."""
    for node in () if event_time is None else event_time.nodes.values():
        _check_is_supported(node.strategy)


def _check_side_outputs(node: TimestampsNode, graph: JobGraph) -> None:
    strategy = node.strategy
    there_is = None if strategy.future_limit_ms is None else strategy.future_tag
    for edge in graph.edges_from(node):
        if edge.tag is not None and edge.tag != there_is:
            raise JobDefinitionError(
                f"the side output {edge.tag.name!r} of assign_timestamps_and_watermarks() is read, but nothing goes "
                f"there: with_future_limit(limit, tag) sends records too far in the future to "
                f"{'its tag' if there_is is None else repr(there_is.name)}"
            )


def _check_is_supported(strategy: WatermarkStrategy[object]) -> None:
    if strategy.out_of_orderness_ms is None and not isinstance(strategy.create_generator(), NoWatermarks):
        raise JobDefinitionError(
            "WatermarkStrategy.for_generator is not supported by this runtime, which knows only the largest timestamps "
            "of an epoch; use for_bounded_out_of_orderness(...) or for_monotonous_timestamps()"
        )
    if strategy.alignment is not None:
        raise JobDefinitionError(
            "WatermarkStrategy.with_watermark_alignment is not supported by this runtime, which reads all sources of "
            "an epoch at once; remove it"
        )


def whole_milliseconds(clock: Clock) -> Clock:
    """Check a clock of the user. Raises `JobDefinitionError` if it is not callable or returns no time."""
    if not callable(clock):
        given: object = clock
        raise JobDefinitionError(
            f"clock is {format_value(given)}; it takes a function that returns milliseconds since 1970"
        )

    def asked() -> int:
        time_ms = clock()
        if type(time_ms) is not int or not 0 <= time_ms <= MAX_TIMESTAMP:
            raise JobDefinitionError(
                f"the clock returned {format_value(time_ms)}; it must return milliseconds since 1970 as an integer, "
                "such as lambda: time.time_ns() // 1_000_000"
            )
        return time_ms

    return asked


def not_before(time_ms: int, previous_ms: int | None) -> int:
    """Return the later of both times. ``previous_ms`` is the time of the previous epoch, None if unknown."""
    return time_ms if previous_ms is None else max(time_ms, previous_ms)
