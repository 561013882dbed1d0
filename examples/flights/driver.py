"""Runs a version of the job as a process of its own: `python -m examples.flights.driver --help`.

It processes the files in the input directory, continues an earlier process of the same job directory, and stops with a
savepoint. It prints a line for each completed epoch. Before each checkpoint it waits for a line on standard input, or
for its end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from examples.demonstration.driven_job import print_line, run_to_savepoint
from examples.demonstration.spark_session import start_spark
from examples.demonstration.supervised_sink import supervised_sink
from examples.flights.job import JOB_NAME, VERSIONS, flights_job
from statebackend.checkpoint.ha.services import JobServices


def driver_arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.driver", description=__doc__)
    parser.add_argument("--input", type=Path, required=True, help="the directory that the flights arrive in")
    parser.add_argument("--job-dir", required=True, help="a path, or a URI such as s3://bucket/job")
    parser.add_argument("--rows", required=True, help="where the job writes a row per flight: a path or a URI")
    parser.add_argument("--savepoint", required=True, help="where to stop with a savepoint: a path or a URI")
    parser.add_argument("--spark-log-dir", type=Path, help="where Spark's log of a job on an object store is")
    parser.add_argument("--version", type=int, choices=sorted(VERSIONS), default=1)
    parser.add_argument("--backend", default="rocksdb")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--log", type=Path, required=True, help="where Spark's own messages go")
    return parser


def run_driver(options: argparse.Namespace, spark: SparkSession, high_availability: JobServices | None = None) -> None:
    """Run the job until all input is processed, then take the savepoint."""
    env = flights_job(
        spark,
        options.version,
        input_dir=options.input,
        job_dir=options.job_dir,
        rows_dir=options.rows,
        backend=options.backend,
        parallelism=options.parallelism,
        last_sink=supervised_sink(),
        spark_log_dir=options.spark_log_dir,
        high_availability=high_availability,
    )
    run_to_savepoint(env, JOB_NAME, options.savepoint, print_line, lambda epoch_id: print_line(f"epoch {epoch_id}"))
    spark.stop()


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    options = driver_arguments().parse_args(arguments)
    run_driver(options, start_spark(options.log))


if __name__ == "__main__":
    main(sys.argv[1:])
