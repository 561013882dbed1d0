"""From the graph of a job to Spark plans: checked once on the driver, built again for every epoch.

**Check.** `prepare_pipeline` traverses the graph once over frames without rows. So Spark itself checks types, names and
schemas, and every operator registers its state. It also decides whether the rows of an operator must be cached. A
subtask changes state, so its task must run exactly once per epoch, as the task of its own partition. Steps that work
row by row, or that shuffle their input, allow that. Others do not: a global sort samples its input in another job, a
limit skips partitions, ``coalesce`` and ``union`` run them in other tasks, a self-join reads them twice, and a function
may run an action. For these, and for several readers, the rows are cached before the step. Steps are recognised by
their plan over an empty input. Unknown steps count as the second kind, which costs only time.

**Build.** A plan is built node by node, in the order of the graph. The batch is cached if it has several readers.

A no-data epoch leaves out what has no rows. A source has none; nor has a union, a function of records or a step that
assigns timestamps, if all its inputs have none. A function of a DataFrame may make rows from none, as a count does, and
an operator may fire timers.
An operator whose inputs all have no rows needs no shuffle. Nodes that only such operators read are left out.

**Sources.** One query reads all sources as a union of tagged structs, which each batch splits again. So there is one
offset log and one sequence of epochs. A single source is unchanged.

    __statebackend_source   __statebackend_row_0            __statebackend_row_1
    0                       the row of the first source     null
    1                       null                            that of the second
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, cast

from attrs import define, evolve, field, frozen
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from statebackend.spark.columns import SelectedColumns, column_named
from statebackend.spark.frame_sinks import reads_once, sinks_of
from statebackend.spark.plans.event_time_column import EventTimeColumn
from statebackend.spark.plans.map_in_arrow import map_in_arrow
from statebackend.spark.plans.operator_plan import (
    PreparedOperator,
    output_type,
    prepare_operator,
    processed,
    processed_without_rows,
)
from statebackend.spark.plans.placement import SubtaskPlacement
from statebackend.spark.plans.record_steps import PreparedStep, prepare_record_step, prepare_records
from statebackend.spark.tasks.epoch_task import EpochTask
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.union import columns_do_not_fit
from statebackend.streaming.runtime.job_sinks import JobSinks
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

__all__ = [
    "EpochPlan",
    "InactiveNodes",
    "Pipeline",
    "empty_input",
    "inactive_nodes",
    "jobs_started",
    "prepare_pipeline",
    "reads_partitions_once",
    "split_sources",
    "united_sources",
]


_SOURCE_COLUMN: Final = "__statebackend_source"
_ROW_COLUMN_PREFIX: Final = "__statebackend_row_"


def united_sources(frames: Sequence[DataFrame]) -> DataFrame:
    """Return one frame of all sources. Raises `JobDefinitionError` for two columns of one name."""
    if len(frames) == 1:
        return frames[0]
    return reduce(DataFrame.union, [_tagged(frame, index, frames) for index, frame in enumerate(frames)])


def split_sources(batch: DataFrame, count: int) -> Sequence[DataFrame]:
    """Split a batch of the union into the frames of its sources."""
    if count == 1:
        return [batch]
    return [
        batch.where(F.col(_SOURCE_COLUMN) == index).select(F.col(f"{_ROW_COLUMN_PREFIX}{index}.*"))
        for index in range(count)
    ]


def _tagged(frame: DataFrame, index: int, frames: Sequence[DataFrame]) -> DataFrame:
    if len(set(frame.columns)) != len(frame.columns):
        raise JobDefinitionError(
            f"source {index + 1} of the job has two columns of the same name ({', '.join(frame.columns)}); rename one"
        )
    rows = []
    for other, its_frame in enumerate(frames):
        own = F.struct(*map(column_named, frame.columns)) if other == index else None
        row = F.lit(None).cast(its_frame.schema) if own is None else own
        rows.append(row.alias(f"{_ROW_COLUMN_PREFIX}{other}"))
    return frame.select(F.lit(index).alias(_SOURCE_COLUMN), *rows)


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
    """Return a frame without rows whose one partition is computed by a task, as that of an operator is."""

    def no_rows(batches: Iterator[Any]) -> Iterator[Any]:
        return iter(())

    return map_in_arrow(spark.range(0, 1, 1, 1), no_rows, schema)


def jobs_started(spark: SparkSession) -> int:
    """Return how many jobs Spark has started so far, including those of other queries of the application."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def reads_partitions_once(frame: DataFrame) -> bool:
    """Whether steps over an `empty_input` compute each partition once, in its own task; ``frame`` is their result."""
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


def prepare_pipeline(spark: SparkSession, graph: JobGraph, parallelism: int, max_parallelism: int) -> Pipeline:
    """Check types and register the state of every operator. Raises `JobDefinitionError` for an invalid job."""
    preparation = _Preparation(spark, graph, parallelism, max_parallelism)
    for node in graph.nodes:
        _PREPARERS[type(node)](preparation, node)
    sinks = sinks_of(graph)
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
    """The nodes checked so far, over frames without rows."""

    def __init__(self, spark: SparkSession, graph: JobGraph, parallelism: int, max_parallelism: int) -> None:
        self._spark = spark
        self._graph = graph
        self.time = EventTimeColumn(graph)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._frames: dict[StreamEdge, DataFrame] = {}
        self._nodes_with_actions: set[Node] = set()
        self.operators: dict[str, PreparedOperator] = {}
        """The operators checked so far, by uid."""
        self.steps: dict[RecordStepNode, PreparedStep] = {}
        self.record_columns: dict[RecordsNode, SelectedColumns] = {}

    def source(self, node: SourceNode) -> None:
        self._frames[StreamEdge(node)] = self._spark.createDataFrame([], node.source.schema)

    def dataframe(self, node: DataFrameNode) -> None:
        jobs_before = jobs_started(self._spark)
        result = node.function(self.time.before_step(node, self._frames[node.inputs[0]]))
        if not isinstance(result, DataFrame):
            raise JobDefinitionError(f"transform_dataframe() must return a DataFrame, not {type(result).__name__}")
        # An action of another query counts, too: then rows are cached without need.
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
        """Cache the rows of the operators before a reader, unless it and the steps in between read them once."""
        for edge in edges:
            operators, steps = _operators_before(edge)
            has_no_action = is_read_once and self._nodes_with_actions.isdisjoint(steps)
            if not operators or (has_no_action and (not steps or reads_partitions_once(self._frames[edge]))):
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
    """Return how many operators and sinks read the output of a node, through any steps in between."""
    readers = [reader for reader in graph.nodes for edge in reader.inputs if edge.node is node]
    return sum(_reads(graph, reader) if reader.kind is NodeKind.STEP else 1 for reader in readers)


def _operators_before(edge: StreamEdge) -> tuple[list[OperatorNode], set[Node]]:
    """The operators whose rows arrive over an edge, and the steps that they pass."""
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


_PASSING_ON: Final = (RecordStepNode, RecordsNode, TimestampsNode, UnionNode)


@frozen
class InactiveNodes:
    """``operators`` are the uids of operators without input rows, ``left_out`` the nodes that only these read."""

    operators: frozenset[str] = frozenset()
    left_out: frozenset[Node] = frozenset()


def inactive_nodes(graph: JobGraph) -> InactiveNodes:
    """Return the inactive nodes of a graph in a no-data epoch, in linear time."""
    inactive: set[Node] = set()
    fed_by_nothing: set[Node] = set()
    for node in graph.nodes:
        has_inactive_inputs = all(edge.node in inactive for edge in node.inputs)
        if isinstance(node, SourceNode) or (isinstance(node, _PASSING_ON) and has_inactive_inputs):
            inactive.add(node)
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
    """The plan of one epoch: the frame of each sink by uid. Close it to release cached rows."""

    frames: dict[str, DataFrame] = field(factory=dict)
    kept: list[DataFrame] = field(factory=list)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return the frame, which is computed once and cached until the plan is closed."""
        frame = frame.persist()
        self.kept.append(frame)
        return frame

    def close(self) -> None:
        """Release the cached rows."""
        for frame in self.kept:
            frame.unpersist()


@frozen
class Pipeline:
    """A job's graph, checked by `prepare_pipeline`; ``source`` is the frame of all its sources."""

    graph: JobGraph
    operators: Mapping[str, PreparedOperator]
    steps: Mapping[RecordStepNode, PreparedStep]
    records: Mapping[RecordsNode, SelectedColumns]
    source: DataFrame
    sinks: JobSinks
    is_source_kept: bool
    time: EventTimeColumn
    _inactive_without_records: InactiveNodes = field(init=False)

    @_inactive_without_records.default
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
        """Build the plan of one epoch over the frame of its micro-batch, at this processing time.

        Runs operators whose rows are cached, so errors of their tasks pass through.
        """
        plan = EpochPlan()
        inactive = self._inactive_without_records if is_without_records else InactiveNodes()
        try:
            if self.is_source_kept and not inactive.left_out.issuperset(self.graph.sources):
                frame = plan.keep(frame)
            building = _Building(self, frame, tasks, placement, processing_time_ms, plan, inactive)
            for node in self.graph.nodes:
                if node not in inactive.left_out:
                    _BUILDERS[type(node)](building, node)
        except BaseException:
            plan.close()
            raise
        return plan


class _Building:
    """The frames of one epoch, built so far."""

    def __init__(
        self,
        pipeline: Pipeline,
        frame: DataFrame,
        tasks: Mapping[str, EpochTask],
        placement: SubtaskPlacement,
        processing_time_ms: int,
        plan: EpochPlan,
        inactive: InactiveNodes,
    ) -> None:
        self._session = frame.sparkSession
        self._inactive_without_records = inactive
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
        if not inactive.left_out.issuperset(sources):
            parts = split_sources(frame, len(sources))
            self._frames.update((StreamEdge(node), part) for node, part in zip(sources, parts, strict=True))

    def source(self, node: SourceNode) -> None:
        """Do nothing: the frames of sources exist from the start."""

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
        if node.uid in self._inactive_without_records.operators:
            rows = processed_without_rows(self._session, operator, task, self._placement)
        else:
            rows = processed([self._frames[edge] for edge in node.inputs], operator, task, self._placement)
        if operator.is_kept:
            rows = self._plan.keep(rows)
            # Counting computes all partitions. Without columns, because Spark rejects a count of columns of times in a
            # thread whose active session does not allow them.
            rows.select().count()
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
