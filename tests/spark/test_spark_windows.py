"""Count windows on Spark store structs in state over several epochs, and equal those of the local runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import pickled_by_value, write_batches
from spark_job_fixture import memory_sink, rows_of

from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SALES = "shop string, amount int, `a.b` struct<c: int>"
ROWS = [("a", 1, 1), ("b", 20, 2), ("a", 30, 3), ("b", 40, 4), ("a", 50, 5)]
BATCHES = [[{"shop": shop, "amount": amount, "a.b": {"c": c}}] for shop, amount, c in ROWS]


def shown(key: str, window: Any, rows: list[Any]) -> Iterator[Any]:
    yield key, [row["amount"] for row in rows], sum(row["a.b"].c for row in rows)


def build(sales: Any, sink: Any) -> None:
    windows = sales.key_by("shop").count_window(2)
    windows.apply(shown, uid="pairs", schema="shop string, amounts array<int>, c int").sink_to(sink)


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(__name__):
        yield


@pytest.mark.extended
def test_count_windows_emit_the_same_on_spark_as_locally(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark import SparkStreamEnvironment

    write_batches(tmp_path / "sales", BATCHES)
    reader = spark.readStream.schema(SALES).option("maxFilesPerTrigger", 1)
    sink = memory_sink()
    environment = SparkStreamEnvironment(spark, job_dir=tmp_path / "job", parallelism=2, max_parallelism=16)
    build(environment.from_dataframe(reader.json(str(tmp_path / "sales" / "source"))), sink)
    environment.execute("windows", trigger={"availableNow": True}).await_termination()

    local: list[Any] = []
    in_process = LocalStreamEnvironment(epoch_size=1)
    build(in_process.from_elements([batch[0] for batch in BATCHES], SALES), local)
    in_process.execute()
    expected = [("a", [1, 30], 4), ("b", [20, 40], 6)]
    assert rows_of(sink) == expected
    assert sorted(map(tuple, local)) == expected
