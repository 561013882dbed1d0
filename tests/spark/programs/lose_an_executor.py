"""Counts words on two executors, each with its own disk. One of them is killed midway.

    python lose_an_executor.py WORK_DIRECTORY

In the first half of the epochs it reads ``WORK_DIRECTORY/source``. In the second half it reads
``WORK_DIRECTORY/later``, whose files it moves there. It writes ``WORK_DIRECTORY/out``. For each epoch,
``WORK_DIRECTORY/opens`` gets a line with the number of states that were opened locally and that were restored.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

from count_words import CountWords
from pyspark.sql import SparkSession
from two_executors import session_on_two_executors

from statebackend.spark import ParquetSink, SparkStreamEnvironment


def pid_of_executor(_: Any) -> int:
    """The pid of the executor, which is the parent of the worker's daemon. Called in a task."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


class ExecutorsThatChange:
    """Waits for executors that are added or removed.

    It listens for their block managers, which determine the placement of subtasks. Spark reports an executor before its
    block manager exists.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._came, self._went = threading.Semaphore(0), threading.Semaphore(0)
        context: Any = spark.sparkContext
        context._jsc.sc().addSparkListener(self)

    def wait_for_a_replacement(self) -> None:
        """Wait until one executor was removed and another one was added."""
        self._went.acquire()
        self._came.acquire()

    def onBlockManagerAdded(self, _: Any) -> None:  # noqa: N802  (the name is Spark's)
        self._came.release()

    def onBlockManagerRemoved(self, _: Any) -> None:  # noqa: N802
        self._went.release()

    def __getattr__(self, name: str) -> Any:
        # All other events are ignored.
        if name.startswith("on"):
            return lambda _: None
        raise AttributeError(name)

    class Java:
        implements: ClassVar = ["org.apache.spark.scheduler.SparkListenerInterface"]


def main(work_directory: str) -> None:
    work = Path(work_directory)
    spark = session_on_two_executors(
        work,
        # Tasks wait for their executor even if another task takes long on a busy machine.
        spark_locality_wait="600s",
        spark_python_daemon_module="python_daemon",
    )
    stream = (
        spark.readStream.schema("word string, number int").option("maxFilesPerTrigger", 1).json(str(work / "source"))
    )
    environment = SparkStreamEnvironment(
        spark,
        job_dir=work / "job",
        parallelism=6,
        max_parallelism=16,
        # Spark assigns each executor its own directory.
        local_state_directory="$SPARK_LOCAL_DIRS/state",
    )
    words = environment.from_dataframe(stream).key_by("word")
    words.process(CountWords(), uid="words", schema="word string, number int, times bigint", order_by="number").sink_to(
        ParquetSink(work / "out")
    )
    job = environment.execute("count words")
    job.process_all_available()
    executors = ExecutorsThatChange(spark)
    os.kill(spark.sparkContext.parallelize(range(1)).map(pid_of_executor).collect()[0], signal.SIGKILL)
    executors.wait_for_a_replacement()
    for file in sorted((work / "later").iterdir()):
        file.rename(work / "source" / file.name)
    job.process_all_available()
    job.stop()
    opens = [f"{epoch.local_opens} {epoch.restores}\n" for epoch in job.epochs]
    (work / "opens").write_text("".join(opens))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
