"""The plan of one operator, checked once and built for every epoch.

The plan computes the subtask of each row, sends the row to the partition of that subtask, sorts if necessary, and runs
the subtask over the partition. Rows that may be before the watermark of the epoch are sorted to the front.

* A keyed row goes to the subtask that owns its key group. A row of an input without keys goes to any, by its hash.
* A row of a broadcast input becomes one copy per subtask. Each subtask sorts its copies by their position in the input,
  so all receive the same rows in the same order.
* Several inputs are a union of tagged structs, so that one shuffle serves all of them:

      __statebackend_input   __statebackend_subtask   __statebackend_input_0      __statebackend_input_1
      0                      2                        the row of the first        null
      1                      2                        null                        that of the second

  Its rows are sorted by: early first; then input, broadcast inputs first; then the order of each input. The columns to
  sort by are not sent to the tasks.

The initial rows of a stateful processor are collected when the job is prepared, and sent to the workers with the
function. They should be small; larger data is read as a stream first. The tasks decide whether to use them, because
only state shows whether it is new.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from attrs import evolve, field, frozen
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import Column, DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType

from statebackend.spark.columns import (
    AddedColumns,
    SelectedColumns,
    check_are_in_python,
    column_meant_by,
    column_named,
    only_on_spark,
    struct_type_of,
    to_arrow_schema,
)
from statebackend.spark.plans.event_time_column import TimeOfOperator
from statebackend.spark.plans.map_in_arrow import ArrowMap
from statebackend.spark.plans.placement import SubtaskPlacement
from statebackend.spark.plans.record_steps import PreparedStep, kind_of_records, prepare_key_functions
from statebackend.spark.tasks.arrow_rows import (
    EARLY_FIELD,
    INPUT_COLUMN,
    KEY_COLUMN_PREFIX,
    KEY_GROUP_COLUMN,
    SUBTASK_COLUMN,
    TIME_COLUMN,
    TIME_TYPE,
    InputColumns,
    OutputLayout,
    row_column_of_input,
)
from statebackend.spark.tasks.epoch_task import EpochTask, InitialRows
from statebackend.spark.tasks.program_pickles import pickled, unpickled
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.key_types import check_keys_agree, key_serializer_for
from statebackend.streaming.operators.aggregate import resolved_node
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import (
    OF_OUTPUT_TAG,
    OF_PROCESS,
    DeclaredSchema,
    check_columns,
    check_not_reserved,
    missing_schema,
    parsed_schema,
    place_of_output,
    unknown_column,
    unreadable_schema,
)
from statebackend.streaming.rows.record_schema import RecordType, output_schema
from statebackend.streaming.runtime.state_registration import RegisteredStates, registered_states
from statebackend.streaming.stateful_processor import StatefulProcessorFunction
from statebackend.streaming.stream_graph import (
    BroadcastInput,
    KeyedInput,
    KeyFunction,
    OperatorInput,
    OperatorNode,
    SpreadInput,
)
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "PLACE_COLUMN",
    "InputUnion",
    "OneInput",
    "PreparedInput",
    "is_case_sensitive",
    "prepare_input",
    "with_initial_rows",
]


_ROWS: Final = "__statebackend_rows"


def with_initial_rows(function: Any, key_types: Sequence[str], max_parallelism: int, uid: str) -> Any:
    """Return the function with its initial state, a grouped DataFrame, replaced by the rows.

    Raises `JobDefinitionError` for an initial state that does not fit keys of these types.
    """
    if not isinstance(function, StatefulProcessorFunction) or function.initial_state is None:
        return function
    where = f"operator {uid!r}: initial_state"
    grouped = function.initial_state
    if not isinstance(grouped, GroupedData):
        raise JobDefinitionError(f"{where} must be a grouped batch DataFrame: frame.groupBy('key')")
    # Grouped data does not expose its frame, but aggregates it.
    lists = grouped.agg(F.collect_list(F.struct("*")).alias(_ROWS))
    if lists.isStreaming:
        raise JobDefinitionError(f"{where} is read once, so it cannot be a streaming DataFrame")
    keys, frame = lists.columns[:-1], lists.select(F.inline(_ROWS))
    if not set(keys) <= set(frame.columns):
        raise JobDefinitionError(f"{where} is grouped by an expression; add it as a column, and group by that")
    types = [frame.select(column_named(key)).schema[0].dataType.simpleString() for key in keys]
    if types != list(key_types):
        raise JobDefinitionError(
            f"{where} is grouped by columns of the types {', '.join(types)}, and the stream by {', '.join(key_types)}: "
            f"cast them alike"
        )
    group = F.pmod(F.xxhash64(*map(column_named, keys)), F.lit(max_parallelism)).cast("int")
    table = frame.withColumn(KEY_GROUP_COLUMN, group).toArrow()
    rows = InitialRows(table, InputColumns(tuple(frame.columns), tuple(keys)), max_parallelism, uid)
    return evolve(function, initial_state=rows)


PLACE_COLUMN: Final = "__statebackend_place"
"""The position of a row of a broadcast input in its epoch."""


@frozen
class PreparedInput:
    """A checked input. Its expressions are unresolved, so they are created once and used in every epoch.

    ``steps`` are the columns that are added to its rows, in groups that do not depend on each other. ``key_types`` is
    None for an input without keys.
    """

    columns: InputColumns
    schema: DeclaredSchema | None
    key_types: tuple[str, ...] | None
    order_by: tuple[Column, ...]
    may_be_early: bool
    steps: tuple[Mapping[str, Column], ...]
    subtask: Column
    is_in_time_order: bool = False
    """Whether its rows are sorted by event time first."""
    key_step: PreparedStep | None = None
    """Computes the key columns that are functions of a record."""
    _added: tuple[AddedColumns, ...] = field(init=False)

    @_added.default
    def _columns_of_steps(self) -> tuple[AddedColumns, ...]:
        return tuple(map(AddedColumns, self.steps))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that a task gets."""
        hidden = (*([] if self.key_types is None else [KEY_GROUP_COLUMN]), *([TIME_COLUMN] * self.columns.has_time))
        return tuple(dict.fromkeys((*self.columns.record, *self.columns.key, *hidden)))

    def rows(self, frame: DataFrame) -> DataFrame:
        """The rows with the columns that route them to their subtasks."""
        if self.key_step is not None:
            frame = self.key_step.over(frame)
        for columns in self._added:
            frame = columns.over(frame)
        return frame


def prepare_input(
    frame: DataFrame, given: OperatorInput, uid: str, time: TimeOfOperator, parallelism: int, max_parallelism: int
) -> PreparedInput:
    """Check an input over a frame without rows. Raises `JobDefinitionError` for an invalid input."""
    if time.is_in_input:
        frame = frame.drop(TIME_COLUMN)
    check_not_reserved(frame.columns, uid)
    _check_names_are_distinct(frame, uid)
    check_are_in_python(frame.schema, f"operator {uid!r}")
    prepared = _PREPARERS[type(given)](frame, given, uid, time, parallelism, max_parallelism)
    # Unknown columns in order_by are found before anything runs.
    _selected(frame, prepared.order_by, uid, "order_by", given.order_by)
    return prepared


def _keyed(
    frame: DataFrame, given: KeyedInput, uid: str, time: TimeOfOperator, parallelism: int, max_parallelism: int
) -> PreparedInput:
    row_columns = tuple(frame.columns)
    functions = {
        f"{KEY_COLUMN_PREFIX}{index}": key for index, key in enumerate(given.keys) if isinstance(key, KeyFunction)
    }
    kind = kind_of_records(given.edge)
    key_step, keyed = None, frame
    if functions:
        timed = frame.withColumn(TIME_COLUMN, F.lit(None).cast(TIME_TYPE)) if time.is_in_input else frame
        key_step = prepare_key_functions(timed, functions, kind, uid)
        keyed = key_step.over(timed)
    keys = [_key_column(key, index, row_columns, uid) for index, key in enumerate(given.keys)]
    types = tuple(field.dataType.simpleString() for field in _selected(keyed, keys, uid, "key_by", given.keys).fields)
    key_columns = tuple(
        key if isinstance(key, str) and key in row_columns else f"{KEY_COLUMN_PREFIX}{index}"
        for index, key in enumerate(given.keys)
    )
    expressions = {
        name: key
        for key, name in zip(keys, key_columns, strict=True)
        if name not in row_columns and name not in functions
    }
    key_group = F.pmod(F.xxhash64(*map(column_named, key_columns)), F.lit(max_parallelism)).cast("int")
    return PreparedInput(
        InputColumns(row_columns, key_columns, time.is_in_input, kind),
        _known_schema(frame, kind),
        types,
        _order_columns(given.order_by, row_columns, uid),
        time.may_be_early,
        (*([expressions] if expressions else []), {KEY_GROUP_COLUMN: key_group}),
        F.expr(f"cast({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism} as int)"),
        given.is_in_time_order and time.is_in_input,
        key_step,
    )


def _spread(
    frame: DataFrame, given: SpreadInput, uid: str, time: TimeOfOperator, parallelism: int, max_parallelism: int
) -> PreparedInput:
    # The values of a row determine its subtask, so a recomputed row has the same one. Maps have no hash.
    hashed = [name for name, data_type in frame.dtypes if not re.search(r"\b(map<|variant)", data_type)]
    subtask = F.pmod(F.xxhash64(*map(column_named, hashed)) if hashed else F.lit(0), F.lit(parallelism)).cast("int")
    return _keyless(frame, given, uid, time, ({SUBTASK_COLUMN: subtask},))


def _broadcast(
    frame: DataFrame, given: BroadcastInput, uid: str, time: TimeOfOperator, parallelism: int, max_parallelism: int
) -> PreparedInput:
    copies = F.explode(F.sequence(F.lit(0), F.lit(parallelism - 1)))
    steps = ({PLACE_COLUMN: F.monotonically_increasing_id()}, {SUBTASK_COLUMN: copies})
    return _keyless(frame, given, uid, time, steps)


def _keyless(
    frame: DataFrame,
    given: SpreadInput | BroadcastInput,
    uid: str,
    time: TimeOfOperator,
    steps: tuple[Mapping[str, Column], ...],
) -> PreparedInput:
    row_columns, kind = tuple(frame.columns), kind_of_records(given.edge)
    return PreparedInput(
        InputColumns(row_columns, (), time.is_in_input, kind),
        _known_schema(frame, kind),
        None,
        _order_columns(given.order_by, row_columns, uid),
        time.may_be_early,
        steps,
        F.col(SUBTASK_COLUMN),
    )


_PREPARERS: Final[Mapping[type, Callable[..., PreparedInput]]] = {
    KeyedInput: _keyed,
    SpreadInput: _spread,
    BroadcastInput: _broadcast,
}


def _known_schema(frame: DataFrame, kind: RecordType | None) -> DeclaredSchema | None:
    """The schema of the records of a frame; None if a column has a type that only Spark knows."""
    try:
        return evolve(
            output_schema(frame.schema, "", ""), record_class=None if kind is None else kind.record_class, row_base=Row
        )
    except JobDefinitionError:
        return None


def _selected(frame: DataFrame, columns: Sequence[Any], uid: str, given_to: str, given: Sequence[Any]) -> StructType:
    """The types of columns that the program has ``given``; Spark analyses the expressions for it."""
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
    """Whether a name is a column of the frame, or a field of one."""
    try:
        return bool(frame.select(column_meant_by(name, frame.columns)).schema.names)
    except AnalysisException:
        return False


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether column names that differ only in case are different columns."""
    return (spark.conf.get("spark.sql.caseSensitive", "false") or "").lower() == "true"


def _check_names_are_distinct(frame: DataFrame, uid: str) -> None:
    names = frame.columns if is_case_sensitive(frame.sparkSession) else [name.lower() for name in frame.columns]
    if len(set(names)) != len(names):
        raise JobDefinitionError(
            f"operator {uid!r}: two of its input columns have the same name ({', '.join(frame.columns)})"
        )


def _key_column(key: Any, index: int, columns: Sequence[str], uid: str) -> Column:
    if isinstance(key, KeyFunction):
        return column_named(f"{KEY_COLUMN_PREFIX}{index}")
    column = column_meant_by(key, columns) if isinstance(key, str) else key
    if not isinstance(column, Column):
        raise JobDefinitionError(
            f"operator {uid!r}: key_by takes column names, functions or expressions, not {type(key).__name__}"
        )
    return column if isinstance(key, str) else column.alias(f"{KEY_COLUMN_PREFIX}{index}")


def _order_columns(given: Sequence[Any], columns: Sequence[str], uid: str) -> tuple[Column, ...]:
    return tuple(_order_column(one, columns, uid) for one in given)


def _order_column(given: Any, columns: Sequence[str], uid: str) -> Column:
    column = column_meant_by(given, columns) if isinstance(given, str) else given
    if not isinstance(column, Column):
        raise JobDefinitionError(
            f"operator {uid!r}: order_by takes column names or expressions, not {type(given).__name__}"
        )
    return column


_EARLY_COLUMN: Final = "__statebackend_early"
_ORDER_COLUMN_PREFIX: Final = "__statebackend_order_"


class OneInput:
    """The rows of the only input."""

    def __init__(self, one: PreparedInput) -> None:
        self._one = one
        self.subtask = one.subtask
        times = F.col(TIME_COLUMN)
        order = [
            *([times[EARLY_FIELD].desc()] if one.may_be_early else []),
            *([times["timestamp"]] if one.is_in_time_order else []),
            *one.order_by,
        ]
        self.order = SelectedColumns(order) if order else None
        """The sort order of the rows of a task; None to leave them unsorted."""
        # By the key group, or else the subtask, a task checks that the rows are its own.
        added = [SUBTASK_COLUMN] if one.key_types is None else []
        self.task_columns = tuple(map(column_named, (*one.names, *added)))

    def of(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The rows of the frame of the input."""
        return self._one.rows(frames[0])


@frozen
class _OrderColumn:
    """A sort column of one input in the union."""

    name: str
    input_index: int
    value: Column
    data_type: DataType
    in_order: Callable[[Column], Column]


class InputUnion:
    """The union of the rows of several inputs. Its expressions are used in every epoch.

    ``input_order`` has the indices of the inputs in the order in which a task processes their rows.
    """

    def __init__(
        self, inputs: Sequence[PreparedInput], frames: Sequence[DataFrame], input_order: Sequence[int]
    ) -> None:
        self._inputs = tuple(inputs)
        places = [F.lit(input_order.index(index)) for index in range(len(inputs))]
        self._has_early = any(one.may_be_early for one in inputs)
        rows = [one.rows(frame) for one, frame in zip(inputs, frames, strict=True)]
        self._orders = [
            _union_order_column(index, position, column, rows[index])
            for index, one in enumerate(inputs)
            for position, column in enumerate(one.order_by)
        ]
        structs = [F.struct(*map(column_named, one.names)) for one in inputs]
        types = [frame.select(struct).schema.fields[0].dataType for frame, struct in zip(rows, structs, strict=True)]
        self._columns = [
            SelectedColumns(self._tagged_columns(index, structs[index], types)) for index in range(len(inputs))
        ]
        self.subtask = F.col(SUBTASK_COLUMN)
        self.order = SelectedColumns(
            [
                *([F.col(_EARLY_COLUMN).desc()] if self._has_early else []),
                F.array(*places)[F.col(INPUT_COLUMN)],
                *(one.in_order(F.col(one.name)) for one in self._orders),
                F.col(PLACE_COLUMN),
            ]
        )
        names = [INPUT_COLUMN, SUBTASK_COLUMN, *map(row_column_of_input, range(len(inputs)))]
        self.task_columns = tuple(map(F.col, names))

    def of(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The rows of the frames of all inputs."""
        parts = [
            columns.of(one.rows(frame)) for one, frame, columns in zip(self._inputs, frames, self._columns, strict=True)
        ]
        return reduce(DataFrame.union, parts)

    def _tagged_columns(self, index: int, struct: Column, types: Sequence[DataType]) -> Sequence[Column]:
        one = self._inputs[index]
        has_place = any(PLACE_COLUMN in step for step in one.steps)
        place = F.col(PLACE_COLUMN) if has_place else F.lit(None).cast("bigint")
        early = F.coalesce(F.col(TIME_COLUMN)[EARLY_FIELD], F.lit(False)) if one.may_be_early else F.lit(False)
        return [
            F.lit(index).alias(INPUT_COLUMN),
            one.subtask.alias(SUBTASK_COLUMN),
            *([early.alias(_EARLY_COLUMN)] if self._has_early else []),
            place.alias(PLACE_COLUMN),
            *(
                (order.value if order.input_index == index else F.lit(None).cast(order.data_type)).alias(order.name)
                for order in self._orders
            ),
            *(
                (struct if other == index else F.lit(None).cast(data_type)).alias(row_column_of_input(other))
                for other, data_type in enumerate(types)
            ),
        ]


def _union_order_column(index: int, position: int, given: Column, rows: DataFrame) -> _OrderColumn:
    """Split a sort column into its value, which can be selected, and its order, which cannot."""
    order: Any = given._jc.sortOrder()  # type: ignore[operator]
    context: Any = rows.sparkSession.sparkContext
    value = Column(context._jvm.org.apache.spark.sql.Column(order.child()))
    in_order = _ORDERS[_name_of(order.sortDirection()), _name_of(order.nullOrdering())]
    data_type = rows.select(value).schema.fields[0].dataType
    return _OrderColumn(f"{_ORDER_COLUMN_PREFIX}{index}_{position}", index, value, data_type, in_order)


def _name_of(scala_object: Any) -> str:
    """The name of a Scala object, whose class is ``org...SortOrder$Ascending$``."""
    name: str = scala_object.getClass().getName()
    return name.strip("$").rpartition("$")[2]


_ORDERS: Final[Mapping[tuple[str, str], Callable[[Column], Column]]] = {
    ("Ascending", "NullsFirst"): Column.asc_nulls_first,
    ("Ascending", "NullsLast"): Column.asc_nulls_last,
    ("Descending", "NullsFirst"): Column.desc_nulls_first,
    ("Descending", "NullsLast"): Column.desc_nulls_last,
}


@frozen
class PreparedOperator:
    """A checked operator with its registered states."""

    node: OperatorNode
    function_pickle: bytes
    key_serializer: TypeSerializer[Any]
    inputs: tuple[InputColumns, ...]
    layout: OutputLayout
    states: RegisteredStates
    rows: OneInput | InputUnion
    arrow_map: ArrowMap
    task_schema: StructType
    """The schema of the rows that its tasks get."""
    is_kept: bool = False
    """Whether its rows are cached, because readers may read them more or less than once."""

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
    """Check an operator over inputs without rows, and register its state; ``tags`` are the side outputs with readers.

    Raises `JobDefinitionError` for an invalid operator.
    """
    uid = node.uid

    def prepared_inputs(given_inputs: Sequence[OperatorInput]) -> tuple[PreparedInput, ...]:
        return tuple(
            prepare_input(frame, given, uid, time, parallelism, max_parallelism)
            for frame, given, time in zip(frames, given_inputs, times, strict=True)
        )

    inputs = prepared_inputs(node.operator_inputs)
    resolved = resolved_node(node, inputs[0].schema, inputs[0].key_types) if inputs else node
    if resolved is not node:
        inputs = prepared_inputs(resolved.operator_inputs)
    types_of_inputs = {index: one.key_types for index, one in enumerate(inputs) if one.key_types is not None}
    check_keys_agree(uid, types_of_inputs)
    types = types_of_inputs[min(types_of_inputs)] if types_of_inputs else ()
    function = with_initial_rows(resolved.function, types, max_parallelism, uid)
    try:
        function_pickle = pickled(function)
    except Exception as error:
        raise JobDefinitionError(
            f"operator {uid!r}: the function cannot be sent to the workers ({type(error).__name__}: {error}); "
            f"make connections and the like in setup(), not in __init__"
        ) from error
    if resolved.schema is None:
        raise missing_schema(f"operator {uid!r}", OF_PROCESS)
    main_type = output_type(frames[0], resolved.schema, f"operator {uid!r}")
    side_types: dict[OutputTag[Any], StructType] = {}
    for tag in tags:
        where = place_of_output(uid, tag.name)
        if tag.schema is None:
            raise missing_schema(where, OF_OUTPUT_TAG)
        side_types[tag] = output_type(frames[0], tag.schema, where)
    states = registered_states(unpickled(function_pickle), uid, parallelism, [one.schema for one in inputs])
    layout = OutputLayout(main_type, side_types, has_time=emits_time)
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
    """Return the frame of the rows that an operator emits, over the frames of its inputs."""
    rows = operator.rows
    routed = placement.route(rows.of(frames), rows.subtask)
    if rows.order is not None:
        routed = rows.order.sorted_within_partitions(routed)
    return operator.arrow_map.apply(routed, task.run)


def processed_without_rows(
    spark: SparkSession, operator: PreparedOperator, task: EpochTask, placement: SubtaskPlacement
) -> DataFrame:
    """Return the frame of the rows that an operator without input rows emits."""
    return operator.arrow_map.apply(placement.without_rows(spark, operator.uid, operator.task_schema), task.run)


def output_type(frame: DataFrame, schema: Any, where: str) -> StructType:
    """The Spark type of a declared schema. Raises `JobDefinitionError` if it cannot be read."""
    declared = _struct_type(schema, where)
    text = schema if isinstance(schema, str) else declared.simpleString()
    check_columns(declared.names, text, where, is_case_sensitive=is_case_sensitive(frame.sparkSession))
    for column in declared.fields:
        _check_has_arrow_type(column, where)
    return declared


def _check_has_arrow_type(column: StructField, where: str) -> None:
    try:
        to_arrow_schema(StructType([column]), "UTC")
    except PySparkTypeError as error:
        raise only_on_spark(column, where) from error


def _struct_type(schema: Any, where: str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        try:
            parsed = StructType.fromDDL(schema)
        except AnalysisException as error:
            raise _unreadable(schema, where, error) from error
        return parsed if isinstance(parsed, StructType) else StructType([StructField("value", parsed)])
    # A record class; anything else is rejected in the words of the other runtime.
    return struct_type_of(output_schema(schema, where, OF_PROCESS).arrow)


def _unreadable(schema: str, where: str, error: AnalysisException) -> JobDefinitionError:
    """The error of the local runtime if it cannot parse the schema either."""
    try:
        parsed_schema(schema, where)
    except JobDefinitionError as rejected:
        return rejected
    return unreadable_schema(schema, where, " ".join(str(error).split("== SQL ==")[0].split()))
