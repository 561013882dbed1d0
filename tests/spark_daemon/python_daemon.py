"""PySpark's daemon with preloaded imports, so that forked workers need not import them again.

Spark forks a worker for each task slot, and again after each failed task, which tests cause often.
"""

from pyspark import daemon

import statebackend.spark.tasks.epoch_task  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
