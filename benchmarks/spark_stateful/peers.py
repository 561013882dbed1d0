"""Spark's own ways to keep a count per key, each as `(spark, checkpoint_dir, batches) -> rows/s`.

All of them have the same input, two state partitions, the RocksDB state store and the noop sink. `workload` describes
how the speed is measured. The two Python ones make one `get` and one `update` per key and batch, the minimum of the
task.
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

#: Not a DDL string, because `init` runs in a process without a session that could parse it.
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
    """Return the speed of `transformWithState`, the arbitrary state of Spark 4 with rows.

    PySpark checks for pandas when it plans any vectorized function, although `transformWithState` with rows does not
    use it. This function skips the check, so that the peer runs without pandas. The peer does need protobuf; without
    protobuf Spark fails with "driver worker exited unexpectedly".
    """
    groups = keyed_rows(spark).groupBy("key")
    with patch("pyspark.sql.pandas.functions.require_minimum_pandas_version"):
        counts = groups.transformWithState(RowCounter(), OUTPUT_SCHEMA, "Update", "None")
    return run_to_noop(counts, checkpoint_dir, batches)


def transform_with_state_in_pandas(spark: SparkSession, checkpoint_dir: Path, batches: int) -> float:
    """Return the speed of `transformWithStateInPandas`. Needs pandas."""
    groups = keyed_rows(spark).groupBy("key")
    counts = groups.transformWithStateInPandas(PandasCounter(), OUTPUT_SCHEMA, "Update", "None")
    return run_to_noop(counts, checkpoint_dir, batches)


def grouped_count(spark: SparkSession, checkpoint_dir: Path, batches: int) -> float:
    """Return the speed of Spark's built-in aggregation, which runs in the JVM only."""
    counts = keyed_rows(spark).groupBy("key").agg(count("*").alias("count"))
    return run_to_noop(counts, checkpoint_dir, batches)


def has_protobuf() -> bool:
    """Whether `transform_with_state` can run: the protocol of Spark's state server needs protobuf."""
    return find_spec("google") is not None and find_spec("google.protobuf") is not None


def has_pandas() -> bool:
    """Whether `transform_with_state_in_pandas` can run."""
    return has_protobuf() and find_spec("pandas") is not None
