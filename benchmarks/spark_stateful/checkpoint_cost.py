"""How an epoch and its checkpoint depend on the keys touched, and on the keys there are.

A job counts keys that it reads from Parquet files, one file an epoch. The first file has every key once, which makes
the state; each later one has as many keys as are to be touched, drawn at random with a fixed seed. What is taken is the
median over those epochs of what the job's own statistics say: bytes uploaded, the time of the slowest subtask's
snapshot, and the time of the whole epoch.
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
    """The medians over the measured epochs."""

    bytes_written: float
    snapshot_ms: float
    epoch_ms: float


def results(spark: SparkSession, checkpoints: Path, epochs: int) -> Iterator[Result]:
    """The cost at a large state beside that at a small one, and of many keys beside few: ratios near 1 are the aim
    for the first, near touched keys' ratio for the bytes of the second.
    """
    small = cost(spark, checkpoints / "small", SMALL_STATE, TOUCHED, epochs)
    large = cost(spark, checkpoints / "large", LARGE_STATE, TOUCHED, epochs)
    few = cost(spark, checkpoints / "few", SMALL_STATE, FEW_TOUCHED, epochs)
    beside_small = f"{TOUCHED:,} keys of {SMALL_STATE:,}"
    for measure, unit in (("bytes_written", "bytes"), ("snapshot_ms", "ms"), ("epoch_ms", "ms")):
        name = measure.rpartition("_")[0].replace("bytes", "checkpoint bytes")
        yield Result(
            f"{name}: {TOUCHED:,} keys of {LARGE_STATE:,}",
            getattr(large, measure),
            getattr(small, measure),
            beside_small,
            unit,
        )
        yield Result(
            f"{name}: {FEW_TOUCHED:,} keys of {SMALL_STATE:,}",
            getattr(few, measure),
            getattr(small, measure),
            beside_small,
            unit,
        )


def cost(spark: SparkSession, directory: Path, keys: int, touched: int, epochs: int) -> Cost:
    """What an epoch costs that touches ``touched`` of ``keys`` keys."""
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
    # The file source takes files in the order of their modification times.
    os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
