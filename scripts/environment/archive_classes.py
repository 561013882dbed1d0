"""Prepares the classes of Spark for its JVMs, so that each starts in half the time: `.venv/spark-classes.jsa`.

    python scripts/environment/archive_classes.py ARCHIVE

A JVM that starts Spark and its first query loads, checks and links some 20,000 classes. Java can do that once and keep
the outcome in a file ("class data sharing") that later JVMs map into memory. What is kept are the classes that a
streaming query with Python functions and Parquet files uses. A JVM that the archive does not fit, because Java or the
packages are others by now, loads its classes as if there were none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor


class Count(KeyedProcessFunction[str, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.word, count


def run_job(spark: Any, work: Path) -> None:
    """Two epochs of a job with every layer between a file that arrives and rows that are written."""
    from statebackend.spark import ParquetSink, SparkStreamEnvironment

    (work / "source").mkdir()
    for number in range(2):
        (work / "source" / f"{number}.json").write_text(f'{{"word": "a", "number": {number}}}\n')
    rows = spark.readStream.schema("word string, number int").option("maxFilesPerTrigger", 1).json(str(work / "source"))
    environment = SparkStreamEnvironment(spark, job_dir=work / "job", local_state_directory=work / "local")
    counted = environment.from_dataframe(rows).key_by("word")
    counted.process(Count(), uid="count", schema="word string, count int", order_by="number").sink_to(
        ParquetSink(work / "rows")
    )
    environment.execute("count", trigger={"availableNow": True}).await_termination()
    spark.read.parquet(str(work / "rows")).groupBy("word").count().collect()


def main(archive: Path) -> None:
    """Makes the archive; what was there is replaced when it is whole."""
    # Half an archive is worse than none: Java would die of it.
    half = archive.with_suffix(".half")
    of_tests = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ["SPARK_SUBMIT_OPTS"] = f'"-XX:ArchiveClassesAtExit={half}" -Xlog:disable {of_tests}'
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as directory:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.local.dir", f"{directory}/local")
            .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        run_job(spark, Path(directory))
        java = spark.sparkContext._gateway.proc
        spark.stop()
        # Java writes the archive when it ends, and ends when nobody talks to it any more.
        java.stdin.close()
        java.wait()
    half.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
