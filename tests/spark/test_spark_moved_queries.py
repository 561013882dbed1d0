"""Queries of Spark that a job of ours continues from their checkpoints, by a plan and a savepoint."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from json_source import add_file
from spark_workplace import memory_sink, rows_of, travelling_by_value

from statebackend import (
    EventTimeSessionWindows,
    TumblingEventTimeWindows,
)
from statebackend.savepoint.rewrite.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_STATES = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = f"{_STATES}.RocksDBStateStoreProvider"
HDFS = f"{_STATES}.HDFSBackedStateStoreProvider"
COUNTED = "k string, start bigint, `end` bigint, n bigint"

Row = tuple[str, int]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with travelling_by_value(sys.modules[__name__]):
        yield


class Query:
    """A query whose source grows by a file for each batch, and its checkpoint directory."""

    def __init__(self, spark: SparkSession, directory: Path, provider: str = ROCKSDB) -> None:
        self.spark = spark
        self.directory = directory
        self.provider = provider
        self.checkpoint = directory / "checkpoint"
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *batches: Sequence[Row]) -> None:
        source = self.directory / "source"
        source.mkdir(exist_ok=True)
        for number, rows in enumerate(batches, start=len(list(source.iterdir()))):
            add_file(source, number, ({"k": k, "t": t} for k, t in rows))

    def stream(self) -> DataFrame:
        frame = self.spark.readStream.schema("k string, t bigint").option("maxFilesPerTrigger", 1)
        timed = frame.json(str(self.directory / "source")).selectExpr("k", "t", "timestamp_millis(t) AS ts")
        return timed.withWatermark("ts", "5 seconds")

    def run(self, frame: DataFrame) -> None:
        """Run the query over what is there."""
        from statebackend.spark.session import configured

        def take(rows: DataFrame, batch_id: int) -> None:
            self.rows.extend(map(tuple, rows.collect()))

        with configured(self.spark, {"spark.sql.streaming.stateStore.providerClass": self.provider}):
            writer = frame.writeStream.outputMode("append").foreachBatch(take).trigger(availableNow=True)
            writer.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()

    def environment(self) -> Any:
        from statebackend.spark import SparkStreamEnvironment

        return SparkStreamEnvironment(
            self.spark,
            job_dir=self.directory / "job",
            local_state_directory=self.directory / "local",
            parallelism=2,
            max_parallelism=16,
        )


HALVES: list[list[list[Row]]] = [
    [[("a", 3_000), ("a", 9_999), ("b", 12_000)], [("a", 25_000), ("b", 26_000)]],
    # What is before 21 s is late for Spark and for us.
    [[("a", 19_999), ("a", 21_001), ("b", 29_999)], [("b", 34_999), ("c", 61_000)], [("a", 100_000)]],
]


@pytest.mark.parametrize(("window", "provider"), [("tumbling", HDFS), ("session", ROCKSDB)])
def test_counts_by_window_continue_in_our_windows(
    spark: SparkSession, tmp_path: Path, window: str, provider: str
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path, provider)

    def counted() -> DataFrame:
        by = F.window("ts", "10 seconds") if window == "tumbling" else F.session_window("ts", "10 seconds")
        counts = query.stream().groupBy(by.alias("w"), "k").count()
        return counts.selectExpr("k", "unix_millis(w.start)", "unix_millis(w.end)", "count")

    query.add(*HALVES[0])
    query.run(counted())
    half = shutil.copytree(query.checkpoint, tmp_path / "half")
    of_half = list(query.rows)
    query.add(*HALVES[1])
    query.run(counted())

    env = query.environment()
    windows: Any = TumblingEventTimeWindows.of("10 seconds")
    if window == "session":
        windows = EventTimeSessionWindows.with_gap("10 seconds")
    sink = memory_sink()
    env.from_dataframe(query.stream()).key_by("k").window(windows).count(uid="counts", schema=COUNTED).sink_to(sink)
    checkpoint = SparkCheckpoint(spark, half)
    assert checkpoint.watermark_ms == 21_000
    checkpoint.write(tmp_path / "savepoint", checkpoint.add_windows(Plan(), env, "counts"), max_parallelism=16)
    env.execute("counts", trigger={"availableNow": True}, from_savepoint=tmp_path / "savepoint").await_termination()

    assert of_half
    assert sorted(of_half + rows_of(sink)) == sorted(query.rows)
    assert ("b", 20_000, 30_000, 2) in rows_of(sink) or window == "session"
