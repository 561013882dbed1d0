"""One program for Spark's `transformWithState` on Spark itself, and as it is on our state.

The program (`benchmarks.spark_stateful.peers.RowCounter`) counts the rows of each key: one `get`, one `update` and one
row for each key and batch, which is the least that a program does. Its input and how its speed is taken are those of
`benchmarks.spark_stateful.workload`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result, format_value
from benchmarks.spark_stateful.session import PARALLELISM, benchmark_session
from benchmarks.spark_stateful.workload import (
    WARM_UP_BATCHES,
    await_batches,
    keyed_rows,
    steady_rows_per_second,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AIM = 5.0
PEER = "transformWithState"


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """Ours beside Spark's, in rows a second."""
    from benchmarks.spark_stateful.peers import transform_with_state

    with benchmark_session() as (spark, checkpoints):

        def turn_of(name: str, contender: Callable[[SparkSession, Path, int], float]) -> Callable[[], float]:
            def turn() -> float:
                with TemporaryDirectory(dir=checkpoints) as directory:
                    speed = contender(spark, Path(directory), arguments.batches)
                print(f"{name}: {format_value(speed)} rows/s", file=sys.stderr, flush=True)
                return speed

            return turn

        turns = {name: turn_of(name, one) for name, one in (("ours", on_our_state), (PEER, transform_with_state))}
        measured = measure_alternating(turns, rounds=arguments.rounds)
    yield Result("processor", measured["ours"].median, measured[PEER].median, PEER, "rows/s", AIM)


def on_our_state(spark: SparkSession, directory: Path, batches: int) -> float:
    """Rows per second of the program on our state."""
    from benchmarks.spark_stateful.peers import OUTPUT_SCHEMA, RowCounter
    from streamjobs.spark import SparkStreamEnvironment
    from streamjobs.spark.sinks import NoopSink

    environment = SparkStreamEnvironment(
        spark,
        job_dir=directory / "job",
        backend="rocksdb",
        parallelism=PARALLELISM,
        local_state_directory=directory / "local",
    )
    groups = environment.from_dataframe(keyed_rows(spark)).group_by("key")
    groups.transform_with_state(RowCounter(), OUTPUT_SCHEMA, "update", "none", uid="count").sink_to(NoopSink())
    job = environment.execute("processor", trigger={"processingTime": "0 seconds"})
    try:
        return steady_rows_per_second(await_batches(job.query, WARM_UP_BATCHES + batches))
    finally:
        job.stop()
