"""A job whose windows store objects of the main script's classes, in workers without their type hints.

    python window_records.py WORK_DIRECTORY

No worker serves two tasks here. Prints, as JSON, what the windows emitted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import attrs
from pyspark.sql import SparkSession

from statebackend import KeyedProcessFunction, ListStateDescriptor
from statebackend.spark import SparkStreamEnvironment
from statebackend.spark.frame_sinks import MemorySink


class Place(NamedTuple):
    city: str | None


@attrs.frozen
class Timed:
    number: int


@attrs.frozen
class Visit(Timed):
    word: str
    places: list[Place]


class Keep(KeyedProcessFunction[str, Visit, Any]):
    visits = ListStateDescriptor("visits", Visit)

    def process_element(self, value: Visit, context: Any) -> Any:
        self.visits.add(value)
        yield value.word, sum(one.number for one in self.visits.get() or ())


def emitted(key: str, window: Any, visits: list[Visit]) -> list[Any]:
    return [(key, str([(one.number, one.places) for one in sorted(visits, key=lambda one: one.number)]))]


def main(work: Path) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.python.worker.reuse", "false")
        .config("spark.python.daemon.module", "python_daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    source = work / "source"
    source.mkdir()
    for number in range(2):
        row = {"word": "a", "number": number, "places": [{"city": "Bern"}] * number}
        file = source / f"{number}.json"
        file.write_text(json.dumps(row) + "\n")
        # Spark reads the older file first.
        os.utime(file, (number + 1, number + 1))
    schema = "word string, number long, places array<struct<city: string>>"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(source))
    environment = SparkStreamEnvironment(spark, job_dir=work / "job", max_parallelism=8)
    visits = environment.from_dataframe(stream).as_records(Visit).key_by("word")
    windows, kept = MemorySink(), MemorySink()
    visits.count_window(2).apply(emitted, uid="windows", schema="word string, visits string").sink_to(windows, uid="w")
    visits.process(Keep(), uid="kept", schema="word string, total long").sink_to(kept, uid="k")
    environment.execute("visits", trigger={"availableNow": True}).await_termination()
    sys.stdout.write(json.dumps({"windows": windows.rows, "kept": kept.rows}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
