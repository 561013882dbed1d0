"""Records in columns behave as records: random programs, and the source of Arrow data."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from attrs import field, frozen, validators
from counted_keys import Count
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_run_steps import opened, steps

from statebackend import (
    BatchContext,
    BatchRuntimeContext,
    ColumnType,
    JobDefinitionError,
    KeyedBatchFunction,
    KeyedProcessFunction,
    NullKeyError,
    OutputTag,
    ProcessContext,
    RuntimeContext,
    StreamJobError,
    TumblingEventTimeWindows,
    UserFunctionError,
    ValueStateDescriptor,
    WatermarkStrategy,
    avg,
    count,
    last_value,
    max_,
    sum_,
)
from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.coordinator.requests import CheckpointRequestKind
from statebackend.connectors import FileSink
from statebackend.local import LocalStreamEnvironment
from statebackend.local.graph import rows_of
from statebackend.local.job_parts import CheckpointSettings
from statebackend.local.source import ArrowRows, LocalSource
from statebackend.savepoint.savepoint import Savepoint
from statebackend.streaming.data_stream import DataStream, KeyedStream
from statebackend.streaming.rows.columnar import Columnar
from statebackend.streaming.rows.declared_schema import parsed_schema, schema_of_arrow
from statebackend.streaming.rows.row_reader import UnreadableRowError
from statebackend.streaming.stream_graph import SplitRead

pytestmark = pytest.mark.slow

SCHEMA = "k string, day date, n bigint, price decimal(10,2), at timestamp, tags array<bigint>"
DECLARED = parsed_schema(SCHEMA, "test")
OTHER: OutputTag[Any] = OutputTag("other", "k string, n bigint")
LATE: OutputTag[Any] = OutputTag("late", SCHEMA)


class Changing(KeyedProcessFunction[Any, Any, Any]):
    """Changes the list of its record, and stores the largest one."""

    def open(self, context: RuntimeContext) -> None:
        self.longest = context.get_state(ValueStateDescriptor("longest", list[int]))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        value.tags.append(value.n)
        if len(value.tags) >= len(self.longest.value() or ()):
            self.longest.update([one or 0 for one in value.tags])
        if value.n is None:
            context.output(OTHER, (value.k, -1))
        yield value.k, len(value.tags)


class Sums(KeyedBatchFunction[Any, Any, Any]):
    """Adds up a column, and emits a batch of the output and of a side output."""

    def open(self, context: BatchRuntimeContext) -> None:
        self.sums = context.get_state(ValueStateDescriptor("sums", int))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[Any]) -> Any:
        groups = context.groups(batch)
        more = groups.aggregate([("n", "sum")]).column("n_sum").fill_null(0)
        sums = pc.add(self.sums.get_many(groups).fill_null(0), more)
        self.sums.put_many(groups, sums)
        firsts = groups.aggregate([("k", "min")]).column("k_min")
        context.output(OTHER, pa.record_batch({"n": more, "k": firsts}))
        return pa.record_batch({"k": firsts, "n": sums})


Program = Callable[[DataStream, Sequence[str]], Sequence[DataStream]]


def keyed_by(stream: DataStream, keys: Sequence[str]) -> KeyedStream:
    """Build the stream from these columns; without columns, by a function."""
    return stream.key_by(*keys) if keys else stream.key_by(lambda row: row.k + "!", key_type="string")


def per_record(stream: DataStream, keys: Sequence[str]) -> Sequence[DataStream]:
    made = keyed_by(stream, keys).process(Changing(), uid="changing", schema="k string, n bigint")
    return made, made.get_side_output(OTHER).key_by("k").process(Count(), uid="count", schema="k string, n bigint")


def in_batches(stream: DataStream, keys: Sequence[str]) -> Sequence[DataStream]:
    sums = keyed_by(stream, keys).process(Sums(), uid="sums", schema="k string, n bigint")
    return sums.key_by("k").aggregate(n=count(), last=max_("n"), uid="again"), sums.get_side_output(OTHER)


def aggregated(stream: DataStream, keys: Sequence[str]) -> Sequence[DataStream]:
    return (keyed_by(stream, keys).aggregate(c=count(), s=sum_("n"), p=sum_("price"), a=avg("n"), uid="aggregates"),)


def in_order(stream: DataStream, keys: Sequence[str]) -> Sequence[DataStream]:
    keyed = keyed_by(stream, keys)
    ordered = keyed.process(Changing(), order_by=("n", "at"), uid="ordered", schema="k string, n bigint")
    return ordered, keyed_by(stream, keys).aggregate(last=last_value("n"), uid="last")


def in_windows(stream: DataStream, keys: Sequence[str]) -> Sequence[DataStream]:
    windows = keyed_by(stream, keys).window(TumblingEventTimeWindows.of(10)).side_output_late_data(LATE)
    totals = windows.aggregate(c=count(), s=sum_("n"), uid="windows")
    return totals, totals.get_side_output(LATE)


def forked(stream: DataStream, keys: Sequence[str]) -> Sequence[DataStream]:
    few = stream.filter(lambda row: len(row.tags) < 2)
    return *per_record(stream, keys), *in_batches(few, keys), few.union(stream), stream


@frozen
class Line:
    """The columns in another order and with another precision."""

    tags: list[int | None] | None
    k: str | None
    n: int | None
    price: Annotated[Decimal, ColumnType("decimal(22,2)")] | None
    at: datetime.datetime | None
    day: datetime.date | None


def of_objects(stream: DataStream, keys: Sequence[str]) -> Sequence[DataStream]:
    lines = stream.as_records(Line)
    return *per_record(lines, keys), *in_windows(lines, keys), lines


PROGRAMS: Sequence[Program] = (per_record, in_batches, aggregated, in_order, in_windows, forked, of_objects)
KEYS = (("k",), ("day",), ("at",), ("k", "day"), ())
NOON = datetime.datetime(2026, 11, 27, 12, tzinfo=datetime.timezone.utc)
ROWS = st.lists(
    st.tuples(
        st.text("ab\0ä", max_size=3),
        st.dates(datetime.date(2026, 1, 1), datetime.date(2026, 1, 3)),
        st.none() | st.integers(-3, 3) | st.integers(-(1 << 62), 1 << 62),
        st.none() | st.decimals(-9, 9, places=2),
        st.integers(0, 60_000).map(lambda us: NOON + datetime.timedelta(microseconds=us)),
        st.lists(st.none() | st.integers(0, 3), max_size=3),
    ),
    min_size=1,
    max_size=20,
)
EVENTS = st.lists(
    st.one_of(
        ROWS,
        ROWS,
        st.tuples(st.just("steps"), st.integers(1, 12)),
        st.just(("checkpoint",)),
        st.tuples(st.just("restart"), st.integers(1, 3)),
    ),
    max_size=12,
)


def as_records(rows: Sequence[Any]) -> Any:
    return rows


def as_columns(rows: Sequence[Any]) -> Any:
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), DECLARED.arrow, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DECLARED.arrow)


@frozen
class Played:
    """The result of a program: its moves, the records of its sinks, and its states."""

    moves: list[str]
    results: list[list[Any]]
    states: list[Any]


def played(
    root: Path,
    program: Program,
    keys: Sequence[str],
    backend: str,
    events: Sequence[Any],
    form: Callable[[Sequence[Any]], Any],
    seed: int,
) -> Played:
    """Play the events in one job directory. Each restart continues from the last complete checkpoint."""
    moves: list[str] = []
    results: list[list[Any]] = [[] for _ in range(8)]
    following = iter([*events, ("end",)])
    parallelism = 1
    while parallelism:
        environment = LocalStreamEnvironment(backend=backend, parallelism=parallelism, max_parallelism=8, clock=int)
        stream = environment.from_elements([], SCHEMA, uid="in").assign_timestamps_and_watermarks(
            WatermarkStrategy.for_bounded_out_of_orderness(20).with_timestamps("at")
        )
        for index, one in enumerate(program(stream, keys)):
            one.sink_to(results[index], uid=f"out-{index}")
        modes = CheckpointSettings(mode=CheckpointingMode(is_unaligned=True), tolerable_failures=99)
        directory, opening = opened(root, environment, seed, modes, None)
        with directory, opening as run:
            [source] = run.job_network.sources.values()
            parallelism = 0
            for event in following:
                if isinstance(event, list):
                    records = rows_of(form(event), DECLARED)
                    assert isinstance(records, Columnar) is (form is as_columns)
                    source.feed(partial(LocalSource.read_and_emit_periodically, records=records))
                elif event[0] == "checkpoint":
                    run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
                elif event[0] == "steps":
                    moves += [str(move) for _ in range(event[1]) if (move := run.step()) is not None]
                elif event[0] == "restart":
                    parallelism = event[1]
                    break
                else:
                    moves += steps(run)
                    run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
    savepoint = Savepoint.open(root)
    states = [(*name, savepoint.read(*name).to_arrow()) for name in sorted(savepoint.states)]
    sorted_states = [(uid, name, table.schema, sorted(table.to_pylist(), key=repr)) for uid, name, table in states]
    if program in (in_batches, aggregated):
        # Arrow may order groups differently from the first records of their keys.
        results = [sorted(one, key=repr) for one in results]
    return Played(moves, results, sorted_states)


ROW = ("a", datetime.date(2026, 1, 1), 1, Decimal("1.50"), NOON, [1])
OTHER_ROW = ("b", datetime.date(2026, 1, 2), None, None, NOON + datetime.timedelta(seconds=1), [None])
SOME_EVENTS: list[Any] = [[ROW, OTHER_ROW], ("steps", 2), ("checkpoint",), [OTHER_ROW, ROW, ROW], ("steps", 20)]


@pytest.mark.extended_after(2)
@pytest.mark.parametrize("program", PROGRAMS)
@settings(max_examples=examples(12))
@example(("k",), "heap", [*SOME_EVENTS, ("restart", 3), *SOME_EVENTS], 1, 0)
@example(("k", "day"), "rocksdb", [*SOME_EVENTS, ("restart", 1), *SOME_EVENTS], 3, 1)
@given(st.sampled_from(KEYS), st.sampled_from(["heap", "rocksdb"]), EVENTS, st.integers(1, 3), st.integers(0, 99))
def test_records_in_columns_have_the_moves_output_and_state_of_records(
    program: Program, keys: Sequence[str], backend: str, events: list[Any], parallelism: int, seed: int
) -> None:
    """Barriers overtake, restarts lose everything after the last checkpoint, and the parallelism changes."""
    events = [("restart", parallelism), *events]
    with tempfile.TemporaryDirectory() as directory:
        records, columns = (
            played(
                Path(directory) / form.__name__, program, keys, backend, [("restart", parallelism), *events], form, seed
            )
            for form in (as_records, as_columns)
        )
    assert records == columns


@frozen
class Amount:
    n: int
    price: Annotated[Decimal, ColumnType("decimal(20,2)")]


@frozen
class Positive:
    n: int = field(validator=validators.gt(0))
    price: Decimal


def test_objects_of_narrower_columns_have_the_keys_of_their_class(tmp_path: Path) -> None:
    numbers, prices = [1, 2, 3], [Decimal("1.50"), Decimal("2.50"), Decimal("1.50")]
    table = pa.table({"n": pa.array(numbers, pa.int32()), "price": pa.array(prices, pa.decimal128(5, 2))})
    results: list[Any] = []
    for is_in_columns in (True, False):
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job", parallelism=2)
        if is_in_columns:
            stream = environment.from_arrow(table, uid="in")
        else:
            stream = environment.from_elements(list(map(Amount, numbers, prices)), Amount)
        counted = stream.as_records(Amount).key_by("n").process(Count(), uid="count", schema="n bigint, count bigint")
        counted.sink_to(results)
        environment.execute(allow_non_restored_state=True)
    assert sorted(map(tuple, results)) == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]


@pytest.mark.parametrize(
    ("kind", "number", "reason"),
    [(Amount, None, "n: it is null, and its type is not optional"), (Positive, 0, "'n' must be > 0")],
)
def test_values_that_a_class_rejects_fail_a_job_that_reads_no_object(
    tmp_path: Path, kind: Any, number: int | None, reason: str
) -> None:
    table = pa.table({"n": pa.array([1, number], pa.int64()), "price": pa.array([1, 1], pa.decimal128(5, 2))})
    environment = LocalStreamEnvironment()
    environment.from_arrow(table, uid="in").as_records(kind).sink_to(FileSink(tmp_path / "out"), uid="out")
    with pytest.raises(UnreadableRowError, match=reason):
        environment.execute()


def table_of(count: int) -> pa.Table:
    return pa.table({"k": [f"k{number % 7}" for number in range(count)], "n": pa.array(range(count), pa.int64())})


def test_no_objects_are_created_between_an_arrow_source_batch_functions_and_a_sink_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Columnar, "objects")
    environment = LocalStreamEnvironment(parallelism=2, epoch_size=40)
    keyed = environment.from_arrow(table_of(100), uid="in").key_by("k")
    sums = keyed.process(Sums(), uid="sums", schema="k string, n bigint")
    sums.sink_to(FileSink(tmp_path / "sums"), uid="sums-out")
    totals = sums.key_by("k").aggregate(last=max_("n"), uid="totals")
    totals.sink_to(FileSink(tmp_path / "totals"), uid="totals-out")
    environment.execute()
    rows = pq.read_table(tmp_path / "totals").to_pylist()
    last = {key: max(row["last"] for row in rows if row["k"] == key) for key in {row["k"] for row in rows}}
    assert last == {f"k{key}": sum(range(key, 100, 7)) for key in range(7)}
    written = pq.read_table(tmp_path / "sums")
    assert sorted(set(written["k"].to_pylist())) == sorted(last)


class Reader:
    """Opens readers of a table in small batches. One of them is empty."""

    def __init__(self, table: pa.Table, size: int) -> None:
        self.opened = 0
        self._table = table
        self._size = size

    def __call__(self) -> pa.RecordBatchReader:
        self.opened += 1
        batches = self._table.to_batches(max_chunksize=self._size)
        return pa.RecordBatchReader.from_batches(self._table.schema, [*batches[:1], batches[0][:0], *batches[1:]])


@pytest.mark.parametrize("size", [1, 7, 10, 100])
@pytest.mark.parametrize("made", [lambda table, size: table, Reader])
def test_a_restart_continues_after_the_rows_that_were_read(tmp_path: Path, made: Any, size: int) -> None:
    results: list[Any] = []
    for rows in (25, 60, 60):
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=10)
        stream = environment.from_arrow(made(table_of(rows), size), uid="in")
        stream.key_by("k").process(Count(), uid="count", schema="k string, n bigint").sink_to(results)
        environment.execute()
    assert results == [(f"k{number % 7}", number // 7 + 1) for number in range(60)]
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=10)
    stream = environment.from_arrow(made(table_of(59), size), uid="in").key_by("k")
    stream.process(Count(), uid="count", schema="k string, n bigint").sink_to(results)
    with pytest.raises(UserFunctionError, match="the data has 59 rows, fewer than were read before"):
        environment.execute()


def test_rows_are_read_again_from_an_earlier_position() -> None:
    source = ArrowRows(lambda: pa.table({"n": list(range(10))}).to_reader(max_chunksize=4))
    for position, expected in ((0, [0, 1, 2]), (3, [3, 4, 5]), (1, [1, 2, 3]), (8, [8, 9])):
        read = source.read("rows", position, 3)
        assert read.records.column("n").to_pylist() == expected  # type: ignore[union-attr]
        assert read.position == position + len(expected)


def test_a_reader_is_opened_once_for_all_batches_of_a_run() -> None:
    reader, results = Reader(table_of(50), 3), list[Any]()
    environment = LocalStreamEnvironment(epoch_size=4)
    environment.from_arrow(reader, uid="in").sink_to(results)
    environment.execute()
    assert results == [(f"k{number % 7}", number) for number in range(50)]
    # The first reader was opened for the schema.
    assert reader.opened == 2


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_null_key_in_columns_is_an_error(parallelism: int) -> None:
    environment = LocalStreamEnvironment(parallelism=parallelism)
    stream = environment.from_arrow(pa.table({"k": ["a", None]}), uid="in").key_by("k")
    stream.aggregate(n=count(), uid="count").sink_to([])
    with pytest.raises(NullKeyError, match="operator 'count': a record has a null key"):
        environment.execute()


def test_arrow_types_become_types_of_the_schema() -> None:
    pytest.importorskip("pyarrow", "25", reason="earlier releases cannot create a dictionary of large strings")
    schema = pa.schema(
        [
            pa.field("a`b", pa.dictionary(pa.int32(), pa.large_string()), nullable=False),
            ("at", pa.timestamp("ns", "Europe/Berlin")),
            ("local", pa.timestamp("s")),
            ("price", pa.decimal128(12, 3)),
            ("small", pa.uint8()),
            ("nested", pa.struct([("tags", pa.large_list(pa.int16())), ("of", pa.map_(pa.string(), pa.date64()))])),
            ("took", pa.duration("ms")),
        ]
    )
    declared = schema_of_arrow(schema, "from_arrow")
    assert declared == parsed_schema(
        "`a``b` string not null, at timestamp, local timestamp_ntz, price decimal(12,3), small smallint, "
        "nested struct<tags: array<smallint>, of: map<string, date>>, took interval day to second",
        "",
    )
    results: list[Any] = []
    moment = datetime.datetime(2026, 11, 27, 12, tzinfo=datetime.timezone.utc)
    row = ["x", moment, moment.replace(tzinfo=None), Decimal("1.250"), 255, None, datetime.timedelta(seconds=1)]
    table = pa.Table.from_arrays(
        [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)], schema=schema
    )
    environment = LocalStreamEnvironment()
    environment.from_arrow(table, uid="in").sink_to(results)
    environment.execute()
    assert results == [tuple(row)]


@pytest.mark.parametrize("is_windowed", [False, True])
@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([10**7, 1], pa.int32()).cast(pa.date32()), "date value out of range"),
        (pa.array([10**18, 1], pa.int64()).cast(pa.timestamp("us", "UTC")), "date value out of range"),
        (
            pa.StringArray.from_buffers(
                2, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0])), pa.py_buffer(b"\xff")
            ),
            "utf-8",
        ),
    ],
)
@pytest.mark.parametrize("name", ["k", "v"])
def test_a_column_with_a_value_that_python_cannot_hold_is_named_with_its_operator(
    is_windowed: bool, column: pa.Array, reason: str, name: str
) -> None:
    table = pa.table({"k": [1, 2], "v": [1, 2], "at": [1, 2]})
    table = table.set_column(table.schema.get_field_index(name), name, column)
    environment = LocalStreamEnvironment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    keyed = environment.from_arrow(table, uid="in").assign_timestamps_and_watermarks(strategy).key_by("k")
    grouped = keyed.window(TumblingEventTimeWindows.of(10)) if is_windowed else keyed
    grouped.aggregate(last=max_("v"), uid="totals").sink_to([])
    with pytest.raises(
        UnreadableRowError, match=rf"^(operator 'totals'|source 'in'): .*Python cannot hold: .*{reason}"
    ):
        environment.execute(drain=True)


def test_what_is_no_arrow_data_is_rejected() -> None:
    environment = LocalStreamEnvironment()
    with pytest.raises(JobDefinitionError, match=r"from_arrow was given \[\]; pass a pyarrow.Table"):
        environment.from_arrow([], uid="in")  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="column 'u' has the Arrow type uint64; cast it"):
        environment.from_arrow(pa.table({"u": pa.array([], pa.uint64())}), uid="in")


class Batches:
    """A source of record batches that a program wrote."""

    def splits(self) -> dict[str, int]:
        return {"only": 0}

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        return SplitRead(table_of(9).to_batches()[0], 9, True)


def test_a_source_may_return_record_batches_if_it_has_a_schema() -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment()
    environment.from_source(Batches(), "n bigint, k string", uid="in").sink_to(results)
    environment.execute()
    assert results == [(number, f"k{number % 7}") for number in range(9)]
    environment = LocalStreamEnvironment()
    environment.from_source(Batches(), uid="in").sink_to(results)
    with pytest.raises(StreamJobError, match=r"source 'in': read\(\) returned a record batch; pass schema="):
        environment.execute()


@pytest.mark.parametrize("total", [2**53 + 1, 3 * (2**53 + 1), -(2**53) - 1])
def test_the_mean_of_integers_beyond_doubles_is_exact(total: int) -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment()
    table = pa.table({"k": ["a"] * 3, "n": [total, 0, 0]})
    environment.from_arrow(table, uid="in").key_by("k").aggregate(mean=avg("n"), uid="mean").sink_to(results.append)
    environment.execute("mean")
    assert [tuple(row) for row in results] == [("a", total / 3)]
