"""Programs for Spark's ``transformWithState`` on our state: every batch has the same rows as on Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from json_source import add_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

ROCKSDB_OF_SPARK = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    import stateful_programs
    from spark_job_fixture import pickled_by_value

    with pickled_by_value(stateful_programs):
        yield


class Batches:
    """A directory with one file for each micro-batch."""

    def __init__(self, directory: Path, batches: list[dict[str, list[tuple[str, int, int]]]]) -> None:
        self.directory = directory
        self.count = 0
        (directory / "source").mkdir()
        for batch in batches:
            self.add(batch)

    def add(self, batch: dict[str, list[tuple[str, int, int]]]) -> None:
        """Add a file."""
        number, self.count = self.count, self.count + 1
        rows = [{"program": program, "k": k, "n": n, "t": t} for program, rows in batch.items() for k, n, t in rows]
        add_file(self.directory / "source", number, rows)

    def stream(self, spark: SparkSession) -> DataFrame:
        from stateful_programs import INPUT

        return spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(self.directory / "source"))


class Outputs:
    """The sorted output of each batch that has output."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[Any, ...]]] = []
        self._started = 0
        self._changed = threading.Condition()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = sorted(map(tuple, frame.collect()), key=repr)
        with self._changed:
            if rows:
                self.batches.append(rows)
            self._started = batch_id
            self._changed.notify_all()

    def wait_for(self, count: int, query: StreamingQuery) -> None:
        """Wait for this many batches of an endless query, and for the start of the next one, after their commit."""
        with self._changed:
            while len(self.batches) < count or self._started < count:
                assert query.isActive, query.exception()
                self._changed.wait(timeout=10)


def on_spark(
    spark: SparkSession, batches: Batches, stream: DataFrame, processor: Any, time_mode: str, initial: Any = None
) -> list[list[tuple[Any, ...]]]:
    """The output on Spark."""
    from stateful_programs import OUTPUT

    from statebackend.spark.session import configured

    outputs = Outputs()
    with configured(spark, {"spark.sql.streaming.stateStore.providerClass": ROCKSDB_OF_SPARK}):
        # Spark checks the pandas version for all vectorised functions, but functions over rows need no pandas.
        with patch("pyspark.sql.pandas.functions.require_minimum_pandas_version"):
            made = stream.groupBy("program", "k").transformWithState(processor, OUTPUT, "Update", time_mode, initial)
        writer = made.writeStream.outputMode("update").foreachBatch(outputs.take)
        # In processing time, Spark runs batches without records forever, because there may always be a timer.
        trigger = {"processingTime": "0 seconds"} if time_mode == "ProcessingTime" else {"availableNow": True}
        query = writer.option("checkpointLocation", str(batches.directory / "spark")).trigger(**trigger).start()
        if time_mode == "ProcessingTime":
            outputs.wait_for(batches.count, query)
            query.stop()
        else:
            query.awaitTermination()
    return outputs.batches


def on_ours(
    spark: SparkSession,
    batches: Batches,
    stream: DataFrame,
    processor: Any,
    time_mode: str,
    initial: Any = None,
    from_spark_checkpoint: Path | None = None,
) -> list[list[tuple[Any, ...]]]:
    """The output on our state."""
    from stateful_programs import OUTPUT

    from statebackend.spark import SparkStreamEnvironment
    from statebackend.spark.frame_sinks import ForEachEpochSink

    outputs = Outputs()
    environment = SparkStreamEnvironment(
        spark,
        job_dir=batches.directory / "job",
        local_state_directory=batches.directory / "local",
        parallelism=2,
        max_parallelism=16,
    )
    grouped = environment.from_dataframe(stream).group_by("program", "k")
    processed = grouped.transform_with_state(processor, OUTPUT, "update", time_mode, initial)
    processed.sink_to(ForEachEpochSink(outputs.take))
    job = environment.execute("programs", trigger={"availableNow": True}, from_spark_checkpoint=from_spark_checkpoint)
    job.await_termination()
    return outputs.batches


@pytest.mark.extended
def test_programs_with_state_emit_the_same_rows_as_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from stateful_programs import STATE_PROGRAMS, Programs

    batches = Batches(
        tmp_path,
        [
            {
                "Violations": [("a", 50, 1), ("a", 150, 2), ("b", 101, 3)],
                "Largest": [("a", 1, 1), ("a", 5, 2), ("a", 3, 3), ("a", 4, 4), ("b", 1, 5)],
                "CountedNumbers": [("a", 1, 1), ("a", 1, 1), ("a", 2, 2), ("b", 7, 3)],
                "RateLimiter": [("a", 1, 1), ("a", 2, 2), ("a", 3, 3), ("a", 4, 60_000)],
                "MovingAverage": [("a", 1, 1), ("a", 2, 2), ("a", 4, 3), ("a", 8, 4)],
                "Balance": [("a", 1, 1), ("d", 2, 2)],
            },
            {
                "Violations": [("a", 102, 4), ("c", 0, 5)],
                "Largest": [("a", 7, 6), ("b", 0, 7)],
                "CountedNumbers": [("a", 1, 9), ("b", -7, 3)],
                "RateLimiter": [("a", 5, 60_001), ("a", 6, 60_002), ("b", 1, 60_003)],
                "MovingAverage": [("a", 16, 5), ("b", 1, 1)],
            },
            {"Violations": [("b", 5, 6)], "CountedNumbers": [("b", 8, 4)], "RateLimiter": [("a", 7, 120_000)]},
            {"Balance": [("a", 3, 1), ("b", 4, 2), ("c", 5, 3)]},
        ],
    )
    balances = [("Balance", "a", 100), ("Balance", "b", 1000), ("Balance", "b", 500), ("Balance", "e", 1)]
    initial = spark.createDataFrame(balances, "program string, k string, amount bigint").groupBy("program", "k")
    processor = Programs(*STATE_PROGRAMS)
    expected = on_spark(spark, batches, batches.stream(spark), processor, "None", initial)
    assert len(expected) == 4
    assert ("Balance", "b", "was (1500,)", 1504) in expected[3]
    assert {program for program, *_ in expected[0]} == {program.__name__ for program in STATE_PROGRAMS}
    assert on_ours(spark, batches, batches.stream(spark), processor, "None", initial) == expected


@pytest.mark.extended
def test_timers_and_ttl_in_processing_time_emit_the_same_rows_as_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from stateful_programs import Fresh, Programs

    batches = Batches(
        tmp_path,
        [
            {"Fresh": [("a", 1, 1), ("a", 2, 2), ("a", 1, 3), ("b", 5, 4)]},
            {"Fresh": [("a", 2, 5), ("a", 3, 6), ("c", 1, 7)]},
        ],
    )
    expected = on_spark(spark, batches, batches.stream(spark), Programs(Fresh), "ProcessingTime")
    assert ("Fresh", "a", "timer 2, late 0", 1) in expected[0]
    assert on_ours(spark, batches, batches.stream(spark), Programs(Fresh), "processingTime") == expected


@pytest.mark.extended
def test_a_job_continues_the_ttl_and_timers_of_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    from stateful_programs import Fresh, Programs

    records: list[dict[str, list[tuple[str, int, int]]]] = [
        {"Fresh": [("a", 1, 1), ("a", 2, 2), ("a", 1, 3), ("b", 5, 4)]},
        {"Fresh": [("a", 2, 5), ("a", 3, 6), ("b", 5, 7), ("c", 1, 8)]},
    ]
    (tmp_path / "whole").mkdir()
    (tmp_path / "moved").mkdir()
    whole, moved = Batches(tmp_path / "whole", records), Batches(tmp_path / "moved", records[:1])
    expected = on_spark(spark, whole, whole.stream(spark), Programs(Fresh), "ProcessingTime")
    assert on_spark(spark, moved, moved.stream(spark), Programs(Fresh), "ProcessingTime") == expected[:1]
    moved.add(records[1])
    checkpoint = moved.directory / "spark"
    rest = on_ours(
        spark, moved, moved.stream(spark), Programs(Fresh), "processingTime", from_spark_checkpoint=checkpoint
    )
    assert rest == expected[1:]
    # Keys that Spark has processed are not fresh, and their timers are not due yet.
    assert [row[1:] for row in rest[0] if row[2] == "fresh"] == [("a", "fresh", 3), ("c", "fresh", 1)]


@pytest.mark.extended
def test_in_event_time_the_operator_equals_spark_at_the_same_watermarks(spark: SparkSession, tmp_path: Path) -> None:
    from processor_epochs import EpochDrive
    from stateful_programs import OUTPUT, Heartbeat, Programs, Reminders

    from statebackend.state.heap.heap_state_backend import HeapStateBackend
    from statebackend.streaming.stateful_processor import TimeMode
    from statebackend.streaming.time.timestamps import MIN_TIMESTAMP

    records = [
        {
            "Heartbeat": [("a", 1, 1000), ("b", 1, 2000), ("a", 2, 5000)],
            "Reminders": [("a", 4000, 10_000), ("a", 10_000, 10_000), ("a", 15_007, 10_000), ("c", 9, 10_000)],
        },
        {"Heartbeat": [("a", 3, 12_000)], "Reminders": [("b", 10_001, 11_000), ("b", 1007, 11_000), ("a", 5, 12_000)]},
        {"Heartbeat": [("b", 4, 11_000), ("c", 5, 20_000), ("d", 6, 10_000)], "Reminders": [("d", 1, 9000)]},
        {"Heartbeat": [("c", 7, 60_000)]},
    ]
    batches = Batches(tmp_path, records)
    processor = Programs(Heartbeat, Reminders)
    stream = batches.stream(spark).selectExpr("*", "timestamp_millis(t) AS ts").withWatermark("ts", "0 seconds")
    expected = on_spark(spark, batches, stream, processor, "EventTime")
    assert {row[0] for rows in expected for row in rows} == {"Heartbeat", "Reminders"}
    assert any("silent after 2" in row[2] for rows in expected for row in rows)

    epochs = EpochDrive(
        tmp_path, HeapStateBackend(), processor, TimeMode.EVENT_TIME, ("program", "k", "n", "t"), OUTPUT, 2
    )
    watermark, outputs = MIN_TIMESTAMP, []
    # After the last records, Spark runs a batch for the watermark that they advanced.
    for batch in [*records, {}]:
        rows = [((name, k), t, n, t) for name, given in batch.items() for k, n, t in given]
        outputs.append(sorted(epochs.epoch(watermark, *sorted(rows, key=lambda row: row[0])), key=repr))
        watermark = max([watermark, *(row[1] for row in rows)])
    assert [rows for rows in outputs if rows] == expected


@pytest.mark.extended
def test_in_event_time_a_job_equals_spark(spark: SparkSession, tmp_path: Path) -> None:
    from stateful_programs import Heartbeat, LatestEvent, Programs

    # Each file is a run. At its end, Spark and our job run a batch for the watermark that its records advanced.
    records = [
        {"Heartbeat": [("a", 1, 1000), ("b", 1, 2000), ("a", 2, 5000)], "LatestEvent": [("a", 1, 20_000)]},
        {
            # A record at the watermark of the previous run is late. A record one millisecond later is not.
            "Heartbeat": [("b", 3, 23_000), ("a", 4, 12_000), ("at", 8, 10_000), ("behind", 9, 10_001)],
            "LatestEvent": [("a", 2, 15_000), ("b", 3, 16_000)],
        },
        {
            "Heartbeat": [("c", 4, 1), ("b", 5, 40_000), ("at", 6, 13_000)],
            "LatestEvent": [("a", 4, 4000), ("b", 3, 41_000)],
        },
    ]
    given: dict[str, list[list[tuple[Any, ...]]]] = {"spark": [], "ours": []}
    processor, delay = Programs(Heartbeat, LatestEvent), "10 seconds"
    (tmp_path / "spark").mkdir()
    (tmp_path / "ours").mkdir()
    theirs, ours = Batches(tmp_path / "spark", []), Batches(tmp_path / "ours", [])
    for batch in records:
        theirs.add(batch)
        stream = theirs.stream(spark).selectExpr("*", "timestamp_millis(t) AS ts").withWatermark("ts", delay)
        given["spark"] += on_spark(spark, theirs, stream, processor, "EventTime")
        ours.add(batch)
        stream = ours.stream(spark).selectExpr("*", "timestamp_millis(t) AS ts").withWatermark("ts", delay)
        given["ours"] += on_ours(spark, ours, stream, processor, "EventTime")
    assert {(row[0], row[2].split()[0]) for rows in given["spark"] for row in rows} == {
        ("Heartbeat", "heard"),
        ("Heartbeat", "silent"),
        ("LatestEvent", "latest"),
        ("LatestEvent", "expired"),
    }
    keys = {row[1] for rows in given["spark"] for row in rows if row[0] == "Heartbeat"}
    assert keys == {"a", "b", "behind"}
    assert given["ours"] == given["spark"]


@pytest.mark.extended
def test_a_job_continues_a_spark_query_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    from stateful_programs import CountedNumbers, Largest, MovingAverage, Programs, RateLimiter, Violations

    records: list[dict[str, list[tuple[str, int, int]]]] = [
        {
            "Violations": [("a", 50, 1), ("a", 150, 2), ("b", 101, 3)],
            "Largest": [("a", 1, 1), ("a", 5, 2), ("a", 3, 3), ("a", 4, 4), ("b", 1, 5)],
            "CountedNumbers": [("a", 1, 1), ("a", 1, 1), ("a", 2, 2), ("b", 7, 3)],
            "RateLimiter": [("a", 1, 1), ("a", 2, 2), ("a", 3, 3), ("a", 4, 60_000)],
            "MovingAverage": [("a", 1, 1), ("a", 2, 2), ("a", 4, 3), ("a", 8, 4)],
        },
        {"Violations": [("b", 102, 4), ("c", 0, 5)], "Largest": [("a", 7, 6)], "CountedNumbers": [("b", -7, 3)]},
        {
            "Violations": [("a", 102, 4), ("b", 103, 5)],
            "Largest": [("a", 6, 6), ("b", 0, 7)],
            "CountedNumbers": [("a", 1, 9), ("b", 7, 3)],
            "RateLimiter": [("a", 5, 60_001), ("a", 6, 60_002), ("b", 1, 60_003)],
            "MovingAverage": [("a", 16, 5), ("b", 1, 1)],
        },
        {"Violations": [("b", 500, 6)], "CountedNumbers": [("b", 8, 4)], "RateLimiter": [("a", 7, 60_004)]},
    ]
    processor = Programs(Violations, Largest, CountedNumbers, RateLimiter, MovingAverage)
    (tmp_path / "whole").mkdir()
    (tmp_path / "moved").mkdir()
    whole, moved = Batches(tmp_path / "whole", records), Batches(tmp_path / "moved", records[:2])
    expected = on_spark(spark, whole, whole.stream(spark), processor, "None")
    assert on_spark(spark, moved, moved.stream(spark), processor, "None") == expected[:2]
    moved.add(records[2])
    checkpoint = moved.directory / "spark"
    # A killed import leaves files without metadata. The next start repeats the import.
    left = moved.directory / "job" / "imported"
    left.mkdir(parents=True)
    (left / "_in_progress").write_text("A savepoint is being written here.")
    rest = on_ours(spark, moved, moved.stream(spark), processor, "None", from_spark_checkpoint=checkpoint)
    # A later start ignores the Spark checkpoint, and continues from the job's own checkpoint.
    moved.add(records[3])
    rest += on_ours(spark, moved, moved.stream(spark), processor, "None", from_spark_checkpoint=checkpoint)
    assert rest == expected[2:]


@pytest.mark.extended
def test_a_job_continues_the_event_time_and_timers_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    from stateful_programs import Heartbeat, Programs, Reminders

    records: list[dict[str, list[tuple[str, int, int]]]] = [
        {
            "Heartbeat": [("a", 1, 1000), ("b", 1, 2000), ("a", 2, 5000), ("e", 2, 9000)],
            "Reminders": [("a", 9008, 9000), ("a", 15_008, 9000), ("c", 13_000, 9000)],
        },
        # A record at the watermark of the previous run is late. A record one millisecond later is not.
        {"Heartbeat": [("b", 3, 23_000), ("at", 8, 9000), ("behind", 9, 9001)], "Reminders": [("a", 1, 17_000)]},
        {"Heartbeat": [("c", 4, 1), ("b", 5, 40_000), ("at", 6, 13_000)]},
    ]
    processor = Programs(Heartbeat, Reminders)
    given: dict[str, list[list[tuple[Any, ...]]]] = {"whole": [], "moved": []}
    for name, rows in given.items():
        (tmp_path / name).mkdir()
        batches = Batches(tmp_path / name, [])
        for number, batch in enumerate(records):
            batches.add(batch)
            stream = batches.stream(spark).selectExpr("*", "timestamp_millis(t) AS ts").withWatermark("ts", "0 seconds")
            if name == "whole" or number == 0:
                rows += on_spark(spark, batches, stream, processor, "EventTime")
            else:
                checkpoint = batches.directory / "spark"
                rows += on_ours(spark, batches, stream, processor, "EventTime", from_spark_checkpoint=checkpoint)
    whole = [row for rows in given["whole"] for row in rows]
    assert {row[1] for row in whole if row[0] == "Heartbeat"} == {"a", "b", "behind", "e"}
    assert ("Heartbeat", "e", "silent after 1, 23000", 19_000) in whole
    assert any(row[2].startswith("timer") and row[3] == 15_008 for row in whole)
    assert given["moved"] == given["whole"]
