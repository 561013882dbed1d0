"""Flink's event-time traces on Spark, many in one query: each output has the same rows in the same order.

The backends alternate. `tests.local.test_golden_jobs` plays all traces on each of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import golden_epochs
import pytest
from attrs import define, field
from golden_epochs import SCHEMA, Epochs, Given, epochs_of, expected_outputs, is_playable, ordered
from json_source import add_file
from spark_job_fixture import memory_sink, pickled_by_value

from statebackend import KeyedProcessFunction, WatermarkStrategy
from statebackend.spark.tasks.arrow_rows import TIME_COLUMN, TIME_TYPE
from tests.local.golden_jobs import OUT, build, shown_record
from tests.streaming.time.golden_time_traces import GOLDEN, scenarios

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from statebackend.streaming.data_stream import DataStream

pytestmark = pytest.mark.spark

GROUPS = sorted(path.stem for path in GOLDEN.glob("*.json"))
TOGETHER = 8
"""The most traces in one query. All of them have a similar number of epochs."""


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__], golden_epochs):
        yield


class Swallow(KeyedProcessFunction[Any, Any, Any]):
    """Reads the rows that advance time, and emits nothing."""

    def process_element(self, value: Any, context: Any) -> None: ...


@define
class Trace:
    """One trace as a part of a job, with its own sources and sinks."""

    scenario: Given
    number: int
    play: Play
    inputs: list[int] = field(factory=list)
    sinks: dict[str, Any] = field(factory=dict)
    clocks: list[DataStream] = field(factory=list)

    def source(self, name: str, schema: str) -> DataStream:
        """A stream of the trace: its records, without the rows that advance time."""
        self.inputs.append(int(name))
        strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("moves")
        frame = self.play.frame(f"{self.number}-{name}")
        timed = self.play.env.from_dataframe(
            frame, uid=f"source-{self.number}-{name}"
        ).assign_timestamps_and_watermarks(strategy)
        self.clocks.append(timed.transform_dataframe(only_moves))
        names = [column.split()[0] for column in schema.split(", ")]
        return timed.transform_dataframe(lambda rows: records_of(rows, names))

    def output(self, name: str, stream: DataStream) -> None:
        """Record a stream as output."""
        self.sinks[name] = memory_sink()
        stream.sink_to(self.sinks[name], uid=f"{self.number}-{name}")

    def outputs(self) -> dict[str, list[Any]]:
        """The rows of each output that the trace expects or that the job has."""
        entries = self.scenario["expected"]
        found = {}
        for name, sink in self.sinks.items():
            of_output = [one for one in entries if "out" in one and one.get("side", OUT) == name]
            rows = [shown_record(row.asDict(), name != OUT) for row in sink.rows]
            if rows:
                found[name] = ordered(rows, of_output, self.scenario)
        return found


def only_moves(rows: DataFrame) -> DataFrame:
    return rows.where("moves IS NOT NULL").selectExpr("'clock' AS name", TIME_COLUMN)


def records_of(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """The records with their timestamps, which do not advance time."""
    from pyspark.sql import functions as F  # noqa: N812

    parts = zip((F.col("ts"), F.lit(None), F.lit(None), F.lit(False)), TIME_TYPE.fields, strict=True)
    time = F.struct(*(part.cast(given.dataType).alias(given.name) for part, given in parts))
    return rows.where("moves IS NULL").select(*names, time.alias(TIME_COLUMN))


class Play:
    """Several traces as one job."""

    def __init__(self, spark: SparkSession, directory: Path, backend: str, played: Sequence[Given]) -> None:
        from statebackend.spark import SparkStreamEnvironment

        self.spark, self.directory = spark, directory
        self.env = SparkStreamEnvironment(
            spark,
            job_dir=directory / "job",
            local_state_directory=directory / "local",
            parallelism=1,
            max_parallelism=4,
            backend=backend,
        )
        self.traces = [Trace(scenario, number, self) for number, scenario in enumerate(played)]
        for trace in self.traces:
            build(trace.scenario, trace, f"{trace.number}")
        clocks = [clock for trace in self.traces for clock in trace.clocks]
        clock = clocks[0].union(*clocks[1:]) if len(clocks) > 1 else clocks[0]
        clock.key_by("name").process(Swallow(), uid="clock", schema="name string").sink_to(memory_sink(), uid="clock")

    def frame(self, name: str) -> DataFrame:
        source = self.directory / name
        source.mkdir()
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))

    def run(self) -> None:
        for trace in self.traces:
            cut = epochs_of(trace.scenario, trace.inputs)
            self._write(trace, cut)
        job = self.env.execute("golden", trigger={"processingTime": "0 seconds"})
        job.process_all_available()
        job.stop_with_savepoint(self.directory / "savepoint", drain=True)

    def _write(self, trace: Trace, cut: Epochs) -> None:
        for index in trace.inputs:
            for number, rows in enumerate(cut.of(index)):
                add_file(self.directory / f"{trace.number}-{index}", number, rows)


def chosen() -> Sequence[Given]:
    """The shortest trace of each file, or all with ``STATEBACKEND_FUZZ=all``, because epochs are slow."""
    playable = {group: [one for one in scenarios(group) if is_playable(one)] for group in GROUPS}
    if os.environ.get("STATEBACKEND_FUZZ") == "all":
        return [one for played in playable.values() for one in played]
    return [min(played, key=length_of) for played in playable.values() if played]


def length_of(scenario: Given) -> int:
    """The number of epochs of a trace."""
    return len(epochs_of(scenario, range(3)).rows)


def groups() -> Iterator[tuple[str, list[Given]]]:
    """The traces that run in one query, with the name of their test. Epochs without rows are played too."""
    group: list[Given] = []
    for one in sorted(chosen(), key=length_of):
        if group and (len(group) == TOGETHER or length_of(one) > 2 * length_of(group[0])):
            yield f"{len(group)} of {length_of(group[-1])} epochs", group
            group = []
        group.append(one)
    yield f"{len(group)} of {length_of(group[-1])} epochs", group


@pytest.mark.parametrize(
    ("played", "backend"),
    [
        pytest.param(group, backend, id=f"{name}-{backend}", marks=pytest.mark.extended if backend == "rocksdb" else ())
        for (name, group), backend in zip(groups(), cycle(("rocksdb", "heap")), strict=False)
    ],
)
@pytest.mark.extended
def test_a_job_on_spark_emits_what_flink_emits(
    spark: SparkSession, tmp_path: Path, played: list[Given], backend: str
) -> None:
    play = Play(spark, tmp_path, backend, played)
    play.run()
    assert {trace.scenario["name"]: trace.outputs() for trace in play.traces} == {
        one["name"]: expected_outputs(one) for one in played
    }
