"""Hourly counts per key: our windows, compared with `transformWithState` and with `groupBy(window, key)`.

A micro-batch has the rows of one hour, with `rows / keys` rows per key. All contenders allow ten minutes of
out-of-orderness and append a count at the end of its hour. From the third batch on, each batch opens a window for each
key and closes one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, window
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from benchmarks.result import Result
from benchmarks.spark_stateful.workload import micro_batches
from benchmarks.time.queries import our_query, spark_query, transformed_with_state
from benchmarks.time.spark_turns import Peer, compared_queries
from statebackend import ProcessWindowFunction, TumblingEventTimeWindows, WatermarkStrategy
from statebackend.spark import SparkStreamEnvironment
from statebackend.streaming.windows.windowed_stream import Count

HOUR_MS = 3_600_000
DELAY = "10 minutes"
OUTPUT_SCHEMA = "key bigint, start bigint, count bigint"

Rows = Callable[[SparkSession], DataFrame]

#: Not a DDL string, because `init` runs in a process without a session that could parse it.
HOUR_SCHEMA = StructType([StructField("start", LongType())])
COUNT_SCHEMA = StructType([StructField("count", LongType())])


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """Compare ours with both peers, in rows per second."""
    rows = partial(hourly_rows, rows_per_batch=arguments.rows, keys=arguments.keys)
    peers = {
        "transformWithState": Peer(partial(transform_with_state, rows), 10.0),
        "groupBy(window, key).count()": Peer(partial(grouped_count, rows), 0.6),
    }
    ours = {
        "windows": partial(our_windows, _counted, rows, arguments.backend),
        "windows, custom functions": partial(our_windows, _aggregated, rows, arguments.backend),
    }
    yield from compared_queries(ours, peers, arguments)


def hourly_rows(spark: SparkSession, rows_per_batch: int, keys: int) -> DataFrame:
    """Return a stream with the columns ``key`` and ``time``; each micro-batch is an hour."""
    milliseconds = f"value * {HOUR_MS} div {rows_per_batch}"
    return micro_batches(spark, rows_per_batch).selectExpr(
        f"value % {keys} AS key", f"timestamp_millis({milliseconds}) AS time"
    )


class OwnCount(Count):
    """A count as a custom aggregate, which the runtime cannot recognize as a count and applies record by record."""


class WithKeyAndStart(ProcessWindowFunction[int, Any, Any, Any]):
    """Adds key and window to a count."""

    def process(self, key: int, context: Any, elements: list[int]) -> Iterator[tuple[int, int, int]]:
        yield key, context.window.start, elements[0]


def _counted(windows: Any) -> Any:
    return windows.count(uid="hourly", schema="key bigint, start bigint, end bigint, count bigint")


def _aggregated(windows: Any) -> Any:
    return windows.aggregate(OwnCount(), WithKeyAndStart(), uid="hourly", schema=OUTPUT_SCHEMA)


def our_windows(
    count: Callable[[Any], Any], rows: Rows, backend: str, spark: SparkSession, directory: Path
) -> AbstractContextManager[StreamingQuery]:
    """Return the running query of our hourly windows with the given aggregation."""

    def stream(environment: SparkStreamEnvironment) -> Any:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY).with_timestamps("time")
        timed = environment.from_dataframe(rows(spark)).assign_timestamps_and_watermarks(strategy)
        return count(timed.key_by("key").window(TumblingEventTimeWindows.of("1 hour")))

    return our_query(spark, directory, backend, stream)


class HourlyCounter(StatefulProcessor):
    """The same as a processor of Spark: a map from hours to counts, and a timer for each hour."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._counts = handle.getMapState("counts", HOUR_SCHEMA, COUNT_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for start, count in Counter(row.ms - row.ms % HOUR_MS for row in rows).items():
            before = self._counts.getValue((start,))
            if before is None:
                self._handle.registerTimer(start + HOUR_MS)
            self._counts.updateValue((start,), (count if before is None else before[0] + count,))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        start = expiredTimerInfo.getExpiryTimeInMs() - HOUR_MS
        stored: Any = self._counts.getValue((start,))
        [count] = stored
        self._counts.removeKey((start,))
        yield Row(key=key[0], start=start, count=count)


def transform_with_state(rows: Rows, spark: SparkSession, directory: Path) -> AbstractContextManager[StreamingQuery]:
    """Return the running query of `HourlyCounter` on Spark."""
    timed = rows(spark).selectExpr("*", "unix_millis(time) AS ms").withWatermark("time", DELAY)
    counts = transformed_with_state(timed, HourlyCounter(), OUTPUT_SCHEMA, "Append", "EventTime")
    return spark_query(counts, directory, "append")


def grouped_count(rows: Rows, spark: SparkSession, directory: Path) -> AbstractContextManager[StreamingQuery]:
    """Return the running query of Spark's built-in aggregation, which runs in the JVM only."""
    timed = rows(spark).withWatermark("time", DELAY)
    return spark_query(timed.groupBy(window(col("time"), "1 hour"), col("key")).count(), directory, "append")
