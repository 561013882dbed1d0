"""One program for Spark's `transformWithState`, run on Spark itself and unchanged on our state.

The program (`benchmarks.spark_stateful.peers.RowCounter`) counts the rows of each key: one `get`, one `update` and one
row per key and batch, the minimum of such a program.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.result import Result
from benchmarks.spark_stateful.peers import OUTPUT_SCHEMA, RowCounter
from benchmarks.spark_stateful.workload import micro_batches
from benchmarks.time.queries import our_query, spark_query, transformed_with_state
from benchmarks.time.spark_turns import Peer, compared_queries
from statebackend.spark import SparkStreamEnvironment

Rows = Callable[[SparkSession], DataFrame]


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """Compare ours with Spark's, in rows per second."""

    def rows(spark: SparkSession) -> DataFrame:
        return micro_batches(spark, arguments.rows).selectExpr(f"value % {arguments.keys} AS key")

    ours = {"processor": partial(on_our_state, rows, arguments.backend)}
    yield from compared_queries(ours, {"transformWithState": Peer(partial(on_spark, rows), 5.0)}, arguments)


def on_our_state(
    rows: Rows, backend: str, spark: SparkSession, directory: Path
) -> AbstractContextManager[StreamingQuery]:
    """Return the running program on our state."""

    def stream(environment: SparkStreamEnvironment) -> Any:
        groups = environment.from_dataframe(rows(spark)).group_by("key")
        return groups.transform_with_state(RowCounter(), OUTPUT_SCHEMA, "update", "none", uid="count")

    return our_query(spark, directory, backend, stream)


def on_spark(rows: Rows, spark: SparkSession, directory: Path) -> AbstractContextManager[StreamingQuery]:
    """Return the running program on Spark."""
    counts = transformed_with_state(rows(spark), RowCounter(), OUTPUT_SCHEMA, "Update", "None")
    return spark_query(counts, directory, "update")
