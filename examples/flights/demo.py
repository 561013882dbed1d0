"""The demonstration: a job is killed, upgraded, rescaled and moved to another backend, and loses nothing.

1. Version 1 processes the first half of the year in driver processes; one of them is killed.
2. Version 2 processes the rest, twice: from one savepoint, with RocksDB and with the heap backend.
3. All rows and all state of both must equal the result of a plain Spark query over the whole year.

Any difference ends the demonstration with status 1.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from pyspark.sql import SparkSession

from examples.data.flights_dataset import PART_COUNT
from examples.data.staging import stage_flights
from examples.demonstration.command import run_command
from examples.demonstration.comparison import (
    DifferenceError,
    require_equal_rows,
    require_equal_states,
    written_rows,
)
from examples.demonstration.driven_job import PROCESS_WHAT_ARRIVES, epochs_reported
from examples.demonstration.driver_process import DriverProcess
from examples.demonstration.narration import restore_table
from examples.demonstration.spark_session import start_spark
from examples.demonstration.stage import Stage, run_demonstration
from examples.flights.expected import IDENTITY, expected_rows, expected_states, running_totals
from examples.flights.flights_source import KEY, flights_table
from examples.flights.job import JOB_NAME, flights_job
from examples.flights.savepoint_contents import state_contents
from examples.flights.version_2 import UID
from statebackend import StateMigrationException
from statebackend.spark import SparkStreamEnvironment

BACKENDS = ("rocksdb", "heap")
FEWEST_PARTS = 6
UPGRADE = "upgrade"
"""The savepoint at which version 1 ends and version 2 begins."""


def first_half(stage: Stage) -> None:
    """Steps 1 to 3: run version 1, kill it, start it again, and stop it with a savepoint."""
    stage.narrator.step("1. Version 1 runs on the first half of the year: RocksDB, parallelism 2")
    stage_flights(stage.incoming, 0, stage.half)
    stage.say(f"{stage.half} files lie before the stream; each becomes a micro-batch, an epoch, a checkpoint")
    driver = _start_driver(stage, "version-1-killed")
    stage.say(f"driver process {driver.pid} is started")
    try:
        killed_in = driver.kill_in_epoch_after(stage.half // 5)
    finally:
        driver.kill()

    stage.narrator.step("2. Its driver process is killed in the middle of an epoch, and started again")
    completed = driver.completed_epoch()
    if completed != killed_in - 1:
        raise DifferenceError(f"the kill should have hit epoch {killed_in}, but epoch {completed} is complete")
    stage.say(f"SIGKILL to process {driver.pid}, Python and JVM at once, while it was writing epoch {killed_in}")
    stage.say(f"its rows and its state are on the disk, but no checkpoint {killed_in}: epoch {completed} counts")
    driver = _start_driver(stage, "version-1")
    stage.say(f"driver process {driver.pid} is started, with the same command")
    try:
        driver.wait()
    finally:
        driver.kill()

    stage.narrator.step("3. It has been stopped with a savepoint")
    rows = written_rows(stage.rows_dir("version-1"), _identity_schema())
    written, different = len(rows), len(rows.group_by(list(IDENTITY)).aggregate([]))
    arrived = pyarrow.dataset.dataset(stage.incoming, format="parquet").count_rows(filter=~pc.field(KEY).is_null())
    if not written == different == arrived:
        raise DifferenceError(f"{arrived:,} flights came in, {written:,} rows went out, {different:,} different ones")
    stage.say(f"{arrived:,} flights came in, and as many different rows went out: none is lost, none is there twice")


def upgrade(stage: Stage, spark: SparkSession) -> None:
    """Step 4: restore the savepoint in version 2, with either backend, and process one more part."""
    stage.narrator.step("4. Version 2 restores the savepoint: another schema of the state, parallelism 3")
    stage.say("its first epoch migrates the state; this is done twice, each time in a new job directory")
    stage_flights(stage.incoming, stage.half, stage.half + 1)
    # The tables below show the field that is lost.
    logging.getLogger("statebackend.streaming.stream_environment").setLevel(logging.ERROR)
    for backend in BACKENDS:
        stage.say(f"\nbackend {backend}")
        job = _version_2(stage, spark, backend).execute(
            JOB_NAME, trigger=PROCESS_WHAT_ARRIVES, from_savepoint=stage.savepoint(UPGRADE)
        )
        try:
            with epochs_reported(job, stage.narrator.epoch):
                job.process_all_available()
            restore_table(stage.narrator, job.restore_report())
        finally:
            job.stop()


def reject(stage: Stage, spark: SparkSession) -> None:
    """Step 5: start version 3, which is incompatible. No file may change."""
    stage.narrator.step("5. Version 3, which is incompatible, is rejected")
    before = _files_below(stage.root)
    env = _environment(stage, spark, 3, "version-3", "rocksdb", 2)
    try:
        env.execute(JOB_NAME, trigger=PROCESS_WHAT_ARRIVES, from_savepoint=stage.savepoint(UPGRADE)).stop()
    except StateMigrationException as rejection:
        stage.say(str(rejection))
    else:
        raise DifferenceError("version 3 was started, though its state is incompatible")
    if stage.job_dir("version-3").exists() or _files_below(stage.root) != before:
        raise DifferenceError("version 3 was rejected, but something was written before")
    stage.say(
        f"nothing was touched: the directory {stage.job_dir('version-3').name} was not made, "
        f"and all {len(before):,} files are as they were"
    )


def second_half(stage: Stage, spark: SparkSession) -> None:
    """Step 6, first part: process the rest of the year, with either backend."""
    stage.narrator.step("6. The rest of the year is processed, and everything is compared")
    stage_flights(stage.incoming, stage.half + 1, stage.parts)
    for backend in BACKENDS:
        started_s = stage.narrator.elapsed_s
        job = _version_2(stage, spark, backend).execute(JOB_NAME, trigger=PROCESS_WHAT_ARRIVES)
        stage.say(f"backend {backend}, continuing after epoch {job.last_completed_epoch}")
        try:
            with epochs_reported(job, stage.narrator.epoch):
                job.process_all_available()
        except BaseException:
            job.stop()
            raise
        job.stop_with_savepoint(_final_savepoint(stage, backend))
        stage.say(f"stopped with a savepoint after {stage.narrator.elapsed_s - started_s:.1f} s")


def compare(stage: Stage, spark: SparkSession) -> None:
    """Step 6, second part: compare every row and every state entry with a plain batch query."""
    stage.say("a plain Spark batch query over the same files is compared with what the jobs have left")
    flights = flights_table(spark, stage.incoming, stage.half).persist()
    totals = running_totals(flights).persist()
    version_1_rows, version_2_rows = expected_rows(totals)
    states = expected_states(flights, totals)
    results: list[tuple[str, str, str]] = []

    actual = written_rows(stage.rows_dir("version-1"), version_1_rows.schema)
    require_equal_rows("the rows of version 1", version_1_rows, actual, IDENTITY)
    results.append(("version 1, rocksdb", "rows", f"{len(actual):,}"))
    for backend in BACKENDS:
        name = _version_2_name(backend)
        who = f"version 2, {backend}"
        actual = written_rows(stage.rows_dir(name), version_2_rows.schema)
        require_equal_rows(f"the rows of {who}", version_2_rows, actual, IDENTITY)
        results.append((who, "rows", f"{len(actual):,}"))
        contents = {state: state_contents(_final_savepoint(stage, backend), UID, state) for state in states}
        require_equal_states(who, states, contents)
        results += [(who, f"state {state}", f"{len(entries):,}") for state, entries in contents.items()]
    stage.narrator.table(("written by", "compared", "all equal"), results, right=(2,))


def look(stage: Stage) -> None:
    """Step 7: read the savepoints on the command line, without Spark and without the job's classes."""
    stage.narrator.step("7. What the savepoints hold, from the command line")
    final = str(_final_savepoint(stage, "rocksdb"))
    aircraft = next(iter(state_contents(Path(final), UID, "aircraft")))
    run_command(stage, "inspect", final)
    run_command(stage, "show", final, UID, "aircraft", "--key", aircraft)
    run_command(stage, "diff", str(stage.savepoint(UPGRADE)), final, status=1)


def run_steps(stage: Stage) -> None:
    """Run all steps. Raises `DifferenceError` or `DriverFailedError`."""
    first_half(stage)
    spark = start_spark(stage.log("version-2"))
    try:
        upgrade(stage, spark)
        reject(stage, spark)
        second_half(stage, spark)
        compare(stage, spark)
    finally:
        spark.stop()
    look(stage)
    stage.narrator.step("Done: nothing was lost, nothing was done twice, and every value is what it should be.")


def main(arguments: Sequence[str]) -> int:
    """Run the demonstration; return the exit status."""
    return run_demonstration(
        "examples.flights", __doc__, run_steps, arguments, parts=PART_COUNT, fewest_parts=FEWEST_PARTS
    )


def _identity_schema() -> pa.Schema:
    return pa.schema(
        [
            ("tailnum", pa.string()),
            ("departure", pa.timestamp("us", tz="UTC")),
            ("origin", pa.string()),
            ("carrier", pa.string()),
            ("flight", pa.int32()),
        ]
    )


def _files_below(root: Path) -> set[tuple[Path, int, int]]:
    """Return every file of the jobs with its size and modification time, without logs and scratch files."""
    found = set()
    for directory in root.iterdir():
        if directory.name not in ("logs", "scratch"):
            for path in directory.rglob("*"):
                status = path.stat()
                found.add((path, status.st_size, status.st_mtime_ns))
    return found


def _start_driver(stage: Stage, log_name: str) -> DriverProcess:
    job_dir, rows_dir, log = stage.job_dir("version-1"), stage.rows_dir("version-1"), stage.log(log_name)
    arguments = [
        *("--input", str(stage.incoming)),
        *("--job-dir", str(job_dir)),
        *("--rows", str(rows_dir)),
        *("--savepoint", str(stage.savepoint(UPGRADE))),
        *("--log", str(log)),
    ]
    return DriverProcess("examples.flights.driver", arguments, stage.narrator.relay, job_dir=job_dir, log=log)


def _final_savepoint(stage: Stage, backend: str) -> Path:
    return stage.savepoint(f"final-{_version_2_name(backend)}")


def _version_2_name(backend: str) -> str:
    return f"version-2-{backend}"


def _version_2(stage: Stage, spark: SparkSession, backend: str) -> SparkStreamEnvironment:
    return _environment(stage, spark, 2, _version_2_name(backend), backend, 3)


def _environment(
    stage: Stage, spark: SparkSession, version: int, name: str, backend: str, parallelism: int
) -> SparkStreamEnvironment:
    return flights_job(
        spark,
        version,
        input_dir=stage.incoming,
        job_dir=stage.job_dir(name),
        rows_dir=stage.rows_dir(name),
        backend=backend,
        parallelism=parallelism,
    )
