"""Version 1 of the job as a process of its own: `python -m examples.payments.driver --help`.

It stops between the commits of its two sinks: the checkpoint is stored and the alerts are in Delta Lake, but the
balances are not in PostgreSQL. There it waits for a line on standard input, or for its end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.demonstration.driven_job import print_line, run_to_savepoint
from examples.demonstration.driver_process import WRITTEN
from examples.demonstration.spark_session import start_spark
from examples.payments.job import JOB_NAME, Places, payments_job
from statebackend.connectors import PostgresSink, SinkEpoch


class SupervisedSink(PostgresSink):
    """A `PostgresSink` that announces each commit and waits for a line before it."""

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        """Wait, then commit."""
        print(WRITTEN, epoch.epoch_id, flush=True)
        sys.stdin.readline()
        super().commit(epoch, committables)


def main(arguments: Sequence[str]) -> None:
    """Run the job over all payments, then take a savepoint."""
    parser = argparse.ArgumentParser(prog="python -m examples.payments.driver", description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--postgres", required=True, help="a connection string of libpq")
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--alerts", type=Path, required=True, help="the Delta table of alerts")
    parser.add_argument("--balances", required=True, help="the PostgreSQL table of balances")
    parser.add_argument("--savepoint", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True, help="where Spark's own messages go")
    options = parser.parse_args(arguments)
    places = Places(options.broker, options.postgres, options.job_dir, options.alerts, options.balances)
    spark = start_spark(options.log)
    env = payments_job(spark, 1, places, backend="rocksdb", balances_sink=SupervisedSink)
    run_to_savepoint(env, JOB_NAME, options.savepoint, print_line, lambda epoch_id: print_line(f"epoch {epoch_id}"))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
