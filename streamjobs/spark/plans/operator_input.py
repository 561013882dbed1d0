"""One input of an operator in an epoch's plan: its keys, the subtask of each row, the order of rows.

A keyed row goes to the subtask that owns its key group; one of an input without keys to any, by its hash. A row of a
broadcast input becomes one copy for each subtask, with its place in the input beside it, by which every subtask sorts
its copies: so all are given the same rows in the same order, whatever the shuffle does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from streamjobs.api.stream_graph import BroadcastInput, KeyedInput, OperatorInput, SpreadInput
from streamjobs.errors import JobDefinitionError
from streamjobs.rows.declared_schema import DeclaredSchema, check_not_reserved, output_schema, unknown_column
from streamjobs.spark.named_columns import AddedColumns, column_meant_by, column_named
from streamjobs.spark.plans.hidden_time import TimeOfOperator
from streamjobs.spark.tasks.arrow_input import KEY_COLUMN_PREFIX, KEY_GROUP_COLUMN, InputColumns
from streamjobs.spark.tasks.tagged_input import SUBTASK_COLUMN
from streamjobs.spark.tasks.time_column import TIME_COLUMN

__all__ = ["PLACE_COLUMN", "PreparedInput", "is_case_sensitive", "prepare_input"]

PLACE_COLUMN: Final = "__statebackend_place"
"""The place of a row of a broadcast input, among those of its epoch."""


@frozen
class PreparedInput:
    """An input whose types are known. The expressions are unresolved, so they are made once and serve every epoch.

    ``steps`` are the columns that are added to its rows, in steps of those that do not need each other; ``key_types``
    is None for an input without keys.
    """

    columns: InputColumns
    schema: DeclaredSchema | None
    key_types: tuple[str, ...] | None
    order_by: tuple[Column, ...]
    may_be_early: bool
    steps: tuple[Mapping[str, Column], ...]
    subtask: Column
    _added: tuple[AddedColumns, ...] = field(init=False)

    @_added.default
    def _columns_of_steps(self) -> tuple[AddedColumns, ...]:
        return tuple(map(AddedColumns, self.steps))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that a task is given."""
        hidden = (*([] if self.key_types is None else [KEY_GROUP_COLUMN]), *([TIME_COLUMN] * self.columns.has_time))
        return tuple(dict.fromkeys((*self.columns.record, *self.columns.key, *hidden)))

    def rows(self, frame: DataFrame) -> DataFrame:
        """The rows with everything beside them that leads them to their subtasks."""
        for columns in self._added:
            frame = columns.over(frame)
        return frame


def prepare_input(
    frame: DataFrame, given: OperatorInput, uid: str, time: TimeOfOperator, parallelism: int, max_parallelism: int
) -> PreparedInput:
    """Checks an input over a frame without rows; raises `JobDefinitionError` for what cannot run."""
    if time.is_in_input:
        frame = frame.drop(TIME_COLUMN)
    check_not_reserved(frame.columns, uid)
    _check_names_are_distinct(frame, uid)
    prepared = _PREPARERS[type(given)](frame, given, uid, time, parallelism, max_parallelism)
    # Unknown columns in order_by are found before anything runs.
    _selected(frame, prepared.order_by, uid, "order_by", given.order_by)
    return prepared


def _keyed(
    frame: DataFrame, given: KeyedInput, uid: str, time: TimeOfOperator, parallelism: int, max_parallelism: int
) -> PreparedInput:
    row_columns = tuple(frame.columns)
    keys = [_key_column(key, index, row_columns, uid) for index, key in enumerate(given.keys)]
    types = tuple(field.dataType.simpleString() for field in _selected(frame, keys, uid, "key_by", given.keys).fields)
    key_columns = tuple(
        key if isinstance(key, str) and key in row_columns else f"{KEY_COLUMN_PREFIX}{index}"
        for index, key in enumerate(given.keys)
    )
    expressions = {name: key for key, name in zip(keys, key_columns, strict=True) if name not in row_columns}
    key_group = F.pmod(F.xxhash64(*map(column_named, key_columns)), F.lit(max_parallelism)).cast("int")
    return PreparedInput(
        InputColumns(row_columns, key_columns, time.is_in_input),
        _known_schema(frame),
        types,
        _order_columns(given.order_by, row_columns, uid),
        time.may_be_early,
        (*([expressions] if expressions else []), {KEY_GROUP_COLUMN: key_group}),
        F.expr(f"cast({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism} as int)"),
    )


def _spread(
    frame: DataFrame, given: SpreadInput, uid: str, time: TimeOfOperator, parallelism: int, max_parallelism: int
) -> PreparedInput:
    # What a row is decides on its subtask: one that is computed again goes where it went. Maps have no hash.
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
    row_columns = tuple(frame.columns)
    return PreparedInput(
        InputColumns(row_columns, (), time.is_in_input),
        _known_schema(frame),
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


def _known_schema(frame: DataFrame) -> DeclaredSchema | None:
    """The schema of rows of a frame; None if a column has a type that only Spark knows."""
    try:
        return output_schema(frame.schema, "", "")
    except JobDefinitionError:
        return None


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


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether names of columns that differ in case alone are two."""
    return (spark.conf.get("spark.sql.caseSensitive", "false") or "").lower() == "true"


def _check_names_are_distinct(frame: DataFrame, uid: str) -> None:
    names = frame.columns if is_case_sensitive(frame.sparkSession) else [name.lower() for name in frame.columns]
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


def _order_columns(given: Sequence[Any], columns: Sequence[str], uid: str) -> tuple[Column, ...]:
    return tuple(_order_column(one, columns, uid) for one in given)


def _order_column(given: Any, columns: Sequence[str], uid: str) -> Column:
    column = column_meant_by(given, columns) if isinstance(given, str) else given
    if not isinstance(column, Column):
        raise JobDefinitionError(
            f"operator {uid!r}: order_by takes column names or expressions, not {type(given).__name__}"
        )
    return column
