"""Window counts: records in columns count like objects, late records too."""

from __future__ import annotations

from collections import Counter
from datetime import timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from attrs import evolve
from effort import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statebackend import OutputTag, TumblingEventTimeWindows, avg, count, max_, min_, sum_
from statebackend.spark.tasks.arrow_rows import (
    KEY_GROUP_COLUMN,
    TIME_COLUMN,
    InputColumns,
    InputReader,
    put_together,
    time_of_emitted,
)
from statebackend.state.state_backend import state_backend
from statebackend.streaming.aggregates import AggregateDefinition, checked_aggregates
from statebackend.streaming.errors import AggregateOverflowError
from statebackend.streaming.operators import aggregate
from statebackend.streaming.operators.aggregate import AggregateOperator
from statebackend.streaming.operators.aligned_batches import can_be_counted, counts_by_start, starts_of
from statebackend.streaming.operators.operator import BatchPlaces
from statebackend.streaming.operators.window_operator import WindowOperator
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.windows.window_definition import (
    AggregatedContents,
    ColumnAggregates,
    WindowContents,
    WindowDefinition,
)
from statebackend.streaming.windows.windowed_stream import Count, KeyAndWindow
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import OperatorTestHarness
from typeserializers.scalars.fixed_width import LongSerializer

pytestmark = pytest.mark.slow

LATE = OutputTag[Any]("late")
TIMES = st.integers(-50, 50) | st.sampled_from([-(1 << 40), (1 << 40) + 7])
RECORDS = st.lists(st.tuples(st.sampled_from(["a", "b", "ü"]), TIMES), max_size=30)


AGGREGATES = ColumnAggregates(
    checked_aggregates({"rows": count(), "total": sum_("n"), "low": min_("n"), "high": max_("n"), "mean": avg("n")})
)
COUNT = AggregatedContents.of(Count(), None)


def definition(contents: WindowContents, lateness_ms: int) -> WindowDefinition:
    size, offset = 10, 3
    assigner = TumblingEventTimeWindows.of(size, offset)
    return WindowDefinition(
        assigner=assigner,
        trigger=assigner.default_trigger(),
        contents=contents,
        window_function=KeyAndWindow() if contents is COUNT else None,
        allowed_lateness_ms=lateness_ms,
        late_data_tag=LATE,
    )


def places(keys: list[Any], times: list[int | None], key_type: Any = None) -> BatchPlaces:
    def unasked(mask: pa.Array) -> Any:
        raise AssertionError("nothing is late here")

    groups = pa.array([0] * len(keys), pa.int32())
    return BatchPlaces([pa.array(keys, key_type)], groups, pa.array(times, pa.int64()), unasked)


@given(RECORDS, st.integers(1, 20), st.integers(-19, 19))
def test_records_are_counted_in_the_windows_that_python_computes(
    records: list[tuple[str, int]], size: int, offset: int
) -> None:
    windows = TumblingEventTimeWindows.of(size, offset % size).aligned
    assert windows is not None
    given_places = places([key for key, _ in records], [time for _, time in records], pa.string())
    starts = starts_of(windows, given_places.timestamps)
    assert starts.to_pylist() == [windows.starts(time)[0] for _, time in records]
    counted = {
        (start, key): count
        for start, keys, _, counts in counts_by_start(given_places, starts)
        for key, count in zip(keys, counts, strict=True)
    }
    assert counted == Counter((windows.starts(time)[0], key) for key, time in records)


@pytest.mark.parametrize(
    ("one", "is_counted"),
    [
        (places([1, 2], [3, 4]), True),
        (places(["a"], [3]), True),
        (places([0.0, -0.0], [3, 4]), False),
        (places([1, 2], [3, None]), False),
        (places([1], [(1 << 63) - 1]), False),
    ],
    ids=["numbers", "texts", "two zeros", "no timestamp", "end of time"],
)
def test_only_keys_that_arrow_and_python_group_equally_are_counted_in_columns(
    one: BatchPlaces, is_counted: bool
) -> None:
    assert can_be_counted(one) is is_counted


@pytest.mark.parametrize("far", [-(1 << 63) + 1, (1 << 63) - 1])
def test_times_near_the_ends_of_their_range_are_computed_in_python(far: int) -> None:
    assert not can_be_counted(places(["a", "a"], [0, far], pa.string()))


class Columns:
    """Records as a Spark task gets them."""

    def __init__(self, key_group: Any) -> None:
        self._reader = InputReader(InputColumns(("key", "n"), ("key",), has_time=True), "windows")
        self._key_group = key_group

    def batches(self, records: list[tuple[str, int]]) -> Any:
        for batch in put_together(map(self._batch, ([one] for one in records))):
            yield from self._reader.batches(batch)

    def _batch(self, records: list[tuple[str, int]]) -> pa.RecordBatch:
        columns = {
            "key": pa.array([key for key, _ in records], pa.string()),
            "n": pa.array([time for _, time in records], pa.int64()),
            KEY_GROUP_COLUMN: pa.array([self._key_group(key) for key, _ in records], pa.int32()),
            TIME_COLUMN: time_of_emitted([time for _, time in records], len(records), False),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("contents", [COUNT, AGGREGATES], ids=["count", "aggregates"])
@given(st.lists(RECORDS, max_size=4), st.sampled_from([0, 12]))
# The end of the window equals the watermark.
@example([[("a", 12)], [("a", 5)]], 0)
@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
def test_columns_and_objects_return_the_same_rows_including_late_ones(
    tmp_path_factory: pytest.TempPathFactory,
    contents: WindowContents,
    backend: str,
    epochs: list[list[tuple[str, int]]],
    lateness_ms: int,
) -> None:
    emitted = []
    for in_columns in (True, False):
        harness = BackendHarness(Path(tmp_path_factory.mktemp("counts")))
        operator = WindowOperator(definition(contents, lateness_ms), "windows")
        schemas = (parsed_schema("key string, n bigint", "here"),)
        run = OperatorTestHarness(harness, state_backend(backend), operator, side_outputs=(LATE,), schemas=schemas)
        columns = Columns(harness.key_group)
        for records in epochs:
            if in_columns:
                for batch in columns.batches(records):
                    assert batch.places is not None
                    run.operator.process_batch(0, batch)
            else:
                run.records(*[(key, (key, time), time) for key, time in records])
            run.watermark(max((time for _, time in records if abs(time) < 100), default=0))
        run.watermark((1 << 62) - 1)
        emitted.append([(one.tag, tuple(one.row), one.timestamp_ms, one.watermark) for one in run.emitted])
        assert run.entries() == {}
    assert emitted[0] == emitted[1]


WIDE = ColumnAggregates(
    checked_aggregates(
        {
            "rows": count(),
            "values": count("n"),
            "total": sum_("n"),
            "mean": avg("n"),
            "low": min_("n"),
            "high": max_("n"),
            "first": min_("name"),
            "last": max_("name"),
        }
    )
)
LARGE = st.sampled_from([1, 10, (1 << 53) + 1, -(1 << 55), (1 << 57) - 1])
WIDE_RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ü"]),
        st.none() | st.integers(-300, 300) | LARGE,
        st.none() | st.sampled_from(["", "x", "ÿ", "y" * 130]),
        st.integers(-20, 40),
    ),
    max_size=12,
)


WIDE_SCHEMA = parsed_schema("key string, n bigint, name string", "here")


def wide_batch(records: list[Any], key_group: Any, schema: Any = WIDE_SCHEMA, zone: str = "UTC") -> Any:
    """Records with their timestamps as a batch of columns."""
    kinds = [pa.timestamp("us", zone) if pa.types.is_timestamp(kind) else kind for kind in schema.arrow.types]
    arrays = [pa.array([record[index] for record in records], kind) for index, kind in enumerate(kinds)]
    groups = pa.array([key_group(record[0]) for record in records], pa.int32())
    times = time_of_emitted([record[-1] for record in records], len(records), False)
    names = [*schema.names, KEY_GROUP_COLUMN, TIME_COLUMN]
    reader = InputReader(InputColumns(tuple(schema.names), ("key",), has_time=True), "here")
    [batch] = reader.batches(pa.RecordBatch.from_arrays([*arrays, groups, times], names))
    return batch


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@given(st.lists(st.tuples(st.lists(WIDE_RECORDS, max_size=2), st.integers(-20, 40)), max_size=4))
@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
def test_accumulators_in_columns_have_the_bytes_and_results_of_those_of_single_keys(
    tmp_path_factory: pytest.TempPathFactory, backend: str, epochs: list[Any]
) -> None:
    runs, harness = [], BackendHarness(Path(tmp_path_factory.mktemp("bytes")))
    for is_bulk, key_names in ((True, ("key",)), (True, ()), (False, ())):
        operator = WindowOperator(evolve(definition(WIDE, 0), late_data_tag=None, key_names=key_names), "windows")
        if not is_bulk:
            operator._is_bulk = lambda context: False  # type: ignore[method-assign]
        runs.append(OperatorTestHarness(harness, state_backend(backend), operator, schemas=(WIDE_SCHEMA,)))
    of_columns, of_objects, of_single_keys = runs
    for batches, watermark in epochs:
        for records in batches:
            if records:
                batch = wide_batch(records, harness.key_group)
                of_columns.operator.process_batch(0, batch)
            for run in (of_objects, of_single_keys):
                run.records(*[(record[0], record[:-1], record[-1]) for record in records])
        for run in runs:
            run.watermark(watermark)
            run.snapshot()
        rows = [[(tuple(one.row), one.timestamp_ms) for one in run.emitted] for run in runs]
        assert rows[0] == rows[1] == rows[2]
        stored = [list(run.backend.export_state("window-contents")) for run in runs]
        assert stored[0] == stored[1] == stored[2]
    assert of_objects.entries() == of_columns.entries() == of_single_keys.entries()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@given(
    epochs=st.lists(st.lists(st.tuples(st.booleans(), WIDE_RECORDS), max_size=3), max_size=4),
    most_partials=st.sampled_from([0, 1 << 20]),
)
@example(epochs=[[(True, [("a", 1, "x", place), ("b", 2, None, place)]) for place in range(4)]], most_partials=0)
@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
def test_aggregates_without_windows_have_the_same_bytes_and_rows_in_columns(
    tmp_path_factory: pytest.TempPathFactory, backend: str, epochs: list[Any], most_partials: int
) -> None:
    runs, harness = [], BackendHarness(Path(tmp_path_factory.mktemp("bytes")))
    for key_names in (("key",), ()):
        operator = AggregateOperator(AggregateDefinition(WIDE.aggregates, key_names=key_names), "totals")
        runs.append(OperatorTestHarness(harness, state_backend(backend), operator, schemas=(WIDE_SCHEMA,)))
        runs[-1].context.timers = runs[-1].context.internal_timer_service("unused", LongSerializer())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregate, "_MOST_PARTIALS", most_partials)
        for batches in epochs:
            for in_columns, records in batches:
                of_objects = [(record[0], record[:-1], record[-1]) for record in records]
                if in_columns and records:
                    runs[0].operator.process_batch(0, wide_batch(records, harness.key_group))
                else:
                    runs[0].records(*of_objects)
                runs[1].records(*of_objects)
            for run in runs:
                run.snapshot()
            emitted = [[(tuple(one.row), one.timestamp_ms) for one in run.emitted] for run in runs]
            assert emitted[0] == emitted[1]
            stored = [list(run.backend.export_state("accumulators")) for run in runs]
            assert stored[0] == stored[1]


def test_an_overflow_in_a_window_names_the_key(tmp_path: Path) -> None:
    operator = WindowOperator(definition(ColumnAggregates(checked_aggregates({"total": sum_("n")})), 0), "windows")
    schemas = (parsed_schema("key string, n bigint", "here"),)
    run = OperatorTestHarness(BackendHarness(str(tmp_path)), state_backend("rocksdb"), operator, schemas=schemas)
    run.records(("a", ("a", 1), 5), ("b", ("b", (1 << 63) - 1), 5))
    with pytest.raises(AggregateOverflowError, match="operator 'windows', key 'b': the aggregate 'total' does not fit"):
        run.records(("a", ("a", 1), 5), ("b", ("b", 1), 5))


def test_batches_are_joined_up_to_a_bound_in_order() -> None:
    sizes = [10_000, 0, 3, 120_000, 10_000, 200_000, 1]
    numbers = iter(range(sum(sizes)))
    batches = [pa.record_batch({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes]
    together = list(put_together(iter(batches)))
    assert [batch.num_rows for batch in together] == [130_003, 10_000, 200_000, 1]
    assert pa.concat_batches(together).column("n").to_pylist() == list(range(sum(sizes)))
    assert list(put_together(iter([]))) == []


EVERY_TYPE = {
    "t": ("tinyint", st.integers(-128, 127)),
    "h": ("smallint", st.integers(-(1 << 15), (1 << 15) - 1)),
    "i": ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    "m": ("decimal(10,2)", st.decimals(-99999999, 99999999, places=2)),
    # The average of larger values does not fit its type.
    "w": ("decimal(37,4)", st.decimals(-(10**28), 10**28, places=4)),
    "day": ("date", st.dates()),
    "at": ("timestamp", st.datetimes(timezones=st.just(timezone.utc)).map(lambda one: one.replace(fold=0))),
    "ok": ("boolean", st.booleans()),
    "b": ("binary", st.binary(max_size=2)),
    "f": ("float", st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])),
}
EVERY_SCHEMA = parsed_schema(f"key string, {', '.join(f'{name} {kind[0]}' for name, kind in EVERY_TYPE.items())}", "")
EVERY_AGGREGATE = {
    f"{name}_{kind.__name__}": kind(name)
    for name in EVERY_TYPE
    for kind in (count, min_, max_, *((sum_, avg) if name in ("t", "h", "i", "m", "w", "f") else ()))
}


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@given(
    st.sets(st.sampled_from(sorted(EVERY_AGGREGATE)), min_size=1, max_size=4),
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "ü"]),
                *(st.none() | values for _, values in EVERY_TYPE.values()),
                st.integers(-5, 12),
            ),
            min_size=1,
            max_size=6,
        ),
        max_size=4,
    ),
    st.sampled_from(["UTC", "Europe/Zurich", "Asia/Kathmandu"]),
)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
def test_every_type_has_the_same_bytes_and_results_in_columns(
    tmp_path_factory: pytest.TempPathFactory, backend: str, names: set[str], batches: list[Any], zone: str
) -> None:
    contents = ColumnAggregates(checked_aggregates({name: EVERY_AGGREGATE[name] for name in sorted(names)}))
    runs, harness = [], BackendHarness(Path(tmp_path_factory.mktemp("bytes")))
    for key_names in (("key",), ()):
        operator = WindowOperator(evolve(definition(contents, 0), late_data_tag=None, key_names=key_names), "windows")
        runs.append(OperatorTestHarness(harness, state_backend(backend), operator, schemas=(EVERY_SCHEMA,)))
    for records in batches:
        runs[0].operator.process_batch(0, wide_batch(records, harness.key_group, EVERY_SCHEMA, zone))
        # Records of one batch are folded in order, and the sums of these floats do not depend on the order.
        runs[1].records(*[(record[0], record[:-1], record[-1]) for record in records])
        for run in runs:
            run.snapshot()
        stored = [list(run.backend.export_state("window-contents")) for run in runs]
        assert stored[0] == stored[1]
    for run in runs:
        run.watermark(100)
    rows = [[tuple("NaN" if one != one else one for one in emitted.row) for emitted in run.emitted] for run in runs]
    assert rows[0] == rows[1]
