"""Writes checkpoints of queries with the Spark that runs this file, and packs them into ``<version>.tar.gz`` beside it.

    unshare --uts sh -c 'hostname localhost && python tests/golden/spark_checkpoints/write_spark_checkpoints.py'

Run it in a separate environment for each version of Spark, with pandas for ``applyInPandasWithState``. SST files of
RocksDB contain the name of the host that wrote them. The source is read through a mount, so that its log contains no
machine path. The file imports nothing from this repository.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

try:
    from pyspark.sql.streaming import StatefulProcessor
except ImportError:  # Spark 3.5
    StatefulProcessor: Any = object  # type: ignore[no-redef]

HERE = Path(__file__).resolve().parent
SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
SOURCE = "viewfs://golden/source"
BATCHES = [
    [("a", 3_000, 1), ("a", 9_999, 2), ("b", 12_000, 3)],
    [("a", 25_000, 4), ("b", 26_000, 5), ("c", 27_000, 6)],
]
CENTURY_MS = 100 * 365 * 86_400_000

_STORE = "spark.sql.streaming.stateStore"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = {f"{_STORE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider"}
CHANGELOG = {**ROCKSDB, f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true"}
HDFS = {f"{_STORE}.providerClass": f"{_PROVIDERS}.HDFSBackedStateStoreProvider"}
# Spark's maintenance task writes a snapshot after each version.
SNAPSHOTS = {f"{_STORE}.minDeltasForSnapshot": "1", f"{_STORE}.maintenanceInterval": "50ms"}
FORMAT_2 = {f"{_STORE}.checkpointFormatVersion": "2"}
AVRO = {f"{_STORE}.encodingFormat": "avro"}
CHECKSUMS = {f"{_STORE}.rowChecksum.enabled": "true"}


def version(operator: str, number: int) -> dict[str, str]:
    return {f"spark.sql.streaming.{operator}.stateFormatVersion": str(number)}


def stream(spark: Any) -> Any:
    rows = spark.readStream.schema("k string, t bigint, x bigint").option("maxFilesPerTrigger", 1).json(SOURCE)
    return rows.selectExpr("k", "t", "x", "timestamp_millis(t) AS ts").withWatermark("ts", "5 seconds")


def windows(spark: Any) -> Any:
    return stream(spark).groupBy(F.window("ts", "10 seconds"), "k").count()


def sessions(spark: Any) -> Any:
    return stream(spark).groupBy(F.session_window("ts", "10 seconds"), "k").count()


def sums(spark: Any) -> Any:
    return stream(spark).groupBy("k").agg(F.sum("x").alias("s"), F.avg("x").alias("mean"))


def types(spark: Any) -> Any:
    """Keys and accumulators of many types, including nulls."""
    keys = stream(spark).selectExpr(
        "x",
        "k AS text",
        "CAST(x AS int) AS number",
        "x > 3 AS flag",
        "CAST(k AS binary) AS bytes",
        "date_add(DATE'2026-01-01', CAST(x AS int)) AS day",
        "ts AS moment",
        "CAST(x AS decimal(20, 2)) AS money",
        "IF(x = 1, NULL, x) AS maybe",
    )
    by = ["text", "number", "flag", "bytes", "day", "moment", "money", "maybe"]
    kept = [F.collect_list("x"), F.max(F.struct("x", "text")), F.sum("money"), F.max(F.expr("IF(x = 2, NULL, x)"))]
    return keys.groupBy(*by).agg(*kept)


def unique(spark: Any) -> Any:
    return stream(spark).dropDuplicates(["k"])


def unique_within_watermark(spark: Any) -> Any:
    return stream(spark).dropDuplicatesWithinWatermark(["k"])


def joined(spark: Any) -> Any:
    left = stream(spark).selectExpr("k", "ts", "x")
    right = stream(spark).selectExpr("k AS k2", "ts AS ts2", "x AS x2")
    return left.join(right, F.expr("k = k2 AND ts2 BETWEEN ts - INTERVAL 10 SECONDS AND ts + INTERVAL 10 SECONDS"))


def count_in_pandas(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas

    count, texts = state.get if state.exists else (0, [])
    last = 0
    for frame in frames:
        count += len(frame)
        texts = [*texts, *(f"x{x}" for x in frame.x)]
        last = max(last, int(frame.t.max()))
    state.update((count, texts))
    if last and state.getCurrentWatermarkMs() >= 0:
        state.setTimeoutTimestamp(last + 60_000)
    yield pandas.DataFrame({"k": [key[0]], "n": [count]})


def with_state(spark: Any) -> Any:
    schema = "n bigint, texts array<string>"
    keyed = stream(spark).groupBy("k")
    return keyed.applyInPandasWithState(count_in_pandas, "k string, n bigint", schema, "update", "EventTimeTimeout")


class Kept(StatefulProcessor):
    """Stores rows in every kind of state, and registers a timer a minute after each row."""

    def __init__(self, ttl_ms: int | None, has_timers: bool) -> None:
        self.ttl_ms = ttl_ms
        self.has_timers = has_timers

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint, last string", self.ttl_ms)
        self.numbers = handle.getListState("numbers", "x bigint", self.ttl_ms)
        self.times = handle.getMapState("times", "x bigint", "t bigint", self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count = self.count.get()[0] if self.count.exists() else 0
        for row in sorted(rows, key=lambda one: one.t):
            count += 1
            self.numbers.appendValue((row.x,))
            self.times.updateValue((row.x,), (row.t,))
            if self.has_timers:
                self.handle.registerTimer(row.t + (60_000 if self.ttl_ms is None else CENTURY_MS))
        self.count.update((count, f"{key[0]}{count}"))
        yield Row(k=key[0], n=count)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(k=key[0], n=-1)

    def close(self) -> None: ...


def processed(mode: str, ttl_ms: int | None = None) -> Callable[[Any], Any]:
    def make(spark: Any) -> Any:
        keyed = stream(spark).groupBy("k")
        return keyed.transformWithState(Kept(ttl_ms, mode != "None"), "k string, n bigint", "Update", mode)

    return make


CASES: dict[str, tuple[tuple[int, int], Callable[[Any], Any], dict[str, str]]] = {
    # By name: the first Spark version that can write the case, the query, and its settings.
    "windows-rocksdb": ((3, 5), windows, ROCKSDB),
    "windows-changelog": ((3, 5), windows, CHANGELOG),
    "windows-changelog-snapshots": ((3, 5), windows, {**CHANGELOG, **SNAPSHOTS}),
    "windows-hdfs": ((3, 5), windows, HDFS),
    "windows-hdfs-snapshots": ((3, 5), windows, {**HDFS, **SNAPSHOTS}),
    "windows-hdfs-zstd": ((3, 5), windows, {**HDFS, f"{_STORE}.compression.codec": "zstd"}),
    "windows-format-2": ((4, 1), windows, {**CHANGELOG, **FORMAT_2}),
    "windows-format-2-rocksdb": ((4, 1), windows, {**ROCKSDB, **FORMAT_2}),
    "windows-checksums": ((4, 3), windows, {**ROCKSDB, **CHECKSUMS}),
    "windows-checksums-hdfs": ((4, 3), windows, {**HDFS, **CHECKSUMS}),
    "sessions-rocksdb": ((3, 5), sessions, ROCKSDB),
    "sessions-changelog": ((3, 5), sessions, CHANGELOG),
    "sessions-hdfs": ((3, 5), sessions, HDFS),
    "sums-hdfs": ((3, 5), sums, HDFS),
    "sums-1-hdfs": ((3, 5), sums, {**HDFS, **version("aggregation", 1)}),
    "types-rocksdb": ((3, 5), types, ROCKSDB),
    "types-hdfs": ((3, 5), types, HDFS),
    "unique-changelog": ((3, 5), unique, CHANGELOG),
    "unique-hdfs": ((3, 5), unique, HDFS),
    "unique-within-watermark-rocksdb": ((3, 5), unique_within_watermark, ROCKSDB),
    "unique-within-watermark-hdfs": ((3, 5), unique_within_watermark, HDFS),
    "join-1-hdfs": ((3, 5), joined, {**HDFS, **version("join", 1)}),
    "join-2-hdfs": ((3, 5), joined, {**HDFS, **version("join", 2)}),
    "join-2-changelog": ((3, 5), joined, {**CHANGELOG, **version("join", 2)}),
    "join-3-changelog": ((4, 1), joined, {**CHANGELOG, **version("join", 3)}),
    "join-3-format-2": ((4, 1), joined, {**CHANGELOG, **version("join", 3), **FORMAT_2}),
    "join-4-rocksdb": ((4, 3), joined, {**ROCKSDB, **version("join", 4)}),
    "with-state-rocksdb": ((3, 5), with_state, ROCKSDB),
    "with-state-hdfs": ((3, 5), with_state, HDFS),
    "with-state-1-hdfs": ((3, 5), with_state, {**HDFS, **version("flatMapGroupsWithState", 1)}),
    "processor-rocksdb": ((4, 1), processed("None"), ROCKSDB),
    "processor-event-time-changelog": ((4, 1), processed("EventTime"), CHANGELOG),
    "processor-ttl-rocksdb": ((4, 1), processed("ProcessingTime", CENTURY_MS), ROCKSDB),
    "processor-ttl-changelog": ((4, 1), processed("ProcessingTime", CENTURY_MS), CHANGELOG),
    "processor-ttl-format-2": ((4, 1), processed("ProcessingTime", CENTURY_MS), {**CHANGELOG, **FORMAT_2}),
    "processor-ttl-avro": ((4, 1), processed("ProcessingTime", CENTURY_MS), {**CHANGELOG, **AVRO}),
}


def add_file(directory: Path, index: int, rows: list[tuple[str, int, int]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    staged = directory / f"_{index:05d}.json"
    staged.write_text("".join(json.dumps(dict(zip("ktx", row, strict=True))) + "\n" for row in rows))
    os.utime(staged, (1_000_000_000 + index, 1_000_000_000 + index))
    staged.rename(directory / f"{index:05d}.json")


def run(spark: Any, checkpoint: Path, name: str) -> None:
    _, query, settings = CASES[name]
    settings = {"spark.sql.shuffle.partitions": "2" if query is windows else "1", **settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        writer = query(spark).writeStream.outputMode("append" if query in IN_APPEND else "update").format("noop")
        # With processing-time timers, an ``availableNow`` query never ends.
        trigger = {"once": True} if "ttl" in name else {"availableNow": True}
        writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start().awaitTermination()
    finally:
        for key in settings:
            spark.conf.unset(key)


IN_APPEND = (windows, sessions, unique, unique_within_watermark, joined)


def main(only: list[str]) -> None:
    """Write the cases that this Spark version supports."""
    has_pandas = True
    try:
        import pandas  # noqa: F401
    except ImportError:
        from unittest.mock import patch

        # Spark checks the pandas version for all vectorised functions, but functions over rows need no pandas.
        patch("pyspark.sql.pandas.functions.require_minimum_pandas_version").start()
        has_pandas = False
    directory = Path(tempfile.mkdtemp())
    for index, rows in enumerate(BATCHES):
        add_file(directory / "source", index, rows)
    builder: Any = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.hadoop.fs.viewfs.mounttable.golden.link./source", (directory / "source").as_uri())
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    failed = []
    try:
        for name, (first, query, _) in CASES.items():
            if first > SPARK or (query is with_state and not has_pandas) or (only and name not in only):
                continue
            if name == "join-1-hdfs" and SPARK > (3, 5):
                # Later versions can read it, but cannot start a query with it.
                continue
            try:
                run(spark, directory / "checkpoints" / name, name)
            except Exception as error:
                failed.append(f"{name}: {str(error)[:2000]}")
            sys.stdout.write(f"{name}\n")
    finally:
        spark.stop()
    archive = HERE / f"{SPARK[0]}.{SPARK[1]}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted((directory / "checkpoints").rglob("*")):
            member = tarfile.TarInfo(str(path.relative_to(directory / "checkpoints")))
            if path.is_dir():
                member.type = tarfile.DIRTYPE
                packed.addfile(member)
            else:
                member.size = path.stat().st_size
                packed.addfile(member, io.BytesIO(path.read_bytes()))
    shutil.rmtree(directory)
    sys.stdout.write("\n".join([f"{archive}: {archive.stat().st_size} bytes", *failed, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
