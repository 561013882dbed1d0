"""``map``, ``filter``, ``flat_map``, ``key_by(function)`` and ``as_records``: the same in the harness and on Spark."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import attrs
import pytest
from chain_runner import run_chain

from statebackend import (
    ColumnType,
    DataStream,
    JobDefinitionError,
    KeyedProcessFunction,
    ListStateDescriptor,
    OutputTag,
    ProcessContext,
    RuntimeContext,
    TumblingEventTimeWindows,
    UserFunctionError,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.rows.row_reader import UnreadableRowError
from statebackend.testing.jobs import JobTestHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

DDL = "id int, card string, amount decimal(10,2), at timestamp, tags array<string>, note string"
UTC = datetime.timezone.utc
RECORDS: list[dict[str, Any]] = [
    {
        "id": number,
        "card": "ab"[number % 2] + str(number % 3),
        "amount": f"{number}.50",
        "at": datetime.datetime(2024, 1, 1, number, tzinfo=UTC).isoformat(),
        "tags": ["x"] * (number % 3),
        "note": None if number % 2 else "n",
    }
    for number in range(8)
]


@attrs.frozen
class Payment:
    id: int
    card: str
    amount: Annotated[Decimal, ColumnType("decimal(20,2)")]
    at: datetime.datetime
    tags: list[str]
    note: str | None


class Alert(NamedTuple):
    card: str
    seen: int
    payment: Payment


class Line(NamedTuple):
    card: str
    number: int


for kind in (Payment, Alert, Line):
    # Workers cannot import this module, so they could not resolve the names in the hints of these classes.
    kind.__annotations__ = get_type_hints(kind, include_extras=True)

LARGE = OutputTag("large", Payment)


class Fraud(KeyedProcessFunction[str, Payment, Alert]):
    """Emits an alert for each payment, and large ones to a side output."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", int, default=0))
        self.ids = context.get_list_state(ListStateDescriptor("payments", Payment))

    def process_element(self, value: Payment, context: ProcessContext[str]) -> Iterator[Alert]:
        assert type(value) is Payment
        self.seen.update(self.seen.value() + 1)
        self.ids.add(value)
        if value.amount > 5:
            context.output(LARGE, value)
        yield Alert(context.current_key, len(list(self.ids.get() or ())), value)


def bank(payment: Payment) -> str:
    return payment.card[:1]


def line_of(row: Any) -> Line:
    return Line(row.card, row.id)


def lines_of(row: Any) -> list[Line]:
    return [Line(tag, row.id) for tag in row.tags]


class Lines(KeyedProcessFunction[Any, Any, Line]):
    """Emits the key as text, and the count of its records."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Line]:
        self.count.update(self.count.value() + 1)
        yield Line(str(context.current_key), self.count.value())


def counted(stream: DataStream, uid: str, *keys: Any, **options: Any) -> DataStream:
    return stream.key_by(*keys, **options).process(Lines(), uid=uid)


def alerts(stream: DataStream) -> DataStream:
    return stream.as_records(Payment).key_by(bank).process(Fraud(), uid="fraud", order_by="id")


def large(stream: DataStream) -> DataStream:
    flagged = stream.as_records(Payment).key_by("card").process(Fraud(), uid="large")
    return counted(flagged.get_side_output(LARGE).as_records(Payment), "count-large", bank)


def emitted_in_windows(key: Any, window: Any, payments: list[Payment]) -> list[Line]:
    assert all(type(one) is Payment for one in payments)
    return [Line(f"{key} {(window.end - window.start) // 3_600_000}", sum(one.id for one in payments))]


def timed(stream: DataStream) -> DataStream:
    return stream.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness("1 day").with_timestamps("at")
    )


CHAINS: dict[str, Callable[[DataStream], DataStream]] = {
    "map": lambda stream: counted(stream.map(line_of), "map", "card"),
    "map-ddl": lambda stream: counted(
        stream.map(lambda row: (row.id % 2, [row.id]), schema="k int, l array<int>"), "ddl", "k"
    ),
    "filter": lambda stream: counted(stream.filter(lambda row: row.note is None), "filter", "card"),
    "flat-map": lambda stream: counted(stream.flat_map(lines_of), "flat-map", "card"),
    "flat-map-none": lambda stream: counted(stream.flat_map(lambda row: None, schema=Line), "none", "card"),
    "key": lambda stream: counted(stream, "key", lambda row: row.id % 3, key_type=int),
    "keys": lambda stream: counted(stream, "keys", "card", bank),
    "narrow": lambda stream: counted(stream, "narrow", lambda row: 1, key_type="int"),
    "alerts": lambda stream: alerts(stream).map(lambda row: (row.card, row.seen), schema=Line),
    "large": large,
    "windows": lambda stream: (
        stream.filter(lambda one: one.id > 0)
        .as_records(Payment)
        .key_by(bank)
        .window(TumblingEventTimeWindows.of("4 hours"))
        .apply(emitted_in_windows, uid="windows")
    ),
    "mapped-windows": lambda stream: (
        stream.flat_map(lines_of)
        .key_by(lambda line: line.card, key_type=str)
        .window(TumblingEventTimeWindows.of("4 hours"))
        .apply(lambda key, window, lines: [Line(key, len(lines))], uid="mapped-windows", schema=Line)
    ),
    "united": lambda stream: counted(
        stream.as_records(Payment).union(stream.as_records(Payment).filter(lambda one: one.id == 1)), "united", bank
    ),
}

EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "map": [("a0", 1), ("a0", 2), ("a1", 1), ("a2", 1), ("b0", 1), ("b1", 1), ("b1", 2), ("b2", 1)],
    "map-ddl": [("0", 1), ("0", 2), ("0", 3), ("0", 4), ("1", 1), ("1", 2), ("1", 3), ("1", 4)],
    "filter": [("b0", 1), ("b1", 1), ("b1", 2), ("b2", 1)],
    "flat-map": [("x", number) for number in range(1, 8)],
    "flat-map-none": [],
    "key": [("0", 1), ("0", 2), ("0", 3), ("1", 1), ("1", 2), ("1", 3), ("2", 1), ("2", 2)],
    "keys": [
        ("('a0', 'a')", 1),
        ("('a0', 'a')", 2),
        ("('a1', 'a')", 1),
        ("('a2', 'a')", 1),
        ("('b0', 'b')", 1),
        ("('b1', 'b')", 1),
        ("('b1', 'b')", 2),
        ("('b2', 'b')", 1),
    ],
    "narrow": [("1", number) for number in range(1, 9)],
    "alerts": [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2), ("b", 3), ("b", 4)],
    "large": [("a", 1), ("b", 1), ("b", 2)],
    "windows": [("a 4", 2), ("a 4", 10), ("b 4", 4), ("b 4", 12)],
    "mapped-windows": [("x", 3), ("x", 4)],
    "united": [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2), ("b", 3), ("b", 4), ("b", 5)],
}


def elements() -> list[tuple[Any, ...]]:
    return [
        (
            one["id"],
            one["card"],
            Decimal(one["amount"]),
            datetime.datetime.fromisoformat(one["at"]),
            one["tags"],
            one["note"],
        )
        for one in RECORDS
    ]


@pytest.mark.parametrize("name", sorted(EXPECTED))
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_chain_emits_the_same_in_the_local_runtime(name: str, parallelism: int) -> None:
    rows: list[Any] = []
    environment = LocalStreamEnvironment(parallelism=parallelism, epoch_size=3)
    CHAINS[name](timed(environment.from_elements(elements(), DDL))).sink_to(rows)
    environment.execute(drain=True)
    assert sorted(map(tuple, rows)) == EXPECTED[name]


@pytest.mark.spark
@pytest.mark.extended
def test_the_chains_emit_the_same_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark.frame_sinks import MemorySink

    sinks = {name: MemorySink() for name in EXPECTED}

    def build(stream: DataStream) -> None:
        # Only windows get the record that advances time. Its own window does not fire.
        with_time = timed(stream)
        without = with_time.filter(lambda row: row.card != "time")
        for name, sink in sinks.items():
            CHAINS[name](with_time if "windows" in name else without).sink_to(sink, uid=name)

    later = {**RECORDS[0], "id": 99, "card": "time", "at": "2030-01-01T00:00:00+00:00", "tags": ["y"]}
    run_chain(spark, tmp_path, DDL, [RECORDS[:5], RECORDS[5:], [later], [later]], build)
    assert {name: sorted(map(tuple, sink.rows)) for name, sink in sinks.items()} == EXPECTED


def test_steps_run_in_the_harness() -> None:
    def build(job: Any) -> None:
        source = job.source("payments", Payment)
        job.output(
            "lines", counted(source.as_records(Payment).filter(lambda one: one.id > 1).map(line_of), "c", "card")
        )

    first, second = (
        Payment(number, "a1", Decimal(1), datetime.datetime(2024, 1, 1, tzinfo=UTC), [], None) for number in (1, 2)
    )
    with JobTestHarness(build) as harness:
        harness.source("payments").send(first)
        assert harness.taken_records("lines") == []
        harness.source("payments").send(second)
        assert harness.taken_records("lines") == [("a1", 1)]


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (
            lambda one: one.map(lambda row: 1 // row.v, schema="v bigint"),
            r"map\(\), {record}: the function raised ZeroDivisionError",
        ),
        (
            lambda one: one.filter(lambda row: row.w),
            r"filter\(\), {record}: the function raised AttributeError",
        ),
        (
            lambda one: one.flat_map(lambda row: "text", schema="k string"),
            r"flat_map\(\), {record}.* which is one record",
        ),
        (
            lambda one: one.flat_map(lambda row: (row.k, row.v), schema="k string, v bigint"),
            r"flat_map\(\), {record}.*\('a', 0\), which is one record",
        ),
    ],
)
def test_an_error_of_a_step_names_the_record(chain: Any, reason: str) -> None:
    environment = LocalStreamEnvironment()
    counted(chain(environment.from_elements([("a", 0)], "k string, v bigint")), "c", lambda row: 1).sink_to([])
    with pytest.raises(UserFunctionError, match=reason.format(record=r"record Row\(k='a', v=0\)")):
        environment.execute()


def test_an_error_of_a_key_function_names_the_record() -> None:
    environment = LocalStreamEnvironment()
    counted(environment.from_elements([("a", 0)], "k string, v bigint"), "c", lambda row: 1 // row.v).sink_to([])
    with pytest.raises(UserFunctionError, match=r"key_by\(\), record Row\(k='a', v=0\): the function raised ZeroDiv"):
        environment.execute()


def test_an_error_of_a_key_function_names_a_later_record() -> None:
    environment = LocalStreamEnvironment()
    stream = environment.from_elements([("a", 1), ("b", 0), ("c", 2)], "k string, v bigint")
    counted(stream, "c", lambda row: 1 // row.v).sink_to([])
    with pytest.raises(UserFunctionError, match=r"key_by\(\), record Row\(k='b', v=0\): the function raised ZeroDiv"):
        environment.execute()


def test_a_row_of_another_record_is_rejected_with_its_row() -> None:
    environment = LocalStreamEnvironment()
    source = environment.from_elements([(None, 1)], "card string, number bigint")
    counted(source.as_records(Line), "c", "card").sink_to([])
    with pytest.raises(
        UnreadableRowError, match=r"as_records\(\): a row cannot be read as Line: card: it is null.*number=1"
    ):
        environment.execute()


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (lambda one: one.map(5), r"map\(\) takes a function of a record, not 5"),
        (lambda one: one.as_records(int), r"as_records\(\): .*int.* is not a record class"),
        (
            lambda one: one.as_records(Payment),
            r"as_records\(\): Payment\.id: the stream has no column of that name",
        ),
        (lambda one: one.key_by("k", key_type=str), r"key_type of key_by\(\) is the type of one function"),
        (
            lambda one: one.key_by(lambda row: 1.5, key_type=float),
            r"key_type of key_by\(\) is <class",
        ),
        (
            lambda one: one.key_by(lambda row: 1, key_type=[int]),
            r"key_type of key_by\(\) is \[<class 'int'>\]; pass one of",
        ),
        (
            lambda one: one.union(one.as_records(Key)),
            r"union\(\) of streams with different records: Key, rows",
        ),
        (
            lambda one: one.transform_dataframe(lambda frame: frame),
            r"transform_dataframe\(\) takes a function of",
        ),
    ],
)
def test_an_invalid_definition_is_rejected(chain: Any, reason: str) -> None:
    def run() -> None:
        environment = LocalStreamEnvironment()
        counted(chain(environment.from_elements([("a",)], "k string")), "c", lambda row: 1).sink_to([])
        environment.execute()

    with pytest.raises(JobDefinitionError, match=reason):
        run()


class Key(NamedTuple):
    k: str


@pytest.mark.spark
@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (
            lambda one: one.map(lambda row: row).key_by("card"),
            r"map\(\): Spark needs the schema",
        ),
        (
            lambda one: one.key_by(lambda row: row.card),
            r"operator 'c': key_by\(\): Spark needs the type",
        ),
        (lambda one: one.as_records(Key).key_by("k"), r"as_records\(\): Key\.k: the stream has no column of that name"),
    ],
)
def test_what_spark_needs_is_named(spark: SparkSession, tmp_path: Path, chain: Any, reason: str) -> None:
    from statebackend.spark.frame_sinks import NoopSink

    with pytest.raises(JobDefinitionError, match=reason):
        run_chain(spark, tmp_path, DDL, [RECORDS], lambda one: chain(one).process(Lines(), uid="c").sink_to(NoopSink()))


async def awaited(row: Any) -> Line:
    return line_of(row)


async def yielded(row: Any) -> Any:
    yield line_of(row)


@pytest.mark.parametrize(("method", "function"), [("map", awaited), ("filter", awaited), ("flat_map", yielded)])
def test_an_async_function_is_rejected(method: str, function: Any) -> None:
    stream = LocalStreamEnvironment().from_elements([("a", 1)], "card string, id int")
    with pytest.raises(JobDefinitionError, match=rf"{method}\(\) takes a plain function; .* AsyncDataStream"):
        getattr(stream, method)(function)
