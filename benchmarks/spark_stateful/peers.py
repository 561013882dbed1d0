"""Spark's own ways to keep a count for each key, each as `(spark, checkpoint_dir, batches) -> rows/s`.

All of them get the same input, two state partitions, the RocksDB state store and the noop sink; how the speed is
taken is told in `workload`.  The two Python ones make one `get` and one `update` for each key and batch, which is
the least the task allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from benchmarks.spark_stateful.workload import keyed_rows, run_to_noop

OUTPUT_SCHEMA = "key long, count long"

#: Not written as text: `init` runs in a process that has no session to parse it.
STATE_SCHEMA = StructType([StructField("count", LongType())])


class RowCounter(StatefulProcessor):
    """Counts the rows of a key, row by row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self._count.get()
        total = (before[0] if before else 0) + sum(1 for _ in rows)
        self._count.update((total,))
        yield Row(key=key[0], count=total)


class PandasCounter(StatefulProcessor):
    """Counts the rows of a key, pandas frame by pandas frame."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]

        before = self._count.get()
        total = (before[0] if before else 0) + sum(len(frame) for frame in rows)
        self._count.update((total,))
        yield pandas.DataFrame({"key": [key[0]], "count": [total]})


def transform_with_state(spark: SparkSession, checkpoint_dir: Path, batches: int) -> float:
    """The count through `transformWithState`, the arbitrary state of Spark 4 with rows.

    PySpark rejects to plan it without pandas, although with rows no pandas is used: the check is made for
    every vectorized function alike.  It is left out here, so that the peer can be measured without.  What it
    does need is protobuf, and without that it dies with nothing but "driver worker exited unexpectedly".
    """
    groups = keyed_rows(spark).groupBy("key")
    with patch("pyspark.sql.pandas.functions.require_minimum_pandas_version"):
        counts = groups.transformWithState(RowCounter(), OUTPUT_SCHEMA, "Update", "None")
    return run_to_noop(counts, checkpoint_dir, batches)


def transform_with_state_in_pandas(spark: SparkSession, checkpoint_dir: Path, batches: int) -> float:
    """The count through `transformWithStateInPandas`.  Needs pandas."""
    groups = keyed_rows(spark).groupBy("key")
    counts = groups.transformWithStateInPandas(PandasCounter(), OUTPUT_SCHEMA, "Update", "None")
    return run_to_noop(counts, checkpoint_dir, batches)


def grouped_count(spark: SparkSession, checkpoint_dir: Path, batches: int) -> float:
    """The count through Spark's built-in aggregation, which never leaves the JVM."""
    counts = keyed_rows(spark).groupBy("key").agg(count("*").alias("count"))
    return run_to_noop(counts, checkpoint_dir, batches)


def has_protobuf() -> bool:
    """Whether `transform_with_state` can run here: Spark's state server is spoken to in protobuf."""
    return find_spec("google") is not None and find_spec("google.protobuf") is not None


def has_pandas() -> bool:
    """Whether `transform_with_state_in_pandas` can run here."""
    return has_protobuf() and find_spec("pandas") is not None
