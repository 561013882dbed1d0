"""What the tasks of an operator read: the rows of its input, or those of several as tagged structs of one union.

    __statebackend_input   __statebackend_subtask   __statebackend_input_0     __statebackend_input_1
    0                      2                        the row of the first       null
    1                      2                        null                       that of the second

So all inputs of an operator go through one shuffle, and one task has the rows of a subtask. There they are sorted: what
is early comes first; then by input, what is broadcast before the others; then as each input is ordered. Beside the tag
there are columns to sort by, which tasks are not given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from attrs import frozen
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from streamjobs.spark.named_columns import KeptColumns, column_named
from streamjobs.spark.plans.operator_input import PLACE_COLUMN, PreparedInput
from streamjobs.spark.tasks.tagged_input import INPUT_COLUMN, SUBTASK_COLUMN, row_column_of_input
from streamjobs.spark.tasks.time_column import EARLY_FIELD, TIME_COLUMN

__all__ = ["InputUnion", "OneInput"]

_EARLY_COLUMN: Final = "__statebackend_early"
_ORDER_COLUMN_PREFIX: Final = "__statebackend_order_"


class OneInput:
    """The rows of the only input."""

    def __init__(self, one: PreparedInput) -> None:
        self._one = one
        self.subtask = one.subtask
        order = [*([F.col(TIME_COLUMN)[EARLY_FIELD].desc()] if one.may_be_early else []), *one.order_by]
        self.order = KeptColumns(order) if order else None
        """What the rows of a task are sorted by; None for the order in which they come."""
        # A task sees by the key group whether the rows are its own, and where there is none by the subtask.
        beside = [SUBTASK_COLUMN] if one.key_types is None else []
        self.task_columns = tuple(map(column_named, (*one.names, *beside)))

    def of(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The rows of the frame of the input."""
        return self._one.rows(frames[0])


@frozen
class _OrderColumn:
    """A value that the rows of one input are sorted by, in a column of its own, and in which order."""

    name: str
    input_index: int
    value: Column
    data_type: DataType
    in_order: Callable[[Column], Column]


class InputUnion:
    """The rows of several inputs, made over frames without rows. The expressions serve every epoch.

    ``input_order`` has the indices of the inputs in the order in which a task takes their rows.
    """

    def __init__(
        self, inputs: Sequence[PreparedInput], frames: Sequence[DataFrame], input_order: Sequence[int]
    ) -> None:
        self._inputs = tuple(inputs)
        places = [F.lit(input_order.index(index)) for index in range(len(inputs))]
        self._has_early = any(one.may_be_early for one in inputs)
        rows = [one.rows(frame) for one, frame in zip(inputs, frames, strict=True)]
        self._orders = [
            _order_column(index, position, column, rows[index])
            for index, one in enumerate(inputs)
            for position, column in enumerate(one.order_by)
        ]
        structs = [F.struct(*map(column_named, one.names)) for one in inputs]
        types = [frame.select(struct).schema.fields[0].dataType for frame, struct in zip(rows, structs, strict=True)]
        self._columns = [
            KeptColumns(self._tagged_columns(index, structs[index], types)) for index in range(len(inputs))
        ]
        self.subtask = F.col(SUBTASK_COLUMN)
        self.order = KeptColumns(
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


def _order_column(index: int, position: int, given: Column, rows: DataFrame) -> _OrderColumn:
    """Takes a column to sort by apart: its value, which can be selected, and the order, which cannot."""
    order: Any = given._jc.sortOrder()  # type: ignore[operator]
    context: Any = rows.sparkSession.sparkContext
    value = Column(context._jvm.org.apache.spark.sql.Column(order.child()))
    in_order = _ORDERS[_name_of(order.sortDirection()), _name_of(order.nullOrdering())]
    data_type = rows.select(value).schema.fields[0].dataType
    return _OrderColumn(f"{_ORDER_COLUMN_PREFIX}{index}_{position}", index, value, data_type, in_order)


def _name_of(scala_object: Any) -> str:
    """The name of an object of Scala's, whose class is called ``org...SortOrder$Ascending$``."""
    name: str = scala_object.getClass().getName()
    return name.strip("$").rpartition("$")[2]


_ORDERS: Final[Mapping[tuple[str, str], Callable[[Column], Column]]] = {
    ("Ascending", "NullsFirst"): Column.asc_nulls_first,
    ("Ascending", "NullsLast"): Column.asc_nulls_last,
    ("Descending", "NullsFirst"): Column.desc_nulls_first,
    ("Descending", "NullsLast"): Column.desc_nulls_last,
}
