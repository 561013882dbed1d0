"""Cases in which the runtimes could differ: forms of values, letter case of columns, nulls inside values."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from chain_runner import run_chain

from statebackend import (
    DataStream,
    EpochError,
    KeyedProcessFunction,
    ListStateDescriptor,
    OutputTag,
    ProcessContext,
    RuntimeContext,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.rows.row_writer import RowMismatchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DDL = """
    ID string, at timestamp, Place struct<City: string, zip: int>, counts map<string, struct<n: int>>,
    steps array<map<string, int>>, clock string
"""
RECORDS: list[dict[str, Any]] = [
    {
        "ID": "a",
        "at": "2024-01-01T00:00:00+00:00",
        "Place": {"City": "Bern", "zip": 3000},
        "counts": {"x": {"n": 1}},
        "steps": [{"s": 2}],
        "clock": "10:20:30.000004",
    }
]


class Forms:
    """Emits what it receives, as text."""

    def init(self, handle: Any) -> None:
        self.values = handle.getValueState("values", "p struct<c: string>, m map<string, int>")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for row in rows:
            yield (f"{row['Place']} {row['counts']} {row['steps']}",)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        return iter(())

    def close(self) -> None: ...


class Durations(KeyedProcessFunction[Any, Any, Any]):
    """Emits a time of day and an interval, and stores them in state."""

    def open(self, context: RuntimeContext) -> None:
        self.clocks = context.get_list_state(ListStateDescriptor("clocks", datetime.time))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        clock = datetime.time.fromisoformat(value.clock)
        self.clocks.add(clock)
        yield value.ID, clock, datetime.timedelta(days=-1, microseconds=7)


class Texts(KeyedProcessFunction[Any, Any, Any]):
    """Emits its key and record, as text."""

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        yield (f"{context.current_key} {tuple(value)!r}",)


def forms(stream: DataStream) -> DataStream:
    return stream.group_by("id").transform_with_state(Forms(), "text string", "update", "none", uid="forms")


def in_another_case(stream: DataStream) -> DataStream:
    keyed = stream.map(lambda row: (row.ID, row.Place), schema="ID string, Place struct<City: string, zip: int>")
    return keyed.key_by("id", "place.city").process(Texts(), uid="case", order_by="PLACE.ZIP", schema="text string")


def durations(stream: DataStream) -> DataStream:
    emitted = stream.key_by("ID").process(
        Durations(), uid="durations", schema="id string, clock time(6), took interval day to second"
    )
    return (
        emitted.filter(lambda row: row.clock.hour == 10)
        .key_by("id")
        .process(Texts(), uid="texts", order_by=["clock", "took"], schema="text string")
    )


CHAINS: dict[str, tuple[Callable[[DataStream], DataStream], str]] = {
    "forms": (forms, "{'City': 'Bern', 'zip': 3000} [('x', {'n': 1})] [[('s', 2)]]"),
    "case": (in_another_case, "('a', 'Bern') ('a', Row(City='Bern', zip=3000))"),
    "durations": (durations, f"a {('a', datetime.time(10, 20, 30, 4), datetime.timedelta(days=-1, microseconds=7))!r}"),
}


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_a_chain_emits_the_same_in_the_local_runtime_as_on_spark(name: str) -> None:
    chain, expected = CHAINS[name]
    rows: list[Any] = []
    environment = LocalStreamEnvironment()
    [record] = RECORDS
    elements = [{**record, "at": datetime.datetime.fromisoformat(record["at"])}]
    chain(environment.from_elements(elements, DDL)).sink_to(rows)
    environment.execute()
    assert [row[0] for row in rows] == [expected]


@pytest.mark.spark
def test_the_chains_emit_the_same_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark.frame_sinks import MemorySink

    sinks = {name: MemorySink() for name in CHAINS}

    def build(stream: DataStream) -> None:
        for name, sink in sinks.items():
            CHAINS[name][0](stream).sink_to(sink, uid=name)

    run_chain(spark, tmp_path, DDL, [RECORDS], build)
    assert {name: [row[0] for row in sink.rows] for name, sink in sinks.items()} == {
        name: [expected] for name, (_, expected) in CHAINS.items()
    }


class WithNull(KeyedProcessFunction[Any, Any, Any]):
    """Emits an array with a null in it."""

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        yield ([1, None],)


def without_nulls() -> Any:
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

    return StructType([StructField("numbers", ArrayType(IntegerType(), containsNull=False))])


class Null(KeyedProcessFunction[Any, Any, Any]):
    """Emits a null, also to a side output."""

    def __init__(self, tag: OutputTag[Any] | None) -> None:
        self.tag = tag

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        if self.tag is not None:
            context.output(self.tag, (1, None))
        else:
            yield (1, None)


class Named(NamedTuple):
    number: int
    name: str


NOT_NULL = "number int, name string NOT NULL"
SIDE = OutputTag("side", NOT_NULL)
NULL_NAME = r"column 'name' \(string NOT NULL\) cannot hold None: it is None, and the column is not nullable; the row: "

REJECTED_NULLS: dict[str, tuple[Callable[[DataStream], DataStream], str]] = {
    "inside": (
        lambda stream: stream.key_by("ID").process(WithNull(), uid="nulls", schema=without_nulls()),
        r"column 'numbers' \(array<int>\) cannot hold \[1, None\]: element is None",
    ),
    "ddl": (lambda stream: stream.key_by("ID").process(Null(None), uid="nulls", schema=NOT_NULL), NULL_NAME),
    "class": (lambda stream: stream.key_by("ID").process(Null(None), uid="nulls", schema=Named), NULL_NAME),
    "map": (lambda stream: counted_null(stream.map(lambda row: (1, None), schema=NOT_NULL)), NULL_NAME),
    "side output": (
        lambda stream: stream.key_by("ID").process(Null(SIDE), uid="nulls", schema=NOT_NULL).get_side_output(SIDE),
        rf"side output 'side': {NULL_NAME}",
    ),
}


def counted_null(stream: DataStream) -> DataStream:
    return stream.key_by("number").process(Null(None), uid="nulls", schema="number int, name string")


@pytest.mark.parametrize("name", REJECTED_NULLS)
def test_a_null_in_a_required_field_is_rejected(name: str) -> None:
    build, message = REJECTED_NULLS[name]
    environment = LocalStreamEnvironment()
    build(environment.from_elements([("a",)], "id string")).sink_to([])
    with pytest.raises(RowMismatchError, match=message):
        environment.execute()


@pytest.mark.spark
@pytest.mark.parametrize("name", REJECTED_NULLS)
@pytest.mark.extended
def test_a_null_in_a_required_field_is_rejected_on_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    from statebackend.spark.frame_sinks import NoopSink

    build, message = REJECTED_NULLS[name]
    with pytest.raises(EpochError, match=message):
        run_chain(spark, tmp_path, DDL, [RECORDS], lambda stream: build(stream).sink_to(NoopSink()))


def test_rows_with_times_and_intervals_are_stored_in_windows() -> None:
    rows: list[Any] = []
    schema = "k string, t time, d interval hour to second"
    elements = [("a", datetime.time(number), datetime.timedelta(hours=number)) for number in (1, 2)]
    environment = LocalStreamEnvironment(epoch_size=1)
    windows = environment.from_elements(elements, schema).key_by("k").count_window(2)
    windows.apply(lambda key, window, kept: kept, uid="windows", schema=schema).sink_to(rows)
    environment.execute()
    assert rows == elements
