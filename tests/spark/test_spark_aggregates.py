"""Built-in aggregates on Spark equal Spark's own ``groupBy().agg()`` over the same rows."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import run_chain, write_batches

from statebackend import (
    DataStream,
    EpochError,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    approx_count_distinct,
    approx_percentile,
    avg,
    count,
    first_value,
    last_value,
    max_,
    min_,
    sum_,
    top_k,
)
from statebackend.spark.tasks.program_pickles import unpickled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = """
    card string, i int, l bigint, b tinyint, f float, d double, m decimal(10,2), w decimal(38,6), s string, day date,
    at timestamp, ok boolean, place struct<city: string>
"""


def record(number: int, chance: random.Random) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    return {
        "card": f"card {number % 7}",
        "i": maybe(chance.randrange(-1000, 1000)),
        "l": maybe(chance.randrange(-(1 << 40), 1 << 40)),
        "b": maybe(chance.randrange(-128, 128)),
        "f": maybe(chance.choice([0.5, -0.25, "NaN", -0.0, 3.0])),
        "d": maybe(chance.choice([0.5, -0.125, 1024.0, "NaN"]) if number % 7 < 3 else number / 4),
        "m": maybe(f"{chance.randrange(-(10**6), 10**6) / 100:.2f}"),
        "w": maybe(f"{chance.randrange(10**20)}.{chance.randrange(10**6):06d}"),
        "s": maybe(chance.choice(["", "a", "ä", "z", "\U0001f600", "\uffee"])),
        "day": maybe(f"2024-01-{chance.randrange(1, 29):02d}"),
        "at": f"2024-01-01T{number % 3:02d}:{chance.randrange(60):02d}:00Z",
        "ok": maybe(chance.random() < 0.5),
        "place": {"city": f"city {number % 2}"},
    }


CHANCE = random.Random(28)
BATCHES = [[record(number, CHANCE) for number in range(100 * part, 100 * part + 100)] for part in range(3)]
# A key whose records have no values.
NO_VALUES = {"card": "none", "at": "2024-01-01T00:00:00Z", "place": {"city": "nowhere"}}
BATCHES[0].append(NO_VALUES)

OURS: dict[str, Any] = {
    "n": count(),
    **{f"n_{name}": count(name) for name in ("i", "s")},
    **{f"sum_{name}": sum_(name) for name in ("i", "l", "b", "d", "f", "m", "w")},
    **{f"avg_{name}": avg(name) for name in ("i", "b", "d", "m", "w")},
    **{f"min_{name}": min_(name) for name in ("i", "b", "f", "d", "m", "s", "day", "at", "ok")},
    **{f"max_{name}": max_(name) for name in ("i", "b", "f", "d", "m", "s", "day", "at", "ok")},
}


# Aggregates that Arrow computes for each batch before they are merged.
EXACT = {name: one for name, one in OURS.items() if not name.endswith(("_f", "_d"))}


def of_spark(frame: DataFrame, *by: Any) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    functions = {"n": F.count, "sum": F.sum, "avg": F.avg, "min": F.min, "max": F.max}
    columns = []
    for name in OURS:
        function, _, column = name.partition("_")
        columns.append(functions[function](column or "*").alias(name))
    return frame.groupBy(*by).agg(*columns)


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        # Sums of floats are exact here. Only NaN and negative zero need another form to be compared.
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def by_key(rows: Any, keys: int) -> dict[Any, Any]:
    return {tuple(row)[:keys]: [comparable(value) for value in tuple(row)[keys:]] for row in rows}


def read(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.read.schema(SCHEMA).json(str(directory / "source"))


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_results_names_and_types_equal_those_of_spark(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    from statebackend.spark import ParquetSink

    calls = {"all": OURS, "exact": EXACT}

    def build(stream: DataStream) -> None:
        for uid, aggregates in calls.items():
            totals = stream.key_by("card", "place.city").aggregate(uid=uid, **aggregates)
            totals.sink_to(ParquetSink(str(tmp_path / uid)), uid=uid)

    run_chain(spark, tmp_path, SCHEMA, BATCHES, build, backend=backend)
    of_all = of_spark(read(spark, tmp_path), "card", "place.city")
    for uid, aggregates in calls.items():
        expected = of_all.select("card", "city", *aggregates)
        emitted = spark.read.parquet(str(tmp_path / uid)).select(*expected.columns)
        types = [[(one.name, one.dataType) for one in frame.schema] for frame in (emitted, expected)]
        assert types[0] == types[1]
        # The newest row of a key has the highest count.
        newest = by_key(sorted(emitted.collect(), key=lambda row: row["n"]), 2)
        assert newest == by_key(expected.collect(), 2)


def test_windows_equal_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark import MemorySink

    sinks = MemorySink(), MemorySink()

    def build(stream: DataStream) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 hours").with_timestamps("at")
        windows = stream.assign_timestamps_and_watermarks(strategy).key_by("card")
        for sink, aggregates, uid in zip(sinks, (OURS, EXACT), ("all", "exact"), strict=True):
            hours = windows.window(TumblingEventTimeWindows.of("1 hour"))
            hours.aggregate(uid=uid, **aggregates).sink_to(sink, uid=uid)

    # The last batch closes all windows of the other batches.
    last = [{**NO_VALUES, "at": "2024-01-02T00:00:00Z"}]
    run_chain(spark, tmp_path, SCHEMA, [*BATCHES, last, last], build)
    frame = read(spark, tmp_path).where("at < '2024-01-02'")
    expected = of_spark(frame, "card", F.window("at", "1 hour"))
    for sink, names in zip(sinks, (OURS, EXACT), strict=True):
        rows = expected.select("card", "window", *names).collect()
        assert by_key(sink.rows, 2) == by_key(rows, 2)


@pytest.mark.parametrize("is_windowed", [False, True])
def test_workers_know_the_key_columns_of_aggregates(spark: SparkSession, tmp_path: Path, is_windowed: bool) -> None:
    """Without their names, a worker makes Python objects of each result instead of columns."""
    from statebackend.spark import MemorySink, SparkStreamEnvironment

    environment = SparkStreamEnvironment(spark, job_dir=tmp_path / "job")
    write_batches(tmp_path, BATCHES[:1])
    rows = spark.readStream.schema(SCHEMA).json(str(tmp_path / "source"))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    keyed = environment.from_dataframe(rows).assign_timestamps_and_watermarks(strategy).key_by("card", "place.city")
    grouped: Any = keyed.window(TumblingEventTimeWindows.of("1 hour")) if is_windowed else keyed
    grouped.aggregate(uid="totals", n=count()).sink_to(MemorySink())
    operator = environment._prepare().operators["totals"]
    assert unpickled(operator.function_pickle).key_names == ("card", "city")


@pytest.mark.extended
def test_ordered_aggregates_and_sketches_run_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark import MemorySink

    sink, in_time_order = MemorySink(), MemorySink()

    def build(stream: DataStream) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        timed = stream.assign_timestamps_and_watermarks(strategy)
        timed.key_by("card").aggregate(uid="times", last=last_value("l", ignore_nulls=True)).sink_to(
            in_time_order, uid="times"
        )
        timed.key_by("card").aggregate(
            uid="totals",
            order_by=["at", "l"],
            n=count(),
            first=first_value("i", ignore_nulls=True),
            last=last_value("s"),
            distinct=approx_count_distinct("s"),
            top=top_k("s", 2),
            middle=approx_percentile("m", 0.5),
        ).sink_to(sink, uid="totals")

    run_chain(spark, tmp_path, SCHEMA, [[one for batch in BATCHES for one in batch]], build)
    frame = read(spark, tmp_path)
    exact = frame.groupBy("card").agg(F.count_distinct("s").alias("distinct"), F.median("m").alias("middle")).collect()
    for row in exact:
        [ours] = [one for one in sink.rows if one[0] == row["card"]]
        assert ours[4] == row["distinct"]
        if row["middle"] is not None:
            assert abs(ours[6] - Decimal(row["middle"])) < 3000
            ordered = frame.where(F.col("card") == row["card"]).orderBy("at", "l").collect()
            assert ours[2:4] == (next(one["i"] for one in ordered if one["i"] is not None), ordered[-1]["s"])
            [(_, last)] = [one for one in in_time_order.rows if one[0] == row["card"]]
            assert last == next(one["l"] for one in reversed(ordered) if one["l"] is not None)
            assert ours[5][0][1] >= ours[5][1][1] > 0


@pytest.mark.extended
def test_an_overflow_fails_the_epoch_as_in_ansi_mode(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark import NoopSink

    def build(stream: DataStream) -> None:
        stream.key_by("card").aggregate(uid="totals", total=sum_("l")).sink_to(NoopSink())

    rows = [{"card": "a", "l": (1 << 63) - 1, "at": "2024-01-01T00:00:00Z"}] * 2
    with pytest.raises(EpochError, match="'total' does not fit its type bigint"):
        run_chain(spark, tmp_path, SCHEMA, [rows], build)
