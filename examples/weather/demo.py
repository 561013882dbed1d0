"""The demonstration: windows, timers, late flights and async requests, through a kill and an upgrade.

Version 1 processes the first half of the year, and its driver process is killed in the middle of an epoch. Version 2,
whose window accumulator has one more field, processes the rest. Every row of every output must equal the result of
plain Spark queries over the whole year. Any difference ends the demonstration with status 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from examples.data.weather_dataset import read_airlines
from examples.demonstration.comparison import DifferenceError, require_equal_rows, written_rows
from examples.demonstration.driven_job import PROCESS_WHAT_ARRIVES, epochs_reported, run_to_savepoint
from examples.demonstration.driver_process import DriverProcess
from examples.demonstration.narration import restore_table
from examples.demonstration.spark_session import start_spark
from examples.demonstration.stage import Stage, run_demonstration
from examples.weather.airline_names import AirlineServer
from examples.weather.expected import expected_delays, expected_late, expected_silent, make_views
from examples.weather.job import JOB_NAME, LATENESS, OUT_OF_ORDER
from examples.weather.reports import EPOCHS, FILES_PER_EPOCH, FLIGHT_ORDER, stage_reports
from examples.weather.spark_job import weather_job
from statebackend.spark import SparkStreamEnvironment

FEWEST_PARTS = 2


def killed(stage: Stage, airlines_url: str) -> None:
    """Step 1: run version 1 on the first half of the year, and kill its driver process."""
    stage.narrator.step("1. Version 1 runs on the first half of the year, and is killed in the middle of an epoch")
    stage_reports(stage.incoming, 0, stage.half)
    stage.say(
        f"flights and weather come as they are reported, {FILES_PER_EPOCH} files of each an epoch; time is "
        f"{OUT_OF_ORDER} behind the latest departure, and an hour may change for {LATENESS} more"
    )
    job_dir, log = stage.job_dir("version-1"), stage.log("version-1-killed")
    arguments = [
        *("--input", str(stage.incoming)),
        *("--job-dir", str(job_dir)),
        *("--rows", str(stage.rows_dir("version-1"))),
        *("--savepoint", str(stage.savepoint("upgrade"))),
        *("--airlines", airlines_url),
        *("--log", str(log)),
    ]
    driver = DriverProcess("examples.weather.driver", arguments, stage.narrator.relay, job_dir=job_dir, log=log)
    try:
        killed_in = driver.kill_in_epoch_after(stage.half // 2)
    finally:
        driver.kill()
    completed = driver.completed_epoch()
    if completed != killed_in - 1:
        raise DifferenceError(f"the kill should have hit epoch {killed_in}, but epoch {completed} is complete")
    stage.say(
        f"SIGKILL to process {driver.pid}, Python and JVM at once, while it was writing epoch {killed_in}: its rows "
        f"and its state are on the disk, but no checkpoint {killed_in}"
    )


def continued(stage: Stage, spark: SparkSession, airlines_url: str) -> None:
    """Step 2: start version 1 again, and stop it with a savepoint."""
    stage.narrator.step("2. Version 1 is started again, in this process, and stops with a savepoint")
    run_to_savepoint(
        _job(stage, spark, 1, airlines_url), JOB_NAME, stage.savepoint("upgrade"), stage.say, stage.narrator.epoch
    )


def upgraded(stage: Stage, spark: SparkSession, airlines_url: str) -> None:
    """Step 3: restore the savepoint in version 2, and process the rest of the year."""
    stage.narrator.step("3. Version 2 goes on from the savepoint: windows with a field more, the heap for RocksDB")
    stage_reports(stage.incoming, stage.half, stage.parts)
    env = _job(stage, spark, 2, airlines_url)
    job = env.execute(JOB_NAME, trigger=PROCESS_WHAT_ARRIVES, from_savepoint=stage.savepoint("upgrade"))
    try:
        with epochs_reported(job, stage.narrator.epoch):
            job.process_all_available()
        restore_table(stage.narrator, job.restore_report())
    finally:
        job.stop()


def compare(stage: Stage, spark: SparkSession, server: AirlineServer) -> None:
    """Step 4: compare every row of every output with plain batch queries."""
    stage.narrator.step("4. Every row is compared with plain Spark SQL over the whole year")
    make_views(spark, stage.incoming, stage.half)
    results = []
    for version, expected in zip((1, 2), expected_delays(spark, stage.half), strict=True):
        actual = written_rows(stage.rows_dir(f"version-{version}") / "delays", expected.schema)
        what = f"delays by the hour, version {version}"
        require_equal_rows(what, expected, actual, ("airport", "hour", "flights"))
        results.append((what, f"{len(actual):,}"))
    for name, what, expected, identity in (
        ("late", "flights reported too late, with airline", expected_late(spark), tuple(FLIGHT_ORDER)),
        ("silent", "aircraft silent for seven days", expected_silent(spark), ("tailnum", "last_departure")),
    ):
        versions = [written_rows(stage.rows_dir(f"version-{version}") / name, expected.schema) for version in (1, 2)]
        actual = pa.concat_tables(versions)
        require_equal_rows(what, expected, actual, identity)
        results.append((what, f"{len(actual):,}"))
    stage.narrator.table(("output", "rows, all equal"), results, right=(1,))
    stage.say(
        f"the server of airlines received {server.requests:,} requests, "
        f"and said {server.rejected:,} times that it is busy"
    )


def run_steps(stage: Stage) -> None:
    """Run all steps. Raises `DifferenceError` or `DriverFailedError`."""
    server = AirlineServer(read_airlines())
    try:
        killed(stage, server.url)
        spark = start_spark(stage.log("spark"))
        try:
            continued(stage, spark, server.url)
            upgraded(stage, spark, server.url)
            compare(stage, spark, server)
        finally:
            spark.stop()
    finally:
        server.close()
    stage.narrator.step("Done: every window and timer fired, and no row was emitted twice.")


def main(arguments: Sequence[str]) -> int:
    """Run the demonstration; return the exit status."""
    return run_demonstration("examples.weather", __doc__, run_steps, arguments, parts=EPOCHS, fewest_parts=FEWEST_PARTS)


def _job(stage: Stage, spark: SparkSession, version: int, airlines_url: str) -> SparkStreamEnvironment:
    name = f"version-{version}"
    return weather_job(
        spark,
        version,
        incoming=stage.incoming,
        job_dir=stage.job_dir(name),
        rows=stage.rows_dir(name),
        airlines_url=airlines_url,
        backend={1: "rocksdb", 2: "heap"}[version],
    )
