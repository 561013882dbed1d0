"""From the graph of a job to Spark plans: checked once on the driver, built again for every epoch.

A plan is built node by node, in the order of the graph. If the readers of an operator may read its rows more or less
than once (an unknown step or sink, or several readers), the rows are computed and cached first. So the tasks of an
operator run once per epoch. The batch is cached too if there are several sources or readers.

A no-data epoch leaves out what has no rows. A source has none; nor has a union, a function of records or a step that
assigns timestamps, if all its inputs have none. A function of a DataFrame may make rows from none, as a count does, and
an operator may fire timers.
An operator whose inputs all have no rows needs no shuffle. Nodes that only such operators read are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

from attrs import define, field, frozen
from pyspark.sql import DataFrame

from statebackend.spark.columns import KeptColumns
from statebackend.spark.plans.event_time_column import EventTimeColumn
from statebackend.spark.plans.operator_plan import PreparedOperator, processed, processed_without_rows
from statebackend.spark.plans.placement import SubtaskPlacement
from statebackend.spark.plans.record_steps import PreparedStep
from statebackend.spark.sources.source_union import split_sources
from statebackend.spark.tasks.epoch_task import EpochTask
from statebackend.streaming.runtime.job_sinks import JobSinks
from statebackend.streaming.stream_graph import (
    DataFrameNode,
    JobGraph,
    Node,
    OperatorNode,
    RecordsNode,
    RecordStepNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    TimestampsNode,
    UnionNode,
)

__all__ = ["EpochPlan", "InactiveNodes", "Pipeline", "inactive_nodes"]


_PASSING_ON: Final = (RecordStepNode, RecordsNode, TimestampsNode, UnionNode)


@frozen
class InactiveNodes:
    """``operators`` are the uids of those that are fed by nothing, ``left_out`` what nobody else reads."""

    operators: frozenset[str] = frozenset()
    left_out: frozenset[Node] = frozenset()


def inactive_nodes(graph: JobGraph) -> InactiveNodes:
    """Those of a graph in an epoch without records; takes time in proportion to its edges."""
    silent: set[Node] = set()
    fed_by_nothing: set[Node] = set()
    for node in graph.nodes:
        has_inactive_inputs = all(edge.node in silent for edge in node.inputs)
        if isinstance(node, SourceNode) or (isinstance(node, _PASSING_ON) and has_inactive_inputs):
            silent.add(node)
        elif isinstance(node, OperatorNode) and has_inactive_inputs:
            fed_by_nothing.add(node)
    planned: set[Node] = set()
    for node in reversed(graph.nodes):
        if isinstance(node, (OperatorNode, SinkNode)):
            planned.add(node)
        if node in planned and node not in fed_by_nothing:
            planned.update(edge.node for edge in node.inputs)
    uids = frozenset(node.uid for node in graph.operators if node in fed_by_nothing)
    return InactiveNodes(uids, frozenset(graph.nodes) - planned)


@define
class EpochPlan:
    """The plan of one epoch: the frame of each sink by uid. Close it to let go of rows that were kept."""

    frames: dict[str, DataFrame] = field(factory=dict)
    kept: list[DataFrame] = field(factory=list)

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, computed once and kept until the plan is closed."""
        frame = frame.persist()
        self.kept.append(frame)
        return frame

    def close(self) -> None:
        """Lets go of the rows that were kept."""
        for frame in self.kept:
            frame.unpersist()


@frozen
class Pipeline:
    """A job's graph, checked (see `pipeline_preparation`); ``source`` is the frame of all its sources."""

    graph: JobGraph
    operators: Mapping[str, PreparedOperator]
    steps: Mapping[RecordStepNode, PreparedStep]
    records: Mapping[RecordsNode, KeptColumns]
    source: DataFrame
    sinks: JobSinks
    is_source_kept: bool
    time: EventTimeColumn
    _silent: InactiveNodes = field(init=False)

    @_silent.default
    def _inactive_nodes_of_graph(self) -> InactiveNodes:
        return inactive_nodes(self.graph)

    def build(
        self,
        frame: DataFrame,
        tasks: Mapping[str, EpochTask],
        placement: SubtaskPlacement,
        processing_time_ms: int,
        *,
        is_without_records: bool = False,
    ) -> EpochPlan:
        """The plan of one epoch over the frame of its micro-batch, at this time.

        Runs operators whose rows are kept, so it raises what their tasks raise.
        """
        plan = EpochPlan()
        silent = self._silent if is_without_records else InactiveNodes()
        try:
            if self.is_source_kept and not silent.left_out.issuperset(self.graph.sources):
                frame = plan.keep(frame)
            building = _Building(self, frame, tasks, placement, processing_time_ms, plan, silent)
            for node in self.graph.nodes:
                if node not in silent.left_out:
                    _BUILDERS[type(node)](building, node)
        except BaseException:
            plan.close()
            raise
        return plan


class _Building:
    """The frames of one epoch, as far as they are there."""

    def __init__(
        self,
        pipeline: Pipeline,
        frame: DataFrame,
        tasks: Mapping[str, EpochTask],
        placement: SubtaskPlacement,
        processing_time_ms: int,
        plan: EpochPlan,
        silent: InactiveNodes,
    ) -> None:
        self._session = frame.sparkSession
        self._silent = silent
        self._operators = pipeline.operators
        self._steps = pipeline.steps
        self._records = pipeline.records
        self._time = pipeline.time
        self._tasks = tasks
        self._placement = placement
        self._processing_time_ms = processing_time_ms
        self._plan = plan
        sources = pipeline.graph.sources
        self._frames: dict[StreamEdge, DataFrame] = {}
        if not silent.left_out.issuperset(sources):
            parts = split_sources(frame, len(sources))
            self._frames.update((StreamEdge(node), part) for node, part in zip(sources, parts, strict=True))

    def source(self, node: SourceNode) -> None:
        """The frames of sources are there from the beginning."""

    def dataframe(self, node: DataFrameNode) -> None:
        self._frames[StreamEdge(node)] = node.function(self._time.before_step(node, self._frames[node.inputs[0]]))

    def record_step(self, node: RecordStepNode) -> None:
        self._frames[StreamEdge(node)] = self._steps[node].over(self._frame_before(node))

    def records(self, node: RecordsNode) -> None:
        self._frames[StreamEdge(node)] = self._records[node].of(self._frame_before(node))

    def _frame_before(self, node: RecordStepNode | RecordsNode) -> DataFrame:
        return self._time.before_step(node, self._frames[node.inputs[0]])

    def unite(self, node: UnionNode) -> None:
        frames = self._time.before_union(node, [self._frames[edge] for edge in node.inputs])
        self._frames[StreamEdge(node)] = reduce(DataFrame.unionByName, frames)

    def assign_timestamps(self, node: TimestampsNode) -> None:
        for tag, frame in self._time.assigned(node, self._frames[node.inputs[0]], self._processing_time_ms):
            self._frames[StreamEdge(node, tag)] = frame

    def process(self, node: OperatorNode) -> None:
        operator, task = self._operators[node.uid], self._tasks[node.uid]
        if node.uid in self._silent.operators:
            rows = processed_without_rows(self._session, operator, task, self._placement)
        else:
            rows = processed([self._frames[edge] for edge in node.inputs], operator, task, self._placement)
        if operator.is_kept:
            rows = self._plan.keep(rows)
            # Asking how many there are computes all partitions.
            rows.count()
        for tag, part in operator.layout.split(rows):
            self._frames[StreamEdge(node, tag)] = part

    def end(self, node: SinkNode) -> None:
        edge = node.inputs[0]
        self._plan.frames[node.uid] = self._time.before_sink(edge, self._frames[edge])


_BUILDERS: Final[Mapping[type, Callable[[_Building, Any], None]]] = {
    SourceNode: _Building.source,
    DataFrameNode: _Building.dataframe,
    RecordStepNode: _Building.record_step,
    RecordsNode: _Building.records,
    UnionNode: _Building.unite,
    TimestampsNode: _Building.assign_timestamps,
    OperatorNode: _Building.process,
    SinkNode: _Building.end,
}
