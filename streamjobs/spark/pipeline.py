"""From the graph of a job to Spark plans: checked once on the driver, built anew for every epoch.

For every keyed operator an epoch's plan is: compute the key group of each row, send the row to the partition that owns
the group, sort if asked to, and run the subtask over the partition. What comes out passes an observation that collects
the acknowledgements, loses them, and flows on. If what is behind may read it more or less than once, it is computed and
kept first, and the acknowledgements are read from what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from attrs import evolve, frozen
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructField, StructType

from streamjobs.api.key_types import key_serializer_for
from streamjobs.api.sinks import Sink
from streamjobs.api.stream_graph import KeyedProcessNode, Node, SourceNode, TransformNode
from streamjobs.errors import JobDefinitionError
from streamjobs.runtime.state_registration import RegisteredStates, registered_states
from streamjobs.runtime.user_errors import shown
from streamjobs.spark.arrow_rows import to_arrow_schema
from streamjobs.spark.downstream_steps import empty_input, jobs_started, reads_partitions_once
from streamjobs.spark.epoch_task import EpochTask
from streamjobs.spark.map_in_arrow import map_in_arrow
from streamjobs.spark.named_columns import column_meant_by, column_named
from streamjobs.spark.placement import SubtaskPlacement
from streamjobs.spark.sinks import reads_once
from streamjobs.spark.subtask import ACKNOWLEDGEMENT_COLUMN, KEY_COLUMN_PREFIX, KEY_GROUP_COLUMN
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class EpochPlan:
    """The plan of one epoch: a frame of the rows for the sink, and where the acknowledgements of each operator are.

    Those of operators whose rows are kept are there when the plan is; the others are observed while the sink runs.
    Close the plan to let go of rows that were kept.
    """

    frame: DataFrame
    observations: Mapping[str, Observation]
    acknowledgements: Mapping[str, Sequence[bytes]]
    kept: Sequence[DataFrame]

    def close(self) -> None:
        """Lets go of the rows that were kept."""
        for frame in self.kept:
            frame.unpersist()


@frozen
class OperatorColumns:
    """The expressions of an operator's plan. They are unresolved, so they are made once and serve every epoch."""

    expression_keys: Mapping[str, Column]
    key_group: Column
    subtask: Column
    order_by: tuple[Column, ...]
    arrow_input: tuple[Column, ...]
    with_acknowledgement: StructType
    is_data: Column
    acknowledgements: Column


@frozen
class PreparedOperator:
    """A keyed operator whose types are known and whose state has been asked for."""

    node: KeyedProcessNode
    function_pickle: bytes
    key_serializer: TypeSerializer[Any]
    key_columns: tuple[str, ...]
    row_columns: tuple[str, ...]
    output_type: StructType
    output_schema: pa.Schema
    states: RegisteredStates
    columns: OperatorColumns
    is_kept: bool
    """Whether its rows are computed and kept, since what is behind may read them more or less than once."""

    @property
    def uid(self) -> str:
        """The uid of the operator."""
        return self.node.uid


@frozen
class Pipeline:
    """A job's nodes from source to sink, checked."""

    nodes: tuple[Node, ...]
    operators: Mapping[str, PreparedOperator]
    source: DataFrame
    sink: Any

    def build(self, frame: DataFrame, tasks: Mapping[str, EpochTask], placement: SubtaskPlacement) -> EpochPlan:
        """The plan of one epoch over the frame of its micro-batch.

        Runs operators whose rows are kept, so it raises what their tasks raise.
        """
        observations: dict[str, Observation] = {}
        acknowledgements: dict[str, Sequence[bytes]] = {}
        kept: list[DataFrame] = []
        try:
            for node in self.nodes:
                if isinstance(node, TransformNode):
                    frame = node.function(frame)
                elif isinstance(node, KeyedProcessNode):
                    operator, task = self.operators[node.uid], tasks[node.uid]
                    frame = _processed(frame, operator, task, placement)
                    if operator.is_kept:
                        frame = frame.persist()
                        kept.append(frame)
                        acknowledgements[node.uid] = _run_and_keep(frame)
                    else:
                        observations[node.uid] = Observation(f"statebackend-{node.uid}-{task.epoch_id}")
                        frame = frame.observe(observations[node.uid], operator.columns.acknowledgements)
                    frame = frame.where(operator.columns.is_data).drop(ACKNOWLEDGEMENT_COLUMN)
        except BaseException:
            EpochPlan(frame, {}, {}, kept).close()
            raise
        return EpochPlan(frame, observations, acknowledgements, kept)


def prepare_pipeline(spark: SparkSession, nodes: Sequence[Node], parallelism: int, max_parallelism: int) -> Pipeline:
    """Checks types and collects the state of every operator; raises `JobDefinitionError` for what cannot run."""
    first, *_, last = nodes
    assert isinstance(first, SourceNode)
    operators: dict[str, PreparedOperator] = {}
    frame = spark.createDataFrame([], first.source.schema)
    steps = _StepsBehind(spark)
    for node in nodes:
        if isinstance(node, TransformNode):
            frame = steps.add(node.function, frame)
        elif isinstance(node, KeyedProcessNode):
            steps.end(operators, frame, is_kept=False)
            prepared = _prepare_operator(frame, node, parallelism, max_parallelism)
            operators[node.uid] = prepared
            frame = empty_input(spark, prepared.output_type)
            steps = _StepsBehind(spark, node.uid)
    sink = getattr(last, "sink", None)
    if not isinstance(sink, Sink):
        raise JobDefinitionError(
            f"sink_to was given {shown(sink, 80)}, which is no sink: use ParquetSink(path), NoopSink(), MemorySink(), "
            f"ForEachEpochSink(function), or a class of your own with stage, commit, abort and recover"
        )
    steps.end(operators, frame, is_kept=not reads_once(sink))
    return Pipeline(tuple(nodes), operators, first.source, sink)


class _StepsBehind:
    """The steps between an operator (None: the source) and the next one or the sink."""

    def __init__(self, spark: SparkSession, operator_uid: str | None = None) -> None:
        self._spark = spark
        self._operator_uid = operator_uid
        self._number = 0
        self._jobs_before = jobs_started(spark)

    def add(self, function: Callable[[DataFrame], Any], frame: DataFrame) -> DataFrame:
        result = function(frame)
        if not isinstance(result, DataFrame):
            raise JobDefinitionError(f"transform() must return a DataFrame, not {type(result).__name__}")
        self._number += 1
        return result

    def end(self, operators: dict[str, PreparedOperator], frame: DataFrame, is_kept: bool) -> None:
        """Settles whether the operator's rows are kept; ``is_kept`` is what the reader behind the steps asks for."""
        if self._operator_uid is None:
            return
        if self._number and not is_kept:
            # An action of another query counts too: then the rows are kept without need.
            is_kept = jobs_started(self._spark) != self._jobs_before or not reads_partitions_once(frame)
        operators[self._operator_uid] = evolve(operators[self._operator_uid], is_kept=is_kept)


def _prepare_operator(
    frame: DataFrame, node: KeyedProcessNode, parallelism: int, max_parallelism: int
) -> PreparedOperator:
    reserved = [name for name in frame.columns if name.startswith("__statebackend_")]
    if reserved:
        raise JobDefinitionError(f"operator {node.uid!r}: the column names {', '.join(reserved)} are reserved")
    _check_names_are_distinct(frame, node.uid)
    row_columns = tuple(frame.columns)
    keys = [_key_column(key, index, row_columns, node.uid) for index, key in enumerate(node.keys)]
    types = [field.dataType.simpleString() for field in _selected(frame, keys, node.uid, "key_by").fields]
    order_by = tuple(_order_column(column, row_columns, node.uid) for column in node.order_by)
    # Unknown columns in order_by are found before anything runs.
    _selected(frame, order_by, node.uid, "order_by")
    try:
        function_pickle: bytes = cloudpickle.dumps(node.function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise JobDefinitionError(
            f"operator {node.uid!r}: the function cannot be sent to the workers ({type(error).__name__}: {error}); "
            f"make connections and the like in open(), not in __init__"
        ) from error
    if node.schema is None:
        raise JobDefinitionError(
            f"operator {node.uid!r}: pass process(..., schema='name type, ...'), the schema of what it emits"
        )
    output_type = _nullable(_struct_type(node.schema, node.uid))
    states = registered_states(cloudpickle.loads(function_pickle), node.uid, parallelism)
    key_columns = tuple(
        key if isinstance(key, str) and key in row_columns else f"{KEY_COLUMN_PREFIX}{index}"
        for index, key in enumerate(node.keys)
    )
    return PreparedOperator(
        node,
        function_pickle,
        key_serializer_for(types, node.uid),
        key_columns,
        row_columns,
        output_type,
        to_arrow_schema(output_type),
        states,
        _operator_columns(keys, order_by, key_columns, row_columns, output_type, parallelism, max_parallelism),
        False,
    )


def _operator_columns(
    keys: Sequence[Column],
    order_by: tuple[Column, ...],
    key_columns: Sequence[str],
    row_columns: Sequence[str],
    output_type: StructType,
    parallelism: int,
    max_parallelism: int,
) -> OperatorColumns:
    expression_keys = {name: key for key, name in zip(keys, key_columns, strict=True) if name not in row_columns}
    acknowledgement = F.col(ACKNOWLEDGEMENT_COLUMN)
    return OperatorColumns(
        expression_keys,
        F.pmod(F.xxhash64(*map(column_named, key_columns)), F.lit(max_parallelism)).cast("int"),
        F.expr(f"cast({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism} as int)"),
        order_by,
        tuple(map(column_named, (*row_columns, *expression_keys, KEY_GROUP_COLUMN))),
        StructType([*output_type.fields, StructField(ACKNOWLEDGEMENT_COLUMN, BinaryType(), True)]),
        acknowledgement.isNull(),
        F.collect_list(acknowledgement).alias("acknowledgements"),
    )


def _processed(frame: DataFrame, operator: PreparedOperator, task: EpochTask, placement: SubtaskPlacement) -> DataFrame:
    """What the tasks of an operator give out: rows, and an acknowledgement from each."""
    columns = operator.columns
    if columns.expression_keys:
        frame = frame.withColumns(dict(columns.expression_keys))
    routed = frame.withColumn(KEY_GROUP_COLUMN, columns.key_group)
    routed = placement.route(routed, columns.subtask)
    if columns.order_by:
        routed = routed.sortWithinPartitions(*columns.order_by)
    return map_in_arrow(routed, task.run, columns.with_acknowledgement, columns.arrow_input)


def _run_and_keep(frame: DataFrame) -> Sequence[bytes]:
    """Computes all partitions of a persisted frame; returns the acknowledgements, which are kept beside the rows."""
    acknowledgement = F.col(ACKNOWLEDGEMENT_COLUMN)
    return [bytes(row[0]) for row in frame.where(acknowledgement.isNotNull()).select(acknowledgement).collect()]


def _selected(frame: DataFrame, columns: Sequence[Any], uid: str, given_to: str) -> StructType:
    """The types of columns of a frame; asking for them has Spark analyse the expressions."""
    try:
        return frame.select(*columns).schema
    except AnalysisException as error:
        raise JobDefinitionError(
            f"operator {uid!r}: {given_to} does not fit the operator's input, which has the columns "
            f"{', '.join(frame.columns)}: {str(error).splitlines()[0]}"
        ) from error


def _check_names_are_distinct(frame: DataFrame, uid: str) -> None:
    is_case_sensitive = (frame.sparkSession.conf.get("spark.sql.caseSensitive", "false") or "").lower() == "true"
    names = frame.columns if is_case_sensitive else [name.lower() for name in frame.columns]
    if len(set(names)) != len(names):
        raise JobDefinitionError(
            f"operator {uid!r}: two of its input columns have the same name ({', '.join(frame.columns)})"
        )


def _key_column(key: Any, index: int, columns: Sequence[str], uid: str) -> Column:
    column = column_meant_by(key, columns) if isinstance(key, str) else key
    if not isinstance(column, Column):
        raise JobDefinitionError(
            f"operator {uid!r}: key_by takes column names or expressions, not {type(key).__name__}"
        )
    return column if isinstance(key, str) else column.alias(f"{KEY_COLUMN_PREFIX}{index}")


def _order_column(given: Any, columns: Sequence[str], uid: str) -> Column:
    column = column_meant_by(given, columns) if isinstance(given, str) else given
    if not isinstance(column, Column):
        raise JobDefinitionError(
            f"operator {uid!r}: order_by takes column names or expressions, not {type(given).__name__}"
        )
    return column


def _struct_type(schema: Any, uid: str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        parsed = StructType.fromDDL(schema)
        return parsed if isinstance(parsed, StructType) else StructType([StructField("value", parsed)])
    raise JobDefinitionError(f"operator {uid!r}: schema must be DDL or a StructType, not {type(schema).__name__}")


def _nullable(schema: StructType) -> StructType:
    # The acknowledgement row is null in every column of the user's.
    return StructType([StructField(field.name, field.dataType, True, field.metadata) for field in schema.fields])
