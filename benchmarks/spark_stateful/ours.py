"""Our side of the benchmark: the keyed count as a `KeyedProcessFunction` with a `ValueState` on RocksDB.

It is the program that a user would write: for every row, it reads the count, adds one, stores it and emits the new
count. So it emits one row per row, and the peers emit one per key and batch. The results do not correct for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark_stateful.epoch_cost import ROWS_PER_EPOCH, epoch_cost_ms
from benchmarks.spark_stateful.session import PARALLELISM
from benchmarks.spark_stateful.workload import (
    KEYS,
    WARM_UP_BATCHES,
    Batch,
    await_batches,
    keyed_rows,
    micro_batches,
    steady_rows_per_second,
)
from statebackend import (
    BatchContext,
    BatchRuntimeContext,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
)
from statebackend.spark import SparkStreamEnvironment
from statebackend.spark.frame_sinks import NoopSink


class CountPerKey(KeyedProcessFunction[int, Any, tuple[int, int]]):
    """Counts the rows of each key."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: ProcessContext[int]) -> Iterator[tuple[int, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.key, count


class CountInBatches(KeyedBatchFunction[int, Any, tuple[int, int]]):
    """Counts the rows of each key, a batch at a time; emits one row per key and batch, as the peers do."""

    def open(self, context: BatchRuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, 0))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[int]) -> pa.RecordBatch:
        groups = context.groups(batch)
        counts = pc.add(self.count.get_many(groups), groups.sizes)
        self.count.put_many(groups, counts)
        return pa.record_batch({"key": groups.keys, "count": counts})


def batch_count(spark: SparkSession, checkpoint_dir: Path, batches: int) -> float:
    """Return the rows per second of the count as a `KeyedBatchFunction`."""
    rows = keyed_rows(spark)
    return steady_rows_per_second(run_count(spark, rows, checkpoint_dir, WARM_UP_BATCHES + batches, CountInBatches()))


def keyed_count(spark: SparkSession, checkpoint_dir: Path, batches: int) -> float:
    """Return the rows per second of the keyed count."""
    return steady_rows_per_second(run_count(spark, keyed_rows(spark), checkpoint_dir, WARM_UP_BATCHES + batches))


def almost_empty_epoch(spark: SparkSession, checkpoint_dir: Path, epochs: int) -> float:
    """Return the milliseconds of an epoch with a single row."""
    rows = micro_batches(spark, ROWS_PER_EPOCH).selectExpr(f"value % {KEYS} AS key")
    return epoch_cost_ms(run_count(spark, rows, checkpoint_dir, WARM_UP_BATCHES + epochs + 1))


def run_count(
    spark: SparkSession, rows: DataFrame, checkpoint_dir: Path, batches: int, function: Any = None
) -> list[Batch]:
    """Run the count as a new job in an empty directory, and return its first `batches` batches."""
    environment = SparkStreamEnvironment(
        spark,
        job_dir=checkpoint_dir / "job",
        backend="rocksdb",
        parallelism=PARALLELISM,
        local_state_directory=checkpoint_dir / "local",
    )
    counts = environment.from_dataframe(rows).key_by("key")
    counts.process(function or CountPerKey(), uid="count", schema="key bigint, count bigint").sink_to(NoopSink())
    job = environment.execute("keyed count", trigger={"processingTime": "0 seconds"})
    try:
        return await_batches(job.query, batches)
    finally:
        job.stop()
