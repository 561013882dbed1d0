"""Reads a DataFrame in the driver as batches of Arrow, one partition at a time, and converts them to Python's values.

``toLocalIterator`` pickles each row. This is several times slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from statebackend.spark.columns import to_arrow_schema
from statebackend.spark.session import configured

AS_IN_ARROW: Final = (StringType, IntegralType, BooleanType, FractionalType, DateType)
"""The types whose values are the same in Spark's rows and in columns of Arrow."""
_SETTINGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2048",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}


def local_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the rows as batches. Repeated names of fields in a struct get numbers, as Arrow needs."""
    numbered: Any = _without_repeated_names(frame.schema)
    renamed: Any = frame.select(*(frame[one.name].cast(one.dataType).alias(one.name) for one in numbered))
    with configured(frame.sparkSession, _SETTINGS):
        messages: Any = RDD(
            renamed._jdf.toArrowBatchRdd().toJavaRDD(), frame.sparkSession.sparkContext, NoOpSerializer()
        )
    schema = to_arrow_schema(numbered, timezone="UTC")
    for message in messages.toLocalIterator():
        yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)


def _without_repeated_names(data_type: DataType) -> DataType:
    """Number repeated names of fields in the same way as `ArrowTableToRowsConversion`."""
    if isinstance(data_type, StructType):
        total, seen, fields = Counter(data_type.names), Counter[str](), []
        for one in data_type:
            name = one.name if total[one.name] == 1 else f"{one.name}_{seen[one.name]}"
            seen[one.name] += 1
            fields.append(StructField(name, _without_repeated_names(one.dataType), one.nullable))
        return StructType(fields)
    if isinstance(data_type, ArrayType):
        return ArrayType(_without_repeated_names(data_type.elementType), data_type.containsNull)
    if isinstance(data_type, MapType):
        key, value = map(_without_repeated_names, (data_type.keyType, data_type.valueType))
        return MapType(key, value, data_type.valueContainsNull)
    return data_type


def python_rows(schema: StructType, columns: Sequence[pa.Array]) -> list[Row]:
    """Return the rows of these columns, as Spark collects them."""
    make = partial(tuple.__new__, _row_class(tuple(schema.names)))
    values = [python_values(one.dataType, column) for one, column in zip(schema, columns, strict=True)]
    return list(map(make, zip(*values, strict=True)))


@lru_cache(maxsize=256)
def _row_class(names: tuple[str, ...]) -> type[Row]:
    """Return a class of rows of these columns. A row that stores its names takes several times as long to create."""
    return type("Row", (Row,), {"__fields__": list(names), "__module__": Row.__module__})


def python_values(data_type: DataType, column: pa.Array) -> list[Any]:
    """Return the values of a column, as Spark collects them."""
    if isinstance(data_type, StructType) and data_type.names and not column.null_count:
        return python_rows(data_type, column.flatten())
    if isinstance(data_type, AS_IN_ARROW):
        values: list[Any] = column.to_pylist()
        return values
    table = pa.table([column], names=["value"])
    return [row[0] for row in ArrowTableToRowsConversion.convert(table, StructType([StructField("value", data_type)]))]
