"""A version of the job on Spark: the chain from the files to the rows, and waiting for it with its epochs reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from pyspark.sql import SparkSession

from examples.flights import version_1, version_2, version_3
from examples.flights.flights_source import KEY, ORDER, flights_stream
from streamjobs.spark import ParquetSink, SparkJob, SparkStreamEnvironment

JOB_NAME: Final = "flights"

VERSIONS: Final[dict[int, ModuleType]] = {1: version_1, 2: version_2, 3: version_3}


def flights_job(
    spark: SparkSession,
    version: int,
    *,
    input_dir: Path,
    job_dir: Path,
    rows_dir: Path,
    backend: str,
    parallelism: int,
) -> SparkStreamEnvironment:
    """The environment of one version of the job, ready to be checked or executed."""
    program = VERSIONS[version]
    env = SparkStreamEnvironment(
        spark,
        job_dir=job_dir,
        backend=backend,
        parallelism=parallelism,
        local_state_directory=job_dir.with_name(f"{job_dir.name}-local"),
    )
    (
        env.from_dataframe(flights_stream(spark, input_dir))
        .key_by(KEY)
        .process(program.FollowAircraft(), uid=program.UID, schema=program.OUTPUT_SCHEMA, order_by=ORDER)
        .sink_to(ParquetSink(rows_dir))
    )
    return env


@contextmanager
def epochs_reported(job: SparkJob, report: Callable[[int], None]) -> Iterator[None]:
    """Within the block ``report`` is called, from another thread, with every epoch that completes."""
    is_over = threading.Event()

    def watch() -> None:
        reported = 0
        is_last_look = False
        while not is_last_look:
            is_last_look = is_over.wait(0.05)
            completed = job.epochs
            for epoch in completed[reported:]:
                report(epoch.epoch_id)
            reported = len(completed)

    watcher = threading.Thread(target=watch, name="epochs", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
