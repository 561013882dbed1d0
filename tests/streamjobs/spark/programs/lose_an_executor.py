"""Counts words on two executors with a disk each, one of which is killed half-way.

    python lose_an_executor.py WORK_DIRECTORY

Reads ``WORK_DIRECTORY/source`` in the first half of the epochs, and ``WORK_DIRECTORY/later``, which it moves there, in
the second; writes ``WORK_DIRECTORY/out``, and to ``WORK_DIRECTORY/opens`` a line per epoch: local opens, restores.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from count_words import CountWords
from pyspark.sql import SparkSession

from streamjobs.spark import SparkStreamEnvironment
from streamjobs.spark.sinks import ParquetSink

EXECUTORS = 2


def pid_of_executor(_: Any) -> int:
    """In a task: the worker's parent is Python's daemon, and that of the daemon is the executor."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for_executors(spark: SparkSession) -> None:
    """Keeps Spark busy until all executors are there; the driver is one of those that it counts."""
    context: Any = spark.sparkContext
    while context._jsc.sc().getExecutorMemoryStatus().size() != EXECUTORS + 1:
        spark.range(1).collect()


def main(work_directory: str) -> None:
    work = Path(work_directory)
    spark = (
        SparkSession.builder.master(f"local-cluster[{EXECUTORS},1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .config("spark.local.dir", str(work / "spark-local"))
        .config("spark.shuffle.reduceLocality.enabled", "false")
        # A task on a busy machine takes long, and the others are to wait for their executor all the same.
        .config("spark.locality.wait", "600s")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    stream = (
        spark.readStream.schema("word string, number int").option("maxFilesPerTrigger", 1).json(str(work / "source"))
    )
    environment = SparkStreamEnvironment(
        spark,
        job_dir=work / "job",
        parallelism=6,
        max_parallelism=16,
        # Spark has told each executor another directory.
        local_state_directory="$SPARK_LOCAL_DIRS/state",
    )
    words = environment.from_dataframe(stream).key_by("word")
    words.process(CountWords(), uid="words", schema="word string, number int, times bigint", order_by="number").sink_to(
        ParquetSink(work / "out")
    )
    wait_for_executors(spark)
    job = environment.execute("count words")
    job.process_all_available()
    os.kill(spark.sparkContext.parallelize(range(1)).map(pid_of_executor).collect()[0], signal.SIGKILL)
    # Its loss is noticed at once, and then Spark replaces it.
    while len({*spark.sparkContext.parallelize(range(8), 8).map(pid_of_executor).collect()}) < EXECUTORS:
        wait_for_executors(spark)
    for file in sorted((work / "later").iterdir()):
        file.rename(work / "source" / file.name)
    job.process_all_available()
    job.stop()
    opens = [f"{epoch.local_opens} {epoch.restores}\n" for epoch in job.epochs]
    (work / "opens").write_text("".join(opens))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
