"""The task of every contender, and how its speed is measured.

`keyed_rows` is an unbounded stream. Each micro-batch has `ROWS_PER_BATCH` rows, and their `key` cycles through all
`KEYS` keys. So each key occurs four times per batch, and the state has its full size after the first batch. The counts
go to the noop sink, and batches follow one another without a pause.

The speed comes from `StreamingQueryProgress`. The first `WARM_UP_BATCHES` batches are discarded, because Python workers
start, compilers warm up, and state is created. The rows of the following batches are divided by the wall time from the
start of the first of them to the end of the last. That includes planning, offsets, checkpoint, commit, and the time
between two batches.
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

#: Interval between requests for the progress of a query. A request is cheap compared with a batch of this size.
POLL_INTERVAL_S = 0.05


@frozen
class Batch:
    """A finished micro-batch: its id, its rows, its start in epoch seconds, and its duration."""

    batch_id: int
    rows: int
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """The time of the commit, in epoch seconds."""
        return self.start_s + self.duration_s


def micro_batches(spark: SparkSession, rows_per_batch: int) -> DataFrame:
    """Return an unbounded stream of `(timestamp, value)` with exactly `rows_per_batch` rows in each micro-batch."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_per_batch)
        .option("numPartitions", PARALLELISM)
        .load()
    )


def keyed_rows(spark: SparkSession) -> DataFrame:
    """Return the input of every contender: one column `key`, a long in `range(KEYS)`."""
    return micro_batches(spark, ROWS_PER_BATCH).selectExpr(f"value % {KEYS} AS key")


def run_to_noop(counts: DataFrame, checkpoint_dir: Path, batches: int) -> float:
    """Run the streaming frame `counts` into the noop sink; return rows/s of `batches` batches after the warm-up."""
    writer = counts.writeStream.format("noop").outputMode("update")
    return steady_rows_per_second(run_batches(writer, checkpoint_dir, WARM_UP_BATCHES + batches))


def run_batches(writer: DataStreamWriter, checkpoint_dir: Path, batches: int) -> list[Batch]:
    """Start the query without pauses, wait for `batches` batches, stop it, and return the batches."""
    query = writer.option("checkpointLocation", str(checkpoint_dir)).trigger(processingTime="0 seconds").start()
    try:
        return await_batches(query, batches)
    finally:
        query.stop()


def await_batches(query: StreamingQuery, batches: int) -> list[Batch]:
    """Return the first `batches` batches of a running query, as soon as they are finished.

    The query must have a new checkpoint directory. `batches` must be well below 100, the number of batches whose
    progress a query keeps. Raises the query's exception if the query fails.
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
    """Return the rows per second of wall time over the batches after the first `WARM_UP_BATCHES`."""
    steady = finished[WARM_UP_BATCHES:]
    if not steady:
        raise ValueError(f"{len(finished)} batches are too few after {WARM_UP_BATCHES} of warm-up")
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
