"""Functions over Arrow batches in Spark plans, with and without Spark's internal constructors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from attrs import frozen
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.types import LongType, StructField, StructType

from statebackend.spark.columns import column_named
from statebackend.spark.plans.map_in_arrow import ArrowMap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType([StructField("more", LongType())])


@frozen
class Behind:
    """Delegates to another object, except for the replaced attributes."""

    other: Any
    replaced: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.replaced[name] if name in self.replaced else getattr(self.other, name)


def rejecting(*arguments: Any) -> Any:
    raise Py4JError("Constructor SimplePythonFunction([...]) does not exist")


def session_with(spark: SparkSession, constructor: str, behaviour: Any) -> Any:
    """A session of a PySpark release whose constructor differs."""
    jvm = Behind(spark.sparkContext._jvm, {constructor: behaviour})
    return Behind(spark, {"sparkContext": Behind(spark.sparkContext, {"_jvm": jvm})})


def plus(number: int) -> Any:
    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.add(batch.column(0), number)], ["more"])

    return add


@pytest.mark.spark
@pytest.mark.parametrize(
    ("constructor", "behaviour", "is_direct"),
    [
        ("nothing", None, True),
        ("SimplePythonFunction", rejecting, False),
        ("SimplePythonFunction", lambda one: None, False),
        ("PythonUtils", object(), False),
    ],
    ids=["as it is", "rejected by the JVM", "of other arguments", "not there"],
)
def test_functions_are_applied_with_any_internal_constructors_of_spark(
    spark: SparkSession, constructor: str, behaviour: Any, is_direct: bool
) -> None:
    frame = spark.range(0, 3, 1, 1)
    arrow_map = ArrowMap(session_with(spark, constructor, behaviour), SCHEMA, [column_named("id")])
    assert arrow_map.is_direct == is_direct
    for number in (10, 20):
        rows = arrow_map.apply(frame, plus(number)).collect()
        assert [row.more for row in rows] == [number, number + 1, number + 2]
