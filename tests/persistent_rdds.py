"""What a session keeps in the memory of its executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def persistent_rdds(spark: SparkSession) -> set[int]:
    """The ids of the RDDs, of which those of other tests go whenever the JVM collects them."""
    context: Any = spark.sparkContext
    return set(context._jsc.getPersistentRDDs())
