"""A version of the job on Spark, from the input files to the sink."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pyspark.sql import SparkSession

from examples.flights import version_1, version_2, version_3
from examples.flights.flights_source import KEY, ORDER, flights_stream
from statebackend.checkpoint.ha.services import JobServices
from statebackend.spark import ParquetSink, SparkStreamEnvironment

JOB_NAME: Final = "flights"

VERSIONS: Final[dict[int, ModuleType]] = {1: version_1, 2: version_2, 3: version_3}


def flights_job(
    spark: SparkSession,
    version: int,
    *,
    input_dir: Path,
    job_dir: Path | str,
    rows_dir: Path | str,
    backend: str,
    parallelism: int,
    last_sink: Any = None,
    spark_log_dir: Path | None = None,
    high_availability: JobServices | None = None,
) -> SparkStreamEnvironment:
    """Return the environment of one version of the job, ready to be checked or executed.

    A job directory on an object store is a URI, and needs ``spark_log_dir``. ``last_sink`` is given the flights.
    """
    program = VERSIONS[version]
    beside = Path(job_dir) if spark_log_dir is None else spark_log_dir
    env = SparkStreamEnvironment(
        spark,
        job_dir=job_dir,
        backend=backend,
        parallelism=parallelism,
        local_state_directory=beside.with_name(f"{beside.name}-local"),
        spark_log_directory=spark_log_dir,
        high_availability=high_availability,
    )
    flights = env.from_dataframe(flights_stream(spark, input_dir))
    (
        flights.key_by(KEY)
        .process(program.FollowAircraft(), uid=program.UID, order_by=ORDER)
        .sink_to(ParquetSink(rows_dir))
    )
    if last_sink is not None:
        flights.sink_to(last_sink, uid="last")
    return env
