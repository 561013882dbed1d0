"""Runs version 1 of the job as a process of its own: `python -m examples.weather.driver --help`.

It processes the files in the input directory. It prints a line for each completed epoch. Before each checkpoint it
waits for a line on standard input, or for its end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.demonstration.driven_job import print_line, run_to_savepoint
from examples.demonstration.spark_session import start_spark
from examples.demonstration.supervised_sink import supervised_sink
from examples.weather.job import JOB_NAME
from examples.weather.spark_job import weather_job


def main(arguments: Sequence[str]) -> None:
    """Run the job until all input is processed, then take the savepoint."""
    parser = argparse.ArgumentParser(prog="python -m examples.weather.driver", description=__doc__)
    parser.add_argument("--input", type=Path, required=True, help="the directory that the reports arrive in")
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True, help="where the job writes its rows")
    parser.add_argument("--savepoint", type=Path, required=True, help="where to stop with a savepoint")
    parser.add_argument("--airlines", required=True, help="the address of the server that knows the airlines' names")
    parser.add_argument("--log", type=Path, required=True, help="where Spark's own messages go")
    options = parser.parse_args(arguments)

    spark = start_spark(options.log)
    env = weather_job(
        spark,
        1,
        incoming=options.input,
        job_dir=options.job_dir,
        rows=options.rows,
        airlines_url=options.airlines,
        backend="rocksdb",
        last_sink=supervised_sink(),
    )
    run_to_savepoint(env, JOB_NAME, options.savepoint, print_line, lambda epoch_id: print_line(f"epoch {epoch_id}"))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
