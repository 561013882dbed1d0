"""The driver of the flights job as chaos starts it: `examples.flights.driver`, wherever Spark and ZooKeeper are.

Beside what that prints it says when Spark runs, and at SIGUSR1, on its standard error, where all its threads are.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Sequence
from typing import Final

from examples.demonstration.driven_job import print_line
from examples.demonstration.spark_session import LOCAL, start_spark
from examples.flights.driver import driver_arguments, run_driver
from statebackend.checkpoint import ZooKeeperHighAvailability
from tests.java_options import PREPARED_CLASSES, SHORT_LIVED

__all__ = ["EPOCH", "SESSION_TIMEOUT_S", "SPARK_RUNS"]

SESSION_TIMEOUT_S: Final = 10.0
"""How long ZooKeeper waits for a sign of a driver's life."""

SPARK_RUNS: Final = "spark"
"""The word before the id of Spark's application, when it runs."""

EPOCH: Final = "epoch"
"""The word before an epoch that is complete."""


_SETTINGS: Final = {
    "spark.executor.extraJavaOptions": f"{SHORT_LIVED} {PREPARED_CLASSES}",
    # Each of many drivers has workers of its own, which would import the same modules one after the other.
    "spark.python.daemon.module": "tests.spark_daemon.python_daemon",
}


def main(arguments: Sequence[str]) -> None:
    """Runs the job to its end."""
    faulthandler.register(signal.SIGUSR1)
    parser = driver_arguments()
    parser.add_argument("--master", default=LOCAL)
    parser.add_argument("--zookeeper", help="lead the job through these servers")
    options = parser.parse_args(arguments)
    services = None
    if options.zookeeper is not None:
        services = ZooKeeperHighAvailability(options.zookeeper, "/chaos", session_timeout_s=SESSION_TIMEOUT_S)
    spark = start_spark(options.log, options.master, _SETTINGS)
    print_line(f"{SPARK_RUNS} {spark.sparkContext.applicationId}")
    run_driver(options, spark, services)


if __name__ == "__main__":
    main(sys.argv[1:])
