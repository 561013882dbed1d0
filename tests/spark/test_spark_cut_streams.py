"""One stream cut into epochs in several ways on Spark: windows, timers and late records follow the watermarks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import event_time_model
import pytest
from chain_runner import write_batches
from event_time_model import SCHEMA, SIZE, SUMS, TIMERS, Record, SetsTimers, Summed, bounded, fired_timers, model
from spark_job_fixture import memory_sink, pickled_by_value, rows_of

from statebackend import OutputTag, TumblingEventTimeWindows
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebackend.spark import SparkJob

pytestmark = pytest.mark.spark

LATE: OutputTag[Any] = OutputTag("late", SCHEMA)


def cut(seed: int) -> list[list[Record]]:
    """Mostly ordered records in a few epochs of any size."""
    random_numbers = random.Random(seed)
    records = [
        (random_numbers.choice("abc"), 3 * index + random_numbers.randint(-30, 6), 1 << index) for index in range(18)
    ]
    places = [0, *sorted(random_numbers.sample(range(1, len(records)), 3)), len(records)]
    return [records[begin:end] for begin, end in itertools.pairwise(places)]


class Cut:
    """A job over one cut of the stream. Each run continues after the previous one."""

    def __init__(self, spark: SparkSession, directory: Path, backend: str) -> None:
        self.spark, self.directory, self.backend = spark, directory, backend
        self.sinks = [memory_sink() for _ in range(3)]

    def start(self, epochs: Sequence[Sequence[Record]]) -> SparkJob:
        from statebackend.spark import SparkStreamEnvironment

        source = write_batches(
            self.directory, [[dict(zip("ktv", row, strict=True)) for row in rows] for rows in epochs]
        )
        env = SparkStreamEnvironment(
            self.spark,
            job_dir=self.directory / "job",
            local_state_directory=self.directory / "local",
            backend=self.backend,
            parallelism=2,
            max_parallelism=16,
        )
        frame = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
        keyed = env.from_dataframe(frame).assign_timestamps_and_watermarks(bounded()).key_by("k")
        windows = keyed.window(TumblingEventTimeWindows.of(SIZE)).side_output_late_data(LATE)
        sums = windows.process(Summed(), uid="sums", schema=SUMS)
        sums.sink_to(self.sinks[0], uid="sums")
        sums.get_side_output(LATE).sink_to(self.sinks[1], uid="late")
        keyed.process(SetsTimers(), uid="timers", schema=TIMERS).sink_to(self.sinks[2], uid="timers")
        return env.execute("cut")

    def results(self) -> tuple[list[Any], ...]:
        return tuple(map(rows_of, self.sinks))


@pytest.mark.parametrize(("seed", "backend"), [(1, "heap"), (2, "rocksdb")])
@pytest.mark.extended
def test_windows_timers_and_late_records_follow_the_watermarks_for_any_cut(
    spark: SparkSession, tmp_path: Path, seed: int, backend: str
) -> None:
    epochs = cut(seed)
    sums, late = model(epochs)
    assert late, "this cut shows nothing of late records"
    with pickled_by_value(event_time_model):
        job_over = Cut(spark, tmp_path, backend)
        job = job_over.start(epochs[:2])
        job.process_all_available()
        job.stop()
        job = job_over.start(epochs)
        job.process_all_available()
        before = job_over.results()
        job.stop_with_savepoint(tmp_path / "savepoint", drain=True)
    assert job_over.results() == (sums, late, fired_timers(epochs))
    assert before[1] == late
    assert len(before[0]) < len(sums), "only the end of time fires the last windows"
    assert sum(one.has_batch for one in job.epochs) == len(epochs) - 2
    assert min(job.watermarks().values()) > MIN_TIMESTAMP
