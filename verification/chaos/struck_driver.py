"""The driver of the flights job in chaos tests: runs `examples.flights.driver` with the given master and ZooKeeper.

In addition it prints a line when Spark runs, and at SIGUSR1 it dumps all threads to its standard error.
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
"""Session timeout of ZooKeeper."""

SPARK_RUNS: Final = "spark"
"""Printed before Spark's application id when Spark runs."""

EPOCH: Final = "epoch"
"""Printed before the id of a complete epoch."""


_SETTINGS: Final = {
    "spark.executor.extraJavaOptions": f"{SHORT_LIVED} {PREPARED_CLASSES}",
    # Each driver starts new workers, and each worker would import the same modules again.
    "spark.python.daemon.module": "tests.spark_daemon.python_daemon",
}


def main(arguments: Sequence[str]) -> None:
    """Run the job to its end."""
    faulthandler.register(signal.SIGUSR1)
    parser = driver_arguments()
    parser.add_argument("--master", default=LOCAL)
    parser.add_argument("--zookeeper", help="elect the leader of the job with these servers")
    options = parser.parse_args(arguments)
    services = None
    if options.zookeeper is not None:
        services = ZooKeeperHighAvailability(options.zookeeper, "/chaos", session_timeout_s=SESSION_TIMEOUT_S)
    spark = start_spark(options.log, options.master, _SETTINGS)
    print_line(f"{SPARK_RUNS} {spark.sparkContext.applicationId}")
    run_driver(options, spark, services)


if __name__ == "__main__":
    main(sys.argv[1:])
