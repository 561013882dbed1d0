"""The part of an epoch's plan that is one keyed operator, checked once and built for every epoch.

It is: compute the key group of each row, send the row to the partition that owns the group, sort if asked to, and run
the subtask over the partition. Rows that may be before the watermark of the epoch are sorted to the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from streamjobs.api.key_types import key_serializer_for
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.stream_graph import OperatorNode
from streamjobs.errors import JobDefinitionError
from streamjobs.rows.declared_schema import (
    OF_OUTPUT_TAG,
    OF_PROCESS,
    DeclaredSchema,
    check_not_reserved,
    missing_schema,
    output_schema,
    place_of_output,
    unknown_column,
)
from streamjobs.runtime.state_registration import RegisteredStates, registered_states
from streamjobs.spark.named_columns import column_meant_by, column_named
from streamjobs.spark.plans.hidden_time import TimeOfOperator
from streamjobs.spark.plans.initial_state import with_initial_rows
from streamjobs.spark.plans.map_in_arrow import ArrowMap
from streamjobs.spark.plans.placement import SubtaskPlacement
from streamjobs.spark.tasks.arrow_input import KEY_COLUMN_PREFIX, KEY_GROUP_COLUMN, InputColumns
from streamjobs.spark.tasks.epoch_task import EpochTask
from streamjobs.spark.tasks.output_rows import OutputLayout
from streamjobs.spark.tasks.time_column import EARLY_FIELD, TIME_COLUMN
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class OperatorColumns:
    """The expressions of an operator's plan. They are unresolved, so they are made once and serve every epoch."""

    expression_keys: Mapping[str, Column]
    key_group: Column
    subtask: Column
    order_by: tuple[Column, ...]
    arrow_map: ArrowMap


@frozen
class PreparedOperator:
    """A keyed operator whose types are known and whose state has been asked for."""

    node: OperatorNode
    function_pickle: bytes
    key_serializer: TypeSerializer[Any]
    input_columns: InputColumns
    layout: OutputLayout
    states: RegisteredStates
    columns: OperatorColumns
    is_kept: bool = False
    """Whether its rows are computed and kept, since what is behind may read them more or less than once."""

    @property
    def uid(self) -> str:
        """The uid of the operator."""
        return self.node.uid


def prepare_operator(
    frame: DataFrame,
    node: OperatorNode,
    tags: Iterable[OutputTag[Any]],
    time: TimeOfOperator,
    parallelism: int,
    max_parallelism: int,
) -> PreparedOperator:
    """Checks an operator over an input without rows, and collects its state; ``tags`` are the side outputs read.

    Raises `JobDefinitionError` for what cannot run.
    """
    read = node.sole_input
    if time.is_in_input:
        frame = frame.drop(TIME_COLUMN)
    check_not_reserved(frame.columns, node.uid)
    _check_names_are_distinct(frame, node.uid)
    row_columns = tuple(frame.columns)
    keys = [_key_column(key, index, row_columns, node.uid) for index, key in enumerate(read.keys)]
    types = [field.dataType.simpleString() for field in _selected(frame, keys, node.uid, "key_by", read.keys).fields]
    order_by = tuple(_order_column(column, row_columns, node.uid) for column in read.order_by)
    # Unknown columns in order_by are found before anything runs.
    _selected(frame, order_by, node.uid, "order_by", read.order_by)
    function = with_initial_rows(node.function, types, max_parallelism, node.uid)
    try:
        function_pickle: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise JobDefinitionError(
            f"operator {node.uid!r}: the function cannot be sent to the workers ({type(error).__name__}: {error}); "
            f"make connections and the like in open(), not in __init__"
        ) from error
    if node.schema is None:
        raise missing_schema(f"operator {node.uid!r}", OF_PROCESS)
    output_type = _nullable(_struct_type(node.schema, f"operator {node.uid!r}"))
    side_types: dict[OutputTag[Any], StructType] = {}
    for tag in tags:
        where = place_of_output(node.uid, tag.name)
        if tag.schema is None:
            raise missing_schema(where, OF_OUTPUT_TAG)
        side_types[tag] = _nullable(_struct_type(tag.schema, where))
    states = registered_states(cloudpickle.loads(function_pickle), node.uid, parallelism, (_known_schema(frame),))
    key_columns = tuple(
        key if isinstance(key, str) and key in row_columns else f"{KEY_COLUMN_PREFIX}{index}"
        for index, key in enumerate(read.keys)
    )
    if time.may_be_early:
        order_by = (F.col(TIME_COLUMN)[EARLY_FIELD].desc(), *order_by)
    layout = OutputLayout(output_type, side_types, has_time=time.is_in_output)
    time_columns = (TIME_COLUMN,) if time.is_in_input else ()
    arrow_map = ArrowMap(
        frame.sparkSession,
        layout.schema,
        tuple(map(column_named, dict.fromkeys((*row_columns, *key_columns, KEY_GROUP_COLUMN, *time_columns)))),
    )
    columns = _operator_columns(keys, order_by, key_columns, row_columns, parallelism, max_parallelism, arrow_map)
    return PreparedOperator(
        node,
        function_pickle,
        key_serializer_for(types, node.uid),
        InputColumns(row_columns, key_columns, time.is_in_input),
        layout,
        states,
        columns,
    )


def _known_schema(frame: DataFrame) -> DeclaredSchema | None:
    """The schema of rows of a frame; None if a column has a type that only Spark knows."""
    try:
        return output_schema(frame.schema, "", "")
    except JobDefinitionError:
        return None


def _operator_columns(
    keys: Sequence[Column],
    order_by: tuple[Column, ...],
    key_columns: Sequence[str],
    row_columns: Sequence[str],
    parallelism: int,
    max_parallelism: int,
    arrow_map: ArrowMap,
) -> OperatorColumns:
    expression_keys = {name: key for key, name in zip(keys, key_columns, strict=True) if name not in row_columns}
    return OperatorColumns(
        expression_keys,
        F.pmod(F.xxhash64(*map(column_named, key_columns)), F.lit(max_parallelism)).cast("int"),
        F.expr(f"cast({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism} as int)"),
        order_by,
        arrow_map,
    )


def processed(frame: DataFrame, operator: PreparedOperator, task: EpochTask, placement: SubtaskPlacement) -> DataFrame:
    """The rows that the tasks of an operator give out."""
    columns = operator.columns
    if columns.expression_keys:
        frame = frame.withColumns(dict(columns.expression_keys))
    routed = frame.withColumn(KEY_GROUP_COLUMN, columns.key_group)
    routed = placement.route(routed, columns.subtask)
    if columns.order_by:
        routed = routed.sortWithinPartitions(*columns.order_by)
    return columns.arrow_map.apply(routed, task.run)


def _selected(frame: DataFrame, columns: Sequence[Any], uid: str, given_to: str, given: Sequence[Any]) -> StructType:
    """The types of columns of a frame, ``given`` by the program; asking for them has Spark analyse the expressions."""
    try:
        return frame.select(*columns).schema
    except AnalysisException as error:
        unknown = next((name for name in given if isinstance(name, str) and not _is_column(frame, name)), None)
        if unknown is not None:
            raise unknown_column(uid, given_to, unknown, frame.columns) from error
        raise JobDefinitionError(
            f"operator {uid!r}: {given_to} does not fit the operator's input, which has the columns "
            f"{', '.join(frame.columns)}: {str(error).splitlines()[0]}"
        ) from error


def _is_column(frame: DataFrame, name: str) -> bool:
    """Whether a name means a column of the frame, or a field of one."""
    try:
        return bool(frame.select(column_meant_by(name, frame.columns)).schema.names)
    except AnalysisException:
        return False


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


def _struct_type(schema: Any, where: str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        parsed = StructType.fromDDL(schema)
        return parsed if isinstance(parsed, StructType) else StructType([StructField("value", parsed)])
    raise JobDefinitionError(f"{where}: schema must be DDL or a StructType, not {type(schema).__name__}")


def _nullable(schema: StructType) -> StructType:
    # Spark takes what is declared for granted, and what a function gives out is not known to keep to it.
    return StructType([StructField(field.name, field.dataType, True, field.metadata) for field in schema.fields])
