"""PySpark's daemon with preloaded imports: forked workers need not import them again.

A worker is forked for each task slot, and again after each task that failed, which tests let happen all the time.
"""

from pyspark import daemon

import statebackend.spark.tasks.epoch_task  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
