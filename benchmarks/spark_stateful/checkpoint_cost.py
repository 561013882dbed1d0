"""How the cost of an epoch and its checkpoint depends on the number of changed keys and of all keys.

A job counts keys from Parquet files, one file per epoch. The first file contains every key once and creates the state.
Each later file contains a number of random keys, drawn with a fixed seed. The results are medians of the job's own
metrics over those epochs: uploaded bytes, the snapshot time of the slowest subtask, and the duration of the epoch.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen
from pyspark.sql import SparkSession

from benchmarks.result import Result
from benchmarks.spark_stateful.ours import CountPerKey
from benchmarks.spark_stateful.session import PARALLELISM
from statebackend.spark import SparkStreamEnvironment
from statebackend.spark.frame_sinks import NoopSink

SMALL_STATE = 100_000
LARGE_STATE = 2_000_000
TOUCHED = 10_000
FEW_TOUCHED = 1_000
WARM_UP_EPOCHS = 3


@frozen
class Cost:
    """The medians of the measured epochs."""

    bytes_written: float
    snapshot_ms: float
    epoch_ms: float


def results(spark: SparkSession, checkpoints: Path, epochs: int) -> Iterator[Result]:
    """Compare a large with a small state, and few with many changed keys.

    The ideal ratio of the first comparison is 1. The ideal ratio of the bytes in the second is that of the changed
    keys.
    """
    small = cost(spark, checkpoints / "small", SMALL_STATE, TOUCHED, epochs)
    large = cost(spark, checkpoints / "large", LARGE_STATE, TOUCHED, epochs)
    few = cost(spark, checkpoints / "few", SMALL_STATE, FEW_TOUCHED, epochs)
    peer_name = f"{TOUCHED:,} keys of {SMALL_STATE:,}"
    for measure, unit in (("bytes_written", "bytes"), ("snapshot_ms", "ms"), ("epoch_ms", "ms")):
        name = measure.rpartition("_")[0].replace("bytes", "checkpoint bytes")
        yield Result(
            f"{name}: {TOUCHED:,} keys of {LARGE_STATE:,}",
            getattr(large, measure),
            getattr(small, measure),
            peer_name,
            unit,
        )
        yield Result(
            f"{name}: {FEW_TOUCHED:,} keys of {SMALL_STATE:,}",
            getattr(few, measure),
            getattr(small, measure),
            peer_name,
            unit,
        )


def cost(spark: SparkSession, directory: Path, keys: int, touched: int, epochs: int) -> Cost:
    """Measure epochs that change ``touched`` of ``keys`` keys."""
    source = directory / "source"
    source.mkdir(parents=True)
    draw = random.Random(keys * 31 + touched)
    _write_keys(source, 0, list(range(keys)))
    for number in range(1, WARM_UP_EPOCHS + epochs + 1):
        _write_keys(source, number, draw.sample(range(keys), touched))
    environment = SparkStreamEnvironment(
        spark,
        job_dir=directory / "job",
        backend="rocksdb",
        parallelism=PARALLELISM,
        local_state_directory=directory / "local",
    )
    stream = spark.readStream.schema("key bigint").option("maxFilesPerTrigger", 1).parquet(str(source))
    counts = environment.from_dataframe(stream).key_by("key")
    counts.process(CountPerKey(), uid="count", schema="key bigint, count bigint").sink_to(NoopSink())
    job = environment.execute("checkpoint cost", trigger={"availableNow": True})
    job.await_termination()
    measured = job.epochs[1 + WARM_UP_EPOCHS :]
    return Cost(
        median(epoch.bytes_written for epoch in measured),
        median(epoch.snapshot_s for epoch in measured) * 1000,
        median(epoch.duration_s for epoch in measured) * 1000,
    )


def _write_keys(directory: Path, number: int, keys: list[int]) -> None:
    path = directory / f"{number:05d}.parquet"
    pq.write_table(pa.table({"key": pa.array(keys, pa.int64())}), path)
    # The file source reads files in the order of their modification times.
    os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
