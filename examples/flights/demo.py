"""The demonstration: a job is killed, upgraded, rescaled, moved to another backend, and loses nothing.

The first half of the year is the work of version 1, in driver processes of their own, one of which is killed. The rest
is the work of version 2, in this process, twice: from one savepoint the job goes on with RocksDB and with the heap.
In the end all rows and all state of both must equal what a plain Spark query says about the whole year. Any difference
ends the demonstration with status 1.

Everything is written below one temporary directory:

    incoming/                       the flights, as they arrive
    version-1/, version-2-rocksdb/  a job directory each, and beside it ...-rows/ and ...-local/
    savepoints/, logs/, scratch/
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from attrs import frozen
from pyspark.sql import SparkSession

from checkpointing.errors import CheckpointError
from examples.data.flights_dataset import PART_COUNT
from examples.data.staging import stage_flights
from examples.flights.comparison import (
    DifferenceError,
    require_equal_rows,
    require_equal_states,
    written_rows,
)
from examples.flights.driver_process import DriverFailedError, DriverProcess
from examples.flights.expected import IDENTITY, expected_rows, expected_states, running_totals
from examples.flights.flights_source import KEY, flights_table
from examples.flights.job import JOB_NAME, epochs_reported, flights_job
from examples.flights.narration import Narrator, restore_table
from examples.flights.savepoint_contents import state_contents
from examples.flights.spark_session import start_spark
from examples.flights.version_2 import UID
from statebackend import StateBackendError, StateMigrationException
from streamjobs import StreamJobError
from streamjobs.spark import SparkStreamEnvironment

BACKENDS = ("rocksdb", "heap")
PROCESS_WHAT_ARRIVES = {"processingTime": "0 seconds"}
FEWEST_PARTS = 6


@frozen
class Story:
    """What the steps share: the directory, how many parts of the year there are, and who tells."""

    root: Path
    parts: int
    narrator: Narrator

    @property
    def half(self) -> int:
        """The first part of the second half of the year."""
        return self.parts // 2

    @property
    def incoming(self) -> Path:
        return self.root / "incoming"

    @property
    def upgrade_savepoint(self) -> Path:
        """Where version 1 ends and version 2 begins."""
        return self.root / "savepoints" / "upgrade"

    def job_dir(self, name: str) -> Path:
        return self.root / name

    def rows_dir(self, name: str) -> Path:
        return self.root / f"{name}-rows"

    def final_savepoint(self, name: str) -> Path:
        return self.root / "savepoints" / f"final-{name}"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def say(self, text: str) -> None:
        self.narrator.say(text)


def first_half(story: Story) -> None:
    """Steps 1 to 3: version 1 runs, is killed, is started again, and is stopped with a savepoint."""
    story.narrator.step("1. Version 1 runs on the first half of the year: RocksDB, parallelism 2")
    stage_flights(story.incoming, 0, story.half)
    story.say(f"{story.half} files lie before the stream; each becomes a micro-batch, an epoch, a checkpoint")
    driver = _start_driver(story, "version-1-killed")
    story.say(f"driver process {driver.pid} is started")
    try:
        killed_in = driver.kill_in_epoch_after(story.half // 5)
    finally:
        driver.kill()

    story.narrator.step("2. Its driver process is killed in the middle of an epoch, and started again")
    completed = driver.completed_epoch()
    if completed != killed_in - 1:
        raise DifferenceError(f"the kill should have hit epoch {killed_in}, but epoch {completed} is complete")
    story.say(f"SIGKILL to process {driver.pid}, Python and JVM at once, while tasks were writing epoch {killed_in}")
    story.say(f"no checkpoint {killed_in}, but half-written rows; epoch {completed} is the last that counts")
    driver = _start_driver(story, "version-1")
    story.say(f"driver process {driver.pid} is started, with the same command")
    try:
        driver.wait()
    finally:
        driver.kill()

    story.narrator.step("3. It has been stopped with a savepoint")
    rows = written_rows(story.rows_dir("version-1"), _identity_schema())
    written, different = len(rows), len(rows.group_by(list(IDENTITY)).aggregate([]))
    arrived = pyarrow.dataset.dataset(story.incoming, format="parquet").count_rows(filter=~pc.field(KEY).is_null())
    if not written == different == arrived:
        raise DifferenceError(f"{arrived:,} flights came in, {written:,} rows went out, {different:,} different ones")
    story.say(f"{arrived:,} flights came in, and as many different rows went out: none is lost, none is there twice")


def upgrade(story: Story, spark: SparkSession) -> None:
    """Step 4: version 2 restores the savepoint, with either backend, and processes one more part."""
    story.narrator.step("4. Version 2 restores the savepoint: another schema of the state, parallelism 3")
    story.say("its first epoch migrates the state; this is done twice, each time in a new job directory")
    stage_flights(story.incoming, story.half, story.half + 1)
    for backend in BACKENDS:
        story.say(f"\nbackend {backend}")
        job = _version_2(story, spark, backend).execute(
            JOB_NAME, trigger=PROCESS_WHAT_ARRIVES, from_savepoint=story.upgrade_savepoint
        )
        try:
            with epochs_reported(job, story.narrator.epoch):
                job.process_all_available()
            restore_table(story.narrator, job.restore_report())
        finally:
            job.stop()


def refuse(story: Story, spark: SparkSession) -> None:
    """Step 5: version 3 cannot take over the state, and nothing is touched."""
    story.narrator.step("5. Version 3, which is incompatible, is refused")
    before = _files_below(story.root)
    env = _environment(story, spark, 3, "version-3", "rocksdb", 2)
    try:
        env.execute(JOB_NAME, trigger=PROCESS_WHAT_ARRIVES, from_savepoint=story.upgrade_savepoint).stop()
    except StateMigrationException as refusal:
        story.say(str(refusal))
    else:
        raise DifferenceError("version 3 was started, though its state is incompatible")
    if story.job_dir("version-3").exists() or _files_below(story.root) != before:
        raise DifferenceError("version 3 was refused, but something was written before")
    story.say(
        f"nothing was touched: the directory {story.job_dir('version-3').name} was not made, "
        f"and all {len(before):,} files are as they were"
    )


def second_half(story: Story, spark: SparkSession) -> None:
    """Step 6, first part: the rest of the year, with either backend."""
    story.narrator.step("6. The rest of the year is processed, and everything is compared")
    stage_flights(story.incoming, story.half + 1, story.parts)
    for backend in BACKENDS:
        started_s = story.narrator.elapsed_s
        job = _version_2(story, spark, backend).execute(JOB_NAME, trigger=PROCESS_WHAT_ARRIVES)
        story.say(f"backend {backend}, continuing after epoch {job.last_completed_epoch}")
        try:
            with epochs_reported(job, story.narrator.epoch):
                job.process_all_available()
        except BaseException:
            job.stop()
            raise
        job.stop_with_savepoint(story.final_savepoint(_version_2_name(backend)))
        story.say(f"stopped with a savepoint after {story.narrator.elapsed_s - started_s:.1f} s")


def compare(story: Story, spark: SparkSession) -> None:
    """Step 6, second part: every row and every state entry against a plain batch query."""
    story.say("a plain Spark batch query over the same files is compared with what the jobs have left")
    flights = flights_table(spark, story.incoming, story.half).persist()
    totals = running_totals(flights).persist()
    version_1_rows, version_2_rows = expected_rows(totals)
    states = expected_states(flights, totals)
    results: list[tuple[str, str, str]] = []

    actual = written_rows(story.rows_dir("version-1"), version_1_rows.schema)
    require_equal_rows("the rows of version 1", version_1_rows, actual, IDENTITY)
    results.append(("version 1, rocksdb", "rows", f"{len(actual):,}"))
    for backend in BACKENDS:
        name = _version_2_name(backend)
        who = f"version 2, {backend}"
        actual = written_rows(story.rows_dir(name), version_2_rows.schema)
        require_equal_rows(f"the rows of {who}", version_2_rows, actual, IDENTITY)
        results.append((who, "rows", f"{len(actual):,}"))
        contents = {state: state_contents(story.final_savepoint(name), UID, state) for state in states}
        require_equal_states(who, states, contents)
        results += [(who, f"state {state}", f"{len(entries):,}") for state, entries in contents.items()]
    story.narrator.table(("written by", "compared", "all equal"), results, right=(2,))


def tell(story: Story) -> None:
    """All steps; raises `DifferenceError` or `DriverFailedError` where something is not as it must be."""
    first_half(story)
    spark = start_spark(story.log("version-2"))
    try:
        upgrade(story, spark)
        refuse(story, spark)
        second_half(story, spark)
        compare(story, spark)
    finally:
        spark.stop()
    story.narrator.step("Done: nothing was lost, nothing was done twice, and every value is what it should be.")


def main(arguments: Sequence[str]) -> int:
    """Runs the demonstration; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__.split("\n\n")[0])
    parser.add_argument("--keep", action="store_true", help="do not remove the directory in the end")
    parser.add_argument(
        "--parts",
        type=int,
        default=PART_COUNT,
        help=f"how many of the {PART_COUNT} parts of the year to take, at least {FEWEST_PARTS} (default: all)",
    )
    options = parser.parse_args(arguments)
    if not FEWEST_PARTS <= options.parts <= PART_COUNT:
        parser.error(f"--parts must be from {FEWEST_PARTS} to {PART_COUNT}")

    # So that an ended demonstration takes its driver processes with it, as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    root = Path(tempfile.mkdtemp(prefix="flights-demo-"))
    scratch = root / "scratch"
    scratch.mkdir()
    # Spark, its workers and the driver processes put their temporary files here, so that a kill leaves none behind.
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    narrator = Narrator()
    narrator.say(f"Everything is written to {root}{'' if options.keep else ', which is removed in the end'}.")
    is_kept = True
    try:
        tell(Story(root, options.parts, narrator))
        is_kept = options.keep
    except (DifferenceError, DriverFailedError, StreamJobError, StateBackendError, CheckpointError) as error:
        narrator.end()
        print(f"\nTHE DEMONSTRATION FAILED: {error}", file=sys.stderr)
        print(f"See {root}, and Spark's messages in {root / 'logs'}.", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemExit):
        is_kept = options.keep
        raise
    finally:
        narrator.end()
        if not is_kept:
            shutil.rmtree(root, ignore_errors=True)
    return 0


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
    """Every file of the jobs with size and time of its last change, without logs and scratch files."""
    found = set()
    for directory in root.iterdir():
        if directory.name not in ("logs", "scratch"):
            for path in directory.rglob("*"):
                status = path.stat()
                found.add((path, status.st_size, status.st_mtime_ns))
    return found


def _start_driver(story: Story, log_name: str) -> DriverProcess:
    job_dir, rows_dir, log = story.job_dir("version-1"), story.rows_dir("version-1"), story.log(log_name)
    arguments = [
        *("--input", str(story.incoming)),
        *("--job-dir", str(job_dir)),
        *("--rows", str(rows_dir)),
        *("--savepoint", str(story.upgrade_savepoint)),
        *("--log", str(log)),
    ]
    return DriverProcess(arguments, story.narrator.relay, job_dir=job_dir, rows_dir=rows_dir, log=log)


def _version_2_name(backend: str) -> str:
    return f"version-2-{backend}"


def _version_2(story: Story, spark: SparkSession, backend: str) -> SparkStreamEnvironment:
    return _environment(story, spark, 2, _version_2_name(backend), backend, 3)


def _environment(
    story: Story, spark: SparkSession, version: int, name: str, backend: str, parallelism: int
) -> SparkStreamEnvironment:
    return flights_job(
        spark,
        version,
        input_dir=story.incoming,
        job_dir=story.job_dir(name),
        rows_dir=story.rows_dir(name),
        backend=backend,
        parallelism=parallelism,
    )
