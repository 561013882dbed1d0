"""The part of an epoch's plan that is one keyed operator, checked once and built for every epoch.

It is: compute the subtask of each row, from its key group or a copy for each, send the row to the partition of that
subtask, sort if asked to, and run the subtask over the partition. Rows that may be before the watermark of the epoch
are sorted to the front. Several inputs are one frame by then, see `input_union`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from streamjobs.api.key_types import check_keys_agree, key_serializer_for
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.stream_graph import OperatorNode
from streamjobs.errors import JobDefinitionError
from streamjobs.rows.declared_schema import (
    OF_OUTPUT_TAG,
    OF_PROCESS,
    check_columns,
    missing_schema,
    parsed_schema,
    place_of_output,
    unreadable_schema,
)
from streamjobs.runtime.state_registration import RegisteredStates, registered_states
from streamjobs.spark.plans.hidden_time import TimeOfOperator
from streamjobs.spark.plans.initial_state import with_initial_rows
from streamjobs.spark.plans.input_union import InputUnion, OneInput
from streamjobs.spark.plans.map_in_arrow import ArrowMap
from streamjobs.spark.plans.operator_input import is_case_sensitive, prepare_input
from streamjobs.spark.plans.placement import SubtaskPlacement
from streamjobs.spark.tasks.arrow_input import InputColumns
from streamjobs.spark.tasks.epoch_task import EpochTask
from streamjobs.spark.tasks.output_rows import OutputLayout
from streamjobs.spark.tasks.program_pickles import pickled, unpickled
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class PreparedOperator:
    """A keyed operator whose types are known and whose state has been asked for."""

    node: OperatorNode
    function_pickle: bytes
    key_serializer: TypeSerializer[Any]
    inputs: tuple[InputColumns, ...]
    layout: OutputLayout
    states: RegisteredStates
    rows: OneInput | InputUnion
    arrow_map: ArrowMap
    task_schema: StructType
    """Of the rows that its tasks are given."""
    is_kept: bool = False
    """Whether its rows are computed and kept, since what is behind may read them more or less than once."""

    @property
    def uid(self) -> str:
        """The uid of the operator."""
        return self.node.uid


def prepare_operator(
    frames: Sequence[DataFrame],
    node: OperatorNode,
    tags: Iterable[OutputTag[Any]],
    times: Sequence[TimeOfOperator],
    parallelism: int,
    max_parallelism: int,
    *,
    emits_time: bool,
) -> PreparedOperator:
    """Checks an operator over inputs without rows, and collects its state; ``tags`` are the side outputs read.

    Raises `JobDefinitionError` for what cannot run.
    """
    uid = node.uid
    inputs = tuple(
        prepare_input(frame, given, uid, time, parallelism, max_parallelism)
        for frame, given, time in zip(frames, node.operator_inputs, times, strict=True)
    )
    types_of_inputs = {index: one.key_types for index, one in enumerate(inputs) if one.key_types is not None}
    check_keys_agree(uid, types_of_inputs)
    types = types_of_inputs[min(types_of_inputs)] if types_of_inputs else ()
    function = with_initial_rows(node.function, types, max_parallelism, uid)
    try:
        function_pickle = pickled(function)
    except Exception as error:
        raise JobDefinitionError(
            f"operator {uid!r}: the function cannot be sent to the workers ({type(error).__name__}: {error}); "
            f"make connections and the like in setup(), not in __init__"
        ) from error
    if node.schema is None:
        raise missing_schema(f"operator {uid!r}", OF_PROCESS)
    output_type = _output_type(frames[0], node.schema, f"operator {uid!r}")
    side_types: dict[OutputTag[Any], StructType] = {}
    for tag in tags:
        where = place_of_output(uid, tag.name)
        if tag.schema is None:
            raise missing_schema(where, OF_OUTPUT_TAG)
        side_types[tag] = _output_type(frames[0], tag.schema, where)
    states = registered_states(unpickled(function_pickle), uid, parallelism, [one.schema for one in inputs])
    layout = OutputLayout(output_type, side_types, has_time=emits_time)
    rows = OneInput(inputs[0]) if len(inputs) == 1 else InputUnion(inputs, frames, node.input_order)
    arrow_map = ArrowMap(frames[0].sparkSession, layout.schema, rows.task_columns)
    return PreparedOperator(
        node,
        function_pickle,
        key_serializer_for(types, uid),
        tuple(one.columns for one in inputs),
        layout,
        states,
        rows,
        arrow_map,
        rows.of(frames).select(*rows.task_columns).schema,
    )


def processed(
    frames: Sequence[DataFrame], operator: PreparedOperator, task: EpochTask, placement: SubtaskPlacement
) -> DataFrame:
    """The rows that the tasks of an operator give out, over the frames of its inputs."""
    rows = operator.rows
    routed = placement.route(rows.of(frames), rows.subtask)
    if rows.order is not None:
        routed = rows.order.sorted_within_partitions(routed)
    return operator.arrow_map.apply(routed, task.run)


def processed_without_rows(
    spark: SparkSession, operator: PreparedOperator, task: EpochTask, placement: SubtaskPlacement
) -> DataFrame:
    """The rows that the tasks of an operator give out, where none come to them."""
    return operator.arrow_map.apply(placement.without_rows(spark, operator.uid, operator.task_schema), task.run)


def _output_type(frame: DataFrame, schema: Any, where: str) -> StructType:
    declared = _struct_type(schema, where)
    text = schema if isinstance(schema, str) else declared.simpleString()
    check_columns(declared.names, text, where, is_case_sensitive=is_case_sensitive(frame.sparkSession))
    # Spark takes what is declared for granted, and what a function gives out is not known to keep to it.
    return StructType([StructField(field.name, field.dataType, True, field.metadata) for field in declared.fields])


def _struct_type(schema: Any, where: str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        try:
            parsed = StructType.fromDDL(schema)
        except AnalysisException as error:
            raise _unreadable(schema, where, error) from error
        return parsed if isinstance(parsed, StructType) else StructType([StructField("value", parsed)])
    raise JobDefinitionError(f"{where}: schema must be DDL or a StructType, not {type(schema).__name__}")


def _unreadable(schema: str, where: str, error: AnalysisException) -> JobDefinitionError:
    """In the words of the other runtime, where that cannot read it either."""
    try:
        parsed_schema(schema, where)
    except JobDefinitionError as refused:
        return refused
    return unreadable_schema(schema, where, " ".join(str(error).split("== SQL ==")[0].split()))
