"""Count windows on Spark equal Spark's own and those of the local runtime, also with source partitions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from json_source import add_file, padded
from process_state import LOGGERS
from spark_job_fixture import memory_sink, rows_of

from statebackend import TumblingEventTimeWindows, WatermarkStrategy
from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "k string, t bigint, v bigint"
COUNTED = "k string, start bigint, `end` bigint, n bigint"

Row = tuple[str, int, int]


def write(source: Path, batches: Sequence[Sequence[Row]]) -> None:
    """Write one JSON file per batch."""
    source.mkdir(exist_ok=True)
    for number, rows in enumerate(batches, start=len(list(source.iterdir()))):
        add_file(source, number, ({"k": k, "t": t, "v": v} for k, t, v in rows))


@pytest.mark.extended
def test_count_windows_equal_those_of_the_local_runtime_and_of_spark_for_records_at_the_threshold(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark import SparkStreamEnvironment

    # The delay is 5 s. The first run closes the window that ends at 20 s. The second run ends with the watermark
    # 29,999, so the window that ends at 30,000 stays open, and a record for it still counts in the third run.
    runs: list[list[Row]] = [
        [("a", 3_000, 1), ("a", 9_999, 1), ("b", 12_000, 1), ("a", 25_000, 1)],
        [("a", 19_999, 1), ("a", 20_000, 1), ("b", 9_000, 1), ("b", 34_999, 1)],
        [("b", 20_500, 1), ("b", 29_999, 1), ("a", 10_000, 1), ("a", 35_000, 1)],
        [("b", 29_999, 1), ("b", 61_000, 1)],
    ]
    plain: list[Any] = []
    sink = memory_sink()

    def stream() -> DataFrame:
        rows = spark.readStream.schema(SCHEMA).json(str(tmp_path / "source"))
        return rows.selectExpr("k", "timestamp_millis(t) AS ts").withWatermark("ts", "5 seconds")

    def take(frame: DataFrame, batch_id: int) -> None:
        plain.extend(map(tuple, frame.collect()))

    for run in runs:
        write(tmp_path / "source", [run])
        counts = stream().groupBy(F.window("ts", "10 seconds"), "k").count()
        shown = counts.selectExpr("k", "unix_millis(window.start)", "unix_millis(window.end)", "count")
        query = shown.writeStream.outputMode("append").foreachBatch(take).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "plain")).start().awaitTermination()

        env = SparkStreamEnvironment(
            spark, job_dir=tmp_path / "job", local_state_directory=tmp_path / "local", parallelism=2, max_parallelism=16
        )
        windows = env.from_dataframe(stream()).key_by("k").window(TumblingEventTimeWindows.of("10 seconds"))
        windows.count(uid="counts", schema=COUNTED).sink_to(sink)
        env.execute("counts", trigger={"availableNow": True}).await_termination()

    local: list[Any] = []
    local_env = LocalStreamEnvironment(epoch_size=4)
    elements = [row for run in runs for row in padded(run, 4)]
    timed = local_env.from_elements(elements[:-2], SCHEMA).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamps("t")
    )
    counted = timed.key_by("k").window(TumblingEventTimeWindows.of("10 seconds"))
    counted.count(uid="counts", schema=COUNTED).sink_to(local)
    local_env.execute()
    assert rows_of(sink) == sorted(plain) == sorted(map(tuple, local))
    assert ("b", 20_000, 30_000, 2) in plain
    # Other threads, such as those of Spark's connections, may log errors.
    ours = [one for one in caplog.records if one.name.partition(".")[0] in LOGGERS]
    assert all(one.levelno < logging.ERROR for one in ours)


@pytest.mark.extended
def test_the_slowest_partition_of_a_source_determines_its_watermark(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark import SparkStreamEnvironment

    sink = memory_sink()
    found = []
    for part, rows in (("a", [("k", 3, 1), ("k", 50, 1)]), ("b", [("k", 20, 1)]), ("b", [("k", 70, 1)])):
        (tmp_path / "source").mkdir(exist_ok=True)
        write(tmp_path / "source" / f"part={part}", [rows])
        if part == "a":
            continue
        env = SparkStreamEnvironment(
            spark, job_dir=tmp_path / "job", local_state_directory=tmp_path / "local", parallelism=1, max_parallelism=4
        )
        frame = spark.readStream.schema(f"{SCHEMA}, part string").json(str(tmp_path / "source"))
        strategy: Any = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamps("t")
        timed = env.from_dataframe(frame).assign_timestamps_and_watermarks(strategy.with_channel("part"))
        windows = timed.key_by("k").window(TumblingEventTimeWindows.of(10))
        windows.count(uid="counts", schema=COUNTED).sink_to(sink)
        job = env.execute("partitions", trigger={"availableNow": True})
        job.await_termination()
        found.append((dict(job.watermarks()), rows_of(sink)))
    first, second = ("k", 0, 10, 1), ("k", 20, 30, 1)
    assert found == [({"source": 14, "counts": 14}, [first]), ({"source": 44, "counts": 44}, [first, second])]
