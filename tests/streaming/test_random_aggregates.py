"""Random aggregates over random rows against a model of Spark SQL in plain Python.

The jobs run in epochs of random sizes. They restart from savepoints with added, removed and renamed aggregates, on the
other backend and with another parallelism.
"""

from __future__ import annotations

import datetime
import decimal
import math
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from attrs import evolve, frozen
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import (
    OutputTag,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
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
from statebackend.streaming.aggregates import bound_aggregates, checked_aggregates
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.rows.row_reader import column_values
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.testing.jobs import Emitted, HarnessJob, JobTestHarness

pytestmark = pytest.mark.slow

UTC = datetime.timezone.utc
TYPES = {
    "i": "int",
    "l": "bigint",
    "m": "decimal(10,2)",
    "w": "decimal(30,4)",
    "f": "float",
    "d": "double",
    "s": "string",
    "day": "date",
    "at": "timestamp",
    "ok": "boolean",
    "b": "binary",
}
SCHEMA = ", ".join(["k string", "o int", *(f"{name} {type_name}" for name, type_name in TYPES.items())])


def decimals(digits: int, scale: int) -> st.SearchStrategy[Any]:
    return st.integers(1 - 10**digits, 10**digits - 1).map(lambda units: decimal.Decimal(f"{units}E-{scale}"))


# Sums of these floats are exact, so that only their order among special values could matter.
FLOATS = st.sampled_from([0.0, -0.0, 0.5, -3.25, 1024.0, math.nan, math.inf])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-2, 2) | st.integers(-(1 << 31), (1 << 31) - 1),
    "l": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 2),
    "m": decimals(10, 2),
    "w": decimals(30, 4),
    "f": FLOATS,
    "d": FLOATS,
    "s": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=2),
    "day": st.dates(datetime.date(1582, 10, 15)),
    # In these hours the local time of Zurich occurs twice.
    "at": st.integers(0, 119).map(
        lambda minute: datetime.datetime(2024, 10, 27, minute // 60, minute % 60, tzinfo=UTC)
    ),
    "ok": st.booleans(),
    "b": st.binary(max_size=2),
}
ROWS = st.tuples(st.sampled_from("abc"), st.integers(0, 3), *(st.none() | values for values in VALUES.values()))

NUMBERS = ("i", "l", "m", "w", "f", "d")


@frozen
class Call:
    """An aggregate: its kind, column and argument."""

    kind: str
    column: str
    argument: Any = None

    @property
    def is_ordered(self) -> bool:
        """Whether rows are sorted by its column."""
        is_sum_of_floats = self.kind in ("sum", "avg") and self.column in ("f", "d")
        return is_sum_of_floats or self.kind in ("first", "last", "distinct", "percentile", "top")


def calls() -> st.SearchStrategy[Call]:
    ignored = st.booleans()
    return st.one_of(
        st.just(Call("count", "")),
        st.builds(Call, st.sampled_from(["count", "min", "max", "distinct"]), st.sampled_from(list(TYPES))),
        st.builds(Call, st.sampled_from(["sum", "avg"]), st.sampled_from(NUMBERS)),
        st.builds(Call, st.sampled_from(["first", "last"]), st.sampled_from(["i", "d", "s", "at"]), ignored),
        st.builds(Call, st.just("top"), st.sampled_from(["i", "s", "day"]), st.integers(1, 3)),
        st.builds(Call, st.just("percentile"), st.sampled_from(["i", "l", "m", "w"]), st.sampled_from([0.0, 0.5, 1.0])),
    )


def aggregate_of(call: Call, former_names: Sequence[str] = ()) -> Any:
    column, names = call.column, {"former_names": former_names}
    if call.kind == "count":
        return count(column or None, **names)
    if call.kind in ("first", "last"):
        function = first_value if call.kind == "first" else last_value
        return function(column, ignore_nulls=call.argument, **names)
    if call.kind == "top":
        return top_k(column, call.argument, **names)
    if call.kind == "percentile":
        return approx_percentile(column, call.argument, **names)
    functions = {"sum": sum_, "avg": avg, "min": min_, "max": max_, "distinct": approx_count_distinct}
    return functions[call.kind](column, **names)


def order(value: Any) -> Any:
    """Spark's order: null first, NaN last."""
    if isinstance(value, float):
        return 1, math.isnan(value), 0.0 if math.isnan(value) else value
    return (0,) if value is None else (1, value)


class Overflow(Exception):
    """The result does not fit its type."""


def of_decimal(exact: Fraction, precision: int, scale: int) -> decimal.Decimal:
    """The exact number, rounded half up."""
    precision, scale = min(precision, 38), min(scale, 38)
    units, rest = divmod(abs(exact.numerator) * 10**scale, exact.denominator)
    units += 2 * rest >= exact.denominator
    if units >= 10**precision:
        raise Overflow
    return decimal.Decimal(f"{'-' if exact < 0 else ''}{units}E-{scale}")


def modelled(call: Call, values: Sequence[Any]) -> Any:
    """What Spark SQL returns for these values, in their order."""
    given_values = [value for value in values if value is not None]
    type_name = TYPES.get(call.column, "")
    digits = tuple(map(int, type_name[8:-1].split(","))) if type_name.startswith("decimal") else None
    if call.kind == "count":
        return len(given_values if call.column else values)
    if call.kind in ("first", "last"):
        some = given_values if call.argument else values
        return None if not some else some[0 if call.kind == "first" else -1]
    if call.kind == "distinct":
        return len({order(value) for value in given_values})
    if call.kind == "top":
        counts = {value: given_values.count(value) for value in given_values}
        return sorted(counts.items(), key=lambda one: (-one[1], one[0]))[: call.argument]
    if not given_values:
        return None
    if call.kind in ("min", "max"):
        return (min if call.kind == "min" else max)(given_values, key=order)
    if type_name in ("float", "double"):
        total = sum(given_values)
        return total if call.kind == "sum" else total / len(given_values)
    total_of_exact = sum(map(Fraction, given_values), Fraction(0))
    if call.kind == "sum" and digits is None:
        if not -(1 << 63) <= total_of_exact < 1 << 63:
            raise Overflow
        return int(total_of_exact)
    if call.kind == "sum":
        return of_decimal(total_of_exact, digits[0] + 10, digits[1])
    mean = total_of_exact / len(given_values)
    return float(mean) if digits is None else of_decimal(mean, digits[0] + 4, digits[1] + 4)


def alike(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def check(call: Call, result: Any, values: Sequence[Any]) -> None:
    if call.kind == "percentile":
        given_values = [value for value in values if value is not None]
        if not given_values:
            assert result is None
        else:
            # The sketch computes with doubles.
            assert float(min(given_values)) <= float(result) <= float(max(given_values))
        return
    assert alike(result) == alike(modelled(call, values)), (call, values)


def fits(call: Call, values: Sequence[Any]) -> bool:
    try:
        if call.kind != "percentile":
            modelled(call, values)
    except Overflow:
        return False
    return True


@frozen
class Run:
    """A run of a job: its rows and its settings."""

    rows: list[Any]
    epoch_size: int
    backend: str
    parallelism: int
    added: list[Call]
    removed: int
    is_renamed: bool


RUNS = st.builds(
    Run,
    st.lists(ROWS, min_size=1, max_size=12),
    st.integers(1, 6),
    st.sampled_from(["heap", "rocksdb"]),
    st.integers(1, 3),
    st.lists(calls(), min_size=1, max_size=4),
    st.integers(0, 2),
    st.booleans(),
)


@frozen
class Held:
    """An aggregate of the running job: its name, and the rows of each key in their order."""

    name: str
    call: Call
    rows: dict[str, list[Any]]

    def values(self, key: str, *more: Any) -> list[Any]:
        """The values of its column."""
        position = POSITIONS.get(self.call.column, 0)
        return [row[position] for row in (*self.rows.get(key, ()), *more)]


POSITIONS = {name: position for position, name in enumerate(TYPES, start=2)}


def next_version(held: list[Held], run: Run, number: int) -> tuple[list[Held], dict[str, Any]]:
    """The aggregates of the next job, and their definitions in another order."""
    kept = held[run.removed :]
    renamed = [evolve(one, name=f"{one.name}x") if run.is_renamed else one for one in kept]
    added = [Held(f"v{number}n{index}", call, {}) for index, call in enumerate(run.added)]
    definitions = {one.name: aggregate_of(one.call) for one in added}
    for old, new in zip(kept, renamed, strict=True):
        definitions[new.name] = aggregate_of(new.call, [old.name] if run.is_renamed else [])
    return [*added, *renamed], definitions


def accepted(held: Sequence[Held], rows: Sequence[Any]) -> list[Any]:
    """The rows without those that would overflow a sum or mean."""
    new: dict[str, list[Any]] = {}
    for row in rows:
        so_far = new.setdefault(row[0], [])
        if all(fits(one.call, one.values(row[0], *so_far, row)) for one in held):
            so_far.append(row)
    kept = [id(row) for some in new.values() for row in some]
    return [row for row in rows if id(row) in kept]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=3))
def test_results_equal_the_model_across_epochs_restarts_and_changed_aggregates(runs: list[Run]) -> None:
    held: list[Held] = []
    with tempfile.TemporaryDirectory() as directory:
        options: dict[str, Any] = {}
        for number, run in enumerate(runs):
            held, definitions = next_version(held, run, number)
            rows = accepted(held, run.rows)
            results: list[Any] = []
            environment = LocalStreamEnvironment(
                job_dir=str(Path(directory) / f"job{number}"),
                backend=run.backend,
                parallelism=run.parallelism,
                epoch_size=run.epoch_size,
            )
            keyed = environment.from_elements(rows, SCHEMA).key_by("k")
            keyed.aggregate(uid="totals", order_by="o", **definitions).sink_to(results)
            job = environment.execute(**options)
            options = {"from_savepoint": str(Path(directory) / f"savepoint{number}")}
            job.savepoint(options["from_savepoint"])
            check_results(held, rows, run.epoch_size, results)


def check_results(held: Sequence[Held], rows: Sequence[Any], epoch_size: int, results: Sequence[Any]) -> None:
    """Check the emitted rows of a run, epoch by epoch."""
    sorted_by = [1, *(POSITIONS[one.call.column] for one in held if one.call.is_ordered)]
    emitted = iter(results)
    for start in range(0, len(rows), epoch_size):
        of_epoch = sorted(rows[start : start + epoch_size], key=lambda row: [order(row[one]) for one in sorted_by])
        keys = {row[0] for row in of_epoch}
        by_key = {row["k"]: row for row in (next(emitted) for _ in keys)}
        assert set(by_key) == keys
        for one in held:
            for row in of_epoch:
                one.rows.setdefault(row[0], []).append(row)
            for key, row in by_key.items():
                check(one.call, row[one.name], one.values(key))
    assert next(emitted, None) is None


COLUMNAR = parsed_schema(SCHEMA, "")


@settings(max_examples=examples(60))
@given(st.lists(ROWS, min_size=1, max_size=20), st.lists(calls(), min_size=1, max_size=4), st.integers(0, 20))
def test_partial_results_of_arrow_equal_the_model(rows: list[Any], added: list[Call], cut: int) -> None:
    exact = [call for call in added if call.kind in ("count", "sum", "avg", "min", "max") and not call.is_ordered]
    held = [Held(f"n{index}", call, {}) for index, call in enumerate([*exact, Call("count", "")])]
    rows = accepted(held, rows)
    aggregates = bound_aggregates(
        checked_aggregates({one.name: aggregate_of(one.call) for one in held}), COLUMNAR, "here"
    )
    assert aggregates.is_exact or any(one.call.column in ("f", "d") for one in held)
    state: dict[str, Any] = {}
    load = lambda key, group: aggregates.unpack(aggregates.create_accumulator())  # noqa: E731
    for part in (rows[:cut], rows[cut:]):
        if not part:
            continue
        zone = pa.field("at", pa.timestamp("us", "Europe/Zurich"))
        fields = COLUMNAR.arrow.set(POSITIONS["at"], zone)
        arrays = [pa.array(list(column), one.type) for column, one in zip(zip(*part, strict=True), fields, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=fields)
        table = aggregates.partial_results(batch, [batch.column("k")]) if aggregates.is_exact else None
        if table is None:
            keys = [row[0] for row in part]
            aggregates.fold(state, load, keys, keys, *aggregates.arrow_columns_of(batch))
        else:
            keys, *partials = map(column_values, [column.combine_chunks() for column in table.columns])
            aggregates.combine(state, load, keys, keys, *partials)
        # Like a checkpoint and a restore.
        serializer = aggregates.serializer
        stored = {key: serializer.to_bytes(aggregates.pack(one)) for key, one in state.items()}
        state = {key: aggregates.unpack(serializer.from_bytes(one)) for key, one in stored.items()}
    results, _ = aggregates.rows_and_records(state, False)
    assert {result[0] for result in results} == {row[0] for row in rows}
    for key, *values in results:
        for one, value in zip(held, values, strict=True):
            check(one.call, value, [row[POSITIONS.get(one.call.column, 0)] for row in rows if row[0] == key])


SIZE = 10
LATE: OutputTag[Any] = OutputTag("late", SCHEMA)
WINDOWED = [
    Call("count", ""),
    Call("count", "i"),
    Call("sum", "m"),
    Call("avg", "i"),
    Call("min", "d"),
    Call("max", "at"),
    Call("avg", "w"),
]
TIMES = st.integers(-15, 45)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), ROWS, TIMES),
        st.tuples(st.just("records"), st.lists(st.tuples(ROWS, TIMES), min_size=1, max_size=8)),
        st.tuples(st.just("watermark"), TIMES),
        st.tuples(st.just("restart"), st.integers(1, 3), st.sampled_from(["heap", "rocksdb"])),
    ),
    max_size=25,
)


@frozen
class Windows:
    """The model of tumbling windows: the rows of each key and start."""

    lateness: int
    rows: dict[tuple[str, int], list[Any]]

    def record(self, row: Any, time: int, watermark: int) -> list[Any]:
        start = time - time % SIZE
        end = start + SIZE - 1
        if end + self.lateness <= watermark:
            return ["late"] if time + self.lateness <= watermark else []
        self.rows.setdefault((row[0], start), []).append(row)
        return [(row[0], start)] if end <= watermark else []

    def advance(self, before: int, now: int) -> list[Any]:
        return [one for one in self.rows if before < one[1] + SIZE - 1 <= now]


@settings(max_examples=examples(30), deadline=None)
@given(EVENTS, st.sampled_from([0, 7, 20]))
def test_windows_with_lateness_equal_the_model_across_restarts(events: list[Any], lateness: int) -> None:
    held = [Held(f"n{index}", call, {}) for index, call in enumerate(WINDOWED)]

    def build(job: HarnessJob) -> None:
        windows = job.source("0", SCHEMA).key_by("k").window(TumblingEventTimeWindows.of(SIZE))
        late = windows.allowed_lateness(lateness).side_output_late_data(LATE)
        totals = late.aggregate(uid="totals", **{one.name: aggregate_of(one.call) for one in held})
        job.output("out", totals)
        job.output("late", totals.get_side_output(LATE))

    model, watermark = Windows(lateness, {}), MIN_TIMESTAMP
    with tempfile.TemporaryDirectory() as directory:
        harness = JobTestHarness(build, parallelism=2)
        try:
            for number, event in enumerate([*events, ("watermark", 1000)]):
                expected: list[Any] = []
                if event[0] == "restart":
                    path = harness.snapshot(Path(directory) / f"{number}")
                    harness.close()
                    harness = JobTestHarness(build, parallelism=event[1], backend=event[2], from_snapshot=path)
                elif event[0] == "watermark":
                    harness.source("0").watermark(event[1])
                    expected = model.advance(watermark, event[1])
                    watermark = max(watermark, event[1])
                else:
                    records = [event[1:]] if event[0] == "record" else event[1]
                    harness.source("0").send_all([row for row, _ in records], [time for _, time in records])
                    expected = [one for row, time in records for one in model.record(row, time, watermark)]
                check_windows(harness, model, held, expected)
        finally:
            harness.close()


def check_windows(harness: JobTestHarness, model: Windows, held: Sequence[Held], expected: Sequence[Any]) -> None:
    emitted = [one for one in harness.taken() if isinstance(one, Emitted)]
    assert sum(one.output == "late" for one in emitted) == expected.count("late")
    fired: dict[Any, Any] = {}
    for one in emitted:
        if one.output == "out":
            start = round(one.record.window.start.timestamp() * 1000)
            fired[one.record.k, start] = one.record
            assert one.timestamp_ms == start + SIZE - 1
    assert set(fired) == {one for one in expected if one != "late"}
    for place, row in fired.items():
        # If one call fires several times, the last firing has all rows.
        for one in held:
            values = [seen[POSITIONS.get(one.call.column, 0)] for seen in model.rows[place]]
            check(one.call, row[one.name], values)


INTEGERS = ("i", "l")
IN_COLUMNS = st.one_of(
    st.just(Call("count", "")),
    st.builds(Call, st.just("count"), st.sampled_from(list(TYPES))),
    st.builds(Call, st.sampled_from(["sum", "avg"]), st.sampled_from(INTEGERS)),
    st.builds(Call, st.sampled_from(["min", "max"]), st.sampled_from([*INTEGERS, "s"])),
)
"""Aggregates whose accumulators stay in Arrow columns."""
CHANGES = st.tuples(st.lists(IN_COLUMNS, max_size=2), st.integers(0, 2), st.booleans())
"""Aggregates that the next job adds, how many it removes, and whether it renames the others."""
VERSIONS = st.lists(
    st.tuples(
        CHANGES,
        st.sampled_from(["heap", "rocksdb"]),
        st.integers(1, 3),
        st.lists(st.tuples(st.lists(st.tuples(ROWS, TIMES), min_size=1, max_size=8), st.none() | TIMES), max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(30), deadline=None)
@given(VERSIONS, st.sampled_from([TumblingEventTimeWindows.of(SIZE), SlidingEventTimeWindows.of(SIZE, 4)]))
def test_windows_in_columns_equal_the_model_across_upgrades(versions: list[Any], assigner: Any) -> None:
    slide = SIZE if isinstance(assigner, TumblingEventTimeWindows) else 4
    held, places, watermark = [Held("rows", Call("count", ""), {})], set[Any](), MIN_TIMESTAMP
    with tempfile.TemporaryDirectory() as directory:
        snapshot = None
        for number, ((added, removed, renames), backend, parallelism, steps) in enumerate(versions):
            run = Run([], 0, backend, parallelism, added, min(removed, len(held) - 1), renames)
            changed, definitions = next_version(held[1:], run, number)
            held, definitions = [held[0], *changed], {"rows": count(), **definitions}

            def build(job: HarnessJob, definitions: Any = definitions) -> None:
                windows = job.source("0", SCHEMA).key_by("k").window(assigner)
                job.output("out", windows.aggregate(uid="totals", **definitions))

            restored = {} if snapshot is None else {"from_snapshot": snapshot}
            harness = JobTestHarness(build, parallelism=parallelism, backend=backend, **restored)
            try:
                last = number == len(versions) - 1
                for records, now in [*steps, *([([], 1000)] if last else [])]:
                    taken = []
                    for row, time in records:
                        starts = [time - time % slide - back for back in range(0, SIZE, slide)]
                        of_row = [(row[0], one) for one in starts if time < one + SIZE and one + SIZE - 1 > watermark]
                        if not all(fits(one.call, one.values(place, row)) for one in held for place in of_row):
                            continue
                        taken.append((row, time))
                        places.update(of_row)
                        for one in held:
                            for place in of_row:
                                one.rows.setdefault(place, []).append(row)
                    harness.source("0").send_all([row for row, _ in taken], [time for _, time in taken])
                    if now is not None:
                        harness.source("0").watermark(now)
                    watermark = max(watermark, MIN_TIMESTAMP if now is None else now)
                    fired = {
                        (one.record.k, round(one.record.window.start.timestamp() * 1000)): one.record
                        for one in harness.taken()
                        if isinstance(one, Emitted)
                    }
                    assert set(fired) == {one for one in places if one[1] + SIZE - 1 <= watermark}
                    places -= set(fired)
                    for place, row in fired.items():
                        for one in held:
                            check(one.call, row[one.name], one.values(place))
                snapshot = harness.snapshot(Path(directory) / f"{number}")
            finally:
                harness.close()
