"""Spark jobs with several sources, sinks and side outputs run each operator once, and each sink gets each row once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import pickled_by_value, write_batches
from persistent_rdds import persistent_rdds
from spark_job_fixture import crashing_once, memory_sink, rows_of

from statebackend import (
    EpochError,
    JobDefinitionError,
    JobRestoreError,
    KeyedProcessFunction,
    OutputTag,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SALES = "shop string, amount int, `a.b` struct<c: int>"
RETURNS = "shop string, amount int, day date"
LARGE = OutputTag[Any]("large", schema="shop string, amount int, sold struct<at: int, why: string>")
TOTALS = "shop string, amount int, total bigint"


class Totals(KeyedProcessFunction[str, Any, Any]):
    """Emits ``(shop, amount, total so far)``. Large amounts go to a side output too."""

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        total = self.total.value() + value["amount"]
        self.total.update(total)
        if value["amount"] >= 10:
            context.output(LARGE, (value["shop"], value["amount"], {"at": total, "why": "it is large"}))
            context.output(OutputTag("nobody reads this"), "and so it is dropped")
        yield value["shop"], value["amount"], total


def sold(rows: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"shop": shop, "amount": amount, "a.b": {"c": amount}} for shop, amount in rows]


def returned(rows: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"shop": shop, "amount": amount, "day": "2026-01-02"} for shop, amount in rows]


SALES_BATCHES = [sold([("a", 1), ("b", 20), ("a", 30)]), sold([("a", 40), ("c", 2)]), sold([("b", 50)])]
RETURNS_BATCHES = [returned([("a", -1)]), returned([("b", -2), ("d", -3)]), returned([("a", -4)])]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(__name__):
        yield


class Place:
    """Two sources of files, and a job of two operators over them."""

    def __init__(self, spark: SparkSession, directory: Path, batches: int = 3) -> None:
        self.spark = spark
        self.directory = directory
        self.show(batches)

    def show(self, batches: int) -> None:
        """Make this many files of each source visible."""
        write_batches(self.directory / "sales", SALES_BATCHES[:batches])
        write_batches(self.directory / "returns", RETURNS_BATCHES[:batches])

    def stream(self, name: str, schema: str) -> Any:
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.directory / name / "source"))

    def environment(self, job: str = "job", **options: Any) -> Any:
        from statebackend.spark import SparkStreamEnvironment

        options = {"parallelism": 2, "max_parallelism": 16, "backend": "heap", **options}
        local = self.directory / "local"
        return SparkStreamEnvironment(self.spark, job_dir=self.directory / job, local_state_directory=local, **options)

    def run(self, totals_sink: Any, large_sink: Any, **execute: Any) -> Any:
        """A second operator sums large sales and all returns."""
        environment = self.environment()
        sales = environment.from_dataframe(self.stream("sales", SALES), uid="sales")
        returns = environment.from_dataframe(self.stream("returns", RETURNS), uid="returns")
        build(sales, returns.transform_dataframe(lambda frame: frame.select("shop", "amount")), totals_sink, large_sink)
        job = environment.execute("graph", trigger={"availableNow": True}, **execute)
        job.await_termination()
        return job


def build(sales: Any, returns: Any, totals_sink: Any, large_sink: Any) -> None:
    totals = sales.key_by("shop").process(Totals(), uid="totals", schema=TOTALS, order_by="amount")
    totals.sink_to(totals_sink)
    side = totals.get_side_output(LARGE)
    is_local = isinstance(totals_sink, list)
    large = (side.flat_map if is_local else side.transform_dataframe)(_amounts)
    both = large.union(returns).key_by("shop")
    both.process(Totals(), uid="large", schema=TOTALS, order_by="amount").sink_to(large_sink, uid="large")


def _amounts(rows: Any) -> Any:
    """Select from a frame on Spark, or from a record in the local runtime."""
    if hasattr(rows, "select"):
        return rows.where("sold.at > 0 AND sold.why = 'it is large'").select("amount", "shop")
    shop, amount, _ = rows
    return [{"shop": shop, "amount": amount}]


def in_process(epochs: int = 3) -> tuple[list[Any], list[Any]]:
    """The output of the same graph in the local runtime, with the same epochs."""
    totals: list[Any] = []
    large: list[Any] = []
    with tempfile.TemporaryDirectory() as directory:
        for sales, returns in zip(SALES_BATCHES[:epochs], RETURNS_BATCHES[:epochs], strict=True):
            environment = LocalStreamEnvironment(job_dir=f"{directory}/job", parallelism=2, max_parallelism=16)
            build(
                environment.from_elements(sales, uid="sales"),
                environment.from_elements(returns, uid="returns"),
                totals,
                large,
            )
            environment.execute()
    return sorted(totals), sorted(large)


def test_a_graph_emits_the_same_on_spark_as_locally_and_its_tasks_run_once(spark: SparkSession, tmp_path: Path) -> None:
    totals, large = memory_sink(), memory_sink()
    before = persistent_rdds(spark)
    job = Place(spark, tmp_path).run(totals, large)
    assert (rows_of(totals), rows_of(large)) == in_process()
    assert ("a", 40, 71) in rows_of(totals)
    assert ("b", 50, 68) in rows_of(large)
    assert [epoch.epoch_id for epoch in job.epochs] == [0, 1, 2]
    assert persistent_rdds(spark) <= before


def shown(place: Place, name: str) -> list[tuple[Any, ...]]:
    rows = place.spark.read.parquet(str(place.directory / name)).collect()
    return sorted((row.shop, row.amount, row.total) for row in rows)


@pytest.mark.parametrize(
    ("moment", "sink"),
    [
        ("commit", 1),
        pytest.param("commit", 0, marks=pytest.mark.extended),
        pytest.param("stage", 1, marks=pytest.mark.extended),
    ],
)
@pytest.mark.extended
def test_a_driver_that_dies_between_two_sinks_leaves_each_row_once_in_each(
    spark: SparkSession, tmp_path: Path, moment: str, sink: int
) -> None:
    from statebackend.spark import ParquetSink

    place = Place(spark, tmp_path)
    sinks = [ParquetSink(tmp_path / "totals"), ParquetSink(tmp_path / "large")]
    crashing: list[Any] = list(sinks)
    crashing[sink] = crashing_once(sinks[sink], moment, 1)
    with pytest.raises((EpochError, KeyboardInterrupt), match="the driver dies"):
        place.run(*crashing)
    epochs = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/epoch=*"))
    between_the_two = ["totals/epoch=000000000001"] if (moment, sink) == ("commit", 1) else []
    assert epochs == ["large/epoch=000000000000", "totals/epoch=000000000000", *between_the_two]
    if moment == "commit":
        with pytest.raises(JobRestoreError, match=r"epoch 1 is complete, but .*staged by another sink: ParquetSink\("):
            place.run(*reversed(sinks))
    job = place.run(*sinks)
    assert job.last_completed_epoch == 2
    assert (shown(place, "totals"), shown(place, "large")) == in_process()
    assert not list(tmp_path.glob("*/_staging/*"))


@pytest.mark.extended
def test_a_savepoint_continues_in_both_sources_at_their_positions(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(spark, tmp_path, batches=2)
    place.run(memory_sink(), memory_sink()).savepoint(tmp_path / "savepoint")
    place.show(3)
    totals, large = memory_sink(), memory_sink()
    environment = place.environment("another", parallelism=3)
    returns = environment.from_dataframe(place.stream("returns", RETURNS).select("shop", "amount"), uid="sales")
    build(environment.from_dataframe(place.stream("sales", SALES), uid="returns"), returns, totals, large)
    with pytest.raises(JobRestoreError, match=r"'sales' of the job reads FileSource\[.*returns.* has read .*sales"):
        environment.execute("graph", from_savepoint=tmp_path / "savepoint")
    environment = place.environment("another", parallelism=3)
    sales = environment.from_dataframe(place.stream("sales", SALES), uid="sales")
    build(
        sales,
        environment.from_dataframe(place.stream("returns", RETURNS).select("shop", "amount"), uid="returns"),
        totals,
        large,
    )
    environment.execute(
        "graph", trigger={"availableNow": True}, from_savepoint=tmp_path / "savepoint"
    ).await_termination()
    expected_totals, expected_large = in_process()
    assert rows_of(totals) == [row for row in expected_totals if row[1] == 50]
    assert rows_of(large) == [row for row in expected_large if row[1] in (50, -4)]


@pytest.mark.extended
def test_a_stream_may_have_several_readers_and_a_frame_given_twice_is_one_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(spark, tmp_path)
    environment = place.environment()
    frame = place.stream("sales", SALES)
    sales = environment.from_dataframe(frame, uid="sales")
    everything, again = memory_sink(), memory_sink()
    sales.transform_dataframe(lambda rows: rows.select("shop", "`a.b`.c")).sink_to(everything, uid="everything")
    counted = sales.key_by("shop").process(Totals(), uid="totals", schema=TOTALS, order_by="amount")
    grouped = environment.from_dataframe(frame).union(sales).key_by("amount")
    grouped.process(Totals(), uid="by amount", schema=TOTALS).sink_to(again, uid="again")
    # The first operator runs in the plan of the second one, which is cached.
    chained = counted.key_by("shop").process(Totals(), uid="chained", schema=TOTALS, order_by="total")
    twice = (memory_sink(), memory_sink())
    chained.sink_to(twice[0], uid="once")
    chained.transform_dataframe(lambda rows: rows.orderBy("total")).sink_to(twice[1], uid="twice")
    environment.execute("graph", trigger={"availableNow": True}).await_termination()
    sold_rows = [(row["shop"], row["amount"]) for batch in SALES_BATCHES for row in batch]
    assert rows_of(everything) == sorted(sold_rows)
    assert rows_of(twice[0]) == rows_of(twice[1])
    assert [row[:2] for row in rows_of(twice[0])] == sorted(sold_rows)
    assert rows_of(again) == sorted((shop, amount, total * amount) for shop, amount in sold_rows for total in (1, 2))


def test_an_invalid_graph_is_rejected_before_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(spark, tmp_path)
    environment = place.environment()
    sales = environment.from_dataframe(place.stream("sales", SALES), uid="sales")
    returns = environment.from_dataframe(place.stream("returns", RETURNS), uid="returns")
    keyed = sales.union(returns).key_by("shop")
    keyed.process(Totals(), uid="totals", schema=TOTALS).sink_to(memory_sink())
    with pytest.raises(JobDefinitionError, match=r"union\(\) of streams with different columns: .*day date"):
        environment.execute("graph")
    environment = place.environment()
    totals = (
        environment.from_dataframe(place.stream("sales", SALES))
        .key_by("shop")
        .process(Totals(), uid="totals", schema=TOTALS)
    )
    totals.get_side_output(OutputTag("large")).sink_to(memory_sink())
    with pytest.raises(JobDefinitionError, match=r"'totals', side output 'large': pass OutputTag\(name, RecordClass"):
        environment.execute("graph")
    assert not (tmp_path / "job").exists()
