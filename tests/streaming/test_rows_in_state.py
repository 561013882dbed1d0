"""Rows of the input in keyed state: their type is that of the schema, on both runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from chain_runner import run_chain

from statebackend import (
    DataStream,
    JobDefinitionError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    Row,
    RuntimeContext,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DDL = "k string, count int, `a b` decimal(10,2), place struct<city: string, index: int>, parts array<struct<n: int>>"
RECORDS: list[dict[str, Any]] = [
    {
        "k": "a",
        "count": number,
        "a b": None if number else "1.50",
        "place": {"city": "Bern", "index": number},
        "parts": [{"n": number}, None],
    }
    for number in range(3)
]
EMITTED = "text string"


class Keep(KeyedProcessFunction[str, Any, Any]):
    last = ValueStateDescriptor("last", Row)
    by_count = MapStateDescriptor("by-count", int, Row)

    def open(self, context: RuntimeContext) -> None:
        self.all = context.get_list_state(ListStateDescriptor("all", Row))
        self.lists = context.get_state(ValueStateDescriptor("lists", list[Row | None], default=[]))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        before = self.last.value()
        self.last.update(value)
        self.by_count.put(value["count"], value)
        self.all.add(value)
        self.lists.update([*self.lists.value(), value, None])
        assert self.last.value() == value
        assert type(self.last.value()) is type(value)
        assert list(self.all.get() or ())[-1] == self.by_count.get(value["count"]) == self.lists.value()[-2] == value
        if before is not None:
            yield (f"{before.k} {before['count']} {before['a b']} {before.place['index']} {before.parts[0].n}",)


EXPECTED = [("a 0 1.50 0 0",), ("a 1 None 1 1",)]


def values(record: dict[str, Any]) -> dict[str, Any]:
    from decimal import Decimal

    return {**record, "a b": record["a b"] and Decimal(record["a b"])}


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_rows_are_stored(tmp_path: Path, backend: Any) -> None:
    rows: list[Any] = []
    for records in (RECORDS[:2], RECORDS[2:]):
        environment = LocalStreamEnvironment(job_dir=tmp_path, backend=backend, epoch_size=1)
        stream = environment.from_elements(list(map(values, records)), DDL).key_by("k")
        stream.process(Keep(), uid="keep", schema=EMITTED).sink_to(rows)
        environment.execute()
    assert rows == EXPECTED


@pytest.mark.extended
@pytest.mark.spark
def test_rows_are_stored_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark.frame_sinks import MemorySink

    sink = MemorySink()

    def build(stream: DataStream) -> None:
        stream.key_by("k").process(Keep(), uid="keep", schema=EMITTED).sink_to(sink)

    run_chain(spark, tmp_path, DDL, [[record] for record in RECORDS], build)
    assert [tuple(row) for row in sink.rows] == EXPECTED


def test_stored_rows_evolve_by_their_columns(tmp_path: Path) -> None:
    class Last(KeyedProcessFunction[str, Any, Any]):
        last = ValueStateDescriptor("last", Row)

        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
            yield (str(self.last.value()),)
            self.last.update(value)

    rows: list[Any] = []
    for schema, record in (("k string, n int", ("a", 1)), ("more string, n bigint, k string", ("x", 1 << 40, "a"))):
        environment = LocalStreamEnvironment(job_dir=tmp_path)
        stream = environment.from_elements([record], schema).key_by("k")
        stream.process(Last(), uid="last", schema=EMITTED).sink_to(rows)
        environment.execute()
    assert rows == [("None",), ("Row(more=None, n=1, k='a')",)]


class Named(NamedTuple):
    k: str


class Both(KeyedCoProcessFunction[str, Any, Any, Any]):
    last = ValueStateDescriptor("last", Row)

    def process_element1(self, value: Any, context: Any) -> None:
        self.last.update(value)

    def process_element2(self, value: Any, context: Any) -> Iterator[Any]:
        yield (str(self.last.value()),)


def connected(environment: LocalStreamEnvironment, second: str) -> DataStream:
    one = environment.from_elements([("a", 1)], "k string, n int", uid="one").key_by("k")
    two = environment.from_elements([("a", 2)], second, uid="two").key_by("k")
    return one.connect(two).process(Both(), uid="keep", schema=EMITTED)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda env: env.from_elements([{"k": "a"}]).key_by("k").process(Keep(), uid="keep", schema=EMITTED),
            r"state 'last' holds rows \(Row\), and its input has no schema",
        ),
        (
            lambda env: (
                env.from_elements([("a",)], "k string")
                .as_records(Named)
                .key_by("k")
                .process(Keep(), uid="keep", schema=EMITTED)
            ),
            "its input has objects: use Named as the type of the state",
        ),
        (lambda env: connected(env, "k string, m int"), "its inputs have different columns"),
    ],
)
def test_rows_of_unknown_columns_are_rejected(build: Callable[[Any], DataStream], reason: str) -> None:
    environment = LocalStreamEnvironment()
    build(environment).sink_to([])
    with pytest.raises(JobDefinitionError, match=f"operator 'keep': .*{reason}"):
        environment.execute()


def test_two_inputs_of_the_same_columns_share_a_state() -> None:
    rows: list[Any] = []
    environment = LocalStreamEnvironment()
    connected(environment, "k string, n int").sink_to(rows)
    environment.execute()
    assert rows == [("Row(k='a', n=1)",)]
