"""What an epoch costs that has almost nothing to do.

The baseline is bare Spark: micro-batches of one row, and a `foreachBatch` that writes the frame to the noop sink
once.  Whatever an epoch of ours takes longer is the price of the epoch protocol.  An epoch's cost is the median over
the batches after the warm-up, in milliseconds, of the time from one batch's start to the next one's start.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark_stateful.workload import WARM_UP_BATCHES, Batch, micro_batches, run_batches

ROWS_PER_EPOCH = 1


def bare_foreach_batch(spark: SparkSession, checkpoint_dir: Path, epochs: int) -> float:
    """Milliseconds for one epoch of bare Spark: a `foreachBatch` with a single action and no state."""
    batches = WARM_UP_BATCHES + epochs + 1

    def write_once(frame: DataFrame, batch_id: int) -> None:
        # Stopping a query inside an action of this function overflows the stack of Spark 4.3: it searches the
        # error's text with a recursive expression.  So there is no action once enough batches are done.
        if batch_id < batches:
            frame.write.format("noop").mode("overwrite").save()

    writer = micro_batches(spark, ROWS_PER_EPOCH).writeStream.foreachBatch(write_once)
    return epoch_cost_ms(run_batches(writer, checkpoint_dir, batches))


def epoch_cost_ms(finished: list[Batch]) -> float:
    """The median distance between the starts of successive batches, without the warm-up."""
    steady = finished[WARM_UP_BATCHES:]
    if len(steady) < 2:
        raise ValueError(f"{len(finished)} batches leave no distance to measure after {WARM_UP_BATCHES} of warm-up")
    return median((after.start_s - before.start_s) * 1000 for before, after in pairwise(steady))
