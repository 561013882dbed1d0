"""From the graph of a job to Spark plans: checked once on the driver, built anew for every epoch.

For every keyed operator an epoch's plan is: compute the key group of each row, send the row to the partition that owns
the group, sort if asked to, and run the subtask over the partition. What comes out passes an observation that collects
the acknowledgements, loses them, and flows on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from attrs import frozen
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructField, StructType

from streamjobs.errors import JobDefinitionError
from streamjobs.key_types import key_serializer_for
from streamjobs.sinks import Sink
from streamjobs.spark.arrow_rows import to_arrow_schema
from streamjobs.spark.map_in_arrow import map_in_arrow
from streamjobs.spark.named_columns import column_meant_by, column_named
from streamjobs.spark.subtask import ACKNOWLEDGEMENT_COLUMN, KEY_COLUMN_PREFIX, KEY_GROUP_COLUMN, SubtaskTask
from streamjobs.state_registration import RegisteredStates, registered_states
from streamjobs.stream_graph import KeyedProcessNode, Node, SourceNode, TransformNode
from typeserializers.type_serializer import TypeSerializer


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

    def build(
        self, frame: DataFrame, tasks: Mapping[str, SubtaskTask]
    ) -> tuple[DataFrame, Mapping[str, Observation]]:
        """The plan of one epoch over the frame of its micro-batch, and the observation of each operator."""
        observations: dict[str, Observation] = {}
        for node in self.nodes:
            if isinstance(node, TransformNode):
                frame = node.function(frame)
            elif isinstance(node, KeyedProcessNode):
                task = tasks[node.uid]
                observations[node.uid] = Observation(f"statebackend-{node.uid}-{task.epoch_id}")
                frame = _operator_plan(frame, self.operators[node.uid], task, observations[node.uid])
        return frame, observations


def prepare_pipeline(
    spark: SparkSession, nodes: Sequence[Node], parallelism: int, max_parallelism: int
) -> Pipeline:
    """Checks types and collects the state of every operator; raises `JobDefinitionError` for what cannot run."""
    first, *_, last = nodes
    assert isinstance(first, SourceNode)
    operators: dict[str, PreparedOperator] = {}
    frame = spark.createDataFrame([], first.source.schema)
    for node in nodes:
        if isinstance(node, TransformNode):
            frame = node.function(frame)
            if not isinstance(frame, DataFrame):
                raise JobDefinitionError(f"transform() must return a DataFrame, not {type(frame).__name__}")
        elif isinstance(node, KeyedProcessNode):
            prepared = _prepare_operator(frame, node, parallelism, max_parallelism)
            operators[node.uid] = prepared
            frame = spark.createDataFrame([], prepared.output_type)
    sink = getattr(last, "sink", None)
    if not isinstance(sink, Sink):
        raise JobDefinitionError(
            f"sink_to was given {sink!r:.80}, which is no sink: use ParquetSink(path), NoopSink(), MemorySink(), "
            f"ForEachEpochSink(function), or a class of your own with stage, commit, abort and recover"
        )
    return Pipeline(tuple(nodes), operators, first.source, sink)


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
    expression_keys = {
        name: key for key, name in zip(keys, key_columns, strict=True) if name not in row_columns
    }
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


def _operator_plan(
    frame: DataFrame, operator: PreparedOperator, task: SubtaskTask, observation: Observation
) -> DataFrame:
    columns = operator.columns
    if columns.expression_keys:
        frame = frame.withColumns(dict(columns.expression_keys))
    routed = frame.withColumn(KEY_GROUP_COLUMN, columns.key_group)
    routed = routed.repartitionById(task.parallelism, columns.subtask)
    if columns.order_by:
        routed = routed.sortWithinPartitions(*columns.order_by)

    def run_subtask(batches: Any) -> Any:
        return task.run(batches)

    processed = map_in_arrow(routed, run_subtask, columns.with_acknowledgement, columns.arrow_input)
    observed = processed.observe(observation, columns.acknowledgements)
    return observed.where(columns.is_data).drop(ACKNOWLEDGEMENT_COLUMN)


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
