"""One chain of two operators in both environments: the same rows, and the same errors.

Spark reports a failed task as text. The tests check that it contains the message of the local environment.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from chain_runner import run_chain

from statebackend import (
    JobDefinitionError,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.rows.row_reader import is_row_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = "key string, number bigint"
RECORDS = [
    {"key": "a", "number": 1},
    {"key": "b", "number": 2},
    {"key": "a", "number": 3},
    {"key": None, "number": 4},
]


class Emits(KeyedProcessFunction[Any, Any, Any]):
    """Emits the result for a record."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        yield self.make(value)


class Sums(KeyedProcessFunction[Any, Any, Any]):
    """Reads its records in every form of access."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        assert is_row_class(type(value))
        assert value.number == value["number"] == value.asDict()["number"] == value[value.__fields__.index("number")]
        assert "number" in value
        self.total.update((self.total.value() or 0) + value.number)
        yield context.current_key, self.total.value(), repr(value)


SUMS = "key string, total bigint, shown string"
EMITTED = "key string, number bigint"


@attrs.frozen
class Emitted:
    number: int
    key: str


def chain(
    make: Callable[[Any], Any] = lambda value: (value.key, value.number),
    *,
    schema: Any = EMITTED,
    key: Any = "key",
    order_by: Any = "number",
    with_nulls: bool = False,
    first_key: Any = "number",
) -> Callable[[DataStream, Any], None]:
    """Two operators: the first emits a result for each record, the second sums them."""

    def build(stream: DataStream, sink: Any) -> None:
        first = stream.key_by(first_key).process(Emits(make), uid="emits", schema=schema, order_by="number")
        first.key_by(key).process(Sums(), uid="sums", schema=SUMS, order_by=order_by).sink_to(sink)

    build.__module__ = __name__
    build.with_nulls = with_nulls  # type: ignore[attr-defined]
    return build


RIGHT: dict[str, Any] = {
    "tuples": chain(),
    "dicts": chain(lambda value: {"number": value.number, "key": value.key}),
    "rows as they came": chain(lambda value: value),
    "attrs": chain(lambda value: Emitted(value["number"], value["key"])),
    "whole numbers for decimals": chain(
        lambda value: (value.key, value.number, decimal.Decimal("0.5"), [1, None], {"a": 1.5}, {"b": b"x"}),
        schema="key string, number bigint, d decimal(10,2), l array<int>, m map<string, double>, s struct<b: binary>",
    ),
    "times": chain(
        lambda value: (
            value.key,
            value.number,
            datetime.date(2024, 2, 29),
            datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc),
            datetime.datetime(2024, 2, 29, 12),
            datetime.datetime(2024, 2, 29, 12),
        ),
        schema="key string, number bigint, d date, at timestamp, n timestamp_ntz, local timestamp",
    ),
    "nulls": chain(lambda value: (value.key, value.number, None), schema="key string, number bigint, n array<int>"),
    "a nested key": chain(
        lambda value: (value.number, (value.key,)), schema="number bigint, s struct<k: string>", key="s.k"
    ),
    "a column with a point in its name": chain(
        lambda value: (value.number, value.key), schema="number bigint, `a.b` string", key="a.b"
    ),
}


def once(wrong: Callable[[Any], Any], *more: Any) -> Callable[[Any], Any]:
    """Makes only one record wrong, so that the reported record does not depend on timing."""
    return lambda value: wrong(value) if value.number == 2 else (value.key, value.number, *more)


WRONG: dict[str, Any] = {
    "a wrong type": chain(once(lambda value: (value.key, str(value.number)))),
    "a number of another kind": chain(once(lambda value: (value.key, float(value.number)))),
    "a number out of range": chain(once(lambda value: (value.key, 1 << 80))),
    "a missing field": chain(once(lambda value: {"key": value.key})),
    "an extra field": chain(once(lambda value: {"key": value.key, "number": 1, "more": 2})),
    "too few values": chain(once(lambda value: (value.key,))),
    "no row": chain(once(lambda value: 5)),
    "a wrong type inside": chain(
        once(lambda value: (value.key, value.number, {"b": "text"}), None),
        schema="key string, number bigint, s struct<b: binary>",
    ),
    "a null key": chain(once(lambda value: (None, value.number))),
    "a null key of the source": chain(first_key="key", with_nulls=True),
    "an unknown order_by": chain(order_by="when"),
    "an unknown key": chain(key="keys"),
    "no schema": chain(schema=None),
    "a schema with a type that is none": chain(schema="key string, number bigin"),
    "a schema with two columns of one name": chain(schema="key string, number bigint, Number int"),
    "a schema without columns": chain(schema=""),
    "a schema that does not end": chain(schema="key string, number array<bigint"),
    "a reserved name": chain(schema="key string, number bigint, __statebackend_x int"),
    "a key of a type that is none": chain(lambda value: (1.5, value.number), schema="key double, number bigint"),
}


def timed(timestamps: str, channel: str = "key") -> Callable[[DataStream, Any], None]:
    """A chain whose records get their timestamps from a column."""
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps(timestamps).with_channel(channel)
    build = chain()

    def build_timed(stream: DataStream, sink: Any) -> None:
        build(stream.assign_timestamps_and_watermarks(strategy), sink)

    build_timed.with_nulls = False  # type: ignore[attr-defined]
    return build_timed


WRONG_TIMES: dict[str, Any] = {
    "a column that is not there": timed("when"),
    "a channel that is not there": timed("number", "partition"),
    "a column of text": timed("key"),
}


def records(build: Any) -> list[dict[str, Any]]:
    return [record for record in RECORDS if build.with_nulls or record["key"] is not None]


def in_process(build: Any) -> list[Any]:
    environment = LocalStreamEnvironment(parallelism=2, max_parallelism=16)
    rows: list[Any] = []
    build(environment.from_elements(records(build), schema=SOURCE), rows)
    environment.execute("chain")
    return rows


@pytest.mark.parametrize("name", RIGHT)
def test_records_between_operators_are_rows_in_the_local_runtime(name: str) -> None:
    rows = in_process(RIGHT[name])
    assert [tuple(row)[:2] for row in sorted(rows, key=lambda row: (row.key, row.total))] == [
        ("a", 1),
        ("a", 4),
        ("b", 2),
    ]


@pytest.mark.parametrize("name", WRONG)
def test_errors_in_the_local_runtime_name_the_operator(name: str) -> None:
    with pytest.raises(Exception, match=r"operator '(emits|sums)'"):
        in_process(WRONG[name])


@pytest.mark.spark
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.extended
def test_rows_are_equal_on_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    from statebackend.spark import MemorySink

    build, sink = RIGHT[name], MemorySink()
    run_chain(spark, tmp_path, SOURCE, [records(build)], _ended_by(build, sink))
    rows = sink.rows
    assert sorted(map(tuple, rows)) == sorted(map(tuple, in_process(build)))
    assert [type(row).__name__ for row in rows] == ["Row"] * 3


@pytest.mark.spark
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.extended
def test_errors_are_equal_on_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    from statebackend.spark import MemorySink

    build = WRONG[name]
    with pytest.raises(Exception) as local_error:  # noqa: PT011
        in_process(build)
    with pytest.raises(Exception) as spark_error:  # noqa: PT011
        run_chain(spark, tmp_path, SOURCE, [records(build)], _ended_by(build, MemorySink()))
    assert str(local_error.value) in str(spark_error.value)


@pytest.mark.parametrize("name", WRONG_TIMES)
def test_invalid_time_columns_are_rejected_by_source_before_anything_changes(tmp_path: Path, name: str) -> None:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    WRONG_TIMES[name](environment.from_elements(records(WRONG_TIMES[name]), schema=SOURCE), [])
    with pytest.raises(JobDefinitionError, match="source 'source': with_"):
        environment.execute("chain")
    assert not (tmp_path / "job").exists()


@pytest.mark.spark
@pytest.mark.parametrize("name", WRONG_TIMES)
def test_errors_of_time_columns_are_equal_on_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    from statebackend.spark import MemorySink

    build = WRONG_TIMES[name]
    with pytest.raises(JobDefinitionError) as local_error:
        in_process(build)
    with pytest.raises(JobDefinitionError) as spark_error:
        run_chain(spark, tmp_path, SOURCE, [records(build)], _ended_by(build, MemorySink()))
    assert str(local_error.value) == str(spark_error.value)


def _ended_by(build: Any, sink: Any) -> Callable[[DataStream], None]:
    def ended(stream: DataStream) -> None:
        build(stream, sink)

    return ended


UNIONS: dict[str, list[tuple[str, list[dict[str, Any]]]]] = {
    "columns in another order": [
        ("key string, number bigint", [{"key": "a", "number": 1}]),
        ("number bigint, key string", [{"key": "b", "number": 2}]),
    ],
    "numbers of two widths": [
        ("key string, number int", [{"key": "a", "number": 1}]),
        ("key string, number bigint", [{"key": "b", "number": 1 << 40}]),
    ],
    "whole numbers and others": [
        ("number bigint, key string", [{"key": "a", "number": 1}, {"key": None, "number": None}]),
        ("key string, number double", [{"key": "b", "number": 0.5}]),
    ],
    "a column that is always null": [
        ("key void, number bigint", [{"key": None, "number": 1}]),
        ("number bigint, key string", [{"key": "b", "number": 2}]),
    ],
    "names with other capitals": [
        ("key string, Number bigint", [{"key": "a", "Number": 1}]),
        ("KEY string, number bigint", [{"KEY": "b", "number": 2}]),
    ],
}


class Nothing(KeyedProcessFunction[Any, Any, Any]):
    """A job needs an operator with state."""

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        return iter(())


def united_in_process(streams: list[tuple[str, list[dict[str, Any]]]]) -> list[Any]:
    environment = LocalStreamEnvironment()
    rows: list[Any] = []
    first, *others = (
        environment.from_elements(elements, schema=ddl, uid=f"source-{place}")
        for place, (ddl, elements) in enumerate(streams)
    )
    united = first.union(*others)
    united.sink_to(rows, uid="rows")
    united.key_by(lambda row: str(row)).process(Nothing(), uid="n", schema="n int").sink_to([], uid="nothing")
    environment.execute("union")
    return rows


@pytest.mark.parametrize("name", UNIONS)
def test_the_rows_of_a_union_have_one_form_in_the_local_runtime(name: str) -> None:
    rows = united_in_process(UNIONS[name])
    first_ddl = UNIONS[name][0][0]
    assert {tuple(row.__fields__) for row in rows} == {tuple(part.split()[0] for part in first_ddl.split(", "))}
    values = [tuple(element.values()) for _, elements in UNIONS[name] for element in elements]
    is_key_first = first_ddl.startswith("key")
    assert [tuple(row) for row in rows] == [value if is_key_first else value[::-1] for value in values]


@pytest.mark.spark
@pytest.mark.parametrize("name", UNIONS)
def test_the_rows_of_a_union_equal_those_of_spark(spark: SparkSession, name: str) -> None:
    from functools import reduce

    from pyspark.sql import DataFrame

    frames = [
        spark.createDataFrame(
            [tuple(element[part.split()[0]] for part in ddl.split(", ")) for element in elements], ddl
        )
        for ddl, elements in UNIONS[name]
    ]
    theirs = reduce(DataFrame.unionByName, frames).collect()
    ours = united_in_process(UNIONS[name])
    assert [(tuple(row), row.__fields__) for row in ours] == [(tuple(row), row.__fields__) for row in theirs]
    assert [list(map(type, row)) for row in ours] == [list(map(type, row)) for row in theirs]


@pytest.mark.spark
@pytest.mark.parametrize(
    "ddl",
    [
        "a string, b bigint, c int, d smallint, e tinyint, f boolean, g binary, h date, i timestamp, j timestamp_ntz",
        "a long, b integer, c short, d byte, e real, f double, g float, h timestamp_ltz, i dec(5), j numeric(7, 3)",
        "a: string, b: array<struct<x: int, y: map<string, array<decimal(38,18)>>>>",
        "`a.b` STRING NOT NULL COMMENT 'a \"comment\"', `c``d` Struct<e: Array<Int>, `f g`: DOUBLE NOT NULL>",
        "c decimal, d void, e dec(3)",
        "a interval day to second, b INTERVAL HOUR TO MINUTE, c interval day, d time, e TIME(3)",
        "interval day to second",
        "time(3)",
        "bigint",
        "array<int>",
        "decimal(5,1)",
    ],
)
def test_a_schema_is_parsed_as_by_spark(spark: SparkSession, ddl: str) -> None:
    from pyspark.sql.types import StructField, StructType

    from statebackend.spark.columns import to_arrow_schema
    from statebackend.streaming.rows.declared_schema import parsed_schema
    from statebackend.streaming.rows.record_schema import output_schema

    theirs: Any = StructType.fromDDL(ddl)
    if not isinstance(theirs, StructType):
        theirs = StructType([StructField("value", theirs)])
    ours = parsed_schema(ddl, "here")
    expected = to_arrow_schema(theirs, "UTC")
    assert list(ours.names) == expected.names
    assert [column.type_name for column in ours.columns] == [field.dataType.simpleString() for field in theirs.fields]
    assert ours.arrow.types == expected.types
    assert output_schema(theirs, "here", "").arrow.types == ours.arrow.types
