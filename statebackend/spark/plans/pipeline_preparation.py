"""Checks a job's graph on the driver before anything is touched.

It traverses the graph once over frames without rows. So Spark itself checks types, names and schemas, and every
operator registers its state.

It also decides whether the rows of an operator must be cached. A subtask changes state, so its task must run exactly
once per epoch, as the task of its own partition. Steps that work row by row, or that shuffle their input, allow that.
Others do not: a global sort samples its input in another job, a limit skips partitions, ``coalesce`` and ``union`` run
them in other tasks, a self-join reads them twice, and a function may run an action. For these, the rows are cached
before the step. Steps are recognised by their plan over an empty input. Unknown steps count as the second kind, which
costs only time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, Final, cast

from attrs import evolve
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statebackend.spark.columns import KeptColumns
from statebackend.spark.plans.event_time_column import EventTimeColumn
from statebackend.spark.plans.map_in_arrow import map_in_arrow
from statebackend.spark.plans.operator_plan import PreparedOperator, output_type, prepare_operator
from statebackend.spark.plans.pipeline import Pipeline
from statebackend.spark.plans.record_steps import PreparedStep, prepare_record_step, prepare_records
from statebackend.spark.sources.source_union import united_sources
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.union import columns_do_not_fit
from statebackend.streaming.runtime.job_sinks import JobSinks
from statebackend.streaming.sink import reads_once
from statebackend.streaming.stream_graph import (
    DataFrameNode,
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
)

__all__ = ["empty_input", "jobs_started", "prepare_pipeline", "reads_partitions_once"]


_ROW_BY_ROW_OR_SHUFFLED: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "Distinct",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "PythonMapInArrow",
        "RepartitionByExpression",
        "SubqueryAlias",
    }
)
_MAPS_IN_ARROW: Final = ("MapInArrow", "PythonMapInArrow")


def empty_input(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows whose one partition is computed by a task, as that of an operator is."""

    def no_rows(batches: Iterator[Any]) -> Iterator[Any]:
        return iter(())

    return map_in_arrow(spark.range(0, 1, 1, 1), no_rows, schema)


def jobs_started(spark: SparkSession) -> int:
    """How many jobs Spark has started so far, those of other queries of the application counted too."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def reads_partitions_once(frame: DataFrame) -> bool:
    """Whether ``frame``, made by steps over an `empty_input`, computes each of its partitions once, in its own task."""
    return _reads_its_input_once(frame._jdf.queryExecution().analyzed())


def _reads_its_input_once(plan: Any) -> bool:
    while not _is_empty_input(plan):
        if not _is_row_by_row_or_shuffled(plan) or plan.subqueries().size() or plan.children().size() != 1:
            return False
        plan = plan.children().head()
    return True


def _is_empty_input(plan: Any) -> bool:
    return plan.nodeName() in _MAPS_IN_ARROW and plan.children().head().nodeName() == "Range"


def _is_row_by_row_or_shuffled(plan: Any) -> bool:
    name = plan.nodeName()
    if name == "Repartition":
        return bool(plan.shuffle())
    if name == "Sort":
        return not getattr(plan, "global")()
    return name in _ROW_BY_ROW_OR_SHUFFLED


_SINK_ADVICE: Final = (
    "use ParquetSink(path), NoopSink(), MemorySink(), ForEachEpochSink(function), or a class of your own with stage, "
    "commit, abort and recover"
)


def prepare_pipeline(spark: SparkSession, graph: JobGraph, parallelism: int, max_parallelism: int) -> Pipeline:
    """Checks types and collects the state of every operator; raises `JobDefinitionError` for what cannot run."""
    preparation = _Preparation(spark, graph, parallelism, max_parallelism)
    for node in graph.nodes:
        _PREPARERS[type(node)](preparation, node)
    sinks = JobSinks.of(graph, _SINK_ADVICE)
    source = united_sources([node.source for node in graph.sources])
    is_source_kept = sum(_reads(graph, node) for node in graph.sources) > 1
    return Pipeline(
        graph,
        preparation.operators,
        preparation.steps,
        preparation.record_columns,
        source,
        sinks,
        is_source_kept,
        preparation.time,
    )


class _Preparation:
    """The nodes seen so far, over frames without rows."""

    def __init__(self, spark: SparkSession, graph: JobGraph, parallelism: int, max_parallelism: int) -> None:
        self._spark = spark
        self._graph = graph
        self.time = EventTimeColumn(graph)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._frames: dict[StreamEdge, DataFrame] = {}
        self._nodes_with_actions: set[Node] = set()
        self.operators: dict[str, PreparedOperator] = {}
        """Those seen so far by uid."""
        self.steps: dict[RecordStepNode, PreparedStep] = {}
        self.record_columns: dict[RecordsNode, KeptColumns] = {}

    def source(self, node: SourceNode) -> None:
        self._frames[StreamEdge(node)] = self._spark.createDataFrame([], node.source.schema)

    def dataframe(self, node: DataFrameNode) -> None:
        jobs_before = jobs_started(self._spark)
        result = node.function(self.time.before_step(node, self._frames[node.inputs[0]]))
        if not isinstance(result, DataFrame):
            raise JobDefinitionError(f"transform_dataframe() must return a DataFrame, not {type(result).__name__}")
        # An action of another query counts too: then rows are kept without need.
        if jobs_started(self._spark) != jobs_before:
            self._nodes_with_actions.add(node)
        self.time.check_step(node, result)
        self._frames[StreamEdge(node)] = result

    def record_step(self, node: RecordStepNode) -> None:
        frame = self._frame_before(node)
        schema = None if node.schema is None else output_type(frame, node.schema, f"{node.method}()")
        self.steps[node] = prepare_record_step(frame, node, schema)
        self._frames[StreamEdge(node)] = self.steps[node].over(frame)

    def records(self, node: RecordsNode) -> None:
        frame = self._frame_before(node)
        self.record_columns[node] = prepare_records(frame, node)
        self._frames[StreamEdge(node)] = self.record_columns[node].of(frame)

    def _frame_before(self, node: RecordStepNode | RecordsNode) -> DataFrame:
        return self.time.before_step(node, self._frames[node.inputs[0]])

    def unite(self, node: UnionNode) -> None:
        frames = self.time.before_union(node, [self._frames[edge] for edge in node.inputs])
        try:
            self._frames[StreamEdge(node)] = reduce(DataFrame.unionByName, frames)
        except AnalysisException as error:
            raise columns_do_not_fit([frame.dtypes for frame in frames], str(error).splitlines()[0]) from error

    def assign_timestamps(self, node: TimestampsNode) -> None:
        frame = self._frames[node.inputs[0]]
        self.time.prepare(node, frame)
        for tag, timed in self.time.assigned(node, frame, processing_time_ms=0):
            self._frames[StreamEdge(node, tag)] = timed

    def process(self, node: OperatorNode) -> None:
        # Several inputs are a union, which runs the partitions of what it reads in other tasks.
        self._settle(node.inputs, is_read_once=len(node.inputs) == 1)
        frames = [self._frames[edge] for edge in node.inputs]
        times = [self.time.of_operator(edge) for edge in node.inputs]
        tags = self._graph.side_outputs(node)
        prepared = prepare_operator(
            frames,
            node,
            tags,
            times,
            self._parallelism,
            self._max_parallelism,
            emits_time=self.time.is_in_output(node),
        )
        is_read_again = _reads(self._graph, node) > 1
        self.operators[node.uid] = evolve(prepared, is_kept=is_read_again)
        for tag, schema in prepared.layout.streams.items():
            self._frames[StreamEdge(node, tag)] = empty_input(self._spark, schema)

    def end(self, node: SinkNode) -> None:
        self._settle(node.inputs, is_read_once=reads_once(node.sink))

    def _settle(self, edges: Iterable[StreamEdge], is_read_once: bool) -> None:
        """Settles for the operators that a reader is behind whether it, and the steps in between, let them be."""
        for edge in edges:
            operators, steps = _behind(edge)
            lets_be = is_read_once and self._nodes_with_actions.isdisjoint(steps)
            if not operators or (lets_be and (not steps or reads_partitions_once(self._frames[edge]))):
                continue
            for operator in operators:
                self.operators[operator.uid] = evolve(self.operators[operator.uid], is_kept=True)


_PREPARERS: Final[Mapping[type, Callable[[_Preparation, Any], None]]] = {
    SourceNode: _Preparation.source,
    DataFrameNode: _Preparation.dataframe,
    RecordStepNode: _Preparation.record_step,
    RecordsNode: _Preparation.records,
    UnionNode: _Preparation.unite,
    TimestampsNode: _Preparation.assign_timestamps,
    OperatorNode: _Preparation.process,
    SinkNode: _Preparation.end,
}


def _reads(graph: JobGraph, node: Node) -> int:
    """How many operators and sinks read what a node gives out, through any steps in between."""
    readers = [reader for reader in graph.nodes for edge in reader.inputs if edge.node is node]
    return sum(_reads(graph, reader) if reader.kind is NodeKind.STEP else 1 for reader in readers)


def _behind(edge: StreamEdge) -> tuple[list[OperatorNode], set[Node]]:
    """The operators whose rows come over an edge, and the steps that they pass."""
    operators: list[OperatorNode] = []
    steps: set[Node] = set()
    waiting = [edge.node]
    while waiting:
        node = waiting.pop()
        if node.kind is NodeKind.STEP:
            steps.add(node)
            waiting.extend(input_edge.node for input_edge in node.inputs)
        elif node.kind is NodeKind.OPERATOR:
            operators.append(cast("OperatorNode", node))
    return operators, steps
