"""A Spark session with two executors on this machine. Each is a process with its own directory."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

EXECUTORS = 2


def session_on_two_executors(work: Path, **settings: str) -> SparkSession:
    """Start the session with files below `work`. `settings` are Spark's, with `_` for the dots in their names."""
    builder = (
        SparkSession.builder.master(f"local-cluster[{EXECUTORS},1,1024]")
        .config("spark.ui.enabled", "false")
        # No task starts before all executors are registered.
        .config("spark.cores.max", EXECUTORS)
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "1800s")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .config("spark.local.dir", str(work / "spark-local"))
        .config("spark.shuffle.reduceLocality.enabled", "false")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
