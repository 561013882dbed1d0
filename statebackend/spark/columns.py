"""Columns by name, and rows and Arrow schemas as Spark has them.

Spark reads a column name as a path: ``a.b`` is the field ``b`` of the column ``a``. A column that is itself called
``a.b`` needs a quoted name, in which each backtick is doubled. A name from a program means the column of exactly that
name if there is one. Otherwise it means what Spark resolves it to: a field of a struct, or a column whose name differs
only in letter case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas import types as spark_arrow_types
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, YearMonthIntervalType

from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.record_schema import RecordType
from statebackend.streaming.rows.row_reader import RowReader


def spark_row_reader(schema: pa.Schema, where: str | None = None, kind: RecordType | None = None) -> RowReader:
    """A reader of `pyspark.sql.Row` or of objects of a class; ``where`` begins the messages of its errors."""
    return RowReader(schema, where, Row, kind)


def to_arrow_schema(schema: StructType | str, timezone: str | None = None) -> pa.Schema:
    """The Arrow schema that `mapInArrow` must emit for a Spark schema (a StructType or DDL).

    Timestamps get `timezone`, by default that of the active session. Neither pandas nor, for a StructType and a given
    zone, a session is needed.
    """
    struct: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if timezone is None:
        session = SparkSession.getActiveSession()
        timezone = "UTC" if session is None else str(session.conf.get("spark.sql.session.timeZone"))
    convert: Any = spark_arrow_types.to_arrow_schema
    if "timezone" in (convert.__kwdefaults__ or ()):
        return convert(struct, timezone=timezone)
    # Before Spark 4.3 the function has no such argument, and timestamps get UTC.
    return pa.schema([_in_zone(field, timezone) for field in convert(struct)])


def _in_zone(field: pa.Field, timezone: str) -> pa.Field:
    return field.with_type(_type_in_zone(field.type, timezone))


def _type_in_zone(data_type: pa.DataType, timezone: str) -> pa.DataType:
    """The type with this zone in place of the zones of its timestamps."""
    if pa.types.is_timestamp(data_type):
        return data_type if data_type.tz is None else pa.timestamp(data_type.unit, timezone)
    if pa.types.is_struct(data_type):
        return pa.struct([_in_zone(field, timezone) for field in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(_in_zone(data_type.key_field, timezone), _in_zone(data_type.item_field, timezone))
    return pa.list_(_in_zone(data_type.value_field, timezone)) if pa.types.is_list(data_type) else data_type


def struct_type_of(schema: pa.Schema) -> StructType:
    """The Spark type of rows of a schema."""
    convert: Any = spark_arrow_types.from_arrow_schema
    # Before Spark 4.3, the default for timestamps without a zone is TimestampType.
    struct: StructType = convert(schema, prefer_timestamp_ntz=True)
    return struct


def nullable_type(schema: StructType) -> StructType:
    """The type with nullable columns.

    Spark trusts declared nullability, and rows of acknowledgements are null in every column. `RowWriter` checks it.
    """
    return StructType([StructField(one.name, one.dataType, True, one.metadata) for one in schema.fields])


def check_are_in_python(schema: StructType, where: str) -> None:
    """Raise `JobDefinitionError` for a column that no Python function can receive."""
    for column in schema.fields:
        if _has_months(column.dataType):
            raise only_on_spark(column, where)


def only_on_spark(column: StructField, where: str) -> JobDefinitionError:
    """The error for a column of a type that Python does not have."""
    advice = "use a string or a whole number of months" if _has_months(column.dataType) else "use a string"
    type_name = column.dataType.simpleString()
    return JobDefinitionError(
        f"{where}: column {column.name!r} is of type {type_name}, which Python does not have; {advice}"
    )


def _has_months(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(_has_months(one.dataType) for one in data_type.fields)
    if isinstance(data_type, ArrayType):
        return _has_months(data_type.elementType)
    if isinstance(data_type, MapType):
        return _has_months(data_type.keyType) or _has_months(data_type.valueType)
    return isinstance(data_type, YearMonthIntervalType)


def column_named(name: str) -> Column:
    """The column of exactly this name."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def column_meant_by(name: str, columns: Collection[str]) -> Column:
    """The column that a program means by ``name``, over an input of these columns."""
    return column_named(name) if name in columns else F.col(name)


def sequence_of(context: Any, columns: Iterable[Any]) -> Any:
    """The JVM's sequence of these columns."""
    return context._jvm.PythonUtils.toSeq([column._jc for column in columns])


class SelectedColumns:
    """Columns that are selected from the frames of all epochs.

    PySpark passes each column to the JVM again for every frame, by reflection. This passes them once, so a frame takes
    one call.
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        self._columns = sequence_of(SparkContext.getOrCreate(), columns)

    def of(self, frame: DataFrame) -> DataFrame:
        """The frame with only these columns."""
        return DataFrame(frame._jdf.select(self._columns), frame.sparkSession)

    def sorted_within_partitions(self, frame: DataFrame) -> DataFrame:
        """The frame with the rows of each partition sorted by these columns."""
        return DataFrame(frame._jdf.sortWithinPartitions(self._columns), frame.sparkSession)


class AddedColumns:
    """Columns by name that are added to the frame of every epoch. No frame may have a column of that name."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = SelectedColumns([F.col("*"), *(column.alias(name) for name, column in columns.items())])

    def over(self, frame: DataFrame) -> DataFrame:
        """The frame with the columns after its own."""
        return self._columns.of(frame)
