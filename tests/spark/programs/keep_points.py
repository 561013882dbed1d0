"""Jobs with custom serializers and classes, from the main script and from modules that only this program imports.

    python keep_points.py WORK_DIRECTORY HIDDEN_MODULES

Each worker serves only one task, so that each has to find the classes again. The program prints, as JSON, the output of
the runs, and the error when workers lacked a module. One job stores objects of classes of the main script in windows
and in state. Its workers do not have the type hints of these classes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import attrs
from pyspark.sql import SparkSession

from snapshots import SimpleTypeSerializerSnapshot, register_snapshot
from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
)
from statebackend.spark import SparkStreamEnvironment
from statebackend.spark.frame_sinks import MemorySink
from typeserializers import LongSerializer, TypeSerializer


@attrs.frozen
class Point:
    x: int
    y: int


class PointSerializer(TypeSerializer[Point]):
    length = 16

    def serialize(self, value: Point, out: Any) -> None:
        out.write_long(value.x)
        out.write_long(value.y)

    def deserialize(self, source: Any) -> Point:
        return Point(source.read_long(), source.read_long())

    def create_instance(self) -> Point:
        return Point(0, 0)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        for name in ("x", "y"):
            yield from LongSerializer().problems(getattr(value, name), f"{path}.{name}")

    def snapshot_configuration(self) -> PointSerializerSnapshot:
        return PointSerializerSnapshot()


@register_snapshot("my.project.PointSerializerSnapshot", aliases=("my.old.place.PointSnapshot",))
class PointSerializerSnapshot(SimpleTypeSerializerSnapshot[Point]):
    def create_serializer(self) -> PointSerializer:
        return PointSerializer()


class KeepPoints(KeyedProcessFunction[str, Any, Any]):
    """Emits the count of a key. Only `open` refers to the module that defines the type of the second state."""

    def __init__(self, module: str) -> None:
        self.module = module

    def open(self, context: RuntimeContext) -> None:
        shapes = __import__(self.module)
        self.point = context.get_state(ValueStateDescriptor("point", PointSerializer()))
        self.corner = context.get_state(ValueStateDescriptor("corner", shapes.CornerSerializer()))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int]]:
        before = self.point.value() or Point(0, 0)
        self.point.update(Point(before.x + 1, value.number))
        self.corner.update((self.corner.value() or 0) + 1)
        assert self.corner.value() == before.x + 1
        yield value.word, before.x + 1


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


def visits(spark: SparkSession, work: Path) -> dict[str, Any]:
    """The output of windows and of state that store objects."""
    source = work / "visits"
    source.mkdir()
    for number in range(2):
        row = {"word": "a", "number": number, "places": [{"city": "Bern"}] * number}
        file = source / f"{number}.json"
        file.write_text(json.dumps(row) + "\n")
        # Spark reads the older file first.
        os.utime(file, (number + 1, number + 1))
    schema = "word string, number long, places array<struct<city: string>>"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(source))
    environment = SparkStreamEnvironment(
        spark, job_dir=work / "visited", max_parallelism=8, local_state_directory=work / "local-visited"
    )
    keyed = environment.from_dataframe(stream).as_records(Visit).key_by("word")
    windows, kept = MemorySink(), MemorySink()
    keyed.count_window(2).apply(emitted, uid="windows", schema="word string, visits string").sink_to(windows, uid="w")
    keyed.process(Keep(), uid="kept", schema="word string, total long").sink_to(kept, uid="k")
    environment.execute("visits", trigger={"availableNow": True}).await_termination()
    return {"windows": windows.rows, "kept": kept.rows}


def run(spark: SparkSession, work: Path, backend: str, job: str, module: str, savepoint: bool = False) -> list[Any]:
    stream = (
        spark.readStream.schema("word string, number int").option("maxFilesPerTrigger", 1).json(str(work / "source"))
    )
    environment = SparkStreamEnvironment(
        spark, job_dir=work / job, backend=backend, max_parallelism=8, local_state_directory=work / f"local-{job}"
    )
    sink = MemorySink()
    points = environment.from_dataframe(stream).key_by("word")
    points.process(KeepPoints(module), uid="points", schema="word string, times int").sink_to(sink)
    running = environment.execute("keep points", trigger={"availableNow": True})
    running.await_termination()
    if savepoint:
        running.savepoint(work / f"savepoint-{job}")
    return sorted(tuple(row) for row in sink.rows)


def main(work: Path, hidden: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(work / "spark-local"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.worker.reuse", "false")
        # The daemon has imported this project's packages before it forks a worker, but not the program.
        .config("spark.python.daemon.module", "python_daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    source = work / "source"
    source.mkdir()

    def add(number: int) -> None:
        (source / f"{number}.json").write_text(json.dumps({"word": "a", "number": number}) + "\n")

    add(0)
    add(1)
    found: dict[str, Any] = {backend: run(spark, work, backend, backend, "shapes") for backend in ("rocksdb", "heap")}
    sys.path.append(hidden)
    try:
        run(spark, work, "heap", "hidden", "hidden_shapes")
    except Exception as error:
        found["missing"] = str(error)
    add(2)
    for backend in ("rocksdb", "heap"):
        found[f"{backend} restarted"] = run(spark, work, backend, backend, "shapes", savepoint=True)
    spark.sparkContext.addPyFile(f"{hidden}/hidden_shapes.py")
    found["hidden"] = run(spark, work, "heap", "hidden", "hidden_shapes")
    found["visits"] = visits(spark, work)
    found["left in spark's directories"] = [
        str(path) for path in (work / "spark-local").rglob("pyspark-*/*") if path.is_file()
    ]
    found["left of plans"] = [str(path) for path in work.glob("*/restore-plans/*")]
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
