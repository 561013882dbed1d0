"""Where the rows of a subtask are sent, with one and with several executors, and where tasks run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from persistent_rdds import persistent_rdds
from pyspark.sql.types import LongType, StructField, StructType

from statebackend.spark.session import disable_adaptive, task_identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PARALLELISM = 5


@pytest.fixture
def several_executors(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Simulate these executors for the placement."""
    from statebackend.spark.plans import placement

    executors = {"a:1", "b:1"}
    monkeypatch.setattr(placement, "is_on_one_host", lambda spark: False)
    monkeypatch.setattr(placement, "_block_managers", lambda spark: frozenset({"driver:1", *executors}))
    return executors


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The locations of the partitions at each query. A letter is an executor."""
    from statebackend.spark.plans import placement

    looks: list[str] = []
    monkeypatch.setattr(placement, "places_of_partitions", lambda frame: looks.pop(0))
    return looks


@pytest.fixture
def placement() -> Iterator[Any]:
    from statebackend.spark.plans.placement import SubtaskPlacement

    placement = SubtaskPlacement(PARALLELISM)
    yield placement
    placement.close()


def partitions(placement: Any, rows: DataFrame) -> dict[int, list[tuple[int, int]]]:
    """The subtask and the number of rows of each partition, in order of execution."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    from statebackend.spark.plans.map_in_arrow import map_in_arrow

    def collect(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        pairs = [pair for batch in batches for pair in zip(*(column.to_pylist() for column in batch), strict=True)]
        row = {"partition": [context.partitionId()], "subtasks": [[a for a, _ in pairs]], "n": [[b for _, b in pairs]]}
        schema = [("partition", pa.int32()), ("subtasks", pa.list_(pa.int32())), ("n", pa.list_(pa.int64()))]
        yield pa.RecordBatch.from_pydict(row, pa.schema(schema))

    routed = placement.route(rows, F.col("subtask")).sortWithinPartitions("n")
    schema = StructType.fromDDL("partition int, subtasks array<int>, n array<bigint>")
    with disable_adaptive(rows.sparkSession):
        plan = rows.sparkSession._jvm.PythonSQLUtils.explainString(routed._jdf.queryExecution(), "simple")
        assert plan.replace("\n", "").partition("InMemoryRelation")[0].count("Exchange ") == 1
        found = map_in_arrow(routed.select("subtask", "n"), collect, schema).collect()
    assert sorted(row.partition for row in found) == list(range(PARALLELISM))
    return {row.partition: list(zip(row.subtasks, row.n, strict=True)) for row in found}


def rows(spark: SparkSession, count: int, subtasks: int = PARALLELISM) -> DataFrame:
    return spark.range(count, 0, -1, 3).selectExpr(f"cast(id % {subtasks} as int) as subtask", "id as n")


def expected(count: int) -> dict[int, list[tuple[int, int]]]:
    return {
        subtask: [(subtask, n) for n in range(1, count + 1) if n % PARALLELISM == subtask]
        for subtask in range(PARALLELISM)
    }


def test_the_hash_equals_that_of_spark(spark: SparkSession) -> None:
    from statebackend.spark.plans.placement import hash_of_int, salts_of_partitions

    numbers = [*range(100), 0x7FFFFFFF, 0x12345678, 65_536]
    [row] = (
        spark.createDataFrame([(numbers,)], "numbers array<int>")
        .selectExpr("transform(numbers, number -> hash(number)) as hashes")
        .collect()
    )
    assert [hash_of_int(number) for number in numbers] == row.hashes
    for count in (1, 2, 7, 1000):
        assert [hash_of_int(salt) % count for salt in salts_of_partitions(count)] == list(range(count))


def test_with_one_executor_rows_are_not_joined(spark: SparkSession, placement: Any) -> None:
    before = persistent_rdds(spark)
    placement.prepare(spark)
    assert partitions(placement, rows(spark, 50)) == expected(50)
    assert persistent_rdds(spark) <= before


@pytest.mark.extended
def test_with_several_executors_every_subtask_runs_and_gets_its_rows_in_order(
    spark: SparkSession, placement: Any, several_executors: set[str]
) -> None:
    before = persistent_rdds(spark)
    placement.prepare(spark)
    for _ in range(2):
        assert partitions(placement, rows(spark, 50)) == expected(50)
    only_one = {subtask: [(0, n) for n in range(1, 10)] if subtask == 0 else [] for subtask in range(PARALLELISM)}
    assert partitions(placement, rows(spark, 9, subtasks=1)) == only_one
    for empty in (rows(spark, 0), rows(spark, 9).limit(0), rows(spark, 9).where("false")):
        assert partitions(placement, empty) == expected(0)
    placement.close()
    assert persistent_rdds(spark) <= before
    assert partitions(placement, rows(spark, 50)) == expected(50)


@pytest.mark.parametrize("executors", [1, 2])
def test_without_rows_every_subtask_runs_in_its_place_and_without_a_shuffle_if_there_is_no_choice(
    spark: SparkSession, placement: Any, request: pytest.FixtureRequest, executors: int
) -> None:
    if executors > 1:
        request.getfixturevalue("several_executors")
    placement.prepare(spark)
    schema = StructType([StructField("subtask", LongType()), StructField("n.n", LongType())])
    none = placement.without_rows(spark, "first", schema)
    assert [none.schema[name] for name in schema.names] == schema.fields
    with disable_adaptive(spark):
        assert partitions_of(none) == list(range(PARALLELISM))
        plan = none._jdf.queryExecution().executedPlan().toString()
    assert ("Exchange" in plan) is (executors > 1)
    assert placement.without_rows(spark, "first", schema) is none
    assert placement.without_rows(spark, "second", schema) is not none
    # Another session has other settings, and another placement needs another frame.
    assert placement.without_rows(spark.newSession(), "first", schema) is not none
    placement.close()
    with disable_adaptive(spark):
        assert partitions_of(placement.without_rows(spark, "first", schema)) == list(range(PARALLELISM))


def partitions_of(frame: DataFrame) -> list[int]:
    from statebackend.spark.plans.map_in_arrow import map_in_arrow

    def partition(batches: Any) -> Iterator[pa.RecordBatch]:
        assert sum(batch.num_rows for batch in batches) == 0
        yield pa.RecordBatch.from_pydict({"partition": [task_identity().partition_id]})

    reported = map_in_arrow(frame, partition, StructType([StructField("partition", LongType())]))
    return sorted(row.partition for row in reported.collect())


def test_a_replaced_executor_is_no_reason_to_place_subtasks(
    spark: SparkSession, placement: Any, several_executors: set[str]
) -> None:
    several_executors.remove("b:1")
    placement.prepare(spark)
    assert placement._cached is None


@pytest.mark.parametrize(
    ("new", "places", "is_anew"),
    [
        ({"a:1", "b:1"}, ["aaaaa"], False),
        ({"a:1"}, ["aaaaa"], False),
        ({"a:1", "c:1"}, ["aaaab"], False),
        ({"a:1", "c:1"}, ["aaaaa", "aaabb"], True),
    ],
)
def test_subtasks_are_placed_again_if_new_executors_have_too_little_to_do(
    spark: SparkSession,
    placement: Any,
    several_executors: set[str],
    found: list[str],
    new: set[str],
    places: list[str],
    is_anew: bool,
) -> None:
    found.append("aaabb")
    placement.prepare(spark)
    before = placement._cached
    several_executors.clear()
    several_executors.update(new)
    found[:] = places
    placement.prepare(spark)
    assert (placement._cached is not before) is is_anew
    again = placement._cached
    found[:] = ["aaaaa"]
    placement.prepare(spark)
    assert placement._cached is again


@pytest.mark.parametrize(("places", "looks"), [(["aaaaa", "aaaab"], 2), (["aaaaa"] * 9, 5)])
def test_the_first_places_are_tried_again_until_they_are_balanced_or_nothing_helps(
    spark: SparkSession, placement: Any, several_executors: set[str], found: list[str], places: list[str], looks: int
) -> None:
    found[:] = places
    before = persistent_rdds(spark)
    placement.prepare(spark)
    assert len(places) - len(found) == looks
    assert partitions(placement, rows(spark, 50)) == expected(50)
    assert len(persistent_rdds(spark) - before) == 1


def test_the_reason_why_subtasks_are_away_from_their_state_is_one_line(
    spark: SparkSession, several_executors: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from statebackend.spark.plans import placement

    advice = placement.locality_advice(spark)
    assert advice is not None
    assert "spark.shuffle.reduceLocality.enabled=false" in advice
    assert "\n" not in advice
    monkeypatch.setattr(placement, "is_on_one_host", lambda spark: True)
    assert placement.locality_advice(spark) is None
