"""RDDs that a session keeps in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def persistent_rdds(spark: SparkSession) -> set[int]:
    """The ids of persistent RDDs. Those of earlier tests disappear when the JVM collects them."""
    context: Any = spark.sparkContext
    return set(context._jsc.getPersistentRDDs())
