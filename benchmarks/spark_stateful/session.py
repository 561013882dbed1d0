"""The Spark session of the benchmark: two local cores, few log messages, and all files in one temporary directory."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG_CHECKPOINTING = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PARALLELISM = 2


@contextmanager
def benchmark_session(*, changelog: bool = False) -> Iterator[tuple[SparkSession, Path]]:
    """Yield a session with `PARALLELISM` cores and state partitions, and a directory for checkpoints.

    Spark keeps its own state in RocksDB, as ours does. By default a batch uploads the new files of Spark's RocksDB.
    With `changelog` it uploads the changes of the batch, which is faster and recommended by Spark's guide. The session
    is stopped and the directory removed at the end.
    """
    # Set before the JVM starts: the workers must run on the interpreter that has the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="spark-stateful-") as name:
        scratch = Path(name)
        checkpoints = scratch / "checkpoints"
        java_temporary = scratch / "java"
        for directory in (checkpoints, java_temporary):
            directory.mkdir()
        java_options = (
            f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
            f"-Djava.io.tmpdir={java_temporary}",
        )
        spark = (
            SparkSession.builder.master(f"local[{PARALLELISM}]")
            .appName("spark_stateful")
            .config("spark.driver.memory", "2g")
            .config("spark.driver.extraJavaOptions", " ".join(java_options))
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", str(PARALLELISM))
            .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB_PROVIDER)
            .config(CHANGELOG_CHECKPOINTING, str(changelog).lower())
            .getOrCreate()
        )
        try:
            yield spark, checkpoints
        finally:
            spark.stop()
