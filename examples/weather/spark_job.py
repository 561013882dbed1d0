"""The job on Spark: its two streams of files, its sinks, and a batch view of the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from examples.weather.job import VERSIONS, Outputs, build
from examples.weather.reports import FILES_PER_EPOCH, FLIGHT_SCHEMA, WEATHER_SCHEMA
from statebackend.spark import ParquetSink, SparkStreamEnvironment


def weather_job(
    spark: SparkSession,
    version: int,
    *,
    incoming: Path,
    job_dir: Path,
    rows: Path,
    airlines_url: str,
    backend: str,
    parallelism: int = 2,
    last_sink: Any = None,
) -> SparkStreamEnvironment:
    """Return the environment of one version of the job, ready to be checked or executed. Its rows go below ``rows``.

    ``last_sink`` is given the flights.
    """
    env = SparkStreamEnvironment(
        spark,
        job_dir=job_dir,
        backend=backend,
        parallelism=parallelism,
        local_state_directory=job_dir.with_name(f"{job_dir.name}-local"),
    )
    flights = env.from_dataframe(_stream(spark, incoming / "flights", FLIGHT_SCHEMA), uid="flights")
    build(
        VERSIONS[version],
        flights,
        env.from_dataframe(_stream(spark, incoming / "weather", WEATHER_SCHEMA), uid="observations"),
        airlines_url,
        Outputs(ParquetSink(rows / "delays"), ParquetSink(rows / "late"), ParquetSink(rows / "silent")),
    )
    if last_sink is not None:
        flights.sink_to(last_sink, uid="last")
    return env


def _stream(spark: SparkSession, directory: Path, schema: str) -> DataFrame:
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_EPOCH)
    return files.parquet(str(directory))
