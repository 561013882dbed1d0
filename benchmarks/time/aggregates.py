"""Built-in aggregates, compared with Spark's: ``aggregate(count())``, and hourly windows with five aggregates.

The count is also measured as a `KeyedBatchFunction`.

`--keys` measures one number of keys instead of three, and `--peers` selects result lines by name.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.result import Result
from benchmarks.spark_stateful.ours import CountInBatches
from benchmarks.spark_stateful.workload import micro_batches
from benchmarks.time.queries import our_query, spark_query
from benchmarks.time.spark_turns import Peer, compared_queries
from benchmarks.time.windows import DELAY, hourly_rows
from statebackend import TumblingEventTimeWindows, WatermarkStrategy, avg, count, max_, min_, sum_
from statebackend.spark import SparkStreamEnvironment

AIMS = {("rocksdb", 1_000): 0.9, ("rocksdb", 50_000): 1.15, ("heap", 50_000): 1.25, ("rocksdb", 1_000_000): 1.3}
"""The required ratio, by backend and number of keys."""
WINDOWED_AIM = BATCH_FUNCTION_AIM = 1.1
OURS = ("rocksdb", "heap")


@frozen
class Turn:
    """A query with `rows` rows per micro-batch and `keys` keys; without a backend it is Spark's."""

    rows: int
    keys: int
    backend: str = ""
    is_windowed: bool = False
    is_batch_function: bool = False

    def __call__(self, spark: SparkSession, directory: Path) -> AbstractContextManager[StreamingQuery]:
        run = _windows if self.is_windowed else _counts
        return run(self, spark, directory)


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """Compare ours on each backend with Spark's own aggregation, in rows per second."""
    sizes = [1_000, 50_000, 1_000_000] if arguments.keys == 50_000 else [arguments.keys]
    for keys in sizes:
        turn = Turn(arguments.rows, keys)
        for backend in OURS:
            yield from _compared(
                f"aggregate(count()), {keys:,} keys", turn, backend, AIMS.get((backend, keys)), arguments
            )
    turn = Turn(arguments.rows, arguments.keys, is_batch_function=True)
    yield from _compared("count as KeyedBatchFunction", turn, "rocksdb", BATCH_FUNCTION_AIM, arguments)
    turn = Turn(arguments.rows, arguments.keys, is_windowed=True)
    for backend in OURS:
        yield from _compared("hourly windows, five aggregates", turn, backend, WINDOWED_AIM, arguments)


def _compared(
    name: str, turn: Turn, backend: str, aim: float | None, arguments: argparse.Namespace
) -> Iterator[Result]:
    line = f"{name}, {backend}"
    if arguments.peers and line not in arguments.peers:
        return
    peer = "groupBy(window, key).agg()" if turn.is_windowed else "groupBy().count()"
    options = argparse.Namespace(**{**vars(arguments), "peers": None})
    yield from compared_queries({line: evolve(turn, backend=backend)}, {peer: Peer(turn, aim)}, options)


def _counts(turn: Turn, spark: SparkSession, directory: Path) -> AbstractContextManager[StreamingQuery]:
    rows = micro_batches(spark, turn.rows).selectExpr(f"value % {turn.keys} AS key")
    if not turn.backend:
        return spark_query(rows.groupBy("key").count(), directory, "update")

    def stream(environment: SparkStreamEnvironment) -> Any:
        keyed = environment.from_dataframe(rows).key_by("key")
        if turn.is_batch_function:
            return keyed.process(CountInBatches(), uid="count", schema="key bigint, count bigint")
        return keyed.aggregate(uid="count", count=count())

    return our_query(spark, directory, turn.backend, stream)


def _windows(turn: Turn, spark: SparkSession, directory: Path) -> AbstractContextManager[StreamingQuery]:
    rows = with_amounts(hourly_rows(spark, turn.rows, turn.keys))
    if not turn.backend:
        timed = rows.withWatermark("time", DELAY)
        five = timed.groupBy(F.window("time", "1 hour"), "key").agg(
            F.count("*").alias("n"), F.sum("amount"), F.min("amount"), F.max("amount"), F.avg("amount")
        )
        return spark_query(five, directory, "append")

    def stream(environment: SparkStreamEnvironment) -> Any:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY).with_timestamps("time")
        timed = environment.from_dataframe(rows).assign_timestamps_and_watermarks(strategy)
        windows = timed.key_by("key").window(TumblingEventTimeWindows.of("1 hour"))
        return windows.aggregate(
            uid="hourly", n=count(), total=sum_("amount"), low=min_("amount"), high=max_("amount"), mean=avg("amount")
        )

    return our_query(spark, directory, turn.backend, stream)


def with_amounts(rows: DataFrame) -> DataFrame:
    """Return the rows with an additional amount that depends on their key."""
    return rows.withColumn("amount", (F.col("key") % 1_000).cast("int"))
