"""A job whose Python workers are killed, both between epochs and during one.

    python lose_workers.py WORK_DIRECTORY

The serializer is in a module that only this program imports. So each new worker must find it before it can read the
restored state. The program prints, as JSON, the output, how many workers were killed when, and how many there were.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shapes
from pyspark.sql import DataFrame, SparkSession

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.spark import SparkStreamEnvironment
from statebackend.spark.frame_sinks import MemorySink

EPOCHS = 4
FATAL = 2
"""The epoch whose worker is killed while it processes records."""


class CountCorners(KeyedProcessFunction[str, Any, Any]):
    """Emits the count of a key. Records the workers, and kills one of them once."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def open(self, context: RuntimeContext) -> None:
        self.corner = context.get_state(ValueStateDescriptor("corner", shapes.CornerSerializer()))
        if context.epoch_id >= 0:
            (self.work / "workers" / str(os.getpid())).touch()

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int]]:
        count = (self.corner.value() or 0) + 1
        self.corner.update(count)
        if value.number == FATAL:
            with contextlib.suppress(FileExistsError):
                (self.work / "killed within").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        yield value.word, count


def main(work: Path) -> None:
    spark = (
        # A task may fail twice.
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(work / "spark-local"))
        .config("spark.sql.shuffle.partitions", "2")
        # The daemon has imported this project's packages before it forks a worker, but not the program.
        .config("spark.python.daemon.module", "python_daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    workers, source = work / "workers", work / "source"
    for directory in (workers, source):
        directory.mkdir()
    for number in range(EPOCHS):
        lines = [json.dumps({"word": word, "number": number}) + "\n" for word in "abcdefgh"]
        file = source / f"{number}.json"
        file.write_text("".join(lines))
        os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))
    killed: set[int] = set()

    def kill_idle_workers(frame: DataFrame) -> DataFrame:
        # The driver calls this when it plans an epoch. The tasks of the previous epoch have ended.
        struck = {int(noted.name) for noted in workers.iterdir()} - killed
        for pid in struck:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        # Spark would send a task to a dying worker, which still looks idle.
        while any(Path(f"/proc/{pid}").exists() for pid in struck):
            os.sched_yield()
        return frame

    stream = spark.readStream.schema("word string, number int").option("maxFilesPerTrigger", 1).json(str(source))
    found: dict[str, Any] = {}
    for backend in ("rocksdb", "heap"):
        (work / "killed within").unlink(missing_ok=True)
        killed.clear()
        for noted in workers.iterdir():
            noted.unlink()
        environment = SparkStreamEnvironment(
            spark,
            job_dir=work / backend,
            backend=backend,
            max_parallelism=8,
            local_state_directory=work / f"local-{backend}",
        )
        sink = MemorySink()
        corners = environment.from_dataframe(stream).transform_dataframe(kill_idle_workers).key_by("word")
        corners.process(CountCorners(work), uid="corners", schema="word string, times int").sink_to(sink)
        environment.execute("lose workers", trigger={"availableNow": True}).await_termination()
        found[backend] = {
            "rows": sorted(tuple(row) for row in sink.rows),
            "killed within": (work / "killed within").exists(),
            "killed between": len(killed),
            "workers": len(list(workers.iterdir())),
        }
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
