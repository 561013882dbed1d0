"""The task every contender is given, and how its speed is taken.

`keyed_rows` is a stream without end: each micro-batch brings `ROWS_PER_BATCH` rows whose `key` runs through all
`KEYS` keys, so each key occurs four times a batch and the state has its full size after the first batch.  The
count for each key goes to the noop sink, and batches follow one another without a pause.

The speed is taken from `StreamingQueryProgress`: the first `WARM_UP_BATCHES` batches are discarded (Python workers
start, compilers warm up, state is created), and the rows of the next ones are divided by the wall time from the
start of the first of them to the end of the last.  That includes all that a batch costs: planning, offsets,
checkpoint, commit, and what lies between two batches.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from attrs import frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.spark_stateful.session import PARALLELISM

ROWS_PER_BATCH = 200_000
KEYS = 50_000
WARM_UP_BATCHES = 3

#: How often a running query is asked how far it is.  Asking is cheap beside a batch of this size.
POLL_INTERVAL_S = 0.05


@frozen
class Batch:
    """One finished micro-batch: its id, its rows, when it began (epoch seconds), and how long it took."""

    batch_id: int
    rows: int
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """When the batch was committed, in epoch seconds."""
        return self.start_s + self.duration_s


def micro_batches(spark: SparkSession, rows_per_batch: int) -> DataFrame:
    """A stream of `(timestamp, value)` with exactly `rows_per_batch` rows in each micro-batch, for ever."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_per_batch)
        .option("numPartitions", PARALLELISM)
        .load()
    )


def keyed_rows(spark: SparkSession) -> DataFrame:
    """The input of every contender: one column `key`, a long in `range(KEYS)`."""
    return micro_batches(spark, ROWS_PER_BATCH).selectExpr(f"value % {KEYS} AS key")


def run_to_noop(counts: DataFrame, checkpoint_dir: Path, batches: int) -> float:
    """Run the streaming frame `counts` into the noop sink; rows/s of `batches` batches after the warm-up."""
    writer = counts.writeStream.format("noop").outputMode("update")
    return steady_rows_per_second(run_batches(writer, checkpoint_dir, WARM_UP_BATCHES + batches))


def run_batches(writer: DataStreamWriter, checkpoint_dir: Path, batches: int) -> list[Batch]:
    """Start the query without pauses, wait for `batches` batches, stop it, and return what they took."""
    query = writer.option("checkpointLocation", str(checkpoint_dir)).trigger(processingTime="0 seconds").start()
    try:
        return await_batches(query, batches)
    finally:
        query.stop()


def await_batches(query: StreamingQuery, batches: int) -> list[Batch]:
    """The first `batches` batches of a running query, as soon as they are finished.

    The query must have a new checkpoint directory.  `batches` must be well below 100, the number of batches that a
    query remembers.  Raises what stopped the query, if it stops.
    """
    while True:
        last = query.lastProgress
        finished = last.batchId + 1 if last else 0
        if finished >= batches:
            return [_as_batch(progress) for progress in query.recentProgress[:batches]]
        if not query.isActive:
            query.awaitTermination()
            raise RuntimeError(f"the query ended after {finished} of {batches} batches")
        time.sleep(POLL_INTERVAL_S)


def steady_rows_per_second(finished: list[Batch]) -> float:
    """Rows per second of wall time over the batches that follow the `WARM_UP_BATCHES` first ones."""
    steady = finished[WARM_UP_BATCHES:]
    if not steady:
        raise ValueError(f"{len(finished)} batches are not more than the {WARM_UP_BATCHES} of the warm-up")
    return sum(batch.rows for batch in steady) / (steady[-1].end_s - steady[0].start_s)


def _as_batch(progress: Any) -> Batch:
    fields = json.loads(progress.json)
    start = datetime.strptime(fields["timestamp"], "%Y-%m-%dT%H:%M:%S.%f%z")
    return Batch(
        batch_id=fields["batchId"],
        rows=fields["numInputRows"],
        start_s=start.timestamp(),
        duration_s=fields["batchDuration"] / 1000,
    )
