"""Built-in aggregates in the local runtime: results, windows, evolution, errors, and the same state from a replay."""

from __future__ import annotations

import datetime
import math
import random
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots import MalformedDataError
from statebackend import (
    AggregateOverflowError,
    DataStream,
    EventTimeSessionWindows,
    JobDefinitionError,
    SlidingEventTimeWindows,
    StateTtlConfig,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    approx_count_distinct,
    approx_percentile,
    avg,
    count,
    first_value,
    last_value,
    max_,
    min_,
    sum_,
    top_k,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.aggregates import BoundAggregates, bound_aggregates, checked_aggregates
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.sketches import SKETCHES

SCHEMA = "card string, n int, amount double, price decimal(10,2), day date"
ROWS: list[tuple[Any, ...]] = [
    ("a", 1, 1.5, Decimal("1.10"), datetime.date(2024, 1, 2)),
    ("a", 2, None, Decimal("2.20"), datetime.date(2024, 1, 1)),
    ("b", None, math.nan, None, None),
    ("a", 6, 2.5, Decimal("7.77"), None),
    ("b", 4, -1.0, Decimal("1.00"), datetime.date(2024, 1, 3)),
]


def emitted(rows: Sequence[Any], epoch_size: int, schema: str = SCHEMA, **options: Any) -> list[Any]:
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=epoch_size)
    environment.from_elements(rows, schema).key_by("card").aggregate(uid="totals", **options).sink_to(results)
    environment.execute()
    return results


def final(rows: Sequence[Any], epoch_size: int = 2, schema: str = SCHEMA, **options: Any) -> dict[str, tuple[Any, ...]]:
    return {row[0]: tuple(row[1:]) for row in emitted(rows, epoch_size, schema, **options)}


def test_each_epoch_emits_a_row_for_each_key_that_it_has_records_of() -> None:
    assert emitted(ROWS, 3, n=count(), total=sum_("n")) == [("a", 2, 3), ("b", 1, None), ("a", 3, 9), ("b", 2, 4)]


@pytest.mark.parametrize("epoch_size", [1, 2, 5])
def test_results_do_not_depend_on_the_epochs(epoch_size: int) -> None:
    results = final(
        ROWS,
        epoch_size,
        records=count(),
        values=count("n"),
        total=sum_("n"),
        floats=sum_("amount"),
        prices=sum_("price"),
        mean=avg("n"),
        price=avg("price"),
        first=min_("day"),
        last=max_("day"),
    )
    assert results["a"] == (
        3, 3, 9, 4.0, Decimal("11.07"), 3.0, Decimal("3.690000"), datetime.date(2024, 1, 1), datetime.date(2024, 1, 2),
    )  # fmt: skip
    assert results["b"][:3] == (2, 1, 4)
    assert math.isnan(results["b"][3])


def test_nan_is_the_greatest_number_and_zeros_are_equal() -> None:
    rows = [("a", 0.0), ("a", -0.0), ("b", math.nan), ("b", 1.0), ("c", None)]
    results = final(rows, 1, "card string, x double", low=min_("x"), high=max_("x"), mean=avg("x"))
    assert [str(value) for value in results["a"]] == ["0.0", "0.0", "0.0"]
    assert results["b"][0] == 1.0
    assert math.isnan(results["b"][1])
    assert results["c"] == (None, None, None)


def test_accumulators_expire() -> None:
    times = iter(range(0, 10_000, 50))
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=1, clock=lambda: next(times))
    totals = environment.from_elements([("a",), ("a",)], "card string").key_by("card")
    totals.aggregate(uid="totals", n=count(), ttl=StateTtlConfig(1)).sink_to(results)
    environment.execute()
    assert results == [("a", 1), ("a", 1)]
    assert final([("a",), ("a",)], 1, "card string", n=count(), ttl=StateTtlConfig("1 day")) == {"a": (2,)}


def test_first_and_last_values_follow_order_by() -> None:
    rows = [("a", 3, "x"), ("a", 1, None), ("a", 2, "y"), ("a", 5, None), ("a", 4, "z")]
    results = final(
        rows,
        3,
        "card string, n int, word string",
        order_by="n",
        first=first_value("word"),
        first_word=first_value("word", ignore_nulls=True),
        last=last_value("word"),
        last_word=last_value("word", ignore_nulls=True),
    )
    assert results["a"] == (None, "y", None, "z")


def test_an_instant_is_compared_in_utc() -> None:
    from zoneinfo import ZoneInfo

    zone = ZoneInfo("Europe/Zurich")
    early, late = (
        datetime.datetime(2024, 10, 27, 2, minute, tzinfo=zone, fold=fold) for minute, fold in ((40, 0), (20, 1))
    )
    results = final([("a", early), ("a", late)], 2, "card string, at timestamp", first=min_("at"), last=max_("at"))
    assert results["a"] == (early.astimezone(datetime.timezone.utc), late.astimezone(datetime.timezone.utc))


@pytest.mark.parametrize(
    ("schema", "value", "aggregate", "result_type"),
    [
        ("card string, x bigint", (1 << 63) - 1, sum_("x"), "bigint"),
        ("card string, x decimal(38,0)", Decimal(6) * 10**37, sum_("x"), r"decimal\(38,0\)"),
    ],
)
def test_an_overflow_is_an_error(schema: str, value: Any, aggregate: Any, result_type: str) -> None:
    message = rf"operator 'totals', key 'b': the aggregate 'total' does not fit its type {result_type}"
    with pytest.raises(AggregateOverflowError, match=message):
        emitted([("a", value), ("b", value), ("b", value)], 3, schema, total=aggregate)


def test_a_sum_may_leave_its_type_and_come_back_within_an_epoch() -> None:
    rows = [("a", (1 << 63) - 1), ("a", 5), ("a", -5)]
    assert final(rows, 3, "card string, x bigint", total=sum_("x"))["a"] == ((1 << 63) - 1,)


def test_sketches_estimate() -> None:
    rows = [("a", index, f"word {min(index % 7, 3)}") for index in range(1000)]
    results = final(
        rows,
        300,
        "card string, n int, word string",
        distinct=approx_count_distinct("n"),
        words=approx_count_distinct("word"),
        top=top_k("word", 2),
        middle=approx_percentile("n", 0.5),
    )
    distinct, words, top, middle = results["a"]
    assert abs(distinct - 1000) < 100
    assert words == 4
    assert top[0] == ("word 3", 571)
    assert len(top) == 2
    assert abs(middle - 500) < 30


@pytest.mark.parametrize(
    ("kind", "type_name", "argument"), [("distinct", "int", None), ("top", "string", 2), ("percentile", "int", 0.5)]
)
def test_bytes_that_are_no_sketch_are_rejected(kind: str, type_name: str, argument: Any) -> None:
    sketch = SKETCHES[kind](type_name, argument)
    made = sketch.new()
    made.update(sketch.value(7))
    stored = sketch.closed(made)
    assert sketch.result(stored) == sketch.result(made)
    for length in range(len(stored)):
        with pytest.raises(MalformedDataError, match=r"a stored .* cannot be read|is larger than"):
            sketch.result(stored[:length])


@pytest.mark.parametrize(("largest", "current"), [(15, 3), (0x80, 0x80), (14, 0x80)])
def test_a_sketch_whose_header_claims_huge_tables_is_rejected(largest: int, current: int) -> None:
    sketch = SKETCHES["top"]("string", 2)
    made = sketch.new()
    made.update("a")
    stored = bytearray(sketch.closed(made))
    stored[3:5] = largest, current
    with pytest.raises(MalformedDataError, match="frequent_strings_sketch is larger than those that aggregates make"):
        sketch.result(bytes(stored))


def test_sketches_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    bound_aggregates.cache_clear()
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(JobDefinitionError, match=r"statebackend\[sketches\]"):
        emitted(ROWS, 5, distinct=approx_count_distinct("n"))


START = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
TIMED = "card string, n int, at timestamp"


def at(minute: int) -> datetime.datetime:
    return START + datetime.timedelta(minutes=minute)


def windowed(assigner: Any, rows: Sequence[Any], epoch_size: int = 2, **options: Any) -> list[Any]:
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=epoch_size)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    stream = environment.from_elements(rows, TIMED).assign_timestamps_and_watermarks(strategy)
    stream.key_by("card").window(assigner).aggregate(uid="windows", **options).sink_to(results)
    environment.execute()
    return results


TIMED_ROWS = [("a", 1, at(1)), ("b", 2, at(2)), ("a", 3, at(3)), ("a", 4, at(12)), ("b", 5, at(40))]


def test_a_firing_emits_key_window_and_aggregates() -> None:
    results = windowed(
        TumblingEventTimeWindows.of("10 minutes"), TIMED_ROWS, n=count(), total=sum_("n"), last=last_value("n")
    )
    assert sorted(results) == [
        ("a", (at(0), at(10)), 2, 4, 3),
        ("a", (at(10), at(20)), 1, 4, 4),
        ("b", (at(0), at(10)), 1, 2, 2),
    ]


def test_sliding_windows_and_sessions_aggregate() -> None:
    sliding = windowed(SlidingEventTimeWindows.of("10 minutes", "5 minutes"), TIMED_ROWS, total=sum_("n"))
    assert [row for row in sliding if row[0] == "b"] == [("b", (at(-5), at(5)), 2), ("b", (at(0), at(10)), 2)]
    sessions = windowed(
        EventTimeSessionWindows.with_gap("10 minutes"),
        [("a", 1, at(1)), ("a", 3, at(1)), ("a", 2, at(9)), ("a", 9, at(40))],
        n=count(),
        mean=avg("n"),
        first=first_value("n"),
        distinct=approx_count_distinct("n"),
        middle=approx_percentile("n", 0.5),
        top=top_k("n", 1),
    )
    assert sessions == [("a", (at(1), at(19)), 3, 2.0, 1, 3, 2, [(1, 1)])]


def test_records_are_in_the_order_of_event_time_by_default() -> None:
    rows = [("a", 9, at(1)), ("a", 2, at(4)), ("a", 5, at(3)), ("a", 1, at(4))]
    results = windowed(
        TumblingEventTimeWindows.of("10 minutes"),
        [*rows, ("b", 0, at(40))],
        epoch_size=5,
        first=first_value("n"),
        last=last_value("n"),
    )
    assert results == [("a", (at(0), at(10)), 9, 2)]


def test_a_window_function_receives_the_results_by_name() -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment()
    windows = environment.from_elements(ROWS, SCHEMA).key_by("card").count_window(2)
    windows.aggregate(
        window_function=lambda key, window, row: [(key, row.total)],
        uid="windows",
        schema="card string, n bigint",
        total=sum_("n"),
    ).sink_to(results)
    environment.execute()
    assert results == [("a", 3), ("b", 4)]


def test_updates_may_be_aggregated_by_event_time() -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=2)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    stream = environment.from_elements(TIMED_ROWS, TIMED).assign_timestamps_and_watermarks(strategy)
    totals = stream.key_by("card").aggregate(uid="totals", n=count())
    windows = totals.key_by("card").window(TumblingEventTimeWindows.of("10 minutes"))
    windows.aggregate(uid="windows", updates=count(), n=max_("n")).sink_to(results)
    environment.execute()
    assert sorted(results)[0] == ("a", (at(0), at(10)), 1, 1)


class Upgrades:
    """A job that runs in versions."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._savepoint: Path | None = None
        self._version = 0

    def environment(self) -> LocalStreamEnvironment:
        self._version += 1
        return LocalStreamEnvironment(job_dir=str(self._directory / f"job{self._version}"), epoch_size=2)

    def run(self, **aggregates: Any) -> dict[str, tuple[Any, ...]]:
        results: list[Any] = []
        environment = self.environment()
        self.build(environment, **aggregates).sink_to(results)
        options = {} if self._savepoint is None else {"from_savepoint": str(self._savepoint)}
        job = environment.execute(**options)
        self._savepoint = self._directory / f"savepoint{self._version}"
        job.savepoint(str(self._savepoint))
        return {row[0]: tuple(row[1:]) for row in results}

    def build(self, environment: LocalStreamEnvironment, **aggregates: Any) -> DataStream:
        return environment.from_elements(ROWS, SCHEMA).key_by("card").aggregate(uid="totals", **aggregates)

    def report(self, **aggregates: Any) -> str:
        environment = self.environment()
        self.build(environment, **aggregates).sink_to([])
        return str(environment.check(from_savepoint=self._savepoint))


def test_an_added_aggregate_starts_from_its_default(tmp_path: Path) -> None:
    job = Upgrades(tmp_path)
    assert job.run(n=count())["a"] == (3,)
    assert job.run(low=min_("n"), n=count(), mean=avg("n"))["a"] == (1, 6, 3.0)


def test_a_renamed_aggregate_continues(tmp_path: Path) -> None:
    job = Upgrades(tmp_path)
    job.run(n=count(), total=sum_("n"))
    assert job.run(n=count(), spent=sum_("n", former_names=["total"]))["a"] == (6, 18)


def test_a_rename_without_the_former_name_is_reported(tmp_path: Path) -> None:
    job = Upgrades(tmp_path)
    job.run(n=count(), total=sum_("n"))
    assert 'looks like a rename to totals_sum: declare totals=sum_("n", former_names=["total"])' in job.report(
        n=count(), totals=sum_("n")
    )
    assert 'declare m=count(former_names=["n"])' in job.report(m=count(), total=sum_("n"))
    assert "rename" not in job.report(n=count(), total=max_("n"))


def test_a_removed_aggregate_is_reported_as_data_loss(tmp_path: Path) -> None:
    job = Upgrades(tmp_path)
    job.run(n=count(), total=sum_("n"))
    assert "total_sum" in job.report(n=count())
    # A sum does not continue from a maximum of the same name.
    assert "total_sum" in job.report(n=count(), total=max_("n"))
    assert job.run(n=count(), total=max_("n"))["a"] == (6, 6)


AGGREGATES = checked_aggregates(
    {
        "rows": count(),
        "values": count("n"),
        "total": sum_("n"),
        "prices": sum_("price"),
        "low": min_("n"),
        "high": max_("price"),
        "mean": avg("n"),
        "price": avg("price"),
    }
)


def bound() -> BoundAggregates:
    return bound_aggregates(AGGREGATES, parsed_schema("card int, n bigint, price decimal(12,2)", ""), "here")


numbers = st.none() | st.integers(-(1 << 50), 1 << 50)
prices = st.none() | st.integers(-(10**12) + 1, 10**12 - 1).map(lambda cents: Decimal(cents).scaleb(-2))


@given(st.lists(st.tuples(st.integers(0, 3), numbers, prices), min_size=1, max_size=30), st.integers(0, 30))
def test_partial_results_and_records_give_the_same_accumulators(rows: list[Any], cut: int) -> None:
    aggregates = bound()
    keys, *columns = map(list, zip(*rows, strict=True))
    one_by_one: dict[Any, Any] = {}
    load = lambda key, group: aggregates.unpack(aggregates.create_accumulator())  # noqa: E731
    aggregates.fold(one_by_one, load, keys, keys, *columns)
    combined: dict[Any, Any] = {}
    schema = pa.schema([("card", pa.int32()), ("n", pa.int64()), ("price", pa.decimal128(12, 2))])
    for part in (rows[:cut], rows[cut:]):
        if not part:
            continue
        arrays = [pa.array(list(column), one.type) for column, one in zip(zip(*part, strict=True), schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        table = aggregates.partial_results(batch, [batch.column("card")])
        first, *partials = [column.to_pylist() for column in table.columns]
        aggregates.combine(combined, load, first, first, *partials)
    assert {key: aggregates.pack(held) for key, held in combined.items()} == {
        key: aggregates.pack(held) for key, held in one_by_one.items()
    }


def test_arrow_does_not_sum_what_may_overflow() -> None:
    largest = (1 << 63) - 1
    batch = pa.RecordBatch.from_pydict(
        {"card": [1, 1], "n": [largest, 1], "price": pa.array([None, None], pa.decimal128(12, 2))}
    )
    assert bound().partial_results(batch, [batch.column("card")]) is None


def test_a_replay_in_another_order_of_arrival_gives_the_same_state() -> None:
    aggregates: dict[str, Any] = {
        "floats": sum_("amount"),
        "last": last_value("n"),
        "distinct": approx_count_distinct("n"),
        "middle": approx_percentile("amount", 0.5),
        "top": top_k("n", 3),
    }
    rows = [("a", index % 50, 0.1 * index + 1e16 * (index % 3)) for index in range(600)]
    shuffled = list(rows)
    random.Random(1).shuffle(shuffled)
    schema = "card string, n int, amount double"
    assert final(rows, 600, schema, **aggregates) == final(shuffled, 600, schema, **aggregates)


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ({}, "needs at least one aggregate"),
        ({"n": 3}, r"aggregate\(n=...\) is 3"),
        ({"n": sum_("nothing")}, "no column 'nothing'"),
        ({"n": sum_("day")}, "the column is of type date, and the aggregate takes numbers"),
        ({"card": count()}, "two columns 'card'"),
    ],
)
def test_definitions_are_checked(aggregates: dict[str, Any], message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message):
        emitted(ROWS, 2, **aggregates)


@attrs.frozen
class Payment:
    card: str
    n: int


def test_objects_are_aggregated_by_their_attributes() -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment()
    payments = environment.from_elements(ROWS[:2], SCHEMA).as_records(Payment)
    payments.key_by("card").aggregate(uid="totals", total=sum_("n")).sink_to(results)
    environment.execute()
    assert results == [("a", 3)]


def test_a_function_of_a_record_and_several_columns_may_be_the_key() -> None:
    of_function: list[Any] = []
    of_columns: list[Any] = []
    environment = LocalStreamEnvironment()
    rows = [("a", 1, ("x",)), ("ab", 2, ("x",))]
    stream = environment.from_elements(rows, "Card string, n int, place struct<city: string>")
    keyed = stream.key_by(lambda row: row.Card[:1], key_type=str)
    keyed.aggregate(uid="first", total=sum_("n")).sink_to(of_function, uid="1")
    stream.key_by("card", "place.city").aggregate(uid="second", n=count()).sink_to(of_columns, uid="2")
    environment.execute()
    assert [row.asDict() for row in of_function] == [{"key": "a", "total": 3}]
    assert [row.asDict() for row in of_columns] == [
        {"Card": "a", "city": "x", "n": 1},
        {"Card": "ab", "city": "x", "n": 1},
    ]


def test_a_schema_is_needed() -> None:
    environment = LocalStreamEnvironment()
    environment.from_elements([{"card": "a"}]).key_by("card").aggregate(uid="totals", n=count()).sink_to([])
    with pytest.raises(JobDefinitionError, match="the schema of its input is not known"):
        environment.execute()


def test_arguments_of_aggregates_are_checked() -> None:
    with pytest.raises(JobDefinitionError, match="between 0 and 1"):
        approx_percentile("n", 95)
    with pytest.raises(JobDefinitionError, match="1 or more"):
        top_k("n", 0)
    windows: Any = LocalStreamEnvironment().from_elements(ROWS, SCHEMA).key_by("card").count_window(2)
    with pytest.raises(JobDefinitionError, match="not both"):
        windows.aggregate(lambda: None, uid="windows", n=count())


def test_overflow_in_a_window_names_the_operator() -> None:
    environment = LocalStreamEnvironment()
    rows = [("a", (1 << 63) - 1)] * 2
    windows = environment.from_elements(rows, "card string, x bigint").key_by("card").count_window(2)
    windows.aggregate(uid="windows", total=sum_("x")).sink_to([])
    with pytest.raises(AggregateOverflowError, match="'total' does not fit its type bigint"):
        environment.execute()


def test_equal_places_in_order_by_are_ordered_by_the_values() -> None:
    rows = [("a", 1, "y"), ("a", 1, "x"), ("a", 0, "z")]
    options: dict[str, Any] = {"order_by": "n", "first": first_value("word"), "last": last_value("word")}
    for arrival in (rows, rows[::-1]):
        assert final(arrival, 3, "card string, n int, word string", **options) == {"a": ("z", "y")}


def test_which_zero_comes_first_does_not_matter() -> None:
    for rows in ([("a", 0.0), ("a", -0.0)], [("a", -0.0), ("a", 0.0)], [("a", -0.0)]):
        results = final(rows, 3, "card string, x double", total=sum_("x"), first=first_value("x"), last=last_value("x"))
        assert [str(value) for value in results["a"]] == ["0.0", "0.0", "0.0"]


def test_partial_results_are_compared_as_instants() -> None:
    schema = parsed_schema("card int, at timestamp", "")
    aggregates = bound_aggregates(checked_aggregates({"first": min_("at"), "last": max_("at")}), schema, "here")
    # On this day 2:20 occurs twice in Zurich, and the second 2:20 is later than the first 2:40.
    utc = datetime.timezone.utc
    times = [datetime.datetime(2024, 10, 27, hour, minute, tzinfo=utc) for hour, minute in ((0, 40), (1, 20))]
    held = aggregates.unpack(aggregates.create_accumulator())
    for time in times:
        column = pa.array([time], pa.timestamp("us", "Europe/Zurich"))
        batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int32()), column], names=["card", "at"])
        _, *partials = [column.to_pylist() for column in aggregates.partial_results(batch, [batch.column("card")])]
        aggregates.combine({None: held}, None, [None], [None], *partials)
    assert held[1:] == times


def test_intervals_are_compared_without_arrow() -> None:
    aggregates = checked_aggregates({"low": min_("pause"), "high": max_("pause")})
    schema = parsed_schema("card int, pause interval day to second", "")
    assert not bound_aggregates(aggregates, schema, "here").is_exact


def test_distinct_decimals_are_compared_with_all_digits() -> None:
    rows = [("a", Decimal(f"1{index:037d}")) for index in range(50)]
    assert final(rows, 20, "card string, x decimal(38,0)", distinct=approx_count_distinct("x")) == {"a": (50,)}


@pytest.mark.parametrize(
    ("type_name", "largest"),
    [
        ("tinyint", 127),
        ("bigint", (1 << 63) - 1),
        ("decimal(38,6)", Decimal("99999999999999999999999999999999.999999")),
        ("decimal(38,0)", Decimal(10**38 - 1)),
    ],
)
def test_percentiles_fit_the_type_of_the_column(type_name: str, largest: Any) -> None:
    least = Decimal(largest).copy_negate() if isinstance(largest, Decimal) else -largest
    rows = [("+", largest), ("-", least)]
    results = final(rows, 5, f"card string, x {type_name}", middle=approx_percentile("x", 0.5))
    assert [float(results[sign][0]) for sign in "+-"] == [float(largest), -float(largest)]


def test_names_of_results_may_be_no_identifiers() -> None:
    names = {"a b": count(), "1": sum_("n"), "class": max_("n"), "self": min_("n")}
    assert final([("a", 3)], 2, "card string, n int", **names) == {"a": (1, 3, 3, 3)}


def test_means_of_decimals_are_rounded_half_up() -> None:
    rows = [("a", Decimal("0.01")), *[("a", Decimal(0))] * 31]
    assert final(rows, 40, "card string, x decimal(10,2)", mean=avg("x")) == {"a": (Decimal("0.000313"),)}
