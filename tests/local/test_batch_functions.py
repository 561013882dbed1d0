"""Batch functions in the local runtime use the state of per-record functions."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from statebackend import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BatchContext,
    BatchRuntimeContext,
    JobDefinitionError,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    NullKeyError,
    OutputTag,
    ProcessContext,
    ReducingStateDescriptor,
    RuntimeContext,
    StateMetricsConfig,
    StateTtlConfig,
    TimeDomain,
    UserFunctionError,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    last_value,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.ttl_config import TtlStateVisibility
from statebackend.streaming.operators import keyed_batch
from statebackend.streaming.rows.row_writer import RowMismatchError

pytestmark = pytest.mark.slow


@attrs.frozen
class Sale:
    shop: str | None
    amount: int


@attrs.frozen
class Totals:
    sales: int
    turnover: int


SALES = [Sale("north", 3), Sale("south", 5), Sale("north", 4), Sale("south", 1), Sale("north", 1), Sale("west", 9)]
TOTALS = ValueStateDescriptor("totals", Totals)
OUTPUT = "shop string, sales bigint, turnover bigint"
BACKENDS = ("heap", "rocksdb")


class BatchTotals(KeyedBatchFunction[str, Sale, Any]):
    def open(self, context: BatchRuntimeContext) -> None:
        self.totals = context.get_state(TOTALS)

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        groups = context.groups(batch)
        before = self.totals.get_many(groups)
        amounts = groups.aggregate([("amount", "sum")]).column("amount_sum")
        parts = [groups.sizes, amounts]
        new = [pc.add(part.fill_null(0), more) for part, more in zip(before.flatten(), parts, strict=True)]
        self.totals.put_many(groups, pa.StructArray.from_arrays(new, ["sales", "turnover"]))
        return pa.record_batch({"shop": groups.keys, "turnover": new[1], "sales": new[0]})


class TellsConversion(BatchTotals):
    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        return pa.record_batch({"is_vectorised": [self.totals.is_vectorised]})


class RecordTotals(KeyedProcessFunction[str, Sale, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.totals = context.get_state(TOTALS)

    def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
        before = self.totals.value() or Totals(0, 0)
        after = Totals(before.sales + 1, before.turnover + value.amount)
        self.totals.update(after)
        yield context.current_key, after.sales, after.turnover


def run(function: Any, sales: list[Sale], schema: str = OUTPUT, **options: Any) -> list[Any]:
    execute = {name: options.pop(name) for name in ("from_savepoint",) if name in options}
    keys = options.pop("keys", ("shop",))
    order_by = options.pop("order_by", ())
    environment = LocalStreamEnvironment(**options)
    results: list[Any] = []
    environment.from_elements(sales).as_records(Sale).key_by(*keys).process(
        function, uid="totals", schema=schema, order_by=order_by
    ).sink_to(results.append)
    environment.execute("sales", **execute)
    return [tuple(row) for row in results]


def last_by_shop(rows: list[Any]) -> dict[str, Any]:
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("epoch_size", [None, 1, 2])
def test_batches_count_like_records(backend: str, parallelism: int, epoch_size: int | None) -> None:
    options: dict[str, Any] = {"backend": backend, "parallelism": parallelism, "epoch_size": epoch_size}
    batches, records = run(BatchTotals(), SALES, **options), run(RecordTotals(), SALES, **options)
    assert last_by_shop(batches) == last_by_shop(records) == {"north": (3, 8), "south": (2, 6), "west": (1, 9)}


def state_rows(directory: Path) -> list[Any]:
    """The entries of a savepoint as bytes."""
    files = sorted(directory.rglob("*.parquet"))
    assert files
    return sorted((row for file in files for row in pq.read_table(file).to_pylist()), key=str)


def savepoint_of(function: Any, sales: list[Sale], directory: Path, **options: Any) -> Path:
    from_savepoint = options.pop("from_savepoint", None)
    environment = LocalStreamEnvironment(**options)
    stream = environment.from_elements(sales).as_records(Sale).key_by("shop")
    stream.process(function, uid="totals", schema=OUTPUT).sink_to([])
    environment.execute("sales", from_savepoint=from_savepoint).savepoint(directory)
    return directory


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_changes_its_form_over_a_savepoint_and_back(tmp_path: Path, backend: str) -> None:
    first, second = SALES[:3], SALES[3:]
    forms = {"record": RecordTotals, "batch": BatchTotals}
    starts = {
        name: savepoint_of(form(), first, tmp_path / name, backend=backend, parallelism=2)
        for name, form in forms.items()
    }
    assert state_rows(starts["record"]) == state_rows(starts["batch"])
    ends = [
        savepoint_of(
            forms[later](), second, tmp_path / f"{before}-{later}", backend=backend, from_savepoint=starts[before]
        )
        for before in forms
        for later in forms
    ]
    assert len({str(state_rows(end)) for end in ends}) == 1
    assert last_by_shop(run(RecordTotals(), [Sale("north", 2)], from_savepoint=ends[0])) == {"north": (4, 10)}


def test_a_row_without_a_key_is_an_error() -> None:
    with pytest.raises(NullKeyError, match="operator 'totals': a record has a null key"):
        run(BatchTotals(), [Sale("north", 1), Sale(None, 2)])


class Ordered(KeyedBatchFunction[str, Sale, Any]):
    """Emits the rows by key, and the positions of the groups."""

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        groups = context.groups(batch)
        assert groups.index.type == pa.int32()
        assert groups.keys.take(groups.index).to_pylist() == batch["shop"].to_pylist()
        yield groups.rows
        selected = context.groups(batch, where=pc.greater(batch["amount"], 3))
        assert selected.sizes.to_pylist() == [
            selected.rows["shop"].to_pylist().count(key) for key in selected.keys.to_pylist()
        ]


def test_rows_of_a_key_keep_their_order() -> None:
    rows = run(Ordered(), SALES, "shop string, amount bigint")
    assert rows == [("north", 3), ("north", 4), ("north", 1), ("south", 5), ("south", 1), ("west", 9)]


class Selected(KeyedBatchFunction[str, Sale, Any]):
    """Adds the amounts above 3 to the state."""

    def open(self, context: BatchRuntimeContext) -> None:
        self.amount = context.get_state(ValueStateDescriptor("amount", int))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        groups = context.groups(batch, where=pc.greater(batch["amount"], 3))
        sums = groups.aggregate([("amount", "sum")]).column("amount_sum")
        self.amount.put_many(groups, pc.add(self.amount.get_many(groups).fill_null(0), sums))
        return pa.record_batch({"shop": groups.keys, "amount": self.amount.get_many(groups)})


def test_selected_rows_of_arrow_batches_have_the_key_groups_of_their_keys(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([attrs.asdict(sale) for sale in SALES])
    savepoint, rows = None, list[Any]()
    for parallelism in (2, 3):
        environment = LocalStreamEnvironment(parallelism=parallelism)
        stream = environment.from_arrow(table, uid="sales").key_by("shop")
        stream.process(Selected(), uid="selected", schema="shop string, amount bigint").sink_to(rows)
        job = environment.execute("selected", from_savepoint=savepoint, restore_source_progress=False)
        savepoint = tmp_path / str(parallelism)
        job.savepoint(savepoint)
    assert sorted(map(tuple, rows)) == [
        ("north", 4),
        ("north", 8),
        ("south", 5),
        ("south", 10),
        ("west", 9),
        ("west", 18),
    ]


def test_order_by_sorts_the_rows_of_a_key() -> None:
    rows = run(Ordered(), SALES, "shop string, amount bigint", order_by="amount")
    assert [row[1] for row in rows if row[0] == "north"] == [1, 3, 4]
    assert [row[1] for row in rows if row[0] == "south"] == [1, 5]


class Puts(KeyedBatchFunction[str, Sale, Any]):
    """Calls every vectorised method of a value state."""

    def __init__(self, default: int | None = None) -> None:
        self.default = default

    def open(self, context: BatchRuntimeContext) -> None:
        self.amount = context.get_state(ValueStateDescriptor("amount", int, self.default))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        groups = context.groups(batch)
        found = [self.amount.get_many(groups).to_pylist()]
        self.amount.put_many(groups.take([0, 1, 0]), [1, 2, 3])
        found.append(self.amount.get_many(groups).to_pylist())
        self.amount.put_many(groups, pa.array([None, 7], pa.int32()))
        found.append(self.amount.get_many(groups).to_pylist())
        self.amount.clear_many(groups.filter(pa.array([False, True])))
        found.append(self.amount.get_objects(groups))
        return pa.table({"found": pa.array(found, pa.list_(pa.int64()))})


@pytest.mark.parametrize("backend", BACKENDS)
def test_null_is_absent_and_the_last_of_two_values_counts(backend: str) -> None:
    sales = SALES[:2]
    rows = run(Puts(), sales, "found array<bigint>", backend=backend)
    assert rows == [([None, None],), ([3, 2],), ([None, 7],), ([None, None],)]
    rows = run(Puts(default=5), sales, "found array<bigint>", backend=backend)
    assert rows == [([5, 5],), ([3, 2],), ([5, 7],), ([5, 5],)]


class PutsWrong(KeyedBatchFunction[str, Sale, Any]):
    def __init__(self, values: Any) -> None:
        self.values = values

    def open(self, context: BatchRuntimeContext) -> None:
        self.amount = context.get_state(ValueStateDescriptor("amount", int))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        self.amount.put_many(context.groups(batch), self.values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "two", 3], "key 'south', value 1 of 3.*state 'amount'"),
        ([1, 2], "2 values were given for 3 keys"),
        (pa.array(["1", "2", "c"]), "key 'west', value 2 of 3.*an array of string does not fit values of int64"),
        (
            pa.array([[1], [2], [3]]),
            "state 'amount' cannot write this value: an array of list<item: int64> does not fit",
        ),
        (pa.array([1.0, 2, 3.5]), "key 'west', value 2 of 3.*an array of double does not fit values of int64"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_names_the_batch_and_the_key(backend: str, values: Any, message: str) -> None:
    where = "operator 'totals', a batch of 6 rows of epoch "
    with pytest.raises(UserFunctionError, match=f"{where}[0-9]+: .*{message}"):
        run(PutsWrong(values), SALES, backend=backend)


class PutsWrongParts(KeyedBatchFunction[str, Sale, Any]):
    """Calls a function with its list state, its map state, and the keys."""

    def __init__(self, put: Any) -> None:
        self.put = put

    def open(self, context: BatchRuntimeContext) -> None:
        self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))
        self.by_name = context.get_map_state(MapStateDescriptor("by name", str, int))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        self.put(self.amounts, self.by_name, context.groups(batch))


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda amounts, _, keys: amounts.add_many(keys, pa.array([1, None, 2])), "None cannot be an element"),
        (lambda amounts, _, keys: amounts.add_many(keys, [1, "x", 2]), "'x' is not an integer"),
        (lambda amounts, _, keys: amounts.put_many(keys, [[1], [2, None], None]), "None cannot be an element"),
        (lambda amounts, _, keys: amounts.put_many(keys, [[], [2, "x"], None]), "'x' is not an integer"),
        (lambda _, by_name, keys: by_name.put_many(keys, ["a", None, "b"], [1, 2, 3]), "key of the map.*None"),
        (lambda _, by_name, keys: by_name.put_many(keys, ["a", "b", "c"], [None, "x", 3]), "'x' is not an integer"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_names_the_key_of_an_element_or_entry(backend: str, put: Any, message: str) -> None:
    with pytest.raises(UserFunctionError, match=f"a batch of 6 rows.*key 'south', value 1 of 3.*{message}"):
        run(PutsWrongParts(put), SALES, backend=backend)


@pytest.mark.parametrize(
    "use",
    [
        lambda amounts, _, keys: amounts.get_many(keys.keys),
        lambda amounts, _, keys: amounts.put_many(keys.keys, [[1], [2], [3]]),
        lambda amounts, _, keys: amounts.clear_many(keys.keys),
        lambda _, by_name, keys: by_name.get_many(keys.keys, ["a", "b", "c"]),
    ],
)
def test_an_array_of_keys_is_rejected(use: Any) -> None:
    reported = r"TypeError: keys are 'StringArray'; pass context\.groups\(batch\), or its of_rows"
    with pytest.raises(UserFunctionError, match=reported):
        run(PutsWrongParts(use), SALES)


class Emits(KeyedBatchFunction[str, Sale, Any]):
    def __init__(self, emit: Any) -> None:
        self.emit = emit

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        return self.emit(batch, context)


def test_it_emits_batches_and_tables_with_columns_by_name() -> None:
    reversed_columns = Emits(lambda batch, _: pa.table({"n": batch["amount"].cast("int32"), "s": batch["shop"]}))
    assert run(reversed_columns, SALES[:2], "s string, n bigint") == [("north", 3), ("south", 5)]
    assert run(Emits(lambda batch, context: [batch, batch]), SALES[:1], "shop string, amount int") == [("north", 3)] * 2
    assert run(Emits(lambda batch, context: None), SALES[:1], "shop string, amount int") == []


@pytest.mark.parametrize(
    ("emit", "error", "message"),
    [
        (lambda batch, _: [("north", 1)], UserFunctionError, "emitted .*which is not a pyarrow.RecordBatch"),
        (lambda batch, _: batch.select(["shop"]), RowMismatchError, r"a batch of the columns \(shop\)"),
        (
            lambda batch, _: pa.table({"shop": ["a"], "amount": [1 << 40]}),
            RowMismatchError,
            "column 'amount' .int32. cannot hold a column of type int64",
        ),
        (lambda batch, context: context.groups(batch.slice(0, 1)), UserFunctionError, "pass their mask"),
        (lambda batch, context: context.output(None, batch, [1]), UserFunctionError, "1 timestamps .* for 6 rows"),
        (lambda batch, context: context.output("late", batch), UserFunctionError, "takes an OutputTag or None"),
    ],
)
def test_wrong_output_is_an_error(emit: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"operator 'totals'.*{message}"):
        run(Emits(emit), SALES, "shop string, amount int")


def test_it_emits_to_side_outputs_and_drops_unread_ones() -> None:
    large: OutputTag[Any] = OutputTag("large", "shop string, amount bigint")
    unread: OutputTag[Any] = OutputTag("unread", "shop string")

    def emit(batch: pa.RecordBatch, context: BatchContext[str]) -> pa.RecordBatch:
        is_large = pc.greater(batch["amount"], 4)
        context.output(large, batch.filter(is_large))
        context.output(unread, batch)
        return batch.filter(pc.invert(is_large))

    environment = LocalStreamEnvironment()
    rows: list[Any] = []
    larger: list[Any] = []
    stream = environment.from_elements(SALES).as_records(Sale).key_by("shop")
    processed = stream.process(Emits(emit), uid="emits", schema="shop string, amount bigint")
    processed.sink_to(rows.append)
    processed.get_side_output(large).sink_to(larger.append, uid="larger")
    environment.execute("sales")
    assert sorted(map(tuple, larger)) == [("south", 5), ("west", 9)]
    assert len(rows) == 4


def test_a_large_batch_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_batch, "MAX_BATCH_ROWS", 4)

    def counted(batch: pa.RecordBatch, context: BatchContext[str]) -> pa.RecordBatch:
        assert len(context.groups(batch).index) == batch.num_rows
        return pa.record_batch({"rows": [batch.num_rows], "first": [context.groups(batch).keys[0].as_py()]})

    assert run(Emits(counted), SALES, "rows int, first string") == [(4, "north"), (2, "north")]
    monkeypatch.setattr(keyed_batch, "MAX_BATCH_BYTES", 1)
    assert run(Emits(counted), SALES, "rows int, first string") == [(1, sale.shop) for sale in SALES]


def test_an_input_without_a_schema_is_an_error() -> None:
    environment = LocalStreamEnvironment()
    environment.from_elements(SALES).key_by("shop").process(BatchTotals(), uid="totals", schema=OUTPUT).sink_to([])
    with pytest.raises(JobDefinitionError, match=r"BatchTotals takes Arrow batches.*call as_records"):
        environment.execute("sales")


def test_keys_of_several_columns_are_structs() -> None:
    def keys(batch: pa.RecordBatch, context: BatchContext[str]) -> pa.Table:
        groups = context.groups(batch)
        shops, amounts = groups.keys.flatten()
        return pa.table({"shop": shops, "amount": amounts, "rows": groups.sizes})

    rows = run(Emits(keys), [*SALES[:2], SALES[0]], "shop string, amount bigint, rows bigint", keys=("shop", "amount"))
    assert rows == [("north", 3, 2), ("south", 5, 1)]


class EveryKind(KeyedBatchFunction[str, Sale, Any]):
    """Stores the amounts of a shop in every kind of state, and emits them."""

    def open(self, context: BatchRuntimeContext) -> None:
        self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))
        self.by_amount = context.get_map_state(MapStateDescriptor("by amount", int, int))
        self.largest = context.get_reducing_state(ReducingStateDescriptor("largest", max, int))
        self.total = context.get_aggregating_state(AggregatingStateDescriptor("total", Total(), int))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        groups = context.groups(batch)
        amounts = batch["amount"]
        self.amounts.add_many(groups.of_rows, amounts)
        known = self.by_amount.get_many(groups.of_rows, amounts)
        self.by_amount.put_many(groups.of_rows, amounts, pc.add(known.fill_null(0), 1))
        largest = groups.aggregate([("amount", "max"), ("amount", "sum")])
        self.largest.merge_many(groups, largest.column(0), pc.max_element_wise)
        before = self.total.get_accumulators(groups)
        self.total.put_accumulators(groups, pc.add(before.fill_null(0), largest.column(1)))
        return pa.record_batch(
            [
                groups.keys,
                self.amounts.get_many(groups),
                self.by_amount.get_maps(groups),
                self.largest.get_many(groups),
                pa.array(self.total.get_results(groups)),
            ],
            ["shop", "amounts", "by_amount", "largest", "total"],
        )


class EveryKindByRecord(KeyedProcessFunction[str, Sale, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))
        self.by_amount = context.get_map_state(MapStateDescriptor("by amount", int, int))
        self.largest = context.get_reducing_state(ReducingStateDescriptor("largest", max, int))
        self.total = context.get_aggregating_state(AggregatingStateDescriptor("total", Total(), int))

    def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
        self.amounts.add(value.amount)
        self.by_amount.put(value.amount, (self.by_amount.get(value.amount) or 0) + 1)
        self.largest.add(value.amount)
        self.total.add(value.amount)
        amounts, by_amount = self.amounts.get(), dict(self.by_amount.items())
        yield context.current_key, amounts, by_amount, self.largest.get(), self.total.get()


class Total(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return 2 * accumulator


EVERY_KIND = "shop string, amounts array<bigint>, by_amount map<bigint,bigint>, largest bigint, total bigint"


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_names_the_conversion_of_values(backend: str) -> None:
    pytest.importorskip("numpy")
    rows = run(TellsConversion(), SALES, "is_vectorised boolean", backend=backend)
    assert rows == [(True,)]


class StatesOfEveryPath(KeyedBatchFunction[str, Sale, Any]):
    """Emits the names of its states that have a vectorised path."""

    def open(self, context: BatchRuntimeContext) -> None:
        day, seen = StateTtlConfig("1 day"), TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        descriptors: list[Any] = [
            ValueStateDescriptor("totals", Totals),
            ValueStateDescriptor("expiring", int, ttl=day),
            ValueStateDescriptor("seen", int, ttl=StateTtlConfig("1 day", visibility=seen)),
            ValueStateDescriptor("day", datetime.date),
            ListStateDescriptor("words", str),
            ListStateDescriptor("days", datetime.date),
            ListStateDescriptor("expiring words", str, ttl=day),
            MapStateDescriptor("map", str, int),
            ReducingStateDescriptor("sum", operator.add, int),
            AggregatingStateDescriptor("doubled", Total(), int),
        ]
        self.states = {one.name: context.register(one) for one in descriptors}

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        return pa.table({"name": list(self.states), "is": [one.is_vectorised for one in self.states.values()]})


@pytest.mark.parametrize("metrics", [None, StateMetricsConfig()])
@pytest.mark.parametrize("backend", BACKENDS)
def test_explain_names_the_path_of_each_state(backend: str, metrics: StateMetricsConfig | None) -> None:
    pytest.importorskip("numpy")
    rows: list[Any] = []
    environment = LocalStreamEnvironment(backend=backend, metrics=metrics)
    keyed = environment.from_elements(SALES).as_records(Sale).key_by("shop")
    keyed.process(StatesOfEveryPath(), uid="paths", schema="name string, is boolean").sink_to(rows, uid="rows")
    keyed.aggregate(uid="exact", n=count()).sink_to([], uid="exact-rows")
    keyed.aggregate(uid="ordered", n=count(), last=last_value("amount")).sink_to([], uid="ordered-rows")
    lines = environment.explain().splitlines()
    assert lines[0] == "operator 'paths': batches of Arrow columns"
    assert "    map state 'map': as objects (map state is not vectorised)" in lines
    exact = lines.index("operator 'exact': aggregates; Arrow aggregates batches of columns by key before state is read")
    is_in_columns = metrics is None
    of_objects = "as objects (once per key and epoch)"
    assert lines[exact + 1] == f"    value state 'accumulators': {'vectorised' if is_in_columns else of_objects}"
    assert "operator 'ordered': aggregates, record by record because of last" in lines
    assert lines[-1] == f"    value state 'accumulators': {of_objects}"
    environment.execute("sales")
    assert rows
    for name, is_vectorised in rows:
        [line] = [line for line in lines if f" state {name!r}" in line]
        assert line.endswith("vectorised") == is_vectorised


@pytest.mark.parametrize("bound", [{"cache_entries": 1}, {"cache_bytes": 1}])
@pytest.mark.parametrize("epoch_size", [None, 1])
def test_a_small_cache_changes_nothing(bound: dict[str, int], epoch_size: int | None) -> None:
    sales = [Sale(f"shop {number % 7}", number) for number in range(40)]
    options: dict[str, Any] = {"epoch_size": epoch_size, "backend": RocksDBStateBackend(**bound)}
    assert last_by_shop(run(BatchTotals(), sales, **options)) == last_by_shop(run(RecordTotals(), sales))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("epoch_size", [None, 2])
def test_every_kind_of_state_equals_that_of_record_functions(backend: str, epoch_size: int | None) -> None:
    options: dict[str, Any] = {"backend": backend, "epoch_size": epoch_size, "schema": EVERY_KIND}
    batches, records = (last_by_shop(run(form(), SALES, **options)) for form in (EveryKind, EveryKindByRecord))
    assert batches == records
    assert batches["north"] == ([3, 4, 1], {1: 1, 3: 1, 4: 1}, 4, 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lists_are_replaced_and_a_null_list_clears(backend: str) -> None:
    class Replaces(KeyedBatchFunction[str, Sale, Any]):
        def open(self, context: BatchRuntimeContext) -> None:
            self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))

        def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
            groups = context.groups(batch)
            self.amounts.put_many(groups, pa.array([[1, 2], [3], []], pa.list_(pa.int32())))
            yield pa.table({"amounts": self.amounts.get_many(groups)})
            self.amounts.put_many(groups, pa.array([None, [4], [5]]))
            yield pa.table({"amounts": self.amounts.get_many(groups)})
            self.amounts.put_many(groups, [[6], None, []])
            self.amounts.clear_many(groups.take([0]))
            yield pa.table({"amounts": self.amounts.get_many(groups)})

    rows = [row[0] for row in run(Replaces(), SALES, "amounts array<bigint>", backend=backend)]
    assert rows == [[1, 2], [3], [], [], [4], [5], [], [], []]


def test_a_kernel_needs_distinct_keys_and_no_nulls() -> None:
    class Merges(KeyedBatchFunction[str, Sale, Any]):
        def __init__(self, has_null: bool) -> None:
            self.has_null = has_null

        def open(self, context: BatchRuntimeContext) -> None:
            self.largest = context.get_reducing_state(ReducingStateDescriptor("largest", max, int))

        def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
            groups = context.groups(batch)
            keys = groups if self.has_null else groups.of_rows
            self.largest.merge_many(keys, pa.nulls(len(keys), pa.int64()), pc.max_element_wise)

    with pytest.raises(UserFunctionError, match="state 'largest': a key occurs twice"):
        run(Merges(False), SALES)
    with pytest.raises(UserFunctionError, match="null cannot be folded"):
        run(Merges(True), SALES)


class Reminders(KeyedBatchFunction[str, Sale, Any]):
    """Registers timers at the amount in milliseconds, and deletes those of the west shop."""

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Any:
        groups = context.groups(batch)
        times = context.timer_service
        assert context.timestamps is not None
        assert context.timestamps.to_pylist() == batch["amount"].to_pylist()
        times.register_event_time_timers(groups.of_rows, pc.add(batch["amount"], 100))
        times.delete_event_time_timers(groups.filter(pc.equal(groups.keys, "west")), 109)
        late = pc.less_equal(context.timestamps, times.current_watermark())
        rows = batch.filter(late)
        return pa.table(
            {"what": pa.array(["late"] * rows.num_rows, "string"), "shop": rows["shop"], "at": rows["amount"]}
        )

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext[str]) -> Any:
        assert context.time_domain is TimeDomain.EVENT_TIME
        groups = context.groups(timers)
        assert groups.keys.take(groups.index).equals(timers["key"])
        first = timers["timestamp"][0].as_py()
        if first < 200:
            context.timer_service.register_event_time_timers(groups, first + 1000)
        what = pa.array(["timer"] * timers.num_rows)
        return pa.table({"what": what, "shop": timers["key"], "at": timers["timestamp"]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_event_time_timers_fire_in_batches(backend: str) -> None:
    environment = LocalStreamEnvironment(backend=backend)
    rows: list[Any] = []
    timed = (
        environment.from_elements(SALES)
        .as_records(Sale)
        .assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamps(lambda sale: sale.amount)
        )
    )
    timed.key_by("shop").process(Reminders(), uid="timers", schema="what string, shop string, at bigint").sink_to(
        rows.append
    )
    environment.execute("sales", drain=True)
    timers = [tuple(row)[1:] for row in rows if row[0] == "timer"]
    assert timers[:5] == [("north", 101), ("south", 101), ("north", 103), ("north", 104), ("south", 105)]
    assert sorted(timers[5:]) == [("north", 1101), ("south", 1101)]
    late = [tuple(row)[1:] for row in rows if row[0] == "late"]
    assert set(late) <= {("north", 4), ("north", 3), ("south", 1), ("north", 1)}


class RegistersMicroseconds(KeyedBatchFunction[str, Sale, Any]):
    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> None:
        times = pa.array([1_001, -1_001, None], pa.timestamp("us", "UTC"))
        keys = context.groups(batch).take([0, 0, 0])
        context.timer_service.register_event_time_timers(keys, times)

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext[str]) -> Any:
        return timers


def test_parts_of_a_millisecond_are_rounded_up_in_timers() -> None:
    rows: list[Any] = []
    environment = LocalStreamEnvironment()
    keyed = environment.from_elements(SALES[:1]).as_records(Sale).key_by("shop")
    keyed.process(RegistersMicroseconds(), uid="timers", schema="timestamp bigint, key string").sink_to(rows.append)
    environment.execute("sales", drain=True)
    assert [row[0] for row in rows] == [-1, 2]


class RemindsLater(KeyedBatchFunction[str, Sale, Any]):
    """Registers a timer for each key in a minute. The last key deletes the timer of the first one."""

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> None:
        groups = context.groups(batch)
        context.timer_service.register_processing_time_timers(groups, "1 minute")
        if "b" in groups.keys.to_pylist():
            context.timer_service.delete_processing_time_timers(groups.filter(pc.equal(groups.keys, "a")), 60_000)

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext[str]) -> Any:
        return timers


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_timers_of_the_clock_fire_for_their_keys_unless_they_are_deleted(backend: str) -> None:
    rows: list[Any] = []
    times = iter([0, 59_999, 60_000, 120_000, 180_000])
    environment = LocalStreamEnvironment(epoch_size=2, backend=backend, clock=lambda: next(times))
    sales = [("a",), ("b",), *[("c",)] * 6]
    keyed = environment.from_elements(sales, "shop string").key_by("shop")
    keyed.process(RemindsLater(), uid="timers", schema="timestamp bigint, key string").sink_to(rows)
    environment.execute("sales")
    assert [tuple(row) for row in rows] == [(60_000, "b"), (119_999, "c"), (120_000, "c")]


def test_only_a_function_with_on_timers_registers_timers() -> None:
    def register(batch: pa.RecordBatch, context: BatchContext[str]) -> None:
        context.timer_service.register_processing_time_timers(context.groups(batch), "1 minute")

    with pytest.raises(JobDefinitionError, match=r"does not override on_timers\(self, timers, context\)"):
        run(Emits(register), SALES)
