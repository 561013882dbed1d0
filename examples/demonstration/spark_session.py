"""A small Spark session whose JVM writes its standard error to a log file.

The JVM inherits the file descriptor at its launch, so the descriptor is replaced only during the launch.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from statebackend.spark.session import ensure_python_interpreter

CORES = 2
LOCAL = f"local[{CORES}]"

_NO_SETTINGS: Mapping[str, str] = {}


def start_spark(log: Path, master: str = LOCAL, settings: Mapping[str, str] = _NO_SETTINGS) -> SparkSession:
    """Start Spark in this process, with its own directories below the system's temporary one. Takes some seconds.

    ``settings`` are added to the settings of this function.
    """
    ensure_python_interpreter()
    scratch = tempfile.gettempdir()
    builder = (
        SparkSession.builder.master(master)
        .appName("flights")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch}")
        .config("spark.local.dir", scratch)
        .config("spark.sql.warehouse.dir", os.path.join(scratch, "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config(map=dict(settings))
    )
    with _standard_error_in(log):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def _standard_error_in(log: Path) -> Iterator[None]:
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
