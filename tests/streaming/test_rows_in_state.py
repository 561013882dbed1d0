"""Rows of the input in keyed state: their type is that of the schema, on both runtimes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chain_runner import run_chain

from statebackend import (
    BatchContext,
    BroadcastStateDescriptor,
    DataStream,
    JobDefinitionError,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    Row,
    RuntimeContext,
    SplitListStateDescriptor,
    StateMigrationException,
    ValueStateDescriptor,
)
from statebackend.cli.main import main
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


class Last(KeyedProcessFunction[str, Any, Any]):
    last = ValueStateDescriptor("last", Row)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        yield (str(self.last.value()),)
        self.last.update(value)


def test_stored_rows_evolve_by_their_columns(tmp_path: Path) -> None:
    rows: list[Any] = []
    for schema, record in (("k string, n int", ("a", 1)), ("more string, n bigint, k string", ("x", 1 << 40, "a"))):
        environment = LocalStreamEnvironment(job_dir=tmp_path)
        stream = environment.from_elements([record], schema).key_by("k")
        stream.process(Last(), uid="last", schema=EMITTED).sink_to(rows)
        environment.execute()
    assert rows == [("None",), ("Row(more=None, n=1, k='a')",)]


BATCH_DDL = "k string, n int, `a b` decimal(10,2), count int, place struct<city: string>, parts array<struct<n: int>>"
BATCH_RECORDS = [("a", number, None, 4, {"city": "Bern"}, [{"n": number}, None]) for number in range(3)]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_columns_with_names_of_methods_are_separate_fields(tmp_path: Path, backend: Any) -> None:
    rows: list[Any] = []
    for record in (("a", 1, 2, 3, 4), ("a", 5, 6, 7, 8)):
        environment = LocalStreamEnvironment(job_dir=tmp_path, backend=backend)
        columns = "k string, count int, column_count int, column_column_count int, column_k int"
        stream = environment.from_elements([record], columns).key_by("k")
        stream.process(Last(), uid="last", schema=EMITTED).sink_to(rows)
        environment.execute()
    assert rows[1] == ("Row(k='a', count=1, column_count=2, column_column_count=3, column_k=4)",)


def stored_rows(directory: Path, schema: str, record: Any) -> LocalStreamEnvironment:
    environment = LocalStreamEnvironment(job_dir=directory)
    stream = environment.from_elements([record], schema).key_by("k")
    stream.process(Last(), uid="last", schema=EMITTED).sink_to(print)
    return environment


def test_tools_show_columns_by_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = "k string, count int, column_count int, `a b` int, `<i>x\n</i>` struct<index: int>, column_61 int"
    stored_rows(tmp_path, columns, ("a", 1, 2, 3, (4,), 5)).execute()
    capsys.readouterr()
    shown = {"k": "a", "count": 1, "column_count": 2, "a b": 3, "<i>x\n</i>": {"index": 4}, "column_61": 5}
    for condition in ("count=1", "column_count=2", "`a b`=3", "`<i>x\n</i>`.index=4", "`count`=1"):
        assert main(["show", str(tmp_path), "last", "last", "--where", f"value.{condition}", "--json"]) == 0
        assert [one["value"] for one in json.loads(capsys.readouterr().out)] == [shown]
    assert main(["schema", str(tmp_path), "--json"]) == 0
    [described] = json.loads(capsys.readouterr().out)["last"]["states"].values()
    assert list(described["types"]["value"]["records"]["Record"]["fields"]) == list(shown)
    out = tmp_path / "out.parquet"
    assert main(["export", str(tmp_path), "last", "last", str(out), "--to", "parquet"]) == 0
    assert pq.read_table(out)["value"].to_pylist() == [shown]


def test_compatibility_reports_name_columns(tmp_path: Path) -> None:
    stored_rows(tmp_path, "k string, count int, `a b` int, index int", ("a", 1, 2, 3)).execute()
    with pytest.raises(StateMigrationException) as failure:
        stored_rows(tmp_path, "k string, count string, `a b` bigint, indexes int", ("a", "1", 2, 3)).execute()
    assert ".count: incompatible [field-type-changed]" in str(failure.value)
    assert "column_" not in str(failure.value)
    assert "not every old value fits. Keep int: convert the column before it is stored" in str(failure.value)
    assert "former_names" not in str(failure.value)


class KeepBatch(KeyedBatchFunction[str, Any, Any]):
    """Stores the rows of a batch as structs, and emits the former last row of each key."""

    last = ValueStateDescriptor("last", Row)
    by_number = MapStateDescriptor("by-number", int, Row)
    all = ListStateDescriptor("all", Row)

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> pa.RecordBatch:
        groups = context.groups(batch)
        before = self.last.get_many(groups).to_pylist()
        rows = pa.StructArray.from_arrays(batch.columns, names=batch.schema.names)
        self.last.put_many(groups.of_rows, rows)
        self.by_number.put_many(groups.of_rows, batch["n"], rows)
        self.all.add_many(groups.of_rows, rows)
        return pa.record_batch(
            {"text": [one and str([one["n"], one["count"], one["place"], one["parts"]]) for one in before]}
        )


class ShowKept(KeyedProcessFunction[str, Any, Any]):
    last = ValueStateDescriptor("last", Row)
    by_number = MapStateDescriptor("by-number", int, Row)
    all = ListStateDescriptor("all", Row)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        yield (str([self.last.value() == value, [one.n for one in self.all.get()], self.by_number.get(1).parts]),)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_rows_are_stored_in_bulk_and_read_one_by_one(tmp_path: Path, backend: Any) -> None:
    rows: list[Any] = []
    runs = ((BATCH_RECORDS[:1], KeepBatch()), (BATCH_RECORDS[1:], KeepBatch()), (BATCH_RECORDS[2:], ShowKept()))
    for records, function in runs:
        environment = LocalStreamEnvironment(job_dir=tmp_path, backend=backend)
        stream = environment.from_elements(records, BATCH_DDL).key_by("k")
        stream.process(function, uid="keep", schema=EMITTED).sink_to(rows)
        environment.execute()
    assert rows == [
        (None,),
        ("[0, 4, {'city': 'Bern'}, [{'n': 0}, None]]",),
        ("[True, [0, 1, 2], [Row(n=1), None]]",),
    ]


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


RULES = BroadcastStateDescriptor("rules", str, Row)


class Ruled(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> None:
        raise NotImplementedError

    def process_broadcast_element(self, value: Any, context: Any) -> None:
        context.get_broadcast_state(RULES).put(value.k, value)


class KeepUnkeyed(KeyedProcessFunction[str, Any, Any]):
    buffer = SplitListStateDescriptor("rules", dict[str, Row])

    def process_element(self, value: Any, context: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("is_broadcast", [True, False])
def test_rows_in_operator_state_are_rejected(is_broadcast: bool) -> None:
    environment = LocalStreamEnvironment()
    keyed = environment.from_elements([("a",)], "k string", uid="one").key_by("k")
    if is_broadcast:
        rules = environment.from_elements([("a",)], "k string", uid="two").broadcast(RULES)
        keyed.connect(rules).process(Ruled(), uid="keep", schema=EMITTED).sink_to([])
    else:
        keyed.process(KeepUnkeyed(), uid="keep", schema=EMITTED).sink_to([])
    with pytest.raises(
        JobDefinitionError, match=r"operator 'keep': operator state 'rules' holds rows \(Row\), as only keyed"
    ):
        environment.execute()


def test_two_inputs_of_the_same_columns_share_a_state() -> None:
    rows: list[Any] = []
    environment = LocalStreamEnvironment()
    connected(environment, "k string, n int").sink_to(rows)
    environment.execute()
    assert rows == [("Row(k='a', n=1)",)]
