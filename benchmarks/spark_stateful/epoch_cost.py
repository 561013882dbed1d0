"""The cost of an epoch with almost no work.

The baseline is bare Spark: micro-batches of one row, and a `foreachBatch` that writes the frame to the noop sink once.
A second baseline moves the row to the partition of its key and through a Python worker that returns it, which is the
minimum for state in Python. The additional time of our epochs is the cost of the epoch protocol. The cost of an epoch
is the median time in milliseconds from the start of one batch to the start of the next, after the warm-up.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession, functions

from benchmarks.spark_stateful.session import PARALLELISM
from benchmarks.spark_stateful.workload import KEYS, WARM_UP_BATCHES, Batch, micro_batches, run_batches

ROWS_PER_EPOCH = 1


def bare_foreach_batch(spark: SparkSession, checkpoint_dir: Path, epochs: int) -> float:
    """Return the milliseconds of an epoch of bare Spark: a `foreachBatch` with a single action and no state."""
    return _cost_ms(spark, checkpoint_dir, epochs, lambda frame: frame)


def keyed_foreach_batch(spark: SparkSession, checkpoint_dir: Path, epochs: int) -> float:
    """Return the milliseconds of the same epoch with a shuffle by key and a Python worker."""

    def through_workers(frame: DataFrame) -> DataFrame:
        keyed = frame.selectExpr(f"value % {KEYS} AS key").repartition(PARALLELISM, "key")
        return keyed.select(functions.udf(_as_it_is, "bigint")("key"))

    return _cost_ms(spark, checkpoint_dir, epochs, through_workers)


def _as_it_is(key: int) -> int:
    return key


def _cost_ms(
    spark: SparkSession, checkpoint_dir: Path, epochs: int, changed: Callable[[DataFrame], DataFrame]
) -> float:
    batches = WARM_UP_BATCHES + epochs + 1

    def write_once(frame: DataFrame, batch_id: int) -> None:
        # Stopping a query inside an action of this function overflows the stack of Spark 4.3: it searches the
        # error's text with a recursive expression. So no action runs once enough batches are done.
        if batch_id < batches:
            changed(frame).write.format("noop").mode("overwrite").save()

    writer = micro_batches(spark, ROWS_PER_EPOCH).writeStream.foreachBatch(write_once)
    return epoch_cost_ms(run_batches(writer, checkpoint_dir, batches))


def epoch_cost_ms(finished: list[Batch]) -> float:
    """Return the median time between the starts of successive batches, without the warm-up."""
    steady = finished[WARM_UP_BATCHES:]
    if len(steady) < 2:
        raise ValueError(f"{len(finished)} batches are too few to measure after {WARM_UP_BATCHES} of warm-up")
    return median((after.start_s - before.start_s) * 1000 for before, after in pairwise(steady))
