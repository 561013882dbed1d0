"""Starts our jobs and Spark's queries with the noop sink in new directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.spark_stateful.session import PARALLELISM
from statebackend.spark import SparkStreamEnvironment
from statebackend.spark.frame_sinks import NoopSink
from statebackend.spark.job import SparkJob

__all__ = ["our_job", "our_query", "spark_query", "transformed_with_state"]


@contextmanager
def our_job(
    spark: SparkSession,
    directory: Path,
    backend: str,
    stream: Callable[[SparkStreamEnvironment], Any],
    interval: str = "0 seconds",
) -> Iterator[SparkJob]:
    """Yield a running job over the stream that `stream` adds to the environment, with one batch per interval."""
    environment = SparkStreamEnvironment(
        spark,
        job_dir=directory / "job",
        backend=backend,
        parallelism=PARALLELISM,
        local_state_directory=directory / "local",
    )
    stream(environment).sink_to(NoopSink())
    job = environment.execute("benchmark", trigger={"processingTime": interval})
    try:
        yield job
    finally:
        job.stop()


@contextmanager
def our_query(
    spark: SparkSession, directory: Path, backend: str, stream: Callable[[SparkStreamEnvironment], Any]
) -> Iterator[StreamingQuery]:
    """Yield the query of such a job."""
    with our_job(spark, directory, backend, stream) as job:
        yield job.query


@contextmanager
def spark_query(frame: DataFrame, directory: Path, output_mode: str) -> Iterator[StreamingQuery]:
    """Yield a running Spark query over a streaming frame."""
    writer = frame.writeStream.format("noop").outputMode(output_mode)
    query = writer.option("checkpointLocation", str(directory)).trigger(processingTime="0 seconds").start()
    try:
        yield query
    finally:
        query.stop()


def transformed_with_state(frame: DataFrame, processor: Any, schema: str, output_mode: str, mode: str) -> DataFrame:
    """Apply `transformWithState` by ``key``; `benchmarks.spark_stateful.peers` says why this needs no pandas."""
    with patch("pyspark.sql.pandas.functions.require_minimum_pandas_version"):
        return frame.groupBy("key").transformWithState(processor, schema, output_mode, mode)
