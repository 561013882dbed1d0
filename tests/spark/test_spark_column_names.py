"""Column names that Spark would parse as paths can be used in keys, orders and rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from chain_runner import COUNTED, CountPerKey, run_chain

from statebackend import JobDefinitionError, KeyedProcessFunction, ProcessContext
from statebackend.local.graph import field_getter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "word string, number int"
BATCHES = [[{"word": "x", "number": 3}, {"word": "y", "number": 1}, {"word": "x", "number": 2}]]


def with_odd_names(frame: DataFrame) -> DataFrame:
    """A struct ``a`` with a field ``b``, and flat columns named ``a.b`` and ``a`b``."""
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select(
        F.struct(F.lit("of the struct").alias("b")).alias("a"),
        F.col("word").alias("a.b"),
        F.col("number").alias("a`b"),
    )


class EmitColumns(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[tuple[str, int]]:
        assert value["a"].b == "of the struct"
        assert value["a.b"] == context.current_key
        yield value["a.b"], value["a`b"]


def test_keys_and_orders_with_dots_and_backticks_are_the_columns_of_these_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    from statebackend.spark.frame_sinks import MemorySink

    sink = MemorySink()
    run_chain(
        spark,
        tmp_path,
        SCHEMA,
        BATCHES,
        lambda stream: (
            stream.transform_dataframe(with_odd_names)
            .key_by("a.b")
            .process(EmitColumns(), uid="odd", schema="`x.y` string, number int", order_by="a`b")
            .key_by("x.y")
            .process(CountPerKey(), uid="count", schema=COUNTED)
            .sink_to(sink)
        ),
    )
    assert sorted(tuple(row) for row in sink.rows) == [("x", 1), ("x", 2), ("y", 1)]


def test_without_a_column_of_that_name_a_dotted_key_is_the_field_of_a_struct(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.frame_sinks import MemorySink

    sink = MemorySink()
    run_chain(
        spark,
        tmp_path,
        SCHEMA,
        BATCHES,
        lambda stream: (
            stream.transform_dataframe(lambda frame: frame.select(F.struct(F.col("word").alias("b")).alias("a")))
            .key_by("a.b")
            .process(CountPerKey(), uid="count", schema=COUNTED)
            .sink_to(sink)
        ),
    )
    assert sorted(tuple(row) for row in sink.rows) == [("x", 1), ("x", 2), ("y", 1)]


def test_columns_that_differ_in_case_only_are_rejected_before_the_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.frame_sinks import NoopSink

    with pytest.raises(JobDefinitionError, match=r"operator 'count': two of its input columns .*\(word, WORD\)"):
        run_chain(
            spark,
            tmp_path,
            SCHEMA,
            BATCHES,
            lambda stream: (
                stream.transform_dataframe(lambda frame: frame.select("word", F.col("word").alias("WORD")))
                .key_by("word")
                .process(CountPerKey(), uid="count", schema=COUNTED)
                .sink_to(NoopSink())
            ),
        )


@attrs.frozen
class Inner:
    b: str


@attrs.frozen
class Outer:
    a: Inner


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"a": {"b": "nested"}, "a.b": "flat"}, "flat"),
        ({"a": {"b": "nested"}}, "nested"),
        ({"a": Inner("nested")}, "nested"),
        (Outer(Inner("nested")), "nested"),
    ],
)
def test_a_dotted_name_has_the_same_meaning_in_the_local_runtime(record: Any, expected: str) -> None:
    assert field_getter("a.b", "operator 'uid'", "key_by")(record) == expected


def test_a_column_named_like_a_method_works_in_the_local_runtime() -> None:
    from pyspark.sql import Row

    assert field_getter("count", "operator 'uid'", "key_by")(Row(count=7)) == 7
    with pytest.raises(JobDefinitionError, match=r"operator 'uid': key_by\('a.c'\), but a record has no field"):
        field_getter("a.c", "operator 'uid'", "key_by")({"a": {"b": 1}})
