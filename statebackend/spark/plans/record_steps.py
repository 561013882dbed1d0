"""Functions of records in Spark plans: ``map``, ``filter``, ``flat_map``, ``as_records`` and keys by function.

Each is checked once over a frame without rows, and applied to the frame of every epoch. Functions run in
``mapInArrow``, which works partition by partition. So operators before a step need not be cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ForwardRef, get_args

from attrs import evolve, frozen
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from statebackend.spark.columns import (
    SelectedColumns,
    check_are_in_python,
    column_named,
    nullable_type,
    struct_type_of,
    to_arrow_schema,
)
from statebackend.spark.plans.map_in_arrow import ArrowMap
from statebackend.spark.tasks.arrow_rows import TIME_COLUMN, TIME_TYPE, InputColumns, KeyTask, RecordStepTask
from statebackend.spark.tasks.program_pickles import pickled
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.declared_schema import DeclaredSchema, check_not_reserved, parsed_schema
from statebackend.streaming.rows.record_schema import (
    AS_RECORDS,
    RecordType,
    columns_of_class,
    output_schema,
    record_type,
)
from statebackend.streaming.stream_graph import (
    FILTER,
    KeyFunction,
    RecordsNode,
    RecordStepNode,
    StreamEdge,
    record_class_of,
)
from typeserializers.kernel.record_families import resolved_hints


@frozen
class PreparedStep:
    """A function of records over the frames of all epochs."""

    arrow_map: ArrowMap
    task: RecordStepTask | KeyTask

    def over(self, frame: DataFrame) -> DataFrame:
        """The frame of the results."""
        return self.arrow_map.apply(frame, self.task.run)


def prepare_record_step(frame: DataFrame, node: RecordStepNode, schema: StructType | None) -> PreparedStep:
    """Check a step over a frame without rows. Raises `JobDefinitionError` if it cannot run on Spark."""
    place = f"{node.method}()"
    if schema is None and node.method != FILTER:
        raise JobDefinitionError(
            f"{place}: Spark needs the schema of what the function returns; pass schema=RecordClass or "
            f"schema='name type, ...', or annotate the function: def function(record) -> RecordClass"
        )
    check_are_in_python(frame.schema, place)
    has_time = TIME_COLUMN in frame.columns
    record = tuple(name for name in frame.columns if name != TIME_COLUMN)
    columns = InputColumns(record, (), has_time, kind_of_records(node.inputs[0]))
    output = frame.schema if schema is None else _with_time(schema, has_time=has_time)
    task = RecordStepTask(
        node.method,
        _pickled(node.function, place),
        columns,
        None if schema is None else to_arrow_schema(schema),
    )
    return PreparedStep(_arrow_map(frame, output), task)


def kind_of_records(edge: StreamEdge) -> RecordType | None:
    """The record class of a stream, or None if it has rows.

    It travels to the workers as it is: they may not know the names in its type hints.
    """
    record_class = record_class_of(edge)
    if record_class is None:
        return None
    resolve_hints(record_class)
    return record_type(record_class, AS_RECORDS)


def resolve_hints(record_class: Any) -> None:
    """Replace type hints that are texts in a class of a main script, and in the classes of its fields.

    Such a class is sent by value, and workers do not know the names in its hints when they store its objects.
    """
    for kind in record_class.__mro__:
        own = vars(kind).get("__annotations__", {})
        if kind.__module__ != "__main__" or not any(isinstance(hint, (str, ForwardRef)) for hint in own.values()):
            continue
        hints = resolved_hints(kind)
        kind.__annotations__ = {name: hints[name] for name in own}
        for hint in hints.values():
            for part in _classes_in(hint):
                if part is not record_class:
                    resolve_hints(part)


def _classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for part in get_args(hint):
        yield from _classes_in(part)


def _with_time(schema: StructType, *, has_time: bool) -> StructType:
    return StructType(
        [*nullable_type(schema).fields, *([StructField(TIME_COLUMN, TIME_TYPE, True)] if has_time else [])]
    )


def _arrow_map(frame: DataFrame, output: StructType) -> ArrowMap:
    return ArrowMap(frame.sparkSession, output, list(map(column_named, frame.columns)))


def _pickled(function: Any, place: str) -> bytes:
    try:
        return pickled(function)
    except Exception as error:
        raise JobDefinitionError(
            f"{place}: the function cannot be sent to the workers ({type(error).__name__}: {error}); make connections "
            f"and the like inside the function"
        ) from error


def prepare_records(frame: DataFrame, node: RecordsNode) -> SelectedColumns:
    """The columns of a record class. Raises `JobDefinitionError` if the frame does not have them."""
    kind = record_type(node.record_class, AS_RECORDS)
    record = frame.drop(TIME_COLUMN)
    check_not_reserved(record.columns, AS_RECORDS)
    names = columns_of_class(kind, output_schema(record.schema, AS_RECORDS, ""), AS_RECORDS)
    columns = []
    for name, column in zip(names, kind.schema.columns, strict=True):
        found = column_named(name)
        if record.schema[name].dataType.simpleString() != column.type_name:
            found = found.cast(column.type_name)
        columns.append(found.alias(column.name))
    time = [column_named(TIME_COLUMN)] if TIME_COLUMN in frame.columns else []
    return SelectedColumns([*columns, *time])


def prepare_key_functions(
    frame: DataFrame, functions: Mapping[str, KeyFunction], kind: RecordType | None, uid: str
) -> PreparedStep:
    """Functions that compute key columns of these names. Raises `JobDefinitionError` for a key of unknown type."""
    place = f"operator {uid!r}: key_by()"
    columns = []
    for name, one in functions.items():
        if one.type_name is None:
            raise JobDefinitionError(
                f"{place}: Spark needs the type of the key; pass key_by(function, key_type=str), or annotate the "
                f"function: def function(record) -> str"
            )
        [column] = parsed_schema(one.type_name, place).columns
        columns.append(evolve(column, name=name))
    record = tuple(name for name in frame.columns if name != TIME_COLUMN)
    keys = struct_type_of(DeclaredSchema(tuple(columns)).arrow)
    task = KeyTask(
        _pickled(list(functions.values()), place),
        InputColumns(record, (), False, kind),
        to_arrow_schema(keys),
        place,
    )
    return PreparedStep(_arrow_map(frame, StructType([*frame.schema.fields, *keys.fields])), task)
