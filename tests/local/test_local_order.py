"""`order_by` on the local runtime sorts as Spark does: nulls first, NaN last, structs and arrays item by item."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from statebackend import (
    BroadcastProcessFunction,
    BroadcastStateDescriptor,
    JobDefinitionError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN = math.nan


class Places(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield "a", value["place"]


def order_of(values: Sequence[Any], schema: str | None) -> list[int]:
    """The positions of the values in the order in which a function gets them."""
    env = LocalStreamEnvironment()
    records = [{"k": "a", "place": place, "v": value} for place, value in enumerate(values)]
    stream = env.from_elements(records, schema=None if schema is None else f"k string, place int, v {schema}")
    out: list[Any] = []
    stream.key_by("k").process(Places(), uid="places", schema="k string, place int", order_by=["v"]).sink_to(out)
    env.execute()
    return [row["place"] for row in out]


CASES: list[tuple[str, list[Any], list[int]]] = [
    ("double", [3.0, NAN, 2.0, NAN, None, 1.0, math.inf], [4, 5, 2, 0, 6, 1, 3]),
    ("float", [NAN, -math.inf, None], [2, 1, 0]),
    ("double", [0.0, -0.0, -1.0, 0.0], [2, 0, 1, 3]),
    ("array<double>", [[1.0, NAN], [1.0], [1.0, 2.0], None, [None, 9.0], [NAN], []], [3, 6, 4, 1, 2, 0, 5]),
    ("array<array<int>>", [[[1], None], [[1], []], [[None]], [None]], [3, 2, 0, 1]),
    ("array<string>", [["a", None], ["a", ""], [None, "b"]], [2, 0, 1]),
]


@pytest.mark.parametrize("has_schema", [True, False])
@pytest.mark.parametrize(("schema", "values", "places"), CASES)
def test_values_are_sorted_as_spark_sorts_them(
    has_schema: bool, schema: str, values: Sequence[Any], places: Sequence[int]
) -> None:
    assert order_of(values, schema if has_schema else None) == places


STRUCTS: list[tuple[str, list[Any], list[int]]] = [
    (
        "struct<x: double, y: int>",
        [{"x": NAN, "y": 1}, {"x": 2.0, "y": None}, {"x": None, "y": 5}, {"x": 2.0, "y": -1}, None],
        [4, 2, 1, 3, 0],
    ),
    (
        "array<struct<x: int, y: string>>",
        [[{"x": 1, "y": None}], [{"x": 1, "y": "b"}], [{"x": None, "y": "z"}], [None]],
        [3, 2, 0, 1],
    ),
]


@pytest.mark.parametrize(("schema", "values", "places"), STRUCTS)
def test_structs_are_sorted_field_by_field(schema: str, values: Sequence[Any], places: Sequence[int]) -> None:
    assert order_of(values, schema) == places


@pytest.mark.extended
@pytest.mark.spark
def test_spark_has_the_same_order(spark: SparkSession) -> None:
    for schema, values, places in [*CASES, *STRUCTS]:
        rows = [(place, value) for place, value in enumerate(values)]
        frame = spark.createDataFrame(rows, f"place int, v {schema}").coalesce(1).sortWithinPartitions("v")
        assert [row["place"] for row in frame.collect()] == places


def test_a_decimal_nan_comes_last() -> None:
    assert order_of([Decimal("NaN"), Decimal(2), None, Decimal(1)], None) == [2, 3, 1, 0]


def test_timestamps_are_sorted_by_instant_and_not_by_wall_clock() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    second = datetime.datetime(2024, 10, 27, 2, 10, fold=1, tzinfo=berlin)
    first = datetime.datetime(2024, 10, 27, 2, 50, tzinfo=berlin)
    assert order_of([second, first], None) == [1, 0]


def test_values_without_order_are_rejected_by_operator_and_column() -> None:
    with pytest.raises(
        JobDefinitionError, match=r"operator 'places'.*order_by\('v'\) cannot sort the records: .*'str'"
    ):
        order_of([1, "a"], None)
    with pytest.raises(JobDefinitionError, match=r"order_by\('v'\) cannot sort the records: .*'dict'.*not maps"):
        order_of([{"a": 1}, {"a": 2}], "map<string, int>")


class Both(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def process_element1(self, value: Any, context: Any) -> Iterator[Any]:
        yield "first", value["v"]

    def process_element2(self, value: Any, context: Any) -> Iterator[Any]:
        yield "second", value["v"]


class Broadcast(BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield "spread", value["v"]

    def process_broadcast_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield "broadcast", value["v"]


ROWS = [{"k": "a", "v": value} for value in (3.0, NAN, 2.0, NAN, 1.0)]
SORTED = ["1.0", "2.0", "3.0", "nan", "nan"]


def test_every_input_of_an_operator_is_sorted() -> None:
    env = LocalStreamEnvironment()
    first, second = (env.from_elements(ROWS, schema="k string, v double", uid=uid) for uid in ("first", "second"))
    both: list[Any] = []
    rest: list[Any] = []
    first.connect(second).key_by("k", "k").process(
        Both(), uid="both", schema="side string, v double", first_order_by="v", second_order_by="v"
    ).sink_to(both)
    rules = second.broadcast(BroadcastStateDescriptor("rules", str, str), order_by="v")
    spread = first.connect(rules).process(Broadcast(), uid="rules", schema="side string, v double", order_by="v")
    spread.sink_to(rest, uid="spread")
    env.execute()
    for side in ("first", "second", "spread", "broadcast"):
        assert [str(row["v"]) for row in both + rest if row["side"] == side] == SORTED
